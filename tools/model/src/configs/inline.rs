//! In-line hits and counting, concurrent with finder, collector, rebuild, layers and checkpoints.

use super::{NOTHING, SMALL, two};
use crate::milestone::Milestone;
use crate::state::{Budget, Config};

/// Every configuration with hits.
pub(super) fn all() -> Vec<Config> {
    let mut all = beside_jobs();
    all.extend(in_batches());
    all.extend(counted_again());
    all.extend(damaged());
    all.extend(layered());
    all
}

/// Hits concurrent with finder and collector.
fn beside_jobs() -> Vec<Config> {
    vec![
        Config {
            name: "inline",
            blocks: 2,
            budget: Budget {
                writes: 2,
                zeros: 1,
                finds: 2,
                lookups: 1,
                counts: 1,
                collects: 1,
                power_losses: 1,
                buffer_changes: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Hit,
                Milestone::Nothing,
                Milestone::HitOnDropped,
                Milestone::ClaimDropped,
                Milestone::RefusedFreed,
                Milestone::RefusedCollected,
                Milestone::RefusedUnsettled,
                Milestone::Counted,
                Milestone::CountingResumed,
                Milestone::Freed,
                Milestone::ReleasedOne,
            ],
            ..two()
        },
        Config {
            name: "inline-reuse",
            blocks: 1,
            budget: Budget {
                writes: 2,
                zeros: 1,
                reads: 1,
                finds: 2,
                lookups: 1,
                counts: 1,
                collects: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Hit,
                Milestone::Nothing,
                Milestone::RefusedFreed,
                Milestone::Counted,
                Milestone::Freed,
                Milestone::ReadOfReplaced,
            ],
            ..two()
        },
    ]
}

/// Batches of two items.
fn in_batches() -> Vec<Config> {
    vec![Config {
        name: "inline-batch",
        volumes: 1,
        lbas: 2,
        blocks: 2,
        contents: 1,
        batch: 2,
        budget: Budget {
            writes: 1,
            zeros: 2,
            finds: 1,
            lookups: 2,
            counts: 2,
            collects: 2,
            kills: 1,
            ..NOTHING
        },
        milestones: &[
            Milestone::Hit,
            Milestone::Counted,
            Milestone::CountedTwo,
            Milestone::CountingResumed,
            Milestone::SameBlockTwice,
        ],
        ..SMALL
    }]
}

/// An index that every crash destroys, or that is rebuilt at any time.
fn counted_again() -> Vec<Config> {
    vec![
        Config {
            name: "inline-rebuild",
            index_in_memory: true,
            blocks: 2,
            contents: 1,
            budget: Budget {
                writes: 2,
                zeros: 1,
                finds: 1,
                lookups: 2,
                counts: 1,
                collects: 1,
                kills: 1,
                bad_blocks: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Hit,
                Milestone::Counted,
                Milestone::CalledOff,
                Milestone::ClaimsCountedAgain,
                Milestone::CountingCountedAgain,
                Milestone::RefusedUnsettled,
                Milestone::RefusedBad,
            ],
            ..two()
        },
        Config {
            name: "inline-announced",
            index_in_memory: true,
            blocks: 2,
            contents: 1,
            budget: Budget {
                writes: 2,
                finds: 2,
                lookups: 1,
                counts: 1,
                kills: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Hit,
                Milestone::Dangling,
                Milestone::FinderResumed,
                Milestone::ClaimsCountedAgain,
            ],
            ..two()
        },
        Config {
            name: "inline-repair",
            blocks: 2,
            contents: 1,
            budget: Budget {
                writes: 2,
                finds: 1,
                lookups: 1,
                counts: 1,
                rebuilds: 1,
                kills: 1,
                bad_blocks: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Hit,
                Milestone::Counted,
                Milestone::CalledOff,
                Milestone::RefusedRebuilt,
                Milestone::ClaimsCountedAgain,
            ],
            ..two()
        },
    ]
}

/// Damage from outside: rows that the index loses.
fn damaged() -> Vec<Config> {
    vec![Config {
        name: "inline-damage",
        blocks: 2,
        contents: 1,
        budget: Budget {
            writes: 2,
            zeros: 1,
            finds: 2,
            lookups: 1,
            counts: 1,
            collects: 1,
            lost_rows: 1,
            ..NOTHING
        },
        milestones: &[
            Milestone::Hit,
            Milestone::CountQuarantined,
            Milestone::Quarantined,
        ],
        ..two()
    }]
}

/// Entries with claims in snapshots, and claims in a checkpoint.
fn layered() -> Vec<Config> {
    vec![
        Config {
            name: "inline-snapshot",
            blocks: 2,
            contents: 1,
            budget: Budget {
                writes: 1,
                zeros: 1,
                finds: 1,
                lookups: 2,
                counts: 1,
                collects: 1,
                snapshots: 1,
                deletes: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Hit,
                Milestone::Counted,
                Milestone::ClaimFrozen,
                Milestone::ClaimMerged,
                Milestone::LayerGone,
            ],
            ..SMALL
        },
        Config {
            name: "inline-checkpoint",
            folds_log: false,
            blocks: 2,
            contents: 1,
            budget: Budget {
                writes: 1,
                zeros: 1,
                flushes: 1,
                finds: 1,
                lookups: 1,
                counts: 1,
                collects: 1,
                checkpoints: 1,
                power_losses: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Hit,
                Milestone::Counted,
                Milestone::RootWithClaims,
                Milestone::RootWithCounting,
                Milestone::Replayed,
            ],
            ..two()
        },
    ]
}
