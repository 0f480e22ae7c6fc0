//! Why a machine does no I/O.

/// A reason for which every I/O of a machine fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The machine or its process has died.
    Crashed,
    /// The owner has given the group or shard up.
    GivenUp,
    /// The host cannot reach its cluster.
    CutOff,
    /// A host has taken the group or shard from this one, which does not know it.
    Fenced,
    /// A host has taken the group or shard from this one.
    Lost,
}

impl Stop {
    pub(super) fn why(self) -> &'static str {
        match self {
            Stop::Crashed => "simulated crash",
            Stop::GivenUp => "it was given up",
            Stop::CutOff => "the cluster cannot be reached",
            Stop::Fenced | Stop::Lost => "another host has taken it, and this one is fenced",
        }
    }
}
