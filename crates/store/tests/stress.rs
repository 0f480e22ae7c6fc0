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

#[allow(dead_code, unused_imports, reason = "the binary `store` uses the rest")]
mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_store::{Blocking, Lba, Ready, Store, StoreError, StoreErrorKind, Volume};

use common::{
    BLOCK, LITTLE_MEMORY, MIB, Random, assert_clean, blocks, go_on, new_volume, open, pool_of,
    read, read_bytes, snapshot,
};

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
    /// Blocks of each writer in each volume. They alternate with the other writers' blocks, so that a range
    /// locked or published for one writer has another's blocks in its middle.
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
fn draws(thread: u64) -> Random {
    Random::new(u64::from(std::process::id()) << 8 | thread)
}

/// The contents of its blocks, in several requests.
fn all_of(volume: &Volume) -> Vec<u64> {
    const BLOCKS: u64 = MIB / BLOCK;
    let requests = 0..volume.size_bytes() / MIB;
    let contents = requests.flat_map(|n| read(volume, n * BLOCKS, BLOCKS));
    contents.collect()
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
    let mut draw = draws(writer);
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
                let found = read(volume, offset / BLOCK, 1);
                assert_eq!(found, [*own], "writer {writer}, byte {offset} of {which}");
            }
            _ => {
                let new = 1 + draw.below(CONTENTS) + draw.below(2) * (1 + draw.below(1 << 40)) * 64;
                if tolerate(volume.write(offset, &blocks([new]), Blocking::Yes)).is_some() {
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
    // Other writers change their blocks during the read: these may be read half.
    let bytes = read_bytes(volume, 0, volume.size_bytes());
    let found = bytes.chunks(BLOCK as usize);
    let found = found.skip(writer as usize).step_by(WRITERS as usize);
    for (n, (found, own)) in found.zip(held).enumerate() {
        assert!(
            found == blocks([*own]),
            "writer {writer}, its block {n} of '{}' is not {own}",
            volume.name()
        );
    }
}

fn find(store: &Store, run: &Run) {
    run.again(|| {
        for volume in store.volumes_to_share() {
            let done = store.dedup().find_batch(&volume, &mut Lba(0), Ready::All);
            let duplicates = tolerate(done).map_or(0, |report| report.duplicates);
            run.duplicates.fetch_add(duplicates, SeqCst);
        }
    });
}

fn collect(store: &Store, run: &Run) {
    run.again(|| {
        if let Some(report) = tolerate(store.dedup().collect_batch()) {
            assert_eq!(
                report.quarantined, 0,
                "a released block was not in the index"
            );
            run.freed.fetch_add(report.freed, SeqCst);
        }
        for _ in 0..4 {
            tolerate(store.deletions().step());
        }
        store.tidy(true).unwrap();
        store.space().give_back(MIB).unwrap();
    });
}

/// Blocks that differ, and the contents of both: a few of them.
fn differences(before: &[u64], now: &[u64]) -> Vec<(usize, u64, u64)> {
    let pairs = before.iter().zip(now).enumerate();
    let differing = pairs.filter(|(_, (before, now))| before != now);
    let differing = differing.map(|(n, (before, now))| (n, *before, *now));
    differing.take(8).collect()
}

/// A volume with no other writers must be equal to its snapshot again.
fn roll_back(store: &Store, volume: &Volume, scribble: &mut dyn FnMut()) {
    let name = volume.name();
    snapshot(store, &name, "back");
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
    let mut draw = draws(100);
    let mut kept: Vec<(String, Vec<u64>)> = Vec::new();
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
                tolerate(volume.write(at, &blocks([77]), Blocking::Yes));
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
    let mut draw = draws(200);
    run.again(|| {
        thread::sleep(Duration::from_millis(100));
        let size = (40 + draw.below(24)) * MIB;
        if tolerate(store.space().begin_shrink(size)).is_some() {
            for _ in 0..3 {
                let step = store.space().shrink_step(&mut go_on);
                let Some(report) = tolerate(step) else { break };
                if report.is_done {
                    run.shrinks.fetch_add(1, SeqCst);
                    break;
                }
            }
        }
        store.space().cancel_shrink().unwrap();
        store.space().grow(POOL_BYTES).unwrap();
    });
}

fn look(store: &Store, run: &Run) {
    run.again(|| {
        thread::sleep(Duration::from_millis(50));
        assert_clean(store);
        run.checks.fetch_add(1, SeqCst);
        store.accounting().scan(&mut go_on).unwrap();
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
    let directory = if in_memory.is_dir() {
        tempfile::tempdir_in(in_memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    };
    let engine = EmbeddedEngine::new(directory.path(), CacheMode::Host);
    Store::create(&engine, &pool_of(POOL_BYTES)).unwrap();
    let (store, _) = open(engine, LITTLE_MEMORY).unwrap();
    for name in ["a", "b"] {
        new_volume(&store, name, volume_bytes);
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
    assert_clean(&store);
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
