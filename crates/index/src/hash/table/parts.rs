//! Parts of batches of many streams, in one frame.

use super::{Lookup, Table};
use crate::Result;
use crate::batch;
use crate::hash::PartAnswers;
use crate::hash::frame::Streams;
use crate::hash::plan::Plan;
use crate::shard::ShardBatch;

impl Table {
    /// Carries out parts of batches, with one frame and one sync for all, or none if nothing changes.
    pub(in crate::hash) fn execute(&mut self, parts: &[ShardBatch]) -> Result<Vec<PartAnswers>> {
        let mut plan = Plan::default();
        for part in parts {
            plan.add(part, self.streams.get(&part.stream));
        }
        if !plan.changes_anything() {
            return Ok(plan.into_answers(&[]));
        }
        self.catch_up(0)?;
        let mut counts = self.counts;
        let mut lookup = Lookup::new(self);
        let executed = batch::execute(&mut lookup, &mut counts, plan.items())?;
        let changed = lookup.into_changed();
        let streams = plan.streams(&executed);
        self.complete(Streams::Many(streams), counts, changed)?;
        Ok(plan.into_answers(&executed))
    }
}
