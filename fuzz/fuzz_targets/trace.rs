//! A frame of a trace, unchanged and with a valid checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::trace::{self, TRACE_HEADER_BYTES, TRACE_PAYLOAD_MAX, TraceFrame};

fuzz_target!(|input: (u8, u64, &[u8])| {
    let (kind, position, bytes) = input;
    if let Some((header, payload)) = bytes.split_first_chunk() {
        let _ = trace::decode_header(header);
        let _ = trace::decode(header, payload, position);
    }
    // The header of a frame, adjusted to the payload.
    let payload = &bytes[..bytes.len().min(TRACE_PAYLOAD_MAX)];
    let mut frame = Vec::new();
    TraceFrame::Input { path: Vec::new() }.encode(position, &mut frame);
    frame.truncate(TRACE_HEADER_BYTES);
    frame[6] = kind;
    frame[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    frame[20..24].fill(0);
    frame.extend_from_slice(payload);
    let checksum = crc32c::crc32c(&frame);
    frame[20..24].copy_from_slice(&checksum.to_le_bytes());
    let (header, payload) = frame.split_first_chunk().expect("a header");
    if let Ok(read) = trace::decode(header, payload, position) {
        let mut again = Vec::new();
        read.encode(position, &mut again);
        assert_eq!(again, frame, "{read:?} has one form");
    }
});
