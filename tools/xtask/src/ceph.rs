//! `cargo xtask ceph`: a throw-away Ceph cluster for tests, and faults of its OSDs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use onefold_harness::ceph::{Cluster, Osd, POOL};
use onefold_harness::workspace::Workspace;

/// How long `check` freezes an OSD.
const FREEZE: Duration = Duration::from_secs(5);

/// What `check` writes while OSDs fail.
const OBJECTS: u32 = 20;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The cluster's directory, on a file system with O_DIRECT [default: below the target directory]
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make and start a cluster, and print the variable that tests want
    Start,
    /// Kill the cluster's daemons, all that there are, and remove its directory
    Stop,
    /// Kill an OSD
    KillOsd(Number),
    /// Start an OSD again, and wait until it is up
    StartOsd(Number),
    /// Stop an OSD from running, as a machine that hangs would
    FreezeOsd(Number),
    /// Resume a frozen OSD
    ThawOsd(Number),
    /// Start a cluster, write to it while OSDs fail, read everything again, and stop it
    Check,
}

#[derive(Args)]
struct Number {
    /// 0, 1 or 2
    number: u32,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let directory = match &arguments.dir {
        Some(directory) => directory.clone(),
        None => workspace.scratch_parent().join("ceph"),
    };
    let of = |number: &Number, action: fn(&Osd) -> Result<()>| {
        action(&Cluster::open(&directory)?.osd(number.number)?)
    };
    match &arguments.action {
        Action::Start => {
            let cluster = Cluster::start(&directory)?;
            println!("export ONEFOLD_CEPH_CONF={}", cluster.conf().display());
            Ok(())
        }
        Action::Stop => Cluster::open(&directory)?.stop(),
        Action::KillOsd(number) => of(number, Osd::kill),
        Action::StartOsd(number) => of(number, Osd::start),
        Action::FreezeOsd(number) => of(number, Osd::freeze),
        Action::ThawOsd(number) => of(number, Osd::thaw),
        Action::Check => check(&directory),
    }
}

/// Whether a cluster does what tests want of it.
fn check(directory: &Path) -> Result<()> {
    let cluster = timed("start", || Cluster::start(directory))?;
    let checked = check_faults(&cluster);
    timed("stop", || cluster.stop())?;
    checked
}

fn check_faults(cluster: &Cluster) -> Result<()> {
    let killed = cluster.osd(1)?;
    killed.kill()?;
    timed("write with an OSD killed", || write(cluster, "killed"))?;
    timed("start the OSD again", || killed.start())?;
    timed("write with an OSD frozen", || write_beside_frozen(cluster))?;
    timed("read", || {
        read(cluster, "killed")?;
        read(cluster, "frozen")
    })
}

/// Writes while an OSD is frozen. They must block: the other OSDs wait for it until its heartbeat grace period ends.
fn write_beside_frozen(cluster: &Cluster) -> Result<()> {
    let frozen = cluster.osd(2)?;
    std::thread::scope(|scope| {
        frozen.freeze()?;
        let writing = scope.spawn(|| write(cluster, "frozen"));
        std::thread::sleep(FREEZE);
        let has_ended = writing.is_finished();
        frozen.thaw()?;
        let written = writing.join();
        written.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        if has_ended {
            bail!("writes did not wait for an OSD that was frozen");
        }
        Ok(())
    })
}

/// Writes the content of a file to several objects.
fn write(cluster: &Cluster, name: &str) -> Result<()> {
    (0..OBJECTS).try_for_each(|number| {
        let object = format!("{name}.{number}");
        let rados = cluster
            .client("rados")
            .args(["--pool", POOL, "put", &object]);
        rados.arg(cluster.conf()).run()
    })
}

fn read(cluster: &Cluster, name: &str) -> Result<()> {
    let expected = std::fs::read_to_string(cluster.conf()).context("cannot read ceph.conf")?;
    (0..OBJECTS).try_for_each(|number| {
        let object = format!("{name}.{number}");
        let rados = cluster
            .client("rados")
            .args(["--pool", POOL, "get", &object, "-"]);
        if rados.read()? != expected {
            bail!("{object} is not what was written");
        }
        Ok(())
    })
}

fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let done = work().with_context(|| what.to_owned())?;
    println!("{what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(done)
}
