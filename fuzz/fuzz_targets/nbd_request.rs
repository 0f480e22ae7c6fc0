//! Requests, one after the other, under terms that the fuzzer chooses: every admitted request lies within the export
//! and does nothing that the terms forbid.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use onefold_nbd::PAYLOAD_BYTES_MAX;
use onefold_nbd::handshake::Terms;
use onefold_nbd::request::{Command, admit};
use onefold_nbd::wire::{REQUEST_BYTES, REQUEST_MAGIC, decode_request};

fuzz_target!(|input: (u64, bool, bool, bool, u8, &[u8])| {
    let (size_bytes, read_only, structured_replies, base_allocation, bitmaps, bytes) = input;
    let terms = Terms {
        size_bytes,
        read_only,
        structured_replies,
        base_allocation,
        bitmaps: usize::from(bitmaps),
    };
    for chunk in bytes.chunks_exact(REQUEST_BYTES) {
        let mut request = [0; REQUEST_BYTES];
        request.copy_from_slice(chunk);
        if decode_request(&request).is_err() {
            request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        }
        let request = decode_request(&request).expect("the magic number is right");
        if let Ok(command) = admit(&request, &terms) {
            look_at(&command, &terms);
        }
    }
});

fn look_at(command: &Command, terms: &Terms) {
    let inside = |range: &Range<u64>| {
        assert!(
            range.start <= range.end && range.end <= terms.size_bytes,
            "{command:?}"
        );
    };
    match command {
        Command::Read { range, .. } => {
            inside(range);
            assert!(range.end - range.start <= u64::from(PAYLOAD_BYTES_MAX));
        }
        Command::Write { range, .. } => {
            inside(range);
            assert!(!terms.read_only);
            assert!(range.end - range.start <= u64::from(PAYLOAD_BYTES_MAX));
        }
        Command::Trim { range, .. } | Command::WriteZeroes { range, .. } => {
            inside(range);
            assert!(!terms.read_only);
        }
        Command::Prefetch(range) => inside(range),
        Command::BlockStatus { range, .. } => {
            inside(range);
            assert!(terms.base_allocation || terms.bitmaps > 0);
            assert!(!range.is_empty());
        }
        Command::Nothing | Command::Flush | Command::Disconnect => {}
    }
}
