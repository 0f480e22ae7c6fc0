//! The stores and all their jobs; adding and removing stores, pausing and resuming jobs.
//!
//! A paused job does not begin (see [`crate::handle`]). So a caller that pauses can wait for the
//! end of the batch in progress, and then knows that the job is at rest.

use crate::handle::JobHandle;
use crate::job::{JobKind, JobSelection, JobStatus, SteerError};
use crate::store_jobs::{StoreJobs, StoreNumber};
use crate::thread::{JobThreads, Signal};
use onefold_store::{Result, Store};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The set of stores with their jobs, shared by all jobs' threads and the callers that steer them.
pub(crate) struct JobRegistry {
    signal: Arc<Signal>,
    threads: JobThreads,
    /// Lock order: first. Nothing that waits for a disk happens under it.
    members: Mutex<Members>,
    /// How often a store was added or removed. Relaxed: the set itself is read under its lock.
    changes: AtomicU64,
}

#[derive(Default)]
struct Members {
    /// The stores, in the order in which they were added.
    stores: Vec<Arc<StoreJobs>>,
    /// The number of stores so far.
    count: u64,
    /// The kinds of jobs that are paused as a whole, for stores that are added later.
    paused: Vec<JobKind>,
}

impl JobRegistry {
    pub(crate) fn new(signal: &Arc<Signal>) -> Self {
        Self {
            signal: Arc::clone(signal),
            threads: JobThreads::new(signal),
            members: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }

    pub(crate) fn threads(&self) -> &JobThreads {
        &self.threads
    }

    /// Ignores poisoning: a panic elsewhere leaves nothing here half done.
    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a store. Its jobs are paused if their kinds are. A store that is there already stays as it is.
    pub(crate) fn add(&self, store: Arc<Store>) -> Arc<StoreJobs> {
        let mut members = self.members();
        if let Some(jobs) = members.of(&store) {
            return Arc::clone(jobs);
        }
        members.count += 1;
        let number = StoreNumber(members.count);
        let jobs = Arc::new(StoreJobs::new(store, number, &self.signal, &self.threads));
        for kind in &members.paused {
            jobs.set_paused(&JobSelection::Kind(*kind), true);
        }
        members.stores.push(Arc::clone(&jobs));
        drop(members);
        self.note_change();
        jobs
    }

    /// Takes a store out, and has its jobs end. Returns it if it was there.
    pub(crate) fn take(&self, store: &Arc<Store>) -> Option<Arc<StoreJobs>> {
        let mut members = self.members();
        let mut stores = members.stores.iter();
        let place = stores.position(|jobs| Arc::ptr_eq(jobs.store(), store))?;
        let jobs = members.stores.remove(place);
        drop(members);
        self.signal.change(|| jobs.flags().set_leaving());
        self.note_change();
        Some(jobs)
    }

    fn note_change(&self) {
        self.signal
            .change(|| _ = self.changes.fetch_add(1, Ordering::Relaxed));
    }

    /// A number that differs from an earlier one if a store was added or removed since.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The jobs of this store.
    pub(crate) fn find(&self, store: &Store) -> Option<Arc<StoreJobs>> {
        self.members().of(store).cloned()
    }

    /// The jobs of the store with this number, unless it was removed.
    pub(crate) fn get(&self, number: StoreNumber) -> Option<Arc<StoreJobs>> {
        let members = self.members();
        let mut stores = members.stores.iter();
        stores.find(|jobs| jobs.number() == number).cloned()
    }

    /// The numbers of all stores, in ascending order.
    pub(crate) fn numbers(&self) -> Vec<StoreNumber> {
        let members = self.members();
        members.stores.iter().map(|jobs| jobs.number()).collect()
    }

    /// All stores. The caller keeps none of them from being removed for longer than a moment.
    pub(crate) fn all(&self) -> Vec<Arc<StoreJobs>> {
        self.members().stores.clone()
    }

    /// Looks at each store, under the lock: `look` must not wait, nor take a lock.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&StoreJobs)) {
        for jobs in &self.members().stores {
            look(jobs);
        }
    }

    /// Gives each store one turn, with the state that a thread keeps for it, so that none starves. Forgets the states of
    /// stores that are gone. A thread holds a store only during its turn.
    pub(crate) fn take_turns<S>(
        &self,
        states: &mut BTreeMap<StoreNumber, S>,
        new: impl Fn(&StoreJobs) -> S,
        mut turn: impl FnMut(&StoreJobs, &mut S),
    ) {
        let numbers = self.numbers();
        states.retain(|number, _| numbers.binary_search(number).is_ok());
        for number in numbers {
            if self.signal.is_stopping() {
                return;
            }
            if let Some(jobs) = self.get(number) {
                let state = states.entry(number).or_insert_with(|| new(&jobs));
                turn(&jobs, state);
            }
        }
    }

    /// Pauses jobs, and waits until their batches in progress have ended.
    pub(crate) fn pause(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        let paused = self.set_paused(selection, true)?;
        let is_at_work = || paused.handles.iter().any(|handle| handle.is_at_work());
        self.signal.wait_until(|| !is_at_work());
        Ok(())
    }

    pub(crate) fn resume(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        self.set_paused(selection, false).map(|_| ())
    }

    /// Sets the flag of the selected jobs of all stores, and returns them.
    fn set_paused(
        &self,
        selection: &JobSelection,
        is_paused: bool,
    ) -> std::result::Result<Selected, SteerError> {
        for jobs in self.all() {
            jobs.refresh();
        }
        let mut members = self.members();
        if matches!(selection, JobSelection::FinderOf(_))
            && !is_paused
            && members.paused.contains(&JobKind::Finder)
        {
            return Err(SteerError::FinderPaused);
        }
        members.set_paused(selection, is_paused);
        let mut selected = Selected {
            handles: Vec::new(),
            _stores: members.stores.clone(),
        };
        for jobs in &members.stores {
            selected
                .handles
                .extend(jobs.set_paused(selection, is_paused));
        }
        drop(members);
        match selection {
            JobSelection::FinderOf(name) if selected.handles.is_empty() => {
                Err(SteerError::NoFinder(name.clone()))
            }
            _ => Ok(selected),
        }
    }

    /// The jobs of all stores as they are now, store by store, in the order in which the stores were added. A store
    /// whose counts cannot be read is left out if another's can.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::stat`].
    pub(crate) fn jobs(&self) -> Result<Vec<JobStatus>> {
        let mut listed = Vec::new();
        let mut failure = None;
        for jobs in self.all() {
            match jobs.jobs() {
                Ok(jobs) => listed.extend(jobs),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if listed.is_empty() => Err(error),
            _ => Ok(listed),
        }
    }
}

/// Jobs that were paused or resumed. The stores are dropped last, because the jobs hold volumes.
struct Selected {
    handles: Vec<Arc<JobHandle>>,
    _stores: Vec<Arc<StoreJobs>>,
}

impl Members {
    fn of(&self, store: &Store) -> Option<&Arc<StoreJobs>> {
        let mut stores = self.stores.iter();
        stores.find(|jobs| std::ptr::eq(&**jobs.store(), store))
    }

    fn set_paused(&mut self, selection: &JobSelection, is_paused: bool) {
        self.paused.retain(|kind| !selection.covers(*kind));
        if is_paused {
            let covered = JobKind::ALL.into_iter();
            self.paused
                .extend(covered.filter(|kind| selection.covers(*kind)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::{PANICKED, Step};
    use crate::job::JobState;
    use crate::scene::new_registry;
    use std::thread;

    /// A registry of one store, and its jobs.
    fn registry() -> (Arc<JobRegistry>, Arc<StoreJobs>) {
        let registry = new_registry();
        let jobs = registry.all().remove(0);
        (registry, jobs)
    }

    fn collector_state(registry: &JobRegistry) -> JobState {
        registry.jobs().unwrap()[0].state
    }

    #[test]
    fn pausing_waits_for_the_end_of_the_batch_under_way() {
        let (registry, jobs) = registry();
        let collector = &jobs.collecting;
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
        let (registry, jobs) = registry();
        let collector = &jobs.collecting;
        assert!(collector.begin());
        registry.threads().collector.end();
        registry.pause(&JobSelection::All).unwrap();
        assert_eq!(collector_state(&registry), JobState::Failed);
        let status = registry.jobs().unwrap().remove(0);
        assert_eq!(status.message.as_deref(), Some(PANICKED));
    }

    #[test]
    fn a_thread_that_was_told_to_end_is_no_failure() {
        let (registry, jobs) = registry();
        let collector = &jobs.collecting;
        registry.signal.stop();
        registry.threads().collector.end();
        assert_eq!(collector_state(&registry), JobState::Idle);
        assert!(!collector.begin());
    }

    #[test]
    fn a_rebuild_is_listed_once_there_was_one() {
        let (registry, jobs) = registry();
        let rebuild = &jobs.rebuild;
        assert_eq!(registry.jobs().unwrap().len(), 1);
        rebuild.set_under_way(20);
        let listed = || registry.jobs().unwrap().remove(1);
        assert_eq!(listed().kind, JobKind::Rebuild);
        assert_eq!(listed().state, JobState::Running);
        assert_eq!(listed().backlog_blocks, 20);
        rebuild.end_batch(Step::default(), |_| {});
        assert_eq!(listed().state, JobState::Idle);
        assert_eq!(listed().backlog_blocks, 0);
    }
}
