//! A run of rows on the disk, in the order of their fingerprints, never changed once written.
//!
//! | content | bytes |
//! | --- | --- |
//! | leaves | 1 KiB with [`ROWS_PER_LEAF`] entries each, except the last |
//! | fences | the first fingerprint of each leaf; CRC-32C |
//! | signatures | the last two bytes of each fingerprint, in the order of the rows; CRC-32C |
//!
//! Fences and signatures follow each other right behind the leaves; zeros fill the last page.
//!
//! A leaf is its checksum (4 bytes), the number of its entries (2 bytes), and the entries of 26
//! bytes. Every checksum begins with the pool's id, the run's generation and the leaf's number,
//! counted in KiB from the beginning of the body: a leaf written for another place, or earlier,
//! fails it.
//!
//! A leaf is smaller than a page because of the host's cache: with it, a lookup takes as long as copying the leaf and
//! computing its checksum.

use std::ops::Range;

use onefold_engine::{Blocking, Disk};
use onefold_format::PoolId;

use super::space::{Extent, PAGE_BYTES, pages_for};
use crate::entry::{ENTRY_BYTES, Entry, EntryBytes, fingerprint_of};
use crate::fingerprint::FINGERPRINT_BYTES;
use crate::header::BODY_OFFSET;
use crate::row::PackedRow;
use crate::{Fingerprint, IndexError, Result};

const LEAF_HEADER_BYTES: usize = 6;

const CHECKSUM_BYTES: usize = 4;

/// Bytes of a leaf. It never crosses a page boundary.
pub(super) const LEAF_BYTES: usize = 1024;

const LEAVES_PER_PAGE: u64 = (PAGE_BYTES / LEAF_BYTES) as u64;

/// Entries in a leaf.
pub(super) const ROWS_PER_LEAF: usize = (LEAF_BYTES - LEAF_HEADER_BYTES) / ENTRY_BYTES;

/// Fences around a guessed place. In a segment of 32,768 evenly spread rows a guess is wrong by two
/// fences on average where it is worst, and hardly ever by six.
const GUESSED_FENCES: usize = 12;

/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 2;

/// The part of a fingerprint that is kept in memory. An absent fingerprint has the signature of one
/// of the rows in its leaf with a probability of 39 / 65,536.
pub(super) type Signature = u16;

pub(super) fn signature(fingerprint: Fingerprint) -> Signature {
    let [.., low, high] = fingerprint.0;
    Signature::from_le_bytes([low, high])
}

/// The place of a run, and its expected content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The run's first page.
    pub(super) start: u64,
    /// The number of rows, at least one.
    pub(super) rows: u32,
    /// The generation, which differs between any two runs of one place.
    pub(super) generation: u64,
}

impl Run {
    pub(super) fn leaves(self) -> u64 {
        (self.rows as usize).div_ceil(ROWS_PER_LEAF) as u64
    }

    /// The number of the run's first leaf.
    pub(super) fn first_leaf(self) -> u64 {
        self.start * LEAVES_PER_PAGE
    }

    pub(super) fn extent(self) -> Extent {
        Extent {
            start: self.start,
            pages: pages_of(self.rows as usize),
        }
    }

    fn fences_bytes(self) -> usize {
        self.leaves() as usize * FINGERPRINT_BYTES
    }

    fn signatures_bytes(self) -> usize {
        self.rows as usize * SIGNATURE_BYTES
    }

    /// Where the fences begin in the part, in bytes.
    fn fences_offset(self) -> u64 {
        leaf_offset(self.first_leaf() + self.leaves())
    }
}

/// Where a leaf begins in the part, in bytes.
pub(super) fn leaf_offset(leaf: u64) -> u64 {
    BODY_OFFSET + leaf * LEAF_BYTES as u64
}

/// Pages of a run with this many rows.
pub(super) fn pages_of(rows: usize) -> u64 {
    let leaves = rows.div_ceil(ROWS_PER_LEAF);
    let fences_bytes = leaves * FINGERPRINT_BYTES + CHECKSUM_BYTES;
    let signatures_bytes = rows * SIGNATURE_BYTES + CHECKSUM_BYTES;
    pages_for(leaves * LEAF_BYTES + fences_bytes + signatures_bytes)
}

/// The signatures of a run's rows, in their order, in memory.
pub(super) struct Signatures(Box<[Signature]>);

impl Signatures {
    /// Bytes of the signatures of this many rows.
    pub(super) fn bytes_for(rows: usize) -> usize {
        rows * SIGNATURE_BYTES
    }

    /// Whether a row of a leaf, counted from the run's first, may have this signature.
    pub(super) fn may_have(&self, leaf: usize, wanted: Signature) -> bool {
        let rows = leaf * ROWS_PER_LEAF..((leaf + 1) * ROWS_PER_LEAF).min(self.0.len());
        // Without an early end the compiler compares many at once.
        let is_among = |found, signature: &Signature| found | (*signature == wanted);
        self.0
            .get(rows)
            .is_none_or(|rows| rows.iter().fold(false, is_among))
    }

    pub(super) fn bytes(&self) -> usize {
        Signatures::bytes_for(self.0.len())
    }
}

/// Collects the fences of these entries, and their signatures if the caller keeps them.
pub(super) fn resident(
    entries: &[EntryBytes],
    keeps_signatures: bool,
) -> (Vec<Fingerprint>, Option<Signatures>) {
    let fences = entries.iter().step_by(ROWS_PER_LEAF).map(fingerprint_of);
    let signatures = || Signatures(signatures(entries).collect());
    (fences.collect(), keeps_signatures.then(signatures))
}

fn signatures(entries: &[EntryBytes]) -> impl Iterator<Item = Signature> {
    entries.iter().map(|entry| signature(fingerprint_of(entry)))
}

/// How many of these fences, which are sorted, are not larger than the fingerprint.
///
/// Fingerprints are spread evenly, so the place is guessed to within a few fences, which are all
/// compared: a search by halves waits for memory at each of its steps. Where they are spread
/// otherwise, halves it is.
pub(super) fn fences_up_to(fences: &[Fingerprint], fingerprint: Fingerprint) -> usize {
    let (Some(first), Some(last)) = (fences.first(), fences.last()) else {
        return 0;
    };
    let [first, last, wanted] = [*first, *last, fingerprint].map(Fingerprint::high_bits);
    let part = wanted.saturating_sub(first) as f64 / last.saturating_sub(first).max(1) as f64;
    let guess = ((part * fences.len() as f64) as usize).min(fences.len());
    let low = guess.saturating_sub(GUESSED_FENCES / 2);
    let high = (low + GUESSED_FENCES).min(fences.len());
    let guessed = &fences[low..high];
    let smaller = guessed
        .iter()
        .filter(|fence| **fence <= fingerprint)
        .count();
    let begins_before = smaller > 0 || low == 0;
    let ends_behind = smaller < guessed.len() || high == fences.len();
    if begins_before && ends_behind {
        low + smaller
    } else {
        fences.partition_point(|fence| *fence <= fingerprint)
    }
}

/// The bytes of a run of these entries, which are sorted.
pub(super) fn encode(pool: PoolId, run: Run, entries: &[EntryBytes], into: &mut Vec<u8>) {
    debug_assert_eq!(entries.len(), run.rows as usize);
    into.clear();
    into.reserve(run.extent().bytes() as usize);
    for (leaf, rows) in (run.first_leaf()..).zip(entries.chunks(ROWS_PER_LEAF)) {
        let at = into.len();
        into.extend([0; CHECKSUM_BYTES]);
        into.extend((rows.len() as u16).to_le_bytes());
        into.extend_from_slice(rows.as_flattened());
        into.resize(at + LEAF_BYTES, 0);
        seal_leaf(pool, run, leaf, &mut into[at..]);
    }
    let behind = run.first_leaf() + run.leaves();
    let at = into.len();
    let fences = entries.iter().step_by(ROWS_PER_LEAF);
    into.extend(fences.flat_map(|entry| fingerprint_of(entry).0));
    into.extend(checksum(pool, run, behind, &into[at..]).to_le_bytes());
    let at = into.len();
    into.extend(signatures(entries).flat_map(Signature::to_le_bytes));
    into.extend(checksum(pool, run, behind + 1, &into[at..]).to_le_bytes());
    into.resize(run.extent().bytes() as usize, 0);
}

/// Writes the checksum of a leaf, which begins with room for it.
pub(super) fn seal_leaf(pool: PoolId, run: Run, leaf: u64, bytes: &mut [u8]) {
    let (place, body) = bytes.split_at_mut(CHECKSUM_BYTES);
    place.copy_from_slice(&checksum(pool, run, leaf, body).to_le_bytes());
}

fn checksum(pool: PoolId, run: Run, leaf: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 32];
    place[..16].copy_from_slice(&pool.0);
    place[16..24].copy_from_slice(&run.generation.to_le_bytes());
    place[24..].copy_from_slice(&leaf.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), bytes)
}

/// The entries of a leaf.
pub(super) fn open_leaf(pool: PoolId, run: Run, leaf: u64, bytes: &[u8]) -> Result<&[EntryBytes]> {
    let damaged = || IndexError::Damaged(format!("rows at byte {}", leaf_offset(leaf)));
    let (found, body) = bytes
        .split_first_chunk::<CHECKSUM_BYTES>()
        .ok_or_else(damaged)?;
    if checksum(pool, run, leaf, body) != u32::from_le_bytes(*found) {
        return Err(damaged());
    }
    let (count, entries) = body.split_first_chunk::<2>().ok_or_else(damaged)?;
    let entries = entries.as_chunks().0;
    entries
        .get(..usize::from(u16::from_le_bytes(*count)))
        .ok_or_else(damaged)
}

/// The row of this fingerprint among a leaf's entries.
pub(super) fn find(entries: &[EntryBytes], fingerprint: Fingerprint) -> PackedRow {
    let found = entries.binary_search_by(|entry| entry[..FINGERPRINT_BYTES].cmp(&fingerprint.0));
    found.map_or(PackedRow::NONE, |at| Entry::from_bytes(&entries[at]).row)
}

/// Appends all entries of a run.
pub(super) fn read_entries(
    disk: &dyn Disk,
    pool: PoolId,
    run: Run,
    buffer: &mut Vec<u8>,
    into: &mut Vec<EntryBytes>,
) -> Result<()> {
    let before = into.len();
    read_leaves(disk, pool, run, 0..run.leaves(), buffer, into)?;
    if into.len() - before != run.rows as usize {
        return Err(IndexError::Damaged(format!(
            "{} rows from page {} on, where {} were written",
            into.len() - before,
            run.start,
            run.rows
        )));
    }
    Ok(())
}

/// Appends the entries of some leaves of a run, counted from its first.
pub(super) fn read_leaves(
    disk: &dyn Disk,
    pool: PoolId,
    run: Run,
    leaves: Range<u64>,
    buffer: &mut Vec<u8>,
    into: &mut Vec<EntryBytes>,
) -> Result<()> {
    let first = run.first_leaf() + leaves.start;
    buffer.resize((leaves.end - leaves.start) as usize * LEAF_BYTES, 0);
    disk.read_at(buffer, leaf_offset(first))?;
    for (leaf, bytes) in (first..).zip(buffer.chunks_exact(LEAF_BYTES)) {
        into.extend_from_slice(open_leaf(pool, run, leaf, bytes)?);
    }
    Ok(())
}

/// Reads the fences of a run.
pub(super) fn read_fences(
    disk: &dyn Disk,
    pool: PoolId,
    run: Run,
    blocking: Blocking,
) -> Result<Vec<Fingerprint>> {
    let (offset, len) = (run.fences_offset(), run.fences_bytes());
    let bytes = read_sealed(disk, pool, run, offset, len, 0, blocking)?;
    let fences = bytes.as_chunks().0;
    Ok(fences.iter().map(|fence| Fingerprint(*fence)).collect())
}

/// Reads the signatures of a run.
pub(super) fn read_signatures(
    disk: &dyn Disk,
    pool: PoolId,
    run: Run,
    blocking: Blocking,
) -> Result<Signatures> {
    let offset = run.fences_offset() + (run.fences_bytes() + CHECKSUM_BYTES) as u64;
    let len = run.signatures_bytes();
    let bytes = read_sealed(disk, pool, run, offset, len, 1, blocking)?;
    let signatures = bytes.as_chunks().0.iter();
    let signatures = signatures.map(|signature| Signature::from_le_bytes(*signature));
    Ok(Signatures(signatures.collect()))
}

fn read_sealed(
    disk: &dyn Disk,
    pool: PoolId,
    run: Run,
    offset: u64,
    bytes: usize,
    which: u64,
    blocking: Blocking,
) -> Result<Vec<u8>> {
    let mut read = vec![0; bytes + CHECKSUM_BYTES];
    match blocking {
        Blocking::Yes => disk.read_at(&mut read, offset)?,
        Blocking::No if !disk.try_read_at(&mut read, offset)? => {
            return Err(IndexError::WouldBlock);
        }
        Blocking::No => {}
    }
    let behind = run.first_leaf() + run.leaves();
    let found = read.split_off(bytes);
    if checksum(pool, run, behind + which, &read).to_le_bytes() != *found {
        let what = ["fences", "signatures"][which as usize];
        return Err(IndexError::Damaged(format!("{what} at byte {offset}")));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;
    use onefold_engine::simulated::SimulatedEngine;
    use onefold_engine::{Engine, Part};
    use onefold_format::Pba;
    use proptest::prelude::*;
    use std::sync::Arc;

    const POOL: PoolId = PoolId([3; 16]);

    fn entries(count: usize) -> Vec<EntryBytes> {
        let mut random = fastrand::Rng::with_seed(count as u64);
        let mut entries: Vec<EntryBytes> = (1..=count as u64)
            .map(|n| {
                let row = Row {
                    pba: Pba(n),
                    references: n,
                };
                Entry::new(Fingerprint(random.u128(..).to_le_bytes()), Some(row)).to_bytes()
            })
            .collect();
        entries.sort_unstable();
        entries
    }

    fn written(count: usize) -> (Arc<dyn Disk>, Run, Vec<EntryBytes>) {
        let disk = SimulatedEngine::new(1).create(Part::Index, 0).unwrap();
        let run = Run {
            start: 5,
            rows: count as u32,
            generation: 9,
        };
        let entries = entries(count);
        let mut bytes = Vec::new();
        encode(POOL, run, &entries, &mut bytes);
        assert_eq!(bytes.len() as u64, run.extent().bytes());
        disk.write_at(&bytes, run.extent().offset()).unwrap();
        (disk, run, entries)
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        for count in [1, ROWS_PER_LEAF, ROWS_PER_LEAF + 1, 5000] {
            let (disk, run, entries) = written(count);
            let mut read = Vec::new();
            read_entries(&*disk, POOL, run, &mut Vec::new(), &mut read).unwrap();
            assert!(read == entries);
            let fences = read_fences(&*disk, POOL, run, Blocking::Yes).unwrap();
            let expected = entries.iter().step_by(ROWS_PER_LEAF).map(fingerprint_of);
            assert_eq!(fences, expected.collect::<Vec<_>>());
            let signatures = read_signatures(&*disk, POOL, run, Blocking::Yes).unwrap();
            for (at, entry) in entries.iter().enumerate() {
                let leaf = at / ROWS_PER_LEAF;
                assert!(signatures.may_have(leaf, signature(fingerprint_of(entry))));
            }
            let mut random = fastrand::Rng::with_seed(1);
            let strange = (0..1000).filter(|_| signatures.may_have(0, random.u16(1..)));
            assert!(strange.count() < 20);
        }
    }

    #[test]
    fn every_flipped_byte_is_damage() {
        let (disk, run, _) = written(400);
        let mut bytes = vec![0; run.extent().bytes() as usize];
        let offset = run.extent().offset();
        disk.read_at(&mut bytes, offset).unwrap();
        let used = run.leaves() as usize * LEAF_BYTES
            + run.fences_bytes()
            + run.signatures_bytes()
            + 2 * CHECKSUM_BYTES;
        for at in (0..used).step_by(7).chain(used - 12..used) {
            bytes[at] ^= 1 << (at % 8);
            disk.write_at(&bytes, offset).unwrap();
            let all = read_entries(&*disk, POOL, run, &mut Vec::new(), &mut Vec::new())
                .and_then(|()| read_fences(&*disk, POOL, run, Blocking::Yes))
                .and_then(|_| read_signatures(&*disk, POOL, run, Blocking::Yes));
            assert!(matches!(all, Err(IndexError::Damaged(_))), "{at}");
            bytes[at] ^= 1 << (at % 8);
        }
    }

    #[test]
    fn what_was_written_for_another_run_is_damage() {
        let (disk, run, _) = written(10);
        let others = [
            (PoolId([4; 16]), run),
            (
                POOL,
                Run {
                    generation: 8,
                    ..run
                },
            ),
            (POOL, Run { rows: 11, ..run }),
        ];
        for (pool, run) in others {
            let read = read_entries(&*disk, pool, run, &mut Vec::new(), &mut Vec::new());
            assert!(matches!(read, Err(IndexError::Damaged(_))));
        }
    }

    proptest! {
        #[test]
        fn fences_are_counted_however_they_are_spread(
            mut fences in prop::collection::vec(any::<[u8; 16]>(), 0..200),
            crowd in prop::collection::vec(any::<u8>(), 0..200),
            wanted: [u8; 16],
        ) {
            // A crowd that shares all bytes but two.
            fences.extend(crowd.iter().map(|low| {
                let mut near = [7; 16];
                near[14..].copy_from_slice(&[low / 16, *low]);
                near
            }));
            fences.sort_unstable();
            fences.dedup();
            let fences: Vec<_> = fences.into_iter().map(Fingerprint).collect();
            let wanted = fences.iter().copied().chain([Fingerprint(wanted)]);
            for wanted in wanted.flat_map(|fence| [Some(fence), fence.successor()]).flatten() {
                let expected = fences.partition_point(|fence| *fence <= wanted);
                prop_assert_eq!(fences_up_to(&fences, wanted), expected);
            }
        }
    }

    #[test]
    fn rows_are_found_in_their_leaf() {
        let entries = entries(ROWS_PER_LEAF);
        for bytes in &entries {
            let entry = Entry::from_bytes(bytes);
            assert_eq!(find(&entries, entry.fingerprint), entry.row);
            let near = entry.fingerprint.successor().unwrap();
            assert_eq!(find(&entries, near), PackedRow::NONE);
        }
    }
}
