//! Bytes that a client has sent and the connection has not yet consumed.

use crate::buffer::AlignedBuffer;
use crate::limits::{INPUT_BYTES, INPUT_POLL_FAILURES_MAX, INPUT_POLL_TIME};
use crate::socket::Socket;
use crate::wire::REQUEST_BYTES;
use std::io;
use std::time::Instant;

/// After a large payload, the next one is expected to follow a single header: reading little more
/// than that leaves the payload to be read directly into its buffer, instead of being copied there.
const READ_AHEAD_OF_LARGE_PAYLOAD: usize = 8 * REQUEST_BYTES;

/// If fewer bytes than this are left, they are moved to the front of the buffer before the next
/// read, so that it has the whole buffer.
const CHEAP_TO_MOVE_BYTES: usize = 4096;

/// The connection's input buffer. One system call fetches as much as is there, so that a deep queue
/// of small requests costs few calls.
#[derive(Debug)]
pub(crate) struct Input {
    memory: AlignedBuffer,
    begin: usize,
    end: usize,
    /// When the last of the buffered bytes arrived.
    received_at: Instant,
    expects_large_payload: bool,
    patience: Patience,
}

impl Input {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            memory: AlignedBuffer::new(INPUT_BYTES)?,
            begin: 0,
            end: 0,
            received_at: Instant::now(),
            expects_large_payload: false,
            patience: Patience::default(),
        })
    }

    /// The buffered bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(self.begin..self.end).unwrap_or_default()
    }

    /// The first `len` bytes, which must be buffered.
    pub(crate) fn front_mut(&mut self, len: usize) -> &mut [u8] {
        let end = self.end.min(self.begin + len);
        self.memory.get_mut(self.begin..end).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.begin
    }

    pub(crate) fn received_at(&self) -> Instant {
        self.received_at
    }

    /// Drops `len` buffered bytes from the front.
    pub(crate) fn consume(&mut self, len: usize) {
        self.begin += len.min(self.len());
        if self.begin == self.end {
            self.begin = 0;
            self.end = 0;
        }
    }

    /// Records whether the current request has a payload that bypasses this buffer.
    pub(crate) fn expect_large_payload(&mut self, yes: bool) {
        self.expects_large_payload = yes;
    }

    /// Makes the next wait skip polling, because other threads have work now and polling would get
    /// in their way.
    pub(crate) fn leave_processor(&mut self) {
        self.patience.skipped = self.patience.skipped.max(1);
    }

    /// Waits until at least `len` bytes are buffered; they must fit. Returns false if the stream
    /// ended.
    pub(crate) fn wait_for(&mut self, socket: &Socket, len: usize) -> io::Result<bool> {
        if self.len() >= len {
            return Ok(true);
        }
        if self.len() < CHEAP_TO_MOVE_BYTES || self.memory.len() - self.begin < len {
            self.memory.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        while self.len() < len {
            let mut room_end = self.memory.len();
            if self.expects_large_payload {
                room_end = room_end.min(self.end + READ_AHEAD_OF_LARGE_PAYLOAD);
            }
            let room = self.memory.get_mut(self.end..room_end).unwrap_or_default();
            let received = self.patience.recv(socket, room)?;
            if received == 0 {
                return Ok(false);
            }
            self.end += received;
        }
        self.received_at = Instant::now();
        Ok(true)
    }

    /// Copies buffered bytes from the front to `target`, as many as fit; returns the number.
    pub(crate) fn copy_to(&self, target: &mut [u8]) -> usize {
        let len = self.len().min(target.len());
        if let (Some(target), Some(bytes)) = (target.get_mut(..len), self.bytes().get(..len)) {
            target.copy_from_slice(bytes);
        }
        len
    }

    /// Like [`Input::copy_to`], and consumes the bytes.
    pub(crate) fn move_to(&mut self, target: &mut [u8]) -> usize {
        let len = self.copy_to(target);
        self.consume(len);
        len
    }
}

/// Decides whether to poll for input before sleeping: only for clients for which polling has
/// recently succeeded.
#[derive(Debug, Default)]
struct Patience {
    /// Failed polls in a row.
    failures: u32,
    /// The number of waits left that skip polling.
    skipped: u32,
}

impl Patience {
    fn recv(&mut self, socket: &Socket, room: &mut [u8]) -> io::Result<usize> {
        if self.looks() {
            let found = socket.recv_within(room, INPUT_POLL_TIME)?;
            self.looked(found.is_some());
            if let Some(received) = found {
                return Ok(received);
            }
        }
        socket.recv(room)
    }

    fn looks(&mut self) -> bool {
        let looks = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        looks
    }

    fn looked(&mut self, found: bool) {
        self.failures = if found {
            0
        } else {
            (self.failures + 1).min(INPUT_POLL_FAILURES_MAX)
        };
        self.skipped = if found { 0 } else { (1 << self.failures) - 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_lost_by_and_by_and_regained_at_once() {
        let mut patience = Patience::default();
        let mut waits_until_look = |found| {
            let waits = (1..).find(|_| patience.looks());
            patience.looked(found);
            waits
        };
        assert_eq!(waits_until_look(false), Some(1));
        assert_eq!(waits_until_look(false), Some(2));
        assert_eq!(waits_until_look(false), Some(4));
        for _ in 0..20 {
            waits_until_look(false);
        }
        assert_eq!(waits_until_look(true), Some(1 << INPUT_POLL_FAILURES_MAX));
        assert_eq!(waits_until_look(true), Some(1));
        assert_eq!(waits_until_look(false), Some(1));
    }
}
