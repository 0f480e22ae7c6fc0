//! Deals contents: every run of a scaled distribution exactly as often as it is to occur, in a random
//! order that follows from a seed.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::permutation::{Permutation, mix};
use super::scale::{Cell, Scaled};

/// Names a content; equal ones have equal blocks. Those that occur once have the highest bit.
pub type ContentId = u64;

/// What tells contents that are never repeated from the others.
pub const UNIQUE: ContentId = 1 << 63;

/// A part of the blocks, of which each of several programs that run side by side deals one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which, from 0 on.
    pub index: u64,
    /// How many there are, at least 1.
    pub count: u64,
}

/// Consecutive contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Piece {
    /// The first one; the others are numbered from it on.
    pub first: ContentId,
    /// How many.
    pub blocks: u64,
}

impl Piece {
    /// Takes the first content from it, if there is one.
    pub fn take_first(&mut self) -> Option<ContentId> {
        self.blocks = self.blocks.checked_sub(1)?;
        let first = self.first;
        self.first += 1;
        Some(first)
    }

    /// Cuts off what is beyond so many blocks.
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

/// Runs of one class, of which each stands in as many slots as it has copies.
#[derive(Debug)]
struct Deck {
    /// With the slot, and the content, at which each begins.
    cells: Vec<(u64, u64, Cell)>,
    slots: u64,
    contents: u64,
}

impl Deck {
    fn new(cells: &[Cell]) -> Self {
        let mut deck = Self {
            cells: Vec::with_capacity(cells.len()),
            slots: 0,
            contents: 0,
        };
        for cell in cells {
            deck.cells.push((deck.slots, deck.contents, *cell));
            deck.slots += cell.runs * cell.copies;
            deck.contents += cell.runs * cell.length;
        }
        deck
    }

    /// The run that stands in a slot.
    fn run(&self, slot: u64) -> Piece {
        let place = self.cells.partition_point(|(start, ..)| *start <= slot);
        let Some((start, first, cell)) = self.cells.get(place.wrapping_sub(1)) else {
            return Piece::default();
        };
        let run = (slot - start) / cell.copies;
        Piece {
            first: first + run * cell.length,
            blocks: cell.length,
        }
    }
}

/// Deals to any number of jobs, which together get what the distribution has.
///
/// When all of it was dealt, another epoch begins: the contents that occur more often come again, in
/// another order, and those that occur once are new ones.
#[derive(Debug)]
pub struct Dealer {
    unique: Deck,
    redundant: Deck,
    seed: u64,
    /// The blocks of an epoch that are dealt here.
    own: Range<u64>,
    dealing: Mutex<Dealing>,
}

#[derive(Debug)]
struct Dealing {
    epoch: u64,
    /// Runs of this epoch that were dealt, and their blocks.
    runs: u64,
    blocks: u64,
    /// In which slots unique and redundant runs come.
    orders: [Permutation; 2],
    /// What was cut off.
    rests: Vec<Piece>,
}

impl Dealer {
    /// Deals one share of a distribution. Shares of one seed have the redundant contents in common, and
    /// no unique one; together they have exactly what the distribution has.
    #[must_use]
    pub fn new(scaled: &Scaled, share: Share, seed: u64) -> Self {
        let count = share.count.max(1);
        let at = |n: u64| (u128::from(scaled.blocks) * u128::from(n) / u128::from(count)) as u64;
        let (unique, redundant) = (Deck::new(&scaled.unique), Deck::new(&scaled.redundant));
        let orders = orders(&unique, &redundant, seed, 0);
        Self {
            unique,
            redundant,
            seed,
            own: at(share.index)..at(share.index + 1),
            dealing: Mutex::new(Dealing {
                epoch: 0,
                runs: 0,
                blocks: 0,
                orders,
                rests: Vec::new(),
            }),
        }
    }

    /// The next run, or as much of it as is asked for; the rest is dealt next.
    pub fn deal(&self, blocks_max: u64) -> Piece {
        let mut dealing = lock(&self.dealing);
        let mut piece = match dealing.rests.pop() {
            Some(rest) => rest,
            None => self.next(&mut dealing),
        };
        let rest = piece.split_off(blocks_max);
        if rest.blocks > 0 {
            dealing.rests.push(rest);
        }
        piece
    }

    fn next(&self, dealing: &mut Dealing) -> Piece {
        if self.own.is_empty() {
            return Piece::default();
        }
        loop {
            if dealing.blocks >= self.own.end {
                dealing.epoch += 1;
                dealing.runs = 0;
                dealing.blocks = 0;
                dealing.orders = orders(&self.unique, &self.redundant, self.seed, dealing.epoch);
            }
            let mut run = self.run(dealing);
            let start = dealing.blocks;
            dealing.runs += 1;
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

    /// Runs of both classes alternate as evenly as their numbers let them, because neighbours of one
    /// class make one longer run: those of which there are fewer never have such a neighbour.
    fn run(&self, dealing: &Dealing) -> Piece {
        let (unique, redundant) = (self.unique.slots, self.redundant.slots);
        let all = u128::from(unique + redundant);
        let redundant_before =
            |runs: u64| (u128::from(runs) * u128::from(redundant) / all.max(1)) as u64;
        let before = redundant_before(dealing.runs);
        if redundant_before(dealing.runs + 1) > before {
            return self.redundant.run(dealing.orders[1].at(before));
        }
        let slot = dealing.orders[0].at(dealing.runs - before);
        let run = self.unique.run(slot);
        Piece {
            first: UNIQUE | (dealing.epoch * self.unique.contents + run.first),
            ..run
        }
    }
}

fn orders(unique: &Deck, redundant: &Deck, seed: u64, epoch: u64) -> [Permutation; 2] {
    let seed = mix(seed).wrapping_add(mix(epoch));
    [
        Permutation::new(unique.slots, seed),
        Permutation::new(redundant.slots, !seed),
    ]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A run is dealt before anything can panic that has the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
