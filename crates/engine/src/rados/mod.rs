//! A pool in Ceph RADOS: each [`Part`](crate::Part) in objects of 4 MiB, in a namespace of a Ceph pool.
//!
//! A pool of format 1 has one owner: [`RadosEngine::take`] makes this process the owner until the engine is dropped. A
//! pool of format 2 is shared by hosts, which own its groups and shards: [`RadosHost`] is one of them. The pool also has
//! a directory on this host, whose lock the caller holds: it contains the memory that outlives the process.
//!
//! Data that RADOS has acknowledged is durable. A submitted operation is never cancelled, because it could still take
//! effect: operations wait for the cluster as long as it takes, and the log reports them.
//!
//! Reading order: `names` and `place` (objects and pieces), `head` (which parts there are), `run` (the directory on this
//! host), `ownership` (who may write), `taking` (how that is agreed), `fences` (who may not any more), `messages`, `held`
//! and `serving` (what owners answer), `host` (what all that a process owns shares), `flights` and `operations`, `disk`,
//! `engine`; of shared pools `rows`, `space`, `extents`, `directory`, `calls`, `shared` and `conversion`.

mod behind;
mod bounded;
mod calls;
mod conversion;
mod directory;
mod disk;
mod ends;
mod engine;
mod extents;
mod fences;
mod flights;
mod head;
mod held;
mod host;
mod messages;
mod names;
mod operations;
mod ownership;
mod place;
mod prepared;
mod rows;
mod run;
mod serving;
mod shared;
mod space;
mod taking;

pub use crate::cluster::{OwnerEvent, TakeError, TakeOptions};
pub use engine::RadosEngine;
pub use shared::{PoolDescription, RadosHost};

use crate::failure::explain;
use onefold_rados::{Client, Pool};
use std::io;
use std::path::PathBuf;

/// The location of a pool in Ceph.
#[derive(Debug, Clone)]
pub struct RadosPlace {
    /// The Ceph pool.
    pub ceph_pool: String,
    /// The pool's name, which is its namespace in the Ceph pool.
    pub name: String,
    /// The pool's run directory on this host.
    pub run: PathBuf,
}

impl RadosPlace {
    /// The pool's name as users write it.
    pub fn title(&self) -> String {
        format!("ceph:{}/{}", self.ceph_pool, self.name)
    }

    /// Explains an error of an operation on the pool. If capabilities are missing, lists those that are needed.
    fn explain(&self, doing: &str, error: io::Error) -> io::Error {
        let what = format!("{doing} {}", self.title());
        match error.kind() {
            io::ErrorKind::PermissionDenied => explain(
                format!(
                    "{what}: the Ceph user needs the capabilities mon 'profile rbd' osd 'allow rwx \
                     pool={} namespace={}', which 'ceph auth caps' gives",
                    self.ceph_pool, self.name
                ),
                error,
            ),
            _ => explain(what, error),
        }
    }

    /// Opens the namespace for a new pool. Fails where there can be none.
    fn open_for_creation(&self, client: &Client) -> io::Result<Pool> {
        let pool = self.open(client)?;
        if !pool.takes_overwrites()? {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the Ceph pool {} is erasure-coded and takes no overwrites: allow them \
                     (allow_ec_overwrites), or use a replicated pool",
                    self.ceph_pool
                ),
            ));
        }
        // Checked before anything exists: a host first needs this right when its predecessor has died.
        fences::try_out(client).map_err(|error| self.explain("creating", error))?;
        Ok(pool)
    }

    fn not_created(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(
                error.kind(),
                format!("there is a pool {} already", self.title()),
            ),
            _ => self.explain("creating", error),
        }
    }

    fn missing(&self) -> io::Error {
        let title = self.title();
        io::Error::new(io::ErrorKind::NotFound, format!("there is no pool {title}"))
    }

    fn open(&self, client: &Client) -> io::Result<Pool> {
        client.pool(&self.ceph_pool, &self.name).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("the cluster has no Ceph pool {}", self.ceph_pool)
                }
                _ => format!("opening the Ceph pool {}", self.ceph_pool),
            };
            explain(what, error)
        })
    }
}
