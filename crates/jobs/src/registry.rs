//! The list of all jobs; pausing and resuming them.
//!
//! A paused job does not begin (see [`crate::handle`]). So a caller that pauses can wait for the
//! end of the batch in progress, and then knows that the job is at rest.

use crate::collector::failed_deletions;
use crate::finder::FINDER;
use crate::handle::JobHandle;
use crate::job::{JobKind, JobSelection, JobStatus, SteerError};
use crate::thread::{JobThread, Signal};
use onefold_store::{PoolStat, Store, Volume};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The list of jobs, shared by all jobs' threads and the callers that steer them.
pub(crate) struct JobRegistry {
    signal: Arc<Signal>,
    /// The jobs that exist once per pool, in the order of the list.
    handles: Vec<Arc<JobHandle>>,
    finder: Arc<JobThread>,
    /// Lock order: before the locks of the jobs.
    finders: Mutex<Finders>,
}

/// The jobs of the finder's thread, one for each volume.
#[derive(Default)]
struct Finders {
    /// All finders are paused, including finders of volumes created later.
    is_paused: bool,
    of_volumes: BTreeMap<VolumeKey, Arc<JobHandle>>,
    /// Jobs whose volume is gone and whose last batch has not ended.
    leaving: Vec<Arc<JobHandle>>,
}

/// Identifies a volume by its address in memory while it is held, so a rename does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeKey(usize);

impl VolumeKey {
    fn of(volume: &Arc<Volume>) -> Self {
        Self(Arc::as_ptr(volume).addr())
    }
}

impl JobRegistry {
    /// A registry of these jobs and of the finder's jobs, one per volume.
    pub(crate) fn new(
        signal: &Arc<Signal>,
        finder: &Arc<JobThread>,
        handles: Vec<Arc<JobHandle>>,
    ) -> Self {
        Self {
            signal: Arc::clone(signal),
            handles,
            finder: Arc::clone(finder),
            finders: Mutex::default(),
        }
    }

    /// Ignores poisoning: a panic elsewhere leaves nothing here half done.
    fn finders(&self) -> MutexGuard<'_, Finders> {
        self.finders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the set of volumes again and returns the finder's jobs. New volumes get a job; volumes
    /// that are gone, or whose dedup was switched off, lose theirs.
    pub(crate) fn refresh(&self, store: &Store) -> BTreeMap<VolumeKey, Arc<JobHandle>> {
        let mut finders = self.finders();
        let mut before = std::mem::take(&mut finders.of_volumes);
        for volume in store.volumes_to_share() {
            if !volume.settings().dedup.is_on() {
                continue;
            }
            let key = VolumeKey::of(&volume);
            let handle = before.remove(&key).unwrap_or_else(|| {
                let handle = JobHandle::new(&FINDER, &self.finder, Some(volume));
                handle.set_paused(finders.is_paused);
                handle
            });
            finders.of_volumes.insert(key, handle);
        }
        finders.leaving.extend(before.into_values());
        finders.leaving.retain(|handle| handle.is_at_work());
        finders.of_volumes.clone()
    }

    /// Pauses jobs, and waits until their batches in progress have ended.
    pub(crate) fn pause(&self, selection: &JobSelection) -> Result<(), SteerError> {
        let paused = self.set_paused(selection, true)?;
        self.signal
            .wait_until(|| !paused.iter().any(|handle| handle.is_at_work()));
        Ok(())
    }

    pub(crate) fn resume(&self, selection: &JobSelection) -> Result<(), SteerError> {
        self.set_paused(selection, false).map(|_| ())
    }

    /// Sets the flag of the selected jobs, and returns them.
    fn set_paused(
        &self,
        selection: &JobSelection,
        is_paused: bool,
    ) -> Result<Vec<Arc<JobHandle>>, SteerError> {
        let mut finders = self.finders();
        let selected = match selection {
            JobSelection::FinderOf(_) if finders.is_paused && !is_paused => {
                return Err(SteerError::FinderPaused);
            }
            JobSelection::FinderOf(name) => vec![finders.of_volume(name)?],
            JobSelection::All | JobSelection::Kind(_) => {
                let finders = finders.of_volumes.values().chain(&finders.leaving);
                let all = self.handles.iter().chain(finders);
                let selected = all.filter(|handle| selection.covers(handle.kind()));
                selected.cloned().collect()
            }
        };
        if selection.covers(JobKind::Finder) {
            finders.is_paused = is_paused;
        }
        for handle in &selected {
            handle.set_paused(is_paused);
        }
        Ok(selected)
    }

    /// All jobs as they are now, in a pool with these counts.
    pub(crate) fn jobs(&self, stat: &PoolStat) -> Vec<JobStatus> {
        let finders = self.finders();
        let finders = finders.of_volumes.values();
        let mut jobs: Vec<_> = finders.filter_map(|handle| handle.status(stat)).collect();
        jobs.sort_by(|a, b| a.volume.cmp(&b.volume));
        for handle in &self.handles {
            jobs.extend(handle.status(stat));
            if handle.kind() == JobKind::Deletion {
                jobs.extend(failed_deletions(stat));
            }
        }
        jobs
    }
}

impl Finders {
    fn of_volume(&self, name: &str) -> Result<Arc<JobHandle>, SteerError> {
        let is_named = |volume: &Arc<Volume>| volume.name() == name;
        let mut handles = self.of_volumes.values();
        let found = handles.find(|handle| handle.volume().is_some_and(is_named));
        let found = found.ok_or_else(|| SteerError::NoFinder(name.to_owned()))?;
        Ok(Arc::clone(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::{COLLECTOR, REBUILD};
    use crate::handle::{PANICKED, Step};
    use crate::job::JobState;
    use onefold_engine::simulated::SimulatedEngine;
    use onefold_store::{CreateOptions, IndexKind, OpenOptions};
    use std::thread;

    /// The counts of an empty pool.
    fn nothing() -> PoolStat {
        let engine = SimulatedEngine::new(1);
        let options = CreateOptions {
            size_bytes: 16 << 20,
            index: IndexKind::Memory,
            ..CreateOptions::default()
        };
        Store::create(&engine, &options).unwrap();
        let opened = Store::open(Arc::new(engine), &OpenOptions::default());
        opened.unwrap().0.stat().unwrap()
    }

    /// A registry of one collector, and a rebuild.
    fn registry() -> (JobRegistry, Arc<JobHandle>, Arc<JobHandle>) {
        let signal = Arc::default();
        let thread = JobThread::new(&signal);
        let [collector, rebuild] =
            [&COLLECTOR, &REBUILD].map(|spec| JobHandle::new(spec, &thread, None));
        let handles = vec![Arc::clone(&collector), Arc::clone(&rebuild)];
        let registry = JobRegistry::new(&signal, &thread, handles);
        (registry, collector, rebuild)
    }

    fn collector_state(registry: &JobRegistry) -> JobState {
        registry.jobs(&nothing())[0].state
    }

    #[test]
    fn pausing_waits_for_the_end_of_the_batch_under_way() {
        let (registry, collector, _) = registry();
        let selection = JobSelection::Kind(JobKind::Collector);
        assert!(collector.begin());
        thread::scope(|scope| {
            let pausing = scope.spawn(|| registry.pause(&selection));
            while collector.may_work() {
                thread::yield_now();
            }
            assert_ne!(collector_state(&registry), JobState::Paused);
            assert!(!pausing.is_finished());
            collector.end_batch(Step::default(), |_| {});
            assert_eq!(pausing.join().unwrap(), Ok(()));
        });
        assert_eq!(collector_state(&registry), JobState::Paused);
        assert!(!collector.begin());
        registry.resume(&selection).unwrap();
        assert!(collector.begin());
    }

    #[test]
    fn a_thread_that_panics_is_a_failure_and_nobody_waits_for_it() {
        let (registry, collector, _) = registry();
        assert!(collector.begin());
        collector.thread().end();
        registry.pause(&JobSelection::All).unwrap();
        assert_eq!(collector_state(&registry), JobState::Failed);
        let status = registry.jobs(&nothing()).remove(0);
        assert_eq!(status.message.as_deref(), Some(PANICKED));
    }

    #[test]
    fn a_thread_that_was_told_to_end_is_no_failure() {
        let (registry, collector, _) = registry();
        registry.signal.change(|flags| flags.is_stopping = true);
        collector.thread().end();
        assert_eq!(collector_state(&registry), JobState::Idle);
        assert!(!collector.begin());
    }

    #[test]
    fn a_rebuild_is_listed_once_there_was_one() {
        let (registry, _, rebuild) = registry();
        assert_eq!(registry.jobs(&nothing()).len(), 1);
        rebuild.set_under_way(20);
        let listed = || registry.jobs(&nothing()).remove(1);
        assert_eq!(listed().kind, JobKind::Rebuild);
        assert_eq!(listed().state, JobState::Running);
        assert_eq!(listed().backlog_blocks, 20);
        rebuild.end_batch(Step::default(), |_| {});
        assert_eq!(listed().state, JobState::Idle);
        assert_eq!(listed().backlog_blocks, 0);
    }
}
