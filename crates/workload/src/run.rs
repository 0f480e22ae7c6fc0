//! A load, from its start to its measurements.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::addresses::Pattern;
use crate::content::Contents;
use crate::deal::{ContentId, Dealer, Share};
use crate::distribution::Distribution;
use crate::error::WorkloadError;
use crate::job::{Job, Part, Phase};
use crate::measure::{Measurement, Operation};
use crate::permutation::mix;
use crate::scale::Scaled;
use crate::target::{Target, machine_memory_bytes};

/// The most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// The most jobs.
const JOBS_MAX: u64 = 1024;

/// Memory for each block: the number of the content that was written there last.
const BLOCK_MEMORY_BYTES: u64 = size_of::<ContentId>() as u64;

/// Which requests a load makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Writes only.
    Write,
    /// Writes everything once, and then reads.
    Read,
    /// Writes everything once, and then reads and writes.
    Mixed {
        /// The approximate percentage of requests that are reads.
        read_percent: u8,
    },
}

impl std::str::FromStr for Mode {
    type Err = String;

    /// `write`, `read`, `mixed` or `mixed:READ_PERCENT`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "write" => Ok(Self::Write),
            None if text == "read" => Ok(Self::Read),
            None if text == "mixed" => Ok(Self::Mixed { read_percent: 50 }),
            Some(("mixed", percent)) => {
                let percent = percent.parse().ok().filter(|percent| *percent <= 100);
                let read_percent = percent
                    .ok_or_else(|| format!("'{text}': the percentage of reads is from 0 to 100"))?;
                Ok(Self::Mixed { read_percent })
            }
            _ => Err(format!(
                "'{text}' is no mode: write, read, mixed and mixed:READ_PERCENT are"
            )),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write => f.write_str("write"),
            Self::Read => f.write_str("read"),
            Self::Mixed { read_percent } => write!(f, "mixed:{read_percent}"),
        }
    }
}

/// The parameters of a load.
#[derive(Debug, Clone)]
pub struct Load {
    /// The kinds of requests.
    pub mode: Mode,
    /// The order of addresses.
    pub pattern: Pattern,
    /// Bytes of each request: whole blocks.
    pub request_bytes: u64,
    /// The number of parts of the region, each with a job of its own.
    pub jobs: u64,
    /// The time limit.
    pub time: Option<Duration>,
    /// The most requests. Without this and a time limit, as many as the region has room for.
    pub requests: Option<u64>,
    /// Requests per second of all jobs together; without it, each job makes one after another.
    pub rate: Option<f64>,
    /// Whether the written data is read at the end.
    pub reads_back: bool,
    /// The percentage of each block that compresses to nearly nothing.
    pub compressible_percent: u8,
    /// The seed that determines contents and addresses.
    pub seed: u64,
    /// The part of several concurrent loads that this one does.
    pub share: Share,
}

/// The part of a target that a load uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The size in bytes, from the target's first byte.
    pub bytes: u64,
    /// The number of blocks in the region.
    pub blocks: u64,
    /// The number of requests for which each job has room in its part.
    pub slots: u64,
    /// Blocks of a request.
    pub request_blocks: u64,
}

impl Load {
    /// The part of `bytes` bytes that the load uses: whole requests, equally many for each job.
    ///
    /// # Errors
    ///
    /// If a request is not of whole blocks, if there is no room for one request per job, or if
    /// memory cannot be allocated for this number of blocks.
    pub fn region(&self, block_bytes: u64, bytes: u64) -> Result<Region, WorkloadError> {
        let request_bytes = self.request_bytes;
        let is_fine = (block_bytes..=REQUEST_BYTES_MAX).contains(&request_bytes);
        if !is_fine || !request_bytes.is_multiple_of(block_bytes) {
            return Err(WorkloadError::usage(format!(
                "requests of {request_bytes} bytes: whole blocks of {block_bytes} bytes they must be, \
                 and {REQUEST_BYTES_MAX} bytes at most"
            )));
        }
        if !(1..=JOBS_MAX).contains(&self.jobs) {
            return Err(WorkloadError::usage(format!(
                "1 to {JOBS_MAX} jobs there can be"
            )));
        }
        let slots = bytes / request_bytes / self.jobs;
        if slots == 0 {
            return Err(WorkloadError::usage(format!(
                "{bytes} bytes have no room for a request of {request_bytes} bytes in each of {} \
                 parts",
                self.jobs
            )));
        }
        let bytes = slots * self.jobs * request_bytes;
        let blocks = bytes / block_bytes;
        let (needed, there) = (
            blocks.saturating_mul(BLOCK_MEMORY_BYTES),
            machine_memory_bytes(),
        );
        if needed > there {
            return Err(WorkloadError::usage(format!(
                "{blocks} blocks: to keep what each should hold takes {needed} bytes of memory, and \
                 this machine has {there}; use less of the target"
            )));
        }
        Ok(Region {
            bytes,
            blocks,
            slots,
            request_blocks: request_bytes / block_bytes,
        })
    }
}

/// The progress of a load, and whether it should continue.
#[derive(Debug, Default)]
pub struct LoadProgress {
    done: AtomicU64,
    all: AtomicU64,
    stops: AtomicBool,
}

impl LoadProgress {
    /// The steps done, and all steps, of the present phase.
    #[must_use]
    pub fn steps(&self) -> (u64, u64) {
        let all = self.all.load(Ordering::Relaxed);
        (self.done.load(Ordering::Relaxed).min(all), all)
    }

    /// Ends the load soon; the measurements up to then are reported.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Whether the load was asked to end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, all: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }

    pub(crate) fn add(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, done: u64) {
        self.done.fetch_max(done, Ordering::Relaxed);
    }
}

/// The result of a load.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// Whether the load ran to its end without being stopped.
    pub is_complete: bool,
    /// The phases in order.
    pub phases: Vec<PhaseReport>,
}

/// The result of a part of a load.
#[derive(Debug, Clone)]
pub struct PhaseReport {
    /// `fill`, `write`, `read`, `mixed` or `read-back`.
    pub name: &'static str,
    /// The time from its first request to its end, including a flush if data was written.
    pub elapsed: Duration,
    /// The measurements of all jobs together.
    pub measurement: Measurement,
}

/// Runs a load on a region of a target.
///
/// # Errors
///
/// If the target fails, or did not keep the written data.
pub fn run(
    target: &dyn Target,
    region: Region,
    scaled: &Scaled,
    load: &Load,
    progress: &LoadProgress,
) -> Result<LoadReport, WorkloadError> {
    let block_bytes = (load.request_bytes / region.request_blocks) as usize;
    let contents = Contents::new(load.seed, block_bytes, load.compressible_percent);
    let dealer = Dealer::new(scaled, load.share, load.seed);
    let jobs = (0..load.jobs).map(|n| Job::new(n, target, region, &contents, &dealer));
    let mut jobs: Vec<Job<'_>> = jobs.collect::<Result<_, _>>()?;
    let mut report = LoadReport {
        is_complete: true,
        phases: Vec::new(),
    };
    for (name, phase) in phases(load, region) {
        if progress.is_stopping() {
            break;
        }
        let done = run_phase(name, &phase, &mut jobs, load, progress)?;
        report.phases.push(done);
    }
    report.is_complete = !progress.is_stopping();
    Ok(report)
}

/// The distribution for all shares of a load in this region.
#[must_use]
pub fn scaled(distribution: &Distribution, region: Region, share: Share) -> Scaled {
    let blocks = region.blocks.saturating_mul(share.count.max(1));
    Scaled::new(distribution, blocks.min(1 << 48))
}

fn phases(load: &Load, region: Region) -> Vec<(&'static str, Phase)> {
    let all = region.slots * load.jobs;
    let once = |read_percent| Phase {
        read_percent,
        pattern: Pattern::Sequential,
        requests: Some(all),
        time: None,
        rate: None,
        is_read_back: false,
    };
    let main = |read_percent| Phase {
        pattern: load.pattern,
        requests: load.requests.or(load.time.is_none().then_some(all)),
        time: load.time,
        rate: load.rate,
        ..once(read_percent)
    };
    let read_back = Phase {
        is_read_back: true,
        ..once(100)
    };
    let mut phases = match load.mode {
        Mode::Write => vec![("write", main(0))],
        Mode::Read => vec![("fill", once(0)), ("read", main(100))],
        Mode::Mixed { read_percent } => {
            vec![("fill", once(0)), ("mixed", main(read_percent))]
        }
    };
    if load.reads_back && load.mode != Mode::Read {
        phases.push(("read-back", read_back));
    }
    phases
}

fn run_phase(
    name: &'static str,
    phase: &Phase,
    jobs: &mut [Job<'_>],
    load: &Load,
    progress: &LoadProgress,
) -> Result<PhaseReport, WorkloadError> {
    let steps = phase.time.map(|time| time.as_millis() as u64);
    progress.begin(steps.or(phase.requests).unwrap_or(0));
    let mut all = Measurement::new().map_err(WorkloadError::usage)?;
    let has_failed = AtomicBool::new(false);
    let count = jobs.len() as u64;
    let start = Instant::now();
    let done: Vec<Result<Measurement, WorkloadError>> = thread::scope(|scope| {
        let work = |n: u64, job| {
            let (phase, has_failed) = (phase, &has_failed);
            scope.spawn(move || {
                let part = Part {
                    number: n,
                    jobs: count,
                };
                let seed = seed_of(load, n);
                let is_ending = || progress.is_stopping() || has_failed.load(Ordering::Relaxed);
                let job: &mut Job<'_> = job;
                let done = job.work(phase, part, seed, start, progress, &is_ending);
                has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
                done
            })
        };
        let jobs = (0..).zip(jobs.iter_mut());
        let threads: Vec<_> = jobs.map(|(n, job)| work(n, job)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    for done in done {
        all.join(done?);
    }
    if phase.read_percent < 100
        && let Some(job) = jobs.first_mut()
    {
        let begin = Instant::now();
        job.flush()?;
        all.add(Operation::Flush, 0, begin.elapsed(), start.elapsed());
    }
    Ok(PhaseReport {
        name,
        elapsed: start.elapsed(),
        measurement: all,
    })
}

/// The seed of a job: each job of each concurrent load draws independently.
fn seed_of(load: &Load, job: u64) -> u64 {
    mix(load.seed ^ mix(load.share.index << 32 | job))
}
