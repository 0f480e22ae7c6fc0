//! Reads in a cluster for which no thread waits: their results, and events before they end.

use std::sync::{Arc, Mutex};

use onefold_engine::Part;
use onefold_engine::simulated::SimulatedEngine;
use onefold_store::{Blocking, PreparedRead, Store, Volume};

use crate::common::{BLOCK, MEMORY, MIB, World, blocks, new_volume, pool_of, read_bytes, write};

fn pool(seed: u64) -> World {
    let engine = SimulatedEngine::of_cluster(seed);
    engine.set_object_bytes(64 << 10);
    Store::create(&engine, &pool_of(16 * MIB)).unwrap();
    World::on(engine, MEMORY)
}

/// Starts the read. Returns its result, or nothing if it has to be repeated in the ordinary way.
fn end(prepared: PreparedRead, len: usize) -> Option<Vec<u8>> {
    let found = Arc::new(Mutex::new(None));
    let told = Arc::clone(&found);
    prepared.start(move |bytes| {
        *told.lock().unwrap() = bytes.map(|bytes| {
            let mut buf = vec![0xee; len];
            bytes.copy_to(&mut buf);
            buf
        });
    });
    found.lock().unwrap().take()
}

fn prepare(volume: &Arc<Volume>, offset: u64, len: usize) -> PreparedRead {
    let prepared = volume.prepare_read(offset, len);
    prepared.expect("it needs the cluster alone")
}

#[test]
fn they_find_what_other_reads_find() {
    let world = pool(1);
    let volume = new_volume(&world, "a", 4 * MIB);
    write(&volume, 0, 1..41);
    volume.trim(10 * BLOCK, 3 * BLOCK, Blocking::Yes).unwrap();
    // Elsewhere in the pool.
    write(&volume, 60, 101..105);
    write(&volume, 20, [201]);
    for (offset, len) in [
        (0, BLOCK),
        (805, 1),
        (BLOCK - 1, 2),
        (9 * BLOCK + 7, 5 * BLOCK),
        (8 * BLOCK, 8 * BLOCK),
        (19 * BLOCK + 511, 2 * BLOCK),
        (58 * BLOCK + 100, 4 * BLOCK + 300),
    ] {
        let found = end(prepare(&volume, offset, len as usize), len as usize);
        let expected = read_bytes(&volume, offset, len);
        assert!(found == Some(expected), "{len} bytes at {offset}");
    }
    // Zeros in a part of a block may be all that is left of it.
    assert!(end(prepare(&volume, 5, 1), 1).is_none());
    // Nothing there has to be waited for.
    assert!(volume.prepare_read(0, 0).is_none());
    assert!(volume.prepare_read(4 * MIB, 1).is_none());
}

#[test]
fn their_blocks_are_not_reused_meanwhile() {
    let world = pool(1);
    let (volume, other) = (
        new_volume(&world, "a", 4 * MIB),
        new_volume(&world, "b", 64 * MIB),
    );
    write(&volume, 0, 1..257);
    volume.flush().unwrap();
    let prepared = prepare(&volume, 0, 4 * BLOCK as usize);
    volume.trim(0, 4 * MIB, Blocking::Yes).unwrap();
    // All that can be had.
    for lba in 0..4096 {
        let content = blocks([1000 + lba]);
        if other.write(lba * BLOCK, &content, Blocking::Yes).is_err() {
            break;
        }
        if lba % 64 == 0 {
            other.flush().unwrap();
            world.tidy(true).unwrap();
        }
    }
    let found = end(prepared, 4 * BLOCK as usize);
    assert!(found == Some(blocks(1..5)), "another volume's bytes");
}

#[test]
fn what_was_lost_is_read_in_the_ordinary_way() {
    let world = pool(1);
    let volume = new_volume(&world, "a", 4 * MIB);
    write(&volume, 0, 1..65);
    let missing = prepare(&volume, 0, BLOCK as usize);
    let recreated = prepare(&volume, BLOCK, BLOCK as usize);
    (0..256).for_each(|n| world.engine.lose_object(Part::Data, n * (64 << 10)));
    assert!(end(missing, BLOCK as usize).is_none());
    write(&volume, 0, 101..102);
    write(&volume, 2, 103..105);
    assert!(end(recreated, BLOCK as usize).is_none());
    let error = volume.read(BLOCK, &mut [0; BLOCK as usize], Blocking::Yes);
    assert!(error.is_err());
}
