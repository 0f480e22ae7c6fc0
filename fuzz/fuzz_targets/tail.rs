//! The memory that outlives the process: arbitrary bytes, and encoded entries.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::tail::{LEDGER_BYTES, TAIL_HEADER_BYTES, TailEntries, encode_entry, encode_ledger};
use onefold_format::{Ledger, PoolId, TailHeader, TailOwner};

/// Boot, position and arbitrary bytes; and entries as position, records and checksums.
type Input = ([u8; 16], u64, Vec<u8>, Vec<(u64, Vec<u8>, Vec<u32>)>);

fuzz_target!(|input: Input| {
    let (boot, position, bytes, wanted) = input;
    let owner = TailOwner {
        pool: PoolId([7; 16]),
        boot,
    };
    if let Ok(Some((_, seed))) = TailHeader::decode(&bytes, &owner) {
        let _ = TailEntries::new(seed, &bytes[TAIL_HEADER_BYTES..]).count();
    }
    let _ = TailEntries::new(position as u32, &bytes).count();
    let mut ledger = vec![0; LEDGER_BYTES];
    let some = bytes.len().min(LEDGER_BYTES - TAIL_HEADER_BYTES);
    ledger[TAIL_HEADER_BYTES..][..some].copy_from_slice(&bytes[..some]);
    ledger[..TAIL_HEADER_BYTES].copy_from_slice(&encode_ledger(&owner));
    if let Ok(found) = Ledger::decode(&ledger, &owner) {
        assert!(found.is_some_and(|found| found.ended <= found.begun));
    }
    let header = TailHeader {
        owner,
        position: position / 512 * 512,
    };
    let (mut written, seed) = header.encode();
    assert_eq!(TailHeader::decode(&written, &owner), Ok(Some((header, seed))));
    let mut entries = Vec::new();
    for (position, records, sums) in &wanted {
        let sums: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        entries.extend(encode_entry(seed, *position, records, &sums));
        entries.extend(records);
        entries.extend(sums);
    }
    let found: Vec<_> = TailEntries::new(seed, &entries).collect();
    assert_eq!(found.len(), wanted.len());
    for (found, (position, records, sums)) in found.iter().zip(&wanted) {
        let found = found.as_ref().expect("it was just encoded");
        assert_eq!((found.position, found.records), (*position, &records[..]));
        assert_eq!(found.sums.len(), 4 * sums.len());
    }
    written[(position % TAIL_HEADER_BYTES as u64) as usize] ^= 1;
    assert!(!matches!(TailHeader::decode(&written, &owner), Ok(Some(_))));
});
