//! Runs the program in temporary directories.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest wait for any condition, long enough for any machine; only failures take this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Message of a command whose daemon does not answer for a while.
pub(crate) const WAITS: &str = "onefold: still waiting for process ";

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn of(child: Child) -> Self {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        // On a busy machine any command may have to print this note.
        let is_wanted = |line: &&str| !line.contains(WAITS);
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: stderr.split_inclusive('\n').filter(is_wanted).collect(),
        }
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Asserts a refusal: the exit code, no result, and one line on stderr that contains all of `words`.
    #[track_caller]
    pub(crate) fn is_refusal(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("onefold: error: "), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
        // No document, unless JSON was requested: then it has the same message.
        if !self.stdout.is_empty() {
            let document: Value = serde_json::from_slice(&self.stdout).unwrap();
            assert_eq!(document["schema_version"], 1, "{self:?}");
            assert!(document["kind"].is_string(), "{self:?}");
            let message = document["message"].as_str().unwrap();
            assert_eq!(self.stderr, format!("onefold: error: {message}\n"));
        }
    }
}

/// The program, with arguments.
pub(crate) fn onefold(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onefold"));
    command
        .args(arguments)
        .env_remove("ONEFOLD_POOL")
        .env_remove("ONEFOLD_NO_ENCRYPTION")
        .env_remove("RUST_LOG");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program without a pool.
pub(crate) fn run(arguments: &[&str]) -> Outcome {
    Outcome::of(onefold(arguments).spawn().unwrap())
}

/// Runs one of QEMU's tools, which must be installed and succeed.
pub(crate) fn qemu_img(arguments: &[&str]) -> String {
    let output = Command::new("qemu-img").args(arguments).output();
    let output = output.expect("qemu-img is needed (Debian: qemu-utils)");
    assert!(
        output.status.success(),
        "qemu-img {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The Ceph pool that contains the tests' pools, instead of directories. Its cluster is the one of
/// `ONEFOLD_CEPH_CONF`.
const CEPH_POOL: &str = "ONEFOLD_TEST_CEPH_POOL";

/// The object with the first blocks of a pool in Ceph.
const FIRST_BLOCKS: &str = "d.0000000000000000";

/// Whether pools are in Ceph.
pub(crate) fn is_in_ceph() -> bool {
    std::env::var_os(CEPH_POOL).is_some()
}

/// Whether a test is skipped because pools are in Ceph.
pub(crate) fn is_left_out_in_ceph(why: &str) -> bool {
    if is_in_ceph() {
        println!("left out for a pool in Ceph: {why}");
    }
    is_in_ceph()
}

/// A directory with a pool, or with the run directory of a pool in Ceph, and space for other files.
pub(crate) struct Scene {
    /// Dropped first: a directory cannot be removed while a file system is mounted there.
    _mounted: Option<Mounted>,
    in_ceph: Option<InCeph>,
    directory: TempDir,
    /// The environment of commands.
    environment: Vec<(&'static str, String)>,
}

/// A file system in memory, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a file system of `mib` MiB; `None` if mounting is not allowed.
    fn new(directory: &Path, mib: u64) -> Option<Self> {
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]);
        let output = mount.arg(directory).output().ok()?;
        let mounted = output.status.success();
        mounted.then(|| Self(directory.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, because a failed test may have left a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A block device, detached on drop.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// Attaches this file to a loop device; `None` if this is not allowed.
    pub(crate) fn new(file: &str) -> Option<Self> {
        let mut losetup = Command::new("losetup");
        let output = losetup.args(["--find", "--show", file]).output().ok()?;
        let name = String::from_utf8(output.stdout).unwrap();
        output
            .status
            .success()
            .then(|| Self(name.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A pool in Ceph, whose objects are removed on drop.
struct InCeph {
    ceph_pool: String,
    name: String,
}

impl InCeph {
    /// Creates a pool named like the directory.
    fn beside(directory: &Path) -> Option<Self> {
        Some(Self {
            ceph_pool: std::env::var(CEPH_POOL).ok()?,
            name: directory.file_name()?.to_str()?.to_owned(),
        })
    }

    fn place(&self) -> String {
        format!("ceph:{}/{}", self.ceph_pool, self.name)
    }

    fn rados(&self, arguments: &[&str]) -> Vec<u8> {
        let mut rados = Command::new("rados");
        if let Some(conf) = std::env::var_os("ONEFOLD_CEPH_CONF") {
            rados.arg("--conf").arg(conf);
        }
        let pool = ["--pool", &self.ceph_pool, "--namespace", &self.name];
        let output = rados.args(pool).args(arguments).output();
        let output = output.expect("rados is needed (Debian: ceph-common)");
        assert!(output.status.success(), "rados {arguments:?}: {output:?}");
        output.stdout
    }

    fn objects(&self) -> Vec<String> {
        let names = String::from_utf8(self.rados(&["ls"])).unwrap();
        names.lines().map(str::to_owned).collect()
    }
}

impl Drop for InCeph {
    fn drop(&mut self) {
        if thread::panicking() {
            // Keep the objects if the user wants to inspect them.
            return;
        }
        for objects in self.objects().chunks(1000) {
            let objects: Vec<_> = objects.iter().map(String::as_str).collect();
            self.rados(&[&["rm"], &objects[..]].concat());
        }
    }
}

impl Scene {
    /// A scene with a pool of the default kind.
    pub(crate) fn new() -> Self {
        Self::with_pool_options(&[])
    }

    pub(crate) fn with_pool_options(options: &[&str]) -> Self {
        if options.contains(&"--size") {
            Self::with_pool(options)
        } else {
            Self::with_pool(&[&["--size", "4G"], options].concat())
        }
    }

    /// A scene with a pool with these options.
    pub(crate) fn with_pool(options: &[&str]) -> Self {
        Self::in_directory(&std::env::temp_dir(), options)
    }

    /// A scene in a directory below `parent`.
    pub(crate) fn in_directory(parent: &Path, options: &[&str]) -> Self {
        let directory = TempDir::with_prefix_in("onefold-test-", parent).unwrap();
        Self::made_in(directory, None, options)
    }

    /// A scene on a file system of `mib` MiB; `None` if none can be mounted.
    pub(crate) fn on_small_host(mib: u64, options: &[&str]) -> Option<Self> {
        let directory = TempDir::with_prefix("onefold-test-").unwrap();
        let mounted = Mounted::new(directory.path(), mib)?;
        Some(Self::made_in(directory, Some(mounted), options))
    }

    fn made_in(directory: TempDir, mounted: Option<Mounted>, options: &[&str]) -> Self {
        let in_ceph = InCeph::beside(directory.path());
        let scene = Self {
            _mounted: mounted,
            in_ceph,
            directory,
            environment: Vec::new(),
        };
        let place = scene.place();
        let mut arguments = vec!["pool", "create", &place];
        arguments.extend(options);
        let created = scene.run(&arguments);
        assert_eq!(created.code, Some(0), "{created:?}");
        scene
    }

    /// Sets an environment variable for all later commands.
    pub(crate) fn set(&mut self, name: &'static str, value: String) {
        self.environment.push((name, value));
    }

    /// Makes all later commands use this repository, which is not encrypted, in the scene's directory.
    pub(crate) fn use_open_repository(&mut self, name: &str) {
        self.set("ONEFOLD_REPOSITORY", self.path(name));
        self.set("ONEFOLD_NO_ENCRYPTION", "1".to_owned());
    }

    /// The pool, as commands name it.
    pub(crate) fn place(&self) -> String {
        let in_directory = || self.pool().to_str().unwrap().to_owned();
        self.in_ceph
            .as_ref()
            .map_or_else(in_directory, InCeph::place)
    }

    /// The directory of the pool, or the run directory of a pool in Ceph.
    pub(crate) fn pool(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    /// The first 4 MiB of the pool's blocks, as they are stored.
    pub(crate) fn stored(&self) -> Vec<u8> {
        match &self.in_ceph {
            Some(ceph) => ceph.rados(&["get", FIRST_BLOCKS, "-"]),
            None => {
                let mut bytes = Vec::new();
                let file = fs::File::open(self.pool().join("data")).unwrap();
                file.take(4 << 20).read_to_end(&mut bytes).unwrap();
                bytes
            }
        }
    }

    /// Removes all data objects of a pool in Ceph but the first.
    pub(crate) fn lose_data(&self) {
        let ceph = self.in_ceph.as_ref().expect("the pool is in Ceph");
        let objects = ceph.objects();
        let data = objects
            .iter()
            .filter(|name| name.starts_with("d.") && *name != FIRST_BLOCKS);
        let names: Vec<&str> = data.map(String::as_str).collect();
        ceph.rados(&[&["rm"], &names[..]].concat());
    }

    /// Sets a row of an object of a pool in Ceph behind its back, or removes it.
    pub(crate) fn set_row(&self, object: &str, row: &str, value: Option<&str>) {
        let ceph = self.in_ceph.as_ref().expect("the pool is in Ceph");
        match value {
            Some(value) => ceph.rados(&["setomapval", object, row, value]),
            None => ceph.rados(&["rmomapkey", object, row]),
        };
    }

    /// The names of the rows of an object of a pool in Ceph.
    pub(crate) fn rows(&self, object: &str) -> Vec<String> {
        let ceph = self.in_ceph.as_ref().expect("the pool is in Ceph");
        let names = String::from_utf8(ceph.rados(&["listomapkeys", object])).unwrap();
        names.lines().map(str::to_owned).collect()
    }

    /// Removes an address from the blocklist of the cluster.
    pub(crate) fn lift_fence(&self, address: &str) {
        let mut ceph = Command::new("ceph");
        if let Some(conf) = std::env::var_os("ONEFOLD_CEPH_CONF") {
            ceph.arg("--conf").arg(conf);
        }
        let output = ceph.args(["osd", "blocklist", "rm", address]).output();
        let output = output.expect("ceph is needed (Debian: ceph-common)");
        assert!(output.status.success(), "{address}: {output:?}");
    }

    /// Overwrites stored blocks behind the pool's back.
    pub(crate) fn overwrite_stored(&self, offset: u64, bytes: &[u8]) {
        match &self.in_ceph {
            Some(ceph) => {
                let file = self.file("rot", bytes);
                let offset = offset.to_string();
                ceph.rados(&["put", FIRST_BLOCKS, &file, "--offset", &offset]);
            }
            None => {
                let data = self.pool().join("data");
                let data = fs::File::options().write(true).open(data).unwrap();
                data.write_all_at(bytes, offset).unwrap();
                data.sync_all().unwrap();
            }
        }
    }

    /// The length of the pool's data. In a cluster only written ranges have objects, of 4 MiB each.
    pub(crate) fn data_bytes(&self) -> u64 {
        match &self.in_ceph {
            None => fs::metadata(self.pool().join("data")).unwrap().len(),
            Some(ceph) => {
                let numbers = ceph.objects().into_iter().filter_map(|name| {
                    let number = name.strip_prefix("d.")?;
                    u64::from_str_radix(number, 16).ok()
                });
                (numbers.max().map_or(0, |last| last + 1)) << 22
            }
        }
    }

    /// The path of a file in the scene's directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// Creates a file in the scene's directory.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> String {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    /// Creates a file that only its owner can read.
    pub(crate) fn secret(&self, name: &str, content: &[u8]) -> String {
        let mut options = fs::File::options();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(self.path(name)).unwrap();
        file.write_all(content).unwrap();
        self.path(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = onefold(arguments);
        command.env("ONEFOLD_POOL", self.place());
        command.env("ONEFOLD_STATE", self.path("state"));
        command.env("ONEFOLD_CACHE", self.path("cache"));
        if self.in_ceph.is_some() {
            command.env("ONEFOLD_RUN", self.pool());
        }
        let environment = self.environment.iter();
        command.envs(environment.map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments).spawn().unwrap())
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> Outcome {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome
    }

    /// Runs a command that must succeed and print a document.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--format", "json"];
        all.extend(arguments);
        self.ok(&all).json()
    }

    /// The plan of a command that changes nothing without `--yes`.
    #[track_caller]
    pub(crate) fn planned(&self, command: &[&str]) -> Value {
        let plan = self.run(&[&["--format", "json"], command].concat());
        assert_eq!(plan.code, Some(2), "{plan:?}");
        assert!(plan.stderr.contains("nothing was changed"), "{plan:?}");
        plan.json()
    }

    /// The names of all volumes.
    #[track_caller]
    pub(crate) fn volumes(&self) -> Vec<String> {
        let list = self.json(&["volume", "list"]);
        let volumes = list["volumes"].as_array().unwrap();
        volumes
            .iter()
            .map(|volume| volume["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The volume's bytes, read by an export to stdout.
    #[track_caller]
    pub(crate) fn content(&self, volume: &str) -> Vec<u8> {
        self.ok(&["volume", "export", volume, "-"]).stdout
    }

    /// Starts an import from a pipe that receives `bytes` and then stays open.
    pub(crate) fn import_from_open_pipe(&self, name: &str, bytes: &[u8]) -> (Child, ChildStdin) {
        let mut command = self.command(&["volume", "import", name, "-", "--size", "1G"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(bytes).unwrap();
        (child, pipe)
    }

    /// Starts a daemon and waits until it serves.
    pub(crate) fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    pub(crate) fn daemon_with(&self, options: &[&str]) -> Daemon {
        let mut daemon = self.starting_daemon(options);
        daemon.wait_for_line("serving");
        daemon
    }

    /// Starts a daemon.
    pub(crate) fn starting_daemon(&self, options: &[&str]) -> Daemon {
        let mut arguments = vec!["serve"];
        arguments.extend(options);
        Daemon::start(&mut self.command(&arguments))
    }
}

/// A running daemon, killed on drop.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    started: Instant,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Daemon {
    pub(crate) fn start(command: &mut Command) -> Daemon {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            stderr
                .lines()
                .try_for_each(|line| sender.send(line.unwrap()))
        });
        Daemon {
            child,
            started: Instant::now(),
            lines,
            seen: Vec::new(),
        }
    }

    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, word: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(word) {
                        return line;
                    }
                }
                Err(_) => panic!("the daemon did not say {word:?}, but {:?}", self.seen),
            }
        }
    }

    /// Waits for a line with each of these, in any order.
    #[track_caller]
    pub(crate) fn wait_for_lines(&mut self, words: &[&str]) {
        for word in words {
            if !self.seen.iter().any(|line| line.contains(word)) {
                self.wait_for_line(word);
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// When the daemon was started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Kills the daemon, and returns all lines that it logged.
    pub(crate) fn end_and_lines(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        let mut lines = std::mem::take(&mut self.seen);
        lines.extend(self.lines.iter());
        lines
    }

    /// Kills the daemon.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends SIGTERM, and waits for the daemon's end.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `condition` is true; fails the test if it never is.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let pause = Duration::from_millis(20);
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        if condition() {
            return;
        }
        thread::sleep(pause);
    }
    panic!("waited in vain until {what}");
}

/// Writes a pattern into a volume that a daemon serves, durably.
pub(crate) fn overwrite(scene: &Scene, volume: &str, offset: usize, pattern: u8, len: usize) {
    let stat = scene.json(&["volume", "stat", volume]);
    let uri = stat["nbd_uri"].as_str().unwrap();
    let write = format!("write -P {pattern} {offset} {len}");
    let out = Command::new("qemu-io")
        .args(["-f", "raw", "-c", &write, "-c", "flush", uri])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    wait_until("the daemon knows that its client has gone", || {
        scene.json(&["volume", "stat", volume])["clients"] == serde_json::json!([])
    });
}

/// Bytes without zero blocks or repetition, the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A disk of `len` bytes, with noise at some places and zeros elsewhere.
pub(crate) fn sparse_disk(len: usize, data: &[(usize, usize)]) -> Vec<u8> {
    let mut disk = vec![0; len];
    for (seed, (offset, data_len)) in data.iter().enumerate() {
        let noise = noise(seed as u64 + 1, *data_len);
        disk[*offset..offset + data_len].copy_from_slice(&noise);
    }
    disk
}

/// Every file in a directory with its content, to prove that nothing changed.
pub(crate) fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| {
            let mut content = Vec::new();
            let file = fs::File::open(entry.path()).unwrap();
            // Enough of a sparse file of many gigabytes.
            file.take(1 << 20).read_to_end(&mut content).unwrap();
            (entry.path(), content)
        })
        .collect();
    files.sort();
    files
}
