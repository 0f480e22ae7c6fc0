//! Blocks that decay are found, all of them and no others; no read returns them; they are repaired.

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op};
use onefold_store::{AffectedPlace, BlockUse, Blocking, IndexKind, Pba, ScrubRun, StoreErrorKind};

use crate::common::{BLOCK, KINDS, findings, go_on, snapshot};
use crate::model::Violation;
use crate::random::Random;
use crate::rig::{Content, Rig, Tried};

const POOL_BLOCKS: u64 = 1024;

/// Contents 1 to 40 in both volumes, 41 to 60 in the second alone; all published but the last four
/// of each.
fn rig(seed: u64, index: IndexKind) -> Rig {
    let mut rig = Rig::new(seed, index, POOL_BLOCKS, &[64, 64]);
    let fill = |rig: &mut Rig| -> Tried<()> {
        rig.write(0, 0, &(1..=36).collect::<Vec<Content>>())?;
        rig.write(1, 0, &(1..=56).collect::<Vec<Content>>())?;
        rig.dedup()?;
        rig.collect()?;
        rig.write(0, 36, &[101, 102, 103, 104])?;
        rig.write(1, 56, &[105, 106, 107, 108])
    };
    fill(&mut rig).unwrap();
    rig
}

/// The kinds of index that survive a crash. The other one is counted again from the present blocks,
/// and so does not know of decay that was not found before.
const LASTING: [IndexKind; 2] = [IndexKind::Hash, IndexKind::Btree];

#[test]
fn every_decayed_shared_block_is_found_and_no_other() {
    for index in KINDS {
        let mut rig = rig(1, index);
        assert_eq!(rig.scrub().unwrap().unwrap().found_bad, 0);
        let mut decayed: Vec<u64> = [1, 2, 20, 36, 40, 56]
            .into_iter()
            .map(|content| rig.decay(content, false).unwrap())
            .collect();
        decayed.extend(rig.decay(21, true));
        decayed.extend(rig.decay(102, true));
        decayed.sort_unstable();
        assert_eq!(decayed.len(), 8);
        let report = rig.scrub().unwrap().unwrap();
        assert_eq!(report.passed_blocks, POOL_BLOCKS);
        assert_eq!(
            report.compared_blocks, 55,
            "but for the one that cannot be read"
        );
        assert_eq!(report.found_bad, 8);
        assert_eq!(rig.bad().unwrap().unwrap(), decayed);
        // 1, 2, 20, 21 and 36 are in both volumes.
        assert_eq!(rig.read_all().unwrap(), Some(5 * 2 + 3));
        // A restart forgets none of them.
        rig.recover(CrashKind::PowerLoss).unwrap();
        assert_eq!(rig.bad().unwrap().unwrap(), decayed);
        assert_eq!(rig.read_all().unwrap(), Some(5 * 2 + 3));
    }
}

#[test]
fn an_error_names_volume_and_blocks_and_other_requests_go_on() {
    let mut rig = rig(2, IndexKind::Hash);
    let pba = rig.decay(7, false).unwrap();
    rig.scrub().unwrap();
    let volume = rig.store.volume("volume-0").unwrap();
    let mut buf = vec![0; 64 * BLOCK as usize];
    let error = volume.read(0, &mut buf, Blocking::Yes).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Io);
    let message = error.to_string();
    for part in [
        "'volume-0'",
        "block 6 of the volume",
        &format!("{pba} of the pool"),
    ] {
        assert!(message.contains(part), "{message}");
    }
    // A part of it can be neither read nor written; the neighbouring blocks can.
    let part = 6 * BLOCK + 512;
    assert!(volume.read(part, &mut [0; 512], Blocking::Yes).is_err());
    assert!(volume.write(part, &[1; 512], Blocking::Yes).is_err());
    for at in [6 * BLOCK - 512, 7 * BLOCK] {
        volume.read(at, &mut [0; 512], Blocking::Yes).unwrap();
    }
    // Written as a whole it is another block.
    rig.write(0, 6, &[200]).unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(1), "the other volume's");
}

#[test]
fn the_same_content_heals_it_wherever_it_is_written() {
    for (index, unreadable) in KINDS.into_iter().zip([false, true, false]) {
        let mut rig = rig(3, index);
        rig.decay(7, unreadable);
        rig.scrub().unwrap();
        assert_eq!(rig.read_all().unwrap(), Some(2));
        let written = rig.write(1, 63, &[7]);
        written.unwrap();
        rig.dedup().unwrap();
        assert_eq!(rig.read_all().unwrap(), Some(0));
        assert_eq!(rig.bad().unwrap().unwrap(), [0_u64; 0]);
        rig.recover(CrashKind::PowerLoss).unwrap();
        assert_eq!(rig.read_all().unwrap(), Some(0));
        let stat = rig.store.stat().unwrap();
        rig.dedup().unwrap();
        assert_eq!(stat.logical_blocks - stat.private_blocks, 36 + 56 + 8 + 1);
        rig.check().unwrap();
    }
}

#[test]
fn a_listed_block_is_not_copied_where_a_pool_shrinks() {
    let mut rig = rig(3, IndexKind::Hash);
    let pba = rig.decay(50, false).unwrap();
    rig.scrub().unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(1));
    // Room before it for all that stays.
    for volume in [0, 1] {
        rig.write(volume, 0, &[0; 30]).unwrap();
    }
    rig.collect().unwrap();
    rig.store.space().plan_shrink(pba * BLOCK).unwrap();
    rig.store.space().begin_shrink(pba * BLOCK).unwrap();
    let error = rig.store.space().shrink_step(&mut go_on);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Io, "{error}");
    assert!(
        error.to_string().contains(&format!("block {pba} ")),
        "{error}"
    );
    // A copy would not be known to differ from the stored content.
    assert_eq!(rig.read_all().unwrap(), Some(1));
    rig.store.space().cancel_shrink().unwrap();
    rig.write(0, 63, &[50]).unwrap();
    rig.dedup().unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(0));
    rig.check().unwrap();
}

#[test]
fn what_cannot_be_healed_stays_private_and_nothing_is_lost() {
    let mut rig = rig(4, IndexKind::Hash);
    let pba = rig.decay(7, false).unwrap();
    let rubbish = [0xa5; BLOCK as usize];
    rig.engine.overwrite(Part::Data, pba * BLOCK, &rubbish);
    rig.scrub().unwrap();
    let mut writes = 0;
    // The device does not take the write: three times, and then it is not asked again.
    for attempt in 0..4 {
        rig.write(0, 60 + attempt, &[7]).unwrap();
        let kind = std::io::ErrorKind::Other;
        rig.engine.fail_once(Part::Data, Op::Write, 1, kind);
        let before = rig.engine.count(Part::Data, Op::Write).count;
        rig.dedup().unwrap();
        writes += rig.engine.count(Part::Data, Op::Write).count - before;
        assert_eq!(rig.read(0, 60 + attempt).unwrap(), Some(true));
        rig.engine.overwrite(Part::Data, pba * BLOCK, &rubbish);
    }
    assert_eq!(writes, 3);
    assert_eq!(rig.bad().unwrap().unwrap(), [pba]);
    assert_eq!(rig.read_all().unwrap(), Some(2));
    rig.recover(CrashKind::PowerLoss).unwrap();
    rig.collect().unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(2));
    assert_eq!(rig.store.stat().unwrap().private_blocks, 4, "they stay so");
}

#[test]
fn references_to_bad_blocks_are_released() {
    for unreadable in [false, true] {
        for is_known in [false, true] {
            let mut rig = rig(5, IndexKind::Hash);
            let pba = rig.decay(50, unreadable).unwrap();
            if is_known {
                rig.scrub().unwrap();
            } else if !unreadable {
                // Only the index could show that, and it does not know the block.
                continue;
            }
            let before = rig.store.stat().unwrap();
            rig.write(1, 49, &[0]).unwrap();
            rig.collect().unwrap();
            let after = rig.store.stat().unwrap();
            assert_eq!(after.unique_blocks, before.unique_blocks - 1);
            // Readable blocks are reused; unreadable ones stay out of use, as long as they are
            // unreadable.
            let is_out_of_use = u64::from(unreadable);
            assert_eq!(after.free_blocks, before.free_blocks + 1 - is_out_of_use);
            assert_eq!(after.pending_free_blocks, is_out_of_use);
            rig.recover(CrashKind::PowerLoss).unwrap();
            let after = rig.store.stat().unwrap();
            assert_eq!(after.pending_free_blocks, is_out_of_use);
            assert_eq!(rig.bad().unwrap().unwrap().len() as u64, is_out_of_use);
            rig.engine.overwrite(Part::Data, pba * BLOCK, &[0; 512]);
            rig.engine.clear_unreadable(Part::Data);
            rig.scrub().unwrap();
            rig.check().unwrap();
            let last = rig.store.stat().unwrap();
            assert_eq!(
                (last.free_blocks, last.pending_free_blocks),
                (before.free_blocks + 1, 0)
            );
        }
    }
}

#[test]
fn a_private_block_that_cannot_be_read_keeps_nobody_from_sharing_the_others() {
    for index in KINDS {
        let mut rig = rig(6, index);
        rig.write(0, 40, &[105, 106]).unwrap();
        rig.decay(102, true);
        rig.dedup().unwrap();
        let stat = rig.store.stat().unwrap();
        assert_eq!(stat.private_blocks, 1, "{index:?}");
        assert_eq!(rig.bad().unwrap().unwrap().len(), 1);
        assert_eq!(rig.read_all().unwrap(), Some(1));
        // The device takes a new content in its place.
        rig.write(0, 37, &[202]).unwrap();
        assert_eq!(rig.read_all().unwrap(), Some(0));
        rig.collect().unwrap();
        rig.dedup().unwrap();
        rig.check().unwrap();
        assert_eq!(rig.store.stat().unwrap().private_blocks, 0);
    }
}

#[test]
fn what_a_request_could_not_read_is_listed_without_a_scrub() {
    let mut rig = rig(7, IndexKind::Hash);
    let mut unreadable = [7, 103].map(|content| rig.decay(content, true).unwrap());
    unreadable.sort_unstable();
    assert_eq!(rig.bad().unwrap().unwrap(), [0_u64; 0]);
    assert_eq!(rig.read_all().unwrap(), Some(3));
    assert_eq!(rig.store.scrub().look_at_suspects().unwrap(), 2);
    assert_eq!(rig.bad().unwrap().unwrap(), unreadable);
    // It is repaired without a scrub as well.
    rig.write(1, 63, &[7]).unwrap();
    rig.dedup().unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(1));
}

#[test]
fn what_can_be_read_again_leaves_the_list_without_a_scrub() {
    let mut rig = rig(9, IndexKind::Hash);
    let mut unreadable = [7, 103].map(|content| rig.decay(content, true).unwrap());
    unreadable.sort_unstable();
    rig.read_all().unwrap();
    assert_eq!(rig.store.scrub().look_at_suspects().unwrap(), 2);
    let mut from = Pba(0);
    // Each call ends at the first that still cannot be read, and the next one continues behind it.
    for tried in unreadable {
        assert_eq!(rig.store.scrub().look_at_unreadable(&mut from).unwrap(), 0);
        assert_eq!(from, Pba(tried + 1));
    }
    rig.engine.clear_unreadable(Part::Data);
    rig.spoilt.clear();
    assert_eq!(rig.store.scrub().look_at_unreadable(&mut from).unwrap(), 2);
    assert_eq!(rig.bad().unwrap().unwrap(), [0_u64; 0]);
    assert_eq!(rig.read_all().unwrap(), Some(0));
    rig.dedup().unwrap();
    rig.check().unwrap();
    assert_eq!(rig.store.stat().unwrap().private_blocks, 0);
}

#[test]
fn every_user_is_named() {
    let mut rig = rig(8, IndexKind::Hash);
    let store = std::sync::Arc::clone(&rig.store);
    let snapshot = |name: &str| snapshot(&store, "volume-0", name);
    snapshot("one");
    snapshot("two");
    rig.write(0, 6, &[201]).unwrap();
    rig.write(0, 62, &[7]).unwrap();
    rig.dedup().unwrap();
    snapshot("three");
    let pba = rig.decay(7, false).unwrap();
    rig.scrub().unwrap();
    let mut users = Vec::new();
    let bad = store
        .scrub()
        .bad_blocks(&mut |user| users.push(user))
        .unwrap();
    assert!(bad.len() == 1 && bad[0].is_shared && !bad[0].is_unreadable);
    let user = |volume: &str, snapshot: Option<&str>, lba| BlockUse {
        pba,
        place: AffectedPlace {
            volume: volume.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            lba,
        },
    };
    let expected = [
        user("volume-0", Some("one"), 6),
        user("volume-0", Some("two"), 6),
        user("volume-0", Some("three"), 62),
        user("volume-0", None, 62),
        user("volume-1", None, 6),
    ];
    assert_eq!(users.len(), expected.len(), "{users:?}");
    assert!(
        expected.iter().all(|user| users.contains(user)),
        "{users:?}"
    );
}

#[test]
fn a_run_goes_on_where_it_was_and_a_part_follows_the_last() {
    let mut rig = rig(9, IndexKind::Hash);
    let step = |rig: &Rig| {
        let mut scrub = ScrubRun::default();
        while rig.store.scrub().step(&mut scrub).unwrap().passed_blocks == 0 {}
    };
    rig.store.scrub().begin(Some(25), 7).unwrap();
    assert_eq!(rig.store.scrub().status().unwrap().left_blocks, 256);
    step(&rig);
    let status = rig.store.scrub().status().unwrap();
    assert_eq!((status.next_block, status.left_blocks), (256, 0));
    assert!(status.ended_unix_seconds > 0);
    rig.store.scrub().begin(None, 7).unwrap();
    step(&rig);
    rig.store.scrub().save().unwrap();
    rig.recover(CrashKind::PowerLoss).unwrap();
    let status = rig.store.scrub().status().unwrap();
    assert_eq!((status.next_block, status.left_blocks), (0, 256));
    assert_eq!(status.bytes_per_second, 7);
    rig.store.scrub().begin(None, 0).unwrap();
    assert_eq!(
        rig.store.scrub().status().unwrap().left_blocks,
        256,
        "the same run"
    );
    step(&rig);
    assert_eq!(rig.store.scrub().status().unwrap().left_blocks, 0);
    for percent in [0, 101] {
        let error = rig.store.scrub().begin(Some(percent), 0).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
    }
}

#[test]
fn a_list_that_is_lost_is_said_and_found_again() {
    let mut rig = rig(10, IndexKind::Hash);
    rig.decay(7, false);
    rig.scrub().unwrap();
    // One slot decays: the other one's content is still known.
    for (slot, known) in [(0, 1), (64, 0)] {
        rig.engine.flip_bit(Part::Scrub, slot * 4096 + 70, 0);
        rig.recover(CrashKind::ProcessKilled).unwrap();
        let found = findings(&rig.store, false);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(rig.bad().unwrap().unwrap().len(), known, "{found:?}");
    }
    rig.scrub().unwrap();
    assert_eq!(rig.bad().unwrap().unwrap().len(), 1);
    // The part itself is gone.
    rig.engine.halt();
    rig.engine = rig.engine.crash(CrashKind::ProcessKilled);
    rig.engine.lose_part(Part::Scrub);
    rig.recover(CrashKind::ProcessKilled).unwrap();
    assert_eq!(rig.bad().unwrap().unwrap(), [0_u64; 0]);
    rig.scrub().unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(2));
}

#[test]
fn an_index_counted_again_does_not_take_a_bad_block_for_a_good_one() {
    let mut rig = rig(11, IndexKind::Memory);
    rig.decay(7, false);
    rig.decay(8, true);
    rig.scrub().unwrap();
    rig.recover(CrashKind::PowerLoss).unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(4));
    rig.write(1, 62, &[7, 8]).unwrap();
    rig.dedup().unwrap();
    assert_eq!(rig.read_all().unwrap(), Some(0));
    rig.check().unwrap();
}

/// The life of two blocks that decayed, from their finding to their repair.
fn script(rig: &mut Rig) -> Tried<()> {
    macro_rules! go_on {
        ($done:expr) => {
            if $done?.is_none() {
                return Ok(None);
            }
        };
    }
    go_on!(rig.scrub());
    go_on!(rig.read_all());
    go_on!(rig.write(1, 60, &[7]));
    go_on!(rig.dedup());
    go_on!(rig.write(0, 6, &[201]));
    go_on!(rig.write(1, 49, &[0]));
    go_on!(rig.collect());
    go_on!(rig.write(1, 61, &[202, 50]));
    go_on!(rig.dedup());
    go_on!(rig.write(1, 37, &[203]));
    go_on!(rig.bad());
    rig.scrub().map(|done| done.map(|_| ()))
}

/// However it was cut short, every spoilt content is found, and repaired.
fn comes_to_good(rig: &mut Rig) -> Result<(), Violation> {
    rig.scrub()?;
    rig.read_all()?;
    let spoilt: Vec<Content> = rig.spoilt.iter().copied().collect();
    for (content, lba) in spoilt.into_iter().zip(40..) {
        rig.write(0, lba, &[content])?;
    }
    rig.dedup()?;
    rig.scrub()?;
    rig.spoilt.clear();
    rig.read_all()?;
    rig.collect()?;
    rig.check().map(|_| ())
}

#[test]
fn every_io_from_finding_to_healing_can_be_the_last() {
    for index in LASTING {
        let decayed = |seed| {
            let mut rig = rig(seed, index);
            rig.decay(7, false);
            rig.decay(50, true);
            rig.decay(38, false);
            rig
        };
        let mut whole = decayed(1);
        let before = whole.engine.io_count();
        script(&mut whole).unwrap().unwrap();
        let ios = whole.engine.io_count() - before;
        assert!(ios > 60, "the script became shorter: {ios} I/Os");
        let outcomes = [
            (1, CrashKind::PowerLoss),
            (2, CrashKind::PowerLoss),
            (3, CrashKind::ProcessKilled),
        ];
        for n in 1..=ios + 1 {
            for (seed, kind) in outcomes {
                let mut rig = decayed(seed);
                rig.engine.crash_after(n);
                let ended = script(&mut rig)
                    .and_then(|_| rig.recover(kind))
                    .and_then(|()| comes_to_good(&mut rig));
                if let Err(violation) = ended {
                    panic!("stopped at I/O {n} of {ios}, {kind:?}, seed {seed}: {violation}");
                }
            }
        }
        println!("a script of {ios} I/Os, {index:?}");
    }
}

/// Requests, jobs, decay and crashes as they come.
fn session(seed: u64) -> Result<Rig, Violation> {
    let mut random = Random::new(seed);
    let index = LASTING[seed as usize % LASTING.len()];
    let mut rig = Rig::new(seed, index, POOL_BLOCKS, &[96, 48, 48]);
    let mut scrub = ScrubRun::default();
    for _ in 0..60 {
        if random.below(12) == 0 {
            rig.engine.crash_after(random.between(1, 60));
        }
        let is_up = match random.below(10) {
            0..=3 => {
                let (volume, lba) = (random.below(3) as usize, random.below(44));
                let contents: Vec<Content> = (0..4).map(|_| random.below(30)).collect();
                rig.write(volume, lba, &contents)?
            }
            4 => rig.dedup()?,
            5 => rig.collect()?,
            6 => rig.read_all()?.map(|_| ()),
            7 => {
                rig.store.scrub().begin(None, 0).ok();
                let step = rig.store.scrub().step(&mut scrub);
                rig.tried("step", step)?.map(|_| ())
            }
            8 => rig.scrub()?.map(|_| ()),
            _ => decay(&mut rig, &mut random)?,
        };
        if is_up.is_none() {
            let kinds = [CrashKind::PowerLoss, CrashKind::ProcessKilled];
            rig.recover(kinds[random.below(2) as usize])?;
            scrub = ScrubRun::default();
            // Decay that is not known yet.
            rig.scrub()?;
            rig.read_all()?;
        }
    }
    rig.engine.crash_after(u64::MAX);
    comes_to_good(&mut rig)?;
    Ok(rig)
}

/// Some published content decays, and is found before it is read.
fn decay(rig: &mut Rig, random: &mut Random) -> Tried<()> {
    if rig.dedup()?.is_none() || rig.collect()?.is_none() {
        return Ok(None);
    }
    let content = random.between(1, 30);
    // Private blocks have nothing to be compared with.
    let is_private = rig.store.stat().unwrap().private_blocks > 0;
    let unreadable = is_private || random.one_in(3);
    if rig.engine.is_crashed() {
        return Ok(None);
    }
    rig.decay(content, unreadable);
    rig.scrub().map(|done| done.map(|_| ()))
}

#[test]
fn seeded_sessions_with_decay() {
    let (mut recoveries, mut seeds) = (0, 0);
    for seed in 1..=300 {
        match session(seed) {
            Ok(rig) => recoveries += rig.recoveries,
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
        seeds += 1;
    }
    println!("{seeds} sessions with {recoveries} recoveries");
    assert!(recoveries > 300, "{recoveries}");
}
