//! NBD servers as the tests use them: started, waited for, killed, started again.
//!
//! [`Product`] is a pool and the `onefold` binary. [`Disks`] is a set of volumes behind one server: the product, or
//! `qemu-nbd` on raw files as a control. A test that fails on `qemu-nbd` is itself wrong; a test that does not fail on
//! the *forgetful* server finds nothing.

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use crate::command::{Cmd, Running, last_lines};
use crate::inline::{Inline, Mode};
use crate::pools::{Place, Pools};
use crate::workspace::Workspace;

/// How long a server may take until it greets clients, before we call it stuck.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How long a server may take to end after SIGTERM, before we call it stuck.
pub const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How long QEMU waits for a server that is gone.
const RECONNECT_LIMIT: Duration = Duration::from_secs(120);

/// The poll interval while a server starts.
const START_POLL: Duration = Duration::from_millis(1);

/// The address of a server.
#[derive(Debug, Clone)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port on the loopback interface.
    Tcp(u16),
}

impl Address {
    /// A loopback port that was free when this was called.
    pub fn free_tcp_port() -> Result<Address> {
        let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("cannot find a free TCP port")?;
        let port = probe
            .local_addr()
            .context("cannot find a free TCP port")?
            .port();
        Ok(Address::Tcp(port))
    }

    /// The NBD URI of an export.
    pub fn uri(&self, export: &str) -> String {
        match self {
            Address::Unix(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
            Address::Tcp(port) => format!("nbd://127.0.0.1:{port}/{export}"),
        }
    }

    /// The value of `--nbd`.
    pub fn option(&self) -> String {
        match self {
            Address::Unix(path) => format!("unix:{}", path.display()),
            Address::Tcp(port) => format!("127.0.0.1:{port}"),
        }
    }

    /// Whether a client is served. A connection is not enough: a server may listen before it has recovered, and then
    /// the connection only waits.
    fn serves(&self) -> bool {
        match self {
            Address::Unix(path) => UnixStream::connect(path).is_ok_and(|stream| {
                stream.set_read_timeout(Some(START_LIMIT)).is_ok() && greets(stream)
            }),
            Address::Tcp(port) => {
                TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok_and(|stream| {
                    stream.set_read_timeout(Some(START_LIMIT)).is_ok() && greets(stream)
                })
            }
        }
    }
}

/// Whether a server sends the word with which NBD begins. A server that dies closes the connection without it.
fn greets(mut stream: impl Read) -> bool {
    let mut word = [0; 8];
    stream.read_exact(&mut word).is_ok() && &word == b"NBDMAGIC"
}

/// A server process that serves clients.
pub struct Daemon {
    running: Running,
    log: PathBuf,
    /// The offset in the log at which this process begins; one log has the output of all successive processes of a
    /// server.
    log_start: usize,
    /// The time from its start until it greeted a client at every address.
    pub started_in: Duration,
}

impl Daemon {
    /// Starts a server and waits until it greets clients at every address.
    pub fn start(command: Cmd, addresses: &[Address], log: &Path) -> Result<Daemon> {
        let log_start = std::fs::metadata(log).map_or(0, |metadata| metadata.len() as usize);
        let start = Instant::now();
        let running = command.spawn_logged(log)?;
        let log = log.to_path_buf();
        let mut daemon = Daemon {
            running,
            log,
            log_start,
            started_in: Duration::ZERO,
        };
        for address in addresses {
            while !address.serves() {
                if let Some(status) = daemon.running.try_wait()? {
                    let said = last_lines(&daemon.said());
                    bail!("the server ended while starting ({status})\n{said}");
                }
                if start.elapsed() > START_LIMIT {
                    let said = last_lines(&daemon.said());
                    bail!("the server greets nobody at {address:?}\n{said}");
                }
                std::thread::sleep(START_POLL);
            }
        }
        daemon.started_in = start.elapsed();
        Ok(daemon)
    }

    /// The output of this process so far.
    pub fn said(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    /// Sends SIGKILL, at any point of its work. It is an error if the server ended by itself before that: a test must
    /// not mistake a crash of the server for its own kill.
    pub fn kill(mut self) -> Result<()> {
        self.must_run()?;
        self.running.kill();
        Ok(())
    }

    /// Sends SIGTERM, and waits for a clean end.
    pub fn stop(mut self) -> Result<Duration> {
        self.must_run()?;
        let start = Instant::now();
        self.running.signal(Signal::TERM)?;
        let status = self.running.wait_at_most(STOP_LIMIT)?;
        if !status.success() {
            bail!(
                "the server did not end cleanly ({status})\n{}",
                last_lines(&self.said())
            );
        }
        Ok(start.elapsed())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.running.signal(signal)
    }

    /// Waits until the server ends by itself, and returns its status.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = self.running.wait_at_most(limit);
        ended.with_context(|| last_lines(&self.said()))
    }

    /// Fails with the server's output if it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.running.try_wait()? {
            bail!(
                "the server ended by itself ({status})\n{}",
                last_lines(&self.said())
            );
        }
        Ok(())
    }

    /// Processor time used so far, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        self.running.cpu_seconds()
    }

    /// The process number.
    pub fn pid(&self) -> Result<u32> {
        self.running.pid()
    }

    /// The highest resident memory so far, in bytes, as the kernel counted it.
    pub fn peak_memory_bytes(&self) -> Result<u64> {
        self.running.peak_memory_bytes()
    }

    /// Bytes written so far that the kernel has written to a device, or will write.
    pub fn device_written_bytes(&self) -> Result<u64> {
        self.running.device_written_bytes()
    }

    /// The line in which the product reports its recovery.
    pub fn recovery_line(&self) -> Result<String> {
        let said = self.said();
        let line = said.lines().find(|line| line.contains("replayed"));
        line.map(str::to_owned).with_context(|| {
            format!(
                "the daemon did not say how many records it replayed\n{}",
                last_lines(&said)
            )
        })
    }
}

/// The number of records in a recovery line, which says "... N log records (M bytes) replayed".
pub fn records_replayed(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(" log records")?;
    before.split_whitespace().next_back()?.parse().ok()
}

/// The number of answered records that were not in the log, from a recovery line.
pub fn records_taken_over(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(" records taken over")?;
    before.split_whitespace().next_back()?.parse().ok()
}

/// The number of bytes in a recovery line.
pub fn log_bytes_replayed(line: &str) -> Option<u64> {
    let (_, after) = line.split_once(" log records (")?;
    after.split_once(" bytes)")?.0.parse().ok()
}

/// A pool and the binary that opens it.
#[derive(Clone)]
pub struct Product {
    binary: PathBuf,
    place: Place,
    log: PathBuf,
    pinned_to: Option<usize>,
}

impl Product {
    /// Builds the binary; the pool will be `directory/pool`.
    pub fn build(workspace: &Workspace, directory: &Path) -> Result<Product> {
        Product::build_in(workspace, &Pools::Directories, directory)
    }

    /// Builds the binary; the pool will be in one of these places, with its files on this machine in `directory`.
    pub fn build_in(workspace: &Workspace, pools: &Pools, directory: &Path) -> Result<Product> {
        let binary = workspace.build_release("onefold")?;
        Ok(Product::new(binary, pools.place(directory), directory))
    }

    /// A product with a binary that exists.
    pub fn new(binary: PathBuf, place: Place, directory: &Path) -> Product {
        Product {
            binary,
            place,
            log: directory.join("serve.log"),
            pinned_to: None,
        }
    }

    /// This pool on another host, with a run directory of this name there, and a log.
    pub fn on_host(&self, name: &str) -> Result<Product> {
        Ok(Product {
            place: self.place.on_host(name)?,
            log: self.log.with_file_name(format!("{name}.log")),
            ..self.clone()
        })
    }

    /// The place of the pool.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The path of the binary.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Pins the daemon, and `pool dedup` without a daemon, to one processor.
    pub fn pin(mut self, processor: Option<usize>) -> Product {
        self.pinned_to = processor;
        self
    }

    /// Creates the pool.
    pub fn create_pool(&self, size: &str) -> Result<()> {
        self.create_pool_with(size, &[])
    }

    /// With further options of `pool create`.
    pub fn create_pool_with(&self, size: &str, options: &[&str]) -> Result<()> {
        let create = Cmd::new(&self.binary).args(["pool", "create"]);
        let create = self.place.found_by(create.arg(self.place.name()));
        create.args(["--size", size]).args(options).run()
    }

    /// The command line on this pool.
    pub fn command(&self) -> Cmd {
        self.on_pool(Cmd::new(&self.binary))
    }

    /// The command line on this pool, on the processor that was chosen.
    pub fn pinned_command(&self) -> Cmd {
        match self.pinned_to {
            Some(processor) => self.on_pool(
                Cmd::new("taskset")
                    .arg("-c")
                    .arg(processor.to_string())
                    .arg(&self.binary),
            ),
            None => self.command(),
        }
    }

    fn on_pool(&self, binary: Cmd) -> Cmd {
        // State and cache are separate from the host's own, which belong to other repositories.
        let of_pool = self.place.directory();
        let binary = binary
            .env("ONEFOLD_STATE", of_pool.with_extension("state"))
            .env("ONEFOLD_CACHE", of_pool.with_extension("cache"));
        (self.place).found_by(binary.arg("--pool").arg(self.place.name()))
    }

    /// Where the daemon listens by default.
    pub fn default_address(&self) -> Address {
        Address::Unix(self.place.directory().join("nbd.sock"))
    }

    /// Starts the daemon with further options; without addresses it listens at its default one.
    pub fn serve(&self, options: &[&str], addresses: &[Address]) -> Result<Daemon> {
        let mut command = self.pinned_command().arg("serve").args(options);
        for address in addresses {
            command = command.arg("--nbd").arg(address.option());
        }
        match addresses {
            [] => Daemon::start(command, &[self.default_address()], &self.log),
            _ => Daemon::start(command, addresses, &self.log),
        }
    }

    /// `pool stat` as JSON.
    pub fn stat(&self) -> Result<Value> {
        let text = self
            .command()
            .args(["--format", "json", "pool", "stat"])
            .read()?;
        serde_json::from_str(&text).context("pool stat did not print JSON")
    }

    /// A number from `pool stat`.
    pub fn stat_number(&self, key: &str) -> Result<u64> {
        let stat = self.stat()?;
        stat.get(key)
            .and_then(Value::as_u64)
            .with_context(|| format!("pool stat lacks {key}"))
    }

    /// Runs a command that opens the pool without a daemon. Returns the number of records that it took over from a
    /// killed daemon.
    pub fn take_over_by(&self, command: &[&str]) -> Result<u64> {
        let output = self.command().args(command).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("{command:?} fails\n{}", last_lines(&said));
        }
        // The line is missing if the pool was closed cleanly.
        Ok(said.lines().find_map(records_taken_over).unwrap_or(0))
    }

    /// Runs `pool check`, which fails at any finding. Returns the output.
    pub fn check(&self) -> Result<String> {
        self.command().args(["pool", "check"]).read()
    }

    /// The size on disk of a pool in a directory, in bytes.
    pub fn disk_usage(&self) -> Result<u64> {
        let Place::Directory(directory) = &self.place else {
            bail!("{} is not on a disk of this machine", self.place.name());
        };
        let text = Cmd::new("du").args(["-s", "-B1"]).arg(directory).read()?;
        let bytes = text
            .split_whitespace()
            .next()
            .and_then(|bytes| bytes.parse().ok());
        bytes.with_context(|| format!("cannot understand what du printed: {text}"))
    }
}

/// The server of a test's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Against {
    /// The product
    Onefold,
    /// A known good server, to show that the test itself is right
    QemuNbd,
    /// A server that forgets everything when it is killed, to show that the test can fail
    Forgetful,
}

/// Options for the finder to scan every block as soon as possible, so that short tests exercise it.
const EAGER_DEDUP: [&str; 4] = ["--interval", "1", "--cold-passes", "1"];

/// Both cache modes: values of `--cache`.
pub const CACHES: [&str; 2] = ["host", "direct"];

/// A volume by name and size.
pub type VolumeSpec = (&'static str, u64);

/// Some volumes, all empty at first, behind a server that can be killed and restarted.
pub struct Disks {
    // Dropped before the pool that they use.
    daemons: Vec<Daemon>,
    backing: Backing,
    volumes: Vec<VolumeSpec>,
    directory: PathBuf,
    /// The product's second address besides the default one.
    second: Option<Address>,
    setting: Setting,
    starts: usize,
    /// The number of moves of the pool to another host.
    moves: usize,
    /// Additional options for the next start.
    options: &'static [&'static str],
}

/// The product's settings; other servers have none.
#[derive(Clone)]
pub struct Setting {
    /// Values of `--cache`, which successive starts use in turn.
    pub caches: &'static [&'static str],
    /// When duplicates are found.
    pub dedup: Mode,
    /// The places of pools.
    pub pools: Pools,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting {
            caches: &CACHES,
            dedup: Mode::Offline,
            pools: Pools::Directories,
        }
    }
}

enum Backing {
    Product(Product),
    RawFiles { forgetful: bool },
}

impl Disks {
    /// Makes the volumes and starts serving them.
    pub fn new(
        workspace: &Workspace,
        against: Against,
        directory: &Path,
        volumes: &[VolumeSpec],
        setting: Setting,
    ) -> Result<Disks> {
        let backing = match against {
            Against::Onefold => {
                Backing::Product(Product::build_in(workspace, &setting.pools, directory)?)
            }
            Against::QemuNbd | Against::Forgetful if setting.pools.ceph().is_some() => {
                bail!("only onefold's pool can be in Ceph");
            }
            Against::QemuNbd => Backing::RawFiles { forgetful: false },
            Against::Forgetful => Backing::RawFiles { forgetful: true },
        };
        let second = match against {
            Against::Onefold => Some(Address::free_tcp_port()?),
            Against::QemuNbd | Against::Forgetful => None,
        };
        let mut disks = Disks {
            daemons: Vec::new(),
            backing,
            volumes: volumes.to_vec(),
            directory: directory.to_path_buf(),
            second,
            setting,
            starts: 0,
            moves: 0,
            options: &[],
        };
        disks.create()?;
        disks.start()?;
        Ok(disks)
    }

    fn create(&self) -> Result<()> {
        match &self.backing {
            Backing::Product(product) => {
                product.create_pool("20G")?;
                for (name, size_bytes) in &self.volumes {
                    let size = size_bytes.to_string();
                    product
                        .command()
                        .args(["volume", "create", name, "--size", &size])
                        .args(["--dedup", self.setting.dedup.name()])
                        .args(EAGER_DEDUP)
                        .run()?;
                }
            }
            Backing::RawFiles { .. } => {
                for (name, size_bytes) in &self.volumes {
                    let path = self.raw_file(name);
                    std::fs::File::create(&path)
                        .and_then(|file| file.set_len(*size_bytes))
                        .with_context(|| format!("cannot make {}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Starts a server that was killed or stopped.
    pub fn start(&mut self) -> Result<()> {
        match &self.backing {
            Backing::Product(product) => {
                let mut addresses = vec![product.default_address()];
                addresses.extend(self.second.clone());
                let mut options = std::mem::take(&mut self.options).to_vec();
                if let Some(cache) = self.setting.caches.iter().cycle().nth(self.starts) {
                    options.extend(["--cache", cache]);
                }
                self.daemons.push(product.serve(&options, &addresses)?);
            }
            Backing::RawFiles { forgetful } => {
                for (name, _) in &self.volumes {
                    let socket = self.directory.join(format!("{name}.sock"));
                    let log = self.directory.join(format!("{name}.log"));
                    let mut command = qemu_nbd(
                        Cmd::new("qemu-nbd"),
                        &self.raw_file(name),
                        &socket,
                        name,
                        QemuMode::WritebackThreads,
                    )
                    .env("TMPDIR", &self.directory);
                    if *forgetful {
                        command = command.arg("--snapshot");
                    }
                    self.daemons
                        .push(Daemon::start(command, &[Address::Unix(socket)], &log)?);
                }
            }
        }
        self.starts += 1;
        Ok(())
    }

    /// Makes the next start happen on another host, with these options. Only for a pool in Ceph.
    pub fn move_to_another_host(&mut self, options: &'static [&'static str]) -> Result<()> {
        let Backing::Product(product) = &mut self.backing else {
            bail!("only onefold's pool can be in Ceph");
        };
        // The two hosts take turns, so a host reopens a pool that it had before.
        const HOSTS: [&str; 2] = ["run", "other"];
        self.moves += 1;
        *product = product.on_host(HOSTS[self.moves % HOSTS.len()])?;
        self.options = options;
        Ok(())
    }

    /// The places of the pools.
    pub fn pools(&self) -> &Pools {
        &self.setting.pools
    }

    /// Sends SIGKILL to every server.
    pub fn kill(&mut self) -> Result<()> {
        self.daemons.drain(..).try_for_each(Daemon::kill)
    }

    /// Sends SIGTERM to every server, and waits for their clean ends.
    pub fn stop(&mut self) -> Result<()> {
        self.daemons
            .drain(..)
            .try_for_each(|daemon| daemon.stop().map(drop))
    }

    /// The URI of a volume.
    pub fn uri(&self, volume: &str) -> String {
        match &self.backing {
            Backing::Product(product) => product.default_address().uri(volume),
            Backing::RawFiles { .. } => {
                Address::Unix(self.directory.join(format!("{volume}.sock"))).uri(volume)
            }
        }
    }

    /// QEMU's options for the volume, with which it waits for a server that is gone.
    pub fn qemu_options(&self, volume: &str) -> Result<String> {
        let uri = self.uri(volume);
        let (_, socket) = uri
            .split_once("?socket=")
            .with_context(|| format!("{uri} is not a unix socket"))?;
        // QEMU reads a doubled comma as one.
        let socket = socket.replace(',', ",,");
        let seconds = RECONNECT_LIMIT.as_secs();
        Ok(format!(
            "driver=nbd,server.type=unix,server.path={socket},export={volume},\
             open-timeout={seconds},reconnect-delay={seconds}"
        ))
    }

    /// The URI of a volume at the server's second address, or at the only one.
    pub fn second_uri(&self, volume: &str) -> String {
        self.second
            .as_ref()
            .map_or_else(|| self.uri(volume), |address| address.uri(volume))
    }

    /// The product, if it is the server.
    pub fn product(&self) -> Option<&Product> {
        match &self.backing {
            Backing::Product(product) => Some(product),
            Backing::RawFiles { .. } => None,
        }
    }

    /// The last lines of each server's output, for messages.
    pub fn said(&self) -> String {
        self.daemons
            .iter()
            .map(|daemon| last_lines(&daemon.said()))
            .collect()
    }

    /// The server's own check of its storage.
    pub fn check(&self) -> Result<()> {
        match &self.backing {
            Backing::Product(product) => product.check().map(drop),
            Backing::RawFiles { .. } => Ok(()),
        }
    }

    /// Starts `pool dedup`, if the server is the product; the command ends when the server does, at the latest.
    pub fn start_dedup(&self) -> Result<Option<Running>> {
        match &self.backing {
            Backing::Product(product) => {
                let log = self.directory.join("dedup.log");
                let command = product.command().args(["--quiet", "pool", "dedup"]);
                command.spawn_logged(&log).map(Some)
            }
            Backing::RawFiles { .. } => Ok(None),
        }
    }

    /// The number of blocks that the finder has published; `None` without a finder.
    pub fn published_blocks(&self) -> Result<Option<u64>> {
        match &self.backing {
            Backing::Product(product) => {
                let number = |key| product.stat_number(key);
                Ok(Some(number("unique_blocks")? + number("shared_blocks")?))
            }
            Backing::RawFiles { .. } => Ok(None),
        }
    }

    /// The in-line counts of all volumes since the last start.
    pub fn inline(&self) -> Result<Inline> {
        match &self.backing {
            Backing::Product(product) => self
                .volumes
                .iter()
                .try_fold(Inline::default(), |sum, (name, _)| {
                    Ok(sum.plus(product.inline(name)?))
                }),
            Backing::RawFiles { .. } => Ok(Inline::default()),
        }
    }

    /// The number of records that the last start replayed; servers without a log replay none.
    pub fn records_replayed(&self) -> Result<u64> {
        self.number_of_recovery(records_replayed)
    }

    /// The number of records that the last start took over from a killed daemon.
    pub fn records_taken_over(&self) -> Result<u64> {
        self.number_of_recovery(records_taken_over)
    }

    fn number_of_recovery(&self, number: fn(&str) -> Option<u64>) -> Result<u64> {
        match (&self.backing, self.daemons.first()) {
            (Backing::Product(_), Some(daemon)) => {
                let line = daemon.recovery_line()?;
                number(&line).with_context(|| format!("no number in: {line}"))
            }
            _ => Ok(0),
        }
    }

    fn raw_file(&self, volume: &str) -> PathBuf {
        self.directory.join(format!("{volume}.raw"))
    }
}

/// The ways in which `qemu-nbd` uses the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QemuMode {
    /// Through the page cache, with threads.
    WritebackThreads,
    /// Through the page cache, with io_uring.
    WritebackIoUring,
    /// Past the page cache, with Linux AIO.
    NoneNative,
    /// Past the page cache, with io_uring.
    NoneIoUring,
}

/// Completes the command `qemu-nbd` (or one that ends with it) to serve a raw file.
pub fn qemu_nbd(command: Cmd, file: &Path, socket: &Path, export: &str, mode: QemuMode) -> Cmd {
    let (cache, aio) = match mode {
        QemuMode::WritebackThreads => ("--cache=writeback", "--aio=threads"),
        QemuMode::WritebackIoUring => ("--cache=writeback", "--aio=io_uring"),
        QemuMode::NoneNative => ("--cache=none", "--aio=native"),
        QemuMode::NoneIoUring => ("--cache=none", "--aio=io_uring"),
    };
    command
        .args([
            "--format=raw",
            "--persistent",
            "--shared=64",
            "--discard=unmap",
            cache,
            aio,
        ])
        .arg("-x")
        .arg(export)
        .arg("-k")
        .arg(socket)
        .arg(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_records_is_found() {
        let line = "pool opened in 0.012 s, 17 log records (4096 bytes) replayed, \
                    5 records taken over from a process that died";
        assert_eq!(records_taken_over(line), Some(5));
        assert_eq!(records_replayed(line), Some(17));
        assert_eq!(log_bytes_replayed(line), Some(4096));
        assert_eq!(records_replayed("some log records replayed"), None);
        assert_eq!(records_replayed("INFO nothing"), None);
    }

    #[test]
    fn uris_name_the_export() {
        let unix = Address::Unix(PathBuf::from("/run/s"));
        assert_eq!(unix.uri("vol"), "nbd+unix:///vol?socket=/run/s");
        assert_eq!(Address::Tcp(10809).uri("vol"), "nbd://127.0.0.1:10809/vol");
    }
}
