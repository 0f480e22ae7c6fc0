//! The cost of a volume's snapshots for its readers: pages of metadata read, and segments put into the cache.

use onefold_engine::Part;
use onefold_engine::simulated::Op;
use onefold_metadata::LEAF_BYTES;
use onefold_store::{Blocking, Volume};

use crate::common::{BLOCK, MEMORY, MIB, World, new_volume, pool_of, read, snapshot, write};

const SEGMENTS: u64 = 8;
const BLOCKS_PER_SEGMENT: u64 = 512;
const SIZE: u64 = SEGMENTS * BLOCKS_PER_SEGMENT * BLOCK;

/// The cost of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    pages: u64,
    segments: u64,
}

fn cost(world: &World, work: impl FnOnce()) -> Cost {
    let cached = || world.memory_stat().unwrap().segments / LEAF_BYTES;
    let before = cached();
    world.engine.reset_counts();
    work();
    Cost {
        pages: world.engine.count(Part::Meta, Op::Read).count,
        segments: cached() - before,
    }
}

/// Two equal volumes, with a block in each segment but the last one.
fn two_volumes() -> World {
    let world = World::new(&pool_of(64 * MIB), MEMORY);
    for name in ["many", "none"] {
        let volume = new_volume(&world, name, SIZE);
        for segment in 0..SEGMENTS - 1 {
            write(&volume, segment * BLOCKS_PER_SEGMENT, [1 + segment]);
        }
    }
    world
}

/// All is in the trees on disk, and nothing in the cache.
fn closed_and_opened(world: World) -> World {
    world.close().unwrap();
    world.reopen()
}

fn read_all(volume: &Volume) {
    for segment in 0..SEGMENTS {
        let expected = (segment < SEGMENTS - 1).then_some(1 + segment);
        assert_eq!(
            read(volume, segment * BLOCKS_PER_SEGMENT, 1),
            [expected.unwrap_or(0)]
        );
    }
}

#[test]
fn snapshots_without_changes_cost_readers_nothing() {
    let world = two_volumes();
    for n in 0..50 {
        snapshot(&world, "many", &format!("s{n}"));
    }
    let world = closed_and_opened(world);
    let [many, none] = ["many", "none"].map(|name| world.volume(name).unwrap());
    let all = Cost {
        pages: SEGMENTS - 1,
        segments: SEGMENTS - 1,
    };
    let nothing = Cost {
        pages: 0,
        segments: 0,
    };
    for volume in [&many, &none] {
        assert_eq!(cost(&world, || read_all(volume)), all);
        let extents = || {
            let extents = volume.extents(0..SIZE, 100, Blocking::Yes).unwrap();
            assert_eq!(extents.len() as u64, 2 * (SEGMENTS - 1));
        };
        assert_eq!(cost(&world, extents), nothing);
    }
}

#[test]
fn making_a_view_reads_each_changed_page_once_and_caches_only_the_view() {
    let world = two_volumes();
    let changed = |layer: u64| layer % (SEGMENTS / 2);
    const LAYERS: u64 = 20;
    for n in 0..LAYERS {
        snapshot(&world, "many", &format!("s{n}"));
        let volume = world.volume("many").unwrap();
        write(
            &volume,
            changed(n) * BLOCKS_PER_SEGMENT + 100 + n,
            [100 + n],
        );
    }
    snapshot(&world, "many", "last");
    let world = closed_and_opened(world);
    let volume = world.volume("many").unwrap();
    for segment in 0..SEGMENTS {
        let layers = 0..LAYERS;
        let changes: Vec<u64> = layers.filter(|n| changed(*n) == segment).collect();
        let read = || {
            for n in &changes {
                let lba = segment * BLOCKS_PER_SEGMENT + 100 + n;
                assert_eq!(read(&volume, lba, 1), [100 + n]);
            }
            assert_eq!(read(&volume, segment * BLOCKS_PER_SEGMENT + 99, 1), [0]);
        };
        let is_in_first = u64::from(segment < SEGMENTS - 1);
        let first = cost(&world, read);
        assert_eq!(
            first,
            Cost {
                pages: changes.len() as u64 + is_in_first,
                segments: 1
            }
        );
        assert_eq!(
            cost(&world, read),
            Cost {
                pages: 0,
                segments: 0
            }
        );
    }
}

#[test]
fn comparing_snapshots_puts_only_views_into_the_cache() {
    let world = two_volumes();
    snapshot(&world, "many", "old");
    for n in 0..20 {
        let volume = world.volume("many").unwrap();
        write(&volume, BLOCKS_PER_SEGMENT + 100 + n, [100 + n]);
        snapshot(&world, "many", &format!("s{n}"));
    }
    let world = closed_and_opened(world);
    let [old, new] = ["many@old", "many@s19"].map(|name| world.volume(name).unwrap());
    let compare = || {
        let changes = new.changes(&old, 0..SIZE, 100, Blocking::Yes).unwrap();
        assert_eq!(changes.len(), 3);
    };
    // The page of the layer that both stand on is its view.
    assert_eq!(
        cost(&world, compare),
        Cost {
            pages: 21,
            segments: 1
        }
    );
}

#[test]
fn counting_the_data_of_a_volume_puts_nothing_into_the_cache() {
    let world = two_volumes();
    snapshot(&world, "many", "old");
    write(&world.volume("many").unwrap(), 100, [100, 101]);
    snapshot(&world, "many", "new");
    write(&world.volume("many").unwrap(), 1, [102]);
    let world = closed_and_opened(world);
    let count = || {
        let data = world
            .volume("many")
            .and_then(|volume| world.accounting().data(&volume, u64::MAX))
            .unwrap()
            .unwrap();
        assert_eq!(data.blocks, SEGMENTS - 1 + 3);
        let locality = world
            .volume("many")
            .and_then(|volume| world.accounting().locality(&volume, u64::MAX))
            .unwrap()
            .unwrap();
        assert_eq!(locality.blocks, data.blocks);
    };
    assert_eq!(cost(&world, count).segments, 0);
}
