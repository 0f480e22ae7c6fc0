//! Cases for the guards of scrub and repair: see `guards.rs`.

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, When};
use onefold_store::{Blocking, IndexKind, Lba, Ready, ScrubRun};

use crate::common::{BLOCK, blocks, collect};
use crate::model::Violation;
use crate::rig::{Content, Rig, name, violation};

type Ended = Result<(), Violation>;

/// Two volumes with sixteen contents in common, published.
fn shared(seed: u64, pool_blocks: u64) -> Result<Rig, Violation> {
    let mut rig = Rig::new(seed, IndexKind::Btree, pool_blocks, &[64, 64]);
    let contents: Vec<Content> = (1..=16).collect();
    rig.write(0, 0, &contents)?;
    rig.write(1, 0, &contents)?;
    rig.dedup()?;
    rig.collect()?;
    Ok(rig)
}

/// Blocks are freed, and hold something else, between the pass over the index and their turn.
pub(crate) fn freed_while_scrubbed(seed: u64) -> Ended {
    let mut rig = shared(seed, 96)?;
    rig.store.scrub().begin(None, 0).unwrap();
    let mut scrub = ScrubRun::default();
    // One step finds all rows, the next one no more.
    for _ in 0..2 {
        rig.tried("step", rig.store.scrub().step(&mut scrub))?;
    }
    for volume in 0..2 {
        rig.write(volume, 0, &[0; 16])?;
    }
    rig.collect()?;
    rig.write(0, 16, &(101..=145).collect::<Vec<Content>>())?;
    rig.write(1, 16, &(151..=195).collect::<Vec<Content>>())?;
    rig.tried("step", rig.store.scrub().step(&mut scrub))?;
    match rig.store.scrub().status().unwrap().bad_blocks {
        0 => rig.read_all().map(|_| ()),
        bad => violation(format!("{bad} good blocks were called bad")),
    }
}

/// The content of a bad block is written again.
pub(crate) fn met_again(seed: u64) -> Ended {
    let mut rig = shared(seed, 256)?;
    rig.decay(7, false);
    rig.scrub()?;
    rig.write(0, 40, &[7])?;
    rig.dedup()?;
    rig.spoilt.clear();
    rig.read(0, 40).map(|_| ())
}

/// The power fails when a block was just repaired.
pub(crate) fn healed_then_power_loss(seed: u64) -> Ended {
    let mut rig = shared(seed, 256)?;
    rig.decay(7, false);
    rig.scrub()?;
    rig.write(0, 40, &[7])?;
    let volume = rig.store.volume(&name(0)).unwrap();
    let batch = rig
        .store
        .dedup()
        .find_batch(&volume, &mut Lba(0), Ready::All);
    rig.tried("dedup", batch)?;
    rig.recover(CrashKind::PowerLoss)?;
    rig.read_all().map(|_| ())
}

/// A block that was bad is the only one left, and it is requested while it is being forgotten.
pub(crate) fn wanted_while_forgotten(seed: u64) -> Ended {
    let mut rig = shared(seed, 64)?;
    rig.decay(7, false);
    rig.scrub()?;
    for volume in 0..2 {
        rig.write(volume, 6, &[0])?;
    }
    let free = rig.store.stat().unwrap().free_blocks;
    rig.write(0, 16, &(101..101 + free).collect::<Vec<Content>>())?;
    let (store, engine) = (rig.store.clone(), rig.engine.clone());
    let take = move || {
        let volume = store.volume(&name(1)).unwrap();
        let taken = volume.write(30 * BLOCK, &blocks([99]), Blocking::Yes);
        if taken.is_ok() {
            let mut cursor = Lba(0);
            let batch = store.dedup().find_batch(&volume, &mut cursor, Ready::All);
            batch.and_then(|_| volume.flush()).unwrap();
        }
        engine.halt();
    };
    collect(&rig.store).unwrap();
    rig.volumes[1][30].insert(99);
    rig.engine
        .on_next_io(Part::Scrub, Op::Write, When::Before, Box::new(take));
    for _ in 0..3 {
        let _ = rig.store.tidy(true);
    }
    rig.recover(CrashKind::ProcessKilled)?;
    rig.spoilt.clear();
    rig.read(1, 30).map(|_| ())
}
