//! Deletions that cannot continue, and those beside them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use onefold_engine::simulated::SimulatedEngine;
use onefold_engine::{Engine, Part};
use onefold_format::page::{self, PAGE_BYTES, PageKind};
use onefold_format::{PageNumber, Superblock};
use onefold_store::{Blocking, CreateOptions, OpenOptions, Store, StoreErrorKind, VolumeOptions};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn open(engine: &Arc<SimulatedEngine>) -> Arc<Store> {
    let engine: Arc<dyn Engine> = engine.clone();
    let options = OpenOptions {
        memory_bytes: 8 * MIB,
        ..OpenOptions::default()
    };
    Store::open(engine, &options).unwrap().0
}

/// Flips a bit in every page of a layer's map. Returns where.
fn damage_map(engine: &SimulatedEngine, layer: u64) -> Vec<u64> {
    let read = |part, at| -> Box<[u8; PAGE_BYTES]> {
        Box::new(engine.read_raw(part, at, PAGE_BYTES).try_into().unwrap())
    };
    let superblock = Superblock::decode(&read(Part::Superblock, 0)).unwrap();
    let places = (2..200).filter(|place| {
        let bytes = read(Part::Meta, place * PAGE_BYTES as u64);
        page::open_of_tree(&bytes, superblock.pool).is_ok_and(|header| {
            header.kind == PageKind::Map
                && header.owner == layer
                && header.page == PageNumber(*place)
        })
    });
    let places: Vec<u64> = places
        .map(|place| place * PAGE_BYTES as u64 + 200)
        .collect();
    assert!(!places.is_empty());
    places
        .iter()
        .for_each(|at| engine.flip_bit(Part::Meta, *at, 0));
    places
}

/// A pool whose first volume, `a`, has a map that cannot be read, and two others that have not.
fn with_damaged_map() -> (Arc<SimulatedEngine>, Vec<u64>) {
    let engine = Arc::new(SimulatedEngine::new(1));
    let options = CreateOptions {
        size_bytes: 16 * MIB,
        log_bytes: 256 << 10,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    let store = open(&engine);
    for name in ["a", "b", "c"] {
        store.create_volume(name, &VolumeOptions::new(MIB)).unwrap();
        let volume = store.volume(name).unwrap();
        let data = vec![7; 100 * BLOCK as usize];
        volume.write(0, &data, Blocking::Yes).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let places = damage_map(&engine, 1);
    (engine, places)
}

#[test]
fn a_deletion_that_fails_keeps_no_other_waiting() {
    let (engine, places) = with_damaged_map();
    let store = open(&engine);
    for name in ["a", "b", "c"] {
        store.delete_volume(name).unwrap();
    }
    let before = store.stat().unwrap().free_blocks;
    let mut failures = Vec::new();
    while store.next_deletion_failures() != Some(2) {
        failures.extend(store.deletion_step().err());
    }
    store.tick().unwrap();
    assert_eq!(store.stat().unwrap().free_blocks, before + 200);
    // Tried at first, and again once the others were done; its message names it.
    let kinds: Vec<_> = failures.iter().map(|error| error.kind()).collect();
    assert_eq!(kinds, [StoreErrorKind::Damaged; 2]);
    let message = failures[1].to_string();
    assert!(message.starts_with("deleting 'a': "), "{message}");
    let left = store.deletions().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((&left[0].name[..], left[0].own_blocks), ("a", 100));
    assert_eq!(left[0].failure.as_ref(), Some(&message));

    // Its obstacle is gone: it ends like any other.
    places
        .iter()
        .for_each(|at| engine.flip_bit(Part::Meta, *at, 0));
    assert!(store.finish_deletions(&mut |_, _| {}).unwrap());
    assert_eq!(store.deletions().unwrap(), []);
    store.tick().unwrap();
    assert_eq!(store.stat().unwrap().free_blocks, before + 300);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn finishing_deletions_does_all_that_can_be_done_before_it_fails() {
    let (engine, _places) = with_damaged_map();
    let store = open(&engine);
    for name in ["a", "b", "c"] {
        store.delete_volume(name).unwrap();
    }
    let finished = store.finish_deletions(&mut |_, _| {});
    assert_eq!(finished.unwrap_err().kind(), StoreErrorKind::Damaged);
    let left = store.deletions().unwrap();
    let names: Vec<&str> = left.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["a"]);
}
