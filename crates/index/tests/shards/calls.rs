//! Calls of a store to all shards.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use onefold_engine::Blocking;
use onefold_engine::cluster::{
    Answered, Cluster, Directory, Exchanged, ExtentCounts, Holding, Owned, TakeError, TakeOptions,
};
use onefold_engine::simulated::CrashKind;
use onefold_format::index_message::{INDEX_MESSAGE_BYTES_MAX, IndexOperation, shard_of};
use onefold_format::{GivenRun, GroupId, Pba, Shard};
use onefold_index::shard::{AnswerAt, Positioned};
use onefold_index::sharded::{Recalled, Sharded};
use onefold_index::{
    Counted, Fingerprint, FingerprintIndex, IndexError, IndexReader, LookedUp, Released, StreamId,
};

use crate::hosts::{Faults, Hosts, POOL, fingerprint, item};

fn items(count: u16) -> Vec<Positioned> {
    let item = |n: u16| item(n, n.into(), 1 + u64::from(n));
    (0..count).map(item).collect()
}

fn answers<A: Copy>(answers: &[AnswerAt<A>]) -> Vec<A> {
    let positions = answers.iter().map(|at| usize::from(at.position));
    assert!(positions.eq(0..answers.len()));
    answers.iter().map(|at| at.answer).collect()
}

#[test]
fn equal_contents_of_two_stores_meet() {
    let hosts = Hosts::new(4, 1);
    let (one, other) = (hosts.group(1), hosts.group(2));
    let counted = one.increment(1, &items(100)).unwrap();
    assert_eq!(answers(&counted), vec![Counted::Inserted; 100]);
    let calls = hosts.take_calls();
    let called: Vec<u16> = calls.iter().map(|(shard, _)| shard.0).collect();
    assert_eq!(called, [0, 1, 2, 3]);
    let moved: Vec<Positioned> = items(100)
        .iter()
        .map(|item| Positioned {
            pba: item.pba + 1000,
            ..*item
        })
        .collect();
    let counted = other.increment(7, &moved).unwrap();
    let expected: Vec<_> = items(100)
        .iter()
        .map(|item| Counted::Shared(item.pba))
        .collect();
    assert_eq!(answers(&counted), expected);
    let counted = one.count_existing(2, &items(3)).unwrap();
    assert_eq!(answers(&counted), vec![Counted::Inserted; 3]);
    let released = other.decrement(8, &moved).unwrap();
    assert_eq!(answers(&released), vec![Released::Mismatch; 100]);
    let released = other.decrement(9, &items(100)).unwrap();
    assert_eq!(answers(&released), vec![Released::Remaining; 100]);
    let counts = one.counts();
    assert_eq!(
        (counts.unique, counts.shared, counts.references),
        (97, 3, 103)
    );
    assert_eq!(one.increment(3, &[]).unwrap(), []);
}

#[test]
fn rows_come_in_order_over_all_shards_and_lookups_in_the_order_asked() {
    let hosts = Hosts::new(8, 2);
    let group = hosts.group(1);
    group.increment(1, &items(500)).unwrap();
    let expected: BTreeMap<Fingerprint, Pba> = items(500)
        .iter()
        .map(|item| (item.fingerprint, item.pba))
        .collect();
    let mut rows = BTreeMap::new();
    let mut from = Some(Fingerprint::default());
    while let Some(first) = from {
        let page = group.rows(first, 37).unwrap();
        assert!(page.len() == 37 || rows.len() + page.len() == 500);
        assert!(page.is_sorted_by(|one, next| one.0 < next.0));
        from = page.last().and_then(|(last, _)| last.successor());
        rows.extend(
            page.iter()
                .map(|(fingerprint, row)| (*fingerprint, row.pba)),
        );
    }
    assert_eq!(rows, expected);
    let asked: Vec<Fingerprint> = (0..600).rev().map(fingerprint).collect();
    let found = group.lookup(&asked, Blocking::Yes).unwrap();
    for (fingerprint, answer) in asked.iter().zip(found) {
        assert_eq!(answer.pba(), expected.get(fingerprint).copied());
    }
    let refused = group.lookup(&asked, Blocking::No);
    assert!(matches!(refused, Err(IndexError::WouldBlock)));
}

#[test]
fn a_large_batch_is_cut_and_recalled_in_pages() {
    let hosts = Hosts::new(1, 3);
    let (one, other) = (hosts.group(1), hosts.group(2));
    one.secure(&[16_384, 16_384]).unwrap();
    hosts.take_calls();
    one.increment(1, &items(16_384)).unwrap();
    let calls = hosts.take_calls();
    assert_eq!(calls.len(), 6);
    assert!(
        calls
            .iter()
            .all(|(_, bytes)| *bytes <= INDEX_MESSAGE_BYTES_MAX)
    );
    let moved: Vec<Positioned> = items(16_384)
        .iter()
        .map(|item| Positioned {
            pba: item.pba + (1 << 39),
            ..*item
        })
        .collect();
    let counted = other.increment(1, &moved).unwrap();
    hosts.take_calls();
    let recalled = other.recall(1, IndexOperation::Increment, true).unwrap();
    assert_eq!(recalled, Recalled::Counted(counted));
    assert_eq!(hosts.take_calls().len(), 3);
    let late = other.increment(1, &[item(16_384, 0, 1)]);
    assert!(matches!(late, Err(IndexError::Sealed { .. })));
    let looked_up: Vec<Fingerprint> = (0..16_384).map(fingerprint).collect();
    let found = one.lookup(&looked_up, Blocking::Yes).unwrap();
    assert!(found.iter().all(|found| found.pba().is_some()));
    let rows = one.rows(Fingerprint::default(), 16_384).unwrap();
    assert_eq!(rows.len(), 16_384);
    assert!(rows.iter().all(|(_, row)| row.references == 2));
}

#[test]
fn a_shard_that_is_away_delays_its_own_items_only() {
    let hosts = Hosts::new(4, 4);
    let group = hosts.group(1);
    hosts.kill(Shard(1), CrashKind::PowerLoss);
    let all = items(40);
    let of_shard = |shard: u16| {
        let here = move |item: &&Positioned| shard_of(&item.fingerprint.0, 4) == Shard(shard);
        all.iter().filter(here).count()
    };
    match group.increment(1, &all) {
        Err(IndexError::Away { shards, reason }) => {
            assert_eq!(
                (&shards[..], &*reason),
                (&[Shard(1)][..], "no host serves it")
            );
        }
        other => panic!("{other:?}"),
    }
    // Without an owner there is nobody to ask again.
    assert_eq!(hosts.take_calls().len(), 4);
    assert_eq!(group.counts().references as usize, 40 - of_shard(1));
    let recalled = group.recall(1, IndexOperation::Increment, false);
    assert!(matches!(recalled, Err(IndexError::Away { .. })));
    assert!(matches!(
        group.rows(Fingerprint::default(), 100),
        Err(IndexError::Away { .. })
    ));
    hosts.open(Shard(1));
    let recalled = group.recall(1, IndexOperation::Increment, false).unwrap();
    let Recalled::Counted(recalled) = recalled else {
        panic!("{recalled:?}");
    };
    assert_eq!(recalled.len(), 40 - of_shard(1));
    let counted = group.increment(1, &all).unwrap();
    assert_eq!(answers(&counted), vec![Counted::Inserted; 40]);
    assert_eq!(group.counts().references, 40);
}

#[test]
fn a_lost_message_is_repeated_once() {
    let hosts = Hosts::new(1, 5);
    let group = hosts.group(1);
    hosts.set_faults(Faults {
        reply_lost: 100,
        ..Faults::default()
    });
    let away = group.increment(1, &items(1));
    assert!(matches!(away, Err(IndexError::Away { .. })));
    assert_eq!(hosts.take_calls().len(), 2);
    hosts.set_faults(Faults::default());
    assert_eq!(
        answers(&group.increment(1, &items(1)).unwrap()),
        [Counted::Inserted]
    );
    assert_eq!(group.counts().references, 1);
}

#[test]
fn refusals_come_back_as_the_errors_that_they_were() {
    let hosts = Hosts::new(2, 6);
    let group = hosts.group(1);
    group.increment(5, &items(20)).unwrap();
    let stale = group.increment(4, &items(20));
    assert!(matches!(
        stale,
        Err(IndexError::Stale {
            last: 5,
            number: 4,
            ..
        })
    ));
    let bad = group.increment(6, &[item(0, 1, 1 << 40)]);
    assert!(matches!(bad, Err(IndexError::BadBlock(_))));
    assert!(!group.needs_rebuild());
    let served = hosts.served(Shard(0)).unwrap();
    served.index().begin_rebuild().unwrap();
    let unready = group.increment(6, &items(20));
    assert!(matches!(unready, Err(IndexError::Unready(_))));
    assert!(group.needs_rebuild());
    served.index().finish_rebuild(StreamId(1), 6).unwrap();
    let forgotten = group.recall(6, IndexOperation::Increment, false);
    assert!(matches!(
        forgotten,
        Err(IndexError::Forgotten { number: 6, .. })
    ));
    group.increment(7, &items(20)).unwrap();
    assert!(!group.needs_rebuild());
    let cluster: Arc<dyn Cluster> = hosts;
    for shards in [0, 3, 2048] {
        let timeout = Duration::from_secs(1);
        let refused = Sharded::new(Arc::clone(&cluster), POOL, GroupId(1), shards, timeout);
        assert!(refused.is_err());
    }
    let timeout = Duration::from_secs(1);
    let other = Sharded::new(cluster, POOL, GroupId(1), 1, timeout).unwrap();
    let refused = other.increment(8, &items(1)).unwrap_err();
    let expected = "shard 0 of the fingerprint index refused a request: this is shard 0 of 2";
    assert_eq!(refused.to_string(), expected);
}

/// Calls that are carried out on another thread.
struct Threaded {
    hosts: Arc<Hosts>,
    calls: Sender<(Owned, Vec<u8>, Answered)>,
}

impl Cluster for Threaded {
    fn call(&self, what: Owned, request: Vec<u8>, _timeout: Duration, answered: Answered) {
        self.calls.send((what, request, answered)).unwrap();
    }

    fn create(&self, what: Owned) -> std::io::Result<()> {
        self.hosts.create(what)
    }

    fn take(&self, what: Owned, options: &TakeOptions) -> Result<Arc<dyn Holding>, TakeError> {
        self.hosts.take(what, options)
    }

    fn remove(&self, holding: Arc<dyn Holding>) -> std::io::Result<()> {
        self.hosts.remove(holding)
    }

    fn exchange(
        &self,
        group: GroupId,
        number: u64,
        give: &[GivenRun],
        take: u32,
    ) -> std::io::Result<Exchanged> {
        self.hosts.exchange(group, number, give, take)
    }

    fn last_exchange(&self, group: GroupId) -> std::io::Result<Option<Exchanged>> {
        self.hosts.last_exchange(group)
    }

    fn extent_counts(&self) -> std::io::Result<ExtentCounts> {
        self.hosts.extent_counts()
    }

    fn given_blocks(&self, blocks: Range<u64>) -> std::io::Result<Vec<Range<u64>>> {
        self.hosts.given_blocks(blocks)
    }

    fn directory(&self) -> &dyn Directory {
        self.hosts.directory()
    }
}

#[test]
fn calls_that_other_threads_answer_are_waited_for() {
    let hosts = Hosts::new(4, 7);
    let (calls, waiting) = channel::<(Owned, Vec<u8>, Answered)>();
    let owner = std::thread::spawn({
        let hosts = Arc::clone(&hosts);
        move || {
            // The first call is dropped without an answer.
            let mut dropped = waiting.recv().ok();
            for (what, request, answered) in &waiting {
                drop(dropped.take());
                hosts.call(what, request, Duration::ZERO, answered);
            }
        }
    });
    let cluster: Arc<dyn Cluster> = Arc::new(Threaded { hosts, calls });
    let group = Sharded::new(cluster, POOL, GroupId(1), 4, Duration::from_secs(1)).unwrap();
    let counted = group.increment(1, &items(64)).unwrap();
    assert_eq!(answers(&counted), vec![Counted::Inserted; 64]);
    let found = group.lookup(&[fingerprint(5)], Blocking::Yes).unwrap();
    assert_eq!(found[0], LookedUp::Present(Pba(6)));
    drop(group);
    owner.join().unwrap();
}
