//! Fences that last: former owners stay on the cluster's blocklist for as long as the pool exists.
//!
//! A frozen process may wake up at any time, with in-flight writes to blocks that have been reused since. The cluster's
//! blocklist loses entries: they expire, or an administrator removes them. So the head keeps the addresses, and the
//! owner adds them to the blocklist again when it takes the pool, and periodically afterwards.
//!
//! The head does not keep the address of an owner that was a process of this run directory: the directory's lock proves
//! that the process is dead, and its last operations have ended long before its entry expires.
//!
//! Crash behaviour: an address is in the head before its owner's lock is broken, so the next owner knows it.

use super::head;
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

/// Blocklists the client with this address. If it `may_wake`, the head records the address first.
pub(super) fn fence(client: &Client, pool: &Pool, address: &str, may_wake: bool) -> io::Result<()> {
    if cfg!(onefold_without_fencing) {
        tracing::warn!("this build does not fence: it is for a test that must notice");
        return Ok(());
    }
    if may_wake {
        keep(pool, address)?;
    }
    client.blocklist_add(address, FENCE_SECONDS)?;
    client.wait_for_latest_osdmap()
}

/// Blocklists all addresses in the head again.
pub(super) fn restore(client: &Client, pool: &Pool) -> io::Result<()> {
    let fenced = head::read(pool)?.fenced;
    if fenced.is_empty() || cfg!(onefold_without_fencing) {
        return Ok(());
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
    client.wait_for_latest_osdmap()
}

/// Enters an address in the head, which other hosts may change concurrently.
fn keep(pool: &Pool, address: &str) -> io::Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let head = head::read(pool)?;
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
