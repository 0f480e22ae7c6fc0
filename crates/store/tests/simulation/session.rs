//! Requests drawn from the seed, and code that runs in the middle of their I/Os.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use onefold_engine::simulated::{CrashKind, FailureRates, Op, When};
use onefold_engine::{Engine, Part};
use onefold_store::{
    Blocking, CreateOptions, DedupMode, IndexKind, Ready, Scarcity, SettingsChange, StoreError,
    Volume, VolumeOptions, VolumeSettings,
};

use crate::common::{KINDS, MIB};
use crate::crash::Recovery;
use crate::model::{SECTOR, Violation};
use crate::random::Random;
use crate::world::{Fill, Step, Stop, World};

/// A volume with many segments, hardly any of which are used.
const WIDE_BYTES: u64 = 1536 * MIB;

/// Bytes of a small hash cache: the slots of two segments.
const HASH_CACHE_BYTES: u64 = 24 << 10;

/// Locks held during an I/O, which must not be requested in the middle of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
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

/// One run: a few sessions on one pool, with a crash or a close after each.
pub(crate) fn run(world: &Arc<World>) -> Result<(), Violation> {
    let sessions = world.draw(|random| random.between(3, 6));
    let engine = world.engine();
    if world.draw(|random| random.one_in(3)) && !engine.is_of_cluster() {
        // As O_DIRECT demands it: a write that is not aligned panics.
        engine.set_alignment(Part::Data, 4096);
        engine.set_alignment(Part::Meta, 4096);
        engine.set_alignment(Part::Log, 512);
    }
    let prepare = world.draw(|random| random.below(20));
    let memory_bytes = if prepare < 2 { 64 * MIB } else { 8 * MIB };
    let opened = world.open(memory_bytes);
    opened.map_err(|error| Violation(error.to_string()))?;
    for n in 0..sessions {
        let prepared = match prepare {
            0..2 if n == 0 => world.spread(),
            2 if n == 0 => world.fill_log(),
            _ => Ok(()),
        };
        let ended = prepared.and_then(|()| world.session());
        match ended.and_then(|()| world.found()) {
            Ok(()) | Err(Stop::Crashed) => {}
            Err(Stop::Violation(violation)) => return Err(violation),
        }
        match world.recover() {
            Ok(()) if world.state().is_beyond_model => return Ok(()),
            Ok(()) => {}
            Err(Stop::Crashed) => return Err(Violation("a crash nobody ordered".into())),
            Err(Stop::Violation(violation)) => return Err(violation),
        }
    }
    world.cover_log();
    match world.settle() {
        Err(Stop::Violation(violation)) => Err(violation),
        Err(Stop::Crashed) => Err(Violation("a crash nobody ordered".into())),
        Ok(()) => Ok(()),
    }
}

/// A small pool, so that blocks are reused and the log goes round.
pub(crate) fn options(random: &mut Random) -> CreateOptions {
    let block_size = *random.pick(&[4096, 4096, 4096, 4096, 8192, 16384, 65536]);
    CreateOptions {
        block_size,
        size_bytes: random.between(4, 32) * MIB,
        log_bytes: *random.pick(&[256 << 10, 256 << 10, 256 << 10, 384 << 10]),
        index: *random.pick(&KINDS),
    }
}

/// In most runs so small that the log and the metadata have several, as large pools have.
pub(crate) fn object_bytes(random: &mut Random) -> u64 {
    *random.pick(&[16 << 10, 64 << 10, 64 << 10, MIB, 4 * MIB])
}

/// In some runs fingerprints collide; in some the index has no room for all, or has to merge often.
pub(crate) fn scarcity(random: &mut Random, index: IndexKind) -> Scarcity {
    match random.below(8) {
        0 => Scarcity {
            fingerprint_bits: Some(random.between(1, 4) as u32),
            ..Scarcity::default()
        },
        1..=3 if index == IndexKind::Hash => Scarcity {
            index_bytes: Some(random.between(0, 4) as usize * 1024),
            ..Scarcity::default()
        },
        1 if index == IndexKind::Memory => Scarcity {
            index_bytes: Some(random.between(1, 64) as usize * 1024),
            ..Scarcity::default()
        },
        _ => Scarcity::default(),
    }
}

impl World {
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.state().random)
    }

    fn session(self: &Arc<Self>) -> Step {
        self.inject_faults();
        if self.draw(|random| random.one_in(2)) {
            let n = self.draw(|random| random.between(1, 150));
            self.trace(|| format!("crash after {n} I/Os"));
            self.engine().crash_after(n);
        }
        let requests = self.draw(|random| random.between(5, 60));
        for _ in 0..requests {
            self.request()?;
            self.found()?;
            if self.state().must_reopen {
                return Ok(());
            }
        }
        if self.draw(|random| random.one_in(4)) && !self.state().faulty {
            let memory_bytes = self.draw_memory();
            self.close_and_open(memory_bytes)?;
        }
        Ok(())
    }

    /// Brings the log to where its ring ends soon.
    fn fill_log(&self) -> Step {
        let block_size = self.state().block_size;
        let len = (256 * block_size).min(MIB);
        self.create_volume_as(&VolumeOptions::new(len).with(VolumeSettings {
            verify: self.must_verify(),
            ..VolumeSettings::default()
        }))?;
        let id = self.volume_ids()[0];
        let rounds = 256 * 1024 / (len / block_size / 2 * 48 + 600);
        for _ in 0..rounds + 2 {
            self.trim(id, 0, len, Blocking::Yes)?;
            self.write(id, 0, len, Fill::Comb, Blocking::Yes)?;
            self.flush(id)?;
        }
        Ok(())
    }

    /// Changes more segments than an opening with less memory may keep.
    fn spread(&self) -> Step {
        let block_size = self.state().block_size;
        self.create_volume_as(
            &VolumeOptions::new(512 * 512 * block_size).with(VolumeSettings {
                verify: self.must_verify(),
                ..VolumeSettings::default()
            }),
        )?;
        let id = self.volume_ids()[0];
        for n in 0..self.draw(|random| random.between(250, 500)) {
            self.write(
                id,
                n * 512 * block_size,
                block_size,
                Fill::Data,
                Blocking::Yes,
            )?;
        }
        self.flush(id)
    }

    /// In one session of three, I/Os fail.
    fn inject_faults(&self) {
        let engine = self.engine();
        let mut rates = FailureRates::default();
        match self.draw(|random| random.below(18)) {
            0 => rates.read = 0.03,
            1 => rates.write = 0.03,
            2 => rates.sync = 0.05,
            3 => rates.discard = 0.3,
            4 => {
                rates = FailureRates {
                    read: 0.01,
                    write: 0.01,
                    sync: 0.01,
                    discard: 0.1,
                }
            }
            5 => self.limit(Part::Data),
            6 => self.limit(Part::Meta),
            7 => self.limit(Part::Index),
            _ => {}
        }
        engine.set_failure_rates(rates);
        let orphans = self.draw(|random| *random.pick(&[0.0, 0.0, 0.0, 0.7]));
        engine.set_orphan_failure_rate(orphans);
        engine.set_discard_ignored_rate(if self.draw(|random| random.one_in(3)) {
            0.3
        } else {
            0.0
        });
        engine.set_cold_rate(if self.draw(|random| random.one_in(3)) {
            0.3
        } else {
            0.0
        });
        if rates.sync > 0.0 || orphans > 0.0 {
            let rate = self.draw(|random| *random.pick(&[0.0, 0.5, 1.0]));
            engine.set_eviction_rate(Part::Data, rate);
        }
        let mut state = self.state();
        state.faulty |= rates != FailureRates::default();
        state.sync_failed |= rates.sync > 0.0;
    }

    /// The host has little room left.
    fn limit(&self, part: Part) {
        let disk = self.engine().open(part).expect("the part exists");
        let allocated = disk.allocated_bytes().expect("the machine runs");
        let more = self.draw(|random| random.below(2 * MIB));
        self.engine().set_capacity(part, Some(allocated + more));
        self.state().faulty = true;
    }

    fn draw_memory(&self) -> u64 {
        self.draw(|random| *random.pick(&[8, 8, 8, 64])) * MIB
    }

    fn recover(&self) -> Step {
        let mut again = self.draw(|random| random.one_in(3));
        loop {
            // After a failed sync above all the death of the process: the next one must not trust
            // the host's cache.
            let sync_failed = self.state().sync_failed;
            let power_loss = self.draw(|random| random.one_in(3)) == sync_failed;
            let recovery = Recovery {
                kind: if power_loss {
                    CrashKind::PowerLoss
                } else {
                    CrashKind::ProcessKilled
                },
                crash_at: again.then(|| self.draw(|random| random.between(1, 30))),
                memory_bytes: self.draw_memory(),
            };
            let before = self.state().coverage.recoveries;
            if self.crash_and_open(recovery)? {
                self.verify()?;
                debug_assert!(self.state().coverage.recoveries > before);
                break;
            }
            again = self.draw(|random| random.one_in(3));
        }
        match self.draw(|random| random.below(4)) {
            0 => Ok(()),
            _ if self.state().is_beyond_model => Ok(()),
            1 => self.settle(),
            _ => self.check(),
        }
    }

    /// One request at the top.
    fn request(self: &Arc<Self>) -> Step {
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
                self.arm_housekeeping();
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

    fn grow_pool_some(&self) -> Step {
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

    fn has_snapshots(&self, id: u64) -> bool {
        let state = self.state();
        let mut volumes = state.volumes.iter();
        volumes.any(|volume| volume.snapshot_of == Some(id))
    }

    fn draw_volume(&self) -> VolumeOptions {
        let (other_domain, verify) = self.draw(|random| (random.one_in(4), random.one_in(3)));
        let has_hash_cache = self.draw(|random| random.one_in(2));
        let verify = verify || self.must_verify();
        let settings = VolumeSettings {
            dedup: self.draw_mode(),
            min_run: self.draw_min_run(),
            verify,
            cold_passes: self.draw(|random| random.between(1, 3)) as u8,
            hash_cache_bytes: if has_hash_cache { HASH_CACHE_BYTES } else { 0 },
            ..VolumeSettings::default()
        };
        VolumeOptions {
            domain: if other_domain { "other" } else { "default" }.to_owned(),
            ..VolumeOptions::new(self.draw_size()).with(settings)
        }
    }

    /// In line more often than not, so that most runs have such a volume.
    fn draw_mode(&self) -> DedupMode {
        let modes = [
            DedupMode::Inline,
            DedupMode::Inline,
            DedupMode::Auto,
            DedupMode::Offline,
            DedupMode::Off,
        ];
        self.draw(|random| *random.pick(&modes))
    }

    /// Seldom above 1, for the same reason as in [`World::unshare_some`].
    fn draw_min_run(&self) -> u16 {
        let is_wanted = self.draw(|random| random.one_in(32));
        self.state().has_own_copies |= is_wanted;
        if is_wanted {
            self.draw(|random| random.between(2, 8)) as u16
        } else {
            1
        }
    }

    /// One in three ends inside a block.
    fn draw_size(&self) -> u64 {
        self.draw(|random| {
            let size = if random.one_in(5) {
                WIDE_BYTES
            } else {
                random.between(1, 48) * (128 << 10)
            };
            if random.one_in(3) {
                size - random.between(1, 127) * SECTOR
            } else {
                size
            }
        })
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

    fn write_some(&self, id: u64, blocking: Blocking) -> Step {
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

    fn read_some(&self, id: u64, blocking: Blocking) -> Step {
        let (offset, len) = self.draw_range(id, MIB);
        self.read(id, offset, len, blocking)
    }

    fn trim_some(&self, id: u64, blocking: Blocking) -> Step {
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

    /// If fingerprints collide, only comparing the bytes distinguishes contents.
    fn must_verify(&self) -> bool {
        self.state().scarcity.fingerprint_bits.is_some()
    }

    fn dedup_some(&self, id: u64) -> Step {
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

    // Code in the middle of an I/O.

    fn arm_write(self: &Arc<Self>, id: u64) {
        match self.draw(|random| random.below(4)) {
            0 => self.arm(Part::Data, Op::Write, Held::Blocks(id)),
            1 => self.arm(Part::Data, Op::Read, Held::Blocks(id)),
            2 => self.arm(Part::Data, Op::Discard, Held::Blocks(id)),
            _ => {}
        }
    }

    fn arm_housekeeping(self: &Arc<Self>) {
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

    /// Of finder, collector, check and rebuild, which read blocks back without any other lock.
    fn arm_job(self: &Arc<Self>) {
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
    fn arm(self: &Arc<Self>, part: Part, op: Op, held: Held) {
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
        ended.expect("all that was started has ended")
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
