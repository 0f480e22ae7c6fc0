//! The fault injector itself: that its faults do occur, and only where the contract allows them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::simulated::{
    Count, CrashKind, FailureRates, Op, PowerLossBias, SimulatedEngine, When,
};
use onefold_engine::{Disk, Engine, Part};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Enough that an outcome of probability 1/50 fails to occur once in 10^8 changes of this code.
const SEEDS: u64 = 1000;

const SECTOR: usize = 512;

fn machine(seed: u64) -> (SimulatedEngine, Arc<dyn Disk>) {
    let engine = SimulatedEngine::new(seed);
    let disk = engine.create(Part::Data, 0).unwrap();
    (engine, disk)
}

fn write(disk: &dyn Disk, sector: usize, bytes: &[u8]) {
    let content: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; SECTOR]).collect();
    disk.write_at(&content, (sector * SECTOR) as u64).unwrap();
}

/// One byte a sector; fails if a sector is torn inside itself.
fn sectors(engine: &SimulatedEngine, count: usize) -> Vec<u8> {
    let bytes = engine.read_raw(Part::Data, 0, count * SECTOR);
    let one = |sector: &[u8]| {
        assert!(
            sector.iter().all(|byte| *byte == sector[0]),
            "torn inside a sector"
        );
        sector[0]
    };
    bytes.chunks(SECTOR).map(one).collect()
}

/// All that is found in the first sectors after a power loss, over many seeds.
fn outcomes(count: usize, run: impl Fn(&SimulatedEngine, &dyn Disk)) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = machine(seed);
        run(&engine, &*disk);
        found.insert(sectors(&engine.crash(CrashKind::PowerLoss), count));
    }
    found
}

#[test]
fn unsynced_writes_are_kept_lost_torn_and_reordered() {
    let found = outcomes(4, |_, disk| {
        write(disk, 0, &[9; 4]);
        disk.sync().unwrap();
        write(disk, 0, &[1, 1]);
        write(disk, 2, &[2, 2]);
    });
    // Every combination of sectors of the two writes, among them the second without the first.
    let mut expected = BTreeSet::new();
    for mask in 0..16 {
        let sector = |at: usize| {
            if mask >> at & 1 == 0 {
                9
            } else {
                [1, 1, 2, 2][at]
            }
        };
        expected.insert((0..4).map(sector).collect());
    }
    assert_eq!(found, expected);
}

#[test]
fn overlapping_writes_leave_any_version() {
    let found = outcomes(1, |_, disk| {
        write(disk, 0, &[1]);
        disk.sync().unwrap();
        write(disk, 0, &[2]);
        write(disk, 0, &[3]);
    });
    assert_eq!(found, BTreeSet::from([vec![1], vec![2], vec![3]]));
}

#[test]
fn a_sector_is_never_torn_by_small_writes_to_it() {
    for seed in 0..SEEDS {
        let (engine, disk) = machine(seed);
        disk.write_at(&[1; 100], 0).unwrap();
        disk.write_at(&[1; 100], 100).unwrap();
        let after = engine
            .crash(CrashKind::PowerLoss)
            .read_raw(Part::Data, 0, 200);
        let kept = after.iter().take_while(|byte| **byte == 1).count();
        assert!([0, 100, 200].contains(&kept), "{kept}");
        assert!(
            after[kept..].iter().all(|byte| *byte == 0),
            "the later without the earlier"
        );
    }
}

#[test]
fn synced_writes_always_survive() {
    for seed in 0..SEEDS {
        let (engine, disk) = machine(seed);
        write(&*disk, 0, &[1; 64]);
        write(&*disk, 8, &[2; 8]);
        disk.sync().unwrap();
        write(&*disk, 32, &[3; 64]);
        let after = engine.crash(CrashKind::PowerLoss);
        let found = sectors(&after, 32);
        assert_eq!(
            (&found[..8], &found[8..16], &found[16..]),
            (&[1; 8][..], &[2; 8][..], &[1; 16][..])
        );
        assert!(after.open(Part::Data).unwrap().len().unwrap() >= 64 * SECTOR as u64);
        // Data that survived a power loss is on the medium: a second one changes nothing.
        let again = after.crash(CrashKind::PowerLoss);
        assert_eq!(sectors(&again, 96), sectors(&after, 96));
        assert_eq!(
            again.durable_image(Part::Data),
            after.durable_image(Part::Data)
        );
    }
}

#[test]
fn a_killed_process_loses_nothing_and_makes_nothing_durable() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let (engine, disk) = machine(seed);
        write(&*disk, 0, &[1; 4]);
        let killed = engine.crash(CrashKind::ProcessKilled);
        assert_eq!(sectors(&killed, 4), [1; 4]);
        assert!(killed.durable_image(Part::Data).is_empty());
        lost += u64::from(sectors(&killed.crash(CrashKind::PowerLoss), 4) != [1; 4]);
        killed.open(Part::Data).unwrap().sync().unwrap();
        assert_eq!(sectors(&killed.crash(CrashKind::PowerLoss), 4), [1; 4]);
    }
    assert!(lost > SEEDS / 4 && lost < SEEDS, "{lost}");
}

#[test]
fn bias_decides_what_is_left_of_a_write() {
    let torn = |bias| {
        let found = outcomes(8, move |engine: &SimulatedEngine, disk| {
            engine.set_power_loss_bias(bias);
            write(disk, 0, &[1; 8]);
        });
        found.len()
    };
    // A cut through all writes of a part tears the only one, whatever the bias.
    assert!(
        torn(PowerLossBias {
            whole: 0,
            lost: 0,
            torn: 1
        }) > 200
    );
    assert!(
        torn(PowerLossBias {
            whole: 1,
            lost: 1,
            torn: 0
        }) < 200
    );
}

#[test]
fn a_sync_covers_only_writes_that_returned_before_it_started() {
    let found = outcomes(2, |engine, disk| {
        write(disk, 0, &[1]);
        let during = engine.open(Part::Data).unwrap();
        let hook = move || write(&*during, 0, &[2, 2]);
        engine.on_next_io(Part::Data, Op::Sync, When::Before, Box::new(hook));
        disk.sync().unwrap();
        assert_eq!(sectors(engine, 2), [2, 2]);
    });
    // The earlier write is certainly there, the concurrent one may be.
    let expected = [[1, 0], [1, 2], [2, 0], [2, 2]].map(Vec::from);
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn hooks_run_once_before_or_after_the_effect() {
    let (engine, disk) = machine(1);
    let seen = Arc::new(AtomicU64::new(0));
    for (when, expected) in [(When::Before, 0), (When::After, 7)] {
        let (handle, seen) = (engine.clone(), seen.clone());
        let hook = move || {
            assert_eq!(sectors(&handle, 1), [expected]);
            seen.fetch_add(1, Ordering::Relaxed);
        };
        engine.on_next_io(Part::Data, Op::Write, when, Box::new(hook));
    }
    disk.sync().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 0, "not this kind of I/O");
    write(&*disk, 0, &[7]);
    write(&*disk, 0, &[8]);
    assert_eq!(seen.load(Ordering::Relaxed), 2);

    // If a write overtakes a read, the time of the write decides which content the read returns.
    for (when, expected) in [(When::Before, 1), (When::After, 8)] {
        write(&*disk, 0, &[8]);
        let during = engine.open(Part::Data).unwrap();
        let hook = move || write(&*during, 0, &[1]);
        engine.on_next_io(Part::Data, Op::Read, when, Box::new(hook));
        let mut byte = [0];
        disk.read_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [expected]);
    }
}

#[test]
fn a_failed_sync_may_drop_what_no_later_sync_brings_back() {
    let found = outcomes(2, |engine, disk| {
        write(disk, 0, &[1, 1]);
        engine.fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
        assert!(disk.sync().is_err());
        assert_eq!(sectors(engine, 2), [1, 1], "readers still see it");
        disk.sync().unwrap();
    });
    assert_eq!(
        found,
        BTreeSet::from([[0, 0], [0, 1], [1, 0], [1, 1]].map(Vec::from))
    );
    // Data written again afterwards is durable as usual.
    let found = outcomes(2, |engine, disk| {
        write(disk, 0, &[1, 1]);
        engine.fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
        assert!(disk.sync().is_err());
        write(disk, 0, &[2, 2]);
        disk.sync().unwrap();
    });
    assert_eq!(found, BTreeSet::from([vec![2, 2]]));
}

#[test]
fn what_a_failed_sync_dropped_may_be_evicted_at_once() {
    let mut shown = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = machine(seed);
        engine.set_eviction_rate(Part::Data, 0.5);
        write(&*disk, 0, &[1, 1]);
        disk.sync().unwrap();
        write(&*disk, 0, &[2, 2]);
        engine.fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
        assert!(disk.sync().is_err());
        assert_eq!(engine.failures(Part::Data, Op::Sync), 1);
        let now = sectors(&engine, 2);
        // Readers got the medium's content, which they get for all data from now on, or the written data.
        disk.forget_cached().unwrap();
        let medium = sectors(&engine, 2);
        assert!(now == medium || now == [2, 2], "{now:?}, {medium:?}");
        shown.insert(now);
    }
    let all = [[1, 1], [1, 2], [2, 1], [2, 2]].map(Vec::from);
    assert_eq!(shown, BTreeSet::from(all));
}

#[test]
fn a_failed_write_may_have_written_any_of_its_sectors() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = machine(seed);
        write(&*disk, 0, &[1; 3]);
        engine.fail_once(Part::Data, Op::Write, 2, ErrorKind::Other);
        write(&*disk, 9, &[1]);
        // From the middle of a sector to the middle of another.
        let error = disk.write_at(&[2; 2 * SECTOR], 256).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("1024 bytes at 256 of simulated:data"),
            "{error}"
        );
        let bytes = engine.read_raw(Part::Data, 0, 3 * SECTOR);
        assert!(
            bytes[..256]
                .iter()
                .chain(&bytes[1280..])
                .all(|byte| *byte == 1)
        );
        found.insert([bytes[256], bytes[512], bytes[1024]]);
        for range in [256..512, 512..1024, 1024..1280] {
            assert!(
                bytes[range.clone()]
                    .iter()
                    .all(|byte| *byte == bytes[range.start])
            );
        }
        write(&*disk, 0, &[3]);
    }
    assert_eq!(found.len(), 8);
}

#[test]
fn a_failed_read_leaves_rubbish() {
    let (engine, disk) = machine(1);
    disk.set_len(4096).unwrap();
    engine.fail_once(Part::Data, Op::Read, 1, ErrorKind::TimedOut);
    let mut buffer = [0; 4];
    assert_eq!(
        disk.read_at(&mut buffer, 0).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    assert_ne!(buffer, [0; 4]);
    disk.read_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer, [0; 4]);
}

#[test]
fn rates_fail_about_as_many_as_they_say() {
    let (engine, disk) = machine(3);
    disk.set_len(4096).unwrap();
    engine.set_failure_rates(FailureRates {
        read: 0.1,
        write: 0.2,
        sync: 0.3,
        discard: 0.4,
    });
    let failed = |io: &mut dyn FnMut() -> bool| (0..1000).filter(|_| io()).count();
    assert!((50..150).contains(&failed(&mut || disk.read_at(&mut [0], 0).is_err())));
    assert!((150..250).contains(&failed(&mut || disk.write_at(&[0], 0).is_err())));
    assert!((250..350).contains(&failed(&mut || disk.sync().is_err())));
    assert!((350..450).contains(&failed(&mut || disk.discard(0, 4096).is_err())));
    engine.set_failure_rates(FailureRates::default());
    assert_eq!(failed(&mut || disk.sync().is_err()), 0);
}

#[test]
fn discards_are_lost_torn_ignored_and_done() {
    let found = outcomes(8, |_, disk| {
        write(disk, 0, &[1; 8]);
        disk.sync().unwrap();
        disk.discard(0, 4096).unwrap();
    });
    assert!(found.contains(&vec![0; 8]) && found.contains(&vec![1; 8]));
    assert!(found.len() > 50, "{}", found.len());
    let found = outcomes(8, |_, disk| {
        write(disk, 0, &[1; 8]);
        disk.discard(0, 4096).unwrap();
        disk.sync().unwrap();
    });
    assert_eq!(found, BTreeSet::from([vec![0; 8]]));
    let found = outcomes(1, |engine, disk| {
        engine.set_discard_ignored_rate(0.5);
        write(disk, 0, &[1]);
        disk.discard(0, 4096).unwrap();
        disk.sync().unwrap();
    });
    assert_eq!(found, BTreeSet::from([vec![0], vec![1]]));
}

#[test]
fn length_and_reservation_are_durable_only_after_a_sync() {
    let lengths = |sync: bool| {
        let mut found = BTreeSet::new();
        for seed in 0..SEEDS {
            let (engine, disk) = machine(seed);
            disk.reserve(8192).unwrap();
            if sync {
                disk.sync().unwrap();
            }
            let after = engine.crash(CrashKind::PowerLoss).open(Part::Data).unwrap();
            assert_eq!(after.allocated_bytes().unwrap(), after.len().unwrap());
            found.insert(after.len().unwrap());
        }
        found
    };
    assert_eq!(lengths(false), BTreeSet::from([0, 8192]));
    assert_eq!(lengths(true), BTreeSet::from([8192]));
}

#[test]
fn a_full_part_takes_what_it_has_room_for() {
    let (engine, disk) = machine(1);
    assert_eq!(disk.host_free_bytes(), None);
    engine.set_capacity(Part::Data, Some(8192));
    assert_eq!(disk.host_free_bytes(), Some(8192));
    let error = disk.write_at(&[1; 3 * 4096], 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(disk.allocated_bytes().unwrap(), 8192);
    assert_eq!(disk.host_free_bytes(), Some(0));
    let found = [0, 4096, 6000, 3 * 4096].map(|at| disk.next_data(at).unwrap());
    assert_eq!(found, [Some(4096), Some(4096), Some(6000), None]);
    assert_eq!(
        [4096, 6000].map(|at| disk.data_end(at).unwrap()),
        [12_288; 2]
    );
    assert_eq!(
        sectors(&engine, 32)[7..25],
        [&[0][..], &[1; 16], &[0]].concat()
    );
    disk.write_at(&[2; 4096], 4096).unwrap();
    assert_eq!(
        disk.reserve(4096).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    // A range that is allocated costs nothing, wherever holes are.
    disk.reserve_range(4096, 8192).unwrap();
    disk.discard(8192, 4096).unwrap();
    disk.reserve(4096).unwrap();
    disk.write_at(&[3; 4096], 0).unwrap();
    assert_eq!(
        disk.write_at(&[3], 8192).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    engine.set_capacity(Part::Data, None);
    disk.write_at(&[3], 8192).unwrap();
}

#[test]
fn the_machine_stops_in_the_io_that_was_ordered() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let (engine, disk) = machine(seed);
        let log = engine.create(Part::Log, 0).unwrap();
        engine.crash_after(4);
        write(&*disk, 0, &[1]);
        log.write_at(&[1], 0).unwrap();
        disk.sync().unwrap();
        assert!(!engine.is_crashed());
        let error = disk.write_at(&[2; SECTOR], 0).unwrap_err();
        assert!(error.to_string().contains("simulated crash"), "{error}");
        assert!(engine.is_crashed());
        assert!(log.read_at(&mut [0], 0).is_err() && log.try_read_at(&mut [0], 0).is_err());
        assert!(log.sync().is_err() && log.discard(0, 1).is_err() && log.reserve(1).is_err());
        assert!(log.len().is_err() && log.allocated_bytes().is_err());
        assert!(engine.open(Part::Log).is_err() && engine.create(Part::Meta, 0).is_err());
        assert_eq!(engine.io_count(), 6);
        let after = engine.crash(CrashKind::PowerLoss);
        found.insert(sectors(&after, 1)[0]);
        after.open(Part::Data).unwrap().sync().unwrap();
    }
    // The write in which the machine stopped may be there; the one before it is.
    assert_eq!(found, BTreeSet::from([1, 2]));
}

#[test]
fn a_sync_in_which_the_machine_stops_promises_nothing() {
    let found = outcomes(1, |engine, disk| {
        write(disk, 0, &[1]);
        engine.crash_after(1);
        assert!(disk.sync().is_err());
    });
    assert_eq!(found, BTreeSet::from([vec![0], vec![1]]));
}

#[test]
fn a_creation_in_which_the_machine_stops_leaves_the_part_missing_empty_or_whole() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let engine = SimulatedEngine::new(seed);
        engine.crash_after(1);
        assert!(engine.create(Part::Meta, 4096).is_err());
        let after = engine.crash(CrashKind::PowerLoss);
        found.insert(after.open(Part::Meta).ok().map(|disk| disk.len().unwrap()));
    }
    assert_eq!(found, BTreeSet::from([None, Some(0), Some(4096)]));
}

#[test]
fn code_in_the_middle_of_an_io_may_stop_the_machine() {
    let (engine, disk) = machine(1);
    let handle = engine.clone();
    engine.on_next_io(
        Part::Data,
        Op::Write,
        When::Before,
        Box::new(move || handle.halt()),
    );
    assert!(disk.write_at(&[1; SECTOR], 0).is_err());
    assert_eq!(sectors(&engine, 1), [0]);
}

#[test]
fn what_is_done_after_a_crash_does_not_reach_the_machine_that_came_back() {
    let (engine, disk) = machine(1);
    write(&*disk, 0, &[1]);
    disk.sync().unwrap();
    let after = engine.crash(CrashKind::PowerLoss);
    write(&*disk, 0, &[2]);
    disk.sync().unwrap();
    assert_eq!(
        (sectors(&after, 1), sectors(&engine, 1)),
        (vec![1], vec![2])
    );
}

#[test]
fn cold_ranges_are_not_read_without_waiting() {
    let (engine, disk) = machine(1);
    disk.set_len(4096).unwrap();
    let mut buffer = [0; 10];
    engine.set_cold(Part::Data, 100..200);
    for (offset, answered) in [
        (0, true),
        (90, true),
        (91, false),
        (199, false),
        (200, true),
    ] {
        assert_eq!(
            disk.try_read_at(&mut buffer, offset).unwrap(),
            answered,
            "{offset}"
        );
    }
    assert_eq!(engine.count(Part::Data, Op::Read).count, 3);
    disk.read_at(&mut buffer, 150).unwrap();
    engine.clear_cold();
    assert!(disk.try_read_at(&mut buffer, 150).unwrap());
    engine.set_cold_rate(0.5);
    let answered = (0..1000)
        .filter(|_| disk.try_read_at(&mut buffer, 0).unwrap())
        .count();
    assert!((400..600).contains(&answered), "{answered}");
}

#[test]
fn counts_are_per_part_and_kind() {
    let (engine, disk) = machine(1);
    engine.create(Part::Meta, 0).unwrap();
    disk.write_at(&[0; 100], 0).unwrap();
    disk.write_at(&[0; 50], 0).unwrap();
    disk.sync().unwrap();
    assert_eq!(
        engine.count(Part::Data, Op::Write),
        Count {
            count: 2,
            bytes: 150
        }
    );
    assert_eq!(
        engine.count(Part::Data, Op::Sync),
        Count { count: 1, bytes: 0 }
    );
    assert_eq!(engine.count(Part::Meta, Op::Write), Count::default());
    assert_eq!(
        engine.count(Part::Meta, Op::Create),
        Count { count: 1, bytes: 0 }
    );
    assert_eq!(engine.io_count(), 5);
    engine.reset_counts();
    assert_eq!(engine.count(Part::Data, Op::Write), Count::default());
}

#[test]
fn decay_reaches_medium_and_readers() {
    let (engine, disk) = machine(1);
    write(&*disk, 0, &[0b1010; 2]);
    disk.sync().unwrap();
    engine.flip_bit(Part::Data, 700, 1);
    engine.overwrite(Part::Data, 10, b"rot");
    for bytes in [
        engine.durable_image(Part::Data),
        engine.read_raw(Part::Data, 0, 1024),
    ] {
        assert_eq!(
            (bytes[699], bytes[700], &bytes[10..13]),
            (0b1010, 0b1000, &b"rot"[..])
        );
    }
    engine.lose_part(Part::Data);
    assert_eq!(disk.sync().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        engine.open(Part::Data).err().unwrap().kind(),
        ErrorKind::NotFound
    );
    let after = engine.crash(CrashKind::ProcessKilled);
    assert_eq!(
        after.open(Part::Data).err().unwrap().kind(),
        ErrorKind::NotFound
    );
}

#[test]
#[should_panic(expected = "lacks the alignment 4096")]
fn alignment_is_demanded_where_it_was_set() {
    let (engine, disk) = machine(1);
    engine.set_alignment(Part::Data, 4096);
    write(&*disk, 0, &[1]);
}

#[test]
fn a_seed_and_the_same_calls_give_the_same_result() {
    let run = |seed: u64| {
        let (engine, disk) = machine(seed);
        engine.set_failure_rates(FailureRates {
            read: 0.1,
            write: 0.1,
            sync: 0.1,
            discard: 0.1,
        });
        let mut trace = Vec::new();
        for step in 0..200u64 {
            let offset = step * 7919 % 65536;
            trace.push(disk.write_at(&[step as u8; 1500], offset).is_ok());
            trace.push(disk.discard(offset / 2, 4096).is_ok());
            trace.push(step % 10 != 0 || disk.sync().is_ok());
        }
        let after = engine.crash(CrashKind::PowerLoss);
        (
            trace,
            after.durable_image(Part::Data),
            after.random_id().unwrap(),
        )
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
