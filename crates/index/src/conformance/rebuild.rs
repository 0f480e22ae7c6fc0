//! Rebuilds: everything is forgotten, and nothing is trusted until the end.

use std::io::ErrorKind;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::Pba;

use super::model::rows_of;
use super::story::Story;
use super::{BackEnd, POOL, STREAM, fingerprint, item, machine, open};
use crate::{
    Counted, Fingerprint, FingerprintIndex, IndexError, REFERENCES_MAX, Released, Result, Row,
    StreamId,
};

const OTHER_STREAM: StreamId = StreamId(9);

/// The number that a rebuild gives the stream.
const LAST_NUMBER: u64 = 77;

fn row(n: u64, pba: u64, references: u64) -> (Fingerprint, Row) {
    let row = Row {
        pba: Pba(pba),
        references,
    };
    (fingerprint(n), row)
}

fn sorted(mut rows: Vec<(Fingerprint, Row)>) -> Vec<(Fingerprint, Row)> {
    rows.sort_by_key(|row| row.0);
    rows
}

/// A rebuild's treatment of old content, rows, refused calls and remains.
pub fn a_rebuild_replaces_everything(back_end: &dyn BackEnd) {
    let engine = machine(back_end, 1);
    let index = open(back_end, &engine).unwrap();
    assert!(!index.needs_rebuild());
    let items = [item(1, 1), item(2, 2)];
    index.increment(STREAM, 5, &items).unwrap();
    index.increment(OTHER_STREAM, 1, &items).unwrap();
    let unready = index.add_rows(&[row(3, 3, 1)]).unwrap_err();
    assert!(matches!(unready, IndexError::Unready(_)), "{unready}");
    let unready = index.finish_rebuild(STREAM, 1).unwrap_err();
    assert!(matches!(unready, IndexError::Unready(_)), "{unready}");
    forgets(&*index);
    takes_rows(&*index);
    index.finish_rebuild(STREAM, LAST_NUMBER).unwrap();
    has_the_rows(&*index);
    index.close().unwrap();
    drop(index);
    let index = open(back_end, &engine).unwrap();
    has_the_rows(&*index);
    goes_on(&*index);
}

fn forgets(index: &dyn FingerprintIndex) {
    index.begin_rebuild().unwrap();
    assert!(index.needs_rebuild());
    assert_eq!(index.counts(), Default::default());
    assert_eq!(rows_of(index, 10).unwrap(), []);
    let unready = index.increment(STREAM, 6, &[item(1, 1)]).unwrap_err();
    assert!(matches!(unready, IndexError::Unready(_)), "{unready}");
    let unready = index.decrement(STREAM, 6, &[item(1, 1)]).unwrap_err();
    assert!(matches!(unready, IndexError::Unready(_)), "{unready}");
}

fn takes_rows(index: &dyn FingerprintIndex) {
    let first = [
        row(1, 10, 1),
        row(2, 20, 3),
        row(3, 30, REFERENCES_MAX),
        row(4, 40, 0),
    ];
    assert_eq!(index.add_rows(&first).unwrap(), []);
    let refused = [row(1, 11, 1), row(3, 30, 1), row(5, 51, 1)];
    let second = [row(2, 20, 2), row(5, 50, 1)];
    let refusing = index.add_rows(&[&second[..], &refused].concat()).unwrap();
    assert_eq!(sorted(refusing), sorted(refused.to_vec()));
    let bad = index.add_rows(&[row(6, 60, 1), row(7, 0, 1)]).unwrap_err();
    assert!(matches!(bad, IndexError::BadBlock(Pba(0))), "{bad}");
}

fn has_the_rows(index: &dyn FingerprintIndex) {
    assert!(!index.needs_rebuild());
    let rows = [
        row(1, 10, 1),
        row(2, 20, 5),
        row(3, 30, REFERENCES_MAX),
        row(5, 50, 1),
    ];
    assert_eq!(rows_of(index, 2).unwrap(), sorted(rows.to_vec()));
    let counts = index.counts();
    assert_eq!((counts.unique, counts.shared), (2, 2));
    assert_eq!(counts.references, REFERENCES_MAX + 7);
}

fn goes_on(index: &dyn FingerprintIndex) {
    for number in [LAST_NUMBER, LAST_NUMBER - 1, 5] {
        let stale = index.increment(STREAM, number, &[item(1, 1)]).unwrap_err();
        let last = LAST_NUMBER;
        assert!(
            matches!(stale, IndexError::Stale { last: found, .. } if found == last),
            "{stale}"
        );
    }
    // The other stream was forgotten, so its numbers start again.
    let released = index.decrement(OTHER_STREAM, 1, &[item(1, 10)]).unwrap();
    assert_eq!(released, [Released::Zero]);
    let items = [item(2, 99), item(3, 30), item(1, 8)];
    let counted = index.increment(STREAM, LAST_NUMBER + 1, &items).unwrap();
    let expected = [Counted::Shared(Pba(20)), Counted::Full, Counted::Inserted];
    assert_eq!(counted, expected);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Before,
    Begun,
    Finishing,
    Finished,
}

fn new_rows() -> Vec<(Fingerprint, Row)> {
    sorted((100..130).map(|n| row(n, n, n - 99)).collect())
}

fn rebuild(index: &dyn FingerprintIndex, progress: &mut Progress) -> Result<()> {
    index.begin_rebuild()?;
    *progress = Progress::Begun;
    for some in new_rows().chunks(12) {
        assert_eq!(index.add_rows(some)?, []);
    }
    *progress = Progress::Finishing;
    index.finish_rebuild(STREAM, LAST_NUMBER)?;
    *progress = Progress::Finished;
    Ok(())
}

/// A crash in every I/O of a rebuild.
pub fn a_rebuild_survives_every_crash(back_end: &dyn BackEnd) {
    let story = Story::new(3, 3, 12);
    let before = machine(back_end, 0);
    story.tell(back_end, &before, &mut 0).unwrap();
    for crash_at in 1.. {
        let engine = before.crash(CrashKind::ProcessKilled);
        engine.crash_after(crash_at);
        let mut progress = Progress::Before;
        let opened = open(back_end, &engine);
        let result = opened.and_then(|index| {
            rebuild(&*index, &mut progress)?;
            index.close()
        });
        if !engine.is_crashed() {
            result.unwrap();
            break;
        }
        for kind in [
            CrashKind::PowerLoss,
            CrashKind::PowerLoss,
            CrashKind::ProcessKilled,
        ] {
            check_after_crash(back_end, &engine.crash(kind), progress, &story);
        }
    }
}

/// Each sync of a rebuild fails once. Content that a later opening treats as durable is durable.
pub fn a_rebuild_survives_failed_syncs(back_end: &dyn BackEnd) {
    for seed in 0..20 {
        for nth in 1.. {
            let engine = machine(back_end, seed);
            let index = open(back_end, &engine).unwrap();
            engine.reset_counts();
            engine.fail_once(Part::Index, Op::Sync, nth, ErrorKind::Other);
            let mut progress = Progress::Before;
            let result = rebuild(&*index, &mut progress);
            drop(index);
            if engine.count(Part::Index, Op::Sync).count < nth {
                result.unwrap();
                break;
            }
            let index = open(back_end, &engine).unwrap();
            if index.needs_rebuild() || progress == Progress::Before {
                rebuild(&*index, &mut progress).unwrap();
            }
            assert_eq!(rows_of(&*index, 1000).unwrap(), new_rows());
            let counted = index
                .increment(STREAM, LAST_NUMBER + 1, &[item(1, 1)])
                .unwrap();
            let after = engine.crash(CrashKind::PowerLoss);
            let index = open(back_end, &after).unwrap();
            if back_end.survives_crashes() {
                assert!(!index.needs_rebuild(), "seed {seed}, sync {nth}");
                let again = index.increment(STREAM, LAST_NUMBER + 1, &[]).unwrap();
                assert_eq!(again, counted);
            } else {
                assert!(index.needs_rebuild());
            }
        }
    }
}

/// Replacing an index, sound or not, with a crash in every I/O of it.
pub fn what_is_replaced_is_rebuilt(back_end: &dyn BackEnd) {
    let story = Story::new(3, 3, 12);
    let sound = machine(back_end, 0);
    story.tell(back_end, &sound, &mut 0).unwrap();
    let rubbish = SimulatedEngine::new(1);
    let disk = rubbish.create(Part::Index, 0).unwrap();
    disk.write_at(&[0xff; 100_000], 0).unwrap();
    for (before, is_sound) in [(&sound, true), (&rubbish, false)] {
        for crash_at in 1.. {
            let engine = before.crash(CrashKind::ProcessKilled);
            engine.crash_after(crash_at);
            let disk = engine.open(Part::Index).unwrap();
            let replaced = back_end.replace(&disk, POOL).is_ok();
            drop(open(back_end, &engine));
            if !engine.is_crashed() {
                // The crash that was ordered did not come; this machine expects none.
                let engine = engine.crash(CrashKind::ProcessKilled);
                assert!(open(back_end, &engine).unwrap().needs_rebuild());
                check_after_crash(back_end, &engine, Progress::Begun, &story);
                break;
            }
            match open(back_end, &engine.crash(CrashKind::PowerLoss)) {
                Ok(index) if index.needs_rebuild() => {}
                Ok(_) => assert!(is_sound && !replaced, "it passes for whole"),
                Err(error) => {
                    let is_old = matches!(error, IndexError::Damaged(_)) && !is_sound;
                    assert!(is_old && !replaced, "{error}");
                }
            }
        }
    }
}

fn check_after_crash(
    back_end: &dyn BackEnd,
    engine: &SimulatedEngine,
    progress: Progress,
    story: &Story,
) {
    let index = open(back_end, engine).unwrap();
    if index.needs_rebuild() {
        assert!(progress < Progress::Finished || !back_end.survives_crashes());
        assert_eq!(index.counts(), Default::default());
        assert_eq!(rows_of(&*index, 10).unwrap(), []);
        let unready = index.increment(STREAM, 1000, &[item(1, 1)]).unwrap_err();
        assert!(matches!(unready, IndexError::Unready(_)), "{unready}");
        // Rows without a beginning would be added to unknown content.
        let unready = index.add_rows(&new_rows()).unwrap_err();
        assert!(matches!(unready, IndexError::Unready(_)), "{unready}");
        rebuild(&*index, &mut Progress::Before).unwrap();
    } else if progress < Progress::Finishing {
        assert_eq!(
            progress,
            Progress::Before,
            "an unfinished rebuild passes for one that is"
        );
        assert_eq!(rows_of(&*index, 1000).unwrap(), story.end().rows());
        return;
    }
    assert_eq!(rows_of(&*index, 1000).unwrap(), new_rows());
    index
        .increment(STREAM, LAST_NUMBER + 1, &[item(1, 1)])
        .unwrap();
    index.close().unwrap();
}

/// A part that holds no index, or something else: reported, or counted again without being asked;
/// and usable once it has been replaced.
pub fn what_is_no_index_is_rebuilt(back_end: &dyn BackEnd) {
    for content in [0, 100_000] {
        let engine = SimulatedEngine::new(1);
        let disk = engine.create(Part::Index, 0).unwrap();
        disk.write_at(&vec![0xff; content], 0).unwrap();
        match open(back_end, &engine) {
            Ok(index) => assert!(!back_end.survives_crashes() && index.needs_rebuild()),
            Err(error) => assert!(matches!(error, IndexError::Damaged(_)), "{error}"),
        }
        back_end.replace(&disk, POOL).unwrap();
        let index = open(back_end, &engine).unwrap();
        assert!(index.needs_rebuild());
        index.begin_rebuild().unwrap();
        index.finish_rebuild(STREAM, 3).unwrap();
        index.close().unwrap();
        drop(index);
        let index = open(back_end, &engine).unwrap();
        assert!(!index.needs_rebuild());
        let answers = index.increment(STREAM, 4, &[item(1, 1)]).unwrap();
        assert_eq!(answers, [Counted::Inserted]);
    }
}
