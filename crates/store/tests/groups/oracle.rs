//! What must be true of a pool at rest: all jobs have ended on all groups.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use onefold_engine::Cluster;
use onefold_format::{GroupId, Shard, SpaceExtent};
use onefold_index::{Fingerprint, IndexReader};
use onefold_store::{SharedPool, StoreError};

use crate::model::Content;
use crate::world::{HOSTS, SHARDS, Step, World};

/// The most rows of a test's pool.
const ROWS_MAX: usize = 10_000;

/// Blocks of a space extent, and of the pool's label.
const EXTENT: u64 = 16_384;

/// Compares the index and the free space of all groups with the contents of the volumes.
pub(crate) fn check(world: &World) -> Step {
    let entries = entries(world)?;
    let rows = rows(world)?;
    let contents: BTreeSet<Content> = entries.keys().copied().collect();
    if rows.len() != contents.len() {
        return Err(format!(
            "P4: the index has {} blocks for {} contents",
            rows.len(),
            contents.len()
        ));
    }
    let mut counted: Vec<u64> = rows.values().copied().collect();
    let mut expected: Vec<u64> = entries.values().copied().collect();
    counted.sort_unstable();
    expected.sort_unstable();
    if counted != expected {
        return Err(format!(
            "P4: the index counts {counted:?} references, and the volumes have {expected:?}"
        ));
    }
    custody(world, rows.keys().copied().collect())?;
    accounting(world)
}

/// The maps of each group refer to as many blocks as its volume has contents.
fn accounting(world: &World) -> Step {
    scan_maps(world)?;
    for (group, store) in pools(world).flat_map(SharedPool::stores) {
        let failed = |error: StoreError| format!("accounting of group {group}: {error}");
        let volume = world.volumes.get(&group);
        let volume = volume.ok_or_else(|| format!("no model has group {group}"))?;
        let usage = store.volume_stat(&volume.name).map_err(failed)?.usage;
        let blocks = usage.map(|usage| usage.exclusive_blocks + usage.shared_blocks);
        let contents = volume.blocks.iter().flat_map(|block| &block.now);
        let contents: BTreeSet<&Content> = contents.filter(|content| **content != 0).collect();
        if blocks != Some(contents.len() as u64) {
            return Err(format!(
                "{} refers to {blocks:?} blocks, and has {} contents",
                volume.name,
                contents.len()
            ));
        }
    }
    Ok(())
}

/// Scans the maps of each group for the figures of its volumes; a group may have none.
fn scan_maps(world: &World) -> Step {
    for (group, store) in pools(world).flat_map(SharedPool::stores) {
        let scanned = store
            .accounting()
            .scan(&mut |_, _| ControlFlow::Continue(()));
        scanned.map_err(|error| format!("accounting of group {group}: {error}"))?;
    }
    Ok(())
}

/// Checks a pool without volumes, whose groups gave all of their blocks to the pool.
pub(crate) fn check_empty(world: &World) -> Step {
    let rows = rows(world)?;
    if !rows.is_empty() {
        return Err(format!(
            "P4: nothing refers to {} blocks that have rows",
            rows.len()
        ));
    }
    scan_maps(world)?;
    let given = world.cluster.given_blocks();
    let given: BTreeSet<u64> = given.iter().map(|pba| pba.0).collect();
    if world.given_back == 0 && given.first().is_some_and(|block| *block < EXTENT) {
        return Err("the pool has blocks next to its label, which no group can take".to_owned());
    }
    let counts = world.cluster.host(0).extent_counts();
    let counts = counts.map_err(|error| error.to_string())?;
    if counts.free == counts.all {
        return Ok(());
    }
    let mut extents = (0..=counts.all).filter(|extent| world.cluster.is_out(SpaceExtent(*extent)));
    let missing = extents.find_map(|extent| {
        let blocks = extent * EXTENT..(extent + 1) * EXTENT;
        let missing: Vec<u64> = blocks.filter(|block| !given.contains(block)).collect();
        Some((missing.first().copied()?, missing.len()))
    });
    Err(format!(
        "P6: the pool has {} of {} extents when all volumes are gone; the first missing block, and how many \
         there are in its extent: {missing:?}",
        counts.free, counts.all
    ))
}

/// How many blocks of all volumes have each content.
fn entries(world: &World) -> Result<BTreeMap<Content, u64>, String> {
    let mut entries = BTreeMap::new();
    for (group, volume) in &world.volumes {
        for (lba, block) in volume.blocks.iter().enumerate() {
            let mut possible = block.now.iter();
            match (possible.next(), possible.next()) {
                (Some(0), None) => {}
                (Some(content), None) => *entries.entry(*content).or_insert(0) += 1,
                _ => return Err(format!("block {lba} of group {group} was not read")),
            }
        }
    }
    Ok(entries)
}

/// The rows of all shards: blocks, and their references.
fn rows(world: &World) -> Result<BTreeMap<u64, u64>, String> {
    let mut all = BTreeMap::new();
    for shard in (0..SHARDS).map(Shard) {
        let index = pools(world).find_map(|pool| pool.shard_index(shard));
        let index = index.ok_or_else(|| format!("nobody serves shard {shard}"))?;
        let rows = index.rows(Fingerprint::default(), ROWS_MAX);
        for (_, row) in rows.map_err(|error| format!("shard {shard}: {error}"))? {
            if all.insert(row.pba.0, row.references).is_some() {
                return Err(format!("P6: two rows have block {}", row.pba));
            }
        }
    }
    Ok(all)
}

/// Every block of an extent that was leased is free in one group, has a row, or was given to the pool.
fn custody(world: &World, rows: BTreeSet<u64>) -> Step {
    let mut keepers: BTreeMap<u64, GroupId> = BTreeMap::new();
    let mut extents: BTreeSet<u64> = rows.iter().map(|block| block / EXTENT).collect();
    for pool in pools(world) {
        for (group, store) in pool.stores() {
            let free = store.space().free_runs();
            for run in free.map_err(|error| format!("group {group}: {error}"))? {
                for block in run.start.0..run.start.0 + run.count {
                    extents.insert(block / EXTENT);
                    if rows.contains(&block) {
                        return Err(format!(
                            "P3: block {block} has a row and is free in {group}"
                        ));
                    }
                    if let Some(other) = keepers.insert(block, group) {
                        return Err(format!(
                            "P6: block {block} is free in {other} and in {group}"
                        ));
                    }
                }
            }
        }
    }
    let given = world.cluster.given_blocks();
    let given: BTreeSet<u64> = given.iter().map(|block| block.0).collect();
    let is_known =
        |block: &u64| rows.contains(block) || keepers.contains_key(block) || given.contains(block);
    let missing = |extent: &u64| {
        let blocks = (extent * EXTENT).max(1)..(extent + 1) * EXTENT;
        let mut lost = blocks.filter(|block| !is_known(block));
        lost.next()
    };
    match extents.iter().find_map(missing) {
        Some(block) => Err(format!("P6: block {block} is nobody's")),
        None => Ok(()),
    }
}

fn pools(world: &World) -> impl Iterator<Item = &SharedPool> {
    (0..HOSTS).filter_map(|host| world.hosts[host].as_ref().map(|process| &*process.pool))
}
