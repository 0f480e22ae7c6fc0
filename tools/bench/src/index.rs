//! `cargo xtask bench index`: the index back ends side by side, without a store around them.
//!
//! Each run makes an index with each back end and executes batches on it, all on one processor (`index_worker.rs`).
//! Then the index is opened again with a cold page cache, as after `kill -9`. One more index of each kind runs in a
//! control group whose memory is a quarter of the file of `hash`, page cache included, and fio reads that file at
//! random for comparison.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::memory_limit::MemoryLimit;
use crate::plan::SERVER_PROCESSOR;
use crate::statistics::Estimate;
use crate::{index_report, page};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

/// Options of `cargo xtask bench index`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Use a fifth of the rows and run once, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Measure only `hash`, from one to a hundred million rows, and plot the cost of an operation
    #[arg(long, conflicts_with = "quick")]
    growth: bool,
    /// Run a few batches of each kind, to show that the benchmark works; measures nothing
    #[arg(long, conflicts_with_all = ["quick", "growth"])]
    try_out: bool,
}

/// The size of the measurement.
pub(crate) struct Plan {
    pub(crate) rows: u64,
    pub(crate) runs: usize,
    /// Batches of each kind that a back end executes. The percentile needs a thousand.
    pub(crate) batches: u64,
    /// Batches that `btree` executes, which takes ten times as long.
    pub(crate) btree_batches: u64,
    /// Batches that run with little memory.
    pub(crate) tight_batches: u64,
}

const WHOLE: Plan = Plan {
    rows: 20_000_000,
    runs: 3,
    batches: 1000,
    btree_batches: 20,
    tight_batches: 100,
};
const QUICK: Plan = Plan {
    rows: 4_000_000,
    runs: 1,
    batches: 100,
    btree_batches: 20,
    tight_batches: 20,
};

/// Rows of the runs that show growth.
const GROWTH_ROWS: [u64; 7] = [
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
];

/// Batches that run at each size.
const GROWTH_BATCHES: u64 = 60;

/// The memory of a back end where memory is not the subject.
const MEMORY_BYTES: u64 = 2 << 30;

/// The memory of an index with up to a hundred million rows, where memory is not the subject.
const GROWTH_MEMORY_BYTES: u64 = 4 << 30;

/// The smallest memory of a control group, which every process needs: a quarter of a small index is less.
const TIGHT_BYTES_MIN: u64 = 64 << 20;

/// Requests that fio keeps in flight.
const DEPTH: u32 = 32;

pub(crate) const KINDS: [&str; 3] = ["hash", "btree", "memory"];

/// The results of one back end.
#[derive(Default)]
pub(crate) struct BackEnd {
    pub(crate) runs: Vec<Value>,
    pub(crate) opens: Vec<Value>,
    /// The results with memory for a quarter of the file of `hash`.
    pub(crate) tight: Option<Value>,
}

impl BackEnd {
    /// The median of one number over the runs.
    pub(crate) fn median(&self, pointer: &str) -> Option<f64> {
        let numbers = self.runs.iter().filter_map(|run| number(run, pointer));
        Some(Estimate::over(numbers)?.median)
    }

    pub(crate) fn tight(&self, pointer: &str) -> Option<f64> {
        number(self.tight.as_ref()?, pointer)
    }

    /// Seconds until the index is open and has answered a batch: the slowest run.
    pub(crate) fn ready_seconds(&self) -> Option<f64> {
        let ready = self.opens.iter().filter_map(|open| {
            Some(number(open, "/open_seconds")? + number(open, "/batch_seconds/0")?)
        });
        ready.reduce(f64::max)
    }
}

fn number(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer).and_then(Value::as_f64)
}

/// All results, in the order of [`KINDS`].
pub(crate) struct Measured {
    pub(crate) back_ends: [BackEnd; 3],
    /// The memory of the control group with little memory.
    pub(crate) tight_bytes: u64,
    /// Random reads per second of fio from the file of `hash`.
    pub(crate) fio_reads_per_second: f64,
}

/// `cargo xtask bench index`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if arguments.try_out {
        return try_out(workspace);
    }
    packages::require(packages::CLIENTS)?;
    let bench = Bench {
        scratch: Scratch::new(&workspace.scratch_parent(), "index")?,
        program: std::env::current_exe().context("cannot find this program")?,
    };
    let start = Instant::now();
    if arguments.growth {
        let grown = bench.growth()?;
        let conditions = page::conditions(workspace, GROWTH_COMMAND, start.elapsed())?;
        return index_report::write_growth(workspace, &conditions, &grown);
    }
    let plan = if arguments.quick { QUICK } else { WHOLE };
    let measured = bench.measure(&plan)?;
    let conditions = page::conditions(workspace, COMMAND, start.elapsed())?;
    let page = index_report::page(&conditions, &plan, &measured);
    if arguments.quick {
        println!("\n{page}\n(not a whole run: nothing is written)");
        return Ok(());
    }
    let raw = json!({"conditions": conditions, "measured": measured.raw()});
    page::write(workspace, index_report::NAME, &page, &raw)
}

/// Runs a few batches on each back end as the benchmark does. Shows that it works, not how fast it is.
fn try_out(workspace: &Workspace) -> Result<()> {
    // More rows than the operations of all batches, because a release needs rows that exist.
    const ROWS: u64 = 400_000;
    const BATCHES: u64 = 4;
    let bench = Bench {
        scratch: Scratch::new(&workspace.scratch_parent(), "index")?,
        program: std::env::current_exe().context("cannot find this program")?,
    };
    for kind in KINDS {
        bench.index(kind)?.make(ROWS, BATCHES, MEMORY_BYTES)?;
        if kind != "memory" {
            let index = bench.index(kind)?;
            index.make(ROWS, 0, MEMORY_BYTES)?;
            index.leave_cache()?;
            index.ask(ROWS, BATCHES, MEMORY_BYTES, "again")?;
            index.ask(ROWS, 0, MEMORY_BYTES, "open")?;
        }
    }
    Ok(())
}

const COMMAND: &str = "cargo xtask bench index";
const GROWTH_COMMAND: &str = "cargo xtask bench index --growth";

struct Bench {
    scratch: Scratch,
    program: PathBuf,
}

impl Bench {
    fn measure(&self, plan: &Plan) -> Result<Measured> {
        let mut back_ends: [BackEnd; 3] = Default::default();
        for _ in 0..plan.runs {
            for (kind, back_end) in KINDS.iter().zip(&mut back_ends) {
                let index = self.index(kind)?;
                back_end
                    .runs
                    .push(index.make(plan.rows, plan.batches_of(kind), MEMORY_BYTES)?);
                // Only a clean stop writes the memory index to the disk.
                if *kind != "memory" {
                    index.leave_cache()?;
                    back_end
                        .opens
                        .push(index.ask(plan.rows, 0, MEMORY_BYTES, "open")?);
                }
            }
        }
        let (mut memory, mut fio_reads_per_second) = (TIGHT_BYTES_MIN, 0.0);
        for (kind, back_end) in KINDS.iter().zip(&mut back_ends) {
            if *kind == "memory" {
                continue;
            }
            let index = self.index(kind)?;
            let made = index.make(plan.rows, 0, MEMORY_BYTES)?;
            if *kind == "hash" {
                let row_bytes = number(&made, "/disk_bytes_per_row").context("no size")?;
                memory = memory.max((row_bytes * plan.rows as f64 / 4.0) as u64);
            }
            index.leave_cache()?;
            // The back end gets half of it for its own memory, which counts; the page cache gets the other half.
            let limit = MemoryLimit::new(memory)?;
            let limited = Index {
                limit: Some(&limit),
                ..index
            };
            let batches = plan.tight_batches.min(plan.batches_of(kind));
            let tight = limited.ask(plan.rows, batches, memory / 2, "again")?;
            back_end.tight = Some(tight);
            if *kind == "hash" {
                fio_reads_per_second = limited.random_reads()?;
            }
        }
        Ok(Measured {
            back_ends,
            tight_bytes: memory,
            fio_reads_per_second,
        })
    }

    /// The results of `hash` at each size.
    fn growth(&self) -> Result<Vec<Value>> {
        let runs = GROWTH_ROWS.iter().map(|rows| {
            let index = self.index("hash")?;
            index.make(*rows, GROWTH_BATCHES, GROWTH_MEMORY_BYTES)
        });
        runs.collect()
    }

    /// Makes an empty directory for an index.
    fn index<'a>(&'a self, kind: &'a str) -> Result<Index<'a>> {
        let directory = self.scratch.path().join("index-directory");
        if directory.exists() {
            std::fs::remove_dir_all(&directory).context("cannot remove the last index")?;
        }
        std::fs::create_dir(&directory).context("cannot make a directory")?;
        // Earlier writes must not slow the index down.
        Cmd::new("sync").run()?;
        Ok(Index {
            program: &self.program,
            kind,
            directory,
            limit: None,
        })
    }
}

impl Plan {
    fn batches_of(&self, kind: &str) -> u64 {
        match kind {
            "btree" => self.btree_batches,
            _ => self.batches,
        }
    }
}

/// An index of one kind in a directory.
struct Index<'a> {
    program: &'a Path,
    kind: &'a str,
    directory: PathBuf,
    limit: Option<&'a MemoryLimit>,
}

impl Index<'_> {
    fn make(&self, rows: u64, batches: u64, memory: u64) -> Result<Value> {
        self.run(rows, batches, memory, None)
    }

    fn ask(&self, rows: u64, batches: u64, memory: u64, mode: &str) -> Result<Value> {
        self.run(rows, batches, memory, Some(mode))
    }

    fn run(&self, rows: u64, batches: u64, memory: u64, mode: Option<&str>) -> Result<Value> {
        let numbers = [rows, batches].map(|number| number.to_string());
        let command = match self.limit {
            Some(limit) => limit.pinned(self.program),
            None => pinned(self.program),
        };
        let printed = command
            .arg("index-worker")
            .arg(self.kind)
            .args(numbers)
            .arg(&self.directory)
            .arg(memory.to_string())
            .args(mode)
            .read()?;
        println!("{} {}", mode.unwrap_or("made"), printed.trim());
        serde_json::from_str(&printed).context("cannot read what the measurement printed")
    }

    fn file(&self) -> PathBuf {
        self.directory.join("index")
    }

    /// Drops the file from the host's page cache.
    fn leave_cache(&self) -> Result<()> {
        Cmd::new("sync").run()?;
        let file = self.file();
        Cmd::new("dd")
            .arg(format!("if={}", file.display()))
            .args(["iflag=nocache", "count=0", "status=none"])
            .run()
    }

    /// Random reads of one page per second, many in flight.
    fn random_reads(&self) -> Result<f64> {
        let printed = pinned(Path::new("fio"))
            .args(["--name=read", "--readonly", "--rw=randread", "--bs=4k"])
            .args([
                "--direct=1",
                "--ioengine=libaio",
                "--time_based",
                "--runtime=10",
            ])
            .arg(format!("--iodepth={DEPTH}"))
            .arg(format!("--filename={}", self.file().display()))
            .arg("--output-format=json")
            .read()?;
        let report: Value = serde_json::from_str(&printed).context("fio's report is not JSON")?;
        number(&report, "/jobs/0/read/iops").context("fio reports no reads")
    }
}

fn pinned(program: &Path) -> Cmd {
    Cmd::new("taskset")
        .args(["-c", &SERVER_PROCESSOR.to_string()])
        .arg(program)
}

impl Measured {
    pub(crate) fn raw(&self) -> Value {
        let back_ends = KINDS.iter().zip(&self.back_ends).map(|(kind, back_end)| {
            json!({"kind": kind, "runs": back_end.runs, "opens": back_end.opens,
                   "tight": back_end.tight})
        });
        json!({"back_ends": back_ends.collect::<Vec<_>>(),
               "tight_bytes": self.tight_bytes,
               "fio_reads_per_second": self.fio_reads_per_second})
    }
}
