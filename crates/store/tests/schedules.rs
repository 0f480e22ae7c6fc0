//! The real store under a scheduler that chooses which thread continues at every lock and every
//! atomic: small volumes, a few requests, all jobs.
//!
//! ```text
//! cargo test --profile simulation -p onefold-store --features shuttle,simulation --test schedules
//! ONEFOLD_SCHEDULES=n      n schedules for each test
//! ```
//!
//! The guards that only a second thread can miss are turned off here, and must be found.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

#[allow(dead_code, unused_imports, reason = "the binary `store` uses the rest")]
mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onefold_store::{
    BackgroundExecutor, Blocking, Change, CreateOptions, DedupMode, Guard, IndexKind, Lba, Ready,
    Store, StoreError, StoreErrorKind, Volume, VolumeOptions, VolumeSettings,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::ThreadId;
use shuttle::{Config, Runner, thread};

use common::{
    BLOCK, LITTLE_MEMORY, MIB, World, assert_clean, collect, go_on, new_volume, pool_of, read,
    snapshot, write,
};

/// The stack of a thread of the store; the scheduler's own default is smaller.
const STACK_BYTES: usize = 1 << 20;

/// Schedules of each test.
fn schedules() -> usize {
    let wanted = std::env::var("ONEFOLD_SCHEDULES");
    wanted.map_or(400, |text| text.parse().expect("a number of schedules"))
}

fn pool() -> Arc<Store> {
    let options = CreateOptions {
        index: IndexKind::Memory,
        ..pool_of(4 * MIB)
    };
    let world = World::new(&options, LITTLE_MEMORY);
    world
        .store
        .index()
        .rebuild_if_needed(&mut |_, _| {})
        .unwrap();
    world.store
}

fn dedup(store: &Store, volume: &Volume) {
    let done = store.dedup().find_batch(volume, &mut Lba(0), Ready::All);
    tolerate(done);
}

/// Errors that a job may get while other threads delete.
fn tolerate<T>(done: Result<T, StoreError>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(error) if matches!(error.kind(), StoreErrorKind::Gone | StoreErrorKind::Busy) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A block next to those that the finder takes is written and trimmed.
fn finder_beside_writer() {
    let store = pool();
    let written = new_volume(&store, "a", MIB);
    write(&written, 1, [7; 2]);
    let finder = {
        let (store, volume) = (Arc::clone(&store), Arc::clone(&written));
        thread::spawn(move || dedup(&store, &volume))
    };
    write(&written, 0, [1]);
    write(&written, 0, [2]);
    assert_eq!(read(&written, 0, 3), [2, 7, 7]);
    written.trim(0, BLOCK, Blocking::Yes).unwrap();
    write(&written, 3, [3]);
    written.trim(3 * BLOCK, BLOCK, Blocking::Yes).unwrap();
    finder.join().unwrap();
    assert_eq!(read(&written, 0, 4), [0, 7, 7, 0]);
    assert_clean(&store);
}

/// A snapshot is made and deleted while its volume is read, and its extents are requested.
fn layer_emptied_while_read() {
    let store = pool();
    let read_from = new_volume(&store, "a", MIB);
    write(&read_from, 0, [1; 4]);
    snapshot(&store, "a", "s0");
    write(&read_from, 0, [2; 3]);
    write(&read_from, 8, [2]);
    let snapshots = {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            snapshot(&store, "a", "s1");
            store.delete_snapshot("a", "s1").unwrap();
            while store.deletions().step().unwrap().is_some() {}
        })
    };
    assert_eq!(read(&read_from, 0, 4), [2, 2, 2, 1]);
    let extents = read_from.extents(0..16 * BLOCK, 16, Blocking::Yes).unwrap();
    let data: u64 = extents
        .iter()
        .filter(|extent| extent.data)
        .map(|extent| extent.len)
        .sum();
    assert_eq!(data, 5 * BLOCK, "{extents:?}");
    snapshots.join().unwrap();
    assert_eq!(read(&read_from, 0, 4), [2, 2, 2, 1]);
    assert_clean(&store);
}

/// All entries below a snapshot move into it while it and the layer above it are read again and
/// again.
fn layers_below_go_while_read() {
    let store = pool();
    let live = new_volume(&store, "a", MIB);
    for (name, content) in [("s0", 1), ("s1", 2)] {
        write(&live, content, [content]);
        snapshot(&store, "a", name);
    }
    let kept = store.volume("a@s1").unwrap();
    let reader = |ask: fn(&Volume, &Volume)| {
        let (kept, live) = (Arc::clone(&kept), Arc::clone(&live));
        thread::spawn(move || (0..6).for_each(|_| ask(&kept, &live)))
    };
    let readers = [
        reader(|kept, _| assert_eq!(read(kept, 0, 4), [0, 1, 2, 0])),
        reader(|kept, _| {
            let extents = kept.extents(0..4 * BLOCK, 16, Blocking::Yes).unwrap();
            let data: u64 = extents
                .iter()
                .filter(|extent| extent.data)
                .map(|extent| extent.len)
                .sum();
            assert_eq!(data, 2 * BLOCK, "{extents:?}");
        }),
        reader(|kept, live| {
            write(live, 1, [3]);
            let changed = live.changes(kept, 0..4 * BLOCK, 16, Blocking::Yes).unwrap();
            let same = changed
                .iter()
                .filter(|extent| extent.change == Change::Same);
            assert_eq!(
                same.map(|extent| extent.len).sum::<u64>(),
                3 * BLOCK,
                "{changed:?}"
            );
            live.trim(BLOCK, BLOCK, Blocking::Yes).unwrap();
            assert_eq!(read(live, 0, 4), [0, 0, 2, 0]);
        }),
    ];
    store.delete_snapshot("a", "s0").unwrap();
    while store.deletions().step().unwrap().is_some() {}
    for reader in readers {
        reader.join().unwrap();
    }
}

/// Two writers, each of its own blocks, and everything that works on maps concurrently.
fn all_jobs() {
    let store = pool();
    let (a, b) = (new_volume(&store, "a", MIB), new_volume(&store, "b", MIB));
    write(&a, 0, [7; 4]);
    write(&b, 0, [7; 4]);
    a.flush().unwrap();
    let writer = |volume: &Arc<Volume>, own: u64| {
        let volume = Arc::clone(volume);
        thread::spawn(move || {
            for content in [7, 8] {
                write(&volume, own, [content]);
                assert_eq!(read(&volume, own, 1), [content]);
            }
            volume.flush().unwrap();
            volume.trim(own * BLOCK, BLOCK, Blocking::Yes).unwrap();
            write(&volume, own, [7]);
            assert_eq!(read(&volume, own, 1), [7]);
        })
    };
    let jobs = {
        let (store, a, b) = (Arc::clone(&store), Arc::clone(&a), Arc::clone(&b));
        thread::spawn(move || {
            dedup(&store, &a);
            dedup(&store, &b);
            tolerate(store.dedup().collect_batch());
            store.tidy(true).unwrap();
        })
    };
    let layers = {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            snapshot(&store, "a", "s");
            let seen = read(&store.volume("a@s").unwrap(), 0, 4);
            store.clone_volume("a@s", "c").unwrap();
            assert_eq!(read(&store.volume("c").unwrap(), 0, 4), seen);
            store.delete_snapshot("a", "s").unwrap();
            while tolerate(store.deletions().step()).flatten().is_some() {}
            store.delete_volume("c").unwrap();
            while tolerate(store.deletions().step()).flatten().is_some() {}
            store.accounting().scan(&mut go_on).unwrap();
        })
    };
    for thread in [writer(&a, 0), writer(&a, 2), writer(&b, 1), jobs, layers] {
        thread.join().unwrap();
    }
    dedup(&store, &a);
    dedup(&store, &b);
    collect(&store).unwrap();
    assert_eq!(read(&a, 0, 4), [7; 4]);
    assert_eq!(read(&b, 0, 4), [7; 4]);
    assert_clean(&store);
}

/// A volume in line finds duplicates while its index is replaced by another one.
fn index_replaced_beside_writer() {
    let store = pool();
    let published = new_volume(&store, "published", MIB);
    write(&published, 0, [7, 7, 8, 8]);
    published.flush().unwrap();
    dedup(&store, &published);
    let options = VolumeOptions::new(MIB).with(VolumeSettings {
        dedup: DedupMode::Inline,
        ..VolumeSettings::default()
    });
    store.create_volume("inline", &options).unwrap();
    let inline = store.volume("inline").unwrap();
    let writer = {
        let inline = Arc::clone(&inline);
        thread::spawn(move || {
            for content in [7, 8, 7, 8] {
                write(&inline, 0, [content]);
            }
        })
    };
    // Releases the last reference to the content that the writer looks up, and with it the row.
    let releases = {
        let (store, published) = (Arc::clone(&store), Arc::clone(&published));
        thread::spawn(move || {
            published.trim(0, 4 * BLOCK, Blocking::Yes).unwrap();
            tolerate(store.dedup().collect_batch());
        })
    };
    for kind in [IndexKind::Hash, IndexKind::Memory] {
        store.index().convert(kind, &mut |_, _| {}).unwrap();
    }
    writer.join().unwrap();
    releases.join().unwrap();
    collect(&store).unwrap();
    assert_eq!(read(&inline, 0, 1), [8]);
    assert_clean(&store);
}

/// A volume in line finds the contents of another volume, while its finder, the counting, the collector and its
/// snapshots work. The other volume drops the last references to some of them, and writes something else.
fn inline_beside_all_jobs() {
    let store = pool();
    let published = new_volume(&store, "published", MIB);
    write(&published, 0, [7, 8]);
    published.flush().unwrap();
    dedup(&store, &published);
    let options = VolumeOptions::new(MIB).with(VolumeSettings {
        dedup: DedupMode::Inline,
        ..VolumeSettings::default()
    });
    store.create_volume("inline", &options).unwrap();
    let inline = store.volume("inline").unwrap();
    let writer = {
        let inline = Arc::clone(&inline);
        thread::spawn(move || {
            for content in [7, 8, 7] {
                write(&inline, 0, [content]);
                assert_eq!(read(&inline, 0, 1), [content]);
            }
        })
    };
    let collector = {
        let (store, published) = (Arc::clone(&store), Arc::clone(&published));
        thread::spawn(move || {
            published.trim(0, 2 * BLOCK, Blocking::Yes).unwrap();
            tolerate(store.dedup().collect_batch());
            store.tidy(true).unwrap();
            write(&published, 4, [9]);
        })
    };
    let finder = {
        let (store, inline) = (Arc::clone(&store), Arc::clone(&inline));
        thread::spawn(move || {
            tolerate(store.dedup().count_batch_at_once());
            dedup(&store, &inline);
        })
    };
    let snapshots = {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            snapshot(&store, "inline", "s");
            store.delete_snapshot("inline", "s").unwrap();
            while tolerate(store.deletions().step()).flatten().is_some() {}
        })
    };
    for thread in [writer, collector, finder, snapshots] {
        thread.join().unwrap();
    }
    assert_eq!(read(&inline, 0, 1), [7]);
    assert_eq!(read(&published, 0, 5), [0, 0, 0, 0, 9]);
    collect(&store).unwrap();
    assert_clean(&store);
}

/// Only the collector runs concurrently with the writer.
fn inline_beside_collector() {
    let store = pool();
    let published = new_volume(&store, "published", MIB);
    write(&published, 0, [7, 8]);
    published.flush().unwrap();
    dedup(&store, &published);
    let options = VolumeOptions::new(MIB).with(VolumeSettings {
        dedup: DedupMode::Inline,
        ..VolumeSettings::default()
    });
    store.create_volume("inline", &options).unwrap();
    let inline = store.volume("inline").unwrap();
    published.trim(0, BLOCK, Blocking::Yes).unwrap();
    let collector = {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            tolerate(store.dedup().collect_batch());
        })
    };
    for (lba, content) in [(0, 7), (1, 8)] {
        write(&inline, lba, [content]);
    }
    collector.join().unwrap();
    assert_eq!(read(&inline, 0, 2), [7, 8]);
    collect(&store).unwrap();
    assert_clean(&store);
}

/// A volume is deleted while a write to it is in progress.
fn deletion_beside_writer() {
    let store = pool();
    let deleted = new_volume(&store, "deleted", MIB);
    let writer = {
        let deleted = Arc::clone(&deleted);
        thread::spawn(move || {
            let data = common::blocks([8; 2]);
            tolerate(deleted.write(0, &data, Blocking::Yes));
        })
    };
    store.delete_volume("deleted").unwrap();
    while store.deletions().step().unwrap().is_some() {}
    writer.join().unwrap();
    assert!(store.read_only_reason().is_none());
    assert_clean(&store);
}

/// A volume is made smaller while a write beyond its new end is in progress.
fn shrinking_beside_writer() {
    let store = pool();
    let volume = new_volume(&store, "a", 32 * BLOCK);
    let writer = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            // It is refused once the volume is smaller.
            let _ = volume.write(20 * BLOCK, &common::blocks([8]), Blocking::Yes);
        })
    };
    store.resize_volume("a", 16 * BLOCK).unwrap();
    writer.join().unwrap();
    store.resize_volume("a", 32 * BLOCK).unwrap();
    assert_eq!(read(&volume, 20, 1), [0], "what was cut off came back");
    assert_clean(&store);
}

/// Keeps the background work of one thread waiting, as a host without idle processors does, until it is
/// hurried, or another thread no longer needs it.
#[derive(Default)]
struct Busy {
    state: Mutex<BusyState>,
    changed: Condvar,
}

#[derive(Default)]
struct BusyState {
    /// The thread whose work waits.
    kept: Option<ThreadId>,
    is_hurried: bool,
    /// Hurrying ends the wait.
    ends_by_hurry: bool,
    /// No caller waits for the work.
    is_unneeded: bool,
}

impl Busy {
    fn change(&self, change: impl FnOnce(&mut BusyState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

struct BusyHost(Arc<Busy>);

impl BackgroundExecutor for BusyHost {
    fn run(&self, work: &mut (dyn FnMut() + Send)) {
        let mut state = self.0.state.lock().unwrap();
        while state.kept == Some(thread::current().id())
            && !state.is_unneeded
            && !(state.is_hurried && state.ends_by_hurry)
        {
            state = self.0.changed.wait(state).unwrap();
        }
        drop(state);
        work();
    }

    fn set_hurried(&self, is_hurried: bool) {
        self.0.change(|state| state.is_hurried = is_hurried);
    }
}

/// A pool on such a host, and a thread that has the job lock while it waits for a processor.
fn busy_host(ends_by_hurry: bool) -> (Arc<Store>, Arc<Busy>, thread::JoinHandle<()>) {
    let (store, busy) = (pool(), Arc::<Busy>::default());
    let options = VolumeOptions::new(MIB).with(VolumeSettings {
        cold_passes: 1,
        ..VolumeSettings::default()
    });
    store.create_volume("found", &options).unwrap();
    let found = store.volume("found").unwrap();
    write(&found, 0, [7; 2]);
    new_volume(&store, "deleted", MIB);
    store.delete_volume("deleted").unwrap();
    store.set_background_executor(Box::new(BusyHost(Arc::clone(&busy))));
    busy.change(|state| state.ends_by_hurry = ends_by_hurry);
    let finder = {
        let (store, busy) = (Arc::clone(&store), Arc::clone(&busy));
        thread::spawn(move || {
            busy.change(|state| state.kept = Some(thread::current().id()));
            // In the first pass the blocks were just written.
            for _ in 0..2 {
                tolerate(store.dedup().find_batch(&found, &mut Lba(0), Ready::Cold));
            }
            assert_eq!(found.pending_dedup_blocks(), 0, "all were published");
        })
    };
    (store, busy, finder)
}

/// Claims are counted at once, which needs the job lock.
fn caller_that_waits_for_a_job() {
    let (store, busy, finder) = busy_host(true);
    store.dedup().count_batch_at_once().unwrap();
    busy.change(|state| state.is_unneeded = true);
    finder.join().unwrap();
}

/// The end of a deletion needs the job lock; a volume is created during the wait.
fn command_beside_deletion_that_waits_for_a_job() {
    let (store, busy, finder) = busy_host(false);
    let deletion = {
        let store = Arc::clone(&store);
        thread::spawn(move || while tolerate(store.deletions().step()).flatten().is_some() {})
    };
    new_volume(&store, "made", MIB);
    busy.change(|state| state.is_unneeded = true);
    finder.join().unwrap();
    deletion.join().unwrap();
}

/// At random, and with priorities that change only a few times, which finds faults that need one
/// thread to stand still for long.
fn explore(test: fn(), schedules: usize) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(test);
    for depth in 2..4 {
        Runner::new(PctScheduler::new(depth, schedules), config.clone()).run(test);
    }
}

/// Without the guard some schedule fails.
fn is_found(guard: Guard, test: fn()) {
    Guard::turn_off(Some(guard));
    let explored = catch_unwind(AssertUnwindSafe(|| explore(test, 20 * schedules())));
    Guard::turn_off(None);
    assert!(explored.is_err(), "nothing was lost without {guard:?}");
}

#[test]
fn shuttle_finder_beside_writer() {
    explore(finder_beside_writer, schedules());
    is_found(Guard::PublishedLocked, finder_beside_writer);
}

#[test]
fn shuttle_layer_emptied_while_read() {
    explore(layer_emptied_while_read, schedules());
    is_found(Guard::LookupValidated, layer_emptied_while_read);
}

#[test]
fn shuttle_layers_below_go_while_read() {
    explore(layers_below_go_while_read, schedules());
}

#[test]
fn shuttle_index_replaced_beside_writer() {
    explore(index_replaced_beside_writer, schedules());
    is_found(Guard::ReplacedWhenUnused, index_replaced_beside_writer);
}

#[test]
fn shuttle_inline_beside_all_jobs() {
    explore(inline_beside_all_jobs, schedules() / 2);
}

#[test]
fn shuttle_inline_beside_collector() {
    explore(inline_beside_collector, schedules() / 4);
}

#[test]
fn shuttle_deletion_beside_writer() {
    explore(deletion_beside_writer, schedules() / 4);
}

#[test]
fn shuttle_shrinking_beside_writer() {
    explore(shrinking_beside_writer, schedules() / 4);
}

#[test]
fn shuttle_caller_that_waits_for_a_job() {
    explore(caller_that_waits_for_a_job, schedules() / 8);
}

#[test]
fn shuttle_command_beside_deletion_that_waits_for_a_job() {
    explore(
        command_beside_deletion_that_waits_for_a_job,
        schedules() / 8,
    );
}

#[test]
fn shuttle_all_jobs() {
    explore(all_jobs, schedules());
}
