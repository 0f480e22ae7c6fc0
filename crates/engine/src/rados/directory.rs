//! The directory of a shared pool: rows of one object, which all hosts read and change.
//!
//! A change asserts the object's version, so it takes effect only if no row has changed since it was read. Rows of
//! the engine's own are kept apart: the addresses of fenced hosts, and the last sessions of removed shards.

use super::fences::FENCED_ROW;
use super::names::DIRECTORY;
use super::rows::{self, invalid, took_effect};
use crate::cluster::{Directory, Rows};
use crate::failure::explain;
use onefold_format::Shard;
use onefold_rados::{Create, Pool, Version, WriteOp};
use std::io;

/// The prefix of rows with the number of the last session of a shard that was removed. A new one continues there.
const SESSION_ROW: &str = "session/";

/// The directory, as one host sees it.
pub(super) struct RadosDirectory {
    pool: Pool,
    title: String,
}

impl RadosDirectory {
    pub(super) fn new(pool: Pool, title: String) -> RadosDirectory {
        RadosDirectory { pool, title }
    }

    fn failed(&self, doing: &str, error: io::Error) -> io::Error {
        explain(format!("{doing} the directory of {}", self.title), error)
    }
}

/// Creates an empty directory.
pub(super) fn create(pool: &Pool) -> io::Result<()> {
    let op = pool.write_op().create(Create::Exclusive);
    pool.change(DIRECTORY, op).map(drop)
}

/// The number of the last session of a shard that was removed; 0 if none was.
pub(super) fn last_session(pool: &Pool, shard: Shard) -> io::Result<u64> {
    let key = session_row(shard);
    let (rows, _) = rows::read_some(pool, DIRECTORY, std::slice::from_ref(&key))?;
    let Some(value) = rows.get(key.as_bytes()) else {
        return Ok(0);
    };
    let number = std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| invalid(format!("row {key} of object {DIRECTORY} is no number")))
}

/// Keeps the number of a shard's present session, which is its last one if the shard is removed or lost.
pub(super) fn keep_session(pool: &Pool, shard: Shard, number: u64) -> io::Result<()> {
    let op = pool.write_op().assert_exists();
    let op = op.set_rows(&[(session_row(shard), number.to_string())]);
    rows::change_even_full(pool, DIRECTORY, op).map(drop)
}

fn session_row(shard: Shard) -> String {
    format!("{SESSION_ROW}{shard}")
}

/// Whether the row belongs to the engine, which does not show it.
fn is_own(key: &str) -> bool {
    key.starts_with(FENCED_ROW) || key.starts_with(SESSION_ROW)
}

/// Whether hosts may not change the row. Rows with a zero byte in their key could not be listed.
fn is_refused(key: &str) -> bool {
    is_own(key) || key.is_empty() || key.contains('\0')
}

impl Directory for RadosDirectory {
    fn read(&self) -> io::Result<Rows> {
        let read = rows::read_all(&self.pool, DIRECTORY, "");
        let (found, version) = read.map_err(|error| self.failed("reading", error))?;
        let mut all = Rows {
            version: version.number(),
            ..Rows::default()
        };
        for (key, value) in found {
            let key = String::from_utf8(key)
                .map_err(|_| self.failed("reading", invalid("the key of a row is no text")))?;
            if !is_own(&key) {
                all.rows.insert(key, value);
            }
        }
        Ok(all)
    }

    fn change(&self, version: u64, changes: &[(String, Option<Vec<u8>>)]) -> io::Result<bool> {
        if let Some((key, _)) = changes.iter().find(|(key, _)| is_refused(key)) {
            let message =
                format!("row {key:?} is the engine's, or its key is empty or has a zero byte");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let op = self.pool.write_op();
        let op = with_changes(op.assert_version(Version::from_number(version)), changes);
        // Making room may depend on it: names of volumes go with them.
        let removes_only = changes.iter().all(|(_, value)| value.is_none());
        let changed = if removes_only {
            rows::change_even_full(&self.pool, DIRECTORY, op)
        } else {
            self.pool.change(DIRECTORY, op)
        };
        took_effect(changed).map_err(|error| self.failed("changing", error))
    }
}

/// Adds changes of rows to an operation. Of several changes of one row the last counts.
fn with_changes(op: WriteOp, changes: &[(String, Option<Vec<u8>>)]) -> WriteOp {
    let mut op = op;
    for (key, value) in changes {
        op = match value {
            Some(value) => op.set_rows(&[(key, value)]),
            None => op.remove_rows(&[key]),
        };
    }
    op
}
