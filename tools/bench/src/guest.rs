//! `cargo xtask bench sharing`: how much deduplication delays the requests of a guest, past the host's page cache.
//!
//! A guest makes requests at a fixed rate all the time, and logs each one. Windows with deduplication are compared with
//! windows without it, of the same load and daemon, pair by pair. The state of the pool's data decides what a copy
//! costs, so each state has its row: a file that is new, one whose blocks have all been used, and a device.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Background, Fio, Request, Section, read_latencies};
use onefold_harness::loop_device::LoopDevice;
use onefold_harness::packages;
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

use crate::guest_report::{self, Case, Measured, Run};
use crate::kernel_workers::KernelWorkers;
use crate::page;
use crate::plan::{CLIENT_PROCESSOR, SERVER_PROCESSOR, require_processors};
use crate::sharing::{DUPLICATES_PERCENT, LATENCY_BUDGET, SKEW};
use crate::slices::DATA_BYTES;
use crate::windows::{Counts, Pair, Span, Spans, WINDOW, epoch_ms, in_either_order};

/// Options of `cargo xtask bench sharing`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Measure fewer pairs of windows, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Measure nothing; write docs/benchmarks-sharing.md again from the raw results of the last run
    #[arg(long, conflicts_with = "quick")]
    render: bool,
}

/// The number of pairs of windows.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// New pools of a row about `pool dedup`, and the pairs of each of them.
    pools: usize,
    pairs_of_pool: usize,
    /// Pairs of stretches, one in which jobs are resumed and one in which they are paused.
    stretches_of_jobs: usize,
}

const WHOLE: Plan = Plan {
    pools: 4,
    pairs_of_pool: 5,
    stretches_of_jobs: 4,
};
const QUICK: Plan = Plan {
    pools: 1,
    pairs_of_pool: 4,
    stretches_of_jobs: 1,
};

/// The size of a pool, many times as large as the data of the guest.
pub(crate) const POOL_BYTES: u64 = 8 << 30;

/// New data for the finder: more than it reads in all windows.
pub(crate) const SUPPLY_BYTES: u64 = 4 << 30;

/// How often each block of a used file is rewritten and released before the measurement.
const USES: usize = 3;

/// How often `pool dedup` may find more to do although no guest writes.
const DEDUPS_MAX: usize = 10;

const GUEST: &str = "guest";
const SUPPLY: &str = "supply";
const LATENCIES: &str = "guest";

/// fio's name for requests that are equally likely everywhere.
const UNIFORM: &str = "random";

/// How long the guest's maximum rate is measured, in seconds.
const PEAK_SECONDS: u32 = 3;

/// Windows of a stretch: several batches of the finder, which waits seconds for each.
pub(crate) const STRETCH_WINDOWS: usize = 12;

/// How long a load runs before its first window.
const RAMP: Duration = Duration::from_secs(2);

/// The time between the end of jobs and the next window: a guest that was slowed down makes the requests that it owes.
const CATCHING_UP: Duration = Duration::from_secs(1);

/// The longest time for which a load runs, in seconds: more than all windows take.
const LOAD_SECONDS: u32 = 900;

/// How long the finder may take for a pass over a volume.
const PASS_LIMIT: Duration = Duration::from_secs(60);

/// The interval at which the finder's passes are counted.
const PASS_POLL: Duration = Duration::from_millis(20);

/// `cargo xtask bench sharing`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if arguments.render {
        return guest_report::render(workspace);
    }
    packages::require(packages::CLIENTS)?;
    require_processors()?;
    let start = Instant::now();
    let plan = if arguments.quick { QUICK } else { WHOLE };
    let rows = [
        after_dedup(workspace, plan, Case::NewFile, &[])?,
        after_dedup(workspace, plan, Case::UsedFile, &[])?,
        on_device(workspace, plan)?,
        jobs_at_work(workspace, plan)?,
    ];
    let conditions = page::conditions(workspace, "cargo xtask bench sharing", start.elapsed())?;
    let page = guest_report::page(&conditions, &rows);
    let raw = guest_report::raw(&conditions, &rows);
    println!("\n{page}");
    if arguments.quick {
        println!("{raw}");
        return Ok(());
    }
    page::write(workspace, guest_report::NAME, &page, &raw)
}

/// Windows before `pool dedup`, when writes go in place, and after it, when the first one to each block is a copy.
fn after_dedup(
    workspace: &Workspace,
    plan: Plan,
    case: Case,
    data_options: &[&str],
) -> Result<Measured> {
    let mut measured = Measured::nothing_yet(case);
    for _ in 0..plan.pools {
        let guest = Guest::start(workspace, UNIFORM, data_options)?;
        guest.fill(GUEST, DATA_BYTES)?;
        if case == Case::UsedFile {
            guest.use_blocks()?;
        }
        let load = guest.load()?;
        let windows = || (0..plan.pairs_of_pool).map(|_| load.window());
        let without = windows().collect::<Result<Vec<_>>>()?;
        guest.product.dedup(Some(GUEST))?;
        let with = windows().collect::<Result<Vec<_>>>()?;
        let pairs = with.into_iter().zip(without);
        let pairs = pairs.map(|(with, without)| Spans { with, without });
        load.end(&pairs.collect::<Vec<_>>(), &mut measured)?;
        guest.end()?;
    }
    println!("{}", measured.line());
    Ok(measured)
}

/// [`after_dedup`] on a device all of whose bytes have been written, so that no hole of its file is in the way.
fn on_device(workspace: &Workspace, plan: Plan) -> Result<Measured> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "device")?;
    let file = scratch.path().join("device");
    std::fs::File::create(&file)
        .and_then(|made| made.set_len(POOL_BYTES))
        .context("cannot make a file for a device")?;
    let attached = LoopDevice::attach(&file);
    let Ok(device) = attached.inspect_err(|error| println!("no loop device: {error:#}")) else {
        return Ok(Measured::not_run(Case::Device, "no loop device"));
    };
    let device = device.path().to_string_lossy();
    Cmd::new("dd")
        .args(["if=/dev/zero", "bs=1M", "oflag=direct", "conv=fsync"])
        .arg(format!("of={device}"))
        .arg(format!("count={}", POOL_BYTES >> 20))
        .run()?;
    let options = ["--data", &device, "--yes"];
    after_dedup(workspace, plan, Case::Device, &options)
}

/// Stretches in which jobs are resumed, and ones in which they are paused. The guest's blocks are published before, so
/// that copies happen in all of them; most requests go to few blocks, so that copies last.
fn jobs_at_work(workspace: &Workspace, plan: Plan) -> Result<Measured> {
    let mut measured = Measured::nothing_yet(Case::JobsAtWork);
    let guest = Guest::start(workspace, SKEW, &[])?;
    guest.fill(GUEST, DATA_BYTES)?;
    guest.make_supply()?;
    let rate = guest.half_rate()?;
    guest.product.dedup(Some(GUEST))?;
    let load = guest.load_at(rate)?;
    let mut pairs = Vec::new();
    for _ in 0..plan.stretches_of_jobs {
        let (with, without) =
            in_either_order(fastrand::bool(), |jobs_work| load.stretch(jobs_work))?;
        let windows = with.into_iter().zip(without);
        pairs.extend(windows.map(|(with, without)| Spans { with, without }));
    }
    load.end(&pairs, &mut measured)?;
    guest.end()?;
    println!("{}", measured.line());
    Ok(measured)
}

/// A pool with the guest's volume, and its daemon, whose jobs are paused.
struct Guest {
    // Dropped before the files that it uses.
    daemon: Daemon,
    workers: Option<KernelWorkers>,
    product: Product,
    scratch: Scratch,
    /// fio's name for the way in which requests are spread over the volume.
    distribution: &'static str,
}

impl Guest {
    fn start(
        workspace: &Workspace,
        distribution: &'static str,
        data_options: &[&str],
    ) -> Result<Guest> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "guest")?;
        let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
        product.create_pool_with(&POOL_BYTES.to_string(), data_options)?;
        create_volume(&product, GUEST, DATA_BYTES, 2)?;
        let options = ["--latency-budget", LATENCY_BUDGET, "--cache", "direct"];
        let daemon = product.serve(&options, &[])?;
        product.pause_jobs()?;
        let workers = KernelWorkers::watch(daemon.pid()?, scratch.path());
        let unknown = |error: &anyhow::Error| {
            println!("requests passed to kernel workers are not counted: {error:#}");
        };
        Ok(Guest {
            daemon,
            workers: workers.inspect_err(unknown).ok(),
            product,
            scratch,
            distribution,
        })
    }

    fn end(self) -> Result<()> {
        self.daemon.kill()
    }

    fn uri(&self, volume: &str) -> String {
        self.product.default_address().uri(volume)
    }

    /// Writes a whole volume.
    fn fill(&self, volume: &str, bytes: u64) -> Result<()> {
        let job = Section::new("fill", &self.uri(volume))
            .set("rw", "write")
            .set("bs", "1m")
            .set("iodepth", 4)
            .set("size", bytes)
            .set("refill_buffers", 1)
            .set("dedupe_percentage", DUPLICATES_PERCENT)
            .set("randrepeat", 0)
            .set("end_fsync", 1);
        let fio = Fio::new(self.scratch.path(), "fill").job(job);
        fio.run().map(drop)
    }

    /// Rewrites and releases each block some times. At the end the volume's blocks are private again.
    fn use_blocks(&self) -> Result<()> {
        for _ in 0..=USES {
            self.dedup_all()?;
            self.fill(GUEST, DATA_BYTES)?;
        }
        Ok(())
    }

    /// Publishes all blocks, and releases all references that were dropped.
    fn dedup_all(&self) -> Result<()> {
        for _ in 0..DEDUPS_MAX {
            self.product.dedup(Some(GUEST))?;
            let backlog = self.product.backlog()?;
            if backlog.dirty == 0 && backlog.queued == 0 {
                return Ok(());
            }
        }
        bail!("after {DEDUPS_MAX} runs pool dedup still has work")
    }

    /// Makes a volume with new data, and has the finder scan it once, so that it can publish as soon as it is resumed.
    fn make_supply(&self) -> Result<()> {
        create_volume(&self.product, SUPPLY, SUPPLY_BYTES, 1)?;
        self.fill(SUPPLY, SUPPLY_BYTES)?;
        self.product.resume_jobs()?;
        let start = Instant::now();
        while self.product.finder_rounds(SUPPLY)? == 0 {
            let elapsed = start.elapsed();
            ensure!(elapsed < PASS_LIMIT, "the finder does not scan {SUPPLY}");
            thread::sleep(PASS_POLL);
        }
        self.product.pause_jobs()
    }

    /// Starts the guest at half of its maximum rate.
    fn load(&self) -> Result<Load<'_>> {
        self.load_at(self.half_rate()?)
    }

    /// Half of the requests per second that the guest makes at most.
    fn half_rate(&self) -> Result<f64> {
        let job = self.job().set("runtime", PEAK_SECONDS);
        let results = self.fio(job).run()?;
        let peak = results.first().context("fio reported no job")?;
        Ok((peak.read.iops + peak.write.iops) / 2.0)
    }

    fn load_at(&self, per_second: f64) -> Result<Load<'_>> {
        Cmd::new("sync").run()?;
        // The limit holds for each direction.
        let each = (per_second / 2.0) as u64;
        let job = self
            .job()
            .set("runtime", LOAD_SECONDS)
            .set("rate_iops", format!("{each},{each}"))
            .log_latencies(LATENCIES);
        let fio = self.fio(job).spawn()?;
        thread::sleep(RAMP);
        Ok(Load {
            guest: self,
            per_second,
            fio,
        })
    }

    fn job(&self) -> Section {
        Section::new("guest", &self.uri(GUEST))
            .set("rw", "randrw")
            .set("bs", "4k")
            .set("iodepth", 32)
            .set("size", DATA_BYTES)
            .set("norandommap", 1)
            .set("random_distribution", self.distribution)
            .set("randrepeat", 0)
            .set("refill_buffers", 1)
            .set("dedupe_percentage", DUPLICATES_PERCENT)
            .set("time_based", 1)
    }

    fn fio(&self, job: Section) -> Fio {
        let fio = Fio::new(self.scratch.path(), "guest");
        fio.pin(Some(CLIENT_PROCESSOR)).job(job)
    }

    /// The daemon's counts. Copies are exact only while jobs are paused.
    fn counts(&self) -> Result<Counts> {
        let work = self.product.work()?;
        let workers = self.workers.as_ref();
        Ok(Counts {
            copies: work.released + self.product.backlog()?.queued,
            found_bytes: work.found_bytes,
            passed_on: workers.and_then(|workers| workers.passed_on().ok()),
            at_ms: epoch_ms()?,
        })
    }
}

/// A volume whose blocks the finder publishes after they have rested for some passes.
fn create_volume(product: &Product, name: &str, bytes: u64, cold_passes: u32) -> Result<()> {
    let create = product
        .command()
        .args(["--quiet", "volume", "create", name]);
    create
        .args(["--size", &bytes.to_string(), "--interval", "1"])
        .args(["--cold-passes", &cold_passes.to_string()])
        .run()
}

/// A guest at work.
struct Load<'a> {
    guest: &'a Guest,
    per_second: f64,
    fio: Background,
}

impl Load<'_> {
    /// Waits for a window.
    fn window(&self) -> Result<Span> {
        let before = self.guest.counts()?;
        let start = epoch_ms()?;
        thread::sleep(WINDOW);
        let end = epoch_ms()?;
        let after = self.guest.counts()?;
        Ok(Span {
            time: start..end,
            before,
            after,
        })
    }

    /// Waits for several windows, in which the jobs work or are paused. They are paused before and afterwards.
    fn stretch(&self, jobs_work: bool) -> Result<Vec<Span>> {
        let product = &self.guest.product;
        let first = self.guest.counts()?;
        if jobs_work {
            product.resume_jobs()?;
        }
        let windows = (0..STRETCH_WINDOWS).map(|_| self.window());
        let mut windows = windows.collect::<Result<Vec<_>>>()?;
        if jobs_work {
            product.pause_jobs()?;
        }
        let last = self.guest.counts()?;
        thread::sleep(CATCHING_UP);
        // The finder reports whole batches: each window has the rate of the stretch.
        let per_ms = (last.found_bytes - first.found_bytes) as f64 / (last.at_ms - first.at_ms);
        for Span { before, after, .. } in &mut windows {
            before.found_bytes = 0;
            after.found_bytes = (per_ms * (after.at_ms - before.at_ms)) as u64;
        }
        Ok(windows)
    }

    /// Ends the load, and cuts the pairs out of its log.
    fn end(mut self, pairs: &[Spans], measured: &mut Measured) -> Result<()> {
        ensure!(
            self.fio.is_running()?,
            "the guest ended before it was measured\n{}",
            self.fio.said()
        );
        self.fio.interrupt()?;
        let requests: Vec<Request> = read_latencies(self.guest.scratch.path(), LATENCIES)?;
        let pairs = pairs.iter().map(|spans| Pair::cut(&requests, spans));
        measured.add(Run {
            nominal_per_second: self.per_second,
            pairs: pairs.collect::<Result<_>>()?,
        });
        Ok(())
    }
}
