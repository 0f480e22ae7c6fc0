//! The handshake over a stream in memory.

use crate::TestExports;
use crate::client::{be32, be64, info_bytes, meta_context_bytes, option_bytes, string_bytes};
use crate::memory::{MemoryExport, SNAPSHOTS};
use onefold_nbd::handshake::{HandshakeError, Session, Terms, negotiate};
use onefold_nbd::wire::{option, option_reply, transmission_flag};
use onefold_nbd::{AttachError, Attached, ExportSummary, Exports, Peer};
use std::io::{self, Cursor, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The messages of a client, and the answers to them.
struct Script {
    said: Cursor<Vec<u8>>,
    told: Vec<u8>,
}

impl Read for Script {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.said.read(buf)
    }
}

impl Write for Script {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.told.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Outcome = Result<Option<Session>, HandshakeError>;

/// Runs a handshake with these options; returns its outcome and the bytes after the greeting.
fn run(client_flags: u32, options: &[Vec<u8>]) -> (Outcome, Vec<u8>) {
    let exports = TestExports::new(Arc::new(MemoryExport::new(1 << 20)));
    run_with(&exports, client_flags, options)
}

fn run_with(exports: &TestExports, client_flags: u32, options: &[Vec<u8>]) -> (Outcome, Vec<u8>) {
    let said = [&client_flags.to_be_bytes()[..], &options.concat()].concat();
    let mut script = Script {
        said: Cursor::new(said),
        told: Vec::new(),
    };
    let outcome = negotiate(&mut script, exports, &Peer::Unknown);
    assert_eq!(&script.told[..18], b"NBDMAGICIHAVEOPT\0\x03");
    (outcome, script.told.split_off(18))
}

/// Kind and data of each answer.
fn answers(mut told: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut answers = Vec::new();
    while !told.is_empty() {
        assert_eq!(be64(told), 0x0003_e889_0455_65a9);
        let len = be32(&told[16..]) as usize;
        answers.push((be32(&told[12..]), told[20..20 + len].to_vec()));
        told = &told[20 + len..];
    }
    answers
}

fn kinds(told: &[u8]) -> Vec<u32> {
    answers(told).into_iter().map(|(kind, _)| kind).collect()
}

fn session(outcome: Outcome) -> Session {
    outcome.map_err(|error| error.to_string()).unwrap().unwrap()
}

#[test]
fn go_describes_and_attaches() {
    let (outcome, told) = run(3, &[option_bytes(option::GO, &info_bytes("vol"))]);
    let session = session(outcome);
    assert_eq!(session.name, "vol");
    let terms = Terms {
        size_bytes: 1 << 20,
        read_only: false,
        structured_replies: false,
        base_allocation: false,
        bitmaps: 0,
    };
    assert_eq!(session.terms, terms);
    let answers = answers(&told);
    assert_eq!(answers.len(), 3);
    assert_eq!(
        (answers[0].0, be64(&answers[0].1[2..])),
        (option_reply::INFO, 1 << 20)
    );
    let flags = u16::from_be_bytes([answers[0].1[10], answers[0].1[11]]);
    // FLUSH, FUA, TRIM, WRITE_ZEROES, CAN_MULTI_CONN, CACHE, FAST_ZERO; DF only in chunks.
    assert_eq!(flags, 0b1101_0110_1101);
    let block_sizes: Vec<u32> = answers[1].1[2..].chunks(4).map(be32).collect();
    assert_eq!(block_sizes, [1, 4096, 32 << 20]);
    assert_eq!(answers[2], (option_reply::ACK, vec![]));
}

#[test]
fn structured_replies_and_metadata_context() {
    let (outcome, told) = run(
        3,
        &[
            option_bytes(option::STRUCTURED_REPLY, &[]),
            option_bytes(
                option::SET_META_CONTEXT,
                &meta_context_bytes("vol", &["x:y", "base:allocation"]),
            ),
            option_bytes(option::GO, &info_bytes("vol")),
        ],
    );
    let terms = session(outcome).terms;
    assert!(terms.structured_replies && terms.base_allocation);
    let answers = answers(&told);
    assert_eq!(
        answers[1],
        (
            option_reply::META_CONTEXT,
            b"\0\0\0\x01base:allocation".to_vec()
        )
    );
    let flags = u16::from_be_bytes([answers[3].1[10], answers[3].1[11]]);
    assert_ne!(flags & transmission_flag::SEND_DF, 0);
}

#[test]
fn a_context_selected_and_then_not_is_not_selected() {
    let select = |queries: &[&str]| {
        option_bytes(
            option::SET_META_CONTEXT,
            &meta_context_bytes("vol", queries),
        )
    };
    let (outcome, _) = run(
        3,
        &[
            option_bytes(option::STRUCTURED_REPLY, &[]),
            select(&["base:allocation"]),
            select(&[]),
            option_bytes(option::GO, &info_bytes("vol")),
        ],
    );
    assert!(!session(outcome).terms.base_allocation);
}

#[test]
fn contexts_are_listed() {
    let list = |queries: &[&str]| {
        option_bytes(
            option::LIST_META_CONTEXT,
            &meta_context_bytes("vol", queries),
        )
    };
    let structured = option_bytes(option::STRUCTURED_REPLY, &[]);
    let bitmaps = SNAPSHOTS as usize;
    for (queries, count) in [
        (&[][..], 1 + bitmaps),
        (&["base:"], 1),
        (&["base:allocation"], 1),
        (&["qemu:"], bitmaps),
        (&["qemu:dirty-bitmap:"], bitmaps),
        (&["qemu:dirty-bitmap:s3"], 1),
        (&["qemu:dirty-bitmap:s3", "base:"], 2),
        (&["qemu:dirty-bitmap:s", "qemu:dirty-bitmap", "qemu"], 0),
    ] {
        let (_, told) = run(3, &[structured.clone(), list(queries)]);
        let mut expected = vec![option_reply::ACK];
        expected.extend(vec![option_reply::META_CONTEXT; count]);
        expected.push(option_reply::ACK);
        assert_eq!(kinds(&told), expected, "{queries:?}");
    }
}

#[test]
fn bitmaps_are_selected_by_name() {
    let select = |queries: &[&str]| {
        let options = [
            option_bytes(option::STRUCTURED_REPLY, &[]),
            option_bytes(
                option::SET_META_CONTEXT,
                &meta_context_bytes("vol", queries),
            ),
            option_bytes(option::GO, &info_bytes("vol")),
        ];
        let (outcome, told) = run(3, &options);
        let contexts = answers(&told).into_iter();
        let contexts = contexts.filter(|(kind, _)| *kind == option_reply::META_CONTEXT);
        let contexts: Vec<Vec<u8>> = contexts.map(|(_, data)| data).collect();
        let session = session(outcome);
        assert_eq!(session.terms.bitmaps, session.attached.changes.len());
        (session.terms, contexts)
    };
    let (terms, contexts) = select(&[
        "qemu:dirty-bitmap:s7",
        "qemu:dirty-bitmap:none",
        "base:allocation",
        "qemu:dirty-bitmap:s3",
    ]);
    assert!(terms.base_allocation);
    assert_eq!(
        contexts,
        [
            &b"\0\0\0\x01base:allocation"[..],
            b"\0\0\0\x02qemu:dirty-bitmap:s3",
            b"\0\0\0\x03qemu:dirty-bitmap:s7"
        ]
    );
    assert_eq!(terms.bitmaps, 2);
    // Families of names can be listed, not selected.
    let (terms, contexts) = select(&["qemu:", "qemu:dirty-bitmap:", "base:"]);
    assert!(contexts.is_empty() && !terms.base_allocation && terms.bitmaps == 0);
    let all: Vec<String> = (0..SNAPSHOTS)
        .map(|n| format!("qemu:dirty-bitmap:s{n}"))
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (terms, contexts) = select(&all);
    assert_eq!((terms.bitmaps, contexts.len()), (31, 31));
}

#[test]
fn list_info_and_abort() {
    let options = [
        option_bytes(option::LIST, &[]),
        option_bytes(
            option::INFO,
            &[&string_bytes("vol")[..], &[0, 2, 0, 1, 0, 3]].concat(),
        ),
        option_bytes(option::ABORT, &[]),
    ];
    let (outcome, told) = run(3, &options);
    assert!(matches!(outcome, Ok(None)));
    let answers = answers(&told);
    assert_eq!(
        answers[0],
        (option_reply::SERVER, b"\0\0\0\x03vol".to_vec())
    );
    assert_eq!(
        answers[1],
        (option_reply::SERVER, b"\0\0\0\x06locked".to_vec())
    );
    assert_eq!(answers[2].0, option_reply::ACK);
    assert_eq!(answers[5], (option_reply::INFO, b"\0\x01vol".to_vec()));
    assert_eq!(answers.len(), 8);
}

#[test]
fn lists_are_sent_in_pages_and_have_an_end() {
    let list = [
        option_bytes(option::LIST, &[]),
        option_bytes(option::ABORT, &[]),
    ];
    for (others, told_names) in [(254, 256), (255, 257), (1000, 1002), (100_000, 16_384)] {
        let exports = TestExports::new(Arc::new(MemoryExport::new(4096)));
        exports.others.store(others, Ordering::SeqCst);
        let (outcome, told) = run_with(&exports, 3, &list);
        assert!(matches!(outcome, Ok(None)));
        let told = kinds(&told);
        let names = told.iter().filter(|kind| **kind == option_reply::SERVER);
        assert_eq!(names.count(), told_names);
        assert_eq!(told.len(), told_names + 2);
        assert!(exports.asked_max.load(Ordering::SeqCst) <= 256);
    }
}

#[test]
fn what_cannot_be_had_is_refused_and_the_handshake_goes_on() {
    let options = [
        option_bytes(5, &[]),
        option_bytes(0xdead_beef, b"whatever"),
        option_bytes(option::GO, &info_bytes("")),
        option_bytes(option::GO, &info_bytes("other")),
        option_bytes(option::GO, &info_bytes("locked")),
        option_bytes(option::GO, &info_bytes(&"x".repeat(5000))),
        option_bytes(option::GO, &[0, 0, 0, 1, 0xff, 0, 0]),
        option_bytes(option::INFO, b"\0\0\0\x09vol"),
        option_bytes(option::LIST, b"x"),
        option_bytes(
            option::SET_META_CONTEXT,
            &meta_context_bytes("vol", &["base:allocation"]),
        ),
        option_bytes(option::STRUCTURED_REPLY, b"x"),
        option_bytes(option::STRUCTURED_REPLY, &[]),
        option_bytes(option::SET_META_CONTEXT, b"\0\0\0\x03vol\xff\xff\xff\xff"),
        option_bytes(option::SET_META_CONTEXT, &meta_context_bytes("other", &[])),
        option_bytes(option::LIST, &[0; 100_000]),
        option_bytes(option::GO, &info_bytes("vol")),
    ];
    let (outcome, told) = run(3, &options);
    session(outcome);
    use option_reply::{ACK, ERR_INVALID, ERR_POLICY, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP, INFO};
    let expected = [
        ERR_UNSUP,
        ERR_UNSUP,
        ERR_UNKNOWN,
        ERR_UNKNOWN,
        ERR_POLICY,
        ERR_UNKNOWN,
        ERR_UNKNOWN,
        ERR_INVALID,
        ERR_INVALID,
        ERR_INVALID,
        ERR_INVALID,
        ACK,
        ERR_INVALID,
        ERR_UNKNOWN,
        ERR_TOO_BIG,
        INFO,
        INFO,
        ACK,
    ];
    assert_eq!(kinds(&told), expected);
}

#[test]
fn export_name_the_old_way() {
    for (client_flags, len) in [(3, 10), (1, 134), (0, 134)] {
        let (outcome, told) = run(client_flags, &[option_bytes(option::EXPORT_NAME, b"vol")]);
        assert_eq!(session(outcome).name, "vol");
        assert_eq!((told.len(), be64(&told)), (len, 1 << 20));
    }
    let (outcome, told) = run(3, &[option_bytes(option::EXPORT_NAME, b"other")]);
    assert!(matches!(outcome, Err(HandshakeError::NotAttached { .. })));
    assert!(told.is_empty());
}

#[test]
fn who_does_not_speak_the_protocol_is_cut_off() {
    assert!(matches!(
        run(4, &[]).0,
        Err(HandshakeError::UnknownClientFlags(4))
    ));
    assert!(matches!(run(3, &[]).0, Err(HandshakeError::Io(_))));
    let garbage = vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()];
    assert!(matches!(
        run(3, &garbage).0,
        Err(HandshakeError::NotAnOption(_))
    ));
    let mut endless = option_bytes(option::LIST, &[]);
    endless[12..].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(
        run(3, &[endless]).0,
        Err(HandshakeError::OptionTooLong { .. })
    ));
}

#[test]
fn no_name_is_the_default_export() {
    let mut exports = TestExports::new(Arc::new(MemoryExport::new(1 << 20)));
    let options = [
        option_bytes(option::STRUCTURED_REPLY, &[]),
        option_bytes(
            option::SET_META_CONTEXT,
            &meta_context_bytes("", &["base:allocation"]),
        ),
        option_bytes(option::INFO, b"\0\0\0\0\0\x01\0\x01"),
        option_bytes(option::GO, &info_bytes("")),
    ];
    exports.default_export = Some("vol".to_owned());
    let (outcome, told) = run_with(&exports, 3, &options);
    let session = session(outcome);
    assert_eq!(session.name, "vol");
    assert!(session.terms.base_allocation, "the contexts are kept");
    let name = (option_reply::INFO, b"\0\x01vol".to_vec());
    assert!(answers(&told).contains(&name), "the name is told");
    let (outcome, _) = run_with(&exports, 3, &[option_bytes(option::EXPORT_NAME, b"")]);
    assert_eq!(outcome.unwrap().unwrap().name, "vol");

    exports.default_export = None;
    let go = option_bytes(option::GO, &info_bytes(""));
    let (_, told) = run_with(&exports, 3, &[go, option_bytes(option::ABORT, &[])]);
    let (kind, text) = answers(&told).swap_remove(0);
    assert_eq!(kind, option_reply::ERR_UNKNOWN);
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("no default export"), "{text}");
}

/// Exports with these names, to none of which a client can attach.
struct Named(&'static [&'static str]);

impl Exports for Named {
    fn names(&self, _: Option<&str>, names_max: usize) -> Vec<String> {
        let names = self.0.iter().take(names_max);
        names.map(|name| (*name).to_owned()).collect()
    }

    fn describe(&self, _: &str) -> Result<ExportSummary, AttachError> {
        Err(AttachError::Unknown)
    }

    fn attach(&self, _: &str, _: &[String], _: &Peer) -> Result<Attached, AttachError> {
        Err(AttachError::Unknown)
    }
}

#[test]
fn the_only_export_is_the_default_one() {
    assert_eq!(Named(&["vol"]).default_export().as_deref(), Some("vol"));
    assert_eq!(Named(&[]).default_export(), None);
    assert_eq!(Named(&["a", "b"]).default_export(), None);
}
