//! Requests to finder, collector and index, and their required results.
//!
//! Finder, collector, check and rebuild hold one lock of the store from beginning to end, so none
//! of them is requested in the middle of another.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::Op;
use onefold_store::{
    BatchReport, Blocking, CollectReport, Import, IndexKind, Lba, PoolStat, Ready, Scarcity,
    SettingsChange, Store, StoreError, StoreErrorKind, Unsharing, Volume,
};

use crate::crash::Found;
use crate::model::VolumeModel;
use crate::world::{Step, Stop, World, violation};

/// Batches after which a finder or collector that is still not done never will be.
const BATCHES_MAX: usize = 1000;

/// Steps after which a pool that still shrinks will not without help.
const STEPS_MAX: usize = 5;

/// The holder of the store's job lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    Finder,
    Collector,
    Counting,
    Check,
    Rebuild,
    /// May leave an open batch open.
    Deletion,
}

/// The content of all volumes together: references to each content, by domain.
#[derive(Default)]
struct Truth {
    stored_blocks: u64,
    zero_blocks: u64,
    references: BTreeMap<(String, u64), u64>,
}

impl World {
    /// Publishes blocks of a volume, up to a number of batches. Returns whether the volume's end was
    /// reached.
    pub(crate) fn dedup(&self, id: u64, ready: Ready, batches: usize) -> Result<bool, Stop> {
        let volume = self.handle(id)?;
        for _ in 0..batches {
            if !self.exists(id) {
                return Ok(true);
            }
            let mut cursor = Lba(self.with(id, |volume| volume.cursor));
            let what = format!("dedup {id} from block {cursor}, {ready:?}");
            let store = self.store();
            let done = self.job(Job::Finder, &what, || match ready {
                Ready::All => store.dedup().find_batch(&volume, &mut cursor, ready),
                Ready::Cold => self.find_in_pieces(&store, &volume, &mut cursor),
            });
            let gone =
                |error: &StoreError| error.kind() == StoreErrorKind::Gone && !self.exists(id);
            let Some(report) = self.ended(&what, done, gone)? else {
                return Ok(false);
            };
            self.cover_batch(&report);
            if self.exists(id) {
                let next = if report.at_end { 0 } else { cursor.0 };
                self.with(id, |volume| volume.cursor = next);
            }
            if report.at_end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As the finder's thread does, which may be paused between two pieces.
    fn find_in_pieces(
        &self,
        store: &Store,
        volume: &Volume,
        cursor: &mut Lba,
    ) -> Result<BatchReport, StoreError> {
        let is_paused = self.draw(|random| random.one_in(8));
        let paused_at = if is_paused {
            self.draw(|random| random.below(4))
        } else {
            u64::MAX
        };
        let mut pieces = 0;
        let mut pace = || {
            pieces += 1;
            if pieces > paused_at {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(64 << 10)
            }
        };
        let found = store.dedup().find_cold_batch(volume, cursor, &mut pace)?;
        Ok(found.unwrap_or_default())
    }

    /// Publishes blocks of the volume that is being imported.
    pub(crate) fn dedup_import(&self) -> Step {
        let Some((import, volume)) = self.state().import.take() else {
            return Ok(());
        };
        let done = self.job(Job::Finder, "dedup the import", || import.dedup_batch());
        self.put_import_back(import, volume);
        if let Some(report) = self.ended("dedup the import", done, |_| false)? {
            self.cover_batch(&report);
        }
        Ok(())
    }

    fn put_import_back(&self, import: Arc<Import>, volume: VolumeModel) {
        self.state().import = Some((import, volume));
    }

    /// Releases all dropped references.
    pub(crate) fn collect(&self) -> Step {
        for _ in 0..BATCHES_MAX {
            match self.collect_batch()? {
                Some(report) if report.released > 0 => {}
                _ => return Ok(()),
            }
        }
        Err(violation("the collector comes to no end"))
    }

    /// Releases some of the dropped references.
    pub(crate) fn collect_batch(&self) -> Result<Option<CollectReport>, Stop> {
        let store = self.store();
        let done = self.job(Job::Collector, "collect", || store.dedup().collect_batch());
        let report = self.ended("collect", done, |_| false)?;
        let mut state = self.state();
        if let Some(report) = report {
            if report.quarantined > 0 && !state.is_index_damaged {
                return Err(violation(format!("blocks were quarantined: {report:?}")));
            }
            state.coverage.released += report.released;
            state.coverage.freed += report.freed;
            state.coverage.remaining += report.released - report.freed - report.quarantined;
        }
        Ok(report)
    }

    /// Has the index count claims, in one batch. Returns how many; nothing if it failed as it may.
    pub(crate) fn count(&self) -> Result<Option<u64>, Stop> {
        let store = self.store();
        let done = self.job(Job::Counting, "count", || store.dedup().count_batch());
        let report = self.ended("count", done, |_| false)?;
        let mut state = self.state();
        let Some(report) = report else {
            return Ok(None);
        };
        if report.quarantined > 0 && !state.is_index_damaged {
            return Err(violation(format!("claims were quarantined: {report:?}")));
        }
        state.coverage.claims_counted += report.counted;
        Ok(Some(report.counted))
    }

    /// Counts the index again where that is needed.
    pub(crate) fn rebuild_index(&self) -> Step {
        let store = self.store();
        let next = store
            .index()
            .stat()
            .ok()
            .and_then(|stat| stat.converting_to);
        let done = self.job(Job::Rebuild, "rebuild the index if needed", || {
            store.index().rebuild_if_needed(&mut |_, _| {})
        });
        let rebuilt = self.ended("rebuild the index", done, |_| false)?;
        let mut state = self.state();
        // A new index that could not be opened in its place is found by the next opening only.
        state.must_reopen |= rebuilt.is_none() && state.faulty;
        if rebuilt.is_some() {
            state.may_need_rebuild = false;
        }
        let is_resumed = next.is_some() && rebuilt == Some(true);
        state.coverage.rebuilds += u64::from(rebuilt == Some(true) && !is_resumed);
        state.coverage.conversions_resumed += u64::from(is_resumed);
        // It stays where the pool takes no writes since the old index was counted.
        let must_end = is_resumed && !state.faulty;
        drop(state);
        if must_end && store.index().stat().ok().map(|stat| stat.kind) != next {
            return Err(violation("a conversion was not ended".to_owned()));
        }
        Ok(())
    }

    /// Converts the index to this kind, or counts it again without one.
    pub(crate) fn remake_index(&self, kind: Option<IndexKind>) -> Step {
        let store = self.store();
        // From here on a crash may leave an index that has to be counted again.
        self.state().is_remade = true;
        let what = format!("remake the index: {kind:?}");
        let done = self.job(Job::Rebuild, &what, || match kind {
            Some(kind) => store.index().convert(kind, &mut |_, _| {}),
            None => store.index().rebuild(&mut |_, _| {}),
        });
        self.ended("remake the index", done, |_| false)?;
        Ok(())
    }

    /// Checks the pool and fails if there is anything to find.
    pub(crate) fn check(&self) -> Step {
        let store = self.store();
        let asked = self.moments();
        let faulty = self.state().faulty;
        let mut findings = Vec::new();
        let done = self.job(Job::Check, "check", || {
            store.check(false, &mut |finding| findings.push(finding))
        });
        let Some(report) = self.ended("check", done, |_| false)? else {
            return Ok(());
        };
        if faulty {
            // Blocks that need the index cannot be checked if its disk fails.
            findings.retain(|finding| !finding.message.contains("simulated failure"));
            findings.retain(|finding| !finding.message.contains("index failed before"));
            findings.retain(|finding| !finding.message.contains("must be opened again"));
            findings.retain(|finding| !finding.message.contains("the block cannot be read"));
        } else {
            // A pool that takes no writes is checked as its last checkpoint left it.
            self.flushed(&asked);
            self.state().may_need_rebuild = false;
        }
        if !findings.is_empty() || (!faulty && report.findings > 0) || report.leaked_blocks > 0 {
            return Err(violation(format!("check: {report:?}: {findings:?}")));
        }
        Ok(())
    }

    /// Changes how a volume is deduplicated.
    pub(crate) fn set_volume(&self, id: u64, change: &SettingsChange) -> Step {
        let (name, store) = (self.with(id, |volume| volume.name.clone()), self.store());
        let what = format!("set {id} to {change:?}");
        self.trace(|| what.clone());
        let asked = self.moments();
        let done = store.set_volume(&name, change);
        // This much cannot be reserved.
        let is_full = |error: &StoreError| error.kind() == StoreErrorKind::NoSpace;
        if self.ended(&what, done, is_full)?.is_some() {
            self.flushed(&asked);
        }
        Ok(())
    }

    /// Checks the pool's counts, in the middle of other work.
    pub(crate) fn look(&self) -> Step {
        self.trace(|| "stat".to_owned());
        let stat = self.store().stat();
        let stat = stat.map_err(|error| self.unless_crashed(format!("stat: {error}")))?;
        self.compare_counts(&stat)
    }

    /// Every block is free, in flight, or in use. Blocks of an open batch may be in use without
    /// being counted.
    pub(crate) fn compare_counts(&self, stat: &PoolStat) -> Step {
        let held = stat.pending_free_blocks - stat.pending_release_blocks;
        let counted = stat.free_blocks + held + stat.physical_blocks + 1;
        let kept: u64 = stat
            .volumes
            .iter()
            .map(|volume| volume.reserved_unused_bytes)
            .sum();
        if kept != stat.reserved_unused_blocks * u64::from(stat.block_size) {
            return Err(violation(format!("{kept} bytes are kept: {stat:?}")));
        }
        self.compare_kept(stat)?;
        let of_volumes: u64 = stat
            .volumes
            .iter()
            .map(|volume| volume.logical_blocks)
            .chain(stat.snapshots.iter().map(|snapshot| snapshot.own_blocks))
            .sum();
        let deleting = self.store().deletions().unfinished().unwrap_or_default();
        // A removal that failed is finished by the next opening.
        let state = self.state();
        let is_complete =
            state.import.is_none() && state.job.is_none() && !state.faulty && deleting.is_empty();
        drop(state);
        if counted > stat.pool_blocks || (of_volumes != stat.logical_blocks && is_complete) {
            return Err(violation(format!("the counts do not add up: {stat:?}")));
        }
        Ok(())
    }

    /// Blocks kept for reservations are free, or about to be; and a volume maps the blocks of
    /// itself and its snapshots.
    fn compare_kept(&self, stat: &PoolStat) -> Step {
        let state = self.state();
        // A clone may inherit blocks that a deleted snapshot owned, and a pool that shrinks or has
        // bad blocks has fewer than it had.
        let coverage = &state.coverage;
        let may_lack = coverage.clones + coverage.rolled_back + coverage.blocks_evacuated > 0
            || state.met_bad_blocks
            || stat.shrinking_to_blocks.is_some();
        let is_complete = state.import.is_none() && state.job.is_none() && !state.faulty;
        drop(state);
        let held = stat.pending_free_blocks - stat.pending_release_blocks;
        if !may_lack && stat.reserved_unused_blocks > stat.free_blocks + held {
            return Err(violation(format!("less is free than is kept: {stat:?}")));
        }
        if !is_complete
            || !self
                .store()
                .deletions()
                .unfinished()
                .unwrap_or_default()
                .is_empty()
        {
            return Ok(());
        }
        for volume in &stat.volumes {
            let prefix = format!("{}@", volume.name);
            let snapshots = stat.snapshots.iter();
            let own = snapshots.filter(|snapshot| snapshot.name.starts_with(&prefix));
            let held = volume.logical_blocks + own.map(|own| own.own_blocks).sum::<u64>();
            if volume.mapped_bytes != held * u64::from(stat.block_size) {
                let message = format!("'{}' holds {held} blocks: {stat:?}", volume.name);
                return Err(violation(message));
            }
        }
        Ok(())
    }

    /// Runs an operation that holds the job lock.
    fn job<T>(
        &self,
        job: Job,
        what: &str,
        run: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.trace(|| what.to_owned());
        let engine = self.engine();
        let blocks_read = || engine.count(Part::Data, Op::Read).count;
        let before = blocks_read();
        let mut met_bad_blocks = self.knows_bad_blocks();
        self.state().job = Some(job);
        let done = run();
        met_bad_blocks |= self.knows_bad_blocks();
        let mut state = self.state();
        state.met_bad_blocks |= met_bad_blocks;
        state.job = None;
        state.is_settled = match job {
            Job::Deletion => state.is_settled && done.is_ok(),
            // It continues if the index cannot be read, and leaves an open batch as it is.
            Job::Check if state.faulty => state.is_settled && done.is_ok(),
            _ => done.is_ok() && job != Job::Rebuild,
        };
        // Blocks are read back once the batch is announced durably.
        if engine.is_crashed() && job == Job::Counting {
            state.coverage.crashes_in_counting += 1;
        }
        if engine.is_crashed() && blocks_read() > before {
            match job {
                Job::Finder => state.coverage.crashes_in_finder += 1,
                Job::Collector => state.coverage.crashes_in_collector += 1,
                Job::Rebuild => state.coverage.crashes_in_rebuild += 1,
                Job::Check | Job::Counting | Job::Deletion => {}
            }
        }
        done
    }

    fn knows_bad_blocks(&self) -> bool {
        let status = self.store().scrub().status();
        status.is_ok_and(|status| status.bad_blocks > 0)
    }

    /// How a job ended: nothing if it failed as it may.
    fn ended<T>(
        &self,
        what: &str,
        done: Result<T, StoreError>,
        is_fine: impl FnOnce(&StoreError) -> bool,
    ) -> Result<Option<T>, Stop> {
        let error = match done {
            Ok(report) => return Ok(Some(report)),
            Err(error) => error,
        };
        if !self.engine().is_crashed() {
            if is_fine(&error) {
                return Ok(None);
            }
            let mut state = self.state();
            match error.kind() {
                StoreErrorKind::Busy if state.may_need_rebuild => {
                    state.coverage.index_busy += 1;
                    return Ok(None);
                }
                StoreErrorKind::Busy | StoreErrorKind::Damaged | StoreErrorKind::Io
                    if state.is_index_damaged =>
                {
                    return Ok(None);
                }
                StoreErrorKind::NoSpace if !state.faulty => {
                    return Err(violation(format!("{what}: {error}")));
                }
                _ => {}
            }
        }
        self.judge(what, &error, Blocking::Yes).map(|()| None)
    }

    fn cover_batch(&self, report: &BatchReport) {
        let coverage = &mut self.state().coverage;
        coverage.inserted += report.unique;
        coverage.aliased += report.duplicates;
        coverage.dangling += report.moved;
        coverage.rejected += report.rejected;
        coverage.declined += report.declined;
    }

    /// Finishes a shrinking of the pool that was begun, or that a crash cut short; cancels it if it does
    /// not end.
    pub(crate) fn go_on_shrinking(&self) -> Step {
        let store = self.store();
        let was_shrinking = store
            .space()
            .shrinking_to()
            .expect("nobody panicked")
            .is_some();
        let mut is_fine = true;
        for _ in 0..STEPS_MAX {
            let done = self.job(Job::Deletion, "shrink", || {
                store
                    .space()
                    .shrink_step(&mut |_, _| ControlFlow::Continue(()))
            });
            let full = |error: &StoreError| error.kind() == StoreErrorKind::NoSpace;
            let Some(report) = self.ended("shrink", done, full)? else {
                is_fine = true;
                break;
            };
            is_fine = false;
            if report.is_done {
                let size = store.space().size_bytes().expect("nobody panicked");
                let mut state = self.state();
                if !state.pool_sizes.contains(&size) {
                    return Err(violation(format!("the pool shrank to {size} bytes")));
                }
                state.pool_sizes = vec![size];
                state.coverage.pool_shrunk += u64::from(was_shrinking);
                return Ok(());
            }
        }
        if self.state().must_reopen {
            return Ok(());
        }
        if let Err(error) = store.space().cancel_shrink() {
            return self.judge("cancel", &error, Blocking::Yes);
        }
        let mut state = self.state();
        state.pool_sizes = vec![store.space().size_bytes().expect("nobody panicked")];
        state.coverage.shrinks_cancelled += 1;
        if is_fine || state.faulty || state.coverage.hooks_run > 0 {
            return Ok(());
        }
        Err(violation("shrinking comes to no end"))
    }

    /// Publishes and collects everything, and compares the rest with the contents of the volumes.
    pub(crate) fn settle(&self) -> Step {
        self.rebuild_index()?;
        self.finish_deletions()?;
        // Blocks that failed reads made look bad are good again.
        let bad = self.store().scrub().bad_blocks(&mut |_| {});
        bad.map_err(|error| self.unless_crashed(format!("bad blocks: {error}")))?;
        self.go_on_shrinking()?;
        // The finder leaves blocks private if it could keep no others in their place.
        for id in self.volume_ids() {
            let nothing = SettingsChange {
                reservation_bytes: Some(0),
                ..SettingsChange::default()
            };
            self.set_volume(id, &nothing)?;
        }
        for id in [self.volume_ids(), self.snapshot_ids()].concat() {
            self.with(id, |volume| volume.cursor = 0);
            if !self.dedup(id, Ready::All, BATCHES_MAX)? {
                return Err(violation("the finder comes to no end"));
            }
        }
        self.collect()?;
        while self.count()?.unwrap_or_default() > 0 {}
        self.check()?;
        // Blocks that the collector freed wait for a commit, and then for readers, of which there
        // are none.
        for _ in 0..2 {
            self.tick()?;
        }
        self.verify_sharing()?;
        self.state().coverage.settled += 1;
        Ok(())
    }

    /// Gives a volume or snapshot blocks of its own, in short runs or all of them. Returns whether it came
    /// to its end.
    pub(crate) fn unshare(&self, id: u64, min_run: Option<u16>) -> Result<bool, Stop> {
        let name = self.with(id, |volume| volume.name.clone());
        let store = self.store();
        self.state().has_own_copies = true;
        let begun = store
            .volume(&name)
            .map(|volume| Unsharing::new(volume, min_run));
        let mut unsharing =
            begun.map_err(|error| self.unless_crashed(format!("unshare: {error}")))?;
        loop {
            let what = format!("unshare {id}, runs below {min_run:?}");
            let done = self.job(Job::Deletion, &what, || unsharing.step());
            let expected = |error: &StoreError| match error.kind() {
                StoreErrorKind::NoSpace => true,
                StoreErrorKind::Gone => !self.exists(id),
                _ => false,
            };
            let Some(is_more) = self.ended(&what, done, expected)? else {
                return Ok(false);
            };
            if !is_more {
                let copied = unsharing.copied_blocks();
                self.state().coverage.blocks_unshared += copied;
                return Ok(true);
            }
        }
    }

    /// Continues deletions.
    pub(crate) fn finish_deletions(&self) -> Step {
        let store = self.store();
        let begun = store.deletions().unfinished().unwrap_or_default();
        let done = self.job(Job::Deletion, "finish deletions", || {
            store.deletions().finish(&mut |_, _| {})
        });
        let finished = self.ended("finish deletions", done, |_| false)?;
        let left = store.deletions().unfinished().unwrap_or_default();
        let coverage = &mut self.state().coverage;
        coverage.deletions_deferred += u64::from(!left.is_empty());
        let is_resumed = finished == Some(true) && !begun.is_empty();
        coverage.deletions_resumed += u64::from(is_resumed);
        Ok(())
    }

    /// A little of it.
    pub(crate) fn deletion_step(&self) -> Step {
        let store = self.store();
        let done = self.job(Job::Deletion, "deletion step", || store.deletions().step());
        self.ended("deletion step", done, |_| false).map(|_| ())
    }

    fn verify_sharing(&self) -> Step {
        let is_layered = self
            .store()
            .deletions()
            .unfinished()
            .is_ok_and(|deletions| !deletions.is_empty());
        if !self.snapshot_ids().is_empty() || is_layered {
            // One entry is then in several volumes' contents.
            return Ok(());
        }
        let store = self.store();
        let stat = store.stat();
        let stat = stat.map_err(|error| self.unless_crashed(format!("stat: {error}")))?;
        let mut truth = Truth::default();
        for id in self.volume_ids() {
            self.add_contents(&store, id, &mut truth)?;
        }
        let in_use = stat.private_blocks + stat.unique_blocks + stat.shared_blocks;
        expect(
            &stat,
            &[
                ("logical", stat.logical_blocks, truth.stored_blocks),
                ("physical", stat.physical_blocks, in_use),
                ("queued", stat.pending_release_blocks, 0),
                ("claimed", stat.claimed_blocks, 0),
                ("reclaim", stat.pending_free_blocks, 0),
                ("free", stat.free_blocks, stat.pool_blocks - 1 - in_use),
            ],
        )?;
        let unique = truth.references.values().filter(|count| **count == 1);
        let unique = unique.count() as u64;
        let contents = truth.references.len() as u64;
        let (is_scarce, may_own_copies) = {
            let state = self.state();
            let may_own_copies = state.met_bad_blocks || state.has_own_copies;
            (state.scarcity != Scarcity::default(), may_own_copies)
        };
        // Blocks that collide or find no room in the index stay as they are.
        if !is_scarce && may_own_copies && stat.private_blocks > 0 {
            // A block with the content of a bad block that could not be repaired is unshareable, and so
            // is a copy that was made on request.
            expect(&stat, &[("dirty", stat.pending_dedup_blocks, 0)])?;
            if stat.unique_blocks + stat.shared_blocks > contents {
                return Err(violation(format!("{contents} contents, and yet {stat:?}")));
            }
        } else if !is_scarce {
            expect(
                &stat,
                &[
                    ("private", stat.private_blocks, 0),
                    ("dirty", stat.pending_dedup_blocks, 0),
                    ("unique", stat.unique_blocks, unique),
                    ("shared", stat.shared_blocks, contents - unique),
                ],
            )?;
        }
        if stat.physical_blocks < contents {
            let message = format!("{contents} contents, and yet {stat:?}");
            return Err(violation(message));
        }
        // Two rewrites in place that a power loss tore may leave zeros; nothing else stores them.
        if truth.zero_blocks > 0 && self.state().coverage.power_losses == 0 {
            return Err(violation(format!("{} zero blocks", truth.zero_blocks)));
        }
        Ok(())
    }

    fn add_contents(&self, store: &Store, id: u64, truth: &mut Truth) -> Step {
        let domain = self.with(id, |volume| volume.domain.clone());
        let block_size = self.state().block_size as usize;
        let walked = self.walk(store, id, &mut |_, found| {
            if let Found::Data(bytes) = found {
                let mut blocks = bytes.chunks_exact(block_size);
                blocks.by_ref().for_each(|block| truth.add(&domain, block));
                let mut short = blocks.remainder().to_vec();
                if !short.is_empty() {
                    short.resize(block_size, 0);
                    truth.add(&domain, &short);
                }
            }
            Ok(())
        });
        walked.map(|_| ())
    }
}

fn expect(stat: &PoolStat, counts: &[(&str, u64, u64)]) -> Step {
    for (what, found, expected) in counts {
        if found != expected {
            return Err(violation(format!(
                "{found} {what} blocks, expected {expected}: {stat:?}"
            )));
        }
    }
    Ok(())
}

impl Truth {
    fn add(&mut self, domain: &str, block: &[u8]) {
        self.stored_blocks += 1;
        self.zero_blocks += u64::from(block.iter().all(|byte| *byte == 0));
        let mut hasher = DefaultHasher::new();
        hasher.write(block);
        let content = (domain.to_owned(), hasher.finish());
        *self.references.entry(content).or_default() += 1;
    }
}
