//! Checks whether a backup can be the parent of the next one.

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{BackupNumber, NumberRun, PackReference, PackTable, Slot, SourceId};
use onefold_repository::{DamagedBlocks, KnownDamage, KnownSource, Pack, Repository};

use crate::cache::{StoreCache, TableCache};
use crate::error::{BackupError, Result};
use crate::numbers::{are_in, merged, push};

/// Checks that a backup can serve as a parent: its recipe can be read, and every block that it needs is in the pack
/// that it names and is not known to be damaged. Uses the tables in the host's `cache` for packs that still have the
/// same size, and reads the others.
///
/// # Errors
///
/// `Damaged` or `NotFound`, with the first object found wrong; any failure of reading.
pub fn check_parent(
    repository: &Repository,
    source: &KnownSource,
    parent: BackupNumber,
    cache: Option<&TableCache>,
) -> Result<()> {
    let recipe = repository.recipe(source.id, parent)?;
    let manifest = recipe.manifest();
    for page in 0..manifest.recipe_pages.len() as u64 {
        recipe.page(page)?;
    }
    let of_store = |id, is_popular| Store {
        repository,
        cache,
        id,
        is_popular,
    };
    let own = of_store(source.id, false);
    let needed = Needed {
        packs: manifest.own_packs.clone(),
        numbers: manifest.own.clone(),
    };
    let mut needed = own.check(needed)?;
    needed.packs.extend_from_slice(&manifest.popular_packs);
    needed.numbers.extend_from_slice(&manifest.popular);
    let popular = of_store(repository.popular_id(&source.source), true);
    while !needed.numbers.is_empty() {
        needed.numbers = merged(needed.numbers);
        // Ends, because each round leads to lower numbers.
        needed = popular.check(needed)?;
    }
    Ok(())
}

/// Needed numbers, and the packs that have them.
#[derive(Default)]
struct Needed {
    packs: Vec<PackReference>,
    numbers: Vec<NumberRun>,
}

/// A store of packs.
struct Store<'a> {
    repository: &'a Repository,
    cache: Option<&'a TableCache>,
    id: SourceId,
    is_popular: bool,
}

impl Store<'_> {
    /// Checks that packs have the needed blocks. Returns the popular numbers to which some of them were moved.
    fn check(&self, needed: Needed) -> Result<Needed> {
        let Needed { mut packs, numbers } = needed;
        packs.retain(|pack| needed_of(&numbers, pack.number).next().is_some());
        packs.sort_unstable_by_key(|pack| (pack.number, pack.witness));
        packs.dedup();
        let mut moved = Needed::default();
        if packs.is_empty() {
            return Ok(moved);
        }
        let listed = self.repository.packs(self.id)?;
        let damage = self.repository.known_damage(self.id)?;
        let mut cache = StoreCache::open(self.cache, self.id, &listed);
        for pack in packs {
            // A missing pack is reported by the name of its first generation.
            let place = listed.binary_search_by_key(&pack.number, |entry| entry.0);
            let generation = place.map_or(0, |place| listed[place].1);
            let table = match self.cached(&cache, pack, generation, &numbers, &damage)? {
                Some(table) => table,
                None => self.read(&mut cache, pack, generation, &numbers, &damage)?,
            };
            for block in needed_of(&numbers, pack.number) {
                if let Some(number) = table.slots.get(block).and_then(|slot| slot.moved()) {
                    push(&mut moved.numbers, number);
                }
            }
            moved.packs.extend(table.popular_packs);
        }
        cache.save();
        Ok(moved)
    }

    /// The cached table of a pack, if it proves that the pack has all needed blocks; `None` if the pack must be read.
    fn cached(
        &self,
        cache: &StoreCache<'_>,
        pack: PackReference,
        generation: u32,
        numbers: &[NumberRun],
        damage: &KnownDamage,
    ) -> Result<Option<PackTable>> {
        let Some((table, bytes)) = cache.table(pack, generation) else {
            return Ok(None);
        };
        let wrong = self.find_wrong(&table, pack.number, numbers, damage.of(pack));
        if wrong.is_some() {
            return Ok(None);
        }
        let found = self
            .repository
            .pack_bytes(self.id, pack.number, generation)?;
        Ok((found == Some(bytes)).then_some(table))
    }

    fn read(
        &self,
        cache: &mut StoreCache<'_>,
        reference: PackReference,
        generation: u32,
        numbers: &[NumberRun],
        damage: &KnownDamage,
    ) -> Result<PackTable> {
        let (repository, number) = (self.repository, reference.number);
        let Some(pack) = repository.pack_or_newer(self.id, number, generation)? else {
            return Err(repository.missing_pack(self.id, number).into());
        };
        pack.check_witness(reference.witness)?;
        let damaged = damage.of(reference);
        match self.find_wrong(pack.table(), number, numbers, damaged) {
            None => {
                cache.add(&pack);
                Ok(pack.table().clone())
            }
            Some(block) => Err(error_of(&pack, block, damaged)),
        }
    }

    /// The first needed block that the pack does not have, by its number less the first number of the pack.
    fn find_wrong(
        &self,
        table: &PackTable,
        pack: u64,
        numbers: &[NumberRun],
        damaged: &DamagedBlocks,
    ) -> Option<usize> {
        needed_of(numbers, pack).find(|block| match table.slots.get(*block) {
            Some(Slot::Stored(_)) => damaged.contains(*block as u64),
            Some(Slot::Moved { number, .. }) => {
                self.is_popular && *number >= pack * BLOCKS_PER_PACK + *block as u64
            }
            Some(Slot::Gone | Slot::Lost(_)) | None => true,
        })
    }
}

/// The needed numbers of a pack, less its first number.
fn needed_of(numbers: &[NumberRun], pack: u64) -> impl Iterator<Item = usize> {
    let are_in = are_in(numbers, pack * BLOCKS_PER_PACK);
    let are_in = are_in.take(BLOCKS_PER_PACK as usize).enumerate();
    are_in.filter_map(|(block, is_in)| is_in.then_some(block))
}

/// The error for a block that the pack does not have.
fn error_of(pack: &Pack, block: usize, damaged: &DamagedBlocks) -> BackupError {
    let error = match pack.slots().get(block) {
        Some(Slot::Stored(_)) if damaged.contains(block as u64) => Some(pack.found_damaged(block)),
        Some(Slot::Moved { .. }) => Some(pack.moved_in_circle(block)),
        _ => pack.find(block).err(),
    };
    error.unwrap_or_else(|| pack.found_damaged(block)).into()
}
