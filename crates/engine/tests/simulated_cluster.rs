//! The simulated cluster: what an owner's death leaves, and what arrives after it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_engine::{Disk, Engine, Part};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

/// Enough that an outcome of probability 1/50 fails to occur once in 10^8 changes of this code.
const SEEDS: u64 = 1000;

const OBJECT: u64 = 8 << 10;

const BOTH: [CrashKind; 2] = [CrashKind::PowerLoss, CrashKind::ProcessKilled];

/// I/Os of a new owner that give late operations time to arrive.
const IOS: usize = 60;

/// A cluster, and a part of it that is written and synced once: four objects of nines.
fn cluster(seed: u64, part: Part) -> (SimulatedEngine, Arc<dyn Disk>) {
    with_rules(seed, part, true, true)
}

fn with_rules(
    seed: u64,
    part: Part,
    is_fenced: bool,
    is_asserted: bool,
) -> (SimulatedEngine, Arc<dyn Disk>) {
    let engine = SimulatedEngine::of_cluster(seed);
    engine.set_object_bytes(OBJECT);
    engine.set_fenced(is_fenced);
    engine.set_asserted(is_asserted);
    // For I/Os that touch nothing else.
    engine.create(Part::Secret, 4096).unwrap();
    let disk = engine.create(part, 0).unwrap();
    disk.write_at(&vec![9; 4 * OBJECT as usize], 0).unwrap();
    disk.sync().unwrap();
    (engine, disk)
}

/// One byte of each object; fails if a write of a whole object is torn.
fn objects(engine: &SimulatedEngine, part: Part) -> [u8; 4] {
    let bytes = engine.read_raw(part, 0, 4 * OBJECT as usize);
    let mut found = [0; 4];
    for (object, bytes) in bytes.chunks(OBJECT as usize).enumerate() {
        found[object] = bytes[0];
        let is_whole = bytes.iter().all(|byte| *byte == bytes[0]);
        assert!(is_whole, "torn inside an object");
    }
    found
}

fn fill(disk: &dyn Disk, object: u64, byte: u8) {
    disk.write_at(&vec![byte; OBJECT as usize], object * OBJECT)
        .unwrap();
}

/// Lets the next owner work for a while, on a part that the test does not use.
fn work(engine: &SimulatedEngine) {
    let secret = engine.open(Part::Secret).unwrap();
    for _ in 0..IOS {
        secret.read_at(&mut [0], 0).unwrap();
    }
}

/// The contents of a part's objects when the next owner begins, over many seeds.
fn outcomes(part: Part, run: impl Fn(&SimulatedEngine, &dyn Disk)) -> BTreeSet<[u8; 4]> {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = cluster(seed, part);
        run(&engine, &*disk);
        let kind = BOTH[(seed % 2) as usize];
        found.insert(objects(&engine.crash(kind), part));
    }
    found
}

/// The contents of objects 0 and 1 of a part after the next owner has opened it, and at the end of its work. `touch`
/// runs in between.
fn arrivals(
    part: Part,
    is_fenced: bool,
    is_asserted: bool,
    touch: impl Fn(&dyn Disk),
) -> BTreeSet<([u8; 2], [u8; 2])> {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = with_rules(seed, part, is_fenced, is_asserted);
        if part == Part::Data {
            // Where writes are waited for, those in flight are the ones that the owner dies in.
            for object in 0..2 {
                let write = disk.prepare_write(&[1; 4096], object * OBJECT).unwrap();
                write.start(Box::new(|_, _| {}));
            }
        } else {
            fill(&*disk, 0, 1);
            fill(&*disk, 1, 1);
        }
        let engine = engine.crash(BOTH[(seed % 2) as usize]);
        let disk = engine.open(part).unwrap();
        touch(&*disk);
        let first = |engine: &SimulatedEngine| {
            [0, 1].map(|object| engine.read_raw(part, object * OBJECT, 1)[0])
        };
        let before = first(&engine);
        work(&engine);
        let after = first(&engine);
        found.insert((before, after));
    }
    found
}

/// Whether something arrived late at this object.
fn is_late(found: &BTreeSet<([u8; 2], [u8; 2])>, object: usize) -> bool {
    found
        .iter()
        .any(|(before, after)| before[object] != after[object])
}

fn untouched(_: &dyn Disk) {}

/// Reads object 1.
fn read(disk: &dyn Disk) {
    disk.read_at(&mut [0], OBJECT).unwrap();
}

#[test]
fn data_is_durable_when_its_write_returns() {
    let found = outcomes(Part::Data, |_, disk| {
        disk.write_at(&vec![1; 2 * OBJECT as usize], OBJECT)
            .unwrap();
    });
    assert_eq!(found, BTreeSet::from([[9, 1, 1, 9]]));
}

#[test]
fn a_write_of_data_in_which_its_owner_dies_is_there_or_not_object_by_object() {
    let found = outcomes(Part::Data, |engine, disk| {
        engine.crash_after(1);
        let written = disk.write_at(&vec![1; 2 * OBJECT as usize], OBJECT);
        assert!(written.is_err());
    });
    let expected = [[9, 1, 1, 9], [9, 1, 9, 9], [9, 9, 1, 9], [9; 4]];
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn what_is_written_behind_survives_object_by_object_until_it_is_synced() {
    let found = outcomes(Part::Log, |_, disk| {
        disk.write_at(&vec![1; 2 * OBJECT as usize], OBJECT)
            .unwrap();
    });
    let expected = [[9, 1, 1, 9], [9, 1, 9, 9], [9, 9, 1, 9], [9; 4]];
    assert_eq!(found, BTreeSet::from(expected));
    let found = outcomes(Part::Log, |_, disk| {
        fill(disk, 1, 1);
        disk.sync().unwrap();
        fill(disk, 2, 2);
    });
    assert_eq!(found, BTreeSet::from([[9, 1, 2, 9], [9, 1, 9, 9]]));
}

#[test]
fn operations_on_an_object_survive_in_their_order() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = cluster(seed, Part::Meta);
        for (at, byte) in [(0, 1), (1, 2), (2, 3)] {
            disk.write_at(&[byte], OBJECT + at).unwrap();
        }
        let engine = engine.crash(BOTH[(seed % 2) as usize]);
        found.insert(engine.read_raw(Part::Meta, OBJECT, 3));
    }
    let prefixes = [[9, 9, 9], [1, 9, 9], [1, 2, 9], [1, 2, 3]].map(Vec::from);
    assert_eq!(found, BTreeSet::from(prefixes));
}

#[test]
fn a_sync_covers_only_what_was_written_before_it_started() {
    let found = outcomes(Part::Log, |engine, disk| {
        fill(disk, 0, 1);
        let during = engine.open(Part::Log).unwrap();
        let hook = move || fill(&*during, 1, 2);
        engine.on_next_io(Part::Log, Op::Sync, When::Before, Box::new(hook));
        disk.sync().unwrap();
    });
    assert_eq!(found, BTreeSet::from([[1, 2, 9, 9], [1, 9, 9, 9]]));
}

/// The owner waits for a discard, and the object has received all earlier operations when it ends.
#[test]
fn a_discard_is_durable_with_all_that_was_sent_to_its_object_before() {
    let found = outcomes(Part::Index, |_, disk| {
        fill(disk, 1, 1);
        fill(disk, 2, 2);
        disk.discard(OBJECT, OBJECT).unwrap();
    });
    assert_eq!(found, BTreeSet::from([[9, 0, 2, 9], [9, 0, 9, 9]]));
}

#[test]
fn a_length_is_durable_when_it_was_set_and_growth_after_a_sync() {
    let mut grown = BTreeSet::new();
    for seed in 0..SEEDS {
        for part in [Part::Data, Part::Meta] {
            let (engine, disk) = cluster(seed, part);
            disk.write_at(&[1], 4 * OBJECT).unwrap();
            assert_eq!(disk.len().unwrap(), 4 * OBJECT + 1);
            let after = engine.crash(BOTH[(seed % 2) as usize]).open(part).unwrap();
            grown.insert(after.len().unwrap());
            disk.sync().unwrap();
            let after = engine.crash(BOTH[(seed % 2) as usize]).open(part).unwrap();
            assert_eq!(after.len().unwrap(), 4 * OBJECT + 1);
            disk.set_len(OBJECT).unwrap();
            let after = engine.crash(BOTH[(seed % 2) as usize]);
            let disk = after.open(part).unwrap();
            assert_eq!(disk.len().unwrap(), OBJECT);
            disk.set_len(4 * OBJECT).unwrap();
            assert_eq!(objects(&after, part), [9, 0, 0, 0]);
        }
    }
    assert_eq!(grown, BTreeSet::from([4 * OBJECT, 4 * OBJECT + 1]));
}

#[test]
fn what_is_beyond_the_length_is_gone_once_the_part_is_open_but_for_data() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        for part in [Part::Data, Part::Meta] {
            let (engine, disk) = cluster(seed, part);
            let len = 3 * OBJECT + 512;
            disk.set_len(len).unwrap();
            disk.write_at(&vec![1; 2 * OBJECT as usize], len).unwrap();
            let engine = engine.crash(BOTH[(seed % 2) as usize]);
            let disk = engine.open(part).unwrap();
            if disk.len().unwrap() == len {
                disk.set_len(5 * OBJECT).unwrap();
                work(&engine);
                let mut beyond = vec![7; (5 * OBJECT - len) as usize];
                disk.read_at(&mut beyond, len).unwrap();
                found.insert((part, beyond.iter().any(|byte| *byte != 0)));
            }
        }
    }
    let expected = [(Part::Data, true), (Part::Meta, false)];
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn a_write_behind_that_fails_is_told_once_by_the_next_sync_and_by_reads_until_then() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = cluster(seed, Part::Meta);
        engine.fail_once(Part::Meta, Op::Write, 1, ErrorKind::TimedOut);
        fill(&*disk, 1, 1);
        fill(&*disk, 2, 2);
        let error = disk.read_at(&mut [0], OBJECT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = disk.sync().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        disk.read_at(&mut [0], OBJECT).unwrap();
        disk.sync().unwrap();
        found.insert(objects(&engine.crash(CrashKind::PowerLoss), Part::Meta));
    }
    assert_eq!(found, BTreeSet::from([[9, 1, 2, 9], [9, 9, 2, 9]]));
}

#[test]
fn memory_outlives_the_process_and_another_host_has_none_of_it() {
    let (engine, _) = cluster(1, Part::Data);
    engine.host_memory(4096).unwrap().write_at(&[7], 5);
    let boot = engine.boot_id().unwrap();
    let same = engine.crash(CrashKind::ProcessKilled);
    assert_eq!(same.read_host_memory(5, 1), [7]);
    assert_eq!(same.boot_id().unwrap(), boot);
    let other = engine.crash(CrashKind::PowerLoss);
    assert_eq!(other.host_memory_len(), 0);
    let mut found = [1];
    other.host_memory(4096).unwrap().read_at(&mut found, 5);
    assert_eq!(found, [0]);
    assert_ne!(other.boot_id().unwrap(), boot);
}

#[test]
fn what_is_late_arrives_at_objects_that_the_owner_has_not_touched() {
    for part in [Part::Data, Part::Meta, Part::Index] {
        let found = arrivals(part, true, true, untouched);
        assert!(is_late(&found, 1), "{part:?}: {found:?}");
        for touch in [read, |disk: &dyn Disk| disk.discard(OBJECT, 512).unwrap()] {
            let found = arrivals(part, true, true, touch);
            assert!(!is_late(&found, 1), "{part:?}: {found:?}");
        }
    }
    assert!(is_late(&arrivals(Part::Data, true, true, read), 0));
}

#[test]
fn without_a_fence_it_arrives_at_touched_objects_too() {
    for part in [Part::Data, Part::Meta, Part::Index] {
        let found = arrivals(part, false, true, read);
        assert!(is_late(&found, 1), "{part:?}: {found:?}");
    }
    // The late operation is applied on top of the owner's later writes, whether these are durable or not.
    let found = arrivals(Part::Meta, false, true, |disk| fill(disk, 1, 5));
    assert!(found.contains(&([9, 5], [9, 1])), "{found:?}");
}

#[test]
fn guarded_objects_take_nothing_once_their_part_is_open() {
    for is_fenced in [true, false] {
        let found = arrivals(Part::Log, is_fenced, true, untouched);
        assert!(!is_late(&found, 0) && !is_late(&found, 1), "{found:?}");
        for part in [Part::Meta, Part::Index, Part::Scrub] {
            let found = arrivals(part, is_fenced, true, untouched);
            assert!(!is_late(&found, 0), "{part:?}: {found:?}");
            assert!(is_late(&found, 1), "{part:?}: {found:?}");
        }
    }
}

#[test]
fn without_an_assertion_guarded_objects_are_as_others() {
    for part in [Part::Log, Part::Meta, Part::Index] {
        let found = arrivals(part, true, false, untouched);
        assert!(is_late(&found, 0), "{part:?}: {found:?}");
        let found = arrivals(part, true, false, read);
        assert!(!is_late(&found, 1), "{part:?}: {found:?}");
        let found = arrivals(part, false, false, read);
        assert!(is_late(&found, 1), "{part:?}: {found:?}");
    }
}

#[test]
fn what_is_late_arrives_in_the_order_in_which_it_was_sent() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = cluster(seed, Part::Meta);
        for byte in 1..=3 {
            disk.write_at(&[byte], OBJECT + u64::from(byte)).unwrap();
        }
        let engine = engine.crash(BOTH[(seed % 2) as usize]);
        engine.set_late_rate(0.3);
        let secret = engine.open(Part::Secret).unwrap();
        for _ in 0..IOS {
            found.insert(engine.read_raw(Part::Meta, OBJECT + 1, 3));
            secret.read_at(&mut [0], 0).unwrap();
        }
    }
    let prefixes = [[9, 9, 9], [1, 9, 9], [1, 2, 9], [1, 2, 3]].map(Vec::from);
    assert_eq!(found, BTreeSet::from(prefixes));
}

#[test]
fn what_is_late_may_outlive_the_next_owner() {
    let mut arrived = 0;
    for seed in 0..SEEDS {
        let (engine, disk) = cluster(seed, Part::Meta);
        fill(&*disk, 1, 1);
        let mut engine = engine.crash(CrashKind::PowerLoss);
        for kind in BOTH {
            engine.set_late_rate(0.0);
            work(&engine);
            assert_eq!(engine.landed_late(), 0);
            engine = engine.crash(kind);
        }
        engine.set_late_rate(1.0);
        work(&engine);
        arrived += engine.landed_late();
    }
    assert!(arrived > 0);
}

/// A late operation stays on top of the next owner's earlier writes, even if these are synced afterwards.
#[test]
fn what_is_late_is_not_undone_by_a_sync() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = with_rules(seed, Part::Meta, false, true);
        fill(&*disk, 1, 1);
        let engine = engine.crash(BOTH[(seed % 2) as usize]);
        engine.set_late_rate(0.0);
        let disk = engine.open(Part::Meta).unwrap();
        fill(&*disk, 1, 5);
        engine.set_late_rate(1.0);
        work(&engine);
        let seen = objects(&engine, Part::Meta);
        disk.sync().unwrap();
        let after = objects(&engine.crash(CrashKind::PowerLoss), Part::Meta);
        assert_eq!(after, seen, "seed {seed}");
        found.insert(seen[1]);
    }
    assert_eq!(found, BTreeSet::from([1, 5]));
}

#[test]
fn late_operations_are_counted() {
    let (mut under_way, mut landed) = (0, 0);
    for seed in 0..SEEDS {
        let (engine, disk) = cluster(seed, Part::Meta);
        fill(&*disk, 1, 1);
        assert_eq!((engine.objects_with_late(), engine.landed_late()), (0, 0));
        let engine = engine.crash(CrashKind::ProcessKilled);
        under_way += engine.objects_with_late() as u64;
        work(&engine);
        landed += engine.landed_late();
    }
    assert!(under_way > SEEDS / 10 && landed > 0 && landed <= under_way);
}

#[test]
fn writes_without_a_thread_are_of_one_object_and_of_what_is_there() {
    let (engine, disk) = cluster(1, Part::Data);
    assert!(!disk.is_cached());
    assert!(!disk.try_read_at(&mut [0], 0).unwrap());
    assert!(disk.prepare_write(&[1; 512], OBJECT - 512).is_some());
    assert!(disk.prepare_write(&[1; 512], OBJECT - 511).is_none());
    assert!(disk.prepare_write(&[1; 512], 4 * OBJECT).is_none());
    assert_eq!(
        engine.open(Part::Meta).err().unwrap().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn a_seed_and_the_same_calls_give_the_same_result() {
    let run = |seed: u64| {
        let (mut engine, _) = cluster(seed, Part::Meta);
        let mut trace = Vec::new();
        for owner in 0..20u8 {
            let disk = engine.open(Part::Meta).unwrap();
            for step in 0..10 {
                let at = (u64::from(owner) * 7919 + step * 104_729) % (4 * OBJECT);
                disk.write_at(&[owner; 1500], at).unwrap();
            }
            engine = engine.crash(BOTH[usize::from(owner % 2)]);
            work(&engine);
            trace.push(engine.landed_late());
        }
        (trace, engine.read_raw(Part::Meta, 0, 5 * OBJECT as usize))
    };
    assert!(run(5) == run(5));
    assert!(run(5) != run(6));
}
