//! Popular blocks that no backup needed when prune looked, and that will be removed: the sealed chunk of their
//! object. Backups that begin afterwards treat them as absent.
//!
//! ```text
//!  0 time    u64   when they were condemned: seconds since the Unix epoch
//!  8 state   u8    0 the leases that must end first are not known yet; 1 the list is complete
//!  9 zeros   3 bytes
//! 12 runs    u32   of numbers
//! 16 leases  u32   that must have ended
//! ```
//!
//! then the numbers, as runs in ascending order: two varints each, the numbers since the end of the run
//! before, and the length of the run; then for each lease the source and the number of its holder, a `u64` each.

use super::manifest::{NumberRun, decode_numbers, put_numbers};
use super::object::SourceId;
use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;

/// The lease of a source, as other processes see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseName {
    /// The source.
    pub source: SourceId,
    /// The number of the lease's holder.
    pub holder: u64,
}

/// Popular blocks that will be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condemned {
    /// When they were condemned: seconds since the Unix epoch.
    pub since_unix_seconds: u64,
    /// The blocks' numbers, in ascending order.
    pub numbers: Vec<NumberRun>,
    /// Holders that may have begun a backup before, and so may need the blocks; `None` while they are not
    /// known.
    pub before: Option<Vec<LeaseName>>,
}

impl Condemned {
    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let before = self.before.as_deref().unwrap_or_default();
        let mut out = self.since_unix_seconds.to_le_bytes().to_vec();
        out.extend([u8::from(self.before.is_some()), 0, 0, 0]);
        out.extend((self.numbers.len() as u32).to_le_bytes());
        out.extend((before.len() as u32).to_le_bytes());
        put_numbers(&mut out, &self.numbers);
        for lease in before {
            out.extend(lease.source.0.to_le_bytes());
            out.extend(lease.holder.to_le_bytes());
        }
        out
    }

    /// Decodes the chunk's content.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        let since_unix_seconds = rest.u64()?;
        let [state, zeros @ ..]: [u8; 4] = rest.take()?;
        if !is_zero(&zeros) {
            return Err(FormatError::Reserved {
                structure: "condemned",
            });
        }
        let (runs, leases) = (rest.u32()?, rest.u32()?);
        // Each item takes at least a byte, so a forged number cannot take much memory.
        if runs.max(leases) as usize > bytes.len() {
            return Err(impossible("entries", runs.max(leases).into()));
        }
        let numbers = decode_numbers(&mut rest, runs)?;
        let before = (0..leases).map(|_| {
            Ok(LeaseName {
                source: SourceId(rest.u64()?),
                holder: rest.u64()?,
            })
        });
        let before = before.collect::<Result<Vec<_>, _>>()?;
        rest.finish()?;
        Ok(Self {
            since_unix_seconds,
            numbers,
            before: match (state, before.is_empty()) {
                (0, true) => None,
                (1, _) => Some(before),
                _ => return Err(impossible("state", state.into())),
            },
        })
    }
}
