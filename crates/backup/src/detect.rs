//! Stage 2: which contents the source has already, and which are new.
//!
//! As many partitions as memory can hold are compared at a time with the tables of all packs of the source,
//! which are read from front to back. So there is no index: the packs are one.

use onefold_format::backup::SourceId;
use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_repository::Repository;

use crate::error::Result;
use crate::partitions::Partitions;
use crate::ranks::Ranks;
use crate::scan::{ROW_BYTES, Scanned, of_row, partition, row};

/// The address of a block, and what it refers to.
pub(crate) const DECISION_BYTES: usize = 16;

/// What a block with data refers to, unless it is new and the first of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The stored block of this number.
    Stored(u64),
    /// What the new block at this address will be.
    SameAs(u64),
}

/// Tells the two kinds apart: numbers and addresses stay below it.
const SAME_AS: u64 = 1 << 63;

/// What the source has, and what it will have.
pub(crate) struct Detected {
    /// New blocks, of each content the first.
    pub(crate) new: Ranks,
    pub(crate) new_blocks: u64,
    /// The same with their fingerprints, by parts of the disk.
    pub(crate) new_rows: Partitions<ROW_BYTES>,
    /// All others with data, by parts of the disk.
    pub(crate) decisions: Partitions<DECISION_BYTES>,
    /// Blocks of a part.
    pub(crate) part_blocks: u64,
}

/// Blocks of a part of the disk: their decisions fit into memory.
const PART_BLOCKS: u64 = 1 << 20;

impl Decision {
    fn encode(self, block: u64) -> [u8; DECISION_BYTES] {
        let word = match self {
            Self::Stored(number) => number,
            Self::SameAs(first) => first | SAME_AS,
        };
        let mut bytes = [0; DECISION_BYTES];
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        bytes[8..].copy_from_slice(&word.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; DECISION_BYTES]) -> (u64, Self) {
        let (mut block, mut word) = ([0; 8], [0; 8]);
        block.copy_from_slice(&bytes[..8]);
        word.copy_from_slice(&bytes[8..]);
        let word = u64::from_le_bytes(word);
        let decision = match word & SAME_AS {
            0 => Self::Stored(word),
            _ => Self::SameAs(word & !SAME_AS),
        };
        (u64::from_le_bytes(block), decision)
    }
}

/// A content of the partitions in memory.
struct Content {
    fingerprint: [u8; 16],
    /// Where its rows begin.
    first_row: usize,
    stored: Option<u64>,
}

pub(crate) fn detect(
    repository: &Repository,
    source: SourceId,
    mut scanned: Scanned,
    disk_blocks: u64,
    memory_bytes: usize,
) -> Result<Detected> {
    let parts = disk_blocks.div_ceil(PART_BLOCKS).max(1) as usize;
    let mut detected = Detected {
        new: Ranks::default(),
        new_blocks: 0,
        new_rows: Partitions::new(parts, memory_bytes / 8)?,
        decisions: Partitions::new(parts, memory_bytes / 8)?,
        part_blocks: PART_BLOCKS,
    };
    let packs = repository.packs(source)?;
    // A row and its content.
    let rows_max = (memory_bytes / (2 * ROW_BYTES + size_of::<Content>())) as u64;
    let mut next = 0;
    while next < scanned.rows.count() {
        let first = next;
        let mut rows = Vec::new();
        while next < scanned.rows.count()
            && (next == first || rows.len() as u64 + scanned.rows.records(next) <= rows_max)
        {
            rows.extend(scanned.rows.take(next)?);
            next += 1;
        }
        if rows.is_empty() {
            continue;
        }
        // By fingerprint, and then by address: little-endian addresses do not sort as bytes.
        rows.sort_unstable_by_key(of_row);
        let mut contents = contents(&rows);
        for (number, generation) in &packs {
            let pack = repository.pack(source, *number, *generation)?;
            let first_number = number * BLOCKS_PER_PACK;
            for (fingerprint, number) in pack.fingerprints().iter().zip(first_number..) {
                let Some(fingerprint) = fingerprint else {
                    continue;
                };
                if !(first..next).contains(&partition(fingerprint)) {
                    continue;
                }
                let found = contents.binary_search_by(|it| it.fingerprint.cmp(fingerprint));
                if let Ok(found) = found {
                    // Of several, the first: every backup finds the same.
                    contents[found].stored.get_or_insert(number);
                }
            }
        }
        decide(&rows, &contents, &mut detected)?;
    }
    detected.new_blocks = detected.new.count();
    Ok(detected)
}

fn contents(rows: &[[u8; ROW_BYTES]]) -> Vec<Content> {
    let mut contents: Vec<Content> = Vec::new();
    for (first_row, row) in rows.iter().enumerate() {
        let (fingerprint, _) = of_row(row);
        if contents
            .last()
            .is_none_or(|last| last.fingerprint != fingerprint)
        {
            contents.push(Content {
                fingerprint,
                first_row,
                stored: None,
            });
        }
    }
    contents
}

fn decide(rows: &[[u8; ROW_BYTES]], contents: &[Content], detected: &mut Detected) -> Result<()> {
    let ends = contents.iter().skip(1).map(|next| next.first_row);
    let ends = ends.chain([rows.len()]);
    for (content, end) in contents.iter().zip(ends) {
        let mut blocks = rows[content.first_row..end].iter().map(|row| of_row(row).1);
        let decision = match content.stored {
            Some(number) => Decision::Stored(number),
            None => {
                let Some(first) = blocks.next() else { continue };
                detected.new.insert(first);
                let part = (first / detected.part_blocks) as usize;
                let row = row(content.fingerprint, first);
                detected.new_rows.push(part, row)?;
                Decision::SameAs(first)
            }
        };
        for block in blocks {
            let part = (block / detected.part_blocks) as usize;
            detected.decisions.push(part, decision.encode(block))?;
        }
    }
    Ok(())
}
