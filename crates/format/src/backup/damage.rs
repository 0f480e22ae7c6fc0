//! Stored blocks that were found damaged: the sealed chunk of an object. New backups do not refer to
//! them.
//!
//! ```text
//!  0 time   u64   when they were found: seconds since the Unix epoch
//!  8 packs  u32
//! 12 zeros  4 bytes
//! ```
//!
//! then for each pack, in ascending order: its number, a `u64`; its witness, 16 bytes; a `u32`, how many runs; and the
//! damaged numbers, less the pack's first, as runs in ascending order: two varints each, the numbers since the end of the
//! run before, and the length of the run.
//!
//! The witness identifies the pack in all its generations. Damage noted for one pack does not apply to another pack
//! with the same number.

use super::manifest::{NumberRun, PackReference, decode_numbers, put_numbers};
use super::pack::{BLOCKS_PER_PACK, Witness};
use super::recipe::NUMBER_END;
use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;

/// The fewest bytes of a pack in the chunk.
const PACK_BYTES_MIN: usize = 30;

/// Stored blocks that were found damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// When the damage was found: seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// The packs, ascending by number and witness.
    pub packs: Vec<DamagedPack>,
}

/// Damaged blocks of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedPack {
    /// The pack.
    pub pack: PackReference,
    /// The blocks' numbers less the pack's first, in ascending order.
    pub blocks: Vec<NumberRun>,
}

impl Damage {
    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.unix_seconds.to_le_bytes().to_vec();
        out.extend((self.packs.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        for DamagedPack { pack, blocks } in &self.packs {
            out.extend(pack.number.to_le_bytes());
            out.extend(pack.witness.0);
            out.extend((blocks.len() as u32).to_le_bytes());
            put_numbers(&mut out, blocks);
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
        let (unix_seconds, packs) = (rest.u64()?, rest.u32()?);
        let zeros: [u8; 4] = rest.take()?;
        if !is_zero(&zeros) {
            return Err(FormatError::Reserved {
                structure: "damage",
            });
        }
        // A forged number cannot take much memory.
        if packs as usize > bytes.len() / PACK_BYTES_MIN {
            return Err(impossible("packs", packs.into()));
        }
        let mut before = None;
        let packs = (0..packs).map(|_| {
            let pack = PackReference {
                number: rest.u64()?,
                witness: Witness(rest.take()?),
            };
            let this = Some((pack.number, pack.witness));
            if pack.number >= NUMBER_END / BLOCKS_PER_PACK || this <= before {
                return Err(impossible("number of a pack", pack.number));
            }
            before = this;
            let runs = rest.u32()?;
            if runs == 0 || u64::from(runs) > BLOCKS_PER_PACK {
                return Err(impossible("runs of damaged blocks", runs.into()));
            }
            let blocks = decode_numbers(&mut rest, runs)?;
            let end = blocks.last().map_or(0, |run| run.first + run.blocks);
            if end > BLOCKS_PER_PACK {
                Err(impossible("end of damaged blocks", end))
            } else {
                Ok(DamagedPack { pack, blocks })
            }
        });
        let packs = packs.collect::<Result<_, _>>()?;
        rest.finish()?;
        Ok(Self {
            unix_seconds,
            packs,
        })
    }
}
