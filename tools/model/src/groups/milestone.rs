//! Events that a search must reach: without them it would show nothing.

use std::sync::atomic::{AtomicU32, Ordering};

/// An event that a configuration exists to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "`name` says what they mean")]
pub enum Milestone {
    Aliased,
    Dangling,
    Remaining,
    Freed,
    FreedByOther,
    ReadOfReleased,
    Recalled,
    CallRefused,
    TwoShardsAnswered,
    HitOnOther,
    HitOnUnsettled,
    HitRefused,
    Held,
    Owed,
    OwingEnded,
    Counted,
    CalledOff,
    Rebuilt,
    RebuiltWithClaim,
    PublicationKept,
    ReleaseDecided,
    ReleaseOfKept,
    GivenBack,
    ExtentMoved,
    ExchangeRepeated,
    LateWriteLanded,
    LateWriteRefused,
    PassedThroughIndex,
}

impl Milestone {
    /// The milestone's name in the search's result.
    pub fn name(self) -> &'static str {
        match self {
            Milestone::Aliased => "reaches an alias",
            Milestone::Dangling => "reaches a dangling outcome",
            Milestone::Remaining => "reaches the release of one reference of several",
            Milestone::Freed => "reaches the release of the last reference",
            Milestone::FreedByOther => "reaches a block that another group frees than wrote it",
            Milestone::ReadOfReleased => "reaches a read of a released block",
            Milestone::Recalled => "reaches a recalled answer",
            Milestone::CallRefused => "reaches a call that arrives too late",
            Milestone::TwoShardsAnswered => "reaches answers of two shards to one batch",
            Milestone::HitOnOther => "reaches a hit on a block that the other group names",
            Milestone::HitOnUnsettled => {
                "reaches a hit on a block that the other group has not settled"
            }
            Milestone::HitRefused => "reaches a hit refused for its lookup version",
            Milestone::Held => "reaches a release that is answered `Held`",
            Milestone::Owed => "reaches a release while a group owes",
            Milestone::OwingEnded => "reaches the end of what a group owes",
            Milestone::Counted => "reaches a counted claim",
            Milestone::CalledOff => "reaches a publication that is called off",
            Milestone::Rebuilt => "reaches the end of a rebuild",
            Milestone::RebuiltWithClaim => "reaches a rebuild with a claim",
            Milestone::PublicationKept => {
                "reaches a rebuild of a block that is named and not settled"
            }
            Milestone::ReleaseDecided => "reaches a rebuild with an open batch of the collector",
            Milestone::ReleaseOfKept => "reaches an open release of a block that a group keeps",
            Milestone::GivenBack => "reaches a rebuild that gives a block back",
            Milestone::ExtentMoved => "reaches an extent that is leased to the other group",
            Milestone::ExchangeRepeated => "reaches an exchange that a new owner repeats",
            Milestone::LateWriteLanded => "reaches a former owner's write that lands",
            Milestone::LateWriteRefused => "reaches a former owner's write that is refused",
            Milestone::PassedThroughIndex => "reaches a block that the other group released last",
        }
    }
}

/// The milestones that a search has reached. The search takes the steps, and reports no more of them than properties
/// of states; so the steps note milestones here.
#[derive(Debug, Default)]
pub struct Reached(AtomicU32);

impl Reached {
    /// Notes a milestone.
    pub fn note(&self, milestone: Milestone) {
        // Only the thread that searches reads it, once it has joined the others.
        self.0.fetch_or(1 << milestone as u32, Ordering::Relaxed);
    }

    /// Whether a milestone was noted.
    pub fn has(&self, milestone: Milestone) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << milestone as u32 != 0
    }
}
