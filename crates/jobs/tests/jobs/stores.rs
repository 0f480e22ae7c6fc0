//! Several stores in one set of jobs: none waits for another, and one can leave while the others are served.

use crate::{
    OPTIONS, add_volume, assert_contents, block, dirty, failure, new_store, open, start, wait_until,
};
use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_jobs::{JobKind, JobSelection, JobState, JobStatus, Maintenance, dedup_now};
use onefold_store::{Blocking, IndexKind, Store};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

fn two_stores() -> [(Arc<SimulatedEngine>, Arc<Store>); 2] {
    [(); 2].map(|()| new_store(IndexKind::Memory))
}

/// Jobs of both stores.
fn start_both(a: &Arc<Store>, b: &Arc<Store>) -> Maintenance {
    let maintenance = start(a, OPTIONS);
    maintenance.add(Arc::clone(b));
    maintenance
}

#[track_caller]
fn wait_until_shared(store: &Store, physical_blocks: u64) {
    wait_until("all is shared", || {
        store.stat().unwrap().physical_blocks == physical_blocks
    });
}

#[track_caller]
fn job_of(maintenance: &Maintenance, store: &Store, kind: JobKind) -> JobStatus {
    let mut jobs = maintenance.jobs_of(store).unwrap().into_iter();
    jobs.find(|job| job.kind == kind).unwrap()
}

/// Writes one more block, so that there is something to find.
fn write(store: &Store, volume: &str, content: u64) {
    let volume = store.volume(volume).unwrap();
    volume.write(0, &block(content), Blocking::Yes).unwrap();
}

/// Stops the next read of stored data, until the sender is used or dropped.
fn hold_next_read(engine: &SimulatedEngine) -> (impl Fn(), Sender<()>) {
    let (begun, has_begun) = channel();
    let (end, may_end) = channel();
    let hold = move || {
        begun.send(()).unwrap();
        let _ = may_end.recv();
    };
    engine.on_next_io(Part::Data, Op::Read, When::Before, Box::new(hold));
    (move || has_begun.recv().unwrap(), end)
}

/// That nobody keeps the store, and so its lock, its memory and its threads.
#[track_caller]
fn assert_gone(store: Arc<Store>) {
    let weak: Weak<Store> = Arc::downgrade(&store);
    drop(store);
    assert!(weak.upgrade().is_none(), "somebody holds the store");
}

#[test]
fn duplicates_are_found_inside_each_store() {
    let [(_first, a), (_second, b)] = two_stores();
    let maintenance = start_both(&a, &b);
    // The volumes of a store may be named as those of another.
    for store in [&a, &b] {
        add_volume(store, "x", (1..=100).chain(51..=150));
    }
    for store in [&a, &b] {
        wait_until_shared(store, 150);
    }
    for store in [&a, &b] {
        wait_until("it is listed", || {
            job_of(&maintenance, store, JobKind::Finder).counts.scanned == 200
        });
    }
    let jobs = maintenance.jobs().unwrap();
    let kinds: Vec<_> = jobs.iter().map(|job| job.kind).collect();
    let of_each = [JobKind::Finder, JobKind::Collector];
    assert_eq!(kinds, [of_each, of_each].concat(), "store by store");
    drop(maintenance);
    for store in [&a, &b] {
        assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
        assert_contents(store, "x", (1..=100).chain(51..=150));
    }
}

#[test]
fn a_store_that_fails_stops_no_other() {
    let [(engine, failing), (_other, well)] = two_stores();
    add_volume(&failing, "a", 1..=10);
    add_volume(&well, "b", (1..=10).chain(1..=10));
    engine.fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
    failing
        .volume("a")
        .unwrap()
        .write(0, &block(11), Blocking::Yes)
        .unwrap();
    failing.volume("a").unwrap().flush().unwrap_err();
    let maintenance = start_both(&failing, &well);
    wait_until("its jobs fail", || {
        let mut jobs = maintenance.jobs_of(&failing).unwrap().into_iter();
        jobs.all(|job| failure(&job).is_some())
    });
    wait_until_shared(&well, 10);
    // The retries of the one do not keep the other's jobs from working again and again.
    let volume = well.volume("b").unwrap();
    volume.trim(0, 20 * crate::BLOCK, Blocking::Yes).unwrap();
    wait_until("the other's collector works", || {
        well.stat().unwrap().physical_blocks == 0
    });
    let jobs = maintenance.jobs_of(&well).unwrap();
    assert!(jobs.iter().all(|job| failure(job).is_none()), "{jobs:?}");
}

#[test]
fn an_index_that_cannot_be_rebuilt_delays_only_its_own_store() {
    let (engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "a", 1..=100);
    dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    store.close().unwrap();
    drop(store);
    // The next opening finds nothing in the log that would bring the maps into memory.
    let store = open(&engine);
    add_volume(&store, "new", 1..=1);
    drop(store);
    let engine = Arc::new(engine.crash(CrashKind::ProcessKilled));
    let unready = open(&engine);
    assert!(unready.stat().unwrap().index_rebuilding);
    engine.make_unreadable(Part::Meta, 0..1 << 40);
    let (_other, ready) = new_store(IndexKind::Memory);
    add_volume(&ready, "b", (1..=100).chain(1..=100));
    let maintenance = start_both(&unready, &ready);
    wait_until("the rebuild fails", || {
        let jobs = maintenance.jobs_of(&unready).unwrap();
        let mut rebuilds = jobs.iter().filter(|job| job.kind == JobKind::Rebuild);
        rebuilds.any(|job| failure(job).is_some())
    });
    wait_until_shared(&ready, 100);
    engine.clear_unreadable(Part::Meta);
    wait_until("it is rebuilt in the end", || {
        !unready.stat().unwrap().index_rebuilding
    });
    write(&unready, "a", 2);
    wait_until("its volume is scanned", || dirty(&unready, "a") == 0);
}

#[test]
fn a_store_is_let_go_when_its_batch_has_ended_and_the_other_is_served() {
    let [(engine, leaving), (_other, staying)] = two_stores();
    add_volume(&leaving, "a", 1..=100);
    let (is_held, end) = hold_next_read(&engine);
    let maintenance = start_both(&leaving, &staying);
    is_held();
    thread::scope(|scope| {
        // Even if this fails, the batch ends.
        let end = end;
        let removing = scope.spawn(|| maintenance.remove(&leaving));
        wait_until("it is no longer listed", || {
            maintenance.jobs_of(&leaving).unwrap().is_empty()
        });
        // Until the removal waits; it must not end before the batch, however long that takes.
        thread::sleep(Duration::from_millis(50));
        assert!(!removing.is_finished());
        end.send(()).unwrap();
        wait_until("it is removed", || removing.is_finished());
    });
    assert_eq!(leaving.check(false, &mut |_| {}).unwrap().findings, 0);
    assert_gone(leaving);
    add_volume(&staying, "b", (1..=10).chain(1..=10));
    wait_until_shared(&staying, 10);
}

#[test]
fn stores_come_and_go_while_their_jobs_work() {
    let (_engine, staying) = new_store(IndexKind::Memory);
    add_volume(&staying, "b", 1..=10);
    let maintenance = start(&staying, OPTIONS);
    for n in 0..20 {
        let (_engine, store) = new_store(IndexKind::Memory);
        add_volume(&store, "a", (1..=5000).chain(1..=5000));
        let reads = maintenance.add(Arc::clone(&store));
        if n % 5 == 0 {
            wait_until_shared(&store, 5000);
        }
        thread::sleep(Duration::from_millis(n * 3));
        maintenance.remove(&store);
        reads.read(1, || ());
        maintenance.remove(&store);
        assert_gone(store);
    }
    let before = job_of(&maintenance, &staying, JobKind::Finder)
        .counts
        .passes;
    wait_until("the other is served", || {
        write(&staying, "b", 100);
        job_of(&maintenance, &staying, JobKind::Finder)
            .counts
            .passes
            > before
    });
}

#[test]
fn whoever_removes_a_store_waits_for_the_read_of_its_snapshot() {
    let [(_first, leaving), (_second, staying)] = two_stores();
    let maintenance = start(&staying, OPTIONS);
    let reads = maintenance.add(Arc::clone(&leaving));
    let (begun, has_begun) = channel();
    let (end, may_end) = channel::<()>();
    thread::scope(|scope| {
        let (reads, end) = (&reads, end);
        scope.spawn(move || {
            let read = || {
                begun.send(()).unwrap();
                let _ = may_end.recv();
            };
            reads.read(1, read);
        });
        has_begun.recv().unwrap();
        let removing = scope.spawn(|| maintenance.remove(&leaving));
        thread::sleep(Duration::from_millis(50));
        assert!(!removing.is_finished());
        end.send(()).unwrap();
        wait_until("it is removed", || removing.is_finished());
    });
    assert_gone(leaving);
}

#[test]
fn jobs_of_all_stores_are_paused_and_resumed_together() {
    let [(_first, a), (_second, b)] = two_stores();
    add_volume(&a, "only-a", 1..=10);
    add_volume(&b, "only-b", 1..=10);
    let maintenance = start_both(&a, &b);
    let is_paused =
        |store: &Store, kind| job_of(&maintenance, store, kind).state == JobState::Paused;
    let finder_of_b = JobSelection::FinderOf("only-b".to_owned());
    maintenance.pause(&finder_of_b).unwrap();
    assert!(is_paused(&b, JobKind::Finder) && !is_paused(&a, JobKind::Finder));
    maintenance.resume(&finder_of_b).unwrap();
    assert!(!is_paused(&b, JobKind::Finder));
    maintenance.pause(&JobSelection::All).unwrap();
    for store in [&a, &b] {
        assert!(is_paused(store, JobKind::Finder) && is_paused(store, JobKind::Collector));
    }
    // A later store is paused, too.
    let (_third, c) = new_store(IndexKind::Memory);
    add_volume(&c, "only-c", (1..=10).chain(1..=10));
    maintenance.add(Arc::clone(&c));
    assert!(is_paused(&c, JobKind::Finder) && is_paused(&c, JobKind::Collector));
    assert!(
        maintenance.resume(&finder_of_b).is_err(),
        "the finder is paused as a whole"
    );
    for kind in [JobKind::Finder, JobKind::Collector] {
        maintenance.resume(&JobSelection::Kind(kind)).unwrap();
        assert!([&a, &b, &c].iter().all(|store| !is_paused(store, kind)));
    }
    wait_until_shared(&c, 10);
}
