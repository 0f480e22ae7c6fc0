//! The records in a frame's payload: any bytes, and records of the right kind and length with
//! fields that the fuzzer chooses. It would rarely guess those lengths by itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::record::decode_all;

/// Kind, five numbers for the fields, and a place with the change to its byte.
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

/// A record in the form that a frame has, built here because the encoder refuses wrong fields.
fn record(recipe: &Recipe) -> Vec<u8> {
    let (choice, [a, b, c, d, e], _, _) = recipe;
    let runs = (e % 4) as u16;
    let kinds = [
        (1, 48_u16),
        (2, 32),
        (3, 280),
        (4, 32),
        (16, 32 + 8 * runs),
        (17, 40),
        (18, 32),
        (19, 32),
        (24, 32 + 8 * runs),
    ];
    let (kind, length) = kinds[usize::from(*choice) % kinds.len()];
    let mut bytes = vec![0; usize::from(length)];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &[kind]);
    put(2, &length.to_le_bytes());
    // Mostly small numbers, because these are valid.
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
            put(24, &volume(recipe));
        }
        16 => {
            put(24, &(c >> (c % 64)).to_le_bytes());
            for run in 0..runs {
                let place = (u64::from(run) * 100 + d % 128) << 40;
                let count = ((d >> 8) % 128) << 49;
                let run_bits = (d >> (d % 64)) & ((1 << 40) - 1) | place | count;
                put(32 + 8 * usize::from(run), &run_bits.to_le_bytes());
            }
        }
        17 | 19 => {
            put(24, &((c % 4098) as u16).to_le_bytes());
            put(26, &((c >> 16) as u16 % 4098).to_le_bytes());
            put(28, &((d % 7) as u32).to_le_bytes());
            if kind == 19 {
                put(8, &[0; 8]);
            } else if matches!(d % 7, 2..=4) {
                put(32, &(e >> (e % 64)).to_le_bytes());
            }
        }
        18 => {
            put(8, &[0; 8]);
            put(24, &((c % 4098) as u32).to_le_bytes());
        }
        24 => {
            let given = (c % 5) as u16;
            put(8, &[0; 8]);
            put(24, &given.to_le_bytes());
            put(26, &runs.saturating_sub(given).to_le_bytes());
            for item in 0..runs {
                let count = if item < given {
                    ((d >> 8) % 20_000) << 40
                } else {
                    0
                };
                let item_bits = (d >> (d % 64)) & ((1 << 28) - 1) | count;
                put(32 + 8 * usize::from(item), &item_bits.to_le_bytes());
            }
        }
        _ => put(24, &(c >> (c % 64)).to_le_bytes()),
    }
    bytes
}

/// A volume record without a map.
fn volume(recipe: &Recipe) -> [u8; 256] {
    let (_, [a, b, c, d, e], _, _) = recipe;
    let mut bytes = [0; 256];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    let name = c.to_le_bytes().map(|byte| b'a' + byte % 26);
    let (state, mode) = ((d % 5) as u8, (d >> 8) as u8 % 3);
    put(0, &[1, state, mode, name.len() as u8]);
    put(4, &((d >> 16) as u32 % 0x1_0010).to_le_bytes());
    put(8, &(a >> (a % 64)).to_le_bytes());
    put(16, &(b >> (b % 64)).to_le_bytes());
    put(24, &((e >> (e % 64)) << 12).to_le_bytes());
    put(56, &[(c % 3) as u8, name.len() as u8, (c >> 8) as u8 % 18]);
    put(60, &((c >> 16) as u32 % 86_402).to_le_bytes());
    put(128, &name);
    put(192, &name);
    bytes
}

/// An entry that is absent, zero, private, unshareable, shared, or random.
fn entry(number: u64) -> [u8; 8] {
    let address = (number >> 8) >> (number % 56);
    match number % 8 {
        0 => 0,
        1 => 1 << 40,
        2..=6 => address & ((1 << 40) - 1) | [2, 2, 10, 3, 3][(number % 8 - 2) as usize] << 40,
        _ => address,
    }
    .to_le_bytes()
}

/// Checks that every accepted record equals the encoder's output.
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
