//! Hosts that share a pool: each has a run directory of its own, and is a client of its own of the Ceph cluster.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::last_lines;
use onefold_harness::pools::{CephPlace, Place, Pools};
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;
use serde_json::Value;

/// Shards of the index: enough for each host to serve several.
pub(super) const SHARDS: u16 = 8;

/// How long finders and collectors may take to share all duplicates and to release all references.
const SETTLE_LIMIT: Duration = Duration::from_secs(180);

/// The poll interval while they do.
const SETTLE_POLL: Duration = Duration::from_millis(200);

/// How long a dead or frozen host is asked before its groups are taken.
pub(super) const PATIENCE: [&str; 2] = ["--patience", "2s"];

/// The hosts of a pool.
pub(super) struct Hosts {
    // Dropped before the pool that they use.
    pub(super) hosts: Vec<Host>,
    _scratch: Scratch,
}

/// A host, and its daemon while it runs.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) product: Product,
    /// Options of the daemon.
    options: Vec<String>,
    daemon: Option<Daemon>,
}

/// A group of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) number: u64,
    pub(super) host: String,
    pub(super) volumes: Vec<String>,
}

impl Hosts {
    /// Creates a pool of this size, and starts this many hosts, one after the other, with these options of the daemon.
    pub(super) fn start(
        workspace: &Workspace,
        pools: &Pools,
        size: &str,
        count: usize,
        options: &[&str],
    ) -> Result<Hosts> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "cluster")?;
        let pool = Product::build_in(workspace, pools, scratch.path())?;
        pool.create_pool_with(size, &["--shards", &SHARDS.to_string()])?;
        let hosts = (1..=count).map(|n| Host::start(format!("kvm{n}"), &pool, options));
        Ok(Hosts {
            hosts: hosts.collect::<Result<_>>()?,
            _scratch: scratch,
        })
    }

    /// A host whose daemon runs.
    pub(super) fn any(&self) -> Result<&Host> {
        let running = self.hosts.iter().find(|host| host.daemon.is_some());
        running.context("no host runs")
    }

    /// The groups of the pool.
    pub(super) fn groups(&self) -> Result<Vec<Group>> {
        self.any()?.groups()
    }

    /// The host that serves a volume.
    pub(super) fn host_of(&self, volume: &str) -> Result<&Host> {
        let groups = self.groups()?;
        let group = groups
            .iter()
            .find(|group| group.volumes.iter().any(|name| name == volume));
        let host = group.and_then(|group| self.hosts.iter().find(|host| host.name == group.host));
        host.with_context(|| format!("no host has volume {volume}"))
    }

    /// Stops all daemons.
    pub(super) fn stop(&mut self) -> Result<()> {
        for host in &mut self.hosts {
            let stopped = host.take_daemon()?.stop();
            stopped.with_context(|| format!("{} does not stop", host.name))?;
        }
        Ok(())
    }

    /// Waits until no block of a running host waits for finder or collector, and returns the number of blocks that the
    /// pool holds: those that only one volume has and, counted once, those of the index.
    pub(super) fn settle(&self) -> Result<u64> {
        let start = std::time::Instant::now();
        loop {
            let mut pending = 0;
            for host in &self.hosts {
                let backlog = host.product.backlog().context(host.name.clone())?;
                pending += backlog.dirty + backlog.queued + backlog.claimed;
            }
            if pending == 0 {
                return self.blocks();
            }
            if start.elapsed() > SETTLE_LIMIT {
                let seconds = SETTLE_LIMIT.as_secs();
                bail!("{pending} blocks wait for finder and collector after {seconds} s");
            }
            std::thread::sleep(SETTLE_POLL);
        }
    }

    /// Has a host check the pool, which fails at any finding.
    pub(super) fn check_pool(&self) -> Result<()> {
        self.any()?.product.check().map(drop)
    }

    fn blocks(&self) -> Result<u64> {
        let mut blocks = 0;
        for host in &self.hosts {
            blocks += host.product.stat_number("private_blocks")?;
            blocks += host.product.stat_number("unsettled_blocks")?;
        }
        let product = &self.any()?.product;
        Ok(
            blocks
                + product.stat_number("unique_blocks")?
                + product.stat_number("shared_blocks")?,
        )
    }

    /// The number of blocks that no group has, and of all blocks.
    pub(super) fn free_and_all_blocks(&self) -> Result<(u64, u64)> {
        let product = &self.any()?.product;
        let number = |key| product.stat_number(key);
        let all = number("pool_blocks")?;
        let leased = number("pool_bytes_on_disk")? / number("block_size")?;
        Ok((all.saturating_sub(leased), all))
    }

    /// The names of the pool's objects.
    pub(super) fn objects(&self) -> Result<Vec<String>> {
        self.ceph()?.objects()
    }

    /// Removes all objects of a shard of the index, while hosts use it.
    pub(super) fn lose_shard(&self, shard: u16) -> Result<()> {
        let head = format!("ix.{shard}");
        let part = format!("{head}.");
        let mut objects = self.objects()?;
        objects.retain(|name| *name == head || name.starts_with(&part));
        ensure!(!objects.is_empty(), "shard {shard} has no objects");
        self.ceph()?.remove(&objects)
    }

    /// Copies all data objects into a folder.
    pub(super) fn keep_data(&self, folder: &Path) -> Result<()> {
        let ceph = self.ceph()?;
        let mut objects = ceph.objects()?;
        objects.retain(|name| name.starts_with("d."));
        objects
            .iter()
            .try_for_each(|name| ceph.get(name, &folder.join(name)))
    }

    /// Replaces data objects by their copies in a folder.
    pub(super) fn put_data_back(&self, folder: &Path) -> Result<()> {
        let ceph = self.ceph()?;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().context("the name of an object")?;
            ceph.put(name, &entry.path())?;
        }
        Ok(())
    }

    fn ceph(&self) -> Result<&CephPlace> {
        match self.any()?.product.place() {
            Place::Ceph(ceph) => Ok(ceph),
            Place::Directory(_) => bail!("the pool is not in Ceph"),
        }
    }
}

impl Host {
    fn start(name: String, pool: &Product, options: &[&str]) -> Result<Host> {
        let mut host = Host {
            product: pool.on_host(&name)?,
            options: options.iter().map(ToString::to_string).collect(),
            name,
            daemon: None,
        };
        host.open()?;
        Ok(host)
    }

    /// Starts the daemon.
    pub(super) fn open(&mut self) -> Result<()> {
        let mut options = vec!["--host-name", &self.name];
        options.extend(self.options.iter().map(String::as_str));
        let daemon = self.product.serve(&options, &[]);
        self.daemon = Some(daemon.with_context(|| format!("{} does not start", self.name))?);
        Ok(())
    }

    /// The daemon, which must run.
    pub(super) fn daemon(&mut self) -> Result<&mut Daemon> {
        let name = &self.name;
        self.daemon
            .as_mut()
            .with_context(|| format!("{name} does not run"))
    }

    /// Takes the daemon out, for the caller to end.
    pub(super) fn take_daemon(&mut self) -> Result<Daemon> {
        let name = &self.name;
        self.daemon
            .take()
            .with_context(|| format!("{name} does not run"))
    }

    /// The last lines of the daemon's log, for messages.
    pub(super) fn said(&self) -> String {
        let said = self.daemon.as_ref().map(Daemon::said).unwrap_or_default();
        format!("{}\n{}", self.name, last_lines(&said))
    }

    /// Where this host serves a volume.
    pub(super) fn uri(&self, volume: &str) -> String {
        self.product.default_address().uri(volume)
    }

    /// Runs a command that must succeed.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<()> {
        let command = self.product.command().arg("--quiet").args(arguments);
        command.run().with_context(|| self.name.clone())
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let command = self.product.command().args(["--format", "json"]);
        let text = command.args(arguments).read()?;
        serde_json::from_str(&text).with_context(|| format!("{arguments:?} printed no JSON"))
    }

    /// The groups of the pool, as this host sees them.
    pub(super) fn groups(&self) -> Result<Vec<Group>> {
        let reply = self.json(&["group", "list"])?;
        let groups = reply["groups"].as_array().context("no groups")?;
        groups.iter().map(Group::parse).collect()
    }

    /// Opens a group on this host. `asks` has its present host give it up.
    pub(super) fn take(&self, group: u64, asks: bool) -> Result<()> {
        let number = group.to_string();
        let mut take = vec!["group", "take", &number];
        take.extend(asks.then_some("--take"));
        self.run(&take)?;
        let groups = self.groups()?;
        let taken = groups.iter().find(|other| other.number == group);
        let host = taken.map(|group| &group.host);
        ensure!(
            host == Some(&self.name),
            "{} has taken group {group}, and the pool says that its host is {host:?}",
            self.name
        );
        Ok(())
    }
}

impl Group {
    fn parse(value: &Value) -> Result<Group> {
        let volumes = value["volumes"].as_array().context("no volumes")?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("not a name");
        Ok(Group {
            number: value["number"].as_u64().context("no number")?,
            host: text(&value["host"])?,
            volumes: volumes.iter().map(text).collect::<Result<_>>()?,
        })
    }
}
