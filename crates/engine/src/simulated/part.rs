//! One part: the content that readers see, the durable content, and the changes between the two.
//!
//! Invariant: unless a failed sync has dropped something, `current` is `durable` with all of
//! `unsynced` applied in order.

use super::cluster::Objects;
use super::image::{CHUNK_BYTES, Image};
use super::orders::{PowerLossBias, SECTOR_BYTES};
use super::random::Random;
use super::unsynced::{Fate, Unsynced, power_loss, torn};
use std::collections::BTreeSet;
use std::ops::Range;

/// A part's state.
#[derive(Debug, Clone, Default)]
pub(super) struct PartState {
    pub(super) current: Image,
    pub(super) durable: Image,
    pub(super) unsynced: Vec<Unsynced>,
    /// Ranges that the medium cannot read.
    pub(super) unreadable: Vec<Range<u64>>,
    /// The number of the next change.
    next_number: u64,
    /// The state of the part's objects, if it is in a cluster.
    pub(super) objects: Option<Objects>,
}

impl PartState {
    /// An empty part, durably there.
    pub(super) fn new(len: u64, objects: Option<Objects>) -> PartState {
        PartState::durably(Image::new(len), objects)
    }

    pub(super) fn durably(image: Image, objects: Option<Objects>) -> PartState {
        PartState {
            current: image.clone(),
            durable: image,
            objects,
            ..PartState::default()
        }
    }

    /// The content of the medium after the power loss.
    pub(super) fn after_power_loss(&self, bias: &PowerLossBias, random: &mut Random) -> PartState {
        let mut image = self.durable.clone();
        let fates = power_loss(self.unsynced.len(), bias, random);
        for (change, fate) in self.unsynced.iter().zip(fates) {
            for survivor in change.survivors(fate, &image, random) {
                survivor.apply(&mut image);
            }
        }
        PartState {
            unreadable: self.unreadable.clone(),
            ..PartState::durably(image, None)
        }
    }

    /// Whether a read of this range fails.
    pub(super) fn is_unreadable(&self, range: &Range<u64>) -> bool {
        let mut bad = self.unreadable.iter();
        bad.any(|bad| bad.start < range.end && range.start < bad.end)
    }

    /// Whether there is anything to read in this range: it ends before the part does, and before each of its objects
    /// in a cluster.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        if range.end > self.current.len {
            return false;
        }
        let Some(placement) = self.placement() else {
            return true;
        };
        let mut pieces = placement.pieces(range.clone());
        pieces.all(|piece| {
            let object = placement.object_of(piece.start);
            self.current
                .next_data(piece.end - 1)
                .is_some_and(|at| at < object.end)
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        if bytes.is_empty() {
            return;
        }
        self.readable(&(offset..offset + bytes.len() as u64));
        let number = self.number();
        self.unsynced
            .push(Unsynced::write(number, &mut self.current, bytes, offset));
    }

    /// Makes a written range readable: the device replaces the sectors that it could not read.
    pub(super) fn readable(&mut self, written: &Range<u64>) {
        let rest = |bad: &Range<u64>| {
            let before = bad.start..bad.end.min(written.start);
            let after = bad.start.max(written.end)..bad.end;
            [before, after]
        };
        self.unreadable = self.unreadable.iter().flat_map(rest).collect();
        self.unreadable.retain(|bad| !bad.is_empty());
    }

    /// A write that fails half way: each sector may have been written.
    pub(super) fn write_torn(&mut self, bytes: &[u8], offset: u64, random: &mut Random) {
        let head = (offset % SECTOR_BYTES) as usize;
        for sectors in torn(0..head + bytes.len(), random) {
            let from = sectors.start.saturating_sub(head);
            let piece = &bytes[from..sectors.end - head];
            self.write(piece, offset + from as u64);
        }
    }

    pub(super) fn discard(&mut self, range: Range<u64>) {
        self.discard_ranges(vec![range]);
    }

    /// A discard that fails half way: each sector may have been discarded.
    pub(super) fn discard_torn(&mut self, range: Range<u64>, random: &mut Random) {
        let ranges = self.current.torn_discard(&range, random);
        self.discard_ranges(ranges);
    }

    fn discard_ranges(&mut self, ranges: Vec<Range<u64>>) {
        let number = self.number();
        self.unsynced
            .push(Unsynced::discard(number, &mut self.current, ranges));
    }

    pub(super) fn reserve(&mut self, range: Range<u64>) {
        let number = self.number();
        self.unsynced
            .push(Unsynced::reserve(number, &mut self.current, range));
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let number = self.number();
        self.unsynced
            .push(Unsynced::set_len(number, &mut self.current, len));
    }

    /// A sync that starts now covers the changes before this number.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Handles the success of a sync that started at `number`.
    pub(super) fn sync(&mut self, number: u64) {
        let covered = self.covered(number);
        let later = self.unsynced.split_off(covered);
        for change in std::mem::replace(&mut self.unsynced, later) {
            match self.objects {
                Some(_) => change.apply_within(&mut self.durable),
                None => change.apply(&mut self.durable),
            }
        }
    }

    /// Handles the failure of a sync that started at `number`: the kernel marks all pages clean, so data that did not
    /// reach the disk never will, whatever is synced later. Readers still see it, except in the pages that the kernel
    /// evicts at this rate.
    pub(super) fn sync_failed(&mut self, number: u64, eviction_rate: f64, random: &mut Random) {
        let later = self.unsynced.split_off(self.covered(number));
        let mut image = self.durable.clone();
        let covered = std::mem::replace(&mut self.unsynced, later);
        let written: Vec<Range<u64>> = covered.iter().filter_map(Unsynced::written).collect();
        for change in covered {
            let fate = match random.below(3) {
                0 => Fate::Whole,
                1 => Fate::Lost,
                _ => Fate::Torn,
            };
            for survivor in change.survivors(fate, &image, random) {
                survivor.apply(&mut image);
                self.unsynced.push(survivor);
            }
        }
        // Changes are applied in the order of the numbers, so the last write wins.
        self.unsynced.sort_by_key(|change| change.number);
        self.evict(&written, eviction_rate, random);
    }

    /// Evicts some of the pages in these ranges: their readers see the medium's content.
    fn evict(&mut self, written: &[Range<u64>], rate: f64, random: &mut Random) {
        let pages = written
            .iter()
            .flat_map(|range| range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES));
        let evicted: BTreeSet<u64> = pages.filter(|_| random.chance(rate)).collect();
        if evicted.is_empty() {
            return;
        }
        let medium = self.without_dropped();
        let mut bytes = [0; CHUNK_BYTES as usize];
        for page in evicted {
            let start = page * CHUNK_BYTES;
            let len = self.current.len.saturating_sub(start).min(CHUNK_BYTES) as usize;
            medium.read(&mut bytes[..len], start);
            self.current.write(&bytes[..len], start);
        }
    }

    /// Shows readers the durable content and the changes that a sync may still make durable, and no longer the data
    /// that a failed sync dropped.
    pub(super) fn forget_cached(&mut self) {
        self.current = self.without_dropped();
    }

    pub(super) fn without_dropped(&self) -> Image {
        let mut image = self.durable.clone();
        for change in &self.unsynced {
            match self.objects {
                Some(_) => change.apply_within(&mut image),
                None => change.apply(&mut image),
            }
        }
        image
    }

    /// How much of a write fits if the part may take `capacity` bytes of the medium.
    pub(super) fn room_for(&self, offset: u64, len: usize, capacity: Option<u64>) -> usize {
        let Some(capacity) = capacity else { return len };
        let mut room = capacity.saturating_sub(self.current.allocated_bytes());
        let mut fits = 0;
        while fits < len {
            let at = offset + fits as u64;
            let piece = ((CHUNK_BYTES - at % CHUNK_BYTES) as usize).min(len - fits);
            match room.checked_sub(self.current.missing_bytes(at..at + piece as u64)) {
                Some(left) => room = left,
                None => break,
            }
            fits += piece;
        }
        fits
    }

    /// Whether a reservation fits when the part may take `capacity` bytes of the medium.
    pub(super) fn can_reserve(&self, range: Range<u64>, capacity: Option<u64>) -> bool {
        let needed = self.current.allocated_bytes() + self.current.missing_bytes(range);
        capacity.is_none_or(|capacity| needed <= capacity)
    }

    fn covered(&self, number: u64) -> usize {
        self.unsynced
            .partition_point(|change| change.number < number)
    }

    pub(super) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}
