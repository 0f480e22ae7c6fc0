//! Blocks that the finder has read and not published yet.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::Op;
use onefold_store::{BatchReport, Blocking, Lba, Pacing, Ready, Volume};

use crate::common::{
    BLOCK, MEMORY, MIB, World, assert_clean, collect, dedup, dedup_ready, new_volume, pool_of,
    read, snapshot, write,
};

/// Contents 1 to 64, published in one volume, and cold in another.
fn world() -> (World, Arc<Volume>) {
    let world = World::new(&pool_of(64 * MIB), MEMORY);
    let published = new_volume(&world, "published", MIB);
    write(&published, 0, 1..=64);
    dedup(&world, &published);
    let volume = new_volume(&world, "volume", MIB);
    write(&volume, 0, 1..=64);
    // The first pass sees that they were written, the second that they were not.
    let pass = dedup_ready(&world, &volume, Ready::Cold).unwrap();
    assert_eq!(pass.scanned, 0);
    let pass = dedup_ready(&world, &volume, Ready::Cold).unwrap();
    assert_eq!(pass.scanned, 0);
    (world, volume)
}

/// One batch, with something that happens between its pieces of 16 blocks.
fn find(
    world: &World,
    volume: &Volume,
    mut between: impl FnMut(u64) -> ControlFlow<()>,
) -> Option<BatchReport> {
    let mut piece = 0;
    let mut pace = || {
        between(piece)?;
        piece += 1;
        ControlFlow::Continue(16 * BLOCK)
    };
    let mut cursor = Lba(0);
    let found = world
        .dedup()
        .find_cold_batch(volume, &mut cursor, &mut pace);
    found.unwrap()
}

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

#[test]
fn a_batch_is_read_in_pieces_and_then_published() {
    let (world, volume) = world();
    let mut pieces = 0;
    let report = find(&world, &volume, |_| {
        pieces += 1;
        let stat = world.stat().unwrap();
        assert_eq!((stat.unsettled_blocks, stat.private_blocks), (0, 64));
        GO_ON
    });
    assert_eq!(pieces, 4);
    assert_eq!(report.unwrap().duplicates, 64);
    assert_eq!(world.stat().unwrap().physical_blocks, 64);
    assert_clean(&world);
}

#[test]
fn what_changes_after_it_was_read_is_not_published() {
    let (world, volume) = world();
    let report = find(&world, &volume, |piece| {
        if piece == 3 {
            write(&volume, 0, [1001, 1002]);
            volume.trim(2 * BLOCK, 2 * BLOCK, Blocking::Yes).unwrap();
            // In a part of a block.
            volume
                .write(4 * BLOCK + 512, &[7; 512], Blocking::Yes)
                .unwrap();
        }
        GO_ON
    });
    let report = report.unwrap();
    assert_eq!((report.scanned, report.duplicates), (59, 59));
    assert_eq!(read(&volume, 0, 4), [1001, 1002, 0, 0]);
    assert!(read(&volume, 5, 59).into_iter().eq(6..=64));
    assert_clean(&world);
}

#[test]
fn a_block_that_comes_back_to_its_entry_is_another_one() {
    let (world, volume) = world();
    let report = find(&world, &volume, |piece| {
        if piece == 1 {
            volume.trim(0, 16 * BLOCK, Blocking::Yes).unwrap();
            volume.flush().unwrap();
            (0..3).for_each(|_| world.tidy(true).unwrap());
            write(&volume, 0, 2001..=2016);
        }
        GO_ON
    });
    assert_eq!(report.unwrap().scanned, 48);
    dedup(&world, &volume);
    collect(&world).unwrap();
    assert!(read(&volume, 0, 16).into_iter().eq(2001..=2016));
    assert_clean(&world);
}

#[test]
fn a_batch_that_is_broken_off_leaves_no_trace() {
    let (world, volume) = world();
    let before = world.stat().unwrap();
    let broken_off = find(&world, &volume, |piece| match piece {
        2 => ControlFlow::Break(()),
        _ => GO_ON,
    });
    assert!(broken_off.is_none());
    assert_eq!(world.stat().unwrap(), before);
    assert_eq!(find(&world, &volume, |_| GO_ON).unwrap().duplicates, 64);
    assert_clean(&world);
}

#[test]
fn other_jobs_have_their_turn_while_blocks_are_read() {
    let (world, volume) = world();
    let published = world.volume("published").unwrap();
    let report = find(&world, &volume, |piece| {
        if piece == 2 {
            write(&published, 0, 3001..=3032);
            assert_eq!(collect(&world).unwrap(), 32);
            // Publishes the candidates, too.
            dedup(&world, &volume);
        }
        GO_ON
    });
    assert_eq!(report.unwrap().scanned, 0);
    assert!(read(&volume, 0, 64).into_iter().eq(1..=64));
    assert_clean(&world);
}

#[test]
fn a_layer_that_is_frozen_meanwhile_is_left_to_the_next_pass() {
    let (world, volume) = world();
    let report = find(&world, &volume, |piece| {
        if piece == 1 {
            snapshot(&world, "volume", "before");
            write(&volume, 0, 4001..=4064);
        }
        GO_ON
    });
    assert_eq!(report.unwrap().scanned, 0);
    assert!(read(&volume, 0, 64).into_iter().eq(4001..=4064));
    let snapshot = world.volume("volume@before").unwrap();
    assert!(read(&snapshot, 0, 64).into_iter().eq(1..=64));
    dedup(&world, &volume);
    dedup(&world, &snapshot);
    assert_clean(&world);
}

#[test]
fn a_piece_that_could_not_be_read_is_read_by_the_batch() {
    let (world, volume) = world();
    world
        .engine
        .fail_once(Part::Data, Op::Read, 1, ErrorKind::Other);
    let report = find(&world, &volume, |_| GO_ON).unwrap();
    assert_eq!((report.duplicates, report.unreadable), (64, 0));
    assert!(read(&volume, 0, 64).into_iter().eq(1..=64));
    assert_clean(&world);
}

/// Breaks off before a batch is announced, or counts how often one is.
#[derive(Default)]
struct BeforeFlushes {
    breaks_off: bool,
    calls: u32,
}

impl Pacing for BeforeFlushes {
    fn next_piece(&mut self) -> ControlFlow<(), u64> {
        ControlFlow::Continue(u64::MAX)
    }

    fn before_flushes(&mut self) -> ControlFlow<()> {
        self.calls += 1;
        if self.breaks_off {
            ControlFlow::Break(())
        } else {
            GO_ON
        }
    }
}

#[test]
fn a_batch_may_wait_or_end_before_it_flushes_anything() {
    let (world, volume) = world();
    let before = (world.stat().unwrap(), syncs(&world));
    let mut pace = BeforeFlushes {
        breaks_off: true,
        ..BeforeFlushes::default()
    };
    let mut cursor = Lba(0);
    let broken_off = world
        .dedup()
        .find_cold_batch(&volume, &mut cursor, &mut pace);
    assert!(broken_off.unwrap().is_none() && cursor == Lba(0));
    assert_eq!((world.stat().unwrap(), syncs(&world)), before);
    let mut pace = BeforeFlushes::default();
    for duplicates in [64, 0] {
        let found = world
            .dedup()
            .find_cold_batch(&volume, &mut Lba(0), &mut pace);
        assert_eq!(found.unwrap().unwrap().duplicates, duplicates);
    }
    assert_eq!(pace.calls, 1, "a batch of nothing flushes nothing");
    write(&volume, 0, 5001..=5064);
    let before = (world.stat().unwrap(), syncs(&world));
    let mut pace = BeforeFlushes {
        breaks_off: true,
        ..BeforeFlushes::default()
    };
    let collected = world.dedup().collect_batch_paced(&mut pace);
    assert!(collected.unwrap().is_none());
    assert_eq!((world.stat().unwrap(), syncs(&world)), before);
    assert_clean(&world);
}

fn syncs(world: &World) -> u64 {
    let parts = [Part::Data, Part::Log, Part::Meta, Part::Index];
    let count = |part| world.engine.count(part, Op::Sync).count;
    parts.into_iter().map(count).sum()
}
