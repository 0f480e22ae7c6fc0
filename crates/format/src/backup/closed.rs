//! Closed numbers of backups: such a backup was forgotten, or never completed, and does not exist even if parts of it
//! are found. This is the sealed chunk of a [tombstone](super::ObjectName::Tombstone), which closes one number, of an
//! object that combines [several](super::ObjectName::Closed) tombstones, and of the number that a process is [working
//! on](super::ObjectName::UnderWay).
//!
//! ```text
//!  0 time       u64   seconds since the Unix epoch
//!  8 next pack  u64   packs of the source with lower numbers may have been written
//! 16 runs       u32   of backup numbers
//! 20 zeros      4 bytes
//! ```
//!
//! then the numbers, as runs in ascending order: two varints each, the numbers since the end of the run before, and the
//! length of the run.

use std::ops::Range;

use super::manifest::{NumberRun, decode_numbers, put_numbers};
use super::object::BackupNumber;
use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;

/// Numbers of backups that do not exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closed {
    /// When this was written: seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// Packs of the source with lower numbers may have been written, even if they no longer exist.
    pub next_pack: u64,
    /// The numbers: ascending ranges, neither empty nor adjacent.
    pub backups: Vec<Range<u64>>,
}

impl Closed {
    /// Closes one number.
    #[must_use]
    pub fn one(backup: BackupNumber, next_pack: u64, unix_seconds: u64) -> Self {
        Self {
            unix_seconds,
            next_pack,
            backups: std::iter::once(backup.0..backup.0 + 1).collect(),
        }
    }

    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let runs = self.backups.iter().map(|range| NumberRun {
            first: range.start,
            blocks: range.end - range.start,
        });
        let runs: Vec<_> = runs.collect();
        let mut out = self.unix_seconds.to_le_bytes().to_vec();
        out.extend(self.next_pack.to_le_bytes());
        out.extend((runs.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        put_numbers(&mut out, &runs);
        out
    }

    /// Decodes the chunk's content.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        let (unix_seconds, next_pack) = (rest.u64()?, rest.u64()?);
        let runs = rest.u32()?;
        let zeros: [u8; 4] = rest.take()?;
        if !is_zero(&zeros) {
            return Err(FormatError::Reserved {
                structure: "closed numbers",
            });
        }
        // Each run takes at least two bytes, so a forged number cannot take much memory.
        if runs as usize > bytes.len() {
            return Err(impossible("runs of closed numbers", runs.into()));
        }
        let runs = decode_numbers(&mut rest, runs)?;
        rest.finish()?;
        let backups = runs.iter().map(|run| run.first..run.first + run.blocks);
        Ok(Self {
            unix_seconds,
            next_pack,
            backups: backups.collect(),
        })
    }
}
