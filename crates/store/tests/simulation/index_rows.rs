//! The index, read and changed behind the store's back while the pool is closed.

use std::sync::Arc;

use onefold_engine::simulated::SimulatedEngine;
use onefold_engine::{Engine, Part};
use onefold_format::Secret;
use onefold_format::page::PAGE_BYTES;
use onefold_index::{Fingerprint, FingerprintIndex, Key, Row, StreamId};

use crate::common::{newest_root, superblock};

/// The store's only stream.
const STREAM: StreamId = StreamId(1);

const CACHE_BYTES: u64 = 1 << 20;

const ROWS_MAX: usize = 100_000;

fn open(engine: &SimulatedEngine) -> Arc<dyn FingerprintIndex> {
    let superblock = superblock(engine);
    let disk = engine.open(Part::Index).unwrap();
    onefold_index::open(superblock.index, disk, superblock.pool, CACHE_BYTES).unwrap()
}

/// Makes the index have other rows, as if those had been counted.
pub(crate) fn change(engine: &SimulatedEngine, change: impl FnOnce(&mut Vec<(Fingerprint, Row)>)) {
    let index = open(engine);
    let mut rows = index.rows(Fingerprint([0; 16]), ROWS_MAX).unwrap();
    change(&mut rows);
    index.begin_rebuild().unwrap();
    assert_eq!(index.add_rows(&rows).unwrap(), [], "rows were refused");
    let root = newest_root(engine).unwrap();
    index.finish_rebuild(STREAM, root.next_batch - 1).unwrap();
    index.close().unwrap();
}

/// The fingerprint of a block in the default domain.
pub(crate) fn fingerprint(engine: &SimulatedEngine, block: &[u8]) -> Fingerprint {
    let page = engine.read_raw(Part::Secret, 0, PAGE_BYTES);
    let page = Box::new(page.try_into().unwrap());
    let secret = Secret::decode(&page, superblock(engine).pool).unwrap();
    Key::derive(&secret.0, 0).fingerprint(block)
}
