//! Writes in line: the answer of each filter, and writes while an index is replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use onefold_engine::Part;
use onefold_engine::simulated::{Op, SimulatedEngine, When};
use onefold_store::{
    Blocking, DedupMode, IndexKind, InlineStat, OpenOptions, Store, VolumeOptions, VolumeSettings,
};

use crate::common::{
    BLOCK, KINDS, MEMORY, MIB, World, assert_clean, collect, dedup, new_volume, place_of, pool_of,
    read, write,
};

const PUBLISHED: [u64; 3] = [1, 2, 3];

/// A pool that has [`PUBLISHED`] in the volume `base`.
fn pool(index: IndexKind) -> Arc<Store> {
    let engine = SimulatedEngine::new(1);
    let mut options = pool_of(16 * MIB);
    options.index = index;
    Store::create(&engine, &options).unwrap();
    let options = OpenOptions {
        memory_bytes: MEMORY,
        ..OpenOptions::default()
    };
    let (store, _) = Store::open(Arc::new(engine), &options).unwrap();
    let base = new_volume(&store, "base", MIB);
    write(&base, 0, PUBLISHED);
    dedup(&store, &base);
    store
}

/// The answers of filters and index for three zeros, two unique blocks, and twice [`PUBLISHED`].
fn expected(index: IndexKind) -> InlineStat {
    let mut stat = InlineStat {
        scanned_blocks: 11,
        zero_blocks: 3,
        recently_seen_blocks: 3,
        found_blocks: 3,
        hit_blocks: 6,
        is_on: true,
        ..InlineStat::default()
    };
    // Only this kind has signatures.
    match index {
        IndexKind::Hash => stat.absent_by_signature_blocks = 2,
        _ => stat.absent_blocks = 2,
    }
    stat
}

#[test]
fn each_filter_answers_for_its_blocks() {
    for index in KINDS {
        let store = pool(index);
        let options = VolumeOptions::new(MIB).with(VolumeSettings {
            dedup: DedupMode::Inline,
            hash_cache_bytes: MIB,
            ..VolumeSettings::default()
        });
        store.create_volume("v", &options).unwrap();
        let volume = store.volume("v").unwrap();
        write(&volume, 0, [1, 2, 3, 0, 9, 0]);
        // Results are remembered from the next write on.
        write(&volume, 8, [1, 2, 3, 0, 10]);
        let case = format!("{index:?}");
        assert_eq!(volume.inline_stat(), expected(index), "{case}");
        let contents = [1, 2, 3, 0, 9, 0, 0, 0, 1, 2, 3, 0, 10];
        assert_eq!(read(&volume, 0, 13), contents, "{case}");
        let stat = store.volume_stat("v").unwrap();
        let stored = (stat.private_blocks, stat.shared_blocks);
        assert_eq!(stored, (2, 6), "{case}");

        // Zeros take the place of a shared block and of a private one.
        write(&volume, 8, [0]);
        write(&volume, 12, [0]);
        let stat = store.volume_stat("v").unwrap();
        let stored = (stat.private_blocks, stat.shared_blocks);
        assert_eq!(stored, (1, 5), "{case}");
        assert_clean(&store);
        dedup(&store, &volume);
        collect(&store).unwrap();
        assert_eq!(read(&volume, 8, 5), [0, 2, 3, 0, 0], "{case}");
        let stat = store.stat().unwrap();
        let unique = PUBLISHED.len() as u64 + 1;
        assert_eq!(stat.unique_blocks + stat.shared_blocks, unique, "{case}");
        assert_eq!(
            read(&store.volume("base").unwrap(), 0, MIB / BLOCK)[..3],
            PUBLISHED
        );
        assert_clean(&store);
    }
}

/// Within this time, two threads that write known contents have found some.
const HITS_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn an_index_is_replaced_beside_writes_in_line() {
    let store = pool(IndexKind::Btree);
    let options = VolumeOptions::new(MIB).with(VolumeSettings {
        dedup: DedupMode::Inline,
        ..VolumeSettings::default()
    });
    store.create_volume("inline", &options).unwrap();
    let volume = store.volume("inline").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (volume, done) = (&volume, &done);
            scope.spawn(move || {
                for round in (0..).take_while(|_| !done.load(SeqCst)) {
                    // In turn, so that no write finds its own content.
                    write(volume, n * 16 + round % 8, [PUBLISHED[round as usize % 2]]);
                }
            });
        }
        let (store, done) = (&store, &done);
        scope.spawn(move || {
            while !done.load(SeqCst) {
                store.index().stat().unwrap();
            }
        });
        for round in 0..40 {
            let kind = KINDS[round % KINDS.len()];
            store.index().convert(kind, &mut |_, _| {}).unwrap();
        }
        // On a busy machine the writers may not have run yet.
        let started = Instant::now();
        while volume.inline_stat().hit_blocks == 0 && started.elapsed() < HITS_WITHIN {
            std::thread::yield_now();
        }
        done.store(true, SeqCst);
    });
    assert!(volume.inline_stat().hit_blocks > 0);
    collect(&store).unwrap();
    assert_clean(&store);
}

/// Between lookup and record a scrub finds the block.
#[test]
fn a_block_that_becomes_bad_after_the_lookup_is_no_hit() {
    let world = World::new(&pool_of(16 * MIB), MEMORY);
    let base = new_volume(&world, "base", MIB);
    write(&base, 0, [1]);
    dedup(&world, &base);
    let options = VolumeOptions::new(MIB).with(VolumeSettings {
        dedup: DedupMode::Inline,
        ..VolumeSettings::default()
    });
    world.create_volume("inline", &options).unwrap();
    let inline = world.volume("inline").unwrap();
    let place = place_of(&world.engine, 16 * MIB, 1);
    let (engine, store) = (world.engine.clone(), Arc::clone(&world.store));
    let meanwhile = move || {
        engine.make_unreadable(Part::Data, place * BLOCK..place * BLOCK + 512);
        base.read(0, &mut [0; BLOCK as usize], Blocking::Yes)
            .unwrap_err();
        assert_eq!(store.scrub().look_at_suspects().unwrap(), 1);
    };
    // The write of the block that is no hit.
    world
        .engine
        .on_next_io(Part::Data, Op::Write, When::After, Box::new(meanwhile));
    write(&inline, 0, [9, 1]);
    assert_eq!(read(&inline, 0, 2), [9, 1]);
    let stat = inline.inline_stat();
    assert_eq!((stat.hit_blocks, stat.refused.bad_blocks), (0, 1));
}
