//! Appending records: they are applied at once, and become durable with the next commit.

use std::time::Duration;

use onefold_format::Record;
use onefold_format::record::RECORD_BYTES_MAX;
use onefold_metadata::sync::lock;
use onefold_metadata::{
    Blocking, Failed, Guard, MetadataState, PbaRun, Result, StoreError, Target,
};

use super::Journal;
use super::log::RECORDS_BYTES_MAX;
use super::new_blocks::new_blocks;
use super::state::Uncommitted;
use super::watermarks::PAGES_FOR_RECLAIMING;

/// Log bytes kept free beyond the requested ones: frame headers and padding of one more commit.
const LOG_MARGIN_BYTES: u64 = 8 << 10;

/// Whether records may be appended to this state.
pub type Admit<'a> = &'a dyn Fn(&MetadataState) -> Result<()>;

/// The reason why a record cannot be appended now, and the remedy.
pub(super) enum Pressure {
    /// The tail is full: a commit helps.
    Tail,
    /// Too many changes are in memory: a checkpoint helps.
    Changes,
    /// Pages for metadata are short: growing the part helps, or a checkpoint while there are enough
    /// pages for it.
    Pages,
}

/// Housekeeping that is due before writers have to wait for it.
enum Due {
    Commit,
    Checkpoint,
}

impl Journal {
    /// Applies records and appends them, once there is room ([step 8 apply], [step 7 log]).
    /// `old_blocks` are the layer's own blocks that the records will release. Nothing changes if `admit`
    /// refuses the records; it sees the state to which they are applied.
    ///
    /// With [`Blocking::No`] nothing has changed if the call would have to wait. A first record that does
    /// not fit changes nothing either. After any other error the pool takes no writes: see
    /// [`Journal::fail`].
    pub fn append(
        &self,
        records: &[Record],
        old_blocks: &[PbaRun],
        blocking: Blocking,
        admit: Option<Admit<'_>>,
    ) -> Result<()> {
        self.append_new(records, &[], old_blocks, blocking, admit)
    }

    /// As [`Journal::append`], for records with new blocks: `sums` has a
    /// [checksum](onefold_format::tail::block_sum) of each, in the order of the records, where
    /// [`Journal::wants_sums`].
    pub fn append_new(
        &self,
        records: &[Record],
        sums: &[u32],
        old_blocks: &[PbaRun],
        blocking: Blocking,
        admit: Option<Admit<'_>>,
    ) -> Result<()> {
        loop {
            let mut uncommitted = self.state.uncommitted()?;
            let Some(pressure) = self.pressure(&uncommitted) else {
                if blocking == Blocking::No {
                    let is_copied = uncommitted.copy.is_there();
                    let space = uncommitted.metadata.space_mut();
                    if !is_copied || !old_blocks.iter().all(|run| space.is_resident(*run)) {
                        return Err(StoreError::would_block());
                    }
                }
                if let Some(admit) = admit {
                    admit(&uncommitted.metadata)?;
                }
                uncommitted.metadata.space_mut().prepare(old_blocks)?;
                self.state.check_writable()?;
                let is_copied = self.append_and_apply(&mut uncommitted, records, sums)?;
                if !Guard::ReuseAfterCommit.holds() {
                    self.reuse
                        .give_up(std::mem::take(&mut uncommitted.tail.released));
                    drop(uncommitted);
                    return self.reuse.reclaim();
                }
                drop(uncommitted);
                // A request whose records are neither in the log nor in memory that outlives the
                // process is not answered (P12).
                return if is_copied { Ok(()) } else { self.commit() };
            };
            drop(uncommitted);
            if blocking == Blocking::No {
                return Err(StoreError::would_block());
            }
            self.relieve(&pressure)?;
        }
    }

    /// Makes room for records, so that appending them soon does not have to wait.
    pub fn make_room(&self) -> Result<()> {
        let pressure = self.pressure(&*self.state.uncommitted()?);
        pressure.map_or(Ok(()), |pressure| self.relieve(&pressure))
    }

    fn relieve(&self, pressure: &Pressure) -> Result<()> {
        match pressure {
            Pressure::Tail => self.commit(),
            Pressure::Changes => self.checkpoint(),
            Pressure::Pages => self.make_room_for_pages(),
        }
    }

    /// Appends and applies records. Returns whether they are in memory that outlives the process.
    fn append_and_apply(
        &self,
        uncommitted: &mut Uncommitted,
        records: &[Record],
        sums: &[u32],
    ) -> Result<bool> {
        if let [Record::Freeze { .. }, ..] = records
            && Guard::FrozenTogether.holds()
        {
            // Several volumes are frozen at one moment, or none of them; a volume is cloned or rolled
            // back whole, or not.
            uncommitted
                .tail
                .keep_together(records.len() * RECORD_BYTES_MAX);
        }
        let before = uncommitted.tail.mark();
        for (n, record) in records.iter().enumerate() {
            let released = &mut uncommitted.tail.released;
            let mut target = Target {
                maps: &self.state.maps,
                metadata: &mut uncommitted.metadata,
                released,
            };
            match target.apply(record) {
                Ok(()) => uncommitted.tail.append(record),
                Err(Failed::Before(error)) if n == 0 => {
                    tracing::error!("a request failed: {error}; this is a defect of onefold");
                    return Err(error);
                }
                Err(failed) => {
                    let error = StoreError::from(failed);
                    self.fail(&error);
                    return Err(error);
                }
            }
        }
        let new = records.iter().filter_map(new_blocks);
        new.for_each(|(_, run)| uncommitted.copy.note_new(run));
        let is_copied = uncommitted.copy.append(&uncommitted.tail, before, sums);
        if self.due_for(uncommitted).is_some() {
            let (due, wake) = &self.due;
            if !std::mem::replace(&mut *lock(due), true) {
                wake.notify_all();
            }
        }
        Ok(is_copied)
    }

    pub(super) fn pressure(&self, uncommitted: &Uncommitted) -> Option<Pressure> {
        let tail = &uncommitted.tail;
        let log_bytes = self.log_span.used() + tail.log_bytes();
        if log_bytes + RECORDS_BYTES_MAX + LOG_MARGIN_BYTES > self.log_span.ring_bytes
            || self.state.maps.dirty_count() >= self.state.limits.dirty_leaves_max
            || uncommitted.metadata.dirty_pages() >= self.state.limits.dirty_space_pages_max
        {
            Some(Pressure::Changes)
        } else if tail.bytes() >= self.state.limits.tail_bytes_max || !uncommitted.copy.has_room() {
            Some(Pressure::Tail)
        } else if self.state.has_changes(&uncommitted.metadata)
            && self
                .state
                .pages_lacking(&uncommitted.metadata, PAGES_FOR_RECLAIMING)
                .is_some()
        {
            Some(Pressure::Pages)
        } else {
            None
        }
    }

    /// Decides which housekeeping is due, well before writers would have to wait for it.
    fn due_for(&self, uncommitted: &Uncommitted) -> Option<Due> {
        let log_bytes = self.log_span.used() + uncommitted.tail.log_bytes();
        if log_bytes > self.log_span.ring_bytes / 2
            || self.state.maps.dirty_count() > self.state.limits.dirty_leaves_max / 2
            || uncommitted.metadata.dirty_pages() > self.state.limits.dirty_space_pages_max / 2
        {
            return Some(Due::Checkpoint);
        }
        let is_long = uncommitted.tail.bytes() > self.state.limits.tail_bytes_max / 2;
        (is_long || uncommitted.copy.is_nearly_full()).then_some(Due::Commit)
    }

    /// Whether replayed changes fill their share of memory.
    pub(super) fn needs_checkpoint(&self) -> Result<bool> {
        let dirty_pages = self.state.uncommitted()?.metadata.dirty_pages();
        Ok(
            self.state.maps.dirty_count() >= self.state.limits.dirty_leaves_max
                || dirty_pages >= self.state.limits.dirty_space_pages_max,
        )
    }

    /// Sleeps until a checkpoint is due, for at most `timeout`.
    pub fn wait_until_due(&self, timeout: Duration) {
        let (due, wake) = &self.due;
        let slept = wake.wait_timeout_while(lock(due), timeout, |due| !*due);
        let mut due = match slept {
            Ok((due, _)) => due,
            Err(poisoned) => poisoned.into_inner().0,
        };
        *due = false;
    }

    /// Housekeeping: writes a checkpoint if one is due, else commits the records in memory if there
    /// are many or `commit` is set, and frees blocks that durable records released. Data that was
    /// rewritten in place is not synced for its own sake: no client asked for that, and the host
    /// writes it out in its own time.
    pub fn tidy(&self, commit: bool) -> Result<()> {
        let uncommitted = self.state.uncommitted()?;
        let has_records = !uncommitted.tail.is_empty();
        let due = self.due_for(&uncommitted);
        drop(uncommitted);
        match due {
            Some(Due::Checkpoint) => {
                self.write_data_out()?;
                self.checkpoint()?;
            }
            Some(Due::Commit) => self.commit_in_background()?,
            None if commit && has_records => self.commit_in_background()?,
            None => {}
        }
        self.reuse.reclaim()
    }
}
