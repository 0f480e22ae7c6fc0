//! The requirements on every engine, the same for all.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::cluster::{Cluster, Holding, Owned};
use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_engine::rados::{OwnerEvent, RadosEngine, RadosPlace, TakeOptions};
use onefold_engine::simulated::{SimulatedCluster, SimulatedEngine};
use onefold_engine::{Disk, Engine, Part, ReadRange, WriteRange};
use onefold_format::GroupId;
use onefold_rados::{Client, ConnectOptions};
use std::io::ErrorKind;
use std::iter;
use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[test]
fn simulated() {
    conforms(&SimulatedEngine::new(1));
}

#[test]
fn simulated_with_alignment() {
    let engine = SimulatedEngine::new(2);
    engine.set_alignment(Part::Data, 4096);
    conforms(&engine);
}

#[test]
fn simulated_in_a_cluster() {
    conforms(&SimulatedEngine::of_cluster(3));
    let engine = SimulatedEngine::of_cluster(4);
    engine.set_object_bytes(64 << 10);
    conforms(&engine);
}

/// The parts that a group has for itself.
#[test]
fn simulated_in_a_shared_pool() {
    let pool = SimulatedCluster::new(5);
    pool.set_object_bytes(64 << 10);
    let group = Owned::Group(GroupId(1));
    pool.host(0).create(group).unwrap();
    let options = TakeOptions {
        patience: Duration::ZERO,
        asks: false,
        fence_interval: Duration::ZERO,
    };
    let holding = pool.host(0).take(group, &options).unwrap();
    let is_own = |part: &Part| !matches!(part, Part::Data | Part::Secret);
    let parts: Vec<Part> = Part::ALL.into_iter().filter(is_own).collect();
    conforms_in(&*holding, &parts);
}

#[test]
fn embedded_with_the_page_cache() {
    let directory = tempfile::tempdir().unwrap();
    conforms(&EmbeddedEngine::new(directory.path(), CacheMode::Host));
}

#[test]
fn embedded_on_a_file_system_in_memory() {
    // It cannot report on its cache, and has no disk: the fallbacks.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    conforms(&EmbeddedEngine::new(directory.path(), CacheMode::Host));
}

#[test]
fn embedded_direct() {
    // Not in the usual place for temporary files, which may be in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Direct);
    match engine
        .create(Part::Superblock, 0)
        .and_then(|_| engine.create(Part::Data, 0))
    {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("SKIPPED: {error}");
            return;
        }
        result => drop(result.unwrap()),
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    conforms(&EmbeddedEngine::new(directory.path(), CacheMode::Direct));
}

/// A pool without parts in a cluster: of ONEFOLD_CEPH_CONF, which has a Ceph pool `onefold`.
struct InCeph {
    client: Client,
    place: RadosPlace,
    _run: tempfile::TempDir,
}

impl InCeph {
    /// Returns nothing if there is no cluster.
    fn new(name: &str) -> Option<InCeph> {
        let client = InCeph::client()?;
        let run = tempfile::tempdir().unwrap();
        let place = RadosPlace {
            ceph_pool: "onefold".to_owned(),
            name: format!("{name}-{}", std::process::id()),
            run: run.path().to_path_buf(),
        };
        RadosEngine::create_pool(&client, &place).unwrap();
        Some(InCeph {
            client,
            place,
            _run: run,
        })
    }

    fn client() -> Option<Client> {
        let Some(conf) = std::env::var_os("ONEFOLD_CEPH_CONF") else {
            println!("SKIPPED: ONEFOLD_CEPH_CONF names no cluster");
            return None;
        };
        let options = ConnectOptions {
            conf_file: Some(conf.into()),
            ..ConnectOptions::default()
        };
        Some(Client::connect(&options).unwrap())
    }

    fn take(&self) -> RadosEngine {
        let options = TakeOptions {
            patience: Duration::ZERO,
            asks: false,
            fence_interval: Duration::from_secs(1),
        };
        RadosEngine::take(&self.client, &self.place, options).unwrap()
    }

    /// The pool's objects, for a test to damage.
    fn objects(&self) -> onefold_rados::Pool {
        self.client.pool("onefold", &self.place.name).unwrap()
    }
}

#[test]
fn rados() {
    let Some(ceph) = InCeph::new("conformance") else {
        return;
    };
    let engine = ceph.take();
    conforms(&engine);
    engine.remove_pool().unwrap();
    let objects = ceph.objects().objects();
    assert_eq!(objects.unwrap().count(), 0, "something is left");
}

/// An owner on another host never answers. The next owner fences it, and renews the fence after its entry was removed
/// from the blocklist: both while it runs and when it is started again.
#[test]
fn rados_keeps_out_whom_the_pool_was_taken_from() {
    let Some(ceph) = InCeph::new("fenced") else {
        return;
    };
    let frozen = InCeph::client().unwrap();
    let blocks = frozen.pool("onefold", &ceph.place.name).unwrap();
    blocks
        .lock_exclusive("g.0", "owner", "of a test", "frozen", None)
        .unwrap();
    let address = blocks.lockers("g.0", "owner").unwrap().remove(0).address;
    // The list leaves out the protocol's name.
    let address = address.trim_start_matches("v1:");
    let engine = ceph.take();
    let error = blocks.write_now("late", 0, b"x").unwrap_err();
    assert!(onefold_rados::is_fenced(&error), "{error}");
    // The owner renews its fences once a second.
    forget_fence(address);
    while !is_fenced(address) {}
    drop(engine);
    forget_fence(address);
    let engine = ceph.take();
    assert!(is_fenced(address));
    engine.remove_pool().unwrap();
}

fn blocklist(arguments: &[&str]) -> String {
    let conf = std::env::var_os("ONEFOLD_CEPH_CONF").unwrap();
    let mut ceph = std::process::Command::new("ceph");
    let ceph = ceph.arg("--conf").arg(conf).args(["osd", "blocklist"]);
    let output = ceph.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn is_fenced(address: &str) -> bool {
    blocklist(&["ls"]).contains(address)
}

fn forget_fence(address: &str) {
    assert!(is_fenced(address));
    blocklist(&["rm", address]);
}

#[test]
fn rados_misses_what_the_cluster_has_lost() {
    let Some(ceph) = InCeph::new("lost") else {
        return;
    };
    let objects = ceph.objects();
    let engine = ceph.take();
    let data = engine.create(Part::Data, 16 * MIB).unwrap();
    drop(engine.create(Part::Log, 16 * MIB).unwrap());
    data.write_at(&pattern(1, 12 * MIB as usize), 0).unwrap();
    objects.remove("d.0000000000000001").unwrap();
    let mut buffer = vec![0; 4096];
    let error = data.read_at(&mut buffer, 5 * MIB).unwrap_err();
    assert!(error.to_string().contains("d.0000000000000001"), "{error}");
    for offset in [0, 8 * MIB] {
        data.read_at(&mut buffer, offset).unwrap();
    }
    // The error names the range of the lost object, although the rest of the request can be read.
    let (one, other) = buffer.split_at_mut(2048);
    let mut ranges = [(one, 0), (other, 6 * MIB)].map(|(buf, offset)| ReadRange { buf, offset });
    assert_eq!(data.read_together(&mut ranges).unwrap_err().0, 1);
    // A rewritten object is as long as the write needs.
    data.write_at(&pattern(2, 512), 4 * MIB).unwrap();
    assert!(data.read_at(&mut [0; 512], 4 * MIB).is_ok());
    assert!(data.read_at(&mut [0; 512], 4 * MIB + 512).is_err());

    drop((data, engine));
    objects.remove("g.0.log.0000000000000002").unwrap();
    let engine = ceph.take();
    let error = engine.open(Part::Log).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(
        error.to_string().contains("g.0.log.0000000000000002"),
        "{error}"
    );

    let (told, hears) = mpsc::channel();
    engine.on_event(Box::new(move |event| told.send(event).unwrap()));
    objects.remove("g.0").unwrap();
    assert_eq!(hears.recv().unwrap(), OwnerEvent::Gone);
    for object in objects.objects().unwrap() {
        objects.remove(&object.unwrap()).unwrap();
    }
}

/// A disk that prepares no writes offers none; others prepare every write that the kernel would take.
fn prepared_writes_go_on_by_themselves(disk: &dyn Disk) {
    let (unit, bytes_max) = (disk.alignment(), disk.prepared_bytes_max());
    if bytes_max == 0 {
        assert!(disk.prepare_write(&vec![1; unit], 0).is_none());
        disk.submit();
        return;
    }
    assert!(disk.prepare_write(&vec![1; bytes_max + unit], 0).is_none());
    disk.write_at(&vec![1; 64 * unit], 0).unwrap();
    drop(disk.prepare_write(&vec![2; unit], 0).unwrap());
    let (told, ends) = mpsc::channel();
    for n in 1..=40_usize {
        let bytes = vec![n as u8; unit];
        let write = disk.prepare_write(&bytes, (n * unit) as u64).unwrap();
        let told = told.clone();
        write.start(Box::new(move |written, data| {
            assert!(data == bytes);
            told.send((n, written)).unwrap();
        }));
    }
    disk.submit();
    let mut numbers = Vec::new();
    for _ in 0..40 {
        let (number, written) = ends.recv().unwrap();
        written.unwrap();
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, Vec::from_iter(1..=40));
    let mut found = vec![0; 64 * unit];
    disk.read_at(&mut found, 0).unwrap();
    for (n, block) in found.chunks(unit).enumerate() {
        let expected = if (1..=40).contains(&n) { n as u8 } else { 1 };
        assert!(block.iter().all(|byte| *byte == expected), "{n}");
    }
}

/// The end of a write waits for a lock, and the thread that holds it reads, whether or not it finds anything: both end.
fn the_end_of_a_prepared_write_waits_for_a_reader(disk: &dyn Disk) {
    let unit = disk.alignment();
    let (lock, both) = (Arc::new(Mutex::new(())), Arc::new(Barrier::new(2)));
    let (of_end, meets) = (Arc::clone(&lock), Arc::clone(&both));
    let (ends, ended) = mpsc::channel();
    let Some(write) = disk.prepare_write(&vec![2; unit], 0) else {
        return;
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _held = lock.lock().unwrap();
            both.wait();
            both.wait();
            let _ = disk.read_at(&mut vec![0; unit], unit as u64);
        });
        both.wait();
        write.start(Box::new(move |written, _| {
            meets.wait();
            drop(of_end.lock().unwrap());
            ends.send(written).unwrap();
        }));
        disk.submit();
        ended.recv().unwrap().unwrap();
    });
}

/// A disk that prepares no reads offers none; others prepare every read of one range that the kernel would take.
fn prepared_reads_go_on_by_themselves(disk: &dyn Disk) {
    let (unit, bytes_max) = (disk.alignment(), disk.prepared_read_bytes_max());
    if bytes_max == 0 {
        assert!(disk.prepare_read(&[(0, unit)]).is_none());
        return;
    }
    assert!(disk.prepare_read(&[(0, bytes_max + unit)]).is_none());
    assert!(disk.prepare_read(&[(0, 0)]).is_none() && disk.prepare_read(&[]).is_none());
    let content = |n: usize| vec![n as u8 + 1; unit];
    let contents: Vec<u8> = (0..64).flat_map(content).collect();
    disk.write_at(&contents, 0).unwrap();
    drop(disk.prepare_read(&[(0, unit)]).unwrap());
    let (told, ends) = mpsc::channel();
    for n in 0..40_usize {
        let read = disk.prepare_read(&[((n * unit) as u64, unit)]).unwrap();
        let told = told.clone();
        read.start(Box::new(move |found| told.send((n, found)).unwrap()));
    }
    disk.submit();
    let mut numbers = Vec::new();
    for _ in 0..40 {
        let (number, found) = ends.recv().unwrap();
        assert!(found == Some(vec![content(number)]), "{number}");
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, Vec::from_iter(0..40));
}

/// The whole suite, on an engine without parts.
fn conforms(engine: &dyn Engine) {
    conforms_in(engine, &Part::ALL);
}

/// The whole suite, for some parts, among which are both indexes.
fn conforms_in(engine: &dyn Engine, parts: &[Part]) {
    parts_are_created_once_and_opened(engine, parts);
    for part in parts.iter().copied() {
        let disk = engine.open(part).unwrap();
        let alignment = disk.alignment();
        assert!(
            alignment.is_power_of_two() && alignment <= 65536,
            "{alignment}"
        );
        reads_what_was_written(&*disk);
        reads_any_range(&*disk);
        reads_ranges_together(&*disk, part);
        writes_ranges_together(&*disk);
        large_requests_work(&*disk);
        if part == Part::Data {
            misses_what_is_beyond_the_end(&*disk);
        } else {
            reads_zeros_beyond_the_end(&*disk);
        }
        prepared_writes_go_on_by_themselves(&*disk);
        the_end_of_a_prepared_write_waits_for_a_reader(&*disk);
        prepared_reads_go_on_by_themselves(&*disk);
        trying_to_read_agrees_with_reading(&*disk);
        discards(&*disk);
        reserves(&*disk);
        gets_shorter_and_longer(&*disk);
        refuses_what_is_out_of_range(&*disk);
        disk.sync().unwrap();
        forgetting_loses_nothing_that_was_synced(&*disk);
        drop(disk);
        survives_reopening(engine, part);
    }
    parts_take_the_place_of_others_and_go(engine);
    assert_ne!(engine.random_id().unwrap(), engine.random_id().unwrap());
    assert!(engine.unix_seconds() > 1_600_000_000);
}

fn parts_are_created_once_and_opened(engine: &dyn Engine, parts: &[Part]) {
    for part in parts.iter().copied() {
        assert!(
            engine.describe(part).contains(part.name()),
            "{}",
            engine.describe(part)
        );
        let error = engine.open(part).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(part.name()), "{error}");
        let disk = engine.create(part, 64 * 1024).unwrap();
        assert_eq!(disk.len().unwrap(), 64 * 1024);
        assert!([0, 64 * 1024].contains(&disk.allocated_bytes().unwrap()));
        disk.write_at(&pattern(1, unit(&*disk)), 0).unwrap();
        drop(disk);
        let error = engine.create(part, 0).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(error.to_string().contains(part.name()), "{error}");
        // The refused creation has not harmed it.
        let disk = engine.open(part).unwrap();
        assert_eq!(read(&*disk, 0, unit(&*disk)), pattern(1, unit(&*disk)));
        assert_eq!(disk.len().unwrap(), 64 * 1024);
    }
}

fn parts_take_the_place_of_others_and_go(engine: &dyn Engine) {
    for (part, seed) in [(Part::Index, 40), (Part::NextIndex, 41)] {
        let disk = engine.open(part).unwrap();
        disk.write_at(&pattern(seed, 5000), 0).unwrap();
        disk.sync().unwrap();
    }
    engine.replace(Part::Index, Part::NextIndex).unwrap();
    assert_eq!(
        engine.open(Part::NextIndex).err().unwrap().kind(),
        ErrorKind::NotFound
    );
    let disk = engine.open(Part::Index).unwrap();
    assert_eq!(read(&*disk, 0, 5000), pattern(41, 5000));
    drop(disk);
    let error = engine.replace(Part::Index, Part::NextIndex).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("index-next"), "{error}");
    let disk = engine.open(Part::Index).unwrap();
    assert_eq!(
        read(&*disk, 0, 5000),
        pattern(41, 5000),
        "it is still there"
    );
    drop(disk);
    for _ in 0..2 {
        engine.remove(Part::Index).unwrap();
        let error = engine.open(Part::Index).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    assert_eq!(engine.create(Part::Index, 0).unwrap().len().unwrap(), 0);
}

fn reads_what_was_written(disk: &dyn Disk) {
    let unit = unit(disk);
    for (seed, at) in [(2, 0), (3, 5), (4, 5), (5, 6), (6, 100)] {
        disk.write_at(&pattern(seed, unit * 3), at * unit as u64)
            .unwrap();
        assert_eq!(
            read(disk, at * unit as u64, unit * 3),
            pattern(seed, unit * 3)
        );
    }
    // The write at 6 came after the one at 5 and left its first unit.
    assert_eq!(
        read(disk, 5 * unit as u64, unit),
        pattern(4, unit * 3)[..unit]
    );
    disk.sync().unwrap();
    assert_eq!(read(disk, 6 * unit as u64, unit * 3), pattern(5, unit * 3));
    assert_eq!(disk.len().unwrap(), (103 * unit as u64).max(64 * 1024));
    // Empty requests are nothing.
    disk.write_at(&[], 500 * MIB).unwrap();
    assert!(read(disk, 0, 0).is_empty());
    assert!(disk.len().unwrap() < 500 * MIB);
    disk.discard(0, 0).unwrap();
}

fn reads_any_range(disk: &dyn Disk) {
    let unit = unit(disk);
    let bytes = pattern(7, unit * 8);
    disk.write_at(&bytes, 0).unwrap();
    for (from, to) in [
        (0, 1),
        (1, 2),
        (511, 513),
        (unit - 1, unit + 1),
        (3, unit * 8 - 3),
    ] {
        assert_eq!(
            read(disk, from as u64, to - from),
            bytes[from..to],
            "{from}..{to}"
        );
        let mut tried = vec![0xaa; to - from];
        if disk.try_read_at(&mut tried, from as u64).unwrap() {
            assert_eq!(tried, bytes[from..to], "{from}..{to}");
        }
    }
    // Buffers at any address, too.
    for shift in [1, 8, 512] {
        let mut buffer = vec![0; unit * 2 + shift];
        disk.read_at(&mut buffer[shift..], unit as u64).unwrap();
        assert_eq!(buffer[shift..], bytes[unit..unit * 3]);
        let source = [vec![0; shift], pattern(8, unit)].concat();
        disk.write_at(&source[shift..], 9 * unit as u64).unwrap();
        assert_eq!(read(disk, 9 * unit as u64, unit), pattern(8, unit));
        disk.write_at(&vec![0; unit], 9 * unit as u64).unwrap();
    }
}

fn reads_ranges_together(disk: &dyn Disk, part: Part) {
    let unit = unit(disk);
    let count = 700;
    let bytes = pattern(11, unit * count);
    disk.write_at(&bytes, 0).unwrap();
    let beyond = [bytes.clone(), vec![0; unit * 300]].concat();
    disk.set_len(bytes.len() as u64).unwrap();
    let every = |step: usize| (0..count / step).map(move |n| n * step..n * step + 1);
    let units: [Vec<Range<usize>>; 7] = [
        vec![],
        // One after the other in any order, the same twice, one within another.
        vec![5..9, 9..10, 0..5, 5..9, 6..7],
        // With little between them, and with much.
        vec![0..1, 2..3, 4..8, 9..10, 300..301, 17..18],
        // More than go out at a time.
        every(2).collect(),
        every(9).rev().collect(),
        (0..count).map(|n| n..n + 1).collect(),
        // Some of them beyond the end.
        vec![600..610, 690..720, 698..700, 701..702, 900..1000],
    ];
    for mut ranges in units {
        if part == Part::Data {
            // With a shift they end one byte later.
            ranges.retain(|range| range.end < count);
        }
        for shift in [0, 1] {
            let len = ranges.iter().map(|range| range.len() * unit).sum::<usize>();
            let mut buffer = vec![0xaa; len + 4096 + shift];
            let aligned = buffer.as_ptr().align_offset(4096);
            let (mut together, mut rest) = (Vec::new(), &mut buffer[aligned + shift..]);
            for range in &ranges {
                let (buf, after) = rest.split_at_mut(range.len() * unit);
                let offset = (range.start * unit + shift) as u64;
                together.push(ReadRange { buf, offset });
                rest = after;
            }
            disk.read_together(&mut together).unwrap();
            for (read, range) in together.iter().zip(&ranges) {
                let from = range.start * unit + shift;
                let expected = beyond[from..].iter().chain(iter::repeat(&0));
                assert!(
                    read.buf.iter().eq(expected.take(read.buf.len())),
                    "{range:?} of {ranges:?}, shifted by {shift}"
                );
            }
        }
    }
    disk.discard(0, bytes.len() as u64).unwrap();
}

fn writes_ranges_together(disk: &dyn Disk) {
    let unit = unit(disk);
    let bytes = pattern(8, 12 * unit);
    // On both sides of a place where an object may end, out of order, one of them empty, and beyond the end.
    let before = disk.len().unwrap();
    let end = before.max(16 * MIB).next_multiple_of(unit as u64);
    let places = [
        (4 * MIB, 0..3),
        (4 * MIB - 2 * unit as u64, 3..5),
        (0, 5..5),
        (end, 5..12),
    ];
    let of = |range: &Range<usize>| &bytes[range.start * unit..range.end * unit];
    let ranges = places.iter().map(|(offset, range)| WriteRange {
        bytes: of(range),
        offset: *offset,
    });
    disk.write_together(&ranges.collect::<Vec<_>>()).unwrap();
    for (offset, range) in &places {
        let expected = of(range);
        assert!(
            read(disk, *offset, expected.len()) == expected,
            "at {offset}"
        );
    }
    assert_eq!(disk.len().unwrap(), end + 7 * unit as u64);
    disk.write_together(&[]).unwrap();
    disk.discard(0, disk.len().unwrap()).unwrap();
    disk.set_len(before).unwrap();
}

fn large_requests_work(disk: &dyn Disk) {
    // Larger than the most that an implementation may copy at a time, and not a multiple of it.
    let bytes = pattern(9, 3 * MIB as usize + 64 * 1024);
    let source = [vec![0], bytes.clone()].concat();
    disk.write_at(&source[1..], MIB).unwrap();
    let mut buffer = vec![0; bytes.len() + 1];
    disk.read_at(&mut buffer[1..], MIB).unwrap();
    assert!(buffer[1..] == bytes);
    assert!(read(disk, MIB + 77, bytes.len() - 99) == bytes[77..bytes.len() - 22]);
}

fn reads_zeros_beyond_the_end(disk: &dyn Disk) {
    let unit = unit(disk);
    let end = disk.len().unwrap();
    disk.write_at(&pattern(10, unit), end).unwrap();
    let across = read(disk, end, unit * 3);
    assert_eq!(across[..unit], pattern(10, unit));
    assert!(across[unit..].iter().all(|byte| *byte == 0));
    assert!(
        read(disk, end + 100 * MIB, 5000)
            .iter()
            .all(|byte| *byte == 0)
    );
    let mut tried = vec![0xaa; 5000];
    if disk.try_read_at(&mut tried, end + 100 * MIB).unwrap() {
        assert!(tried.iter().all(|byte| *byte == 0));
    }
    assert_eq!(
        disk.len().unwrap(),
        end + unit as u64,
        "reading grows nothing"
    );
    // A hole that a write leaves behind.
    disk.write_at(&pattern(11, unit), end + 4 * unit as u64)
        .unwrap();
    assert!(
        read(disk, end + unit as u64, unit * 3)
            .iter()
            .all(|byte| *byte == 0)
    );
}

/// Missing data was lost: data is read only where it was written.
fn misses_what_is_beyond_the_end(disk: &dyn Disk) {
    let unit = unit(disk);
    let end = disk.len().unwrap();
    disk.write_at(&pattern(10, unit), end).unwrap();
    let beyond = end + unit as u64;
    let mut buffer = vec![0; 3 * unit];
    for offset in [end, beyond, beyond + 100 * MIB] {
        for shift in [0, 1] {
            let error = disk.read_at(&mut buffer, offset + shift).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            assert!(error.to_string().contains("data"), "{error}");
            if let Ok(is_read) = disk.try_read_at(&mut buffer, offset + shift) {
                assert!(!is_read, "at {offset}");
            }
        }
    }
    let (good, lost) = buffer.split_at_mut(unit);
    let mut ranges = [(good, end), (lost, beyond)].map(|(buf, offset)| ReadRange { buf, offset });
    let (n, error) = disk.read_together(&mut ranges).unwrap_err();
    assert_eq!((n, error.kind()), (1, ErrorKind::UnexpectedEof), "{error}");
    assert_eq!(disk.len().unwrap(), beyond, "reading grows nothing");
    assert_eq!(read(disk, end, unit), pattern(10, unit));
}

fn trying_to_read_agrees_with_reading(disk: &dyn Disk) {
    let unit = unit(disk);
    disk.write_at(&pattern(12, unit * 4), 0).unwrap();
    let mut tried = vec![0; unit * 4];
    if disk.try_read_at(&mut tried, 0).unwrap() {
        assert_eq!(tried, pattern(12, unit * 4));
    } else {
        assert!(!disk.is_cached(), "what was just written is in the cache");
    }
}

/// Whether the host can report how much it has allocated.
fn tells_allocated(disk: &dyn Disk) -> bool {
    disk.allocated_bytes().unwrap() != disk.len().unwrap()
}

fn discards(disk: &dyn Disk) {
    let bytes = pattern(13, MIB as usize);
    disk.write_at(&bytes, 8 * MIB).unwrap();
    disk.sync().unwrap();
    let before = disk.allocated_bytes().unwrap();
    let len = disk.len().unwrap();
    disk.discard(8 * MIB + 65536, MIB - 2 * 65536).unwrap();
    assert_eq!(disk.len().unwrap(), len);
    // A file system may take a block or two more for the map of the rest.
    if tells_allocated(disk) {
        let freed = before - disk.allocated_bytes().unwrap();
        let asked = MIB - 2 * 65536;
        assert!((asked - 16384..=asked).contains(&freed), "{freed}");
    }
    assert!(read(disk, 8 * MIB, 65536) == bytes[..65536]);
    let tail = MIB as usize - 65536;
    assert!(read(disk, 8 * MIB + tail as u64, 65536) == bytes[tail..]);
    for (was, is) in bytes[65536..tail]
        .iter()
        .zip(contents(disk, 8 * MIB + 65536, tail - 65536))
    {
        assert!(is == *was || is == 0);
    }
    // Data is found on both sides of the hole, and may be found in it.
    assert_eq!(disk.next_data(8 * MIB).unwrap(), Some(8 * MIB));
    assert!(disk.data_end(8 * MIB).unwrap() >= 8 * MIB + 65536);
    let next = disk.next_data(8 * MIB + 65536).unwrap();
    assert!(next.is_some_and(|next| next <= 8 * MIB + tail as u64));
    disk.write_at(&bytes[..65536], 8 * MIB + 65536).unwrap();
    assert!(read(disk, 8 * MIB + 65536, 65536) == bytes[..65536]);
    // Beyond the end there is nothing to give back.
    disk.discard(900 * MIB, MIB).unwrap();
    assert_eq!(disk.len().unwrap(), len);
}

fn reserves(disk: &dyn Disk) {
    let start = 4 * unit(disk) as u64;
    disk.write_at(&pattern(14, (9 * MIB - start) as usize), start)
        .unwrap();
    let before = read(disk, 0, 9 * MIB as usize);
    let len = disk.len().unwrap();
    disk.reserve(len / 2).unwrap();
    assert_eq!(disk.len().unwrap(), len, "a reservation never shrinks");
    disk.reserve(12 * MIB).unwrap();
    assert_eq!(disk.len().unwrap(), 12 * MIB);
    assert!(disk.allocated_bytes().unwrap() >= 12 * MIB);
    assert!(read(disk, 0, 9 * MIB as usize) == before);
    assert!(contents(disk, len, 65536).iter().all(|byte| *byte == 0));
    disk.discard(11 * MIB, MIB).unwrap();
    disk.reserve_range(11 * MIB, MIB / 2).unwrap();
    assert!(disk.allocated_bytes().unwrap() >= 11 * MIB + MIB / 2);
    assert_eq!(disk.len().unwrap(), 12 * MIB);
    assert!(read(disk, 0, 9 * MIB as usize) == before);
}

fn gets_shorter_and_longer(disk: &dyn Disk) {
    let (len, unit) = (disk.len().unwrap(), unit(disk));
    let start = len.next_multiple_of(unit as u64);
    disk.write_at(&pattern(31, 4 * unit), start).unwrap();
    let cut = start + 2 * unit as u64;
    disk.set_len(cut).unwrap();
    assert_eq!(disk.len().unwrap(), cut);
    disk.set_len(start + 4 * unit as u64).unwrap();
    let (allocated, tells) = (disk.allocated_bytes().unwrap(), tells_allocated(disk));
    disk.set_len(cut + (1 << 30)).unwrap();
    assert_eq!(disk.len().unwrap(), cut + (1 << 30));
    assert!(!tells || disk.allocated_bytes().unwrap() == allocated);
    let mut expected = pattern(31, 4 * unit);
    expected[2 * unit..].fill(0);
    assert_eq!(contents(disk, start, 4 * unit), expected);
    disk.set_len(len).unwrap();
    disk.sync().unwrap();
}

fn forgetting_loses_nothing_that_was_synced(disk: &dyn Disk) {
    let before = contents(disk, 0, 8 * unit(disk));
    disk.forget_cached().unwrap();
    assert_eq!(contents(disk, 0, before.len()), before);
}

fn refuses_what_is_out_of_range(disk: &dyn Disk) {
    let offset = u64::MAX - 65535;
    let bytes = vec![0; unit(disk)];
    assert!(disk.write_at(&bytes, offset).is_err());
    assert!(disk.discard(offset, 65536).is_err());
    assert!(disk.reserve(u64::MAX).is_err());
    assert!(disk.reserve_range(offset, 65536).is_err());
    assert_eq!(disk.len().unwrap(), 12 * MIB);
}

fn survives_reopening(engine: &dyn Engine, part: Part) {
    let disk = engine.open(part).unwrap();
    let unit = unit(&*disk);
    assert_eq!(read(&*disk, 0, unit * 4), pattern(12, unit * 4));
    assert_eq!(disk.len().unwrap(), 12 * MIB);
}

/// A length that any disk of the suite takes.
fn unit(disk: &dyn Disk) -> usize {
    disk.alignment().max(512)
}

fn read(disk: &dyn Disk, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; len];
    disk.read_at(&mut bytes, offset).unwrap();
    bytes
}

/// Like [`read`], but with zeros where a disk misses data because none was written.
fn contents(disk: &dyn Disk, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; len];
    // Nothing smaller is written.
    let pieces = [len.max(1), 512];
    let is_missing = |error: &std::io::Error| error.kind() == ErrorKind::UnexpectedEof;
    for piece_bytes in pieces {
        let mut is_whole = true;
        for (piece, n) in bytes.chunks_mut(piece_bytes).zip(0..) {
            match disk.read_at(piece, offset + n * piece_bytes as u64) {
                Err(error) if is_missing(&error) => {
                    piece.fill(0);
                    is_whole = false;
                }
                read => read.unwrap(),
            }
        }
        if is_whole {
            break;
        }
    }
    bytes
}

/// Bytes without zeros, different at every place for every seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| ((at / 7 * 31 + at * 13 + seed * 101) % 255) as u8 + 1)
        .collect()
}
