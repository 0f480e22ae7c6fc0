//! What a back end does in a second, at a size, in one JSON document for a table.
//!
//! `index_bench KIND ROWS BATCHES DIRECTORY MEMORY`: makes an index of ROWS random rows, then asks
//! BATCHES batches of 16,384 operations of each kind, each durable: *mixed* (half new, half
//! present) and *release* (all present). MEMORY, in bytes, is what the back end may take.
//!
//! `index_bench KIND ROWS BATCHES DIRECTORY MEMORY open`: opens the index that such a run left in
//! the directory, as after `kill -9`, and measures how long until it answers at its usual rate.

use std::sync::Arc;
use std::time::Instant;

use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_engine::{Disk, Engine, Part};
use onefold_format::{IndexKind, Pba, PoolId};
use onefold_index::{Counted, Fingerprint, FingerprintIndex, Released, Row, StreamId};
use serde_json::{Value, json};

const BATCH_ITEMS: u64 = 16_384;
const STREAM: StreamId = StreamId(1);
const POOL: PoolId = PoolId([1; 16]);

/// Rows added at a time before anything is measured.
const LOAD_ROWS: u64 = 1 << 16;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Arguments {
    kind: String,
    rows: u64,
    batches: u64,
    directory: String,
    memory: u64,
    is_open: bool,
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mut word = || {
        words
            .next()
            .ok_or("KIND ROWS BATCHES DIRECTORY MEMORY [open]")
    };
    let arguments = Arguments {
        kind: word()?,
        rows: word()?.parse()?,
        batches: word()?.parse()?,
        directory: word()?,
        memory: word()?.parse()?,
        is_open: word().is_ok(),
    };
    let engine = EmbeddedEngine::new(&arguments.directory, CacheMode::Host);
    let measured = if arguments.is_open {
        measure_open(&engine, &arguments)?
    } else {
        measure(&engine, &arguments)?
    };
    println!("{measured}");
    Ok(())
}

fn measure(engine: &EmbeddedEngine, arguments: &Arguments) -> Result<Value> {
    let disk = engine.create(Part::Index, 0)?;
    onefold_index::create(kind(arguments)?, &disk, POOL)?;
    let before = resident_bytes()?;
    let index = open(arguments, disk)?;
    load(&*index, arguments.rows)?;
    // What the load left to be written to the disk must not slow what is measured.
    sync_disks();
    let mut asked = Asked::default();
    // A turn of merges first, so that what is measured is the steady state.
    let turn = arguments.rows / 6 / BATCH_ITEMS;
    if arguments.kind == "hash" {
        for n in 0..turn {
            mixed(&*index, arguments, n, &mut asked)?;
        }
        asked = Asked::default();
    }
    let (written, cpu_before) = (written_bytes()?, cpu_seconds()?);
    let start = turn;
    for n in start..start + arguments.batches {
        mixed(&*index, arguments, n, &mut asked)?;
    }
    let (mixed_written, cpu) = (written_bytes()? - written, cpu_seconds()? - cpu_before);
    let mut released = Asked::default();
    for n in 0..arguments.batches {
        release(
            &*index,
            arguments,
            start + arguments.batches,
            n,
            &mut released,
        )?;
    }
    let rows = index.counts().rows();
    Ok(json!({
        "kind": arguments.kind,
        "rows": rows,
        "mixed": asked.report(Some(mixed_written)),
        "release": released.report(None),
        "resident_bytes_per_row": (resident_bytes()? - before) as f64 / rows as f64,
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
            .map(|it| item((1 << 50) + n * BATCH_ITEMS + it))
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
        other => return Err(format!("there is no back end {other}").into()),
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

/// Latencies of batches.
#[derive(Default)]
struct Asked {
    seconds: Vec<f64>,
}

impl Asked {
    fn report(&mut self, written: Option<u64>) -> Value {
        self.seconds.sort_by(f64::total_cmp);
        let at = |share: f64| self.seconds[((self.seconds.len() - 1) as f64 * share) as usize];
        let operations = self.seconds.len() as f64 * BATCH_ITEMS as f64;
        let total: f64 = self.seconds.iter().sum();
        json!({
            "batches": self.seconds.len(),
            "operations_per_second": operations / total,
            "batch_ms_median": at(0.5) * 1e3,
            "batch_ms_p99": at(0.99) * 1e3,
            "batch_ms_max": at(1.0) * 1e3,
            "written_bytes_per_operation": written.map(|it| it as f64 / operations),
        })
    }
}

/// Half of the fingerprints are new, half of them are there.
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
            return Err(format!("wrong answer {answer:?}").into());
        }
    }
    Ok(())
}

/// Rows that the load made, each of which has at least this reference.
fn release(
    index: &dyn FingerprintIndex,
    arguments: &Arguments,
    after: u64,
    n: u64,
    asked: &mut Asked,
) -> Result<()> {
    // A step that meets every row once.
    let row = |at: u64| (n * BATCH_ITEMS + at) * 7_368_787 % arguments.rows;
    let items: Vec<_> = (0..BATCH_ITEMS).map(|at| item(row(at))).collect();
    let start = Instant::now();
    let answers = index.decrement(STREAM, after + n + 1, &items)?;
    asked.seconds.push(start.elapsed().as_secs_f64());
    if let Some(wrong) = answers
        .iter()
        .find(|it| matches!(it, Released::Unknown | Released::Mismatch))
    {
        return Err(format!("wrong answer {wrong:?}").into());
    }
    Ok(())
}

fn item(n: u64) -> (Fingerprint, Pba) {
    let fingerprint = fastrand::Rng::with_seed(n).u128(..).to_le_bytes();
    (Fingerprint(fingerprint), Pba(1 + n % (1 << 38)))
}

fn sync_disks() {
    // Only the measurement is better for it.
    let _ = std::process::Command::new("sync").status();
}

/// A number of this process that Linux tells in a file of /proc/self.
fn told(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/{file}"))?;
    let line = text.lines().find(|line| line.starts_with(name));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(word.ok_or("a line of /proc is missing")?.parse()?)
}

fn resident_bytes() -> Result<u64> {
    Ok(told("status", "RssAnon:")? << 10)
}

fn written_bytes() -> Result<u64> {
    told("io", "wchar:")
}

fn cpu_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = text.split_whitespace().next().ok_or("schedstat is empty")?;
    Ok(nanoseconds.parse::<f64>()? / 1e9)
}
