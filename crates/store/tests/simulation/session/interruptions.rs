//! Code that runs in the middle of an I/O.

use std::sync::{Arc, Mutex};

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::{Blocking, StoreError, StoreErrorKind, Volume};

use crate::world::{Step, Stop, World};

/// Locks held during an I/O, which must not be requested in the middle of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Nothing,
    /// Blocks of this volume.
    Blocks(u64),
    /// The commit lock, and perhaps the checkpoint lock and blocks.
    Commit,
    /// The checkpoint lock, and perhaps blocks.
    Checkpoint,
    /// The job lock, and blocks of any volume.
    Moving,
    /// The job lock.
    Job,
    /// The job lock and the index.
    Index,
}

impl World {
    pub(super) fn arm_write(self: &Arc<Self>, id: u64) {
        match self.draw(|random| random.below(4)) {
            0 => self.arm(Part::Data, Op::Write, Held::Blocks(id)),
            1 => self.arm(Part::Data, Op::Read, Held::Blocks(id)),
            2 => self.arm(Part::Data, Op::Discard, Held::Blocks(id)),
            _ => {}
        }
    }

    pub(super) fn arm_housekeeping(self: &Arc<Self>) {
        let (part, op, held) = self.draw(|random| {
            *random.pick(&[
                (Part::Data, Op::Sync, Held::Commit),
                (Part::Log, Op::Write, Held::Commit),
                (Part::Log, Op::Sync, Held::Commit),
                (Part::Meta, Op::Write, Held::Checkpoint),
                (Part::Meta, Op::Sync, Held::Checkpoint),
                (Part::Data, Op::Discard, Held::Nothing),
            ])
        });
        self.arm(part, op, held);
    }

    /// Of housekeeping, and of the tending to free space, which writes to free blocks alone.
    pub(super) fn arm_tick(self: &Arc<Self>) {
        if self.draw(|random| random.one_in(2)) {
            self.arm(Part::Data, Op::Write, Held::Nothing);
        } else {
            self.arm_housekeeping();
        }
    }

    /// Of finder, collector, check and rebuild, which read blocks back without any other lock.
    pub(super) fn arm_job(self: &Arc<Self>) {
        let (part, op, held) = self.draw(|random| {
            *random.pick(&[
                (Part::Data, Op::Read, Held::Job),
                (Part::Data, Op::Read, Held::Job),
                (Part::Data, Op::Read, Held::Job),
                (Part::Index, Op::Write, Held::Index),
                (Part::Index, Op::Sync, Held::Index),
                (Part::Data, Op::Sync, Held::Commit),
                (Part::Log, Op::Write, Held::Commit),
                (Part::Log, Op::Sync, Held::Commit),
                (Part::Meta, Op::Write, Held::Checkpoint),
            ])
        });
        self.arm(part, op, held);
    }

    /// Lets other requests run in the middle of the next such I/O, if it is part of the request
    /// that comes next.
    pub(super) fn arm(self: &Arc<Self>, part: Part, op: Op, held: Held) {
        if self.draw(|random| random.one_in(2)) {
            return;
        }
        let when = if self.draw(|random| random.one_in(3)) {
            When::After
        } else {
            When::Before
        };
        let world = Arc::clone(self);
        let request = self.state().request;
        let is_untold = (part, op, when) == (Part::Data, Op::Sync, When::After);
        let hook = move || {
            if world.state().request == request && !world.engine().is_crashed() {
                world.state().is_sync_untold = is_untold;
                world.interrupt(held);
                world.state().is_sync_untold = false;
            }
        };
        self.engine().on_next_io(part, op, when, Box::new(hook));
    }

    /// A write that may wait only for the device, and other requests that run during that wait.
    pub(crate) fn write_as_a_front_end(
        &self,
        id: u64,
        volume: &Arc<Volume>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let Some(prepared) = volume.write_or_prepare(offset, bytes)? else {
            return Ok(());
        };
        if self.draw(|random| random.one_in(8)) {
            drop(prepared);
            return volume.write(offset, bytes, Blocking::Yes);
        }
        self.state().coverage.writes_prepared += 1;
        let ended = Arc::new(Mutex::new(None));
        let told = Arc::clone(&ended);
        prepared.start(move |written, _| *told.lock().expect("nobody panics") = Some(written));
        self.interrupt(Held::Blocks(id));
        volume.submit();
        let ended = ended.lock().expect("nobody panics").take();
        match ended.expect("all that was started has ended") {
            Err(error) if error.kind() == StoreErrorKind::WouldBlock => {
                volume.write(offset, bytes, Blocking::Yes)
            }
            ended => ended,
        }
    }

    fn interrupt(&self, held: Held) {
        let mut state = self.state();
        if state.partial_sectors || state.depth > 0 {
            return;
        }
        state.depth += 1;
        state.coverage.hooks_run += 1;
        drop(state);
        self.trace(|| format!("meanwhile, {held:?} being held:"));
        let count = self.draw(|random| random.between(1, 6));
        for _ in 0..count {
            match self.interrupting_request(held) {
                Ok(()) => {}
                Err(Stop::Crashed) => break,
                Err(Stop::Violation(violation)) => {
                    self.state().found.get_or_insert(violation);
                    break;
                }
            }
        }
        self.state().depth -= 1;
    }

    fn interrupting_request(&self, held: Held) -> Step {
        let volumes = self.volume_ids();
        if volumes.is_empty() {
            return Ok(());
        }
        let id = self.draw(|random| *random.pick(&volumes));
        let blocking = match held {
            Held::Nothing | Held::Job | Held::Index => Blocking::Yes,
            Held::Blocks(own) if own != id => Blocking::Yes,
            _ => Blocking::No,
        };
        let is_locked = held == Held::Blocks(id);
        if let Held::Job | Held::Index = held
            && self.draw(|random| random.one_in(12))
        {
            return self.interrupt_catalogue(id);
        }
        if let Held::Nothing | Held::Job | Held::Blocks(_) = held
            && self.draw(|random| random.one_in(24))
        {
            return self.grow_pool_some();
        }
        if let Held::Nothing | Held::Blocks(_) = held
            && self.state().is_settled
            && self.draw(|random| random.one_in(3))
        {
            return match self.draw(|random| random.below(2)) {
                0 if !is_locked => self.dedup_some(id),
                _ => self.collect(),
            };
        }
        let may_commit = held != Held::Commit;
        let may_checkpoint = may_commit && held != Held::Checkpoint;
        match self.draw(|random| random.below(8)) {
            0..3 => self.write_some(id, blocking),
            3 => self.trim_some(id, blocking),
            4 if may_commit => self.flush(id),
            5 if may_checkpoint => self.tick(),
            6 => self.read_some(id, blocking),
            7 if held == Held::Job => self.look(),
            _ => self.write_some(id, blocking),
        }
    }

    fn interrupt_catalogue(&self, id: u64) -> Step {
        match self.draw(|random| random.below(3)) {
            0 if self.has_snapshots(id) => Ok(()),
            0 => self.delete_volume(id),
            1 => {
                let size = self.draw_size();
                self.resize_volume(id, size)
            }
            _ => self.rename_volume(id),
        }
    }
}
