//! What a search must come across to mean anything.

use crate::hits::{self, Fate, Refusal};
use crate::image::{BatchKind, Block, Entry, OpenBatch, Outcome, Record, Release};
use crate::rebuild;
use crate::state::{Config, Mode, Phase, State};

/// Something that a configuration exists to reach; a search that does not come across it shows
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(
    missing_docs,
    reason = "variants and fields are the words of docs/model.md"
)]
pub enum Milestone {
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
}

impl Milestone {
    /// Its name in the search's result.
    pub fn name(self) -> &'static str {
        match self {
            Milestone::Aliased => "reaches an alias",
            Milestone::Dangling => "reaches a dangling outcome",
            Milestone::Rejected => "reaches a rejected outcome",
            Milestone::Declined => "reaches a declined outcome of a moved item",
            Milestone::GrowingBatch => "reaches a batch announced by two records",
            Milestone::SameBlockTwice => "reaches a collector batch with a block twice",
            Milestone::ReleasedOne => "reaches the release of one reference of several",
            Milestone::Freed => "reaches the release of the last reference",
            Milestone::Quarantined => "reaches a quarantined block",
            Milestone::Merged => "reaches a merge step",
            Milestone::MergedUnsettled => "reaches a merge step that releases an unsettled item",
            Milestone::LayerGone => "reaches the end of a layer",
            Milestone::ReadOfReplaced => "reaches a read of a block already released",
            Milestone::FinderResumed => "reaches a finder batch in recovery",
            Milestone::CollectorResumed => "reaches a collector batch in recovery",
            Milestone::FinderCountedAgain => "reaches a rebuild in the middle of a finder batch",
            Milestone::CollectorCountedAgain => {
                "reaches a rebuild in the middle of a collector batch"
            }
            Milestone::Repaired => "reaches the rebuild of a damaged index",
            Milestone::CrashInRecovery => "reaches a crash in recovery",
            Milestone::Replayed => "reaches a replay on top of a new root",
            Milestone::FlushedAll => "reaches the end of its flushes",
            Milestone::Hit => "reaches a hit",
            Milestone::Nothing => "reaches a write that changes nothing",
            Milestone::HitOnDropped => "reaches a hit on a block that only the queue names",
            Milestone::ClaimDropped => "reaches a claim whose entry is overwritten",
            Milestone::RefusedFreed => "reaches a hit refused after a block was freed",
            Milestone::RefusedRebuilt => "reaches a hit refused after a rebuild began",
            Milestone::RefusedCollected => "reaches a hit refused for the collector",
            Milestone::RefusedUnsettled => "reaches a hit refused for the finder",
            Milestone::RefusedBad => "reaches a hit refused on a bad block",
            Milestone::Counted => "reaches a claim that is counted",
            Milestone::CountedTwo => "reaches a counting batch of two in its middle",
            Milestone::CountQuarantined => "reaches a claim that is quarantined",
            Milestone::CountingResumed => "reaches a counting batch in recovery",
            Milestone::ClaimsCountedAgain => "reaches a rebuild with claims",
            Milestone::CountingCountedAgain => "reaches a rebuild beside a counting batch",
            Milestone::CalledOff => "reaches a finder batch that is called off",
            Milestone::ClaimFrozen => "reaches a snapshot of a claimed entry",
            Milestone::ClaimMerged => "reaches a claimed entry that a merge moves",
            Milestone::RootWithClaims => "reaches a root with claims",
            Milestone::RootWithCounting => "reaches a root with a counting batch",
        }
    }

    /// Whether `state` is one.
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

/// Entries that the next steps of merges move to the layer above.
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

/// What would become of the write that has looked up, for each LBA that it may be for.
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
