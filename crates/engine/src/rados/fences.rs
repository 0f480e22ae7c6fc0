//! Fences that last: former owners are kept out of the cluster for as long as the pool is there.
//!
//! A process that is frozen may wake up at any time, with writes of data in flight to blocks that hold something else
//! by then. The cluster's blocklist forgets its entries, by their age or by an administrator. So the head keeps the
//! addresses, and the owner puts them on the blocklist again when it takes the pool, and from time to time afterwards.
//!
//! An owner that was a process of this run directory is not kept: the directory's lock proves that it is dead, and what
//! it has sent is long gone when its entry is.
//!
//! Crash behaviour: an address is in the head before its owner's lock is broken, so the next owner knows it.

use super::head;
use onefold_rados::{Client, Pool};
use std::io;
use std::thread;

/// How long an entry of the blocklist lasts. The owner renews it.
const FENCE_SECONDS: u32 = 30 * 24 * 3600;

/// Addresses that the head keeps; of more, the oldest go. A host that falls silent with a process that lives is an accident: a
/// pool does not have 128 of them while one may still wake up. An attribute of some kilobytes is no burden.
pub(super) const FENCED_MAX: usize = 128;

/// Requests to the monitors at a time: each of them takes as long as all together.
const REQUESTS_MAX: usize = 16;

/// How often the head may change while an address is entered.
const ATTEMPTS_MAX: u32 = 16;

/// Of documentation (RFC 5737), so that no client has it.
const NOBODY: &str = "192.0.2.1:0/";

/// Fences need a right that nothing else does, and a host needs it first when another one is dead. So an address that nobody
/// has is kept out for a second. `PermissionDenied` without the right.
pub(super) fn try_out(client: &Client) -> io::Result<()> {
    client.blocklist_add(&format!("{NOBODY}{}", std::process::id()), 1)
}

/// Keeps the client with this address out; the head knows it afterwards if it `may_wake`.
pub(super) fn fence(client: &Client, pool: &Pool, address: &str, may_wake: bool) -> io::Result<()> {
    if cfg!(onefold_without_fencing) {
        tracing::warn!("this build fences nobody: it is for a test that has to notice");
        return Ok(());
    }
    if may_wake {
        keep(pool, address)?;
    }
    client.blocklist_add(address, FENCE_SECONDS)?;
    client.wait_for_latest_osdmap()
}

/// Keeps out all that the head names.
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

/// Enters an address in the head, which others may change at the same time.
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

/// The addresses with another one; nothing if it is among them.
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
