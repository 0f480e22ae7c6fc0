//! A throw-away Ceph cluster on this machine: one monitor, three OSDs, no manager, and authentication.
//!
//! All its files are below one directory, and its ports are free ones of the loopback interface. The daemons outlive
//! the program that starts them. Each is recorded before it begins, so [`Cluster::stop`] finds all of them, even after
//! a crash.

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

/// The replicated pool of a new cluster.
pub const POOL: &str = "onefold";

/// OSDs, numbered from 0.
pub const OSDS: u32 = 3;

/// The number of copies of each object.
const SIZE: u32 = 3;

/// The number of copies without which a write waits.
const MIN_SIZE: u32 = 2;

/// The number of placement groups: few, because each has to be made, and enough for requests to meet different ones.
const PLACEMENT_GROUPS: u32 = 16;

/// How long a step of starting may take before we call it stuck.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The poll interval while a step is completed.
const START_POLL: Duration = Duration::from_millis(50);

/// The first port. Ranges of ports begin at multiples of their length, below the ports that the kernel gives to
/// clients.
const PORTS_FIRST: u16 = 20_000;
const PORTS_LEN: u16 = 100;
const PORT_RANGES: u16 = 120;

/// Lines of each daemon's log that an error shows.
const SAID_LINES: usize = 5;

/// A script that prints the replies to commands, in order. `ceph` would need a process per query of a placement group.
/// A group that does not exist yet does not answer.
const ASK: &str = r#"
import json, os, rados, sys
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
print(json.dumps(replies), flush=True)
# Without ending librados, whose threads sometimes abort the process then.
os._exit(0)
"#;

/// The ports of a cluster: two for the monitor, then the OSDs' ports, eight for each and new ones after a restart.
#[derive(Debug, Clone, Copy)]
struct Ports {
    first: u16,
}

impl Ports {
    /// Finds a range in which no process listens.
    fn find() -> Result<Ports> {
        // Concurrent starts of clusters begin with different ranges.
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

/// A cluster, identified by its directory.
#[derive(Clone)]
pub struct Cluster {
    directory: PathBuf,
}

impl Cluster {
    /// Makes and starts a cluster in a directory that is empty or does not exist. Every placement group is
    /// active and clean when this returns.
    ///
    /// An error leaves nothing behind, except the directory if it existed before.
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

    /// Opens a cluster that was started before, completely or in part.
    pub fn open(directory: &Path) -> Result<Cluster> {
        let directory = fs::canonicalize(directory).unwrap_or(directory.to_path_buf());
        let cluster = Cluster { directory };
        if !cluster.records().is_dir() {
            bail!("{} has no cluster", cluster.directory.display());
        }
        Ok(cluster)
    }

    /// The configuration file for clients; it names the keyring of `client.admin`.
    pub fn conf(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }

    /// The OSD with this number.
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

    /// Runs an administrator's command and returns its output.
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

    /// A command that runs one of Ceph's programs as a client of this cluster.
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
            // The OSDs need no monitor yet, and making them takes most of the time.
            let making = scope.spawn(|| self.make_osds(&osds));
            self.start_monitor(&fsid, ports)?;
            self.introduce(&osds)?;
            let made = making.join();
            made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        (0..OSDS).try_for_each(|number| self.launch_osd(number))
    }

    /// Makes one key for all daemons and clients: nothing here needs protection.
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

    /// Starts the monitor, which takes all keys from the keyring.
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
        // Clients that find no monitor wait whole seconds before they try again.
        while TcpStream::connect((Ipv4Addr::LOCALHOST, ports.first)).is_err() {
            if start.elapsed() > START_LIMIT {
                bail!("the monitor does not listen");
            }
            std::thread::sleep(START_POLL);
        }
        Ok(())
    }

    /// Registers the OSDs and the pool with the monitor.
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
            // Without `--foreground` it would fork, and the record would name the wrong process.
            let command = [
                "ceph-osd",
                "--id",
                &id,
                "--foreground",
                "--mkfs",
                "--osd-uuid",
                uuid,
            ];
            // There may be no monitor yet to get the configuration from.
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

    /// Waits until all OSDs are up, and each placement group is active and clean. Without a manager, each group must be
    /// queried itself.
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

    /// Sends commands to the monitor, or to placement groups, and returns the replies.
    fn ask(&self, commands: Vec<Value>) -> Result<Vec<Value>> {
        // Debian has the module for this interpreter.
        let text = plain("/usr/bin/python3")
            .args(["-c", ASK])
            .arg(self.conf())
            .arg(Value::Array(commands).to_string())
            .read()?;
        serde_json::from_str(&text).context("Ceph's replies are not JSON")
    }

    /// The last lines of each daemon's log.
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

/// An OSD of a cluster.
pub struct Osd {
    cluster: Cluster,
    number: u32,
}

impl Osd {
    /// Sends SIGKILL. The other OSDs notice at once, because their connections break; a client without a connection to
    /// one of them requests a new map after 10 s (objecter_timeout).
    pub fn kill(&self) -> Result<()> {
        self.process()?.kill()
    }

    /// Starts the OSD after a kill, and waits until the cluster marks it up again.
    pub fn start(&self) -> Result<()> {
        if Process::find(&self.record())?.is_some() {
            bail!("OSD {} runs", self.number);
        }
        let before = self.cluster.osd_map()?.up_from(self.number);
        self.cluster.launch_osd(self.number)?;
        let start = Instant::now();
        loop {
            // The map may still show the OSD as up from before.
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

    /// Sends SIGSTOP. The other OSDs notice after the heartbeat grace of 8 s.
    pub fn freeze(&self) -> Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// Lets the OSD continue.
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
    /// Sends SIGSTOP. Connected clients need the monitor only for new maps.
    pub fn freeze(&self) -> Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// Lets the monitor continue.
    pub fn thaw(&self) -> Result<()> {
        self.process()?.signal(Signal::CONT)
    }

    fn process(&self) -> Result<Process> {
        Process::find(&self.record)?.context("the monitor does not run")
    }
}

/// The monitor's map of OSDs and pools.
struct OsdMap(Value);

impl OsdMap {
    fn is_up(&self, osd: u32) -> bool {
        self.osd(osd).is_some_and(|entry| entry["up"] == 1)
    }

    /// The version of the map in which the OSD last came up.
    fn up_from(&self, osd: u32) -> Option<u64> {
        self.osd(osd)?["up_from"].as_u64()
    }

    fn osd(&self, osd: u32) -> Option<&Value> {
        let mut osds = self.0["osds"].as_array()?.iter();
        osds.find(|entry| entry["osd"] == osd)
    }

    fn pool(&self) -> Result<u64> {
        let pools = self.0["pools"].as_array();
        let ours = pools.and_then(|pools| pools.iter().find(|pool| pool["pool_name"] == POOL));
        ours.and_then(|pool| pool["pool"].as_u64())
            .context("the pool was not made")
    }
}

/// A command that ends with the thread that runs it, so that none waits for a cluster that is gone. It runs without the
/// variables that select another cluster, or another Python than Debian's.
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
