//! The NBD protocol as bytes: constants, decoders and encoders, without any I/O or state.
//!
//! Names and numbers follow the specification
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).

#![allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]

/// First word of the greeting.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and first of every option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// First word of every answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, the same bits for server and client.
pub mod handshake_flag {
    /// Unknown options get an answer instead of a closed connection.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zero bytes at the end of the handshake by EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// The server's description of an export.
pub mod transmission_flag {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Handshake options.
pub mod option {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Answers to handshake options.
pub mod option_reply {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Pieces of information in answers to INFO and GO.
pub mod info {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Request types.
pub mod command {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Request flags.
pub mod command_flag {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks of structured replies.
pub mod chunk {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
}

/// States in answers to BLOCK_STATUS for `base:allocation`.
pub mod allocation {
    #![allow(missing_docs, reason = "as in the specification")]
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// States in answers to BLOCK_STATUS for a dirty bitmap, as QEMU defines them.
pub mod bitmap {
    #![allow(missing_docs, reason = "as in QEMU's interoperability document")]
    pub const DIRTY: u32 = 1 << 0;
}

/// The metadata context that every export has.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number by which replies refer to [`BASE_ALLOCATION`].
pub const BASE_ALLOCATION_ID: u32 = 1;
/// Followed by the name of a snapshot, the metadata context with the changes since.
pub const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";
/// The number by which replies refer to the first bitmap that a client selected; the others follow.
pub const FIRST_BITMAP_ID: u32 = 2;

/// Error numbers sent to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// The operation is not permitted: a change of a read-only export.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The request is not acceptable.
    Inval = 22,
    /// No space left, or a write beyond the end.
    NoSpace = 28,
    /// The export does not support this, or not fast.
    NotSup = 95,
    /// The export is going away.
    Shutdown = 108,
}

/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;

/// A request as sent, not judged in any way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`command_flag`], perhaps unknown ones.
    pub flags: u16,
    /// A value of [`command`], perhaps an unknown one.
    pub command: u16,
    /// The client's name for the request; the reply repeats it.
    pub cookie: u64,
    /// First byte concerned.
    pub offset: u64,
    /// Number of bytes concerned.
    pub len: u32,
}

/// The stream does not hold a request where one should begin, and cannot be followed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request begins with {found:#010x} instead of NBD's magic number")]
pub struct NotARequest {
    /// The bytes that were there instead of [`REQUEST_MAGIC`].
    pub found: u32,
}

/// Decodes the fixed part of a request.
pub fn decode_request(bytes: &[u8; REQUEST_BYTES]) -> Result<Request, NotARequest> {
    let mut fields = Fields(bytes);
    let magic = fields.u32().unwrap_or_default();
    if magic != REQUEST_MAGIC {
        return Err(NotARequest { found: magic });
    }
    Ok(Request {
        flags: fields.u16().unwrap_or_default(),
        command: fields.u16().unwrap_or_default(),
        cookie: fields.u64().unwrap_or_default(),
        offset: fields.u64().unwrap_or_default(),
        len: fields.u32().unwrap_or_default(),
    })
}

/// A cursor over big-endian fields; `None` when the bytes run out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string of the protocol: its length as 32 bits, then its bytes.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (string, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(string)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }
}

/// The fixed part of a reply: at most 28 bytes, kept without an allocation.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHeader {
    bytes: [u8; ReplyHeader::BYTES_MAX],
    len: usize,
}

impl ReplyHeader {
    const BYTES_MAX: usize = 28;

    /// The header of a reply whose bytes are all sent separately.
    pub(crate) fn empty() -> Self {
        Self {
            bytes: [0; Self::BYTES_MAX],
            len: 0,
        }
    }

    fn with(mut self, field: &[u8]) -> Self {
        let end = self.len + field.len();
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(field);
            self.len = end;
        }
        self
    }

    fn chunk(cookie: u64, flags: u16, kind: u16, payload_bytes: u32) -> Self {
        Self::empty()
            .with(&STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .with(&flags.to_be_bytes())
            .with(&kind.to_be_bytes())
            .with(&cookie.to_be_bytes())
            .with(&payload_bytes.to_be_bytes())
    }

    /// A simple reply: to anything in sessions without structured replies, and to everything but
    /// READ and BLOCK_STATUS in the others. The data of a READ follows it.
    pub fn simple(cookie: u64, error: Option<Errno>) -> Self {
        Self::empty()
            .with(&SIMPLE_REPLY_MAGIC.to_be_bytes())
            .with(&error.map_or(0, |errno| errno as u32).to_be_bytes())
            .with(&cookie.to_be_bytes())
    }

    /// A chunk with `len` bytes of data (at least one), which follow it.
    pub fn data(cookie: u64, last: bool, offset: u64, len: u32) -> Self {
        let flags = if last { chunk::DONE } else { 0 };
        Self::chunk(cookie, flags, chunk::OFFSET_DATA, len.saturating_add(8))
            .with(&offset.to_be_bytes())
    }

    /// A chunk that ends a reply and has no payload.
    pub fn done(cookie: u64) -> Self {
        Self::chunk(cookie, chunk::DONE, chunk::NONE, 0)
    }

    /// A chunk that ends a reply with an error, without a text.
    pub fn error(cookie: u64, errno: Errno) -> Self {
        Self::chunk(cookie, chunk::DONE, chunk::ERROR, 6)
            .with(&(errno as u32).to_be_bytes())
            .with(&0_u16.to_be_bytes())
    }

    /// A chunk with block states for one metadata context; `descriptors_bytes` of them follow it.
    pub fn block_status(cookie: u64, last: bool, context: u32, descriptors_bytes: u32) -> Self {
        let flags = if last { chunk::DONE } else { 0 };
        let payload_bytes = descriptors_bytes.saturating_add(4);
        Self::chunk(cookie, flags, chunk::BLOCK_STATUS, payload_bytes).with(&context.to_be_bytes())
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Appends one descriptor of a block-status chunk.
pub(crate) fn push_descriptor(descriptors: &mut Vec<u8>, len: u32, state: u32) {
    descriptors.extend_from_slice(&len.to_be_bytes());
    descriptors.extend_from_slice(&state.to_be_bytes());
}

/// The first bytes that a server sends.
pub(crate) fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    bytes[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    bytes[16..].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// Appends one answer to an option.
pub(crate) fn push_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    // Answers are built here, from names and texts of a few KiB at most.
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(data);
}

/// A string in the protocol's form, where more fields may follow.
pub(crate) fn counted_string(string: &str) -> Vec<u8> {
    let len = u32::try_from(string.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes(), string.as_bytes()].concat()
}

/// The data of an INFO answer about size and flags.
pub(crate) fn info_export(size_bytes: u64, flags: u16) -> Vec<u8> {
    [
        &info::EXPORT.to_be_bytes()[..],
        &export_fields(size_bytes, flags),
    ]
    .concat()
}

/// Size and flags, as in the answers to EXPORT_NAME and INFO.
pub(crate) fn export_fields(size_bytes: u64, flags: u16) -> Vec<u8> {
    [&size_bytes.to_be_bytes()[..], &flags.to_be_bytes()].concat()
}

/// The data of an INFO answer with the export's name.
pub(crate) fn info_name(name: &str) -> Vec<u8> {
    [&info::NAME.to_be_bytes()[..], name.as_bytes()].concat()
}

/// The data of an INFO answer about block sizes.
pub(crate) fn info_block_size(minimum: u32, preferred: u32, maximum: u32) -> Vec<u8> {
    [
        &info::BLOCK_SIZE.to_be_bytes()[..],
        &minimum.to_be_bytes(),
        &preferred.to_be_bytes(),
        &maximum.to_be_bytes(),
    ]
    .concat()
}

/// The data of an answer with a metadata context. Its number is 0 in a mere list.
pub(crate) fn meta_context(id: u32, name: &str) -> Vec<u8> {
    [&id.to_be_bytes()[..], name.as_bytes()].concat()
}
