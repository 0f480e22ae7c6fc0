//! Recognises the events that a search must reach, without which it would show nothing.

use crate::hits::{self, Fate, Refusal};
use crate::image::{BatchKind, Block, Entry, OpenBatch, Outcome, Record, Release};
use crate::milestone::Milestone;
use crate::rebuild;
use crate::state::{Config, Mode, Phase, State};

impl Milestone {
    /// Whether `state` is an example of this milestone.
    pub fn reached(self, config: &Config, state: &State) -> bool {
        let memory = &state.memory;
        let outcome = |wanted: fn(&Outcome) -> bool| match memory.tail.last() {
            Some(Record::Outcome { outcome, .. }) => wanted(outcome),
            _ => false,
        };
        let released = |wanted| match memory.tail.last() {
            Some(Record::Release { release, .. }) => *release == wanted,
            _ => false,
        };
        let resumed = |wanted: fn(&OpenBatch) -> bool| {
            memory.mode == Mode::Recovered && memory.image.open.iter().any(wanted)
        };
        let counted_again = |wanted: fn(&OpenBatch) -> bool| {
            let partly = |batch: &OpenBatch| batch.done > 0 && wanted(batch);
            memory.rebuild.is_some() && memory.image.open.iter().any(partly)
        };
        let is_find = |open: &OpenBatch| matches!(open.kind, BatchKind::Finder(_));
        let is_collect = |open: &OpenBatch| open.kind == BatchKind::Collector;
        match self {
            Milestone::Aliased => outcome(|o| matches!(o, Outcome::Aliased(_))),
            Milestone::Dangling => outcome(|o| matches!(o, Outcome::Dangling(_))),
            Milestone::Rejected => outcome(|o| matches!(o, Outcome::Rejected(_))),
            Milestone::Declined => {
                outcome(|o| *o == Outcome::Declined) && !memory.freed_tail.is_empty()
            }
            Milestone::GrowingBatch => {
                let publish = |record: &&Record| matches!(record, Record::Publish { .. });
                memory.tail.iter().filter(publish).count() > 1
            }
            Milestone::SameBlockTwice => {
                let mut collected = memory.image.open.iter().filter(|open| is_collect(open));
                collected.any(|open| matches!(&open.items[..], [a, b] if a.block == b.block))
            }
            Milestone::ReleasedOne => released(Release::Remaining),
            Milestone::Freed => released(Release::Freed),
            Milestone::Quarantined => released(Release::Quarantined),
            Milestone::Merged => matches!(memory.tail.last(), Some(Record::MergeStep { .. })),
            Milestone::MergedUnsettled => {
                let items = memory.image.open.iter().flat_map(OpenBatch::unsettled);
                let moved = items.filter(|item| item.moved).count() > 0;
                moved && matches!(memory.tail.last(), Some(Record::MergeStep { .. }))
            }
            Milestone::LayerGone => {
                matches!(memory.tail.last(), Some(Record::LayerDropped { .. }))
            }
            Milestone::ReadOfReplaced => memory
                .readers
                .iter()
                .flatten()
                .any(|r| !memory.image.allocated.has(r.block)),
            Milestone::FinderResumed => resumed(is_find),
            Milestone::CollectorResumed => resumed(is_collect),
            Milestone::FinderCountedAgain => counted_again(is_find),
            Milestone::CollectorCountedAgain => counted_again(is_collect),
            Milestone::Repaired => state.ghost.damaged && memory.rebuild.is_some(),
            Milestone::CrashInRecovery => {
                resumed(|_| true) && crashes_left(state) + 2 <= crashes(config)
            }
            Milestone::Replayed => {
                memory.mode != Mode::Down
                    && state.budget.checkpoints < config.budget.checkpoints
                    && crashes_left(state) < crashes(config)
                    && state.disk.log.len() > usize::from(state.disk.root.skip)
            }
            Milestone::FlushedAll => state.budget.flushes == 0 && memory.flush.is_none(),
            _ => self.reached_in_line(config, state),
        }
    }

    fn reached_in_line(self, config: &Config, state: &State) -> bool {
        let memory = &state.memory;
        let image = &memory.image;
        let last = memory.tail.last();
        let fated = |wanted: Fate| fates(config, state).any(|fate| fate == wanted);
        let refused = |why| fated(Fate::Refused(why));
        let counting = |image: &crate::image::Image| image.open.iter().any(is_counting);
        let is_rebuilding = memory.rebuild.is_some();
        match self {
            Milestone::Hit => hit(last).is_some(),
            Milestone::Nothing => fated(Fate::Nothing),
            Milestone::HitOnDropped => hit(last)
                .is_some_and(|block| image.queue.contains(&block) && entries_of(state, block) == 1),
            Milestone::ClaimDropped => {
                let mut claims = image.claims.iter();
                claims.any(|block| entries_of(state, *block) == 0)
            }
            Milestone::RefusedFreed => refused(Refusal::Freed),
            Milestone::RefusedRebuilt => refused(Refusal::Rebuilt),
            Milestone::RefusedCollected => refused(Refusal::Collected),
            Milestone::RefusedUnsettled => refused(Refusal::Unsettled),
            Milestone::RefusedBad => refused(Refusal::Bad),
            Milestone::Counted => counted(last) == Some(false),
            Milestone::CountedTwo => {
                let mut open = image.open.iter().filter(|batch| is_counting(batch));
                open.any(|batch| batch.done == 1)
            }
            Milestone::CountQuarantined => counted(last) == Some(true),
            Milestone::CountingResumed => memory.mode == Mode::Recovered && counting(image),
            Milestone::ClaimsCountedAgain => is_rebuilding && !image.claims.is_empty(),
            Milestone::CountingCountedAgain => is_rebuilding && counting(image),
            Milestone::CalledOff => {
                let mut jobs = memory.jobs.iter();
                let has_none = state.disk.index.answers.is_empty();
                has_none && jobs.any(|job| matches!(job.phase, Phase::Answered(_)))
            }
            Milestone::ClaimFrozen => {
                let claimed = rebuild::uncounted(image).next().is_some();
                claimed && matches!(last, Some(Record::Snapshot { .. }))
            }
            Milestone::ClaimMerged => moved_by_merge(state).any(|moved| {
                let mut claims = rebuild::uncounted(image);
                claims.any(|block| moved == Entry::Shared(block))
            }),
            Milestone::RootWithClaims => !state.disk.root.image.claims.is_empty(),
            Milestone::RootWithCounting => counting(&state.disk.root.image),
            _ => false,
        }
    }
}

fn is_counting(batch: &OpenBatch) -> bool {
    batch.kind == BatchKind::Counting
}

/// The block that a hit refers to, if the last record is one.
fn hit(last: Option<&Record>) -> Option<Block> {
    match last {
        Some(Record::Write {
            new: Entry::Shared(block),
            ..
        }) => Some(*block),
        _ => None,
    }
}

/// Whether the claim was quarantined, if the last record settled one.
fn counted(last: Option<&Record>) -> Option<bool> {
    match last {
        Some(Record::Counted { quarantined, .. }) => Some(*quarantined),
        _ => None,
    }
}

/// Entries that the next step of a merge moves to the layer above.
fn moved_by_merge(state: &State) -> impl Iterator<Item = Entry> {
    let image = &state.memory.image;
    let starting = state.memory.delete.map(|(layer, _)| layer);
    let merging = image.each_layer();
    let merging = merging.filter(move |(id, layer)| layer.deleting && Some(*id) != starting);
    merging.flat_map(|(id, layer)| {
        let children = image.children(id).filter_map(|child| image.layer(child));
        children.flat_map(|child| {
            let both = layer.map.into_iter().zip(child.map);
            both.filter(|(_, above)| *above == Entry::Absent)
                .map(|(entry, _)| entry)
        })
    })
}

fn entries_of(state: &State, block: Block) -> usize {
    let entries = state.memory.image.entries();
    entries
        .filter(|(_, _, entry)| *entry == Entry::Shared(block))
        .count()
}

/// The results for the write that has looked up, at each LBA that it may be for.
fn fates<'a>(config: &'a Config, state: &'a State) -> impl Iterator<Item = Fate> + 'a {
    let image = &state.memory.image;
    let lookup = state.memory.lookup.into_iter();
    lookup.flat_map(move |lookup| {
        let live = image.live.into_iter().flatten();
        let layers = live.filter_map(|live| image.layer(live));
        let entries = layers.flat_map(|layer| &layer.map[..usize::from(config.lbas)]);
        entries.map(move |entry| hits::fate(state, config, lookup, *entry))
    })
}

fn crashes(config: &Config) -> u8 {
    config.budget.kills + config.budget.power_losses
}

fn crashes_left(state: &State) -> u8 {
    state.budget.kills + state.budget.power_losses
}
