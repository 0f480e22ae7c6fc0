//! The copy of the log's tail: any bytes, and what was encoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::tail::{TAIL_HEADER_BYTES, TailEntries, encode_entry};
use onefold_format::{PoolId, TailHeader};

fuzz_target!(|input: ([u8; 16], u64, Vec<u8>, Vec<(u64, Vec<u8>)>)| {
    let (boot, position, bytes, wanted) = input;
    if let Ok((_, seed)) = TailHeader::decode(&bytes) {
        let _ = TailEntries::new(seed, &bytes[TAIL_HEADER_BYTES..]).count();
    }
    let header = TailHeader {
        pool: PoolId([7; 16]),
        boot,
        position: position / 512 * 512,
    };
    let (mut written, seed) = header.encode();
    assert_eq!(TailHeader::decode(&written), Ok((header, seed)));
    let mut entries = Vec::new();
    for (position, records) in wanted.iter().filter(|(_, records)| !records.is_empty()) {
        entries.extend(encode_entry(seed, *position, records));
        entries.extend(records);
    }
    entries.extend(&bytes);
    let found: Vec<_> = TailEntries::new(seed, &entries).collect();
    let whole = wanted.iter().filter(|(_, records)| !records.is_empty());
    assert!(found.len() >= whole.clone().count());
    for (found, (position, records)) in found.iter().zip(whole) {
        assert_eq!((found.position, found.records), (*position, &records[..]));
    }
    written[(position % TAIL_HEADER_BYTES as u64) as usize] ^= 1;
    assert!(TailHeader::decode(&written).is_err());
});
