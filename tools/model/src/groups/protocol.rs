//! The protocol between groups; its steps are in `guests`, `batches`, `shards` and `rebuild`.

use super::config::Config;
use super::guards::Guard;
use super::milestone::{Milestone, Reached};
use super::state::{Shard, State};

/// The protocol between groups, with one guard off or none.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) config: Config,
    pub(super) off: Option<Guard>,
    pub(super) reached: Reached,
}

impl Groups {
    /// Whether a guard is on.
    pub(super) fn on(&self, guard: Guard) -> bool {
        self.off != Some(guard)
    }

    /// Notes a milestone.
    pub(super) fn reach(&self, milestone: Milestone) {
        self.reached.note(milestone);
    }

    /// The shards that the configuration has.
    pub(super) fn shards<'a>(&self, state: &'a State) -> &'a [Shard] {
        &state.shards[..self.config.shards]
    }
}
