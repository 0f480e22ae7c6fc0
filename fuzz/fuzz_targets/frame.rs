//! A frame of the log, unchanged and after one changed bit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::PoolId;
use onefold_format::frame::{self, FRAME_PAYLOAD_MAX, FrameHeader};

fuzz_target!(|input: (u64, u64, u32, bool, usize, Vec<u8>)| {
    let (session, position, previous_checksum, last, flip, mut bytes) = input;
    let pool = PoolId([7; 16]);
    if let Ok(unchecked) = frame::decode_header(&bytes, pool) {
        let _ = frame::check(&unchecked, &bytes);
    }
    bytes.truncate(FRAME_PAYLOAD_MAX);
    let header = FrameHeader {
        session,
        commit: position,
        position,
        previous_checksum,
        last,
    };
    let mut written = Vec::new();
    let checksum = frame::encode(&header, pool, &bytes, &mut written);
    assert_eq!(written.len() as u64, frame::frame_bytes(bytes.len()));
    let found = frame::decode_header(&written, pool).expect("what was encoded is a frame");
    assert_eq!(
        (found.header, found.payload_bytes, found.checksum),
        (header, bytes.len(), checksum)
    );
    assert_eq!(frame::check(&found, &written), Ok(()));
    // A changed bit in header or payload must make one of the two functions fail.
    let used = frame::FRAME_HEADER_BYTES + bytes.len();
    written[flip % used] ^= 1 << (previous_checksum % 8);
    let noticed = match frame::decode_header(&written, pool) {
        Ok(unchecked) => frame::check(&unchecked, &written).is_err(),
        Err(_) => true,
    };
    assert!(
        noticed,
        "bit {} of byte {}",
        previous_checksum % 8,
        flip % used
    );
});
