//! Stage 2: which contents the sources have already, and which are new.
//!
//! As many partitions as memory can hold are compared at a time with the tables of all packs of the sources,
//! and of the popular ones, which are read from front to back. So there is no index: the packs are one.
//!
//! What two or more of the disks have, and not all of their sources, is *popular* and stored once [Zhang14
//! §4.2, §5].

use std::ops::Range;

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{NumberRun, PackReference, Slot, SourceId, Witness, witness_of};
use onefold_repository::{NeededPacks, Pack, Repository, RepositoryErrorKind};
use rustc_hash::FxHashMap;

use crate::error::Result;
use crate::numbers::are_in;
use crate::partitions::Partitions;
use crate::ranks::Ranks;
use crate::scan::{Place, ROW_BYTES, Rows, of_row, partition, row};

/// The address of a block, and what it refers to.
pub(crate) const DECISION_BYTES: usize = 16;

/// What a block with data refers to, unless it is new and the first of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The source's stored block of this number.
    Own(u64),
    /// The popular block of this number.
    Popular(u64),
    /// What the new block at this place of the same disk will be.
    SameAs(Place),
    /// What the new popular block from this place will be.
    SameAsPopular(Place),
}

impl Decision {
    fn encode(self, block: u64) -> [u8; DECISION_BYTES] {
        let (kind, word) = match self {
            Self::Own(number) => (0, number),
            Self::Popular(number) => (1, number),
            Self::SameAs(place) => (2, place.0),
            Self::SameAsPopular(place) => (3, place.0),
        };
        let mut bytes = [0; DECISION_BYTES];
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        bytes[8..].copy_from_slice(&(word | kind << Place::BITS).to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; DECISION_BYTES]) -> (u64, Self) {
        let (mut block, mut word) = ([0; 8], [0; 8]);
        block.copy_from_slice(&bytes[..8]);
        word.copy_from_slice(&bytes[8..]);
        let word = u64::from_le_bytes(word);
        let payload = word & ((1 << Place::BITS) - 1);
        let decision = match word >> Place::BITS {
            0 => Self::Own(payload),
            1 => Self::Popular(payload),
            2 => Self::SameAs(Place(payload)),
            _ => Self::SameAsPopular(Place(payload)),
        };
        (u64::from_le_bytes(block), decision)
    }
}

/// What the sources have, and what they will have.
pub(crate) struct Detected {
    pub(crate) disks: Vec<DetectedDisk>,
    /// New blocks with their fingerprints, of each content the first, by parts of the disks.
    pub(crate) own_rows: Partitions<ROW_BYTES>,
    /// New popular blocks, in the same way.
    pub(crate) popular_rows: Partitions<ROW_BYTES>,
    /// All others with data, by parts of the disks.
    pub(crate) decisions: Partitions<DECISION_BYTES>,
    /// The store of popular blocks.
    pub(crate) popular: SourceId,
    /// The witnesses of all packs that were read or written.
    pub(crate) witnesses: FxHashMap<(SourceId, u64), Witness>,
    /// Packs that cannot be read: what is in them is stored again.
    pub(crate) damaged: Vec<String>,
}

/// What is new of a disk.
#[derive(Default)]
pub(crate) struct DetectedDisk {
    pub(crate) own: Ranks,
    pub(crate) own_blocks: u64,
    /// Those that are read from this disk.
    pub(crate) popular: Ranks,
    pub(crate) popular_blocks: u64,
    first_part: usize,
    parts: usize,
}

/// Blocks of a part of a disk: their decisions fit into memory.
pub(crate) const PART_BLOCKS: u64 = 1 << 20;

/// A content of the partitions in memory that a disk has.
struct Holder {
    fingerprint: [u8; 16],
    disk: usize,
    /// Where its rows begin.
    first_row: usize,
    /// What the disk's source has stored it as.
    own: Option<u64>,
    /// What it had stored it as, and the popular block to which that was moved; it counts once that block is found.
    moved: Option<(u64, u64)>,
    /// What it is stored as for all; known of the first holder.
    popular: Option<u64>,
}

/// A disk of which the rows are.
pub(crate) struct Scanned {
    pub(crate) source: SourceId,
    pub(crate) blocks: u64,
    /// What its source's backups need.
    pub(crate) needed: NeededPacks,
    /// It could not be read to its end, so its rows do not count.
    pub(crate) has_failed: bool,
}

pub(crate) fn detect(
    repository: &Repository,
    popular: SourceId,
    mut rows: Rows,
    scanned: &[Scanned],
    memory_bytes: usize,
) -> Result<Detected> {
    let mut detected = Detected::new(popular, scanned, memory_bytes)?;
    let stores = Stores::list(repository, popular, scanned, &mut detected.damaged)?;
    // A row and its content.
    let rows_max = (memory_bytes / (2 * ROW_BYTES + size_of::<Holder>())) as u64;
    let mut next = 0;
    while next < rows.count() {
        let first = next;
        let mut taken = Vec::new();
        while next < rows.count()
            && (next == first || taken.len() as u64 + rows.records(next) <= rows_max)
        {
            taken.extend(rows.take(next)?);
            next += 1;
        }
        taken.retain(|row| !scanned[of_row(row).1.disk()].has_failed);
        if taken.is_empty() {
            continue;
        }
        // By fingerprint, and then by place: little-endian places do not sort as bytes.
        taken.sort_unstable_by_key(of_row);
        let mut holders = holders(&taken);
        let is_taken = |fingerprint: &[u8; 16]| (first..next).contains(&partition(fingerprint));
        stores.look_up(&mut holders, is_taken, &mut detected)?;
        detected.decide(&taken, &holders)?;
    }
    for disk in &mut detected.disks {
        disk.own_blocks = disk.own.count();
        disk.popular_blocks = disk.popular.count();
    }
    detected.damaged.sort();
    detected.damaged.dedup();
    Ok(detected)
}

/// Packs, by their numbers and generations.
type Packs = Vec<(u64, u32)>;

/// Where contents may be stored already.
struct Stores<'a> {
    repository: &'a Repository,
    /// The packs of each disk's source.
    own: Vec<(SourceId, Packs)>,
    popular: (SourceId, Packs),
    scanned: &'a [Scanned],
    /// Popular blocks that are about to be removed: as if they were not there.
    condemned: Vec<NumberRun>,
}

impl<'a> Stores<'a> {
    fn list(
        repository: &'a Repository,
        popular: SourceId,
        scanned: &'a [Scanned],
        damaged: &mut Vec<String>,
    ) -> Result<Self> {
        let own = scanned.iter().map(|disk| {
            let packs = repository.packs(disk.source)?;
            Ok((disk.source, packs))
        });
        let own = own.collect::<Result<_>>()?;
        let (popular_packs, condemned) = match repository.condemned(popular) {
            // Then any of them may be condemned.
            Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                damaged.push(error.to_string());
                (Vec::new(), Vec::new())
            }
            condemned => {
                let condemned = condemned?.map_or(Vec::new(), |it| it.numbers);
                (repository.packs(popular)?, condemned)
            }
        };
        Ok(Self {
            repository,
            own,
            popular: (popular, popular_packs),
            scanned,
            condemned,
        })
    }

    fn look_up(
        &self,
        holders: &mut [Holder],
        is_taken: impl Fn(&[u8; 16]) -> bool,
        detected: &mut Detected,
    ) -> Result<()> {
        let mut moved_to = FxHashMap::default();
        for (disk, (source, packs)) in self.own.iter().enumerate() {
            self.each_block(*source, packs, detected, |pack, number, slot| {
                let Some(fingerprint) = slot.content() else {
                    return;
                };
                let found = is_taken(&fingerprint).then(|| {
                    holders.binary_search_by(|it| {
                        (&it.fingerprint, it.disk).cmp(&(&fingerprint, disk))
                    })
                });
                let Some(Ok(found)) = found else { return };
                match slot.moved() {
                    // Of several, the first: every backup finds the same.
                    None => holders[found].own = holders[found].own.or(Some(number)),
                    Some(to) => {
                        let witness = witness_of(pack.popular_packs(), to / BLOCKS_PER_PACK);
                        moved_to.insert(to / BLOCKS_PER_PACK, witness);
                        holders[found].moved.get_or_insert((number, to));
                    }
                }
            })?;
        }
        let (popular, packs) = &self.popular;
        self.each_block(*popular, packs, detected, |pack, number, slot| {
            let Some(fingerprint) = slot.content() else {
                return;
            };
            let is_condemned = || are_in(&self.condemned, number).next() == Some(true);
            if !is_taken(&fingerprint) || is_condemned() {
                return;
            }
            let PackReference {
                number: of,
                witness,
            } = pack.reference();
            let is_referred_to = moved_to.get(&of).is_some_and(|it| *it == Some(witness));
            let first = holders.partition_point(|it| it.fingerprint < fingerprint);
            let same = holders[first..].iter_mut();
            for (n, holder) in same
                .take_while(|it| it.fingerprint == fingerprint)
                .enumerate()
            {
                if n == 0 && slot.stored().is_some() {
                    holder.popular.get_or_insert(number);
                }
                if let Some((own, to)) = holder.moved
                    && to == number
                    && is_referred_to
                {
                    holder.own = Some(holder.own.map_or(own, |it| it.min(own)));
                }
            }
        })
    }

    /// The witness of a pack according to the backups that need it.
    fn needed(&self, store: SourceId, number: u64) -> Option<Witness> {
        let disks = self.scanned.iter();
        let mut named = disks.filter_map(|disk| match store == self.popular.0 {
            true => disk.needed.popular.get(&number),
            false if disk.source == store => disk.needed.own.get(&number),
            false => None,
        });
        named.next().copied()
    }

    /// Calls `each` for all numbers of some packs, in order. A pack that cannot be read is left out, and so is one with
    /// another witness than the backups name.
    fn each_block(
        &self,
        source: SourceId,
        packs: &Packs,
        detected: &mut Detected,
        mut each: impl FnMut(&Pack, u64, Slot),
    ) -> Result<()> {
        for (number, generation) in packs {
            let opened = self.repository.pack_or_newer(source, *number, *generation);
            let opened = opened.and_then(|pack| match (&pack, self.needed(source, *number)) {
                (Some(found), Some(witness)) => found.check_witness(witness).map(|()| pack),
                _ => Ok(pack),
            });
            let pack = match opened {
                Ok(Some(pack)) => pack,
                Ok(None) => continue,
                Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                    detected.damaged.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let witness = pack.reference().witness;
            detected.witnesses.insert((source, *number), witness);
            for (slot, number) in pack.slots().iter().zip(number * BLOCKS_PER_PACK..) {
                each(&pack, number, *slot);
            }
        }
        Ok(())
    }
}

fn holders(rows: &[[u8; ROW_BYTES]]) -> Vec<Holder> {
    let mut holders: Vec<Holder> = Vec::new();
    for (first_row, row) in rows.iter().enumerate() {
        let (fingerprint, place) = of_row(row);
        let continues = holders
            .last()
            .is_some_and(|last| last.fingerprint == fingerprint && last.disk == place.disk());
        if !continues {
            holders.push(Holder {
                fingerprint,
                disk: place.disk(),
                first_row,
                own: None,
                moved: None,
                popular: None,
            });
        }
    }
    holders
}

impl Detected {
    fn new(popular: SourceId, scanned: &[Scanned], memory_bytes: usize) -> Result<Self> {
        let mut parts = 0;
        let disks = scanned.iter().map(|disk| {
            let of_disk = disk.blocks.div_ceil(PART_BLOCKS) as usize;
            let first_part = parts;
            parts += of_disk;
            DetectedDisk {
                first_part,
                parts: of_disk,
                ..DetectedDisk::default()
            }
        });
        Ok(Self {
            disks: disks.collect(),
            own_rows: Partitions::new(parts, memory_bytes / 16)?,
            popular_rows: Partitions::new(parts, memory_bytes / 16)?,
            decisions: Partitions::new(parts, memory_bytes / 8)?,
            popular,
            witnesses: FxHashMap::default(),
            damaged: Vec::new(),
        })
    }

    /// The parts of a disk.
    pub(crate) fn parts_of(&self, disk: usize) -> Range<usize> {
        let DetectedDisk {
            first_part, parts, ..
        } = self.disks[disk];
        first_part..first_part + parts
    }

    /// The part of a block.
    fn part(&self, place: Place) -> usize {
        let first = self.disks[place.disk()].first_part;
        first + (place.block() / PART_BLOCKS) as usize
    }

    fn decide(&mut self, rows: &[[u8; ROW_BYTES]], holders: &[Holder]) -> Result<()> {
        let mut holders = holders;
        while let Some(first) = holders.first() {
            let same = holders
                .iter()
                .take_while(|it| it.fingerprint == first.fingerprint);
            let (of_content, rest) = holders.split_at(same.count());
            let end = rest.first().map_or(rows.len(), |next| next.first_row);
            self.decide_content(&rows[..end], of_content)?;
            holders = rest;
        }
        Ok(())
    }

    /// `rows` ends with those of the last holder.
    fn decide_content(&mut self, rows: &[[u8; ROW_BYTES]], holders: &[Holder]) -> Result<()> {
        let popular = holders.first().and_then(|first| first.popular);
        let is_shared = holders.len() > 1;
        let mut new_popular = None;
        for (n, holder) in holders.iter().enumerate() {
            let end = holders.get(n + 1).map_or(rows.len(), |next| next.first_row);
            let mut places = rows[holder.first_row..end].iter().map(|row| of_row(row).1);
            let decision = match (holder.own, popular) {
                (Some(number), _) => Decision::Own(number),
                (None, Some(number)) => Decision::Popular(number),
                (None, None) => {
                    if let Some(first) = new_popular {
                        Decision::SameAsPopular(first)
                    } else {
                        let Some(first) = places.next() else { continue };
                        let (part, row) = (self.part(first), row(holder.fingerprint, first));
                        if is_shared {
                            self.disks[holder.disk].popular.insert(first.block());
                            self.popular_rows.push(part, row)?;
                            new_popular = Some(first);
                            Decision::SameAsPopular(first)
                        } else {
                            self.disks[holder.disk].own.insert(first.block());
                            self.own_rows.push(part, row)?;
                            Decision::SameAs(first)
                        }
                    }
                }
            };
            for place in places {
                let part = self.part(place);
                self.decisions.push(part, decision.encode(place.block()))?;
            }
        }
        Ok(())
    }
}
