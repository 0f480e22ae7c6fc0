//! How many rows a back end counts and releases in a second, in batches of the usual size.
//!
//! `index_rate memory|btree [rows in thousands] [directory]`; without a directory the part is a
//! temporary file.

use std::sync::Arc;
use std::time::Instant;

use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::{Pba, PoolId};
use onefold_index::{Fingerprint, FingerprintIndex, IndexError, StreamId, btree, memory};

const BATCH_ITEMS: u64 = 4096;
const MEMORY_BYTES: u64 = 1 << 30;
const STREAM: StreamId = StreamId(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_else(|| "btree".into());
    let rows: u64 = arguments.next().map_or(Ok(1000), |it| it.parse())? * 1000;
    let temporary = tempfile::tempdir()?;
    let directory = arguments
        .next()
        .map_or(temporary.path().into(), std::path::PathBuf::from);
    let engine = EmbeddedEngine::new(directory, CacheMode::Host);
    let disk = engine.create(Part::Index, 0)?;
    let pool = PoolId([1; 16]);
    let index: Arc<dyn FingerprintIndex> = if kind == "memory" {
        memory::create(&disk, pool)?;
        Arc::new(memory::open(disk, pool, MEMORY_BYTES)?)
    } else {
        btree::create(&disk, pool)?;
        Arc::new(btree::open(disk, pool, MEMORY_BYTES)?)
    };
    let mut number = 0;
    for (what, moved, is_release) in [
        ("new rows", 0, false),
        ("duplicates", 1 << 30, false),
        ("released", 0, true),
    ] {
        let start = Instant::now();
        let mut first = 0;
        while first < rows {
            number += 1;
            let items: Vec<_> = (first..rows.min(first + BATCH_ITEMS))
                .map(|n| {
                    (
                        fingerprint(n),
                        Pba(1 + if is_release { n } else { n + moved }),
                    )
                })
                .collect();
            ask(&*index, number, &items, is_release)?;
            first += BATCH_ITEMS;
        }
        let rate = rows as f64 / start.elapsed().as_secs_f64() / 1e3;
        let megabytes = index.bytes_on_disk()? >> 20;
        println!("{kind} {what:<12} {rate:>8.0} thousand/s   {megabytes} MiB on disk");
    }
    let start = Instant::now();
    index.close()?;
    println!("{kind} closed in {:.2} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn fingerprint(n: u64) -> Fingerprint {
    Fingerprint(fastrand::Rng::with_seed(n).u128(..).to_le_bytes())
}

fn ask(
    index: &dyn FingerprintIndex,
    number: u64,
    items: &[(Fingerprint, Pba)],
    is_release: bool,
) -> Result<(), IndexError> {
    if is_release {
        index.decrement(STREAM, number, items).map(drop)
    } else {
        index.increment(STREAM, number, items).map(drop)
    }
}
