//! Rows about snapshots: how much making or deleting one slows guests down, and the cost of a volume that has some.
//!
//! Finder and collector are paused; deletions run. Latencies exclude the moments in which the machine itself was slow,
//! see `steadiness`; except for the longest one while a snapshot is made, which is compared with the longest in an
//! equal time just before.

use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::open::import_stream;
use crate::plan::{CLIENT_PROCESSOR, Plan, SERVER_PROCESSOR};
use crate::slices::{Contender, DATA_BYTES, EXPORT, Fill, Mode, fill, start_passthrough};
use crate::statistics::{Estimate, median};
use crate::steadiness::{SlowSpans, Watch};
use onefold_harness::cleanup::Scratch;
use onefold_harness::fio::{Fio, Request, Section, read_latencies};
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

pub(crate) const NAME: &str = "snapshots";

/// Mapped blocks of the volume whose snapshot is made, and therefore the snapshot's entries.
const ENTRIES: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;

/// Number of snapshots in the chain, each with a part of the data.
const CHAIN: u64 = 32;

/// The goals of the rows: at most these milliseconds and this ratio, then at least these ratios.
pub(crate) const STALL_MUST_MS: f64 = 20.0;
pub(crate) const DELETE_MUST: f64 = 1.3;
pub(crate) const CHAIN_MUST: f64 = 0.90;
pub(crate) const TOUCH_MUST: f64 = 0.60;

/// The load under which a snapshot is made and deleted: its duration, and its phases before the
/// measurement, before the snapshot is made, and before it is deleted.
const LOAD_SECONDS: u32 = 45;
const WARM_UP: Duration = Duration::from_secs(4);
const BEFORE_DELETION: Duration = Duration::from_secs(6);

/// Time left out after the snapshot was made, because first writes are dense then.
const SETTLING_MS: f64 = 2000.0;

/// The longest time after the command's end at which a request that waited for the snapshot is answered.
const ANSWER_MS: f64 = 50.0;

const LATENCIES: &str = "latencies";

/// The interval at which a background deletion is checked, because checking is work for the server, too.
const DELETION_POLL: Duration = Duration::from_millis(500);

/// A snapshot of [`ENTRIES`] entries, made and deleted under load.
#[derive(Debug, Serialize, Deserialize)]
struct Round {
    /// The longest request while the snapshot was made, and in an equal time before, in ms.
    stall_ms: f64,
    usual_ms: f64,
    /// The 99th percentile while the snapshot was deleted, and before, in µs.
    #[serde(rename = "p99_deleting_us")]
    deleting_us: f64,
    #[serde(rename = "p99_before_us")]
    before_us: f64,
    /// The duration of the deletion, in s.
    deletion_seconds: f64,
}

/// Requests per second with and without snapshots.
type Pair = [f64; 2];

/// All results of the benchmark.
#[derive(Serialize, Deserialize)]
pub(crate) struct Snapshots {
    pub(crate) entries: u64,
    pub(crate) chain: u64,
    rounds: Vec<Round>,
    /// 4 KiB random reads: with the chain, without snapshots.
    read_depth_1: Vec<Pair>,
    read_depth_32: Vec<Pair>,
    /// 4 KiB random writes, each block once: after a snapshot, pass-through.
    first_write: Vec<Pair>,
}

/// A row of the table.
pub(crate) struct Row {
    pub(crate) title: String,
    pub(crate) number: Estimate,
    pub(crate) with: f64,
    pub(crate) without: f64,
    pub(crate) unit: &'static str,
    pub(crate) must: f64,
    pub(crate) is_met: bool,
}

impl Snapshots {
    pub(crate) fn rows(&self) -> Vec<Row> {
        let rounds = self.rounds.iter();
        let deletion = rounds.map(|round| [round.deleting_us, round.before_us]);
        let deletion = row("p99 while a snapshot is deleted", "µs", deletion, ratio);
        let chain = [(1, &self.read_depth_1), (32, &self.read_depth_32)].map(|(depth, pairs)| {
            let title = format!("random read, chain, depth {depth}");
            let row = row(&title, "requests/s", pairs.iter().copied(), ratio);
            row.map(|row| row.at_least(CHAIN_MUST))
        });
        let rows = [self.stall(), deletion.map(|row| row.at_most(DELETE_MUST))];
        let rows = rows.into_iter().chain(chain);
        rows.chain([self.first_write()]).flatten().collect()
    }

    /// The longest request while a snapshot is made.
    pub(crate) fn stall(&self) -> Option<Row> {
        let title = "longest request while a snapshot is made";
        let rounds = self.rounds.iter();
        let pairs = rounds.map(|round| [round.stall_ms, round.usual_ms]);
        Some(row(title, "ms", pairs, |[with, _]| with)?.at_most(STALL_MUST_MS))
    }

    /// The first write to each block after a snapshot.
    pub(crate) fn first_write(&self) -> Option<Row> {
        let title = "first write to each block, depth 32";
        let pairs = self.first_write.iter().copied();
        Some(row(title, "requests/s", pairs, ratio)?.at_least(TOUCH_MUST))
    }

    /// The median duration of a deletion, in seconds.
    pub(crate) fn deletion_seconds(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.deletion_seconds))
    }
}

fn ratio([with, without]: Pair) -> f64 {
    with / without
}

fn row(
    title: &str,
    unit: &'static str,
    pairs: impl Iterator<Item = Pair> + Clone,
    of: fn(Pair) -> f64,
) -> Option<Row> {
    Some(Row {
        title: title.to_owned(),
        number: Estimate::over(pairs.clone().map(of))?,
        with: median(pairs.clone().map(|[with, _]| with)),
        without: median(pairs.map(|[_, without]| without)),
        unit,
        must: f64::NAN,
        is_met: false,
    })
}

impl Row {
    fn at_most(self, must: f64) -> Row {
        let is_met = self.number.median <= must;
        Row {
            must,
            is_met,
            ..self
        }
    }

    fn at_least(self, must: f64) -> Row {
        let is_met = self.number.median >= must;
        Row {
            must,
            is_met,
            ..self
        }
    }
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Snapshots> {
    let rounds = under_load(workspace, plan)?;
    let [read_depth_1, read_depth_32] = chain(workspace, plan)?;
    let measured = Snapshots {
        entries: ENTRIES,
        chain: CHAIN,
        rounds,
        read_depth_1,
        read_depth_32,
        first_write: first_writes(workspace, plan)?,
    };
    for row in measured.rows() {
        println!(
            "{NAME}: {}: {:.2} ({:.0} and {:.0} {}), must {}",
            row.title, row.number.median, row.with, row.without, row.unit, row.must
        );
    }
    Ok(measured)
}

fn command(product: &Product, arguments: &[&str]) -> Result<()> {
    product.command().arg("--quiet").args(arguments).run()
}

/// Deletes the snapshot, and returns when all its own blocks are released.
fn delete(product: &Product, snapshot: &str) -> Result<()> {
    command(product, &["snapshot", "delete", snapshot, "--yes"])?;
    while product.backlog()?.queued > 0 {
        std::thread::sleep(DELETION_POLL);
    }
    Ok(())
}

/// Makes and deletes snapshots of a volume that is fully mapped, under half of the volume's maximum
/// load.
fn under_load(workspace: &Workspace, plan: &Plan) -> Result<Vec<Round>> {
    let scratch = Scratch::new(&workspace.scratch_parent(), NAME)?;
    let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
    product.create_pool("16G")?;
    import_stream(&product, &scratch, EXPORT, ENTRIES * BLOCK_BYTES)?;
    let daemon = product.serve(&[], &[])?;
    product.only_delete()?;
    let load = || {
        Section::new("load", &product.default_address().uri(EXPORT))
            .set("rw", "randrw")
            .set("bs", "4k")
            .set("iodepth", 32)
            .set("size", ENTRIES * BLOCK_BYTES)
            .set("norandommap", 1)
            .set("randrepeat", 0)
            .set("time_based", 1)
    };
    let fio = |job: Section| {
        Fio::new(scratch.path(), "load")
            .pin(Some(CLIENT_PROCESSOR))
            .job(job)
    };
    let peak = fio(load().set("runtime", 4)).run()?;
    let peak = peak.first().context("fio reported no job")?;
    let each = ((peak.read.iops + peak.write.iops) / 4.0) as u64;
    let mut rounds = Vec::new();
    for _ in 0..plan.snapshot_rounds {
        let paced = load()
            .set("runtime", LOAD_SECONDS)
            .set("rate_iops", format!("{each},{each}"))
            .log_latencies(LATENCIES);
        let watch = Watch::start(CLIENT_PROCESSOR)?;
        let mut running = fio(paced).spawn()?;
        std::thread::sleep(WARM_UP);
        let name = format!("{EXPORT}@s");
        let made = timed(|| command(&product, &["snapshot", "create", &name]))?;
        std::thread::sleep(BEFORE_DELETION);
        let deleted = timed(|| delete(&product, &name))?;
        ensure!(
            running.is_running()?,
            "the load ended before the snapshot was deleted\n{}",
            running.said()
        );
        running.wait_for_success()?;
        let slow = watch.end()?;
        let requests = read_latencies(scratch.path(), LATENCIES)?;
        rounds.push(Round::of(&requests, &slow, &made, &deleted)?);
    }
    daemon.kill()?;
    Ok(rounds)
}

/// Runs `work`, and returns when it began and ended, in milliseconds of the Unix epoch.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<Range<f64>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let start = now.context("the clock is not set")?.as_secs_f64() * 1e3;
    let begun = Instant::now();
    work()?;
    Ok(start..start + begun.elapsed().as_secs_f64() * 1e3)
}

impl Round {
    fn of(
        requests: &[Request],
        slow: &SlowSpans,
        made: &Range<f64>,
        deleted: &Range<f64>,
    ) -> Result<Round> {
        let during = made.start..made.end + ANSWER_MS;
        let usual = during.start - (during.end - during.start)..during.start;
        let longest = |span: &Range<f64>| {
            let inside = requests
                .iter()
                .filter(|request| span.contains(&request.at_ms));
            let longest = inside.map(|request| request.latency_us / 1e3);
            longest.reduce(f64::max).context("no request was answered")
        };
        let p99 = |span: &Range<f64>| {
            let inside = requests
                .iter()
                .filter(|request| span.contains(&request.at_ms));
            let steady = inside.filter(|request| !slow.contain(request.at_ms));
            let mut latencies: Vec<f64> = steady.map(|request| request.latency_us).collect();
            latencies.sort_by(f64::total_cmp);
            let found = latencies.get(latencies.len() * 99 / 100).copied();
            found.context("the machine was slow all the time")
        };
        Ok(Round {
            stall_ms: longest(&during)?,
            usual_ms: longest(&usual)?,
            deleting_us: p99(deleted)?,
            before_us: p99(&(made.end + SETTLING_MS..deleted.start))?,
            deletion_seconds: (deleted.end - deleted.start) / 1e3,
        })
    }
}

/// Two equal volumes in one pool. One of them has [`CHAIN`] snapshots, and after each one a [`CHAIN`]th of its blocks,
/// at random, was rewritten.
fn chain(workspace: &Workspace, plan: &Plan) -> Result<[Vec<Pair>; 2]> {
    let scratch = Scratch::new(&workspace.scratch_parent(), NAME)?;
    let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
    product.create_pool("8G")?;
    let size = DATA_BYTES.to_string();
    let names = ["chain", "plain"];
    for name in names {
        command(&product, &["volume", "create", name, "--size", &size])?;
    }
    let daemon = product.serve(&[], &[])?;
    product.only_delete()?;
    let uris = names.map(|name| product.default_address().uri(name));
    let write = |uri: &str, rw: &str, bs: &str, bytes: u64| {
        let job = Section::new("write", uri)
            .set("rw", rw)
            .set("bs", bs)
            .set("iodepth", 16)
            .set("size", DATA_BYTES)
            .set("io_size", bytes)
            .set("randrepeat", 0)
            .set("refill_buffers", 1);
        Fio::new(scratch.path(), "write").job(job).run().map(drop)
    };
    for uri in &uris {
        write(uri, "write", "1m", DATA_BYTES)?;
    }
    for n in 0..CHAIN {
        command(&product, &["snapshot", "create", &format!("chain@s{n}")])?;
        for uri in &uris {
            write(uri, "randwrite", "4k", DATA_BYTES / CHAIN)?;
        }
    }
    let read = |uri: &str, rw: &str, bs: &str, depth: u32, seconds: u32| -> Result<f64> {
        let job = Section::new("slice", uri)
            .set("rw", rw)
            .set("bs", bs)
            .set("iodepth", depth)
            .set("size", DATA_BYTES)
            .set("norandommap", 1)
            .set("randrepeat", 0)
            .set("time_based", 1)
            .set("runtime", seconds);
        let fio = Fio::new(scratch.path(), "slice").pin(Some(CLIENT_PROCESSOR));
        let results = fio.job(job).run()?;
        Ok(results.first().context("fio reported no job")?.read.iops)
    };
    let mut pairs = [Vec::new(), Vec::new()];
    for (depth, pairs) in [1, 32].into_iter().zip(&mut pairs) {
        // First fill the caches of the product and of the host.
        for uri in &uris {
            read(uri, "read", "1m", 4, plan.slice_seconds)?;
        }
        for slice in 0..plan.slices {
            let mut pair = [0.0; 2];
            for turn in 0..uris.len() {
                let which = (slice + turn) % uris.len();
                pair[which] = read(&uris[which], "randread", "4k", depth, plan.slice_seconds)?;
            }
            pairs.push(pair);
        }
    }
    daemon.kill()?;
    Ok(pairs)
}

/// Writes once to each block, at random, just after a snapshot was made; the pass-through rewrites its blocks in the
/// same way. The snapshot is deleted afterwards.
fn first_writes(workspace: &Workspace, plan: &Plan) -> Result<Vec<Pair>> {
    let scratch = Scratch::new(&workspace.scratch_parent(), NAME)?;
    let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
    product.create_pool("8G")?;
    let size = DATA_BYTES.to_string();
    command(&product, &["volume", "create", EXPORT, "--size", &size])?;
    let daemon = product.serve(&[], &[])?;
    product.only_delete()?;
    let ours = Contender::product(&product, daemon);
    let passthrough = start_passthrough(workspace, scratch.path(), Mode::Host)?;
    fill(scratch.path(), &[&ours, &passthrough], Fill::Small, 0)?;
    let write = |server: &Contender| -> Result<f64> {
        let job = Section::new("slice", &server.uri)
            .set("rw", "randwrite")
            .set("bs", "4k")
            .set("iodepth", 32)
            .set("size", DATA_BYTES)
            .set("randrepeat", 0);
        let fio = Fio::new(scratch.path(), "slice").pin(Some(CLIENT_PROCESSOR));
        let results = fio.job(job).run()?;
        Ok(results.first().context("fio reported no job")?.write.iops)
    };
    let snapshot = format!("{EXPORT}@s");
    let mut pairs = Vec::new();
    for slice in 0..plan.slices {
        command(&product, &["snapshot", "create", &snapshot])?;
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            let which = (slice + turn) % 2;
            pair[which] = write([&ours, &passthrough][which])?;
        }
        delete(&product, &snapshot)?;
        pairs.push(pair);
    }
    ours.daemon.kill()?;
    passthrough.daemon.kill()?;
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_looks_at_each_span_by_itself() {
        let mut requests: Vec<Request> = (0..20_000)
            .map(|n| Request {
                at_ms: f64::from(n),
                latency_us: 100.0,
                is_write: n % 2 == 0,
            })
            .collect();
        // While the snapshot is made, while its effect settles, while it is deleted, and while the machine is slow.
        for (at, latency_us) in [(5005, 9000.0), (5500, 50_000.0)] {
            requests[at].latency_us = latency_us;
        }
        requests[10_000..10_400].fill(Request {
            at_ms: 10_100.0,
            latency_us: 300.0,
            is_write: true,
        });
        requests[10_500..10_900].fill(Request {
            at_ms: 10_600.0,
            latency_us: 70_000.0,
            is_write: true,
        });
        let slow = SlowSpans::from([(10_550.0, 10_700.0)]);
        let round = Round::of(&requests, &slow, &(5000.0..5010.0), &(10_000.0..12_000.0)).unwrap();
        assert_eq!((round.stall_ms, round.usual_ms), (9.0, 0.1));
        assert_eq!((round.deleting_us, round.before_us), (300.0, 100.0));
        assert_eq!(round.deletion_seconds, 2.0);
    }
}
