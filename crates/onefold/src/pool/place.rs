//! Places of pools, as users name them: `--pool DIR`, or `--pool ceph:CEPHPOOL[/NAME]`.

use crate::arguments::parse_duration;
use onefold_api::{Error, Result};
use onefold_engine::rados::RadosPlace;
use onefold_rados::{Client, ConnectOptions};
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Prefix of the names of pools in a cluster.
const CEPH: &[u8] = b"ceph:";

/// The name of a pool in a Ceph pool, if none is given.
const NAME_DEFAULT: &str = "onefold";

/// Time after which a client whose in-flight operations all go to a dead OSD requests a new map of the
/// cluster. The default is 10 s, for which guests would wait.
const LAGGY_SECONDS: &str = "2";

/// Help heading of the options for Ceph.
const CEPH_OPTIONS: &str = "Pools in Ceph";

/// A pool's place.
#[derive(Debug, Clone)]
pub(crate) enum PoolPlace {
    /// A directory on this machine.
    Directory(PathBuf),
    /// A namespace of a Ceph pool.
    Ceph(CephPlace),
}

/// A pool in a cluster, and the options to connect to it.
#[derive(Debug, Clone)]
pub(crate) struct CephPlace {
    pub(crate) rados: RadosPlace,
    options: CephOptions,
}

/// Options for pools in a cluster.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CephOptions {
    /// Run directory of a pool in Ceph on this host, with its lock, sockets and tail copy [default: a
    /// directory below /run/onefold, or below $XDG_RUNTIME_DIR/onefold].
    #[arg(
        long,
        global = true,
        env = "ONEFOLD_RUN",
        value_name = "DIR",
        help_heading = CEPH_OPTIONS,
        hide_short_help = true
    )]
    run: Option<PathBuf>,

    /// Configuration file of the cluster [default: /etc/ceph/ceph.conf].
    #[arg(
        long,
        global = true,
        env = "ONEFOLD_CEPH_CONF",
        value_name = "FILE",
        help_heading = CEPH_OPTIONS,
        hide_short_help = true
    )]
    ceph_conf: Option<PathBuf>,

    /// Name of the Ceph user, without the prefix "client." [default: admin].
    #[arg(
        long,
        global = true,
        env = "ONEFOLD_CEPH_USER",
        value_name = "NAME",
        help_heading = CEPH_OPTIONS,
        hide_short_help = true
    )]
    ceph_user: Option<String>,

    /// How long the host that owns the pool may be silent before another host takes the pool over and fences
    /// it.
    #[arg(long, global = true, value_parser = parse_duration, value_name = "TIME", default_value = "10s", help_heading = CEPH_OPTIONS, hide_short_help = true)]
    pub(crate) patience: Duration,
}

impl PoolPlace {
    /// Parses a pool's place from the command line.
    pub(crate) fn parse(text: &OsStr, options: &CephOptions) -> Result<Self> {
        let Some(named) = text.as_bytes().strip_prefix(CEPH) else {
            return Ok(Self::Directory(PathBuf::from(text)));
        };
        let named = std::str::from_utf8(named).unwrap_or_default();
        let (ceph_pool, name) = named.split_once('/').unwrap_or((named, NAME_DEFAULT));
        let is_name = |text: &str| !text.is_empty() && !text.contains(['/', '\0', '\n', ':']);
        if !is_name(ceph_pool) || !is_name(name) {
            return Err(Error::usage(format!(
                "{} names no pool: use ceph:CEPHPOOL or ceph:CEPHPOOL/NAME",
                text.display()
            )));
        }
        let run = options.run.clone();
        let rados = RadosPlace {
            ceph_pool: ceph_pool.to_owned(),
            name: name.to_owned(),
            run: run.unwrap_or_else(|| default_run(ceph_pool, name)),
        };
        Ok(Self::Ceph(CephPlace {
            rados,
            options: options.clone(),
        }))
    }

    /// The directory with the pool's lock and sockets.
    pub(crate) fn directory(&self) -> &Path {
        match self {
            Self::Directory(directory) => directory,
            Self::Ceph(ceph) => &ceph.rados.run,
        }
    }

    /// The directory of a pool in a directory; an error for other pools, on which `what` is not possible.
    pub(crate) fn only_directory(&self, what: &str) -> Result<&Path> {
        match self {
            Self::Directory(directory) => Ok(directory),
            Self::Ceph(_) => Err(Error::usage(format!("{what} is for pools in a directory"))),
        }
    }
}

impl fmt::Display for PoolPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => directory.display().fmt(f),
            Self::Ceph(ceph) => f.write_str(&ceph.rados.title()),
        }
    }
}

impl CephPlace {
    pub(crate) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// Creates the run directory on this host, accessible only to its owner.
    pub(crate) fn make_run(&self) -> Result<()> {
        let run = &self.rados.run;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(run);
        made.map_err(|e| {
            Error::io(
                format_args!("cannot make the directory {}", run.display()),
                &e,
            )
        })
    }

    /// Connects to the cluster.
    pub(crate) fn connect(&self) -> Result<Client> {
        let options = ConnectOptions {
            conf_file: self.options.ceph_conf.clone(),
            user: self.options.ceph_user.clone(),
            settings: vec![("objecter_timeout".to_owned(), LAGGY_SECONDS.to_owned())],
            ..ConnectOptions::default()
        };
        Client::connect(&options).map_err(|error| Error::failed(error.to_string()))
    }
}

/// The default run directory. It is in memory, so that it is empty after a reboot of this host.
fn default_run(ceph_pool: &str, name: &str) -> PathBuf {
    let is_root = rustix::process::geteuid().is_root();
    let of_user = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let parent = of_user.filter(|directory| directory.is_absolute() && !is_root);
    let parent = parent.unwrap_or_else(|| "/run".into());
    parent.join(format!("onefold/ceph-{ceph_pool}-{name}"))
}
