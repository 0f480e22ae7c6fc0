//! Measures one back end of the index at one size, and prints a JSON document.
//!
//! Each measurement is a process of its own, because its memory is measured and limited. It makes an index of random
//! rows, then executes durable batches of 16,384 operations of each kind: *mixed* (half new, half present) and
//! *release* (all present). Or it opens the index that such a run left in the directory, as after `kill -9`.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_engine::{Disk, Engine, Part};
use onefold_format::{IndexKind, Pba, PoolId};
use onefold_index::{Counted, Fingerprint, FingerprintIndex, Released, Row, StreamId};
use serde_json::{Value, json};

const BATCH_ITEMS: u64 = 16_384;
const STREAM: StreamId = StreamId(1);
const POOL: PoolId = PoolId([1; 16]);

/// The number of the first batch on an existing index: above all batches that made it.
const FIRST_LATER: u64 = 1 << 30;

/// The smallest read from the device.
const PAGE_BYTES: f64 = 4096.0;

/// Rows added per call before the measurement.
const LOAD_ROWS: u64 = 1 << 16;

/// Options of one measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    kind: String,
    rows: u64,
    batches: u64,
    directory: String,
    /// Memory for the back end, in bytes
    memory: u64,
    #[arg(value_enum, default_value_t = Mode::Make)]
    mode: Mode,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Mode {
    /// Make an index and run batches on it
    Make,
    /// Measure how long it takes until an index is open, and until it answers at its usual rate
    Open,
    /// Run batches on an existing index; a control group can limit its memory, page cache included, so that the rest of
    /// the index is read from the device
    Again,
}

/// Runs one measurement and prints the document.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let engine = EmbeddedEngine::new(&arguments.directory, CacheMode::Host);
    let measured = match arguments.mode {
        Mode::Make => measure_made(&engine, arguments)?,
        Mode::Open => measure_open(&engine, arguments)?,
        Mode::Again => {
            let index = open(arguments, engine.open(Part::Index)?)?;
            measure(&*index, arguments, FIRST_LATER, 0)?
        }
    };
    println!("{measured}");
    Ok(())
}

fn measure_made(engine: &EmbeddedEngine, arguments: &Arguments) -> Result<Value> {
    let disk = engine.create(Part::Index, 0)?;
    onefold_index::create(kind(arguments)?, &disk, POOL)?;
    let before = resident_bytes()?;
    let index = open(arguments, disk)?;
    load(&*index, arguments.rows)?;
    // The writeback of the load must not slow the measurement down.
    sync_disks();
    // First one round of merges, so that the steady state is measured.
    let turn = if arguments.kind == "hash" {
        arguments.rows / 6 / BATCH_ITEMS
    } else {
        0
    };
    for n in 0..turn {
        mixed(&*index, arguments, n, &mut Asked::default())?;
    }
    measure(&*index, arguments, turn, before)
}

/// Runs batches of both kinds, from batch number `first` on.
fn measure(
    index: &dyn FingerprintIndex,
    arguments: &Arguments,
    first: u64,
    resident_before: u64,
) -> Result<Value> {
    let end = first + arguments.batches;
    let (mut mixed_asked, mut release_asked) = (Asked::default(), Asked::default());
    let (before, cpu_before) = (Transferred::now()?, cpu_seconds()?);
    for n in first..end {
        mixed(index, arguments, n, &mut mixed_asked)?;
    }
    let (between, cpu) = (Transferred::now()?, cpu_seconds()? - cpu_before);
    // Measured before the release: the memory of released rows says nothing about a row.
    let resident_bytes = (resident_bytes()? - resident_before) as f64;
    let resident_bytes_per_row = resident_bytes / index.counts().rows() as f64;
    for n in 0..arguments.batches {
        release(index, arguments, end, n, &mut release_asked)?;
    }
    let after = Transferred::now()?;
    let rows = index.counts().rows();
    Ok(json!({
        "kind": arguments.kind,
        "rows": rows,
        "mixed": mixed_asked.report(&before, &between),
        "release": release_asked.report(&between, &after),
        "resident_bytes_per_row": resident_bytes_per_row,
        "disk_bytes_per_row": index.bytes_on_disk()? as f64 / rows as f64,
        "mixed_cpu_us_per_operation": cpu * 1e6 / (arguments.batches * BATCH_ITEMS) as f64,
    }))
}

fn measure_open(engine: &EmbeddedEngine, arguments: &Arguments) -> Result<Value> {
    let start = Instant::now();
    let index = open(arguments, engine.open(Part::Index)?)?;
    let opened = start.elapsed().as_secs_f64();
    let rows = index.counts().rows();
    let mut seconds = Vec::new();
    for n in 0..10 {
        let start = Instant::now();
        let items: Vec<_> = (0..BATCH_ITEMS)
            .map(|at| item((1 << 50) + n * BATCH_ITEMS + at))
            .collect();
        index.increment(STREAM, (1 << 40) + n, &items)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(
        json!({"kind": arguments.kind, "rows": rows, "open_seconds": opened, "batch_seconds": seconds}),
    )
}

fn open(arguments: &Arguments, disk: Arc<dyn Disk>) -> Result<Arc<dyn FingerprintIndex>> {
    Ok(onefold_index::open(
        kind(arguments)?,
        disk,
        POOL,
        arguments.memory,
    )?)
}

fn kind(arguments: &Arguments) -> Result<IndexKind> {
    Ok(match arguments.kind.as_str() {
        "memory" => IndexKind::Memory,
        "btree" => IndexKind::Btree,
        "hash" => IndexKind::Hash,
        other => bail!("there is no back end {other}"),
    })
}

fn load(index: &dyn FingerprintIndex, rows: u64) -> Result<()> {
    index.begin_rebuild()?;
    for first in (0..rows).step_by(LOAD_ROWS as usize) {
        let some = first..rows.min(first + LOAD_ROWS);
        let some: Vec<_> = some
            .map(|n| {
                let (fingerprint, pba) = item(n);
                (fingerprint, Row { pba, references: 1 })
            })
            .collect();
        index.add_rows(&some)?;
    }
    Ok(index.finish_rebuild(STREAM, 0)?)
}

/// The results of the batches of one kind.
#[derive(Default)]
struct Asked {
    seconds: Vec<f64>,
}

impl Asked {
    fn report(&mut self, before: &Transferred, after: &Transferred) -> Value {
        self.seconds.sort_by(f64::total_cmp);
        let last = self.seconds.len().saturating_sub(1) as f64;
        let at = |share: f64| {
            self.seconds
                .get((last * share) as usize)
                .map(|seconds| seconds * 1e3)
        };
        let operations = self.seconds.len() as f64 * BATCH_ITEMS as f64;
        let total: f64 = self.seconds.iter().sum();
        let pages = (after.read_bytes - before.read_bytes) as f64 / PAGE_BYTES;
        let written = (after.written_bytes - before.written_bytes) as f64;
        json!({
            "batches": self.seconds.len(),
            "operations_per_second": operations / total,
            "batch_ms_median": at(0.5),
            "batch_ms_p99": at(0.99),
            "batch_ms_max": at(1.0),
            "pages_read_per_second": pages / total,
            "written_bytes_per_operation": written / operations,
        })
    }
}

/// Bytes that this process has read from the device and written to files so far.
struct Transferred {
    read_bytes: u64,
    written_bytes: u64,
}

impl Transferred {
    fn now() -> Result<Transferred> {
        Ok(Transferred {
            read_bytes: told("io", "read_bytes:")?,
            written_bytes: told("io", "wchar:")?,
        })
    }
}

/// A batch with half of its fingerprints new and half of them present.
fn mixed(
    index: &dyn FingerprintIndex,
    arguments: &Arguments,
    n: u64,
    asked: &mut Asked,
) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(n);
    let items: Vec<_> = (0..BATCH_ITEMS)
        .map(|at| match at % 2 {
            0 => item(arguments.rows + n * BATCH_ITEMS / 2 + at / 2),
            _ => (item(random.u64(..arguments.rows)).0, Pba(1 << 39)),
        })
        .collect();
    let start = Instant::now();
    let answers = index.increment(STREAM, n + 1, &items)?;
    asked.seconds.push(start.elapsed().as_secs_f64());
    for (at, answer) in answers.iter().enumerate() {
        let is_right = match at % 2 {
            0 => *answer == Counted::Inserted,
            _ => matches!(answer, Counted::Shared(_)),
        };
        if !is_right {
            bail!("wrong answer {answer:?}");
        }
    }
    Ok(())
}

/// A batch that releases rows of the load, each of which has at least this reference.
fn release(
    index: &dyn FingerprintIndex,
    arguments: &Arguments,
    after: u64,
    n: u64,
    asked: &mut Asked,
) -> Result<()> {
    // This step reaches every row once.
    let row = |at: u64| (n * BATCH_ITEMS + at) * 7_368_787 % arguments.rows;
    let items: Vec<_> = (0..BATCH_ITEMS).map(|at| item(row(at))).collect();
    let start = Instant::now();
    let answers = index.decrement(STREAM, after + n + 1, &items)?;
    asked.seconds.push(start.elapsed().as_secs_f64());
    if let Some(wrong) = answers
        .iter()
        .find(|answer| matches!(answer, Released::Unknown | Released::Mismatch))
    {
        bail!("wrong answer {wrong:?}");
    }
    Ok(())
}

fn item(n: u64) -> (Fingerprint, Pba) {
    let fingerprint = fastrand::Rng::with_seed(n).u128(..).to_le_bytes();
    (Fingerprint(fingerprint), Pba(1 + n % (1 << 38)))
}

fn sync_disks() {
    // If it fails, the measurement is only less exact.
    let _ = std::process::Command::new("sync").status();
}

/// Reads a figure of this process from a file of /proc/self.
fn told(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/{file}"))?;
    let line = text.lines().find(|line| line.starts_with(name));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(word.context("a line of /proc is missing")?.parse()?)
}

fn resident_bytes() -> Result<u64> {
    Ok(told("status", "RssAnon:")? << 10)
}

fn cpu_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = text
        .split_whitespace()
        .next()
        .context("schedstat is empty")?;
    Ok(nanoseconds.parse::<f64>()? / 1e9)
}
