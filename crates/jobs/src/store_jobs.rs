//! The jobs of one store.
//!
//! Invariant: whoever works on the store, or holds one of its volumes, holds the [`StoreJobs`], so the store can be let go
//! once the last holder has gone.

use crate::handle::JobHandle;
use crate::job::{JobKind, JobSelection, JobStatus};
use crate::specs::{
    ACCOUNTING, COLLECTOR, COPYING, COUNTING, DELETION, FINDER, REBUILD, SCRUB, failed_deletions,
};
use crate::thread::{JobThread, JobThreads, Signal, StoreFlags};
use onefold_store::{PoolStat, Result, Store, Volume};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifies a store for as long as the process runs. Later ones have larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoreNumber(pub(crate) u64);

/// Identifies a volume by its store, and by a number that the store's jobs have given it, so a rename does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeKey {
    pub(crate) store: StoreNumber,
    volume: u64,
}

/// A store and its jobs. Holding it keeps the store from being removed. The jobs are open because each thread takes its
/// own.
pub(crate) struct StoreJobs {
    // Fields are dropped in this order: volumes, the store, and then the notice of it.
    /// Lock order: after the registry's lock, before the locks of the signal and the jobs.
    finders: Mutex<Finders>,
    store: Arc<Store>,
    number: StoreNumber,
    flags: Arc<StoreFlags>,
    finder_thread: Arc<JobThread>,
    pub(crate) collecting: Arc<JobHandle>,
    pub(crate) counting: Arc<JobHandle>,
    pub(crate) deletion: Arc<JobHandle>,
    pub(crate) scrub: Arc<JobHandle>,
    pub(crate) rebuild: Arc<JobHandle>,
    pub(crate) accounting: Arc<JobHandle>,
    pub(crate) copying: Arc<JobHandle>,
    gone: Gone,
}

/// The store's jobs on the finder's thread, one for each volume.
#[derive(Default)]
struct Finders {
    /// All finders are paused, including finders of volumes created later.
    is_paused: bool,
    of_volumes: BTreeMap<VolumeAddress, Finder>,
    /// Jobs whose volume is gone and whose last batch has not ended.
    leaving: Vec<Arc<JobHandle>>,
    /// The number of the next volume.
    next: u64,
}

#[derive(Clone)]
struct Finder {
    number: u64,
    handle: Arc<JobHandle>,
}

/// The address of a volume in memory; its own for as long as the volume is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct VolumeAddress(usize);

impl VolumeAddress {
    fn of(volume: &Arc<Volume>) -> Self {
        Self(Arc::as_ptr(volume).addr())
    }
}

/// Reports when it is dropped that nobody holds the store's jobs any more.
struct Gone {
    signal: Arc<Signal>,
    /// Relaxed: changed under the signal's lock, under which it is waited for.
    is_gone: Arc<AtomicBool>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.signal
            .change(|| self.is_gone.store(true, Ordering::Relaxed));
    }
}

impl StoreJobs {
    pub(crate) fn new(
        store: Arc<Store>,
        number: StoreNumber,
        signal: &Arc<Signal>,
        threads: &JobThreads,
    ) -> Self {
        let flags = Arc::<StoreFlags>::default();
        let job = |spec, thread| JobHandle::new(spec, thread, &flags, None);
        Self {
            finders: Mutex::default(),
            store,
            number,
            finder_thread: Arc::clone(&threads.finder),
            collecting: job(&COLLECTOR, &threads.collector),
            counting: job(&COUNTING, &threads.counter),
            deletion: job(&DELETION, &threads.collector),
            scrub: job(&SCRUB, &threads.scrubber),
            rebuild: job(&REBUILD, &threads.collector),
            accounting: job(&ACCOUNTING, &threads.accountant),
            copying: job(&COPYING, &threads.copier),
            flags,
            gone: Gone {
                signal: Arc::clone(signal),
                is_gone: Arc::default(),
            },
        }
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn number(&self) -> StoreNumber {
        self.number
    }

    pub(crate) fn flags(&self) -> &StoreFlags {
        &self.flags
    }

    /// Becomes true, with a notification, once nobody holds this any more.
    pub(crate) fn is_gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone.is_gone)
    }

    /// The jobs that exist once per store, in the order of the list.
    fn handles(&self) -> [&Arc<JobHandle>; 7] {
        [
            &self.collecting,
            &self.counting,
            &self.deletion,
            &self.scrub,
            &self.rebuild,
            &self.accounting,
            &self.copying,
        ]
    }

    /// Ignores poisoning: a panic elsewhere leaves nothing here half done.
    fn finders(&self) -> MutexGuard<'_, Finders> {
        self.finders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the set of volumes again and returns the finder's jobs. New volumes get a job; volumes
    /// that are gone, or whose dedup was switched off, lose theirs.
    pub(crate) fn refresh(&self) -> Vec<(VolumeKey, Arc<JobHandle>)> {
        let mut finders = self.finders();
        let mut before = std::mem::take(&mut finders.of_volumes);
        for volume in self.store.volumes_to_share() {
            if !volume.settings().dedup.is_on() {
                continue;
            }
            let address = VolumeAddress::of(&volume);
            let finder = before.remove(&address).unwrap_or_else(|| {
                let handle =
                    JobHandle::new(&FINDER, &self.finder_thread, &self.flags, Some(volume));
                handle.set_paused(finders.is_paused);
                finders.next += 1;
                Finder {
                    number: finders.next,
                    handle,
                }
            });
            finders.of_volumes.insert(address, finder);
        }
        let gone = before.into_values().map(|finder| finder.handle);
        finders.leaving.extend(gone);
        finders.leaving.retain(|handle| handle.is_at_work());
        let finders = finders.of_volumes.values().cloned();
        let keyed = finders.map(|Finder { number, handle }| {
            let key = VolumeKey {
                store: self.number,
                volume: number,
            };
            (key, handle)
        });
        keyed.collect()
    }

    /// Pauses or resumes the selected jobs, and returns them.
    pub(crate) fn set_paused(
        &self,
        selection: &JobSelection,
        is_paused: bool,
    ) -> Vec<Arc<JobHandle>> {
        let mut finders = self.finders();
        if selection.covers(JobKind::Finder) {
            finders.is_paused = is_paused;
        }
        let selected: Vec<_> = match selection {
            JobSelection::FinderOf(name) => finders.of_volume(name).into_iter().collect(),
            JobSelection::All | JobSelection::Kind(_) => {
                let of_volumes = finders.of_volumes.values().map(|finder| &finder.handle);
                let finders = of_volumes.chain(&finders.leaving);
                let all = self.handles().into_iter().chain(finders);
                let selected = all.filter(|handle| selection.covers(handle.kind()));
                selected.cloned().collect()
            }
        };
        for handle in &selected {
            handle.set_paused(is_paused);
        }
        selected
    }

    /// All jobs as they are now.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::stat`].
    pub(crate) fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.refresh();
        Ok(self.jobs_with(&self.store.stat()?))
    }

    fn jobs_with(&self, stat: &PoolStat) -> Vec<JobStatus> {
        let finders = self.finders();
        let finders = finders.of_volumes.values();
        let finders = finders.filter_map(|finder| finder.handle.status(stat));
        let mut jobs: Vec<_> = finders.collect();
        jobs.sort_by(|a, b| a.volume.cmp(&b.volume));
        for handle in self.handles() {
            jobs.extend(handle.status(stat));
            if handle.kind() == JobKind::Deletion {
                jobs.extend(failed_deletions(stat));
            }
        }
        jobs
    }
}

impl Finders {
    fn of_volume(&self, name: &str) -> Option<Arc<JobHandle>> {
        let is_named = |volume: &Arc<Volume>| volume.name() == name;
        let mut handles = self.of_volumes.values().map(|finder| &finder.handle);
        let found = handles.find(|handle| handle.volume().is_some_and(is_named));
        found.map(Arc::clone)
    }
}
