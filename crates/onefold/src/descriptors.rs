//! The daemon's limit on open files and sockets.
//!
//! The limit is divided when the daemon starts, so that clients cannot use up the descriptors that commands
//! and the pool need. If the system still runs out, a spare descriptor is released to accept the next
//! command.

use crate::limits::{DESCRIPTORS_RESERVED, NBD_CONNECTIONS_MAX, NBD_CONNECTIONS_MIN};
use onefold_api::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::path::Path;

/// Raises the limit as far as is needed and allowed, and returns the number of NBD clients that may connect
/// at a time.
pub(crate) fn divide() -> Result<usize> {
    let wanted = (DESCRIPTORS_RESERVED + NBD_CONNECTIONS_MAX) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let mut limit = current.unwrap_or(u64::MAX);
    let possible = wanted.min(maximum.unwrap_or(u64::MAX));
    if limit < possible {
        let raised = Rlimit {
            current: Some(possible),
            maximum,
        };
        setrlimit(Resource::Nofile, raised)
            .map_err(|e| Error::io("cannot raise the limit on open files", &e.into()))?;
        limit = possible;
    }
    let clients = clients_within(limit)?;
    if clients < NBD_CONNECTIONS_MAX {
        tracing::warn!(
            "the limit on open files (RLIMIT_NOFILE) is {limit}: {clients} NBD clients may connect \
             at a time; with {wanted} they would be {NBD_CONNECTIONS_MAX}"
        );
    }
    Ok(clients)
}

fn clients_within(limit: u64) -> Result<usize> {
    let reserved = DESCRIPTORS_RESERVED as u64;
    let clients = usize::try_from(limit.saturating_sub(reserved)).unwrap_or(usize::MAX);
    if clients >= NBD_CONNECTIONS_MIN {
        return Ok(clients.min(NBD_CONNECTIONS_MAX));
    }
    Err(Error::failed(format!(
        "the limit on open files (RLIMIT_NOFILE) is {limit}, and a daemon needs {} at least; raise \
         it, with 'ulimit -Hn' or LimitNOFILE= of systemd",
        DESCRIPTORS_RESERVED + NBD_CONNECTIONS_MIN
    )))
}

/// Whether a call failed because this process, or the system, has no descriptor left.
pub(crate) fn are_lacking(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    errno
        .is_some_and(|errno| errno == rustix::io::Errno::MFILE || errno == rustix::io::Errno::NFILE)
}

/// A descriptor held in reserve for when the system has no other.
pub(crate) struct Spare(Option<File>);

impl Spare {
    pub(crate) fn new() -> Self {
        let mut spare = Self(None);
        spare.refill();
        spare
    }

    /// Opens the spare descriptor again, if the system has one.
    pub(crate) fn refill(&mut self) {
        if self.0.is_none() {
            self.0 = File::open(Path::new("/")).ok();
        }
    }

    /// Releases the spare descriptor; returns whether there was one.
    pub(crate) fn give_up(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_the_daemon_does_not_need_itself() {
        let reserved = DESCRIPTORS_RESERVED as u64;
        let most = NBD_CONNECTIONS_MAX as u64;
        let least = NBD_CONNECTIONS_MIN as u64;
        assert_eq!(clients_within(u64::MAX), Ok(NBD_CONNECTIONS_MAX));
        assert_eq!(clients_within(reserved + most), Ok(NBD_CONNECTIONS_MAX));
        assert_eq!(clients_within(reserved + least), Ok(NBD_CONNECTIONS_MIN));
        for limit in [0, 3, reserved, reserved + least - 1] {
            let error = clients_within(limit).unwrap_err().to_string();
            let needed = (reserved + least).to_string();
            assert!(error.contains(&format!("is {limit},")), "{error}");
            assert!(error.contains(&needed), "{error}");
        }
    }
}
