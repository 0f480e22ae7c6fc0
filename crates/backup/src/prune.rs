//! Gives back what no backup of a source needs: exactly, because every manifest has the numbers that it uses
//! [Zhang14 §6.5 has summaries of them, and leaks a little].
//!
//! A pack of which nothing is needed goes. One with enough waste is written again, as its next generation and
//! with the same numbers (B2), before the old one goes. What is decided is decided with the source's lease, so
//! that no backup begins to need meanwhile what is about to go (B5).

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{BackupNumber, NumberRun, ObjectName, Source, SourceId};
use onefold_repository::{Pack, Repository, RepositoryErrorKind, Writer};

use crate::create::Report;
use crate::error::Result;
use crate::publish::merged;

/// How a source is pruned.
#[derive(Debug, Clone, Copy)]
pub struct PruneOptions {
    /// A pack is written again if at least this part of its blocks, in percent, is needed by no backup.
    pub wasted_percent: u8,
    /// The most bytes of packs that are read to be written again; those with the most waste come first.
    pub rewrite_bytes_max: u64,
    /// Of zstd.
    pub level: i32,
}

/// What pruning does to a source.
#[derive(Debug, Clone, Default)]
pub struct PrunePlan {
    /// Packs of which nothing is needed.
    dead: Vec<(u64, u32)>,
    /// Packs to be written again.
    rewritten: Vec<(u64, u32)>,
    /// Generations of packs that newer ones have replaced.
    replaced: Vec<(u64, u32)>,
    /// Recipes of backups that are forgotten.
    recipes: Vec<BackupNumber>,
    needed: Needed,
    /// Blocks that backups need.
    pub needed_blocks: u64,
    /// Blocks that none needs.
    pub wasted_blocks: u64,
    /// Those of them that will be gone.
    pub freed_blocks: u64,
    /// Bytes of all packs.
    pub stored_bytes: u64,
    /// Bytes of packs that are read to be written again.
    pub rewritten_bytes: u64,
    /// Damaged packs, which are left as they are.
    pub damaged: Vec<String>,
}

/// What was done.
#[derive(Debug, Clone)]
pub struct Pruned {
    /// What was planned, with the lease.
    pub plan: PrunePlan,
    /// Bytes of all packs before, less those after.
    pub freed_bytes: u64,
}

impl PrunePlan {
    /// Packs that go.
    #[must_use]
    pub fn dead_packs(&self) -> u64 {
        self.dead.len() as u64
    }

    /// Packs that are written again.
    #[must_use]
    pub fn rewritten_packs(&self) -> u64 {
        self.rewritten.len() as u64
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dead.is_empty()
            && self.rewritten.is_empty()
            && self.replaced.is_empty()
            && self.recipes.is_empty()
    }

    /// What pruning would do now.
    ///
    /// # Errors
    ///
    /// If a manifest cannot be read: nobody knows then what is needed.
    pub fn new(repository: &Repository, source: SourceId, options: &PruneOptions) -> Result<Self> {
        let needed = Needed::by_backups(repository, source)?;
        let mut plan = Self {
            recipes: repository.recipes(source)?,
            ..Self::default()
        };
        plan.recipes
            .retain(|backup| !needed.backups.contains(backup));
        let generations = repository.pack_generations(source)?;
        let packs = repository.packs(source)?;
        plan.replaced = generations;
        plan.replaced.retain(|pack| !packs.contains(pack));
        // Waste, blocks and bytes of the packs that are worth it.
        let mut candidates = Vec::new();
        for (number, generation) in packs {
            let pack = match repository.pack(source, number, generation) {
                Ok(pack) => pack,
                Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                    plan.damaged.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let all = pack.fingerprints().iter().flatten().count() as u64;
            let wasted = all - needed.stored(&pack, number).flatten().count() as u64;
            plan.stored_bytes += pack.stored_bytes();
            plan.needed_blocks += all - wasted;
            plan.wasted_blocks += wasted;
            if wasted == all {
                plan.freed_blocks += wasted;
                plan.dead.push((number, generation));
            } else if wasted > 0 && wasted * 100 >= all * u64::from(options.wasted_percent) {
                candidates.push((wasted, all, pack.stored_bytes(), number, generation));
            }
        }
        candidates.sort_by(|a, b| (b.0 * a.1).cmp(&(a.0 * b.1)));
        for (wasted, _, bytes, number, generation) in candidates {
            if plan.rewritten_bytes + bytes > options.rewrite_bytes_max {
                continue;
            }
            plan.rewritten_bytes += bytes;
            plan.freed_blocks += wasted;
            plan.rewritten.push((number, generation));
        }
        plan.needed = needed;
        Ok(plan)
    }
}

/// Gives back what no backup of the source needs. Interrupted at any moment, all backups are as they were, and
/// pruning again does what is left.
///
/// # Errors
///
/// As [`PrunePlan::new`]; any failure of writing; whatever `report` returns.
pub fn prune(
    writer: &mut Writer<'_>,
    options: &PruneOptions,
    report: Report<'_>,
) -> Result<Pruned> {
    let id = writer.source().id;
    let mut plan = PrunePlan::new(writer.repository(), id, options)?;
    if plan.is_empty() {
        return Ok(Pruned {
            plan,
            freed_bytes: 0,
        });
    }
    // No number is used again, whatever is there in the end.
    let source = Source {
        next_backup: writer.repository().next_backup(writer.source())?.0,
        next_pack: writer.repository().next_pack(writer.source())?,
        ..writer.source().source.clone()
    };
    writer.set_source(source)?;
    let written_bytes = rewrite_all(writer, &mut plan, options.level, report)?;
    let mut freed_bytes = 0;
    for (number, generation) in plan.dead.iter().chain(&plan.replaced) {
        report(plan.rewritten_bytes, plan.rewritten_bytes)?;
        let pack = writer.repository().pack(id, *number, *generation);
        freed_bytes += pack.map_or(0, |pack| pack.stored_bytes());
        writer.remove(ObjectName::Pack {
            source: id,
            number: *number,
            generation: *generation,
        })?;
    }
    for backup in &plan.recipes {
        writer.remove(ObjectName::Recipe(id, *backup))?;
    }
    Ok(Pruned {
        plan,
        freed_bytes: freed_bytes.saturating_sub(written_bytes),
    })
}

/// Writes packs again; those before them are replaced then. Returns the bytes that were written.
fn rewrite_all(
    writer: &Writer<'_>,
    plan: &mut PrunePlan,
    level: i32,
    report: Report<'_>,
) -> Result<u64> {
    let id = writer.source().id;
    let needed = std::mem::take(&mut plan.needed);
    let (mut done, mut written_bytes) = (0, 0);
    for (number, generation) in &plan.rewritten {
        report(done, plan.rewritten_bytes)?;
        let pack = writer.repository().pack(id, *number, *generation)?;
        done += pack.stored_bytes();
        match rewrite(writer, &needed, &pack, (*number, generation + 1), level) {
            Ok(bytes) => {
                written_bytes += bytes;
                plan.replaced.push((*number, *generation));
            }
            Err(error) if error.is_damage() => {
                let kept = needed.stored(&pack, *number).flatten().count();
                plan.freed_blocks -= (pack.fingerprints().iter().flatten().count() - kept) as u64;
                plan.damaged.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(written_bytes)
}

/// Writes a pack again, with what is needed of it. Returns its bytes.
fn rewrite(
    writer: &Writer<'_>,
    needed: &Needed,
    pack: &Pack,
    (number, generation): (u64, u32),
    level: i32,
) -> Result<u64> {
    let kept: Vec<_> = needed.stored(pack, number).collect();
    let block_bytes = pack.block_size() as usize;
    let mut new = writer.new_pack(number, generation, pack.block_size())?;
    let sealer = new.sealer(level);
    let before = pack.fingerprints().chunks(BLOCKS_PER_GROUP);
    for ((group, before), kept) in (0..).zip(before).zip(kept.chunks(BLOCKS_PER_GROUP)) {
        let sealed = if before == kept {
            sealer.seal_again(group, pack.open_group(group as usize)?)?
        } else {
            let blocks = pack.read_group(group as usize)?;
            let stored = before
                .iter()
                .zip(kept)
                .filter(|(before, _)| before.is_some());
            let stored = stored.zip(blocks.chunks(block_bytes));
            let needed = stored.filter(|((_, kept), _)| kept.is_some());
            let needed: Vec<_> = needed.map(|(_, block)| block).collect();
            sealer.seal(group, &needed.concat())?
        };
        new.push(&sealed, kept.iter().copied())?;
    }
    Ok(new.finish()?)
}

/// The numbers that the backups of a source need.
#[derive(Debug, Clone, Default)]
struct Needed {
    backups: Vec<BackupNumber>,
    /// In ascending order.
    runs: Vec<NumberRun>,
}

impl Needed {
    fn by_backups(repository: &Repository, source: SourceId) -> Result<Self> {
        let backups = repository.backups(source)?;
        let mut runs = Vec::new();
        for backup in &backups {
            runs.extend(repository.manifest(source, *backup)?.numbers);
            runs = merged(runs);
        }
        Ok(Self { backups, runs })
    }

    /// The fingerprints of a pack's blocks, of those that are needed.
    fn stored<'a>(
        &'a self,
        pack: &'a Pack,
        number: u64,
    ) -> impl Iterator<Item = Option<[u8; 16]>> + 'a {
        let fingerprints = pack.fingerprints().iter();
        let needed = are_in(&self.runs, number * BLOCKS_PER_PACK);
        let both = fingerprints.zip(needed);
        both.map(|(fingerprint, is_needed)| fingerprint.filter(|_| is_needed))
    }
}

/// For each number from `first` on, whether a run has it.
fn are_in(runs: &[NumberRun], first: u64) -> impl Iterator<Item = bool> {
    let end = |run: &NumberRun| run.first + run.blocks;
    let before = runs.partition_point(|run| end(run) <= first);
    let mut runs = runs[before..].iter().peekable();
    (first..).map(move |number| {
        while runs.next_if(|run| end(run) <= number).is_some() {}
        runs.peek().is_some_and(|run| run.first <= number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_needed_if_a_run_has_it() {
        const NUMBERS: u64 = 10;
        for needed in 0..1_u64 << NUMBERS {
            let is_needed = |number: u64| needed >> number & 1 == 1;
            let mut runs: Vec<NumberRun> = Vec::new();
            for number in (0..NUMBERS).filter(|number| is_needed(*number)) {
                match runs.last_mut() {
                    Some(last) if last.first + last.blocks == number => last.blocks += 1,
                    _ => runs.push(NumberRun {
                        first: number,
                        blocks: 1,
                    }),
                }
            }
            for first in 0..=NUMBERS {
                let found = are_in(&runs, first).take(NUMBERS as usize);
                let expected = (first..).take(NUMBERS as usize).map(is_needed);
                assert!(found.eq(expected), "{needed:b} from {first}");
            }
        }
    }
}
