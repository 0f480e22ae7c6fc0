//! What the hosts of a shared pool have in common: the right to own groups and shards, calls to their owners, the space
//! extents, and the directory.
//!
//! Crash behaviour: each method that changes the cluster takes effect once and entirely, or not at all. After an error
//! it is unknown which, unless the method says otherwise.

use crate::Engine;
use onefold_format::{GivenRun, GroupId, Shard, SpaceExtent};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Parts that have one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owned {
    /// A group: a store.
    Group(GroupId),
    /// A shard of the fingerprint index.
    Shard(Shard),
}

impl fmt::Display for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owned::Group(group) => write!(f, "group {group}"),
            Owned::Shard(shard) => write!(f, "shard {shard} of the index"),
        }
    }
}

/// The hosts that share one pool, as one of them sees them.
pub trait Cluster: Send + Sync {
    /// Makes a group or a shard without parts and without an owner. `AlreadyExists` if there is one.
    fn create(&self, what: Owned) -> io::Result<()>;

    /// Becomes the owner. The former one can no longer change anything, and every call to it fails.
    ///
    /// # Errors
    ///
    /// [`TakeError::Held`] if there is a live owner that does not give it up; `NotFound` if there is no such group or
    /// shard.
    fn take(&self, what: Owned, options: &TakeOptions) -> Result<Arc<dyn Holding>, TakeError>;

    /// Removes a group or a shard that this host owns, with its parts. The data stays.
    fn remove(&self, holding: Arc<dyn Holding>) -> io::Result<()>;

    /// Asks the owner of a group or a shard. `answered` is called once, on any thread, perhaps before this returns; it
    /// must not wait.
    fn call(&self, what: Owned, request: Vec<u8>, timeout: Duration, answered: Answered);

    /// Gives blocks to the pool, and takes up to `take` space extents from it, or all if there are fewer. A group's exchanges
    /// have ascending numbers; a repeat of the last number changes nothing and returns the same (P4).
    ///
    /// A space extent that is given as one run can be taken again. Runs of other lengths are kept until all blocks of
    /// their extent have been given, by whichever groups: then this group takes the extent, in addition to the others,
    /// and can discard it as a whole.
    ///
    /// A record has room for [`EXCHANGE_ITEMS_MAX`](onefold_format::record::EXCHANGE_ITEMS_MAX) runs and extents. So an exchange takes fewer extents than there are if
    /// they would be too many; if too many are completed, some of these can be taken again at once.
    ///
    /// No write of a host that was fenced before this returns reaches the extents that it returns (P7).
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a number below the last one, for blocks that the pool has already, and for more runs than
    /// a record has room for: nothing changed. `TimedOut` if the cluster has not answered for some time, in which case the
    /// exchange may take effect later, and until then for each further call for the group.
    fn exchange(
        &self,
        group: GroupId,
        number: u64,
        give: &[GivenRun],
        take: u32,
    ) -> io::Result<Exchanged>;

    /// The group's last exchange, unless it has had none. The same holds for its extents (P7). An exchange of this host whose
    /// outcome is unknown takes no effect after this has returned. `TimedOut` while one is in progress.
    fn last_exchange(&self, group: GroupId) -> io::Result<Option<Exchanged>>;

    /// The number of space extents, and of those that can be taken.
    fn extent_counts(&self) -> io::Result<ExtentCounts>;

    /// The blocks with these numbers that no group has: of extents that can be taken, and those that groups gave of
    /// others. In ascending order, and not next to each other.
    fn given_blocks(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>>;

    /// Names, groups and hosts.
    fn directory(&self) -> &dyn Directory;
}

/// An exchange that has taken place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// The exchange's number.
    pub number: u64,
    /// The blocks that the group gave to the pool.
    pub given: Vec<GivenRun>,
    /// The space extents that the group took.
    pub taken: Vec<SpaceExtent>,
}

/// How many space extents a pool has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExtentCounts {
    /// Space extents that can be taken.
    pub free: u64,
    /// Space extents of the pool.
    pub all: u64,
}

/// A group or a shard that this host owns. Dropping the last handle gives it up.
pub trait Holding: Engine {
    /// What is owned.
    fn owned(&self) -> Owned;

    /// The session of this owner: greater than the session of every earlier owner.
    fn session(&self) -> u64;

    /// Answers calls to the group or the shard from now on, until it is given up or lost.
    fn serve(&self, answer: Arc<dyn Answer>) -> io::Result<()>;

    /// Sets the callback for events of the ownership, instead of an earlier one. It is called on threads that must not
    /// wait: at once if this owner knows already that the group or the shard is lost. An owner without a callback keeps it
    /// when another host asks.
    fn on_event(&self, on_event: OnEvent);
}

/// An event that an owner has to react to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerEvent {
    /// Close the pool, the group or the shard: another host wants it.
    ReleaseWanted,
    /// End: another host has taken it. Submitted operations no longer take effect.
    Lost {
        /// How the loss was noticed.
        reason: String,
    },
    /// End: it no longer exists in the cluster.
    Gone,
}

/// Called for events of an ownership.
pub type OnEvent = Box<dyn Fn(OwnerEvent) + Send + Sync>;

/// Answers calls.
pub trait Answer: Send + Sync {
    /// Answers a call, now or later, on any thread. `reply` may be dropped: then the caller does not know the outcome.
    fn answer(&self, request: Vec<u8>, reply: Reply);
}

/// Sends the reply to a call.
pub type Reply = Box<dyn FnOnce(Vec<u8>) + Send>;

/// Called with the outcome of a call.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, CallError>) + Send>;

/// Why a call has no reply.
#[derive(Debug)]
pub enum CallError {
    /// There is no owner that answers calls: the call has no effect.
    Unserved,
    /// No reply came in time, or it was lost: whether the call has an effect, now or later, is unknown.
    Unknown(io::Error),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unserved => f.write_str("no host serves it"),
            CallError::Unknown(error) => write!(f, "its owner did not reply: {error}"),
        }
    }
}

impl Error for CallError {}

/// Rows that all hosts see: small ones, which change seldom.
pub trait Directory: Send + Sync {
    /// All rows.
    fn read(&self) -> io::Result<Rows>;

    /// Sets these rows, or removes those without a value, if nothing has changed since `version`. Returns whether it
    /// did.
    fn change(&self, version: u64, changes: &[(String, Option<Vec<u8>>)]) -> io::Result<bool>;
}

/// The rows of a directory at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Changes with each change of a row.
    pub version: u64,
    /// The rows by their keys.
    pub rows: BTreeMap<String, Vec<u8>>,
}

/// How to become the owner of a pool, a group or a shard.
#[derive(Debug, Clone, Copy)]
pub struct TakeOptions {
    /// How long an owner of another run directory may be silent before it is considered dead. One of the same directory
    /// is dead, because this process has the directory's lock.
    pub patience: Duration,
    /// Ask a live owner to give it up.
    pub asks: bool,
    /// How often the owner renews the fences of former owners.
    pub fence_interval: Duration,
}

/// Why a pool, a group or a shard was not taken.
#[derive(Debug)]
pub enum TakeError {
    /// It has a live owner.
    Held {
        /// The owner's process and host.
        owner: String,
    },
    /// An operation on the cluster failed.
    Io(io::Error),
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TakeError::Held { owner } => write!(f, "the pool is in use by {owner}"),
            TakeError::Io(error) => error.fmt(f),
        }
    }
}

impl Error for TakeError {}

impl From<io::Error> for TakeError {
    fn from(error: io::Error) -> TakeError {
        TakeError::Io(error)
    }
}
