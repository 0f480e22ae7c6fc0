//! `cargo xtask bench growth`: objects, and bytes of metadata and index, of a shared pool that grows.

use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::page::{self, Conditions, Page};
use crate::table::{Row, Table};
use onefold_harness::ceph::POOL;
use onefold_harness::cleanup::Scratch;
use onefold_harness::pools::{Ceph, CephPlace, Place, Pools};
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

/// The page's name in `docs/`, and that of its raw results.
const NAME: &str = "benchmarks-growth";

const SHARDS: &str = "64";

/// Unique data at which the pool is measured, in GiB.
const SIZES: [u64; 4] = [1, 2, 4, 8];

/// Calculated from rows and map pages, in MiB for each GiB: 262,144 rows of [`HASH_ROW_DISK_BYTES`], and map pages of 4 KiB
/// with 512 entries, each twice while a checkpoint replaces it.
///
/// [`HASH_ROW_DISK_BYTES`]: onefold_index::HASH_ROW_DISK_BYTES
const CALCULATED: [f64; 2] = [2.0, 12.8];

/// Options of `cargo xtask bench growth`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Stop at the first size, and write no page
    #[arg(long)]
    quick: bool,
}

/// A pool with this much unique data.
#[derive(Debug, Clone, Copy)]
struct Measured {
    gib: u64,
    data_objects: u64,
    other_objects: u64,
    /// Bytes of the objects with the group's metadata, and with the index.
    metadata_bytes: u64,
    index_bytes: u64,
}

/// `cargo xtask bench growth`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let ceph = Arc::new(Ceph::open(workspace, POOL)?);
    keep_one_copy(&ceph)?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "growth")?;
    let pool = Product::build_in(workspace, &Pools::Ceph(ceph), scratch.path())?;
    let Place::Ceph(place) = pool.place() else {
        bail!("hosts share pools in Ceph only");
    };
    pool.create_pool_with("64G", &["--shards", SHARDS])?;
    let daemon = pool.serve(&["--host-name", "kvm1"], &[])?;
    let sizes = if arguments.quick { &SIZES[..1] } else { &SIZES };
    let (mut gib, mut figures) = (0, Vec::new());
    for size in sizes {
        add(&pool, scratch.path(), gib..*size)?;
        gib = *size;
        pool.command().args(["--quiet", "pool", "dedup"]).run()?;
        let measured = measure(&pool, place, gib)?;
        println!("{measured:?}");
        figures.push(measured);
    }
    daemon.stop()?;
    let conditions = page::conditions(workspace, "cargo xtask bench growth", start.elapsed())?;
    let text = report(&conditions, &figures);
    println!("\n{text}");
    if arguments.quick {
        return Ok(());
    }
    page::write(workspace, NAME, &text, &raw(&figures))
}

/// The throw-away cluster keeps one copy of each object, because copies count for nothing here.
fn keep_one_copy(ceph: &Ceph) -> Result<()> {
    let cluster = ceph.must_be_throw_away()?;
    cluster.ceph(&["config", "set", "global", "mon_allow_pool_size_one", "true"])?;
    let size = ["osd", "pool", "set", POOL, "size", "1"];
    cluster.ceph(&[&size[..], &["--yes-i-really-mean-it"]].concat())?;
    cluster.wait_until_clean()
}

/// Imports a volume with data that nothing else has.
fn add(pool: &Product, directory: &Path, gib: Range<u64>) -> Result<()> {
    let (name, size) = (
        format!("vm{}", gib.end),
        format!("{}G", gib.end - gib.start),
    );
    let import = pool.command().args(["--quiet", "volume", "import", &name]);
    let mut import = import.args(["-", "--size", &size]);
    if gib.start > 0 {
        import = import.args(["--group", "1"]);
    }
    let mut import = import.spawn_piped(&directory.join(&name))?;
    let mut pipe = import.take_stdin()?;
    let mut state = gib.end;
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..(gib.end - gib.start) << 10 {
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&unique(&mut state).to_le_bytes());
        }
        pipe.write_all(&bytes)?;
    }
    drop(pipe);
    ensure!(import.wait()?.success(), "the import of {name} failed");
    Ok(())
}

/// SplitMix64: its state passes through all numbers, so no block repeats another.
fn unique(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn measure(pool: &Product, place: &CephPlace, gib: u64) -> Result<Measured> {
    let unique = pool.stat_number("unique_blocks")?;
    ensure!(
        unique == gib << 18,
        "{unique} blocks are unique, of {gib} GiB"
    );
    let objects = place.objects()?;
    let data = objects.iter().filter(|name| name.starts_with("d."));
    let data_objects = data.count() as u64;
    Ok(Measured {
        gib,
        data_objects,
        other_objects: objects.len() as u64 - data_objects,
        metadata_bytes: place.bytes_of("g.1.meta.")?,
        index_bytes: place.bytes_of("ix.")?,
    })
}

impl Measured {
    /// MiB for each GiB of unique data: metadata, index.
    fn mib_for_a_gib(&self) -> [f64; 2] {
        [self.metadata_bytes, self.index_bytes]
            .map(|bytes| bytes as f64 / f64::from(1 << 20) / self.gib as f64)
    }
}

fn report(conditions: &Conditions, figures: &[Measured]) -> String {
    let mut page = Page::new("Growth of a shared pool", Some(NAME), conditions);
    page.add(format!(
        "One host imports volumes whose blocks occur once, into one group of a pool with {SHARDS} shards; the finder puts all of them into the \
         index. Counted are the objects, and the bytes in those with the group's metadata (maps, free space, queues) and with \
         the index. The cluster keeps one copy of each object, which changes no count; it has no room for more data on this machine."
    ));
    let rows = figures.iter().map(|measured| {
        let [metadata, index] = measured.mib_for_a_gib();
        Row::of(measured.gib)
            .text(measured.data_objects)
            .text(measured.other_objects)
            .number(metadata, 2)
            .number(index, 2)
    });
    let [metadata, index] = CALCULATED;
    let calculated = Row::of("*calculated*")
        .text("256 a GiB")
        .text("")
        .number(metadata, 2)
        .number(index, 2);
    page.section(
        "Objects, and MiB for each GiB",
        Table::new(
            "| GiB unique | data objects | other objects | metadata, MiB/GiB | index, MiB/GiB |",
        )
        .with(rows)
        .with([calculated]),
    );
    if let [.., before, last] = figures {
        let slope = |of: fn(&Measured) -> u64| {
            let grown = of(last).saturating_sub(of(before)) as f64;
            grown / f64::from(1 << 20) / (last.gib - before.gib) as f64
        };
        page.add(format!(
            "From {} to {} GiB the metadata grew by {:.2} MiB for each GiB, and the index by {:.2}. So a TiB of unique data needs {:.1} GiB of \
             metadata, {:.1} GiB of index and 262,144 data objects. What ends the growth: a pool has 2^40 blocks, 4 PiB with blocks of 4 KiB; the index \
             also needs memory ([index back ends](index-back-ends.md)).",
            before.gib,
            last.gib,
            slope(|of| of.metadata_bytes),
            slope(|of| of.index_bytes),
            slope(|of| of.metadata_bytes),
            slope(|of| of.index_bytes),
        ));
    }
    page.to_string()
}

fn raw(figures: &[Measured]) -> Value {
    let size = |of: &Measured| {
        json!({"gib": of.gib, "data_objects": of.data_objects, "other_objects": of.other_objects,
               "metadata_bytes": of.metadata_bytes, "index_bytes": of.index_bytes})
    };
    json!({"sizes": figures.iter().map(size).collect::<Vec<_>>()})
}
