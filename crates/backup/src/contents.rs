//! Finds where each content of many packs is stored, by partitions on disk: every table is read once, and rows that do
//! not fit into memory are sorted one partition at a time.

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{NumberRun, PackReference, Slot, SourceId, packs_of};
use onefold_repository::{KnownDamage, Repository, RepositoryErrorKind};

use crate::error::{BackupError, Result};
use crate::numbers::are_in;
use crate::partitions::{Partitions, ROW_BYTES, of_row, row};
use crate::records::Place;

/// The least bytes of memory per partition: its buffer and its bookkeeping.
const PARTITION_BYTES_MIN: usize = 4096;

/// Contents of blocks, with the places where each is stored.
pub(crate) struct Contents {
    rows: Partitions<ROW_BYTES>,
    /// A bit per hashed part of each added fingerprint.
    seen: Vec<u64>,
}

impl Contents {
    /// Room for at most `blocks` blocks.
    pub(crate) fn new(blocks: u64, memory_bytes: usize) -> Result<Self> {
        // Sorting a partition takes half of the memory; buffers and bits take an eighth each.
        let partition_blocks = (memory_bytes / 2 / ROW_BYTES).max(1) as u64;
        let most = (memory_bytes / PARTITION_BYTES_MIN).clamp(1, 1 << 16);
        let partitions = blocks.div_ceil(partition_blocks).clamp(1, most as u64);
        let bits = (blocks * 16).clamp(64, memory_bytes.max(64) as u64);
        Ok(Self {
            rows: Partitions::new(partitions as usize, memory_bytes / 8)?,
            seen: vec![0; bits.div_ceil(64) as usize],
        })
    }

    /// Adds a block.
    pub(crate) fn add(&mut self, fingerprint: [u8; 16], place: Place) -> Result<()> {
        let (word, bit) = self.bit(&fingerprint);
        self.seen[word] |= bit;
        self.push(fingerprint, place)
    }

    /// Adds a block if a block with the same content may have been added before.
    pub(crate) fn add_known(&mut self, fingerprint: [u8; 16], place: Place) -> Result<()> {
        let (word, bit) = self.bit(&fingerprint);
        match self.seen[word] & bit {
            0 => Ok(()),
            _ => self.push(fingerprint, place),
        }
    }

    fn push(&mut self, fingerprint: [u8; 16], place: Place) -> Result<()> {
        let first = u16::from_le_bytes([fingerprint[0], fingerprint[1]]);
        let partition = usize::from(first) * self.rows.count() / (1 << 16);
        Ok(self.rows.push(partition, row(fingerprint, place))?)
    }

    /// The bit of a fingerprint; it is taken from other bytes than the partition.
    fn bit(&self, fingerprint: &[u8; 16]) -> (usize, u64) {
        let [.., a, b, c, d, e, f, g, h] = *fingerprint;
        let hash = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let bit = hash % (self.seen.len() as u64 * 64);
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// Calls `each` with the places of every content, in ascending order.
    pub(crate) fn each(
        mut self,
        mut each: impl FnMut([u8; 16], &[Place]) -> Result<()>,
    ) -> Result<()> {
        let mut places = Vec::new();
        for partition in 0..self.rows.count() {
            let mut rows = self.rows.take(partition)?;
            rows.sort_unstable_by_key(of_row);
            for alike in rows.chunk_by(|a, b| a[..16] == b[..16]) {
                places.clear();
                places.extend(alike.iter().map(|row| of_row(row).1));
                each(of_row(&alike[0]).0, &places)?;
            }
        }
        Ok(())
    }
}

/// The packs of a source, or of popular blocks, as one store of [`Contents`].
pub(crate) struct Store {
    pub(crate) id: SourceId,
    /// This store's index among all stores.
    index: usize,
    /// Numbers and generations of the packs, in order.
    packs: Vec<(u64, u32)>,
    /// Witnesses of the packs read.
    witnesses: Vec<PackReference>,
    /// Messages about packs that cannot be read.
    pub(crate) damaged: Vec<String>,
    damage: KnownDamage,
}

/// A slot that [`Store::each`] passes on.
pub(crate) struct StoredSlot {
    pub(crate) number: u64,
    pub(crate) place: Place,
    pub(crate) slot: Slot,
}

impl Store {
    pub(crate) fn list(repository: &Repository, id: SourceId, index: usize) -> Result<Self> {
        if index >= Place::DISKS_MAX {
            let message = format!("a domain has more than {} sources", Place::DISKS_MAX - 1);
            return Err(BackupError::Source(message));
        }
        Ok(Self {
            packs: repository.packs(id)?,
            damage: repository.known_damage(id)?,
            id,
            index,
            witnesses: Vec::new(),
            damaged: Vec::new(),
        })
    }

    /// The most blocks that the packs can have.
    pub(crate) fn blocks_max(&self) -> u64 {
        self.packs.len() as u64 * BLOCKS_PER_PACK
    }

    /// Packs that should have any of these numbers, and are missing.
    pub(crate) fn lacks<'a>(&'a self, numbers: &'a [NumberRun]) -> impl Iterator<Item = u64> + 'a {
        let is_there = |number: &u64| {
            self.packs
                .binary_search_by_key(number, |pack| pack.0)
                .is_ok()
        };
        packs_of(numbers).filter(move |number| !is_there(number))
    }

    /// Calls `each` for every slot, in order, of the packs that have any of these numbers. Skips packs that cannot be
    /// read and blocks known to be damaged.
    pub(crate) fn each(
        &mut self,
        repository: &Repository,
        numbers: &[NumberRun],
        each: &mut dyn FnMut(StoredSlot) -> Result<()>,
    ) -> Result<()> {
        for (n, (number, generation)) in self.packs.iter().enumerate() {
            let first = number * BLOCKS_PER_PACK;
            if !has_any(numbers, first) {
                continue;
            }
            let pack = match repository.pack_or_newer(self.id, *number, *generation) {
                Ok(Some(pack)) => pack,
                Ok(None) => continue,
                Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                    self.damaged.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.witnesses.push(pack.reference());
            let damage = self.damage.of(pack.reference());
            let slots = pack.slots().iter().zip(are_in(numbers, first)).zip(0..);
            for ((slot, is_in), in_pack) in slots {
                if is_in && !damage.contains(in_pack) {
                    each(StoredSlot {
                        number: first + in_pack,
                        place: Place::new(self.index, n as u64 * BLOCKS_PER_PACK + in_pack),
                        slot: *slot,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// The number of a block of this store.
    pub(crate) fn number(&self, place: Place) -> u64 {
        let (pack, in_pack) = (
            place.block() / BLOCKS_PER_PACK,
            place.block() % BLOCKS_PER_PACK,
        );
        self.packs[pack as usize].0 * BLOCKS_PER_PACK + in_pack
    }

    /// The number and generation of the pack of a block of this store.
    pub(crate) fn pack(&self, place: Place) -> (u64, u32) {
        self.packs[(place.block() / BLOCKS_PER_PACK) as usize]
    }

    /// Witnesses of the packs that were read, in ascending order.
    pub(crate) fn into_witnesses(self) -> Vec<PackReference> {
        self.witnesses
    }
}

/// A run that covers all numbers.
pub(crate) const ALL: [NumberRun; 1] = [NumberRun {
    first: 0,
    blocks: u64::MAX,
}];

fn has_any(numbers: &[NumberRun], first: u64) -> bool {
    let next = numbers.partition_point(|run| run.first.saturating_add(run.blocks) <= first);
    let next = numbers.get(next);
    next.is_some_and(|run| run.first < first + BLOCKS_PER_PACK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_content_comes_with_all_of_its_places() {
        for memory_bytes in [1 << 12, 1 << 16, 1 << 22] {
            let mut random = fastrand::Rng::with_seed(1);
            let mut contents = Contents::new(40_000, memory_bytes).unwrap();
            let mut expected: BTreeMap<[u8; 16], Vec<Place>> = BTreeMap::new();
            let fingerprint =
                |content: u64| fastrand::Rng::with_seed(content).u128(..).to_le_bytes();
            for block in 0..20_000 {
                let (fingerprint, place) = (fingerprint(random.u64(..9000)), Place::new(0, block));
                contents.add(fingerprint, place).unwrap();
                expected.entry(fingerprint).or_default().push(place);
            }
            let mut strangers = 0;
            for block in 0..20_000 {
                let (fingerprint, place) =
                    (fingerprint(random.u64(..900_000)), Place::new(1, block));
                contents.add_known(fingerprint, place).unwrap();
                match expected.get_mut(&fingerprint) {
                    Some(places) => places.push(place),
                    None => strangers += 1,
                }
            }
            let mut passed = 0;
            contents
                .each(|fingerprint, places| {
                    match expected.remove(&fingerprint) {
                        Some(known) => assert_eq!(places, known),
                        None => passed += places.len(),
                    }
                    Ok(())
                })
                .unwrap();
            assert!(expected.is_empty());
            // With the least memory nearly all bits are set.
            let most = if memory_bytes > 1 << 12 {
                strangers / 4
            } else {
                strangers
            };
            assert!(passed <= most, "{passed} of {strangers}");
        }
    }
}
