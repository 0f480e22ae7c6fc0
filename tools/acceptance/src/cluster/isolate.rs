//! No shard of the index answers: guests on another host do not notice.
//!
//! The host that serves all shards is frozen, and the host of the guests is too patient to take them over. So finder,
//! collector and counting have to wait, and each lookup of a write in line is late.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onefold_harness::pools::Pools;
use onefold_harness::workspace::Workspace;
use rustix::process::Signal;

use super::hosts::{Host, Hosts};
use super::join_all;
use crate::answered::{Kept, Round, Volume};

/// Longer than any run: until then a silent owner keeps its shards.
const PATIENCE: [&str; 2] = ["--patience", "24h"];

const VOLUME_BYTES: u64 = 8 << 20;

/// Connections to each volume.
const CONNECTIONS: usize = 2;

/// How long a guest may go without an answer. The cluster itself may be slow; a call to a shard takes longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Blocks that writes find in line before the shards stop: so long they all answer.
const HITS_BEFORE: u64 = 500;

/// How long that may take.
const HITS_LIMIT: Duration = Duration::from_secs(120);

const FLUSHES_PER_MILLE: u32 = 20;

pub(super) fn check(workspace: &Workspace, pools: &Pools, duration: Duration) -> Result<()> {
    let mut hosts = Hosts::start(workspace, pools, "8G", 2, &PATIENCE)?;
    let ended = isolate(&mut hosts, duration);
    ended.with_context(|| {
        let said = hosts.hosts.iter().map(Host::said).collect::<String>();
        format!("the hosts said\n{said}")
    })?;
    hosts.stop()
}

fn isolate(hosts: &mut Hosts, duration: Duration) -> Result<()> {
    // The first host was alone when it began, so it serves all shards.
    let [indexer, server] = &mut hosts.hosts[..] else {
        bail!("there are not two hosts");
    };
    let volumes = ["offline", "inline"].map(|dedup| create(server, dedup));
    let [offline, inline] = volumes;
    let volumes = [offline?, inline?];
    // A round for each connection: one that waits must not hide behind another.
    let loads: Vec<(&Volume, Round)> = volumes
        .iter()
        .flat_map(|volume| [volume; CONNECTIONS])
        .map(|volume| (volume, Round::new(FLUSHES_PER_MILLE)))
        .collect();
    let answers = std::thread::scope(|scope| {
        let mut random = fastrand::Rng::new();
        let load = |((volume, round), connection)| {
            let random: fastrand::Rng = random.fork();
            let (volume, round): (&Volume, &Round) = (volume, round);
            scope.spawn(move || round.judge(volume.load(round, connection, random)))
        };
        let numbered = loads
            .iter()
            .map(|(volume, round)| (*volume, round))
            .zip(0..);
        let threads: Vec<_> = numbered.map(load).collect();
        let rounds: Vec<&Round> = loads.iter().map(|(_, round)| round).collect();
        let answers = wait_for_hits(server)
            .and_then(|()| indexer.daemon()?.signal(Signal::STOP))
            .and_then(|()| watch(&rounds, duration));
        for round in &rounds {
            round.is_over.store(true, Ordering::SeqCst);
        }
        join_all(threads).and(answers)
    })?;
    let refused = server.run(&["pool", "check"]);
    ensure!(refused.is_err(), "the pool was checked without its index");
    volumes
        .iter()
        .try_for_each(|volume| volume.compare(Kept::Answered))?;
    indexer.daemon()?.signal(Signal::CONT)?;
    let blocks = hosts.settle()?;
    hosts.check_pool()?;
    println!(
        "without any shard for {} s, {answers} requests were answered, each within {} s; {blocks} blocks are stored since \
         the shards are back",
        duration.as_secs(),
        ANSWER_LIMIT.as_secs()
    );
    Ok(())
}

fn create(server: &Host, dedup: &str) -> Result<Volume> {
    let size = VOLUME_BYTES.to_string();
    let create = ["volume", "create", dedup, "--size", &size, "--dedup", dedup];
    let eager = ["--interval", "1", "--cold-passes", "1"];
    server.run(&[&create[..], &eager].concat())?;
    Volume::new(dedup, VOLUME_BYTES, &[server.uri(dedup)])
}

fn wait_for_hits(server: &Host) -> Result<()> {
    let start = Instant::now();
    while server.product.inline("inline")?.hits < HITS_BEFORE {
        ensure!(
            start.elapsed() < HITS_LIMIT,
            "writes do not find their content in line"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Checks that each connection gets answers all the time. Returns the number of answers.
fn watch(rounds: &[&Round], duration: Duration) -> Result<u64> {
    let answered = |round: &&Round| round.answered.load(Ordering::SeqCst);
    let start = Instant::now();
    let before: u64 = rounds.iter().map(answered).sum();
    let mut last: Vec<(u64, Instant)> = rounds
        .iter()
        .map(|round| (answered(round), start))
        .collect();
    while start.elapsed() < duration {
        std::thread::sleep(Duration::from_millis(10));
        for (round, (count, since)) in rounds.iter().zip(&mut last) {
            let now = answered(round);
            if now != *count {
                (*count, *since) = (now, Instant::now());
            }
            ensure!(!round.has_failed(), "a request of a guest has failed");
            ensure!(
                since.elapsed() < ANSWER_LIMIT,
                "a guest has waited for {:?}",
                since.elapsed()
            );
        }
    }
    Ok(rounds.iter().map(answered).sum::<u64>() - before)
}
