//! A throw-away Ceph cluster on this machine: one monitor, three OSDs, no manager, and authentication.
//!
//! Everything is below one directory, and on ports of the loopback interface that were free. The daemons
//! outlive the program that starts them. Each is recorded before it begins, so whatever happened before,
//! [`Cluster::stop`] finds all of them.

mod process;
mod settings;

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::command::{Cmd, last_lines};
use crate::packages;
use process::Process;

/// The replicated pool that a new cluster has.
pub const POOL: &str = "onefold";

/// OSDs, numbered from 0.
pub const OSDS: u32 = 3;

/// Copies of each object.
const SIZE: u32 = 3;

/// Copies without which nothing is written.
const MIN_SIZE: u32 = 2;

/// Few, because each has to be made, and many enough for requests to meet different ones.
const PLACEMENT_GROUPS: u32 = 16;

/// How long a step of starting may take before we call it stuck.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How often it is asked whether a step is done.
const START_POLL: Duration = Duration::from_millis(50);

/// Ranges of ports begin at multiples of their length, below those that the kernel gives to clients.
const PORTS_FIRST: u16 = 20_000;
const PORTS_LEN: u16 = 100;
const PORT_RANGES: u16 = 120;

/// Lines of each daemon's log that an error shows.
const SAID_LINES: usize = 5;

/// Prints the replies to commands, in order. `ceph` would need a process for each question to a placement group.
/// A group that is not there yet does not answer.
const ASK: &str = r#"
import json, rados, sys
limits = {"rados_mon_op_timeout": "60", "rados_osd_op_timeout": "1"}
cluster = rados.Rados(conffile=sys.argv[1], conf=limits)
cluster.connect(timeout=60)
replies = []
for command in json.loads(sys.argv[2]):
    text = json.dumps(command)
    if "pgid" in command:
        _, reply, _ = cluster.pg_command(command["pgid"], text, b"")
    else:
        code, reply, why = cluster.mon_command(text, b"")
        if code:
            sys.exit(f"{text}: error {-code}: {why}")
    replies.append(json.loads(reply) if reply.startswith((b"{", b"\n{")) else None)
print(json.dumps(replies))
"#;

/// Two of the monitor, then those of OSDs, which take eight each and others when they come back.
#[derive(Debug, Clone, Copy)]
struct Ports {
    first: u16,
}

impl Ports {
    /// A range in which nobody listens.
    fn find() -> Result<Ports> {
        // Clusters that start at the same time begin with different ranges.
        let start = std::process::id() % u32::from(PORT_RANGES);
        let ranges = (0..PORT_RANGES).map(|n| (start as u16 + n) % PORT_RANGES);
        let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        ranges
            .map(|range| PORTS_FIRST + range * PORTS_LEN)
            .find(|first| (*first..first + PORTS_LEN).all(is_free))
            .map(|first| Ports { first })
            .context("no range of ports is free")
    }

    /// The monitor's addresses, of the second protocol and of the first.
    fn monitor(self) -> String {
        let (second, first) = (self.first, self.first + 1);
        format!("[v2:127.0.0.1:{second}/0,v1:127.0.0.1:{first}/0]")
    }

    fn osd_min(self) -> u16 {
        self.first + 10
    }

    fn osd_max(self) -> u16 {
        self.first + PORTS_LEN - 1
    }
}

/// A cluster, by its directory.
#[derive(Clone)]
pub struct Cluster {
    directory: PathBuf,
}

impl Cluster {
    /// Makes and starts a cluster in a directory that is empty or does not exist. Every placement group is
    /// active and clean when this returns.
    ///
    /// # Errors
    /// After an error nothing is left, but the directory if it is not ours.
    pub fn start(directory: &Path) -> Result<Cluster> {
        packages::require(packages::CEPH)?;
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
        let directory = fs::canonicalize(directory).context("cannot find the directory")?;
        let is_empty = fs::read_dir(&directory)
            .with_context(|| format!("cannot list {}", directory.display()))?
            .next()
            .is_none();
        if !is_empty {
            let at = directory.display();
            bail!("{at} is not empty: if it has a cluster, stop that first");
        }
        let cluster = Cluster { directory };
        if let Err(error) = cluster.make().and_then(|()| cluster.wait_until_clean()) {
            let said = cluster.said();
            cluster.stop()?;
            return Err(error.context(said));
        }
        Ok(cluster)
    }

    /// A cluster that was started before, all of it or a part.
    pub fn open(directory: &Path) -> Result<Cluster> {
        let directory = fs::canonicalize(directory).unwrap_or(directory.to_path_buf());
        let cluster = Cluster { directory };
        if !cluster.records().is_dir() {
            bail!("{} has no cluster", cluster.directory.display());
        }
        Ok(cluster)
    }

    /// The file that clients need; it names the keyring of `client.admin`.
    pub fn conf(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }

    /// One of the OSDs.
    pub fn osd(&self, number: u32) -> Result<Osd> {
        if number >= OSDS {
            bail!("there is no OSD {number}: the last one is {}", OSDS - 1);
        }
        Ok(Osd {
            cluster: self.clone(),
            number,
        })
    }

    /// The monitor.
    pub fn monitor(&self) -> Monitor {
        Monitor {
            record: self.record("mon.a"),
        }
    }

    /// A command of an administrator; returns what it prints.
    pub fn ceph(&self, arguments: &[&str]) -> Result<String> {
        self.client("ceph").args(arguments).read()
    }

    /// Kills all daemons, and removes the directory.
    pub fn stop(self) -> Result<()> {
        let records = fs::read_dir(self.records())
            .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
            .with_context(|| format!("cannot list {}", self.records().display()))?;
        for record in records {
            if let Some(process) = Process::find(&record.path())? {
                process.kill()?;
            }
        }
        fs::remove_dir_all(&self.directory)
            .with_context(|| format!("cannot remove {}", self.directory.display()))
    }

    /// A program of Ceph's that is a client of this cluster.
    pub fn client(&self, program: &str) -> Cmd {
        plain(program).arg("--conf").arg(self.conf())
    }

    fn conf_text(&self) -> Result<String> {
        let conf = self.conf().to_str().map(str::to_owned);
        conf.context("the directory's name is not UTF-8")
    }

    fn make(&self) -> Result<()> {
        for name in ["records", "log", "mon", "osd"] {
            let path = self.directory.join(name);
            fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let ports = Ports::find()?;
        let fsid = random_uuid()?;
        let osds: Vec<String> = (0..OSDS).map(|_| random_uuid()).collect::<Result<_>>()?;
        self.write("ceph.conf", &settings::text(&self.directory, &fsid, ports))?;
        self.write("keyring", &self.keyring()?)?;
        std::thread::scope(|scope| {
            // They need no monitor yet, and take most of the time.
            let making = scope.spawn(|| self.make_osds(&osds));
            self.start_monitor(&fsid, ports)?;
            self.introduce(&osds)?;
            let made = making.join();
            made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        (0..OSDS).try_for_each(|number| self.launch_osd(number))
    }

    /// One key for all: there is nothing to protect them from.
    fn keyring(&self) -> Result<String> {
        let key = Cmd::new("ceph-authtool").arg("--gen-print-key").read()?;
        let entity = |name: &str, caps: &[(&str, &str)]| {
            let caps: String = caps
                .iter()
                .map(|(service, cap)| format!("\tcaps {service} = \"{cap}\"\n"))
                .collect();
            format!("[{name}]\n\tkey = {}\n{caps}", key.trim())
        };
        let osd = [("mon", "allow profile osd"), ("osd", "allow *")];
        let osds: String = (0..OSDS)
            .map(|number| entity(&format!("osd.{number}"), &osd))
            .collect();
        let monitor = entity("mon.", &[("mon", "allow *")]);
        let admin = entity("client.admin", &[("mon", "allow *"), ("osd", "allow *")]);
        Ok(monitor + &admin + &osds)
    }

    /// It takes the keys of all from the keyring.
    fn start_monitor(&self, fsid: &str, ports: Ports) -> Result<()> {
        let map = self.directory.join("monmap");
        Cmd::new("monmaptool")
            .args(["--create", "--fsid", fsid, "--addv", "a", &ports.monitor()])
            .arg(&map)
            .run()?;
        self.client("ceph-mon")
            .args(["--id", "a", "--mkfs", "--monmap"])
            .arg(&map)
            .arg("--keyring")
            .arg(self.directory.join("keyring"))
            .run()?;
        self.launch("mon.a", &["ceph-mon", "--id", "a", "--foreground"])?;
        let start = Instant::now();
        // Until then clients would wait for whole seconds before they try again.
        while TcpStream::connect((Ipv4Addr::LOCALHOST, ports.first)).is_err() {
            if start.elapsed() > START_LIMIT {
                bail!("the monitor does not listen");
            }
            std::thread::sleep(START_POLL);
        }
        Ok(())
    }

    /// Tells the monitor of OSDs and pool.
    fn introduce(&self, osds: &[String]) -> Result<()> {
        let osds = osds.iter().enumerate();
        let mut commands: Vec<Value> = osds
            .map(|(number, uuid)| json!({"prefix": "osd new", "uuid": uuid, "id": number}))
            .collect();
        commands.extend([
            json!({"prefix": "osd pool create", "pool": POOL, "pool_type": "replicated",
                "pg_num": PLACEMENT_GROUPS, "pgp_num": PLACEMENT_GROUPS, "size": SIZE}),
            json!({"prefix": "osd pool set", "pool": POOL, "var": "min_size",
                "val": MIN_SIZE.to_string()}),
            json!({"prefix": "osd pool application enable", "pool": POOL, "app": POOL}),
        ]);
        self.ask(commands).map(drop)
    }

    fn make_osds(&self, uuids: &[String]) -> Result<()> {
        let (conf, mut making) = (self.conf_text()?, Vec::new());
        for (number, uuid) in (0..OSDS).zip(uuids) {
            let data = self.directory.join(format!("osd/{number}"));
            fs::create_dir(&data).with_context(|| format!("cannot make {}", data.display()))?;
            fs::copy(self.directory.join("keyring"), data.join("keyring"))
                .context("cannot copy the keyring")?;
            let (id, name) = (number.to_string(), format!("mkfs.{number}"));
            // Otherwise it forks, and its record is not that of the one that works.
            let command = [
                "ceph-osd",
                "--id",
                &id,
                "--foreground",
                "--mkfs",
                "--osd-uuid",
                uuid,
            ];
            // There may be no monitor yet.
            let command = [&command[..], &["--no-mon-config", "--conf", &conf]].concat();
            making.push(process::spawn(
                &command,
                &self.record(&name),
                &self.log(&name),
            )?);
        }
        for (number, running) in making.iter_mut().enumerate() {
            let status = running.wait_at_most(START_LIMIT)?;
            if !status.success() {
                bail!("OSD {number} cannot be made ({status})");
            }
        }
        Ok(())
    }

    fn launch_osd(&self, number: u32) -> Result<()> {
        let id = number.to_string();
        let place = "root=default host=onefold";
        let command = [
            "ceph-osd",
            "--id",
            &id,
            "--foreground",
            "--crush-location",
            place,
        ];
        self.launch(&format!("osd.{number}"), &command)
    }

    fn launch(&self, name: &str, command: &[&str]) -> Result<()> {
        let conf = self.conf_text()?;
        let command = [command, &["--conf", &conf]].concat();
        process::launch(
            &command,
            &self.directory,
            &self.record(name),
            &self.log(name),
        )
    }

    /// Waits until all OSDs are up, and each placement group active and clean. There is no manager to ask, so each group is
    /// asked itself.
    pub fn wait_until_clean(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_clean()? {
            for number in 0..OSDS {
                if Process::find(&self.record(&format!("osd.{number}")))?.is_none() {
                    bail!("OSD {number} does not run");
                }
            }
            if start.elapsed() > START_LIMIT {
                bail!("not clean after {} s", START_LIMIT.as_secs());
            }
            std::thread::sleep(START_POLL);
        }
        Ok(())
    }

    fn is_clean(&self) -> Result<bool> {
        let osds = self.osd_map()?;
        if !(0..OSDS).all(|number| osds.is_up(number)) {
            return Ok(false);
        }
        let pool = osds.pool()?;
        let queries = (0..PLACEMENT_GROUPS)
            .map(|group| json!({"prefix": "query", "pgid": format!("{pool}.{group:x}")}));
        let groups = self.ask(queries.collect())?;
        Ok(groups.iter().all(|group| group["state"] == "active+clean"))
    }

    fn osd_map(&self) -> Result<OsdMap> {
        let map = self.ask(vec![json!({"prefix": "osd dump", "format": "json"})])?;
        let map = map.into_iter().next();
        map.map(OsdMap).context("the monitor sent no map of OSDs")
    }

    /// The replies to commands for the monitor, or for placement groups.
    fn ask(&self, commands: Vec<Value>) -> Result<Vec<Value>> {
        // The interpreter for which Debian has the module.
        let text = plain("/usr/bin/python3")
            .args(["-c", ASK])
            .arg(self.conf())
            .arg(Value::Array(commands).to_string())
            .read()?;
        serde_json::from_str(&text).context("Ceph's replies are not JSON")
    }

    /// The last words of each daemon.
    fn said(&self) -> String {
        let logs = fs::read_dir(self.directory.join("log"));
        let mut said = String::new();
        for log in logs.into_iter().flatten().flatten() {
            let text = fs::read(log.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(SAID_LINES)..];
            said.push_str(&format!("{}\n", log.file_name().display()));
            said.push_str(&last_lines(&last.join("\n")));
        }
        said
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn records(&self) -> PathBuf {
        self.directory.join("records")
    }

    fn record(&self, name: &str) -> PathBuf {
        self.records().join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.join("log").join(format!("{name}.out"))
    }
}

/// One OSD of a cluster.
pub struct Osd {
    cluster: Cluster,
    number: u32,
}

impl Osd {
    /// SIGKILL. The other OSDs notice at once, because its connections break; a client that speaks to none of them asks
    /// for another map after 10 s (objecter_timeout).
    pub fn kill(&self) -> Result<()> {
        self.process()?.kill()
    }

    /// Starts it after it was killed, and waits until the others know that it is up again.
    pub fn start(&self) -> Result<()> {
        if Process::find(&self.record())?.is_some() {
            bail!("OSD {} runs", self.number);
        }
        let before = self.cluster.osd_map()?.up_from(self.number);
        self.cluster.launch_osd(self.number)?;
        let start = Instant::now();
        loop {
            // The map may not say yet that it was down.
            let map = self.cluster.osd_map()?;
            if map.is_up(self.number) && map.up_from(self.number) != before {
                return Ok(());
            }
            if start.elapsed() > START_LIMIT || Process::find(&self.record())?.is_none() {
                bail!(
                    "OSD {} does not come up\n{}",
                    self.number,
                    self.cluster.said()
                );
            }
            std::thread::sleep(START_POLL);
        }
    }

    /// SIGSTOP. The others notice after their heartbeats' grace of 8 s.
    pub fn freeze(&self) -> Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        self.process()?.signal(Signal::CONT)
    }

    fn process(&self) -> Result<Process> {
        Process::find(&self.record())?.with_context(|| format!("OSD {} does not run", self.number))
    }

    fn record(&self) -> PathBuf {
        self.cluster.record(&format!("osd.{}", self.number))
    }
}

/// The monitor of a cluster.
pub struct Monitor {
    record: PathBuf,
}

impl Monitor {
    /// SIGSTOP. Whoever is connected already needs it only for a new map.
    pub fn freeze(&self) -> Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        self.process()?.signal(Signal::CONT)
    }

    fn process(&self) -> Result<Process> {
        Process::find(&self.record)?.context("the monitor does not run")
    }
}

/// What the monitor knows of OSDs and pools.
struct OsdMap(Value);

impl OsdMap {
    fn is_up(&self, osd: u32) -> bool {
        self.osd(osd).is_some_and(|it| it["up"] == 1)
    }

    /// The version of the map in which it came up last.
    fn up_from(&self, osd: u32) -> Option<u64> {
        self.osd(osd)?["up_from"].as_u64()
    }

    fn osd(&self, osd: u32) -> Option<&Value> {
        let mut osds = self.0["osds"].as_array()?.iter();
        osds.find(|it| it["osd"] == osd)
    }

    fn pool(&self) -> Result<u64> {
        let pools = self.0["pools"].as_array();
        let ours = pools.and_then(|pools| pools.iter().find(|it| it["pool_name"] == POOL));
        ours.and_then(|it| it["pool"].as_u64())
            .context("the pool was not made")
    }
}

/// A program that ends with the thread that runs it, so that nothing waits for a cluster that is gone; without the
/// variables that lead to another cluster, or away from Debian's Python.
fn plain(program: &str) -> Cmd {
    let foreign = [
        "CEPH_ARGS",
        "CEPH_CONF",
        "CEPH_KEYRING",
        "PYTHONHOME",
        "PYTHONPATH",
    ];
    let bound = Cmd::new("setpriv").args(["--pdeathsig", "KILL", program]);
    foreign.into_iter().fold(bound, Cmd::env_remove)
}

fn random_uuid() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    let uuid = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(uuid.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_says_which_osds_are_up_and_since_when() {
        let map = OsdMap(json!({
            "osds": [{"osd": 0, "up": 1, "up_from": 8}, {"osd": 2, "up": 0, "up_from": 5}],
            "pools": [{"pool_name": "other", "pool": 1}, {"pool_name": POOL, "pool": 2}],
        }));
        assert_eq!([0, 1, 2].map(|osd| map.is_up(osd)), [true, false, false]);
        assert_eq!(
            [0, 1, 2].map(|osd| map.up_from(osd)),
            [Some(8), None, Some(5)]
        );
        assert_eq!(map.pool().unwrap(), 2);
    }

    #[test]
    fn a_directory_that_is_no_cluster_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("mine"), "").unwrap();
        assert!(Cluster::open(directory.path()).is_err());
        assert!(directory.path().join("mine").exists());
    }
}
