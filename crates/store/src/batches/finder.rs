//! Steps 3 and 4 of a finder's batch ([`crate::dedup`]): calls the index, and logs its answers.
//! Blocks whose fingerprints are not known yet are read.

use onefold_format::batch_page::BatchItem;
use onefold_format::{LayerId, Outcome, Pba, Record};
use onefold_index::sharded::Sharded;
use onefold_index::{Counted, Fingerprint, IndexReader};
use onefold_metadata::{Blocking, Guard, OpenBatch, PbaRun, PbaRuns, Result};
use rustc_hash::FxHashMap;

use super::Batches;
use super::execute::Executed;
use crate::blocks::Fingerprinted;

/// The result of a finder's batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchReport {
    /// Blocks looked up by their fingerprints.
    pub scanned: u64,
    /// Scanned blocks that were the first with their content.
    pub unique: u64,
    /// Scanned blocks whose entries now refer to another block, so that their own is free.
    pub duplicates: u64,
    /// Scanned blocks that were rewritten during the batch.
    pub moved: u64,
    /// Scanned blocks whose bytes differ from the block with the same fingerprint. They are
    /// unshareable.
    pub rejected: u64,
    /// Scanned duplicates in runs that are too short for the volume. They are unshareable.
    pub short_runs: u64,
    /// Scanned blocks that the index had no room for. They are private again.
    pub declined: u64,
    /// Scanned blocks whose fingerprint the volume's hash cache knew: they were not read.
    pub cached: u64,
    /// Blocks that cannot be read. If there are any, the batch was called off, and nothing else is
    /// counted.
    pub unreadable: u64,
    /// Bytes of the blocks looked up.
    pub bytes: u64,
    /// Nothing is left behind the cursor.
    pub at_end: bool,
}

impl Batches {
    /// Steps 3 and 4. `read` has the fingerprints of blocks that were read before.
    pub(super) fn settle_finder(
        &self,
        layer: LayerId,
        batch: &OpenBatch,
        read: &FxHashMap<Pba, Fingerprint>,
    ) -> Result<BatchReport> {
        let index = self.index.executor()?;
        let may_be_repeated = self.may_be_repeated(batch);
        let mut cached = 0;
        let Executed {
            answers,
            unreadable,
        } = self.background.run(|| {
            index.increment(batch, may_be_repeated, &mut |items| {
                let (found, from_cache) = self.fingerprints_or_cached(layer, items, read)?;
                cached = from_cache;
                Ok(found)
            })
        })?;
        if !unreadable.is_empty() {
            self.blocks.list_unreadable(&unreadable)?;
        }
        let marked = self.index.shared().map(Sharded::take_bad);
        if let Some(marked) = marked.filter(|marked| !marked.is_empty()) {
            self.background.run(|| {
                self.blocks
                    .learn_marked(batch.unsettled(), &answers, &marked)
            })?;
        }
        let is_called_off = answers.iter().all(Option::is_none);
        // What was not counted is private again, or free where it was rewritten.
        let answers: Vec<Counted> = answers
            .into_iter()
            .map(|answer| answer.unwrap_or(Counted::Full))
            .collect();
        let report = self.settle_answers(layer, batch, &answers, Some(index.reader()))?;
        Ok(if is_called_off {
            BatchReport {
                unreadable: (unreadable.len() as u64).max(1),
                ..BatchReport::default()
            }
        } else {
            BatchReport { cached, ..report }
        })
    }

    /// Step 4, with an answer for each unsettled item. Bad blocks are only repaired with an index.
    pub(super) fn settle_answers(
        &self,
        layer: LayerId,
        batch: &OpenBatch,
        answers: &[Counted],
        index: Option<&dyn IndexReader>,
    ) -> Result<BatchReport> {
        let scanned = answers.len() as u64;
        let mut report = BatchReport {
            scanned,
            bytes: scanned * self.blocks.block_size(),
            ..BatchReport::default()
        };
        let is_short = self.short_runs(layer, batch.unsettled(), answers)?;
        let mut position = batch.done;
        while let Some(BatchItem { lba, .. }) = batch.items.get(position) {
            let rest = &batch.items[position..];
            let in_segment = |item: &&BatchItem| item.lba.segment() == lba.segment();
            let end = position + rest.iter().take_while(in_segment).count();
            let part = Part {
                layer,
                number: batch.number,
                position,
                items: &batch.items[position..end],
                answers: &answers[position - batch.done..end - batch.done],
                is_short: &is_short[position - batch.done..end - batch.done],
            };
            self.settle_part(index, &part, &mut report)?;
            position = end;
        }
        Ok(report)
    }

    /// Step 3, without the blocks that were read before or are in the volume's hash cache. Also returns how many the cache
    /// has.
    fn fingerprints_or_cached(
        &self,
        layer: LayerId,
        items: &[BatchItem],
        read: &FxHashMap<Pba, Fingerprint>,
    ) -> Result<(Fingerprinted, u64)> {
        let layer = self.journal.maps().layer(layer).ok();
        let cache = layer.and_then(|layer| layer.hash_cache());
        let mut cached = 0;
        let mut known = |item: &BatchItem| {
            let found = cache.as_ref()?.find(item.lba, item.pba);
            cached += u64::from(found.is_some());
            found
        };
        let known: Vec<_> = items
            .iter()
            .map(|item| known(item).or_else(|| read.get(&item.pba).copied()))
            .collect();
        Ok((self.blocks.fingerprint_unknown(items, &known)?, cached))
    }

    /// Marks duplicates in runs shorter than the volume's minimum: their references are dropped again, and
    /// they stay private. Nothing is short in a volume that is gone.
    fn short_runs(
        &self,
        layer: LayerId,
        items: &[BatchItem],
        answers: &[Counted],
    ) -> Result<Vec<bool>> {
        let metadata = self.journal.metadata()?;
        let volume = metadata.catalogue().by_layer(layer);
        let min_run = volume.map_or(1, |(_, volume)| usize::from(volume.settings.min_run));
        drop(metadata);
        let mut is_short = Vec::with_capacity(items.len());
        let both: Vec<(&BatchItem, &Counted)> = items.iter().zip(answers).collect();
        let follows = |one: &(&BatchItem, &Counted), next: &(&BatchItem, &Counted)| {
            let blocks = match (one.1, next.1) {
                (Counted::Shared(one), Counted::Shared(next)) => *one + 1 == *next,
                _ => false,
            };
            blocks && one.0.lba + 1 == next.0.lba
        };
        for run in both.chunk_by(follows) {
            is_short.extend(run.iter().map(|_| run.len() < min_run));
        }
        Ok(is_short)
    }

    /// Step 4 for items of one segment.
    fn settle_part(
        &self,
        index: Option<&dyn IndexReader>,
        part: &Part<'_>,
        report: &mut BatchReport,
    ) -> Result<()> {
        let equal = self.heal_and_compare(index, part)?;
        let (Some(first), Some(last)) = (part.items.first(), part.items.last()) else {
            return Ok(());
        };
        let maps = self.journal.maps();
        // A layer that is gone has no writers left.
        let layer = maps.layer(part.layer).ok();
        // Kept in memory, so that the records do not read it under the lock of the uncommitted
        // state.
        let _leaf = layer
            .as_ref()
            .map(|layer| maps.leaf(layer, first.lba.segment(), Blocking::Yes))
            .transpose()?;
        let _locked = layer
            .as_ref()
            .and_then(|layer| layer.locks.lock(first.lba.0..last.lba.0 + 1, Blocking::Yes));
        let moved: Vec<bool> = {
            let metadata = self.journal.metadata()?;
            let open = metadata.batches().open();
            let items = open.map_or(&[][..], |batch| &batch.items);
            let now = items.iter().skip(part.position).take(part.items.len());
            now.map(|item| item.moved).collect()
        };
        let mut outcomes: Vec<(u32, Outcome)> = Vec::new();
        let mut old_blocks = PbaRuns::new();
        for (n, item) in part.items.iter().enumerate() {
            let moved = moved.get(n).copied().unwrap_or(true);
            let is_equal = equal[n] && !part.is_short[n];
            let outcome = outcome(item.pba, part.answers[n], moved, is_equal);
            match outcome {
                Outcome::Rejected(_) if equal[n] => report.short_runs += 1,
                outcome => count(report, outcome, moved),
            }
            if frees(outcome, item.pba, moved) {
                old_blocks.push(PbaRun {
                    start: item.pba,
                    count: 1,
                });
            }
            match outcomes.last_mut() {
                Some((count, first)) if follows(*first, *count, outcome) => *count += 1,
                _ => outcomes.push((1, outcome)),
            }
        }
        let mut position = part.position as u32;
        let records: Vec<Record> = outcomes
            .into_iter()
            .map(|(count, outcome)| {
                let record = Record::Outcome {
                    layer: part.layer,
                    number: part.number,
                    position,
                    count,
                    outcome,
                };
                position += count;
                record
            })
            .collect();
        self.journal
            .append(&records, &old_blocks, Blocking::Yes, None)
    }
}

/// Items of one segment, and the index's answers to them.
pub(super) struct Part<'a> {
    pub(super) layer: LayerId,
    pub(super) number: u64,
    pub(super) position: usize,
    pub(super) items: &'a [BatchItem],
    pub(super) answers: &'a [Counted],
    /// Whether the item is in a run of duplicates that is too short for the volume.
    pub(super) is_short: &'a [bool],
}

fn outcome(own: Pba, answer: Counted, moved: bool, equal: bool) -> Outcome {
    let moved = moved && Guard::AliasOnlyIfUnmoved.holds();
    let indexed = match answer {
        Counted::Full => return Outcome::Declined,
        Counted::Inserted => own,
        Counted::Shared(indexed) => indexed,
    };
    match (moved, answer) {
        (true, _) if !Guard::DanglingGivesBack.holds() => Outcome::Declined,
        (true, _) => Outcome::Dangling(indexed),
        (false, Counted::Shared(_)) if equal => Outcome::Aliased(indexed),
        (false, Counted::Shared(_)) => Outcome::Rejected(indexed),
        (false, _) => Outcome::Inserted,
    }
}

fn frees(outcome: Outcome, own: Pba, moved: bool) -> bool {
    match outcome {
        Outcome::Aliased(_) => true,
        Outcome::Dangling(indexed) => indexed != own,
        Outcome::Declined => moved,
        Outcome::Inserted | Outcome::Rejected(_) => false,
    }
}

fn count(report: &mut BatchReport, outcome: Outcome, moved: bool) {
    match outcome {
        Outcome::Inserted => report.unique += 1,
        Outcome::Aliased(_) => report.duplicates += 1,
        Outcome::Rejected(_) => report.rejected += 1,
        Outcome::Declined if !moved => report.declined += 1,
        Outcome::Dangling(_) | Outcome::Declined => report.moved += 1,
    }
}

/// Whether an outcome continues a run of `count` that began with `first`.
fn follows(first: Outcome, count: u32, next: Outcome) -> bool {
    let count = u64::from(count);
    match (first, next) {
        (Outcome::Inserted, Outcome::Inserted) | (Outcome::Declined, Outcome::Declined) => true,
        (Outcome::Aliased(first), Outcome::Aliased(next))
        | (Outcome::Dangling(first), Outcome::Dangling(next))
        | (Outcome::Rejected(first), Outcome::Rejected(next)) => first + count == next,
        _ => false,
    }
}
