//! The commit: the only place that syncs the pool and writes the log.
//!
//! 1. seal: take the records that are in memory; later ones belong to the next commit
//! 2. sync the pool, so that the blocks that these records refer to are durable (P2)
//! 3. write the records and sync the log
//! 4. answer the waiters; the blocks that the records released wait for their readers (P3)
//!
//! There is no thread for it. A caller that needs a commit takes the lock and runs it; the others
//! queue for the lock and find, when they get it, that a commit sealed after they arrived is done
//! (P5). So any number of flushes that arrive during one commit share the next.

use onefold_metadata::{Guard, Result};

use super::Journal;
use super::failure::StopsOnPanic;
use super::log::Log;
use super::state::Uncommitted;

impl Journal {
    /// Makes everything durable that was answered before this call.
    pub fn commit(&self) -> Result<()> {
        self.commits
            .run(|log| self.seal_and_commit(log, |_| Ok(())))
    }

    /// Commits when no guest waits for it. Most of a commit is the host's work of writing the data
    /// out, so that is done in the background first, and little is left for the time in which
    /// guests' flushes queue behind the commit.
    pub fn commit_in_background(&self) -> Result<()> {
        self.write_data_out()?;
        self.commit()
    }

    /// Syncs the data on the background executor, if there is one, and once more for writes during
    /// the first sync. This does not replace a commit's own sync, but its failure counts as much,
    /// because the kernel reports a failure only once. Past the host's cache there is nothing to write out, and each
    /// sync would only make guests wait for a flush of the device.
    pub(super) fn write_data_out(&self) -> Result<()> {
        let is_cached = !self.state.data.writes_wait();
        if is_cached && self.background.is_set() && self.state.data.is_unsynced() {
            self.background
                .run(|| self.state.sync_data().and_then(|()| self.state.sync_data()))?;
        }
        Ok(())
    }

    /// Commits once. `at_seal` sees the uncommitted state exactly as the sealed records left it.
    pub(super) fn seal_and_commit<T>(
        &self,
        log: &mut Log,
        at_seal: impl FnOnce(&mut Uncommitted) -> Result<T>,
    ) -> Result<T> {
        self.state.check_writable()?;
        let mut uncommitted = self.state.uncommitted()?;
        let sealed = at_seal(&mut uncommitted)?;
        // From here on the records are nowhere but in `tail`.
        let _stops = StopsOnPanic::new(&self.state.failure, "a commit");
        let tail = uncommitted.seal();
        self.log_span.seal(tail.log_bytes());
        drop(uncommitted);
        // A writer raises this flag after it has written its data and before its record is
        // appended. So if an earlier commit saw the flag of a record in `tail`, that commit has
        // also synced the record's data.
        let has_unsynced = self.state.data.take_unsynced();
        let synced = if has_unsynced && Guard::PoolSyncedBeforeLog.holds() {
            self.state
                .sync_data()
                .inspect_err(|_| self.state.data.doubt(&tail))
        } else {
            Ok(())
        };
        synced
            .and_then(|()| log.append(&tail))
            .inspect_err(|error| {
                if Guard::FailedSyncStopsWrites.holds() {
                    self.fail(error);
                }
            })?;
        self.log_span.set_end(log.end.position);
        self.reuse.give_up(tail.released);
        Ok(sealed)
    }

    /// Syncs the data written before this call, whether or not any record waits for it.
    pub fn sync_written(&self) -> Result<()> {
        self.state.sync_data()
    }
}
