//! Faults of the cluster below a pool under load: requests wait while the cluster does not serve them and complete
//! afterwards; no guest gets an error, and nothing is lost.
//!
//! During each fault fio writes, flushes and compares. If a fault lasts longer than the daemon's patience, the daemon's
//! log must report the waiting requests and for how long they have waited, and later the end of the wait. In the end
//! the pool's own check finds nothing.
//!
//! A cluster is made full by setting its limit below its usage: pools that are full by a quota need a manager, which a
//! throw-away cluster does not have.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::ceph_refusals;
use onefold_harness::ceph::{Cluster, POOL};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::last_lines;
use onefold_harness::fio::{Background, Fio, Section};
use onefold_harness::packages;
use onefold_harness::pools::{Ceph, Pools};
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

const VOLUMES: [&str; 2] = ["red", "fresh"];
const VOLUME_BYTES: u64 = 512 << 20;

/// How long a fault lasts: longer than the daemon waits before it logs a warning.
const FAULT: Duration = Duration::from_secs(12);

/// How long an OSD that cannot be replaced is silent: longer than the cluster keeps a watch, and than an owner
/// continues without confirming its lock.
const SILENCE: Duration = Duration::from_secs(65);

/// How long fio runs: it covers some time before and after the fault.
const LOAD_SECONDS: u64 = 20;

/// How long a fault and fio may take together.
const LOAD_LIMIT: Duration = Duration::from_secs(180);

/// The fault begins when the daemon has used this many seconds of processor time. fio itself takes longer than that to
/// start.
const WORK_SECONDS: f64 = 0.1;

/// How long the log may take to report that requests are served again.
const NEWS_LIMIT: Duration = Duration::from_secs(10);

/// How long a full cluster may take to refuse a request.
const FULL_LIMIT: Duration = Duration::from_secs(60);

/// Texts that the log has when requests begin to wait, and when they are served again.
const WAITS: &str = "the cluster has not answered for ";
const GOES_ON: &str = "the cluster answers again";

/// The limits of a throw-away cluster, by the commands that set them; the lowest comes first.
const RATIOS: [(&str, &str); 3] = [
    ("set-nearfull-ratio", "0.93"),
    ("set-backfillfull-ratio", "0.95"),
    ("set-full-ratio", "0.97"),
];

/// A limit below the usage of a new cluster.
const RATIO_FULL: &str = "0.00001";

/// `cargo xtask ceph-faults`
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let pools = Pools::Ceph(Ceph::open(workspace, POOL)?.into());
    let ceph = pools.ceph().context("no cluster")?;
    let cluster = ceph.must_be_throw_away()?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "faults")?;
    let product = Product::build_in(workspace, &pools, scratch.path())?;
    ceph_refusals::check(&product, cluster, &scratch)?;
    product.create_pool("4G")?;
    let size = VOLUME_BYTES.to_string();
    for volume in VOLUMES {
        let create = product.command().args(["volume", "create", volume]);
        create.args(["--size", &size]).run()?;
    }
    let set = ["--quiet", "pool", "set", "--when-full", "pause"];
    product.command().args(set).run()?;
    let daemon = product.serve(&[], &[])?;
    let bench = Bench {
        product,
        cluster,
        daemon,
        scratch,
    };
    let faults: [(&str, Fault); 5] = [
        ("an OSD is frozen", frozen_osd),
        ("an OSD answers after a minute", late_osd),
        ("two of three OSDs are dead", dead_osds),
        ("the monitor is frozen", frozen_monitor),
        ("the cluster is full", full),
    ];
    for (title, fault) in faults {
        // Placement groups that still recover from the last fault would wait for other OSDs than the ones this fault
        // stops.
        cluster.wait_until_clean()?;
        let start = Instant::now();
        let said = fault(&bench).with_context(|| format!("ceph-faults: {title}"))?;
        println!("  {:6.1} s  {title}: {said}", start.elapsed().as_secs_f64());
    }
    bench.product.check()?;
    bench.daemon.stop()?;
    bench.product.check().map(drop)
}

/// The environment of a fault.
struct Bench<'a> {
    // Dropped before the pool is.
    daemon: Daemon,
    product: Product,
    cluster: &'a Cluster,
    scratch: Scratch,
}

type Fault = fn(&Bench<'_>) -> Result<String>;

impl Bench<'_> {
    /// Random writes with flushes, which fio reads back and compares.
    fn rewrite(&self) -> Section {
        self.load("red")
            .set("rw", "randwrite")
            .set("size", "64m")
            .set("fsync", 32)
    }

    /// Writes to unmapped space, which need new blocks. They do not flush, because a flush would wait first.
    fn extend(&self) -> Section {
        self.load("fresh")
            .set("rw", "write")
            .set("size", VOLUME_BYTES)
    }

    fn load(&self, volume: &str) -> Section {
        Section::new(volume, &self.product.default_address().uri(volume))
            .set("bs", "16k")
            .set("iodepth", 8)
            .set("verify", "crc32c")
            .set("verify_backlog", 128)
            .set("verify_fatal", 1)
            .set("time_based", 1)
            .set("runtime", LOAD_SECONDS)
    }

    fn start(&self, load: Section) -> Result<Background> {
        let before = self.daemon.cpu_seconds()?;
        let mut fio = Fio::new(self.scratch.path(), "load").job(load).spawn()?;
        while self.daemon.cpu_seconds()? < before + WORK_SECONDS {
            ensure!(fio.is_running()?, "fio does not work\n{}", fio.said());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(fio)
    }

    /// Applies a fault for some time, during which fio must not fail. Returns the daemon's new log.
    fn under_load(
        &self,
        lasting: Duration,
        begin: impl FnOnce() -> Result<()>,
        end: impl FnOnce() -> Result<()>,
    ) -> Result<String> {
        let before = self.daemon.said().len();
        let mut fio = self.start(self.rewrite())?;
        begin()?;
        std::thread::sleep(lasting);
        end()?;
        fio.wait_for_success_within(LOAD_LIMIT)?;
        Ok(self.said_since(before))
    }

    /// The new part of the daemon's log. The end of a wait may be logged a little after the guests get their answers.
    fn said_since(&self, before: usize) -> String {
        let start = Instant::now();
        loop {
            let said = self.daemon.said().split_off(before);
            if waits_and_ends(&said).is_ok() || start.elapsed() > NEWS_LIMIT {
                return said;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn frozen_osd(bench: &Bench<'_>) -> Result<String> {
    let osd = bench.cluster.osd(0)?;
    let said = bench.under_load(FAULT, || osd.freeze(), || osd.thaw())?;
    // The cluster replaces the OSD after 8 s, so whether a request waits for longer depends on the moment.
    summary(&said)
}

/// With `nodown` the cluster waits for the OSD instead of replacing it, so all its objects wait, and the lock with
/// them.
fn late_osd(bench: &Bench<'_>) -> Result<String> {
    let osd = bench.cluster.osd(head_osd(bench)?)?;
    let no_down = |verb| bench.cluster.ceph(&["osd", verb, "nodown"]).map(drop);
    let said = bench.under_load(
        SILENCE,
        || no_down("set").and_then(|()| osd.freeze()),
        || osd.thaw(),
    );
    // Undone in any case, because the cluster may not be a throw-away one.
    no_down("unset")?;
    let said = said?;
    ensure!(
        said.contains(WAITS),
        "the log says nothing of requests that waited\n{}",
        last_lines(&said)
    );
    summary(&said)
}

/// The OSD that serves the pool's head, which has the lock.
fn head_osd(bench: &Bench<'_>) -> Result<u32> {
    let name = bench.product.place().name();
    let (_, namespace) = name.rsplit_once('/').context("the pool has no name")?;
    let found = bench
        .cluster
        .ceph(&["osd", "map", POOL, "g.0", namespace, "--format", "json"])?;
    let found: Value = serde_json::from_str(&found).context("ceph osd map printed no JSON")?;
    let primary = found["acting_primary"].as_u64();
    let primary = primary.context("ceph osd map names no primary")?;
    Ok(primary.try_into()?)
}

fn dead_osds(bench: &Bench<'_>) -> Result<String> {
    let osds = [bench.cluster.osd(1)?, bench.cluster.osd(2)?];
    let said = bench.under_load(
        FAULT,
        || osds.iter().try_for_each(|osd| osd.kill()),
        || osds.iter().try_for_each(|osd| osd.start()),
    )?;
    ensure!(
        said.contains(WAITS),
        "the log says nothing of requests that waited\n{}",
        last_lines(&said)
    );
    summary(&said)
}

fn frozen_monitor(bench: &Bench<'_>) -> Result<String> {
    let monitor = bench.cluster.monitor();
    let said = bench.under_load(FAULT, || monitor.freeze(), || monitor.thaw())?;
    ensure!(
        !said.contains(WAITS),
        "requests waited for a monitor\n{}",
        last_lines(&said)
    );
    summary(&said)
}

fn full(bench: &Bench<'_>) -> Result<String> {
    let before = bench.daemon.said().len();
    let mut fio = bench.start(bench.extend())?;
    set_full(bench.cluster, true)?;
    let parked = wait_for_parked(bench);
    std::thread::sleep(FAULT);
    let ended = !fio.is_running()?;
    // Undone in any case, because the cluster may not be a throw-away one.
    set_full(bench.cluster, false)?;
    let parked = parked?;
    ensure!(!ended, "fio did not wait for a full cluster");
    fio.wait_for_success_within(LOAD_LIMIT)?;
    let waiting = bench.product.stat_number("waiting_requests")?;
    ensure!(waiting == 0, "{waiting} requests still wait for space");
    let said = summary(&bench.said_since(before))?;
    Ok(format!("{parked} writes waited for space, {said}"))
}

fn wait_for_parked(bench: &Bench<'_>) -> Result<u64> {
    let start = Instant::now();
    loop {
        let waiting = bench.product.stat_number("waiting_requests")?;
        if waiting > 0 {
            return Ok(waiting);
        }
        ensure!(
            start.elapsed() < FULL_LIMIT,
            "no write waits for space in a full cluster"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn set_full(cluster: &Cluster, is_full: bool) -> Result<()> {
    RATIOS.into_iter().try_for_each(|(verb, usual)| {
        let ratio = if is_full { RATIO_FULL } else { usual };
        cluster.ceph(&["osd", verb, ratio]).map(drop)
    })
}

/// Summarizes the log's warnings about waiting requests. Every wait must have an end.
fn summary(said: &str) -> Result<String> {
    waits_and_ends(said)?;
    let message = said.lines().find_map(|line| line.split_once(WAITS));
    Ok(match message {
        None => "no request waited for long".to_owned(),
        Some((_, rest)) => format!("\"{WAITS}{rest}\", and went on"),
    })
}

fn waits_and_ends(said: &str) -> Result<()> {
    let lines = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    let (waited, went_on) = (lines(WAITS), lines(GOES_ON));
    ensure!(
        waited == went_on,
        "the log says {waited} times that requests wait, and {went_on} times that they go on\n{}",
        last_lines(said)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_the_log_does_not_end_is_a_finding() {
        assert!(summary("").unwrap().contains("no request"));
        let waits = format!("WARN {WAITS}10 s: 3 operations wait");
        let summed = summary(&format!("{waits}\nINFO {GOES_ON}\n")).unwrap();
        assert!(summed.contains("10 s: 3 operations wait"), "{summed}");
        assert!(summary(&waits).is_err());
    }
}
