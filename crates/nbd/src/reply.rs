//! Replies on their way out: single ones from workers, and batches from the connection's thread.

use crate::buffer::{ALIGNMENT, AlignedBuffer, PoolBuffer};
use crate::limits::{BATCH_REPLIES_MAX, SMALL_PAYLOAD_BYTES};
use crate::send_queue::Sink;
use crate::socket::Socket;
use crate::wire::ReplyHeader;
use std::io::{self, IoSlice};
use std::ops::{Deref, Range};

/// A reply that can wait in a queue.
#[derive(Debug)]
pub(crate) struct Reply {
    header: ReplyHeader,
    payload: Payload,
    sent: usize,
}

/// The part after a reply's header.
#[derive(Debug)]
pub(crate) enum Payload {
    None,
    Buffer(PoolBuffer),
    Bytes(Vec<u8>),
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Payload::None => &[],
            Payload::Buffer(buffer) => buffer,
            Payload::Bytes(bytes) => bytes,
        }
    }
}

impl Reply {
    pub(crate) fn new(header: ReplyHeader, payload: Payload) -> Self {
        Self {
            header,
            payload,
            sent: 0,
        }
    }

    fn len(&self) -> usize {
        self.header.as_bytes().len() + self.payload.len()
    }

    /// The unsent part.
    fn rest(&self) -> [IoSlice<'_>; 2] {
        let header = self.header.as_bytes();
        let payload_sent = self.sent.saturating_sub(header.len());
        [
            IoSlice::new(header.get(self.sent..).unwrap_or_default()),
            IoSlice::new(self.payload.get(payload_sent..).unwrap_or_default()),
        ]
    }
}

impl Sink<Reply> for Socket {
    fn try_send(&self, reply: &mut Reply) -> io::Result<bool> {
        while reply.sent < reply.len() {
            match Socket::try_send(self, &reply.rest())? {
                0 => return Ok(false),
                sent => reply.sent += sent,
            }
        }
        Ok(true)
    }

    fn send(&self, reply: &mut Reply) -> io::Result<()> {
        self.send_all(&mut reply.rest())
    }

    fn close(&self) {
        Socket::close(self);
    }
}

/// Replies that go out with one system call, in memory that is reused.
///
/// Payloads begin on aligned addresses, where exports read straight into them; the headers are
/// stored separately, together.
#[derive(Debug)]
pub(crate) struct Batch {
    payloads: AlignedBuffer,
    payloads_end: usize,
    headers: Vec<u8>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    header_end: usize,
    payload: Range<usize>,
}

impl Batch {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            payloads: AlignedBuffer::new(SMALL_PAYLOAD_BYTES)?,
            payloads_end: 0,
            headers: Vec::new(),
            parts: Vec::with_capacity(BATCH_REPLIES_MAX),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether one more reply with `payload_bytes` fits. A small one always fits an empty batch.
    pub(crate) fn has_room(&self, payload_bytes: usize) -> bool {
        self.parts.len() < BATCH_REPLIES_MAX
            && self.payloads_end + payload_bytes <= self.payloads.len()
    }

    /// Aligned memory for the payload of the next reply; empty if there is no room.
    pub(crate) fn slot(&mut self, payload_bytes: usize) -> &mut [u8] {
        let end = self.payloads_end + payload_bytes;
        self.payloads
            .get_mut(self.payloads_end..end)
            .unwrap_or_default()
    }

    /// Adds a reply. With an empty `header`, the reply is all payload, or the next piece of one that
    /// has begun. Its payload is the first `payload_bytes` of the slot.
    pub(crate) fn push(&mut self, header: &[u8], payload_bytes: usize) {
        self.headers.extend_from_slice(header);
        let payload = self.payloads_end..self.payloads_end + payload_bytes;
        self.payloads_end = payload.end.next_multiple_of(ALIGNMENT);
        self.parts.push(Part {
            header_end: self.headers.len(),
            payload,
        });
    }

    pub(crate) fn clear(&mut self) {
        self.payloads_end = 0;
        self.headers.clear();
        self.parts.clear();
    }

    /// Sends everything; the batch remains as it is. Neighbouring headers without a payload
    /// between them go as one piece.
    pub(crate) fn send(&self, socket: &Socket) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); 2 * BATCH_REPLIES_MAX + 1];
        let mut count = 0;
        let mut add = |bytes| {
            if let Some(slice) = slices.get_mut(count) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
        };
        let mut headers_begin = 0;
        for part in self.parts.iter().filter(|part| !part.payload.is_empty()) {
            add(self
                .headers
                .get(headers_begin..part.header_end)
                .unwrap_or_default());
            add(self.payloads.get(part.payload.clone()).unwrap_or_default());
            headers_begin = part.header_end;
        }
        add(self.headers.get(headers_begin..).unwrap_or_default());
        socket.send_all(slices.get_mut(..count).unwrap_or_default())
    }
}
