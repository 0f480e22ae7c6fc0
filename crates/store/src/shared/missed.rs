//! The cluster as a shared pool uses it: it notes the shards that did not answer this host's calls.
//!
//! Crash behaviour: the notes are in memory only. The next call to a shard that nobody serves makes them again.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onefold_engine::cluster::{Answered, Exchanged, ExtentCounts, Owned, TakeError, TakeOptions};
use onefold_engine::{Cluster, Directory, Holding};
use onefold_format::{GivenRun, GroupId, Shard};
use onefold_metadata::sync::{Mutex, lock};

/// Shards that did not answer, and when this was noticed first. Its lock is held briefly, and with no other.
pub(super) type Missed = Mutex<BTreeMap<Shard, Instant>>;

/// A cluster whose unanswered calls are noted.
pub(super) struct Noting {
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) missed: Arc<Missed>,
}

impl Cluster for Noting {
    fn create(&self, what: Owned) -> io::Result<()> {
        self.cluster.create(what)
    }

    fn take(&self, what: Owned, options: &TakeOptions) -> Result<Arc<dyn Holding>, TakeError> {
        self.cluster.take(what, options)
    }

    fn remove(&self, holding: Arc<dyn Holding>) -> io::Result<()> {
        self.cluster.remove(holding)
    }

    fn call(&self, what: Owned, request: Vec<u8>, timeout: Duration, answered: Answered) {
        let Owned::Shard(shard) = what else {
            return self.cluster.call(what, request, timeout, answered);
        };
        let missed = Arc::clone(&self.missed);
        let noted: Answered = Box::new(move |outcome| {
            if outcome.is_ok() {
                lock(&missed).remove(&shard);
            } else {
                lock(&missed).entry(shard).or_insert_with(Instant::now);
            }
            answered(outcome);
        });
        self.cluster.call(what, request, timeout, noted);
    }

    fn exchange(
        &self,
        group: GroupId,
        number: u64,
        give: &[GivenRun],
        take: u32,
    ) -> io::Result<Exchanged> {
        self.cluster.exchange(group, number, give, take)
    }

    fn last_exchange(&self, group: GroupId) -> io::Result<Option<Exchanged>> {
        self.cluster.last_exchange(group)
    }

    fn extent_counts(&self) -> io::Result<ExtentCounts> {
        self.cluster.extent_counts()
    }

    fn given_blocks(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.cluster.given_blocks(blocks)
    }

    fn directory(&self) -> &dyn Directory {
        self.cluster.directory()
    }
}
