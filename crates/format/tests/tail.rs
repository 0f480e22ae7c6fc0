//! The copy of the log's tail: its state after a process died at any moment, and the records
//! recovered from it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_format::tail::{
    TAIL_ENTRY_BYTES, TAIL_HEADER_BYTES, TailEntries, TailEntry, encode_entry,
};
use onefold_format::{FormatError, PoolId, TailHeader};

const HEADER: TailHeader = TailHeader {
    pool: PoolId([3; 16]),
    boot: [5; 16],
    position: 12 << 9,
};

/// Entries one after the other, as the store writes them.
fn entries(seed: u32, of: &[(u64, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (position, records) in of {
        bytes.extend(encode_entry(seed, *position, records));
        bytes.extend(*records);
    }
    bytes
}

fn read(seed: u32, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    TailEntries::new(seed, bytes)
        .map(|TailEntry { position, records }| (position, records.to_vec()))
        .collect()
}

#[test]
fn a_header_comes_back() {
    let (bytes, seed) = HEADER.encode();
    assert_eq!(TailHeader::decode(&bytes), Ok((HEADER, seed)));
    let golden = [
        "3146544c01010000",
        "03030303030303030303030303030303",
        "05050505050505050505050505050505",
        "0018000000000000",
        "000000000000000000000000",
    ];
    let hex: String = bytes[..60]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(hex, golden.concat(), "what version 1.1 writes");
}

#[test]
fn every_changed_byte_of_a_header_is_noticed() {
    let (bytes, _) = HEADER.encode();
    for at in 0..TAIL_HEADER_BYTES {
        for bit in 0..8 {
            let mut changed = bytes;
            changed[at] ^= 1 << bit;
            assert!(
                TailHeader::decode(&changed).is_err(),
                "byte {at}, bit {bit}"
            );
        }
    }
    for len in 0..TAIL_HEADER_BYTES {
        let short = TailHeader::decode(&bytes[..len]);
        assert!(matches!(short, Err(FormatError::Short { .. })), "{len}");
    }
    assert!(TailHeader::decode(&[0; TAIL_HEADER_BYTES]).is_err());
}

#[test]
fn whole_entries_are_read_and_the_rest_is_not() {
    let (_, seed) = HEADER.encode();
    let all: [(u64, &[u8]); 3] = [(512, b"one"), (512, b"another"), (1024, &[9; 300])];
    let mut bytes = entries(seed, &all);
    let whole = read(seed, &bytes);
    assert_eq!(whole.len(), 3);
    assert!(
        whole
            .iter()
            .zip(all)
            .all(|(is, was)| is.0 == was.0 && is.1 == was.1)
    );
    // A process that died in the middle of an entry.
    let ends = [0, 19, 19 + 23, bytes.len()];
    for len in 0..bytes.len() {
        let before = ends.iter().filter(|end| **end <= len).count() - 1;
        assert_eq!(read(seed, &bytes[..len]), whole[..before], "{len} bytes");
    }
    // Any changed byte ends the tail before it.
    for at in 0..bytes.len() {
        let before = ends.iter().filter(|end| **end <= at).count() - 1;
        bytes[at] ^= 4;
        assert_eq!(read(seed, &bytes), whole[..before], "byte {at}");
        bytes[at] ^= 4;
    }
}

#[test]
fn what_an_earlier_tail_left_is_not_read() {
    let (_, seed) = HEADER.encode();
    let (_, earlier) = TailHeader {
        position: 4 << 9,
        ..HEADER
    }
    .encode();
    let mut bytes = entries(earlier, &[(512, b"first"), (512, b"second")]);
    assert_eq!(read(earlier, &bytes).len(), 2);
    assert_eq!(read(seed, &bytes), []);
    // Its second entry is right behind the first of this one.
    let new = entries(seed, &[(1024, b"third")]);
    bytes[..new.len()].copy_from_slice(&new);
    assert_eq!(read(seed, &bytes), [(1024, b"third".to_vec())]);
    assert_eq!(bytes.len(), 2 * TAIL_ENTRY_BYTES + 11);
}
