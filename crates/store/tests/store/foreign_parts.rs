//! Another user's file in the place of a part: nothing is written to it, and the pool is opened if
//! it can do without that part.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_store::{CreateOptions, IndexKind, ScrubRun, Store, StoreError, StoreErrorKind};
use tempfile::TempDir;

use crate::common::{self, KINDS, LITTLE_MEMORY, MIB, findings, new_volume, pool_of, read, write};

fn open(pool: &Path) -> Result<Arc<Store>, StoreError> {
    let engine = EmbeddedEngine::new(pool, CacheMode::Host);
    Ok(common::open(engine, LITTLE_MEMORY)?.0)
}

/// A pool that was closed, with a volume `v` whose first block has the content 7.
fn closed_pool(pool: &Path, index: IndexKind) {
    let options = CreateOptions {
        index,
        ..pool_of(16 * MIB)
    };
    let engine = EmbeddedEngine::new(pool, CacheMode::Host);
    Store::create(&engine, &options).unwrap();
    let store = open(pool).unwrap();
    write(&new_volume(&store, "v", MIB), 0, [7]);
    store.close().unwrap();
}

/// Gives a file a part's name as a second one. Its content can be read under the first name,
/// whatever happens to the part.
fn put_foreign(pool: &Path, part: Part, outside: &TempDir) -> (PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..MIB as u32).map(|n| (n % 251) as u8 + 1).collect();
    let precious = outside.path().join("precious");
    let _ = fs::remove_file(&precious);
    fs::write(&precious, &bytes).unwrap();
    let path = pool.join(part.name());
    let _ = fs::remove_file(&path);
    fs::hard_link(&precious, path).unwrap();
    (precious, bytes)
}

/// Reads and writes, as if nothing were missing.
fn volumes_are_served(store: &Store) {
    let volume = store.volume("v").unwrap();
    assert_eq!(read(&volume, 0, 1), [7]);
    write(&volume, 2, [8]);
    volume.flush().unwrap();
}

#[test]
fn a_foreign_index_is_never_written() {
    for kind in KINDS {
        let (pool, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        closed_pool(pool.path(), kind);
        let (precious, bytes) = put_foreign(pool.path(), Part::Index, &outside);
        let store = open(pool.path()).unwrap();
        volumes_are_served(&store);
        assert_eq!(findings(&store, false).len(), 1, "{kind:?}");
        assert!(fs::read(&precious).unwrap() == bytes, "opened: {kind:?}");
        // A repair makes another file, and leaves this one to its owner.
        assert_eq!(findings(&store, true).len(), 1, "{kind:?}");
        assert_eq!(findings(&store, false), [], "{kind:?}");
        store.close().unwrap();
        assert!(fs::read(&precious).unwrap() == bytes, "repaired: {kind:?}");
        drop(store);
        assert_eq!(findings(&open(pool.path()).unwrap(), false), []);
    }
}

#[test]
fn a_foreign_next_index_is_never_written() {
    let (pool, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    closed_pool(pool.path(), IndexKind::Hash);
    let (precious, bytes) = put_foreign(pool.path(), Part::NextIndex, &outside);
    let store = open(pool.path()).unwrap();
    store
        .index()
        .convert(IndexKind::Btree, &mut |_, _| {})
        .unwrap();
    store.close().unwrap();
    drop(store);
    assert!(fs::read(&precious).unwrap() == bytes);
    assert_eq!(findings(&open(pool.path()).unwrap(), false), []);
}

#[test]
fn a_foreign_scrub_part_is_never_written() {
    let (pool, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    closed_pool(pool.path(), IndexKind::Hash);
    let (precious, bytes) = put_foreign(pool.path(), Part::Scrub, &outside);
    let store = open(pool.path()).unwrap();
    volumes_are_served(&store);
    let found = findings(&store, false);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.contains("move it away"), "{found:?}");
    let scrubbed = store
        .scrub()
        .begin(None, 0)
        .and_then(|()| store.scrub().step(&mut ScrubRun::default()).map(drop));
    let error = scrubbed.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::MissingPart, "{error}");
    store.close().unwrap();
    drop(store);
    assert!(fs::read(&precious).unwrap() == bytes);
    // The remedy that the message gives.
    fs::remove_file(pool.path().join("scrub")).unwrap();
    assert_eq!(findings(&open(pool.path()).unwrap(), false), []);
}

#[test]
fn nothing_is_written_where_a_needed_part_is_foreign() {
    let needed = [
        Part::Superblock,
        Part::Meta,
        Part::Log,
        Part::Data,
        Part::Secret,
    ];
    for part in needed {
        let (pool, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        closed_pool(pool.path(), IndexKind::Memory);
        let (precious, bytes) = put_foreign(pool.path(), part, &outside);
        let others = Part::ALL.into_iter().filter(|other| *other != part);
        let others: Vec<PathBuf> = others.map(|other| pool.path().join(other.name())).collect();
        let before: Vec<_> = others.iter().map(|path| fs::read(path).ok()).collect();
        let error = open(pool.path()).err().unwrap();
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{part:?}: {error}");
        assert!(error.to_string().contains(part.name()), "{error}");
        assert!(fs::read(&precious).unwrap() == bytes, "{part:?}");
        let after: Vec<_> = others.iter().map(|path| fs::read(path).ok()).collect();
        assert!(before == after, "{part:?}: another part was written");
    }
}
