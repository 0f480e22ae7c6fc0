//! Batches of finder and collector that a crash, or an I/O that fails, leaves half done.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, When};
use onefold_format::OpenBatchHead;
use onefold_store::{Blocking, CreateOptions, IndexKind, Ready, VolumeOptions, VolumeSettings};

use crate::common::{BLOCK, MIB, newest_root, pool_of};
use crate::crash::Recovery;
use crate::guards::{crash_is_fine, shared_pool};
use crate::world::{Fill, Step, Stop, World};

/// Bytes of a segment.
const SEGMENT: u64 = 512 * BLOCK;

/// Segments whose change makes a checkpoint due.
const MANY_SEGMENTS: u64 = 110;

/// One that a crash leaves as it was answered, and one that is then counted again.
const KINDS: [IndexKind; 2] = [IndexKind::Hash, IndexKind::Memory];

/// A pool with one volume of many segments.
fn pool(index: IndexKind) -> Result<(Arc<World>, u64), Stop> {
    let options = CreateOptions {
        index,
        ..pool_of(16 * MIB)
    };
    let world = World::opened(7, &options);
    let wide = world.new_volume(MANY_SEGMENTS * SEGMENT)?;
    Ok((world, wide))
}

/// Makes a checkpoint due, and lets housekeeping write it.
fn checkpoint(world: &World, wide: u64) -> Step {
    let pages_written = || world.engine().count(Part::Meta, Op::Write).count;
    let before = pages_written();
    for fill in [Fill::Zeros, Fill::Data] {
        for n in 0..MANY_SEGMENTS {
            world.write(wide, n * SEGMENT, BLOCK, fill, Blocking::Yes)?;
        }
    }
    world.tick()?;
    assert!(pages_written() > before, "no checkpoint was due");
    Ok(())
}

/// The batch that the checkpoint on disk has open.
fn stored_batch(world: &World) -> Option<OpenBatchHead> {
    newest_root(&world.engine()).and_then(|root| root.open_batch)
}

/// A power loss, after which the index is gone, so that it has to be counted again.
fn without_index(world: &World) -> Step {
    world.engine().halt();
    let engine = world.engine().crash(CrashKind::PowerLoss);
    engine.lose_part(Part::Index);
    world.open_after(Recovery::POWER_LOSS, engine)?;
    world.store().check(true, &mut |_| {}).unwrap();
    world.verify()
}

/// The finder settles the blocks of one segment and fails to read the next segment's blocks.
fn settled_in_part(index: IndexKind, nth: u64) -> Result<bool, Stop> {
    let (world, wide) = pool(index)?;
    world.create_volume_as(&VolumeOptions::new(4 * MIB).with(VolumeSettings {
        verify: true,
        ..VolumeSettings::default()
    }))?;
    let id = world.volume_ids()[1];
    world.write(id, 3 * MIB, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(id, Ready::All, 9)?;
    for segment in 0..2 {
        let at = segment * SEGMENT;
        world.write(id, at, 12 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.write(id, at + MIB / 2, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    }
    world.state().faulty = true;
    let engine = world.engine();
    engine.fail_once(Part::Data, Op::Read, nth, ErrorKind::Other);
    world.dedup(id, Ready::All, 1)?;
    checkpoint(&world, wide)?;
    let batch = stored_batch(&world);
    // Blocks released by the first ones are reused.
    world.write(id, MIB, 24 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(id, 4 * BLOCK, 2 * BLOCK, Blocking::Yes)?;
    world.flush(id)?;
    without_index(&world)?;
    world.settle()?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.settle()?;
    Ok(batch.is_some_and(|batch| batch.done > 0))
}

#[test]
fn a_batch_settled_in_part_is_counted_once() {
    for index in KINDS {
        let mut in_part = 0;
        for nth in 1..=60 {
            let done = settled_in_part(index, nth);
            let done = done.unwrap_or_else(|stop| panic!("{index:?}, read {nth} fails: {stop:?}"));
            in_part += u32::from(done);
        }
        assert!(in_part > 0, "no batch was settled in part");
    }
}

/// Collects many references with an almost full log, so that a checkpoint comes in the middle of the
/// collector's records; and stops there.
fn collected_in_part(index: IndexKind, rounds: u64, crash_at: u64) -> Result<(bool, bool), Stop> {
    let (world, _) = pool(index)?;
    for _ in 0..3 {
        world.create_volume(6 * MIB)?;
    }
    let ids = world.volume_ids();
    let (a, b, c) = (ids[1], ids[2], ids[3]);
    world.write(b, 0, 32 * BLOCK, Fill::Common, Blocking::Yes)?;
    // Some references are the last ones of their blocks, and their neighbours are not.
    for n in 0..1400 {
        let fill = [Fill::Common, Fill::Data][n as usize % 2];
        world.write(a, n * BLOCK, BLOCK, fill, Blocking::Yes)?;
    }
    for id in [b, a] {
        world.dedup(id, Ready::All, 9)?;
    }
    world.trim(a, 0, 6 * MIB, Blocking::Yes)?;
    world.check()?;
    for _ in 0..rounds {
        world.write(c, 0, 2 * MIB, Fill::Zeros, Blocking::Yes)?;
        world.write(c, 0, 2 * MIB, Fill::Comb, Blocking::Yes)?;
        world.flush(c)?;
    }
    world.engine().crash_after(crash_at);
    crash_is_fine(world.collect())?;
    let has_stopped = world.engine().is_crashed();
    world.engine().halt();
    let batch = stored_batch(&world);
    if index == IndexKind::Hash && crash_at.is_multiple_of(2) {
        world.recover_by(Recovery::POWER_LOSS)?;
    } else {
        without_index(&world)?;
    }
    world.write(b, MIB, MIB, Fill::Data, Blocking::Yes)?;
    world.settle()?;
    Ok((has_stopped, batch.is_some_and(|batch| batch.done > 0)))
}

#[test]
fn a_collection_settled_in_part_is_released_once() {
    for index in KINDS {
        let mut in_part = 0;
        // After one of them the log is as full as is wanted.
        for rounds in 9..=11 {
            for crash_at in (1..).step_by(13) {
                let done = collected_in_part(index, rounds, crash_at);
                let (has_stopped, done) = done.unwrap_or_else(|stop| {
                    panic!("{index:?}, {rounds} rounds, stopped at I/O {crash_at}: {stop:?}")
                });
                in_part += u32::from(done);
                if !has_stopped {
                    break;
                }
            }
        }
        assert!(in_part > 0, "no collection was settled in part");
    }
}

/// The first I/O of its kind while a batch is open.
type Middle = (Part, Op);

/// Housekeeping writes a checkpoint in the middle of a batch, which is cut short afterwards.
fn checkpoint_in_the_middle(
    index: IndexKind,
    (middle, job): (Middle, fn(&World, u64) -> Step),
    crash_at: u64,
) -> Result<(bool, bool), Stop> {
    let (world, wide) = pool(index)?;
    let id = world.new_volume(4 * MIB)?;
    world.write(id, 0, 40 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(id, Ready::All, 9)?;
    world.write(id, SEGMENT, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(id, 0, 20 * BLOCK, Fill::Common, Blocking::Yes)?;
    let (part, op) = middle;
    world.meanwhile(part, op, When::Before, move |world| {
        world.write(id, 4 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
        checkpoint(world, wide)?;
        world.write(id, 10 * BLOCK, 4 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.trim(id, SEGMENT, 4 * BLOCK, Blocking::Yes)?;
        world.engine().crash_after(crash_at);
        Ok(())
    });
    let rest = job(&world, id)
        .and_then(|()| world.found())
        .and_then(|()| world.flush(id))
        .and_then(|()| checkpoint(&world, wide));
    crash_is_fine(rest)?;
    let has_stopped = world.engine().is_crashed();
    let has_batch = stored_batch(&world).is_some();
    world.recover_by(Recovery::POWER_LOSS)?;
    world.settle()?;
    Ok((has_stopped, has_batch))
}

#[test]
fn a_checkpoint_in_the_middle_of_a_batch_keeps_it() {
    let finder: fn(&World, u64) -> Step = |world, id| world.dedup(id, Ready::All, 9).map(|_| ());
    let collector: fn(&World, u64) -> Step = |world, _| world.collect();
    // The finder reads blocks of its open batch; the collector has read them before.
    let finder = ((Part::Data, Op::Read), finder);
    let collector = ((Part::Index, Op::Write), collector);
    for (job, what) in [(finder, "finder"), (collector, "collector")] {
        for index in KINDS {
            if what == "collector" && index == IndexKind::Memory {
                // It does no I/O while a batch is open.
                continue;
            }
            let mut with_batch = 0;
            // The checkpoint at the end takes most of the I/Os.
            for crash_at in (1..60).chain((60..400).step_by(9)) {
                let done = checkpoint_in_the_middle(index, job, crash_at);
                let (has_stopped, has_batch) = done.unwrap_or_else(|stop| {
                    panic!("{what}, {index:?}, stopped at I/O {crash_at}: {stop:?}")
                });
                with_batch += u32::from(has_batch);
                if !has_stopped {
                    break;
                }
            }
            assert!(with_batch > 5, "{what}, {index:?}: {with_batch}");
        }
    }
}

/// The queue ends where one of its pages does, and a block is released that follows the last one:
/// whether that is one element or two must not depend on the pages in memory.
#[test]
fn elements_at_the_end_of_a_page_are_the_same_after_a_crash() {
    let run = || -> Step {
        let (world, _) = pool(IndexKind::Btree)?;
        let id = world.new_volume(8 * MIB)?;
        world.write(id, 0, 1010 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.dedup(id, Ready::All, 9)?;
        for n in 0..504 {
            world.trim(id, n * 2 * BLOCK, BLOCK, Blocking::Yes)?;
        }
        world.meanwhile(Part::Meta, Op::Write, When::Before, move |world| {
            world.trim(id, 1007 * BLOCK, BLOCK, Blocking::Yes)
        });
        world.check()?;
        world.found()?;
        world.collect()?;
        world.flush(id)?;
        world.recover_by(Recovery::POWER_LOSS)?;
        world.settle()
    };
    run().unwrap();
}

/// A volume is deleted while the finder searches it for blocks to publish, with all of its map on
/// disk only.
#[test]
fn a_volume_goes_while_the_finder_looks_at_it() {
    // One segment of its map for each read; later ones are of the free-space map.
    for nth in 0..4 {
        let run = || -> Step {
            let (world, _) = pool(IndexKind::Btree)?;
            let id = world.new_volume(8 * MIB)?;
            for n in 0..4 {
                world.write(id, n * SEGMENT, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
            }
            world.check()?;
            // Nothing of the map is in memory then.
            world.crash_and_open(Recovery::POWER_LOSS)?;
            for n in 0..=nth {
                world.meanwhile(Part::Meta, Op::Read, When::Before, move |world| {
                    if n == nth {
                        world.delete_volume(id)
                    } else {
                        Ok(())
                    }
                });
            }
            world.dedup(id, Ready::All, 9)?;
            world.found()?;
            assert!(!world.exists(id), "nothing was read");
            world.recover_by(Recovery::POWER_LOSS)?;
            world.settle()
        };
        run().unwrap_or_else(|stop| panic!("in read {nth}: {stop:?}"));
    }
}

/// The machine stops right after the index has counted a batch, which is then repeated.
pub(crate) fn counted_then_repeated(seed: u64) -> Step {
    let (world, a, _) = shared_pool(seed)?;
    world.write(a, 16 * BLOCK, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.meanwhile(Part::Index, Op::Sync, When::After, |world| {
        world.engine().halt();
        Ok(())
    });
    crash_is_fine(world.dedup(a, Ready::All, 9).map(|_| ()))?;
    world.found()?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.settle()?;
    // A block that is counted twice is never free.
    for id in world.volume_ids() {
        world.trim(id, 0, MIB, Blocking::Yes)?;
    }
    world.settle()
}
