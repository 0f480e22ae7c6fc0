//! A disk that hangs, and then fails or recovers, below a pool whose daemon is killed or survives.
//!
//! The disk is nbdkit's memory behind its filters `pause` and `error`, as a file by nbdfuse and a loop device; the
//! pool's data is a file on ext4 there, or the device itself. The daemon is killed during a sync, as its ledger shows.
//! Until then a client rewrites blocks, old ones and new ones. Afterwards a supervisor starts the daemon up to three
//! times.
//!
//! In every case a block either has flushed or later answered content, or cannot be read. It never has other content,
//! although the blocks belonged to another volume before. A volume that lost answered content fails its next flush.
//! Where no sync failed, nothing is lost, refused or doubted.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use onefold_harness::cleanup::{Mount, Scratch};
use onefold_harness::command::{Cmd, Running};
use onefold_harness::fuse::Fused;
use onefold_harness::loop_device::LoopDevice;
use onefold_harness::packages;
use onefold_harness::pools::Pools;
use onefold_harness::server::{self, Daemon, Product};
use onefold_harness::workspace::Workspace;
use onefold_nbd::client::{Address, Client};
use rustix::process::Signal;
use serde_json::Value;

const BLOCK: usize = 4096;
const VOLUMES: [&str; 3] = ["before", "busy", "idle"];

/// Bytes of the disk, and of the pool on it.
const DISK: &str = "60M";
const POOL: &str = "32M";

/// How often a supervisor starts the daemon.
const STARTS: usize = 3;

/// The time limit of everything that must happen.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// The delay by which each kill is later than the one before.
const BETWEEN_KILLS: Duration = Duration::from_millis(37);

/// The offsets of the words *begun* and *ended* in the ledger: see docs/format/tail.md.
const BEGUN_AT: u64 = 64;
const ENDED_AT: u64 = 72;

/// The place of the pool's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    File,
    Device,
}

/// The fate of the disk and the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The daemon is killed in a sync that fails afterwards.
    KilledThenFails,
    /// The daemon is killed in a sync that succeeds afterwards.
    KilledThenSucceeds,
    /// A sync fails, and the daemon is stopped, as its message asks.
    Fails,
}

/// Options of `cargo xtask sick-disk`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Kill the daemon at this many points of a sync, each in a new pool
    #[arg(long, default_value_t = 1)]
    kills: u32,
}

/// `cargo xtask sick-disk`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(packages::SICK_DISKS)?;
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: a disk that fails needs root and loop devices");
        return Ok(());
    }
    let scratch = Scratch::new(&workspace.scratch_parent(), "sick")?;
    let binary = Product::build(workspace, scratch.path())?
        .binary()
        .to_owned();
    for data in [Data::File, Data::Device] {
        for (event, cache) in [
            (Event::KilledThenFails, "host"),
            (Event::Fails, "host"),
            (Event::KilledThenSucceeds, "host"),
            (Event::KilledThenSucceeds, "direct"),
        ] {
            // Past the cache a device has nothing to write back, so none of its syncs hangs.
            if (data, cache) == (Data::Device, "direct") {
                continue;
            }
            let points = match event {
                Event::Fails => 1,
                Event::KilledThenFails | Event::KilledThenSucceeds => arguments.kills,
            };
            for point in 0..points {
                let case = Case {
                    data,
                    event,
                    cache,
                    kill_after: BETWEEN_KILLS * point,
                };
                let directory = format!("{data:?}-{event:?}-{cache}-{point}");
                let directory = scratch.path().join(directory);
                std::fs::create_dir(&directory)?;
                let place = Pools::Directories.place(&directory);
                let product = Product::new(binary.clone(), place, &directory);
                let lost = case
                    .happen(&product, &directory)
                    .with_context(|| format!("{case:?}"))?;
                println!("{event:?}, data in a {data:?}, --cache {cache}, {point}: {lost}");
            }
        }
    }
    Ok(())
}

/// A free address on loopback.
fn free_tcp_port() -> Result<String> {
    match server::Address::free_tcp_port()? {
        server::Address::Tcp(port) => Ok(format!("127.0.0.1:{port}")),
        server::Address::Unix(_) => Err(anyhow!("a port was asked for")),
    }
}

/// Checks that `pool stat`, `/readyz` and `/metrics` agree about the pool.
fn check_verdict(
    product: &Product,
    monitored: &str,
    state: &str,
    reason: Option<&str>,
) -> Result<()> {
    let stat = product.command().args(["pool", "stat", "--format", "json"]);
    let stat: Value = serde_json::from_str(&stat.read()?).context("no JSON")?;
    ensure!(stat["state"] == state, "{state}: {stat}");
    let first = &stat["problems"][0];
    ensure!(first["reason"].as_str() == reason, "{reason:?}: {stat}");
    let ask = |path: &str| {
        let url = format!("http://{monitored}{path}");
        Cmd::new("curl").args(["-sS", &url]).read()
    };
    let expected = first["message"].as_str().unwrap_or("ready");
    let ready = ask("/readyz")?;
    ensure!(ready.trim_end() == expected, "/readyz: {ready}");
    let metrics = ask("/metrics")?;
    let value = |name: &str, label: &str| {
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with(name) && line.contains(label));
        line.and_then(|line| line.rsplit(' ').next())
    };
    let is_ready = if reason.is_none() { "1" } else { "0" };
    let found = value("onefold_pool_ready{", "");
    ensure!(
        found.is_some_and(|number| number.starts_with(is_ready)),
        "{metrics}"
    );
    if let Some(reason) = reason {
        let found = value("onefold_pool_problem{", &format!("reason=\"{reason}\""));
        ensure!(
            found.is_some_and(|number| number.starts_with('1')),
            "{metrics}"
        );
    }
    Ok(())
}

/// A test with one pool.
#[derive(Debug)]
struct Case {
    data: Data,
    event: Event,
    cache: &'static str,
    /// The delay from the start of a sync to the kill.
    kill_after: Duration,
}

impl Case {
    /// Runs the case. Returns a sentence about the lost content.
    fn happen(&self, product: &Product, directory: &Path) -> Result<String> {
        let Self {
            data, event, cache, ..
        } = *self;
        let disk = Disk::start(directory, data)?;
        product.create_pool_with(POOL, &["--data", &disk.data.display().to_string(), "--yes"])?;
        for volume in VOLUMES {
            let create = product.command().args(["volume", "create", volume]);
            create.args(["--size", "16M", "--dedup", "off"]).run()?;
        }
        let monitored = free_tcp_port()?;
        let daemon = product.serve(&["--cache", cache, "--metrics", &monitored], &[])?;
        check_verdict(product, &monitored, "ok", None)?;
        let uri = product.default_address().uri(VOLUMES[0]);
        let address: Address = uri.parse().map_err(anyhow::Error::msg)?;
        let mut volumes = VOLUMES.map(|name| Model::new(name, &address));
        load(&mut volumes)?;
        self.fail(&disk, daemon, &mut volumes[1], product, &monitored)?;
        let daemon = start_as_a_supervisor(product, cache)?;
        let mut gone = Vec::new();
        for volume in &volumes {
            let found = volume.compare()?;
            ensure!(
                event != Event::KilledThenSucceeds || found.is_whole(),
                "no sync failed, and of '{}' this is gone: {found:?}",
                volume.name
            );
            if !found.is_whole() {
                gone.push(format!(
                    "{} blocks of '{}' lost, {} older",
                    found.lost.len(),
                    volume.name,
                    found.older
                ));
            }
            volume.accept(product, &found)?;
        }
        product.check()?;
        daemon.stop()?;
        disk.stop()?;
        Ok(if gone.is_empty() {
            "nothing is gone".to_owned()
        } else {
            gone.join("; ")
        })
    }
    /// The disk hangs in a sync, and fails or recovers; the daemon ends.
    fn fail(
        &self,
        disk: &Disk,
        mut daemon: Daemon,
        busy: &mut Model,
        product: &Product,
        monitored: &str,
    ) -> Result<()> {
        let tail = &product.place().directory().join("tail");
        if self.event != Event::KilledThenSucceeds {
            File::create(&disk.inject).context("cannot let the disk fail")?;
        }
        if self.event == Event::Fails {
            ensure!(
                busy.flush().is_err(),
                "a sync failed, and the flush succeeded"
            );
            check_verdict(product, monitored, "not-ready", Some("read-only"))?;
            daemon.signal(Signal::TERM)?;
            daemon.wait_for_end(LIMIT)?;
            return disk.heal();
        }
        disk.pause(true)?;
        let mut client = busy.connect()?;
        let flush = thread::spawn(move || client.flush());
        wait_for("a sync to begin", || {
            let word = |at| -> Result<u64> {
                let mut word = [0; 8];
                File::open(tail)?.read_exact_at(&mut word, at)?;
                Ok(u64::from_le_bytes(word))
            };
            Ok(word(BEGUN_AT)? != word(ENDED_AT)?)
        })?;
        let client = busy.connect()?;
        let rewrites = thread::spawn(move || rewrite_until_it_ends(client));
        thread::sleep(self.kill_after);
        daemon.signal(Signal::KILL)?;
        disk.pause(false)?;
        daemon.wait_for_end(LIMIT)?;
        ensure!(
            flush.join().is_ok_and(|flushed| flushed.is_err()),
            "a dead daemon answered"
        );
        let rewrites = rewrites.join();
        for (block, byte, is_answered) in rewrites.map_err(|_| anyhow!("a client panicked"))? {
            busy.blocks[block].note(byte, is_answered);
        }
        disk.heal()
    }
}

/// Fills blocks that another volume gets next; then writes in every way, answered and not flushed.
fn load(volumes: &mut [Model; 3]) -> Result<()> {
    let [before, busy, idle] = volumes;
    before.write(0..3000, 0xaa)?;
    before.flush()?;
    before.trim((0..3000).step_by(2))?;
    before.flush()?;
    for volume in [&mut *busy, &mut *idle] {
        volume.write(0..256, 0x11)?;
        volume.flush()?;
    }
    // Write in place, to new blocks, and to new blocks again.
    busy.write(0..16, 0x33)?;
    busy.write(512..900, 0x22)?;
    busy.write(600..610, 0x55)?;
    idle.write(700..800, 0x44)
}

/// Writes single blocks, in place and to new blocks, until the connection ends. Returns block, byte, and whether the
/// write was answered.
fn rewrite_until_it_ends(mut client: Client) -> Vec<(usize, u8, bool)> {
    let mut writes = Vec::new();
    for byte in 0x80..=0xff {
        for block in (0..16).chain(512..640) {
            let written = client.write(0, &[byte; BLOCK], (block * BLOCK) as u64);
            writes.push((block, byte, written.is_ok()));
            if written.is_err() {
                return writes;
            }
        }
    }
    writes
}

/// Starts the daemon as a supervisor would. The first start may be refused, because its sync gets the error.
fn start_as_a_supervisor(product: &Product, cache: &str) -> Result<Daemon> {
    let mut refused = None;
    for _ in 0..STARTS {
        match product.serve(&["--cache", cache], &[]) {
            Ok(daemon) => return Ok(daemon),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.context("never started")?).context("the daemon does not start")
}

/// A disk that can hang and fail.
struct Disk {
    /// The place of the pool's data on the disk.
    data: PathBuf,
    pause: PathBuf,
    inject: PathBuf,
    device: LoopDevice,
    mount: Option<Mount>,
    fused: Fused,
    _nbdkit: Running,
}

impl Disk {
    fn start(directory: &Path, data: Data) -> Result<Self> {
        let name = |name: &str| directory.join(name);
        let (socket, pause, inject) = (name("disk.sock"), name("pause.sock"), name("inject"));
        let nbdkit = Cmd::new("nbdkit")
            .args(["-f", "-U"])
            .arg(&socket)
            .args(["--filter=pause", "--filter=error", "memory", DISK])
            .arg(format!("pause-control={}", pause.display()))
            .args(["error=EIO", "error-pwrite-rate=100%"])
            .arg(format!("error-file={}", inject.display()))
            .spawn_logged(&name("nbdkit.log"))?;
        wait_for("nbdkit", || Ok(socket.exists() && pause.exists()))?;
        let fused = Fused::new(
            directory,
            &format!("nbd+unix:///?socket={}", socket.display()),
        )?;
        let device = LoopDevice::attach(&fused.disk)?;
        let (data, mount) = match data {
            Data::Device => (device.path().to_owned(), None),
            Data::File => {
                let point = name("fs");
                std::fs::create_dir(&point)?;
                let make =
                    Cmd::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-O", "^has_journal"]);
                make.args(["-E", "lazy_itable_init=0"])
                    .arg(device.path())
                    .run()?;
                let mount = Mount::new(point.clone());
                Cmd::new("mount")
                    .args(["-o", "noatime"])
                    .args([device.path(), &point])
                    .run()?;
                (point.join("data"), Some(mount))
            }
        };
        Ok(Self {
            data,
            pause,
            inject,
            device,
            mount,
            fused,
            _nbdkit: nbdkit,
        })
    }

    /// Makes requests wait, or lets them continue.
    fn pause(&self, waits: bool) -> Result<()> {
        let mut control = UnixStream::connect(&self.pause)?;
        control.write_all(if waits { b"p" } else { b"r" })?;
        control.read_exact(&mut [0])?;
        Ok(())
    }

    /// Makes all later requests succeed.
    fn heal(&self) -> Result<()> {
        match std::fs::remove_file(&self.inject) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn stop(self) -> Result<()> {
        drop(self.mount);
        drop(self.device);
        self.fused.finish()
    }
}

/// A volume's blocks, each filled with one byte.
struct Model {
    name: &'static str,
    address: Address,
    client: Option<Client>,
    blocks: Vec<Block>,
}

/// The bytes that a block may be filled with after a crash.
#[derive(Debug, Clone, Default)]
struct Block {
    flushed: u8,
    /// Answered writes since the last flush, in order.
    answered: Vec<u8>,
    in_flight: Option<u8>,
}

impl Block {
    fn note(&mut self, byte: u8, is_answered: bool) {
        if is_answered {
            self.answered.push(byte);
        } else {
            self.in_flight = Some(byte);
        }
    }

    fn newest(&self) -> u8 {
        self.answered.last().copied().unwrap_or(self.flushed)
    }
}

/// The differences between a volume and its model.
#[derive(Debug, Default)]
struct Found {
    /// Blocks that cannot be read.
    lost: Vec<usize>,
    /// Blocks that have flushed or answered content which is not the newest.
    older: usize,
}

impl Found {
    fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.older == 0
    }
}

impl Model {
    fn new(name: &'static str, address: &Address) -> Self {
        Self {
            name,
            address: address.with_export(name),
            client: None,
            blocks: vec![Block::default(); (16 << 20) / BLOCK],
        }
    }

    fn connect(&self) -> Result<Client> {
        Client::connect(&self.address).with_context(|| format!("cannot attach to {}", self.name))
    }

    fn client(&mut self) -> Result<&mut Client> {
        if self.client.is_none() {
            self.client = Some(self.connect()?);
        }
        self.client.as_mut().context("no client")
    }

    fn write(&mut self, blocks: std::ops::Range<usize>, byte: u8) -> Result<()> {
        for block in blocks {
            let at = (block * BLOCK) as u64;
            self.client()?.write(0, &[byte; BLOCK], at)?;
            self.blocks[block].note(byte, true);
        }
        Ok(())
    }

    fn trim(&mut self, blocks: impl Iterator<Item = usize>) -> Result<()> {
        for block in blocks {
            self.client()?.trim((block * BLOCK) as u64, BLOCK)?;
            self.blocks[block].note(0, true);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.client()?.flush()?;
        for block in &mut self.blocks {
            block.flushed = block.newest();
            block.answered.clear();
        }
        Ok(())
    }

    /// Reads the whole volume with a new client.
    fn compare(&self) -> Result<Found> {
        let mut client = self.connect()?;
        let mut found = Found::default();
        for (block, may_be) in self.blocks.iter().enumerate() {
            let mut bytes = [0; BLOCK];
            match client.read(&mut bytes, (block * BLOCK) as u64) {
                Ok(()) => {
                    let byte = bytes[0];
                    let is_older = byte == may_be.flushed || may_be.answered.contains(&byte);
                    let is_newest = byte == may_be.newest() || may_be.in_flight == Some(byte);
                    ensure!(
                        bytes == [byte; BLOCK] && (is_newest || is_older),
                        "block {block} of '{}' begins with {byte:#x}, and may have {may_be:x?}",
                        self.name
                    );
                    found.older += usize::from(!is_newest);
                }
                Err(_) => found.lost.push(block),
            }
        }
        Ok(found)
    }

    /// Checks that the flush fails until a loss is accepted, and that lost blocks can be written again.
    fn accept(&self, product: &Product, found: &Found) -> Result<()> {
        let mut client = self.connect()?;
        let told = client.flush();
        ensure!(
            found.is_whole() || told.is_err(),
            "'{}' lost answered writes ({found:?}), and its flush succeeds",
            self.name
        );
        if told.is_err() {
            let accept = product.command().args(["--quiet", "volume", "accept-loss"]);
            accept.args([self.name, "--yes"]).run()?;
            client.flush().context("the loss was accepted")?;
        }
        for block in &found.lost {
            let at = (block * BLOCK) as u64;
            client.write(0, &[0x66; BLOCK], at)?;
            let mut bytes = [0; BLOCK];
            client.read(&mut bytes, at)?;
            ensure!(bytes == [0x66; BLOCK], "a lost block was not written");
        }
        Ok(client.flush()?)
    }
}

fn wait_for(what: &str, is_there: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_there()? {
        ensure!(start.elapsed() < LIMIT, "waited in vain for {what}");
        thread::sleep(POLL);
    }
    Ok(())
}
