//! The memory that outlives the process: which content is read back, and which is refused.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_format::tail::{
    LEDGER_BYTES, LEDGER_SLOT_BYTES, LEDGER_SLOTS, LEDGER_SLOTS_AT, OTHER_VOLUMES,
    TAIL_ENTRY_BYTES, TAIL_HEADER_BYTES, TailEntries, TailEntry, encode_entry, encode_ledger,
};
use onefold_format::{FormatError, Ledger, PoolId, TailHeader, TailOwner, VolumeId};

const OWNER: TailOwner = TailOwner {
    pool: PoolId([3; 16]),
    boot: [5; 16],
};

const HEADER: TailHeader = TailHeader {
    owner: OWNER,
    position: 12 << 9,
};

/// An entry: position, records, checksums.
type Parts<'a> = (u64, &'a [u8], &'a [u8]);

/// Entries one after the other, as the store writes them.
fn entries(seed: u32, of: &[Parts<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (position, records, sums) in of {
        bytes.extend(encode_entry(seed, *position, records, sums));
        bytes.extend(*records);
        bytes.extend(*sums);
    }
    bytes
}

fn read(seed: u32, bytes: &[u8]) -> Result<Vec<Parts<'_>>, FormatError> {
    let entries = TailEntries::new(seed, bytes);
    entries.map(|entry| entry.map(parts_of)).collect()
}

fn parts_of(entry: TailEntry<'_>) -> Parts<'_> {
    (entry.position, entry.records, entry.sums)
}

#[test]
fn a_header_comes_back() {
    let (bytes, seed) = HEADER.encode();
    assert_eq!(TailHeader::decode(&bytes, &OWNER), Ok(Some((HEADER, seed))));
    let golden = [
        "3246544c01020000",
        "03030303030303030303030303030303",
        "05050505050505050505050505050505",
        "0018000000000000",
        "000000000000000000000000",
    ];
    let hex: String = bytes[..60]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(hex, golden.concat(), "what version 1.2 writes");
}

/// Memory written by another pool, or in another boot, does not belong to this owner; its own
/// header, if changed, is damage.
#[test]
fn a_header_is_of_another_owner_or_whole() {
    for bytes in [HEADER.encode().0, encode_ledger(&OWNER)] {
        let is_tail = bytes == HEADER.encode().0;
        let mut page = vec![0; LEDGER_BYTES];
        let mut found = |bytes: &[u8]| {
            page[..TAIL_HEADER_BYTES].copy_from_slice(bytes);
            if is_tail {
                TailHeader::decode(bytes, &OWNER).map(|found| found.is_some())
            } else {
                Ledger::decode(&page, &OWNER).map(|found| found.is_some())
            }
        };
        assert_eq!(found(&bytes), Ok(true));
        assert_eq!(found(&[0; TAIL_HEADER_BYTES]), Ok(false));
        for at in 0..TAIL_HEADER_BYTES {
            for bit in 0..8 {
                let mut changed = bytes;
                changed[at] ^= 1 << bit;
                let owner_changed = at < 4 || (8..40).contains(&at);
                match found(&changed) {
                    Ok(is_there) => assert!(!is_there && owner_changed, "byte {at}, bit {bit}"),
                    Err(_) => assert!(!owner_changed || at == 0, "byte {at}, bit {bit}"),
                }
            }
        }
    }
    for len in 0..TAIL_HEADER_BYTES {
        let short = TailHeader::decode(&HEADER.encode().0[..len], &OWNER);
        assert!(matches!(short, Err(FormatError::Short { .. })), "{len}");
    }
}

/// The first layout had no ledger: its records are not ignored.
#[test]
fn a_half_of_the_first_layout_is_refused() {
    let mut bytes = HEADER.encode().0;
    bytes[0] = b'1';
    assert!(matches!(
        TailHeader::decode(&bytes, &OWNER),
        Err(FormatError::Magic { .. })
    ));
    let other = TailOwner {
        boot: [6; 16],
        ..OWNER
    };
    assert_eq!(TailHeader::decode(&bytes, &other), Ok(None));
}

#[test]
fn all_entries_are_read_or_none() {
    let (_, seed) = HEADER.encode();
    let all: [Parts<'_>; 3] = [
        (512, b"one", b""),
        (512, b"another", &[1, 2, 3, 4]),
        (1024, &[9; 300], &[7; 80]),
    ];
    let mut bytes = entries(seed, &all);
    assert_eq!(read(seed, &bytes), Ok(all.to_vec()));
    let ends = [0, 1, 2].map(|n| entries(seed, &all[..n]).len());
    for len in 0..bytes.len() {
        let is_whole = ends.contains(&len);
        assert_eq!(read(seed, &bytes[..len]).is_ok(), is_whole, "{len} bytes");
    }
    for at in 0..bytes.len() {
        bytes[at] ^= 4;
        assert!(read(seed, &bytes).is_err(), "byte {at}");
        bytes[at] ^= 4;
    }
    let (_, other) = TailHeader {
        position: 4 << 9,
        ..HEADER
    }
    .encode();
    assert!(read(other, &bytes).is_err(), "entries of another tail");
    assert_eq!(entries(seed, &all[..1]).len(), TAIL_ENTRY_BYTES + 3);
}

#[test]
fn a_ledger_has_the_volumes_that_no_good_sync_covers() {
    let mut bytes = vec![0; LEDGER_BYTES];
    bytes[..TAIL_HEADER_BYTES].copy_from_slice(&encode_ledger(&OWNER));
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    // Begun, ended, good.
    for (word, value) in [(0, 7), (1, 5), (2, 6)] {
        put(64 + 8 * word, value);
    }
    for (slot, label, volume) in [
        (0, 5, 3),
        (1, 6, 4),
        (2, 7, 9),
        (LEDGER_SLOTS - 1, 8, u64::MAX),
    ] {
        put(LEDGER_SLOTS_AT + slot * LEDGER_SLOT_BYTES, label);
        put(LEDGER_SLOTS_AT + slot * LEDGER_SLOT_BYTES + 8, volume);
    }
    let ledger = Ledger::decode(&bytes, &OWNER).unwrap().unwrap();
    let unsynced = vec![VolumeId(4), VolumeId(9), OTHER_VOLUMES];
    let expected = Ledger {
        begun: 7,
        ended: 5,
        has_failed: false,
        unsynced,
    };
    assert_eq!(ledger, expected);
    assert!(ledger.is_unsettled());
    bytes[72] = 8;
    assert!(
        Ledger::decode(&bytes, &OWNER).is_err(),
        "more ended than began"
    );
    bytes[72] = 7;
    bytes[88] = 1;
    let ledger = Ledger::decode(&bytes, &OWNER).unwrap().unwrap();
    assert!(ledger.has_failed && !ledger.is_unsettled());
}
