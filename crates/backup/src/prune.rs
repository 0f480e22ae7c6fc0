//! Removes stored blocks that no backup needs: exactly those, because every manifest lists the numbers that it uses
//! [Zhang14 §6.5 has summaries instead, and leaks a little].
//!
//! A pack without needed blocks is removed. A pack with enough waste is written again, as its next generation and
//! with the same numbers (B2), before the old generation is removed. A block whose content popular blocks have, too,
//! is waste: the pack then says that it was moved to them (`moves.rs`).
//!
//! Prune holds the source's lease while it decides about the source's own blocks, so no backup can start to refer to a
//! block that is about to be removed (B5). Popular blocks may be needed by concurrent backups of other sources, so they
//! are removed in two steps (`popular.rs`).

use std::collections::BTreeSet;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{BackupNumber, NumberRun, ObjectName, Slot, SourceId, packs_of};
use onefold_repository::{KnownSource, NewPack, Pack, Repository, RepositoryErrorKind, Writer};

use crate::create::Report;
use crate::error::Result;
use crate::moves::Moves;
use crate::numbers::{are_in, merged};

/// Options for pruning a source.
#[derive(Debug, Clone, Copy)]
pub struct PruneOptions {
    /// A pack is written again if at least this percentage of its blocks is needed by no backup.
    pub wasted_percent: u8,
    /// The most bytes of packs to read and write again; packs with the most waste come first.
    pub rewrite_bytes_max: u64,
    /// The compression level for zstd.
    pub level: i32,
}

/// The effect of pruning on a source, or on popular blocks.
#[derive(Debug, Clone, Default)]
pub struct PrunePlan {
    /// Packs without needed blocks.
    dead: Vec<(u64, u32)>,
    /// Packs to write again.
    rewritten: Vec<(u64, u32)>,
    /// Generations of packs that have been replaced by newer ones.
    replaced: Vec<(u64, u32)>,
    /// Copies of tables that no backup needs and whose packs are gone.
    tables: Vec<(u64, u32)>,
    /// Recipes of backups that are forgotten.
    recipes: Vec<BackupNumber>,
    /// Manifests of forgotten backups that are still there, or there again: a removal was interrupted, or they were
    /// restored.
    returned: Vec<BackupNumber>,
    pub(crate) kept: Kept,
    moves: Moves,
    /// Blocks that backups need.
    pub needed_blocks: u64,
    /// Needed blocks that could be moved, because popular blocks have their content.
    pub movable_blocks: u64,
    /// Blocks that no backup needs.
    pub wasted_blocks: u64,
    /// Unneeded and movable blocks that pruning will free.
    pub freed_blocks: u64,
    /// Bytes of all packs.
    pub stored_bytes: u64,
    /// Bytes of packs that are read and written again.
    pub rewritten_bytes: u64,
    /// Damaged packs, which stay unchanged.
    pub damaged: Vec<String>,
    /// Files that have the name of an object to remove, but are not objects of this repository: they stay.
    pub foreign: Vec<String>,
}

/// The result of pruning.
#[derive(Debug, Clone)]
pub struct Pruned {
    /// The plan that was made under the lease and carried out.
    pub plan: PrunePlan,
    /// Bytes by which all packs together shrank.
    pub freed_bytes: u64,
}

/// Which blocks stay.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// Only blocks with these numbers stay.
    Only(Vec<NumberRun>),
    /// All blocks stay except these.
    AllBut(Vec<NumberRun>),
}

impl Default for Kept {
    fn default() -> Self {
        Self::AllBut(Vec::new())
    }
}

impl Kept {
    /// The slots of a pack after pruning.
    pub(crate) fn slots<'a>(
        &'a self,
        pack: &'a Pack,
        number: u64,
    ) -> impl Iterator<Item = Slot> + 'a {
        let (runs, are_kept) = match self {
            Self::Only(runs) => (runs, true),
            Self::AllBut(runs) => (runs, false),
        };
        let listed = are_in(runs, number * BLOCKS_PER_PACK);
        let both = pack.slots().iter().zip(listed);
        both.map(move |(slot, is_listed)| {
            if is_listed == are_kept {
                *slot
            } else {
                Slot::Gone
            }
        })
    }
}

/// Counts the stored blocks among slots.
pub(crate) fn stored(slots: impl IntoIterator<Item = Slot>) -> u64 {
    let slots = slots.into_iter();
    slots.filter(|slot| slot.stored().is_some()).count() as u64
}

impl PrunePlan {
    /// The number of packs that are removed.
    #[must_use]
    pub fn dead_packs(&self) -> u64 {
        self.dead.len() as u64
    }

    /// The number of packs that are written again.
    #[must_use]
    pub fn rewritten_packs(&self) -> u64 {
        self.rewritten.len() as u64
    }

    /// All packs that become smaller or are removed.
    pub(crate) fn shrinking(&self) -> impl Iterator<Item = &(u64, u32)> {
        self.dead.iter().chain(&self.rewritten)
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dead.is_empty()
            && self.rewritten.is_empty()
            && self.replaced.is_empty()
            && self.tables.is_empty()
            && self.recipes.is_empty()
            && self.returned.is_empty()
    }

    /// Plans the pruning of a source.
    ///
    /// # Errors
    ///
    /// If a manifest cannot be read, or is missing although its backup was not forgotten, because then it is not
    /// known which blocks are needed.
    pub fn new(
        repository: &Repository,
        source: &KnownSource,
        options: &PruneOptions,
    ) -> Result<Self> {
        repository.check_places(source)?;
        let history = repository.history(source.id)?;
        history.check_complete(source)?;
        let popular = repository.popular_id(&source.source);
        let (source, backups) = (source.id, history.backups);
        let mut needed = Vec::new();
        for backup in &backups {
            if let Some(manifest) = repository.listed_manifest(source, *backup)? {
                needed.extend(manifest.own);
                needed = merged(needed);
            }
        }
        let tables = repository.tables(source)?;
        let tables = stray_tables(repository, source, &needed, tables)?;
        let moves = Moves::to_popular(repository, popular, source, &needed)?;
        let mut plan = Self::of_packs(repository, source, Kept::Only(needed), moves, options)?;
        plan.tables = tables;
        plan.recipes = repository.recipes(source)?;
        plan.recipes.retain(|backup| !backups.contains(backup));
        plan.returned = history.returned;
        let PrunePlan {
            tables,
            recipes,
            returned,
            foreign,
            ..
        } = &mut plan;
        keep_ours(repository, tables, foreign, |pack| {
            table_name(source, pack.0, pack.1)
        })?;
        keep_ours(repository, recipes, foreign, |backup| {
            ObjectName::Recipe(source, *backup)
        })?;
        keep_ours(repository, returned, foreign, |backup| {
            ObjectName::Manifest(source, *backup)
        })?;
        Ok(plan)
    }

    pub(crate) fn of_packs(
        repository: &Repository,
        store: SourceId,
        kept: Kept,
        moves: Moves,
        options: &PruneOptions,
    ) -> Result<Self> {
        let packs = repository.packs(store)?;
        let mut plan = Self {
            replaced: repository.pack_generations(store)?,
            kept,
            moves,
            ..Self::default()
        };
        plan.replaced.retain(|pack| !packs.contains(pack));
        let PrunePlan {
            replaced, foreign, ..
        } = &mut plan;
        keep_ours(repository, replaced, foreign, |pack| {
            pack_name(store, pack.0, pack.1)
        })?;
        // Packs with enough waste: their freed blocks, all blocks, and bytes.
        let mut candidates = Vec::new();
        for (number, generation) in packs {
            let pack = match repository.pack(store, number, generation) {
                Ok(pack) => pack,
                Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                    plan.damaged.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            // This pack cannot be removed, so it stays until it is repaired.
            if let Some(error) = pack.table_damage()
                && repository
                    .check_removable(pack_name(store, number, generation))
                    .is_err()
            {
                plan.damaged.push(error.to_string());
                continue;
            }
            let slots = plan.slots(&pack, number);
            let is_dead = slots.iter().all(|slot| *slot == Slot::Gone);
            let all = stored(pack.slots().iter().copied());
            let needed = stored(plan.kept.slots(&pack, number));
            let freed = all - stored(slots);
            plan.stored_bytes += pack.stored_bytes();
            plan.needed_blocks += needed;
            plan.wasted_blocks += all - needed;
            plan.movable_blocks += freed - (all - needed);
            if is_dead {
                plan.freed_blocks += freed;
                plan.dead.push((number, generation));
            } else if freed > 0 && freed * 100 >= all * u64::from(options.wasted_percent) {
                candidates.push((freed, all, pack.stored_bytes(), number, generation));
            }
        }
        candidates.sort_by(|a, b| (b.0 * a.1).cmp(&(a.0 * b.1)));
        for (freed, _, bytes, number, generation) in candidates {
            if plan.rewritten_bytes + bytes > options.rewrite_bytes_max {
                continue;
            }
            plan.rewritten_bytes += bytes;
            plan.freed_blocks += freed;
            plan.rewritten.push((number, generation));
        }
        Ok(plan)
    }

    /// The slots of a pack after it is written again, moves included.
    fn slots(&self, pack: &Pack, number: u64) -> Vec<Slot> {
        let kept = self.kept.slots(pack, number);
        self.moves.apply(number * BLOCKS_PER_PACK, kept).collect()
    }

    /// Carries out the plan. `writer` holds the lease of the packs' source.
    pub(crate) fn carry_out(
        mut self,
        writer: &Writer<'_>,
        level: i32,
        report: Report<'_>,
    ) -> Result<Pruned> {
        let id = writer.source().id;
        // Before packs are written again, because a stray copy may belong to the generation that is about to be
        // written.
        for (number, generation) in &self.tables {
            writer.remove_table(*number, *generation)?;
        }
        writer.sync_packs(self.replaced.iter().map(|(number, _)| *number))?;
        // Remove first, to make room for the packs that are written.
        let mut freed_bytes = 0;
        for pack in self.dead.iter().chain(&self.replaced) {
            report(0, self.rewritten_bytes)?;
            let opened = writer.repository().pack(id, pack.0, pack.1);
            freed_bytes += opened.map_or(0, |pack| pack.stored_bytes());
            writer.remove(pack_name(id, pack.0, pack.1))?;
        }
        for backup in &self.recipes {
            writer.remove(ObjectName::Recipe(id, *backup))?;
        }
        for backup in &self.returned {
            writer.remove(ObjectName::Manifest(id, *backup))?;
        }
        let rewritten = rewrite_all(writer, &mut self, level, report)?;
        Ok(Pruned {
            plan: self,
            freed_bytes: freed_bytes + rewritten,
        })
    }
}

fn pack_name(source: SourceId, number: u64, generation: u32) -> ObjectName {
    ObjectName::Pack {
        source,
        number,
        generation,
    }
}

fn table_name(source: SourceId, number: u64, generation: u32) -> ObjectName {
    ObjectName::Table {
        source,
        number,
        generation,
    }
}

/// Copies of tables whose packs are gone, except the only remains of packs that backups need.
pub(crate) fn stray_tables(
    repository: &Repository,
    store: SourceId,
    needed: &[NumberRun],
    mut tables: Vec<(u64, u32)>,
) -> Result<Vec<(u64, u32)>> {
    let packs = repository.pack_generations(store)?;
    let needed: BTreeSet<u64> = packs_of(needed).collect();
    tables.retain(|table| {
        let is_there = |number| {
            packs
                .binary_search_by_key(&number, |(number, _)| *number)
                .is_ok()
        };
        packs.binary_search(table).is_err() && (is_there(table.0) || !needed.contains(&table.0))
    });
    Ok(tables)
}

/// Drops from `objects` files that are not objects of this repository, and adds their names to `foreign`.
fn keep_ours<T>(
    repository: &Repository,
    objects: &mut Vec<T>,
    foreign: &mut Vec<String>,
    name: impl Fn(&T) -> ObjectName,
) -> Result<()> {
    let mut failed = None;
    objects.retain(|object| match repository.check_removable(name(object)) {
        Ok(()) => true,
        Err(error) if error.kind() == RepositoryErrorKind::NotFound => false,
        Err(error) if error.is_of_object() => {
            foreign.push(error.to_string());
            false
        }
        Err(error) => {
            failed = Some(error);
            false
        }
    });
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Removes stored blocks that no backup of the source needs. If it is interrupted at any point, all backups stay as
/// they were, and the next prune continues.
///
/// # Errors
///
/// As [`PrunePlan::new`]; any failure of writing; any error of `report`.
pub fn prune(writer: &Writer<'_>, options: &PruneOptions, report: Report<'_>) -> Result<Pruned> {
    let (repository, source) = (writer.repository(), writer.source());
    let plan = PrunePlan::new(repository, source, options)?;
    if plan.is_empty() {
        return Ok(Pruned {
            plan,
            freed_bytes: 0,
        });
    }
    // Record used numbers first, so that no number is used again.
    let needed = repository.needed_packs(source.id)?;
    writer.fold(repository.next_pack(source, &needed)?)?;
    plan.carry_out(writer, options.level, report)
}

/// Writes packs again one after the other, and removes their old generations. Returns by how many bytes they shrank.
fn rewrite_all(
    writer: &Writer<'_>,
    plan: &mut PrunePlan,
    level: i32,
    report: Report<'_>,
) -> Result<u64> {
    let id = writer.source().id;
    let (mut done, mut freed_bytes) = (0, 0);
    if !plan.rewritten.is_empty() && plan.movable_blocks > 0 {
        writer.begin_to_use(plan.moves.packs.iter().map(|pack| pack.number))?;
    }
    for (number, generation) in &plan.rewritten {
        report(done, plan.rewritten_bytes)?;
        let pack = writer.repository().pack(id, *number, *generation)?;
        done += pack.stored_bytes();
        let slots = plan.slots(&pack, *number);
        let new = writer.new_generation(writer.source(), &pack, generation + 1)?;
        match rewrite(new, &pack, &slots, &plan.moves, level) {
            Ok(bytes) => {
                report(done, plan.rewritten_bytes)?;
                freed_bytes += pack.stored_bytes().saturating_sub(bytes);
                writer.remove(pack_name(id, *number, *generation))?;
            }
            Err(error) if error.is_damage() => {
                plan.freed_blocks -= stored(pack.slots().iter().copied()) - stored(slots);
                plan.damaged.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(freed_bytes)
}

/// Writes the next generation of a pack, with the slots that stay. Returns its bytes.
fn rewrite(
    mut new: NewPack,
    pack: &Pack,
    slots: &[Slot],
    moves: &Moves,
    level: i32,
) -> Result<u64> {
    let block_bytes = pack.block_size() as usize;
    new.refer_to(&moves.packs_of(slots));
    let sealer = new.sealer(level);
    let before = pack.slots().chunks(BLOCKS_PER_GROUP);
    for ((group, before), slots) in (0..).zip(before).zip(slots.chunks(BLOCKS_PER_GROUP)) {
        let sealed = if stored(slots.iter().copied()) == 0 {
            sealer.seal(group, &[])?
        } else if before == slots {
            sealer.seal_again(group, pack.open_group(group as usize)?)?
        } else {
            let blocks = pack.read_group(group as usize)?;
            let stored = before.iter().zip(slots);
            let stored = stored.filter(|(before, _)| before.stored().is_some());
            let kept = stored.zip(blocks.chunks(block_bytes));
            let kept = kept.filter(|((_, slot), _)| slot.stored().is_some());
            let kept: Vec<_> = kept.map(|(_, block)| block).collect();
            sealer.seal(group, &kept.concat())?
        };
        new.push(&sealed, slots.iter().copied())?;
    }
    Ok(new.finish()?)
}
