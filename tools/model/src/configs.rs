//! The configurations: each small enough to be searched to its end, together covering the
//! protocol.

mod inline;

use crate::guards::{Guard, Guards};
use crate::milestone::Milestone;
use crate::state::{Budget, Config};

const NOTHING: Budget = Budget {
    writes: 0,
    zeros: 0,
    flushes: 0,
    reads: 0,
    finds: 0,
    candidates: 0,
    collects: 0,
    snapshots: 0,
    clones: 0,
    deletes: 0,
    checkpoints: 0,
    idle_commits: 0,
    kills: 0,
    power_losses: 0,
    lost_rows: 0,
    rebuilds: 0,
    lookups: 0,
    counts: 0,
    bad_blocks: 0,
    buffer_changes: 0,
};

const SMALL: Config = Config {
    name: "",
    volumes: 1,
    lbas: 1,
    blocks: 3,
    contents: 2,
    slots: 1,
    batch: 1,
    colliding: false,
    cached: false,
    index_rows: 2,
    index_in_memory: false,
    folds_log: true,
    budget: NOTHING,
    guards: Guards::ON,
    milestones: &[],
};

/// Every configuration.
pub fn all() -> Vec<Config> {
    let mut all = single_volume();
    all.extend(finding());
    all.extend(collecting());
    all.extend(recovering());
    all.extend(counting_again());
    all.extend(damaged());
    all.extend(layered());
    all.extend(cloned());
    all.extend(inline::all());
    all
}

/// Writes, reads, flushes and checkpoints of private blocks.
fn single_volume() -> Vec<Config> {
    vec![
        Config {
            name: "write-path",
            lbas: 2,
            slots: 2,
            budget: Budget {
                writes: 3,
                zeros: 1,
                flushes: 1,
                idle_commits: 1,
                kills: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::FlushedAll],
            ..SMALL
        },
        Config {
            name: "reads",
            volumes: 2,
            slots: 2,
            budget: Budget {
                writes: 3,
                zeros: 1,
                reads: 2,
                idle_commits: 1,
                ..NOTHING
            },
            milestones: &[Milestone::ReadOfReplaced],
            ..SMALL
        },
        Config {
            name: "checkpoint",
            folds_log: false,
            budget: Budget {
                writes: 3,
                zeros: 1,
                flushes: 1,
                checkpoints: 2,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Replayed],
            ..SMALL
        },
    ]
}

/// Two volumes.
fn two() -> Config {
    Config {
        volumes: 2,
        blocks: 4,
        ..SMALL
    }
}

/// The finder, on two volumes with the same contents, or on one.
fn finding() -> Vec<Config> {
    vec![
        Config {
            name: "finder",
            budget: Budget {
                writes: 3,
                flushes: 1,
                finds: 2,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Aliased,
                Milestone::Dangling,
                Milestone::FinderResumed,
            ],
            ..two()
        },
        Config {
            name: "finder-ahead",
            budget: Budget {
                writes: 3,
                finds: 2,
                candidates: 1,
                kills: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Aliased,
                Milestone::Dangling,
                Milestone::FinderResumed,
            ],
            ..two()
        },
        Config {
            name: "finder-batch",
            volumes: 1,
            lbas: 2,
            batch: 2,
            budget: Budget {
                writes: 3,
                finds: 2,
                collects: 1,
                idle_commits: 1,
                kills: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::GrowingBatch,
                Milestone::Aliased,
                Milestone::Dangling,
                Milestone::FinderResumed,
            ],
            ..two()
        },
        Config {
            name: "finder-verify",
            colliding: true,
            budget: Budget {
                writes: 3,
                finds: 3,
                collects: 2,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Rejected, Milestone::Aliased],
            ..two()
        },
        Config {
            name: "finder-full",
            index_rows: 1,
            budget: Budget {
                writes: 3,
                finds: 3,
                collects: 1,
                kills: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Declined, Milestone::Aliased],
            ..two()
        },
    ]
}

/// The collector.
fn collecting() -> Vec<Config> {
    vec![
        Config {
            name: "collector",
            contents: 1,
            budget: Budget {
                writes: 3,
                zeros: 1,
                finds: 2,
                collects: 2,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Freed,
                Milestone::ReleasedOne,
                Milestone::CollectorResumed,
            ],
            ..two()
        },
        Config {
            name: "collector-batch",
            contents: 1,
            batch: 2,
            budget: Budget {
                writes: 2,
                zeros: 2,
                finds: 2,
                collects: 2,
                idle_commits: 1,
                kills: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Freed,
                Milestone::SameBlockTwice,
                Milestone::ReleasedOne,
                Milestone::CollectorResumed,
            ],
            ..two()
        },
        Config {
            name: "reads-shared",
            blocks: 3,
            contents: 1,
            budget: Budget {
                writes: 2,
                zeros: 2,
                reads: 1,
                finds: 2,
                collects: 2,
                ..NOTHING
            },
            milestones: &[Milestone::Freed, Milestone::ReadOfReplaced],
            ..two()
        },
    ]
}

/// Crashes in the middle of batches, and checkpoints.
fn recovering() -> Vec<Config> {
    vec![
        Config {
            name: "recovery",
            blocks: 3,
            budget: Budget {
                writes: 2,
                zeros: 1,
                finds: 2,
                collects: 1,
                kills: 1,
                power_losses: 2,
                ..NOTHING
            },
            milestones: &[
                Milestone::FinderResumed,
                Milestone::CollectorResumed,
                Milestone::CrashInRecovery,
            ],
            ..two()
        },
        Config {
            name: "replay",
            folds_log: false,
            blocks: 2,
            budget: Budget {
                writes: 3,
                finds: 3,
                kills: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Aliased],
            ..two()
        },
        Config {
            name: "checkpoint-jobs",
            folds_log: false,
            contents: 1,
            budget: Budget {
                writes: 2,
                zeros: 1,
                finds: 2,
                collects: 1,
                checkpoints: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Aliased, Milestone::Replayed],
            ..two()
        },
    ]
}

/// An index that every crash destroys, and that is rebuilt.
fn counting_again() -> Vec<Config> {
    vec![
        Config {
            name: "memory-index",
            index_in_memory: true,
            contents: 1,
            budget: Budget {
                writes: 3,
                zeros: 1,
                finds: 3,
                collects: 2,
                kills: 2,
                ..NOTHING
            },
            milestones: &[
                Milestone::FinderResumed,
                Milestone::CollectorResumed,
                Milestone::Freed,
                Milestone::CrashInRecovery,
            ],
            ..two()
        },
        Config {
            name: "memory-batch",
            index_in_memory: true,
            volumes: 1,
            contents: 1,
            lbas: 2,
            batch: 2,
            budget: Budget {
                writes: 3,
                zeros: 2,
                finds: 1,
                collects: 1,
                idle_commits: 1,
                kills: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::FinderCountedAgain,
                Milestone::CollectorCountedAgain,
            ],
            ..two()
        },
    ]
}

/// An index that was damaged, left so or rebuilt.
fn damaged() -> Vec<Config> {
    vec![
        Config {
            name: "index-damage",
            contents: 1,
            budget: Budget {
                writes: 3,
                zeros: 1,
                finds: 3,
                collects: 1,
                lost_rows: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Quarantined],
            ..two()
        },
        Config {
            name: "repair",
            contents: 1,
            budget: Budget {
                writes: 3,
                zeros: 1,
                finds: 2,
                collects: 1,
                rebuilds: 1,
                power_losses: 1,
                lost_rows: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Repaired],
            ..two()
        },
    ]
}

/// Snapshots, and the merges that delete them.
fn layered() -> Vec<Config> {
    vec![
        Config {
            name: "snapshot",
            budget: Budget {
                writes: 3,
                zeros: 1,
                snapshots: 1,
                deletes: 1,
                flushes: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Merged, Milestone::LayerGone],
            ..SMALL
        },
        Config {
            name: "snapshots",
            blocks: 4,
            budget: Budget {
                writes: 2,
                zeros: 1,
                snapshots: 2,
                deletes: 2,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Merged, Milestone::LayerGone],
            ..SMALL
        },
        Config {
            name: "snapshot-shared",
            contents: 1,
            budget: Budget {
                writes: 2,
                zeros: 1,
                finds: 2,
                collects: 2,
                snapshots: 1,
                deletes: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Merged,
                Milestone::MergedUnsettled,
                Milestone::LayerGone,
                Milestone::Freed,
            ],
            ..SMALL
        },
        Config {
            name: "snapshot-memory",
            index_in_memory: true,
            contents: 1,
            budget: Budget {
                writes: 2,
                zeros: 1,
                finds: 2,
                collects: 1,
                snapshots: 1,
                deletes: 1,
                kills: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Merged, Milestone::LayerGone, Milestone::Freed],
            ..SMALL
        },
    ]
}

/// Clones, and the merges that delete the layers below them.
fn cloned() -> Vec<Config> {
    vec![
        Config {
            name: "clone",
            budget: Budget {
                writes: 3,
                zeros: 1,
                snapshots: 1,
                clones: 1,
                deletes: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Merged],
            ..SMALL
        },
        Config {
            name: "clone-shared",
            contents: 1,
            budget: Budget {
                writes: 2,
                finds: 2,
                collects: 1,
                snapshots: 1,
                clones: 1,
                deletes: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Aliased, Milestone::Merged, Milestone::LayerGone],
            ..SMALL
        },
        Config {
            name: "clone-reads",
            contents: 1,
            cached: true,
            budget: Budget {
                writes: 3,
                reads: 2,
                finds: 2,
                snapshots: 1,
                clones: 1,
                ..NOTHING
            },
            milestones: &[Milestone::Aliased, Milestone::ReadOfReplaced],
            ..SMALL
        },
    ]
}

/// The configuration in which turning `guard` off goes wrong soonest.
pub fn where_it_matters(guard: Guard) -> &'static str {
    match guard {
        Guard::PoolSyncBeforeLog
        | Guard::BlockLock
        | Guard::PublishedContentDurable
        | Guard::AliasOnlyIfUnmoved
        | Guard::DanglingGivesBack
        | Guard::DanglingKeepsInserted
        | Guard::NumbersNeverReused
        | Guard::MovedNotQueued => "finder",
        Guard::SealBeforeSync
        | Guard::StoreBeforeLog
        | Guard::FlushJoinsLaterSeal
        | Guard::FlushAfterLogSync
        | Guard::RecoverySyncsFirst
        | Guard::TailTakenOver
        | Guard::TailOfThisBoot => "write-path",
        Guard::ReplyAfterApply | Guard::ReuseAfterDrain => "reads",
        Guard::ReuseAfterDurable
        | Guard::CheckpointSharp
        | Guard::CheckpointDurable
        | Guard::PagesBeforeRoot
        | Guard::PruneAfterRoot
        | Guard::OldPagesAfterRoot => "checkpoint",
        Guard::NotInPlaceShared
        | Guard::FinderIntentDurable
        | Guard::CountBeforeName
        | Guard::IndexSyncBeforeOutcome
        | Guard::RepeatReturnsAnswers
        | Guard::AnswersWithEntries
        | Guard::CollectorIntentDurable => "recovery",
        Guard::CandidateLocked | Guard::CandidateDropped => "finder-ahead",
        Guard::OneBatch => "finder-batch",
        Guard::DeclinedFreesMoved => "finder-full",
        Guard::VerifyBytes => "finder-verify",
        Guard::FreeOnlyAtZero => "collector",
        Guard::DecrementNamesAddress | Guard::UnknownQuarantines => "index-damage",
        Guard::RebuildBeforeBatch
        | Guard::RebuildSkipsUnpublished
        | Guard::RebuildCountsQueue
        | Guard::RebuildCountsCollected => "memory-index",
        Guard::RebuildAfterCommit => "repair",
        Guard::OneFingerprint => "inline",
        Guard::SameStillValid => "inline-reuse",
        Guard::ClaimWithEntry
        | Guard::HitNotCollected
        | Guard::HitStillValid
        | Guard::ClaimsBeforeRelease => "inline-batch",
        Guard::CountIntentDurable => "inline-checkpoint",
        Guard::RebuildCountsHits => "inline-announced",
        Guard::HitSettled | Guard::HitNotBad | Guard::RebuildLessClaims => "inline-rebuild",
        Guard::HitOfThisIndex => "inline-repair",
        Guard::CountKnownRow => "inline-damage",
        Guard::OnlyUnsettledAgain => "memory-batch",
        Guard::ReplayByRecord => "replay",
        Guard::NotInPlaceFrozen | Guard::MergeMovesSettled => "snapshot-shared",
        Guard::ZeroHidesBelow | Guard::SnapshotDrains | Guard::SnapshotCommits => "snapshot",
        Guard::MergeReleasesOwn => "snapshots",
        Guard::DeleteDurable | Guard::MergeIntoOnlyChild => "clone",
        Guard::DrainAcrossVolumes | Guard::CacheInvalidated => "clone-reads",
    }
}

/// The configuration called `name`.
pub fn by_name(name: &str) -> Option<Config> {
    all().into_iter().find(|config| config.name == name)
}
