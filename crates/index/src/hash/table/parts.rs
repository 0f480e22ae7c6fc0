//! Parts of batches of many streams, in one frame.

use super::{Lookup, Table};
use crate::Result;
use crate::batch;
use crate::hash::PartAnswers;
use crate::hash::frame::Streams;
use crate::hash::plan::Plan;
use crate::hash::root::Beside;
use crate::holds::Holds;
use crate::shard::ShardBatch;

impl Table {
    /// Carries out parts of batches, with one frame and one sync for all, or none if nothing changes.
    pub(in crate::hash) fn execute(
        &mut self,
        parts: &[ShardBatch],
        holds: &Holds,
    ) -> Result<Vec<PartAnswers>> {
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
        let mut removing = holds.removing();
        let executed = batch::execute(&mut lookup, &mut counts, plan.items(), &mut |row| {
            removing.may_remove(row)
        })?;
        let changed = lookup.into_changed();
        let streams = plan.streams(&executed);
        self.complete(Streams::Many(streams), counts, changed)?;
        Ok(plan.into_answers(&executed))
    }

    /// The lists that the shard keeps beside rows and batches.
    pub(in crate::hash) fn beside(&self) -> &Beside {
        &self.beside
    }

    /// Replaces the list of streams that may hold rows, or the marks. Durable when it returns.
    ///
    /// # Errors
    /// [`IndexError::NoRoom`](crate::IndexError::NoRoom) leaves everything as it was.
    pub(in crate::hash) fn set_beside(&mut self, list: Streams) -> Result<()> {
        self.catch_up(0)?;
        self.complete(list, self.counts, Vec::new())
    }
}
