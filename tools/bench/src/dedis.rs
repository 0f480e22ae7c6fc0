//! `cargo xtask bench dedis`: repeats tables XIII to XV of DEDIS in kind, with one to three hosts and RBD, on one throw-away
//! cluster.
//!
//! Each host serves one virtual machine. All of them write at hot spots at the same time, with the duplicates that DEDIS wrote,
//! while the finders work; then the finders have the machine for themselves.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::ceph::Rbd;
use crate::dedis_report::{self, Figures};
use crate::page;
use onefold_harness::ceph::POOL;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::images;
use onefold_harness::packages;
use onefold_harness::pools::{Ceph, Place, Pools};
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

/// The most hosts.
pub(crate) const HOSTS_MAX: usize = 3;

/// Hosts of the runs that compare settings.
pub(crate) const HOSTS_OF_SETTINGS: usize = 2;

/// The size of a disk that is written, in MiB.
pub(crate) const DISK_MIB: u64 = 512;

/// How long the load lasts, in seconds.
pub(crate) const SECONDS: u64 = 20;

/// Requests at a time of each virtual machine.
pub(crate) const JOBS: u64 = 4;

pub(crate) const SHARDS: &str = "64";

/// Memory of a daemon, of which a group has room for its hash cache.
pub(crate) const MEMORY: &str = "2G";

const ROUNDS: usize = 3;

const BLOCK_BYTES: f64 = 4096.0;

const SEED: u64 = 7;

/// Options of `cargo xtask bench dedis`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only one round, for a quick impression
    #[arg(long)]
    quick: bool,
}

/// Settings of a volume.
pub(crate) struct Setting {
    pub(crate) title: &'static str,
    options: &'static [&'static str],
}

/// The settings of table XIII. The second one is used for everything else.
pub(crate) const SETTINGS: [Setting; 3] = [
    Setting {
        title: "without a hash cache",
        options: &[],
    },
    Setting {
        title: "with a hash cache",
        options: &["--hash-cache", "16M"],
    },
    Setting {
        title: "bytes compared",
        options: &["--hash-cache", "16M", "--verify"],
    },
];

pub(crate) const STANDARD: usize = 1;

/// The load as all virtual machines together had it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Performance {
    pub(crate) requests_per_second: f64,
    pub(crate) mean_ms: f64,
}

/// The work of the finders, and what the hosts used for it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sharing {
    /// Blocks of the load that the finders processed, and those of them that were duplicates.
    pub(crate) scanned: u64,
    pub(crate) duplicates: u64,
    /// The same of the images that were imported before.
    pub(crate) imported: u64,
    pub(crate) imported_duplicates: u64,
    /// The rate of all finders together after the load, in MB/s.
    pub(crate) mb_per_second: f64,
    /// Figures of one host: percent of one processor during the load, memory, log and metadata, and the index.
    pub(crate) processor_percent: f64,
    pub(crate) memory_mib: f64,
    pub(crate) metadata_mib: f64,
    pub(crate) index_mib: f64,
}

/// One run with hosts of a shared pool.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run {
    pub(crate) load: Performance,
    pub(crate) sharing: Sharing,
}

/// `cargo xtask bench dedis`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let start = Instant::now();
    let ceph = Arc::new(Ceph::open(workspace, POOL)?);
    let rounds = if arguments.quick { 1 } else { ROUNDS };
    let figures = measure(workspace, &ceph, rounds)?;
    let conditions = page::conditions(workspace, "cargo xtask bench dedis", start.elapsed())?;
    let page = dedis_report::page(&conditions, &figures);
    println!("\n{page}");
    if arguments.quick {
        return Ok(());
    }
    page::write(workspace, dedis_report::NAME, &page, &figures.raw())
}

fn measure(workspace: &Workspace, ceph: &Arc<Ceph>, rounds: usize) -> Result<Figures> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "dedis")?;
    let pools = Pools::Ceph(Arc::clone(ceph));
    let image = images::make_three(workspace)?.swap_remove(0).path;
    let mut figures = Figures::default();
    let mut made = 0;
    let mut shared = |hosts: usize, setting: usize| {
        made += 1;
        let directory = scratch.path().join(format!("pool-{made}"));
        std::fs::create_dir(&directory)?;
        let pool = Product::build_in(workspace, &pools, &directory)?;
        pool.create_pool_with("16G", &["--shards", SHARDS])?;
        of_hosts(&pool, hosts, &SETTINGS[setting], &image)
    };
    for round in 1..=rounds {
        for hosts in 1..=HOSTS_MAX {
            // Whichever comes first in a round comes second in the next.
            let rbd = || {
                let directory = scratch.path().join(format!("rbd-{round}-{hosts}"));
                std::fs::create_dir(&directory)?;
                let binary = workspace.build_release("onefold")?;
                of_rbd(
                    ceph.conf(),
                    &binary,
                    &directory,
                    &format!("{round}-{hosts}"),
                    hosts,
                )
            };
            let (run, other) = if round % 2 == 0 {
                let other = rbd()?;
                (shared(hosts, STANDARD)?, other)
            } else {
                (shared(hosts, STANDARD)?, rbd()?)
            };
            println!("round {round}, {hosts} hosts: {run:?}; RBD {other:?}");
            figures.hosts[hosts - 1].push((run, other));
        }
        for (n, setting) in SETTINGS.iter().enumerate() {
            if n != STANDARD {
                let run = shared(HOSTS_OF_SETTINGS, n)?;
                println!("round {round}, {}: {run:?}", setting.title);
                figures.settings[n].push(run);
            }
        }
        let standard = figures.hosts[HOSTS_OF_SETTINGS - 1].last();
        let (standard, _) = standard.context("no run with the standard setting")?;
        figures.settings[STANDARD].push(*standard);
    }
    Ok(figures)
}

/// Loads the disks of images in RBD.
fn of_rbd(
    conf: &Path,
    binary: &Path,
    directory: &Path,
    name: &str,
    hosts: usize,
) -> Result<Performance> {
    let images: Vec<String> = (1..=hosts)
        .map(|host| format!("vm-{name}-{host}"))
        .collect();
    let size = format!("{DISK_MIB}M");
    let served = images
        .iter()
        .map(|image| Rbd::serve(conf, directory, image, &size));
    let served = served.collect::<Result<Vec<_>>>()?;
    let uris: Vec<String> = (served.iter().zip(&images))
        .map(|(rbd, image)| rbd.address.uri(image))
        .collect();
    let load = load(binary, &uris)?;
    for (rbd, image) in served.into_iter().zip(&images) {
        rbd.daemon.stop()?;
        let remove = Cmd::new("rbd").arg("--conf").arg(conf);
        remove
            .args(["rm", "--no-progress", &format!("{POOL}/{image}")])
            .run()?;
    }
    Ok(load)
}

/// Loads the disks of hosts that share a new pool.
fn of_hosts(pool: &Product, hosts: usize, setting: &Setting, image: &Path) -> Result<Run> {
    let hosts = (1..=hosts).map(|n| {
        let name = format!("kvm{n}");
        let host = pool.on_host(&name)?;
        let serve = [
            "--host-name",
            &name,
            "--memory",
            MEMORY,
            "--groups-max",
            "2",
        ];
        let daemon = host.serve(&serve, &[])?;
        Ok((host, daemon))
    });
    let hosts = hosts.collect::<Result<Vec<_>>>()?;
    let mut sharing = Sharing::default();
    for (n, (host, _)) in hosts.iter().enumerate() {
        let found = install(host, n, setting, image)?;
        sharing.imported += found.0;
        sharing.imported_duplicates += found.1;
    }
    let uris: Vec<String> = (hosts.iter().enumerate())
        .map(|(n, (host, _))| host.default_address().uri(&disk(n)))
        .collect();
    let (before, start) = (processor_seconds(&hosts)?, Instant::now());
    let load = load(pool.binary(), &uris)?;
    let used = processor_seconds(&hosts)? - before;
    let count = hosts.len() as f64;
    sharing.processor_percent = 100.0 * used / start.elapsed().as_secs_f64() / count;
    find_the_rest(&hosts, &mut sharing)?;
    for (host, daemon) in &hosts {
        sharing.memory_mib += mib(daemon.peak_memory_bytes()?) / count;
        sharing.metadata_mib += mib(host.stat_number("metadata_bytes_on_disk")?) / count;
    }
    if let Place::Ceph(place) = pool.place() {
        sharing.index_mib = mib(place.bytes_of("ix.")?) / count;
    }
    hosts
        .into_iter()
        .try_for_each(|(_, daemon)| daemon.stop().map(drop))?;
    Ok(Run { load, sharing })
}

/// Gives a host an image, and a disk to write. Returns the blocks of the image, and those that were there already.
fn install(host: &Product, n: usize, setting: &Setting, image: &Path) -> Result<(u64, u64)> {
    let run = |arguments: &[&str]| host.command().arg("--quiet").args(arguments).run();
    let system = format!("system{n}");
    let import = host.command();
    let import = import.args(["--quiet", "--format", "json", "volume", "import", &system]);
    let reply: Value = serde_json::from_str(&import.arg(image).read()?)?;
    let blocks = |key: &str| {
        reply[key]
            .as_u64()
            .context("volume import counts no blocks")
    };
    let (imported, found) = (blocks("logical_blocks")?, blocks("duplicate_blocks")?);
    let (size, disk) = (format!("{DISK_MIB}M"), disk(n));
    let create = [
        "volume",
        "create",
        &disk,
        "--size",
        &size,
        "--interval",
        "2",
    ];
    run(&[&create[..], setting.options].concat())?;
    Ok((imported, found))
}

fn disk(n: usize) -> String {
    format!("disk{n}")
}

/// Has the finders process the rest, without any other load.
fn find_the_rest(hosts: &[(Product, Daemon)], sharing: &mut Sharing) -> Result<()> {
    for (host, _) in hosts {
        host.pause_jobs()?;
    }
    for (n, (host, _)) in hosts.iter().enumerate() {
        let [scanned, duplicates] = host.found_in(&disk(n))?;
        sharing.scanned += scanned;
        sharing.duplicates += duplicates;
    }
    let found = at_once(hosts.iter().enumerate(), |(n, (host, _))| {
        host.dedup(Some(&disk(n)))
    })?;
    let looked_at: u64 = found.iter().map(|found| found.looked_at).sum();
    let took = found.iter().map(|found| found.took).max();
    let took = took.filter(|took| *took > Duration::ZERO);
    let took = took.context("the finders took no time")?;
    sharing.mb_per_second = looked_at as f64 * BLOCK_BYTES / 1e6 / took.as_secs_f64();
    sharing.scanned += looked_at;
    sharing.duplicates += found.iter().map(|found| found.duplicates).sum::<u64>();
    ensure!(sharing.scanned > 0, "the finders have processed nothing");
    Ok(())
}

fn processor_seconds(hosts: &[(Product, Daemon)]) -> Result<f64> {
    hosts.iter().map(|(_, daemon)| daemon.cpu_seconds()).sum()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Writes to all disks at once, at hot spots, with contents that the disks have in common.
fn load(binary: &Path, uris: &[String]) -> Result<Performance> {
    let (jobs, seconds, seed) = (JOBS.to_string(), SECONDS.to_string(), SEED.to_string());
    let replies = at_once(uris.iter().enumerate(), |(n, uri)| {
        let instance = format!("{}/{}", n + 1, uris.len());
        let bench = Cmd::new(binary).args(["--quiet", "--format", "json", "bench", uri, "--yes"]);
        let bench = bench.args(["--pattern", "nurand", "--distribution", "dedis"]);
        let bench = bench.args(["--jobs", &jobs, "--seconds", &seconds, "--seed", &seed]);
        let text = bench
            .args(["--instance", &instance, "--no-read-back"])
            .read()?;
        serde_json::from_str::<Value>(&text).context("onefold bench did not print JSON")
    })?;
    let mut load = Performance::default();
    for reply in &replies {
        let written = &reply["phases"][0]["operations"][0];
        let number = |value: &Value| value.as_f64().context("onefold bench wrote nothing");
        load.requests_per_second += number(&written["requests_per_second"])?;
        load.mean_ms += number(&written["latency_ns"]["mean"])? / 1e6 / replies.len() as f64;
    }
    Ok(load)
}

/// Does something for all items at the same time.
fn at_once<I: Send, T: Send>(
    items: impl Iterator<Item = I>,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        let ended = threads.into_iter().map(|thread| {
            let ended = thread.join().ok();
            ended.context("a thread of the measurement panicked")?
        });
        ended.collect()
    })
}

impl Figures {
    pub(crate) fn raw(&self) -> Value {
        let load = |load: &Performance| json!({"requests_per_second": load.requests_per_second, "mean_ms": load.mean_ms});
        let run = |run: &Run| {
            let sharing = &run.sharing;
            json!({"load": load(&run.load), "scanned": sharing.scanned,
                   "duplicates": sharing.duplicates, "imported": sharing.imported,
                   "imported_duplicates": sharing.imported_duplicates,
                   "mb_per_second": sharing.mb_per_second,
                   "processor_percent": sharing.processor_percent,
                   "memory_mib": sharing.memory_mib, "metadata_mib": sharing.metadata_mib,
                   "index_mib": sharing.index_mib})
        };
        let hosts = self.hosts.iter().map(|runs| {
            let runs = runs.iter();
            runs.map(|(ours, rbd)| json!({"onefold": run(ours), "rbd": load(rbd)}))
                .collect::<Vec<_>>()
        });
        let settings = SETTINGS.iter().zip(&self.settings).map(|(setting, runs)| {
            json!({"setting": setting.title, "runs": runs.iter().map(run).collect::<Vec<_>>()})
        });
        json!({"hosts": hosts.collect::<Vec<_>>(), "settings": settings.collect::<Vec<_>>()})
    }
}
