//! Hits in line: duplicates that are never written, and the cases for their guards (see `guards.rs`).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, When};
use onefold_store::{
    Blocking, DedupMode, IndexKind, Lba, Ready, SettingsChange, StoreErrorKind, VolumeOptions,
    VolumeSettings,
};

use crate::common::{BLOCK, LITTLE_MEMORY, MIB, World, assert_clean, blocks, dedup, pool_of};
use crate::index_rows;
use crate::model::Violation;
use crate::rig::{Content, Rig, name, violation};

type Ended = Result<(), Violation>;

/// A volume with the contents 1 to 8, published, and an empty one in line.
fn published(seed: u64, index: IndexKind, pool_blocks: u64) -> Result<Rig, Violation> {
    let mut rig = Rig::new(seed, index, pool_blocks, &[32, 32]);
    rig.write(0, 0, &(1..=8).collect::<Vec<Content>>())?;
    rig.dedup()?;
    set(&rig, 1, false)?;
    Ok(rig)
}

/// Switches a volume to in-line, perhaps with `verify`.
fn set(rig: &Rig, volume: usize, verify: bool) -> Ended {
    let change = SettingsChange {
        dedup: Some(DedupMode::Inline),
        verify: Some(verify),
        ..SettingsChange::default()
    };
    let set = rig.store.set_volume(&name(volume), &change);
    rig.tried("set", set).map(|_| ())
}

/// Overwrites the only entry of a content, so that its reference is dropped.
fn drop_content(rig: &mut Rig, content: Content, by: Content) -> Ended {
    rig.write(0, content - 1, &[by]).map(|_| ())
}

/// A write from the middle of another request. The caller notes the resulting content.
fn write_now(rig: &Rig, volume: usize, lba: u64, content: Content) -> impl Fn() + use<> {
    let store = rig.store.clone();
    move || {
        let volume = store.volume(&name(volume)).unwrap();
        let written = volume.write(lba * BLOCK, &blocks([content]), Blocking::Yes);
        written.and_then(|()| volume.flush()).unwrap();
    }
}

fn hits(rig: &Rig, volume: usize) -> u64 {
    rig.store
        .volume(&name(volume))
        .unwrap()
        .inline_stat()
        .hit_blocks
}

/// A hit is flushed, and the power fails.
pub(crate) fn hit_then_power_loss(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 128)?;
    rig.write(1, 0, &[3, 4, 5])?;
    rig.recover(CrashKind::PowerLoss)?;
    rig.check()?;
    rig.read_all().map(|_| ())
}

/// The other entries of a claimed block drop their references.
pub(crate) fn released_while_claimed(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Hash, 128)?;
    rig.write(1, 0, &[3])?;
    drop_content(&mut rig, 3, 33)?;
    rig.collect()?;
    rig.write(0, 16, &(101..=116).collect::<Vec<Content>>())?;
    rig.read_all()?;
    rig.check().map(|_| ())
}

/// A content is written whose last reference is being released.
pub(crate) fn hit_while_collected(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 128)?;
    drop_content(&mut rig, 3, 33)?;
    let write = write_now(&rig, 1, 0, 3);
    // The batch is open when the index is called.
    rig.engine
        .on_next_io(Part::Index, Op::Write, When::Before, Box::new(write));
    rig.collect()?;
    rig.volumes[1][0] = [3].into();
    rig.write(0, 16, &(101..=116).collect::<Vec<Content>>())?;
    rig.read_all()?;
    rig.check().map(|_| ())
}

/// Publishes 40, 41, and a duplicate in the first volume. Between the index's answer and the first outcome it
/// calls the given function, and stops the machine. Returns the block of 41.
fn stop_before_outcomes(
    rig: &mut Rig,
    meanwhile: impl FnOnce() + Send + 'static,
) -> Result<u64, Violation> {
    // The bytes of the duplicate are compared at that moment.
    let change = SettingsChange {
        verify: Some(true),
        ..SettingsChange::default()
    };
    rig.store.set_volume(&name(0), &change).unwrap();
    rig.write(0, 16, &[40, 41, 3])?;
    let Some(block) = rig.place(41) else {
        return violation("content 41 is nowhere".to_owned());
    };
    let engine = rig.engine.clone();
    let second = move || {
        meanwhile();
        engine.halt();
    };
    let engine = rig.engine.clone();
    let first = move || engine.on_next_io(Part::Data, Op::Read, When::Before, Box::new(second));
    rig.engine
        .on_next_io(Part::Data, Op::Read, When::After, Box::new(first));
    rig.dedup()?;
    Ok(block)
}

/// The batch that has this block is called off.
fn make_unreadable(rig: &mut Rig, block: u64) {
    rig.spoilt.insert(41);
    rig.engine
        .make_unreadable(Part::Data, block * BLOCK..block * BLOCK + 512);
}

/// A block is hit that the finder's open batch has counted and not settled; then the index is lost and
/// the batch is called off.
pub(crate) fn hit_while_published(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Memory, 128)?;
    let write = write_now(&rig, 1, 0, 40);
    let block = stop_before_outcomes(&mut rig, write)?;
    rig.volumes[1][0] = [40].into();
    rig.recover(CrashKind::ProcessKilled)?;
    make_unreadable(&mut rig, block);
    // Settles the open batch first.
    let counted = rig.store.dedup().count_batch();
    rig.tried("count", counted)?;
    rig.write(0, 16, &[50])?;
    rig.read_all().map(|_| ())
}

/// Between lookup and record, the block is freed and gets other content.
pub(crate) fn freed_before_hit(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 128)?;
    set(&rig, 1, true)?;
    let (store, drop_it) = (rig.store.clone(), write_now(&rig, 0, 2, 33));
    let reuse: Vec<_> = (16..32)
        .map(|lba| write_now(&rig, 0, lba, 100 + lba))
        .collect();
    let meanwhile = move || {
        drop_it();
        while store.dedup().collect_batch().unwrap().released > 0 {}
        (0..3).for_each(|_| store.tidy(true).unwrap());
        reuse.iter().for_each(|write| write());
    };
    rig.engine
        .on_next_io(Part::Data, Op::Read, When::After, Box::new(meanwhile));
    rig.write(1, 0, &[3])?;
    rig.volumes[0][2] = [33].into();
    (16..32).for_each(|lba| rig.volumes[0][lba] = [100 + lba as u64].into());
    rig.read_all()?;
    rig.check().map(|_| ())
}

/// Between lookup and lock, the entry's block is freed, published with other content, and the entry
/// refers to it again. The write that is answered last counts.
pub(crate) fn freed_before_same(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 33)?;
    rig.write(1, 0, &[3])?;
    rig.collect()?;
    set(&rig, 1, true)?;
    let store = rig.store.clone();
    let drops = [write_now(&rig, 0, 2, 33), write_now(&rig, 1, 0, 34)];
    let again = write_now(&rig, 1, 0, 88);
    let filled = Arc::new(Mutex::new(Vec::new()));
    let fills = Arc::clone(&filled);
    let meanwhile = move || {
        drops.iter().for_each(|write| write());
        while store.dedup().collect_batch().unwrap().released > 0 {}
        (0..3).for_each(|_| store.tidy(true).unwrap());
        let volume = store.volume(&name(0)).unwrap();
        // All that is free, the freed block with it.
        for lba in 8..32 {
            let written = volume.write(lba * BLOCK, &blocks([88]), Blocking::Yes);
            if written.is_ok() {
                fills.lock().unwrap().push(lba);
            }
        }
        // The block of the first one is the one that is published.
        let mut cursor = Lba(8 + seed % 24);
        let batch = store.dedup().find_batch(&volume, &mut cursor, Ready::All);
        batch.unwrap();
        again();
    };
    rig.engine
        .on_next_io(Part::Data, Op::Read, When::After, Box::new(meanwhile));
    rig.write(1, 0, &[3])?;
    rig.volumes[0][2] = [33].into();
    for lba in filled.lock().unwrap().iter() {
        rig.volumes[0][*lba as usize] = [88].into();
    }
    rig.read_all().map(|_| ())
}

/// The power fails while claims of unflushed writes are being counted.
pub(crate) fn counted_before_durable(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 128)?;
    let volume = rig.store.volume(&name(1)).unwrap();
    let written = volume.write(0, &blocks([3]), Blocking::Yes);
    rig.tried("write", written)?;
    rig.volumes[1][0] = [0, 3].into();
    let counted = rig.store.dedup().count_batch();
    if rig
        .tried("count", counted)?
        .is_none_or(|report| report.counted != 1)
    {
        return violation("one claim was to be counted".to_owned());
    }
    drop(volume);
    rig.recover(CrashKind::PowerLoss)?;
    rig.check()?;
    rig.read_all().map(|_| ())
}

/// The index is counted again from the maps while there are claims.
pub(crate) fn rebuilt_while_claimed(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Hash, 128)?;
    rig.write(1, 0, &[3, 4, 5])?;
    let rebuilt = rig.store.index().rebuild(&mut |_, _| {});
    rig.tried("rebuild", rebuilt)?;
    rig.check()?;
    let counted = rig.store.dedup().count_batch();
    rig.tried("count", counted)?;
    rig.check().map(|_| ())
}

/// An entry of the finder's open batch becomes a hit on another block; then the index is lost.
pub(crate) fn hit_on_announced_entry(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Memory, 128)?;
    set(&rig, 0, false)?;
    rig.write(0, 16, &[40])?;
    let (write, engine) = (write_now(&rig, 0, 16, 5), rig.engine.clone());
    let meanwhile = move || {
        write();
        engine.halt();
    };
    rig.engine
        .on_next_io(Part::Data, Op::Read, When::Before, Box::new(meanwhile));
    rig.dedup()?;
    rig.volumes[0][16] = [5].into();
    rig.recover(CrashKind::ProcessKilled)?;
    rig.check()?;
    rig.read_all().map(|_| ())
}

/// The content of a bad block is written again.
pub(crate) fn bad_block_written_again(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 128)?;
    rig.decay(7, false);
    rig.scrub()?;
    rig.write(1, 0, &[7])?;
    rig.spoilt.clear();
    rig.read(1, 0).map(|_| ())
}

/// The index has lost the row of a claimed block whose other reference is dropped.
pub(crate) fn row_lost_while_claimed(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 128)?;
    rig.write(1, 0, &[3])?;
    drop_content(&mut rig, 3, 33)?;
    rig.engine.halt();
    let engine = rig.engine.crash(CrashKind::ProcessKilled);
    let lost = index_rows::fingerprint(&engine, &blocks([3]));
    index_rows::change(&engine, |rows| {
        rows.retain(|(fingerprint, _)| *fingerprint != lost)
    });
    rig.resume(engine)?;
    // Counting or collecting reports that index and maps disagree, and leaves the block alone.
    let counted = rig.store.dedup().count_batch();
    rig.tried("count", counted)?;
    while rig
        .store
        .dedup()
        .collect_batch()
        .is_ok_and(|report| report.released > 0)
    {}
    (0..3).for_each(|_| rig.store.tidy(true).unwrap());
    rig.write(0, 16, &(101..=116).collect::<Vec<Content>>())?;
    rig.read_all()?;
    let named = rig.store.stat().unwrap().physical_blocks;
    match named {
        25 => Ok(()),
        _ => violation(format!("{named} blocks hold data: one in use was freed")),
    }
}

/// A finder's batch is called off that the index had answered before it was counted again, and a write
/// has found one of its blocks before that.
pub(crate) fn hit_across_rebuild(seed: u64) -> Ended {
    let mut rig = published(seed, IndexKind::Btree, 128)?;
    set(&rig, 1, true)?;
    let block = stop_before_outcomes(&mut rig, || {})?;
    rig.recover(CrashKind::ProcessKilled)?;
    make_unreadable(&mut rig, block);
    let store = rig.store.clone();
    let rebuild = move || store.index().rebuild(&mut |_, _| {}).unwrap();
    rig.engine
        .on_next_io(Part::Data, Op::Read, When::After, Box::new(rebuild));
    rig.write(1, 0, &[40])?;
    rig.write(0, 16, &[50])?;
    rig.read_all().map(|_| ())
}

#[test]
fn a_duplicate_is_never_written() {
    for index in [IndexKind::Hash, IndexKind::Btree, IndexKind::Memory] {
        let mut rig = published(1, index, 128).unwrap();
        let writes = |rig: &Rig| rig.engine.count(Part::Data, Op::Write).count;
        let before = writes(&rig);
        rig.write(1, 4, &[8, 7, 3, 3, 1]).unwrap();
        assert_eq!(writes(&rig), before, "{index:?}");
        assert_eq!(hits(&rig, 1), 5);
        let stat = rig.store.stat().unwrap();
        assert_eq!((stat.physical_blocks, stat.claimed_blocks), (8, 5));
        rig.check().unwrap();
        let counted = rig.store.dedup().count_batch().unwrap();
        assert_eq!((counted.counted, counted.quarantined), (5, 0));
        assert_eq!(rig.store.stat().unwrap().claimed_blocks, 0);
        rig.check().unwrap();
        // The same once more changes nothing.
        rig.write(1, 4, &[8, 7, 3, 3, 1]).unwrap();
        assert_eq!(hits(&rig, 1), 10);
        assert_eq!(rig.store.dedup().claimed_blocks().unwrap(), 0);
        rig.read_all().unwrap();
        rig.recover(CrashKind::PowerLoss).unwrap();
        rig.check().unwrap();
        rig.read_all().unwrap();
    }
}

#[test]
fn claims_are_counted_without_reading_their_blocks() {
    for index in [IndexKind::Hash, IndexKind::Btree] {
        let mut rig = published(1, index, 128).unwrap();
        rig.write(1, 0, &[3]).unwrap();
        let write = write_now(&rig, 1, 1, 3);
        rig.engine
            .on_next_io(Part::Index, Op::Write, When::Before, Box::new(write));
        let reads = |rig: &Rig| rig.engine.count(Part::Data, Op::Read).count;
        let before = reads(&rig);
        for _ in 0..2 {
            assert_eq!(rig.store.dedup().count_batch().unwrap().counted, 1);
        }
        assert_eq!(reads(&rig), before, "{index:?}");
        // After a restart they have to be read, each block once.
        rig.volumes[1][1] = [3].into();
        rig.write(1, 2, &[3, 4, 3, 3]).unwrap();
        rig.recover(CrashKind::ProcessKilled).unwrap();
        let before = reads(&rig);
        assert_eq!(rig.store.dedup().count_batch().unwrap().counted, 4);
        assert_eq!(reads(&rig), before + 1, "{index:?}");
        rig.check().unwrap();
        rig.read_all().unwrap();
    }
}

/// The collector reads the blocks of its next batch; another batch frees one of them, and it is written,
/// published and dropped with other content before the first batch continues.
#[test]
fn what_the_collector_read_before_another_batch_is_not_used() {
    for index in [IndexKind::Hash, IndexKind::Btree, IndexKind::Memory] {
        // So small that every block is used.
        let mut rig = published(1, index, 33).unwrap();
        drop_content(&mut rig, 3, 33).unwrap();
        let store = rig.store.clone();
        let between = move || {
            let volume = store.volume(&name(0)).unwrap();
            assert_eq!(store.dedup().collect_batch().unwrap().freed, 1);
            volume.flush().unwrap();
            let others = blocks(101..125);
            volume.write(8 * BLOCK, &others, Blocking::Yes).unwrap();
            dedup(&store, &volume);
            volume.trim(8 * BLOCK, 24 * BLOCK, Blocking::Yes).unwrap();
        };
        rig.engine
            .on_next_io(Part::Data, Op::Read, When::After, Box::new(between));
        let report = rig.store.dedup().collect_batch().unwrap();
        assert_eq!((report.freed, report.quarantined), (24, 0), "{index:?}");
        rig.read_all().unwrap();
        rig.check().unwrap();
    }
}

#[test]
fn a_write_does_not_wait_for_an_index_to_be_opened() {
    for index in [IndexKind::Hash, IndexKind::Btree, IndexKind::Memory] {
        for op in [Op::Read, Op::Write, Op::Sync] {
            for when in [When::Before, When::After] {
                let mut rig = published(1, index, 128).unwrap();
                let write = write_now(&rig, 1, 0, 3);
                rig.engine
                    .on_next_io(Part::Index, op, when, Box::new(write));
                rig.store.index().rebuild(&mut |_, _| {}).unwrap();
                rig.volumes[1][0] = [3].into();
                rig.check().unwrap();
                rig.read_all().unwrap();
            }
        }
    }
}

#[test]
fn a_full_pool_still_takes_duplicates() {
    let mut rig = Rig::new(1, IndexKind::Hash, 40, &[64, 32]);
    rig.write(0, 0, &(1..=8).collect::<Vec<Content>>()).unwrap();
    rig.dedup().unwrap();
    set(&rig, 1, false).unwrap();
    let volume = rig.store.volume(&name(0)).unwrap();
    let mut lba = 8;
    let error = loop {
        let content = 1000 + lba;
        match volume.write(lba * BLOCK, &blocks([content]), Blocking::Yes) {
            Ok(()) => rig.volumes[0][lba as usize] = [content].into(),
            Err(error) => break error,
        }
        lba += 1;
    };
    assert_eq!(error.kind(), StoreErrorKind::NoSpace);
    rig.write(1, 31, &[5]).unwrap();
    assert_eq!(hits(&rig, 1), 1);
    rig.read_all().unwrap();
    rig.collect().unwrap();
    rig.check().unwrap();
}

#[test]
fn claims_end_at_their_limit() {
    let world = World::new(&pool_of(64 * MIB), LITTLE_MEMORY);
    let (most, known) = (
        world.store.dedup().claims_max(),
        world.store.dedup().claim_fingerprints_max(),
    );
    assert_eq!((most, known), (65_536, 16_384));
    let options = VolumeOptions::new(70_000 * BLOCK).with(VolumeSettings {
        dedup: DedupMode::Inline,
        ..VolumeSettings::default()
    });
    world.store.create_volume("a", &options).unwrap();
    let volume = world.store.volume("a").unwrap();
    volume.write(0, &blocks([1]), Blocking::Yes).unwrap();
    dedup(&world.store, &volume);
    let alarms = Arc::new(AtomicU64::new(0));
    let alarm = Arc::clone(&alarms);
    let count = move || {
        alarm.fetch_add(1, Relaxed);
    };
    world.store.dedup().set_claims_alarm(8192, Box::new(count));
    let many = blocks([1; 1000]);
    for n in 0..66 {
        let at = (1 + n * 1000) * BLOCK;
        volume.write(at, &many, Blocking::Yes).unwrap();
    }
    let claimed = world.store.dedup().claimed_blocks().unwrap();
    assert!((most - 1000..=most).contains(&claimed), "{claimed} claims");
    let memory = world.store.memory_stat().unwrap().claims;
    assert_eq!(memory, known * 16, "those of the others are not kept");
    assert!(volume.inline_stat().refused.claims_full_blocks > 0);
    assert_eq!(
        alarms.load(Relaxed),
        claimed / 8192,
        "one for each 8192 claims"
    );
    let reads = || world.engine.count(Part::Data, Op::Read).count;
    let (mut counted, before) = (0, reads());
    while counted < claimed {
        counted += world.store.dedup().count_batch().unwrap().counted;
        assert_eq!(reads() > before, counted > known, "after {counted}");
    }
    assert_eq!(world.store.memory_stat().unwrap().claims, 0);
    let at = 69_000 * BLOCK;
    volume.write(at, &blocks([1]), Blocking::Yes).unwrap();
    assert_eq!(world.store.dedup().claimed_blocks().unwrap(), 1);
    assert_clean(&world.store);
}
