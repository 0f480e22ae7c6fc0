//! Calls between simulated hosts, each of which ends once: lost, doubled, late ones, and owners that are gone.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::cluster::{Answer, CallError, Cluster, Holding, Owned, Reply, TakeOptions};
use onefold_engine::simulated::{
    ClusterRates, CrashKind, Op, SimulatedCluster, SimulatedHolding, When,
};
use onefold_engine::{Disk, Engine, Part};
use onefold_format::Shard;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Enough that an outcome of probability 1/50 fails to occur once in 10^8 changes of this code.
const SEEDS: u64 = 1000;

const SHARDS: [Owned; 2] = [Owned::Shard(Shard(0)), Owned::Shard(Shard(1))];

const OPTIONS: TakeOptions = TakeOptions {
    patience: Duration::ZERO,
    asks: false,
    fence_interval: Duration::ZERO,
};

fn pool(seed: u64) -> SimulatedCluster {
    let pool = SimulatedCluster::new(seed);
    for shard in SHARDS {
        pool.host(0).create(shard).unwrap();
    }
    pool
}

fn take(pool: &SimulatedCluster, n: usize, shard: usize) -> Arc<SimulatedHolding> {
    pool.host(n)
        .take_simulated(SHARDS[shard], &OPTIONS)
        .unwrap()
}

/// Counts requests, and replies with what it is told.
#[derive(Default)]
struct Owner {
    requests: Mutex<Vec<Vec<u8>>>,
    /// Replies that were not sent, if the owner keeps them.
    kept: Mutex<Vec<Reply>>,
    keeps: bool,
}

impl Owner {
    fn serve(holding: &SimulatedHolding, keeps: bool) -> Arc<Owner> {
        let owner = Arc::new(Owner {
            keeps,
            ..Owner::default()
        });
        holding
            .serve(Arc::clone(&owner) as Arc<dyn Answer>)
            .unwrap();
        owner
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn reply_all(&self) {
        for reply in std::mem::take(&mut *self.kept.lock().unwrap()) {
            reply(b"kept".to_vec());
        }
    }
}

impl Answer for Owner {
    fn answer(&self, request: Vec<u8>, reply: Reply) {
        self.requests.lock().unwrap().push(request);
        if self.keeps {
            self.kept.lock().unwrap().push(reply);
        } else {
            reply(b"done".to_vec());
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    Replied(Vec<u8>),
    Unserved,
    Unknown,
}

/// The outcomes of a call so far, of which there must be at most one.
type Outcomes = Arc<Mutex<Vec<Ended>>>;

fn call(pool: &SimulatedCluster, n: usize) -> Outcomes {
    let outcomes = Outcomes::default();
    let ended = Arc::clone(&outcomes);
    let answered = Box::new(move |outcome| {
        ended.lock().unwrap().push(match outcome {
            Ok(reply) => Ended::Replied(reply),
            Err(CallError::Unserved) => Ended::Unserved,
            Err(CallError::Unknown(_)) => Ended::Unknown,
        });
    });
    pool.host(n).call(
        Owned::Shard(Shard(0)),
        b"asked".to_vec(),
        Duration::from_secs(5),
        answered,
    );
    outcomes
}

fn only(outcomes: &Outcomes) -> Ended {
    let outcomes = outcomes.lock().unwrap();
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    outcomes[0].clone()
}

fn replied(bytes: &[u8]) -> Ended {
    Ended::Replied(bytes.to_vec())
}

fn rates(set: impl FnOnce(&mut ClusterRates)) -> ClusterRates {
    let mut rates = ClusterRates::default();
    set(&mut rates);
    rates
}

/// The outcome of a call with a fault, how often it was answered by then, and after all kept requests have arrived.
fn with_fault(set: impl FnOnce(&mut ClusterRates)) -> (Ended, usize, usize) {
    let pool = pool(1);
    let holding = take(&pool, 0, 0);
    let owner = Owner::serve(&holding, false);
    pool.set_rates(rates(set));
    let outcome = only(&call(&pool, 1));
    let count = owner.count();
    while pool.deliver_late_call() {}
    assert_eq!(pool.calls_kept(), 0);
    (outcome, count, owner.count())
}

#[test]
fn a_call_is_lost_doubled_or_late() {
    assert_eq!(with_fault(|_| {}), (replied(b"done"), 1, 1));
    let lost = with_fault(|rates| rates.request_lost = 1.0);
    assert_eq!(lost, (Ended::Unknown, 0, 0));
    let unanswered = with_fault(|rates| rates.reply_lost = 1.0);
    assert_eq!(unanswered, (Ended::Unknown, 1, 1));
    let doubled = with_fault(|rates| rates.call_doubled = 1.0);
    assert_eq!(doubled, (replied(b"done"), 1, 2));
    let late = with_fault(|rates| rates.call_delayed = 1.0);
    assert_eq!(late, (Ended::Unknown, 0, 1));
}

#[test]
fn a_late_call_arrives_in_an_io_of_any_host_also_after_its_callers_death() {
    let pool = pool(1);
    let (holding, other) = (take(&pool, 0, 0), take(&pool, 2, 1));
    let owner = Owner::serve(&holding, false);
    pool.set_rates(rates(|rates| rates.call_delayed = 1.0));
    assert_eq!(only(&call(&pool, 1)), Ended::Unknown);
    pool.kill(1, CrashKind::PowerLoss);
    let disk = other.create(Part::Index, 0).unwrap();
    assert_eq!((owner.count(), pool.calls_kept()), (0, 1));
    pool.set_rates(rates(|rates| rates.call_delivered = 1.0));
    disk.sync().unwrap();
    assert_eq!((owner.count(), pool.counts().calls_late), (1, 1));
}

#[test]
fn a_late_call_reaches_the_owner_of_that_moment_or_is_dropped() {
    let pool = pool(1);
    let holding = take(&pool, 0, 0);
    let first = Owner::serve(&holding, false);
    pool.set_rates(rates(|rates| rates.call_delayed = 1.0));
    for _ in 0..2 {
        assert_eq!(only(&call(&pool, 1)), Ended::Unknown);
    }
    pool.kill(0, CrashKind::PowerLoss);
    let holding = take(&pool, 1, 0);
    let second = Owner::serve(&holding, false);
    assert!(pool.deliver_late_call());
    assert_eq!((first.count(), second.count()), (0, 1));
    drop(holding);
    assert!(pool.deliver_late_call() && !pool.deliver_late_call());
    assert_eq!((second.count(), pool.counts().calls_dropped), (1, 1));
}

#[test]
fn a_call_to_an_owner_that_is_away_has_no_reply() {
    let (mut dead, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let holding = take(&pool, 0, 0);
        let owner = Owner::serve(&holding, false);
        match seed % 3 {
            0 => pool.kill(0, CrashKind::ProcessKilled),
            1 => pool.freeze(0),
            _ => pool.cut(0),
        }
        let outcome = only(&call(&pool, 1));
        if seed % 3 == 0 {
            dead.insert(outcome);
        } else {
            silent.insert((outcome, pool.calls_kept()));
        }
        assert_eq!(owner.count(), 0);
        // A caller that is cut off does not even know that.
        if seed % 3 == 2 {
            assert_eq!(only(&call(&pool, 0)), Ended::Unknown);
        }
    }
    assert_eq!(dead, BTreeSet::from([Ended::Unserved, Ended::Unknown]));
    let expected = [(Ended::Unknown, 0), (Ended::Unknown, 1)];
    assert_eq!(silent, BTreeSet::from(expected));
}

#[test]
fn a_kept_reply_ends_its_call_once() {
    let pool = pool(1);
    let holding = take(&pool, 0, 0);
    let owner = Owner::serve(&holding, true);
    let outcomes = call(&pool, 1);
    assert!(outcomes.lock().unwrap().is_empty());
    owner.reply_all();
    assert_eq!(only(&outcomes), replied(b"kept"));
    let outcomes = call(&pool, 1);
    owner.kept.lock().unwrap().clear();
    assert_eq!(only(&outcomes), Ended::Unknown);
    let outcomes = call(&pool, 1);
    pool.time_out_calls();
    assert_eq!(only(&outcomes), Ended::Unknown);
    owner.reply_all();
    assert_eq!(only(&outcomes), Ended::Unknown);
    // A doubled request needs no second reply.
    pool.set_rates(rates(|rates| rates.call_doubled = 1.0));
    let outcomes = call(&pool, 1);
    assert!(pool.deliver_late_call());
    owner.kept.lock().unwrap().pop().unwrap()(Vec::new());
    assert!(outcomes.lock().unwrap().is_empty());
    owner.reply_all();
    assert_eq!(only(&outcomes), replied(b"kept"));
    let counts = pool.counts();
    assert_eq!((counts.calls, counts.calls_unknown), (4, 2));
    assert_eq!((counts.request_bytes, counts.reply_bytes), (4 * 5, 2 * 4));
}

#[test]
fn a_former_owner_replies_to_no_call() {
    for way in 0..4 {
        let pool = pool(1);
        let holding = take(&pool, 0, 0);
        let owner = Owner::serve(&holding, true);
        let outcomes = call(&pool, 1);
        match way {
            0 => drop(holding),
            1 => pool.kill(0, CrashKind::ProcessKilled),
            2 => pool.cut(0),
            _ => {
                pool.freeze(0);
                let _taken = take(&pool, 2, 0);
                pool.wake(0);
            }
        }
        owner.reply_all();
        assert_eq!(only(&outcomes), Ended::Unknown);
    }
}

/// Answers after it wrote to its part and asked the other shard.
struct Busy {
    pool: SimulatedCluster,
    disk: Arc<dyn Disk>,
}

impl Answer for Busy {
    fn answer(&self, request: Vec<u8>, reply: Reply) {
        self.disk.write_at(&request, 0).unwrap();
        let answered = Box::new(move |outcome: Result<Vec<u8>, CallError>| {
            reply(outcome.unwrap());
        });
        self.pool
            .host(0)
            .call(Owned::Shard(Shard(1)), request, Duration::ZERO, answered);
    }
}

#[test]
fn an_owners_code_does_ios_and_calls_inside_an_io_of_another_host() {
    let pool = pool(1);
    let (first, second) = (take(&pool, 0, 0), take(&pool, 1, 1));
    let disk = first.create(Part::Index, 4096).unwrap();
    let busy = Busy {
        pool: pool.clone(),
        disk,
    };
    first.serve(Arc::new(busy)).unwrap();
    let other = Owner::serve(&second, false);
    let index = second.create(Part::Index, 4096).unwrap();
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    for when in [When::Before, When::After] {
        let (world, outcomes) = (pool.clone(), Arc::clone(&outcomes));
        let hook = move || outcomes.lock().unwrap().push(only(&call(&world, 1)));
        let engine = second.engine();
        engine.on_next_io(Part::Index, Op::Sync, when, Box::new(hook));
    }
    index.sync().unwrap();
    assert_eq!(
        *outcomes.lock().unwrap(),
        [replied(b"done"), replied(b"done")]
    );
    assert_eq!(other.count(), 2);
    assert_eq!(first.engine().read_raw(Part::Index, 0, 5), b"asked");
}

#[test]
fn an_owner_that_dies_as_it_answers_leaves_its_caller_without_an_outcome() {
    let pool = pool(1);
    let (first, second) = (take(&pool, 0, 0), take(&pool, 1, 1));
    let _other = Owner::serve(&second, false);
    struct Dying(SimulatedCluster);
    impl Answer for Dying {
        fn answer(&self, _request: Vec<u8>, reply: Reply) {
            self.0.kill(0, CrashKind::ProcessKilled);
            reply(b"too late".to_vec());
        }
    }
    first.serve(Arc::new(Dying(pool.clone()))).unwrap();
    assert_eq!(only(&call(&pool, 1)), Ended::Unknown);
}

#[test]
fn a_caller_that_dies_in_its_call_has_sent_it_or_not() {
    let mut sent = BTreeSet::new();
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let holding = take(&pool, 0, 0);
        let owner = Owner::serve(&holding, false);
        let _ = pool.host(1);
        pool.kill_after(1, 1);
        let outcomes = call(&pool, 1);
        assert!(pool.is_dead(1));
        assert_eq!(only(&outcomes), Ended::Unknown);
        while pool.deliver_late_call() {}
        sent.insert(owner.count());
    }
    assert_eq!(sent, BTreeSet::from([0, 1]));
}

#[test]
fn with_all_faults_every_call_ends_once() {
    for seed in 0..SEEDS {
        let pool = pool(seed);
        let holding = take(&pool, 0, 0);
        let owner = Owner::serve(&holding, seed % 2 == 0);
        pool.set_rates(ClusterRates {
            request_lost: 0.2,
            reply_lost: 0.2,
            call_doubled: 0.2,
            call_delayed: 0.2,
            call_delivered: 0.2,
            host_dies: 0.05,
            ..ClusterRates::default()
        });
        let calls: Vec<Outcomes> = (0..20).map(|n| call(&pool, n % 3)).collect();
        owner.reply_all();
        let outcomes: Vec<Ended> = calls.iter().map(only).collect();
        let counts = pool.counts();
        let of =
            |ended: fn(&Ended) -> bool| outcomes.iter().filter(|one| ended(one)).count() as u64;
        assert_eq!(counts.calls_unserved, of(|one| *one == Ended::Unserved));
        assert_eq!(counts.calls_unknown, of(|one| *one == Ended::Unknown));
    }
}
