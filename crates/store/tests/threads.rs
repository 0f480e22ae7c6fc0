//! Real threads on the simulated engine: writers of their own and of common blocks, readers,
//! flushes, trims and housekeeping at once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use onefold_engine::Engine;
use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_store::{
    Blocking, CreateOptions, OpenOptions, Store, StoreErrorKind, Volume, VolumeOptions,
};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Blocks that each thread has for itself in each volume.
const OWN_BLOCKS: u64 = 128;

/// Blocks that all write, behind each thread's own.
const COMMON_BLOCKS: u64 = 64;

const WRITERS: u64 = 4;
const ROUNDS: u64 = 20_000;

fn open(engine: &Arc<SimulatedEngine>) -> Arc<Store> {
    let engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(engine);
    let options = OpenOptions {
        memory_bytes: 8 * MIB,
        ..OpenOptions::default()
    };
    Store::open(engine, &options).unwrap().0
}

/// A block whose words are all equal.
fn block(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// The value of a block that one write has filled.
#[track_caller]
fn value(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let values: Vec<u64> = words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect();
    assert!(
        values.iter().all(|value| *value == values[0]),
        "a block of two writes"
    );
    values[0]
}

/// The work of one thread, and the content of its own blocks in the end, by volume.
fn writer(n: u64, volumes: &[Arc<Volume>; 2], done: &AtomicU64) -> [Vec<u64>; 2] {
    let mut held = [vec![0; OWN_BLOCKS as usize], vec![0; OWN_BLOCKS as usize]];
    let mut random = n + 1;
    let mut draw = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    for round in 1..=ROUNDS {
        let which = draw(2) as usize;
        let volume = &volumes[which];
        let first = draw(OWN_BLOCKS - 8);
        let count = 1 + draw(8);
        let offset = (n * OWN_BLOCKS + first) * BLOCK;
        let own = &mut held[which][first as usize..(first + count) as usize];
        match draw(8) {
            0 => {
                volume.trim(offset, count * BLOCK, Blocking::Yes).unwrap();
                own.fill(0);
            }
            1 => volume.flush().unwrap(),
            2 | 3 => {
                let mut found = vec![0; (count * BLOCK) as usize];
                volume.read(offset, &mut found, Blocking::Yes).unwrap();
                for (block, expected) in found.chunks(BLOCK as usize).zip(own) {
                    assert_eq!(value(block), *expected);
                }
            }
            4 => {
                let at = (WRITERS * OWN_BLOCKS + draw(COMMON_BLOCKS - 4)) * BLOCK;
                let common = block(round << 8 | n).repeat(4);
                volume.write(at, &common, Blocking::Yes).unwrap();
            }
            choice => {
                let new = round << 8 | n;
                let blocking = if choice == 5 {
                    Blocking::No
                } else {
                    Blocking::Yes
                };
                let data = block(new).repeat(count as usize);
                match volume.write(offset, &data, blocking) {
                    Ok(()) => {}
                    Err(error) if error.kind() == StoreErrorKind::WouldBlock => {
                        volume.write(offset, &data, Blocking::Yes).unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
                own.fill(new);
            }
        }
        done.fetch_add(1, SeqCst);
    }
    held
}

#[test]
fn many_threads_do_not_get_into_each_others_way() {
    let engine = Arc::new(SimulatedEngine::new(1));
    let options = CreateOptions {
        // Twice what is written, since freed blocks wait until their readers have ended.
        size_bytes: 32 * MIB,
        log_bytes: 256 << 10,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    let store = open(&engine);
    let volumes = ["a", "b"].map(|name| {
        store
            .create_volume(name, &VolumeOptions::new(8 * MIB))
            .unwrap();
        store.volume(name).unwrap()
    });
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let held: Vec<[Vec<u64>; 2]> = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                store.tick().unwrap();
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                store
                    .check(false, &mut |finding| panic!("{finding:?}"))
                    .unwrap();
                let common = WRITERS * OWN_BLOCKS * BLOCK;
                let mut buf = vec![0; BLOCK as usize];
                volumes[0].read(common, &mut buf, Blocking::Yes).unwrap();
            }
        });
        let (volumes, done) = (&volumes, &done);
        let writers = [0, 1, 2, 3].map(|n| scope.spawn(move || writer(n, volumes, done)));
        let held = writers.map(|writer| writer.join());
        stop.store(true, SeqCst);
        held.map(|held| held.unwrap()).into()
    });
    assert_eq!(done.load(SeqCst), WRITERS * ROUNDS);
    volumes.iter().for_each(|volume| volume.flush().unwrap());
    drop((volumes, store));
    verify(&engine, &held);
    verify(&Arc::new(engine.crash(CrashKind::PowerLoss)), &held);
}

fn verify(engine: &Arc<SimulatedEngine>, held: &[[Vec<u64>; 2]]) {
    let store = open(engine);
    for (which, name) in ["a", "b"].into_iter().enumerate() {
        let volume = store.volume(name).unwrap();
        let mut found = vec![0; (OWN_BLOCKS * BLOCK) as usize];
        for (held, n) in held.iter().zip(0..) {
            volume
                .read(n * OWN_BLOCKS * BLOCK, &mut found, Blocking::Yes)
                .unwrap();
            for (block, expected) in found.chunks(BLOCK as usize).zip(&held[which]) {
                assert_eq!(value(block), *expected);
            }
        }
        let mut common = vec![0; (COMMON_BLOCKS * BLOCK) as usize];
        let offset = WRITERS * OWN_BLOCKS * BLOCK;
        volume.read(offset, &mut common, Blocking::Yes).unwrap();
        common.chunks(BLOCK as usize).for_each(|block| {
            value(block);
        });
    }
    store
        .check(false, &mut |finding| panic!("{finding:?}"))
        .unwrap();
}
