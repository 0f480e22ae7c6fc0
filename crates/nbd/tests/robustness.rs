//! Decoders and handshake against arbitrary bytes: they may fail, but not panic.

#![allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]

use onefold_nbd::handshake::{Terms, negotiate};
use onefold_nbd::request::{Command, admit};
use onefold_nbd::wire::{self, REQUEST_BYTES, REQUEST_MAGIC, Request};
use onefold_nbd::{AttachError, Attached, ExportSummary, Exports, Peer};
use std::io::{self, Read, Write};

/// Exports that can be described but not attached to.
struct Described;

impl Exports for Described {
    fn names(&self, after: Option<&str>, _: usize) -> Vec<String> {
        let names = vec!["vol".to_owned()];
        names.into_iter().filter(|_| after.is_none()).collect()
    }

    fn describe(&self, _name: &str) -> Result<ExportSummary, AttachError> {
        Ok(ExportSummary {
            size_bytes: 1 << 30,
            preferred_block_bytes: 4096,
            read_only: false,
        })
    }

    fn snapshots(&self, _name: &str, _: usize) -> Vec<String> {
        vec!["one".to_owned(), "two".to_owned()]
    }

    fn has_snapshot(&self, _name: &str, snapshot: &str) -> bool {
        ["one", "two"].contains(&snapshot)
    }

    fn attach(&self, _: &str, _: &[String], _: &Peer) -> Result<Attached, AttachError> {
        Err(AttachError::ShuttingDown)
    }
}

/// A stream that gives some bytes and takes any.
struct Fed<'a>(&'a [u8]);

impl Read for Fed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Fed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn handshakes_of_random_bytes_end() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut lengths = [0, 1, 3, 4, 8, 16, 100];
    for _ in 0..20_000 {
        // Half of the options begin correctly, so that the code after their headers is reached.
        let mut said = 3_u32.to_be_bytes().to_vec();
        for _ in 0..random.usize(1..6) {
            if random.bool() {
                said.extend(wire::IHAVEOPT.to_be_bytes());
                said.extend(random.u32(0..12).to_be_bytes());
                random.shuffle(&mut lengths);
                said.extend((lengths[0] as u32).to_be_bytes());
            }
            let few_values = random.bool();
            said.extend((0..lengths[1]).map(|_| {
                if few_values {
                    random.u8(0..4)
                } else {
                    random.u8(..)
                }
            }));
        }
        let outcome = negotiate(&mut Fed(&said), &Described, &Peer::Unknown);
        assert!(!matches!(outcome, Ok(Some(_))));
    }
}

#[test]
fn admitted_requests_lie_within_the_export() {
    let mut random = fastrand::Rng::with_seed(2);
    let (mut admitted, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let mut bytes = [0; REQUEST_BYTES];
        random.fill(&mut bytes);
        assert_eq!(
            wire::decode_request(&bytes).is_ok(),
            bytes[..4] == REQUEST_MAGIC.to_be_bytes()
        );
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        let request = wire::decode_request(&bytes).unwrap();
        let near = [0, 1, 4095, 4096, u64::MAX - 4096, u64::MAX];
        let size_bytes = near[random.usize(..near.len())];
        let request = Request {
            flags: request.flags & (1 << random.u32(..16)),
            command: request.command % 10,
            offset: near[random.usize(..near.len())],
            len: request.len >> random.u32(..32),
            ..request
        };
        let terms = Terms {
            size_bytes,
            read_only: random.bool(),
            structured_replies: random.bool(),
            base_allocation: random.bool(),
            bitmaps: random.usize(..2),
        };
        match admit(&request, &terms) {
            Ok(command) => {
                admitted += 1;
                if let Some(range) = range_of(&command) {
                    assert!(range.start <= range.end && range.end <= size_bytes);
                    assert_eq!(range.end - range.start, u64::from(request.len));
                }
                let changes = [1, 4, 6].contains(&request.command);
                assert!(!(terms.read_only && changes), "{request:?}");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(admitted > 1000 && refused > 1000);
}

fn range_of(command: &Command) -> Option<std::ops::Range<u64>> {
    match command {
        Command::Read { range, .. }
        | Command::Prefetch(range)
        | Command::Write { range, .. }
        | Command::BlockStatus { range, .. }
        | Command::Trim { range, .. }
        | Command::WriteZeroes { range, .. } => Some(range.clone()),
        Command::Nothing | Command::Flush | Command::Disconnect => None,
    }
}
