//! A pool with one volume: write, snapshot, write again, and read both states.
//!
//! `cargo run -p onefold-store --example volume`

use std::error::Error;
use std::sync::Arc;

use onefold_engine::embedded::{CacheMode, EmbeddedEngine, PoolLock};
use onefold_store::{Blocking, CreateOptions, OpenOptions, Store, VolumeOptions};

const MIB: u64 = 1 << 20;
const BLOCK_BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Host);
    // A pool has one owner: the lock is held for as long as the store is open.
    let _lock = PoolLock::acquire(directory.path())?;
    let options = CreateOptions {
        size_bytes: 1024 * MIB,
        ..CreateOptions::default()
    };
    Store::create(&engine, &options)?;

    let options = OpenOptions {
        memory_bytes: 64 * MIB,
        ..OpenOptions::default()
    };
    let (store, _recovery) = Store::open(Arc::new(engine), &options)?;
    store.create_volume("disk", &VolumeOptions::new(64 * MIB))?;
    let disk = store.volume("disk")?;

    disk.write(0, &[1; BLOCK_BYTES], Blocking::Yes)?;
    store.create_snapshots(&[("disk".to_owned(), "before".to_owned())])?;
    disk.write(0, &[2; BLOCK_BYTES], Blocking::Yes)?;
    // Without it the second write would survive the process, but not a power loss.
    disk.flush()?;

    let before = store.volume("disk@before")?;
    let (mut now, mut then) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
    disk.read(0, &mut now, Blocking::Yes)?;
    before.read(0, &mut then, Blocking::Yes)?;
    assert_eq!((now, then), ([2; BLOCK_BYTES], [1; BLOCK_BYTES]));
    println!("disk begins with {}, disk@before with {}", now[0], then[0]);

    store.close()?;
    Ok(())
}
