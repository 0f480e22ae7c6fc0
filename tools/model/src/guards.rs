//! The guards: every rule of the protocol that closes a sequence of events which would lose or
//! leak data, each with a switch.
//!
//! A rule that can be switched off without anything going wrong is not a rule but a habit. The
//! tests switch every guard off in turn and demand a counterexample.

/// Declares [`Guard`] with its table of names, promises and rules in one place, so that a guard
/// cannot exist without them.
macro_rules! guards {
    ($($guard:ident, $name:literal, $promise:literal, $rule:literal;)*) => {
        /// A rule of the protocol that can be switched off.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Guard {
            $(#[doc = $promise] #[doc = ": "] #[doc = $rule] $guard,)*
        }

        impl Guard {
            /// Every guard, in the order of the protocol.
            pub const ALL: &[Guard] = &[$(Guard::$guard,)*];

            /// The name by which the command line and the documents call the guard.
            pub fn name(self) -> &'static str {
                match self { $(Guard::$guard => $name,)* }
            }

            /// The promise that the guard protects.
            pub fn promise(self) -> &'static str {
                match self { $(Guard::$guard => $promise,)* }
            }

            /// The step that the guard constrains, and the condition.
            pub fn rule(self) -> &'static str {
                match self { $(Guard::$guard => $rule,)* }
            }
        }
    };
}

pub(crate) use guards;

guards! {
    PoolSyncBeforeLog, "pool-sync-before-log", "P2",
        "commit: the pool is synced before the sealed frame is written";
    SealBeforeSync, "seal-before-sync", "P2",
        "commit: a frame holds only records sealed before that pool sync started";
    StoreBeforeLog, "store-before-log", "P2",
        "write: a record is appended only after its data write completed";
    FlushJoinsLaterSeal, "flush-joins-later-seal", "P5",
        "flush: joins only a commit that is sealed after it arrived";
    FlushAfterLogSync, "flush-after-log-sync", "P5",
        "commit: waiters are answered after the log's sync, not after its write";
    ReplyAfterApply, "reply-after-apply", "P5",
        "write: the reply follows the application of the record to the map";
    BlockLock, "block-lock", "P1",
        "write: the block is locked from placing to applying; finder and merge take the same lock";
    ReuseAfterDurable, "reuse-after-durable", "P3",
        "commit: a released block is reusable only once the record that releases it is durable";
    ReuseAfterDrain, "reuse-after-drain", "P3",
        "commit: a released block is reusable only once the reads pinned before have ended";
    DrainAcrossVolumes, "drain-across-volumes", "P3",
        "commit: reads of every volume are waited for, not only those of the volume that releases the block";
    NotInPlaceShared, "not-in-place-shared", "P1",
        "write: a shared block is never written in place";
    NotInPlaceFrozen, "not-in-place-frozen", "P1",
        "write: a block of a frozen layer is never written in place";
    ZeroHidesBelow, "zero-hides-below", "P5",
        "write: over lower layers a zero block becomes a zero entry, not an absent one";
    CandidateLocked, "candidate-locked", "P2",
        "finder: a block that is read before it is published is chosen under its lock";
    CandidateDropped, "candidate-dropped", "P2",
        "write: what the finder has read of a block before is dropped under the lock, before the data is stored";
    FinderIntentDurable, "finder-intent-durable", "P2, P4",
        "finder: mark and intent, and so the owner's record, are durable before the index call";
    PublishedContentDurable, "published-content-durable", "P2",
        "finder: the content of a marked block is synced before the index may name it";
    CountBeforeName, "count-before-name", "P3",
        "finder: the index counts the reference before a map names the block";
    IndexSyncBeforeOutcome, "index-sync-before-outcome", "P3",
        "finder, collector: the index has synced a batch before its outcome is logged";
    OneBatch, "one-batch", "P4",
        "finder, collector: one batch at a time in a pool, settled before the next is announced";
    NumbersNeverReused, "numbers-never-reused", "P4",
        "finder, collector: the number of a batch is in log and checkpoint and never used again";
    RepeatReturnsAnswers, "repeat-returns-answers", "P4",
        "index: a repeated (stream, number) returns the original answers and changes nothing";
    AnswersWithEntries, "answers-with-entries", "P4",
        "index: number and answers become durable atomically with the entries";
    OnlyUnsettledAgain, "only-unsettled-again", "P4",
        "finder, collector: a repeated call has only the items that are not settled yet";
    MovedNotQueued, "moved-not-queued", "P4",
        "write, merge: a block of an unsettled item is not queued: its outcome settles it";
    AliasOnlyIfUnmoved, "alias-only-if-unmoved", "P5",
        "finder: an entry is aliased only if it still names the old block, else it is dangling";
    DanglingGivesBack, "dangling-gives-back", "P4",
        "finder: a dangling outcome gives back the reference that was counted";
    DanglingKeepsInserted, "dangling-keeps-inserted", "P3",
        "finder: a dangling outcome frees the own block only if the index names another";
    DeclinedFreesMoved, "declined-frees-moved", "P6",
        "finder: the own block of a declined item whose LBA moved on is free";
    VerifyBytes, "verify-bytes", "P8",
        "finder: with `verify`, an entry is aliased only if the bytes are equal";
    CollectorIntentDurable, "collector-intent-durable", "P3, P4",
        "collector: the intent, and so the giving-up record, is durable before the decrement";
    FreeOnlyAtZero, "free-only-at-zero", "P3",
        "collector: a block is freed only with its last reference";
    DecrementNamesAddress, "decrement-names-address", "P8",
        "collector: the decrement names the expected block; a mismatch quarantines it";
    UnknownQuarantines, "unknown-quarantines", "P8",
        "collector: a fingerprint that the index does not know quarantines the block";
    RebuildBeforeBatch, "rebuild-before-batch", "P3",
        "rebuild: an index that was lost is counted again before any batch goes on";
    RebuildSkipsUnpublished, "rebuild-skips-unpublished", "P4",
        "rebuild: entries that the open batch has still to publish are not counted";
    RebuildCountsHits, "rebuild-counts-hits", "P3",
        "rebuild: an announced entry that a hit has given another block is counted";
    RebuildCountsQueue, "rebuild-counts-queue", "P3",
        "rebuild: references in the queue are counted";
    RebuildCountsCollected, "rebuild-counts-collected", "P3",
        "rebuild: references that an open batch has still to release are counted";
    RebuildAfterCommit, "rebuild-after-commit", "P4",
        "rebuild: ends only once what it counted is durable";
    ClaimWithEntry, "claim-with-entry", "P3",
        "hit: the claim is part of the record that makes the entry";
    HitNotCollected, "hit-not-collected", "P3",
        "hit: not on an unsettled item of the collector";
    HitSettled, "hit-settled", "P3",
        "hit: not on an unsettled item of the finder";
    HitStillValid, "hit-still-valid", "P1",
        "hit: nothing was released for good between lookup and record";
    SameStillValid, "same-still-valid", "P5",
        "hit: the same before a write is taken for no change";
    HitOfThisIndex, "hit-of-this-index", "P6",
        "hit: no rebuild began between lookup and record, nor before a write is taken for no change";
    HitNotBad, "hit-not-bad", "P8",
        "hit: not on a block that is known to be bad; nor is a write to it taken for no change";
    OneFingerprint, "one-fingerprint", "P8",
        "write: what is fingerprinted is what is stored: a buffer that others can write to is copied first";
    CountIntentDurable, "count-intent-durable", "P4",
        "counting: the announcement, and so the entries, are durable before the index counts";
    CountKnownRow, "count-known-row", "P8",
        "counting: a claim is counted in the row that names its block; without one the block is quarantined";
    ClaimsBeforeRelease, "claims-before-release", "P3",
        "collector: announces only while no claim is pending";
    RebuildLessClaims, "rebuild-less-claims", "P4",
        "rebuild: what is claimed is left out, an open counting batch included";
    SnapshotDrains, "snapshot-drains", "P1",
        "snapshot: writes in flight end before the layer is frozen";
    SnapshotCommits, "snapshot-commits", "P5",
        "snapshot: answered after a commit that covers it";
    DeleteDurable, "delete-durable", "P1",
        "merge: begins only once the record that the layer is being deleted is durable";
    MergeReleasesOwn, "merge-releases-own", "P3",
        "merge: releases entries of the deleted layer only";
    MergeIntoOnlyChild, "merge-into-only-child", "P5",
        "merge: a layer is deleted only while it has at most one child";
    MergeMovesSettled, "merge-moves-settled", "P4",
        "merge: an entry that an open batch has still to settle is not moved to the child";
    CacheInvalidated, "cache-invalidated", "P3",
        "layers: cached lookups through a layer are dropped when that layer releases a block";
    CheckpointSharp, "checkpoint-sharp", "P5",
        "checkpoint: its content is exactly the records before its log position";
    CheckpointDurable, "checkpoint-durable", "P2",
        "checkpoint: written only once pool and log are durable up to its position";
    PagesBeforeRoot, "pages-before-root", "P2",
        "checkpoint: the root is switched only after its pages are synced";
    PruneAfterRoot, "prune-after-root", "P5",
        "checkpoint: the log is pruned only after the new root is durable";
    OldPagesAfterRoot, "old-pages-after-root", "P5",
        "checkpoint: pages of the old root are reused only after the new root is durable";
    RecoverySyncsFirst, "recovery-syncs-first", "P2, P5",
        "recovery: pool, log and root are synced before anything read from them is trusted";
    ReplayByRecord, "replay-by-record", "P4",
        "recovery: an outcome is replayed with its logged address, never by asking the index again";
    TailTakenOver, "tail-taken-over", "P12",
        "kill, recovery: records that the log lacks outlive the process and are taken over";
    TailOfThisBoot, "tail-of-this-boot", "P2",
        "recovery: records that outlived the process are void once the host has stopped";
}

/// A set of guards that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    off: Option<Guard>,
}

impl Guards {
    /// Every guard is on.
    pub const ON: Guards = Guards { off: None };

    /// Every guard except one is on.
    pub fn without(guard: Guard) -> Guards {
        Guards { off: Some(guard) }
    }

    /// Whether `guard` is on.
    pub fn on(self, guard: Guard) -> bool {
        self.off != Some(guard)
    }
}
