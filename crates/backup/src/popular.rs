//! Removes popular blocks that no backup of any source needs.
//!
//! A concurrent backup, or a prune that moves blocks, may already have decided to refer to a block that no manifest
//! needs yet. So blocks are removed in two steps, neither of which affects any backup:
//!
//! - Blocks that no manifest needs are *condemned*: their numbers are written down, and every command that begins
//!   afterwards treats them as absent. Then the leases held at that moment are recorded: only their holders may have
//!   begun before.
//! - When all of those leases have ended, the manifests are read again, and the blocks that none needs are removed.
//!
//! A command takes its source's lease before it reads the list of condemned blocks, so either this prune sees the lease
//! or the command sees the list. Backups write popular packs under the leases of their own sources; only the holder of
//! the popular store's lease removes any. `docs/model.md` describes the model of this protocol.
//!
//! A manifest needs popular blocks by their numbers, or by numbers of its source that were moved to them. An
//! unreferenced popular block stays, too, while two or more needed blocks could be moved to it: `share` stores such
//! blocks.
//!
//! If two hosts stored the same popular content concurrently, the copies with higher numbers are moved to the one
//! with the lowest.

use std::collections::BTreeSet;

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{Condemned, NumberRun, ObjectName, Slot, SourceId};
use onefold_repository::{KnownSource, Repository, RepositoryErrorKind, Writer};

use crate::contents::{ALL, Contents, Store};
use crate::create::Report;
use crate::error::{BackupError, Result};
use crate::moves::{MEMORY_BYTES, Moves, condemned, is_in};
use crate::numbers::{are_in, merged, push};
use crate::prune::{Kept, PruneOptions, PrunePlan, Pruned, stray_tables};

/// The result of pruning popular blocks.
#[derive(Debug, Clone)]
pub struct PrunedPopular {
    /// The plan for all popular blocks, made before anything was removed.
    pub plan: PrunePlan,
    /// Blocks that were removed, or would be if this is only a plan.
    pub freed_blocks: u64,
    /// Bytes by which all packs together shrank.
    pub freed_bytes: u64,
    /// Condemned blocks that stay for now: their grace is not over, or a command that began before may need them. A
    /// later prune removes those that are still unneeded.
    pub waiting_blocks: u64,
}

impl PrunedPopular {
    /// The result of a plan that was not carried out.
    #[must_use]
    pub fn planned(plan: PrunePlan) -> Self {
        Self {
            freed_blocks: plan.freed_blocks,
            freed_bytes: 0,
            waiting_blocks: 0,
            plan,
        }
    }
}

/// Plans the pruning of popular blocks, as if no backup were running.
///
/// # Errors
///
/// If a manifest cannot be read, because then it is not known which blocks are needed.
pub fn plan_popular(
    repository: &Repository,
    popular: &KnownSource,
    options: &PruneOptions,
) -> Result<PrunePlan> {
    let needs = Needs::find(repository, popular)?;
    let kept = needs.and_awaited(repository, popular.id)?;
    let packs = Kept::Only(kept);
    PrunePlan::of_packs(repository, popular.id, packs, Moves::default(), options)
}

/// Condemns popular blocks that no backup needs, and removes condemned blocks as soon as no running backup can
/// need them. Removes nothing before `grace_seconds` after it was condemned.
///
/// # Errors
///
/// As [`plan_popular`]; any failure of writing; any error of `report`.
pub fn prune_popular(
    writer: &Writer<'_>,
    options: &PruneOptions,
    now_unix_seconds: u64,
    grace_seconds: u64,
    report: Report<'_>,
) -> Result<PrunedPopular> {
    let (repository, popular) = (writer.repository(), writer.source());
    let plan = plan_popular(repository, popular, options)?;
    let mut pruned = PrunedPopular {
        plan: plan.clone(),
        freed_blocks: 0,
        freed_bytes: 0,
        waiting_blocks: 0,
    };
    // First the blocks condemned by an earlier prune, then those that became unneeded since.
    let mut next = condemned_before(writer)?;
    let mut plan = Some(plan);
    loop {
        let condemned = match next.take() {
            Some(condemned) => condemned,
            None => {
                // `wasted` reads the packs again, so blocks removed since the plan was made are not listed.
                let Some(plan) = plan.take() else { break };
                Condemned {
                    since_unix_seconds: now_unix_seconds,
                    numbers: wasted(repository, popular, &plan)?,
                    before: None,
                }
            }
        };
        if condemned.numbers.is_empty() {
            break;
        }
        let condemned = condemn(writer, condemned)?;
        let may_go_at = condemned.since_unix_seconds.saturating_add(grace_seconds);
        let before = condemned.before.as_deref().unwrap_or_default();
        if now_unix_seconds < may_go_at || !repository.have_ended(before)? {
            pruned.waiting_blocks = condemned.numbers.iter().map(|run| run.blocks).sum();
            break;
        }
        let freed = remove(writer, &condemned, options, report)?;
        pruned.freed_blocks += freed.plan.freed_blocks;
        pruned.freed_bytes += freed.freed_bytes;
        pruned.plan.damaged.extend(freed.plan.damaged);
    }
    let moved = move_duplicates(writer, options, report)?;
    pruned.freed_blocks += moved.plan.freed_blocks;
    pruned.freed_bytes += moved.freed_bytes;
    pruned.plan.damaged.extend(moved.plan.damaged);
    pruned.plan.damaged.sort();
    pruned.plan.damaged.dedup();
    remove_stray_tables(writer)?;
    Ok(pruned)
}

/// Moves popular blocks to the block with the same content and the lowest number.
fn move_duplicates(
    writer: &Writer<'_>,
    options: &PruneOptions,
    report: Report<'_>,
) -> Result<Pruned> {
    let (repository, popular) = (writer.repository(), writer.source());
    let needed = Needs::find(repository, popular)?.popular;
    let moves = Moves::of_duplicates(repository, popular.id, &needed)?;
    if moves.is_empty() {
        return Ok(Pruned {
            plan: PrunePlan::default(),
            freed_bytes: 0,
        });
    }
    let all = Kept::AllBut(Vec::new());
    let plan = PrunePlan::of_packs(repository, popular.id, all, moves, options)?;
    plan.carry_out(writer, options.level, report)
}

/// Removes copies of tables without a pack. A concurrent writer writes the copy before its pack, so copies stay while
/// another lease is held. Tables are listed before leases: a writer that comes later has copied none of them.
fn remove_stray_tables(writer: &Writer<'_>) -> Result<()> {
    let (repository, popular) = (writer.repository(), writer.source());
    let tables = repository.tables(popular.id)?;
    let tables = stray_tables(repository, popular.id, &[], tables)?;
    let mut held = repository.held_leases()?.into_iter();
    if tables.is_empty() || held.any(|lease| lease.source != popular.id) {
        return Ok(());
    }
    let needed = Needs::find(repository, popular)?.popular;
    for (number, generation) in stray_tables(repository, popular.id, &needed, tables)? {
        writer.remove_table(number, generation)?;
    }
    Ok(())
}

/// The list of condemned blocks, unless it is empty. A damaged one is removed, because no backup uses any popular block
/// while it is there: then nothing is condemned.
fn condemned_before(writer: &Writer<'_>) -> Result<Option<Condemned>> {
    let id = writer.source().id;
    match writer.repository().condemned(id) {
        Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
            // An object that cannot be read is not removed, but may be replaced.
            writer.condemn(&Condemned {
                since_unix_seconds: 0,
                numbers: Vec::new(),
                before: None,
            })?;
            writer.remove(ObjectName::Condemned(id))?;
            Ok(None)
        }
        // A process that was killed here may have left an empty list.
        condemned => Ok(condemned?.filter(|list| !list.numbers.is_empty())),
    }
}

/// The blocks that any source of a domain needs.
struct Needs {
    /// Popular blocks, in ascending order.
    popular: Vec<NumberRun>,
    /// For each source, its own needed blocks, in ascending order.
    own: Vec<(SourceId, Vec<NumberRun>)>,
}

impl Needs {
    fn find(repository: &Repository, popular: &KnownSource) -> Result<Self> {
        let mut needs = Self {
            popular: Vec::new(),
            own: Vec::new(),
        };
        repository.check_places(popular)?;
        let sources = repository.sources()?;
        if let Some(error) = sources.damaged.first() {
            return Err(error.clone().into());
        }
        let mut users: BTreeSet<SourceId> = repository.users(popular.id)?.into_iter().collect();
        for source in sources.disks {
            users.remove(&source.id);
            if repository.popular_id(&source.source) != popular.id {
                continue;
            }
            needs.add_source(repository, &source)?;
        }
        if let Some(missing) = users.first() {
            return Err(repository.missing_source(*missing).into());
        }
        needs.follow(repository, popular.id)?;
        Ok(needs)
    }

    fn add_source(&mut self, repository: &Repository, source: &KnownSource) -> Result<()> {
        repository.check_places(source)?;
        // Tells packs that a concurrent prune removes, once their backups are forgotten, from packs that are lost.
        let before = repository.packs(source.id)?;
        let history = repository.history(source.id)?;
        history.check_complete(source)?;
        let mut own = Vec::new();
        for backup in history.backups {
            if let Some(manifest) = repository.listed_manifest(source.id, backup)? {
                self.popular.extend(manifest.popular);
                own.extend(manifest.own);
            }
            self.popular = merged(std::mem::take(&mut self.popular));
            own = merged(own);
        }
        let moved = moved_to(repository, source.id, &own, &before)?;
        self.popular.extend(moved);
        self.popular = merged(std::mem::take(&mut self.popular));
        self.own.push((source.id, own));
        Ok(())
    }

    /// Adds the popular blocks to which needed popular blocks were moved.
    fn follow(&mut self, repository: &Repository, popular: SourceId) -> Result<()> {
        loop {
            let mut moved = moved_to(repository, popular, &self.popular, &[])?;
            moved.extend_from_slice(&self.popular);
            let all = merged(moved);
            if all == self.popular {
                return Ok(());
            }
            self.popular = all;
        }
    }

    /// The needed popular blocks, and unreferenced ones to which several stored blocks could be moved.
    fn and_awaited(&self, repository: &Repository, popular: SourceId) -> Result<Vec<NumberRun>> {
        let mut awaited = self.popular.clone();
        // While the list cannot be read, no popular block is used, so none is awaited.
        let Some(condemned) = condemned(repository, popular)? else {
            return Ok(awaited);
        };
        let mut store = Store::list(repository, popular, 0)?;
        let own = self.own.iter().zip(1..);
        let own = own.map(|((id, _), index)| Store::list(repository, *id, index));
        let mut own = own.collect::<Result<Vec<_>>>()?;
        let mut contents = Contents::new(store.blocks_max(), MEMORY_BYTES)?;
        let mut is_any = false;
        store.each(repository, &ALL, &mut |found| match found.slot {
            Slot::Stored(fingerprint)
                if !is_in(&self.popular, found.number) && !is_in(&condemned, found.number) =>
            {
                is_any = true;
                contents.add(fingerprint, found.place)
            }
            _ => Ok(()),
        })?;
        if !is_any {
            return Ok(awaited);
        }
        for (store, (_, needed)) in own.iter_mut().zip(&self.own) {
            store.each(repository, needed, &mut |found| match found.slot {
                Slot::Stored(fingerprint) => contents.add_known(fingerprint, found.place),
                _ => Ok(()),
            })?;
        }
        contents.each(|_, places| {
            let popular = places.iter().take_while(|place| place.disk() == 0).count();
            if popular > 0 && places.len() - popular > 1 {
                push(&mut awaited, store.number(places[0]));
            }
            Ok(())
        })?;
        Ok(merged(awaited))
    }
}

/// The popular blocks to which needed blocks of a store were moved. Fails if a pack is missing or unreadable, because
/// it may refer to any popular block. `before` are packs that were listed a moment ago.
fn moved_to(
    repository: &Repository,
    id: SourceId,
    needed: &[NumberRun],
    before: &[(u64, u32)],
) -> Result<Vec<NumberRun>> {
    let mut moved = Vec::new();
    let mut store = Store::list(repository, id, 0)?;
    let was_there = |number: u64| before.iter().any(|(known, _)| *known == number);
    if store.lacks(needed).any(was_there) {
        // A pack that is replaced while its folder is listed may show neither generation.
        store = Store::list(repository, id, 0)?;
    }
    let mut missing = store.lacks(needed).filter(|number| !was_there(*number));
    if let Some(number) = missing.next() {
        let missing = repository.missing_pack(id, number);
        return Err(BackupError::UnknownMoves(missing.to_string()));
    }
    drop(missing);
    store.each(repository, needed, &mut |found| {
        if let Some(number) = found.slot.moved() {
            push(&mut moved, number);
        }
        Ok(())
    })?;
    match store.damaged.first() {
        None => Ok(merged(moved)),
        Some(damaged) => Err(BackupError::UnknownMoves(damaged.clone())),
    }
}

/// The blocks that no backup needs, in packs with enough waste.
fn wasted(
    repository: &Repository,
    popular: &KnownSource,
    plan: &PrunePlan,
) -> Result<Vec<NumberRun>> {
    let mut wasted = Vec::new();
    for (number, generation) in plan.shrinking() {
        // The pack may have been replaced by a smaller generation since the plan was made.
        let pack = repository.pack_or_newer(popular.id, *number, *generation)?;
        let Some(pack) = pack else { continue };
        let both = pack.slots().iter().zip(plan.kept.slots(&pack, *number));
        let both = both.zip(number * BLOCKS_PER_PACK..);
        let gone = both.filter(|((slot, kept), _)| slot.is_any() && !kept.is_any());
        gone.for_each(|(_, number)| push(&mut wasted, number));
    }
    Ok(merged(wasted))
}

/// Writes the list of condemned blocks, then records the leases of writers that may not have seen it.
fn condemn(writer: &Writer<'_>, mut condemned: Condemned) -> Result<Condemned> {
    if condemned.before.is_some() {
        return Ok(condemned);
    }
    writer.condemn(&condemned)?;
    let mut before = writer.repository().held_leases()?;
    before.retain(|lease| lease.source != writer.source().id);
    condemned.before = Some(before);
    writer.condemn(&condemned)?;
    Ok(condemned)
}

/// Removes the condemned blocks that no backup needs.
fn remove(
    writer: &Writer<'_>,
    condemned: &Condemned,
    options: &PruneOptions,
    report: Report<'_>,
) -> Result<Pruned> {
    let (repository, id) = (writer.repository(), writer.source().id);
    let needed = Needs::find(repository, writer.source())?.popular;
    let mut removed = Vec::new();
    for run in &condemned.numbers {
        let numbers = run.first..run.first + run.blocks;
        let are_needed = numbers.clone().zip(are_in(&needed, run.first));
        let unneeded = are_needed.filter(|(_, is_needed)| !is_needed);
        unneeded.for_each(|(number, _)| push(&mut removed, number));
    }
    // These packs had enough waste when their blocks were condemned.
    let all = PruneOptions {
        wasted_percent: 0,
        rewrite_bytes_max: u64::MAX,
        ..*options
    };
    let kept = Kept::AllBut(merged(removed));
    let plan = PrunePlan::of_packs(repository, id, kept, Moves::default(), &all)?;
    let pruned = plan.carry_out(writer, options.level, report)?;
    writer.remove(ObjectName::Condemned(id))?;
    Ok(pruned)
}
