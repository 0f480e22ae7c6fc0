//! Memory that outlives the process, asked of both engines.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_engine::{Engine, Part};

const LEN: usize = 256 << 10;

fn is_remembered(engine: &dyn Engine) {
    let memory = engine.host_memory(LEN).unwrap();
    assert!(memory.len() >= LEN);
    let mut bytes = [1; 100];
    memory.read_at(&mut bytes, LEN - 100);
    assert_eq!(bytes, [0; 100], "it begins as zeros");
    memory.write_at(&[7; 100], LEN - 100);
    memory.write_at(&[8; 3], 5);
    memory.write_at(&[], LEN);
    drop(memory);
    // A shorter request does not cut the memory.
    let memory = engine.host_memory(1).unwrap();
    assert!(memory.len() >= LEN);
    memory.read_at(&mut bytes, LEN - 100);
    assert_eq!(bytes, [7; 100]);
    memory.read_at(&mut bytes, 0);
    assert_eq!(bytes[..9], [0, 0, 0, 0, 0, 8, 8, 8, 0]);
    assert_eq!(engine.boot_id().unwrap(), engine.boot_id().unwrap());
}

#[test]
fn simulated() {
    is_remembered(&SimulatedEngine::new(1));
}

#[test]
fn embedded() {
    for parent in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        is_remembered(&EmbeddedEngine::new(directory.path(), CacheMode::Host));
        let metadata = std::fs::metadata(directory.path().join("tail")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(metadata.blocks() * 512 >= LEN as u64, "its space is there");
    }
}

#[test]
fn a_link_in_its_place_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::write(&elsewhere, b"somebody's").unwrap();
    symlink(&elsewhere, directory.path().join("tail")).unwrap();
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Host);
    let error = engine.host_memory(LEN).err().unwrap();
    assert!(error.to_string().contains("tail"), "{error}");
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"somebody's");
}

#[test]
fn a_file_with_another_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::write(&elsewhere, b"somebody's").unwrap();
    std::fs::hard_link(&elsewhere, directory.path().join("tail")).unwrap();
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Host);
    let error = engine.host_memory(LEN).err().unwrap();
    assert!(error.to_string().contains("another name"), "{error}");
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"somebody's");
}

#[test]
fn something_else_in_its_place_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("tail")).unwrap();
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Host);
    assert!(engine.host_memory(LEN).is_err());
}

#[test]
#[should_panic(expected = "of a mapping of")]
fn beyond_its_end_is_a_mistake() {
    let directory = tempfile::tempdir().unwrap();
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Host);
    let memory = engine.host_memory(LEN).unwrap();
    memory.write_at(&[1; 2], memory.len() - 1);
}

#[test]
fn the_simulated_host_keeps_it_until_it_stops() {
    let engine = SimulatedEngine::new(1);
    engine.create(Part::Superblock, 0).unwrap();
    engine.host_memory(LEN).unwrap().write_at(&[7; 9], 100);
    let boot = engine.boot_id().unwrap();
    engine.halt();
    engine.host_memory(LEN).unwrap().write_at(&[9; 9], 100);
    for kind in [CrashKind::ProcessKilled, CrashKind::PowerLoss] {
        let next = engine.crash(kind);
        let mut bytes = [0; 9];
        next.host_memory(LEN).unwrap().read_at(&mut bytes, 100);
        assert_eq!(bytes, [7; 9], "a dead process writes nothing");
        let is_same = next.boot_id().unwrap() == boot;
        assert_eq!(is_same, kind == CrashKind::ProcessKilled);
    }
    let full = SimulatedEngine::new(1);
    full.set_has_host_memory(false);
    let error = full.host_memory(LEN).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
}
