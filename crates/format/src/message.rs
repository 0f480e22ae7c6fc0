//! The common parts of messages between hosts: a header with a magic, a version, the payload's length and a checksum,
//! and the payload.

use crate::bytes::{put, u16_at, u32_at};
use crate::cursor::{Cursor, impossible, put_text};
use crate::error::FormatError;

/// Most bytes of a message: a notification in Ceph carries this much without trouble.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The most bytes of a sentence in a message.
const SENTENCE_BYTES_MAX: usize = 1024;

/// Bytes of a reply before its payload.
pub(crate) const REPLY_HEADER_BYTES: usize = 32;

/// The field of a reply with the payload's length.
pub(crate) const REPLY_PAYLOAD_AT: usize = 20;

/// The version of all messages.
pub(crate) const VERSION: u16 = 1;

/// Checks magic, length, version and checksum of a message.
pub(crate) fn open(
    bytes: &[u8],
    header_bytes: usize,
    magic: &[u8; 4],
    payload_at: usize,
) -> Result<(), FormatError> {
    if bytes.len() < header_bytes {
        return Err(FormatError::Short {
            needed: header_bytes,
            got: bytes.len(),
        });
    }
    let (expected, found) = (u32::from_le_bytes(*magic), u32_at(bytes, 0));
    if found != expected {
        return Err(FormatError::Magic { expected, found });
    }
    let payload = u32_at(bytes, payload_at);
    let is_possible =
        bytes.len() <= MESSAGE_BYTES_MAX && payload as usize == bytes.len() - header_bytes;
    if !is_possible {
        return Err(impossible("payload", payload.into()));
    }
    let (expected, found) = (
        u32_at(bytes, header_bytes - 4),
        checksum(bytes, header_bytes),
    );
    if found != expected {
        return Err(FormatError::Checksum { expected, found });
    }
    let version = u16_at(bytes, 4);
    if version != VERSION {
        return Err(impossible("version", version.into()));
    }
    Ok(())
}

/// Checks the header of a reply to the request with this checksum.
pub(crate) fn open_reply(
    bytes: &[u8],
    magic: &[u8; 4],
    structure: &'static str,
    request: u32,
) -> Result<(), FormatError> {
    open(bytes, REPLY_HEADER_BYTES, magic, REPLY_PAYLOAD_AT)?;
    if u32_at(bytes, 24) != 0 {
        return Err(FormatError::Reserved { structure });
    }
    let found = u32_at(bytes, 16);
    if found != request {
        return Err(FormatError::Address {
            field: "checksum of the request",
            expected: request.into(),
            found: found.into(),
        });
    }
    Ok(())
}

/// Fills in the length of the payload, and the checksum: the last field of the header.
///
/// # Panics
///
/// For payloads that are too long, which is the writer's mistake.
pub(crate) fn seal(bytes: &mut [u8], header_bytes: usize, payload_at: usize) {
    assert!(
        bytes.len() <= MESSAGE_BYTES_MAX,
        "a message of {} bytes",
        bytes.len()
    );
    let payload = (bytes.len() - header_bytes) as u32;
    put(bytes, payload_at, &payload.to_le_bytes());
    let checksum = checksum(bytes, header_bytes);
    put(bytes, header_bytes - 4, &checksum.to_le_bytes());
}

/// The checksum that a message should have in the last field of its header.
fn checksum(bytes: &[u8], header_bytes: usize) -> u32 {
    let head = crc32c::crc32c(&bytes[..header_bytes - 4]);
    let gap = crc32c::crc32c_append(head, &[0; 4]);
    crc32c::crc32c_append(gap, &bytes[header_bytes..])
}

/// Appends a sentence for people. The end of a long one is cut off.
pub(crate) fn put_sentence(out: &mut Vec<u8>, text: &str) {
    let end = text.floor_char_boundary(SENTENCE_BYTES_MAX);
    put_text(out, &text.as_bytes()[..end]);
}

/// Reads a sentence.
pub(crate) fn take_sentence(
    rest: &mut Cursor<'_>,
    field: &'static str,
) -> Result<String, FormatError> {
    let text = rest.utf8(field)?;
    if text.len() > SENTENCE_BYTES_MAX {
        return Err(impossible(field, text.len() as u64));
    }
    Ok(text)
}

pub(crate) fn flag(field: &'static str, byte: u8) -> Result<bool, FormatError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(impossible(field, other.into())),
    }
}
