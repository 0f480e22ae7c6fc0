//! The finder's thread: a batch of the next volume in turn, a rest, and so on.

use crate::foreground::Foreground;
use crate::limits::{FINDER_SHARE_FLOOR, INDEX_FULL_PAUSE, POLL_INTERVAL, ROUND_INTERVAL_BUSY};
use crate::pacing::Pacer;
use crate::passes::Passes;
use crate::registry::{JobRegistry, VolumeKey, WorkerKind};
use onefold_store::{Lba, Ready, Store, StoreErrorKind, Volume};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs until the job registry stops it.
pub(crate) fn run(store: &Arc<Store>, registry: &Arc<JobRegistry>, latency_budget: Duration) {
    let pacer = Pacer::new(latency_budget, FINDER_SHARE_FLOOR);
    let mut finder = Finder {
        store,
        registry,
        rounds: Passes::new(),
        refreshed: None,
        foreground: Foreground::new(store, registry, WorkerKind::Finder, pacer),
    };
    while !registry.is_stopping() {
        finder.step();
    }
}

struct Finder<'a> {
    store: &'a Store,
    registry: &'a JobRegistry,
    rounds: Passes<VolumeKey>,
    /// When the set of volumes was last read.
    refreshed: Option<Instant>,
    foreground: Foreground,
}

impl Finder<'_> {
    fn step(&mut self) {
        if self
            .refreshed
            .is_none_or(|last| last.elapsed() >= POLL_INTERVAL)
        {
            self.registry.refresh(self.store);
            let least = if self.foreground.guests_are_idle() {
                Duration::ZERO
            } else {
                ROUND_INTERVAL_BUSY
            };
            let volumes = self.registry.volumes().into_iter();
            self.rounds
                .set_volumes(volumes.map(|(key, interval)| (key, interval.max(least))));
            self.refreshed = Some(Instant::now());
        }
        let allowed = |key: &VolumeKey| self.registry.may_find(*key);
        let now = Instant::now();
        let Some((key, cursor)) = self.rounds.next(now, allowed) else {
            let time = self.rounds.idle_time(now, POLL_INTERVAL, allowed);
            self.registry.wait(time);
            self.foreground.was_idle();
            return;
        };
        let Some(volume) = self.registry.begin_find(key) else {
            return;
        };
        // A batch that failed half way has nothing dirty any more, but must be settled.
        let is_clean = volume.dirty_blocks() == 0 && !self.rounds.has_failed(key);
        if cursor == Lba(0) && is_clean {
            self.registry.pass_over(key);
            self.rounds.advance(key, None);
            return;
        }
        let began = Instant::now();
        self.find(key, &volume, cursor);
        self.foreground.rest_after(began.elapsed());
    }

    fn find(&mut self, key: VolumeKey, volume: &Volume, mut cursor: Lba) {
        match self.store.dedup_batch(volume, &mut cursor, Ready::Cold) {
            Ok(report) => {
                let next = (!report.at_end).then_some(cursor);
                self.rounds.advance(key, next);
                if self.registry.found(key, &report) {
                    self.rounds.put_off(key, Instant::now(), INDEX_FULL_PAUSE);
                }
            }
            // It was deleted meanwhile: no failure, and no volume either.
            Err(error) if error.kind() == StoreErrorKind::Gone => {
                self.registry.pass_over(key);
                self.rounds.fail(key, Instant::now());
                self.refreshed = None;
            }
            Err(error) => {
                self.registry.find_failed(key, &error);
                self.rounds.fail(key, Instant::now());
            }
        }
    }
}
