//! The records in a frame's payload: any bytes, and whole records with a few bytes changed. The
//! second gets past the lengths and reserved bytes that the fuzzer would rarely guess.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::record::decode_all;
use onefold_format::{
    LayerId, Lba, Record, TreeRoot, UnmapTo, VolumeId, VolumeRecord, VolumeState,
};

/// Numbers for a record's fields, and a place to change: (kind, numbers, text, place, change).
type Recipe = (u8, [u64; 5], String, usize, u8);

fuzz_target!(|input: (Vec<Recipe>, &[u8])| {
    let (recipes, bytes) = input;
    look_at(bytes);
    let records: Vec<Record> = recipes.iter().map(record).collect();
    let mut payload = Vec::new();
    for record in &records {
        record.encode(&mut payload);
    }
    look_at(&payload);
    for (_, _, _, place, change) in &recipes {
        let place = place % payload.len();
        payload[place] ^= change;
    }
    look_at(&payload);
});

fn record(recipe: &Recipe) -> Record {
    let (kind, [a, b, c, d, e], text, _, _) = recipe;
    let entry = |bits: u64| onefold_format::Entry::from_bits(bits).unwrap_or_default();
    let (layer, lba, count) = (LayerId(*a), Lba(*b), *c as u32);
    match kind % 4 {
        0 => Record::Map {
            layer,
            lba,
            count,
            old: entry(*d),
            new: entry(*e),
        },
        1 => {
            let to = if d % 2 == 0 {
                UnmapTo::Absent
            } else {
                UnmapTo::Zero
            };
            Record::Unmap {
                layer,
                lba,
                count,
                to,
            }
        }
        2 => Record::VolumePut {
            slot: *b,
            volume: VolumeRecord {
                id: VolumeId(*c),
                layer,
                state: [
                    VolumeState::Importing,
                    VolumeState::Ready,
                    VolumeState::Deleting,
                ][(*d % 3) as usize],
                size_bytes: *e,
                created_unix_seconds: *d,
                map: TreeRoot::default(),
                name: text
                    .chars()
                    .filter(char::is_ascii_graphic)
                    .take(63)
                    .collect(),
            },
        },
        _ => Record::VolumeGone {
            slot: *b,
            volume: VolumeId(*c),
            layer,
        },
    }
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
