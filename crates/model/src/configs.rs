//! The configurations: each small enough to be searched to its end, together covering the
//! protocol.

use crate::guards::{Guard, Guards};
use crate::properties::Milestone;
use crate::state::{Budget, Config};

const NOTHING: Budget = Budget {
    writes: 0,
    zeros: 0,
    flushes: 0,
    reads: 0,
    finds: 0,
    collects: 0,
    snapshots: 0,
    clones: 0,
    deletes: 0,
    checkpoints: 0,
    idle_commits: 0,
    kills: 0,
    power_losses: 0,
    lost_rows: 0,
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
    tombstones: true,
    separate_hosts: false,
    folds_log: true,
    budget: NOTHING,
    guards: Guards::ON,
    milestones: &[],
};

/// Every configuration.
pub fn all() -> Vec<Config> {
    let mut all = single_volume();
    all.extend(sharing());
    all.extend(layered());
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

/// Finder and collector on two volumes with the same contents.
fn sharing() -> Vec<Config> {
    let two = Config {
        volumes: 2,
        blocks: 4,
        ..SMALL
    };
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
            ..two.clone()
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
                kills: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Aliased,
                Milestone::Dangling,
                Milestone::FinderResumed,
            ],
            ..two.clone()
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
            ..two.clone()
        },
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
            ..two.clone()
        },
        Config {
            name: "reads-shared",
            separate_hosts: true,
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
            milestones: &[Milestone::Freed],
            ..two.clone()
        },
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
            milestones: &[Milestone::BothResumed, Milestone::CrashInRecovery],
            ..two.clone()
        },
        Config {
            name: "collector-no-tombstones",
            contents: 1,
            tombstones: false,
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
            ..two.clone()
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
            ..two.clone()
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
            ..two.clone()
        },
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
            ..two.clone()
        },
    ]
}

/// Snapshots, clones, and the merges that delete them.
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
            milestones: &[Milestone::Merged, Milestone::LayerGone, Milestone::Freed],
            ..SMALL
        },
        Config {
            name: "layer-ids",
            contents: 1,
            budget: Budget {
                writes: 3,
                finds: 3,
                collects: 1,
                snapshots: 2,
                deletes: 1,
                ..NOTHING
            },
            milestones: &[Milestone::LayerGone],
            ..SMALL
        },
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
        | Guard::DanglingGivesBack => "finder",
        Guard::SealBeforeSync
        | Guard::StoreBeforeLog
        | Guard::FlushJoinsLaterSeal
        | Guard::FlushAfterLogSync
        | Guard::RecoverySyncsFirst => "write-path",
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
        | Guard::CollectorIntentDurable
        | Guard::FingerprintInIntent => "recovery",
        Guard::OutcomeBeforeNextBatch | Guard::OneJobPerLayer => "finder-batch",
        Guard::VerifyBytes => "finder-verify",
        Guard::CollectorAfterDrain => "reads-shared",
        Guard::DecrementNamesAddress | Guard::UnknownQuarantines => "index-damage",
        Guard::TombstoneIsAbsent | Guard::ForgetIsGuarded | Guard::OnlyNamedLayerFrees => {
            "collector"
        }
        Guard::ReplayByRecord => "replay",
        Guard::NotInPlaceFrozen | Guard::DropWhenEmpty => "snapshot-shared",
        Guard::ZeroHidesBelow | Guard::SnapshotDrains | Guard::SnapshotCommits => "snapshot",
        Guard::MergeReleasesOwn => "snapshots",
        Guard::DeleteDurable | Guard::MergeIntoOnlyChild => "clone",
        Guard::IdsNeverReused => "layer-ids",
        Guard::DrainAcrossVolumes | Guard::CacheInvalidated => "clone-reads",
    }
}

/// The configuration called `name`.
pub fn by_name(name: &str) -> Option<Config> {
    all().into_iter().find(|config| config.name == name)
}
