//! Changes of a part that are not durable yet, and their possible outcomes.
//!
//! A write is kept as the whole sectors that resulted from it, because a disk writes nothing
//! smaller: a later write to another part of the same sector includes the earlier one. Each sector
//! of each write then survives or not, applied in order, so a sector that was written several times
//! may return as any of its versions or as the old one.

use super::image::Image;
use super::orders::{PowerLossBias, SECTOR_BYTES};
use super::random::Random;
use std::ops::Range;
use std::sync::Arc;

/// A change that is not durable yet.
#[derive(Debug, Clone)]
pub(super) struct Unsynced {
    /// The change's place in the order of all changes of the part.
    pub(super) number: u64,
    change: Change,
}

#[derive(Debug, Clone)]
enum Change {
    /// Whole sectors `of` a write's result.
    Write {
        offset: u64,
        bytes: Arc<[u8]>,
        of: Range<usize>,
    },
    /// Ranges that read as zeros now. Changes no length.
    Discard { ranges: Vec<Range<u64>> },
    /// The space of this range is reserved, and the part reaches at least to its end.
    Reserve { range: Range<u64> },
    /// The part became exactly this long.
    SetLen { len: u64 },
    /// The part reaches at least to here; its content is as it is.
    Grow { len: u64 },
    /// The part became exactly this long; its content is as it is, also beyond the end.
    Len { len: u64 },
}

/// The outcome of one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Whole,
    Lost,
    /// Each sector survives or not by itself.
    Torn,
}

impl Unsynced {
    /// Writes to the image that readers see, and remembers which sectors that changed.
    pub(super) fn write(number: u64, current: &mut Image, bytes: &[u8], offset: u64) -> Unsynced {
        let len = current.len.max(offset + bytes.len() as u64);
        current.write(bytes, offset);
        let start = offset - offset % SECTOR_BYTES;
        let end = (offset + bytes.len() as u64).next_multiple_of(SECTOR_BYTES);
        // A part may end inside a sector, but bytes beyond its end are not written.
        let end = end.min(len);
        let sectors: Arc<[u8]> = if (start..end) == (offset..offset + bytes.len() as u64) {
            bytes.into()
        } else {
            let mut sectors = vec![0; (end - start) as usize];
            current.read(&mut sectors, start);
            sectors.into()
        };
        let of = 0..sectors.len();
        let change = Change::Write {
            offset: start,
            bytes: sectors,
            of,
        };
        Unsynced { number, change }
    }

    /// Zeroes ranges in the image that readers see.
    pub(super) fn discard(number: u64, current: &mut Image, ranges: Vec<Range<u64>>) -> Unsynced {
        for range in &ranges {
            current.punch(range.clone());
        }
        Unsynced {
            number,
            change: Change::Discard { ranges },
        }
    }

    /// Reserves space in the image that readers see.
    pub(super) fn reserve(number: u64, current: &mut Image, range: Range<u64>) -> Unsynced {
        let reserve = Unsynced {
            number,
            change: Change::Reserve { range },
        };
        reserve.apply(current);
        reserve
    }

    /// Cuts or grows the image that readers see.
    pub(super) fn set_len(number: u64, current: &mut Image, len: u64) -> Unsynced {
        let set = Unsynced {
            number,
            change: Change::SetLen { len },
        };
        set.apply(current);
        set
    }

    /// The range that the change wrote, if it is a write.
    pub(super) fn written(&self) -> Option<Range<u64>> {
        match &self.change {
            Change::Write { offset, of, .. } => {
                Some(offset + of.start as u64..offset + of.end as u64)
            }
            _ => None,
        }
    }

    /// A write of exactly these bytes, to be applied.
    pub(super) fn exactly(number: u64, bytes: &[u8], offset: u64) -> Unsynced {
        let (bytes, of) = (bytes.into(), 0..bytes.len());
        let change = Change::Write { offset, bytes, of };
        Unsynced { number, change }
    }

    /// A discard, to be applied.
    pub(super) fn discard_of(number: u64, range: Range<u64>) -> Unsynced {
        let ranges = vec![range];
        let change = Change::Discard { ranges };
        Unsynced { number, change }
    }

    /// A part that becomes longer, to be applied.
    pub(super) fn grow(number: u64, len: u64) -> Unsynced {
        let change = Change::Grow { len };
        Unsynced { number, change }
    }

    /// A part that gets this length, to be applied.
    pub(super) fn len(number: u64, len: u64) -> Unsynced {
        let change = Change::Len { len };
        Unsynced { number, change }
    }

    /// The object that the change is in; nothing for a change of the pool's head.
    pub(super) fn object(&self, object_bytes: u64) -> Option<u64> {
        match &self.change {
            Change::Write { offset, .. } => Some(offset / object_bytes),
            Change::Discard { ranges } => Some(ranges.first()?.start / object_bytes),
            _ => None,
        }
    }

    /// Applies the change to an image whose length only the head's changes change.
    pub(super) fn apply_within(&self, image: &mut Image) {
        let len = image.len;
        self.apply(image);
        if let Change::Write { .. } = &self.change {
            image.len = len;
        }
    }

    /// Applies the change to an image.
    pub(super) fn apply(&self, image: &mut Image) {
        match &self.change {
            Change::Write { offset, bytes, of } => {
                image.write(&bytes[of.clone()], offset + of.start as u64);
            }
            Change::Discard { ranges } => {
                for range in ranges {
                    image.punch(range.clone());
                }
            }
            Change::Reserve { range } => {
                image.reserve(range.clone());
            }
            Change::SetLen { len } => image.set_len(*len),
            Change::Grow { len } => image.len = image.len.max(*len),
            Change::Len { len } => image.len = *len,
        }
    }

    /// The changes that remain with this fate, for an image without this change.
    pub(super) fn survivors(&self, fate: Fate, image: &Image, random: &mut Random) -> Vec<Self> {
        match fate {
            Fate::Whole => return vec![self.clone()],
            Fate::Lost => return Vec::new(),
            Fate::Torn => {}
        }
        match &self.change {
            Change::Write { offset, bytes, of } => {
                let kept = |of: Range<usize>| Unsynced {
                    number: self.number,
                    change: Change::Write {
                        offset: *offset,
                        bytes: bytes.clone(),
                        of,
                    },
                };
                torn(of.clone(), random).into_iter().map(kept).collect()
            }
            Change::Discard { ranges } => {
                let torn = ranges
                    .iter()
                    .flat_map(|range| image.torn_discard(range, random));
                let ranges = torn.collect();
                vec![Unsynced {
                    number: self.number,
                    change: Change::Discard { ranges },
                }]
            }
            _ if random.coin() => vec![self.clone()],
            _ => Vec::new(),
        }
    }
}

/// The parts of a range of whole sectors that survive when each sector does by itself. `range`
/// starts at a sector.
pub(super) fn torn(range: Range<usize>, random: &mut Random) -> Vec<Range<usize>> {
    let mut kept: Vec<Range<usize>> = Vec::new();
    for start in range.clone().step_by(SECTOR_BYTES as usize) {
        if random.coin() {
            let end = (start + SECTOR_BYTES as usize).min(range.end);
            match kept.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => kept.push(start..end),
            }
        }
    }
    kept
}

/// Draws the effect of a power loss on a part's changes, in their order.
///
/// The extremes and the cut in the middle are drawn far more often than by chance, because simple
/// recovery code gets them right and a test must also see them.
pub(super) fn power_loss(count: usize, bias: &PowerLossBias, random: &mut Random) -> Vec<Fate> {
    match random.below(8) {
        0 => vec![Fate::Whole; count],
        1 => vec![Fate::Lost; count],
        2 | 3 => {
            let cut = random.below(count as u64 + 1) as usize;
            let fate = |at: usize| match at.cmp(&cut) {
                std::cmp::Ordering::Less => Fate::Whole,
                std::cmp::Ordering::Equal => Fate::Torn,
                std::cmp::Ordering::Greater => Fate::Lost,
            };
            (0..count).map(fate).collect()
        }
        _ => (0..count).map(|_| one_fate(bias, random)).collect(),
    }
}

fn one_fate(bias: &PowerLossBias, random: &mut Random) -> Fate {
    let (whole, lost, torn) = (bias.whole.into(), bias.lost.into(), bias.torn.into());
    let sum: u64 = [whole, lost, torn].iter().sum();
    // All weights zero means that the caller does not care.
    let drawn = random.below(sum.max(1));
    if drawn < whole {
        Fate::Whole
    } else if drawn < whole + lost {
        Fate::Lost
    } else {
        Fate::Torn
    }
}
