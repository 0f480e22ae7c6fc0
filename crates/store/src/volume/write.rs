//! The write path from step 3 of `docs/life-of-a-write.md` on; step 2 is in `resolve.rs`. Appending and
//! applying records (steps 7 and 8) is done by `journal/src/append.rs`; the reply of step 9 is sent by the
//! front end.
//!
//! A block that the live layer owns alone is rewritten where it is, and nothing else happens: no
//! record, no metadata. A block of zeros is not stored, and in line neither is one whose content is
//! published: its entry refers to that block (a *hit*). Everything else gets new blocks, consecutive
//! where the request is.
//!
//! Crash behaviour: until its record is durable a new block is in flight and is free after a crash.
//! A block rewritten in place may be torn at sectors, as on any disk.

use onefold_engine::WriteRange;
use onefold_format::entry::State;
use onefold_format::tail::block_sum;
use onefold_format::{Entry, Lba, Pba, UnmapTo};
use onefold_index::{Fingerprint, is_zero};
use onefold_journal::{Journal, Purpose};
use onefold_metadata::{
    BlockGuard, BlockRange, Blocking, Entries, Guard, HashCache, Hits, Layer, Maps, MetadataState,
    PbaRun, PbaRuns, Placement, PlacementOffset, Result, StoreError, StoreErrorKind,
};
use smallvec::SmallVec;

use super::Volume;
use super::inline::NotTaken;
use super::piece::{Fate, Piece, Placed, PlacedRuns, Run, Runs, changes};
use super::resolve::{Content, Resolved};
use crate::batches::ClaimsAlarm;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A request is worked off in pieces of this many blocks: bounds its records, and how long its
/// blocks stay locked. 1 MiB of consecutive blocks is one write to the pool.
const PIECE_BLOCKS: u64 = 512;

impl Volume {
    /// Cuts the request into pieces: a part of a block at either end, whole blocks between them.
    pub(super) fn write_admitted(
        &self,
        offset: u64,
        data: &[u8],
        blocking: Blocking,
    ) -> Result<()> {
        let is_hopeless = self.pool.data().writes_wait() && !self.inline.are_most_found();
        if blocking == Blocking::No && is_hopeless {
            return Err(StoreError::would_block());
        }
        let block_size = self.pool.block_size();
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let into_block = at % block_size;
            let piece = if into_block != 0 || (rest.len() as u64) < block_size {
                (block_size - into_block).min(rest.len() as u64)
            } else {
                let whole = rest.len() as u64 / block_size * block_size;
                whole.min(PIECE_BLOCKS * block_size)
            };
            let (bytes, after) = rest.split_at(piece as usize);
            if piece.is_multiple_of(block_size) {
                self.write_blocks(Lba(at / block_size), bytes, blocking)?;
            } else {
                self.write_part(Lba(at / block_size), into_block as usize, bytes, blocking)?;
            }
            at += piece;
            rest = after;
        }
        Ok(())
    }

    /// Steps 2 to 9 for whole blocks.
    fn write_blocks(&self, first: Lba, data: &[u8], blocking: Blocking) -> Result<()> {
        let resolved = self.resolve(data, blocking)?;
        let resolved = resolved.as_ref();
        let is_without_new = resolved.is_some_and(Resolved::is_without_new);
        if blocking == Blocking::No && self.pool.data().writes_wait() && !is_without_new {
            return Err(StoreError::would_block());
        }
        let block_size = self.pool.block_size();
        let (start, len) = (first.0 * block_size, data.len() as u64);
        let count = len / block_size;
        let written = self.with_blocks(start..start + len, blocking, |layer| {
            self.write_locked(layer, first, data, resolved, blocking)
        });
        // An attempt that would block is made again.
        if written.is_ok() {
            self.note_written(count, resolved);
        }
        written
    }

    /// Steps 3 to 9 for part of one block: the rest of it is read under the lock. All that clients see of a
    /// short last block is such a part, too, and its rest is zeros.
    fn write_part(&self, lba: Lba, at: usize, data: &[u8], blocking: Blocking) -> Result<()> {
        if blocking == Blocking::No && self.pool.data().writes_wait() {
            return Err(StoreError::would_block());
        }
        let block_size = self.pool.block_size();
        let first = lba.0 * block_size;
        let start = first + at as u64;
        let end = start + data.len() as u64;
        self.with_blocks(start..end, blocking, |layer| {
            let mut block = vec![0; block_size as usize];
            let is_all_of_the_last = at == 0 && end == self.size_bytes();
            if !is_all_of_the_last {
                self.read_admitted(first, &mut block, blocking)?;
            }
            block[at..at + data.len()].copy_from_slice(data);
            self.write_locked(layer, lba, &block, None, blocking)
        })
    }

    /// [step 3 lock] Works on the live layer with the blocks of these bytes locked.
    pub(super) fn with_blocks<T>(
        &self,
        bytes: Range<u64>,
        blocking: Blocking,
        work: impl FnOnce(&Arc<Layer>) -> Result<T>,
    ) -> Result<T> {
        let (layer, _locked) = self.lock_blocks(bytes, blocking)?;
        work(&layer)
    }

    /// The live layer with the blocks of these bytes locked; unlocked where the simulation breaks this rule. By
    /// the time a request has its lock the volume may be smaller, or gone; bytes stored then would be lost, or
    /// reappear when the volume grows again.
    pub(super) fn lock_blocks(
        &self,
        bytes: Range<u64>,
        blocking: Blocking,
    ) -> Result<(Arc<Layer>, Option<BlockGuard>)> {
        let block_size = self.pool.block_size();
        let blocks = bytes.start / block_size..bytes.end.div_ceil(block_size);
        let is_locked = Guard::BlocksLocked.holds();
        loop {
            let layer = self.layer();
            let locked = is_locked.then(|| layer.locks.lock(blocks.clone(), blocking));
            let locked = locked
                .map(|locked| locked.ok_or_else(StoreError::would_block))
                .transpose()?;
            // A snapshot may have frozen it while this waited.
            if is_locked && !Arc::ptr_eq(&layer, &self.layer()) {
                continue;
            }
            self.check_in_use()?;
            if Guard::EndLookedAtLocked.holds() {
                self.admit(bytes.start, bytes.end - bytes.start, u64::MAX)?;
            }
            return Ok((layer, locked));
        }
    }

    /// Steps 4 to 9. The blocks are locked. If the hits are refused, their blocks are stored after all.
    pub(super) fn write_locked(
        &self,
        layer: &Arc<Layer>,
        first: Lba,
        data: &[u8],
        resolved: Option<&Resolved>,
        blocking: Blocking,
    ) -> Result<()> {
        let block_size = self.pool.block_size();
        let blocks = BlockRange::new(first, data.len() as u64 / block_size);
        let entries = self.entries_to_write(layer, blocks, blocking)?;
        let mut piece = Piece::new(first, data, block_size, entries, resolved);
        loop {
            let runs = self.shape(layer, &piece, blocking)?;
            let must_wait = blocking == Blocking::No && self.pool.data().writes_wait();
            if must_wait && runs.iter().any(Run::is_stored) {
                return Err(StoreError::would_block());
            }
            let more = piece.entries_more(&runs);
            layer.space_limits.admit(more, block_size)?;
            let placed = self.place(layer, &piece, &runs, blocking)?;
            let hash_cache = layer.hash_cache();
            if let Some(cache) = &hash_cache {
                blocks.by_segment().for_each(|blocks| cache.forget(blocks));
            }
            if Guard::DataBeforeRecord.holds() {
                self.store(&piece, &placed)?;
            }
            if let Some(why) = self.log(layer, &piece, &runs, &placed, blocking)? {
                self.inline.note_not_taken(why, piece.published());
                piece.takes_hits = false;
                continue;
            }
            if !Guard::DataBeforeRecord.holds() {
                self.store(&piece, &placed)?;
            }
            if let Some(cache) = &hash_cache {
                self.note_fingerprints(layer, cache, &piece, &placed);
            }
            if piece.takes_hits {
                self.inline.note_hits(piece.not_written(&runs));
            }
            return Ok(());
        }
    }

    /// The combined entries of a layer and those below it for these blocks, which are locked or
    /// whose epoch is pinned.
    pub(super) fn entries(
        &self,
        layer: &Layer,
        blocks: BlockRange,
        blocking: Blocking,
    ) -> Result<Entries> {
        let mut entries = Entries::with_capacity(blocks.count as usize);
        let maps = self.pool.maps();
        for part in blocks.by_segment() {
            maps.resolve(layer, part.segment(), part.slots(), blocking, &mut entries)?;
        }
        Ok(entries)
    }

    /// The live layer's own entries for these blocks. Notes that they are written.
    pub(super) fn entries_to_write(
        &self,
        layer: &Layer,
        blocks: BlockRange,
        blocking: Blocking,
    ) -> Result<Entries> {
        if !Guard::FrozenNotInPlace.holds() {
            return self.entries(layer, blocks, blocking);
        }
        let mut entries = Entries::with_capacity(blocks.count as usize);
        for part in blocks.by_segment() {
            let leaf = self.pool.maps().leaf(layer, part.segment(), blocking)?;
            leaf.note_write(part.slots());
            leaf.entries(part.slots(), &mut entries);
        }
        Ok(entries)
    }

    /// [step 4 shape] Finds the blocks of zeros, those whose content is published, and those that can be
    /// rewritten in place.
    pub(super) fn shape(
        &self,
        layer: &Layer,
        piece: &Piece<'_>,
        blocking: Blocking,
    ) -> Result<Runs> {
        let blocks = piece.data.chunks_exact(piece.block_size as usize);
        let mut runs = Runs::new();
        let mut below = None;
        for ((block, entry), n) in blocks.zip(&piece.entries).zip(0..) {
            let own = if Guard::SharedNotInPlace.holds() {
                entry.own_pba()
            } else {
                entry.pba()
            };
            // A lost block stays lost, whatever a crash undoes: new content goes elsewhere.
            let own = own.filter(|pba| !self.pool.data().is_lost(*pba));
            let content = piece.content(n);
            let is_zeros =
                content.map_or_else(|| is_zero(block), |content| content == Content::Zeros);
            let hit = || self.hit_fate(piece, *entry, content);
            let fate = match own {
                _ if is_zeros => {
                    let below = match &mut below {
                        Some(below) => below,
                        none => none.insert(self.entries_below(layer, piece, blocking)?),
                    };
                    zero_fate(*entry, below.get(n as usize))
                }
                Some(pba) => hit().unwrap_or(Fate::InPlace(pba)),
                None => hit().unwrap_or(Fate::New),
            };
            match runs.last_mut() {
                Some(run) if run.continues_with(fate) => run.blocks.count += 1,
                _ => runs.push(Run {
                    blocks: BlockRange::new(piece.first + n, 1),
                    fate,
                }),
            }
        }
        Ok(runs)
    }

    /// The fate of a block whose content is published.
    fn hit_fate(&self, piece: &Piece<'_>, entry: Entry, content: Option<Content>) -> Option<Fate> {
        let Some(Content::Published(_, pba)) = content.filter(|_| piece.takes_hits) else {
            return None;
        };
        if entry.state() != State::Shared(pba) {
            return Some(Fate::Hit(pba));
        }
        let run = PbaRun {
            start: pba,
            count: 1,
        };
        if self.is_any_bad(run) {
            return None;
        }
        // The entry is locked and refers to the block. If nothing was freed since it was looked up,
        // it has held this content all the time.
        let is_valid = piece.resolved?.lookup_version == self.pool.journal().lookup_version();
        (is_valid || !Guard::SameStillValid.holds()).then_some(Fate::Nothing)
    }

    /// The entries of the layers below this one for these blocks; nothing if there are none.
    fn entries_below(
        &self,
        layer: &Layer,
        piece: &Piece<'_>,
        blocking: Blocking,
    ) -> Result<Entries> {
        let mut entries = Entries::new();
        let Some(below) = layer.below() else {
            return Ok(entries);
        };
        for part in piece.blocks().by_segment() {
            let view = self.pool.maps().view(&below, part.segment(), blocking)?;
            entries.extend_from_slice(&view[part.slots()]);
        }
        Ok(entries)
    }

    /// [step 5 place] One allocation for all new blocks, so that they are consecutive.
    pub(super) fn place(
        &self,
        layer: &Layer,
        piece: &Piece<'_>,
        runs: &[Run],
        blocking: Blocking,
    ) -> Result<PlacedRuns> {
        let new = runs.iter().filter(|run| run.fate == Fate::New);
        let new: SmallVec<[BlockRange; 4]> = new.map(|run| run.blocks).collect();
        let Some(first_new) = new.first() else {
            let placed = runs.iter().map(|run| Placed {
                run: *run,
                new: None,
            });
            return Ok(placed.collect());
        };
        let placement = Placement {
            layer: layer.id,
            beside: beside(self.pool.maps(), layer, first_new.first, blocking)?,
            runs: new,
        };
        let free = self.allocate(layer, piece, &placement, blocking)?;
        let mut free = free.into_iter().peekable();
        let mut placed = PlacedRuns::new();
        for run in runs {
            if run.fate != Fate::New {
                placed.push(Placed {
                    run: *run,
                    new: None,
                });
                continue;
            }
            let mut done = 0;
            while done < run.blocks.count {
                let Some(blocks) = free.peek_mut() else { break };
                let count = blocks.count.min(run.blocks.count - done);
                let part = Run {
                    blocks: BlockRange::new(run.blocks.first + done, count),
                    fate: Fate::New,
                };
                placed.push(Placed {
                    run: part,
                    new: Some(blocks.start),
                });
                blocks.start.0 += count;
                blocks.count -= count;
                if blocks.count == 0 {
                    free.next();
                }
                done += count;
            }
        }
        Ok(placed)
    }

    /// New blocks; from the pool's reserve where all of them replace data.
    fn allocate(
        &self,
        layer: &Layer,
        piece: &Piece<'_>,
        placement: &Placement,
        blocking: Blocking,
    ) -> Result<PbaRuns> {
        let purpose = if self.is_importing() {
            Purpose::Import
        } else {
            Purpose::New
        };
        let journal = self.pool.journal();
        match journal.allocate(placement, &layer.space_limits, purpose, blocking) {
            Err(error)
                if matches!(error.kind(), StoreErrorKind::NoSpace | StoreErrorKind::Busy) =>
            {
                let overwrites = self.replaces_data(layer, piece, placement)?;
                if purpose == Purpose::Import || !overwrites {
                    return Err(error);
                }
                journal.allocate(placement, &layer.space_limits, Purpose::Overwrite, blocking)
            }
            allocated => allocated,
        }
    }

    /// Whether each of these blocks holds data now, in this layer or below it.
    fn replaces_data(
        &self,
        layer: &Layer,
        piece: &Piece<'_>,
        placement: &Placement,
    ) -> Result<bool> {
        let below = self.entries_below(layer, piece, Blocking::Yes)?;
        let holds_data = |lba: Lba| {
            let at = (lba.0 - piece.first.0) as usize;
            match piece.entries[at] {
                Entry::ABSENT => below.get(at).is_some_and(|below| below.pba().is_some()),
                own => own.pba().is_some(),
            }
        };
        let mut runs = placement.runs.iter();
        Ok(runs.all(|run| (0..run.count).all(|n| holds_data(run.first + n))))
    }

    /// [step 6 store] One write to the pool for each run of consecutive blocks, all at the same time.
    fn store(&self, piece: &Piece<'_>, placed: &[Placed]) -> Result<()> {
        let writes = consecutive(placed);
        let ranges: SmallVec<[WriteRange<'_>; 4]> = writes
            .iter()
            .map(|(blocks, pba)| WriteRange {
                bytes: piece.bytes(*blocks),
                offset: pba.0 * piece.block_size,
            })
            .collect();
        let in_place = || {
            placed.iter().filter_map(|part| match part.run.fate {
                Fate::InPlace(start) => {
                    let count = part.run.blocks.count;
                    Some(PbaRun { start, count })
                }
                _ => None,
            })
        };
        in_place().for_each(|run| self.rewrites.begin(&self.pool, run));
        if let Err((n, error)) = self.pool.data().write_together(&ranges) {
            let (blocks, pba) = writes[n];
            take_back(self.pool.journal(), placed)?;
            return Err(not_stored(blocks, pba, error));
        }
        for run in in_place() {
            self.rewrites.end(&self.pool, run);
        }
        Ok(())
    }

    /// [step 7 log] The records of the piece, applied and appended. Returns why its hits were refused:
    /// then nothing has changed.
    fn log(
        &self,
        layer: &Layer,
        piece: &Piece<'_>,
        runs: &[Run],
        placed: &[Placed],
        blocking: Blocking,
    ) -> Result<Option<NotTaken>> {
        let (records, old_blocks) = changes(layer.id, piece, placed);
        if records.is_empty() {
            return Ok(None);
        }
        let more = piece.entries_more(runs);
        let (refused, due) = (Cell::new(None), Cell::new(None));
        let admit = |metadata: &MetadataState| {
            // Other requests may have used up the quota since.
            if Guard::QuotaLookedAtLocked.holds() {
                layer.space_limits.admit(more, piece.block_size)?;
            }
            let admitted = self.admit_hits(layer, piece, runs, metadata);
            admitted.map(|alarm| due.set(alarm)).map_err(|why| {
                refused.set(Some(why));
                StoreError::would_block()
            })
        };
        let journal = self.pool.journal();
        let sums = if journal.wants_sums() {
            sums(piece, placed)
        } else {
            SmallVec::new()
        };
        match journal.append_new(&records, &sums, &old_blocks, blocking, Some(&admit)) {
            Ok(()) => {
                if let Some(alarm) = due.get() {
                    alarm.sound();
                }
                Ok(None)
            }
            Err(error) => {
                take_back(self.pool.journal(), placed)?;
                refused.get().map_or(Err(error), |why| Ok(Some(why)))
            }
        }
    }

    /// Whether the record may make the hits. If it may, it will: the uncommitted state is held. Returns
    /// the alarm that is due then, if it is.
    fn admit_hits(
        &self,
        layer: &Layer,
        piece: &Piece<'_>,
        runs: &[Run],
        metadata: &MetadataState,
    ) -> std::result::Result<Option<&ClaimsAlarm>, NotTaken> {
        let Some(resolved) = piece.resolved.filter(|_| piece.takes_hits) else {
            return Ok(None);
        };
        let hits = || runs.iter().filter_map(Run::hit);
        let published: PbaRuns = hits().map(|(_, published)| published).collect();
        if published.is_empty() {
            return Ok(None);
        }
        // Blocks are listed as bad with the uncommitted state held, too.
        if published.iter().any(|run| self.is_any_bad(*run)) {
            return Err(NotTaken::Bad);
        }
        let admitted = metadata.admit_hits(Hits {
            lookup_version: resolved.lookup_version,
            runs: &published,
        });
        admitted.map_err(NotTaken::Refused)?;
        let replaced = hits().flat_map(|(blocks, _)| piece.entries(blocks));
        let fewer = replaced.filter(|entry| entry.own_pba().is_some()).count() as u64;
        let (free_space, space_limits) = (self.pool.journal().free_space(), &layer.space_limits);
        let kept = free_space.admit_sharing(space_limits, metadata, fewer);
        kept.map_err(|_| NotTaken::Reserved)?;
        // The record makes the claims in this order.
        let claimed = hits().flat_map(|(blocks, _)| {
            let first = blocks.first.0 - piece.first.0;
            (first..first + blocks.count).filter_map(|n| resolved.fingerprint(n))
        });
        let claims = metadata.claims();
        let fingerprints = self.pool.batches().claimed();
        fingerprints.note(claims.numbers().end, claimed);
        let (before, more) = (claims.blocks(), published.iter().map(|run| run.count).sum());
        Ok(fingerprints.due_alarm(before, more))
    }

    /// Whether one of these blocks is known to have other content than its fingerprint says (P8).
    fn is_any_bad(&self, run: PbaRun) -> bool {
        let blocks = run.start.0..run.start.0 + run.count;
        Guard::HitNotBad.holds() && !self.pool.bad().within(blocks).is_empty()
    }

    /// Saves the finder the reading of the blocks just written.
    fn note_fingerprints(
        &self,
        layer: &Layer,
        cache: &HashCache,
        piece: &Piece<'_>,
        placed: &[Placed],
    ) {
        for placed in placed {
            let Some(pba) = placed.pba() else { continue };
            for part in placed.run.blocks.by_segment() {
                let into_run = part.first.0 - placed.run.blocks.first.0;
                let fingerprints = self.fingerprints(layer, cache, piece, part);
                cache.note(part.first, pba + into_run, &fingerprints);
            }
        }
    }

    /// The fingerprints of these blocks: known from the lookup, or made now.
    pub(super) fn fingerprints(
        &self,
        layer: &Layer,
        cache: &HashCache,
        piece: &Piece<'_>,
        blocks: BlockRange,
    ) -> SmallVec<[Fingerprint; 8]> {
        piece.fingerprints(blocks).unwrap_or_else(|| {
            let fingerprinter = self.pool.blocks().fingerprinter();
            let bytes = piece.bytes(blocks);
            let made = fingerprinter.fingerprints(&cache.key, layer.domain, bytes);
            SmallVec::from_vec(made)
        })
    }
}

/// Takes back new blocks without a record.
pub(super) fn take_back(journal: &Journal, placed: &[Placed]) -> Result<()> {
    // After a failure inside `apply` some of them may have been recorded; the pool takes no
    // writes then, and recovery finds out.
    if journal.check_writable().is_ok() {
        let new = placed.iter().filter_map(|placed| {
            placed.new.map(|start| PbaRun {
                start,
                count: placed.run.blocks.count,
            })
        });
        journal.take_back(&new.collect::<PbaRuns>())?;
    }
    Ok(())
}

/// The preferred place of this block, by the nearest block of its own in the same segment.
fn beside(
    maps: &Maps,
    layer: &Layer,
    lba: Lba,
    blocking: Blocking,
) -> Result<Option<PlacementOffset>> {
    let leaf = maps.leaf(layer, lba.segment(), blocking)?;
    let first = lba.0 - lba.slot() as u64;
    Ok(leaf.with(|segment| {
        let (before, after) = segment.split_at(lba.slot());
        let stored = |(slot, entry): (usize, &Entry)| entry.own_pba().map(|pba| (slot, pba));
        let before = before.iter().enumerate().rev().find_map(stored);
        let after = || after.iter().enumerate().find_map(stored);
        let (slot, pba) = before.or_else(|| after().map(|(n, pba)| (lba.slot() + n, pba)))?;
        Some(PlacementOffset::between(Lba(first + slot as u64), pba))
    }))
}

/// The stored bytes, in runs that are consecutive in the volume and in the pool: new blocks are placed around blocks
/// that are rewritten in place.
fn consecutive(placed: &[Placed]) -> SmallVec<[(BlockRange, Pba); 4]> {
    let mut runs: SmallVec<[(BlockRange, Pba); 4]> = SmallVec::new();
    for part in placed {
        let Some(pba) = part.pba() else { continue };
        let blocks = part.run.blocks;
        match runs.last_mut() {
            Some((before, start))
                if before.first + before.count == blocks.first && *start + before.count == pba =>
            {
                before.count += blocks.count;
            }
            _ => runs.push((blocks, pba)),
        }
    }
    runs
}

/// A checksum of each new block, in the order of their records.
pub(super) fn sums(piece: &Piece<'_>, placed: &[Placed]) -> SmallVec<[u32; 8]> {
    let new = placed.iter().filter(|part| part.new.is_some());
    let blocks = new.flat_map(|part| {
        let bytes = piece.bytes(part.run.blocks);
        bytes.chunks_exact(piece.block_size as usize)
    });
    blocks.map(block_sum).collect()
}

/// The device failed to write these blocks.
pub(super) fn not_stored(blocks: BlockRange, pba: Pba, error: io::Error) -> StoreError {
    let what = format_args!("block {} of the volume, {pba} of the pool", blocks.first);
    StoreError::io(what, error)
}

/// The new entry of a block that is all zeros: data of a layer below is hidden.
fn zero_fate(entry: Entry, below: Option<&Entry>) -> Fate {
    let hides = below.is_some_and(|below| below.pba().is_some());
    if hides && entry == Entry::ZERO {
        Fate::Nothing
    } else if hides {
        Fate::Zero(UnmapTo::Zero)
    } else if entry == Entry::ABSENT {
        Fate::Nothing
    } else {
        Fate::Zero(UnmapTo::Absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_blocks_around_one_that_is_rewritten_are_one_write() {
        let placed = |first, count, fate, new: Option<u64>| Placed {
            run: Run {
                blocks: BlockRange::new(Lba(first), count),
                fate,
            },
            new: new.map(Pba),
        };
        let runs = consecutive(&[
            placed(10, 3, Fate::New, Some(100)),
            placed(13, 1, Fate::InPlace(Pba(103)), None),
            placed(14, 2, Fate::New, Some(104)),
            // Consecutive in the pool, but not in the volume.
            placed(16, 1, Fate::Hit(Pba(7)), None),
            placed(17, 1, Fate::New, Some(106)),
            // The other way round.
            placed(18, 1, Fate::InPlace(Pba(90)), None),
        ]);
        let expected = [
            (BlockRange::new(Lba(10), 6), Pba(100)),
            (BlockRange::new(Lba(17), 1), Pba(106)),
            (BlockRange::new(Lba(18), 1), Pba(90)),
        ];
        assert_eq!(runs[..], expected);
    }
}
