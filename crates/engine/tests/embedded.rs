//! Behaviour of the embedded engine alone: files, links, devices, writes without a thread, and
//! messages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_engine::{Disk, Engine, Part, PreparedWrite};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

fn engine(directory: &Path) -> EmbeddedEngine {
    EmbeddedEngine::new(directory, CacheMode::Host)
}

#[test]
fn files_are_sparse_and_for_their_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    engine(directory.path())
        .create(Part::Meta, 1 << 40)
        .unwrap();
    let metadata = fs::metadata(directory.path().join("meta")).unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (1 << 40, 0));
    for part in Part::ALL {
        if part != Part::Meta {
            engine(directory.path()).create(part, 0).unwrap();
        }
        let metadata = fs::metadata(directory.path().join(part.name())).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{part:?}");
    }
}

#[test]
fn only_data_is_ever_accessed_directly() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Direct);
    for part in Part::ALL {
        match engine.create(part, 0) {
            Ok(disk) => assert_eq!(disk.alignment() > 1, part == Part::Data, "{part:?}"),
            Err(error) => {
                assert_eq!((part, error.kind()), (Part::Data, ErrorKind::Unsupported));
                println!("SKIPPED for {part:?}: {error}");
            }
        }
    }
}

#[test]
fn the_directory_is_created_unless_something_is_in_it() {
    let parent = tempfile::tempdir().unwrap();
    let pool = parent.path().join("pool");
    engine(&pool).create_directory().unwrap();
    engine(&pool).create_directory().unwrap();
    fs::write(pool.join("precious"), "x").unwrap();
    let error = engine(&pool).create_directory().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let error = engine(&parent.path().join("a/b"))
        .create_directory()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("a/b"), "{error}");
}

#[test]
fn data_can_live_elsewhere() {
    let pool = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("blocks");
    let engine = engine(pool.path());
    engine.create_data_link(&target).unwrap();
    assert!(
        engine
            .describe(Part::Data)
            .contains(target.to_str().unwrap())
    );
    // A link that leads nowhere yet: nothing to open, but something to create.
    assert_eq!(
        engine.open(Part::Data).err().unwrap().kind(),
        ErrorKind::NotFound
    );
    let disk = engine.create(Part::Data, 8192).unwrap();
    disk.write_at(b"here", 4096).unwrap();
    assert_eq!(&fs::read(&target).unwrap()[4096..4100], b"here");
    assert_eq!(
        engine.create(Part::Data, 0).err().unwrap().kind(),
        ErrorKind::AlreadyExists
    );
}

#[test]
fn data_never_replaces_what_is_there() {
    let pool = tempfile::tempdir().unwrap();
    let engine = engine(pool.path());
    let precious = pool.path().join("precious");
    fs::write(&precious, "x").unwrap();
    let error = engine.create_data_link(&precious).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    // Also if it appeared after the link was made.
    let late = pool.path().join("late");
    engine.create_data_link(&late).unwrap();
    fs::write(&late, "y").unwrap();
    assert_eq!(
        engine.create(Part::Data, 4096).err().unwrap().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(fs::read(&late).unwrap(), b"y");
    for (target, kind) in [
        ("/dev/null", ErrorKind::InvalidInput),
        ("/dev", ErrorKind::InvalidInput),
        ("/dev/absent/data", ErrorKind::NotFound),
    ] {
        let error = engine.create_data_link(Path::new(target)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn one_data_file_serves_one_pool_at_a_time() {
    let [first, second] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let owner = engine(first.path()).create(Part::Data, 4096).unwrap();
    let thief = engine(second.path());
    std::os::unix::fs::symlink(first.path().join("data"), second.path().join("data")).unwrap();
    let error = thief.open(Part::Data).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    drop(owner);
    thief.open(Part::Data).unwrap();
}

#[test]
fn what_is_no_file_is_refused_without_opening_it() {
    let pool = tempfile::tempdir().unwrap();
    fs::create_dir(pool.path().join("log")).unwrap();
    std::os::unix::fs::symlink("/dev/full", pool.path().join("meta")).unwrap();
    std::os::unix::fs::symlink("/dev/full", pool.path().join("data")).unwrap();
    for part in [Part::Log, Part::Meta, Part::Data] {
        let error = engine(pool.path()).open(part).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn a_link_in_the_place_of_a_part_is_not_followed() {
    let elsewhere = tempfile::tempdir().unwrap();
    let precious = elsewhere.path().join("precious");
    fs::write(&precious, "x").unwrap();
    let absent = elsewhere.path().join("absent");
    for part in Part::ALL.into_iter().filter(|part| *part != Part::Data) {
        for target in [&precious, &absent] {
            let pool = tempfile::tempdir().unwrap();
            std::os::unix::fs::symlink(target, pool.path().join(part.name())).unwrap();
            let error = engine(pool.path()).open(part).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{part:?}: {error}");
            assert!(error.to_string().contains(part.name()), "{error}");
            let created = engine(pool.path()).create(part, 4096);
            assert!(created.is_err(), "{part:?} was made at {target:?}");
        }
    }
    assert_eq!(fs::read(&precious).unwrap(), b"x");
    assert!(!absent.exists());
}

#[test]
fn the_link_of_the_data_is_followed_once() {
    let pool = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let (file, link) = (
        elsewhere.path().join("blocks"),
        elsewhere.path().join("link"),
    );
    fs::write(&file, [7; 4096]).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    // A link that leads to a file is the pool's; one that leads to a link may lead anywhere.
    std::os::unix::fs::symlink(&link, pool.path().join("data")).unwrap();
    let error = engine(pool.path()).open(Part::Data).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("symbolic link"), "{error}");
    let named = engine(pool.path()).with_data(&link);
    assert!(named.open(Part::Data).is_err());
    let named = engine(pool.path()).with_data(&file);
    named.open(Part::Data).unwrap();
    fs::remove_file(pool.path().join("data")).unwrap();
    std::os::unix::fs::symlink(&file, pool.path().join("data")).unwrap();
    engine(pool.path()).open(Part::Data).unwrap();
}

#[test]
fn errors_say_what_was_being_done_where() {
    let pool = tempfile::tempdir().unwrap();
    let disk = engine(pool.path()).create(Part::Log, 0).unwrap();
    let error = disk.write_at(&[0; 512], u64::MAX - 4095).unwrap_err();
    let place = format!(
        "writing 512 bytes at {} of {}",
        u64::MAX - 4095,
        pool.path().display()
    );
    assert!(error.to_string().starts_with(&place), "{error}");
    // The kernel's EFBIG or EINVAL, depending on its version, not something of ours.
    assert!(
        matches!(
            error.kind(),
            ErrorKind::FileTooLarge | ErrorKind::InvalidInput
        ),
        "{error}"
    );
}

#[test]
fn a_full_file_system_is_told_by_its_kind() {
    // In memory, where a request for too much is refused before anything is taken.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = engine(directory.path()).create(Part::Meta, 0).unwrap();
    let error = disk.reserve(1 << 43).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
}

#[test]
fn what_is_only_on_disk_is_not_waited_for() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = engine(directory.path());
    let disk = engine.create(Part::Data, 0).unwrap();
    let bytes = vec![7; 1 << 20];
    disk.write_at(&bytes, 0).unwrap();
    disk.sync().unwrap();
    let mut buffer = vec![0; 4096];
    assert!(disk.try_read_at(&mut buffer, 8192).unwrap());
    assert_eq!(buffer, bytes[..4096]);
    let file = fs::File::open(directory.path().join("data")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    // Where the file system has no cache to drop (in memory), it must still answer rightly.
    if disk.try_read_at(&mut buffer, 65536).unwrap() {
        assert_eq!(buffer, bytes[..4096]);
        println!("the file system answered at once after its cache was dropped");
    }
    disk.read_at(&mut buffer, 65536).unwrap();
    assert_eq!(buffer, bytes[..4096]);
    assert!(
        disk.try_read_at(&mut buffer, 65536).unwrap(),
        "it is in the cache now"
    );
}

/// Needs a block device that may be overwritten: run with `--ignored` and its path in
/// ONEFOLD_TEST_DEVICE.
#[test]
#[ignore = "overwrites the block device that ONEFOLD_TEST_DEVICE names"]
fn a_block_device_holds_data() {
    let device = std::env::var("ONEFOLD_TEST_DEVICE").unwrap();
    for cache in [CacheMode::Host, CacheMode::Direct] {
        let pool = tempfile::tempdir().unwrap();
        let engine = EmbeddedEngine::new(pool.path(), cache);
        // By a name that is a link, like those in /dev/disk/by-id.
        let names = tempfile::tempdir().unwrap();
        let by_id = names.path().join("by-id");
        std::os::unix::fs::symlink(&device, &by_id).unwrap();
        engine.create_data_link(&by_id).unwrap();
        let error = engine.create(Part::Data, 1 << 60).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        let disk = engine.create(Part::Data, 0).unwrap();
        let size = disk.len().unwrap();
        assert!(size >= 1 << 20, "{size}");
        assert_eq!(disk.allocated_bytes().unwrap(), size);
        assert_eq!(disk.alignment() > 1, cache == CacheMode::Direct);
        let error = engine.open(Part::Data).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
        let bytes = vec![5; 65536];
        disk.write_at(&bytes, size - 65536).unwrap();
        disk.sync().unwrap();
        let mut buffer = vec![1; 131_072];
        disk.read_at(&mut buffer, size - 65536).unwrap();
        assert!(buffer[..65536] == bytes && buffer[65536..].iter().all(|byte| *byte == 0));
        disk.read_at(&mut buffer[..1000], size - 1000).unwrap();
        assert!(buffer[..1000] == bytes[..1000]);
        let error = disk.write_at(&bytes, size - 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        disk.reserve(size).unwrap();
        assert_eq!(
            disk.reserve(size + 1).unwrap_err().kind(),
            ErrorKind::StorageFull
        );
        disk.discard(size - 65536, 65536).unwrap();
        disk.write_at(&bytes, size - 65536).unwrap();
        drop(disk);
        engine.open(Part::Data).unwrap();
    }
}

/// A new data part that bypasses the host's cache. Nothing if the file system cannot do that, or the host forbids
/// rings.
fn direct(directory: &Path) -> Option<Arc<dyn Disk>> {
    let engine = EmbeddedEngine::new(directory, CacheMode::Direct);
    let disk = engine
        .create(Part::Data, 1 << 20)
        .inspect_err(|error| println!("SKIPPED: {error}"))
        .ok()?;
    if disk.prepared_bytes_max() == 0 {
        println!("SKIPPED: io_uring is not to be had");
        return None;
    }
    Some(disk)
}

fn directory_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn prepare(disk: &dyn Disk, offset: u64) -> Option<Box<dyn PreparedWrite>> {
    disk.prepare_write(&[7; 4096], offset)
}

#[test]
fn only_so_many_writes_are_prepared_at_a_time() {
    let directory = directory_on_disk();
    let Some(disk) = direct(directory.path()) else {
        return;
    };
    let many = || Vec::from_iter(std::iter::from_fn(|| prepare(&*disk, 0)));
    let prepared = many();
    let count = prepared.len();
    assert!((32..1024).contains(&count), "{count}");
    let (told, ends) = mpsc::channel();
    for write in prepared {
        let told = told.clone();
        write.start(Box::new(move |written, _| told.send(written).unwrap()));
    }
    disk.submit();
    for _ in 0..count {
        ends.recv().unwrap().unwrap();
    }
    // The buffers of the last writes may come back a little after the writes end.
    while many().len() < count {
        thread::yield_now();
    }
}

#[test]
fn what_was_started_ends_before_the_part_is_closed() {
    let directory = directory_on_disk();
    let Some(disk) = direct(directory.path()) else {
        return;
    };
    let ended = Arc::new(AtomicUsize::new(0));
    for n in 0..32 {
        let ended = Arc::clone(&ended);
        let write = prepare(&*disk, n * 4096).unwrap();
        write.start(Box::new(move |written, _| {
            written.unwrap();
            ended.fetch_add(1, Ordering::SeqCst);
        }));
    }
    drop(disk);
    assert_eq!(ended.load(Ordering::SeqCst), 32);
    let disk = EmbeddedEngine::new(directory.path(), CacheMode::Direct).open(Part::Data);
    let mut found = vec![0; 32 * 4096];
    disk.unwrap().read_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
}

#[test]
fn a_defect_in_the_end_of_one_write_costs_no_other() {
    let directory = directory_on_disk();
    let Some(disk) = direct(directory.path()) else {
        return;
    };
    let (told, ends) = mpsc::channel();
    for n in 0..8 {
        let told = told.clone();
        let write = prepare(&*disk, n * 4096).unwrap();
        write.start(Box::new(move |written, _| {
            assert!(n % 2 == 0, "a defect, made by a test");
            told.send(written).unwrap();
        }));
    }
    disk.submit();
    drop(told);
    assert_eq!(ends.iter().map(Result::unwrap).count(), 4);
}

#[test]
fn the_end_of_a_write_may_close_the_part() {
    let directory = directory_on_disk();
    let Some(disk) = direct(directory.path()) else {
        return;
    };
    let write = prepare(&*disk, 0).unwrap();
    let (told, ends) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let last = Arc::clone(&disk);
    write.start(Box::new(move |written, _| {
        may_go.recv().unwrap();
        drop(last);
        told.send(written).unwrap();
    }));
    disk.submit();
    drop(disk);
    go.send(()).unwrap();
    ends.recv().unwrap().unwrap();
}

/// The state after `kill -9`: the kernel still has requests of the dead process.
#[test]
fn data_whose_owner_is_about_to_go_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(directory.path());
    let owned = engine.create(Part::Data, 1 << 20).unwrap();
    let going = thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(100));
        drop(owned);
    });
    drop(engine.open(Part::Data).unwrap());
    going.join().unwrap();
}

#[test]
fn a_write_that_fails_says_where() {
    let directory = directory_on_disk();
    let Some(disk) = direct(directory.path()) else {
        return;
    };
    let (told, ends) = mpsc::channel();
    let beyond = (i64::MAX as u64) / 4096 * 4096;
    let write = prepare(&*disk, beyond).unwrap();
    write.start(Box::new(move |written, data| {
        told.send((written, data.len())).unwrap();
    }));
    disk.submit();
    let (written, len) = ends.recv().unwrap();
    let error = written.unwrap_err().to_string();
    assert_eq!(len, 4096);
    let expected = format!("writing 4096 bytes at {beyond} of ");
    assert!(error.starts_with(&expected), "{error}");
    disk.write_at(&[1; 4096], 0).unwrap();
}
