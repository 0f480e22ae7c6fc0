//! `cargo xtask bench study`: the speed and memory of `onefold analyze`; and the rate at which `onefold bench` makes
//! and compares blocks if nothing else takes time.
//!
//! The shipped program analyses files of random blocks, all different and all in the page cache, on two processors. A
//! round runs every program once, so that ratios compare runs that are close in time; the first round warms up and is
//! not counted. `duperemove` computes the checksums of the same files in each round.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::import::write_blocks;
use crate::plan::{CLIENT_PROCESSOR, SERVER_PROCESSOR};
use crate::statistics::Estimate;
use crate::{page, study_report};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::{Cmd, last_lines};
use onefold_harness::distinct::BLOCK_BYTES;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

/// Options of `cargo xtask bench study`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Use an eighth of the data and of the little memory, and run one round, for a quick impression
    #[arg(long)]
    quick: bool,
}

/// The size of the measurement.
pub(crate) struct Plan {
    pub(crate) file_bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) little_mib: u64,
    /// The data that `onefold bench` writes to memory.
    pub(crate) load_mib: u64,
}

const WHOLE: Plan = Plan {
    file_bytes: 1 << 30,
    rounds: 5,
    little_mib: 64,
    load_mib: 4096,
};
const QUICK: Plan = Plan {
    file_bytes: 128 << 20,
    rounds: 1,
    little_mib: 8,
    load_mib: 512,
};

/// Several files, because the content-defined chunks of one file are cut by one processor.
pub(crate) const FILES: u64 = 8;

/// How often each file is named to get many records: the page cache has room for only eight gigabytes of different
/// blocks, and repeated blocks get records, too.
pub(crate) const TIMES: u64 = 7;

/// Bytes of a chunk's record: 32 until chunks are counted, and 16 afterwards.
const RECORD_BYTES: u64 = 48;

/// How many times more records there must be than fit, in runs with little memory.
const EXCESS_MIN: f64 = 10.0;

/// The memory limit that counts as ample.
const MUCH: &str = "2G";

/// The size of the smallest blocks: they give the most records for the data in the page cache.
const SMALL_BYTES: u64 = 512;

/// The chunking of the run with content-defined chunks.
const CONTENT: &str = "content:8K";

/// The poll interval for a running program.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The programs of each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Blocks of 4 KiB with the default memory, where all records fit.
    Exact,
    /// More records than fit, because every file is named many times.
    Little,
    /// As [`Way::Little`], with enough memory.
    Much,
    /// More records than fit, because blocks are small; all are different.
    SmallLittle,
    /// As [`Way::SmallLittle`], with enough memory.
    SmallMuch,
    Content,
    Harnik,
    Duperemove,
    /// `onefold bench` on memory, on one processor: writes each block, reads it back and compares it.
    Load,
}

pub(crate) const WAYS: [Way; 9] = [
    Way::Exact,
    Way::Little,
    Way::Much,
    Way::SmallLittle,
    Way::SmallMuch,
    Way::Content,
    Way::Harnik,
    Way::Duperemove,
    Way::Load,
];

/// The cost of one run of a program.
pub(crate) struct Run {
    /// Seconds from start to end; for [`Way::Load`] the program's own figure, without the time to deal out contents.
    pub(crate) seconds: f64,
    pub(crate) peak_memory_bytes: u64,
    /// Bytes read from the device instead of the page cache.
    pub(crate) device_read_bytes: u64,
}

/// All measurements, in the order of [`WAYS`], by round.
pub(crate) struct Measured {
    pub(crate) runs: [Vec<Run>; WAYS.len()],
    /// The version of duperemove, or the reason why it was not run.
    pub(crate) duperemove: Result<String, String>,
}

/// `cargo xtask bench study`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let processors = std::thread::available_parallelism().context("cannot count processors")?;
    ensure!(processors.get() > 1, "this needs two processors");
    let plan = if arguments.quick { QUICK } else { WHOLE };
    for way in WAYS {
        let excess = plan.excess(way);
        ensure!(
            excess.is_none_or(|excess| excess >= EXCESS_MIN),
            "too few records in {}",
            way.title()
        );
    }
    let start = Instant::now();
    let measured = Bench::new(workspace, &plan)?.measure();
    let conditions = page::conditions(workspace, COMMAND, start.elapsed())?;
    let page = study_report::page(&conditions, &plan, &measured);
    if arguments.quick {
        println!("\n{page}\n(not a whole run: nothing is written)");
        return Ok(());
    }
    let raw = json!({"conditions": conditions, "measured": measured.raw(&plan)});
    page::write(workspace, study_report::NAME, &page, &raw)
}

const COMMAND: &str = "cargo xtask bench study";

impl Plan {
    /// The size of all files together.
    pub(crate) fn data_bytes(&self) -> u64 {
        FILES * self.file_bytes
    }

    /// Bytes that a program reads.
    pub(crate) fn read_bytes(&self, way: Way) -> u64 {
        match way {
            Way::Load => self.load_mib << 20,
            _ => self.data_bytes() * way.times(),
        }
    }

    /// How many times more records there are than fit, if memory is little.
    pub(crate) fn excess(&self, way: Way) -> Option<f64> {
        let records = self.read_bytes(way) / way.block_bytes();
        let fit = (self.little_mib << 20) / RECORD_BYTES;
        let is_little = matches!(way, Way::Little | Way::SmallLittle);
        is_little.then(|| records as f64 / fit as f64)
    }

    /// The value of `--memory`, if the option is given.
    pub(crate) fn memory(&self, way: Way) -> Option<String> {
        match way {
            Way::Little | Way::SmallLittle => Some(format!("{}M", self.little_mib)),
            Way::Much | Way::SmallMuch => Some(MUCH.to_owned()),
            Way::Exact | Way::Content | Way::Harnik | Way::Duperemove | Way::Load => None,
        }
    }
}

impl Way {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Way::Exact => "4 KiB",
            Way::Little => "4 KiB, each file seven times, little memory",
            Way::Much => "4 KiB, each file seven times",
            Way::SmallLittle => "512 bytes, little memory",
            Way::SmallMuch => "512 bytes",
            Way::Content => "content-defined, 8 KiB on average",
            Way::Harnik => "4 KiB, Harnik's estimate",
            Way::Duperemove => "`duperemove`, 4 KiB",
            Way::Load => "`onefold bench` on memory",
        }
    }

    fn times(self) -> u64 {
        match self {
            Way::Little | Way::Much => TIMES,
            _ => 1,
        }
    }

    fn block_bytes(self) -> u64 {
        match self {
            Way::SmallLittle | Way::SmallMuch => SMALL_BYTES,
            _ => BLOCK_BYTES as u64,
        }
    }
}

impl Measured {
    pub(crate) fn of(&self, way: Way) -> &[Run] {
        let place = WAYS.iter().position(|other| *other == way);
        place.map_or(&[], |place| self.runs[place].as_slice())
    }

    /// GB/s that a program reads.
    pub(crate) fn rate(&self, plan: &Plan, way: Way) -> Option<Estimate> {
        let rates = self.of(way).iter();
        let rates = rates.map(|run| plan.read_bytes(way) as f64 / 1e9 / run.seconds);
        Estimate::over(rates)
    }

    /// The ratio of two programs' speeds, from runs of the same round.
    pub(crate) fn ratio(&self, plan: &Plan, one: Way, other: Way) -> Option<Estimate> {
        let both = self.of(one).iter().zip(self.of(other));
        let bytes = plan.read_bytes(one) as f64 / plan.read_bytes(other) as f64;
        let ratios = both.map(|(one, other)| bytes * other.seconds / one.seconds);
        Estimate::over(ratios)
    }

    /// The highest peak memory of all rounds, in MiB.
    pub(crate) fn peak_mib(&self, way: Way) -> Option<f64> {
        let peaks = self.of(way).iter().map(|run| run.peak_memory_bytes);
        Some(peaks.max()? as f64 / f64::from(1 << 20))
    }
}

struct Bench<'a> {
    plan: &'a Plan,
    scratch: Scratch,
    program: PathBuf,
    files: Vec<PathBuf>,
}

impl Bench<'_> {
    fn new<'a>(workspace: &Workspace, plan: &'a Plan) -> Result<Bench<'a>> {
        let program = workspace.build_release("onefold")?;
        let scratch = Scratch::new(&workspace.scratch_parent(), "study")?;
        let data = scratch.path().join("data");
        std::fs::create_dir(&data).context("cannot make a directory")?;
        let files = (0..FILES).map(|n| {
            let path = data.join(format!("{n}.raw"));
            let file = std::fs::File::create(&path);
            let written = file.and_then(|file| {
                let mut file = std::io::BufWriter::with_capacity(1 << 20, file);
                write_blocks(&mut file, plan.file_bytes, n)
            });
            written.with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path)
        });
        Ok(Bench {
            plan,
            program,
            files: files.collect::<Result<_>>()?,
            scratch,
        })
    }

    fn measure(&self) -> Measured {
        let mut measured = Measured {
            runs: [const { Vec::new() }; WAYS.len()],
            duperemove: duperemove_version(),
        };
        let mut left: Vec<Way> = WAYS.into();
        left.retain(|way| *way != Way::Duperemove || measured.duperemove.is_ok());
        for round in 0..=self.plan.rounds {
            for (way, runs) in WAYS.iter().zip(&mut measured.runs) {
                if !left.contains(way) {
                    continue;
                }
                match self.run(*way) {
                    Ok(run) => {
                        let mib = run.peak_memory_bytes >> 20;
                        println!("{}: {:.2} s, {mib} MiB", way.title(), run.seconds);
                        runs.extend((round > 0).then_some(run));
                    }
                    // Its row is missing from the page; the others took too long to be lost.
                    Err(error) => {
                        println!("{} could not be measured: {error:#}", way.title());
                        left.retain(|other| other != way);
                        runs.clear();
                    }
                }
            }
        }
        measured
    }

    fn run(&self, way: Way) -> Result<Run> {
        let said = self.scratch.path().join("said");
        for name in [&said, &self.hash_file()] {
            if name.exists() {
                std::fs::remove_file(name).context("cannot remove what the last run left")?;
            }
        }
        // The writeback of the last run must not slow this one down.
        Cmd::new("sync").run()?;
        let start = Instant::now();
        let mut running = self.command(way).spawn_logged(&said)?;
        let (mut peak_memory_bytes, mut device_read_bytes) = (0, 0);
        let status = loop {
            if let Some(status) = running.try_wait()? {
                break status;
            }
            // Both figures only grow, and vanish with the process.
            peak_memory_bytes = running.peak_memory_bytes().unwrap_or(peak_memory_bytes);
            device_read_bytes = running.device_read_bytes().unwrap_or(device_read_bytes);
            std::thread::sleep(LOOK_INTERVAL);
        };
        let seconds = start.elapsed().as_secs_f64();
        let said = std::fs::read_to_string(&said).context("cannot read what it printed")?;
        if !status.success() {
            bail!("it failed ({status})\n{}", last_lines(&said));
        }
        let told = self.expect(way, &said)?;
        Ok(Run {
            seconds: told.unwrap_or(seconds),
            peak_memory_bytes,
            device_read_bytes,
        })
    }

    fn command(&self, way: Way) -> Cmd {
        let both = format!("{CLIENT_PROCESSOR},{SERVER_PROCESSOR}");
        let one = SERVER_PROCESSOR.to_string();
        let pinned = |processors: &str| {
            let command = Cmd::new("taskset").args(["-c", processors]);
            command.env("TMPDIR", self.scratch.path())
        };
        let onefold = |command: Cmd| {
            let command = command.arg(&self.program);
            command.args(["--quiet", "--format", "json"])
        };
        match way {
            Way::Duperemove => pinned(&both)
                .args(["duperemove", "-q", "-b", "4096"])
                .args(["--io-threads=2", "--cpu-threads=2"])
                .arg(format!("--hashfile={}", self.hash_file().display()))
                .args(&self.files),
            Way::Load => onefold(pinned(&one))
                .arg("bench")
                .arg(format!("memory:{}M", self.plan.load_mib))
                .args(["--seed", "1"]),
            _ => self.analyze(onefold(pinned(&both)), way),
        }
    }

    fn analyze(&self, command: Cmd, way: Way) -> Cmd {
        let command = command.arg("analyze");
        let command = match way {
            Way::Harnik => command.args(["--method", "harnik", "--seed", "1"]),
            Way::Content => command.args(["--chunking", CONTENT]),
            _ => command
                .arg("--chunking")
                .arg(format!("fixed:{}", way.block_bytes())),
        };
        let memory = self.plan.memory(way);
        let command = memory.iter().fold(command, |command, memory| {
            command.args(["--memory", memory])
        });
        (0..way.times()).fold(command, |command, _| command.args(&self.files))
    }

    fn hash_file(&self) -> PathBuf {
        self.scratch.path().join("hashes")
    }

    /// Checks that the run did the intended work. Returns the program's own figure of seconds, if that one counts.
    fn expect(&self, way: Way, said: &str) -> Result<Option<f64>> {
        if way == Way::Duperemove {
            return self.expect_hashes(&self.hash_file()).map(|()| None);
        }
        let said: Value = serde_json::from_str(said).context("it did not print JSON")?;
        let number = |pointer: &str| said.pointer(pointer).and_then(Value::as_u64);
        let chunks = self.plan.read_bytes(way) / way.block_bytes();
        let (found, expected) = match way {
            Way::Harnik => (number("/chunks"), chunks),
            Way::Load => (number("/verified_blocks"), chunks),
            Way::Content => (
                number("/chunkings/0/distinct_bytes"),
                self.plan.data_bytes(),
            ),
            _ => (number("/chunkings/0/distinct_chunks"), chunks / way.times()),
        };
        ensure!(
            found == Some(expected),
            "it found {found:?} where there are {expected}"
        );
        let all = number("/chunkings/0/chunks").unwrap_or(chunks);
        ensure!(
            way == Way::Content || all == chunks,
            "it counted {all} chunks of {chunks}"
        );
        let phases = said.get("phases").and_then(Value::as_array);
        let seconds = |phase: &Value| phase.get("seconds")?.as_f64();
        Ok(phases.map(|phases| phases.iter().filter_map(seconds).sum()))
    }

    /// Checks the count of hashes, because duperemove succeeds even if it skips a file.
    fn expect_hashes(&self, file: &Path) -> Result<()> {
        let metadata = std::fs::metadata(file).context("it left no file of checksums")?;
        let least = self.plan.data_bytes() / BLOCK_BYTES as u64 * 16;
        ensure!(
            metadata.len() >= least,
            "its file has {} bytes, too few for a checksum of each block",
            metadata.len()
        );
        Ok(())
    }
}

/// Installs duperemove if that needs no confirmation.
fn duperemove_version() -> Result<String, String> {
    packages::require(packages::DUPEREMOVE).map_err(|error| format!("{error:#}"))?;
    let version = Cmd::new("dpkg-query")
        .args(["--show", "--showformat", "${Version}"])
        .args(packages::DUPEREMOVE)
        .read();
    version.map_err(|error| format!("{error:#}"))
}

impl Measured {
    pub(crate) fn raw(&self, plan: &Plan) -> Value {
        let ways = WAYS.iter().zip(&self.runs).map(|(way, runs)| {
            let runs = runs.iter().map(|run| {
                json!({"seconds": run.seconds, "peak_memory_bytes": run.peak_memory_bytes,
                       "device_read_bytes": run.device_read_bytes})
            });
            json!({"way": way.title(), "read_bytes": plan.read_bytes(*way),
                   "memory": plan.memory(*way), "runs": runs.collect::<Vec<_>>()})
        });
        json!({"data_bytes": plan.data_bytes(), "ways": ways.collect::<Vec<_>>()})
    }
}
