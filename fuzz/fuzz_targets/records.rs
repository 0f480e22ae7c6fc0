//! The records in a frame's payload: any bytes, and records of the right kind and length with
//! fields that the fuzzer chooses. It would rarely guess those lengths by itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::record::decode_all;

/// Kind, five numbers for the fields, and a place to change by this much.
type Recipe = (u8, [u64; 5], usize, u8);

fuzz_target!(|input: (Vec<Recipe>, &[u8])| {
    let (recipes, bytes) = input;
    look_at(bytes);
    let mut payload: Vec<u8> = recipes.iter().flat_map(record).collect();
    look_at(&payload);
    for (_, _, place, change) in &recipes {
        let place = place % payload.len();
        payload[place] ^= change;
    }
    look_at(&payload);
});

/// A record as it lies in a frame, put together here because the encoder refuses wrong fields.
fn record(recipe: &Recipe) -> Vec<u8> {
    let (choice, [a, b, c, d, e], _, _) = recipe;
    let (kind, length) = [(1, 48_u16), (2, 32), (3, 280), (4, 32)][usize::from(choice % 4)];
    let mut bytes = vec![0; usize::from(length)];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &[kind]);
    put(2, &length.to_le_bytes());
    // Small numbers are the valid ones, mostly.
    put(8, &(a >> (a % 64)).to_le_bytes());
    put(16, &(b >> (b % 64)).to_le_bytes());
    match kind {
        1 => {
            put(24, &((c % 514) as u32).to_le_bytes());
            put(32, &entry(*d));
            put(40, &entry(*e));
        }
        2 => {
            put(24, &((c % 514) as u32).to_le_bytes());
            put(28, &((d % 3) as u32).to_le_bytes());
        }
        3 => {
            put(8, &[0; 8]);
            let name = c.to_le_bytes().map(|byte| b'a' + byte % 26);
            put(24, &[1, (d % 5) as u8, 0, name.len() as u8]);
            put(32, &(a >> (a % 64)).to_le_bytes());
            put(40, &(b >> (b % 64)).to_le_bytes());
            put(48, &((e >> (e % 64)) << 12).to_le_bytes());
            put(152, &name);
        }
        _ => put(24, &(c >> (c % 64)).to_le_bytes()),
    }
    bytes
}

/// Absent, zero, private, or anything.
fn entry(number: u64) -> [u8; 8] {
    let address = (number >> 8) >> (number % 56);
    match number % 8 {
        0 => 0,
        1 => 1 << 40,
        2..=6 => address & ((1 << 40) - 1) | 2 << 40,
        _ => address,
    }
    .to_le_bytes()
}

/// Whatever is accepted must be what the encoder writes.
fn look_at(payload: &[u8]) {
    let mut at = 0;
    for record in decode_all(payload) {
        let Ok(record) = record else { return };
        let mut again = Vec::new();
        record.encode(&mut again);
        assert_eq!(
            payload.get(at..at + again.len()),
            Some(again.as_slice()),
            "{record:?}"
        );
        at += again.len();
    }
    assert!(
        payload.iter().skip(at).all(|byte| *byte == 0),
        "bytes after the last record"
    );
}
