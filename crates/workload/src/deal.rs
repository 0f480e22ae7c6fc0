//! Deals contents: each content of a scaled distribution exactly as often as it should occur, in runs of
//! the distribution's lengths, in a random order determined by a seed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::permutation::{Permutation, mix};
use crate::scale::{Cell, Runs, Scaled};

/// Identifies a content; equal ids have equal blocks. Contents that occur once have the highest bit
/// set.
pub type ContentId = u64;

/// Distinguishes contents that are never repeated from the others.
pub const UNIQUE: ContentId = 1 << 63;

/// The most runs that are dealt together. It is reached if one class has many more runs than the
/// other; their neighbours then merge anyway.
const RUNS_MAX: u64 = 64;

/// The part of the blocks that one of several concurrent programs deals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The number of this part, from 0.
    pub index: u64,
    /// The number of parts, at least 1.
    pub count: u64,
}

/// Consecutive contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Piece {
    /// The first content; the others have consecutive numbers.
    first: ContentId,
    blocks: u64,
}

impl Piece {
    /// Cuts off the part beyond this many blocks.
    fn split_off(&mut self, blocks: u64) -> Self {
        let kept = self.blocks.min(blocks);
        let rest = Self {
            first: self.first + kept,
            blocks: self.blocks - kept,
        };
        self.blocks = kept;
        rest
    }
}

/// Contents to write one after another: a few runs of both classes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    pieces: VecDeque<Piece>,
    blocks: u64,
}

impl Run {
    /// How many contents are left in the run.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Removes and returns the first content, if there is one.
    pub fn take_first(&mut self) -> Option<ContentId> {
        let piece = self.pieces.front_mut()?;
        let first = piece.first;
        *piece = piece.split_off(1);
        if piece.blocks == 0 {
            self.pieces.pop_front();
        }
        self.blocks -= 1;
        Some(first)
    }

    fn push(&mut self, piece: Piece) {
        if piece.blocks > 0 {
            self.blocks += piece.blocks;
            self.pieces.push_back(piece);
        }
    }

    /// Cuts off the part beyond this many blocks.
    fn split_off(&mut self, blocks: u64) -> Self {
        let (mut kept, mut rest) = (Self::default(), Self::default());
        for mut piece in std::mem::take(&mut self.pieces) {
            let beyond = piece.split_off(blocks - kept.blocks.min(blocks));
            kept.push(piece);
            rest.push(beyond);
        }
        *self = kept;
        rest
    }
}

/// Runs or pieces of one length, and the slot and the content at which they begin.
#[derive(Debug)]
struct Placed<T> {
    slot: u64,
    content: u64,
    of: T,
}

impl<T> Placed<T> {
    /// The entry of a list, sorted by slot, that contains this slot.
    fn at(all: &[Self], slot: u64) -> Option<&Self> {
        let after = all.partition_point(|placed| placed.slot <= slot);
        all.get(after.checked_sub(1)?)
    }
}

/// Unique runs in slots, grouped by length.
#[derive(Debug)]
struct Unique {
    runs: Vec<Placed<Runs>>,
    slots: u64,
    contents: u64,
}

impl Unique {
    fn new(all: &[Runs]) -> Self {
        let mut unique = Self {
            runs: Vec::with_capacity(all.len()),
            slots: 0,
            contents: 0,
        };
        for runs in all {
            unique.runs.push(Placed {
                slot: unique.slots,
                content: unique.contents,
                of: *runs,
            });
            unique.slots += runs.runs;
            unique.contents += runs.runs * runs.length;
        }
        unique
    }

    fn run(&self, slot: u64) -> Piece {
        let piece = |runs: &Placed<Runs>| Piece {
            first: runs.content + (slot - runs.slot) * runs.of.length,
            blocks: runs.of.length,
        };
        Placed::at(&self.runs, slot).map_or_else(Piece::default, piece)
    }
}

/// Redundant runs, and the pieces that make them up. A run is one piece of its length while there are
/// any; the other runs are made of spare pieces, one after another.
#[derive(Debug)]
struct Redundant {
    lengths: Vec<Length>,
    /// The pieces by length. A piece takes one slot per copy.
    cells: Vec<Placed<Cell>>,
    runs: u64,
    spares: u64,
}

/// The runs and the pieces of one length.
#[derive(Debug)]
struct Length {
    length: u64,
    /// The numbers of these runs among all runs.
    runs: Range<u64>,
    /// The slots of the pieces.
    pieces: Range<u64>,
    /// The numbers of the spare pieces of this length among all spare pieces.
    spares: Range<u64>,
}

impl Length {
    /// How many runs consist of a single piece.
    fn whole(&self) -> u64 {
        (self.runs.end - self.runs.start).min(self.pieces.end - self.pieces.start)
    }
}

/// How a redundant run is made up.
enum Layout {
    Whole(Piece),
    /// Spare pieces with this number of blocks in total.
    Spares(u64),
}

impl Redundant {
    fn new(runs: &[Runs], pieces: &[Cell]) -> Self {
        let mut cells = pieces.to_vec();
        cells.sort_by_key(|cell| cell.length);
        let mut lengths: Vec<u64> = runs.iter().map(|runs| runs.length).collect();
        lengths.extend(cells.iter().map(|cell| cell.length));
        lengths.sort_unstable();
        lengths.dedup();
        let mut redundant = Self {
            lengths: Vec::with_capacity(lengths.len()),
            cells: Vec::with_capacity(cells.len()),
            runs: 0,
            spares: 0,
        };
        let (mut slots, mut contents) = (0, 0);
        for cell in &cells {
            redundant.cells.push(Placed {
                slot: slots,
                content: contents,
                of: *cell,
            });
            slots += cell.pieces * cell.copies;
            contents += cell.pieces * cell.length;
        }
        slots = 0;
        for length in lengths {
            let of_length = runs.iter().filter(|runs| runs.length == length);
            let runs: u64 = of_length.map(|runs| runs.runs).sum();
            let of_length = cells.iter().filter(|cell| cell.length == length);
            let pieces: u64 = of_length.map(|cell| cell.pieces * cell.copies).sum();
            let spares = pieces.saturating_sub(runs);
            redundant.lengths.push(Length {
                length,
                runs: redundant.runs..redundant.runs + runs,
                pieces: slots..slots + pieces,
                spares: redundant.spares..redundant.spares + spares,
            });
            redundant.runs += runs;
            redundant.spares += spares;
            slots += pieces;
        }
        redundant
    }

    fn run(&self, order: &Order, place: u64) -> Layout {
        let run = order.redundant.at(place);
        let n = self
            .lengths
            .partition_point(|length| length.runs.start <= run);
        let Some(it) = self.lengths.get(n.wrapping_sub(1)) else {
            return Layout::Spares(0);
        };
        match run - it.runs.start {
            place if place < it.whole() => Layout::Whole(self.piece(order, n - 1, place)),
            _ => Layout::Spares(it.length),
        }
    }

    fn spare(&self, order: &Order, place: u64) -> Piece {
        let spare = order.spares.at(place);
        let n = self
            .lengths
            .partition_point(|length| length.spares.start <= spare);
        match self.lengths.get(n.wrapping_sub(1)) {
            Some(it) => self.piece(order, n - 1, it.whole() + spare - it.spares.start),
            None => Piece::default(),
        }
    }

    /// The piece of the n-th length in this place.
    fn piece(&self, order: &Order, n: usize, place: u64) -> Piece {
        let slot = self.lengths[n].pieces.start + order.pieces[n].at(place);
        let piece = |cells: &Placed<Cell>| Piece {
            first: cells.content + (slot - cells.slot) / cells.of.copies * cells.of.length,
            blocks: cells.of.length,
        };
        Placed::at(&self.cells, slot).map_or_else(Piece::default, piece)
    }
}

/// The order of an epoch's slots.
#[derive(Debug)]
struct Order {
    unique: Permutation,
    redundant: Permutation,
    spares: Permutation,
    /// The order of the pieces, for each length.
    pieces: Vec<Permutation>,
}

/// Deals to any number of jobs, which together get the distribution.
///
/// When all of it has been dealt, a new epoch begins: redundant contents come again in another
/// order, and unique ones are new.
#[derive(Debug)]
pub struct Dealer {
    unique: Unique,
    redundant: Redundant,
    seed: u64,
    /// The blocks of an epoch that this dealer deals.
    own: Range<u64>,
    dealing: Mutex<Dealing>,
}

#[derive(Debug)]
struct Dealing {
    epoch: u64,
    order: Order,
    /// The number of runs of this epoch that were dealt, and of their blocks.
    runs: u64,
    blocks: u64,
    /// The number of spare pieces that were dealt, and the rest of the last one.
    spares: u64,
    spare: Piece,
    /// Rests of runs that were cut off, to be dealt next.
    rests: Vec<Run>,
}

impl Dealing {
    fn new(epoch: u64, order: Order) -> Self {
        Self {
            epoch,
            order,
            runs: 0,
            blocks: 0,
            spares: 0,
            spare: Piece::default(),
            rests: Vec::new(),
        }
    }
}

impl Dealer {
    /// A dealer for one share of a distribution. Shares with the same seed have the redundant
    /// contents in common and no unique one; together they have exactly the distribution.
    #[must_use]
    pub fn new(scaled: &Scaled, share: Share, seed: u64) -> Self {
        let count = share.count.max(1);
        let at = |n: u64| (u128::from(scaled.blocks) * u128::from(n) / u128::from(count)) as u64;
        let unique = Unique::new(&scaled.unique);
        let redundant = Redundant::new(&scaled.redundant, &scaled.pieces);
        let order = order(&unique, &redundant, seed, 0);
        Self {
            unique,
            redundant,
            seed,
            own: at(share.index)..at(share.index + 1),
            dealing: Mutex::new(Dealing::new(0, order)),
        }
    }

    /// The next runs, of at most `blocks_max` blocks; a rest is dealt next.
    pub fn deal(&self, blocks_max: u64) -> Run {
        let mut dealing = lock(&self.dealing);
        let mut run = match dealing.rests.pop() {
            Some(rest) => rest,
            None => self.next(&mut dealing),
        };
        let rest = run.split_off(blocks_max);
        if rest.blocks > 0 {
            dealing.rests.push(rest);
        }
        run
    }

    fn next(&self, dealing: &mut Dealing) -> Run {
        if self.own.is_empty() {
            return Run::default();
        }
        loop {
            if dealing.blocks >= self.own.end {
                let epoch = dealing.epoch + 1;
                let order = order(&self.unique, &self.redundant, self.seed, epoch);
                *dealing = Dealing::new(epoch, order);
            }
            let mut run = self.runs(dealing);
            let start = dealing.blocks;
            dealing.blocks += run.blocks;
            if dealing.blocks <= self.own.start {
                continue;
            }
            let mut own = run.split_off(self.own.start.saturating_sub(start));
            if dealing.blocks > self.own.end {
                own.split_off(own.blocks - (dealing.blocks - self.own.end));
            }
            return own;
        }
    }

    /// Runs of both classes alternate as evenly as their numbers allow, because neighbours of one
    /// class make one longer run. A deal ends with a run of the rarer class: these have no
    /// neighbour of their own class, whichever job gets the next ones.
    fn runs(&self, dealing: &mut Dealing) -> Run {
        let (unique, redundant) = (self.unique.slots, self.redundant.runs);
        let all = unique + redundant;
        let redundant_before =
            |runs: u64| (u128::from(runs) * u128::from(redundant) / u128::from(all.max(1))) as u64;
        let mut dealt = Run::default();
        for _ in 0..RUNS_MAX.min(all - dealing.runs) {
            let redundant_dealt = redundant_before(dealing.runs);
            let is_redundant = redundant_before(dealing.runs + 1) > redundant_dealt;
            if is_redundant {
                self.lay_out(dealing, redundant_dealt, &mut dealt);
            } else {
                dealt.push(self.unique_run(dealing, dealing.runs - redundant_dealt));
            }
            dealing.runs += 1;
            if is_redundant == (redundant <= unique) {
                break;
            }
        }
        dealt
    }

    fn unique_run(&self, dealing: &Dealing, place: u64) -> Piece {
        let run = self.unique.run(dealing.order.unique.at(place));
        Piece {
            first: UNIQUE | (dealing.epoch * self.unique.contents + run.first),
            ..run
        }
    }

    /// Lays out the redundant run in this place.
    fn lay_out(&self, dealing: &mut Dealing, place: u64, run: &mut Run) {
        let mut left = match self.redundant.run(&dealing.order, place) {
            Layout::Whole(piece) => return run.push(piece),
            Layout::Spares(blocks) => blocks,
        };
        while left > 0 {
            if dealing.spare.blocks == 0 {
                dealing.spare = self.redundant.spare(&dealing.order, dealing.spares);
                dealing.spares += 1;
            }
            let rest = dealing.spare.split_off(left);
            let piece = std::mem::replace(&mut dealing.spare, rest);
            left -= piece.blocks;
            run.push(piece);
        }
    }
}

fn order(unique: &Unique, redundant: &Redundant, seed: u64, epoch: u64) -> Order {
    let seed = mix(seed).wrapping_add(mix(epoch));
    let seed_of = |n: u64| mix(seed.wrapping_add(n));
    let pieces = redundant.lengths.iter().map(|length| {
        let slots = length.pieces.end - length.pieces.start;
        Permutation::new(slots, seed_of(length.length << 2))
    });
    Order {
        unique: Permutation::new(unique.slots, seed_of(1)),
        redundant: Permutation::new(redundant.runs, seed_of(2)),
        spares: Permutation::new(redundant.spares, seed_of(3)),
        pieces: pieces.collect(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ignores poisoning: nothing panics while a run is half dealt.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
