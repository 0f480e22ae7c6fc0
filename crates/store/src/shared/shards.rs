//! The shards of the index that a host serves: those that it prefers, and those that nobody serves when one of its groups
//! needs them.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onefold_engine::cluster::{Owned, TakeError, TakeOptions};
use onefold_engine::{Disk, Holding, Part};
use onefold_format::{IndexKind, Shard};
use onefold_index::FingerprintIndex;
use onefold_index::hash::{self, HashIndex};
use onefold_index::served::{Served, ServedShard, Worker};
use onefold_metadata::sync::lock;
use onefold_metadata::{Result, StoreError};
use rustc_hash::FxHasher;

use super::SharedDescription;
use super::pool::{SHARDS_MEMORY_PART, SharedPool, take_owned};
use crate::batches::blank;

/// A shard that this host serves.
pub(super) struct OpenShard {
    pub(super) index: Arc<HashIndex>,
    pub(super) served: Arc<Served>,
    _holding: Arc<dyn Holding>,
}

impl SharedPool {
    /// Serves the shards that this host prefers to all others, unless another host serves them. An error of one shard does
    /// not keep the others from being served.
    ///
    /// # Errors
    ///
    /// Errors of the cluster and of the index.
    pub fn serve_preferred(&self) -> Result<()> {
        let hosts: Vec<String> = self.hosts()?;
        let shards = (0..self.description.shards).map(Shard);
        let preferred = shards.filter(|shard| rank(*shard, &self.options.host, &hosts) == 0);
        let served = preferred.map(|shard| self.serve_shard(shard).map(drop));
        served.fold(Ok(()), Result::and)
    }

    /// Serves a shard, unless a live host does. Returns whether this host serves it.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::serve_preferred`].
    pub fn serve_shard(&self, shard: Shard) -> Result<bool> {
        let _turn = lock(&self.taking_shard);
        if lock(&self.shards).contains_key(&shard) {
            return Ok(true);
        }
        let what = Owned::Shard(shard);
        let holding = match self.cluster.take(what, &self.options.take) {
            Ok(holding) => holding,
            Err(TakeError::Held { .. }) => return Ok(false),
            Err(TakeError::Io(error)) => {
                return Err(StoreError::io(format_args!("taking {what}"), error));
            }
        };
        let disk = holding
            .open(Part::Index)
            .map_err(|error| StoreError::io(format_args!("opening {what}"), error))?;
        let index = self.open_index(disk)?;
        self.serve_index(shard, holding, index)?;
        Ok(true)
    }

    /// Takes a shard, from its owner if a host serves it, and forgets its rows. It refuses batches and lookups until its
    /// rebuild has ended. A shard whose objects are gone is made anew.
    pub(super) fn take_emptied(&self, shard: Shard) -> Result<Arc<Served>> {
        let _turn = lock(&self.taking_shard);
        if let Err(error) = self.close_shard(shard) {
            tracing::debug!("closing {}: {error}", Owned::Shard(shard));
        }
        let what = Owned::Shard(shard);
        self.make(what)?;
        let take = TakeOptions {
            asks: true,
            ..self.options.take
        };
        let holding = take_owned(&*self.cluster, what, &take)?;
        let pool = self.description.pool;
        let disk = blank(&*holding, Part::Index, pool)?;
        onefold_index::replace(IndexKind::Hash, &disk, pool)?;
        let index = self.open_index(disk)?;
        index.begin_rebuild()?;
        self.serve_index(shard, holding, index)
    }

    fn open_index(&self, disk: Arc<dyn Disk>) -> Result<Arc<HashIndex>> {
        let pool = self.description.pool;
        Ok(Arc::new(hash::open(disk, pool, self.shard_memory_bytes())?))
    }

    /// The memory of a shard, in bytes.
    pub(super) fn shard_memory_bytes(&self) -> u64 {
        self.options.memory_bytes / SHARDS_MEMORY_PART / u64::from(self.description.shards)
    }

    fn serve_index(
        &self,
        shard: Shard,
        holding: Arc<dyn Holding>,
        index: Arc<HashIndex>,
    ) -> Result<Arc<Served>> {
        let SharedDescription {
            pool,
            shards: count,
            ..
        } = self.description;
        let served = ServedShard {
            pool,
            shard,
            shards: count,
            session: holding.session(),
        };
        let served = Served::new(Arc::clone(&index), served, self.worker());
        let served = Arc::new(served);
        holding.serve(served.clone()).map_err(|error| {
            StoreError::io(format_args!("serving {}", Owned::Shard(shard)), error)
        })?;
        let open = OpenShard {
            index,
            served: Arc::clone(&served),
            _holding: holding,
        };
        lock(&self.shards).insert(shard, open);
        lock(&self.missed).remove(&shard);
        if let Some(wake) = &self.wake {
            // For calls that came before the shard was listed.
            (wake.calls)();
        }
        Ok(served)
    }

    /// Serves the shards that did not answer a call of this host, once the hosts that prefer them more have had their
    /// time; and its own shards again whose index has failed. Returns the shards that it serves now, and the first error.
    pub fn serve_missed(&self) -> (Vec<Shard>, Result<()>) {
        self.close_failed_shards();
        let missed = lock(&self.missed).clone();
        let (mut served, mut first) = (Vec::new(), Ok(()));
        for (shard, since) in missed {
            let taken = self.patience_for(shard).and_then(|patience| {
                let is_due = since.elapsed() >= patience;
                is_due.then(|| self.serve_shard(shard)).transpose()
            });
            match taken {
                Ok(None) => {}
                Ok(Some(true)) => served.push(shard),
                Ok(Some(false)) => {
                    // Its owner lives: if that does not answer again, a call says so.
                    lock(&self.missed).remove(&shard);
                }
                Err(error) => first = first.and(Err(error)),
            }
        }
        (served, first)
    }

    /// An index that has failed refuses everything until it is opened again, here or on another host.
    fn close_failed_shards(&self) {
        let shards = lock(&self.shards);
        let failed = shards.iter().filter(|(_, open)| open.index.has_failed());
        let failed: Vec<Shard> = failed.map(|(shard, _)| *shard).collect();
        drop(shards);
        for shard in failed {
            if let Err(error) = self.close_shard(shard) {
                tracing::warn!("{} is opened again: {error}", Owned::Shard(shard));
            }
            lock(&self.missed).insert(shard, Instant::now());
        }
    }

    /// Gives a shard up, so that another host can serve it.
    ///
    /// # Errors
    ///
    /// Errors of the index; the shard is given up all the same.
    pub fn close_shard(&self, shard: Shard) -> Result<()> {
        let open = lock(&self.shards).remove(&shard);
        open.map_or(Ok(()), |open| open.served.close().map_err(StoreError::from))
    }

    /// The shards that this host serves.
    #[must_use]
    pub fn shards(&self) -> Vec<Shard> {
        lock(&self.shards).keys().copied().collect()
    }

    /// The rows of a shard that this host serves.
    #[must_use]
    pub fn shard_index(&self, shard: Shard) -> Option<Arc<HashIndex>> {
        let shards = lock(&self.shards);
        shards.get(&shard).map(|open| Arc::clone(&open.index))
    }

    /// How long this host waits before it serves a shard that nobody serves: hosts that prefer it more come first.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::groups`].
    pub fn patience_for(&self, shard: Shard) -> Result<Duration> {
        let rank = rank(shard, &self.options.host, &self.hosts()?);
        Ok(Duration::from_millis(200) * rank)
    }

    /// Executes the calls that wait.
    pub fn answer_calls(&self) {
        let served: Vec<Arc<Served>> = {
            let shards = lock(&self.shards);
            shards
                .values()
                .map(|open| Arc::clone(&open.served))
                .collect()
        };
        served.iter().for_each(|served| served.work());
    }

    fn worker(&self) -> Worker {
        match &self.wake {
            Some(wake) => {
                let wake = Arc::clone(&wake.calls);
                Worker::Woken(Box::new(move || wake()))
            }
            None => Worker::Caller,
        }
    }
}

/// The place of a host in the order in which all hosts prefer a shard, from 0 on. Each shard has an order of its own, and
/// a host that comes or goes changes no other host's place relative to a third.
fn rank(shard: Shard, host: &str, hosts: &[String]) -> u32 {
    let weight = |host: &str| {
        let mut hasher = FxHasher::default();
        hasher.write(host.as_bytes());
        hasher.write_u16(shard.0);
        (hasher.finish(), host.to_owned())
    };
    let own = weight(host);
    let before = hosts.iter().filter(|other| weight(other) > own);
    before.count() as u32
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_shard_has_one_host_that_comes_first_and_all_hosts_have_some() {
        let hosts: Vec<String> = ["kvm1", "kvm2", "kvm3"].map(str::to_owned).to_vec();
        let mut counts = BTreeMap::new();
        for shard in (0..256).map(Shard) {
            let mut ranks: Vec<u32> = hosts.iter().map(|host| rank(shard, host, &hosts)).collect();
            let first = hosts.iter().find(|host| rank(shard, host, &hosts) == 0);
            *counts.entry(first.unwrap()).or_insert(0) += 1;
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2]);
        }
        assert!(
            counts.len() == 3 && counts.values().all(|count| *count > 40),
            "{counts:?}"
        );
    }
}
