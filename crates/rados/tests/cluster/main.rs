//! Tests of each function of librados that we use, on a real cluster: `cargo xtask ceph start` makes one.
//!
//! They run where `ONEFOLD_CEPH_CONF` names the `ceph.conf` of a cluster with a replicated pool `onefold`, and the
//! keyring of `client.admin`. Each has a namespace of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

mod clients;
mod objects;
mod operations;
mod owners;
mod pools;
mod watches;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use onefold_rados::{Client, ConnectOptions, Pool};

const POOL: &str = "onefold";

/// Every wait ends within milliseconds; a test that waits longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn conf() -> Option<PathBuf> {
    let conf = std::env::var_os("ONEFOLD_CEPH_CONF").map(PathBuf::from);
    if conf.is_none() {
        println!("skipped: ONEFOLD_CEPH_CONF names no cluster");
    }
    conf
}

fn options(conf: &Path) -> ConnectOptions {
    ConnectOptions {
        conf_file: Some(conf.to_path_buf()),
        ..ConnectOptions::default()
    }
}

fn connect(conf: &Path) -> Client {
    Client::connect(&options(conf)).unwrap()
}

/// A namespace that is empty at the start and the end of a test.
struct Space {
    conf: PathBuf,
    client: Client,
    pool: Pool,
    name: String,
}

impl Space {
    /// Returns nothing if there is no cluster.
    fn new(test: &str) -> Option<Space> {
        let conf = conf()?;
        let client = connect(&conf);
        let name = format!("{test}.{}", std::process::id());
        let pool = client.pool(POOL, &name).unwrap();
        Some(Space {
            conf,
            client,
            pool,
            name,
        })
    }

    /// The same namespace, through a client of its own.
    fn other(&self) -> (Client, Pool) {
        let client = connect(&self.conf);
        let pool = client.pool(POOL, &self.name).unwrap();
        (client, pool)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for object in connect(&self.conf)
            .pool(POOL, &self.name)
            .unwrap()
            .objects()
            .unwrap()
        {
            self.pool.remove(&object.unwrap()).unwrap_or_default();
        }
    }
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

fn number<T>(result: io::Result<T>) -> i32 {
    result
        .err()
        .and_then(|error| error.raw_os_error())
        .expect("an error number")
}

/// Runs Ceph's own tool; returns nothing where it is not installed.
fn ceph(conf: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("ceph")
        .arg("--conf")
        .arg(conf)
        .args(arguments)
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: there is no ceph");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}
