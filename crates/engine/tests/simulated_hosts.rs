//! The simulated hosts of a shared pool: what a death, a fence, a cut and a lost message leave, over many seeds.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::cluster::{Cluster, Holding, Owned, OwnerEvent, TakeError, TakeOptions};
use onefold_engine::simulated::{
    ClusterRates, CrashKind, Op, SimulatedCluster, SimulatedHolding, When,
};
use onefold_engine::{Directory, Disk, Engine, Part};
use onefold_format::units::BLOCKS_PER_SPACE_EXTENT;
use onefold_format::{GivenRun, GroupId, Shard};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Enough that an outcome of probability 1/50 fails to occur once in 10^8 changes of this code.
const SEEDS: u64 = 1000;

const OBJECT: u64 = 8 << 10;

/// I/Os that give late operations time to arrive.
const IOS: usize = 40;

const GROUP: Owned = Owned::Group(GroupId(1));
const OTHER: Owned = Owned::Group(GroupId(2));
const SHARD: Owned = Owned::Shard(Shard(0));

const BOTH: [CrashKind; 2] = [CrashKind::PowerLoss, CrashKind::ProcessKilled];

const OPTIONS: TakeOptions = TakeOptions {
    patience: Duration::from_secs(30),
    asks: false,
    fence_interval: Duration::from_secs(3600),
};

/// A pool with two groups and a shard that have no owner.
fn pool(seed: u64) -> SimulatedCluster {
    let pool = SimulatedCluster::new(seed);
    pool.set_object_bytes(OBJECT);
    make_groups(&pool);
    pool
}

fn make_groups(pool: &SimulatedCluster) {
    for what in [GROUP, OTHER, SHARD] {
        pool.host(0).create(what).unwrap();
    }
}

fn take(pool: &SimulatedCluster, n: usize, what: Owned) -> Arc<SimulatedHolding> {
    pool.host(n).take_simulated(what, &OPTIONS).unwrap()
}

fn data(holding: &SimulatedHolding) -> Arc<dyn Disk> {
    holding.open(Part::Data).unwrap()
}

fn fill(disk: &dyn Disk, object: u64, byte: u8) {
    disk.write_at(&vec![byte; OBJECT as usize], object * OBJECT)
        .unwrap();
}

fn byte(disk: &dyn Disk, object: u64) -> u8 {
    let mut found = vec![0; OBJECT as usize];
    disk.read_at(&mut found, object * OBJECT).unwrap();
    let is_whole = found.iter().all(|byte| *byte == found[0]);
    assert!(is_whole, "torn inside an object");
    found[0]
}

/// The bytes of two objects, as no host sees them.
fn bytes(pool: &SimulatedCluster, n: usize, what: Owned, part: Part) -> [u8; 2] {
    let engine = pool.engine(n, what).unwrap();
    [0, 1].map(|object| engine.read_raw(part, object * OBJECT, 1)[0])
}

/// Lets a host work for a while on something that the test does not use.
fn work(holding: &SimulatedHolding) {
    let disk = match holding.create(Part::Scrub, 4096) {
        Ok(disk) => disk,
        Err(_) => holding.open(Part::Scrub).unwrap(),
    };
    for _ in 0..IOS {
        disk.read_at(&mut [0], 0).unwrap();
    }
}

fn is_held(pool: &SimulatedCluster, n: usize, what: Owned) -> bool {
    let taken = pool.host(n).take(what, &OPTIONS);
    matches!(taken, Err(TakeError::Held { .. }))
}

#[test]
fn a_write_of_data_in_which_its_host_dies_is_there_or_not_or_late() {
    let (mut at_once, mut later, mut seen_late) = (BTreeSet::new(), BTreeSet::new(), 0);
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let (holding, bystander) = (take(&pool, 0, GROUP), take(&pool, 1, OTHER));
        let disk = data(&holding);
        disk.write_at(&vec![9; 2 * OBJECT as usize], 0).unwrap();
        pool.kill_after(0, 1);
        assert!(disk.write_at(&vec![1; 2 * OBJECT as usize], 0).is_err());
        assert!(pool.is_dead(0) && disk.read_at(&mut [0], 0).is_err());
        pool.kill(0, BOTH[(seed % 2) as usize]);
        pool.set_late_rate(0.0);
        let before = bytes(&pool, 1, OTHER, Part::Data);
        at_once.insert(before);
        seen_late += pool.objects_with_late();
        // Nothing fences the dead host, so a read keeps nothing out.
        assert_eq!(byte(&*data(&bystander), 0), before[0]);
        pool.set_late_rate(0.5);
        work(&bystander);
        later.insert((before, bytes(&pool, 1, OTHER, Part::Data)));
    }
    assert_eq!(at_once, BTreeSet::from([[1, 1], [1, 9], [9, 1], [9, 9]]));
    assert!(
        later.contains(&([9, 9], [1, 9])) && later.contains(&([9, 1], [1, 1])),
        "{later:?}"
    );
    assert!(later.contains(&([9, 9], [9, 9])) && seen_late > 0);
}

#[test]
fn writes_that_were_started_arrive_or_not_when_their_host_dies() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let (holding, bystander) = (take(&pool, 0, GROUP), take(&pool, 1, OTHER));
        let disk = data(&holding);
        fill(&*disk, 0, 9);
        fill(&*disk, 1, 9);
        for object in 0..2 {
            let write = disk.prepare_write(&[1; 512], object * OBJECT).unwrap();
            write.start(Box::new(|_, _| panic!("its process is dead")));
        }
        pool.kill(0, BOTH[(seed % 2) as usize]);
        pool.set_late_rate(0.5);
        work(&bystander);
        found.insert(bytes(&pool, 1, OTHER, Part::Data));
    }
    assert_eq!(found, BTreeSet::from([[1, 1], [1, 9], [9, 1], [9, 9]]));
}

#[test]
fn operations_on_an_object_arrive_in_their_order() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let (holding, bystander) = (take(&pool, 0, GROUP), take(&pool, 1, OTHER));
        let disk = data(&holding);
        fill(&*disk, 0, 9);
        for byte in 1..=3 {
            let write = disk.prepare_write(&[byte], u64::from(byte)).unwrap();
            write.start(Box::new(|_, _| {}));
        }
        pool.kill(0, BOTH[(seed % 2) as usize]);
        pool.set_late_rate(0.3);
        let other = bystander.create(Part::Scrub, 4096).unwrap();
        for _ in 0..IOS {
            found.insert(bystander.engine().read_raw(Part::Data, 1, 3));
            other.read_at(&mut [0], 0).unwrap();
        }
    }
    let prefixes = [[9, 9, 9], [1, 9, 9], [1, 2, 9], [1, 2, 3]].map(Vec::from);
    assert_eq!(found, BTreeSet::from(prefixes));
}

/// The bytes of object 0 before and after late operations had time to arrive, when the group was taken from a dead host
/// and the new owner wrote 5s, or did nothing.
fn late_after_take(seed: u64, is_fenced: bool, touches: bool) -> (u8, u8) {
    let pool = SimulatedCluster::new(seed);
    pool.set_object_bytes(OBJECT);
    pool.set_fenced(is_fenced);
    make_groups(&pool);
    let disk = data(&take(&pool, 0, GROUP));
    // The holding is dropped by a dead host, which gives nothing up.
    let holding = take(&pool, 0, GROUP);
    drop(disk);
    let disk = data(&holding);
    fill(&*disk, 0, 9);
    pool.kill_after(0, 1);
    assert!(disk.write_at(&vec![1; OBJECT as usize], 0).is_err());
    pool.kill(0, BOTH[(seed % 2) as usize]);
    drop((disk, holding));
    pool.set_late_rate(0.0);
    let taken = take(&pool, 1, GROUP);
    pool.set_late_rate(0.0);
    if touches {
        fill(&*data(&taken), 0, 5);
    }
    let before = bytes(&pool, 1, GROUP, Part::Data)[0];
    pool.set_late_rate(0.5);
    work(&taken);
    (before, bytes(&pool, 1, GROUP, Part::Data)[0])
}

#[test]
fn late_data_arrives_only_where_the_next_owner_has_not_been() {
    let run = |is_fenced, touches| -> BTreeSet<(u8, u8)> {
        let seeds = 0..SEEDS;
        seeds
            .map(|seed| late_after_take(seed, is_fenced, touches))
            .collect()
    };
    assert_eq!(run(true, false), BTreeSet::from([(1, 1), (9, 9), (9, 1)]));
    assert_eq!(run(true, true), BTreeSet::from([(5, 5)]));
    // Without a fence, the new owner's data is lost.
    assert_eq!(run(false, true), BTreeSet::from([(5, 5), (5, 1)]));
}

/// What a frozen host's write of 1s has done when another host has taken its group, wrote 5s to object 0, and woke it:
/// its own result, and the bytes of both objects then and after a while.
fn frozen_in_a_write(seed: u64, is_fenced: bool) -> (bool, [u8; 2], [u8; 2]) {
    let pool = SimulatedCluster::new(seed);
    pool.set_object_bytes(OBJECT);
    pool.set_fenced(is_fenced);
    make_groups(&pool);
    let holding = take(&pool, 0, GROUP);
    let disk = data(&holding);
    fill(&*disk, 0, 9);
    fill(&*disk, 1, 9);
    let taken = Arc::new(Mutex::new(None));
    let (world, result) = (pool.clone(), Arc::clone(&taken));
    let hook = move || {
        assert!(is_held(&world, 1, GROUP));
        world.freeze(0);
        let taken = take(&world, 1, GROUP);
        fill(&*data(&taken), 0, 5);
        *result.lock().unwrap() = Some(taken);
        world.wake(0);
    };
    holding
        .engine()
        .on_next_io(Part::Data, Op::Write, When::Before, Box::new(hook));
    let is_done = disk.write_at(&vec![1; 2 * OBJECT as usize], 0).is_ok();
    assert_eq!(pool.is_fenced(0), is_fenced);
    let before = bytes(&pool, 1, GROUP, Part::Data);
    pool.set_late_rate(0.5);
    let taken = taken.lock().unwrap().take().unwrap();
    work(&taken);
    (is_done, before, bytes(&pool, 1, GROUP, Part::Data))
}

#[test]
fn a_frozen_host_that_wakes_changes_nothing_that_its_successor_has_touched() {
    let (mut found, mut unfenced) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..SEEDS {
        found.insert(frozen_in_a_write(seed, true));
        unfenced.insert(frozen_in_a_write(seed, false));
    }
    let expected = [
        (false, [5, 1], [5, 1]),
        (false, [5, 9], [5, 1]),
        (false, [5, 9], [5, 9]),
    ];
    assert_eq!(found, BTreeSet::from(expected));
    assert_eq!(unfenced, BTreeSet::from([(true, [1, 1], [1, 1])]));
}

/// A frozen host whose group another has taken, which read object 0 of the two objects of the data. It is awake.
fn woken(pool: &SimulatedCluster) -> (Arc<SimulatedHolding>, Arc<dyn Disk>, Arc<SimulatedHolding>) {
    let holding = take(pool, 0, GROUP);
    holding.create(Part::Log, OBJECT).unwrap();
    let disk = data(&holding);
    fill(&*disk, 0, 9);
    fill(&*disk, 1, 9);
    pool.freeze(0);
    let taken = take(pool, 1, GROUP);
    assert!(taken.session() > holding.session());
    assert_eq!(byte(&*data(&taken), 0), 9);
    pool.wake(0);
    (holding, disk, taken)
}

#[test]
fn a_woken_host_can_do_nothing_once_it_knows_that_it_was_fenced() {
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let (holding, disk, _taken) = woken(&pool);
        // An object that the successor has read takes no operation, and the failure tells the process.
        let is_refused = match seed % 3 {
            0 => disk.write_at(&[1], 0).is_err(),
            1 => disk.read_at(&mut [0], 0).is_err(),
            _ => holding.create(Part::Meta, 0).is_err(),
        };
        assert!(is_refused);
        assert!(disk.write_at(&[1], OBJECT).is_err() && disk.read_at(&mut [0], OBJECT).is_err());
        assert!(holding.create(Part::Meta, 0).is_err() && holding.open(Part::Log).is_err());
        let host = pool.host(0);
        assert!(host.exchange(GroupId(1), 1, &[], 1).is_err());
        assert!(host.directory().read().is_err() && host.take(OTHER, &OPTIONS).is_err());
    }
}

#[test]
fn a_woken_host_may_use_data_that_its_successor_has_not_touched() {
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let holding = take(&pool, 0, GROUP);
        let log = holding.create(Part::Log, OBJECT).unwrap();
        let disk = data(&holding);
        fill(&*disk, 0, 9);
        pool.freeze(0);
        let _taken = take(&pool, 1, GROUP);
        pool.wake(0);
        pool.set_late_rate(0.0);
        let mut found = [0];
        let read = disk.read_at(&mut found, 0).is_ok();
        assert!(!read || found == [9]);
        let written = disk.write_at(&vec![1; OBJECT as usize], 0).is_ok();
        assert!(read || !written);
        reads.insert(read);
        writes.insert((written, bytes(&pool, 1, GROUP, Part::Data)[0]));
        assert!(log.write_at(&[1], 0).is_err() && log.sync().is_err());
    }
    assert_eq!(reads, BTreeSet::from([false, true]));
    assert_eq!(writes, BTreeSet::from([(true, 1), (false, 1), (false, 9)]));
}

/// Whether a frozen host's write lands in an extent that another group has got by an exchange and written to.
fn late_in_an_extent(seed: u64, is_map_latest: bool) -> bool {
    let pool = pool(seed);
    pool.set_map_latest(is_map_latest);
    pool.set_extents(1);
    let third = take(&pool, 2, OTHER);
    let holding = take(&pool, 0, GROUP);
    let extent = pool.host(0).exchange(GroupId(1), 1, &[], 1).unwrap();
    let disk = data(&holding);
    let world = pool.clone();
    let hook = move || {
        world.freeze(0);
        let _taken = take(&world, 1, GROUP);
        let whole = extent.taken.iter().map(|extent| GivenRun {
            pba: extent.first(),
            count: BLOCKS_PER_SPACE_EXTENT as u32,
        });
        let whole: Vec<GivenRun> = whole.collect();
        world.host(1).exchange(GroupId(1), 2, &whole, 0).unwrap();
        let got = world.host(2).exchange(GroupId(2), 1, &[], 1).unwrap();
        assert_eq!(got.taken, extent.taken);
        fill(&*data(&third), 0, 5);
        world.set_late_rate(0.5);
        work(&third);
        world.wake(0);
    };
    holding
        .engine()
        .on_next_io(Part::Data, Op::Write, When::Before, Box::new(hook));
    let _ = disk.write_at(&vec![1; OBJECT as usize], 0);
    let reader = take(&pool, 3, SHARD);
    pool.set_late_rate(0.5);
    work(&reader);
    let found = byte(&*data(&reader), 0);
    assert!(found == 1 || found == 5);
    found == 1
}

#[test]
fn late_data_lands_in_an_extent_of_another_group_only_without_the_newest_map() {
    let damaged = |is_latest| {
        (0..SEEDS)
            .filter(|seed| late_in_an_extent(*seed, is_latest))
            .count()
    };
    assert_eq!(damaged(true), 0);
    assert!(damaged(false) > 0);
}

#[test]
fn what_an_owner_leaves_unsynced_survives_object_by_object() {
    let (mut found, mut late) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..SEEDS {
        for way in 0..3 {
            let pool = pool(seed);
            let holding = take(&pool, 0, GROUP);
            let meta = holding.create(Part::Meta, 2 * OBJECT).unwrap();
            meta.write_at(&vec![9; 2 * OBJECT as usize], 0).unwrap();
            meta.sync().unwrap();
            meta.write_at(&vec![1; 2 * OBJECT as usize], 0).unwrap();
            match way {
                0 => pool.kill(0, BOTH[(seed % 2) as usize]),
                1 => pool.freeze(0),
                _ => {}
            }
            if way != 1 {
                drop((meta, holding));
            }
            let taken = take(&pool, 1, GROUP);
            let before = bytes(&pool, 1, GROUP, Part::Meta);
            found.insert((way, before));
            taken.engine().set_late_rate(0.5);
            work(&taken);
            if before != bytes(&pool, 1, GROUP, Part::Meta) {
                late.insert(way);
            }
        }
    }
    let all = [[1, 1], [1, 9], [9, 1], [9, 9]];
    let expected = (0..3).flat_map(|way| all.map(|bytes| (way, bytes)));
    assert_eq!(found, expected.collect());
    // One that gave the group up has waited for its operations.
    assert_eq!(late, BTreeSet::from([0, 1]));
}

#[test]
fn an_owner_that_listens_after_its_fence_is_told_once() {
    for knows in [false, true] {
        let pool = pool(1);
        let holding = take(&pool, 0, GROUP);
        let meta = holding.create(Part::Meta, OBJECT).unwrap();
        pool.freeze(0);
        drop(take(&pool, 1, GROUP));
        pool.wake(0);
        let fails = || {
            assert!(
                meta.write_at(&[1; 512], 0)
                    .and_then(|()| meta.sync())
                    .is_err()
            )
        };
        (0..usize::from(knows)).for_each(|_| fails());
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        holding.on_event(Box::new(move |event| told.lock().unwrap().push(event)));
        assert_eq!(events.lock().unwrap().len(), usize::from(knows));
        (0..2).for_each(|_| fails());
        let events = events.lock().unwrap();
        assert!(
            matches!(events[..], [OwnerEvent::Lost { .. }]),
            "{events:?}"
        );
    }
}

#[test]
fn an_owner_gives_up_when_it_is_asked_and_is_told_when_it_was_fenced() {
    let pool = pool(1);
    let events = Arc::new(Mutex::new(Vec::new()));
    let holding = Arc::new(Mutex::new(Some(take(&pool, 0, GROUP))));
    let listen = |gives_up: bool| {
        let (events, own) = (Arc::clone(&events), Arc::downgrade(&holding));
        holding
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .on_event(Box::new(move |event| {
                if event == OwnerEvent::ReleaseWanted && gives_up {
                    let given = own.upgrade().unwrap().lock().unwrap().take();
                    drop(given);
                }
                events.lock().unwrap().push(event);
            }));
    };
    let asking = TakeOptions {
        asks: true,
        ..OPTIONS
    };
    // Without a handler, and with one that keeps the group.
    assert!(pool.host(1).take(GROUP, &asking).is_err());
    listen(false);
    assert!(is_held(&pool, 1, GROUP) && events.lock().unwrap().is_empty());
    assert!(pool.host(1).take(GROUP, &asking).is_err());
    assert_eq!(events.lock().unwrap().drain(..).count(), 1);
    listen(true);
    let second = pool.host(1).take_simulated(GROUP, &asking).unwrap();
    assert_eq!(*events.lock().unwrap(), [OwnerEvent::ReleaseWanted]);
    assert_eq!(pool.counts().given_up_when_asked, 1);
    assert!(!pool.is_fenced(0), "it gave the group up");
    // A frozen one is told in the first I/O that fails.
    *holding.lock().unwrap() = Some(second);
    listen(true);
    events.lock().unwrap().clear();
    pool.freeze(1);
    let _third = take(&pool, 2, GROUP);
    pool.wake(1);
    assert!(events.lock().unwrap().is_empty() && pool.is_fenced(1));
    let fenced = holding.lock().unwrap().take().unwrap();
    for _ in 0..3 {
        assert!(fenced.create(Part::Meta, 0).is_err());
    }
    let told = events.lock().unwrap().clone();
    assert!(matches!(told[..], [OwnerEvent::Lost { .. }]), "{told:?}");
}

#[test]
fn a_fenced_process_loses_all_that_it_owns() {
    let pool = pool(1);
    let (one, two) = (take(&pool, 0, GROUP), take(&pool, 0, OTHER));
    pool.freeze(0);
    let _taken = take(&pool, 1, GROUP);
    pool.wake(0);
    assert!(two.create(Part::Meta, 0).is_err());
    drop((one, two));
    assert_eq!((pool.owner(GROUP), pool.owner(OTHER)), (Some(1), Some(0)));
    // It is taken from the dead, by the next process of the same host, too.
    pool.kill(0, CrashKind::ProcessKilled);
    let _again = take(&pool, 0, OTHER);
    assert!(is_held(&pool, 0, GROUP) && is_held(&pool, 1, OTHER));
}

#[test]
fn a_cut_host_fails_and_goes_on_when_it_is_healed_unless_it_was_replaced() {
    for is_replaced in [false, true] {
        let pool = pool(1);
        let holding = take(&pool, 0, GROUP);
        let log = holding.create(Part::Log, OBJECT).unwrap();
        log.write_at(&[1], 0).unwrap();
        log.sync().unwrap();
        pool.cut(0);
        assert!(log.write_at(&[2], 0).is_err() && log.sync().is_err());
        assert!(pool.host(0).extent_counts().is_err() && pool.host(0).create(SHARD).is_err());
        assert!(holding.engine().is_crashed());
        let taken = is_replaced.then(|| take(&pool, 1, GROUP));
        pool.heal(0);
        assert_eq!(log.write_at(&[3], 0).is_err(), is_replaced);
        assert_eq!(pool.host(0).extent_counts().is_err(), is_replaced);
        if let Some(taken) = taken {
            let log = taken.open(Part::Log).unwrap();
            let mut found = [0];
            log.read_at(&mut found, 0).unwrap();
            assert_eq!(found, [1]);
        }
    }
}

#[test]
fn what_a_cut_host_drops_is_its_own_until_it_is_taken() {
    let pool = pool(1);
    let holding = take(&pool, 0, GROUP);
    pool.cut(0);
    drop(holding);
    assert_eq!(pool.owner(GROUP), Some(0));
    pool.heal(0);
    let again = take(&pool, 0, GROUP);
    assert!(!pool.is_fenced(0));
    pool.cut(0);
    drop(again);
    pool.heal(0);
    let _other = take(&pool, 1, GROUP);
    assert!(pool.is_fenced(0), "no owner answers for the group");
}

#[test]
fn data_in_flight_when_its_host_is_cut_off_arrives_or_not_and_never_after_it_is_healed() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let holding = take(&pool, 0, GROUP);
        let disk = data(&holding);
        fill(&*disk, 0, 9);
        let world = pool.clone();
        let hook = move || world.cut(0);
        let engine = holding.engine();
        engine.on_next_io(Part::Data, Op::Write, When::Before, Box::new(hook));
        assert!(disk.write_at(&vec![1; OBJECT as usize], 0).is_err());
        pool.heal(0);
        let found_first = byte(&*disk, 0);
        fill(&*disk, 0, 5);
        pool.set_late_rate(0.9);
        work(&holding);
        assert_eq!(byte(&*disk, 0), 5);
        // The next failure has every outcome, too, also where an operation was lost in this one.
        pool.kill_after(0, 1);
        assert!(disk.write_at(&vec![6; OBJECT as usize], 0).is_err());
        let second = bytes(&pool, 0, GROUP, Part::Data)[0];
        outcomes.insert((found_first, second));
    }
    assert_eq!(outcomes, BTreeSet::from([(1, 5), (1, 6), (9, 5), (9, 6)]));
}

#[test]
fn memory_is_of_a_host_and_a_group_and_outlives_processes() {
    let pool = pool(1);
    let write = |holding: &SimulatedHolding, byte: u8| {
        holding.host_memory(64).unwrap().write_at(&[byte], 5);
    };
    let read = |holding: &SimulatedHolding| {
        let mut found = [99];
        holding.host_memory(64).unwrap().read_at(&mut found, 5);
        found[0]
    };
    let (one, two) = (take(&pool, 0, GROUP), take(&pool, 0, OTHER));
    write(&one, 1);
    write(&two, 2);
    let boot = one.boot_id().unwrap();
    let stale = one.host_memory(64).unwrap();
    pool.kill(0, CrashKind::ProcessKilled);
    stale.write_at(&[7], 5);
    let (one, two) = (take(&pool, 0, GROUP), take(&pool, 0, OTHER));
    assert_eq!((read(&one), read(&two)), (1, 2));
    assert_eq!(one.boot_id().unwrap(), boot);
    drop(one);
    let other = take(&pool, 1, GROUP);
    assert_eq!(read(&other), 0);
    assert_ne!(other.boot_id().unwrap(), boot);
    write(&other, 3);
    drop(other);
    let one = take(&pool, 0, GROUP);
    assert_eq!(read(&one), 0, "another host has owned the group since");
    write(&one, 4);
    pool.kill(0, CrashKind::PowerLoss);
    let one = take(&pool, 0, GROUP);
    assert_eq!(read(&one), 0);
    assert_ne!(one.boot_id().unwrap(), boot);
}

#[test]
fn a_host_dies_in_any_of_its_ios_and_operations() {
    let (mut taken, mut leased, mut set) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seed in 0..SEEDS {
        let pool = pool(seed);
        pool.set_extents(1);
        let holding = take(&pool, 0, OTHER);
        let host = pool.host(0);
        pool.kill_after(0, 3);
        holding.create(Part::Meta, 0).unwrap();
        assert_eq!(host.extent_counts().unwrap().free, 1);
        match seed % 3 {
            0 => {
                assert!(host.take(GROUP, &OPTIONS).is_err());
                taken.insert(pool.owner(GROUP));
            }
            1 => {
                assert!(host.exchange(GroupId(2), 1, &[], 1).is_err());
                leased.insert(pool.host(1).extent_counts().unwrap().free);
            }
            _ => {
                assert!(host.change(0, &[("a".to_owned(), None)]).is_err());
                set.insert(pool.host(1).directory().read().unwrap().version);
            }
        }
        assert!(pool.is_dead(0) && holding.engine().is_crashed());
        assert!(host.extent_counts().is_err());
        let _one = take(&pool, 1, GROUP);
    }
    assert_eq!(taken, BTreeSet::from([None, Some(0)]));
    assert_eq!(
        (leased, set),
        (BTreeSet::from([0, 1]), BTreeSet::from([0, 1]))
    );
}

#[test]
fn orders_to_a_holding_end_its_host() {
    for way in 0..2 {
        let pool = pool(1);
        let (one, two) = (take(&pool, 0, GROUP), take(&pool, 0, OTHER));
        match way {
            0 => one.engine().halt(),
            _ => {
                one.engine().crash_after(1);
                assert!(one.create(Part::Meta, 0).is_err());
            }
        }
        assert!(pool.is_dead(0) && two.engine().is_crashed());
    }
}

#[test]
fn hosts_die_and_are_cut_off_at_random() {
    let (mut died, mut cut) = (0, 0);
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let holding = take(&pool, 0, GROUP);
        let disk = holding.create(Part::Meta, 4096).unwrap();
        pool.set_rates(ClusterRates {
            host_dies: 0.1,
            host_cut: 0.1,
            ..ClusterRates::default()
        });
        let ended = (0..10).find_map(|_| disk.read_at(&mut [0], 0).err());
        assert_eq!(ended.is_some(), pool.is_dead(0) || pool.is_cut(0));
        died += u64::from(pool.is_dead(0));
        cut += u64::from(pool.is_cut(0));
    }
    assert!(died > SEEDS / 10 && cut > SEEDS / 10);
}

#[test]
fn an_exchange_without_an_outcome_is_repeated_under_its_number() {
    let mut found = BTreeSet::new();
    for is_kept in [true, false] {
        for seed in 0..SEEDS {
            let pool = pool(seed);
            pool.set_extents(4);
            pool.set_numbers_kept(is_kept);
            pool.set_rates(ClusterRates {
                exchange_lost: 0.5,
                ..ClusterRates::default()
            });
            let host = pool.host(0);
            let got = loop {
                match host.exchange(GroupId(1), 7, &[], 1) {
                    Ok(got) => break got,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut),
                }
            };
            pool.set_rates(ClusterRates::default());
            let leaked = 3 - host.extent_counts().unwrap().free;
            found.insert((is_kept, leaked > 0));
            assert!(got.taken.iter().all(|extent| pool.is_out(*extent)));
        }
    }
    assert_eq!(
        found,
        BTreeSet::from([(true, false), (false, false), (false, true)])
    );
}

#[test]
fn operations_without_an_outcome_have_happened_or_not() {
    let (mut changed, mut created, mut removed) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let host = pool.host(0);
        let holding = host.take(GROUP, &OPTIONS).unwrap();
        pool.set_rates(ClusterRates {
            directory_lost: 1.0,
            ownership_lost: 1.0,
            ..ClusterRates::default()
        });
        let set = [("a".to_owned(), Some(vec![1]))];
        assert!(host.change(0, &set).is_err());
        let new = Owned::Group(GroupId(77));
        assert!(host.create(new).is_err() && host.remove(holding).is_err());
        assert!(host.take(OTHER, &OPTIONS).is_err());
        pool.set_rates(ClusterRates::default());
        changed.insert(host.read().unwrap().rows.len());
        created.insert(host.create(new).is_err());
        removed.insert(host.take(GROUP, &OPTIONS).is_err());
        let _other = take(&pool, 1, OTHER);
        let counts = pool.counts();
        assert_eq!(counts.operations_unknown, 4);
        assert!(counts.operations_done_unknown <= 4);
    }
    assert_eq!(changed, BTreeSet::from([0, 1]));
    assert_eq!(
        (created, removed),
        (BTreeSet::from([false, true]), BTreeSet::from([false, true]))
    );
}

#[test]
fn a_lost_object_of_the_data_is_missing_for_all() {
    let pool = pool(1);
    let (one, two) = (take(&pool, 0, GROUP), take(&pool, 1, OTHER));
    fill(&*data(&one), 0, 1);
    fill(&*data(&one), 1, 1);
    two.engine().lose_object(Part::Data, 5);
    let error = data(&one).read_at(&mut [0], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(byte(&*data(&one), 1), 1);
    assert_eq!(
        one.engine().durable_image(Part::Data).len() as u64,
        2 * OBJECT
    );
}

#[test]
fn a_seed_and_the_same_calls_give_the_same_result() {
    let run = |seed: u64| {
        let pool = pool(seed);
        pool.set_extents(100);
        let mut trace = Vec::new();
        for step in 0..30u8 {
            let n = usize::from(step % 3);
            let Ok(holding) = pool.host(n).take_simulated(GROUP, &OPTIONS) else {
                continue;
            };
            let got = pool
                .host(n)
                .exchange(GroupId(1), step.into(), &[], 2)
                .unwrap();
            let disk = data(&holding);
            pool.kill_after(n, 5);
            for at in 0..5 {
                let _ = disk.write_at(&vec![step; 3 * OBJECT as usize], at * OBJECT);
            }
            trace.push((
                holding.session(),
                got,
                pool.landed_late(),
                pool.objects_with_late(),
            ));
            pool.kill(n, BOTH[usize::from(step % 2)]);
        }
        let last = take(&pool, 5, OTHER);
        work(&last);
        let image = last.engine().durable_image(Part::Data);
        (trace, image, pool.counts())
    };
    assert!(run(5) == run(5));
    assert!(run(5) != run(6));
}
