//! I/Os that fail while the machine continues: the state after an error, and at the next opening.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::Op;
use onefold_store::{Blocking, CreateOptions, PoolStat, StoreErrorKind, VolumeOptions};

use crate::common::{BLOCK, MIB, pool_of};
use crate::crash::Recovery;
use crate::guards::{crash_is_fine, with_new_blocks};
use crate::world::{Fill, World};

/// A pool with one volume, of which a quarter is written and flushed.
fn pool() -> (Arc<World>, u64) {
    let world = World::opened(11, &pool_of(16 * MIB));
    let id = world.new_volume(8 * MIB).unwrap();
    world
        .write(id, 0, 2 * MIB, Fill::Data, Blocking::Yes)
        .unwrap();
    world.flush(id).unwrap();
    (world, id)
}

/// Orders failures of the next such I/O. The model then expects errors.
fn fail(world: &World, part: Part, op: Op, kind: ErrorKind) {
    world.state().faulty = true;
    world.engine().fail_once(part, op, 1, kind);
}

fn stat(world: &World) -> PoolStat {
    world.store().stat().unwrap()
}

fn failed(world: &World) -> u64 {
    let coverage = &world.state().coverage;
    coverage.failed_requests + coverage.no_space
}

/// The pool continues to work, and its content is as expected, now and after a crash.
fn goes_on(world: &World, id: u64) {
    let write = world.write(id, 4 * MIB, MIB, Fill::Data, Blocking::Yes);
    write.unwrap();
    world.flush(id).unwrap();
    world.check().unwrap();
    assert!(!world.state().must_reopen, "the pool takes no writes");
    reopens(world);
}

/// One request has failed, and the next is refused, until the pool is opened again.
fn takes_no_writes(world: &World, id: u64) {
    assert_eq!(failed(world), 1);
    world.flush(id).unwrap();
    assert_eq!(world.state().coverage.read_only, 1);
    reopens(world);
    goes_on(world, id);
}

fn reopens(world: &World) {
    world.recover_by(Recovery::POWER_LOSS).unwrap();
    world.check().unwrap();
}

#[test]
fn a_write_that_fails_takes_no_room() {
    for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
        let (world, id) = pool();
        let before = stat(&world);
        fail(&world, Part::Data, Op::Write, kind);
        let write = world.write(id, 3 * MIB, MIB, Fill::Data, Blocking::Yes);
        write.unwrap();
        assert_eq!(failed(&world), 1, "{kind}");
        let after = stat(&world);
        assert_eq!(
            (before.free_blocks, before.private_blocks, 0),
            (
                after.free_blocks,
                after.private_blocks,
                after.pending_free_blocks
            )
        );
        goes_on(&world, id);
    }
}

#[test]
fn a_rewrite_that_fails_leaves_the_old_or_the_new() {
    let (world, id) = pool();
    fail(&world, Part::Data, Op::Write, ErrorKind::Other);
    let write = world.write(id, MIB / 2, MIB, Fill::Data, Blocking::Yes);
    write.unwrap();
    assert_eq!(failed(&world), 1);
    world.read(id, 0, 2 * MIB, Blocking::Yes).unwrap();
    goes_on(&world, id);
}

#[test]
fn a_read_that_fails_changes_nothing() {
    let (world, id) = pool();
    let before = stat(&world);
    fail(&world, Part::Data, Op::Read, ErrorKind::Other);
    world.read(id, 0, MIB, Blocking::Yes).unwrap();
    assert_eq!((failed(&world), stat(&world)), (1, before));
    world.read(id, 0, 2 * MIB, Blocking::Yes).unwrap();

    // A part of a block cannot be written without its rest.
    fail(&world, Part::Data, Op::Read, ErrorKind::Other);
    let write = world.write(id, 512, 512, Fill::Data, Blocking::Yes);
    write.unwrap();
    assert_eq!(failed(&world), 2);
    goes_on(&world, id);
}

#[test]
fn after_a_failed_sync_the_pool_takes_no_writes() {
    for part in [Part::Data, Part::Log] {
        let (world, id) = pool();
        let handle = world.store().volume("volume-1").unwrap();
        world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
        world
            .write(id, 3 * MIB, MIB, Fill::Data, Blocking::Yes)
            .unwrap();
        fail(&world, part, Op::Sync, ErrorKind::Other);
        world.flush(id).unwrap();
        assert_eq!(failed(&world), 1, "{part:?}");
        world.read(id, 0, 8 * MIB, Blocking::Yes).unwrap();
        for error in [
            handle.write(0, &[1; 4096], Blocking::Yes).unwrap_err(),
            handle.trim(0, MIB, Blocking::Yes).unwrap_err(),
            handle.write_zeroes(0, MIB, Blocking::Yes).unwrap_err(),
            handle.flush().unwrap_err(),
            world
                .store()
                .create_volume("late", &VolumeOptions::new(MIB))
                .unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
            assert!(error.to_string().contains("syncing"), "{error}");
        }
        drop(handle);
        reopens(&world);
        goes_on(&world, id);
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_writes() {
    let (world, id) = pool();
    world
        .write(id, 3 * MIB, MIB, Fill::Data, Blocking::Yes)
        .unwrap();
    fail(&world, Part::Log, Op::Write, ErrorKind::Other);
    world.flush(id).unwrap();
    takes_no_writes(&world, id);
}

#[test]
fn a_checkpoint_that_fails_is_written_again() {
    for (op, kind) in [
        (Op::Write, ErrorKind::Other),
        (Op::Write, ErrorKind::StorageFull),
    ] {
        let (world, id) = pool();
        let before = stat(&world).metadata_bytes_on_disk;
        fail(&world, Part::Meta, op, kind);
        world.check().unwrap();
        assert_eq!(failed(&world), 1, "{op:?}");
        assert_eq!(
            stat(&world).metadata_bytes_on_disk,
            before,
            "pages were lost"
        );
        goes_on(&world, id);
    }
}

#[test]
fn a_root_whose_sync_fails_stops_writes() {
    for nth in 1..=2 {
        let (world, id) = pool();
        world.state().faulty = true;
        let engine = world.engine();
        engine.fail_once(Part::Meta, Op::Sync, nth, ErrorKind::Other);
        world.check().unwrap();
        takes_no_writes(&world, id);
    }
}

#[test]
fn a_discard_that_fails_loses_no_room() {
    let (world, id) = pool();
    fail(&world, Part::Data, Op::Discard, ErrorKind::Other);
    world.trim(id, 0, 2 * MIB, Blocking::Yes).unwrap();
    world.flush(id).unwrap();
    world.tick().unwrap();
    world.tick().unwrap();
    assert!(world.engine().count(Part::Data, Op::Discard).count > 0);
    let stat = stat(&world);
    assert_eq!(
        (stat.free_blocks, stat.pending_free_blocks),
        (stat.pool_blocks - 1, 0)
    );
    goes_on(&world, id);
}

#[test]
fn a_host_without_room_fails_writes_until_it_has_some() {
    let (world, id) = pool();
    world.state().faulty = true;
    let engine = world.engine();
    let allocated = stat(&world).pool_bytes_on_disk;
    engine.set_capacity(Part::Data, Some(allocated + 100 * BLOCK));
    let write = world.write(id, 3 * MIB, MIB, Fill::Data, Blocking::Yes);
    write.unwrap();
    assert_eq!(world.state().coverage.no_space, 1);
    // A block in its place is still rewritten.
    world
        .write(id, 0, 2 * MIB, Fill::Data, Blocking::Yes)
        .unwrap();
    world.flush(id).unwrap();
    assert_eq!(world.state().coverage.no_space, 1);
    engine.set_capacity(Part::Data, None);
    goes_on(&world, id);
}

/// A zeroing that begins inside a sector consists of several writes: none of them ends inside one.
#[test]
fn a_zeroing_that_is_cut_short_tears_no_sector() {
    let large = 64 << 10;
    for ios in 1..20 {
        let options = CreateOptions {
            block_size: large as u32,
            ..pool_of(16 * MIB)
        };
        let world = World::opened(ios, &options);
        let id = world.new_volume(8 * MIB).unwrap();
        let write = world.write(id, 0, 4 * large, Fill::Data, Blocking::Yes);
        write.unwrap();
        world.flush(id).unwrap();
        world.engine().crash_after(ios);
        let zero = world.write_zeroes(id, large + 1666, large + 22_223, Blocking::Yes);
        crash_is_fine(zero).unwrap();
        world.recover_by(Recovery::KILLED).unwrap();
    }
}

/// The host reports a failed write only once. The opening that gets the report is killed in each of its
/// I/Os; the next one knows of the loss all the same.
#[test]
fn what_the_host_reports_is_known_after_a_killed_opening() {
    let (mut killed, mut known) = (0, 0);
    for seed in 0..4 {
        for crash_at in (1..).take_while(|n| *n < 60) {
            let (world, _) = with_new_blocks(seed).unwrap();
            world.engine().set_orphan_failure_rate(1.0);
            let cut_short = Recovery {
                crash_at: Some(crash_at),
                ..Recovery::KILLED
            };
            world.engine().halt();
            let after = world.engine().crash(cut_short.kind);
            after.set_orphan_failure_rate(0.0);
            let will_report = after.has_to_report();
            killed += u64::from(!world.open_after(cut_short, after).unwrap());
            let recovered = world.recover_by(Recovery::KILLED);
            recovered.unwrap_or_else(|stop| panic!("seed {seed}, I/O {crash_at}: {stop:?}"));
            known += u64::from(will_report && world.state().coverage.losses_found > 0);
        }
    }
    assert!(killed > 20 && known > 20, "{killed} killed, {known} known");
}
