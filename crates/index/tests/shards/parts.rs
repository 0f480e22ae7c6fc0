//! Parts of batches at one shard.

use std::collections::BTreeSet;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::Pba;
use onefold_format::index_message::{IndexAnswer, IndexOperation, PositionedAnswer};
use onefold_index::hash::{self, HashIndex};
use onefold_index::holds::Holds;
use onefold_index::shard::{Positioned, ShardBatch, ShardWork};
use onefold_index::{Fingerprint, FingerprintIndex, IndexError, IndexReader, Result, StreamId};

use crate::hosts::{POOL, SHAPE, fingerprint, item, open};
use IndexAnswer::{Inserted, Remaining, Shared, Unknown, Zero};
use IndexOperation::{CountExisting, Decrement, Increment};

fn shard() -> (SimulatedEngine, HashIndex) {
    seeded(3)
}

fn seeded(seed: u64) -> (SimulatedEngine, HashIndex) {
    let engine = SimulatedEngine::new(seed);
    hash::create_shaped(&engine.create(Part::Index, 0).unwrap(), POOL, SHAPE).unwrap();
    let index = open(&engine);
    (engine, index)
}

fn part(stream: u64, number: u64, operation: IndexOperation, work: ShardWork) -> ShardBatch {
    ShardBatch {
        stream: StreamId(stream),
        number,
        operation,
        work,
    }
}

fn execute(number: u64, operation: IndexOperation, items: &[Positioned]) -> ShardBatch {
    part(1, number, operation, ShardWork::Execute(items.to_vec()))
}

fn recall(number: u64, operation: IndexOperation, is_sealing: bool) -> ShardBatch {
    part(1, number, operation, ShardWork::Recall { is_sealing })
}

/// No store holds a row.
fn nobody() -> Holds {
    Holds::new(BTreeSet::new(), 0)
}

/// Carries out a single part.
fn one(index: &HashIndex, part: ShardBatch) -> Result<Vec<(u16, IndexAnswer)>> {
    let mut answers = index.execute(&[part], &nobody())?;
    let pair = |at: PositionedAnswer| (at.position, at.answer);
    Ok(answers.remove(0)?.into_iter().map(pair).collect())
}

#[test]
fn a_position_is_executed_once_and_others_are_added() {
    let (engine, index) = shard();
    let first = [item(2, 7, 70), item(5, 8, 80)];
    let answers = one(&index, execute(4, Increment, &first)).unwrap();
    assert_eq!(answers, [(2, Inserted), (5, Inserted)]);
    // Another block under a known position: the original answer, and no effect.
    let second = [item(1, 7, 71), item(5, 8, 81), item(9, 8, 82)];
    let added = [(1, Shared(Pba(70))), (5, Inserted), (9, Shared(Pba(80)))];
    assert_eq!(one(&index, execute(4, Increment, &second)).unwrap(), added);
    assert_eq!(index.counts().references, 4);
    drop(index);
    let index = open(&engine.crash(CrashKind::PowerLoss));
    assert_eq!(one(&index, execute(4, Increment, &second)).unwrap(), added);
    let all = [
        (1, Shared(Pba(70))),
        (2, Inserted),
        (5, Inserted),
        (9, Shared(Pba(80))),
    ];
    assert_eq!(one(&index, recall(4, Increment, false)).unwrap(), all);
    assert_eq!(index.counts().references, 4);
}

#[test]
fn a_part_that_comes_twice_is_executed_once_even_in_one_frame() {
    let (_engine, index) = shard();
    let items = [item(0, 7, 70), item(1, 7, 71)];
    let twice = [execute(1, Increment, &items), execute(1, Increment, &items)];
    let answers = index.execute(&twice, &nobody()).unwrap();
    assert_eq!(answers[0].as_ref().unwrap(), answers[1].as_ref().unwrap());
    assert_eq!(index.counts().references, 2);
    let items = [item(0, 7, 70)];
    let answers = one(&index, execute(2, CountExisting, &items)).unwrap();
    assert_eq!(answers, [(0, Inserted)]);
    let items = [item(0, 7, 70), item(1, 7, 70), item(2, 9, 90)];
    let answers = one(&index, execute(3, Decrement, &items)).unwrap();
    assert_eq!(answers, [(0, Remaining), (1, Remaining), (2, Unknown)]);
    let answers = one(&index, execute(3, Decrement, &[item(3, 7, 70)])).unwrap();
    assert_eq!(answers, [(3, Zero)]);
}

#[test]
fn numbers_out_of_turn_and_other_kinds_are_stale() {
    let (_engine, index) = shard();
    let items = [item(0, 7, 70)];
    one(&index, execute(5, Increment, &items)).unwrap();
    for part in [
        execute(4, Increment, &items),
        execute(5, CountExisting, &items),
        execute(5, Decrement, &items),
        recall(4, Increment, false),
        recall(4, Increment, true),
        recall(5, Decrement, true),
    ] {
        let refused = one(&index, part.clone());
        let is_stale = matches!(refused, Err(IndexError::Stale { last: 5, .. }));
        assert!(is_stale, "{part:?}: {refused:?}");
    }
    // Nor is it the batch of a caller that has no positions.
    let plain = index.increment(StreamId(1), 5, &[(fingerprint(7), Pba(70))]);
    assert!(matches!(plain, Err(IndexError::Stale { .. })));
    index.increment(StreamId(1), 6, &[]).unwrap();
    let part = one(&index, execute(6, Increment, &items));
    assert!(matches!(part, Err(IndexError::Stale { .. })));
    assert_eq!(index.counts().references, 1);
}

#[test]
fn a_question_changes_nothing_and_a_seal_lasts() {
    let (engine, index) = shard();
    let items = [item(0, 7, 70), item(1, 8, 80)];
    one(&index, execute(5, Increment, &items[..1])).unwrap();
    engine.reset_counts();
    assert_eq!(one(&index, recall(6, Increment, false)).unwrap(), []);
    assert_eq!(engine.count(Part::Index, Op::Sync).count, 0);
    let sealed = one(&index, recall(5, Increment, true)).unwrap();
    assert_eq!(sealed, [(0, Inserted)]);
    drop(index);
    let index = open(&engine.crash(CrashKind::PowerLoss));
    let late = one(&index, execute(5, Increment, &items));
    assert!(matches!(late, Err(IndexError::Sealed { .. })), "{late:?}");
    let again = one(&index, execute(5, Increment, &items[..1])).unwrap();
    assert_eq!(again, [(0, Inserted)]);
    // A number that the shard has never seen is consumed.
    assert_eq!(one(&index, recall(9, Decrement, true)).unwrap(), []);
    let late = one(&index, execute(9, Decrement, &items[..1]));
    assert!(matches!(late, Err(IndexError::Sealed { .. })), "{late:?}");
    assert_eq!(index.counts().references, 1);
}

#[test]
fn what_waits_together_takes_one_frame_and_one_sync() {
    let (engine, index) = shard();
    let of = |stream, number, operation, items: &[Positioned]| {
        part(
            stream,
            number,
            operation,
            ShardWork::Execute(items.to_vec()),
        )
    };
    let parts = [
        of(1, 1, Increment, &[item(0, 7, 70)]),
        of(2, 8, Increment, &[item(0, 7, 71), item(1, 8, 80)]),
        of(1, 2, Decrement, &[item(4, 7, 70)]),
        of(2, 8, Decrement, &[item(3, 7, 70)]),
        of(3, 1, Decrement, &[item(0, 8, 80)]),
        part(2, 8, Increment, ShardWork::Recall { is_sealing: true }),
        of(4, 1, Increment, &[item(0, 9, 0)]),
    ];
    engine.reset_counts();
    let answers = index.execute(&parts, &nobody()).unwrap();
    assert_eq!(engine.count(Part::Index, Op::Sync).count, 1);
    let given: Vec<String> = answers
        .iter()
        .map(|part| match part {
            Ok(answers) => format!(
                "{:?}",
                answers.iter().map(|at| at.answer).collect::<Vec<_>>()
            ),
            Err(error) => error.to_string(),
        })
        .collect();
    assert_eq!(
        given,
        [
            "[Inserted]",
            "[Shared(Pba(70)), Inserted]",
            "[Remaining]",
            "batch 8 of stream 2 is not the last one, 8, or was of another kind",
            "[Zero]",
            "[Shared(Pba(70)), Inserted]",
            "there can be no block 0",
        ]
    );
    drop(index);
    let index = open(&engine.crash(CrashKind::PowerLoss));
    let recalled = one(&index, recall(2, Decrement, false)).unwrap();
    assert_eq!(recalled, [(4, Remaining)]);
    let late = index.execute(&[of(2, 8, Increment, &[item(7, 8, 81)])], &nobody());
    assert!(matches!(late.unwrap()[0], Err(IndexError::Sealed { .. })));
    assert_eq!((index.counts().rows(), index.counts().references), (1, 1));
}

#[test]
fn a_crash_leaves_all_parts_of_a_frame_or_none() {
    let mut outcomes = [0, 0];
    for crash_at in 1..4 {
        for seed in 0..40 {
            let kind = if seed % 4 == 0 {
                CrashKind::ProcessKilled
            } else {
                CrashKind::PowerLoss
            };
            let (engine, index) = seeded(seed);
            one(&index, execute(1, Increment, &[item(0, 7, 70)])).unwrap();
            engine.crash_after(crash_at);
            let of = |stream| {
                let items = [item(0, 7, 70 + stream), item(1, 100 + stream, 100 + stream)];
                part(stream, 3, Increment, ShardWork::Execute(items.to_vec()))
            };
            let parts: Vec<ShardBatch> = (1..5).map(of).collect();
            let executed = index.execute(&parts, &nobody());
            let index = open(&engine.crash(kind));
            let references = index.counts().references;
            assert!(references == 9 || references == 1 && executed.is_err());
            outcomes[usize::from(references == 9)] += 1;
            for part in parts {
                let work = ShardWork::Recall { is_sealing: false };
                let recalled = one(
                    &index,
                    ShardBatch {
                        work,
                        ..part.clone()
                    },
                )
                .unwrap();
                assert_eq!(recalled.len(), if references == 9 { 2 } else { 0 });
                assert_eq!(one(&index, part).unwrap().len(), 2);
            }
            assert_eq!(index.counts().references, 9);
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

#[test]
fn answers_that_a_rebuild_lost_are_told() {
    let (_engine, index) = shard();
    one(&index, execute(3, Increment, &[item(0, 7, 70)])).unwrap();
    index.begin_rebuild().unwrap();
    let refused = one(&index, execute(3, Increment, &[item(0, 7, 70)]));
    assert!(matches!(refused, Err(IndexError::Unready(_))));
    index.finish_rebuild(StreamId(1), 3).unwrap();
    for part in [
        execute(3, Increment, &[item(0, 7, 70)]),
        recall(3, Increment, false),
        recall(3, Increment, true),
    ] {
        let refused = one(&index, part);
        assert!(matches!(refused, Err(IndexError::Forgotten { .. })));
    }
    let next = one(&index, execute(4, Increment, &[item(0, 7, 70)])).unwrap();
    assert_eq!(next, [(0, Inserted)]);
}

#[test]
fn a_rebuild_keeps_the_last_number_of_every_stream() {
    let (_engine, index) = shard();
    index.begin_rebuild().unwrap();
    let last_numbers = [(StreamId(1), 3), (StreamId(2), 7)];
    index.finish_rebuild_of(&last_numbers).unwrap();
    for (stream, last) in last_numbers {
        let increment = |number| ShardBatch {
            stream,
            ..execute(number, Increment, &[item(0, stream.0, stream.0)])
        };
        for number in [last - 1, last] {
            let refused = one(&index, increment(number));
            assert!(refused.is_err(), "batch {number} of {stream:?} came again");
        }
        assert_eq!(one(&index, increment(last + 1)).unwrap(), [(0, Inserted)]);
    }
}

#[test]
fn parts_for_which_room_is_secured_are_executed_on_a_full_host() {
    let (engine, index) = shard();
    let items: Vec<Positioned> = (0..400)
        .map(|n| item(n, 1000 + u64::from(n), 1 + u64::from(n)))
        .collect();
    index.secure(&[200, 400]).unwrap();
    let allocated = index.bytes_on_disk().unwrap();
    engine.set_capacity(Part::Index, Some(allocated));
    for half in items.chunks(200) {
        let answers = one(&index, execute(1, Increment, half)).unwrap();
        assert_eq!(answers.len(), 200);
    }
    let more = |number: u64| {
        let item = |n: u16| item(n, number * 10_000 + u64::from(n), 1 + u64::from(n));
        (0..2000).map(item).collect::<Vec<_>>()
    };
    let refused = (2..).find_map(|number| {
        let executed = one(&index, execute(number, Increment, &more(number)));
        executed.err().map(|error| (number, error))
    });
    let (number, error) = refused.unwrap();
    assert!(matches!(error, IndexError::NoRoom(_)), "{error}");
    engine.set_capacity(Part::Index, None);
    let answers = one(&index, execute(number, Increment, &more(number))).unwrap();
    assert_eq!(answers.len(), 2000);
    let rows = index.rows(Fingerprint::default(), 1 << 20).unwrap();
    assert_eq!(rows.len() as u64, 400 + (number - 1) * 2000);
}
