//! Random events, then rest, then the oracle.

use onefold_engine::simulated::{ClusterRates, CrashKind};
use onefold_format::{GroupId, Shard};

use crate::oracle;
use crate::world::{HOSTS, Origin, SHARDS, Step, VOLUME_BLOCKS, Violation, World};

/// Events of one run.
const EVENTS: u64 = 150;

/// Different contents: few, so that the groups have many in common.
const CONTENTS: u64 = 12;

/// Runs one seed.
pub(crate) fn run(seed: u64) -> Step {
    counts_of(seed, false, Origin::New).map(drop)
}

/// How often something has happened in a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Blocks that were not written because of hits.
    pub(crate) hits: u64,
    /// Checks of the pool that ended among the events.
    pub(crate) checks: u64,
    /// Rebuilds of the index that ended, and the blocks that they gave to the pool.
    pub(crate) rebuilds: u64,
    pub(crate) given_back: u64,
}

/// Runs one seed, perhaps with shards that are lost.
pub(crate) fn counts_of(
    seed: u64,
    loses_shards: bool,
    origin: Origin,
) -> Result<Counts, Violation> {
    let mut world = World::with(seed, !seed.is_multiple_of(3), origin)?;
    world.cluster.set_rates(RATES);
    for _ in 0..EVENTS {
        let one_in = if world.is_index_lost { 8 } else { 30 };
        if loses_shards && world.random.one_in(one_in) {
            event_of_a_loss(&mut world)?;
        } else {
            event(&mut world)?;
        }
        notice_deaths(&mut world);
    }
    let checks = world.checks;
    world.come_to_rest()?;
    oracle::check(&world)?;
    (0..HOSTS).try_for_each(|host| world.check(host))?;
    world.come_to_rest()?;
    oracle::check(&world)?;
    world.delete_all()?;
    oracle::check_empty(&world)?;
    Ok(Counts {
        hits: world.hits,
        checks,
        rebuilds: world.rebuilds,
        given_back: world.given_back,
    })
}

/// How often operations of the cluster fail during the events.
const RATES: ClusterRates = ClusterRates {
    request_lost: 0.03,
    reply_lost: 0.03,
    call_doubled: 0.05,
    call_delayed: 0.05,
    call_delivered: 0.02,
    exchange_lost: 0.05,
    ownership_lost: 0.0,
    host_dies: 0.0,
    host_cut: 0.0,
    directory_lost: 0.0,
};

/// A shard is lost, often after a batch whose answers were lost; or the index is rebuilt, if all groups have owners.
fn event_of_a_loss(world: &mut World) -> Step {
    if world.random.one_in(3) {
        let group = any_group(world);
        world.cluster.set_rates(ClusterRates {
            reply_lost: 0.5,
            ..RATES
        });
        let called = match world.random.below(4) {
            0 => world.collect(group).map(drop),
            1 => world.count(group).map(drop),
            2 => world.find_duplicates(group).map(drop),
            _ => Ok(()),
        };
        world.cluster.set_rates(RATES);
        called?;
        let shard = Shard(world.random.below(SHARDS.into()) as u16);
        world.lose_index(shard);
        return Ok(());
    }
    for host in 0..HOSTS {
        if world.hosts[host].is_none() {
            world.start(host)?;
        }
    }
    let host = world.random.below(HOSTS as u64) as usize;
    world.rebuild(host)
}

fn any_group(world: &mut World) -> GroupId {
    let groups: Vec<GroupId> = world.volumes.keys().copied().collect();
    groups[world.random.below(groups.len() as u64) as usize]
}

fn event(world: &mut World) -> Step {
    let group = any_group(world);
    let host = world.random.below(HOSTS as u64) as usize;
    match world.random.below(50) {
        0..=11 => {
            let count = 1 + world.random.below(6);
            let lba = world.random.below(VOLUME_BLOCKS - count);
            let contents: Vec<u64> = (0..count).map(|_| world.random.below(CONTENTS)).collect();
            world.write(group, lba, &contents)
        }
        12 | 13 => {
            let count = 1 + world.random.below(10);
            let lba = world.random.below(VOLUME_BLOCKS - count);
            world.trim(group, lba, count)
        }
        14..=16 => world.flush(group),
        17 => world.read(group),
        18 if world.random.one_in(2) => {
            let lba = world.random.below(VOLUME_BLOCKS);
            world.begin_read(group, lba);
            Ok(())
        }
        18 => world.end_read(),
        19..=24 => world.find_duplicates(group).map(drop),
        25..=29 => world.collect(group).map(drop),
        30 => world.tidy(group, true),
        31 => world.balance(group).map(drop),
        32 => {
            let shard = Shard(world.random.below(SHARDS.into()) as u16);
            world.serve(host, shard)
        }
        33 if world.random.one_in(2) => {
            let _ = world.cluster.deliver_late_call();
            Ok(())
        }
        33 => {
            if world.hosts[host].is_some() {
                world.note(|| format!("host {host} is cut off"));
                world.cluster.cut(host);
            }
            Ok(())
        }
        34 => {
            let kind = if world.random.one_in(2) {
                CrashKind::PowerLoss
            } else {
                CrashKind::ProcessKilled
            };
            world.kill(host, kind);
            Ok(())
        }
        35 => {
            if world.hosts[host].is_some() {
                let nth = 1 + world.random.below(30);
                world.note(|| format!("host {host} dies at I/O {nth}"));
                world.cluster.kill_after(host, nth);
            }
            Ok(())
        }
        36 | 37 => match world.hosts[host] {
            Some(_) => Ok(()),
            None => world.start(host),
        },
        38 => match world.hosts[host] {
            Some(_) => world.open(host, group),
            None => Ok(()),
        },
        39 => world.stop(host),
        40 | 41 => world.count(group).map(drop),
        42 | 43 => {
            // Most often some group has no owner, and then nothing is counted.
            for host in 0..HOSTS {
                if world.hosts[host].is_none() {
                    world.start(host)?;
                }
            }
            world.check(host)
        }
        _ => world.end_holds(group).map(drop),
    }
}

/// Drops the processes of hosts that died in an I/O.
fn notice_deaths(world: &mut World) {
    for host in 0..HOSTS {
        if world.hosts[host].is_some() && world.cluster.is_dead(host) {
            world.note(|| format!("host {host} has died"));
            world.bury(host, CrashKind::ProcessKilled);
        }
    }
}
