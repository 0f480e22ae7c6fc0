//! Locks on objects. They are advisory, and stay until they are released or broken: a
//! [blocklist](crate::Client::blocklist_add) entry keeps a dead owner's writes out, a lock does not.
//!
//! All functions here wait for the cluster.

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr::null_mut;
use std::time::Duration;

use crate::callback::may_wait;
use crate::failure::{c_string, check};
use crate::pool::Pool;

/// A holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locker {
    /// The client's name: `client.` and its [number](crate::Client::instance_id).
    pub client: String,
    /// The cookie that the client passed when it took the lock.
    pub cookie: String,
    /// The client's address, as [`Client::blocklist_add`](crate::Client::blocklist_add) takes it.
    pub address: String,
}

/// The initial size of each list of a lock's holders; librados returns the size that it needs.
const LIST_BYTES: usize = 4 << 10;

/// Attempts to list the holders, because a list may grow between two of them.
const ATTEMPTS_MAX: u32 = 8;

impl Pool {
    /// Takes a lock, for a duration or until it is released; creates the object if it is missing.
    ///
    /// # Errors
    /// `ResourceBusy` if another client holds it; `AlreadyExists` if this one does, with the same cookie.
    pub fn lock_exclusive(
        &self,
        object: &str,
        name: &str,
        cookie: &str,
        description: &str,
        duration: Option<Duration>,
    ) -> io::Result<()> {
        may_wait()?;
        let [object, name, cookie, description] = texts([object, name, cookie, description])?;
        let mut duration = duration.map(|duration| libc::timeval {
            tv_sec: duration.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_usec: duration.subsec_micros().into(),
        });
        let duration = duration.as_mut().map_or(null_mut(), std::ptr::from_mut);
        // SAFETY: the handle is valid, and the duration null or a time; all texts are copied.
        check(unsafe {
            (self.library().rados_lock_exclusive)(
                self.namespace.io(),
                object.as_ptr(),
                name.as_ptr(),
                cookie.as_ptr(),
                description.as_ptr(),
                duration,
                0,
            )
        })
    }

    /// Releases a lock. `NotFound` if this client does not hold it with this cookie.
    pub fn unlock(&self, object: &str, name: &str, cookie: &str) -> io::Result<()> {
        may_wait()?;
        let [object, name, cookie] = texts([object, name, cookie])?;
        // SAFETY: the handle is valid; all texts are copied.
        check(unsafe {
            let unlock = self.library().rados_unlock;
            unlock(
                self.namespace.io(),
                object.as_ptr(),
                name.as_ptr(),
                cookie.as_ptr(),
            )
        })
    }

    /// Breaks a client's lock. `NotFound` if the client does not hold it.
    pub fn break_lock(
        &self,
        object: &str,
        name: &str,
        client: &str,
        cookie: &str,
    ) -> io::Result<()> {
        may_wait()?;
        let [object, name, client, cookie] = texts([object, name, client, cookie])?;
        // SAFETY: the handle is valid; all texts are copied.
        check(unsafe {
            (self.library().rados_break_lock)(
                self.namespace.io(),
                object.as_ptr(),
                name.as_ptr(),
                client.as_ptr(),
                cookie.as_ptr(),
            )
        })
    }

    /// The holders of a lock; the list is empty if the lock does not exist.
    ///
    /// # Errors
    /// `NotFound` if there is no object.
    pub fn lockers(&self, object: &str, name: &str) -> io::Result<Vec<Locker>> {
        may_wait()?;
        let [object, name] = texts([object, name])?;
        let mut lists = [(); 4].map(|()| vec![0; LIST_BYTES]);
        for _ in 0..ATTEMPTS_MAX {
            let mut lens = lists.each_ref().map(Vec::len);
            let result = self.list_lockers(&object, &name, &mut lists, &mut lens);
            match check(result) {
                Ok(()) => return Ok(parse(result as usize, &lists)),
                Err(error) if error.raw_os_error() != Some(libc::ERANGE) => return Err(error),
                // Now the lengths are the required ones.
                Err(_) => {
                    for (list, len) in lists.iter_mut().zip(lens) {
                        list.resize(len.max(list.len()), 0);
                    }
                }
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Makes one attempt: fills the tag of the lock, then clients, cookies and addresses.
    fn list_lockers(
        &self,
        object: &CString,
        name: &CString,
        lists: &mut [Vec<u8>; 4],
        lens: &mut [usize; 4],
    ) -> c_int {
        let [tag, clients, cookies, addresses] = lists
            .each_mut()
            .map(|list| list.as_mut_ptr().cast::<c_char>());
        let [tag_len, clients_len, cookies_len, addresses_len] =
            lens.each_mut().map(std::ptr::from_mut);
        let mut is_exclusive = 0;
        // SAFETY: the handle is valid. Each list is as long as its length says, so no more is written to it.
        let result = unsafe {
            (self.library().rados_list_lockers)(
                self.namespace.io(),
                object.as_ptr(),
                name.as_ptr(),
                &mut is_exclusive,
                tag,
                tag_len,
                clients,
                clients_len,
                cookies,
                cookies_len,
                addresses,
                addresses_len,
            )
        };
        // An error number, or the number of lockers.
        result.try_into().unwrap_or(-libc::EIO)
    }
}

fn texts<const N: usize>(texts: [&str; N]) -> io::Result<[CString; N]> {
    let texts: Vec<CString> = texts.into_iter().map(c_string).collect::<io::Result<_>>()?;
    texts
        .try_into()
        .map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Splits lists of texts, each ended by a zero byte.
fn parse(count: usize, [_, clients, cookies, addresses]: &[Vec<u8>; 4]) -> Vec<Locker> {
    let texts = |list: &'_ [u8]| -> Vec<String> {
        let parts = list.split(|byte| *byte == 0).take(count);
        parts
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect()
    };
    let (clients, cookies, addresses) = (texts(clients), texts(cookies), texts(addresses));
    let lockers = clients.into_iter().zip(cookies).zip(addresses);
    lockers
        .map(|((client, cookie), address)| Locker {
            client,
            cookie,
            address,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_as_long_as_there_are_lockers() {
        let lists = [
            &b"tag\0"[..],
            b"client.1\0client.2\0\0\0",
            b"a\0\0\0",
            b"x\0y\0z\0",
        ];
        let lockers = parse(2, &lists.map(<[u8]>::to_vec));
        assert_eq!(lockers.len(), 2);
        assert_eq!(lockers[1].client, "client.2");
        assert_eq!((&*lockers[0].cookie, &*lockers[1].cookie), ("a", ""));
        assert_eq!(lockers[1].address, "y");
        assert!(parse(0, &lists.map(<[u8]>::to_vec)).is_empty());
    }
}
