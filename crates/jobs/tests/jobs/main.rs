//! Background jobs on a real store, whose machine is simulated: they find, release, fail, recover,
//! pause and stop.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

mod copying;
mod stores;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_jobs::{
    JobKind, JobSelection, JobState, JobStatus, Maintenance, MaintenanceOptions, SteerError,
    dedup_now, trim_now,
};
use onefold_store::{
    Blocking, CreateOptions, DedupMode, IndexKind, OpenOptions, SettingsChange, Store,
    StoreErrorKind, VolumeOptions, VolumeSettings,
};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const BLOCK: u64 = 4096;

/// Long enough for anything that a test waits for; only failures take this long.
const PATIENCE: Duration = Duration::from_secs(60);

const OPTIONS: MaintenanceOptions = MaintenanceOptions {
    latency_budget: Duration::from_millis(100),
    accounting_interval: Duration::from_secs(3600),
};

/// Background work on one store.
fn start(store: &Arc<Store>, options: MaintenanceOptions) -> Maintenance {
    let maintenance = Maintenance::start(options).unwrap();
    maintenance.add(Arc::clone(store));
    maintenance
}

#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let pause = Duration::from_millis(5);
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        if condition() {
            return;
        }
        thread::sleep(pause);
    }
    panic!("waited in vain until {what}");
}

fn new_engine(index: IndexKind) -> Arc<SimulatedEngine> {
    let engine = Arc::new(SimulatedEngine::new(1));
    let options = CreateOptions {
        size_bytes: 256 << 20,
        log_bytes: 1 << 20,
        index,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    engine
}

fn open(engine: &Arc<SimulatedEngine>) -> Arc<Store> {
    let engine: Arc<dyn Engine> = engine.clone();
    let options = OpenOptions {
        memory_bytes: 64 << 20,
        ..OpenOptions::default()
    };
    Store::open(engine, &options).unwrap().0
}

fn new_store(index: IndexKind) -> (Arc<SimulatedEngine>, Arc<Store>) {
    let engine = new_engine(index);
    let store = open(&engine);
    (engine, store)
}

/// A volume that is scanned as often as possible.
fn add_volume(store: &Store, name: &str, contents: impl IntoIterator<Item = u64>) {
    let contents: Vec<u64> = contents.into_iter().collect();
    let options = VolumeOptions::new(contents.len() as u64 * BLOCK).with(VolumeSettings {
        cold_passes: 1,
        interval_seconds: 1,
        ..VolumeSettings::default()
    });
    store.create_volume(name, &options).unwrap();
    let volume = store.volume(name).unwrap();
    for (lba, content) in (0..).zip(contents) {
        volume
            .write(lba * BLOCK, &block(content), Blocking::Yes)
            .unwrap();
    }
    volume.flush().unwrap();
}

/// Equal numbers, equal blocks.
fn block(content: u64) -> Vec<u8> {
    let words =
        (0..BLOCK / 8).map(|word| (content << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

#[track_caller]
fn assert_contents(store: &Store, name: &str, contents: impl IntoIterator<Item = u64>) {
    let volume = store.volume(name).unwrap();
    let mut found = vec![0; BLOCK as usize];
    for (lba, content) in (0..).zip(contents) {
        volume.read(lba * BLOCK, &mut found, Blocking::Yes).unwrap();
        assert!(found == block(content), "{name}, block {lba}");
    }
}

fn dirty(store: &Store, name: &str) -> u64 {
    store.volume(name).unwrap().pending_dedup_blocks()
}

#[track_caller]
fn job(maintenance: &Maintenance, kind: JobKind, volume: Option<&str>) -> JobStatus {
    let mut jobs = maintenance.jobs().unwrap().into_iter();
    jobs.find(|job| job.kind == kind && job.volume.as_deref() == volume)
        .unwrap()
}

#[track_caller]
fn finder(maintenance: &Maintenance, volume: &str) -> JobStatus {
    job(maintenance, JobKind::Finder, Some(volume))
}

/// The message of a job that failed.
fn failure(job: &JobStatus) -> Option<&str> {
    let is_failed = job.state == JobState::Failed;
    job.message.as_deref().filter(|_| is_failed)
}

#[test]
fn duplicates_are_found_and_what_is_given_up_is_released() {
    for index in [IndexKind::Btree, IndexKind::Memory] {
        let (_engine, store) = new_store(index);
        add_volume(&store, "a", 1..=100);
        add_volume(&store, "b", 51..=150);
        let maintenance = start(&store, OPTIONS);
        wait_until("all is shared", || {
            let stat = store.stat().unwrap();
            (stat.logical_blocks, stat.physical_blocks) == (200, 150)
        });

        let a = store.volume("a").unwrap();
        a.write(0, &block(7), Blocking::Yes).unwrap();
        a.trim(50 * BLOCK, 50 * BLOCK, Blocking::Yes).unwrap();
        wait_until("what is new is looked at", || {
            finder(&maintenance, "a").counts.scanned == 101
        });
        wait_until("all is released", || {
            store.stat().unwrap().pending_release_blocks == 0
        });
        let stat = store.stat().unwrap();
        assert_eq!((stat.logical_blocks, stat.physical_blocks), (150, 149));

        let found = finder(&maintenance, "a");
        assert_eq!(found.backlog_blocks, 0);
        assert!(found.counts.passes >= 1);
        wait_until("the finder rests", || {
            finder(&maintenance, "a").state == JobState::Idle
        });
        wait_until("the collector has nothing left", || {
            let collector = job(&maintenance, JobKind::Collector, None);
            assert_eq!(collector.counts.released, 51);
            assert_eq!(collector.counts.freed, 1);
            assert_eq!(collector.backlog_blocks, 0);
            collector.state == JobState::Idle
        });
        drop(maintenance);
        assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
        assert_contents(&store, "a", [7].into_iter().chain(2..=50));
        assert_contents(&store, "b", 51..=150);
    }
}

#[test]
fn volumes_that_are_paused_or_off_are_left_alone() {
    let (_engine, store) = new_store(IndexKind::Memory);
    for name in ["busy", "paused", "off"] {
        add_volume(&store, name, 1..=10);
    }
    let off = SettingsChange {
        dedup: Some(DedupMode::Off),
        ..SettingsChange::default()
    };
    store.set_volume("off", &off).unwrap();
    let maintenance = start(&store, OPTIONS);
    let paused = JobSelection::FinderOf("paused".to_owned());
    maintenance.pause(&paused).unwrap();
    let left_alone = dirty(&store, "paused");
    wait_until("the busy one has had five rounds", || {
        let volume = store.volume("busy").unwrap();
        volume.write(0, &block(100), Blocking::Yes).unwrap();
        finder(&maintenance, "busy").counts.passes >= 5
    });
    assert_eq!(dirty(&store, "paused"), left_alone);
    assert_eq!(dirty(&store, "off"), 10);
    assert_eq!(finder(&maintenance, "paused").state, JobState::Paused);
    let jobs = maintenance.jobs().unwrap();
    assert!(jobs.iter().all(|job| job.volume.as_deref() != Some("off")));

    maintenance.resume(&paused).unwrap();
    let offline = SettingsChange {
        dedup: Some(DedupMode::Offline),
        ..off
    };
    store.set_volume("off", &offline).unwrap();
    wait_until("they are looked at", || {
        dirty(&store, "paused") + dirty(&store, "off") == 0
    });
}

#[test]
fn jobs_are_paused_as_a_whole_and_one_by_one() {
    let (_engine, store) = new_store(IndexKind::Memory);
    for name in ["a", "b"] {
        add_volume(&store, name, 1..=10);
    }
    let maintenance = start(&store, OPTIONS);
    let states = || {
        let jobs = maintenance.jobs().unwrap().into_iter();
        let jobs = jobs.filter(|job| matches!(job.kind, JobKind::Finder | JobKind::Collector));
        let paused = jobs.map(|job| (job.state == JobState::Paused) as u8);
        paused.collect::<Vec<_>>()
    };
    let of_a = JobSelection::FinderOf("a".to_owned());
    let of_nobody = JobSelection::FinderOf("nobody".to_owned());

    maintenance.pause(&of_a).unwrap();
    assert_eq!(states(), [1, 0, 0]);
    maintenance
        .pause(&JobSelection::Kind(JobKind::Finder))
        .unwrap();
    assert_eq!(states(), [1, 1, 0]);
    maintenance.pause(&JobSelection::All).unwrap();
    assert_eq!(states(), [1, 1, 1]);
    // A paused job is listed even if it has had nothing to do.
    let is_paused = |kind| {
        let jobs = maintenance.jobs().unwrap();
        let mut jobs = jobs.iter().filter(|job| job.kind == kind);
        jobs.any(|job| job.state == JobState::Paused)
    };
    assert!(is_paused(JobKind::Copying) && is_paused(JobKind::Scrub));
    maintenance
        .resume(&JobSelection::Kind(JobKind::Collector))
        .unwrap();
    assert_eq!(states(), [1, 1, 0]);
    assert_eq!(maintenance.resume(&of_a), Err(SteerError::FinderPaused));
    assert_eq!(states(), [1, 1, 0]);
    // A later volume is paused with all others, and keeps its settings under any name.
    add_volume(&store, "c", 1..=10);
    assert_eq!(states(), [1, 1, 1, 0]);
    maintenance
        .resume(&JobSelection::Kind(JobKind::Finder))
        .unwrap();
    assert_eq!(states(), [0, 0, 0, 0]);
    maintenance.pause(&of_a).unwrap();
    store.rename_volume("a", "z").unwrap();
    assert_eq!(states(), [0, 0, 1, 0]);
    let no_finder = Err(SteerError::NoFinder("nobody".to_owned()));
    assert_eq!(maintenance.pause(&of_nobody), no_finder);
    assert_eq!(maintenance.resume(&of_nobody), no_finder);
    assert!(maintenance.pause(&of_a).is_err(), "it has another name");
    maintenance.resume(&JobSelection::All).unwrap();
    assert_eq!(states(), [0, 0, 0, 0]);
}

#[test]
fn a_job_that_failed_says_why_and_goes_on_when_it_can() {
    let (engine, store) = new_store(IndexKind::Btree);
    add_volume(&store, "a", 1..=100);
    store.close().unwrap();
    drop(store);
    let store = open(&engine);
    // No page of the maps is in memory now.
    engine.make_unreadable(Part::Meta, 0..1 << 40);
    let maintenance = start(&store, OPTIONS);
    wait_until("the finder fails", || {
        failure(&finder(&maintenance, "a"))
            .is_some_and(|message| message.contains("simulated:meta"))
    });
    engine.clear_unreadable(Part::Meta);
    wait_until("it goes on", || dirty(&store, "a") == 0);
    wait_until("the failure is forgotten", || {
        finder(&maintenance, "a").state == JobState::Idle
    });
    drop(maintenance);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn blocks_that_could_not_be_read_for_a_while_are_shared_in_the_end() {
    let (engine, store) = new_store(IndexKind::Btree);
    add_volume(&store, "a", 1..=100);
    engine.make_unreadable(Part::Data, 0..256 << 20);
    let maintenance = start(&store, OPTIONS);
    wait_until("all are listed", || {
        store.scrub().status().unwrap().bad_blocks == 100
    });
    // They are listed before the batch is called off.
    wait_until("none is shared", || dirty(&store, "a") == 100);
    engine.clear_unreadable(Part::Data);
    wait_until("all are shared", || dirty(&store, "a") == 0);
    assert_eq!(store.scrub().status().unwrap().bad_blocks, 0);
    drop(maintenance);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn a_pool_that_takes_no_writes_makes_jobs_fail_and_nothing_else() {
    let (engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "a", 1..=10);
    engine.fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
    let volume = store.volume("a").unwrap();
    volume.write(0, &block(11), Blocking::Yes).unwrap();
    volume.flush().unwrap_err();
    let maintenance = start(&store, OPTIONS);
    wait_until("both jobs fail", || {
        let mut jobs = maintenance.jobs().unwrap().into_iter();
        jobs.all(|job| failure(&job).is_some())
    });
    assert_contents(&store, "a", [11].into_iter().chain(2..=10));
    maintenance.stop();
    assert!(maintenance.is_stopping());
}

#[test]
fn guests_beyond_their_budget_are_let_go_first() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "guest", 1..=10);
    add_volume(&store, "backlog", 1..=40_000);
    let pause = JobSelection::FinderOf("guest".to_owned());
    let no_request_is_as_fast = MaintenanceOptions {
        latency_budget: Duration::from_nanos(1),
        ..OPTIONS
    };
    let maintenance = start(&store, no_request_is_as_fast);
    maintenance.pause(&pause).unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let volume = store.volume("guest").unwrap();
            while !is_done.load(Ordering::SeqCst) {
                volume.write(0, &block(11), Blocking::Yes).unwrap();
                thread::sleep(Duration::from_micros(100));
            }
        });
        // On a busy machine the finder may finish before the guest has had a turn.
        let mut content = 40_000;
        let mut keep_busy = || {
            if dirty(&store, "backlog") > 0 {
                return;
            }
            let volume = store.volume("backlog").unwrap();
            for lba in 0..40_000 {
                content += 1;
                let written = volume.write(lba * BLOCK, &block(content), Blocking::Yes);
                written.unwrap();
            }
        };
        wait_until("the finder gives way", || {
            keep_busy();
            finder(&maintenance, "backlog").state == JobState::Waiting
        });
        // The job continues nevertheless.
        let before = finder(&maintenance, "backlog").counts.scanned;
        wait_until("it gets on", || {
            keep_busy();
            finder(&maintenance, "backlog").counts.scanned > before
        });
        is_done.store(true, Ordering::SeqCst);
    });
    wait_until("all is looked at", || dirty(&store, "backlog") == 0);
}

#[test]
fn an_index_without_room_leaves_blocks_out_and_says_so() {
    let engine = new_engine(IndexKind::Memory);
    // The least that there is.
    let (store, _) = Store::open(engine.clone(), &OpenOptions::default()).unwrap();
    add_volume(&store, "large", 1..=40_000);
    let maintenance = start(&store, OPTIONS);
    wait_until("the index is full", || {
        failure(&finder(&maintenance, "large")).is_some_and(|message| message.contains("no room"))
    });
    let full = finder(&maintenance, "large");
    assert!(
        full.counts.declined > 0 && full.counts.unique > 0,
        "{full:?}"
    );
    assert_eq!(full.counts.declined + full.counts.unique, 40_000);
    assert_eq!(full.backlog_blocks, full.counts.declined);
    // Other volumes are scanned as usual, and share blocks that are in the index.
    add_volume(&store, "small", 1..=10);
    wait_until("the small one has had some rounds", || {
        let volume = store.volume("small").unwrap();
        volume.write(0, &block(1), Blocking::Yes).unwrap();
        finder(&maintenance, "small").counts.passes >= 4
    });
    assert_eq!(finder(&maintenance, "small").counts.declined, 0);
    let later = finder(&maintenance, "large");
    assert_eq!(later.counts, full.counts, "it is left alone");
    drop(maintenance);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn a_volume_may_be_deleted_at_any_time() {
    let (_engine, store) = new_store(IndexKind::Memory);
    let maintenance = start(&store, OPTIONS);
    for n in 0..20 {
        add_volume(&store, "a", 1..=100);
        thread::sleep(Duration::from_millis(n * 10));
        store.delete_volume("a").unwrap();
    }
    wait_until("all is given back", || {
        store.stat().unwrap().physical_blocks == 0
    });
    wait_until("the deletions are done", || {
        store.deletions().next_failures().is_none()
    });
    let jobs = maintenance.jobs().unwrap();
    let kinds: Vec<JobKind> = jobs.iter().map(|job| job.kind).collect();
    assert_eq!(kinds, [JobKind::Collector, JobKind::Deletion], "{jobs:?}");
    assert_eq!(jobs[1].backlog_blocks, 0);
    drop(maintenance);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn a_deletion_that_fails_is_listed_and_the_others_are_done() {
    let (engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "a", 1..=100);
    store.close().unwrap();
    drop(store);
    let store = open(&engine);
    for name in ["b", "c"] {
        add_volume(&store, name, 1..=100);
    }
    // The maps of the other volumes are still in memory.
    let meta_bytes = engine.durable_image(Part::Meta).len() as u64;
    engine.make_unreadable(Part::Meta, 0..meta_bytes);
    for name in ["a", "b", "c"] {
        store.delete_volume(name).unwrap();
    }
    let maintenance = start(&store, OPTIONS);
    let deletions = || {
        let jobs = maintenance.jobs().unwrap().into_iter();
        jobs.filter(|job| job.kind == JobKind::Deletion)
            .collect::<Vec<_>>()
    };
    wait_until("two deletions are done and one is not", || {
        let jobs = deletions();
        let [done, failed] = &jobs[..] else {
            return false;
        };
        assert_eq!(done.volume, None);
        assert_eq!(failed.volume.as_deref(), Some("a"));
        let message = failure(failed).unwrap_or_else(|| panic!("{failed:?}"));
        assert!(message.starts_with("deleting 'a': "), "{message}");
        assert_eq!(failed.backlog_blocks, 100);
        (done.counts.deleted, done.backlog_blocks) == (200, 0)
    });
    engine.clear_unreadable(Part::Meta);
    wait_until("it is tried again", || {
        store.deletions().next_failures().is_none()
    });
    wait_until("nothing is listed as failed", || deletions().len() == 1);
    drop(maintenance);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn a_search_for_duplicates_returns_when_what_it_released_is_free() {
    for n in 0..20 {
        let (_engine, store) = new_store(IndexKind::Memory);
        add_volume(&store, "a", 1..=1000);
        add_volume(&store, "b", 1..=1000 + n);
        let free = store.stat().unwrap().free_blocks;
        dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let stat = store.stat().unwrap();
        assert_eq!(
            (stat.free_blocks, stat.pending_free_blocks),
            (free + 1000, 0)
        );
        store
            .volume("a")
            .unwrap()
            .trim(0, 1000 * BLOCK, Blocking::Yes)
            .unwrap();
        store.delete_volume("b").unwrap();
        dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let stat = store.stat().unwrap();
        assert_eq!((stat.physical_blocks, stat.pending_free_blocks), (0, 0));
        let trimmed = trim_now(&store, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert!(trimmed.is_continue());
        assert_eq!(store.stat().unwrap().pool_bytes_on_disk, BLOCK);
    }
}

/// No scanned volume is left that would settle the batch.
#[test]
fn a_search_releases_what_a_batch_drops_that_a_crash_left_open() {
    for ios in 1.. {
        let (engine, store) = new_store(IndexKind::Memory);
        add_volume(&store, "deleted", (1..=100).chain(1..=100));
        engine.crash_after(ios);
        let found = dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(()));
        if found.is_ok() && !engine.is_crashed() {
            break;
        }
        let engine = Arc::new(engine.crash(CrashKind::ProcessKilled));
        let store = open(&engine);
        store.delete_volume("deleted").unwrap();
        dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let stat = store.stat().unwrap();
        assert_eq!(
            (
                stat.pending_release_blocks,
                stat.pending_free_blocks,
                stat.physical_blocks
            ),
            (0, 0, 0),
            "after {ios} I/Os"
        );
    }
}

#[test]
fn a_search_that_finds_the_host_full_releases_all_the_same() {
    let (engine, store) = new_store(IndexKind::Hash);
    let contents = || (0..2000).map(|n| n % 1000 + 1);
    add_volume(&store, "given-up", contents());
    dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    store.delete_volume("given-up").unwrap();
    add_volume(&store, "new", 2000..20_000);
    let index = engine.open(Part::Index).unwrap();
    engine.set_capacity(Part::Index, Some(index.allocated_bytes().unwrap()));
    let full = dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(()));
    assert_eq!(full.unwrap_err().kind(), StoreErrorKind::NoSpace);
    assert_eq!(store.dedup().pending_release_blocks().unwrap(), 0);
}

#[test]
fn threads_end_when_they_are_told_to() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "a", 1..=1000);
    for _ in 0..5 {
        let maintenance = start(&store, OPTIONS);
        maintenance.stop();
        maintenance.stop();
        assert!(maintenance.jobs().is_ok());
        drop(maintenance);
        assert_eq!(Arc::strong_count(&store), 1, "nobody else holds the store");
    }
    store.close().unwrap();
}

#[test]
fn a_lost_index_is_counted_again_before_anything_is_shared() {
    let (engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "a", 1..=100);
    dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    add_volume(&store, "b", 51..=150);
    drop(store);
    let engine = Arc::new(engine.crash(CrashKind::ProcessKilled));
    let store = open(&engine);
    assert!(store.stat().unwrap().index_rebuilding);
    let maintenance = start(&store, OPTIONS);
    wait_until("all is shared", || {
        store.stat().unwrap().physical_blocks == 150
    });
    let rebuild = job(&maintenance, JobKind::Rebuild, None);
    assert_eq!(rebuild.state, JobState::Idle);
    assert_eq!((rebuild.counts.passes, rebuild.backlog_blocks), (1, 0));
    assert_eq!(rebuild.counts.scanned, 100);
    drop(maintenance);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn everything_can_be_done_at_once() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "a", 1..=6000);
    add_volume(&store, "b", (1..=3000).chain(1..=3000));
    let mut seen = Vec::new();
    let totals = dedup_now(&store, None, &mut |done, all| {
        seen.push((done, all));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(totals.counts.scanned, 12_000);
    assert_eq!(totals.counts.unique, 6000);
    assert_eq!(totals.counts.duplicates, 6000);
    assert_eq!(totals.counts.bytes, 12_000 * BLOCK);
    assert_eq!(totals.counts.passes, 2);
    assert!(!totals.was_broken_off);
    assert!(
        seen.is_sorted() && seen.contains(&(12_000, 12_000)),
        "{seen:?}"
    );
    assert_eq!(store.stat().unwrap().physical_blocks, 6000);

    store.delete_volume("b").unwrap();
    let totals = dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((totals.counts.scanned, totals.counts.released), (0, 6000));
    assert_eq!(totals.counts.freed, 0);
    assert_eq!(store.stat().unwrap().pending_release_blocks, 0);
}

#[test]
fn claims_are_counted_while_the_collector_rests() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "source", 1..=64);
    dedup_now(
        &store,
        Some("source"),
        &mut |_, _| ControlFlow::Continue(()),
    )
    .unwrap();
    let options = VolumeOptions::new(16_384 * BLOCK).with(VolumeSettings {
        dedup: DedupMode::Inline,
        ..VolumeSettings::default()
    });
    store.create_volume("copy", &options).unwrap();
    let copy = store.volume("copy").unwrap();
    let maintenance = start(&store, OPTIONS);
    let collector = JobSelection::Kind(JobKind::Collector);
    maintenance.pause(&collector).unwrap();
    let contents: Vec<u8> = (1..=64).flat_map(block).collect();
    for n in 0..256 {
        copy.write(n * 64 * BLOCK, &contents, Blocking::Yes)
            .unwrap();
    }
    assert_eq!(copy.inline_stat().hit_blocks, 16_384);
    wait_until("all claims are counted", || {
        store.dedup().claimed_blocks().unwrap() == 0
    });
    wait_until("counting is idle", || {
        job(&maintenance, JobKind::Counting, None).state == JobState::Idle
    });
    let paused = job(&maintenance, JobKind::Collector, None);
    assert_eq!(paused.state, JobState::Paused);
    maintenance.stop();
    assert_contents(&store, "copy", 1..=64);
}

#[test]
fn work_that_is_broken_off_can_be_taken_up_again() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "a", (1..=10_000).chain(1..=10_000));
    let totals = dedup_now(&store, None, &mut |_, _| ControlFlow::Break(())).unwrap();
    assert!(totals.was_broken_off);
    assert_eq!(totals.counts.scanned, 16_384, "one batch");
    let totals = dedup_now(&store, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(totals.counts.scanned, 20_000 - 16_384);
    assert_eq!(store.stat().unwrap().physical_blocks, 10_000);
}

#[test]
fn a_volume_asked_for_by_name_needs_no_dedup_and_must_exist() {
    let (_engine, store) = new_store(IndexKind::Memory);
    let options = VolumeOptions::new(4 * BLOCK).with(VolumeSettings {
        dedup: DedupMode::Off,
        ..VolumeSettings::default()
    });
    store.create_volume("off", &options).unwrap();
    let volume = store.volume("off").unwrap();
    volume.write(0, &block(1), Blocking::Yes).unwrap();
    let mut go_on = |_, _| ControlFlow::Continue(());
    assert_eq!(
        dedup_now(&store, None, &mut go_on).unwrap().counts.scanned,
        0
    );
    let totals = dedup_now(&store, Some("off"), &mut go_on).unwrap();
    assert_eq!(totals.counts.unique, 1);
    let error = dedup_now(&store, Some("gone"), &mut go_on).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
}

#[test]
fn what_volumes_hold_alone_is_found_out_now_and_then() {
    let (_engine, store) = new_store(IndexKind::Memory);
    add_volume(&store, "alone", 1..=100);
    let often = MaintenanceOptions {
        accounting_interval: Duration::from_millis(20),
        ..OPTIONS
    };
    let maintenance = start(&store, often);
    let accounting = || {
        let jobs = maintenance.jobs().unwrap();
        jobs.into_iter().find(|job| job.kind == JobKind::Accounting)
    };
    let rounds = || accounting().map_or(0, |job| job.counts.passes);
    wait_until("all maps were gone through twice", || rounds() >= 2);
    let usage = store.volume_stat("alone").unwrap().usage.unwrap();
    assert_eq!((usage.exclusive_blocks, usage.shared_blocks), (100, 0));
    maintenance
        .pause(&JobSelection::Kind(JobKind::Accounting))
        .unwrap();
    let paused_after = rounds();
    assert_eq!(accounting().unwrap().state, JobState::Paused);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(rounds(), paused_after);
    maintenance
        .resume(&JobSelection::Kind(JobKind::Accounting))
        .unwrap();
    wait_until("it goes on", || rounds() > paused_after);
}
