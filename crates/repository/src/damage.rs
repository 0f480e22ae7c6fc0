//! The record of stored blocks that were found damaged. No new backup refers to them.
//!
//! A verification holds no lease, so each writes an object of its own. The union of all objects counts.

use std::collections::BTreeMap;

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{
    Damage, DamagedPack, NumberRun, ObjectName, PackReference, SourceId, Witness,
};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::host::now_unix_seconds;
use crate::layout::hexadecimal;
use crate::objects::Objects;

/// Blocks of a source, or popular blocks, that were found damaged.
#[derive(Debug, Clone, Default)]
pub struct KnownDamage {
    packs: BTreeMap<(u64, Witness), Box<DamagedBlocks>>,
    /// The objects that were read.
    objects: Vec<ObjectName>,
    /// The objects that cannot be read.
    wrong: Vec<(ObjectName, RepositoryError)>,
}

/// Words in a bitmap of the blocks of a pack.
const WORDS: usize = BLOCKS_PER_PACK as usize / 64;

/// A bitmap of the damaged blocks of a pack, by their numbers less the pack's first: always 2 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedBlocks([u64; WORDS]);

impl DamagedBlocks {
    const NONE: Self = Self([0; WORDS]);

    /// Whether a block is damaged.
    #[must_use]
    pub fn contains(&self, block: u64) -> bool {
        let word = self.0.get(block as usize / 64);
        word.is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// All damaged blocks, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..BLOCKS_PER_PACK).filter(|block| self.contains(*block))
    }

    fn insert(&mut self, block: u64) {
        if let Some(word) = self.0.get_mut(block as usize / 64) {
            *word |= 1 << (block % 64);
        }
    }
}

impl KnownDamage {
    /// The damaged blocks of a pack.
    #[must_use]
    pub fn of(&self, pack: PackReference) -> &DamagedBlocks {
        static NONE: DamagedBlocks = DamagedBlocks::NONE;
        let blocks = self.packs.get(&(pack.number, pack.witness));
        blocks.map_or(&NONE, Box::as_ref)
    }

    /// The errors of objects that cannot be read.
    pub fn wrong(&self) -> impl Iterator<Item = &RepositoryError> {
        self.wrong.iter().map(|(_, error)| error)
    }

    /// Adds a block of a pack, by its number less the pack's first.
    pub fn add(&mut self, pack: PackReference, block: u64) {
        let blocks = self.packs.entry((pack.number, pack.witness));
        let blocks = blocks.or_insert_with(|| Box::new(DamagedBlocks::NONE));
        blocks.insert(block);
    }

    /// Adds the known damage of the packs whose numbers are wanted.
    pub fn add_known(&mut self, known: &Self, is_wanted: impl Fn(u64) -> bool) {
        let wanted = known.packs.iter().filter(|(pack, _)| is_wanted(pack.0));
        for ((number, witness), blocks) in wanted {
            let (number, witness) = (*number, *witness);
            let pack = PackReference { number, witness };
            blocks.iter().for_each(|block| self.add(pack, block));
        }
    }

    fn add_all(&mut self, damage: &Damage) {
        for DamagedPack { pack, blocks } in &damage.packs {
            for run in blocks {
                (run.first..run.first + run.blocks).for_each(|block| self.add(*pack, block));
            }
        }
    }

    fn encoded(&self) -> Damage {
        let packs = self.packs.iter().map(|((number, witness), blocks)| {
            let mut runs: Vec<NumberRun> = Vec::new();
            for block in blocks.iter() {
                match runs.last_mut() {
                    Some(last) if last.first + last.blocks == block => last.blocks += 1,
                    _ => runs.push(NumberRun {
                        first: block,
                        blocks: 1,
                    }),
                }
            }
            DamagedPack {
                pack: PackReference {
                    number: *number,
                    witness: *witness,
                },
                blocks: runs,
            }
        });
        Damage {
            unix_seconds: now_unix_seconds(),
            packs: packs.collect(),
        }
    }
}

/// The record of the damage of a source, or of popular blocks.
pub(crate) struct DamageRecord<'a> {
    objects: &'a Objects,
    source: SourceId,
}

impl<'a> DamageRecord<'a> {
    pub(crate) fn of(objects: &'a Objects, source: SourceId) -> Self {
        Self { objects, source }
    }

    /// The recorded damage. Errors that affect a single object are in [`KnownDamage::wrong`].
    pub(crate) fn read(&self) -> Result<KnownDamage> {
        let mut known = KnownDamage::default();
        for name in self.names()? {
            let read = self.objects.read_sealed(name).and_then(|content| {
                Damage::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
            });
            match read {
                Ok(damage) => {
                    known.add_all(&damage);
                    known.objects.push(name);
                }
                // A concurrent verification has replaced it.
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
                Err(error) if error.is_of_object() => known.wrong.push((name, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(known)
    }

    /// The objects of the record.
    pub(crate) fn names(&self) -> Result<Vec<ObjectName>> {
        let names = self.objects.names(&ObjectName::damage(self.source))?;
        let finders = names.iter().filter_map(|name| hexadecimal(name));
        Ok(finders
            .map(|finder| ObjectName::Damage(self.source, finder))
            .collect())
    }

    /// Records `found` as the damage, and removes the objects that were read into `before`. Objects that
    /// other verifications have written since then stay. Unreadable objects are removed, too, if `found` covers all
    /// packs.
    pub(crate) fn replace(
        &self,
        found: &KnownDamage,
        before: &KnownDamage,
        is_of_all: bool,
    ) -> Result<()> {
        let wrong = before.wrong.iter().map(|(name, _)| *name);
        let wrong: Vec<_> = wrong.filter(|_| is_of_all).collect();
        if before.packs == found.packs && before.objects.len() < 2 && wrong.is_empty() {
            return Ok(());
        }
        if !found.packs.is_empty() {
            let finder = random_number();
            let finder = finder.map_err(|e| RepositoryError::io("no random numbers", &e))?;
            let name = ObjectName::Damage(self.source, finder);
            let content = self.objects.sealed(name, found.encoded().encode())?;
            self.objects.put(name, &content)?;
        }
        for name in before.objects.iter().copied().chain(wrong) {
            match self.objects.remove(name) {
                // A concurrent verification has removed it; or it is not an object of this repository.
                Err(error) if error.is_of_object() => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}
