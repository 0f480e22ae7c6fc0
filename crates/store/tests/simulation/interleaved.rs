//! Sequences of events that the seeded runs meet too seldom, each directed at one place.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::{Blocking, CreateOptions, Ready, WhenFull};

use crate::common::{BLOCK, MIB, pool_of};
use crate::crash::Recovery;
use crate::world::{Fill, Step, World};

/// Bytes of a segment.
const SEGMENT: u64 = 512 * BLOCK;

fn pool(size_bytes: u64, log_bytes: u64, memory_bytes: u64) -> Arc<World> {
    seeded_pool(7, size_bytes, log_bytes, memory_bytes)
}

fn seeded_pool(seed: u64, size_bytes: u64, log_bytes: u64, memory_bytes: u64) -> Arc<World> {
    let options = CreateOptions {
        log_bytes,
        ..pool_of(size_bytes)
    };
    let world = World::new(seed, &options);
    world.open(memory_bytes).unwrap();
    world
}

/// A check keeps the pages of the checkpoint that it reads, and may load some of them while newer
/// checkpoints replace them. Once it is over their places are used again.
#[test]
fn checkpoints_go_on_during_a_check() {
    let world = pool(16 * MIB, 256 << 10, 8 * MIB);
    let run = || -> Step {
        for _ in 0..3 {
            world.create_volume(600 * SEGMENT)?;
        }
        for id in world.volume_ids() {
            for n in 0..6 {
                world.write(id, n * 100 * SEGMENT, BLOCK, Fill::Data, Blocking::Yes)?;
            }
        }
        world.check()?;
        world.recover_by(Recovery::POWER_LOSS)?;
        let ids = world.volume_ids();
        world.meanwhile(Part::Meta, Op::Read, When::Before, move |world| {
            for id in &ids {
                world.write(*id, 50 * SEGMENT, BLOCK, Fill::Data, Blocking::Yes)?;
            }
            // Until housekeeping writes a checkpoint.
            let pages_written = || world.engine().count(Part::Meta, Op::Write).count;
            let before = pages_written();
            while pages_written() == before {
                world.write(ids[0], 0, MIB, Fill::Comb, Blocking::Yes)?;
                world.trim(ids[0], 0, MIB, Blocking::Yes)?;
                world.tick()?;
            }
            Ok(())
        });
        world.check()?;
        world.found()?;
        for round in 0..8 {
            for id in world.volume_ids() {
                let offset = (3 + round * 70) * SEGMENT;
                world.write(id, offset, BLOCK, Fill::Data, Blocking::Yes)?;
            }
            world.check()?;
            world.verify()?;
        }
        world.recover_by(Recovery::POWER_LOSS)?;
        world.check()
    };
    run().unwrap();
}

/// An opening with less memory replays a log that fills its share in the middle of a commit of
/// several frames, and the machine stops right after the checkpoint that this makes necessary.
#[test]
fn less_memory_than_before_replays_as_much() {
    let mut checkpoints = 0;
    for crash_at in 1..60 {
        let world = pool(64 * MIB, MIB, 64 * MIB);
        let run = || -> Step {
            let id = world.new_volume(600 * SEGMENT)?;
            // Many records first, so that the first frame ends among the segments.
            world.write(id, 0, 18 * MIB, Fill::Comb, Blocking::Yes)?;
            for n in 9..600 {
                world.write(id, n * SEGMENT, BLOCK, Fill::Data, Blocking::Yes)?;
            }
            world.flush(id)?;
            let cut_short = Recovery {
                crash_at: Some(crash_at),
                ..Recovery::POWER_LOSS
            };
            if !world.crash_and_open(cut_short)? {
                world.crash_and_open(Recovery::POWER_LOSS)?;
            }
            world.verify()?;
            world.check()
        };
        run().unwrap();
        checkpoints += world.state().coverage.checkpoints_in_recovery;
    }
    assert!(checkpoints > 0, "no opening wrote a checkpoint");
}

/// A volume is deleted while a checkpoint is being written that then fails.
#[test]
fn a_volume_goes_during_a_checkpoint_that_fails() {
    let world = pool(16 * MIB, MIB, 8 * MIB);
    let run = || -> Step {
        world.create_volume(8 * MIB)?;
        world.create_volume(8 * MIB)?;
        let ids = world.volume_ids();
        for id in &ids {
            world.write(*id, 0, MIB, Fill::Data, Blocking::Yes)?;
        }
        world.check()?;
        world.trim(ids[0], 0, 8 * MIB, Blocking::Yes)?;
        let gone = ids[0];
        world.meanwhile(Part::Meta, Op::Write, When::Before, move |world| {
            world.delete_volume(gone)
        });
        world.state().faulty = true;
        let engine = world.engine();
        engine.fail_once(Part::Meta, Op::Write, 1, std::io::ErrorKind::Other);
        world.check()?;
        world.found()?;
        world.state().faulty = false;
        for _ in 0..3 {
            world.write(ids[1], 2 * MIB, MIB, Fill::Data, Blocking::Yes)?;
            world.check()?;
        }
        let pages = world.store().stat().unwrap().metadata_bytes_on_disk;
        world.recover_by(Recovery::POWER_LOSS)?;
        let reopened = world.store().stat().unwrap().metadata_bytes_on_disk;
        assert_eq!(pages, reopened, "pages were lost or released twice");
        world.check()
    };
    run().unwrap();
}

/// A pool whose sync failed refuses a change of the catalogue. That decides nothing about an earlier
/// change, which may or may not have happened.
#[test]
fn a_refused_change_leaves_the_one_before_undecided() {
    let mut renamed = 0;
    for seed in 1..=20 {
        let world = seeded_pool(seed, 16 * MIB, 256 << 10, 8 * MIB);
        let run = || -> Step {
            world.create_volume(MIB)?;
            world.create_volume(MIB)?;
            let ids = world.volume_ids();
            world.state().faulty = true;
            let engine = world.engine();
            engine.fail_once(Part::Log, Op::Sync, 1, ErrorKind::Other);
            world.rename_volume(ids[0])?;
            world.delete_volume(ids[1])?;
            assert_eq!(world.state().coverage.read_only, 1, "the second is refused");
            world.recover_by(Recovery::POWER_LOSS)?;
            world.check()
        };
        run().unwrap();
        renamed += u32::from(world.store().volume("volume-1x").is_ok());
    }
    assert!((1..20).contains(&renamed), "{renamed} of 20 were renamed");
}

/// A pool is asked to become somewhat smaller while a shrinking to less waits for its last
/// checkpoint, which comes before the new one is planned.
#[test]
fn a_shrinking_ends_while_another_is_planned() {
    let world = pool(16 * MIB, 256 << 10, 8 * MIB);
    let run = || -> Step {
        for _ in 0..2 {
            world.create_volume(MIB)?;
        }
        let ids = world.volume_ids();
        for id in &ids {
            world.write(*id, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
            world.dedup(*id, Ready::All, 9)?;
        }
        world.trim(ids[0], 0, MIB, Blocking::Yes)?;
        world.flush(ids[0])?;
        world.state().pool_sizes.push(8 * MIB);
        world.store().space().begin_shrink(8 * MIB).unwrap();
        // Planning first releases dropped references, and reads the index for that.
        world.meanwhile(Part::Data, Op::Read, When::Before, |world| {
            world.store().set_when_full(WhenFull::Pause).unwrap();
            Ok(())
        });
        assert!(!world.shrink_pool(12 * MIB)?, "there was nothing to shrink");
        world.found()?;
        assert_eq!(world.pool_size(), 8 * MIB);
        world.recover_by(Recovery::POWER_LOSS)?;
        world.settle()
    };
    run().unwrap();
}

/// The finder meets the content of a block that could not be read for a while: an entry that it did
/// not share then is unshareable, and stays so once the block can be read again.
#[test]
fn what_equals_a_bad_block_stays_private() {
    let world = pool(16 * MIB, 256 << 10, 8 * MIB);
    let run = || -> Step {
        for _ in 0..2 {
            world.create_volume(MIB)?;
        }
        let ids = world.volume_ids();
        world.write(ids[0], 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.dedup(ids[0], Ready::All, 9)?;
        world.state().faulty = true;
        let engine = world.engine();
        engine.make_unreadable(Part::Data, 0..16 * MIB);
        for n in 0..16 {
            world.read(ids[0], n * BLOCK, BLOCK, Blocking::Yes)?;
        }
        let listed = world.store().scrub().look_at_suspects().unwrap();
        assert!(listed > 1, "{listed} blocks are bad");
        engine.clear_unreadable(Part::Data);
        world.write(ids[1], 0, BLOCK, Fill::Common, Blocking::Yes)?;
        // Read to be fingerprinted, and then once more to repair the bad block, which fails.
        engine.fail_once(Part::Data, Op::Read, 2, ErrorKind::Other);
        world.dedup(ids[1], Ready::All, 9)?;
        world.state().faulty = false;
        assert_eq!(world.state().coverage.rejected, 1);
        world.settle()?;
        let stat = world.store().stat().unwrap();
        assert_eq!((stat.private_blocks, stat.pending_dedup_blocks), (1, 0));
        world.recover_by(Recovery::POWER_LOSS)?;
        world.settle()
    };
    run().unwrap();
}

/// The machine stops when the data of a write is there and its record is not. The store answers,
/// because only work in memory is left, and no client gets the answer.
#[test]
fn an_answer_after_the_machine_stopped_is_none() {
    let world = pool(16 * MIB, 256 << 10, 8 * MIB);
    let run = || -> Step {
        let id = world.new_volume(MIB)?;
        world.meanwhile(Part::Data, Op::Write, When::After, |world| {
            world.engine().halt();
            Ok(())
        });
        world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.found()?;
        world.recover_by(Recovery::KILLED)?;
        assert_eq!(world.store().stat().unwrap().logical_blocks, 0);
        world.check()
    };
    run().unwrap();
}
