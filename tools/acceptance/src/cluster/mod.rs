//! A pool that hosts share, with three daemons: what all of them store is stored once, each volume moves as a whole, and
//! hosts and OSDs fail while guests work, and so does the index.

mod chaos;
mod exact;
mod hosts;
mod isolate;

use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use onefold_harness::ceph::POOL;
use onefold_harness::packages;
use onefold_harness::pools::{Ceph, Pools};
use onefold_harness::workspace::Workspace;

use hosts::Hosts;

/// How long the groups may take to give the space of deleted volumes to the pool.
const EMPTY_LIMIT: Duration = Duration::from_secs(120);

const EMPTY_POLL: Duration = Duration::from_millis(500);

/// The data object with the pool's label, which is there as long as the pool.
const LABEL: &str = "d.0000000000000000";

/// Options of `cargo xtask cluster`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Kill and freeze hosts and OSDs in turn for this many seconds, while guests, finders and collectors work
    #[arg(long, value_name = "SECONDS")]
    chaos: Option<u64>,
    /// Put older data back into the cluster after a load, and expect the comparison of `--chaos` to notice it
    #[arg(long, conflicts_with_all = ["chaos", "isolate"])]
    control: bool,
    /// Freeze the host that serves all shards of the index for this many seconds, and check that no guest waits for it
    #[arg(long, value_name = "SECONDS", conflicts_with = "chaos")]
    isolate: Option<u64>,
    /// Repeat the choices of an earlier run; their moments differ
    #[arg(long, requires = "chaos")]
    seed: Option<u64>,
}

/// `cargo xtask cluster`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let pools = Pools::Ceph(Ceph::open(workspace, POOL)?.into());
    match (arguments.chaos, arguments.isolate) {
        (None, None) if arguments.control => chaos::control(workspace, &pools),
        (None, None) => exact::check(workspace, &pools),
        (None, Some(seconds)) => isolate::check(workspace, &pools, Duration::from_secs(seconds)),
        (Some(seconds), _) => {
            let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
            chaos::check(workspace, &pools, Duration::from_secs(seconds), seed)
                .with_context(|| format!("with the seed {seed}"))
        }
    }
}

/// Waits for all threads of a load. Returns the first error.
fn join_all(threads: Vec<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    let ended = threads.into_iter().map(|thread| {
        let ended = thread.join();
        ended.unwrap_or_else(|_| Err(anyhow!("a thread of the load panicked")))
    });
    ended.fold(Ok(()), Result::and)
}

/// Checks that a pool without volumes holds no block, and that all of its space was given back.
fn expect_empty(hosts: &Hosts) -> Result<()> {
    let blocks = hosts.settle()?;
    ensure!(
        blocks == 0,
        "the pool holds {blocks} blocks, but has no volume"
    );
    let start = Instant::now();
    loop {
        let (free, all) = hosts.free_and_all_blocks()?;
        let objects = hosts.objects()?;
        let is_data = |name: &&String| name.starts_with("d.") && *name != LABEL;
        let data = objects.iter().filter(is_data).count();
        if free == all && data == 0 {
            return Ok(());
        }
        if start.elapsed() > EMPTY_LIMIT {
            bail!(
                "of {all} blocks, {} belong to groups without volumes; {data} data objects are left",
                all - free
            );
        }
        std::thread::sleep(EMPTY_POLL);
    }
}
