//! `cargo xtask bench hosts`: compares a group of a pool that hosts share with a pool that has one owner and with RBD, writes
//! in line with writes off-line, a shard that many call with one that one calls, and deduplication by three hosts with that by
//! one, on one throw-away cluster.
//!
//! A round measures each row with all of them, one after the other, and compares them within the round. All daemons of the
//! cluster and its clients share this machine, so the ratios mean something and the rates do not.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::ceph::Rbd;
use crate::hosts_callers::{CALLERS, items_per_second};
use crate::hosts_report::{self, Figures};
use crate::page;
use onefold_harness::ceph::POOL;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::images;
use onefold_harness::inline::Mode;
use onefold_harness::packages;
use onefold_harness::pools::{Ceph, Pools};
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

/// The size of each volume, in MiB.
pub(crate) const DISK_MIB: u64 = 256;

/// How long each row is measured, in seconds.
pub(crate) const SECONDS: u32 = 10;

/// Data that a volume in line gets and another volume has, in MiB.
pub(crate) const DUPLICATES_MIB: u64 = 32;

/// The shards of the pool.
pub(crate) const SHARDS: &str = "64";

/// Groups, shards and memory of a daemon that is idle.
pub(crate) const IDLE_GROUPS: usize = 50;
pub(crate) const IDLE_SHARDS: &str = "16";
pub(crate) const IDLE_MEMORY_MIB: u64 = 2048;

/// Hosts that deduplicate together.
pub(crate) const HOSTS: usize = 3;

/// Rounds of rows that vary little.
pub(crate) const FEW_ROUNDS: usize = 5;

/// How often each image is imported.
const COPIES: usize = 2;

/// How long the finders may take to share all blocks.
const SHARED_LIMIT: Duration = Duration::from_secs(600);

const SHARED_POLL: Duration = Duration::from_millis(500);

/// The block size of the pools.
const BLOCK_BYTES: u64 = 4096;

/// Options of `cargo xtask bench hosts`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only one round, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Rounds of the rows whose intervals count
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

/// A load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) title: &'static str,
    rw: &'static str,
    bs: &'static str,
    depth: u32,
}

const fn load(title: &'static str, rw: &'static str, bs: &'static str, depth: u32) -> Load {
    Load {
        title,
        rw,
        bs,
        depth,
    }
}

/// Loads of a group, and of a pool with one owner.
pub(crate) const GROUP_ROWS: [Load; 4] = [
    load("4 KiB random writes, depth 1", "randwrite", "4k", 1),
    load("4 KiB random writes, depth 32", "randwrite", "4k", 32),
    load("4 KiB random reads, depth 1", "randread", "4k", 1),
    load("4 KiB random reads, depth 32", "randread", "4k", 32),
];

/// Loads of new data, in line and off-line.
pub(crate) const INLINE_ROWS: [Load; 2] = [
    load("unique 1 MiB sequential writes, depth 4", "write", "1m", 4),
    load(
        "unique 4 KiB random writes, depth 32",
        "randwrite",
        "4k",
        32,
    ),
];

impl Load {
    /// Runs the load on a disk and returns its requests per second.
    fn measure(&self, directory: &Path, uri: &str) -> Result<f64> {
        let job = section("row", uri)
            .set("rw", self.rw)
            .set("bs", self.bs)
            .set("iodepth", self.depth)
            .set("time_based", 1)
            .set("runtime", SECONDS)
            .set("ramp_time", 1);
        let results = Fio::new(directory, "row").job(job).run()?;
        let result = results.first().context("fio reported no job")?;
        Ok(result.read.iops + result.write.iops)
    }
}

/// `cargo xtask bench hosts`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let start = Instant::now();
    let ceph = Arc::new(Ceph::open(workspace, POOL)?);
    let rounds = if arguments.quick { 1 } else { arguments.rounds };
    let figures = measure(workspace, &ceph, rounds)?;
    let conditions = page::conditions(workspace, "cargo xtask bench hosts", start.elapsed())?;
    let page = hosts_report::page(&conditions, &figures);
    println!("\n{page}");
    if arguments.quick {
        return Ok(());
    }
    page::write(workspace, hosts_report::NAME, &page, &figures.raw())
}

fn measure(workspace: &Workspace, ceph: &Arc<Ceph>, rounds: usize) -> Result<Figures> {
    let pools = Pools::Ceph(Arc::clone(ceph));
    let scratch = Scratch::new(&workspace.scratch_parent(), "hosts")?;
    let product = |name: &str, options: &[&str]| {
        let directory = scratch.path().join(name);
        std::fs::create_dir(&directory)?;
        let product = Product::build_in(workspace, &pools, &directory)?;
        product.create_pool_with("16G", options)?;
        anyhow::Ok(product)
    };
    let alone = product("alone", &[])?;
    let shared = product("shared", &["--shards", SHARDS])?;
    let (of_one, of_host) = (serve(&alone, &[])?, serve(&shared, &[])?);
    let mut figures = Figures::default();
    for (product, volume, mode) in [
        (&alone, "disk", Mode::Offline),
        (&shared, "disk", Mode::Offline),
        (&shared, "inline", Mode::Inline),
    ] {
        create(product, volume, mode)?;
        let uri = product.default_address().uri(volume);
        fill(scratch.path(), &uri, DISK_MIB, 1)?;
    }
    let rbd = Rbd::serve(ceph.conf(), scratch.path(), "disk", &format!("{DISK_MIB}M"))?;
    let [group, one_owner, in_line] = [(&shared, "disk"), (&alone, "disk"), (&shared, "inline")]
        .map(|(product, volume)| product.default_address().uri(volume));
    let in_rbd = rbd.address.uri("disk");
    fill(scratch.path(), &in_rbd, DISK_MIB, 1)?;
    for round in 1..=rounds {
        // Whichever comes first in a round comes later in the next.
        for (n, load) in GROUP_ROWS.iter().enumerate() {
            let rates = in_turn(round, |of| {
                load.measure(scratch.path(), [&group, &one_owner, &in_rbd][of])
            })?;
            println!("round {round}, {}: {rates:.0?} a second", load.title);
            figures.groups[n].push(rates);
        }
        for (n, load) in INLINE_ROWS.iter().enumerate() {
            let rates = in_turn(round, |of| {
                load.measure(scratch.path(), [&in_line, &group][of])
            })?;
            println!("round {round}, {}: {rates:.0?} a second", load.title);
            figures.inline[n].push(rates);
        }
    }
    rbd.daemon.stop()?;
    of_one.stop()?;
    figures.hits = hits(&shared)?;
    println!("{:.2} of the blocks of a copy were hits", figures.hits);
    of_host.stop()?;
    let idle = product("idle", &["--shards", IDLE_SHARDS])?;
    figures.idle_mib = idle_mib(&idle)?;
    println!("{:.0} MiB with {IDLE_GROUPS} idle groups", figures.idle_mib);
    let few = rounds.min(FEW_ROUNDS);
    let one_shard = product("callers", &["--shards", "1"])?;
    let of_shard = serve(&one_shard, &[])?;
    for round in 1..=few {
        let rates = in_turn(round, |of| {
            let turn = (2 * round + of) as u64;
            items_per_second(ceph, &one_shard, [CALLERS, 1][of], turn)
        })?;
        println!("round {round}: {rates:.0?} items a second of {CALLERS} callers, and of one");
        figures.callers.push(rates);
    }
    of_shard.stop()?;
    for round in 1..=few {
        let micros = in_turn(round, |of| {
            let hosts = [HOSTS, 1][of];
            let pool = product(&format!("dedup-{round}-{hosts}"), &["--shards", SHARDS])?;
            dedup_micros(workspace, &pool, hosts)
        })?;
        println!("round {round}: {micros:.1?} us a block with {HOSTS} hosts, and with one");
        figures.dedup_micros.push(micros);
    }
    Ok(figures)
}

/// Measures each side of a comparison, another one first in each round.
fn in_turn<const N: usize>(
    round: usize,
    mut measure: impl FnMut(usize) -> Result<f64>,
) -> Result<[f64; N]> {
    let mut figures = [0.0; N];
    for turn in 0..N {
        let of = (round + turn) % N;
        figures[of] = measure(of)?;
    }
    Ok(figures)
}

/// The processor time of all daemons for each block that their finders share, in microseconds.
fn dedup_micros(workspace: &Workspace, pool: &Product, hosts: usize) -> Result<f64> {
    let images = images::make_three(workspace)?;
    let hosts = (1..=hosts).map(|n| {
        let name = format!("kvm{n}");
        let product = pool.on_host(&name)?;
        let daemon = product.serve(&["--host-name", &name], &[])?;
        Ok((product, daemon))
    });
    let hosts = hosts.collect::<Result<Vec<_>>>()?;
    let volume = |n: usize| (&hosts[n % hosts.len()].0, format!("vm{n}"));
    for n in 0..images.len() * COPIES {
        let (product, name) = volume(n);
        import(product, &name, &images[n / COPIES].path)?;
    }
    let cpu_seconds = || -> Result<f64> {
        let seconds = hosts.iter().map(|(_, daemon)| daemon.cpu_seconds());
        seconds.sum()
    };
    let private = || -> Result<u64> {
        let blocks = hosts.iter().map(|(product, _)| {
            let number = |key| product.stat_number(key);
            Ok(number("private_blocks")? + number("unsettled_blocks")?)
        });
        blocks.sum()
    };
    let (blocks, before, start) = (private()?, cpu_seconds()?, Instant::now());
    for n in 0..images.len() * COPIES {
        let (product, name) = volume(n);
        let set = ["--quiet", "volume", "set", &name, "--dedup", "offline"];
        let eager = ["--interval", "1", "--cold-passes", "1"];
        product.command().args(set).args(eager).run()?;
    }
    while private()? > 0 {
        ensure!(
            start.elapsed() < SHARED_LIMIT,
            "the finders do not come to an end"
        );
        std::thread::sleep(SHARED_POLL);
    }
    let used = cpu_seconds()? - before;
    hosts
        .into_iter()
        .try_for_each(|(_, daemon)| daemon.stop().map(drop))?;
    Ok(used * 1e6 / blocks as f64)
}

fn import(product: &Product, volume: &str, image: &Path) -> Result<()> {
    let import = product
        .command()
        .args(["--quiet", "volume", "import", volume]);
    import.arg(image).args(["--dedup", "off"]).run()
}

/// Starts the daemon. Finder and collector are paused, and claims are counted.
fn serve(product: &Product, options: &[&str]) -> Result<Daemon> {
    let daemon = product.serve(options, &[])?;
    for job in ["finder", "collector"] {
        product
            .command()
            .args(["--quiet", "job", "pause", job])
            .run()?;
    }
    Ok(daemon)
}

fn create(product: &Product, volume: &str, mode: Mode) -> Result<()> {
    let size = format!("{DISK_MIB}M");
    let create = product
        .command()
        .args(["--quiet", "volume", "create", volume]);
    create.args(["--size", &size, "--dedup", mode.name()]).run()
}

/// Writes the first part of a disk in order, with content of this seed.
fn fill(directory: &Path, uri: &str, mib: u64, seed: u64) -> Result<()> {
    let job = section("fill", uri)
        .set("rw", "write")
        .set("bs", "1m")
        .set("iodepth", 4)
        .set("size", format!("{mib}M"))
        .set("randseed", seed);
    Fio::new(directory, "fill").job(job).run().map(drop)
}

/// A job on a disk, with new content in each request.
fn section(name: &str, uri: &str) -> Section {
    Section::new(name, uri)
        .set("size", format!("{DISK_MIB}M"))
        .set("refill_buffers", 1)
}

/// The share of blocks that are hits when a volume in line is written with the content of another, 4 KiB at a time.
fn hits(shared: &Product) -> Result<f64> {
    let run = |arguments: &[&str]| shared.command().arg("--quiet").args(arguments).run();
    create(shared, "source", Mode::Offline)?;
    create(shared, "copy", Mode::Inline)?;
    let source = shared.default_address().uri("source");
    fill(shared.place().directory(), &source, DUPLICATES_MIB, 2)?;
    run(&["pool", "dedup", "--volume", "source"])?;
    let before = shared.inline("copy")?;
    Cmd::new("nbdcopy")
        .args(["--requests=1", "--connections=1", "--request-size=4096"])
        .arg(source)
        .arg(shared.default_address().uri("copy"))
        .run()?;
    let after = shared.inline("copy")?;
    let blocks = DUPLICATES_MIB * (1 << 20) / BLOCK_BYTES;
    let (hits, scanned) = (after.hits - before.hits, after.scanned - before.scanned);
    let data = scanned - (after.zeros - before.zeros);
    ensure!(data >= blocks, "{data} blocks were looked up of {blocks}");
    Ok(hits as f64 / data as f64)
}

/// The highest memory of a daemon with many groups and shards that nobody uses, in MiB.
fn idle_mib(idle: &Product) -> Result<f64> {
    let memory = format!("{IDLE_MEMORY_MIB}M");
    let daemon = serve(idle, &["--memory", &memory])?;
    for _ in 0..IDLE_GROUPS {
        idle.command().args(["--quiet", "group", "create"]).run()?;
    }
    let peak = daemon.peak_memory_bytes()?;
    daemon.stop()?;
    Ok(peak as f64 / f64::from(1 << 20))
}

impl Figures {
    pub(crate) fn raw(&self) -> Value {
        json!({"groups": raw_rows(&GROUP_ROWS, &self.groups, ["group", "one_owner", "rbd"]),
               "inline": raw_rows(&INLINE_ROWS, &self.inline, ["inline", "offline"]),
               "hits": self.hits, "idle_mib": self.idle_mib,
               "items_per_second_of_callers": self.callers, "dedup_micros": self.dedup_micros})
    }
}

fn raw_rows<const N: usize>(
    loads: &[Load],
    rates: &[Vec<[f64; N]>],
    names: [&str; N],
) -> Vec<Value> {
    let rows = loads.iter().zip(rates).map(|(load, rates)| {
        let mut row = json!({"row": load.title});
        for (n, name) in names.iter().enumerate() {
            row[name] = rates.iter().map(|sides| sides[n]).collect();
        }
        row
    });
    rows.collect()
}
