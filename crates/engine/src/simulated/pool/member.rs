//! A holding's machine as a part of its pool: what happens before each of its I/Os, and which of them a fence stops.

use super::super::Machine;
use super::super::State;
use super::super::disk::Request;
use super::super::orders::Op;
use super::super::stop::Stop;
use super::Pool;
use super::data::{Client, Shared, SharedParts, is_of_pool};
use crate::Part;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The place of a machine in its pool.
pub(in super::super) struct Member {
    pub(super) pool: Weak<Pool>,
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(super) host: usize,
    pub(super) client: Client,
}

impl Member {
    /// Stops the host, as if its process had died.
    pub(in super::super) fn host_dies(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.stop_process(self.host, self.client);
        }
    }

    /// Lets the process know that it was fenced.
    pub(in super::super) fn tell_fenced(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.tell_fenced(self.client);
        }
    }
}

impl Machine {
    /// Whether a part belongs to the pool that this machine's host shares.
    pub(in super::super) fn is_of_pool(&self, part: Part) -> bool {
        self.member.is_some() && is_of_pool(part)
    }

    /// Locks the pool's parts, if the part is one of them.
    ///
    /// Lock order: the pool's state, a machine's state, the pool's parts.
    pub(in super::super) fn shared(&self, part: Part) -> Option<SharedParts<'_>> {
        let member = self.member.as_ref()?;
        is_of_pool(part).then(|| SharedParts {
            shared: member.shared.lock().unwrap_or_else(PoisonError::into_inner),
            client: member.client,
        })
    }

    /// Does what happens between two I/Os anywhere in the pool, and counts the next one. Returns whether the host dies
    /// in it.
    pub(in super::super) fn begin_of_host(&self, request: &Request) -> io::Result<bool> {
        let Some(member) = &self.member else {
            return Ok(false);
        };
        let Some(pool) = member.pool.upgrade() else {
            return Err(io::Error::other("the simulated pool has ended"));
        };
        pool.between_ios();
        let admitted = self.admits(&self.state(), request);
        if admitted.is_err() {
            pool.tell_fenced(member.client);
        }
        admitted?;
        if (request.part, request.op) == (Part::Data, Op::Write) {
            pool.state().counts.data_bytes_written += request.bytes;
        }
        Ok(pool.count_io(member.host, member.client))
    }

    /// Fails after the machine stopped. An operation on data may get past a fence of which its process and the object
    /// know nothing.
    pub(in super::super) fn admits(&self, state: &State, request: &Request) -> io::Result<()> {
        let range = request.offset..request.offset + request.bytes;
        let is_sent = matches!(request.op, Op::Read | Op::Write | Op::Discard);
        if state.stopped == Some(Stop::Fenced)
            && request.part == Part::Data
            && is_sent
            && let Some(mut parts) = self.shared(request.part)
            && parts.shared.slips_through(parts.client, &range)
        {
            return Ok(());
        }
        state.check_running(request)
    }
}
