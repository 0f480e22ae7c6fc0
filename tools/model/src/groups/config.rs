//! The configurations: sizes, budgets, and the events that the search must reach.

use super::guards::Guard;
use super::milestone::Milestone;

/// The number of groups.
pub const GROUPS: usize = 2;

/// The events that may still happen, in all groups and shards together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub struct Budget {
    pub writes: u8,
    pub lookups: u8,
    pub finds: u8,
    pub collects: u8,
    pub reads: u8,
    pub group_deaths: u8,
    pub shard_deaths: u8,
    pub index_losses: u8,
    pub unreadable: u8,
    pub raises: u8,
    pub doubles: u8,
}

/// Takes one of an event's budget.
pub(super) fn take_one(left: &mut u8) -> Option<()> {
    *left = left.checked_sub(1)?;
    Some(())
}

const NOTHING: Budget = Budget {
    writes: 0,
    lookups: 0,
    finds: 0,
    collects: 0,
    reads: 0,
    group_deaths: 0,
    shard_deaths: 0,
    index_losses: 0,
    unreadable: 0,
    raises: 0,
    doubles: 0,
};

/// A search's sizes and budget.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The name.
    pub name: &'static str,
    /// The LBAs of each group, and the largest number of items of a batch.
    pub lbas: usize,
    /// The number of shards.
    pub shards: usize,
    /// The number of contents that guests write, without zeros.
    pub contents: usize,
    /// The blocks in the custody of each group at the start.
    pub free: [u8; GROUPS],
    /// The groups report, settle and count for a rebuild at different moments, while guests write.
    pub counts_apart: bool,
    /// The budget.
    pub budget: Budget,
    /// A budget that takes minutes, for `--large`.
    pub large: Option<Budget>,
    /// The events that the search must reach.
    pub milestones: &'static [Milestone],
}

impl Config {
    /// The shard of a content's row.
    pub fn shard(&self, content: u8) -> usize {
        usize::from(content) % self.shards
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u8 {
        self.free.iter().sum()
    }

    /// Whether a block was in a group's custody at the start.
    pub fn leases(&self, group: usize, block: u8) -> bool {
        (block < self.free[0]) == (group == 0)
    }

    /// Whether groups may hold rows.
    pub fn has_holders(&self) -> bool {
        self.budget.lookups > 0
    }
}

const SMALL: Config = Config {
    name: "",
    lbas: 1,
    shards: 1,
    contents: 2,
    free: [2, 1],
    counts_apart: false,
    budget: NOTHING,
    large: None,
    milestones: &[],
};

/// Every configuration.
pub fn all() -> Vec<Config> {
    let mut all = called();
    all.extend(rebuilt());
    all.extend(in_line());
    all.extend(in_line_rebuilt());
    all
}

/// Finder and collector of two groups, without hits.
fn called() -> Vec<Config> {
    vec![
        Config {
            name: "share-two",
            shards: 2,
            budget: Budget {
                writes: 5,
                finds: 3,
                collects: 2,
                group_deaths: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Aliased,
                Milestone::Dangling,
                Milestone::Remaining,
                Milestone::FreedByOther,
                Milestone::Recalled,
            ],
            ..SMALL
        },
        Config {
            name: "share-readers",
            budget: Budget {
                writes: 5,
                finds: 3,
                collects: 2,
                reads: 1,
                ..NOTHING
            },
            milestones: &[Milestone::ReadOfReleased, Milestone::FreedByOther],
            ..SMALL
        },
        Config {
            name: "share-late",
            lbas: 2,
            shards: 2,
            free: [3, 1],
            budget: Budget {
                writes: 4,
                finds: 2,
                collects: 1,
                group_deaths: 1,
                doubles: 1,
                ..NOTHING
            },
            milestones: &[
                Milestone::Recalled,
                Milestone::CallRefused,
                Milestone::TwoShardsAnswered,
            ],
            ..SMALL
        },
    ]
}

/// A lost index, without hits.
fn rebuilt() -> Vec<Config> {
    let lost = Budget {
        writes: 5,
        finds: 3,
        collects: 2,
        index_losses: 1,
        ..NOTHING
    };
    vec![
        Config {
            name: "share-rebuild",
            counts_apart: true,
            budget: lost,
            milestones: &[
                Milestone::Rebuilt,
                Milestone::CalledOff,
                Milestone::PublicationKept,
                Milestone::ReleaseDecided,
                Milestone::GivenBack,
            ],
            ..SMALL
        },
        Config {
            name: "share-rebuild-late",
            counts_apart: true,
            budget: Budget {
                writes: 4,
                doubles: 1,
                ..lost
            },
            milestones: &[Milestone::Rebuilt, Milestone::CallRefused],
            ..SMALL
        },
        Config {
            name: "share-rebuild-owner",
            counts_apart: true,
            budget: Budget {
                writes: 4,
                reads: 1,
                group_deaths: 1,
                ..lost
            },
            milestones: &[
                Milestone::Rebuilt,
                Milestone::Recalled,
                Milestone::ReadOfReleased,
            ],
            ..SMALL
        },
    ]
}

/// Hits.
fn in_line() -> Vec<Config> {
    let hits = Budget {
        writes: 2,
        lookups: 1,
        finds: 1,
        collects: 1,
        ..NOTHING
    };
    vec![
        Config {
            name: "share-inline",
            budget: Budget {
                writes: 3,
                finds: 2,
                collects: 2,
                shard_deaths: 1,
                ..hits
            },
            large: Some(Budget {
                writes: 3,
                lookups: 2,
                finds: 2,
                collects: 2,
                shard_deaths: 1,
                ..NOTHING
            }),
            milestones: &[
                Milestone::HitOnOther,
                Milestone::HitRefused,
                Milestone::Held,
                Milestone::Owed,
                Milestone::OwingEnded,
                Milestone::Counted,
            ],
            ..SMALL
        },
        Config {
            name: "share-inline-session",
            budget: Budget {
                shard_deaths: 1,
                raises: 1,
                ..hits
            },
            milestones: &[Milestone::HitRefused, Milestone::OwingEnded],
            ..SMALL
        },
        Config {
            name: "share-inline-owner",
            budget: Budget {
                reads: 1,
                group_deaths: 1,
                ..hits
            },
            milestones: &[Milestone::Counted, Milestone::HitOnOther],
            ..SMALL
        },
    ]
}

/// Hits, and a lost index.
fn in_line_rebuilt() -> Vec<Config> {
    let lost = Budget {
        writes: 2,
        lookups: 1,
        finds: 1,
        collects: 1,
        index_losses: 1,
        ..NOTHING
    };
    vec![Config {
        name: "share-inline-rebuild",
        counts_apart: true,
        budget: lost,
        milestones: &[
            Milestone::Rebuilt,
            Milestone::RebuiltWithClaim,
            Milestone::PublicationKept,
        ],
        ..SMALL
    }]
}

/// The configuration in which a guard's damage is found.
pub fn where_it_matters(guard: Guard) -> &'static str {
    match guard {
        Guard::ReadersDrainedBeforeRelease => "share-readers",
        Guard::RecallBeforeRepeat | Guard::BlocksReadBeforeRecall => "share-two",
        Guard::NumberKeptByShard | Guard::PositionsKept => "share-late",
        Guard::HeldBeforeAnswered
        | Guard::HeldNotFreed
        | Guard::HitOfThisVersion
        | Guard::HoldsEndAfterCount
        | Guard::HoldersListed
        | Guard::OwingFreesNothing => "share-inline",
        Guard::EndOfThisSession | Guard::SessionRaisesVersion => "share-inline-session",
        Guard::PausedInRebuild
        | Guard::KeptIsReleased
        | Guard::OneReleaseFrees
        | Guard::AnswersEndAtRebuild
        | Guard::PublishedIfNamed => "share-rebuild",
        Guard::AllStreamsInRebuild => "share-rebuild-late",
        Guard::ClaimsEndAtRebuild | Guard::LookupsEndAtRebuild => "share-inline-rebuild",
    }
}
