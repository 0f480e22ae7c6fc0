//! The answers when nothing fails.

use onefold_engine::{Blocking, Engine, Part};
use onefold_format::{Pba, PoolId};

use super::lookups::agrees;
use super::model::{Batch, Given, Model, ask, rows_of};
use super::{BackEnd, POOL, STREAM, fingerprint, item, machine, open};
use crate::{Counted, Fingerprint, FingerprintIndex, IndexError, Released, StreamId};

/// Every answer, repeats, and numbers out of turn.
pub fn answers_as_it_should(back_end: &dyn BackEnd) {
    let engine = machine(back_end, 1);
    let index = open(back_end, &engine).unwrap();
    assert!(
        !index.needs_rebuild(),
        "a new pool's index has the pool's rows: none"
    );
    assert_eq!(index.counts(), Default::default());
    assert_eq!(index.rows(Fingerprint([0; 16]), 10).unwrap(), []);
    counts_references(&*index);
    releases_references(&*index);
    refuses_numbers_out_of_turn(&*index);
    refuses_impossible_blocks(&*index);
    counts_nothing_under_a_number(&*index);
    lists_rows(&*index);
    assert!(index.bytes_on_disk().unwrap() > 0);
    let (counts, rows) = (index.counts(), rows_of(&*index, 100).unwrap());
    closes(&*index);
    drop(index);
    let index = open(back_end, &engine).unwrap();
    assert!(!index.needs_rebuild());
    assert_eq!(
        (index.counts(), rows_of(&*index, 100).unwrap()),
        (counts, rows)
    );
    // Answers outlive a clean stop too.
    let again = index.decrement(STREAM, 4, &[]).unwrap();
    assert_eq!(again.len(), 7);
}

fn counts_references(index: &dyn FingerprintIndex) {
    // Equal fingerprints of one batch meet each other, and in their order.
    let items = [
        item(1, 10),
        item(2, 20),
        item(1, 11),
        item(1, 10),
        item(2, 21),
    ];
    let shared = |pba| Counted::Shared(Pba(pba));
    let answers = [
        Counted::Inserted,
        Counted::Inserted,
        shared(10),
        Counted::Inserted,
        shared(20),
    ];
    assert_eq!(index.increment(STREAM, 1, &items).unwrap(), answers);
    let counts = index.counts();
    assert_eq!((counts.unique, counts.shared, counts.references), (0, 2, 5));
    // Again, with other items: the original answers, and nothing is counted.
    assert_eq!(index.increment(STREAM, 1, &[item(9, 9)]).unwrap(), answers);
    assert_eq!(index.counts(), counts);
    // Across batches too, and numbers may be left out.
    let items = [item(3, 30), item(1, 12), item(2, 20)];
    let answers = [Counted::Inserted, shared(10), Counted::Inserted];
    assert_eq!(index.increment(STREAM, 3, &items).unwrap(), answers);
    let counts = index.counts();
    assert_eq!((counts.unique, counts.shared, counts.references), (1, 2, 8));
}

fn releases_references(index: &dyn FingerprintIndex) {
    let items = [
        item(3, 31),
        item(3, 30),
        item(3, 30),
        item(1, 10),
        item(2, 10),
        item(4, 40),
        item(2, 20),
    ];
    let answers = [
        Released::Mismatch,
        Released::Zero,
        Released::Unknown,
        Released::Remaining,
        Released::Mismatch,
        Released::Unknown,
        Released::Remaining,
    ];
    assert_eq!(index.decrement(STREAM, 4, &items).unwrap(), answers);
    let counts = index.counts();
    assert_eq!((counts.unique, counts.shared, counts.references), (0, 2, 5));
    assert_eq!(index.decrement(STREAM, 4, &items).unwrap(), answers);
    assert_eq!(index.counts(), counts);
}

fn refuses_numbers_out_of_turn(index: &dyn FingerprintIndex) {
    let counts = index.counts();
    for number in [0, 1, 2, 3] {
        let stale = index.increment(STREAM, number, &[item(1, 10)]).unwrap_err();
        assert!(
            matches!(stale, IndexError::Stale { last: 4, .. }),
            "{stale}"
        );
        let stale = index.decrement(STREAM, number, &[item(1, 10)]).unwrap_err();
        assert!(
            matches!(stale, IndexError::Stale { last: 4, .. }),
            "{stale}"
        );
    }
    // The last one was a decrement: its answers mean nothing to an increment.
    let stale = index.increment(STREAM, 4, &[item(1, 10)]).unwrap_err();
    assert!(
        matches!(stale, IndexError::Stale { last: 4, .. }),
        "{stale}"
    );
    assert_eq!(index.counts(), counts, "what was refused changed nothing");
    // Streams know nothing of each other. An empty batch has a number too.
    let other = StreamId(u64::MAX);
    assert_eq!(index.increment(other, 1, &[]).unwrap(), []);
    let stale = index.increment(other, 0, &[item(5, 5)]).unwrap_err();
    assert!(
        matches!(stale, IndexError::Stale { last: 1, .. }),
        "{stale}"
    );
    assert_eq!(index.decrement(STREAM, 4, &[]).unwrap().len(), 7);
}

fn refuses_impossible_blocks(index: &dyn FingerprintIndex) {
    let counts = index.counts();
    for pba in [0, 1 << 40, u64::MAX] {
        let items = [item(6, 60), item(7, pba)];
        let bad = index.increment(STREAM, 9, &items).unwrap_err();
        assert!(
            matches!(bad, IndexError::BadBlock(Pba(found)) if found == pba),
            "{bad}"
        );
        let bad = index.decrement(STREAM, 9, &items).unwrap_err();
        assert!(
            matches!(bad, IndexError::BadBlock(Pba(found)) if found == pba),
            "{bad}"
        );
    }
    assert_eq!(index.counts(), counts);
    assert_eq!(
        index.decrement(STREAM, 4, &[]).unwrap().len(),
        7,
        "9 was not used up"
    );
}

/// A batch without items uses its number up: a repeat of it with items counts nothing.
fn counts_nothing_under_a_number(index: &dyn FingerprintIndex) {
    let (stream, counts) = (StreamId(77), index.counts());
    assert_eq!(index.increment(stream, 1, &[]).unwrap(), []);
    assert_eq!(index.increment(stream, 1, &[item(9, 90)]).unwrap(), []);
    assert_eq!(index.counts(), counts);
}

fn lists_rows(index: &dyn FingerprintIndex) {
    let stream = StreamId(2);
    let mut items: Vec<_> = (100..150).map(|n| item(n, n)).collect();
    for edge in [[0; 16], [255; 16]] {
        items.push((Fingerprint(edge), Pba((1 << 40) - 1)));
    }
    index.increment(stream, 1, &items).unwrap();
    let all = rows_of(index, 1000).unwrap();
    assert_eq!(all.len() as u64, index.counts().rows());
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0));
    for page in [1, 2, 7, all.len() - 1, all.len()] {
        assert_eq!(rows_of(index, page).unwrap(), all, "{page}");
    }
    assert_eq!(index.rows(all[3].0, 2).unwrap(), all[3..5], "from is in it");
    let behind = all[3].0.successor().unwrap();
    assert_eq!(index.rows(behind, 2).unwrap(), all[4..6]);
    assert_eq!(index.rows(Fingerprint([0; 16]), 0).unwrap(), []);
    assert_eq!(
        index.decrement(stream, 2, &items).unwrap(),
        [Released::Zero; 52]
    );
}

fn closes(index: &dyn FingerprintIndex) {
    let counts = index.counts();
    index.close().unwrap();
    index.close().unwrap();
    let closed = index.increment(STREAM, 10, &[item(1, 1)]).unwrap_err();
    assert!(matches!(closed, IndexError::Closed), "{closed}");
    assert!(matches!(
        index.rows(fingerprint(1), 1),
        Err(IndexError::Closed)
    ));
    assert!(matches!(index.begin_rebuild(), Err(IndexError::Closed)));
    assert_eq!(index.counts(), counts);
    assert!(!index.needs_rebuild());
    index.bytes_on_disk().unwrap();
}

/// Random batches, repeats, refusals and clean stops, compared with the model.
pub fn agrees_with_the_model(back_end: &dyn BackEnd, seeds: std::ops::Range<u64>) {
    const STEPS: usize = 60;
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let engine = machine(back_end, seed);
        let mut index = open(back_end, &engine).unwrap();
        let mut model = Model::default();
        let mut last: Option<(u64, Batch, Given)> = None;
        for _ in 0..STEPS {
            let number = last.as_ref().map_or(0, |(number, ..)| *number);
            match random.u8(..12) {
                0 => {
                    index.close().unwrap();
                    drop(index);
                    index = open(back_end, &engine).unwrap();
                    assert!(!index.needs_rebuild());
                }
                1 => {
                    if let Some((number, batch, given)) = &last {
                        assert_eq!(ask(&*index, *number, batch).unwrap(), *given, "seed {seed}");
                        let stale = ask(&*index, number - 1, batch).unwrap_err();
                        assert!(matches!(stale, IndexError::Stale { .. }), "{stale}");
                    }
                }
                2 => {
                    let rows = rows_of(&*index, random.usize(1..10)).unwrap();
                    assert_eq!(rows, model.rows(), "seed {seed}");
                }
                3 | 4 => agrees(&*index, &model.rows()).unwrap(),
                _ => {
                    let batch = model.random_batch(&mut random, 30);
                    let number = number + random.u64(1..4);
                    let given = ask(&*index, number, &batch).unwrap();
                    assert_eq!(given, model.answer(&batch), "seed {seed}, {batch:?}");
                    last = Some((number, batch, given));
                }
            }
            assert_eq!(index.counts(), model.counts(), "seed {seed}");
        }
    }
}

/// An index that has no room counts no new rows, and everything else.
pub fn a_full_index_declines(back_end: &dyn BackEnd) {
    let engine = machine(back_end, 1);
    let Some(index) = back_end.open_small(engine.open(Part::Index).unwrap(), POOL) else {
        return;
    };
    let index = index.unwrap();
    let mut number = 0;
    let mut next_number = || {
        number += 1;
        number
    };
    let mut there = Vec::new();
    let mut declined = Vec::new();
    while declined.is_empty() {
        assert!(there.len() <= 10_000, "there is no limit");
        let items: Vec<_> = (there.len() as u64..)
            .take(50)
            .map(|n| item(n, n + 1))
            .collect();
        let number = next_number();
        let answers = index.increment(STREAM, number, &items).unwrap();
        assert_eq!(index.increment(STREAM, number, &items).unwrap(), answers);
        for (item, answer) in items.into_iter().zip(answers) {
            match answer {
                Counted::Inserted => there.push(item),
                Counted::Full => declined.push(item),
                Counted::Shared(_) => panic!("{item:?} is not shared"),
            }
        }
    }
    assert!(there.len() >= 10);
    assert_eq!(index.counts().rows(), there.len() as u64);
    for (fingerprint, pba) in &there {
        let other = Pba(pba.0 + 100_000);
        let answer = index
            .increment(STREAM, next_number(), &[(*fingerprint, other)])
            .unwrap();
        assert_eq!(answer, [Counted::Shared(*pba)]);
    }
    let answers = index.decrement(STREAM, next_number(), &declined).unwrap();
    assert!(answers.iter().all(|answer| *answer == Released::Unknown));
    for expected in [Released::Remaining, Released::Zero] {
        let answers = index.decrement(STREAM, next_number(), &there).unwrap();
        assert!(answers.iter().all(|answer| *answer == expected));
    }
    let answer = index.increment(STREAM, next_number(), &there[..1]).unwrap();
    assert_eq!(answer, [Counted::Inserted], "room has come back");
}

/// An index of one pool is not opened for another, whatever its state.
pub fn pools_do_not_mix(back_end: &dyn BackEnd) {
    let engine = machine(back_end, 1);
    let index = open(back_end, &engine).unwrap();
    index.increment(STREAM, 1, &[item(1, 1)]).unwrap();
    for clean in [false, true] {
        if clean {
            index.close().unwrap();
        }
        let disk = engine.crash(onefold_engine::simulated::CrashKind::ProcessKilled);
        let disk = disk.open(Part::Index).unwrap();
        let error = back_end.open(disk, PoolId([1; 16])).err().unwrap();
        assert!(
            matches!(error, IndexError::OtherPool { found: POOL, .. }),
            "{error}"
        );
    }
    drop(index);
    let index = open(back_end, &engine).unwrap();
    assert!(!index.needs_rebuild(), "the refusal has not harmed it");
    assert_eq!(index.counts().rows(), 1);
}

/// Batches of several threads take effect one after the other.
pub fn threads_take_turns(back_end: &dyn BackEnd) {
    const BATCHES: u64 = 10;
    let engine = machine(back_end, 1);
    let index = open(back_end, &engine).unwrap();
    let index = &*index;
    std::thread::scope(|scope| {
        for stream in 1..=3 {
            scope.spawn(move || {
                for number in 1..=BATCHES {
                    let items: Vec<_> = (0..20).map(|n| item(n, n + 1)).collect();
                    index.increment(StreamId(stream), number, &items).unwrap();
                    assert!(index.counts().references.is_multiple_of(20));
                    assert_eq!(index.rows(Fingerprint([0; 16]), 100).unwrap().len(), 20);
                }
            });
        }
        scope.spawn(|| {
            let fingerprints: Vec<_> = (0..20).map(fingerprint).collect();
            for _ in 0..100 {
                let answers = index.lookup(&fingerprints, Blocking::Yes).unwrap();
                let mut blocks = answers.iter().map(|answer| answer.pba()).zip(1..);
                assert!(blocks.all(|(pba, n)| pba.is_none_or(|found| found == Pba(n))));
            }
        });
    });
    let counts = index.counts();
    assert_eq!((counts.unique, counts.shared), (0, 20));
    assert_eq!(counts.references, 3 * BATCHES * 20);
}
