//! The orders and counts of a test: kinds of I/O, ends and probabilities.

#[cfg(doc)]
use crate::{Disk, Engine};

/// The unit that a power loss keeps whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// The kinds of I/O that are counted and can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// [`Disk::read_at`], and [`Disk::try_read_at`] where it does read.
    Read,
    /// [`Disk::write_at`].
    Write,
    /// [`Disk::sync`].
    Sync,
    /// [`Disk::discard`].
    Discard,
    /// [`Disk::reserve`].
    Reserve,
    /// [`Disk::set_len`].
    SetLen,
    /// [`Engine::create`].
    Create,
    /// [`Engine::replace`], of the part that takes the other's place.
    Replace,
    /// [`Engine::remove`].
    Remove,
}

impl Op {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Op::Read => "reading",
            Op::Write => "writing",
            Op::Sync => "syncing",
            Op::Discard => "discarding",
            Op::Reserve => "reserving",
            Op::SetLen => "setting the length to",
            Op::Create => "creating",
            Op::Replace => "putting into place",
            Op::Remove => "removing",
        }
    }
}

/// When a test's code runs, seen from the I/O that it interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The I/O has started, and has had no effect yet: a sync already knows the data it will cover,
    /// a read has not read.
    Before,
    /// The I/O has taken effect, and its caller does not know yet.
    After,
}

/// How a machine stops, and which one comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashKind {
    /// Unsynced data survives or not, sector by sector. In a cluster: another host takes the pool, without the memory
    /// that outlives the process.
    PowerLoss,
    /// Everything written stays readable, and is as durable as before. In a cluster: unacknowledged operations survive
    /// or not, and the same host takes the pool.
    ProcessKilled,
}

/// Weights for the remains of one write after a power loss. The default makes the three equally
/// likely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerLossBias {
    /// The whole write remains.
    pub whole: u32,
    /// Nothing of the write remains.
    pub lost: u32,
    /// Each sector remains or not by itself.
    pub torn: u32,
}

impl Default for PowerLossBias {
    fn default() -> PowerLossBias {
        PowerLossBias {
            whole: 1,
            lost: 1,
            torn: 1,
        }
    }
}

/// Probabilities, 0 to 1, with which an I/O fails without a cause.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FailureRates {
    /// The rate for reads.
    pub read: f64,
    /// The rate for writes.
    pub write: f64,
    /// The rate for syncs.
    pub sync: f64,
    /// The rate for discards.
    pub discard: f64,
}

/// How often an operation was requested, whether or not it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// I/Os.
    pub count: u64,
    /// Bytes that they asked for, together. Syncs and creations have none.
    pub bytes: u64,
}
