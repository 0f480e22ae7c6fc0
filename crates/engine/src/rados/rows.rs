//! Rows of the objects that hosts of a shared pool change together: read as of one moment, changed by one operation.

use onefold_rados::{Pool, ReadOp, ReadReply, Version, Wait, WhenFull, WriteOp};
use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

/// Rows by key.
pub(super) type Found = BTreeMap<Vec<u8>, Vec<u8>>;

/// Attempts of an operation that other hosts interfere with. Each failure means that another host's change has taken
/// effect, so all together get on.
const ATTEMPTS_MAX: u32 = 256;

/// The pause after a failed attempt grows with each of them, up to this.
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The rows that one operation reads; an OSD has a limit, too.
const ROWS_MAX: u64 = 1024;

/// Reads all rows whose keys begin with a prefix, as of one moment, and the object's version.
pub(super) fn read_all(pool: &Pool, object: &str, prefix: &str) -> io::Result<(Found, Version)> {
    retried(|| {
        let mut found = Found::new();
        let (mut after, mut version) = (String::new(), None);
        loop {
            let reply = pool.ask(object, pool.read_op().rows(&after, prefix, ROWS_MAX))?;
            if *version.get_or_insert(reply.version) != reply.version {
                return Ok(None);
            }
            let has_more = reply.rows.iter().any(|rows| rows.has_more);
            found.extend(taken(&reply));
            match found.last_key_value() {
                Some((last, _)) if has_more => {
                    after = String::from_utf8(last.clone()).map_err(|_| {
                        invalid(format!("object {object} has a row that is no text"))
                    })?;
                }
                _ => return Ok(Some((found, reply.version))),
            }
        }
    })
}

/// Reads rows of an object by their keys, and its version.
pub(super) fn read_some(
    pool: &Pool,
    object: &str,
    keys: &[String],
) -> io::Result<(Found, Version)> {
    read_op(pool, object, pool.read_op().rows_by_keys(keys))
}

/// Reads the rows that an operation asks for, and the object's version.
pub(super) fn read_op(pool: &Pool, object: &str, op: ReadOp) -> io::Result<(Found, Version)> {
    let reply = pool.ask(object, op)?;
    Ok((taken(&reply).collect(), reply.version))
}

fn taken(reply: &ReadReply) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    reply.rows.iter().flat_map(|rows| rows.rows.iter().cloned())
}

/// Makes a change also in a full cluster: it makes room, or making room depends on it.
pub(super) fn change_even_full(pool: &Pool, object: &str, op: WriteOp) -> io::Result<Version> {
    Wait::of(|ended| pool.submit_write(object, op, WhenFull::Go, ended))
}

/// Repeats an attempt until it returns something. `ResourceBusy` if other hosts prevent that for too long.
pub(super) fn retried<T>(mut attempt: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
    for failures in 0..ATTEMPTS_MAX {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        // Clients that failed together do not try again together.
        let random = crate::host::random_id()?[0];
        let pause = Duration::from_millis(1 << failures.min(6)).min(PAUSE_MAX);
        thread::sleep(pause.mul_f64(0.5 + f64::from(random) / 256.0));
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "other hosts change the object all the time: try again",
    ))
}

/// Whether a guarded change has taken effect: not if others have changed the object since it was read.
pub(super) fn took_effect(changed: io::Result<Version>) -> io::Result<bool> {
    match changed {
        Ok(_) => Ok(true),
        Err(error) if onefold_rados::is_condition_failed(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_repeated_until_it_succeeds_or_fails() {
        let mut left = 3;
        let counted = retried(|| {
            left -= 1;
            Ok((left == 0).then_some(left))
        });
        assert_eq!(counted.unwrap(), 0);
        let failed = retried::<()>(|| Err(io::ErrorKind::NotFound.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
