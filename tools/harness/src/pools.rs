//! The places of a check's pools: directories, or a Ceph cluster.
//!
//! [`PoolArguments`] has the user's choice, [`Pools`] the places of a run, and [`Place`] the place of one pool. A pool
//! in Ceph has a namespace of its own, and a run directory for each host that uses it: another run directory stands for
//! another host, and is another client of the cluster. A pool's objects are removed with its last [`Place`].

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::ceph::Cluster;
use crate::cleanup::{Scratch, Stopping};
use crate::command::Cmd;
use crate::packages;
use crate::workspace::Workspace;

/// The variable that names the cluster to use, as for the product.
pub const CEPH_CONF: &str = "ONEFOLD_CEPH_CONF";

/// The prefix of the name of a pool in Ceph.
const CEPH: &str = "ceph:";

/// How long the listing or removal of a pool's objects may take. A cluster that a failed check left without OSDs never answers.
const OBJECTS_LIMIT: Duration = Duration::from_secs(60);

/// Options that choose the place of a check's pools.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PoolArguments {
    /// Make the pools in this Ceph pool, of the cluster of ONEFOLD_CEPH_CONF or else of one that is started for this
    /// run [default: in directories]
    #[arg(long, value_name = "ceph:CEPHPOOL", value_parser = ceph_pool)]
    pool: Option<String>,
}

fn ceph_pool(text: &str) -> Result<String, String> {
    let name = text.strip_prefix(CEPH).filter(|name| !name.is_empty());
    let name = name.filter(|name| !name.contains(['/', ':']));
    name.map(str::to_owned)
        .ok_or_else(|| "use ceph:CEPHPOOL".to_owned())
}

impl PoolArguments {
    /// Finds the cluster, or starts one.
    pub fn open(&self, workspace: &Workspace) -> Result<Pools> {
        match &self.pool {
            None => Ok(Pools::Directories),
            Some(ceph_pool) => Ok(Pools::Ceph(Arc::new(Ceph::open(workspace, ceph_pool)?))),
        }
    }
}

/// The places of a run's pools.
#[derive(Clone, Default)]
pub enum Pools {
    /// Directories of this machine.
    #[default]
    Directories,
    /// A Ceph pool.
    Ceph(Arc<Ceph>),
}

impl Pools {
    /// The place for a pool whose files on this machine are all below a directory.
    pub fn place(&self, directory: &Path) -> Place {
        match self {
            Pools::Directories => Place::Directory(directory.join("pool")),
            Pools::Ceph(ceph) => Place::Ceph(CephPlace {
                namespace: Arc::new(Namespace::new(Arc::clone(ceph))),
                run: directory.join("run"),
            }),
        }
    }

    /// The Ceph pool, if the pools are in one.
    pub fn ceph(&self) -> Option<&Ceph> {
        match self {
            Pools::Directories => None,
            Pools::Ceph(ceph) => Some(ceph),
        }
    }
}

/// A Ceph pool in use.
pub struct Ceph {
    conf: PathBuf,
    ceph_pool: String,
    /// The cluster, if it is a throw-away one, whose daemons may be made to fail.
    cluster: Option<Cluster>,
    _started: Option<Started>,
}

/// A cluster that is stopped when this is dropped; the fields are dropped in order.
struct Started {
    _stopping: Stopping,
    _scratch: Scratch,
}

impl Ceph {
    /// Opens a Ceph pool in the cluster of the environment, or in a new one.
    pub fn open(workspace: &Workspace, ceph_pool: &str) -> Result<Ceph> {
        match env::var_os(CEPH_CONF).filter(|conf| !conf.is_empty()) {
            Some(conf) => Ceph::find(PathBuf::from(conf), ceph_pool),
            None => Ceph::start(workspace, ceph_pool),
        }
    }

    fn find(conf: PathBuf, ceph_pool: &str) -> Result<Ceph> {
        packages::require(packages::CEPH)?;
        let directory = conf.parent().unwrap_or(Path::new("."));
        Ok(Ceph {
            cluster: Cluster::open(directory).ok(),
            ceph_pool: ceph_pool.to_owned(),
            conf,
            _started: None,
        })
    }

    /// Opens a Ceph pool in a new cluster, which is stopped when this is dropped.
    pub fn start(workspace: &Workspace, ceph_pool: &str) -> Result<Ceph> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "ceph")?;
        let directory = scratch.path().join("cluster");
        // Listed before the start, so that a signal during the start stops the daemons that exist.
        let stopping = Stopping::new(directory.clone(), |directory| {
            if directory.exists() {
                Cluster::open(directory)?.stop()
            } else {
                Ok(())
            }
        });
        let cluster = Cluster::start(&directory)?;
        Ok(Ceph {
            conf: cluster.conf(),
            ceph_pool: ceph_pool.to_owned(),
            cluster: Some(cluster),
            _started: Some(Started {
                _stopping: stopping,
                _scratch: scratch,
            }),
        })
    }

    /// The path of the cluster's configuration.
    pub fn conf(&self) -> &Path {
        &self.conf
    }

    /// The name of the Ceph pool.
    pub fn ceph_pool(&self) -> &str {
        &self.ceph_pool
    }

    /// The cluster, if its daemons may be made to fail.
    pub fn throw_away(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// The cluster, or an error if its daemons must not be made to fail, for checks that need faults.
    pub fn must_be_throw_away(&self) -> Result<&Cluster> {
        self.throw_away().with_context(|| {
            let conf = self.conf.display();
            format!(
                "{conf} is of no cluster that cargo xtask ceph started: its daemons are left alone"
            )
        })
    }
}

/// The place of a pool.
#[derive(Debug, Clone)]
pub enum Place {
    /// A directory.
    Directory(PathBuf),
    /// A namespace in Ceph.
    Ceph(CephPlace),
}

/// A pool in Ceph, as one host sees it.
#[derive(Debug, Clone)]
pub struct CephPlace {
    namespace: Arc<Namespace>,
    run: PathBuf,
}

impl Place {
    /// The pool's name for the product.
    pub fn name(&self) -> String {
        match self {
            Place::Directory(directory) => directory.display().to_string(),
            Place::Ceph(ceph) => ceph.namespace.to_string(),
        }
    }

    /// The directory with sockets and lock.
    pub fn directory(&self) -> &Path {
        match self {
            Place::Directory(directory) => directory,
            Place::Ceph(ceph) => &ceph.run,
        }
    }

    /// Adds the options, besides the pool's name, with which the product finds the pool.
    pub fn found_by(&self, command: Cmd) -> Cmd {
        match self {
            Place::Directory(_) => command,
            Place::Ceph(ceph) => (command.arg("--run").arg(&ceph.run))
                .arg("--ceph-conf")
                .arg(&ceph.namespace.ceph.conf),
        }
    }

    /// The place of the same pool on another host, whose run directory has this name.
    pub fn on_host(&self, name: &str) -> Result<Place> {
        match self {
            Place::Directory(_) => bail!("a pool in a directory belongs to one host"),
            Place::Ceph(ceph) => Ok(Place::Ceph(CephPlace {
                namespace: Arc::clone(&ceph.namespace),
                run: ceph.run.with_file_name(name),
            })),
        }
    }
}

impl CephPlace {
    /// The names of the pool's objects.
    pub fn objects(&self) -> Result<Vec<String>> {
        self.namespace.objects()
    }

    /// Copies an object into a file.
    pub fn get(&self, object: &str, file: &Path) -> Result<()> {
        self.namespace.rados().args(["get", object]).arg(file).run()
    }

    /// Replaces an object by the content of a file.
    pub fn put(&self, object: &str, file: &Path) -> Result<()> {
        self.namespace.rados().args(["put", object]).arg(file).run()
    }

    /// The bytes of all objects whose names begin so.
    pub fn bytes_of(&self, prefix: &str) -> Result<u64> {
        let mut bytes = 0;
        for object in self.objects()? {
            if object.starts_with(prefix) {
                let stat = self.namespace.rados().args(["stat", &object]).read()?;
                let size = stat.rsplit(' ').next().map(str::trim);
                let size = size.and_then(|size| size.parse::<u64>().ok());
                bytes += size.with_context(|| format!("rados stat says {stat:?}"))?;
            }
        }
        Ok(bytes)
    }

    /// Removes objects of the pool.
    pub fn remove(&self, objects: &[String]) -> Result<()> {
        self.namespace.remove(objects)
    }
}

/// The objects of a pool in Ceph.
struct Namespace {
    ceph: Arc<Ceph>,
    name: String,
}

impl Namespace {
    /// Chooses a name that no other run has.
    fn new(ceph: Arc<Ceph>) -> Namespace {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let (seconds, process) = (since.unwrap_or_default().as_secs(), std::process::id());
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let name = format!("check-{seconds}-{process}-{number}");
        Namespace { ceph, name }
    }

    fn rados(&self) -> Cmd {
        let seconds = OBJECTS_LIMIT.as_secs().to_string();
        let bound = Cmd::new("timeout").args([&seconds, "rados", "--conf"]);
        let rados = bound.arg(&self.ceph.conf);
        rados.args(["--pool", &self.ceph.ceph_pool, "--namespace", &self.name])
    }

    fn objects(&self) -> Result<Vec<String>> {
        let objects = self.rados().arg("ls").read()?;
        Ok(objects.lines().map(str::to_owned).collect())
    }

    fn remove(&self, objects: &[String]) -> Result<()> {
        if objects.is_empty() {
            Ok(())
        } else {
            self.rados().arg("rm").args(objects).run()
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = self.objects().and_then(|objects| self.remove(&objects)) {
            eprintln!("objects of {self} are left: {error:#}");
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CEPH}{}/{}", self.ceph.ceph_pool, self.name)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceph_pool_is_named_with_its_prefix() {
        assert_eq!(ceph_pool("ceph:onefold").unwrap(), "onefold");
        for text in ["onefold", "ceph:", "ceph:a/b", "/pool"] {
            assert!(ceph_pool(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pool_in_a_directory_needs_no_options_and_has_one_host() {
        let place = Pools::default().place(Path::new("/scratch"));
        assert_eq!(place.name(), "/scratch/pool");
        assert_eq!(place.directory(), Path::new("/scratch/pool"));
        assert!(place.on_host("other").is_err());
    }
}
