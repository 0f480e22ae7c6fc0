//! Hosts and OSDs fail in turn while guests, finders and collectors work.
//!
//! # A turn
//! 1. Guests of all hosts write, zero, trim and read, with flushes in between. Every second volume finds its duplicates in
//!    line.
//! 2. Something fails, or a host checks the pool ([`Event`]); in some turns an OSD is killed at the same time. Guests of other hosts continue: none
//!    of their requests may fail, and they must get answers after the failure. If a shard of the index is lost, guests of all hosts
//!    continue, also while a host rebuilds the index.
//! 3. The volumes of a host that failed are served again: by the same host, which must find every answered request, or
//!    by another one, which must find every flushed one.
//! 4. Every byte of every volume is compared.
//!
//! After some turns the pool must hold each distinct block exactly once, and in the end, when the volumes are deleted,
//! none at all.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onefold_harness::ceph::{Cluster, OSDS, Osd};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::last_lines;
use onefold_harness::pools::Pools;
use onefold_harness::workspace::Workspace;
use rustix::process::Signal;

use super::exact::move_all;
use super::hosts::{Host, Hosts, PATIENCE, SHARDS};
use super::join_all;
use crate::answered::{Kept, Round, Volume};

const HOSTS: usize = 3;

/// Volumes that each host has at first, each in a group of its own.
const VOLUMES_EACH: usize = 2;

const VOLUME_BYTES: u64 = 8 << 20;

/// Connections to each volume.
const CONNECTIONS: usize = 2;

/// Something fails after a number of answers in this range, to the guest that it concerns.
const ANSWERS: std::ops::Range<u64> = 20..400;

/// Answers that every other guest must get after the failure.
const ANSWERS_AFTER: u64 = 20;

/// How long these answers may take. An OSD that is frozen is noticed after 8 s.
const ANSWERS_LIMIT: Duration = Duration::from_secs(120);

/// How long a host that was woken may take to end.
const END_LIMIT: Duration = Duration::from_secs(60);

/// The pool is counted after every turn of this number.
const COUNT_EACH: usize = 4;

const BLOCK_BYTES: usize = 4096;

/// A failure, or work on the whole pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// An OSD is killed and started again.
    OsdKilled,
    /// An OSD is frozen for longer than the other OSDs wait for it.
    OsdFrozen,
    /// A host is killed and started again.
    HostKilled,
    /// A host is killed, and others take its groups.
    HostReplaced,
    /// A host is frozen, others take its groups, and it is woken.
    HostFrozen,
    /// Another host asks for a group.
    GroupTaken,
    /// A host checks the pool, and finds nothing.
    PoolChecked,
    /// The objects of a shard of the index are removed, and a host rebuilds the index.
    ShardLost,
}

/// The events of a run, in turn.
const EVENTS: [Event; 8] = [
    Event::HostReplaced,
    Event::OsdKilled,
    Event::PoolChecked,
    Event::HostFrozen,
    Event::ShardLost,
    Event::GroupTaken,
    Event::HostKilled,
    Event::OsdFrozen,
];

/// A volume under load, the host that serves it, and its group.
struct Guest {
    volume: Volume,
    host: usize,
    group: u64,
}

/// A run.
struct Chaos<'a> {
    cluster: &'a Cluster,
    hosts: Hosts,
    guests: Vec<Guest>,
    random: fastrand::Rng,
}

pub(super) fn check(
    workspace: &Workspace,
    pools: &Pools,
    duration: Duration,
    seed: u64,
) -> Result<()> {
    let mut chaos = Chaos::begin(workspace, pools, seed)?;
    let start = Instant::now();
    let (mut turns, mut answered, mut blocks, mut hits) = (0, 0, 0, 0);
    while start.elapsed() < duration || turns < EVENTS.len() {
        let event = EVENTS[turns % EVENTS.len()];
        answered += chaos.turn(event).with_context(|| {
            format!(
                "turn {turns}, {event:?}, and the hosts said\n{}",
                chaos.said()
            )
        })?;
        hits = chaos.hits()?.max(hits);
        turns += 1;
        if turns % COUNT_EACH == 0 {
            blocks = chaos
                .count()
                .with_context(|| format!("after turn {turns}"))?;
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("  {seconds:6.1} s  turn {turns}: {event:?}");
    }
    chaos.finish()?;
    ensure!(hits > 0, "no write in line has found its content");
    println!(
        "{turns} turns in {:.0} s: each of {answered} answered requests was found, and at the last count each of \
         {blocks} distinct blocks was stored once; at least {hits} blocks were found in line",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Shows that the comparison after a turn notices lost writes: all data objects get back what they had before a turn.
pub(super) fn control(workspace: &Workspace, pools: &Pools) -> Result<()> {
    let mut chaos = Chaos::begin(workspace, pools, 1)?;
    chaos.turn(Event::PoolChecked)?;
    let kept = Scratch::new(&workspace.scratch_parent(), "older")?;
    chaos.hosts.keep_data(kept.path())?;
    chaos.turn(Event::PoolChecked)?;
    chaos.hosts.put_data_back(kept.path())?;
    let different = chaos.guests.iter().filter(|guest| {
        let compared = guest.volume.compare(Kept::Answered);
        compared.is_err()
    });
    let different = different.count();
    ensure!(
        different > 0,
        "older data was put back, and no volume differs"
    );
    println!(
        "older data was put back: {different} of {} volumes differ",
        chaos.guests.len()
    );
    chaos.hosts.stop()
}

impl<'a> Chaos<'a> {
    /// Starts hosts with volumes.
    fn begin(workspace: &Workspace, pools: &'a Pools, seed: u64) -> Result<Self> {
        let cluster = pools.ceph().context("the pool is not in Ceph")?;
        let mut chaos = Chaos {
            cluster: cluster.must_be_throw_away()?,
            hosts: Hosts::start(workspace, pools, "8G", HOSTS, &PATIENCE)?,
            guests: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
        };
        chaos.create_volumes()?;
        Ok(chaos)
    }

    fn create_volumes(&mut self) -> Result<()> {
        for n in 0..HOSTS * VOLUMES_EACH {
            let (host, name) = (n % HOSTS, format!("v{n}"));
            let on = &self.hosts.hosts[host];
            let size = VOLUME_BYTES.to_string();
            let create = ["volume", "create", &name, "--size", &size];
            let eager = ["--interval", "1", "--cold-passes", "1"];
            let dedup = ["--dedup", if n % 2 == 0 { "offline" } else { "inline" }];
            on.run(&[&create[..], &eager, &dedup].concat())?;
            let groups = on.groups()?;
            let group = groups.iter().find(|group| group.volumes.contains(&name));
            self.guests.push(Guest {
                volume: Volume::new(&name, VOLUME_BYTES, &[on.uri(&name)])?,
                host,
                group: group.context("the new volume has no group")?.number,
            });
        }
        Ok(())
    }

    fn said(&self) -> String {
        self.hosts.hosts.iter().map(Host::said).collect()
    }

    /// One turn. Returns the number of answered requests.
    fn turn(&mut self, event: Event) -> Result<u64> {
        let flushes_per_mille = *self.random.choice(&[0, 20, 100]).unwrap_or(&20);
        let rounds: Vec<Round> = self
            .guests
            .iter()
            .map(|_| Round::new(flushes_per_mille))
            .collect();
        let guest = self.random.usize(..self.guests.len());
        let answers = self.random.u64(ANSWERS);
        let osd = self.cluster.osd(self.random.u32(..OSDS))?;
        let failing = Failing {
            event,
            rounds: &rounds,
            of_host: self.guests.iter().map(|guest| guest.host).collect(),
            groups: self.guests.iter().map(|guest| guest.group).collect(),
            guest,
            host: self.guests[guest].host,
            shard: 1 + self.random.u16(..SHARDS - 1),
            osd,
            osd_fails: self.random.u8(..3) == 0,
        };
        let loads: Vec<_> = self
            .guests
            .iter()
            .zip(&rounds)
            .flat_map(|(guest, round)| {
                (0..CONNECTIONS).map(move |connection| (&guest.volume, round, connection))
            })
            .map(|(volume, round, connection)| (volume, round, connection, self.random.fork()))
            .collect();
        let hosts = &mut self.hosts;
        let moved = std::thread::scope(|scope| {
            let threads: Vec<_> = loads
                .into_iter()
                .map(|(volume, round, connection, random)| {
                    scope.spawn(move || round.judge(volume.load(round, connection, random)))
                })
                .collect();
            let happened = rounds[guest]
                .wait_for_answers(answers)
                .and_then(|()| failing.happen(hosts));
            let continued = happened.and_then(|moved| {
                rounds
                    .iter()
                    .filter(|round| !round.is_over())
                    .try_for_each(wait_for_more)?;
                Ok(moved)
            });
            for round in &rounds {
                round.is_over.store(true, Ordering::SeqCst);
            }
            join_all(threads).and(continued)
        })?;
        self.cluster.wait_until_clean()?;
        for (guest, to, kept) in moved {
            let Guest { volume, host, .. } = &mut self.guests[guest];
            *host = to;
            volume.move_to(&[self.hosts.hosts[to].uri(&volume.name)])?;
            volume.compare(kept).context("after it was served again")?;
        }
        self.guests
            .iter()
            .try_for_each(|guest| guest.volume.compare(Kept::Answered))?;
        Ok(rounds
            .iter()
            .map(|round| round.answered.load(Ordering::SeqCst))
            .sum())
    }

    /// Blocks that writes found in line, since each group was opened.
    fn hits(&self) -> Result<u64> {
        let hits = self.guests.iter().map(|guest| {
            let product = &self.hosts.hosts[guest.host].product;
            Ok(product.inline(&guest.volume.name)?.hits)
        });
        hits.sum()
    }

    /// Counts the blocks of the pool, which must be the distinct ones of all volumes. Returns their number.
    fn count(&self) -> Result<usize> {
        let contents: Vec<_> = self
            .guests
            .iter()
            .map(|guest| guest.volume.bytes())
            .collect();
        let blocks = contents.iter().flat_map(|bytes| bytes.chunks(BLOCK_BYTES));
        let distinct: HashSet<&[u8]> = blocks
            .filter(|block| block.iter().any(|byte| *byte != 0))
            .collect();
        let blocks = self.hosts.settle()?;
        ensure!(
            blocks == distinct.len() as u64,
            "the pool holds {blocks} blocks, but there are {} distinct ones\n{}",
            distinct.len(),
            self.said()
        );
        self.hosts.check_pool()?;
        Ok(distinct.len())
    }

    /// Counts, moves every volume once more, deletes all of them, and stops the hosts.
    fn finish(mut self) -> Result<()> {
        self.count()?;
        move_all(&self.hosts)?;
        for Guest { volume, .. } in &self.guests {
            let host = self.hosts.host_of(&volume.name)?;
            volume.move_to(&[host.uri(&volume.name)])?;
            volume
                .compare(Kept::Answered)
                .context("in the end, on another host")?;
            host.run(&["volume", "delete", &volume.name, "--yes"])?;
        }
        super::expect_empty(&self.hosts)?;
        self.hosts.stop()
    }
}

/// The failure of a turn.
struct Failing<'a> {
    event: Event,
    rounds: &'a [Round],
    /// The host of each guest.
    of_host: Vec<usize>,
    /// The group of each guest.
    groups: Vec<u64>,
    /// The guest that it concerns, if it is about a group.
    guest: usize,
    /// The host of that guest.
    host: usize,
    /// The shard that may be lost: not the first one, because the secret is with it.
    shard: u16,
    osd: Osd,
    /// Whether the OSD is killed at the same time.
    osd_fails: bool,
}

/// A guest that is served again: its number, its host's, and the requests that must be there.
type Moved = (usize, usize, Kept);

impl Failing<'_> {
    fn happen(&self, hosts: &mut Hosts) -> Result<Vec<Moved>> {
        // Work on the whole pool fails if the cluster is late.
        let needs_osds = matches!(
            self.event,
            Event::OsdKilled | Event::OsdFrozen | Event::PoolChecked | Event::ShardLost
        );
        let kills_osd = self.osd_fails && !needs_osds;
        if kills_osd {
            self.osd.kill()?;
        }
        let moved = self.fail(hosts);
        if kills_osd {
            self.osd.start()?;
        }
        moved
    }

    fn fail(&self, hosts: &mut Hosts) -> Result<Vec<Moved>> {
        let Failing {
            rounds,
            of_host,
            groups,
            ..
        } = self;
        let own: Vec<usize> = (0..of_host.len())
            .filter(|guest| of_host[*guest] == self.host)
            .collect();
        let end = |guests: &[usize]| {
            for guest in guests {
                rounds[*guest].is_over.store(true, Ordering::SeqCst);
            }
        };
        // The groups go to different hosts.
        let to = |nth: usize| (self.host + 1 + nth % (hosts.hosts.len() - 1)) % hosts.hosts.len();
        let places: Vec<(usize, usize)> = own
            .iter()
            .enumerate()
            .map(|(nth, guest)| (*guest, to(nth)))
            .collect();
        let take_all = |hosts: &Hosts| {
            let take = |(guest, to): &(usize, usize)| {
                hosts.hosts[*to].take(groups[*guest], false)?;
                Ok((*guest, *to, Kept::Flushed))
            };
            places.iter().map(take).collect::<Result<Vec<Moved>>>()
        };
        match self.event {
            Event::OsdKilled => {
                self.osd.kill()?;
                std::thread::sleep(Duration::from_secs(2));
                self.osd.start()?;
                Ok(Vec::new())
            }
            Event::OsdFrozen => {
                self.osd.freeze()?;
                std::thread::sleep(Duration::from_secs(10));
                self.osd.thaw()?;
                Ok(Vec::new())
            }
            Event::PoolChecked => {
                hosts.check_pool()?;
                Ok(Vec::new())
            }
            Event::ShardLost => {
                hosts.lose_shard(self.shard)?;
                rounds.iter().try_for_each(wait_for_more)?;
                hosts.hosts[self.host].run(&["index", "rebuild"])?;
                Ok(Vec::new())
            }
            Event::HostKilled => {
                end(&own);
                hosts.hosts[self.host].take_daemon()?.kill()?;
                hosts.hosts[self.host].open()?;
                let kept = |guest: &usize| (*guest, self.host, Kept::Answered);
                Ok(own.iter().map(kept).collect())
            }
            Event::HostReplaced => {
                end(&own);
                hosts.hosts[self.host].take_daemon()?.kill()?;
                let moved = take_all(hosts)?;
                hosts.hosts[self.host].open()?;
                Ok(moved)
            }
            Event::HostFrozen => {
                end(&own);
                hosts.hosts[self.host].daemon()?.signal(Signal::STOP)?;
                let moved = take_all(hosts);
                hosts.hosts[self.host].daemon()?.signal(Signal::CONT)?;
                let moved = moved?;
                must_end_as_fenced(&mut hosts.hosts[self.host])?;
                hosts.hosts[self.host].open()?;
                Ok(moved)
            }
            Event::GroupTaken => {
                end(&[self.guest]);
                let to = to(0);
                hosts.hosts[to].take(groups[self.guest], true)?;
                Ok(vec![(self.guest, to, Kept::Answered)])
            }
        }
    }
}

/// A host that wakes up after its groups were taken must end with an error.
fn must_end_as_fenced(host: &mut Host) -> Result<()> {
    let mut daemon = host.take_daemon()?;
    let status = daemon.wait_for_end(END_LIMIT)?;
    let said = daemon.said();
    ensure!(
        status.code() == Some(1) && said.contains("fenced"),
        "a host that was fenced ended with {status}\n{}",
        last_lines(&said)
    );
    Ok(())
}

/// Waits until a guest that did not fail gets further answers.
fn wait_for_more(round: &Round) -> Result<()> {
    let answered = || round.answered.load(Ordering::SeqCst);
    let (start, until) = (Instant::now(), answered() + ANSWERS_AFTER);
    while answered() < until && !round.has_failed() {
        if start.elapsed() > ANSWERS_LIMIT {
            bail!("a guest of another host gets no answer");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
