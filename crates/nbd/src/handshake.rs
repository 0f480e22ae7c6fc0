//! The handshake: from the greeting to an attached export.
//!
//! Runs over any stream, so that tests and fuzzers need no sockets. It reads exactly the bytes of
//! the handshake: the byte after it is the first of a request.
//!
//! Invariants:
//! - Memory is bounded by `OPTION_BYTES_MAX` and `CONTEXTS_LISTED_MAX`, and work by these and
//!   `LIST_NAMES_MAX`, whatever a client sends and however many exports and snapshots there are.
//! - [`Exports::attach`] is called at most once, as the last step that can fail except for sending.

use crate::export::{AttachError, Attached, ExportSummary, Exports, Peer};
use crate::limits::{
    BITMAPS_MAX, CONTEXTS_LISTED_MAX, LIST_NAMES_MAX, LIST_PAGE_NAMES, NAME_BYTES_MAX,
    OPTION_BYTES_MAX, OPTION_BYTES_SKIPPED_MAX, PAYLOAD_BYTES_MAX,
};
use crate::wire::{
    self, BASE_ALLOCATION, BASE_ALLOCATION_ID, DIRTY_BITMAP, FIRST_BITMAP_ID, Fields, IHAVEOPT,
    handshake_flag, info, option, option_reply, transmission_flag,
};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};

/// The result of a handshake.
pub struct Session {
    /// The name that the client chose.
    pub name: String,
    /// The attached export, with the snapshots with which it is compared.
    pub attached: Attached,
    /// The agreed terms.
    pub terms: Terms,
}

/// The terms of client and server: everything needed to judge a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether replies to READ come in chunks.
    pub structured_replies: bool,
    /// Whether the client may ask which blocks are stored.
    pub base_allocation: bool,
    /// The number of snapshots with which the export is compared.
    pub bitmaps: usize,
}

impl Terms {
    /// Whether the client may ask for block states of any kind.
    pub(crate) fn has_context(&self) -> bool {
        self.base_allocation || self.bitmaps > 0
    }
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The stream failed, ended, or took too long.
    #[error("the connection failed in the handshake: {0}")]
    Io(#[from] io::Error),
    /// The client does not speak NBD.
    #[error("an option begins with {0:#018x} instead of NBD's magic number")]
    NotAnOption(u64),
    /// The client set a flag in the handshake that this server does not know.
    #[error("unknown client flags {0:#x}")]
    UnknownClientFlags(u32),
    /// The client announced more data than any option has.
    #[error("option {option} with {len} bytes of data")]
    OptionTooLong {
        /// The option's number.
        option: u32,
        /// The length announced.
        len: u32,
    },
    /// The old way to choose an export can report a failure only by closing the connection.
    #[error("cannot attach to export {name:?}: {reason}")]
    NotAttached {
        /// The requested name.
        name: String,
        /// The reason.
        reason: AttachError,
    },
}

/// Runs the handshake on the server's side. `None` if the client disconnected.
///
/// # Errors
/// See [`HandshakeError`]; in each case the connection can only be closed.
pub fn negotiate<S: Read + Write>(
    stream: &mut S,
    exports: &dyn Exports,
    peer: &Peer,
) -> Result<Option<Session>, HandshakeError> {
    stream.write_all(&wire::greeting())?;
    stream.flush()?;
    let client_flags = read_u32(stream)?;
    let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    if client_flags & !u32::from(known) != 0 {
        return Err(HandshakeError::UnknownClientFlags(client_flags));
    }
    let mut handshake = Handshake {
        exports,
        peer,
        no_zeroes: client_flags & u32::from(handshake_flag::NO_ZEROES) != 0,
        structured_replies: false,
        contexts: Contexts::default(),
        replies: Vec::new(),
    };
    loop {
        let mut next = match read_option(stream)? {
            ReadOption::Whole(number, data) => handshake.answer(number, &data)?,
            ReadOption::TooBig(number) => {
                handshake.refuse(number, option_reply::ERR_TOO_BIG, "too much data")
            }
        };
        loop {
            stream.write_all(&handshake.replies)?;
            stream.flush()?;
            handshake.replies.clear();
            let Next::List { after, names_left } = next else {
                break;
            };
            next = handshake.list_on(Some(&after), names_left);
        }
        match next {
            Next::Option | Next::List { .. } => {}
            Next::Leave => return Ok(None),
            Next::Serve(session) => return Ok(Some(*session)),
        }
    }
}

enum ReadOption {
    Whole(u32, Vec<u8>),
    /// The option's data is longer than anything sensible, and was skipped.
    TooBig(u32),
}

fn read_option<S: Read>(stream: &mut S) -> Result<ReadOption, HandshakeError> {
    let mut header = [0; 16];
    stream.read_exact(&mut header)?;
    let mut fields = Fields(&header);
    let magic = fields.u64().unwrap_or_default();
    if magic != IHAVEOPT {
        return Err(HandshakeError::NotAnOption(magic));
    }
    let number = fields.u32().unwrap_or_default();
    let len = fields.u32().unwrap_or_default();
    if len as usize <= OPTION_BYTES_MAX {
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        return Ok(ReadOption::Whole(number, data));
    }
    if u64::from(len) > OPTION_BYTES_SKIPPED_MAX || number == option::EXPORT_NAME {
        return Err(HandshakeError::OptionTooLong {
            option: number,
            len,
        });
    }
    let skipped = io::copy(&mut stream.take(u64::from(len)), &mut io::sink())?;
    if skipped < u64::from(len) {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(ReadOption::TooBig(number))
}

fn read_u32<S: Read>(stream: &mut S) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(Fields(&bytes).u32().unwrap_or_default())
}

/// The step after the answer to an option.
enum Next {
    Option,
    /// Send more names of the list after the present ones.
    List {
        after: String,
        names_left: usize,
    },
    Leave,
    Serve(Box<Session>),
}

/// The state between options.
struct Handshake<'a> {
    exports: &'a dyn Exports,
    peer: &'a Peer,
    no_zeroes: bool,
    structured_replies: bool,
    contexts: Contexts,
    /// The answers to the present option.
    replies: Vec<u8>,
}

/// The metadata contexts that a client selected.
#[derive(Default)]
struct Contexts {
    /// The export of the contexts; they hold for no other.
    export: String,
    base_allocation: bool,
    /// Names of snapshots, in the order of their contexts' numbers.
    since: Vec<String>,
}

impl Handshake<'_> {
    fn answer(&mut self, number: u32, data: &[u8]) -> Result<Next, HandshakeError> {
        Ok(match number {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.reply(number, option_reply::ACK, &[]);
                Next::Leave
            }
            option::LIST => self.list(data),
            option::INFO | option::GO => self.info_or_go(number, data),
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(number, data),
            _ => self.refuse(number, option_reply::ERR_UNSUP, "unknown option"),
        })
    }

    fn export_name(&mut self, data: &[u8]) -> Result<Next, HandshakeError> {
        let attached = self
            .export_named(data)
            .and_then(|name| Ok((self.attach(&name)?, name)));
        match attached {
            Ok((attached, name)) => {
                let summary = ExportSummary::of(attached.export.as_ref());
                let flags = self.transmission_flags(&summary);
                self.replies = wire::export_fields(summary.size_bytes, flags);
                if !self.no_zeroes {
                    self.replies.extend_from_slice(&[0; 124]);
                }
                Ok(self.serve(name, attached, &summary))
            }
            Err(reason) => Err(HandshakeError::NotAttached {
                name: String::from_utf8_lossy(data).into_owned(),
                reason,
            }),
        }
    }

    fn list(&mut self, data: &[u8]) -> Next {
        if !data.is_empty() {
            return self.refuse(
                option::LIST,
                option_reply::ERR_INVALID,
                "LIST takes no data",
            );
        }
        self.list_on(None, LIST_NAMES_MAX)
    }

    /// Adds a page of names to the answer.
    fn list_on(&mut self, after: Option<&str>, names_left: usize) -> Next {
        let page_max = LIST_PAGE_NAMES.min(names_left);
        let names = self.exports.names(after, page_max);
        for name in &names {
            let name = wire::counted_string(name);
            self.reply(option::LIST, option_reply::SERVER, &name);
        }
        match names.last() {
            Some(last) if names.len() == page_max && names_left > page_max => Next::List {
                after: last.clone(),
                names_left: names_left - page_max,
            },
            _ => {
                self.reply(option::LIST, option_reply::ACK, &[]);
                Next::Option
            }
        }
    }

    fn info_or_go(&mut self, number: u32, data: &[u8]) -> Next {
        let Some((name, wants_name)) = parse_info(data) else {
            return self.refuse(number, option_reply::ERR_INVALID, "malformed request");
        };
        let name = match self.export_named(name) {
            Ok(name) => name,
            Err(reason) => return self.refuse_attach(number, &reason),
        };
        if number == option::INFO {
            return match self.exports.describe(&name) {
                Ok(summary) => {
                    self.describe(number, &name, &summary, wants_name);
                    Next::Option
                }
                Err(reason) => self.refuse_attach(number, &reason),
            };
        }
        match self.attach(&name) {
            Ok(attached) => {
                let summary = ExportSummary::of(attached.export.as_ref());
                self.describe(number, &name, &summary, wants_name);
                self.serve(name, attached, &summary)
            }
            Err(reason) => self.refuse_attach(number, &reason),
        }
    }

    /// Sends size and block sizes whether requested or not: clients skip unknown information.
    fn describe(&mut self, number: u32, name: &str, summary: &ExportSummary, wants_name: bool) {
        let flags = self.transmission_flags(summary);
        let export = wire::info_export(summary.size_bytes, flags);
        self.reply(number, option_reply::INFO, &export);
        let blocks = wire::info_block_size(1, summary.preferred_block_bytes, PAYLOAD_BYTES_MAX);
        self.reply(number, option_reply::INFO, &blocks);
        if wants_name {
            self.reply(number, option_reply::INFO, &wire::info_name(name));
        }
        self.reply(number, option_reply::ACK, &[]);
    }

    fn structured_reply(&mut self, data: &[u8]) -> Next {
        let number = option::STRUCTURED_REPLY;
        if !data.is_empty() {
            return self.refuse(number, option_reply::ERR_INVALID, "takes no data");
        }
        self.structured_replies = true;
        self.reply(number, option_reply::ACK, &[]);
        Next::Option
    }

    fn meta_context(&mut self, number: u32, data: &[u8]) -> Next {
        let selects = number == option::SET_META_CONTEXT;
        if selects {
            self.contexts = Contexts::default();
        }
        if !self.structured_replies {
            let text = "negotiate structured replies first";
            return self.refuse(number, option_reply::ERR_INVALID, text);
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            return self.refuse(number, option_reply::ERR_INVALID, "malformed request");
        };
        let named = self.export_named(name);
        let name = match named.and_then(|name| self.exports.describe(&name).map(|_| name)) {
            Ok(name) => name,
            Err(reason) => return self.refuse_attach(number, &reason),
        };
        if selects {
            self.contexts.export.clone_from(&name);
        }
        // A query can list whole families of names, but only named contexts can be selected.
        let is_named = |text: &str| queries.contains(&text.as_bytes());
        let is_listed = queries.is_empty() || is_named("base:");
        if is_named(BASE_ALLOCATION) || !selects && is_listed {
            self.contexts.base_allocation |= selects;
            let id = if selects { BASE_ALLOCATION_ID } else { 0 };
            let context = wire::meta_context(id, BASE_ALLOCATION);
            self.reply(number, option_reply::META_CONTEXT, &context);
        }
        let is_family = |query: &&[u8]| [&b"qemu:"[..], DIRTY_BITMAP.as_bytes()].contains(query);
        let lists_all = !selects && (queries.is_empty() || queries.iter().any(is_family));
        let mut snapshots = if lists_all {
            self.exports.snapshots(&name, CONTEXTS_LISTED_MAX)
        } else {
            self.named_snapshots(&name, &queries)
        };
        if selects {
            snapshots.truncate(BITMAPS_MAX);
        }
        for (snapshot, id) in snapshots.iter().zip(FIRST_BITMAP_ID..) {
            let id = if selects { id } else { 0 };
            let context = wire::meta_context(id, &format!("{DIRTY_BITMAP}{snapshot}"));
            self.reply(number, option_reply::META_CONTEXT, &context);
        }
        if selects {
            self.contexts.since = snapshots;
        }
        self.reply(number, option_reply::ACK, &[]);
        Next::Option
    }

    /// The snapshots of an export that the queries name, in order.
    fn named_snapshots(&self, name: &str, queries: &[&[u8]]) -> Vec<String> {
        let queries = queries
            .iter()
            .filter_map(|query| std::str::from_utf8(query).ok());
        let named: BTreeSet<&str> = queries
            .filter_map(|query| query.strip_prefix(DIRTY_BITMAP))
            .filter(|snapshot| self.exports.has_snapshot(name, snapshot))
            .collect();
        named.into_iter().map(str::to_owned).collect()
    }

    /// The export that these bytes name; without any, the default export.
    fn export_named(&self, bytes: &[u8]) -> Result<String, AttachError> {
        match std::str::from_utf8(bytes) {
            Ok("") => self.exports.default_export().ok_or(AttachError::NoDefault),
            Ok(name) if name.len() <= NAME_BYTES_MAX => Ok(name.to_owned()),
            _ => Err(AttachError::Unknown),
        }
    }

    fn attach(&self, name: &str) -> Result<Attached, AttachError> {
        let since = if self.contexts.export == name {
            &self.contexts.since[..]
        } else {
            &[]
        };
        self.exports.attach(name, since, self.peer)
    }

    fn serve(&self, name: String, attached: Attached, summary: &ExportSummary) -> Next {
        let terms = Terms {
            size_bytes: summary.size_bytes,
            read_only: summary.read_only,
            structured_replies: self.structured_replies,
            base_allocation: self.contexts.base_allocation && self.contexts.export == name,
            bitmaps: attached.changes.len(),
        };
        Next::Serve(Box::new(Session {
            name,
            attached,
            terms,
        }))
    }

    fn transmission_flags(&self, summary: &ExportSummary) -> u16 {
        use transmission_flag as flag;
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        if summary.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if self.structured_replies {
            flags |= flag::SEND_DF;
        }
        flags
    }

    fn refuse_attach(&mut self, number: u32, reason: &AttachError) -> Next {
        let kind = match reason {
            AttachError::Unknown | AttachError::NoDefault => option_reply::ERR_UNKNOWN,
            AttachError::Refused(_) => option_reply::ERR_POLICY,
            AttachError::ShuttingDown => option_reply::ERR_SHUTDOWN,
        };
        self.refuse(number, kind, &reason.to_string())
    }

    fn refuse(&mut self, number: u32, kind: u32, text: &str) -> Next {
        self.reply(number, kind, text.as_bytes());
        Next::Option
    }

    fn reply(&mut self, number: u32, kind: u32, data: &[u8]) {
        wire::push_option_reply(&mut self.replies, number, kind, data);
    }
}

/// The export's name, and whether the client wants it repeated.
fn parse_info(data: &[u8]) -> Option<(&[u8], bool)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u16()?;
    let mut wants_name = false;
    for _ in 0..count {
        wants_name |= fields.u16()? == info::NAME;
    }
    fields.is_empty().then_some((name, wants_name))
}

/// The export's name and the queries.
fn parse_meta_context(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    // Each query takes at least four bytes, so that the count cannot make us allocate.
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(fields.string()?);
    }
    fields.is_empty().then_some((name, queries))
}
