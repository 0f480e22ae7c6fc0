//! Recently written blocks, which the finder leaves alone ([DEDIS §4.5]).
//!
//! Hints only, kept with a segment in the cache and lost with it: a segment that was dropped from
//! the cache, or was never in it since the pool was opened, counts as not recently written. The
//! write path sets one bit; everything else happens when the finder looks.

use std::ops::Range;

use crate::sync::{AtomicU64, Mutex, lock};
use onefold_format::catalogue_page::COLD_PASSES;
use onefold_format::units::BLOCKS_PER_SEGMENT;
use std::sync::atomic::Ordering::Relaxed;

const SLOTS: usize = BLOCKS_PER_SEGMENT as usize;
const WORDS: usize = SLOTS / 64;

/// The most looks for which a block can be left alone.
const COLD_PASSES_MAX: u8 = *COLD_PASSES.end();

/// A hot block that stays as it was published counts as hot no longer after this number of looks.
const FORGET_AFTER: u8 = 31;

const _: () = assert!(COLD_PASSES_MAX < FORGET_AFTER);

/// A bit for each slot.
pub type SlotBits = [u64; WORDS];

/// Hints about the blocks of one segment.
pub struct Heat {
    /// Written since the last look.
    written: [AtomicU64; WORDS],
    ages: Mutex<Ages>,
}

#[derive(Default)]
struct Ages {
    /// Nothing was written between the segment's last drop from the cache and its loading.
    was_cold: bool,
    slots: Option<Box<[Age; SLOTS]>>,
}

/// bits 0..5 passes since the last write; 5..7 how often the passes were doubled; 7 published
#[derive(Clone, Copy, Default)]
struct Age(u8);

impl Age {
    fn new(looks: u8, doublings: u8, published: bool) -> Self {
        Self(looks.min(FORGET_AFTER) | doublings.min(3) << 5 | u8::from(published) << 7)
    }

    fn looks(self) -> u8 {
        self.0 & 31
    }

    fn doublings(self) -> u8 {
        self.0 >> 5 & 3
    }

    fn published(self) -> bool {
        self.0 >> 7 == 1
    }

    /// The age after one more look; `was_written` says whether the block was written before it.
    fn after_look(self, was_written: bool) -> Self {
        if was_written {
            // Rewritten after it was published: that cost a copy, so the next time it waits longer.
            return Self::new(0, self.doublings() + u8::from(self.published()), false);
        }
        let looks = self.looks() + 1;
        if looks >= FORGET_AFTER {
            return Self::new(looks, 0, false);
        }
        Self::new(looks, self.doublings(), self.published())
    }

    fn is_cold(self, cold_passes: u8) -> bool {
        let wanted = (u32::from(cold_passes) << self.doublings()).min(u32::from(COLD_PASSES_MAX));
        u32::from(self.looks()) >= wanted
    }
}

impl Heat {
    /// The heat of a segment that was just loaded (`was_cold`), or in which nothing was mapped so
    /// far.
    pub fn new(was_cold: bool) -> Self {
        Self {
            written: std::array::from_fn(|_| AtomicU64::new(0)),
            ages: Mutex::new(Ages {
                was_cold,
                slots: None,
            }),
        }
    }

    /// Marks slots that are being written.
    pub fn touch(&self, slots: Range<usize>) {
        let mut at = slots.start;
        while at < slots.end {
            let (word, low) = (at / 64, at % 64);
            let count = (64 - low).min(slots.end - at);
            let mask = (u64::MAX >> (64 - count)) << low;
            // A word that has the bits already is not written: no cache line moves.
            if self.written[word].load(Relaxed) & mask != mask {
                self.written[word].fetch_or(mask, Relaxed);
            }
            at += count;
        }
    }

    /// Does a pass's look: returns the slots that have not been written for `cold_passes` passes.
    pub fn look(&self, cold_passes: u8) -> SlotBits {
        let mut ages = lock(&self.ages);
        let first = if ages.was_cold { COLD_PASSES_MAX } else { 0 };
        let slots = ages
            .slots
            .get_or_insert_with(|| Box::new([Age::new(first, 0, false); SLOTS]));
        let mut cold = SlotBits::default();
        for (word, cold) in cold.iter_mut().enumerate() {
            let written = self.written[word].swap(0, Relaxed);
            for (bit, age) in slots[word * 64..][..64].iter_mut().enumerate() {
                *age = age.after_look(written >> bit & 1 == 1);
                *cold |= u64::from(age.is_cold(cold_passes)) << bit;
            }
        }
        cold
    }

    /// The result of the last look, without slots written since.
    pub fn still_cold(&self, cold_passes: u8) -> SlotBits {
        let ages = lock(&self.ages);
        let mut cold = SlotBits::default();
        let slots = ages.slots.iter().flat_map(|slots| slots.iter().enumerate());
        for (slot, age) in slots {
            let is_written = self.written[slot / 64].load(Relaxed) >> (slot % 64) & 1 == 1;
            cold[slot / 64] |= u64::from(!is_written && age.is_cold(cold_passes)) << (slot % 64);
        }
        cold
    }

    /// Marks this slot's block as published: later writes to it count until it is forgotten.
    pub fn published(&self, slot: usize) {
        if let Some(slots) = &mut lock(&self.ages).slots {
            slots[slot] = Age::new(0, slots[slot].doublings(), true);
        }
    }
}

/// Whether the slot's bit is set.
pub fn has(bits: &SlotBits, slot: usize) -> bool {
    bits[slot / 64] >> (slot % 64) & 1 == 1
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::{Heat, has};

    #[test]
    fn a_block_is_cold_after_passes_without_a_write() {
        let heat = Heat::new(false);
        heat.touch(7..8);
        let looks: Vec<bool> = (0..4).map(|_| has(&heat.look(2), 7)).collect();
        assert_eq!(looks, [false, false, true, true]);
        heat.touch(0..512);
        assert!(!has(&heat.look(2), 7) && !has(&heat.look(2), 511));
        assert!(has(&heat.look(2), 7));
    }

    #[test]
    fn what_was_not_in_memory_is_cold() {
        let heat = Heat::new(true);
        heat.touch(3..4);
        let cold = heat.look(2);
        assert!(has(&cold, 2) && !has(&cold, 3));
    }

    #[test]
    fn rewriting_what_was_published_doubles_the_passes_up_to_sixteen() {
        let heat = Heat::new(false);
        let mut waits = Vec::new();
        for _ in 0..6 {
            heat.touch(9..10);
            let mut looks = 0;
            while !has(&heat.look(2), 9) {
                looks += 1;
            }
            waits.push(looks);
            heat.published(9);
        }
        assert_eq!(waits, [2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn what_stays_as_it_was_published_is_forgiven() {
        let heat = Heat::new(false);
        for _ in 0..3 {
            heat.look(1);
            heat.published(0);
            heat.touch(0..1);
        }
        heat.look(1);
        assert!(!has(&heat.look(2), 0), "doubled");
        for _ in 0..40 {
            heat.look(2);
        }
        heat.touch(0..1);
        heat.look(2);
        heat.look(2);
        assert!(has(&heat.look(2), 0));
    }
}
