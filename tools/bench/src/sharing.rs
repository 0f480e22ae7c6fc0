//! Rows with finder and collector running, compared with the pass-through, which has neither.
//!
//! As in `slices`, both servers are measured in turn and compared pair by pair. Finder and collector run, paced by
//! their latency budget, while onefold is measured. They are paused while the pass-through is measured.
//!
//! Latencies exclude the moments in which the machine itself was slow, see `steadiness`.
//!
//! At half of the peak rate the load alone does not dirty 60 MB/s, and most of the blocks it rewrites are too hot to be
//! published. To keep the finder busy, a second volume holds data that was just written and that one pass has found to
//! be unchanged.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::plan::{CLIENT_PROCESSOR, Plan, SERVER_PROCESSOR};
use crate::results::read;
use crate::slices::{Contender, DATA_BYTES, EXPORT, Fill, Mode, fill, start_passthrough};
use crate::statistics::{Estimate, median, verdict};
use crate::steadiness::{SlowSpans, Watch};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Direction, Fio, JobResult, Request, Section, read_latencies};
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

pub(crate) const NAME: &str = "sharing";

/// The daemon's latency budget for the 99th percentile of guests' requests.
pub(crate) const LATENCY_BUDGET: &str = "500us";

/// Duplicates, in percent of the data written.
pub(crate) const DUPLICATES_PERCENT: u32 = 25;

/// The skew of the load: 90 % of the requests go to the first tenth of the blocks.
pub(crate) const SKEW: &str = "zoned:90/10:10/90";

/// The finder's backlog at the start of each slice, in addition to the load: more than it can process during a slice
/// and in the moment before fio's first request, when nothing slows it down.
const SUPPLY_BYTES: u64 = 2 << 30;

/// The least rate of the finder for its row to count.
const FINDER_MB_PER_SECOND_MIN: f64 = 10.0;

/// The least share of copies among the writes to a fully shared volume, for the row to count.
const COPIED_MIN: f64 = 0.95;

/// Finder and pacing are sampled from this long after fio's start until this long before its end: fio takes a moment to
/// begin, and until then the guests seem idle.
const WATCH_MARGIN: Duration = Duration::from_millis(1000);

/// The name of the latency log of the load whose latency counts.
const LATENCIES: &str = "latencies";

/// How long the jobs may take to finish the work of one slice.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);

/// The interval at which the finder's progress over a volume is checked.
const LOOK_POLL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
enum Load {
    /// Skewed reads and writes, as fast as possible.
    Peak,
    /// Skewed reads and writes at a fixed rate.
    Paced { per_second: f64 },
    /// Random writes, one to each block, all of which are shared, without a time limit: a second write to a block would
    /// not be a copy.
    Copying,
}

impl Load {
    fn job(self, uri: &str, seconds: u32) -> Section {
        let job = Section::new("slice", uri)
            .set("bs", "4k")
            .set("iodepth", 32)
            .set("size", DATA_BYTES)
            .set("randrepeat", 0);
        let skewed = |job: Section| {
            job.set("rw", "randrw")
                .set("time_based", 1)
                .set("runtime", seconds)
                .set("norandommap", 1)
                .set("random_distribution", SKEW)
                .set("refill_buffers", 1)
                .set("dedupe_percentage", DUPLICATES_PERCENT)
        };
        match self {
            Load::Peak => skewed(job),
            // The limit holds for each direction.
            Load::Paced { per_second } => {
                let each = (per_second / 2.0) as u64;
                skewed(job)
                    .set("rate_iops", format!("{each},{each}"))
                    .log_latencies(LATENCIES)
            }
            Load::Copying => job.set("rw", "randwrite"),
        }
    }
}

/// The results of one server in one slice.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Slice {
    #[serde(flatten, with = "RawResult")]
    result: JobResult,
    #[serde(rename = "server_cpu_us_per_request")]
    cpu_us: f64,
    /// Latencies, measured only for the paced load.
    #[serde(rename = "steady", skip_serializing_if = "Option::is_none")]
    latency: Option<Latency>,
    /// The work of onefold's jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<Jobs>,
}

/// The fields of a [`JobResult`] in raw results.
#[derive(Serialize, Deserialize)]
#[serde(remote = "JobResult")]
struct RawResult {
    #[serde(with = "RawDirection")]
    read: Direction,
    #[serde(with = "RawDirection")]
    write: Direction,
}

/// The fields of a [`Direction`] in raw results.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Direction")]
struct RawDirection {
    #[serde(skip)]
    requests: u64,
    #[serde(skip)]
    bytes: u64,
    iops: f64,
    mean_us: f64,
    p99_us: f64,
}

/// The 99th percentiles of a slice, without the moments in which the machine was slow.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Latency {
    read_p99_us: f64,
    write_p99_us: f64,
    /// The share of all requests that was answered while the machine was slow.
    left_out: f64,
}

impl Latency {
    fn of(requests: &[Request], slow: &SlowSpans) -> Result<Latency> {
        let counted = |request: &&Request| !slow.contain(request.at_ms);
        let p99 = |is_write: bool| {
            let requests = requests.iter().filter(counted);
            let requests = requests.filter(|request| request.is_write == is_write);
            let mut latencies: Vec<f64> = requests.map(|request| request.latency_us).collect();
            latencies.sort_by(f64::total_cmp);
            let found = latencies.get(latencies.len() * 99 / 100).copied();
            found.context("the machine was slow all the time")
        };
        let left_out = requests.len() - requests.iter().filter(counted).count();
        Ok(Latency {
            read_p99_us: p99(false)?,
            write_p99_us: p99(true)?,
            left_out: left_out as f64 / requests.len() as f64,
        })
    }
}

impl Slice {
    fn iops(&self) -> f64 {
        self.result.read.iops + self.result.write.iops
    }
}

/// The work of finder and collector during a slice.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Jobs {
    finder_mb_per_second: f64,
    /// Growth of the blocks to be scanned and of the references to be released, per second: positive if the backlog
    /// grows.
    #[serde(rename = "dirty_blocks_growth_per_second")]
    dirty_growth: f64,
    #[serde(rename = "queued_blocks_growth_per_second")]
    queued_growth: f64,
    /// The share of writes that went to published blocks.
    #[serde(rename = "copied_writes")]
    copied: f64,
}

/// Slices of one load, onefold's first.
type Pairs = Vec<[Slice; 2]>;

/// All results of the benchmark.
pub(crate) struct Sharing {
    pub(crate) mode: Mode,
    peak: Pairs,
    paced: Pairs,
    paced_per_second: f64,
    copying: Pairs,
}

/// The names by which the rows of a mode are selected.
pub(crate) fn name(mode: Mode) -> String {
    format!("{} {NAME}", mode.name())
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan, mode: Mode) -> Result<Sharing> {
    let mut bench = Bench::start(workspace, mode)?;
    let (slices, seconds) = (plan.sharing_slices, plan.sharing_slice_seconds);
    let peak = bench.pairs(Load::Peak, slices, seconds)?;
    let passthrough = Estimate::over(peak.iter().map(|[_, base]| base.iops()));
    let passthrough = passthrough.context("no slices")?;
    let paced_per_second = passthrough.median / 2.0;
    let load = Load::Paced {
        per_second: paced_per_second,
    };
    let paced = bench.pairs(load, plan.latency_slices, seconds)?;
    bench.share_everything()?;
    let copying = bench.pairs(Load::Copying, plan.slices, plan.slice_seconds)?;
    bench.end()?;
    let measured = Sharing {
        mode,
        peak,
        paced,
        paced_per_second,
        copying,
    };
    for row in measured.rows()? {
        println!("{}", row.line());
    }
    println!("{}", measured.with_slow_moments()?.sentence(mode));
    Ok(measured)
}

/// The two servers, with finder and collector paused.
struct Bench {
    scratch: Scratch,
    product: Product,
    ours: Contender,
    passthrough: Contender,
    /// Number of volumes made so far as work for the finder; only the last one exists.
    supplies: usize,
}

impl Bench {
    fn start(workspace: &Workspace, mode: Mode) -> Result<Bench> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "bench")?;
        let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
        product.create_pool("16G")?;
        let size = DATA_BYTES.to_string();
        product
            .command()
            .args(["volume", "create", EXPORT, "--size", &size])
            .args(["--interval", "1", "--cold-passes", "2"])
            .run()?;
        let options = ["--latency-budget", LATENCY_BUDGET, "--cache", mode.name()];
        let daemon = product.serve(&options, &[])?;
        product.pause_jobs()?;
        let ours = Contender::product(&product, daemon);
        let passthrough = start_passthrough(workspace, scratch.path(), mode)?;
        let servers = [&ours, &passthrough];
        fill(scratch.path(), &servers, Fill::Small, DUPLICATES_PERCENT)?;
        Ok(Bench {
            scratch,
            product,
            ours,
            passthrough,
            supplies: 0,
        })
    }

    fn end(self) -> Result<()> {
        self.ours.daemon.kill()?;
        self.passthrough.daemon.kill()
    }

    fn pairs(&mut self, load: Load, slices: usize, seconds: u32) -> Result<Pairs> {
        let mut pairs = Vec::new();
        for group in 0..slices {
            pairs.push(if group % 2 == 0 {
                let ours = self.our_slice(load, seconds)?;
                [ours, self.passthrough_slice(load, seconds)?]
            } else {
                let base = self.passthrough_slice(load, seconds)?;
                [self.our_slice(load, seconds)?, base]
            });
        }
        Ok(pairs)
    }

    fn passthrough_slice(&self, load: Load, seconds: u32) -> Result<Slice> {
        Cmd::new("sync").run()?;
        let before = self.passthrough.daemon.cpu_seconds()?;
        let watch = Watch::start(CLIENT_PROCESSOR)?;
        let results = self.fio(load, &self.passthrough, seconds).run();
        let slow = watch.end()?;
        let results = results.context("the pass-through failed under load")?;
        let cpu = self.passthrough.daemon.cpu_seconds()? - before;
        self.slice(load, results, cpu, &slow)
    }

    /// Measures onefold. The jobs are paused before and after it.
    fn our_slice(&mut self, load: Load, seconds: u32) -> Result<Slice> {
        match load {
            Load::Peak | Load::Paced { .. } => self.renew_supply()?,
            Load::Copying => {
                self.product.dedup(None)?;
            }
        }
        Cmd::new("sync").run()?;
        let given_up_before = self.released()?;
        self.product.resume_jobs()?;
        let cpu_before = self.ours.daemon.cpu_seconds()?;
        let watch = Watch::start(CLIENT_PROCESSOR)?;
        let mut fio = self.fio(load, &self.ours, seconds).spawn()?;
        let length = Duration::from_secs(seconds.into());
        std::thread::sleep(WATCH_MARGIN.min(length / 4));
        let first = self.look_at_jobs()?;
        std::thread::sleep(length.saturating_sub(2 * WATCH_MARGIN.min(length / 4)));
        let last = self.look_at_jobs()?;
        let results = fio.wait_for_success();
        let slow = watch.end()?;
        let results = results.context("onefold failed under load")?;
        let cpu = self.ours.daemon.cpu_seconds()? - cpu_before;
        self.product.pause_jobs()?;
        let released = self.released()? - given_up_before;
        let mut slice = self.slice(load, results, cpu, &slow)?;
        slice.jobs = Some(Jobs {
            copied: released as f64 / slice.result.write.requests.max(1) as f64,
            ..last.since(&first)
        });
        Ok(slice)
    }

    fn fio(&self, load: Load, server: &Contender, seconds: u32) -> Fio {
        Fio::new(self.scratch.path(), "slice")
            .pin(Some(CLIENT_PROCESSOR))
            .job(load.job(&server.uri, seconds))
    }

    /// Evaluates a slice. Called before another load overwrites the log of latencies.
    fn slice(
        &self,
        load: Load,
        results: Vec<JobResult>,
        cpu_seconds: f64,
        slow: &SlowSpans,
    ) -> Result<Slice> {
        let result = results.into_iter().next().context("fio reported no job")?;
        let latency = match load {
            Load::Paced { .. } => {
                let requests = read_latencies(self.scratch.path(), LATENCIES)?;
                Some(Latency::of(&requests, slow)?)
            }
            Load::Peak | Load::Copying => None,
        };
        Ok(Slice {
            cpu_us: cpu_seconds * 1e6 / result.requests().max(1) as f64,
            result,
            latency,
            jobs: None,
        })
    }

    fn look_at_jobs(&self) -> Result<Look> {
        let backlog = self.product.backlog()?;
        Ok(Look {
            at: Instant::now(),
            found_bytes: self.product.work()?.found_bytes,
            dirty: backlog.dirty,
            queued: backlog.queued,
        })
    }

    /// References dropped so far. The jobs must be paused.
    fn released(&self) -> Result<u64> {
        Ok(self.product.work()?.released + self.product.backlog()?.queued)
    }

    /// Makes a new volume with fresh data and deletes the last one, whose blocks are published. The finder scans the
    /// new volume once, so that it can publish as soon as the slice begins.
    fn renew_supply(&mut self) -> Result<()> {
        self.remove_supply()?;
        self.supplies += 1;
        let (name, size) = (self.supply(), SUPPLY_BYTES.to_string());
        self.product
            .command()
            .args(["volume", "create", &name, "--size", &size])
            .args(["--interval", "1", "--cold-passes", "1"])
            .run()?;
        let job = Section::new("supply", &self.product.default_address().uri(&name))
            .set("rw", "write")
            .set("bs", "1m")
            .set("iodepth", 4)
            .set("size", SUPPLY_BYTES)
            .set("refill_buffers", 1)
            .set("dedupe_percentage", DUPLICATES_PERCENT)
            .set("randrepeat", 0)
            .set("end_fsync", 1);
        Fio::new(self.scratch.path(), "supply").job(job).run()?;
        self.product.resume_jobs()?;
        let start = Instant::now();
        while self.product.finder_rounds(&name)? == 0 {
            ensure!(
                start.elapsed() < DRAIN_LIMIT,
                "the finder does not look at {name}"
            );
            std::thread::sleep(LOOK_POLL);
        }
        self.product.pause_jobs()
    }

    fn supply(&self) -> String {
        format!("supply{}", self.supplies)
    }

    /// Deletes the last of these volumes, and waits until the collector is done.
    fn remove_supply(&mut self) -> Result<()> {
        if self.supplies > 0 {
            let name = self.supply();
            self.product
                .command()
                .args(["--quiet", "volume", "delete", &name, "--yes"])
                .run()?;
        }
        self.product.resume_jobs()?;
        self.product
            .wait_for_backlog(DRAIN_LIMIT, |backlog| backlog.queued == 0)?;
        self.product.pause_jobs()
    }

    /// Sets the volume up so that only `pool dedup` publishes its blocks.
    fn share_everything(&mut self) -> Result<()> {
        self.remove_supply()?;
        self.product
            .command()
            .args(["--quiet", "volume", "set", EXPORT])
            .args(["--interval", "86400", "--cold-passes", "16"])
            .run()
    }
}

/// The state of the jobs at one moment.
struct Look {
    at: Instant,
    found_bytes: u64,
    dirty: u64,
    queued: u64,
}

impl Look {
    fn since(&self, first: &Look) -> Jobs {
        let seconds = (self.at - first.at).as_secs_f64();
        let per_second = |last: u64, first: u64| (last as f64 - first as f64) / seconds;
        Jobs {
            finder_mb_per_second: per_second(self.found_bytes, first.found_bytes) / 1e6,
            dirty_growth: per_second(self.dirty, first.dirty),
            queued_growth: per_second(self.queued, first.queued),
            copied: 0.0,
        }
    }
}

/// The p99 with the moments in which the machine was slow.
pub(crate) struct SlowMoments {
    /// The share of requests in these moments, of onefold and of the pass-through.
    pub(crate) left_out: [f64; 2],
    pub(crate) reads: Estimate,
    pub(crate) writes: Estimate,
}

impl SlowMoments {
    pub(crate) fn sentence(&self, mode: Mode) -> String {
        let [ours, passthrough] = self.left_out.map(|part| 100.0 * part);
        format!(
            "The p99 ({}) leaves out the moments in which the machine itself was slow, which a short computation \
             detects, timed every 5 ms on the client's processor: {ours:.1} % of onefold's requests and \
             {passthrough:.1} % of the pass-through's. With them the ratio is {} for reads and {} for writes.",
            mode.name(),
            self.reads,
            self.writes
        )
    }
}

/// A row of the table: a number of onefold, relative to the pass-through.
pub(crate) struct Row {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) ratio: Estimate,
    pub(crate) ours: f64,
    pub(crate) passthrough: f64,
    pub(crate) finder_mb_per_second: f64,
    pub(crate) dirty_growth: f64,
    pub(crate) queued_growth: f64,
    pub(crate) copied: f64,
    pub(crate) must: f64,
    pub(crate) aim: f64,
    goal: Goal,
}

/// The subject of a ratio, which decides whether it must be above or below its goal, and under which conditions it
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Throughput with the finder running.
    Throughput,
    /// Latency with the finder at its rate and a backlog that does not grow.
    LatencyWithFinder,
    /// Throughput with nearly all writes copied.
    ThroughputOfCopies,
}

impl Row {
    /// Compares the ratio with a goal: "met" or "missed", or the reason why the row is not shown.
    pub(crate) fn verdict(&self, number: f64) -> &'static str {
        let met = match self.goal {
            Goal::LatencyWithFinder if self.finder_mb_per_second < FINDER_MB_PER_SECOND_MIN => {
                return "not shown: the finder was slower";
            }
            Goal::LatencyWithFinder if self.dirty_growth > 0.0 => {
                return "not shown: the backlog grew";
            }
            Goal::ThroughputOfCopies if self.copied < COPIED_MIN => {
                return "not shown: too few copies";
            }
            Goal::LatencyWithFinder => self.ratio.median <= number,
            Goal::Throughput | Goal::ThroughputOfCopies => self.ratio.median >= number,
        };
        verdict(met)
    }

    fn line(&self) -> String {
        format!(
            "{NAME}: {}: {}, must {}: {}; finder {:.0} MB/s, backlog \
             {:+.0} blocks/s, queue {:+.0} references/s, {:.0} % of writes copied",
            self.title,
            self.ratio,
            self.must,
            self.verdict(self.must),
            self.finder_mb_per_second,
            self.dirty_growth,
            self.queued_growth,
            100.0 * self.copied,
        )
    }
}

impl Sharing {
    pub(crate) fn rows(&self) -> Result<Vec<Row>> {
        let rate = self.paced_per_second;
        let mode = self.mode.name();
        let half = |what: &str| format!("{mode}: skewed, {rate:.0} requests/s, p99 of {what}");
        Ok(vec![
            Row {
                must: 0.85,
                aim: 0.95,
                ..row(
                    &self.peak,
                    &format!("{mode}: skewed, full speed"),
                    "requests/s",
                    Slice::iops,
                )?
            },
            Row {
                must: 1.3,
                aim: 1.1,
                goal: Goal::LatencyWithFinder,
                ..row(&self.paced, &half("reads"), "µs", |s| {
                    s.latency.map_or(f64::NAN, |l| l.read_p99_us)
                })?
            },
            Row {
                must: 1.3,
                aim: 1.1,
                goal: Goal::LatencyWithFinder,
                ..row(&self.paced, &half("writes"), "µs", |s| {
                    s.latency.map_or(f64::NAN, |l| l.write_p99_us)
                })?
            },
            Row {
                must: 0.60,
                aim: 0.80,
                goal: Goal::ThroughputOfCopies,
                ..row(
                    &self.copying,
                    &format!("{mode}: randwrite, all shared"),
                    "requests/s",
                    Slice::iops,
                )?
            },
        ])
    }

    /// The worse of the rows about latency with the finder running.
    pub(crate) fn p99_with_finder(&self) -> Option<Row> {
        let rows = self.rows().ok()?.into_iter();
        let latencies = rows.filter(|row| row.goal == Goal::LatencyWithFinder);
        latencies.max_by(|one, other| one.ratio.median.total_cmp(&other.ratio.median))
    }

    /// The ratios of the paced load, including the moments that the rows leave out.
    pub(crate) fn with_slow_moments(&self) -> Result<SlowMoments> {
        let ratio = |p99_us: fn(&JobResult) -> f64| {
            let ratios = self.paced.iter();
            let ratios = ratios.map(|[ours, base]| p99_us(&ours.result) / p99_us(&base.result));
            Estimate::over(ratios).context("no slices")
        };
        let left_out = [0, 1].map(|server| {
            let slices = self.paced.iter().map(|pair| &pair[server]);
            let parts = slices.filter_map(|slice| Some(slice.latency?.left_out));
            parts.sum::<f64>() / self.paced.len() as f64
        });
        Ok(SlowMoments {
            left_out,
            reads: ratio(|result| result.read.p99_us)?,
            writes: ratio(|result| result.write.p99_us)?,
        })
    }

    pub(crate) fn raw(&self) -> Value {
        let loads = [
            ("peak", &self.peak),
            ("paced", &self.paced),
            ("copying", &self.copying),
        ];
        let loads = loads.map(|(name, pairs)| {
            let pairs = pairs.iter();
            let pairs = pairs.map(|[ours, base]| json!({"onefold": ours, "pass-through": base}));
            json!({"load": name, "pairs": pairs.collect::<Vec<_>>()})
        });
        json!({"mode": self.mode, "latency_budget": LATENCY_BUDGET, "paced_per_second": self.paced_per_second,
               "loads": loads})
    }

    /// The results in [`Sharing::raw`].
    pub(crate) fn of_raw(raw: &Value) -> Result<Sharing> {
        let pairs = |load: usize| -> Result<Pairs> {
            let pairs = raw["loads"][load]["pairs"].as_array();
            let pairs = pairs.context("no pairs")?.iter();
            pairs
                .map(|pair| Ok([read(&pair["onefold"])?, read(&pair["pass-through"])?]))
                .collect()
        };
        Ok(Sharing {
            mode: read(&raw["mode"])?,
            peak: pairs(0)?,
            paced: pairs(1)?,
            paced_per_second: read(&raw["paced_per_second"])?,
            copying: pairs(2)?,
        })
    }
}

/// A row without goals.
fn row(
    pairs: &Pairs,
    title: &str,
    unit: &'static str,
    value: impl Fn(&Slice) -> f64,
) -> Result<Row> {
    let jobs = |of: fn(&Jobs) -> f64| {
        let ours = pairs.iter().filter_map(|[ours, _]| ours.jobs.as_ref());
        median(ours.map(of))
    };
    let ratios = pairs.iter();
    let ratios = ratios.map(|[ours, base]| value(ours) / value(base));
    Ok(Row {
        title: title.to_owned(),
        unit,
        ratio: Estimate::over(ratios).with_context(|| format!("{title}: no slices"))?,
        ours: median(pairs.iter().map(|[ours, _]| value(ours))),
        passthrough: median(pairs.iter().map(|[_, base]| value(base))),
        finder_mb_per_second: jobs(|jobs| jobs.finder_mb_per_second),
        dirty_growth: jobs(|jobs| jobs.dirty_growth),
        queued_growth: jobs(|jobs| jobs.queued_growth),
        copied: jobs(|jobs| jobs.copied),
        must: f64::NAN,
        aim: f64::NAN,
        goal: Goal::Throughput,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(iops: f64, p99_us: f64, jobs: Option<Jobs>) -> Slice {
        let direction = Direction {
            requests: 100,
            bytes: 100 * 4096,
            iops: iops / 2.0,
            mean_us: 1.0,
            p99_us,
        };
        Slice {
            result: JobResult {
                read: direction.clone(),
                write: direction,
            },
            cpu_us: 1.0,
            latency: Some(Latency {
                read_p99_us: p99_us,
                write_p99_us: p99_us,
                left_out: 0.0,
            }),
            jobs,
        }
    }

    fn sharing(jobs: Jobs) -> Sharing {
        let pairs = vec![[slice(90.0, 120.0, Some(jobs)), slice(100.0, 100.0, None)]; 6];
        Sharing {
            mode: Mode::Host,
            peak: pairs.clone(),
            paced: pairs.clone(),
            paced_per_second: 50.0,
            copying: pairs,
        }
    }

    const GOOD: Jobs = Jobs {
        finder_mb_per_second: 61.0,
        dirty_growth: -5.0,
        queued_growth: 0.0,
        copied: 0.99,
    };

    fn verdicts(jobs: Jobs) -> Vec<&'static str> {
        let rows = sharing(jobs).rows().unwrap();
        rows.iter().map(|row| row.verdict(row.must)).collect()
    }

    #[test]
    fn throughput_counts_from_below_and_latency_from_above() {
        let rows = sharing(GOOD).rows().unwrap();
        let ratios: Vec<f64> = rows.iter().map(|row| row.ratio.median).collect();
        assert_eq!(ratios, [0.9, 1.2, 1.2, 0.9]);
        let aims: Vec<_> = rows.iter().map(|row| row.verdict(row.aim)).collect();
        assert_eq!(verdicts(GOOD), ["met"; 4]);
        assert_eq!(aims, ["missed", "missed", "missed", "met"]);
    }

    #[test]
    fn raw_results_can_be_read_again() {
        let raw = sharing(GOOD).raw();
        assert_eq!(raw["loads"][1]["pairs"][0]["onefold"]["read"]["iops"], 45.0);
        assert_eq!(Sharing::of_raw(&raw).unwrap().raw(), raw);
    }

    #[test]
    fn what_is_answered_while_the_machine_is_slow_does_not_count() {
        let request = |n: u32, latency_us| Request {
            at_ms: f64::from(n),
            latency_us,
            is_write: n % 2 == 1,
        };
        let mut requests: Vec<Request> =
            (0..1000).map(|n| request(n, f64::from(n % 100))).collect();
        requests.extend((2000..2050).map(|n| request(n, 9999.0)));
        let steady = Latency::of(&requests, &SlowSpans::from([(1990.0, 2060.0)])).unwrap();
        assert_eq!([steady.read_p99_us, steady.write_p99_us], [98.0, 99.0]);
        assert_eq!(steady.left_out, 50.0 / 1050.0);
        let all = Latency::of(&requests, &SlowSpans::from([])).unwrap();
        assert_eq!([all.read_p99_us, all.write_p99_us], [9999.0; 2]);
        assert!(Latency::of(&requests, &SlowSpans::from([(0.0, 3000.0)])).is_err());
    }

    #[test]
    fn a_row_whose_conditions_were_not_there_shows_nothing() {
        let slow = Jobs {
            finder_mb_per_second: 9.0,
            ..GOOD
        };
        assert_eq!(verdicts(slow)[1], "not shown: the finder was slower");
        let growing = Jobs {
            dirty_growth: 1.0,
            ..GOOD
        };
        assert_eq!(verdicts(growing)[2], "not shown: the backlog grew");
        let in_place = Jobs {
            copied: 0.5,
            ..GOOD
        };
        assert_eq!(verdicts(in_place)[3], "not shown: too few copies");
    }
}
