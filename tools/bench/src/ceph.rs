//! `cargo xtask bench ceph`: compares a volume of a pool in Ceph with an image in RBD, on one throw-away cluster.
//!
//! Both are served over NBD: RBD by qemu-nbd without a cache, so that each write is acknowledged as each of ours is.
//! A round measures each row with both, one after the other, and compares them within the round. All daemons of the
//! cluster and its clients share this machine, so the ratios mean something and the rates do not.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::ceph_report::{self, Figures};
use crate::page;
use onefold_harness::ceph::{Cluster, POOL};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::packages;
use onefold_harness::server::{Address, Daemon};
use onefold_harness::workspace::Workspace;

/// Packages with RBD for qemu-nbd and RBD's command line.
const PACKAGES: &[&str] = &["qemu-block-extra", "ceph-common"];

const ROUNDS: usize = 5;

/// The size of each disk.
const DISK: &str = "512M";

/// How long each row is measured, in seconds.
const SECONDS: u32 = 5;

/// Data that the finder reads, in blocks at random places of a volume of the second size. Few of them are neighbours.
pub(crate) const SCATTERED: &str = "96M";
pub(crate) const SCATTERED_OVER: &str = "1G";

/// Options of `cargo xtask bench ceph`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only one round, for a quick impression
    #[arg(long)]
    quick: bool,
}

/// A row of the table: a load and its goals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) title: &'static str,
    rw: &'static str,
    bs: &'static str,
    depth: u32,
    /// Each write is flushed.
    flushes: bool,
    /// The least ratio to RBD, and the ratio that we aim at.
    pub(crate) must: f64,
    pub(crate) aim: f64,
}

pub(crate) const ROWS: [Row; 7] = [
    Row::new("4 KiB random writes, depth 1", "randwrite", "4k", 1).must(0.9, 1.0),
    Row::new("4 KiB random writes, depth 32", "randwrite", "4k", 32).must(0.9, 1.2),
    Row::new("4 KiB random reads, depth 1", "randread", "4k", 1).must(1.0, 1.5),
    Row::new("4 KiB random reads, depth 32", "randread", "4k", 32).must(1.0, 1.2),
    Row::new("4 KiB random writes, each flushed", "randwrite", "4k", 1)
        .flushed()
        .must(0.9, 1.0),
    Row::new("1 MiB sequential writes, depth 4", "write", "1m", 4).must(0.9, 1.0),
    Row::new("1 MiB sequential reads, depth 4", "read", "1m", 4).must(0.9, 1.0),
];

/// The numbers of the rows that are measured again on a volume whose blocks the finder has published: there, the first
/// write to a block needs a new block.
pub(crate) const PUBLISHED_ROWS: [usize; 2] = [1, 5];

impl Row {
    const fn new(title: &'static str, rw: &'static str, bs: &'static str, depth: u32) -> Row {
        Row {
            title,
            rw,
            bs,
            depth,
            flushes: false,
            must: 0.0,
            aim: 0.0,
        }
    }

    const fn must(self, must: f64, aim: f64) -> Row {
        Row { must, aim, ..self }
    }

    const fn flushed(self) -> Row {
        Row {
            flushes: true,
            ..self
        }
    }

    /// Runs the load and returns its requests per second.
    fn measure(&self, directory: &Path, uri: &str) -> Result<f64> {
        let job = Section::new("row", uri)
            .set("rw", self.rw)
            .set("bs", self.bs)
            .set("iodepth", self.depth)
            .set("size", DISK)
            .set("time_based", 1)
            .set("runtime", SECONDS)
            .set("ramp_time", 1)
            .set("fsync", u32::from(self.flushes));
        let results = Fio::new(directory, "row").job(job).run()?;
        let result = results.first().context("fio reported no job")?;
        Ok(result.read.iops + result.write.iops)
    }
}

/// `cargo xtask bench ceph`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let start = Instant::now();
    let scratch = Scratch::new(&workspace.scratch_parent(), "ceph")?;
    let cluster = Cluster::start(&scratch.path().join("c"))?;
    let measured = measure(workspace, &cluster, &scratch, arguments.quick);
    cluster.stop()?;
    let figures = measured?;
    let conditions = page::conditions(workspace, "cargo xtask bench ceph", start.elapsed())?;
    let page = ceph_report::page(&conditions, &figures);
    println!("\n{page}");
    if arguments.quick {
        return Ok(());
    }
    page::write(workspace, ceph_report::NAME, &page, &figures.raw())
}

fn measure(
    workspace: &Workspace,
    cluster: &Cluster,
    scratch: &Scratch,
    is_quick: bool,
) -> Result<Figures> {
    let directory = scratch.path();
    let host = |name: &str| -> Result<Host> {
        Ok(Host {
            binary: workspace.build_release("onefold")?,
            conf: cluster.conf(),
            run: directory.join(name),
        })
    };
    let (here, there) = (host("here")?, host("there")?);
    here.command(&["pool", "create", &here.place(), "--size", "16G"])
        .run()?;
    let on_pool = |arguments: &[&str]| here.on_pool(arguments).run();
    // The finder never scans this volume, not even before the daemon's jobs are paused.
    on_pool(&["volume", "create", "disk", "--size", DISK, "--dedup", "off"])?;
    let mut ours = here.serve()?;
    let rbd = Rbd::serve(&cluster.conf(), directory, "disk", DISK)?;
    let mut figures = Figures::new(cluster, DISK)?;
    let uris = [here.address().uri("disk"), rbd.address.uri("disk")];
    uris.iter().try_for_each(|uri| fill(directory, uri))?;
    for round in 1..=if is_quick { 1 } else { ROUNDS } {
        for (n, row) in ROWS.iter().enumerate() {
            let rates = [
                row.measure(directory, &uris[0])?,
                row.measure(directory, &uris[1])?,
            ];
            println!(
                "round {round}, {}: {:.0} and {:.0} a second, {:.2}",
                row.title,
                rates[0],
                rates[1],
                rates[0] / rates[1]
            );
            figures.add(n, rates);
        }
        let rate = here.finder(directory, &format!("scattered-{round}"))?;
        println!("round {round}, the finder reads {rate:.0} MB/s");
        figures.finder(rate);
        for (n, rate) in here.on_published(directory)?.into_iter().enumerate() {
            let title = ROWS[PUBLISHED_ROWS[n]].title;
            println!("round {round}, {title}, to published blocks: {rate:.0} a second");
            figures.published(n, rate);
        }
        // The last writes are only in the log, and have to be replayed.
        ours.kill()?;
        let (again, seconds) = here.opened(&[])?;
        again.kill()?;
        let (other, by_other) = there.opened(&[])?;
        other.stop()?;
        figures.opened(seconds, by_other);
        println!("round {round}, opened in {seconds:.2} s, by another host in {by_other:.2} s");
        ours = here.serve()?;
    }
    ours.stop()?;
    rbd.daemon.stop()?;
    Ok(figures)
}

/// Writes all blocks of a disk, in order.
fn fill(directory: &Path, uri: &str) -> Result<()> {
    let fill = Section::new("fill", uri).set("rw", "write").set("bs", "1m");
    let fill = fill.set("iodepth", 4).set("size", DISK);
    Fio::new(directory, "fill").job(fill).run().map(drop)
}

/// A host with its own run directory, and therefore its own client of the cluster.
struct Host {
    binary: PathBuf,
    conf: PathBuf,
    run: PathBuf,
}

impl Host {
    fn place(&self) -> String {
        format!("ceph:{POOL}/bench")
    }

    fn command(&self, arguments: &[&str]) -> Cmd {
        let command = Cmd::new(&self.binary).args(arguments);
        let command = command.arg("--run").arg(&self.run);
        command.arg("--ceph-conf").arg(&self.conf).arg("--quiet")
    }

    fn on_pool(&self, arguments: &[&str]) -> Cmd {
        self.command(arguments).args(["--pool", &self.place()])
    }

    fn address(&self) -> Address {
        Address::Unix(self.run.join("nbd.sock"))
    }

    /// Starts the daemon with its jobs paused.
    fn serve(&self) -> Result<Daemon> {
        let log = self.run.with_extension("log");
        let daemon = Daemon::start(self.on_pool(&["serve"]), &[self.address()], &log)?;
        self.on_pool(&["job", "pause"]).run()?;
        Ok(daemon)
    }

    /// Starts the daemon. Returns the seconds until it answered the first request.
    fn opened(&self, options: &[&str]) -> Result<(Daemon, f64)> {
        let start = Instant::now();
        let log = self.run.with_extension("log");
        let serve = self.on_pool(&["serve"]).args(options);
        let daemon = Daemon::start(serve, &[self.address()], &log)?;
        // The socket greets before the pool is open, so this asks for the size.
        Cmd::new("nbdinfo")
            .arg("--size")
            .arg(self.address().uri("disk"))
            .read()?;
        Ok((daemon, start.elapsed().as_secs_f64()))
    }

    /// Megabytes per second at which the finder reads blocks that were written at random places.
    fn finder(&self, directory: &Path, volume: &str) -> Result<f64> {
        self.on_pool(&["volume", "create", volume, "--size", SCATTERED_OVER])
            .run()?;
        let dedup = || self.on_pool(&["--format", "json", "pool", "dedup", "--volume", volume]);
        // The collector first finishes the work of earlier rounds, which would count in the time.
        dedup().read()?;
        let job = Section::new("scatter", &self.address().uri(volume))
            .set("rw", "randwrite")
            .set("bs", "4k")
            .set("iodepth", 32)
            .set("size", SCATTERED_OVER)
            .set("io_size", SCATTERED);
        Fio::new(directory, "scatter").job(job).run()?;
        let found = dedup().read()?;
        let found: Value = serde_json::from_str(&found).context("pool dedup printed no JSON")?;
        let number = |key: &str| found[key].as_f64().with_context(|| format!("no {key}"));
        let rate = number("bytes_per_second")? / 1e6;
        ensure!(rate > 0.0, "the finder found nothing to read: {found}");
        self.on_pool(&["volume", "delete", volume, "--yes"]).run()?;
        Ok(rate)
    }

    /// Requests per second to blocks that the finder has published.
    fn on_published(&self, directory: &Path) -> Result<Vec<f64>> {
        const VOLUME: &str = "published";
        self.on_pool(&["volume", "create", VOLUME, "--size", DISK])
            .run()?;
        let uri = self.address().uri(VOLUME);
        fill(directory, &uri)?;
        self.on_pool(&["pool", "dedup", "--volume", VOLUME]).run()?;
        let rates = PUBLISHED_ROWS.map(|row| ROWS[row].measure(directory, &uri));
        let rates = rates.into_iter().collect();
        self.on_pool(&["volume", "delete", VOLUME, "--yes"]).run()?;
        rates
    }
}

/// An image in RBD, served by qemu-nbd.
pub(crate) struct Rbd {
    pub(crate) daemon: Daemon,
    pub(crate) address: Address,
}

impl Rbd {
    /// Creates and serves an image of this name and size.
    pub(crate) fn serve(conf: &Path, directory: &Path, image: &str, size: &str) -> Result<Rbd> {
        packages::require(PACKAGES)?;
        let create = Cmd::new("rbd").arg("--conf").arg(conf);
        let name = format!("{POOL}/{image}");
        create.args(["create", "--size", size, &name]).run()?;
        let socket = directory.join(format!("{image}.sock"));
        let source = format!("rbd:{name}:id=admin:conf={}", conf.display());
        let command = Cmd::new("qemu-nbd")
            .args(["--format=raw", "--persistent", "--shared=8", "--cache=none"])
            .args(["--discard=unmap", "-x", image, "-k"])
            .arg(&socket)
            .arg(source);
        let address = Address::Unix(socket);
        let log = directory.join(format!("{image}.log"));
        let daemon = Daemon::start(command, std::slice::from_ref(&address), &log)?;
        Ok(Rbd { daemon, address })
    }
}

/// The version of the installed Ceph.
pub(crate) fn release(cluster: &Cluster) -> Result<String> {
    Ok(cluster
        .client("ceph")
        .arg("--version")
        .read()?
        .trim()
        .to_owned())
}

impl Figures {
    pub(crate) fn raw(&self) -> Value {
        let rows = ROWS.iter().zip(&self.rates).map(|(row, rates)| {
            json!({"row": row.title,
                   "onefold": rates.iter().map(|pair| pair[0]).collect::<Vec<_>>(),
                   "rbd": rates.iter().map(|pair| pair[1]).collect::<Vec<_>>()})
        });
        let published = PUBLISHED_ROWS.iter().zip(&self.published);
        let published =
            published.map(|(row, rates)| json!({"row": ROWS[*row].title, "onefold": rates}));
        json!({"rows": rows.collect::<Vec<_>>(), "to_published_blocks": published.collect::<Vec<_>>(),
               "finder_mb_per_second": self.finder,
               "opened_seconds": self.opened, "opened_by_another_seconds": self.opened_by_another})
    }
}

/// How long another host may be silent before it is taken for dead, by default.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
