//! The handshake with a client that sends arbitrary bytes.
#![no_main]

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use onefold_nbd::handshake::negotiate;
use onefold_nbd::{
    AttachError, Attached, Export, ExportError, ExportSummary, Exports, Extent, Peer, Blocking,
    ZeroOptions,
};

/// A client that sends the fuzzer's bytes, and counts the server's.
struct Conversation<'a> {
    said: &'a [u8],
    answered: usize,
}

impl Read for Conversation<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.said.read(buf)
    }
}

impl Write for Conversation<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.answered += buf.len();
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An export that no request reaches in a handshake.
struct Untouched {
    read_only: bool,
}

const SIZE_BYTES: u64 = 1 << 20;

impl Export for Untouched {
    fn size_bytes(&self) -> u64 {
        SIZE_BYTES
    }
    fn preferred_block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn read(&self, _: u64, _: &mut [u8], _: Blocking) -> Result<(), ExportError> {
        panic!("a read in the handshake")
    }
    fn write(&self, _: u64, _: &[u8], _: Blocking) -> Result<(), ExportError> {
        panic!("a write in the handshake")
    }
    fn flush(&self) -> Result<(), ExportError> {
        panic!("a flush in the handshake")
    }
    fn trim(&self, _: Range<u64>, _: Blocking) -> Result<(), ExportError> {
        panic!("a trim in the handshake")
    }
    fn write_zeroes(&self, _: Range<u64>, _: ZeroOptions, _: Blocking) -> Result<(), ExportError> {
        panic!("zeroes in the handshake")
    }
    fn extents(&self, _: Range<u64>, _: usize, _: Blocking) -> Result<Vec<Extent>, ExportError> {
        panic!("block states in the handshake")
    }
    fn prefetch(&self, _: Range<u64>, _: &mut [u8]) -> Result<(), ExportError> {
        panic!("a prefetch in the handshake")
    }
}

struct Two;

fn find(name: &str) -> Result<Untouched, AttachError> {
    match name {
        "a" => Ok(Untouched { read_only: false }),
        "ro" => Ok(Untouched { read_only: true }),
        "no" => Err(AttachError::Refused("not now".to_owned())),
        _ => Err(AttachError::Unknown),
    }
}

impl Exports for Two {
    fn names(&self, after: Option<&str>, names_max: usize) -> Vec<String> {
        let names = ["a", "no", "ro"].into_iter();
        let rest = names.filter(|name| after.is_none_or(|after| *name > after));
        rest.take(names_max).map(str::to_owned).collect()
    }
    fn describe(&self, name: &str) -> Result<ExportSummary, AttachError> {
        find(name).map(|export| ExportSummary::of(&export))
    }
    fn snapshots(&self, name: &str, _: usize) -> Vec<String> {
        vec![format!("{name}1"), format!("{name}2")]
    }
    fn has_snapshot(&self, name: &str, snapshot: &str) -> bool {
        self.snapshots(name, 2).iter().any(|listed| listed == snapshot)
    }
    fn attach(&self, name: &str, since: &[String], _: &Peer) -> Result<Attached, AttachError> {
        assert!(since.len() <= 2);
        assert!(since.iter().all(|snapshot| snapshot.starts_with(name)));
        Ok(Attached::to(Arc::new(find(name)?)))
    }
}

/// A limit above any reply to one option: a list of three names, information, errors.
const ANSWER_BYTES_MAX: usize = 16 << 10;

fuzz_target!(|said: &[u8]| {
    let mut conversation = Conversation { said, answered: 0 };
    let outcome = negotiate(&mut conversation, &Two, &Peer::Unknown);
    if let Ok(Some(session)) = outcome {
        assert!(["a", "ro"].contains(&session.name.as_str()));
        assert_eq!(session.terms.size_bytes, SIZE_BYTES);
        assert_eq!(session.terms.read_only, session.name == "ro");
    }
    // An option has 16 bytes at least, so the input's length limits the server's replies.
    let options = said.len() / 16 + 2;
    assert!(conversation.answered <= options * ANSWER_BYTES_MAX);
});
