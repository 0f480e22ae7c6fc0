//! One script with every kind of request, stopped at each of its I/Os in turn.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_store::{
    Blocking, CreateOptions, IndexKind, Ready, Store, StoreErrorKind, VolumeOptions, VolumeSettings,
};

use crate::common::{BLOCK, LITTLE_MEMORY, MIB, assert_clean, new_volume, open, pool_of};
use crate::coverage::Coverage;
use crate::crash::Recovery;
use crate::model::Violation;
use crate::world::{Fill, Step, Stop, World};

const OPTIONS: CreateOptions = CreateOptions {
    index: IndexKind::Btree,
    ..pool_of(8 * MIB)
};

pub(crate) type Script = fn(&Arc<World>) -> Step;

/// Every kind of request, in an order that makes blocks, pages and log be reused.
fn requests(world: &Arc<World>) -> Step {
    let (a, b) = (world.new_volume(4 * MIB)?, world.new_volume(MIB)?);
    world.write(a, 0, MIB, Fill::Data, Blocking::Yes)?;
    world.write(b, 5 * BLOCK + 512, 3 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(a)?;
    world.write(a, 100 * BLOCK, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(a, 100 * BLOCK + 1000, 700, Fill::Data, Blocking::Yes)?;
    world.write(a, 2 * MIB - BLOCK, 2 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(a, 20 * BLOCK + 7, 40 * BLOCK, Blocking::Yes)?;
    world.flush(b)?;
    world.write(b, 0, 64 * BLOCK, Fill::Comb, Blocking::Yes)?;
    world.write(a, 30 * BLOCK, 20 * BLOCK, Fill::Zeros, Blocking::Yes)?;
    world.check()?;
    world.write_zeroes(a, 60 * BLOCK + 100, 30 * BLOCK, Blocking::Yes)?;
    world.tick()?;
    world.rename_volume(b)?;
    world.resize_volume(a, 3 * MIB)?;
    world.begin_import(MIB)?;
    world.write_import(0, 16 * BLOCK, Fill::Data)?;
    world.write_import(32 * BLOCK, 16 * BLOCK, Fill::Data)?;
    world.finish_import()?;
    world.begin_import(MIB)?;
    world.write_import(0, 4 * BLOCK, Fill::Data)?;
    world.abort_import()?;
    world.read(a, 10 * BLOCK, 200 * BLOCK, Blocking::Yes)?;
    world.write(a, 8 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::No)?;
    world.delete_volume(b)?;
    world.tick()?;
    world.write(a, 20 * BLOCK, 128 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.resize_volume(a, 5 * MIB)?;
    world.write(a, 4 * MIB, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(a)?;
    world.write(a, 4 * MIB, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.close_and_open(8 * MIB)?;
    world.write(a, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)
}

/// Finder, collector, check and rebuild, with writes in the middle of the first two.
fn sharing(world: &Arc<World>) -> Step {
    for domain in ["default", "default", "other"] {
        world.create_volume_as(&VolumeOptions {
            domain: domain.to_owned(),
            ..VolumeOptions::new(MIB).with(VolumeSettings {
                verify: domain == "other",
                ..VolumeSettings::default()
            })
        })?;
    }
    let ids = world.volume_ids();
    let (a, b, c) = (ids[0], ids[1], ids[2]);
    for id in [a, b, c] {
        world.write(id, 0, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.write(id, 32 * BLOCK, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.dedup(id, Ready::All, 2)?;
    }
    world.write(a, 4 * BLOCK, 6 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.write(b, 2 * BLOCK + 512, BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(b, 10 * BLOCK, 8 * BLOCK, Blocking::Yes)?;
    world.collect()?;
    world.write(b, 40 * BLOCK, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.meanwhile(Part::Data, Op::Read, When::Before, move |world| {
        world.write(b, 42 * BLOCK, 2 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.trim(b, 46 * BLOCK, BLOCK, Blocking::Yes)?;
        world.flush(b)
    });
    world.dedup(b, Ready::All, 2)?;
    world.found()?;
    world.check()?;
    world.trim(c, 0, 12 * BLOCK, Blocking::Yes)?;
    world.trim(a, 34 * BLOCK, 2 * BLOCK, Blocking::Yes)?;
    world.meanwhile(Part::Data, Op::Read, When::After, move |world| {
        world.write(a, 0, 4 * BLOCK, Fill::Data, Blocking::Yes)
    });
    world.collect()?;
    world.found()?;
    world.begin_import(MIB)?;
    world.write_import(0, 16 * BLOCK, Fill::Common)?;
    world.dedup_import()?;
    world.finish_import()?;
    world.tick()?;
    world.delete_volume(a)?;
    world.collect()?;
    world.close_and_open(8 * MIB)?;
    world.write(b, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(b, Ready::Cold, 2)?;
    world.collect()
}

/// The index is rebuilt as one of another kind, with references to release and an import in progress.
fn remaking(world: &Arc<World>) -> Step {
    world.create_volume(MIB)?;
    world.create_volume(MIB)?;
    for id in world.volume_ids() {
        world.write(id, 0, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.dedup(id, Ready::All, 1)?;
        world.trim(id, 4 * BLOCK, 4 * BLOCK, Blocking::Yes)?;
    }
    let kinds = [IndexKind::Hash, IndexKind::Memory, IndexKind::Btree].map(Some);
    for kind in kinds.into_iter().chain([None]) {
        world.remake_index(kind)?;
        world.check()?;
        world.collect()?;
    }
    world.close_and_open(8 * MIB)
}

/// Snapshots of one volume and of two, with writes between them that replace, trim and partly
/// change the blocks below; one in the middle is deleted, and the rest at the end.
fn snapshots(world: &Arc<World>) -> Step {
    let (a, b) = (world.new_volume(MIB)?, world.new_volume(MIB)?);
    world.write(a, 0, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.write(a, 32 * BLOCK, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(b, 0, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.create_snapshots(&[a])?;
    let first = world.snapshot_ids()[0];
    world.write(a, 4 * BLOCK, 6 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(a, 34 * BLOCK + 512, 3 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(a, 16 * BLOCK, 4 * BLOCK, Blocking::Yes)?;
    world.trim(a, 60 * BLOCK, 4 * BLOCK, Blocking::Yes)?;
    world.write(a, 38 * BLOCK, 4 * BLOCK, Fill::Comb, Blocking::Yes)?;
    world.write_zeroes(a, 44 * BLOCK + 100, 2 * BLOCK, Blocking::Yes)?;
    world.dedup(first, Ready::All, 2)?;
    world.read(a, 0, MIB, Blocking::Yes)?;
    world.create_snapshots(&[a, b])?;
    let second = world.snapshot_ids()[1];
    world.write(a, 6 * BLOCK, 6 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.write(a, 17 * BLOCK, BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(b, 2 * BLOCK, 2 * BLOCK, Fill::Zeros, Blocking::Yes)?;
    world.dedup(second, Ready::All, 2)?;
    world.dedup(a, Ready::All, 2)?;
    world.rename_volume(a)?;
    world.verify_contents()?;
    world.check()?;
    world.delete_snapshot(first)?;
    world.deletion_step()?;
    world.finish_deletions()?;
    world.verify_contents()?;
    world.collect()?;
    world.close_and_open(8 * MIB)?;
    world.resize_volume(a, 24 * BLOCK)?;
    world.resize_volume(a, MIB)?;
    world.write(a, 0, 2 * BLOCK, Fill::Zeros, Blocking::Yes)?;
    world.flush(a)?;
    for id in world.snapshot_ids() {
        world.delete_snapshot(id)?;
        world.finish_deletions()?;
        world.check()?;
    }
    world.collect()?;
    world.verify_contents()
}

/// Volumes that end inside a block: written to their ends, cut, extended, frozen, shared.
fn short_blocks(world: &Arc<World>) -> Step {
    let (a, b) = (
        world.new_volume(16 * BLOCK + 1024)?,
        world.new_volume(12 * BLOCK + 512)?,
    );
    world.write(a, 0, 16 * BLOCK + 1024, Fill::Data, Blocking::Yes)?;
    world.write(b, 0, 12 * BLOCK + 512, Fill::Common, Blocking::Yes)?;
    world.flush(a)?;
    world.create_snapshots(&[a])?;
    let frozen = world.snapshot_ids()[0];
    world.resize_volume(a, 10 * BLOCK + 512)?;
    world.write(a, 10 * BLOCK, 512, Fill::Data, Blocking::Yes)?;
    world.flush(a)?;
    world.verify_contents()?;
    world.resize_volume(a, 10 * BLOCK + 1536)?;
    world.resize_volume(b, 12 * BLOCK + 2048)?;
    world.verify_contents()?;
    world.write_zeroes(a, 9 * BLOCK + 512, BLOCK + 1024, Blocking::Yes)?;
    world.write(
        b,
        11 * BLOCK + 512,
        BLOCK + 1536,
        Fill::Common,
        Blocking::No,
    )?;
    world.trim(b, 8 * BLOCK, 4 * BLOCK + 2048, Blocking::Yes)?;
    world.clone_volume(frozen)?;
    for id in [a, b, frozen] {
        world.dedup(id, Ready::All, 2)?;
    }
    world.check()?;
    world.roll_back(frozen)?;
    world.resize_volume(a, 20 * BLOCK)?;
    world.verify_contents()?;
    world.delete_snapshot(frozen)?;
    world.finish_deletions()?;
    world.collect()?;
    world.close_and_open(8 * MIB)?;
    world.verify_contents()?;
    world.check()
}

/// Clones of a snapshot, of a volume, and of a clone, each written; a volume that is rolled back to
/// its snapshot; and everything that they have in common deleted before them.
fn clones(world: &Arc<World>) -> Step {
    let a = world.new_volume(MIB)?;
    world.write(a, 0, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.write(a, 32 * BLOCK, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.create_snapshots(&[a])?;
    let first = world.snapshot_ids()[0];
    world.write(a, 4 * BLOCK, 6 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(a, 34 * BLOCK, 4 * BLOCK, Blocking::Yes)?;
    world.clone_volume(first)?;
    let b = world.volume_ids()[1];
    world.write(b, 2 * BLOCK, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(b, 40 * BLOCK, 2 * BLOCK, Blocking::Yes)?;
    world.clone_volume(a)?;
    // Nothing was written since: this one shares the same layer.
    world.clone_volume(a)?;
    let (c, d) = (world.volume_ids()[2], world.volume_ids()[3]);
    world.write(a, 8 * BLOCK + 512, 2 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(c, 0, 6 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.clone_volume(c)?;
    let e = world.volume_ids()[4];
    world.write(e, 5 * BLOCK, 2 * BLOCK, Fill::Zeros, Blocking::Yes)?;
    for id in [first, a, b, c, e] {
        world.dedup(id, Ready::All, 2)?;
    }
    world.verify_contents()?;
    world.create_snapshots(&[a])?;
    let newer = *world.snapshot_ids().last().expect("just made");
    world.resize_volume(a, 2 * MIB)?;
    world.write(a, MIB, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.roll_back(first)?;
    world.verify_contents()?;
    world.write(a, 6 * BLOCK, 2 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.deletion_step()?;
    world.check()?;
    world.delete_snapshot(first)?;
    world.finish_deletions()?;
    world.collect()?;
    world.verify_contents()?;
    world.check()?;
    world.roll_back(newer)?;
    world.delete_snapshot(newer)?;
    for id in [d, b, e] {
        world.delete_volume(id)?;
        world.deletion_step()?;
        world.flush(a)?;
    }
    world.close_and_open(8 * MIB)?;
    world.finish_deletions()?;
    world.check()?;
    world.delete_volume(c)?;
    world.finish_deletions()?;
    world.collect()?;
    world.verify_contents()
}

/// A pool grows and is written to each time, across the end of a page of its free-space map.
fn growing(world: &Arc<World>) -> Step {
    let id = world.new_volume(128 * MIB)?;
    world.write(id, 0, 2 * MIB, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    for grown in [4 * BLOCK, 2 * MIB, 54 * MIB - 4 * BLOCK, 4 * MIB] {
        world.grow_pool(grown)?;
        let at = 8 * MIB + world.pool_size();
        world.write(id, at, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.tick()?;
    }
    world.flush(id)?;
    world.trim(id, 0, 2 * MIB, Blocking::Yes)?;
    world.check()?;
    world.close_and_open(8 * MIB)?;
    world.grow_pool(BLOCK)?;
    world.write(id, 0, MIB, Fill::Data, Blocking::Yes)?;
    world.flush(id)
}

/// A pool shrinks that has volumes and snapshots with shared blocks, and references to release, while
/// one of the volumes is written to; then it grows and shrinks again.
fn shrinking(world: &Arc<World>) -> Step {
    for _ in 0..3 {
        world.create_volume(4 * MIB)?;
    }
    let ids = world.volume_ids();
    let (a, b, c) = (ids[0], ids[1], ids[2]);
    world.write(a, 0, 3 * MIB, Fill::Data, Blocking::Yes)?;
    for id in [b, c] {
        world.write(id, 0, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.write(id, 32 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.dedup(id, Ready::All, 1)?;
    }
    world.create_snapshots(&[b])?;
    world.write(b, 4 * BLOCK, 40 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(b, Ready::All, 1)?;
    world.write(b, 8 * BLOCK, 8 * BLOCK, Fill::Comb, Blocking::Yes)?;
    world.trim(c, 0, 4 * BLOCK, Blocking::Yes)?;
    world.trim(a, 0, 3 * MIB - 8 * BLOCK, Blocking::Yes)?;
    world.flush(a)?;
    world.meanwhile(Part::Data, Op::Write, When::Before, move |world| {
        world.write(a, 3 * MIB + BLOCK, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.write(c, 2 * MIB, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.read(b, 0, 64 * BLOCK, Blocking::No)?;
        world.flush(c)
    });
    world.shrink_pool(3 * MIB + 3 * BLOCK)?;
    world.found()?;
    world.verify_contents()?;
    world.check()?;
    world.grow_pool(MIB)?;
    world.dedup(c, Ready::All, 1)?;
    let snapshot = world.snapshot_ids()[0];
    world.delete_snapshot(snapshot)?;
    world.shrink_pool(2 * MIB)?;
    world.close_and_open(8 * MIB)?;
    world.write(a, 0, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.flush(a)
}

/// Volumes with a snapshot and a clone get blocks of their own, in short runs and then all, while one of
/// them is written to and another is trimmed; copied blocks are shared again once they are rewritten.
fn unsharing(world: &Arc<World>) -> Step {
    for _ in 0..2 {
        world.create_volume(MIB)?;
    }
    let ids = world.volume_ids();
    let (a, b) = (ids[0], ids[1]);
    for id in [a, b] {
        world.write(id, 0, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.write(id, 32 * BLOCK, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.dedup(id, Ready::All, 1)?;
    }
    world.create_snapshots(&[b])?;
    let snapshot = world.snapshot_ids()[0];
    world.write(b, 4 * BLOCK, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.write(b, 80 * BLOCK, 12 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(b, Ready::All, 1)?;
    world.clone_volume(snapshot)?;
    world.meanwhile(Part::Data, Op::Write, When::Before, move |world| {
        world.write(a, 20 * BLOCK, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.trim(a, 34 * BLOCK, BLOCK, Blocking::Yes)?;
        world.read(b, 0, 64 * BLOCK, Blocking::No)?;
        world.flush(a)
    });
    world.unshare(b, Some(4))?;
    world.verify_contents()?;
    world.check()?;
    world.collect()?;
    world.unshare(b, None)?;
    world.dedup(b, Ready::All, 1)?;
    world.check()?;
    world.collect()?;
    world.tick()?;
    world.verify_contents()?;
    world.write(b, 2 * BLOCK, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(b, Ready::All, 1)?;
    world.delete_snapshot(snapshot)?;
    world.unshare(a, None)?;
    world.finish_deletions()?;
    world.collect()?;
    world.close_and_open(8 * MIB)?;
    world.unshare(a, Some(16))?;
    world.write(a, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(a)
}

/// Opens the pool, and stops a script at I/O `n`.
fn stop_at(n: u64, world: &Arc<World>, script: Script) -> Step {
    world
        .open(8 * MIB)
        .map_err(|error| Violation(error.to_string()))?;
    world.engine().crash_after(n);
    match script(world) {
        Ok(()) | Err(Stop::Crashed) => world.stop(),
        stop => return stop,
    }
    Ok(())
}

/// Recovers a stopped machine, and uses it again.
fn recovered(world: &World, kind: CrashKind) -> Step {
    let recovery = Recovery {
        kind,
        ..Recovery::POWER_LOSS
    };
    world.recover_by(recovery)?;
    world.check()?;
    world.create_volume(MIB)?;
    let id = *world.volume_ids().last().expect("just created");
    world.write(id, BLOCK / 2, 9 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(id, 16 * BLOCK, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.flush(id)?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world
        .snapshot_ids()
        .into_iter()
        .try_for_each(|id| world.delete_snapshot(id))?;
    world.settle()?;
    // A single volume has its blocks exclusively, whatever it was cloned from.
    let others = world.volume_ids().into_iter().skip(1);
    others
        .into_iter()
        .try_for_each(|id| world.delete_volume(id))?;
    world.settle()
}

/// Stops a script at each of its I/Os, and compares the recovered state. Returns the events.
fn stop_everywhere(index: IndexKind, script: Script, ios_min: u64) -> Coverage {
    stop_everywhere_in(&CreateOptions { index, ..OPTIONS }, script, ios_min)
}

/// The scripts' contents, and the remains of unsynced writes, follow from these.
const SEEDS: u64 = 3;

/// The same in another pool.
pub(crate) fn stop_everywhere_in(
    options: &CreateOptions,
    script: Script,
    ios_min: u64,
) -> Coverage {
    let whole = World::opened(1, options);
    let before = whole.engine().io_count();
    script(&whole).unwrap();
    let ios = whole.engine().io_count() - before;
    assert!(ios > ios_min, "the script became shorter: {ios} I/Os");
    let outcomes = [
        CrashKind::PowerLoss,
        CrashKind::PowerLoss,
        CrashKind::ProcessKilled,
    ];
    let mut coverage = whole.state().coverage.clone();
    for n in 1..=ios + 1 {
        let seed = 1 + n % SEEDS;
        let stopped = World::new(seed, options);
        let at = format!("stopped at I/O {n} of {ios}, seed {seed}");
        if let Err(stop) = stop_at(n, &stopped, script) {
            panic!("{at}: {stop:?}");
        }
        coverage.add(&stopped.state().coverage);
        for (outcome, kind) in outcomes.into_iter().enumerate() {
            let world = stopped.stopped_copy();
            if let Err(stop) = recovered(&world, kind) {
                panic!("{at}, outcome {outcome}, {kind:?}: {stop:?}");
            }
            coverage.add(&world.state().coverage);
        }
    }
    println!(
        "{} recoveries of a script of {ios} I/Os, {:?}",
        coverage.recoveries, options.index
    );
    coverage
}

#[test]
fn every_io_of_a_script_can_be_the_last() {
    stop_everywhere(IndexKind::Btree, requests, 140);
}

#[test]
fn every_io_of_sharing_can_be_the_last_btree() {
    let coverage = stop_everywhere(IndexKind::Btree, sharing, 200);
    assert!(coverage.crashes_in_finder > 20, "{coverage:?}");
    assert!(coverage.crashes_in_collector > 20, "{coverage:?}");
    assert!(coverage.dangling > 0 && coverage.remaining > 0 && coverage.freed > 0);
}

#[test]
fn every_io_of_sharing_can_be_the_last_hash() {
    let coverage = stop_everywhere(IndexKind::Hash, sharing, 150);
    assert!(coverage.crashes_in_finder > 20, "{coverage:?}");
    assert!(coverage.crashes_in_collector > 20, "{coverage:?}");
    assert!(coverage.dangling > 0 && coverage.remaining > 0 && coverage.freed > 0);
}

#[test]
fn every_io_of_sharing_can_be_the_last_memory() {
    let coverage = stop_everywhere(IndexKind::Memory, sharing, 100);
    assert!(coverage.crashes_in_finder > 20, "{coverage:?}");
    // While the collector's batch is open this index does no I/O.
    assert!(coverage.crashes_in_collector > 10, "{coverage:?}");
    assert!(coverage.rebuilds > 0, "{coverage:?}");
}

#[test]
fn every_io_of_remaking_the_index_can_be_the_last() {
    let coverage = stop_everywhere(IndexKind::Btree, remaking, 60);
    assert!(coverage.rebuilds > 0, "{coverage:?}");
    assert!(coverage.conversions_resumed > 0, "{coverage:?}");
}

#[test]
fn every_io_of_snapshots_can_be_the_last() {
    for index in [IndexKind::Hash, IndexKind::Memory] {
        let coverage = stop_everywhere(index, snapshots, 60);
        assert!(coverage.snapshots > 0 && coverage.snapshots_deleted > 0);
        assert!(coverage.deletions_resumed > 0, "{coverage:?}");
    }
}

#[test]
fn every_io_of_short_blocks_can_be_the_last() {
    let coverage = stop_everywhere(IndexKind::Hash, short_blocks, 60);
    assert!(coverage.clones > 0 && coverage.rolled_back > 0);
}

#[test]
fn every_io_of_clones_can_be_the_last() {
    let coverage = stop_everywhere(IndexKind::Hash, clones, 100);
    assert!(coverage.clones > 0 && coverage.rolled_back > 0);
    assert!(coverage.deletions_resumed > 0 && coverage.deletions_deferred > 0);
}

#[test]
fn every_io_of_growing_can_be_the_last() {
    let coverage = stop_everywhere(IndexKind::Hash, growing, 40);
    assert!(coverage.pool_grown > 5, "{coverage:?}");
}

#[test]
fn every_io_of_shrinking_can_be_the_last() {
    for index in [IndexKind::Hash, IndexKind::Memory] {
        let coverage = stop_everywhere(index, shrinking, 100);
        assert!(coverage.pool_shrunk > 100 && coverage.blocks_evacuated > 1000);
        assert!(coverage.shrinks_cut_short > 20, "{coverage:?}");
    }
}

#[test]
fn every_io_of_unsharing_can_be_the_last() {
    for index in [IndexKind::Hash, IndexKind::Memory] {
        let coverage = stop_everywhere(index, unsharing, 80);
        assert!(coverage.blocks_unshared > 1000, "{coverage:?}");
        assert!(coverage.hooks_run > 100, "{coverage:?}");
    }
}

#[test]
fn creation_that_is_cut_short_leaves_a_pool_or_none() {
    let (mut pools, mut none) = (0, 0);
    for n in 1.. {
        let mut is_whole = false;
        for seed in 0..10 {
            let engine = SimulatedEngine::new(seed);
            engine.crash_after(n);
            is_whole = Store::create(&engine, &OPTIONS).is_ok();
            match open(engine.crash(CrashKind::PowerLoss), LITTLE_MEMORY) {
                Ok((store, _)) => {
                    new_volume(&store, "a", MIB);
                    assert_clean(&store);
                    pools += 1;
                }
                Err(error) => {
                    assert!(!is_whole, "a pool that was created is lost: {error}");
                    let kinds = [StoreErrorKind::MissingPart, StoreErrorKind::Damaged];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    none += 1;
                }
            }
        }
        if is_whole {
            break;
        }
    }
    assert!(pools > 10 && none > 50, "{pools} pools, {none} times none");
}
