//! The owner of a shard.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use onefold_engine::cluster::Answer;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::index_message::{
    IndexAnswer, IndexItem, IndexOperation, IndexReply, IndexReplyBody, IndexRequest,
    IndexRequestBody, LookupAnswer, PositionedAnswer, RefusalCode, shard_of,
};
use onefold_format::{GroupId, Pba, PoolId, Shard};
use onefold_index::FingerprintIndex;
use onefold_index::hash;
use onefold_index::served::{Served, ServedCounters, ServedShard, Worker};

use crate::hosts::{POOL, SHAPE, fingerprint, open};

const HERE: ServedShard = ServedShard {
    pool: POOL,
    shard: Shard(2),
    shards: 4,
    session: 6,
};

struct Owner {
    engine: SimulatedEngine,
    served: Served,
    woken: Arc<AtomicUsize>,
}

fn owner() -> Owner {
    let engine = SimulatedEngine::new(3);
    hash::create_shaped(&engine.create(Part::Index, 0).unwrap(), POOL, SHAPE).unwrap();
    let woken = Arc::new(AtomicUsize::new(0));
    let wake = {
        let woken = Arc::clone(&woken);
        move || {
            woken.fetch_add(1, Ordering::Relaxed);
        }
    };
    let worker = Worker::Woken(Box::new(wake));
    let served = Served::new(Arc::new(open(&engine)), HERE, worker);
    Owner {
        engine,
        served,
        woken,
    }
}

fn request(group: u64, body: IndexRequestBody) -> IndexRequest {
    IndexRequest {
        pool: POOL,
        session: 0,
        group: GroupId(group),
        shard: HERE.shard,
        shards: HERE.shards,
        body,
    }
}

/// Contents whose fingerprints are this shard's.
fn contents() -> impl Iterator<Item = [u8; 16]> {
    (0..)
        .map(|n| fingerprint(n).0)
        .filter(|fingerprint| shard_of(fingerprint, HERE.shards) == HERE.shard)
}

fn increment(number: u64, items: impl Iterator<Item = [u8; 16]>, pba: u64) -> IndexRequestBody {
    let item = |(position, fingerprint)| IndexItem {
        position,
        fingerprint,
        pba: Pba(pba + u64::from(position)),
    };
    IndexRequestBody::Batch {
        number,
        operation: IndexOperation::Increment,
        items: (0..).zip(items).map(item).collect(),
    }
}

type Replies = Arc<Mutex<Vec<IndexReplyBody>>>;

impl Owner {
    fn send(&self, request: &IndexRequest, replies: &Replies) {
        self.send_bytes(request.encode(), replies);
    }

    fn send_bytes(&self, bytes: Vec<u8>, replies: &Replies) {
        let (replies, checksum) = (Arc::clone(replies), IndexRequest::checksum(&bytes));
        let keep = move |reply: Vec<u8>| {
            let reply = IndexReply::decode(&reply, checksum).unwrap();
            assert_eq!(reply.session, HERE.session);
            replies.lock().unwrap().push(reply.body);
        };
        self.served.answer(bytes, Box::new(keep));
    }

    fn ask(&self, request: &IndexRequest) -> IndexReplyBody {
        let replies = Replies::default();
        self.send(request, &replies);
        self.served.work();
        let mut replies = replies.lock().unwrap();
        assert_eq!(replies.len(), 1);
        replies.remove(0)
    }
}

fn code(body: &IndexReplyBody) -> Option<RefusalCode> {
    match body {
        IndexReplyBody::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

#[test]
fn batches_that_wait_go_out_in_one_frame() {
    let owner = owner();
    let replies = Replies::default();
    for group in 1..=5 {
        let items = contents().take(3);
        owner.send(&request(group, increment(1, items, group * 10)), &replies);
    }
    assert_eq!(owner.woken.load(Ordering::Relaxed), 5);
    assert!(replies.lock().unwrap().is_empty());
    owner.engine.reset_counts();
    owner.served.work();
    assert_eq!(owner.engine.count(Part::Index, Op::Sync).count, 1);
    let replies = replies.lock().unwrap();
    assert_eq!(replies.len(), 5);
    for (group, reply) in (1..).zip(&*replies) {
        let answer = |position: u16| PositionedAnswer {
            position,
            answer: match group {
                1 => IndexAnswer::Inserted,
                _ => IndexAnswer::Shared(Pba(10 + u64::from(position))),
            },
        };
        let expected = IndexReplyBody::Answers {
            answers: (0..3).map(answer).collect(),
            has_more: false,
        };
        assert_eq!(*reply, expected);
    }
}

#[test]
fn without_a_thread_the_caller_of_a_request_executes_it() {
    let engine = SimulatedEngine::new(3);
    hash::create_shaped(&engine.create(Part::Index, 0).unwrap(), POOL, SHAPE).unwrap();
    let owner = Owner {
        served: Served::new(Arc::new(open(&engine)), HERE, Worker::Caller),
        engine,
        woken: Arc::default(),
    };
    let replies = Replies::default();
    owner.send(&request(1, increment(1, contents().take(3), 10)), &replies);
    let count = replies.lock().unwrap().len();
    assert_eq!(count, 1);
    let counts = owner.ask(&request(1, IndexRequestBody::Counts));
    let expected = IndexReplyBody::Counts {
        unique: 3,
        shared: 0,
        references: 3,
    };
    assert_eq!(counts, expected);
}

#[test]
fn what_is_not_for_this_shard_is_refused_at_once_and_counted() {
    let owner = owner();
    let replies = Replies::default();
    let right = || request(1, IndexRequestBody::Counts);
    let wrong_pool = IndexRequest {
        pool: PoolId([1; 16]),
        ..right()
    };
    let wrong_shard = IndexRequest {
        shard: Shard(1),
        ..right()
    };
    let wrong_count = IndexRequest {
        shards: 8,
        ..right()
    };
    let wrong_session = IndexRequest {
        session: 5,
        ..right()
    };
    for request in [wrong_pool, wrong_shard, wrong_count, wrong_session] {
        owner.send(&request, &replies);
    }
    let mut damaged = right().encode();
    damaged[20] ^= 1;
    owner.send_bytes(damaged, &replies);
    owner.send_bytes(Vec::new(), &replies);
    let codes: Vec<_> = replies.lock().unwrap().iter().map(code).collect();
    let expected = [
        RefusalCode::WrongPool,
        RefusalCode::WrongShard,
        RefusalCode::WrongShard,
        RefusalCode::WrongSession,
        RefusalCode::Malformed,
        RefusalCode::Malformed,
    ];
    assert_eq!(codes, expected.map(Some));
    let counters = ServedCounters {
        replies: 6,
        refused: 6,
    };
    assert_eq!(owner.served.counters(), counters);
    let session = IndexRequest {
        session: 6,
        ..right()
    };
    assert_eq!(code(&owner.ask(&session)), None);
    assert_eq!(owner.woken.load(Ordering::Relaxed), 1);
}

#[test]
fn a_full_queue_refuses_and_keeps_what_waits() {
    let owner = owner();
    let replies = Replies::default();
    let refused = || {
        let replies = replies.lock().unwrap();
        let busy = replies
            .iter()
            .filter(|reply| code(reply) == Some(RefusalCode::Busy));
        busy.count()
    };
    let mut sent = 0;
    while refused() == 0 {
        owner.send(&request(1, IndexRequestBody::Counts), &replies);
        sent += 1;
    }
    assert!(sent > 1000);
    owner.served.work();
    assert_eq!(refused(), 1);
    assert_eq!(replies.lock().unwrap().len(), sent);
}

#[test]
fn a_lookup_that_memory_answers_waits_for_nothing() {
    let owner = owner();
    let some: Vec<[u8; 16]> = contents().take(4).collect();
    owner.ask(&request(1, increment(1, some[..3].iter().copied(), 10)));
    let replies = Replies::default();
    let lookup = request(2, IndexRequestBody::Lookup(some));
    owner.send(&lookup, &replies);
    let found = [10, 11, 12].map(|pba| LookupAnswer::Present(Pba(pba)));
    let [IndexReplyBody::LookedUp(answers)] = &replies.lock().unwrap()[..] else {
        panic!("no answer at once");
    };
    assert_eq!(answers[..3], found);
    assert_ne!(answers[3], LookupAnswer::Present(Pba(13)));
}

/// Increments for which there is no room do not keep out the releases that make room.
#[test]
fn a_release_is_executed_although_increments_that_wait_with_it_find_no_room() {
    let owner = owner();
    owner.ask(&request(1, increment(1, contents().take(1), 10)));
    let secured = owner.ask(&request(1, IndexRequestBody::Secure(vec![1])));
    assert_eq!(secured, IndexReplyBody::Secured);
    let full = owner.served.index().bytes_on_disk().unwrap();
    owner.engine.set_capacity(Part::Index, Some(full));
    let replies = Replies::default();
    for group in 2..17 {
        let items = contents().skip(group as usize * 1000).take(1000);
        owner.send(
            &request(group, increment(1, items, group * 10_000)),
            &replies,
        );
    }
    let release = IndexRequestBody::Batch {
        number: 2,
        operation: IndexOperation::Decrement,
        items: vec![IndexItem {
            position: 0,
            fingerprint: contents().next().unwrap(),
            pba: Pba(10),
        }],
    };
    let released = Replies::default();
    owner.send(&request(1, release), &released);
    owner.served.work();
    let answers = vec![PositionedAnswer {
        position: 0,
        answer: IndexAnswer::Zero,
    }];
    let has_more = false;
    let expected = IndexReplyBody::Answers { answers, has_more };
    assert_eq!(*released.lock().unwrap(), [expected]);
    let replies = replies.lock().unwrap();
    let refused = replies.iter().filter_map(code);
    assert!(refused.clone().count() > 0);
    assert!(refused.into_iter().all(|code| code == RefusalCode::NoRoom));
}

/// The answer to one item that another group has published as block 10, and what a lookup finds.
fn met_by_another(owner: &Owner, number: u64) -> (IndexAnswer, LookupAnswer) {
    let answered = owner.ask(&request(2, increment(number, contents().take(1), 20)));
    let IndexReplyBody::Answers { answers, .. } = answered else {
        panic!("{answered:?}");
    };
    let looked_up = owner.ask(&request(
        2,
        IndexRequestBody::Lookup(contents().take(1).collect()),
    ));
    let IndexReplyBody::LookedUp(found) = looked_up else {
        panic!("{looked_up:?}");
    };
    (answers[0].answer, found[0])
}

#[test]
fn a_marked_block_is_absent_for_lookups_and_bad_for_batches_until_the_mark_is_taken_off() {
    let mark = |is_bad, blocks: &[u64]| IndexRequestBody::Mark {
        is_bad,
        blocks: blocks.iter().copied().map(Pba).collect(),
    };
    let good = (IndexAnswer::Shared(Pba(10)), LookupAnswer::Present(Pba(10)));
    let bad = (IndexAnswer::SharedBad(Pba(10)), LookupAnswer::Absent);
    let mut owner = owner();
    owner.ask(&request(1, increment(1, contents().take(1), 10)));
    assert_eq!(met_by_another(&owner, 1), good);
    let marked = owner.ask(&request(1, mark(true, &[7, 10])));
    assert_eq!(marked, IndexReplyBody::Marked);
    assert_eq!(met_by_another(&owner, 2), bad);
    assert_eq!(met_by_another(&owner, 2), bad, "a repeat");
    // The next owner knows the marks: from its log, and from a checkpoint.
    for number in [3, 4] {
        if number == 4 {
            owner.served.close().unwrap();
        }
        owner.engine.crash(CrashKind::PowerLoss);
        let worker = Worker::Woken(Box::new(|| {}));
        owner.served = Served::new(Arc::new(open(&owner.engine)), HERE, worker);
        assert_eq!(met_by_another(&owner, number), bad);
    }
    owner.ask(&request(2, mark(false, &[10, 11])));
    assert_eq!(met_by_another(&owner, 5), good);

    let many: Vec<u64> = (100..100 + 8192).collect();
    let refused = owner.ask(&request(1, mark(true, &many)));
    assert_eq!(
        code(&refused),
        Some(RefusalCode::NoRoom),
        "with block 7 one too many"
    );
    owner.ask(&request(1, mark(false, &[7])));
    let marked = owner.ask(&request(1, mark(true, &many)));
    assert_eq!(marked, IndexReplyBody::Marked);
}

#[test]
fn a_shard_that_must_be_rebuilt_says_so_and_one_that_failed_too() {
    let owner = owner();
    let rows = IndexRequestBody::Rows {
        from: contents().next().unwrap(),
        max: 10,
    };
    let requests = [
        increment(1, contents().take(1), 10),
        IndexRequestBody::Recall {
            number: 1,
            operation: IndexOperation::Increment,
            is_sealing: false,
            from: 0,
        },
        IndexRequestBody::Lookup(contents().take(1).collect()),
        rows,
        IndexRequestBody::Secure(vec![10]),
    ];
    owner.served.index().begin_rebuild().unwrap();
    for body in requests.clone() {
        let refused = owner.ask(&request(1, body));
        assert_eq!(code(&refused), Some(RefusalCode::Unready), "{refused:?}");
    }
    let stream = onefold_index::StreamId(9);
    owner.served.index().finish_rebuild(stream, 0).unwrap();
    owner.engine.crash_after(1);
    for body in requests {
        let refused = owner.ask(&request(1, body));
        assert_eq!(code(&refused), Some(RefusalCode::Failed), "{refused:?}");
    }
}
