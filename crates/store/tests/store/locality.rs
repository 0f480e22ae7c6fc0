//! Runs of blocks: duplicates in short ones stay private (`min_run`), and volumes get blocks of their own
//! again (defrag, unshare). The resulting state of each block is compared with an independent count.

use std::sync::Arc;

use onefold_engine::simulated::CrashKind;
use onefold_store::{
    Blocking, CreateOptions, DedupMode, Store, StoreErrorKind, UnsharePlan, Unsharing, Volume,
    VolumeOptions,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::{
    BLOCK, MEMORY, MIB, World, assert_clean, collect, dedup, delete_volume, new_volume, pool_of,
    read, snapshot, write,
};

/// Contents of the volume that the others share with: one segment, written at once, so that consecutive
/// ones are in consecutive blocks.
const COMMON: u64 = 512;

/// From here on each content is in one volume only.
const OWN: u64 = 100_000;

fn pool() -> World {
    let options = CreateOptions {
        log_bytes: 4 * MIB,
        ..pool_of(64 * MIB)
    };
    World::new(&options, MEMORY)
}

fn volume_with(store: &Store, name: &str, change: impl FnOnce(&mut VolumeOptions)) -> Arc<Volume> {
    let mut options = VolumeOptions::new(4 * MIB);
    change(&mut options);
    store.create_volume(name, &options).unwrap();
    store.volume(name).unwrap()
}

/// A volume with all common contents, published.
fn base(store: &Store) -> Arc<Volume> {
    let base = new_volume(store, "base", 4 * MIB);
    write(&base, 0, 1..COMMON + 1);
    assert_eq!(dedup(store, &base).unique, COMMON);
    base
}

/// Pieces of a volume: a run of common contents, from which one on, or blocks of its own.
#[derive(Debug, Clone)]
struct Part {
    common: Option<u64>,
    blocks: u64,
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (any::<bool>(), 1..COMMON - 32, 1..14_u64).prop_map(|(common, from, blocks)| Part {
        common: common.then_some(from),
        blocks,
    });
    vec(part, 1..60)
}

/// At most a segment of them.
fn contents(parts: &[Part], own: u64) -> Vec<u64> {
    let mut contents = Vec::new();
    for (part, n) in parts.iter().zip(0..) {
        let first = part.common.unwrap_or(own + 1000 * n);
        contents.extend(first..first + part.blocks);
    }
    contents.truncate(COMMON as usize);
    contents
}

fn is_common(content: u64) -> bool {
    content <= COMMON
}

/// The lengths of the runs of a volume in which all blocks are published: common contents are in the common
/// volume's blocks, and its own contents are where they were written.
fn runs(contents: &[u64]) -> Vec<(bool, u64)> {
    let place = |lba: u64, content: u64| {
        if is_common(content) {
            (true, content)
        } else {
            (false, lba)
        }
    };
    let mut runs: Vec<(bool, u64)> = Vec::new();
    let mut before = None;
    for (content, lba) in contents.iter().zip(0..) {
        let (is_common, at) = place(lba, *content);
        match (runs.last_mut(), before) {
            (Some((_, count)), Some(before)) if before == (is_common, at) => *count += 1,
            _ => runs.push((is_common, 1)),
        }
        before = Some((is_common, at + 1));
    }
    runs
}

/// Blocks of common contents in runs that are shorter.
fn short_common(contents: &[u64], min_run: u16) -> u64 {
    let runs = runs(contents).into_iter();
    let short = runs.filter(|(is_common, count)| *is_common && *count < u64::from(min_run));
    short.map(|(_, count)| count).sum()
}

fn unshare(store: &Store, name: &str, min_run: Option<u16>) -> Result<u64, StoreErrorKind> {
    let mut unsharing = store
        .volume(name)
        .map(|volume| Unsharing::new(volume, min_run))
        .unwrap();
    loop {
        match unsharing.step() {
            Ok(true) => {}
            Ok(false) => return Ok(unsharing.copied_blocks()),
            Err(error) => return Err(error.kind()),
        }
    }
}

fn plan(store: &Store, name: &str, min_run: Option<u16>) -> UnsharePlan {
    store
        .volume(name)
        .and_then(|volume| UnsharePlan::of(&volume, min_run))
        .unwrap()
}

fn runs_of(store: &Store, name: &str) -> u64 {
    store
        .volume(name)
        .and_then(|volume| store.accounting().locality(&volume, u64::MAX))
        .unwrap()
        .unwrap()
        .runs
}

/// Releases dropped references, after which freed blocks can be reused.
fn settle(store: &Store) {
    collect(store).unwrap();
    store.tidy(true).unwrap();
    store.tidy(true).unwrap();
    assert_eq!(store.stat().unwrap().pending_release_blocks, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn duplicates_in_short_runs_stay_private(
        parts in parts(),
        min_run in prop::sample::select(vec![1, 2, 3, 4, 8, 200]),
        inline in any::<bool>(),
    ) {
        let world = pool();
        base(&world);
        let volume = volume_with(&world, "v", |options| {
            options.settings.min_run = min_run;
            options.settings.dedup = if inline { DedupMode::Inline } else { DedupMode::Offline };
        });
        let contents = contents(&parts, OWN);
        let all = contents.len() as u64;
        let own = contents.iter().filter(|content| !is_common(**content)).count() as u64;
        let short = short_common(&contents, min_run);
        let long = all - own - short;
        write(&volume, 0, contents.iter().copied());
        let stat = world.volume_stat("v").unwrap();
        if inline {
            prop_assert_eq!((stat.shared_blocks, stat.inline.hit_blocks), (long, long));
            prop_assert_eq!(stat.inline.refused.short_run_blocks, short);
        }
        dedup(&world, &volume);
        let stat = world.volume_stat("v").unwrap();
        prop_assert_eq!((stat.private_blocks, stat.shared_blocks), (short, own + long));
        prop_assert_eq!(stat.pending_dedup_blocks, 0);
        prop_assert_eq!(dedup(&world, &volume).scanned, 0);
        settle(&world);
        let stat = world.stat().unwrap();
        prop_assert_eq!(stat.physical_blocks, COMMON + own + short);
        prop_assert_eq!(stat.free_blocks, stat.pool_blocks - 1 - stat.physical_blocks);
        prop_assert_eq!(read(&volume, 0, all), contents);
        assert_clean(&world);
        // All of it goes again: no reference is left behind.
        delete_volume(&world, "v");
        settle(&world);
        let stat = world.stat().unwrap();
        prop_assert_eq!((stat.unique_blocks, stat.shared_blocks), (COMMON, 0));
        prop_assert_eq!(stat.physical_blocks, COMMON);
        assert_clean(&world);
    }

    #[test]
    fn shared_blocks_in_short_runs_are_copied(
        parts in parts(),
        min_run in prop::sample::select(vec![Some(2), Some(4), Some(9), Some(256), None]),
    ) {
        let world = pool();
        let base = base(&world);
        let volume = volume_with(&world, "v", |options| {
            options.settings.quota_bytes = COMMON * BLOCK;
            options.settings.hash_cache_bytes = MIB;
        });
        let contents = contents(&parts, OWN);
        let all = contents.len() as u64;
        write(&volume, 0, contents.iter().copied());
        dedup(&world, &volume);
        settle(&world);
        let found = runs(&contents);
        prop_assert_eq!(runs_of(&world, "v"), found.len() as u64);
        let is_short = |count: u64| min_run.is_none_or(|min| count < u64::from(min));
        let short = found.iter().filter(|(_, count)| is_short(*count));
        let copied: u64 = short.clone().map(|(_, count)| count).sum();
        let copied_runs = short.clone().count() as u64;
        let own = contents.iter().filter(|content| !is_common(**content)).count() as u64;
        let own_copied: u64 = short.filter(|run| !run.0).map(|run| run.1).sum();

        let planned = plan(&world, "v", min_run);
        prop_assert_eq!((planned.copied_blocks, planned.shared_blocks), (copied, all));
        prop_assert_eq!((planned.data_blocks, planned.runs_before), (all, found.len() as u64));
        prop_assert_eq!(unshare(&world, "v", min_run), Ok(copied));
        prop_assert_eq!(read(&volume, 0, all), &contents[..]);
        prop_assert_eq!(plan(&world, "v", min_run).copied_blocks, 0);
        let stat = world.volume_stat("v").unwrap();
        prop_assert_eq!((stat.private_blocks, stat.shared_blocks), (copied, all - copied));
        prop_assert_eq!((stat.pending_dedup_blocks, stat.logical_blocks), (0, all));
        // Where free space is in pieces, copies of neighbours may be, too.
        let pieces_max = copied - copied_runs;
        prop_assert!(runs_of(&world, "v") <= found.len() as u64 + pieces_max);
        // The finder leaves the copies alone, and the collector releases the references that they replaced.
        prop_assert_eq!(dedup(&world, &volume).scanned, 0);
        settle(&world);
        let stat = world.stat().unwrap();
        prop_assert_eq!(stat.physical_blocks, COMMON + own - own_copied + copied);
        prop_assert_eq!(read(&base, 0, COMMON), Vec::from_iter(1..COMMON + 1));
        assert_clean(&world);
        // Also when they are rewritten in place; a block that replaces one that is gone is like any other.
        write(&volume, 0, contents.iter().copied());
        dedup(&world, &volume);
        let stat = world.volume_stat("v").unwrap();
        prop_assert_eq!((stat.private_blocks, stat.shared_blocks), (copied, all - copied));
        volume.trim(0, 4 * MIB, Blocking::Yes).unwrap();
        write(&volume, 0, contents.iter().copied());
        dedup(&world, &volume);
        settle(&world);
        prop_assert_eq!(world.volume_stat("v").unwrap().private_blocks, 0);
        prop_assert_eq!(world.stat().unwrap().physical_blocks, COMMON + own);
        prop_assert_eq!(read(&volume, 0, all), contents);
        assert_clean(&world);
    }
}

/// Every other block of a volume is one of the base.
fn scattered(store: &Store, name: &str, blocks: u64) -> Vec<u64> {
    let volume = new_volume(store, name, 4 * MIB);
    let content = |n: u64| {
        if n.is_multiple_of(2) {
            1 + n * 7 % COMMON
        } else {
            OWN + n
        }
    };
    let contents: Vec<u64> = (0..blocks).map(content).collect();
    write(&volume, 0, contents.iter().copied());
    dedup(store, &volume);
    settle(store);
    contents
}

#[test]
fn copies_go_back_beside_their_neighbours() {
    let world = pool();
    base(&world);
    let contents = scattered(&world, "v", 512);
    assert_eq!(runs_of(&world, "v"), 512);
    let planned = plan(&world, "v", None);
    assert_eq!((planned.runs_before, planned.runs_after), (512, 1));
    assert_eq!(unshare(&world, "v", None), Ok(512));
    let runs = runs_of(&world, "v");
    assert!(runs < 16, "{runs} runs");
    let volume = world.volume("v").unwrap();
    assert_eq!(read(&volume, 0, 512), contents);
}

/// Only the map then has the segment's place.
#[test]
fn copies_fill_the_gaps_of_their_segment_after_a_restart() {
    let world = pool();
    base(&world);
    let volume = new_volume(&world, "v", 4 * MIB);
    let content = |n: u64| match n % 16 {
        15 => 1 + n * 7 % COMMON,
        _ => OWN + n,
    };
    let contents: Vec<u64> = (0..512).map(content).collect();
    write(&volume, 0, contents.iter().copied());
    dedup(&world, &volume);
    settle(&world);
    drop(volume);
    let world = world.reopen();
    let planned = plan(&world, "v", Some(4));
    assert_eq!((planned.copied_blocks, planned.runs_before), (32, 64));
    assert_eq!(unshare(&world, "v", Some(4)), Ok(32));
    assert_eq!(runs_of(&world, "v"), 1);
    assert_eq!(read(&world.volume("v").unwrap(), 0, 512), contents);
    assert_clean(&world);
}

#[test]
fn layers_below_are_treated_and_clones_keep_their_content() {
    let world = pool();
    base(&world);
    let mut contents = scattered(&world, "v", 100);
    snapshot(&world, "v", "s");
    world.clone_volume("v@s", "c").unwrap();
    let volume = world.volume("v").unwrap();
    write(&volume, 10, [5, 6, 7, 8]);
    dedup(&world, &volume);
    let old = contents.clone();
    contents[10..14].copy_from_slice(&[5, 6, 7, 8]);
    let planned = plan(&world, "v", None);
    assert_eq!((planned.copied_blocks, planned.data_blocks), (104, 100));
    assert_eq!(unshare(&world, "v", None), Ok(104));
    for (name, contents) in [("v", &contents), ("v@s", &old), ("c", &old)] {
        let volume = world.volume(name).unwrap();
        assert_eq!(read(&volume, 0, 100), *contents, "{name}");
        assert_eq!(plan(&world, name, None).shared_blocks, 0, "{name}");
    }
    settle(&world);
    assert_clean(&world);
}

#[test]
fn a_copying_that_is_cut_short_goes_on_with_what_is_left() {
    for kind in [CrashKind::PowerLoss, CrashKind::ProcessKilled] {
        let world = pool();
        base(&world);
        let volume = new_volume(&world, "v", 8 * MIB);
        for segment in 0..3 {
            write(&volume, segment * 512, 1..COMMON + 1);
        }
        dedup(&world, &volume);
        let mut unsharing = world
            .volume("v")
            .map(|volume| Unsharing::new(volume, None))
            .unwrap();
        assert!(unsharing.step().unwrap());
        assert_eq!(unsharing.copied_blocks(), 512);
        volume.flush().unwrap();
        drop((unsharing, volume));
        let world = world.crash(kind);
        world.index().rebuild_if_needed(&mut |_, _| {}).unwrap();
        assert_eq!(plan(&world, "v", None).copied_blocks, 1024);
        assert_eq!(unshare(&world, "v", None), Ok(1024));
        let volume = world.volume("v").unwrap();
        for segment in 0..3 {
            let contents = read(&volume, segment * 512, COMMON);
            assert_eq!(contents, Vec::from_iter(1..COMMON + 1));
        }
        settle(&world);
        assert_clean(&world);
    }
}

#[test]
fn a_pool_that_fills_up_ends_it_and_leaves_every_block_one_or_the_other() {
    let world = pool();
    base(&world);
    let volume = new_volume(&world, "v", 4 * MIB);
    write(&volume, 0, 1..COMMON + 1);
    dedup(&world, &volume);
    settle(&world);
    // Room for 200 copies above the reserve.
    let stat = world.stat().unwrap();
    let filler = new_volume(&world, "filler", 64 * MIB);
    let fill = stat.free_blocks - stat.reserve_blocks - 200;
    (0..fill).for_each(|n| write(&filler, n, [OWN + n]));
    assert_eq!(plan(&world, "v", None).available_blocks, 200);
    assert_eq!(unshare(&world, "v", None), Err(StoreErrorKind::NoSpace));
    let stat = world.volume_stat("v").unwrap();
    // Whole pieces.
    assert_eq!((stat.private_blocks, stat.shared_blocks), (192, 320));
    assert_eq!(
        world.stat().unwrap().free_blocks,
        world.stat().unwrap().reserve_blocks + 8
    );
    assert_eq!(read(&volume, 0, COMMON), Vec::from_iter(1..COMMON + 1));
    assert_clean(&world);
    delete_volume(&world, "filler");
    settle(&world);
    assert_eq!(unshare(&world, "v", None), Ok(320));
    settle(&world);
    assert_eq!(world.stat().unwrap().physical_blocks, 2 * COMMON);
    assert_clean(&world);
}

#[test]
fn blocks_that_are_reserved_for_others_are_left_to_them() {
    let world = pool();
    base(&world);
    let volume = new_volume(&world, "v", 4 * MIB);
    write(&volume, 0, 1..COMMON + 1);
    dedup(&world, &volume);
    settle(&world);
    let stat = world.stat().unwrap();
    let spare = stat.free_blocks - stat.reserve_blocks;
    volume_with(&world, "other", |options| {
        options.size_bytes = 64 * MIB;
        options.settings.reservation_bytes = (spare - 100) * BLOCK;
    });
    assert_eq!(plan(&world, "v", None).available_blocks, 100);
    assert_eq!(unshare(&world, "v", None), Err(StoreErrorKind::NoSpace));
    assert_eq!(world.volume_stat("v").unwrap().private_blocks, 64);
    assert_clean(&world);
}

#[test]
fn room_is_made_from_blocks_that_nobody_shares_any_more() {
    let world = pool();
    let volume = new_volume(&world, "v", 64 * MIB);
    let stat = world.stat().unwrap();
    // More than half of the pool, published, and not shared.
    let blocks = (stat.free_blocks - stat.reserve_blocks) * 3 / 5;
    (0..blocks).for_each(|n| write(&volume, n, [OWN + n]));
    dedup(&world, &volume);
    let mut unsharing = world
        .volume("v")
        .map(|volume| Unsharing::new(volume, None))
        .unwrap();
    loop {
        match unsharing.step() {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::NoSpace);
                assert!(world.space().free_dropped().unwrap());
            }
        }
    }
    assert_eq!(unsharing.copied_blocks(), blocks);
    assert!(
        !world.space().free_dropped().unwrap() || world.stat().unwrap().pending_release_blocks == 0
    );
    settle(&world);
    assert_eq!(world.stat().unwrap().physical_blocks, blocks);
    assert_clean(&world);
}

#[test]
fn a_deleted_volume_ends_it() {
    let world = pool();
    base(&world);
    scattered(&world, "v", 64);
    let mut unsharing = world
        .volume("v")
        .map(|volume| Unsharing::new(volume, None))
        .unwrap();
    delete_volume(&world, "v");
    let ended = unsharing.step().unwrap_err();
    assert_eq!(ended.kind(), StoreErrorKind::Gone);
    let missing = world
        .volume("v")
        .and_then(|volume| UnsharePlan::of(&volume, None))
        .unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::NotFound);
}

#[test]
fn runs_go_on_across_segments_and_end_at_gaps() {
    let world = pool();
    let volume = new_volume(&world, "v", 8 * MIB);
    volume
        .write(0, &crate::common::blocks(1..1025), Blocking::Yes)
        .unwrap();
    let found = world
        .volume("v")
        .and_then(|volume| world.accounting().locality(&volume, u64::MAX))
        .unwrap()
        .unwrap();
    assert_eq!((found.blocks, found.runs), (1024, 1));
    assert_eq!(
        world
            .volume("v")
            .and_then(|volume| world.accounting().locality(&volume, 1))
            .unwrap(),
        None
    );
    volume.trim(511 * BLOCK, 2 * BLOCK, Blocking::Yes).unwrap();
    let found = world
        .volume("v")
        .and_then(|volume| world.accounting().locality(&volume, 2))
        .unwrap()
        .unwrap();
    assert_eq!((found.blocks, found.runs), (1022, 2));
    assert!(world.accounting().scan(&mut crate::common::go_on).unwrap());
    let told = world
        .volume("v")
        .and_then(|volume| world.accounting().locality(&volume, 1))
        .unwrap()
        .unwrap();
    assert_eq!((told.blocks, told.runs), (1022, 2));
    assert!(told.as_of_unix_seconds.is_some());
}
