//! From a decoded request to a call of the export: every refusal that needs no data happens here.

use crate::export::ZeroOptions;
use crate::handshake::Terms;
use crate::limits::{PAYLOAD_BYTES_MAX, SMALL_PAYLOAD_BYTES};
use crate::wire::{Errno, Request, command, command_flag};
use std::ops::Range;

/// A request that is acceptable to its export. All ranges are within the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Send the range's content.
    Read {
        /// The range to read.
        range: Range<u64>,
        /// Whether the content must come in one chunk.
        whole: bool,
    },
    /// Store the payload.
    Write {
        /// The range to write.
        range: Range<u64>,
        /// Whether the data must be durable before the reply.
        fua: bool,
    },
    /// Do nothing.
    Nothing,
    /// Make answered requests durable.
    Flush,
    /// Forget the range's content.
    Trim {
        /// The range.
        range: Range<u64>,
        /// Whether the trim must be durable before the reply.
        fua: bool,
    },
    /// Make the range zeros.
    WriteZeroes {
        /// The range.
        range: Range<u64>,
        /// The client's options.
        options: ZeroOptions,
        /// Whether the zeros must be durable before the reply.
        fua: bool,
    },
    /// Send the range's states.
    BlockStatus {
        /// The range.
        range: Range<u64>,
        /// Whether only the first state is requested.
        only_first: bool,
    },
    /// Bring the range into memory; it is not empty.
    Prefetch(Range<u64>),
    /// Finish the requests in flight and close the connection.
    Disconnect,
}

/// Judges a request. The payload of a refused WRITE must still be skipped.
///
/// Requests of length zero are done at once: the specification leaves them undefined.
pub fn admit(request: &Request, terms: &Terms) -> Result<Command, Errno> {
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
    // A server that offers FUA must accept it on every request: old clients send it so.
    let allowed = FUA
        | match request.command {
            command::READ if terms.structured_replies => DF,
            command::WRITE_ZEROES => NO_HOLE | FAST_ZERO,
            command::BLOCK_STATUS => REQ_ONE,
            _ => 0,
        };
    if request.flags & !allowed != 0 {
        return Err(Errno::Inval);
    }
    let changes = matches!(
        request.command,
        command::WRITE | command::TRIM | command::WRITE_ZEROES
    );
    if changes && terms.read_only {
        return Err(Errno::Perm);
    }
    let range = match request.offset.checked_add(u64::from(request.len)) {
        Some(end) if end <= terms.size_bytes => Ok(request.offset..end),
        _ if matches!(request.command, command::WRITE | command::WRITE_ZEROES) => {
            Err(Errno::NoSpace)
        }
        _ => Err(Errno::Inval),
    };
    let fua = request.flags & FUA != 0;
    Ok(match request.command {
        command::READ | command::WRITE if request.len > PAYLOAD_BYTES_MAX => {
            return Err(Errno::Inval);
        }
        command::TRIM | command::WRITE_ZEROES | command::CACHE if request.len == 0 => {
            range.map(|_| Command::Nothing)?
        }
        command::READ => Command::Read {
            range: range?,
            whole: request.flags & DF != 0,
        },
        command::WRITE => Command::Write { range: range?, fua },
        command::DISC => Command::Disconnect,
        command::FLUSH => Command::Flush,
        command::TRIM => Command::Trim { range: range?, fua },
        command::CACHE => Command::Prefetch(range?),
        command::WRITE_ZEROES => Command::WriteZeroes {
            range: range?,
            options: ZeroOptions {
                fast_only: request.flags & FAST_ZERO != 0,
                keep_allocated: request.flags & NO_HOLE != 0,
            },
            fua,
        },
        command::BLOCK_STATUS if terms.has_context() && request.len > 0 => Command::BlockStatus {
            range: range?,
            only_first: request.flags & REQ_ONE != 0,
        },
        _ => return Err(Errno::Inval),
    })
}

/// Whether the payload is received into a separate buffer.
pub(crate) fn has_large_payload(request: &Request) -> bool {
    request.command == command::WRITE && request.len as usize > SMALL_PAYLOAD_BYTES
}
