//! The world of the store's tests: pools on simulated machines, volumes whose blocks have known
//! contents, jobs that run to their end, and checks.
//!
//! Every test binary includes it. `store` uses all of it, so there the compiler reports code that is
//! no longer used.

mod blocks;
mod disk;
mod random;

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

use onefold_engine::Engine;
use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_store::{
    BatchReport, CheckReport, CreateOptions, Finding, IndexKind, Lba, OpenOptions, Provisioning,
    Ready, RecoveryReport, Store, StoreError, Volume, VolumeOptions,
};

pub(crate) use blocks::{BLOCK, blocks, read, read_bytes, write};
pub(crate) use disk::{newest_root, page, place_of, superblock};
pub(crate) use random::Random;

pub(crate) const MIB: u64 = 1 << 20;

/// The store's memory where there is enough.
pub(crate) const MEMORY: u64 = 64 * MIB;

/// Less than the store's share of the least memory that the daemon can be given.
pub(crate) const LITTLE_MEMORY: u64 = 8 * MIB;

pub(crate) const KINDS: [IndexKind; 3] = [IndexKind::Hash, IndexKind::Btree, IndexKind::Memory];

/// A pool with the smallest log.
pub(crate) const fn pool_of(size_bytes: u64) -> CreateOptions {
    CreateOptions {
        block_size: BLOCK as u32,
        size_bytes,
        log_bytes: 256 << 10,
        index: IndexKind::Hash,
        provisioning: Provisioning::Thin,
    }
}

/// A simulated machine, and the store that is open on it.
pub(crate) struct World {
    pub(crate) engine: SimulatedEngine,
    pub(crate) store: Arc<Store>,
    memory_bytes: u64,
}

impl World {
    /// With an empty pool.
    pub(crate) fn new(options: &CreateOptions, memory_bytes: u64) -> Self {
        Self::seeded(1, options, memory_bytes)
    }

    pub(crate) fn seeded(seed: u64, options: &CreateOptions, memory_bytes: u64) -> Self {
        let engine = SimulatedEngine::new(seed);
        Store::create(&engine, options).unwrap();
        Self::on(engine, memory_bytes)
    }

    /// With the pool that this machine has.
    pub(crate) fn on(engine: SimulatedEngine, memory_bytes: u64) -> Self {
        let (store, _) = open(engine.clone(), memory_bytes).unwrap();
        Self {
            engine,
            store,
            memory_bytes,
        }
    }

    /// Drops the store, and opens the pool with another one.
    pub(crate) fn reopen(self) -> Self {
        drop(self.store);
        Self::on(self.engine, self.memory_bytes)
    }

    pub(crate) fn crash(self, kind: CrashKind) -> Self {
        let engine = self.engine.crash(kind);
        Self { engine, ..self }.reopen()
    }
}

impl Deref for World {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

pub(crate) fn open(
    engine: impl Engine + 'static,
    memory_bytes: u64,
) -> Result<(Arc<Store>, RecoveryReport), StoreError> {
    let options = OpenOptions {
        memory_bytes,
        ..OpenOptions::default()
    };
    Store::open(Arc::new(engine), &options)
}

pub(crate) fn new_volume(store: &Store, name: &str, size_bytes: u64) -> Arc<Volume> {
    let options = VolumeOptions::new(size_bytes);
    store.create_volume(name, &options).unwrap();
    store.volume(name).unwrap()
}

/// And releases all its blocks.
pub(crate) fn delete_volume(store: &Store, name: &str) {
    store.delete_volume(name).unwrap();
    store.deletions().finish(&mut |_, _| {}).unwrap();
}

pub(crate) fn snapshot(store: &Store, volume: &str, name: &str) {
    let wanted = [(volume.to_owned(), name.to_owned())];
    store.create_snapshots(&wanted).unwrap();
}

/// Publishes all of a volume.
pub(crate) fn dedup(store: &Store, volume: &Volume) -> BatchReport {
    dedup_ready(store, volume, Ready::All).unwrap()
}

/// One pass of the finder over a volume. Returns the sums of the counts that tests use.
pub(crate) fn dedup_ready(
    store: &Store,
    volume: &Volume,
    ready: Ready,
) -> Result<BatchReport, StoreError> {
    let mut sum = BatchReport::default();
    let mut cursor = Lba(0);
    while !sum.at_end {
        let batch = store.dedup().find_batch(volume, &mut cursor, ready)?;
        sum.scanned += batch.scanned;
        sum.unique += batch.unique;
        sum.duplicates += batch.duplicates;
        sum.cached += batch.cached;
        sum.at_end = batch.at_end;
    }
    Ok(sum)
}

/// Releases all dropped references. Returns how many blocks were freed.
pub(crate) fn collect(store: &Store) -> Result<u64, StoreError> {
    let mut freed = 0;
    loop {
        let batch = store.dedup().collect_batch()?;
        freed += batch.freed;
        if batch.released == 0 {
            return Ok(freed);
        }
    }
}

/// The progress of work that is not to be cut short.
pub(crate) fn go_on(_done: u64, _all: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[track_caller]
pub(crate) fn check(store: &Store, repair: bool) -> (CheckReport, Vec<Finding>) {
    let mut findings = Vec::new();
    let report = store.check(repair, &mut |finding| findings.push(finding));
    let report = report.unwrap_or_else(|error| panic!("check: {:?}: {error}", error.kind()));
    assert_eq!(report.findings, findings.len() as u64);
    (report, findings)
}

#[track_caller]
pub(crate) fn findings(store: &Store, repair: bool) -> Vec<Finding> {
    check(store, repair).1
}

/// Every block is accounted for.
#[track_caller]
pub(crate) fn assert_clean(store: &Store) -> CheckReport {
    let (report, findings) = check(store, false);
    assert_eq!(findings, []);
    report
}
