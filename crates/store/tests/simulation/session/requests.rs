//! Requests drawn from the seed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::{Blocking, IndexKind, Ready, SettingsChange, VolumeOptions};

use super::interruptions::Held;
use super::options::HASH_CACHE_BYTES;
use crate::common::MIB;
use crate::world::{Fill, Step, Stop, World};

impl World {
    /// One request at the top.
    pub(super) fn request(self: &Arc<Self>) -> Step {
        self.state().request += 1;
        self.state().coverage.requests += 1;
        let volumes = self.volume_ids();
        let choice = self.draw(|random| random.below(155));
        if volumes.is_empty() || (choice < 3 && volumes.len() < 4) {
            let options = self.draw_volume();
            return self.create_volume_as(&options);
        }
        let id = self.draw(|random| *random.pick(&volumes));
        match choice {
            0..3 => Ok(()),
            3 if self.has_snapshots(id) => Ok(()),
            3 => self.delete_volume(id),
            4 => self.rename_volume(id),
            5..7 => {
                let size = self.draw_size();
                self.resize_volume(id, size)
            }
            7..11 => self.import_step(),
            11..13 => {
                self.arm_job();
                self.check()
            }
            13..17 => {
                self.arm_tick();
                self.tick()
            }
            17..30 => {
                self.arm_housekeeping();
                self.flush(id)
            }
            30..42 => {
                self.arm(Part::Data, Op::Read, Held::Nothing);
                self.read_some(id, Blocking::Yes)
            }
            42..45 => self.read_some(id, Blocking::No),
            45..50 => {
                self.arm_housekeeping();
                self.trim_some(id, Blocking::Yes)
            }
            50..54 => self.zero_some(id),
            54..58 => self.scatter(id),
            58..64 => self.comb(id),
            64..70 => self.write_some(id, Blocking::No),
            70..76 => self.rewrite_some(id),
            100..115 => {
                self.arm_job();
                self.dedup_some(id)
            }
            115..122 => {
                self.arm_job();
                self.collect()
            }
            122..124 => {
                self.arm_job();
                self.rebuild_index()
            }
            124..126 => self.look(),
            126..128 => self.change_sharing(id),
            128..130 => self.copy_blocks(id),
            130..132 => self.snapshot_some(&volumes, id),
            132..134 => self.delete_some_snapshot(),
            134..136 => self.convert_index(),
            136..138 => self.clone_some(&volumes, id),
            138 => self.roll_back_some(),
            139..142 => {
                self.arm_job();
                self.deletion_step()
            }
            142..145 => self.verify_changes(),
            145..147 => self.grow_pool_some(),
            147..149 => self.shrink_pool_some(),
            149 => self.panic_some(id),
            150..154 => {
                self.arm_job();
                self.count().map(|_| ())
            }
            154 => self.unshare_some(id),
            _ => {
                self.arm_write(id);
                self.write_some(id, Blocking::Yes)
            }
        }
    }

    /// A defect ends a commit or a checkpoint in its middle, and the daemon continues for a while:
    /// data that it reports as durable is durable.
    fn panic_some(self: &Arc<Self>, id: u64) -> Step {
        let (part, op, when) = self.draw(|random| {
            *random.pick(&[
                // Not after a sync: its failure would not be reported to any caller.
                (Part::Data, Op::Sync, When::Before),
                (Part::Log, Op::Write, When::Before),
                (Part::Log, Op::Write, When::After),
                (Part::Log, Op::Sync, When::Before),
                (Part::Meta, Op::Write, When::Before),
                (Part::Meta, Op::Write, When::After),
                (Part::Meta, Op::Sync, When::Before),
            ])
        });
        let (world, request) = (Arc::clone(self), self.state().request);
        let hook = move || {
            if world.state().request == request {
                resume_unwind(Box::new("a defect, made by a test"));
            }
        };
        self.engine().on_next_io(part, op, when, Box::new(hook));
        self.trace(|| format!("a panic {when:?} the next {op:?} of {}", part.name()));
        if part == Part::Meta {
            return self.panic_in_close();
        }
        if self.panics(|| self.flush(id))? {
            self.flush(id)?;
            self.write_some(id, Blocking::Yes)?;
            self.flush(id)?;
        }
        Ok(())
    }

    /// Closing writes a checkpoint, even if nothing has changed.
    fn panic_in_close(&self) -> Step {
        let store = self.store();
        let close = || self.durably("close", || store.close());
        if self.panics(close)? {
            close()?;
        }
        self.state().must_reopen = true;
        Ok(())
    }

    /// Whether the request ends by a panic.
    fn panics(&self, request: impl Fn() -> Step) -> Result<bool, Stop> {
        let ended = catch_unwind(AssertUnwindSafe(request));
        self.disarm();
        let Ok(ended) = ended else {
            let mut state = self.state();
            state.faulty = true;
            state.coverage.panics += 1;
            return Ok(true);
        };
        ended.map(|()| false)
    }

    /// Makes a snapshot of one volume or of all.
    fn snapshot_some(&self, volumes: &[u64], id: u64) -> Step {
        if self.snapshot_ids().len() > 3 {
            return Ok(());
        }
        if self.draw(|random| random.one_in(3)) {
            self.create_snapshots(volumes)
        } else {
            self.create_snapshots(&[id])
        }
    }

    fn delete_some_snapshot(&self) -> Step {
        let snapshots = self.snapshot_ids();
        if snapshots.is_empty() {
            return Ok(());
        }
        let id = self.draw(|random| *random.pick(&snapshots));
        self.delete_snapshot(id)
    }

    /// Clones a volume or a snapshot.
    fn clone_some(&self, volumes: &[u64], id: u64) -> Step {
        if volumes.len() > 4 {
            return Ok(());
        }
        let sources = [self.snapshot_ids(), vec![id]].concat();
        let source = self.draw(|random| *random.pick(&sources));
        self.clone_volume(source)
    }

    fn roll_back_some(&self) -> Step {
        let snapshots = self.snapshot_ids();
        if snapshots.is_empty() {
            return Ok(());
        }
        let id = self.draw(|random| *random.pick(&snapshots));
        self.roll_back(id)
    }

    pub(super) fn grow_pool_some(&self) -> Step {
        let block_size = self.state().block_size;
        let most = (40 * MIB).saturating_sub(self.pool_size()) / block_size;
        match self.draw(|random| random.below(most.min(64) + 1)) {
            0 => Ok(()),
            blocks => self.grow_pool(blocks * block_size),
        }
    }

    fn shrink_pool_some(self: &Arc<Self>) -> Step {
        if self.draw(|random| random.one_in(2)) {
            self.arm(Part::Data, Op::Read, Held::Moving);
        }
        let is_shrinking = self
            .store()
            .space()
            .shrinking_to()
            .expect("nobody panicked")
            .is_some();
        if is_shrinking && self.draw(|random| random.one_in(2)) {
            return self.go_on_shrinking();
        }
        let block_size = self.state().block_size;
        let most = self.pool_size().saturating_sub(2 * MIB) / 2 / block_size;
        match self.draw(|random| random.below(most + 1)) {
            0 => Ok(()),
            less => {
                let size = self.pool_size() - less * block_size;
                self.shrink_pool(size).map(|_| ())
            }
        }
    }

    fn convert_index(&self) -> Step {
        let is_possible = self.can_merge() && !self.state().faulty;
        let kinds = [IndexKind::Hash, IndexKind::Btree, IndexKind::Memory];
        let kind = self.draw(|random| *random.pick(&kinds));
        if is_possible {
            self.remake_index(Some(kind))
        } else {
            Ok(())
        }
    }

    /// A batch that is open has to be settled first, which needs the index.
    fn can_merge(&self) -> bool {
        let state = self.state();
        !state.may_need_rebuild && !state.is_index_damaged
    }

    pub(super) fn has_snapshots(&self, id: u64) -> bool {
        let state = self.state();
        let mut volumes = state.volumes.iter();
        volumes.any(|volume| volume.snapshot_of == Some(id))
    }

    /// A range: often small, often whole blocks, often where others were.
    fn draw_range(&self, id: u64, len_max: u64) -> (u64, u64) {
        let size = self.size(id);
        let block_size = self.state().block_size;
        self.draw(|random| {
            let unit = match random.below(10) {
                0 => 1,
                1..3 => 512,
                _ => block_size,
            };
            let len = match random.below(10) {
                0..5 => random.between(1, 4 * block_size),
                5..9 => random.between(1, 64 * block_size),
                _ => len_max,
            };
            let len = len.min(len_max).min(size).next_multiple_of(unit).min(size);
            // In a wide volume the requests meet near its start and in the middle.
            let span = (size - len).min(8 * MIB);
            let base = if random.one_in(4) {
                size - len - span
            } else {
                0
            };
            let offset = base + random.below(span + 1);
            if random.one_in(10) {
                return (size - len, len);
            }
            (offset / unit * unit, len)
        })
    }

    pub(super) fn write_some(&self, id: u64, blocking: Blocking) -> Step {
        let (offset, len) = self.draw_range(id, MIB);
        let fill = self.draw(|random| *random.pick(&[Fill::Data, Fill::Common]));
        self.write(id, offset, len, fill, blocking)
    }

    /// Blocks that the volume owns, again and again.
    fn rewrite_some(&self, id: u64) -> Step {
        let block_size = self.state().block_size;
        let blocks = self.size(id) / block_size;
        let count = self.draw(|random| random.between(1, 16)).min(blocks);
        let first = self.draw(|random| random.below((blocks - count).min(2048) + 1));
        let (start, len) = (first * block_size, count * block_size);
        self.write(id, start, len, Fill::Data, Blocking::Yes)?;
        for _ in 0..self.draw(|random| random.between(1, 6)) {
            let (at, some) = self.draw(|random| {
                let some = random.between(1, count.min(4));
                (random.below(count - some + 1), some)
            });
            let fill = self.draw(|random| *random.pick(&[Fill::Data, Fill::Data, Fill::Common]));
            let offset = start + at * block_size;
            self.write(id, offset, some * block_size, fill, Blocking::No)?;
            if self.draw(|random| random.one_in(4)) {
                self.flush(id)?;
            }
        }
        Ok(())
    }

    pub(super) fn read_some(&self, id: u64, blocking: Blocking) -> Step {
        let (offset, len) = self.draw_range(id, MIB);
        self.read(id, offset, len, blocking)
    }

    pub(super) fn trim_some(&self, id: u64, blocking: Blocking) -> Step {
        let (offset, len) = self.draw_range(id, 4 * MIB);
        self.trim(id, offset, len, blocking)
    }

    fn zero_some(&self, id: u64) -> Step {
        let (offset, len) = self.draw_range(id, MIB);
        self.write_zeroes(id, offset, len, Blocking::Yes)
    }

    /// Many records at once: every other block is released, or needs a new place.
    fn comb(&self, id: u64) -> Step {
        let block_size = self.state().block_size;
        let size = self.size(id);
        let len = (128 * block_size).min(2 * MIB).min(size);
        let offset = self.draw(|random| random.below((size - len).min(8 * MIB) / block_size + 1));
        let fill = if self.draw(|random| random.one_in(4)) {
            Fill::Data
        } else {
            Fill::Comb
        };
        self.write(id, offset * block_size, len, fill, Blocking::Yes)
    }

    /// Single blocks in many segments: each makes a page dirty.
    fn scatter(&self, id: u64) -> Step {
        let block_size = self.state().block_size;
        let segment = 512 * block_size;
        let segments = self.size(id) / segment;
        let count = self.draw(|random| random.between(1, 120)).min(segments);
        let first = self.draw(|random| random.below(segments.max(1)));
        for n in 0..count {
            let offset = (first + n) % segments * segment;
            self.write(id, offset, block_size, Fill::Data, Blocking::Yes)?;
            if self.state().must_reopen {
                break;
            }
        }
        Ok(())
    }

    fn import_step(self: &Arc<Self>) -> Step {
        let importing = self.state().import.as_ref().map(|(_, volume)| volume.size);
        let Some(size) = importing else {
            let size_bytes = self.draw(|random| random.between(1, 16)) * (128 << 10);
            let options = self.draw_volume();
            return self.begin_import_as(&VolumeOptions {
                size_bytes,
                ..options
            });
        };
        match self.draw(|random| random.below(6)) {
            0 => self.finish_import(),
            1 => self.abort_import(),
            2 | 3 => {
                self.arm_job();
                self.dedup_import()
            }
            _ => {
                let len = size.min(256 << 10);
                let offset = self.draw(|random| random.below((size - len) / 65536 + 1)) * 65536;
                self.write_import(offset, len, Fill::Common)
            }
        }
    }

    // Finder and collector.

    pub(super) fn dedup_some(&self, id: u64) -> Step {
        let ready = self.draw(|random| {
            if random.one_in(3) {
                Ready::Cold
            } else {
                Ready::All
            }
        });
        self.dedup(id, ready, 2).map(|_| ())
    }

    /// Seldom, because from then on the run may have private blocks that are duplicates, and the last
    /// comparison shows less.
    fn unshare_some(self: &Arc<Self>, id: u64) -> Step {
        let (is_wanted, min_run) = self.draw(|random| {
            let min_run = random.one_in(2).then(|| random.between(2, 16) as u16);
            (random.one_in(2), min_run)
        });
        if is_wanted {
            self.arm(Part::Data, Op::Read, Held::Moving);
            self.unshare(id, min_run)?;
        }
        Ok(())
    }

    fn change_sharing(&self, id: u64) -> Step {
        let (verify, cold_passes) = self.draw(|random| (random.one_in(2), random.between(1, 3)));
        let hash_cache = self.draw(|random| random.between(0, 3)) * HASH_CACHE_BYTES;
        let block_size = self.state().block_size;
        let draw_blocks = |most| {
            let blocks = self.draw(|random| {
                if random.one_in(3) {
                    random.between(1, most)
                } else {
                    0
                }
            });
            Some(blocks * block_size)
        };
        let change = SettingsChange {
            dedup: Some(self.draw_mode()),
            min_run: Some(self.draw_min_run()),
            verify: Some(verify || self.must_verify()),
            cold_passes: Some(cold_passes as u8),
            hash_cache_bytes: Some(hash_cache),
            quota_bytes: draw_blocks(1500),
            reservation_bytes: draw_blocks(100),
            ..SettingsChange::default()
        };
        self.set_volume(id, &change)
    }

    /// Gives two volumes the same blocks, publishes both, and rewrites some of one of them.
    fn copy_blocks(&self, id: u64) -> Step {
        let block_size = self.state().block_size;
        let other = self.draw_other(id);
        for id in [id, other] {
            let len = (64 * block_size).min(self.size(id));
            self.write(id, 0, len, Fill::Common, Blocking::Yes)?;
            self.dedup(id, Ready::All, 2)?;
        }
        let (offset, len) = self.draw_range(id, 32 * block_size);
        self.write(id, offset, len, Fill::Common, Blocking::Yes)?;
        self.collect_batch().map(|_| ())
    }

    fn draw_other(&self, id: u64) -> u64 {
        let volumes = self.volume_ids();
        let others = volumes.into_iter().filter(|other| *other != id);
        let others: Vec<u64> = others.chain([id]).collect();
        self.draw(|random| *random.pick(&others))
    }
}
