//! Takes damaged blocks out of packs, so that the next backup with the same content stores it again, and puts intact
//! copies back under their old numbers (B2), which mends the older backups (B6).
//!
//! To do so, it writes the pack again, as its next generation. A block that is taken out is *lost*: the table keeps
//! its fingerprint. A pack that is missing, or whose table is damaged, is known by the copy of its table. Without
//! that copy its content is unknown, so it stays unchanged; so does a missing or truncated pack while none of its
//! blocks can be put back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{ObjectName, Slot, SourceId};
use onefold_index::Key;
use onefold_repository::{KnownDamage, KnownSource, Pack, Repository, RepositoryErrorKind, Writer};
use serde::{Deserialize, Serialize};

use crate::blocks::{BlockReader, Reach, StoredBlock};
use crate::compare::check_group;
use crate::create::Report;
use crate::error::{BackupError, Result};
use crate::verified::Verified;
use crate::verify::verify;

/// The damage in a repository, and how much of it a repair can undo.
#[derive(Debug)]
pub struct RepairPlan {
    /// All damage, and which backups need the damaged blocks.
    pub verified: Verified,
    /// Packs that a repair can work on.
    pub sick: Vec<SickPacks>,
}

/// Packs of a source, or of popular blocks, that are damaged or missing.
#[derive(Debug)]
pub struct SickPacks {
    /// The source, or the store of popular blocks, that owns the packs.
    pub of: KnownSource,
    /// Sources that may have the same contents.
    relatives: Vec<SourceId>,
    /// The store of popular blocks that the source may refer to.
    popular: SourceId,
    packs: BTreeSet<u64>,
    /// The expected result of repairing these packs.
    pub expected: Repaired,
}

/// The result of a repair, or the expected one. Replies include these fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Repaired {
    /// Damaged blocks that are removed, so that the next backup stores them again.
    pub damaged_blocks: u64,
    /// Blocks that are restored from an intact copy.
    pub mended_blocks: u64,
    /// Blocks that are still missing afterwards, including those that are removed.
    pub missing_blocks: u64,
    /// Packs whose table, or its copy, is rebuilt.
    pub tables: u64,
}

impl RepairPlan {
    /// Plans a repair: verifies all backups of a repository and their blocks. Changes nothing.
    ///
    /// # Errors
    ///
    /// If the repository cannot be read at all; any error of `report`.
    pub fn new(repository: &Arc<Repository>, report: Report<'_>) -> Result<Self> {
        let verified = verify(repository, None, true, report)?;
        let all = repository.sources()?;
        let sources = all.disks;
        let mut sick = Vec::new();
        for known in sources.iter().chain(&all.popular) {
            let Some(packs) = verified.packs.get(&known.id) else {
                continue;
            };
            let popular = repository.popular_id(&known.source);
            let mut relatives = vec![known.id, popular];
            if known.source.is_popular() {
                let of_domain = sources.iter();
                let of_domain =
                    of_domain.filter(|disk| repository.popular_id(&disk.source) == popular);
                relatives.extend(of_domain.map(|disk| disk.id));
            }
            relatives.dedup();
            let mut sick_packs = SickPacks {
                of: known.clone(),
                relatives,
                popular,
                packs: packs.clone(),
                expected: Repaired::default(),
            };
            sick_packs.expected = sick_packs.each_patient(repository, &mut |_| Ok(()))?;
            sick.push(sick_packs);
        }
        Ok(Self { verified, sick })
    }
}

/// Repairs packs under the lease of their owner. An interruption at any point leaves the repository as it was, or
/// better.
///
/// # Errors
///
/// Any failure of writing; any error of `report`.
pub fn repair(
    writer: &Writer<'_>,
    repository: &Arc<Repository>,
    sick: &SickPacks,
    level: i32,
    report: Report<'_>,
) -> Result<Repaired> {
    let all = sick.packs.len() as u64;
    let mut treated = BTreeSet::new();
    let repaired = sick.each_patient(repository, &mut |patient| {
        report(treated.len() as u64 + 1, all)?;
        treated.insert(patient.pack.reference().number);
        patient.treat(writer, level)
    })?;
    // The damaged blocks of these packs have been taken out or put back, so forget about them.
    let before = repository.known_damage(sick.of.id)?;
    let mut known = KnownDamage::default();
    known.add_known(&before, |number| !treated.contains(&number));
    repository.remember_damage(sick.of.id, &known, &before, true)?;
    Ok(repaired)
}

impl SickPacks {
    fn each_patient(
        &self,
        repository: &Arc<Repository>,
        each: &mut dyn FnMut(&Patient) -> Result<()>,
    ) -> Result<Repaired> {
        let key = Key::derive(&repository.fingerprint_secret(), 0);
        let there: BTreeMap<u64, u32> = repository.packs(self.of.id)?.into_iter().collect();
        let copied = repository.tables(self.of.id)?;
        let mut repaired = Repaired::default();
        for number in &self.packs {
            let pack = match there.get(number) {
                Some(generation) => repository.pack(self.of.id, *number, *generation),
                None => match copied.iter().rfind(|(copied, _)| copied == number) {
                    Some((_, generation)) => repository.lost_pack(self.of.id, *number, *generation),
                    None => continue,
                },
            };
            let pack = match pack {
                Err(error) if error.is_of_object() => continue,
                opened => opened?,
            };
            let mut patient = Patient {
                slots: pack.slots().to_vec(),
                changed: BTreeSet::new(),
                mended: BTreeMap::new(),
                has_file: there.contains_key(number),
                copy_is_wrong: repository.check_table(self.of.id, &pack).is_err(),
                pack,
                key: key.clone(),
                popular: self.popular,
                blocks: BlockReader::new(Arc::clone(repository), 0),
            };
            patient.examine()?;
            let damaged_blocks = patient.changed.len() as u64;
            patient.find_cures(repository, &self.relatives)?;
            let missing = patient.slots.iter().filter(|slot| slot.lost().is_some());
            repaired.missing_blocks += missing.count() as u64;
            if patient.may_come_back() {
                continue;
            }
            repaired.damaged_blocks += damaged_blocks;
            repaired.mended_blocks += patient.mended.len() as u64;
            repaired.tables += u64::from(patient.has_wrong_table());
            each(&patient)?;
        }
        Ok(repaired)
    }
}

/// A pack under repair.
struct Patient {
    pack: Pack,
    /// Whether the pack itself is there, and not only the copy of its table.
    has_file: bool,
    copy_is_wrong: bool,
    key: Key,
    /// The slots that the repaired pack will have.
    slots: Vec<Slot>,
    /// Blocks whose slots differ from the pack's current ones.
    changed: BTreeSet<usize>,
    /// Blocks to put back, each with the store and number of an intact copy.
    mended: BTreeMap<usize, (SourceId, u64)>,
    popular: SourceId,
    blocks: Arc<BlockReader>,
}

impl Patient {
    /// Whether the table of the pack, or the copy of it, must be written again.
    fn has_wrong_table(&self) -> bool {
        self.copy_is_wrong || self.has_file && self.pack.table_damage().is_some()
    }

    /// Whether the pack is gone or truncated and none of its blocks can be put back. It is left alone, because a new
    /// generation would supersede the intact pack if the user restores that.
    fn may_come_back(&self) -> bool {
        self.pack.is_cut() && self.mended.is_empty()
    }

    fn treat(&self, writer: &Writer<'_>, level: i32) -> Result<()> {
        if !self.changed.is_empty() || self.pack.table_damage().is_some() {
            return self.write_again(writer, level);
        }
        if self.copy_is_wrong {
            Ok(writer.put_table(&self.pack)?)
        } else {
            Ok(())
        }
    }

    /// Finds damaged blocks and marks them as lost.
    fn examine(&mut self) -> Result<()> {
        for group in 0..self.pack.groups() {
            let wrong = match check_group(&self.pack, group, &self.key) {
                Ok((_, wrong)) => wrong,
                Err(error) if error.is_damage() => self.numbers_of(group).collect(),
                Err(error) => return Err(error),
            };
            for n in wrong {
                if let Some(fingerprint) = self.slots[n].stored() {
                    self.slots[n] = Slot::Lost(fingerprint);
                    self.changed.insert(n);
                }
            }
        }
        for n in 0..self.slots.len() {
            if let Slot::Moved { fingerprint, .. } = self.slots[n]
                && !self.may_be_mended_there(n)?
            {
                self.slots[n] = Slot::Lost(fingerprint);
                self.changed.insert(n);
            }
        }
        Ok(())
    }

    /// Whether a moved block is in the popular pack that it was moved to, or could be put back there.
    fn may_be_mended_there(&self, n: usize) -> Result<bool> {
        let Some(to) = self.pack.moved_from(n, 1) else {
            return Ok(true);
        };
        let pack = self.blocks.pack(self.popular, to.number / BLOCKS_PER_PACK);
        let pack = match pack.map_err(BackupError::from) {
            Ok(pack) => pack,
            Err(error) if error.is_damage() => return Ok(false),
            Err(error) => return Err(error),
        };
        let slot = pack.slots().get((to.number % BLOCKS_PER_PACK) as usize);
        let is_any = slot.is_some_and(|slot| slot.is_any());
        Ok(is_any && pack.reference().witness == to.witness)
    }

    fn numbers_of(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        let first = group * BLOCKS_PER_GROUP;
        first..self.slots.len().min(first + BLOCKS_PER_GROUP)
    }

    /// Searches the relatives for intact copies of lost blocks.
    fn find_cures(&mut self, repository: &Arc<Repository>, relatives: &[SourceId]) -> Result<()> {
        let mut wanted: BTreeMap<[u8; 16], Vec<usize>> = BTreeMap::new();
        for (n, slot) in self.slots.iter().enumerate() {
            if let Some(fingerprint) = slot.lost() {
                wanted.entry(fingerprint).or_default().push(n);
            }
        }
        for relative in relatives {
            for (number, generation) in repository.packs(*relative)? {
                if wanted.is_empty() {
                    return Ok(());
                }
                let pack = match repository.pack_or_newer(*relative, number, generation) {
                    Ok(Some(pack)) => pack,
                    Ok(None) => continue,
                    Err(error) if error.kind() == RepositoryErrorKind::Damaged => continue,
                    Err(error) => return Err(error.into()),
                };
                for (slot, number) in pack.slots().iter().zip(number * BLOCKS_PER_PACK..) {
                    let Some(fingerprint) = slot.stored() else {
                        continue;
                    };
                    if !wanted.contains_key(&fingerprint) {
                        continue;
                    }
                    if self.read(*relative, number, fingerprint)?.is_some() {
                        for n in wanted.remove(&fingerprint).unwrap_or_default() {
                            self.slots[n] = Slot::Stored(fingerprint);
                            self.changed.insert(n);
                            self.mended.insert(n, (*relative, number));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a copy that is stored elsewhere; `None` if that copy is damaged, too.
    fn read(&self, store: SourceId, number: u64, fingerprint: [u8; 16]) -> Result<Option<Vec<u8>>> {
        let block_size = self.pack.block_size();
        let block = StoredBlock {
            store,
            number,
            witness: None,
            popular: self.popular,
        };
        let found = self.blocks.find(block, block_size, Reach::Repository);
        let found = match found.map_err(BackupError::from) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(error) if error.is_damage() => return Ok(None),
            Err(error) => return Err(error),
        };
        let (_, content) = found.bytes(1);
        let mut fingerprints = Vec::new();
        self.key
            .fingerprints(content, block_size as usize, &mut fingerprints);
        let is_it = fingerprints
            .first()
            .is_some_and(|first| first.0 == fingerprint);
        Ok(is_it.then(|| content.to_vec()))
    }

    /// Writes the next generation of the pack, and removes the current one.
    fn write_again(&self, writer: &Writer<'_>, level: i32) -> Result<()> {
        let of = writer.source();
        let (pack, generation) = (self.pack.reference(), self.pack.generation());
        let mut new = writer.new_generation(of, &self.pack, generation + 1)?;
        let sealer = new.sealer(level);
        for (group, slots) in self.slots.chunks(BLOCKS_PER_GROUP).enumerate() {
            let number = group as u32;
            let has_changed = self.numbers_of(group).any(|n| self.changed.contains(&n));
            let sealed = if has_changed || !self.pack.has_any(group) {
                sealer.seal(number, &self.content(group)?)?
            } else {
                sealer.seal_again(number, self.pack.open_group(group)?)?
            };
            new.push(&sealed, slots.iter().copied())?;
        }
        new.finish()?;
        let before = ObjectName::Pack {
            source: of.id,
            number: pack.number,
            generation,
        };
        match writer.remove(before) {
            // An old generation with a damaged header stays: the new one counts, and `prune` reports it.
            Err(error) if error.kind() == RepositoryErrorKind::Damaged => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// The blocks that a group of the next generation will have.
    fn content(&self, group: usize) -> Result<Vec<u8>> {
        let there = match self.pack.read_group(group) {
            Ok(bytes) => bytes,
            // The whole group is lost, or will be mended.
            Err(error) if error.kind() == RepositoryErrorKind::Damaged => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let mut there = there.chunks(self.pack.block_size() as usize);
        let mut content = Vec::new();
        for n in self.numbers_of(group) {
            let had = self.pack.slots()[n].stored().and_then(|_| there.next());
            let Some(fingerprint) = self.slots[n].stored() else {
                continue;
            };
            let mended = match self.mended.get(&n) {
                Some((store, number)) => self.read(*store, *number, fingerprint)?,
                None => None,
            };
            let block = mended.as_deref().or(had).ok_or_else(|| {
                BackupError::Temporary(std::io::Error::other("a block was read and is gone"))
            })?;
            content.extend_from_slice(block);
        }
        Ok(content)
    }
}
