//! Hosts that own shards, and the messages to them. Everything runs on the caller's thread, so a seed replays.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use onefold_engine::cluster::{
    Answer, Answered, CallError, Cluster, Directory, Exchanged, ExtentCounts, Holding, Owned,
    TakeError, TakeOptions,
};
use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::{GivenRun, GroupId, Pba, PoolId, Shard};
use onefold_index::hash::{self, HashIndex, Shape};
use onefold_index::served::{Served, ServedShard, Worker};
use onefold_index::shard::Positioned;
use onefold_index::sharded::Sharded;
use onefold_index::{Fingerprint, IndexError};

pub(crate) const POOL: PoolId = PoolId([9; 16]);

/// Segments of a few pages, so that merges and checkpoints happen.
pub(crate) const SHAPE: Shape = Shape {
    segment_rows: 600,
    rows_per_change: 4,
    changes_min: 4,
    changes_behind: 4000,
    log_pages: 16,
    log_bytes_min: 64 << 10,
    spare_pages: 16,
};

/// What may happen to a message, of a hundred each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u32,
    pub(crate) late: u32,
    pub(crate) reply_lost: u32,
    pub(crate) doubled: u32,
    /// The owner stops within its next I/Os.
    pub(crate) killed: u32,
}

/// The hosts of a pool.
pub(crate) struct Hosts {
    shards: Vec<Mutex<Owner>>,
    state: Mutex<State>,
}

struct State {
    random: fastrand::Rng,
    faults: Faults,
    late: Vec<(Shard, Vec<u8>)>,
    calls: Vec<(Shard, usize)>,
}

/// The owner of a shard, if it is alive, and its disk.
struct Owner {
    engine: SimulatedEngine,
    served: Option<Arc<Served>>,
    session: u64,
}

impl Hosts {
    pub(crate) fn new(shards: u16, seed: u64) -> Arc<Hosts> {
        let owner = |shard: u16| {
            let engine = SimulatedEngine::new(seed * 1024 + u64::from(shard));
            hash::create_shaped(&engine.create(Part::Index, 0).unwrap(), POOL, SHAPE).unwrap();
            Mutex::new(Owner {
                engine,
                served: None,
                session: 0,
            })
        };
        let hosts = Hosts {
            shards: (0..shards).map(owner).collect(),
            state: Mutex::new(State {
                random: fastrand::Rng::with_seed(seed),
                faults: Faults::default(),
                late: Vec::new(),
                calls: Vec::new(),
            }),
        };
        for shard in 0..shards {
            hosts.open(Shard(shard));
        }
        Arc::new(hosts)
    }

    pub(crate) fn group(self: &Arc<Hosts>, group: u64) -> Sharded {
        let cluster: Arc<dyn Cluster> = Arc::<Hosts>::clone(self);
        let (group, shards) = (GroupId(group), self.shards.len() as u16);
        Sharded::new(cluster, POOL, group, shards, Duration::from_secs(1)).unwrap()
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The shards that were called, with the bytes of the requests, since this was asked last.
    pub(crate) fn take_calls(&self) -> Vec<(Shard, usize)> {
        std::mem::take(&mut self.state().calls)
    }

    /// Makes a host the owner of a shard.
    pub(crate) fn open(&self, shard: Shard) {
        let mut owner = self.owner(shard);
        let index = loop {
            match try_open(&owner.engine) {
                Ok(index) => break index,
                // A stop that was planned before the owner was killed.
                Err(_) if owner.engine.is_crashed() => {
                    owner.engine = owner.engine.crash(CrashKind::PowerLoss);
                }
                Err(error) => panic!("{error}"),
            }
        };
        owner.session += 1;
        let place = ServedShard {
            pool: POOL,
            shard,
            shards: self.shards.len() as u16,
            session: owner.session,
        };
        // Messages wait until the test lets the owner work.
        let worker = Worker::Woken(Box::new(|| {}));
        owner.served = Some(Arc::new(Served::new(Arc::new(index), place, worker)));
    }

    /// Ends the owner of a shard, and what its disk had not made durable.
    pub(crate) fn kill(&self, shard: Shard, kind: CrashKind) {
        let mut owner = self.owner(shard);
        owner.served = None;
        owner.engine = owner.engine.crash(kind);
    }

    pub(crate) fn engine(&self, shard: Shard) -> SimulatedEngine {
        self.owner(shard).engine.clone()
    }

    pub(crate) fn served(&self, shard: Shard) -> Option<Arc<Served>> {
        self.owner(shard).served.clone()
    }

    /// Gives dead shards an owner, each with this probability in percent.
    pub(crate) fn revive(&self, percent: u32) {
        for shard in (0..self.shards.len() as u16).map(Shard) {
            let is_dead = self.served(shard).is_none();
            if is_dead && self.state().random.u32(..100) < percent {
                self.open(shard);
            }
        }
    }

    /// Delivers some of the messages that are late; their senders no longer wait.
    pub(crate) fn deliver_late(&self, all: bool) {
        loop {
            let message = {
                let mut state = self.state();
                let count = state.late.len();
                if count == 0 || !all && state.random.u32(..3) == 0 {
                    return;
                }
                let at = state.random.usize(..count);
                state.late.swap_remove(at)
            };
            let (shard, request) = message;
            if let Some(served) = self.served(shard) {
                served.answer(request, Box::new(drop));
                self.work(shard, &served);
            }
        }
    }

    /// Lets the owner work, which may end it.
    fn work(&self, shard: Shard, served: &Served) {
        let is_killed = {
            let mut state = self.state();
            let killed = state.faults.killed;
            (state.random.u32(..100) < killed).then(|| state.random.u64(1..6))
        };
        let engine = self.engine(shard);
        if let Some(ios) = is_killed {
            engine.crash_after(ios);
        }
        served.work();
        if engine.is_crashed() {
            let kind = if self.state().random.bool() {
                CrashKind::PowerLoss
            } else {
                CrashKind::ProcessKilled
            };
            self.kill(shard, kind);
        }
    }

    fn deliver(&self, shard: Shard, request: &[u8], times: usize) -> Result<Vec<u8>, CallError> {
        let served = self.served(shard).ok_or(CallError::Unserved)?;
        let replies = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..times {
            // Others may wait with it, or in between.
            let companion = {
                let mut state = self.state();
                let of_shard = state.late.iter().position(|late| late.0 == shard);
                of_shard
                    .filter(|_| state.random.u32(..8) == 0)
                    .map(|at| state.late.swap_remove(at).1)
            };
            if let Some(late) = companion {
                served.answer(late, Box::new(drop));
            }
            let replies = Arc::clone(&replies);
            let keep = move |reply| replies.lock().unwrap().push(reply);
            served.answer(request.to_vec(), Box::new(keep));
            if self.state().random.bool() {
                self.work(shard, &served);
            }
        }
        self.work(shard, &served);
        let mut replies = replies.lock().unwrap();
        let count = replies.len();
        if count == 0 {
            return Err(unknown());
        }
        let which = self.state().random.usize(..count);
        Ok(replies.swap_remove(which))
    }

    fn owner(&self, shard: Shard) -> MutexGuard<'_, Owner> {
        self.shards[usize::from(shard.0)].lock().unwrap()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn unknown() -> CallError {
    CallError::Unknown(io::Error::from(io::ErrorKind::TimedOut))
}

impl Cluster for Hosts {
    fn call(&self, what: Owned, request: Vec<u8>, _timeout: Duration, answered: Answered) {
        let Owned::Shard(shard) = what else {
            return answered(Err(CallError::Unserved));
        };
        let (faults, fate) = {
            let mut state = self.state();
            state.calls.push((shard, request.len()));
            (state.faults, state.random.u32(..100))
        };
        let lost = faults.lost;
        let late = lost + faults.late;
        let reply_lost = late + faults.reply_lost;
        let doubled = reply_lost + faults.doubled;
        let outcome = match fate {
            fate if fate < lost => Err(unknown()),
            fate if fate < late => {
                self.state().late.push((shard, request));
                Err(unknown())
            }
            fate if fate < reply_lost => {
                let _ = self.deliver(shard, &request, 1);
                Err(unknown())
            }
            fate if fate < doubled => self.deliver(shard, &request, 2),
            _ => self.deliver(shard, &request, 1),
        };
        answered(outcome);
    }

    fn create(&self, _what: Owned) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn take(&self, _what: Owned, _options: &TakeOptions) -> Result<Arc<dyn Holding>, TakeError> {
        Err(TakeError::Io(io::ErrorKind::Unsupported.into()))
    }

    fn remove(&self, _holding: Arc<dyn Holding>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn exchange(
        &self,
        _group: GroupId,
        _number: u64,
        _give: &[GivenRun],
        _take: u32,
    ) -> io::Result<Exchanged> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn last_exchange(&self, _group: GroupId) -> io::Result<Option<Exchanged>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn extent_counts(&self) -> io::Result<ExtentCounts> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn given_blocks(&self, _: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn directory(&self) -> &dyn Directory {
        unimplemented!("shards need no directory")
    }
}

/// The index of a shard on its disk.
pub(crate) fn open(engine: &SimulatedEngine) -> HashIndex {
    try_open(engine).unwrap()
}

fn try_open(engine: &SimulatedEngine) -> Result<HashIndex, IndexError> {
    hash::open_shaped(engine.open(Part::Index)?, POOL, 1 << 20, SHAPE)
}

/// The fingerprint of the `n`-th content.
pub(crate) fn fingerprint(n: u64) -> Fingerprint {
    Fingerprint(fastrand::Rng::with_seed(n).u128(..).to_le_bytes())
}

pub(crate) fn item(position: u16, content: u64, pba: u64) -> Positioned {
    Positioned {
        position,
        fingerprint: fingerprint(content),
        pba: Pba(pba),
    }
}
