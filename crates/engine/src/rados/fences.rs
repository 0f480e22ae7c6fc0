//! Fences that last: former owners stay on the cluster's blocklist for as long as the pool exists.
//!
//! A frozen process may wake up at any time, with in-flight writes to blocks that have been reused since. The cluster's
//! blocklist loses entries: they expire, or an administrator removes them. So the pool keeps the addresses, in its head
//! or, if hosts share it, in its directory. The owner of a pool adds them to the blocklist again when it takes the pool,
//! every host of a shared pool when it starts, and all periodically afterwards.
//!
//! The pool does not keep the address of an owner that was a process of this run directory: the directory's lock proves
//! that the process is dead, and its last operations have ended long before its entry expires.
//!
//! Crash behaviour: an address is kept before its owner's lock is broken, so the next owner knows it.

use super::head;
use super::names::{DIRECTORY, Estate};
use super::rows;
use onefold_rados::{Client, Pool};
use std::io;
use std::thread;

/// How long an entry of the blocklist lasts. The owner renews it.
const FENCE_SECONDS: u32 = 30 * 24 * 3600;

/// The most addresses that the head keeps; the oldest are dropped first. A host that falls silent while its process
/// lives is an accident: a pool does not have 128 of them that may still wake up. An attribute of some kilobytes is
/// cheap.
pub(super) const FENCED_MAX: usize = 128;

/// Concurrent requests to the monitors: one takes as long as all of them together.
const REQUESTS_MAX: usize = 16;

/// Attempts to enter an address. An attempt fails if the head changes concurrently.
const ATTEMPTS_MAX: u32 = 16;

/// An address reserved for documentation (RFC 5737), so no client has it.
const NOBODY: &str = "192.0.2.1:0/";

/// Checks that this client may fence others, by blocklisting for one second an address that no client has. Nothing else
/// needs this right, and a host first needs it after another one has died. `PermissionDenied` without it.
pub(super) fn try_out(client: &Client) -> io::Result<()> {
    client.blocklist_add(&format!("{NOBODY}{}", std::process::id()), 1)
}

/// The prefix of the directory's rows with fenced addresses.
pub(super) const FENCED_ROW: &str = "fenced/";

/// Where a pool keeps the addresses of former owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// In the head of a pool with one owner.
    InHead,
    /// In the directory of a shared pool.
    InDirectory,
}

/// Blocklists the client with this address. If it `may_wake`, the pool records the address first.
pub(super) fn fence(
    client: &Client,
    pool: &Pool,
    kept: Kept,
    address: &str,
    may_wake: bool,
) -> io::Result<()> {
    if cfg!(onefold_without_fencing) {
        tracing::warn!("this build does not fence: it is for a test that must notice");
        return Ok(());
    }
    if may_wake {
        match kept {
            Kept::InHead => keep(pool, address)?,
            Kept::InDirectory => {
                let row = (format!("{FENCED_ROW}{address}"), "");
                let op = pool.write_op().assert_exists().set_rows(&[row]);
                rows::change_even_full(pool, DIRECTORY, op)?;
            }
        }
    }
    client.blocklist_add(address, FENCE_SECONDS)?;
    client.wait_for_latest_osdmap()
}

/// Blocklists all addresses again that the pool keeps, and returns them.
pub(super) fn restore(client: &Client, pool: &Pool, kept: Kept) -> io::Result<Vec<String>> {
    let fenced = match kept {
        Kept::InHead => head::read(pool, Estate::Pool)?.fenced,
        Kept::InDirectory => addresses(pool)?,
    };
    if fenced.is_empty() || cfg!(onefold_without_fencing) {
        return Ok(Vec::new());
    }
    for some in fenced.chunks(REQUESTS_MAX) {
        thread::scope(|scope| {
            let add = |address: &'_ str| client.blocklist_add(address, FENCE_SECONDS);
            let threads: Vec<_> = some
                .iter()
                .map(|address| scope.spawn(move || add(address)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let ended = thread.join();
                ended
                    .unwrap_or_else(|_| Err(io::Error::other("a request to the monitors panicked")))
            })
        })?;
    }
    client.wait_for_latest_osdmap()?;
    Ok(fenced)
}

/// The addresses in the directory.
fn addresses(pool: &Pool) -> io::Result<Vec<String>> {
    let (found, _) = rows::read_all(pool, DIRECTORY, FENCED_ROW)?;
    let addresses = found.into_keys().filter_map(|key| {
        let key = String::from_utf8(key).ok()?;
        key.strip_prefix(FENCED_ROW).map(str::to_owned)
    });
    Ok(addresses.collect())
}

/// Enters an address in the head, which other hosts may change concurrently.
fn keep(pool: &Pool, address: &str) -> io::Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let head = head::read(pool, Estate::Pool)?;
        let Some(fenced) = with(head.fenced, address) else {
            return Ok(());
        };
        match head::set_fenced(pool, head.version, &fenced) {
            Err(error) if onefold_rados::is_condition_failed(&error) => {}
            kept => return kept,
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Adds an address to the list. Returns nothing if it is there already.
fn with(mut fenced: Vec<String>, address: &str) -> Option<Vec<String>> {
    if fenced.iter().any(|known| known == address) {
        return None;
    }
    fenced.push(address.to_owned());
    let surplus = fenced.len().saturating_sub(FENCED_MAX);
    fenced.drain(..surplus);
    Some(fenced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_addresses_the_oldest_go() {
        let mut fenced = Vec::new();
        for n in 0..FENCED_MAX + 3 {
            fenced = with(fenced, &n.to_string()).unwrap();
        }
        assert_eq!(fenced.len(), FENCED_MAX);
        assert_eq!((&*fenced[0], &*fenced[FENCED_MAX - 1]), ("3", "130"));
        assert_eq!(with(fenced, "100"), None);
    }
}
