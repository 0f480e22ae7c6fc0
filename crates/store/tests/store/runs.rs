//! Requests that read several runs: blocks that are consecutive in the volume, and not in the pool.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::Op;
use onefold_store::{Blocking, StoreErrorKind, Volume};

use crate::common::{
    BLOCK, MEMORY, MIB, World, blocks, dedup, new_volume, place_of, pool_of, read, read_bytes,
    write,
};

/// The contents of the volume; 0 is a hole.
const CONTENTS: [u64; 10] = [5, 4, 0, 3, 9, 0, 0, 8, 2, 1];

/// A volume that shares its blocks with another one, which has them in the order of their contents.
fn scattered() -> (World, Arc<Volume>) {
    let world = World::new(&pool_of(64 * MIB), MEMORY);
    let other = new_volume(&world, "other", MIB);
    write(&other, 0, 1..10);
    let volume = new_volume(&world, "a", MIB);
    write(&volume, 0, CONTENTS);
    dedup(&world, &other);
    dedup(&world, &volume);
    assert_eq!(world.stat().unwrap().private_blocks, 0);
    (world, volume)
}

#[test]
fn each_run_is_where_it_belongs() {
    let (_world, volume) = scattered();
    let all = blocks(CONTENTS);
    for from in [0, 1, 4095, 4096, 3 * 4096 + 512, 5 * 4096] {
        for to in [5 * 4096 + 1, 8 * 4096 - 1, 9 * 4096, 10 * 4096] {
            let found = read_bytes(&volume, from, to - from);
            assert!(found == all[from as usize..to as usize], "{from}..{to}");
        }
    }
}

#[test]
fn the_run_that_cannot_be_read_is_named_and_looked_at() {
    let (world, volume) = scattered();
    let at = place_of(&world.engine, 64 * MIB, 9);
    world
        .engine
        .make_unreadable(Part::Data, at * BLOCK..at * BLOCK + 512);
    let mut found = vec![0; 10 * BLOCK as usize];
    let error = volume.read(0, &mut found, Blocking::Yes).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Io);
    let said = error.to_string();
    assert!(
        said.contains(&format!("block 4 of the volume, {at} of the pool")),
        "{said}"
    );
    assert_eq!(world.scrub().look_at_suspects().unwrap(), 1);
    let bad = world.scrub().bad_blocks(&mut |_| {}).unwrap();
    assert_eq!(bad.iter().map(|block| block.pba).collect::<Vec<_>>(), [at]);
    assert_eq!(read(&volume, 0, 4), CONTENTS[..4]);
    assert_eq!(read(&volume, 5, 5), CONTENTS[5..]);
}

#[test]
fn one_run_that_a_failed_sync_left_in_doubt_fails_the_request() {
    let (world, volume) = scattered();
    volume.flush().unwrap();
    write(&volume, 5, [7]);
    world
        .engine
        .fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
    assert!(volume.flush().is_err());
    for range in [0..6, 4..6, 5..6, 5..10] {
        let mut found = vec![0; (range.end - range.start) * BLOCK as usize];
        let read = volume.read(range.start as u64 * BLOCK, &mut found, Blocking::Yes);
        let said = read.unwrap_err().to_string();
        assert!(said.contains("block 5 of the volume"), "{range:?}: {said}");
    }
    assert_eq!(read(&volume, 0, 5), CONTENTS[..5]);
    assert_eq!(read(&volume, 6, 4), CONTENTS[6..]);
}

#[test]
fn every_block_of_a_run_that_a_failed_sync_left_in_doubt_fails_alone() {
    let world = World::new(&pool_of(64 * MIB), MEMORY);
    let volume = new_volume(&world, "a", MIB);
    write(&volume, 0, [1]);
    volume.flush().unwrap();
    write(&volume, 8, [5, 6, 7, 8]);
    world
        .engine
        .fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
    assert!(volume.flush().is_err());
    for lba in 8..12 {
        let mut found = vec![0; BLOCK as usize];
        let read = volume.read(lba * BLOCK, &mut found, Blocking::Yes);
        let error = read.expect_err("it may be another volume's content");
        assert_eq!(error.kind(), StoreErrorKind::Io, "{error}");
    }
    assert_eq!(read(&volume, 0, 2), [1, 0]);
}
