//! Deletions that cannot continue, and other deletions at the same time.

use onefold_engine::Part;
use onefold_engine::simulated::SimulatedEngine;
use onefold_format::PageNumber;
use onefold_format::page::{self, PAGE_BYTES, PageKind};
use onefold_store::StoreErrorKind;

use crate::common::{
    self, LITTLE_MEMORY, MIB, World, assert_clean, new_volume, pool_of, superblock, write,
};

/// Flips a bit in every page of a layer's map. Returns where.
fn damage_map(engine: &SimulatedEngine, layer: u64) -> Vec<u64> {
    let pool = superblock(engine).pool;
    let places = (2..200).map(PageNumber).filter(|place| {
        let bytes = common::page(engine, Part::Meta, *place);
        page::open_of_tree(&bytes, pool).is_ok_and(|header| {
            header.kind == PageKind::Map && header.owner == layer && header.page == *place
        })
    });
    let places: Vec<u64> = places
        .map(|place| place.0 * PAGE_BYTES as u64 + 200)
        .collect();
    assert!(!places.is_empty());
    places
        .iter()
        .for_each(|at| engine.flip_bit(Part::Meta, *at, 0));
    places
}

/// A pool whose first volume, `a`, has a map that cannot be read, and two others that have not.
fn with_damaged_map() -> (World, Vec<u64>) {
    let world = World::new(&pool_of(16 * MIB), LITTLE_MEMORY);
    for name in ["a", "b", "c"] {
        write(&new_volume(&world, name, MIB), 0, [7; 100]);
    }
    world.close().unwrap();
    let places = damage_map(&world.engine, 1);
    (world.reopen(), places)
}

#[test]
fn a_deletion_that_fails_keeps_no_other_waiting() {
    let (store, places) = with_damaged_map();
    for name in ["a", "b", "c"] {
        store.delete_volume(name).unwrap();
    }
    let before = store.stat().unwrap().free_blocks;
    let mut failures = Vec::new();
    while store.deletions().next_failures() != Some(2) {
        failures.extend(store.deletions().step().err());
    }
    store.tidy(true).unwrap();
    assert_eq!(store.stat().unwrap().free_blocks, before + 200);
    // Tried at first, and again once the others were done; its message names it.
    let kinds: Vec<_> = failures.iter().map(|error| error.kind()).collect();
    assert_eq!(kinds, [StoreErrorKind::Damaged; 2]);
    let message = failures[1].to_string();
    assert!(message.starts_with("deleting 'a': "), "{message}");
    let left = store.deletions().unfinished().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((&left[0].name[..], left[0].own_blocks), ("a", 100));
    assert_eq!(left[0].failure.as_ref(), Some(&message));

    // Its obstacle is gone: it ends like any other.
    places
        .iter()
        .for_each(|at| store.engine.flip_bit(Part::Meta, *at, 0));
    assert!(store.deletions().finish(&mut |_, _| {}).unwrap());
    assert_eq!(store.deletions().unfinished().unwrap(), []);
    store.tidy(true).unwrap();
    assert_eq!(store.stat().unwrap().free_blocks, before + 300);
    assert_clean(&store);
}

#[test]
fn finishing_deletions_does_all_that_can_be_done_before_it_fails() {
    let (store, _places) = with_damaged_map();
    for name in ["a", "b", "c"] {
        store.delete_volume(name).unwrap();
    }
    let finished = store.deletions().finish(&mut |_, _| {});
    assert_eq!(finished.unwrap_err().kind(), StoreErrorKind::Damaged);
    let left = store.deletions().unfinished().unwrap();
    let names: Vec<&str> = left.iter().map(|deletion| deletion.name.as_str()).collect();
    assert_eq!(names, ["a"]);
}
