//! Sequences of events that the seeded runs meet too seldom, each directed at one place.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::{CreateOptions, Wait};

use crate::crash::Recovery;
use crate::world::{Fill, MIB, Step, World};

const BLOCK: u64 = 4096;

/// Bytes of a segment.
const SEGMENT: u64 = 512 * BLOCK;

fn pool(size_bytes: u64, log_bytes: u64, memory_bytes: u64) -> Arc<World> {
    let options = CreateOptions {
        block_size: 4096,
        size_bytes,
        log_bytes,
        ..CreateOptions::default()
    };
    let world = World::new(7, &options);
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
                world.write(id, n * 100 * SEGMENT, BLOCK, Fill::Data, Wait::Yes)?;
            }
        }
        world.check()?;
        world.recover_by(Recovery::POWER_LOSS)?;
        let ids = world.volume_ids();
        world.meanwhile(Part::Meta, Op::Read, When::Before, move |world| {
            for id in &ids {
                world.write(*id, 50 * SEGMENT, BLOCK, Fill::Data, Wait::Yes)?;
            }
            // Until housekeeping writes a checkpoint.
            let pages_written = || world.engine().count(Part::Meta, Op::Write).count;
            let before = pages_written();
            while pages_written() == before {
                world.write(ids[0], 0, MIB, Fill::Comb, Wait::Yes)?;
                world.trim(ids[0], 0, MIB, Wait::Yes)?;
                world.tick()?;
            }
            Ok(())
        });
        world.check()?;
        world.found()?;
        for round in 0..8 {
            for id in world.volume_ids() {
                let offset = (3 + round * 70) * SEGMENT;
                world.write(id, offset, BLOCK, Fill::Data, Wait::Yes)?;
            }
            world.check()?;
            world.verify()?;
        }
        world.recover_by(Recovery::POWER_LOSS)?;
        world.check()
    };
    run().unwrap();
}

/// What an opening with less memory replays fills its share in the middle of a commit of several
/// frames, and the machine stops right after the checkpoint that this makes necessary.
#[test]
fn less_memory_than_before_replays_as_much() {
    let mut checkpoints = 0;
    for crash_at in 1..60 {
        let world = pool(64 * MIB, MIB, 64 * MIB);
        let run = || -> Step {
            world.create_volume(600 * SEGMENT)?;
            let id = world.volume_ids()[0];
            // Many records first, so that the first frame ends among the segments.
            world.write(id, 0, 18 * MIB, Fill::Comb, Wait::Yes)?;
            for n in 9..600 {
                world.write(id, n * SEGMENT, BLOCK, Fill::Data, Wait::Yes)?;
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

/// A volume goes while a checkpoint is being written that then fails.
#[test]
fn a_volume_goes_during_a_checkpoint_that_fails() {
    let world = pool(16 * MIB, MIB, 8 * MIB);
    let run = || -> Step {
        world.create_volume(8 * MIB)?;
        world.create_volume(8 * MIB)?;
        let ids = world.volume_ids();
        for id in &ids {
            world.write(*id, 0, MIB, Fill::Data, Wait::Yes)?;
        }
        world.check()?;
        world.trim(ids[0], 0, 8 * MIB, Wait::Yes)?;
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
            world.write(ids[1], 2 * MIB, MIB, Fill::Data, Wait::Yes)?;
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
