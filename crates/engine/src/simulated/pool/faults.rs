//! Probabilities of faults between hosts, and counts of what happened.

#[cfg(doc)]
use crate::Cluster;

/// Probabilities, 0 to 1, of faults between hosts. All are 0 at first.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClusterRates {
    /// A call never reaches its owner.
    pub request_lost: f64,
    /// A call is answered, and its caller never gets the reply.
    pub reply_lost: f64,
    /// A call reaches its owner now, and once more later.
    pub call_doubled: f64,
    /// A call reaches its owner only after its caller has given up.
    pub call_delayed: f64,
    /// Before an I/O of any host, a call that was kept reaches the owner of that moment, and then another one. Its
    /// [`Answer`](crate::cluster::Answer) then runs inside that I/O.
    pub call_delivered: f64,
    /// [`Cluster::exchange`] fails, and may have happened.
    pub exchange_lost: f64,
    /// [`Directory::change`](crate::Directory::change) fails, and may have happened.
    pub directory_lost: f64,
    /// [`Cluster::create`], [`Cluster::take`] or [`Cluster::remove`] fails, and may have happened.
    pub ownership_lost: f64,
    /// A host dies in an I/O.
    pub host_dies: f64,
    /// A host is cut off before an I/O.
    pub host_cut: f64,
}

/// Counts of calls and other operations between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClusterCounts {
    /// Calls that were made.
    pub calls: u64,
    /// The bytes of their requests.
    pub request_bytes: u64,
    /// The bytes of replies that reached their callers.
    pub reply_bytes: u64,
    /// Calls whose outcome is unknown to their callers.
    pub calls_unknown: u64,
    /// Calls to a shard without an owner.
    pub calls_unserved: u64,
    /// Calls that reached an owner a second time.
    pub calls_doubled: u64,
    /// Calls that reached an owner after their callers had given up.
    pub calls_late: u64,
    /// Calls that were kept and then dropped, because the shard had no owner.
    pub calls_dropped: u64,
    /// Bytes that hosts sent to write data.
    pub data_bytes_written: u64,
    /// Exchanges that happened.
    pub exchanges: u64,
    /// Operations on the cluster, besides calls, whose outcome is unknown to their hosts.
    pub operations_unknown: u64,
    /// Operations of unknown outcome that did happen.
    pub operations_done_unknown: u64,
    /// Groups and shards taken from a process that was fenced for that.
    pub fenced: u64,
    /// Groups and shards that an owner gave up because it was asked.
    pub given_up_when_asked: u64,
}
