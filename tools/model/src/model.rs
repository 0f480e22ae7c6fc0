//! The model: which steps are possible in a state, and their effects.

use stateright::{Model, Property};

use crate::bits::Bits;
use crate::image::{BatchKind, BatchNumber, Content, LBAS, LayerId, Lba, VOLUMES, Volume};
use crate::milestone::Milestone;
use crate::properties::{self, Violation};
use crate::recovery::{self, Remains};
use crate::state::{Config, Mode, Phase, State, Target};
use crate::{collector, commit, counting, finder, hits, layers, rebuild, volume_steps};

/// The protocol in one configuration.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// The configuration.
    pub config: Config,
}

/// An indivisible step. A step that is not possible changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "variants and fields are the words of docs/model.md"
)]
pub enum Step {
    StartWrite {
        slot: usize,
        volume: Volume,
        lba: Lba,
        content: Content,
    },
    WriteZeros {
        volume: Volume,
        lba: Lba,
    },
    Store {
        slot: usize,
    },
    LogAndApply {
        slot: usize,
    },
    ChangeBuffer {
        slot: usize,
        content: Content,
    },
    LookUp {
        content: Content,
    },
    Hit {
        volume: Volume,
        lba: Lba,
    },
    ClaimLate,
    StartRead {
        slot: usize,
        target: Target,
        lba: Lba,
    },
    FinishRead {
        slot: usize,
    },
    Flush {
        volume: Volume,
    },
    Seal {
        checkpoint: bool,
    },
    SyncPoolWriteFrame,
    SyncLogAnswer,
    WritePages,
    SwitchRoot,
    SyncRoot,
    PruneLog,
    FinderChoose {
        layer: LayerId,
        lba: Lba,
    },
    FinderRead,
    FinderMark {
        layer: LayerId,
        lbas: Bits,
    },
    FinderCall {
        number: BatchNumber,
    },
    FinderOutcome {
        number: BatchNumber,
    },
    FinderCountLate {
        number: BatchNumber,
    },
    Collect {
        elements: u8,
    },
    CollectorCall {
        number: BatchNumber,
    },
    CollectorRelease {
        number: BatchNumber,
    },
    Count {
        elements: u8,
    },
    CountingCall {
        number: BatchNumber,
    },
    Counted {
        number: BatchNumber,
    },
    BeginRebuild,
    FinishRebuild,
    IndexSync,
    IndexLosesRow {
        fingerprint: u8,
    },
    BlockGoesBad {
        block: u8,
    },
    Snapshot {
        volume: Volume,
    },
    Clone {
        volume: Volume,
        below: LayerId,
    },
    DeleteLayer {
        layer: LayerId,
    },
    MergeStep {
        layer: LayerId,
        lba: Lba,
    },
    DropLayer {
        layer: LayerId,
    },
    Kill,
    LosePower(Remains),
    Recover,
}

impl Protocol {
    fn guest_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let config = &self.config;
        let slots = usize::from(config.slots);
        // The slots are alike, so only the first empty one is used.
        let idle = |taken: [bool; 2]| taken.iter().take(slots).position(|taken| !taken);
        let writer = idle(state.memory.writers.each_ref().map(Option::is_some));
        let reader = idle(state.memory.readers.each_ref().map(Option::is_some));
        for volume in 0..VOLUMES as Volume {
            if state.memory.image.live[usize::from(volume)].is_none() {
                continue;
            }
            for lba in 0..config.lbas {
                if let (Some(slot), true) = (writer, state.budget.writes > 0) {
                    steps.extend((1..=config.contents).map(|content| Step::StartWrite {
                        slot,
                        volume,
                        lba,
                        content,
                    }));
                }
                if state.memory.lookup.is_some() {
                    steps.push(Step::Hit { volume, lba });
                }
                if state.budget.zeros > 0 {
                    steps.push(Step::WriteZeros { volume, lba });
                }
                if let (Some(slot), true) = (reader, state.budget.reads > 0) {
                    let target = Target::Live(volume);
                    steps.push(Step::StartRead { slot, target, lba });
                }
            }
            if state.budget.flushes > 0 {
                steps.push(Step::Flush { volume });
            }
            if state.budget.snapshots > 0 {
                steps.push(Step::Snapshot { volume });
            }
        }
        if state.budget.lookups > 0 {
            steps.extend((1..=config.contents).map(|content| Step::LookUp { content }));
        }
        if !state.memory.late_claims.is_empty() {
            steps.push(Step::ClaimLate);
        }
        if let (Some(slot), true) = (reader, state.budget.reads > 0) {
            for (id, layer) in state.memory.image.each_layer() {
                let target = Target::Frozen(id);
                let lbas = (0..config.lbas).filter(|_| layer.frozen && !layer.deleting);
                steps.extend(lbas.map(|lba| Step::StartRead { slot, target, lba }));
            }
        }
    }

    fn layer_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let config = &self.config;
        for (layer, found) in state.memory.image.each_layer() {
            if state.budget.finds > 0 {
                let batches = (1..1_u8 << config.lbas).map(|set| {
                    let lbas = (0..config.lbas).filter(|lba| set & (1 << lba) != 0);
                    lbas.fold(Bits::NONE, |bits, lba| bits.or(Bits::of(lba)))
                });
                let fits = |lbas: &Bits| lbas.iter().count() <= usize::from(config.batch);
                let batches = batches.filter(fits);
                steps.extend(batches.map(|lbas| Step::FinderMark { layer, lbas }));
            }
            if state.budget.candidates > 0 {
                let lbas = 0..config.lbas;
                steps.extend(lbas.map(|lba| Step::FinderChoose { layer, lba }));
            }
            if found.frozen && state.budget.deletes > 0 {
                steps.push(Step::DeleteLayer { layer });
            }
            if found.frozen && state.budget.clones > 0 {
                steps.push(Step::Clone {
                    volume: 1,
                    below: layer,
                });
            }
            if found.deleting {
                steps.extend((0..config.lbas).map(|lba| Step::MergeStep { layer, lba }));
                steps.push(Step::DropLayer { layer });
            }
        }
        if state.budget.lost_rows > 0 {
            let rows = state.disk.index.each_row();
            steps.extend(rows.map(|(fingerprint, _)| Step::IndexLosesRow { fingerprint }));
        }
        if state.budget.bad_blocks > 0 {
            steps.extend((0..config.blocks).map(|block| Step::BlockGoesBad { block }));
        }
    }

    fn job_steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.memory.candidate.is_some() {
            steps.push(Step::FinderRead);
        }
        for job in &state.memory.jobs {
            let number = job.number;
            let batch = state.memory.image.batch(number);
            match (batch.map(|batch| batch.kind), &job.phase) {
                (None, _) => steps.push(Step::FinderCountLate { number }),
                (Some(BatchKind::Finder(_)), Phase::Intent(_)) => {
                    steps.push(Step::FinderCall { number });
                }
                (Some(BatchKind::Finder(_)), _) => steps.push(Step::FinderOutcome { number }),
                (Some(BatchKind::Collector), Phase::Intent(_)) => {
                    steps.push(Step::CollectorCall { number });
                }
                (Some(BatchKind::Collector), _) => {
                    steps.push(Step::CollectorRelease { number });
                }
                (Some(BatchKind::Counting), Phase::Intent(_)) => {
                    steps.push(Step::CountingCall { number });
                }
                (Some(BatchKind::Counting), _) => steps.push(Step::Counted { number }),
            }
        }
        if state.budget.collects > 0 {
            let queued = state.memory.image.queue.len() as u8;
            let counts = 1..=queued.min(self.config.batch);
            steps.extend(counts.map(|elements| Step::Collect { elements }));
        }
        if state.budget.counts > 0 {
            let claimed = state.memory.image.claims.len() as u8;
            let counts = 1..=claimed.min(self.config.batch);
            steps.extend(counts.map(|elements| Step::Count { elements }));
        }
        if state.disk.index.needs_rebuild || state.budget.rebuilds > 0 {
            steps.push(Step::BeginRebuild);
        }
        if state.memory.rebuild.is_some() {
            steps.push(Step::FinishRebuild);
        }
    }

    fn commit_steps(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Seal { checkpoint: false });
        if state.budget.checkpoints > 0 {
            steps.push(Step::Seal { checkpoint: true });
        }
        if state.memory.commit.is_some() {
            steps.extend([Step::SyncPoolWriteFrame, Step::SyncLogAnswer]);
        }
        if state.memory.checkpoint.is_some() {
            steps.extend([
                Step::WritePages,
                Step::SwitchRoot,
                Step::SyncRoot,
                Step::PruneLog,
            ]);
        }
        if *state.disk.index_durable != state.disk.index {
            steps.push(Step::IndexSync);
        }
    }

    fn take(&self, state: &mut State, step: Step) -> Option<()> {
        let config = &self.config;
        match step {
            Step::StartWrite {
                slot,
                volume,
                lba,
                content,
            } => volume_steps::start_write(state, config, slot, volume, lba, content),
            Step::WriteZeros { volume, lba } => {
                volume_steps::write_zeros(state, config, volume, lba)
            }
            Step::ChangeBuffer { slot, content } => {
                volume_steps::change_buffer(state, config, slot, content)
            }
            Step::LookUp { content } => hits::look_up(state, config, content),
            Step::Hit { volume, lba } => hits::take(state, config, volume, lba),
            Step::ClaimLate => hits::claim_late(state, config),
            Step::Store { slot } => volume_steps::store(state, config, slot),
            Step::LogAndApply { slot } => volume_steps::log(state, config, slot),
            Step::StartRead { slot, target, lba } => {
                volume_steps::start_read(state, config, slot, target, lba)
            }
            Step::FinishRead { slot } => volume_steps::finish_read(state, slot),
            Step::Flush { volume } => volume_steps::flush(state, config, volume),
            Step::Seal { checkpoint } => commit::seal(state, config, checkpoint),
            Step::SyncPoolWriteFrame => commit::write_frame(state, config),
            Step::SyncLogAnswer => commit::finish_commit(state, config),
            Step::WritePages => commit::write_pages(state, config),
            Step::SwitchRoot => commit::switch_root(state),
            Step::SyncRoot => commit::sync_root(state),
            Step::PruneLog => commit::prune(state, config),
            Step::FinderChoose { layer, lba } => finder::choose(state, config, layer, lba),
            Step::FinderRead => finder::read(state),
            Step::FinderMark { layer, lbas } => finder::mark(state, config, layer, lbas),
            Step::FinderCall { number } => finder::call(state, config, number),
            Step::FinderOutcome { number } => finder::outcome(state, config, number),
            Step::FinderCountLate { number } => finder::count_late(state, config, number),
            Step::Collect { elements } => collector::begin(state, config, elements),
            Step::CollectorCall { number } => collector::call(state, config, number),
            Step::CollectorRelease { number } => collector::release(state, config, number),
            Step::Count { elements } => counting::begin(state, config, elements),
            Step::CountingCall { number } => counting::call(state, config, number),
            Step::Counted { number } => counting::settle(state, config, number),
            Step::BeginRebuild => rebuild::begin(state, config),
            Step::FinishRebuild => rebuild::finish(state, config),
            Step::IndexSync => {
                state.disk.sync_index();
                Some(())
            }
            Step::IndexLosesRow { fingerprint } => lose_row(state, fingerprint),
            Step::BlockGoesBad { block } => spoil(state, block),
            Step::Snapshot { volume } => layers::snapshot(state, config, volume),
            Step::Clone { volume, below } => layers::clone(state, config, volume, below),
            Step::DeleteLayer { layer } => layers::start_delete(state, config, layer),
            Step::MergeStep { layer, lba } => layers::merge_step(state, config, layer, lba),
            Step::DropLayer { layer } => layers::drop_layer(state, config, layer),
            Step::Kill => recovery::kill(state, config),
            Step::LosePower(remains) => recovery::lose_power(state, config, &remains),
            Step::Recover => recovery::recover(state, config),
        }
    }
}

/// Damage from outside: the index forgets a row.
fn lose_row(state: &mut State, fingerprint: u8) -> Option<()> {
    state.budget.lost_rows = state.budget.lost_rows.checked_sub(1)?;
    state.disk.index.rows[usize::from(fingerprint)] = None;
    state.disk.sync_index();
    state.ghost.damaged = true;
    Some(())
}

/// Damage from outside: a block that maps name becomes unreadable, and a scrub has found it. LBAs that refer to it now
/// may be unreadable; a write that is answered from now on must not refer to it.
fn spoil(state: &mut State, block: u8) -> Option<()> {
    let image = &state.memory.image;
    if !image.allocated.has(block) || state.disk.bad.has(block) {
        return None;
    }
    state.budget.bad_blocks = state.budget.bad_blocks.checked_sub(1)?;
    state.disk.bad.insert(block);
    for (affected, live) in state.ghost.affected.iter_mut().zip(image.live) {
        let Some(live) = live else { continue };
        for lba in 0..LBAS as Lba {
            if image.resolve(live, lba).1.block() == Some(block) {
                affected.insert(lba);
            }
        }
    }
    Some(())
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.config)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.violation.is_some() {
            return;
        }
        if state.budget.kills > 0 && state.memory.mode != Mode::Down {
            steps.push(Step::Kill);
        }
        // A crashed machine loses power only if there is something to lose.
        let loses = state.memory.mode != Mode::Down || !state.disk.is_durable();
        if state.budget.power_losses > 0 && loses {
            steps.extend(
                recovery::remains(&state.disk)
                    .into_iter()
                    .map(Step::LosePower),
            );
        }
        if state.memory.mode == Mode::Down {
            steps.push(Step::Recover);
            return;
        }
        for slot in 0..usize::from(self.config.slots) {
            if state.memory.writers[slot].is_some() {
                steps.extend([Step::Store { slot }, Step::LogAndApply { slot }]);
                let contents =
                    (1..=self.config.contents).filter(|_| state.budget.buffer_changes > 0);
                steps.extend(contents.map(|content| Step::ChangeBuffer { slot, content }));
            }
            if state.memory.readers[slot].is_some() {
                steps.push(Step::FinishRead { slot });
            }
        }
        self.commit_steps(state, steps);
        self.job_steps(state, steps);
        self.guest_steps(state, steps);
        self.layer_steps(state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.take(&mut next, step)?;
        if state.memory.mode == Mode::Recovered && next.memory.mode == Mode::Recovered {
            next.memory.mode = Mode::Running;
        }
        if next.violation.is_none() {
            next.violation = properties::check(&next, &self.config).err();
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all: Vec<_> = Violation::ALL
            .iter()
            .map(|v| violation_property(*v))
            .collect();
        all.extend(
            self.config
                .milestones
                .iter()
                .map(|m| milestone_property(*m)),
        );
        all
    }
}

/// Declares a property for each variant: stateright takes plain functions, which cannot capture a variable.
macro_rules! by_variant {
    ($value:expr, $kind:ident, $build:ident, $test:expr, [$($variant:ident),* $(,)?]) => {
        match $value {
            $($kind::$variant => Property::$build($value.name(), |protocol, state| {
                $test($kind::$variant, protocol, state)
            }),)*
        }
    };
}

fn violation_property(violation: Violation) -> Property<Protocol> {
    fn absent(violation: Violation, _: &Protocol, state: &State) -> bool {
        state.violation != Some(violation)
    }
    by_variant!(
        violation,
        Violation,
        always,
        absent,
        [
            ImmutableWritten,
            IndexUntrue,
            RootDamaged,
            FreeInUse,
            CountTooLow,
            CountWrong,
            Refused,
            FlushedLost,
            AnsweredLost,
            SnapshotLost,
            Partition,
            Contradiction,
            WrongRead,
            Unreadable,
        ]
    )
}

fn milestone_property(milestone: Milestone) -> Property<Protocol> {
    fn reached(milestone: Milestone, protocol: &Protocol, state: &State) -> bool {
        milestone.reached(&protocol.config, state)
    }
    by_variant!(
        milestone,
        Milestone,
        sometimes,
        reached,
        [
            Aliased,
            Dangling,
            Rejected,
            Declined,
            GrowingBatch,
            SameBlockTwice,
            ReleasedOne,
            Freed,
            Quarantined,
            Merged,
            MergedUnsettled,
            LayerGone,
            ReadOfReplaced,
            FinderResumed,
            CollectorResumed,
            FinderCountedAgain,
            CollectorCountedAgain,
            Repaired,
            CrashInRecovery,
            Replayed,
            FlushedAll,
            Hit,
            Nothing,
            HitOnDropped,
            ClaimDropped,
            RefusedFreed,
            RefusedRebuilt,
            RefusedCollected,
            RefusedUnsettled,
            RefusedBad,
            Counted,
            CountedTwo,
            CountQuarantined,
            CountingResumed,
            ClaimsCountedAgain,
            CountingCountedAgain,
            CalledOff,
            ClaimFrozen,
            ClaimMerged,
            RootWithClaims,
            RootWithCounting,
        ]
    )
}
