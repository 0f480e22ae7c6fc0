//! Requests to volumes: reads and writes of bytes.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::Op;
use onefold_store::{Blocking, StoreError, StoreErrorKind, Volume};

use super::{Step, Stop, World, violation};
use crate::model::{Ended, SECTOR, Version, VolumeModel, common, sectors_of};

/// The parts of a write, block by block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    Data,
    /// Each block has one of a few contents that blocks of all volumes have.
    Common,
    /// Every other block is zeros.
    Comb,
    Zeros,
}

/// The blocks that can be handed out, as long as no other request runs.
struct Room {
    blocks: u64,
    hooks_run: u64,
}

impl World {
    pub(crate) fn write(
        &self,
        id: u64,
        offset: u64,
        len: u64,
        fill: Fill,
        blocking: Blocking,
    ) -> Step {
        if !self.settle_ends(id, offset, len)? {
            return Ok(());
        }
        self.state().partial_sectors |= !(offset | len).is_multiple_of(SECTOR);
        let (versions, bytes) = self.prepare(id, offset, len, fill);
        let what =
            || format!("write {len} bytes at {offset} of {id}, {fill:?}, blocking {blocking:?}");
        self.change(id, offset, &versions, what, blocking, |volume| {
            let before = volume.inline_stat();
            let written = match blocking {
                Blocking::Yes => volume.write(offset, &bytes, blocking),
                Blocking::No => self.write_as_a_front_end(id, volume, offset, &bytes),
            };
            let after = volume.inline_stat();
            let coverage = &mut self.state().coverage;
            coverage.hits += after.hit_blocks - before.hit_blocks;
            coverage.hits_refused += after.refused.sum() - before.refused.sum();
            written
        })
    }

    pub(crate) fn write_zeroes(&self, id: u64, offset: u64, len: u64, blocking: Blocking) -> Step {
        if !self.settle_ends(id, offset, len)? {
            return Ok(());
        }
        self.state().partial_sectors |= !(offset | len).is_multiple_of(SECTOR);
        let (versions, _) = self.prepare(id, offset, len, Fill::Zeros);
        let what = || format!("zero {len} bytes at {offset} of {id}, blocking {blocking:?}");
        self.change(id, offset, &versions, what, blocking, |volume| {
            volume.write_zeroes(offset, len, blocking)
        })
    }

    pub(crate) fn trim(&self, id: u64, offset: u64, len: u64, blocking: Blocking) -> Step {
        let block_size = self.state().block_size;
        let size = self.size(id);
        let start = offset.next_multiple_of(block_size);
        let end = match offset + len {
            end if end == size => end,
            end => end / block_size * block_size,
        };
        let sectors = end.saturating_sub(start) / SECTOR;
        let versions = vec![0; sectors as usize];
        let what = || format!("trim {len} bytes at {offset} of {id}, blocking {blocking:?}");
        self.change(id, start, &versions, what, blocking, |volume| {
            let trimmed = volume.trim(offset, len, blocking);
            // In a volume that was resized concurrently, the last block may not have counted as whole.
            let is_short = !end.is_multiple_of(block_size);
            let is_in_part = is_short && volume.size_bytes() != size;
            self.state().is_in_part = is_in_part;
            trimmed
        })
    }

    /// A request that changes the sectors from `offset` on to `versions`.
    fn change(
        &self,
        id: u64,
        offset: u64,
        versions: &[Version],
        what: impl Fn() -> String,
        blocking: Blocking,
        request: impl FnOnce(&Arc<Volume>) -> Result<(), StoreError>,
    ) -> Step {
        let volume = self.handle(id)?;
        let first = offset / SECTOR;
        let sectors = first..first + versions.len() as u64;
        let version = |sector: u64| versions[(sector - first) as usize];
        let begun = self.with(id, |volume| volume.begin(sectors.clone(), version));
        self.trace(&what);
        let (room_before, quota_before) = (self.room(), self.quota(id));
        let done = request(&volume);
        self.state().partial_sectors = false;
        let is_in_part = std::mem::take(&mut self.state().is_in_part);
        // Once the machine has stopped, no client gets an answer.
        let ended = if done.is_ok() && !is_in_part && !self.engine().is_crashed() {
            Ended::Answered
        } else {
            Ended::Failed
        };
        self.with(id, |volume| volume.end(begun, sectors, version, ended));
        self.verify_quota(id, quota_before.as_ref())?;
        match done {
            Ok(()) => Ok(()),
            Err(error) => {
                self.judge(&what(), &error, blocking)?;
                let bytes = versions.len() as u64 * SECTOR;
                self.explain_quota(&error, quota_before, bytes)?;
                self.explain_no_space(&error, room_before, bytes)
            }
        }
    }

    /// Blocks that are free for any write, or will be once a commit has released them.
    fn room(&self) -> Option<Room> {
        let state = self.state();
        if state.depth > 0 {
            return None;
        }
        let hooks_run = state.coverage.hooks_run;
        drop(state);
        let stat = self.store().stat().ok()?;
        // Blocks released beyond the new end of a shrinking pool are unused.
        let is_shrinking = self.store().space().shrinking_to().ok()?.is_some();
        if is_shrinking && stat.pending_free_blocks > 0 {
            return None;
        }
        // Unreadable blocks stay out of use when they are released.
        let bad = self.store().scrub().status().ok()?.bad_blocks + stat.lost_blocks;
        Some(Room {
            blocks: (stat.free_blocks + stat.pending_free_blocks - stat.pending_release_blocks)
                .saturating_sub(stat.reserve_blocks + stat.reserved_unused_blocks + bad),
            hooks_run,
        })
    }

    /// Only a pool without room may return this.
    fn explain_no_space(&self, error: &StoreError, room: Option<Room>, bytes: u64) -> Step {
        let state = self.state();
        let needed = bytes / state.block_size + 2;
        let Some(room) = room.filter(|room| room.hooks_run == state.coverage.hooks_run) else {
            return Ok(());
        };
        if error.kind() == StoreErrorKind::NoSpace && room.blocks > needed && !state.faulty {
            return Err(violation(format!(
                "{needed} blocks at most were wanted, {} are free, and yet: {error}",
                room.blocks
            )));
        }
        Ok(())
    }

    /// Sectors that are written in part are completed from the model's content of them, which must
    /// be certain. Returns whether it is.
    fn settle_ends(&self, id: u64, offset: u64, len: u64) -> Result<bool, Stop> {
        let ends =
            || sectors_of(offset, len).filter(|(_, _, inside)| *inside != (0..SECTOR as usize));
        let is_certain = |sector: u64| self.with(id, |volume| volume.certain(sector).is_some());
        for (sector, _, _) in ends() {
            if !is_certain(sector) {
                self.read(id, sector * SECTOR, SECTOR, Blocking::Yes)?;
            }
        }
        // A request in the middle of the second read may have changed the content that the first
        // one found.
        Ok(ends().all(|(sector, _, _)| is_certain(sector)))
    }

    /// The versions that a write makes, and its bytes.
    pub(super) fn prepare(
        &self,
        id: u64,
        offset: u64,
        len: u64,
        fill: Fill,
    ) -> (Vec<Version>, Vec<u8>) {
        let mut state = self.state();
        state.next_version += 1;
        let (own, block_size) = (state.next_version, state.block_size);
        drop(state);
        let mut bytes = vec![0; len as usize];
        let versions = self.with(id, |volume| {
            let sectors = sectors_of(offset, len).map(|(sector, range, inside)| {
                let block = sector * SECTOR / block_size;
                let source = match fill {
                    Fill::Comb if block % 2 == 1 => 0,
                    Fill::Data | Fill::Comb => own,
                    Fill::Common => common(own, block),
                    Fill::Zeros => 0,
                };
                let whole = inside == (0..SECTOR as usize);
                let version = match volume.certain(sector) {
                    Some(before) if !whole => {
                        volume.mix(sector, before, (own, source), inside.clone())
                    }
                    _ => source,
                };
                bytes[range].copy_from_slice(&volume.bytes(sector, version)[inside]);
                version
            });
            sectors.collect()
        });
        (versions, bytes)
    }

    pub(crate) fn read(&self, id: u64, offset: u64, len: u64, blocking: Blocking) -> Step {
        let volume = self.handle(id)?;
        let begun = self.with(id, VolumeModel::begin_read);
        let what = || format!("read {len} bytes at {offset} of {id}, blocking {blocking:?}");
        self.trace(what);
        let mut found = vec![0xdd; len as usize];
        match volume.read(offset, &mut found, blocking) {
            Ok(()) => {
                // The kernel may have evicted data that it could not write.
                let may_be_gone = self.engine().failures(Part::Data, Op::Sync) > 0;
                if may_be_gone && self.state().is_sync_untold {
                    // A block with another volume's content cannot be refused yet.
                    self.with(id, VolumeModel::abandon_read);
                    return Ok(());
                }
                let compared = self.with(id, |volume| {
                    volume.end_read(begun, offset, &found, may_be_gone)
                });
                Ok(compared?)
            }
            Err(error) => {
                self.with(id, VolumeModel::abandon_read);
                self.judge(&what(), &error, blocking)
            }
        }
    }
}
