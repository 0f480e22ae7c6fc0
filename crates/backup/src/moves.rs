//! Finds stored blocks whose content popular blocks have, too. A pack that is written again does not keep such blocks:
//! its table lists them as *moved*.
//!
//! No object records what may move, so each prune searches again, under the lease of the source, as a backup does. It
//! does not move blocks to popular blocks that are condemned already. If popular blocks are condemned afterwards, that
//! prune waits for this lease to end and then sees the moves.

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{NumberRun, PackReference, PackTable, Slot, SourceId};
use onefold_repository::{Repository, RepositoryErrorKind};

use crate::contents::{ALL, Contents, Store};
use crate::error::Result;
use crate::numbers::are_in;
use crate::partitions::Partitions;

/// Memory for finding moves, in bytes.
pub(crate) const MEMORY_BYTES: usize = 32 << 20;

/// Bytes of a move: a block's number, and the number of the popular block.
const MOVE_BYTES: usize = 16;

/// Packs per partition, so that the moves of one partition fit into memory.
const PART_PACKS: u64 = 64;

/// Blocks to move.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moves {
    /// The runs, in ascending order of `first`.
    runs: Vec<MoveRun>,
    /// The popular packs that the moves may refer to, in ascending order.
    pub(crate) packs: Vec<PackReference>,
}

/// Consecutive blocks that move to consecutive popular blocks.
#[derive(Debug, Clone, Copy)]
struct MoveRun {
    first: u64,
    blocks: u64,
    to: u64,
}

impl Moves {
    /// Finds moves of a source's needed blocks to popular blocks with the same content.
    pub(crate) fn to_popular(
        repository: &Repository,
        popular: SourceId,
        source: SourceId,
        needed: &[NumberRun],
    ) -> Result<Self> {
        let condemned = match condemned(repository, popular)? {
            Some(condemned) => condemned,
            None => return Ok(Self::default()),
        };
        let mut popular = Store::list(repository, popular, 1)?;
        if popular.blocks_max() == 0 {
            return Ok(Self::default());
        }
        let mut own = Store::list(repository, source, 0)?;
        let blocks = own.blocks_max() + popular.blocks_max();
        let mut contents = Contents::new(blocks, MEMORY_BYTES)?;
        own.each(repository, needed, &mut |found| match found.slot {
            Slot::Stored(fingerprint) => contents.add(fingerprint, found.place),
            _ => Ok(()),
        })?;
        add_usable(repository, &mut popular, &condemned, &mut contents)?;
        let mut moves = PartedMoves::new(&own)?;
        contents.each(|_, places| {
            let to = places.iter().find(|place| place.disk() == 1);
            let Some(to) = to.map(|place| popular.number(*place)) else {
                return Ok(());
            };
            let own_places = places.iter().take_while(|place| place.disk() == 0);
            for place in own_places {
                moves.push(place.block(), own.number(*place), to)?;
            }
            Ok(())
        })?;
        moves.finish(popular)
    }

    /// Finds moves of popular blocks to popular blocks with the same content and a lower number.
    pub(crate) fn of_duplicates(
        repository: &Repository,
        popular: SourceId,
        needed: &[NumberRun],
    ) -> Result<Self> {
        let Some(condemned) = condemned(repository, popular)? else {
            return Ok(Self::default());
        };
        let mut store = Store::list(repository, popular, 0)?;
        let mut contents = Contents::new(store.blocks_max(), MEMORY_BYTES)?;
        store.each(repository, needed, &mut |found| match found.slot {
            Slot::Stored(fingerprint) if !is_in(&condemned, found.number) => {
                contents.add(fingerprint, found.place)
            }
            _ => Ok(()),
        })?;
        let mut moves = PartedMoves::new(&store)?;
        contents.each(|_, places| {
            let Some((to, others)) = places.split_first() else {
                return Ok(());
            };
            let to = store.number(*to);
            for place in others {
                moves.push(place.block(), store.number(*place), to)?;
            }
            Ok(())
        })?;
        moves.finish(store)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The slots of a pack after the moves, given its kept slots from number `first`.
    pub(crate) fn apply<'a>(
        &'a self,
        first: u64,
        slots: impl Iterator<Item = Slot> + 'a,
    ) -> impl Iterator<Item = Slot> + 'a {
        let end = |run: &MoveRun| run.first + run.blocks;
        let before = self.runs.partition_point(|run| end(run) <= first);
        let mut runs = self.runs[before..].iter().peekable();
        slots.zip(first..).map(move |(slot, number)| {
            while runs.next_if(|run| end(run) <= number).is_some() {}
            match (slot, runs.peek()) {
                (Slot::Stored(fingerprint), Some(run)) if run.first <= number => Slot::Moved {
                    fingerprint,
                    number: run.to + (number - run.first),
                },
                _ => slot,
            }
        })
    }

    /// The popular packs that some slots refer to.
    pub(crate) fn packs_of(&self, slots: &[Slot]) -> Vec<PackReference> {
        PackTable::popular_packs_of(slots, &self.packs)
    }
}

/// Popular blocks that are about to be removed; `None` if the list is unreadable, in which case no popular block is
/// used.
pub(crate) fn condemned(
    repository: &Repository,
    popular: SourceId,
) -> Result<Option<Vec<NumberRun>>> {
    match repository.condemned(popular) {
        Err(error) if error.kind() == RepositoryErrorKind::Damaged => Ok(None),
        condemned => Ok(Some(condemned?.map_or(Vec::new(), |list| list.numbers))),
    }
}

/// Adds the popular blocks that are not condemned and whose content may be in `contents`.
pub(crate) fn add_usable(
    repository: &Repository,
    popular: &mut Store,
    condemned: &[NumberRun],
    contents: &mut Contents,
) -> Result<()> {
    popular.each(repository, &ALL, &mut |found| match found.slot {
        Slot::Stored(fingerprint) if !is_in(condemned, found.number) => {
            contents.add_known(fingerprint, found.place)
        }
        _ => Ok(()),
    })
}

pub(crate) fn is_in(runs: &[NumberRun], number: u64) -> bool {
    are_in(runs, number).next() == Some(true)
}

/// Moves, partitioned by the packs of the moved blocks.
struct PartedMoves(Partitions<MOVE_BYTES>);

impl PartedMoves {
    fn new(of: &Store) -> Result<Self> {
        let part_blocks = PART_PACKS * BLOCKS_PER_PACK;
        let parts = of.blocks_max().div_ceil(part_blocks) as usize;
        Ok(Self(Partitions::new(parts, MEMORY_BYTES / 8)?))
    }

    /// Adds a move. `block` is the moved block's place among all numbers of its store.
    fn push(&mut self, block: u64, number: u64, to: u64) -> Result<()> {
        // Little-endian, with the block's number in the high half, so that moves sort by it.
        let bytes = (u128::from(number) << 64 | u128::from(to)).to_le_bytes();
        let part = block / (PART_PACKS * BLOCKS_PER_PACK);
        Ok(self.0.push(part as usize, bytes)?)
    }

    fn finish(mut self, to: Store) -> Result<Moves> {
        let mut runs: Vec<MoveRun> = Vec::new();
        for part in 0..self.0.count() {
            let mut moves = self.0.take(part)?;
            moves.sort_unstable_by_key(|bytes| u128::from_le_bytes(*bytes));
            for bytes in moves {
                let both = u128::from_le_bytes(bytes);
                let (number, to) = ((both >> 64) as u64, both as u64);
                match runs.last_mut() {
                    Some(last)
                        if last.first + last.blocks == number && last.to + last.blocks == to =>
                    {
                        last.blocks += 1;
                    }
                    _ => runs.push(MoveRun {
                        first: number,
                        blocks: 1,
                        to,
                    }),
                }
            }
        }
        Ok(Moves {
            runs,
            packs: to.into_witnesses(),
        })
    }
}
