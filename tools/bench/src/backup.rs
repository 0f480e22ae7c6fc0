//! `cargo xtask bench backup`: backs up a guest's disk on several days, and restores it, with onefold, restic and borg
//! in turn; and measures how much a running backup slows a guest down.
//!
//! onefold reads the disk from a volume in a pool that a daemon serves and that is written over NBD each day. restic
//! and borg read it from a file. All disks are in the page cache.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onefold_nbd::client::{Address as NbdAddress, Client};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;

use crate::backup_report::{self, Figures};
use crate::page;
use crate::windows::{WINDOW, epoch_ms};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::{Cmd, Running};
use onefold_harness::fio::{Fio, Request, Section, read_latencies};
use onefold_harness::images::{self, Image};
use onefold_harness::packages;
use onefold_harness::server::{Address, Daemon, Product};
use onefold_harness::workspace::Workspace;

/// The tools that onefold is compared with, from the distribution.
const PACKAGES: &[&str] = &["borgbackup", "restic"];

/// Options of `cargo xtask bench backup`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only one round, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Raw images of one disk, one per day. By default, days are made from the test images
    days: Vec<PathBuf>,
}

const ROUNDS: usize = 3;

/// Days that are made if no images are given.
const DAYS: usize = 4;

/// The size of the pieces in which a day changes the disk.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_A_DAY: usize = 1000;

/// The start of each window that is left out, because requests of the window before may still be in flight.
const WINDOW_EDGE: Duration = Duration::from_millis(100);

/// Windows per round in which a backup runs, and in which one of the loads for comparison runs.
const BACKUP_WINDOWS: usize = 40;
const OTHER_WINDOWS: usize = 10;

/// Seconds for which a guest runs before it is measured.
const GUEST_RAMP_SECONDS: u32 = 2;

/// The guest's requests per second.
pub(crate) const GUEST_IOPS: u32 = 2000;

/// The program that makes the backups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Onefold,
    Restic,
    Borg,
}

pub(crate) const TOOLS: [Tool; 3] = [Tool::Onefold, Tool::Restic, Tool::Borg];

/// The cost of one tool's backups in a round.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Taken {
    /// Wall time of each day's backup.
    pub(crate) seconds: Vec<f64>,
    /// Processor time of all days' backups together.
    pub(crate) cpu_seconds: f64,
    /// Wall time of restoring the last day.
    pub(crate) restore_seconds: f64,
    pub(crate) repository_bytes: u64,
}

/// `cargo xtask bench backup`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(PACKAGES)?;
    let start = Instant::now();
    let scratch = Scratch::new(&workspace.scratch_parent(), "backup")?;
    let days = match arguments.days.as_slice() {
        [] => make_days(&images::make_three(workspace)?, scratch.path())?,
        days => days.to_vec(),
    };
    ensure!(days.len() > 1, "this needs two days at least");
    let mut figures = Figures::new(&days)?;
    for round in 1..=if arguments.quick { 1 } else { ROUNDS } {
        for tool in TOOLS {
            let directory = scratch.path().join("round");
            std::fs::create_dir(&directory).context("cannot make a directory")?;
            let taken = match tool {
                Tool::Onefold => onefold(workspace, &directory, &days, &mut figures)?,
                Tool::Restic => peer(&Restic::new(&directory), &directory, &days)?,
                Tool::Borg => peer(&Borg::new(&directory), &directory, &days)?,
            };
            println!("round {round}, {tool:?}: {taken:?}");
            figures.add(tool, taken);
            std::fs::remove_dir_all(&directory).context("cannot remove a directory")?;
        }
    }
    let conditions = page::conditions(workspace, "cargo xtask bench backup", start.elapsed())?;
    let page = backup_report::page(&conditions, &figures);
    println!("\n{page}");
    if arguments.quick || !arguments.days.is_empty() {
        println!("{}", figures.raw());
        return Ok(());
    }
    page::write(workspace, backup_report::NAME, &page, &figures.raw())
}

/// Writes the images one after the other as the first day, then makes the later days by changing pieces of it.
fn make_days(images: &[Image], directory: &Path) -> Result<Vec<PathBuf>> {
    let first = directory.join("day-0.raw");
    let mut disk = File::create(&first).context("cannot make an image")?;
    let mut content = Vec::new();
    for image in images {
        let mut file = File::open(&image.path).context("cannot open an image")?;
        file.read_to_end(&mut content)
            .context("cannot read an image")?;
    }
    write_sparse(&mut disk, &content)?;
    let mut days = vec![first];
    for day in 1..DAYS {
        let mut random = fastrand::Rng::with_seed(day as u64);
        let pieces = content.len() / PIECE_BYTES;
        for _ in 0..PIECES_A_DAY {
            let (from, to) = (random.usize(..pieces), random.usize(..pieces));
            let piece = content[from * PIECE_BYTES..][..PIECE_BYTES].to_vec();
            let changed = &mut content[to * PIECE_BYTES..][..PIECE_BYTES];
            changed.copy_from_slice(&piece);
            // New content that compresses as well as the old; zeros stay zeros.
            for block in changed.chunks_mut(4096).filter(|block| !is_zero(block)) {
                let at = random.usize(..block.len() - 8);
                block[at..at + 8].copy_from_slice(&random.u64(1..).to_le_bytes());
            }
        }
        let path = directory.join(format!("day-{day}.raw"));
        let mut disk = File::create(&path).context("cannot make an image")?;
        write_sparse(&mut disk, &content)?;
        days.push(path);
    }
    Ok(days)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn write_sparse(disk: &mut File, content: &[u8]) -> Result<()> {
    for (n, piece) in content.chunks(PIECE_BYTES).enumerate() {
        if !is_zero(piece) {
            disk.seek(SeekFrom::Start((n * PIECE_BYTES) as u64))
                .and_then(|_| disk.write_all(piece))
                .context("cannot write an image")?;
        }
    }
    disk.set_len(content.len() as u64)
        .context("cannot write an image")
}

/// Runs `work` and returns its wall time and the processor time of its child processes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    Cmd::new("sync").run()?;
    let (cpu, start) = (children_cpu_seconds()?, Instant::now());
    work()?;
    Ok((start.elapsed().as_secs_f64(), children_cpu_seconds()? - cpu))
}

/// Processor time of all child processes that this one has waited for (proc_pid_stat(5)).
fn children_cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc")?;
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let fields: Vec<f64> = fields.split(' ').flat_map(str::parse).collect();
    // The state, the field before them, is not a number.
    match fields.get(12..14) {
        Some([user, system]) => Ok((user + system) / 100.0),
        _ => bail!("/proc/self/stat has other fields than expected"),
    }
}

fn onefold(
    workspace: &Workspace,
    directory: &Path,
    days: &[PathBuf],
    figures: &mut Figures,
) -> Result<Taken> {
    let product = Product::build(workspace, directory)?;
    product.create_pool("32G")?;
    let repository = directory.join("repository");
    let key = directory.join("key");
    std::fs::write(&key, "a key that only this benchmark has").context("cannot write a key")?;
    let command = |verb: &[&str]| {
        product
            .command()
            .args(["--quiet", "--format", "json", "backup"])
            .args(verb)
            .arg("--repository")
            .arg(&repository)
            .arg("--key-file")
            .arg(&key)
    };
    command(&["init"]).read()?;
    product
        .command()
        .args(["--quiet", "volume", "import", "vm"])
        .arg(&days[0])
        .args(["--image-format", "raw"])
        .run()?;
    product
        .command()
        .args(["volume", "create", "guest", "--size", "1G"])
        .run()?;
    let daemon = product.serve(&[], &[])?;
    product.pause_jobs()?;
    // The job that makes backups stays on.
    let resume = ["job", "resume", "copying"];
    product.command().args(resume).run()?;
    let mut taken = Taken::default();
    for (n, day) in days.iter().enumerate() {
        if n > 0 {
            write_day(&product, &days[n - 1], day)?;
        }
        let cpu = daemon.cpu_seconds()?;
        let mut said = String::new();
        let (seconds, own_cpu) = timed(|| {
            said = command(&["create", "vm"]).read()?;
            Ok(())
        })?;
        taken.seconds.push(seconds);
        taken.cpu_seconds += own_cpu + daemon.cpu_seconds()? - cpu;
        figures.created(&serde_json::from_str(&said).context("create printed no JSON")?);
    }
    taken.repository_bytes = file_bytes(&repository)?;
    let restored = directory.join("restored.raw");
    (taken.restore_seconds, _) = timed(|| {
        let restore = command(&["restore", "vm@latest"]).arg(&restored);
        figures.restored(&serde_json::from_str(&restore.read()?)?);
        Ok(())
    })?;
    let last = days.last().context("there is no day")?;
    Cmd::new("cmp").arg(&restored).arg(last).run()?;
    std::fs::remove_file(&restored).context("cannot remove a file")?;
    let shown = command(&["show", "vm@latest"]).read()?;
    figures.shown(&serde_json::from_str(&shown).context("show printed no JSON")?);
    figures.mounted(random_reads(directory, &command)?);
    figures.guest(guest(&product, directory, last, &command)?);
    daemon.stop()?;
    Ok(taken)
}

/// Writes the blocks that a day changed, as a guest would.
fn write_day(product: &Product, before: &Path, after: &Path) -> Result<()> {
    let open = |path| File::open(path).context("cannot open an image");
    let (before, after) = (open(before)?, open(after)?);
    let bytes = after.metadata().context("cannot open an image")?.len();
    let uri = product.default_address().uri("vm");
    let address: NbdAddress = uri.parse().map_err(anyhow::Error::msg)?;
    let mut client = Client::connect(&address).context("cannot attach to the volume")?;
    let (mut old, mut new) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    for at in (0..bytes).step_by(PIECE_BYTES) {
        let len = (bytes - at).min(PIECE_BYTES as u64) as usize;
        before
            .read_exact_at(&mut old[..len], at)
            .and_then(|()| after.read_exact_at(&mut new[..len], at))
            .context("cannot read an image")?;
        let blocks = old[..len].chunks(4096).zip(new[..len].chunks(4096));
        for ((old, new), n) in blocks.zip(0..) {
            if old != new {
                client
                    .write(0, new, at + n * 4096)
                    .context("cannot write to the volume")?;
            }
        }
    }
    client.flush().context("cannot flush the volume")
}

/// Mean time of a random 4 KiB read through `backup mount`, of blocks that it has in memory, in microseconds.
fn random_reads(directory: &Path, command: &dyn Fn(&[&str]) -> Cmd) -> Result<f64> {
    let address = Address::Unix(directory.join("backup.sock"));
    let nbd = format!("unix:{}", directory.join("backup.sock").display());
    let mount = command(&["mount", "vm@latest", "--nbd", &nbd]);
    let log = directory.join("mount.log");
    let daemon = Daemon::start(mount, std::slice::from_ref(&address), &log)?;
    let last = command(&["list", "vm"]).read()?;
    let last: Value = serde_json::from_str(&last).context("list printed no JSON")?;
    let backups = last["backups"].as_array().map_or(0, Vec::len);
    let uri = address.uri(&format!("vm@{backups}"));
    let warm = Section::new("warm", &uri)
        .set("rw", "read")
        .set("bs", "1m")
        .set("offset", "64M")
        .set("size", "16M");
    Fio::new(directory, "warm").job(warm).run()?;
    let job = Section::new("random", &uri)
        .set("rw", "randread")
        .set("bs", "4k")
        .set("offset", "64M")
        .set("size", "16M")
        .set("time_based", 1)
        .set("runtime", 5);
    let results = Fio::new(directory, "random").job(job).run()?;
    daemon.stop()?;
    let result = results.first().context("fio reported no job")?;
    Ok(result.read.mean_us)
}

/// A guest's 99th percentiles in a window next to another load, and in the windows without it just before and after, in
/// microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Beside {
    pub(crate) before: f64,
    pub(crate) beside: f64,
    pub(crate) after: f64,
}

impl Beside {
    /// The percentile next to the load over the geometric mean of the two without it.
    pub(crate) fn ratio(&self) -> f64 {
        self.beside / (self.before * self.after).sqrt()
    }
}

/// How much other loads slowed a guest down in one round.
#[derive(Debug, Serialize)]
pub(crate) struct Guest {
    /// A full backup of another volume runs in a loop.
    pub(crate) backups: Vec<Beside>,
    /// No other load runs: shows the error of the measurement.
    pub(crate) nothing: Vec<Beside>,
    /// A process of the idle class hashes a file in a loop: none of our code runs.
    pub(crate) hashing: Vec<Beside>,
    /// A full backup of an image runs in a loop, which no daemon paces.
    pub(crate) images: Vec<Beside>,
    /// Rate at which backups read during their windows.
    pub(crate) backup_mb_per_second: f64,
}

fn guest(
    product: &Product,
    directory: &Path,
    file: &Path,
    backup: &dyn Fn(&[&str]) -> Cmd,
) -> Result<Guest> {
    let uri = product.default_address().uri("guest");
    let fill = Section::new("fill", &uri)
        .set("rw", "write")
        .set("bs", "1m");
    Fio::new(directory, "fill")
        .job(fill.set("size", "1G"))
        .run()?;
    let windows = Windows { directory, uri };
    // The first run after the daemon's start is slower than later ones.
    windows.measured("first", 1, None)?;
    let nothing = windows.measured("nothing", OTHER_WINDOWS, None)?;
    let hash = || {
        let hash = Cmd::new("chrt").args(["--idle", "0", "sha256sum"]);
        hash.arg(file)
    };
    let hashing = windows.measured("hashing", OTHER_WINDOWS, Some(&hash))?;
    let image = format!("image={}", file.display());
    let image = || backup(&["create", "--full", &image]);
    let images = windows.measured("images", OTHER_WINDOWS, Some(&image))?;
    let read = copied_bytes(product)?;
    let volume = || backup(&["create", "--full", "vm"]);
    let backups = windows.measured("backups", BACKUP_WINDOWS, Some(&volume))?;
    let read = copied_bytes(product)? - read;
    ensure!(read > 0.0, "no backup read anything beside the guest");
    Ok(Guest {
        backups,
        nothing,
        hashing,
        images,
        backup_mb_per_second: read / 1e6 / (WINDOW.as_secs_f64() * BACKUP_WINDOWS as f64),
    })
}

/// Measures a guest that is busy all the time while another load is alternately stopped and continued.
struct Windows<'a> {
    directory: &'a Path,
    uri: String,
}

impl Windows<'_> {
    /// Measures `beside` windows in which the command runs in a loop, each between two windows without it.
    fn measured(
        &self,
        name: &str,
        beside: usize,
        command: Option<&dyn Fn() -> Cmd>,
    ) -> Result<Vec<Beside>> {
        let windows = 2 * beside + 1;
        let job = Section::new(name, &self.uri)
            .set("rw", "randrw")
            .set("bs", "4k")
            .set("iodepth", 4)
            .set("rate_iops", GUEST_IOPS / 2)
            .set("size", "1G")
            .set("time_based", 1)
            .set("ramp_time", GUEST_RAMP_SECONDS)
            // The windows last a little longer than `WINDOW`.
            .set("runtime", windows as u64 * WINDOW.as_secs() + 5)
            .log_latencies(name);
        let mut fio = Fio::new(self.directory, name).job(job).spawn()?;
        thread::sleep(Duration::from_secs(u64::from(GUEST_RAMP_SECONDS) + 1));
        let mut others = Others {
            command,
            log: self.directory.join(name).with_extension("said"),
            running: None,
        };
        let spans = (0..windows).map(|n| others.window(n % 2 == 1));
        let spans = spans.collect::<Result<Vec<_>>>()?;
        drop(others);
        ensure!(fio.is_running()?, "the guest ended before it was measured");
        fio.wait_for_success()?;
        let requests = read_latencies(self.directory, name)?;
        let p99s = spans.iter().map(|span| p99(&requests, span));
        let p99s = p99s.collect::<Result<Vec<_>>>()?;
        let each = p99s.windows(3).step_by(2);
        Ok(each
            .filter_map(|three| match three {
                &[before, beside, after] => Some(Beside {
                    before,
                    beside,
                    after,
                }),
                _ => None,
            })
            .collect())
    }
}

/// The load next to which a guest is measured.
struct Others<'a> {
    command: Option<&'a dyn Fn() -> Cmd>,
    log: PathBuf,
    running: Option<Running>,
}

impl Others<'_> {
    /// Waits for one window in which the load runs or is stopped. Returns its span, in milliseconds of the Unix epoch.
    fn window(&mut self, at_work: bool) -> Result<Range<f64>> {
        if let Some(running) = &self.running {
            running.signal(if at_work { Signal::CONT } else { Signal::STOP })?;
        }
        let (start, began) = (epoch_ms()?, Instant::now());
        while began.elapsed() < WINDOW {
            let has_ended = match &mut self.running {
                Some(running) => running.try_wait()?.is_some(),
                None => true,
            };
            if has_ended {
                let next = self.command.filter(|_| at_work);
                self.running = next
                    .map(|command| command().spawn_logged(&self.log))
                    .transpose()?;
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(start + WINDOW_EDGE.as_secs_f64() * 1000.0..epoch_ms()?)
    }
}

impl Drop for Others<'_> {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            running.kill();
        }
    }
}

/// The 99th percentile of the reads and writes that were answered in this span, in microseconds.
fn p99(requests: &[Request], span: &Range<f64>) -> Result<f64> {
    let answered = requests
        .iter()
        .filter(|request| span.contains(&request.at_ms));
    let mut latencies: Vec<f64> = answered.map(|request| request.latency_us).collect();
    latencies.sort_by(f64::total_cmp);
    let wanted = (span.end - span.start) / 1000.0 * f64::from(GUEST_IOPS) / 2.0;
    ensure!(
        latencies.len() as f64 > wanted,
        "the guest made only {} requests in a window",
        latencies.len()
    );
    Ok(latencies[latencies.len() * 99 / 100])
}

/// Bytes that the daemon has read for backups so far.
fn copied_bytes(product: &Product) -> Result<f64> {
    let list = product
        .command()
        .args(["--format", "json", "job", "list"])
        .read()?;
    let list: Value = serde_json::from_str(&list).context("job list printed no JSON")?;
    let jobs = list["jobs"].as_array().context("job list lists no jobs")?;
    let copying = jobs.iter().find(|job| job["job"] == "copying");
    copying
        .and_then(|job| job["bytes"].as_f64())
        .context("the job 'copying' counts no bytes")
}

/// A tool that onefold is compared with. It reads the disk as a file `guest.raw` in its working directory.
trait Peer {
    fn init(&self) -> Vec<Cmd>;
    fn create(&self, day: usize) -> Cmd;
    /// The commands that restore the last day to this directory.
    fn restore(&self, to: &Path, days: usize) -> Cmd;
    fn repository(&self) -> &Path;
}

fn peer(peer: &dyn Peer, directory: &Path, days: &[PathBuf]) -> Result<Taken> {
    for command in peer.init() {
        command.read()?;
    }
    let source = directory.join("source");
    std::fs::create_dir(&source).context("cannot make a directory")?;
    let disk = source.join("guest.raw");
    let mut taken = Taken::default();
    for (n, day) in days.iter().enumerate() {
        let _ = std::fs::remove_file(&disk);
        // A copy per day, as a guest would have: the tools look at times and inode numbers.
        Cmd::new("cp")
            .arg("--sparse=always")
            .arg(day)
            .arg(&disk)
            .run()?;
        let (seconds, cpu) = timed(|| peer.create(n).dir(&source).read().map(drop))?;
        taken.seconds.push(seconds);
        taken.cpu_seconds += cpu;
    }
    taken.repository_bytes = file_bytes(peer.repository())?;
    let to = directory.join("restored");
    std::fs::create_dir(&to).context("cannot make a directory")?;
    let restore = peer.restore(&to, days.len()).dir(&to);
    (taken.restore_seconds, _) = timed(|| restore.read().map(drop))?;
    let restored = find(&to, "guest.raw")?;
    let last = days.last().context("there is no day")?;
    Cmd::new("cmp").arg(restored).arg(last).run()?;
    Ok(taken)
}

struct Restic {
    repository: PathBuf,
    cache: PathBuf,
}

impl Restic {
    fn new(directory: &Path) -> Self {
        Self {
            repository: directory.join("restic"),
            cache: directory.join("restic-cache"),
        }
    }

    fn command(&self) -> Cmd {
        Cmd::new("restic")
            .arg("-r")
            .arg(&self.repository)
            .arg("-q")
            .env("RESTIC_PASSWORD", "a passphrase")
            .env("RESTIC_CACHE_DIR", &self.cache)
    }
}

impl Peer for Restic {
    fn init(&self) -> Vec<Cmd> {
        vec![self.command().arg("init")]
    }

    fn create(&self, _day: usize) -> Cmd {
        self.command().args(["backup", "guest.raw"])
    }

    fn restore(&self, to: &Path, _days: usize) -> Cmd {
        self.command()
            .args(["restore", "latest", "--target"])
            .arg(to)
    }

    fn repository(&self) -> &Path {
        &self.repository
    }
}

struct Borg {
    repository: PathBuf,
    base: PathBuf,
}

impl Borg {
    fn new(directory: &Path) -> Self {
        Self {
            repository: directory.join("borg"),
            base: directory.join("borg-base"),
        }
    }

    fn command(&self) -> Cmd {
        Cmd::new("borg")
            .env("BORG_BASE_DIR", &self.base)
            .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
    }

    fn archive(&self, day: usize) -> String {
        format!("{}::day-{day}", self.repository.display())
    }
}

impl Peer for Borg {
    fn init(&self) -> Vec<Cmd> {
        let init = self.command().args(["init", "-e", "none"]);
        vec![init.arg(&self.repository)]
    }

    fn create(&self, day: usize) -> Cmd {
        let create = self.command().arg("create");
        create.arg(self.archive(day)).arg("guest.raw")
    }

    fn restore(&self, _to: &Path, days: usize) -> Cmd {
        let restore = self.command().args(["extract", "--sparse"]);
        restore.arg(self.archive(days - 1))
    }

    fn repository(&self) -> &Path {
        &self.repository
    }
}

/// Bytes of all files below a directory.
fn file_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).context("cannot list a directory")? {
        let entry = entry.context("cannot list a directory")?;
        let metadata = entry.metadata().context("cannot list a directory")?;
        bytes += if metadata.is_dir() {
            file_bytes(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(bytes)
}

fn find(directory: &Path, name: &str) -> Result<PathBuf> {
    for entry in std::fs::read_dir(directory).context("cannot list a directory")? {
        let path = entry.context("cannot list a directory")?.path();
        if path.file_name().is_some_and(|found| found == name) {
            return Ok(path);
        }
        if path.is_dir()
            && let Ok(found) = find(&path, name)
        {
            return Ok(found);
        }
    }
    bail!("{name} was not restored")
}
