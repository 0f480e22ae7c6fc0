//! What a batch costs between hosts: counted, so the figures hold for any machine.

use std::sync::Arc;

use onefold_engine::simulated::{ClusterCounts, ClusterRates, CrashKind, SimulatedCluster};
use onefold_format::PoolId;
use onefold_store::{
    Blocking, DedupMode, Lba, Ready, SharedDescription, SharedPool, Store, Volume, VolumeOptions,
    VolumeSettings,
};

use crate::world::{BLOCK, bytes_of, options, take_options};

const SHARDS: u16 = 64;

/// Blocks of a finder's whole batch.
const BATCH_BLOCKS: u64 = 16_384;

/// A group's store, and its volume.
type OneOf = (Arc<Store>, Arc<Volume>);

/// Two volumes in groups of one host, with the same content.
fn two_copies(cluster: &SimulatedCluster) -> (SharedPool, Vec<OneOf>) {
    cluster.set_extents(40);
    let description = SharedDescription {
        pool: PoolId([8; 16]),
        block_size: BLOCK as u32,
        shards: SHARDS,
    };
    SharedPool::create(&*cluster.host(0), &description, &take_options()).unwrap();
    let pool = SharedPool::open(cluster.host(0), description, options(0), None).unwrap();
    pool.serve_preferred().unwrap();
    let copies = ["a", "b"].map(|name| {
        let (_, store) = pool.create_group().unwrap();
        let volume = VolumeOptions::new(BATCH_BLOCKS * BLOCK);
        store.create_volume(name, &volume).unwrap();
        let volume = store.volume(name).unwrap();
        for lba in 0..BATCH_BLOCKS {
            let bytes = bytes_of(1 + lba);
            volume.write(lba * BLOCK, &bytes, Blocking::Yes).unwrap();
        }
        volume.flush().unwrap();
        (store, volume)
    });
    (pool, copies.to_vec())
}

fn counted(cluster: &SimulatedCluster, work: impl FnOnce()) -> ClusterCounts {
    let before = cluster.counts();
    work();
    let after = cluster.counts();
    ClusterCounts {
        calls: after.calls - before.calls,
        request_bytes: after.request_bytes - before.request_bytes,
        reply_bytes: after.reply_bytes - before.reply_bytes,
        data_bytes_written: after.data_bytes_written - before.data_bytes_written,
        ..ClusterCounts::default()
    }
}

#[test]
fn a_whole_batch_asks_shards_for_many_blocks_at_once() {
    let cluster = SimulatedCluster::new(1);
    let (pool, copies) = two_copies(&cluster);
    for (store, volume) in &copies {
        let mut cursor = Lba(0);
        let mut scanned = 0;
        let counts = counted(&cluster, || {
            let found = store.dedup().find_batch(volume, &mut cursor, Ready::All);
            scanned = found.unwrap().scanned;
        });
        let bytes = counts.request_bytes + counts.reply_bytes;
        // Each shard is asked for room, then gets its items.
        let (calls, items) = (counts.calls, scanned / u64::from(SHARDS));
        println!(
            "{scanned} blocks in {calls} calls, half of them with {items} items each; {:.1} bytes a block",
            bytes as f64 / scanned as f64
        );
        assert_eq!((scanned, calls), (BATCH_BLOCKS, 2 * u64::from(SHARDS)));
        assert!(bytes <= 40 * scanned, "{counts:?}");
    }
    pool.close().unwrap();
    cluster.kill(0, CrashKind::ProcessKilled);
}

#[test]
fn a_hit_sends_no_data() {
    /// Blocks that the volumes of the pool have, and as many that are new.
    const KNOWN: u64 = 512;
    for reply_lost in [0.0, 0.2] {
        let cluster = SimulatedCluster::new(3);
        let (pool, copies) = two_copies(&cluster);
        for (store, volume) in &copies {
            let found = store.dedup().find_batch(volume, &mut Lba(0), Ready::All);
            assert_eq!(found.unwrap().scanned, BATCH_BLOCKS);
        }
        let (_, store) = pool.create_group().unwrap();
        let settings = VolumeSettings {
            dedup: DedupMode::Inline,
            ..VolumeSettings::default()
        };
        let options = VolumeOptions::new(2 * KNOWN * BLOCK).with(settings);
        store.create_volume("inline", &options).unwrap();
        let volume = store.volume("inline").unwrap();
        // Nothing is looked up before the sessions of the shards are known.
        while !store.dedup().end_holds().unwrap() {}
        cluster.set_rates(ClusterRates {
            reply_lost,
            ..ClusterRates::default()
        });
        let counts = counted(&cluster, || {
            for lba in 0..2 * KNOWN {
                let content = if lba < KNOWN {
                    1 + lba
                } else {
                    BATCH_BLOCKS + lba
                };
                let bytes = bytes_of(content);
                volume.write(lba * BLOCK, &bytes, Blocking::Yes).unwrap();
            }
        });
        cluster.set_rates(ClusterRates::default());
        let hits = volume.inline_stat().hit_blocks;
        println!(
            "{hits} of {KNOWN} duplicates were hits; {} bytes of data were sent in {} calls",
            counts.data_bytes_written, counts.calls
        );
        let is_expected = if reply_lost > 0.0 {
            hits > 0 && hits < KNOWN
        } else {
            hits == KNOWN
        };
        assert!(is_expected, "{hits} hits");
        assert_eq!(counts.data_bytes_written, (2 * KNOWN - hits) * BLOCK);
        pool.close().unwrap();
        cluster.kill(0, CrashKind::ProcessKilled);
    }
}
