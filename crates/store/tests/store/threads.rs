//! Real threads on the simulated engine: writers of their own and of common blocks, readers,
//! flushes, trims and housekeeping at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use onefold_engine::simulated::CrashKind;
use onefold_store::{Blocking, StoreErrorKind, Volume};

use crate::common::{
    BLOCK, LITTLE_MEMORY, MIB, Random, World, assert_clean, blocks, new_volume, pool_of, read,
    write,
};

/// Blocks that each thread has for itself in each volume.
const OWN_BLOCKS: u64 = 128;

/// Blocks that all write, behind each thread's own.
const COMMON_BLOCKS: u64 = 64;

const WRITERS: u64 = 4;
const ROUNDS: u64 = 20_000;

/// The work of one thread, and the content of its own blocks in the end, by volume.
fn writer(n: u64, volumes: &[Arc<Volume>; 2], done: &AtomicU64) -> [Vec<u64>; 2] {
    let mut held = [vec![0; OWN_BLOCKS as usize], vec![0; OWN_BLOCKS as usize]];
    let mut random = Random::new(n);
    let mut draw = |below: u64| random.below(below);
    for round in 1..=ROUNDS {
        let which = draw(2) as usize;
        let volume = &volumes[which];
        let first = draw(OWN_BLOCKS - 8);
        let count = 1 + draw(8);
        let lba = n * OWN_BLOCKS + first;
        let own = &mut held[which][first as usize..(first + count) as usize];
        match draw(8) {
            0 => {
                let (offset, len) = (lba * BLOCK, count * BLOCK);
                volume.trim(offset, len, Blocking::Yes).unwrap();
                own.fill(0);
            }
            1 => volume.flush().unwrap(),
            2 | 3 => assert_eq!(read(volume, lba, count), *own),
            4 => {
                let at = WRITERS * OWN_BLOCKS + draw(COMMON_BLOCKS - 4);
                write(volume, at, [round << 8 | n; 4]);
            }
            choice => {
                let new = round << 8 | n;
                let blocking = if choice == 5 {
                    Blocking::No
                } else {
                    Blocking::Yes
                };
                let data = blocks(own.iter().map(|_| new));
                match volume.write(lba * BLOCK, &data, blocking) {
                    Ok(()) => {}
                    Err(error) if error.kind() == StoreErrorKind::WouldBlock => {
                        volume.write(lba * BLOCK, &data, Blocking::Yes).unwrap();
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
    // Twice the written bytes, since freed blocks wait until their readers have ended.
    let world = World::new(&pool_of(32 * MIB), LITTLE_MEMORY);
    let volumes = ["a", "b"].map(|name| new_volume(&world, name, 8 * MIB));
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let held: Vec<[Vec<u64>; 2]> = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                world.tidy(true).unwrap();
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                assert_clean(&world);
                read(&volumes[0], WRITERS * OWN_BLOCKS, 1);
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
    drop(volumes);
    let world = world.reopen();
    verify(&world, &held);
    verify(&world.crash(CrashKind::PowerLoss), &held);
}

fn verify(world: &World, held: &[[Vec<u64>; 2]]) {
    for (which, name) in ["a", "b"].into_iter().enumerate() {
        let volume = world.volume(name).unwrap();
        for (held, n) in held.iter().zip(0..) {
            assert_eq!(read(&volume, n * OWN_BLOCKS, OWN_BLOCKS), held[which]);
        }
        // Whichever write was the last.
        read(&volume, WRITERS * OWN_BLOCKS, COMMON_BLOCKS);
    }
    assert_clean(world);
}
