//! Step 1 of a batch: publishing.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use onefold_format::entry::State;
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Entry, Lba, PublishRun, Record, SegmentIndex};
use onefold_metadata::heat::{self, SlotBits};
use onefold_metadata::{Blocking, Guard, Layer, Leaf, MetadataState, Result, Wanted, bits};

use super::scan::Scan;
use crate::dedup::Dedup;
use crate::volume::Volume;

/// A batch that is being announced.
struct Announced<'a> {
    volume: &'a Volume,
    layer: &'a Arc<Layer>,
    number: u64,
    /// Only candidates are announced.
    is_read: bool,
}

impl Announced<'_> {
    /// The wanted slots of a segment that the batch may have.
    fn publishable(&self, leaf: &Leaf, wanted: SlotBits) -> SlotBits {
        if !self.is_read {
            return wanted;
        }
        let candidates = leaf.candidates.slots();
        std::array::from_fn(|word| wanted[word] & candidates[word])
    }
}

/// The blocks that were announced in a segment.
struct Taken {
    count: u64,
    /// Where the scan continues.
    next: Lba,
}

impl Dedup {
    /// Step 1 for blocks that were read, as far as they are candidates still. Returns whether the volume's end was reached.
    pub(super) fn announce_read(
        &self,
        volume: &Volume,
        cursor: &mut Lba,
        scan: &Scan,
    ) -> Result<bool> {
        // A snapshot has frozen the layer since.
        if !Arc::ptr_eq(&scan.layer, &volume.layer()) {
            return Ok(false);
        }
        let mut room = self.room(&scan.layer)?;
        if room == 0 {
            return Ok(true);
        }
        let batch = Announced {
            volume,
            layer: &scan.layer,
            number: self.pool.journal().metadata()?.batches().next_number(),
            is_read: true,
        };
        for scanned in &scan.segments {
            let first = scanned.segment.first();
            if room == 0 {
                *cursor = first;
                return Ok(false);
            }
            let taken = self.announce_in_segment(&batch, first, room, &scanned.slots)?;
            room -= taken.count;
        }
        *cursor = scan.next.unwrap_or(*cursor);
        Ok(scan.next.is_none())
    }

    /// Step 1 for all private blocks. Returns whether the volume's end was reached.
    pub(super) fn announce_all(&self, volume: &Volume, cursor: &mut Lba) -> Result<bool> {
        let layer = &volume.layer();
        let mut room = self.room(layer)?;
        if room == 0 {
            return Ok(true);
        }
        let batch = Announced {
            volume,
            layer,
            number: self.pool.journal().metadata()?.batches().next_number(),
            is_read: false,
        };
        while room > 0 {
            let next =
                self.pool
                    .maps()
                    .next_segment(layer, cursor.segment(), Wanted::Publishable)?;
            let Some(segment) = next else { return Ok(true) };
            let first = segment.first().max(*cursor);
            let taken = self.announce_in_segment(&batch, first, room, &[u64::MAX; 8])?;
            room -= taken.count;
            *cursor = taken.next;
        }
        Ok(false)
    }

    /// How many blocks of a layer a batch may take.
    pub(super) fn room(&self, layer: &Layer) -> Result<u64> {
        let free_space = self.pool.journal().free_space();
        let sharable = free_space.sharable(&layer.space_limits)?;
        Ok(sharable.min(BATCH_ITEMS_MAX.into()))
    }

    fn announce_in_segment(
        &self,
        batch: &Announced<'_>,
        first: Lba,
        room: u64,
        wanted: &SlotBits,
    ) -> Result<Taken> {
        let layer = batch.layer;
        let segment = first.segment();
        let end = SegmentIndex(segment.0 + 1).first();
        let choose = |within: Range<Lba>| -> Result<_> {
            let leaf = self.pool.maps().leaf(layer, segment, Blocking::Yes)?;
            let chosen = leaf.with(|entries| {
                let wanted = self.without_bad(entries, wanted);
                choose(entries, within, room, &batch.publishable(&leaf, wanted))
            });
            Ok((leaf, chosen))
        };
        // Checked without the lock first: most segments have nothing to publish.
        let (_, (runs, next)) = choose(first..end)?;
        let (Some(from), Some(to)) = (runs.first(), runs.last()) else {
            return Ok(Taken {
                count: 0,
                next: end,
            });
        };
        // A block outside the locked range may have become private since, and a write to it may be in
        // flight: the second choice does not reach beyond the range.
        let range = from.lba..to.lba + u64::from(to.count);
        let next = next.unwrap_or(end);
        let _locked = layer.locks.lock(range.start.0..range.end.0, Blocking::Yes);
        // Removing a volume holds all of its blocks until no entry is left.
        batch.volume.check_has_blocks()?;
        let (leaf, (runs, _)) = if Guard::PublishedLocked.holds() {
            choose(range)?
        } else {
            choose(first..end)?
        };
        let count: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        if count > 0 {
            for run in &runs {
                (run.lba.slot()..run.lba.slot() + run.count as usize)
                    .for_each(|slot| leaf.heat.published(slot));
            }
            let publish = Record::Publish {
                layer: layer.id,
                number: batch.number,
                runs,
            };
            let is_refused = Cell::new(false);
            let journal = self.pool.journal();
            let (free_space, space_limits) = (journal.free_space(), &layer.space_limits);
            let admit = |metadata: &MetadataState| {
                let admitted = free_space.admit_sharing(space_limits, metadata, count);
                admitted.inspect_err(|_| is_refused.set(true))
            };
            match journal.append(&[publish], &[], Blocking::Yes, Some(&admit)) {
                // The volume would own fewer blocks, and no others could be kept free for it.
                Err(_) if is_refused.get() => {
                    return Ok(Taken { count: 0, next });
                }
                recorded => recorded?,
            }
        }
        Ok(Taken { count, next })
    }

    /// The wanted slots, without blocks that are lost or known to be bad.
    pub(super) fn without_bad(&self, entries: &[Entry], wanted: &SlotBits) -> SlotBits {
        let mut wanted = *wanted;
        if self.pool.bad().is_any() || self.pool.data().has_lost() {
            let is_bad = |pba| self.pool.bad().get(pba).is_some() || self.pool.data().is_lost(pba);
            for (slot, entry) in entries.iter().enumerate() {
                if entry.pba().is_some_and(is_bad) {
                    bits::fill(&mut wanted, slot..slot + 1, false);
                }
            }
        }
        wanted
    }
}

/// Private entries of a part of a segment whose slots are wanted, `room` of them at most, as runs;
/// and where to continue if that was not all.
pub(super) fn choose(
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
