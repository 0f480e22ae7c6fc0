//! The space that deleting a volume or a snapshot would free, compared with the space it freed, to
//! the block.

use std::ops::ControlFlow;

use onefold_store::{Blocking, CreateOptions, Store, Usage};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::{
    BLOCK, LITTLE_MEMORY, MIB, World, assert_clean, collect, dedup, go_on, new_volume, pool_of,
    snapshot, write,
};

/// Two segments, of which the blocks around their border are used.
const BLOCKS: u64 = 1024;

/// A pool that is gone through in two windows where memory is least.
const POOL_BYTES: u64 = 1 << 30;

fn pool() -> World {
    let options = CreateOptions {
        log_bytes: 4 * MIB,
        ..pool_of(POOL_BYTES)
    };
    World::new(&options, LITTLE_MEMORY)
}

fn account(store: &Store) {
    assert!(store.accounting().scan(&mut go_on).unwrap());
}

fn usage(store: &Store, name: &str) -> Usage {
    store.volume_stat(name).unwrap().usage.unwrap()
}

/// Blocks that are free once everything that was released is.
fn free_blocks(store: &Store) -> u64 {
    collect(store).unwrap();
    store.tidy(true).unwrap();
    let stat = store.stat().unwrap();
    assert_eq!(
        (stat.pending_free_blocks, stat.pending_release_blocks),
        (0, 0)
    );
    stat.free_blocks
}

/// Deletes a snapshot, or a volume with its snapshots.
fn delete(store: &Store, name: &str) {
    match name.split_once('@') {
        Some((volume, snapshot)) => store.delete_snapshot(volume, snapshot),
        None => store.delete_volume_and(name, |_| true),
    }
    .unwrap();
    check_data(store);
    store.deletions().finish(&mut |_, _| {}).unwrap();
}

/// The reported data of each volume and snapshot is the data that a reader finds in it.
fn check_data(store: &Store) {
    for name in store.volumes().names() {
        let data = store
            .volume(&name)
            .and_then(|volume| store.accounting().data(&volume, u64::MAX))
            .unwrap()
            .unwrap();
        assert_eq!(
            (data.blocks, data.as_of_unix_seconds),
            (blocks_with_data(store, &name), None),
            "{name}"
        );
    }
}

fn blocks_with_data(store: &Store, name: &str) -> u64 {
    let volume = store.volume(name).unwrap();
    let extents = volume.extents(0..volume.size_bytes(), usize::MAX, Blocking::Yes);
    let extents = extents.unwrap().into_iter();
    extents
        .filter(|extent| extent.data)
        .map(|extent| extent.len / BLOCK)
        .sum()
}

fn has_snapshots(name: &str, names: &[String]) -> bool {
    let prefix = format!("{name}@");
    names.iter().any(|other| other.starts_with(&prefix))
}

#[derive(Debug, Clone)]
enum Step {
    /// Volume, first block, blocks, content of the first of them; 0 for zeros.
    Write(usize, u64, u64, u64),
    Trim(usize, u64, u64),
    /// Resizes to this many blocks, and back.
    Cut(usize, u64),
    Snapshot(usize),
    Clone(usize),
    /// Rolls back to the first of its snapshots.
    RollBack(usize),
    Dedup(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let (volume, lba, count) = (0..3_usize, 500..530_u64, 1..12_u64);
    prop_oneof![
        6 => (volume.clone(), lba.clone(), count.clone(), 0..20_u64)
            .prop_map(|(volume, lba, count, content)| Step::Write(volume, lba, count, content)),
        2 => (volume.clone(), lba.clone(), count)
            .prop_map(|(volume, lba, count)| Step::Trim(volume, lba, count)),
        1 => (volume.clone(), lba).prop_map(|(volume, end)| Step::Cut(volume, end)),
        1 => volume.clone().prop_map(Step::Snapshot),
        1 => volume.clone().prop_map(Step::Clone),
        1 => volume.clone().prop_map(Step::RollBack),
        1 => volume.prop_map(Step::Dedup),
    ]
}

fn carry_out(store: &Store, step: &Step, snapshots: &mut u64) {
    let volume = |number: &usize| store.volume(&format!("v{number}")).unwrap();
    match step {
        Step::Write(number, lba, count, content) => {
            let contents = (0..*count).map(|n| match content {
                0 => 0,
                content => content + n,
            });
            write(&volume(number), *lba, contents);
        }
        Step::Trim(number, lba, count) => {
            let (offset, len) = (lba * BLOCK, count * BLOCK);
            volume(number).trim(offset, len, Blocking::Yes).unwrap();
        }
        Step::Cut(number, end) => {
            let name = format!("v{number}");
            store.resize_volume(&name, end * BLOCK).unwrap();
            check_data(store);
            store.resize_volume(&name, BLOCKS * BLOCK).unwrap();
        }
        Step::Snapshot(number) => {
            *snapshots += 1;
            snapshot(store, &format!("v{number}"), &format!("s{snapshots}"));
        }
        Step::Clone(number) => {
            *snapshots += 1;
            let clone = format!("c{snapshots}");
            store.clone_volume(&format!("v{number}"), &clone).unwrap();
        }
        Step::RollBack(number) => {
            let (volume, prefix) = (format!("v{number}"), format!("v{number}@"));
            let names = store.volumes().names();
            let first = names.iter().find_map(|name| name.strip_prefix(&prefix));
            if let Some(snapshot) = first {
                store.roll_back(&volume, snapshot).unwrap();
                store.deletions().finish(&mut |_, _| {}).unwrap();
            }
        }
        Step::Dedup(number) => {
            dedup(store, &volume(number));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn deleting_frees_what_was_said(
        steps in vec(steps(), 1..60),
        order in vec(any::<prop::sample::Index>(), 100),
    ) {
        let store = pool();
        for number in 0..3 {
            new_volume(&store, &format!("v{number}"), BLOCKS * BLOCK);
        }
        let mut snapshots = 0;
        for step in &steps {
            carry_out(&store, step, &mut snapshots);
        }
        check_data(&store);
        let mut free = free_blocks(&store);
        let is_plain = |step: &Step| !matches!(step, Step::Clone(_) | Step::RollBack(_));
        let stands_alone = steps.iter().all(is_plain);
        for choice in order {
            let names = store.volumes().names();
            if names.is_empty() {
                break;
            }
            let (mut exclusive, mut named) = (0, 0);
            account(&store);
            for name in &names {
                let usage = usage(&store, name);
                prop_assert_eq!(usage.data_blocks, blocks_with_data(&store, name), "{}", name);
                let now = store.volume(name).and_then(|volume| store.accounting().locality(&volume, u64::MAX)).unwrap().unwrap();
                prop_assert_eq!((usage.data_blocks, usage.data_runs), (now.blocks, now.runs));
                exclusive += usage.exclusive_blocks;
                named += usage.exclusive_blocks + usage.shared_blocks;
                prop_assert!(usage.freed_if_deleted_blocks <= usage.exclusive_blocks, "{:?}", usage);
                if !name.contains('@') {
                    prop_assert_eq!(usage.freed_if_deleted_blocks, usage.exclusive_blocks);
                }
                if !name.contains('@') && !has_snapshots(name, &names) {
                    prop_assert_eq!(usage.freed_with_snapshots_blocks, usage.exclusive_blocks);
                }
            }
            let physical = store.stat().unwrap().physical_blocks;
            prop_assert!(exclusive <= physical);
            if store.deletions().unfinished().unwrap().is_empty() {
                prop_assert!(physical <= named, "{} of {}", named, physical);
            }
            let name = choice.get(&names);
            let usage = usage(&store, name);
            let with_snapshots = has_snapshots(name, &names);
            let said = if with_snapshots {
                usage.freed_with_snapshots_blocks
            } else {
                usage.freed_if_deleted_blocks
            };
            // Unnamed layers that stayed because of this one may go with it. With snapshots, blocks of a layer below a
            // clone that the clone hides come on top.
            let frees_more = !store.deletions().unfinished().unwrap().is_empty()
                || with_snapshots && !stands_alone;
            delete(&store, name);
            let now = free_blocks(&store);
            let freed = now - free;
            let is_right = freed == said || frees_more && freed > said;
            prop_assert!(is_right, "{} freed {}: {:?}", name, freed, usage);
            free = now;
        }
        assert_clean(&store);
    }
}

#[test]
fn figures_are_of_the_last_scan_that_came_to_its_end() {
    let store = pool();
    for name in ["a", "b"] {
        write(&new_volume(&store, name, BLOCKS * BLOCK), 0, 1..101);
    }
    assert_eq!(store.volume_stat("a").unwrap().usage, None);
    let mut end_at = |done: u64, all| {
        if done == all {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    assert!(!store.accounting().scan(&mut end_at).unwrap());
    assert_eq!(store.volume_stat("a").unwrap().usage, None);
    account(&store);
    assert_eq!(usage(&store, "a").exclusive_blocks, 100);
    for name in ["a", "b"] {
        dedup(&store, &store.volume(name).unwrap());
    }
    free_blocks(&store);
    assert_eq!(usage(&store, "a").exclusive_blocks, 100);
    account(&store);
    let shared = Usage {
        shared_blocks: 100,
        exclusive_blocks: 0,
        freed_if_deleted_blocks: 0,
        freed_with_snapshots_blocks: 0,
        ..usage(&store, "a")
    };
    assert_eq!(usage(&store, "b"), shared);
    store.rename_volume("b", "c").unwrap();
    assert_eq!(usage(&store, "c"), shared);
    snapshot(&store, "c", "now");
    assert_eq!(store.stat().unwrap().snapshots[0].usage, None);
    account(&store);
    assert_eq!(
        store.stat().unwrap().snapshots[0].usage,
        Some(usage(&store, "a"))
    );
    assert_eq!(usage(&store, "c").shared_blocks, 0);
}

#[test]
fn data_that_takes_long_to_count_is_told_as_it_was() {
    let store = pool();
    let volume = new_volume(&store, "v", BLOCKS * BLOCK);
    // In both segments.
    let write = |lba| write(&volume, lba, 1..21);
    write(500);
    let blocks = |segments_max| {
        store
            .volume("v")
            .and_then(|volume| store.accounting().data(&volume, segments_max))
            .unwrap()
    };
    // Of a volume without snapshots it is known.
    assert_eq!(blocks(0).unwrap().blocks, 20);
    snapshot(&store, "v", "s");
    assert_eq!(blocks(0).unwrap().blocks, 20);
    write(510);
    assert_eq!(blocks(1), None);
    assert_eq!(blocks(2).unwrap().blocks, 30);
    account(&store);
    write(530);
    let told = blocks(1).unwrap();
    assert_eq!(told.blocks, 30);
    assert_eq!(
        told.as_of_unix_seconds,
        Some(usage(&store, "v").as_of_unix_seconds)
    );
    assert_eq!(blocks(2).unwrap().blocks, 50);
    assert_eq!(
        store
            .volume("v@s")
            .and_then(|volume| store.accounting().data(&volume, 0))
            .unwrap()
            .unwrap()
            .blocks,
        20
    );
}
