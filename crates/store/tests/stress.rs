//! Everything at once on real threads and real files: writers that verify their reads, finder,
//! collector, snapshots, clones, deletions, rollbacks, sizes, accounting, checks.
//!
//! The simulation has one thread. Faults that occur only between two instructions of two threads
//! are found here, and by the scheduler of `schedules.rs`.
//!
//! ```text
//! ONEFOLD_STRESS_SECONDS=3600 cargo test --release -p onefold-store --test stress
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use onefold_engine::Engine;
use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_store::{
    Blocking, CreateOptions, Lba, OpenOptions, Ready, Store, StoreError, StoreErrorKind, Volume,
    VolumeOptions,
};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const WRITERS: u64 = 3;
const POOL_BYTES: u64 = 64 * MIB;

/// The number of contents that recur, so that blocks are shared all the time. Equally many writes
/// have a content of their own, so that blocks are released all the time.
const CONTENTS: u64 = 40;

/// Operations that ran, and how often; and whether it is over.
#[derive(Default)]
struct Run {
    volume_bytes: u64,
    over: AtomicBool,
    requests: AtomicU64,
    duplicates: AtomicU64,
    freed: AtomicU64,
    snapshots: AtomicU64,
    shrinks: AtomicU64,
    checks: AtomicU64,
}

/// Ends the others if its thread panics.
struct EndsAll<'a>(&'a Run);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.over.store(true, SeqCst);
        }
    }
}

impl Run {
    /// Blocks of each writer in each volume. They are between those of the others, so that a range
    /// locked or published for one of them has another's blocks in its middle.
    fn own_blocks(&self) -> u64 {
        self.volume_bytes / BLOCK / WRITERS
    }

    /// Does this again and again until the run is over.
    fn again(&self, mut work: impl FnMut()) {
        let _ends = EndsAll(self);
        while !self.over.load(SeqCst) {
            work();
        }
    }
}

/// A generator of numbers that differs for each thread and run.
struct Draw(u64);

impl Draw {
    fn new(thread: u64) -> Self {
        let seed = u64::from(std::process::id()) << 8 | thread;
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

fn block(content: u64) -> Vec<u8> {
    content.to_le_bytes().repeat(BLOCK as usize / 8)
}

#[track_caller]
fn content(bytes: &[u8]) -> u64 {
    let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(
        bytes.chunks(8).all(|word| word == first.to_le_bytes()),
        "a block of two writes"
    );
    first
}

fn all_of(volume: &Volume) -> Vec<u8> {
    let mut bytes = vec![0; volume.size_bytes() as usize];
    for (n, piece) in bytes.chunks_mut(MIB as usize).enumerate() {
        volume.read(n as u64 * MIB, piece, Blocking::Yes).unwrap();
    }
    bytes
}

/// Errors that a thread may get while others delete, fill the pool and change its size. Anything
/// else is a defect.
#[track_caller]
fn tolerate<T>(done: Result<T, StoreError>) -> Option<T> {
    use StoreErrorKind::{Busy, Exists, Gone, Invalid, NoSpace, NotFound};
    match done {
        Ok(result) => Some(result),
        Err(error) => match error.kind() {
            Busy | Exists | Gone | Invalid | NoSpace | NotFound => None,
            _ => panic!("{error}"),
        },
    }
}

fn write_and_compare(store: &Store, run: &Run, writer: u64) {
    let volumes = ["a", "b"].map(|name| store.volume(name).unwrap());
    let mut held = [0, 1].map(|_| vec![0; run.own_blocks() as usize]);
    let mut draw = Draw::new(writer);
    run.again(|| {
        let which = draw.below(2) as usize;
        let (volume, n) = (&volumes[which], draw.below(run.own_blocks()));
        let offset = (n * WRITERS + writer) * BLOCK;
        if draw.below(64) == 0 {
            // Long enough for a snapshot to be made and deleted in its middle.
            compare_own(volume, writer, &held[which]);
        }
        let own = &mut held[which][n as usize];
        match draw.below(12) {
            0 => {
                volume.trim(offset, BLOCK, Blocking::Yes).unwrap();
                *own = 0;
            }
            1 => volume.flush().unwrap(),
            2..=5 => {
                let mut found = vec![0; BLOCK as usize];
                volume.read(offset, &mut found, Blocking::Yes).unwrap();
                assert_eq!(
                    content(&found),
                    *own,
                    "writer {writer}, byte {offset} of {which}"
                );
            }
            _ => {
                let new = 1 + draw.below(CONTENTS) + draw.below(2) * (1 + draw.below(1 << 40)) * 64;
                if tolerate(volume.write(offset, &block(new), Blocking::Yes)).is_some() {
                    *own = new;
                }
            }
        }
        run.requests.fetch_add(1, SeqCst);
    });
    for (volume, held) in volumes.iter().zip(&held) {
        compare_own(volume, writer, held);
    }
}

/// Reads the whole volume in one request, and compares the blocks of one writer.
fn compare_own(volume: &Volume, writer: u64, held: &[u64]) {
    let mut bytes = vec![0; volume.size_bytes() as usize];
    volume.read(0, &mut bytes, Blocking::Yes).unwrap();
    for (n, own) in held.iter().enumerate() {
        let at = (n as u64 * WRITERS + writer) as usize * BLOCK as usize;
        let found = content(&bytes[at..at + BLOCK as usize]);
        assert_eq!(
            found,
            *own,
            "writer {writer}, its block {n} of '{}'",
            volume.name()
        );
    }
}

fn find(store: &Store, run: &Run) {
    run.again(|| {
        for volume in store.volumes_to_share() {
            let done = store.dedup_batch(&volume, &mut Lba(0), Ready::All);
            let duplicates = tolerate(done).map_or(0, |report| report.duplicates);
            run.duplicates.fetch_add(duplicates, SeqCst);
        }
    });
}

fn collect(store: &Store, run: &Run) {
    run.again(|| {
        if let Some(report) = tolerate(store.collect_batch()) {
            assert_eq!(
                report.quarantined, 0,
                "a released block was not in the index"
            );
            run.freed.fetch_add(report.freed, SeqCst);
        }
        for _ in 0..4 {
            tolerate(store.deletion_step());
        }
        store.tick().unwrap();
        store.give_back(MIB).unwrap();
    });
}

/// Blocks that differ, and the first words of both: a few of them.
fn differences(before: &[u8], now: &[u8]) -> Vec<(usize, u64, u64)> {
    let blocks = |bytes| <[u8]>::chunks(bytes, BLOCK as usize);
    let word = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
    let pairs = (0..).zip(blocks(before).zip(blocks(now)));
    let differing = pairs.filter(|(_, (before, now))| before != now);
    let differing = differing.map(|(n, (before, now))| (n, word(before), word(now)));
    differing.take(8).collect()
}

/// A volume with no other writers must be equal to its snapshot again.
fn roll_back(store: &Store, volume: &Volume, scribble: &mut dyn FnMut()) {
    let name = volume.name();
    store
        .create_snapshots(&[(name.clone(), "back".to_owned())])
        .unwrap();
    let before = all_of(volume);
    scribble();
    store.roll_back(&name, "back").unwrap();
    let now = all_of(volume);
    assert!(
        now == before,
        "'{name}' was taken back: {:?}",
        differences(&before, &now)
    );
    store.delete_snapshot(&name, "back").unwrap();
}

/// Snapshots must not change, clones must begin as their snapshots do, and go back to their own.
fn snapshot_and_clone(store: &Store, run: &Run) {
    let mut draw = Draw::new(100);
    let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
    let mut n = 0;
    run.again(|| {
        n += 1;
        let name = format!("s{n}");
        let both = ["a", "b"].map(|volume| (volume.to_owned(), name.clone()));
        store.create_snapshots(&both).unwrap();
        run.snapshots.fetch_add(1, SeqCst);
        let full = format!("a@{name}");
        let seen = all_of(&store.volume(&full).unwrap());
        let clone = format!("c{n}");
        if tolerate(store.clone_volume(&full, &clone)).is_some() {
            let volume = store.volume(&clone).unwrap();
            assert!(all_of(&volume) == seen, "a clone differs from its snapshot");
            let mut scribble = || {
                let at = draw.below(run.volume_bytes / BLOCK) * BLOCK;
                tolerate(volume.write(at, &block(77), Blocking::Yes));
            };
            scribble();
            roll_back(store, &volume, &mut scribble);
            tolerate(store.delete_volume(&format!("c{}", n - 2)));
        }
        kept.push((name, seen));
        if kept.len() > 3 {
            let (old, _) = kept.remove(draw.below(3) as usize);
            store.delete_snapshot("a", &old).unwrap();
            store.delete_snapshot("b", &old).unwrap();
        }
        for (name, before) in &kept {
            let snapshot = store.volume(&format!("a@{name}")).unwrap();
            let now = all_of(&snapshot);
            if now != *before {
                let again = differences(before, &all_of(&snapshot));
                let now = differences(before, &now);
                panic!("snapshot {name} changed: {now:?}; read once more: {again:?}");
            }
        }
    });
}

fn change_size(store: &Store, run: &Run) {
    let mut draw = Draw::new(200);
    run.again(|| {
        thread::sleep(Duration::from_millis(100));
        let size = (40 + draw.below(24)) * MIB;
        if tolerate(store.begin_shrink(size)).is_some() {
            for _ in 0..3 {
                let step = store.shrink_step(&mut |_, _| ControlFlow::Continue(()));
                let Some(report) = tolerate(step) else { break };
                if report.is_done {
                    run.shrinks.fetch_add(1, SeqCst);
                    break;
                }
            }
        }
        store.cancel_shrink().unwrap();
        store.grow(POOL_BYTES).unwrap();
    });
}

fn look(store: &Store, run: &Run) {
    run.again(|| {
        thread::sleep(Duration::from_millis(50));
        let checked = store.check(false, &mut |finding| panic!("{finding:?}"));
        checked.unwrap();
        run.checks.fetch_add(1, SeqCst);
        store
            .account(&mut |_, _| ControlFlow::Continue(()))
            .unwrap();
        let volume = store.volume("a").unwrap();
        volume
            .extents(0..run.volume_bytes, 64, Blocking::Yes)
            .unwrap();
        store.stat().unwrap();
    });
}

/// Writers and these jobs, on a pool of its own.
fn stress(volume_bytes: u64, jobs: &[fn(&Store, &Run)]) {
    let seconds = std::env::var("ONEFOLD_STRESS_SECONDS");
    let seconds: u64 = seconds.map_or(3, |text| text.parse().expect("a number of seconds"));
    let in_memory = Path::new("/dev/shm");
    let directory = match in_memory.is_dir() {
        true => tempfile::tempdir_in(in_memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Host);
    let options = CreateOptions {
        size_bytes: POOL_BYTES,
        log_bytes: 256 << 10,
        ..CreateOptions::default()
    };
    Store::create(&engine, &options).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let options = OpenOptions {
        memory_bytes: 8 * MIB,
        ..OpenOptions::default()
    };
    let (store, _) = Store::open(engine, &options).unwrap();
    for name in ["a", "b"] {
        let options = VolumeOptions::new(volume_bytes);
        store.create_volume(name, &options).unwrap();
    }
    let run = Run {
        volume_bytes,
        ..Run::default()
    };
    thread::scope(|scope| {
        let (store, run) = (&*store, &run);
        for writer in 0..WRITERS {
            scope.spawn(move || write_and_compare(store, run, writer));
        }
        for job in jobs {
            scope.spawn(move || job(store, run));
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !run.over.load(SeqCst) {
            thread::sleep(Duration::from_millis(50));
        }
        run.over.store(true, SeqCst);
    });
    println!(
        "{seconds} s: {:?} requests, {:?} duplicates, {:?} freed, {:?} snapshots, {:?} shrinks, \
         {:?} checks",
        run.requests, run.duplicates, run.freed, run.snapshots, run.shrinks, run.checks
    );
    let checked = store.check(false, &mut |finding| panic!("{finding:?}"));
    checked.unwrap();
    store.close().unwrap();
}

#[test]
fn everything_at_once() {
    stress(
        4 * MIB,
        &[find, collect, snapshot_and_clone, change_size, look],
    );
}

/// A single segment that all use, so that they meet in it.
#[test]
fn finder_beside_writers() {
    stress(2 * MIB, &[find, collect]);
}

/// Layers come and go under requests, and nothing else does.
#[test]
fn snapshots_beside_writers() {
    stress(2 * MIB, &[snapshot_and_clone, collect]);
}
