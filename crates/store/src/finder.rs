//! The finder: publishes private blocks in the index, and lets equal ones share one block
//! ([DEDIS §4.3]).
//!
//! 1. mark: under the blocks' locks their entries become shared, announced by a record; from here
//!    on no write goes to these blocks (P1)
//! 2. commit: content, owner's record and announcement are durable (P2)
//! 3. read the blocks back, fingerprint them, count all of them in the index by one call (P3)
//! 4. under the locks again, log what became of each: *inserted*, *aliased*, *dangling*,
//!    *rejected* or *declined* (see [`Outcome`])
//!
//! A crash after 1 leaves an open batch; it is settled by doing 3 and 4 again under the same
//! number, for which the index gives its original answers (P4). One batch is open at a time in a
//! pool, so nothing that a batch has to settle can be touched by another.
//!
//! A block that cannot be read is known to be bad from then on, and the batch is called off: the
//! index is asked to count nothing under its number, and all of its blocks are private again. Only
//! where it has counted them before does it give those answers instead. No batch takes a block that
//! is known to be bad, and no entry comes to name one: the finder heals it first (`repair.rs`).

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use onefold_format::batch_page::BatchItem;
use onefold_format::entry::State;
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{
    BatchKind, DomainId, Entry, LayerId, Lba, Outcome, Pba, PublishRun, Record, SegmentIndex,
};
use onefold_index::{Counted, Fingerprint, FingerprintIndex, Key};

use crate::blocking::Blocking;
use crate::error::{Result, StoreError};
use crate::guard::Guard;
use crate::index::STREAM;
use crate::journal::PAGES_FOR_FINDER;
use crate::metadata::Layer;
use crate::metadata::MetadataState;
use crate::metadata::OpenBatch;
use crate::metadata::bits;
use crate::metadata::heat::{self, SlotBits};
use crate::metadata::{PbaRun, PbaRuns};
use crate::pool::Pool;
use crate::store::Store;
use crate::volume::Volume;

/// Bytes read back and hashed at a time: enough to hash many blocks at once, and so little that the
/// processor's nearest cache still holds them, and that a kernel which is not preempted in the
/// middle of a system call holds up nobody for long.
const READ_BYTES: usize = 256 << 10;

/// Which private blocks a batch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// Every one.
    All,
    /// Those that were not written for as many looks as the volume's rounds ([DEDIS §4.5]). Each
    /// pass over the whole volume is one look.
    Cold,
}

/// What a finder's batch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchReport {
    /// Blocks looked up by their fingerprints.
    pub looked_at: u64,
    /// Of these, the first of their content.
    pub unique: u64,
    /// Of these, those that name another block now, so that theirs is free.
    pub duplicates: u64,
    /// Of these, rewritten meanwhile.
    pub moved: u64,
    /// Of these, those whose bytes differ from the block with the same fingerprint. They stay
    /// private for good.
    pub rejected: u64,
    /// Of these, those that the index had no room for. They are private again.
    pub declined: u64,
    /// Of these, those whose fingerprint the volume's hash cache knew: they were not read.
    pub cached: u64,
    /// Blocks that cannot be read. If there are any, the batch was called off, and nothing else is
    /// counted.
    pub unreadable: u64,
    /// Bytes of the blocks looked up.
    pub bytes: u64,
    /// Nothing is left behind the cursor.
    pub at_end: bool,
}

impl Store {
    /// Publishes up to 16,384 private blocks of `volume`, from `cursor` on, and moves the cursor.
    /// Settles first what a crash or an error left open. Publishes nothing while the pool shrinks.
    ///
    /// # Errors
    ///
    /// `Gone` once the volume is deleted; `Busy` while the index is being counted again; `Damaged`
    /// where it cannot be used; `NoSpace` where the host has no room for metadata or for the index; those of
    /// the disk. What was announced by then is settled by the next call.
    pub fn dedup_batch(
        &self,
        volume: &Volume,
        cursor: &mut Lba,
        ready: Ready,
    ) -> Result<BatchReport> {
        let pool = &self.pool;
        let _job = pool.job()?;
        pool.journal.check_writable()?;
        let index = pool.index.ready()?;
        pool.settle_open_batch()?;
        volume.check_has_blocks()?;
        let start = *cursor;
        if pool.is_shrinking()? {
            // A copy would only be aliased to the block that it was made to empty.
            return Ok(BatchReport {
                at_end: true,
                ..BatchReport::default()
            });
        }
        pool.journal.secure_pages(PAGES_FOR_FINDER, Blocking::Yes)?;
        // Where the index has room for one batch only, it is the collector's.
        index.secure(&[BATCH_ITEMS_MAX as usize; 2])?;
        let announced = pool.announce(volume, cursor, ready);
        let at_end = announced.map_err(|e| {
            e.during(format_args!(
                "looking for duplicates in '{}'",
                volume.name()
            ))
        })?;
        let report = pool.settle_open_batch()?;
        if report.unreadable > 0 {
            *cursor = start;
            return Ok(report);
        }
        Ok(BatchReport { at_end, ..report })
    }
}

impl Pool {
    /// Settles the batch that is open, if one is. The caller holds the job lock.
    pub(crate) fn settle_open_batch(&self) -> Result<BatchReport> {
        let open = self.journal.metadata()?.batches().open().cloned();
        let Some(batch) = open else {
            return Ok(BatchReport::default());
        };
        if Guard::IntentBeforeCall.holds() {
            self.journal.commit_in_background()?;
        }
        match batch.kind {
            BatchKind::Finder(layer) => self.settle_finder(layer, &batch),
            BatchKind::Collector => self
                .settle_collector(&batch)
                .map(|_| BatchReport::default()),
        }
    }

    /// Step 1. Returns whether the volume's end was reached.
    fn announce(&self, volume: &Volume, cursor: &mut Lba, ready: Ready) -> Result<bool> {
        let layer = &volume.layer();
        let rounds = volume.options().rounds;
        let number = self.journal.metadata()?.batches().next_number();
        let sharable = self.journal.sharable(&layer.space_limits)?;
        if sharable == 0 {
            return Ok(true);
        }
        let mut room = u64::from(BATCH_ITEMS_MAX).min(sharable);
        while room > 0 {
            let next = self
                .maps()
                .next_publishable_segment(layer, cursor.segment())?;
            let Some(segment) = next else { return Ok(true) };
            let first = segment.first().max(*cursor);
            let leaf = self.maps().leaf(layer, segment, Blocking::Yes)?;
            let wanted = match ready {
                Ready::All => [u64::MAX; 8],
                // A segment's rest, after a batch was full, was looked at with its start.
                Ready::Cold if first == segment.first() => leaf.heat.look(rounds),
                Ready::Cold => leaf.heat.still_cold(rounds),
            };
            let taken =
                self.announce_in_segment((volume, layer), (first, number), room, &wanted)?;
            room -= taken.count;
            *cursor = taken.next;
        }
        Ok(false)
    }

    fn announce_in_segment(
        &self,
        (volume, layer): (&Volume, &Arc<Layer>),
        (first, number): (Lba, u64),
        room: u64,
        wanted: &SlotBits,
    ) -> Result<Taken> {
        let segment = first.segment();
        let end = SegmentIndex(segment.0 + 1).first();
        let choose = |within: Range<Lba>| -> Result<_> {
            let leaf = self.maps().leaf(layer, segment, Blocking::Yes)?;
            let chosen = leaf.with(|entries| {
                let wanted = self.without_bad(entries, wanted);
                choose(entries, within, room, &wanted)
            });
            Ok((leaf, chosen))
        };
        // Looked at without the lock first: most segments have nothing to publish.
        let (_, (runs, next)) = choose(first..end)?;
        let (Some(from), Some(to)) = (runs.first(), runs.last()) else {
            return Ok(Taken {
                count: 0,
                next: end,
            });
        };
        // A block outside the locked range may have become private meanwhile, and may be in the
        // middle of being rewritten: the second choice does not reach beyond the range.
        let range = from.lba..to.lba + u64::from(to.count);
        let next = next.unwrap_or(end);
        let _locked = layer.locks.lock(range.start.0..range.end.0, Blocking::Yes);
        // Whoever removes a volume holds all of its blocks until no entry is left.
        volume.check_has_blocks()?;
        let (leaf, (runs, _)) = match Guard::PublishedLocked.holds() {
            true => choose(range)?,
            false => choose(first..end)?,
        };
        let count: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        if count > 0 {
            for run in &runs {
                (run.lba.slot()..run.lba.slot() + run.count as usize)
                    .for_each(|slot| leaf.heat.published(slot));
            }
            let publish = Record::Publish {
                layer: layer.id,
                number,
                runs,
            };
            let is_refused = Cell::new(false);
            let admit = |metadata: &MetadataState| {
                let admitted = self
                    .journal
                    .admit_sharing(&layer.space_limits, metadata, count);
                admitted.inspect_err(|_| is_refused.set(true))
            };
            match self
                .journal
                .append_if(&[publish], &[], Blocking::Yes, &admit)
            {
                // No blocks could be kept free for those that the volume would own no more.
                Err(_) if is_refused.get() => {
                    return Ok(Taken { count: 0, next });
                }
                recorded => recorded?,
            }
        }
        Ok(Taken { count, next })
    }

    /// The slots that are wanted, but for those of blocks that are known to be bad.
    fn without_bad(&self, entries: &[Entry], wanted: &SlotBits) -> SlotBits {
        let mut wanted = *wanted;
        if self.bad.is_any() {
            for (slot, entry) in entries.iter().enumerate() {
                if entry.pba().is_some_and(|pba| self.bad.get(pba).is_some()) {
                    bits::fill(&mut wanted, slot..slot + 1, false);
                }
            }
        }
        wanted
    }

    /// Steps 3 and 4.
    fn settle_finder(&self, layer: LayerId, batch: &OpenBatch) -> Result<BatchReport> {
        let index = self.index.ready()?;
        let (answers, cached, unreadable) = self.background.run(|| -> Result<_> {
            let (found, cached) = self.fingerprints_or_cached(layer, batch.unsettled())?;
            let items = match found.unreadable.is_empty() {
                true => &found.items[..],
                false => &[],
            };
            let answers = index.increment(STREAM, batch.number, items)?;
            Ok((answers, cached, found.unreadable))
        })?;
        self.list_unreadable(&unreadable)?;
        if answers.is_empty() {
            self.call_off(&*index, layer, batch)?;
            let unreadable = (unreadable.len() as u64).max(1);
            return Ok(BatchReport {
                unreadable,
                ..BatchReport::default()
            });
        }
        let answers = last_answers(&answers, batch)?;
        self.settle_answered(&*index, (layer, batch), answers, cached)
    }

    /// Nothing was counted: all blocks are private again, or free where they were rewritten.
    fn call_off(
        &self,
        index: &dyn FingerprintIndex,
        layer: LayerId,
        batch: &OpenBatch,
    ) -> Result<()> {
        let declined = vec![Counted::Full; batch.unsettled().len()];
        self.settle_answered(index, (layer, batch), &declined, 0)
            .map(|_| ())
    }

    fn settle_answered(
        &self,
        index: &dyn FingerprintIndex,
        (layer, batch): (LayerId, &OpenBatch),
        answers: &[Counted],
        cached: u64,
    ) -> Result<BatchReport> {
        let looked_at = answers.len() as u64;
        let mut report = BatchReport {
            looked_at,
            cached,
            bytes: looked_at * self.block_size(),
            ..BatchReport::default()
        };
        let mut position = batch.done;
        while position < batch.items.len() {
            let segment = batch.items[position].lba.segment();
            let rest = &batch.items[position..];
            let count = rest
                .iter()
                .take_while(|item| item.lba.segment() == segment)
                .count();
            let end = position + count;
            let part = Part {
                layer,
                number: batch.number,
                position,
                items: &batch.items[position..end],
                answers: &answers[position - batch.done..end - batch.done],
            };
            self.settle_part(index, &part, &mut report)?;
            position = end;
        }
        Ok(report)
    }

    /// Step 4 for items of one segment.
    fn settle_part(
        &self,
        index: &dyn FingerprintIndex,
        part: &Part<'_>,
        report: &mut BatchReport,
    ) -> Result<()> {
        let equal = self.heal_and_compare(index, part)?;
        let (Some(first), Some(last)) = (part.items.first(), part.items.last()) else {
            return Ok(());
        };
        // A layer that is gone has nobody left who could write to it.
        let layer = self.maps().layer(part.layer).ok();
        // Kept in memory, so that the records need not read it while everybody waits for them.
        let _leaf = layer
            .as_ref()
            .map(|layer| self.maps().leaf(layer, first.lba.segment(), Blocking::Yes))
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
            let outcome = outcome(item.pba, part.answers[n], moved, equal[n]);
            count(report, outcome, moved);
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
        self.journal.append(&records, &old_blocks, Blocking::Yes)
    }

    /// Whether each item can become one with the block that the index knows. Where bytes are to be
    /// compared, nothing is healed, for equal fingerprints are not enough then; and what has the same
    /// bytes is not bad, whatever it was.
    fn heal_and_compare(&self, index: &dyn FingerprintIndex, part: &Part<'_>) -> Result<Vec<bool>> {
        let mut equal = vec![true; part.items.len()];
        let verify = self.verifies(part.layer)? && Guard::VerifyBytes.holds();
        if Guard::BadNotShared.holds()
            && !verify
            && self.bad.is_any()
            && let Some(BatchItem { domain, .. }) = part.items.first()
        {
            let blocks = part.items.iter().map(|item| item.pba);
            self.repair(index, *domain, blocks.zip(part.answers.iter().copied()))?;
            for (equal, answer) in equal.iter_mut().zip(part.answers) {
                *equal = !matches!(answer, Counted::Shared(pba) if self.bad.get(*pba).is_some());
            }
        }
        if verify {
            self.compare(part, &mut equal)?;
        }
        Ok(equal)
    }

    /// Whether equal fingerprints are not enough for this layer. Nobody knows what a volume wanted that
    /// is gone.
    fn verifies(&self, layer: LayerId) -> Result<bool> {
        let metadata = self.journal.metadata()?;
        let found = metadata.catalogue().by_layer(layer);
        Ok(found.is_none_or(|(_, volume)| volume.verify))
    }

    /// Whether those items that are `equal` so far have the same bytes as the block that the index
    /// knows. That block has been counted for the item, so nobody frees it meanwhile. What cannot be
    /// read is known to be bad from then on; the batch is settled another time, and then it is not
    /// equal, unless it could be healed.
    fn compare(&self, part: &Part<'_>, equal: &mut [bool]) -> Result<()> {
        let block_size = self.block_size() as usize;
        let (mut ours, mut theirs) = (vec![0; block_size], vec![0; block_size]);
        let pairs = part.items.iter().zip(part.answers);
        for ((item, answer), equal) in pairs.zip(equal) {
            if let Counted::Shared(indexed) = answer
                && *equal
            {
                *equal = self.read_unless_bad(item.pba, &mut ours)?
                    && self.read_unless_bad(*indexed, &mut theirs)?
                    && ours == theirs;
            }
        }
        Ok(())
    }

    fn read_unless_bad(&self, pba: Pba, buf: &mut [u8]) -> Result<bool> {
        match self.read_back(pba, buf) {
            Ok(()) => Ok(true),
            Err(_) if self.bad.get(pba).is_some() => Ok(false),
            Err(error) => {
                self.list_unreadable(&[pba])?;
                Err(error)
            }
        }
    }

    /// Step 3, but for what the volume's hash cache knows.
    fn fingerprints_or_cached(
        &self,
        layer: LayerId,
        items: &[BatchItem],
    ) -> Result<(Fingerprinted, u64)> {
        let layer = self.maps().layer(layer).ok();
        let Some(cache) = layer.and_then(|layer| layer.hash_cache()) else {
            return Ok((self.fingerprint_items(items)?, 0));
        };
        let known: Vec<_> = items
            .iter()
            .map(|item| cache.find(item.lba, item.pba))
            .collect();
        let unknown = items
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none());
        let unknown: Vec<BatchItem> = unknown.map(|(item, _)| *item).collect();
        let cached = (items.len() - unknown.len()) as u64;
        let read = self.fingerprint_items(&unknown)?;
        let mut rest = read.items.into_iter();
        let both = known.into_iter().zip(items);
        let all = both.filter_map(|(known, item)| match known {
            Some(fingerprint) => Some((fingerprint, item.pba)),
            None => rest.next(),
        });
        let found = Fingerprinted {
            items: all.collect(),
            unreadable: read.unreadable,
        };
        Ok((found, cached))
    }

    /// Step 3: the fingerprints of blocks that nobody writes to any more. However scattered the
    /// blocks are, many are hashed at once.
    pub(crate) fn fingerprint_items(&self, items: &[BatchItem]) -> Result<Fingerprinted> {
        let mut found = Vec::with_capacity(items.len());
        let mut unreadable = Vec::new();
        let block_size = self.block_size() as usize;
        let mut buf = vec![0; READ_BYTES.min(items.len() * block_size)];
        for same_domain in items.chunk_by(|a, b| a.domain == b.domain) {
            let Some(BatchItem { domain, .. }) = same_domain.first() else {
                continue;
            };
            let key = self.domain_key(*domain);
            for piece in same_domain.chunks(READ_BYTES / block_size) {
                let blocks = &mut buf[..piece.len() * block_size];
                let mut rest = &mut *blocks;
                for run in piece.chunk_by(|a, b| a.pba + 1 == b.pba) {
                    let (bytes, after) = rest.split_at_mut(run.len() * block_size);
                    self.read_run_back(run[0].pba, bytes, &mut unreadable)?;
                    rest = after;
                }
                let fingerprints = self.fingerprints(&key, *domain, blocks);
                found.extend(fingerprints.into_iter().zip(piece.iter().map(|i| i.pba)));
            }
        }
        Ok(Fingerprinted {
            items: found,
            unreadable,
        })
    }

    /// Reads consecutive blocks, and notes which of them cannot be read.
    pub(crate) fn read_run_back(
        &self,
        first: Pba,
        buf: &mut [u8],
        unreadable: &mut Vec<Pba>,
    ) -> Result<()> {
        if self.read_if_readable(first, buf)? {
            return Ok(());
        }
        let blocks = buf.chunks_exact_mut(self.block_size() as usize);
        for (block, n) in blocks.zip(0..) {
            if !self.read_if_readable(first + n, block)? {
                unreadable.push(first + n);
            }
        }
        Ok(())
    }

    /// Of whole blocks of a domain, whose key this is.
    pub(crate) fn fingerprints(
        &self,
        key: &Key,
        #[cfg_attr(not(feature = "simulation"), expect(unused_variables))] domain: DomainId,
        blocks: &[u8],
    ) -> Vec<Fingerprint> {
        let mut fingerprints = Vec::with_capacity(blocks.len() / self.block_size() as usize);
        key.fingerprints(blocks, self.block_size() as usize, &mut fingerprints);
        #[cfg(feature = "simulation")]
        make_collide(&mut fingerprints, domain);
        fingerprints
    }

    pub(crate) fn domain_key(&self, domain: DomainId) -> Key {
        Key::derive(&self.secret.0, domain.0)
    }

    pub(crate) fn read_back(&self, pba: Pba, buf: &mut [u8]) -> Result<()> {
        let at = pba.0 * self.block_size();
        self.data().read_at(buf, at).map_err(|error| {
            let what = format_args!("reading block {pba} of the pool to fingerprint it");
            StoreError::io(what, error)
        })
    }
}

/// The answers to a batch's unsettled items. The index was asked for these alone, or, in a call
/// before a crash, for all of those of then: what is still unsettled is the end of them.
pub(crate) fn last_answers<'a, T>(answers: &'a [T], batch: &OpenBatch) -> Result<&'a [T]> {
    let wanted = batch.unsettled().len();
    let first = answers.len().checked_sub(wanted);
    first.map(|first| &answers[first..]).ok_or_else(|| {
        StoreError::damaged(format!(
            "the index has {} answers for a batch of {wanted}",
            answers.len()
        ))
    })
}

/// Keeps as many bits as the simulation wants. Domains still never meet.
#[cfg(feature = "simulation")]
fn make_collide(fingerprints: &mut [Fingerprint], domain: DomainId) {
    let Some(bits) = crate::guard::Scarcity::now().fingerprint_bits else {
        return;
    };
    for fingerprint in fingerprints {
        let kept = u64::from(fingerprint.0[0]) & ((1 << bits) - 1);
        fingerprint.0 = [0; 16];
        fingerprint.0[0] = kept as u8;
        fingerprint.0[8..10].copy_from_slice(&domain.0.to_le_bytes());
    }
}

/// Fingerprints of blocks that were read back.
pub(crate) struct Fingerprinted {
    /// All that were asked for, in order.
    pub(crate) items: Vec<(Fingerprint, Pba)>,
    /// Those of which nothing can be said: their fingerprints mean nothing.
    pub(crate) unreadable: Vec<Pba>,
}

struct Taken {
    count: u64,
    /// Where the next look starts.
    next: Lba,
}

/// Items of one segment, and what the index said of them.
struct Part<'a> {
    layer: LayerId,
    number: u64,
    position: usize,
    items: &'a [BatchItem],
    answers: &'a [Counted],
}

/// Private entries of a part of a segment whose slots are wanted, `room` of them at most, as runs;
/// and where to go on if that was not all.
fn choose(
    entries: &[Entry],
    within: Range<Lba>,
    room: u64,
    wanted: &SlotBits,
) -> (Vec<PublishRun>, Option<Lba>) {
    let mut runs: Vec<PublishRun> = Vec::new();
    let mut left = room;
    let first = within.start;
    for (lba, entry) in (first.0..within.end.0).zip(&entries[first.slot()..]) {
        let slot = (lba % BLOCKS_PER_SEGMENT) as usize;
        let State::Private(pba) = entry.state() else {
            continue;
        };
        if !heat::has(wanted, slot) {
            continue;
        }
        if left == 0 {
            return (runs, Some(Lba(lba)));
        }
        left -= 1;
        match runs.last_mut() {
            Some(run)
                if run.lba.0 + u64::from(run.count) == lba
                    && run.pba.0 + u64::from(run.count) == pba.0 =>
            {
                run.count += 1;
            }
            _ => runs.push(PublishRun {
                lba: Lba(lba),
                pba,
                count: 1,
            }),
        }
    }
    (runs, None)
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
