//! Reads for backups give way to guests.

use crate::{BLOCK, OPTIONS, add_volume, block, job, new_store, wait_until};
use onefold_jobs::{JobKind, JobSelection, JobState, Maintenance, MaintenanceOptions};
use onefold_store::{Blocking, IndexKind, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// A guest that is busy.
fn write_until(volume: &Volume, is_done: &AtomicBool) {
    while !is_done.load(Ordering::SeqCst) {
        volume.write(BLOCK, &block(11), Blocking::Yes).unwrap();
        thread::sleep(Duration::from_micros(100));
    }
}

/// Sets the flag that ends a test's other threads, even if the test fails.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn reads_for_backups_are_no_guests_and_give_way_to_them() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "guest", 1..=10);
    let no_request_is_as_fast = MaintenanceOptions {
        latency_budget: Duration::from_nanos(1),
        ..OPTIONS
    };
    let maintenance = Maintenance::start(no_request_is_as_fast).unwrap();
    let reads = maintenance.add(Arc::clone(&store));
    let volume = store.volume("guest").unwrap();
    let read = || {
        let mut bytes = block(0);
        let read = || volume.read_to_copy(0, &mut bytes, Blocking::Yes);
        reads.read(BLOCK, read).unwrap();
        assert!(bytes == block(1));
    };
    let before = store.latencies();
    read();
    assert_eq!(store.latencies().since(&before).requests(), 0);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetAtEnd(&is_done);
        scope.spawn(|| write_until(&volume, &is_done));
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                reads.read(BLOCK, || thread::sleep(Duration::from_millis(1)));
            }
        });
        let copying = || job(&maintenance, JobKind::Copying, None);
        wait_until("reads give way", || copying().state == JobState::Waiting);
        let before = copying().counts.bytes;
        wait_until("they get on", || copying().counts.bytes > before);
    });
}

#[test]
fn reads_for_backups_have_a_rate_while_guests_are_busy_however_short_they_are() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "guest", 1..=10);
    let maintenance = Maintenance::start(OPTIONS).unwrap();
    let reads = maintenance.add(Arc::clone(&store));
    let volume = store.volume("guest").unwrap();
    let processors = thread::available_parallelism().unwrap().get() as u64;
    // A quarter of what may be read in a second.
    let total = processors * (4 << 20);
    let time_of_reads = |bytes: u64| {
        let began = Instant::now();
        (0..total / bytes).for_each(|_| reads.read(bytes, || ()));
        began.elapsed()
    };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetAtEnd(&is_done);
        scope.spawn(|| write_until(&volume, &is_done));
        // It takes a window to learn that there are guests, and the last reads' rest may still be owed.
        let least = Duration::from_millis(245);
        for bytes in [BLOCK, total / 8] {
            assert!((0..500).any(|_| time_of_reads(bytes) >= least), "{bytes}");
        }
    });
}

#[test]
fn guests_that_begin_are_noticed_by_the_next_read_for_a_backup() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "guest", 1..=10);
    let maintenance = Maintenance::start(OPTIONS).unwrap();
    let reads = maintenance.add(Arc::clone(&store));
    let volume = store.volume("guest").unwrap();
    let second = thread::available_parallelism().unwrap().get() as u64 * (16 << 20);
    let time_of_read = || {
        let began = Instant::now();
        reads.read(second, || ());
        began.elapsed()
    };
    // Until a window without guests has ended.
    let least = Duration::from_millis(90);
    wait_until("guests are idle", || time_of_read() < least);
    (0..10).for_each(|_| volume.write(0, &[1; 4096], Blocking::Yes).unwrap());
    // A rest ends early when guests have been silent for a window.
    assert!(time_of_read() >= least);
}

#[test]
fn pausing_waits_for_the_read_for_a_backup_that_is_in_progress() {
    let (_engine, store) = new_store(IndexKind::Memory);
    let maintenance = Maintenance::start(OPTIONS).unwrap();
    let reads = maintenance.add(Arc::clone(&store));
    let (begun, has_begun) = channel();
    let (end, may_end) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let read = || {
                begun.send(()).unwrap();
                may_end.recv().unwrap();
            };
            reads.read(1, read);
        });
        has_begun.recv().unwrap();
        let pausing = scope.spawn(|| maintenance.pause(&JobSelection::Kind(JobKind::Copying)));
        // Until the pause waits; it must not end before the read, however long that takes.
        thread::sleep(Duration::from_millis(50));
        assert!(!pausing.is_finished());
        end.send(()).unwrap();
        wait_until("it has paused", || pausing.is_finished());
    });
}

#[test]
fn reads_for_backups_wait_while_they_are_paused() {
    let (_engine, store) = new_store(IndexKind::Memory);
    let maintenance = Maintenance::start(OPTIONS).unwrap();
    let reads = maintenance.add(Arc::clone(&store));
    let copying = JobSelection::Kind(JobKind::Copying);
    maintenance.pause(&copying).unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| reads.read(1, || thread::current().id())))
            .collect();
        thread::sleep(Duration::from_millis(50));
        assert!(waiting.iter().all(|read| !read.is_finished()));
        maintenance.resume(&copying).unwrap();
        for read in waiting {
            let own = read.thread().id();
            assert_eq!(read.join().unwrap(), own, "on the thread that asked");
        }
    });
}
