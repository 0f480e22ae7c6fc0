//! The names of the events that a search must reach; `milestones.rs` recognises each one.

/// An event that a configuration exists to reach; a search that does not reach it shows nothing.
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
    /// The milestone's name in the search's result.
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
}
