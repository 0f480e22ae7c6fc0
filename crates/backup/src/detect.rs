//! Stage 2: decides which contents the sources have already, and which are new.
//!
//! The pack tables of the sources and of the popular blocks are read from front to back, except tables that, according
//! to the host's cache, have none of the contents read. Stored blocks that may match a read block are sorted together
//! with the read blocks, so that all rows of one content are adjacent. The packs themselves are the index. Memory holds
//! one content at a time, in constant space however many blocks have it.
//!
//! A content that two or more of the disks have, and not all of their sources, is *popular* and stored once [Zhang14
//! §4.2, §5].

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{NumberRun, Slot, SourceId, Witness, witness_of};
use onefold_repository::{KnownDamage, NeededPacks, Pack, Repository, RepositoryErrorKind};
use onefold_sorter::Sorter;
use rustc_hash::FxHashMap;

use crate::cache::{StoreCache, TableCache};
use crate::error::Result;
use crate::numbers::are_in;
use crate::ranks::Ranks;
use crate::records::{ByPlace, Decided, Decision, Fingerprint, Found, NewBlock, Place, Row};
use crate::scan::Rows;
use crate::temporary::Temporary;

/// Where each block with data is stored, or will be.
pub(crate) struct Detected {
    /// New blocks: the first block of each new content that only one disk has.
    pub(crate) own: ByPlace<NewBlock>,
    /// How many new blocks each disk has.
    pub(crate) own_blocks: Vec<u64>,
    /// New popular blocks: the first block of each new content that several disks have.
    pub(crate) new_popular: ByPlace<NewBlock>,
    pub(crate) new_popular_blocks: u64,
    /// All other blocks with data.
    pub(crate) decided: ByPlace<Decided>,
    /// The store of popular blocks.
    pub(crate) popular: SourceId,
    /// The witnesses of all packs that were read or written.
    pub(crate) witnesses: Witnesses,
    /// Packs that cannot be read. Their contents are stored again.
    pub(crate) damaged: Vec<String>,
}

/// A disk to which rows belong.
pub(crate) struct Scanned {
    pub(crate) source: SourceId,
    pub(crate) blocks: u64,
    /// The packs that the backups of the disk's source need.
    pub(crate) needed: NeededPacks,
    /// Blocks that were read.
    pub(crate) read_blocks: u64,
    /// Reading the disk failed, so its rows do not count.
    pub(crate) has_failed: bool,
}

pub(crate) fn detect(
    repository: &Repository,
    popular: SourceId,
    mut rows: Rows,
    scanned: &[Scanned],
    temporary: &Temporary,
    cache: Option<&TableCache>,
) -> Result<Detected> {
    let mut tables = Tables::default();
    let stores = Stores::list(repository, popular, scanned, &mut tables.damaged)?;
    if rows.read > 0 {
        stores.add_to(&mut rows, &mut tables, temporary, cache)?;
    }
    let Rows {
        sorter,
        filter,
        words,
        ..
    } = rows;
    // Frees memory for the decisions.
    drop((filter, words));
    let decisions = stores.compare(sorter, temporary)?;
    tables.damaged.sort();
    tables.damaged.dedup();
    Ok(Detected {
        own: ByPlace::new(decisions.own.finish()?),
        own_blocks: decisions.own_blocks,
        new_popular: ByPlace::new(decisions.popular.finish()?),
        new_popular_blocks: decisions.popular_blocks,
        decided: ByPlace::new(decisions.decided.finish()?),
        popular,
        witnesses: tables.witnesses,
        damaged: tables.damaged,
    })
}

pub(crate) type Witnesses = FxHashMap<(SourceId, u64), Witness>;

/// The witnesses of packs that were read, and messages about packs that could not be read.
#[derive(Default)]
struct Tables {
    witnesses: Witnesses,
    damaged: Vec<String>,
}

/// Packs, by their numbers and generations.
type Packs = Vec<(u64, u32)>;

/// Where contents may be stored already.
struct Stores<'a> {
    repository: &'a Repository,
    /// The packs of each disk's source.
    own: Vec<(SourceId, Packs)>,
    popular: (SourceId, Packs),
    scanned: &'a [Scanned],
    /// Popular blocks that are about to be removed: treated as absent.
    condemned: Vec<NumberRun>,
    /// Blocks known to be damaged, for each store that has any: treated as absent.
    damage: FxHashMap<SourceId, KnownDamage>,
}

impl<'a> Stores<'a> {
    fn list(
        repository: &'a Repository,
        popular: SourceId,
        scanned: &'a [Scanned],
        damaged: &mut Vec<String>,
    ) -> Result<Self> {
        let own = scanned.iter().map(|disk| {
            let packs = repository.packs(disk.source)?;
            Ok((disk.source, packs))
        });
        let own = own.collect::<Result<_>>()?;
        let (popular_packs, condemned) = match repository.condemned(popular) {
            // If the list is unreadable, every popular block may be condemned, so none is used.
            Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                damaged.push(error.to_string());
                (Vec::new(), Vec::new())
            }
            condemned => {
                let condemned = condemned?.map_or(Vec::new(), |list| list.numbers);
                (repository.packs(popular)?, condemned)
            }
        };
        let stores = scanned.iter().map(|disk| disk.source).chain([popular]);
        let damage = stores.map(|store| Ok((store, repository.known_damage(store)?)));
        Ok(Self {
            repository,
            own,
            popular: (popular, popular_packs),
            scanned,
            condemned,
            damage: damage.collect::<Result<_>>()?,
        })
    }

    /// Adds the stored blocks that may match a read block.
    fn add_to(
        &self,
        rows: &mut Rows,
        tables: &mut Tables,
        temporary: &Temporary,
        cache: Option<&TableCache>,
    ) -> Result<()> {
        let Rows {
            filter,
            sorter,
            words,
            ..
        } = rows;
        let words = words.sorted();
        // The popular blocks to which moved blocks may refer.
        let mut usable = Ranks::new(temporary, 16);
        let (popular, packs) = &self.popular;
        let cached = StoreCache::open(cache, *popular, packs);
        self.each_block(cached, words, tables, |block, _| {
            let Some(fingerprint) = block.slot.content() else {
                return Ok(());
            };
            let is_condemned = || are_in(&self.condemned, block.number).next() == Some(true);
            if !self.condemned.is_empty() && is_condemned() {
                return Ok(());
            }
            let listed = block.listed;
            usable.push(Place(listed))?;
            let fingerprint = Fingerprint::new(fingerprint);
            if block.slot.stored().is_some() && filter.may_have(fingerprint) {
                sorter.push(Row::new(fingerprint, Found::Popular { listed }))
            } else {
                Ok(())
            }
        })?;
        for (disk, (source, packs)) in self.own.iter().enumerate() {
            let cached = StoreCache::open(cache, *source, packs);
            self.each_block(cached, words, tables, |block, witnesses| {
                let Some(fingerprint) = block.slot.content() else {
                    return Ok(());
                };
                let fingerprint = Fingerprint::new(fingerprint);
                if !filter.may_have(fingerprint) {
                    return Ok(());
                }
                // A moved block counts only if the popular block that it was moved to is there.
                if let Some(to) = block.slot.moved() {
                    let (pack, in_pack) = (to / BLOCKS_PER_PACK, to % BLOCKS_PER_PACK);
                    let named = witness_of(block.pack.popular_packs(), pack);
                    let Ok(listed) = self.popular.1.binary_search_by_key(&pack, |entry| entry.0)
                    else {
                        return Ok(());
                    };
                    let place = Place(listed as u64 * BLOCKS_PER_PACK + in_pack);
                    let is_there = named.is_some()
                        && witnesses.get(&(*popular, pack)) == named.as_ref()
                        && usable.rank(place)?.is_some();
                    if !is_there {
                        return Ok(());
                    }
                }
                let listed = block.listed;
                sorter.push(Row::new(fingerprint, Found::Own { disk, listed }))
            })?;
        }
        Ok(())
    }

    /// Decides about all blocks, one content at a time.
    fn compare(&self, rows: Sorter<Row>, temporary: &Temporary) -> Result<Decisions> {
        let mut decisions = Decisions {
            own: temporary.sorter(8),
            own_blocks: vec![0; self.scanned.len()],
            popular: temporary.sorter(16),
            popular_blocks: 0,
            decided: temporary.sorter(8),
        };
        let mut content: Option<Content> = None;
        for row in rows.finish()? {
            let row = row?;
            let content = match &mut content {
                Some(same) if same.fingerprint == row.fingerprint => same,
                other => {
                    if let Some(before) = other.take() {
                        decisions.end(&before)?;
                    }
                    other.insert(Content::new(row.fingerprint))
                }
            };
            match row.found() {
                Found::Popular { listed } => {
                    let number = number(&self.popular.1, listed);
                    content.popular.get_or_insert(number);
                }
                Found::Own { disk, listed } => {
                    // Take the first of several, so that every backup finds the same.
                    if content.own.is_none_or(|(of_disk, _)| of_disk != disk) {
                        content.own = Some((disk, number(&self.own[disk].1, listed)));
                    }
                }
                Found::Read(place) if self.scanned[place.disk()].has_failed => {}
                Found::Read(place) => {
                    if let Some(decision) = content.decide(place) {
                        decisions.decided.push(Decided::new(place, decision))?;
                    }
                }
            }
        }
        if let Some(last) = content {
            decisions.end(&last)?;
        }
        Ok(decisions)
    }

    /// The witness that backups name for a pack that they need.
    fn needed(&self, store: SourceId, number: u64) -> Option<Witness> {
        let disks = self.scanned.iter();
        let mut named = disks.filter_map(|disk| {
            if store == self.popular.0 {
                disk.needed.popular.get(&number)
            } else if disk.source == store {
                disk.needed.own.get(&number)
            } else {
                None
            }
        });
        named.next().copied()
    }

    /// Calls `each` for all numbers, in order, of the packs that may have contents read from the disks, with the
    /// witnesses of the packs read. Skips packs that cannot be read or that have another witness than backups name,
    /// and damaged blocks.
    fn each_block(
        &self,
        mut cached: StoreCache<'_>,
        words: Option<&[u64]>,
        tables: &mut Tables,
        mut each: impl FnMut(Block<'_>, &Witnesses) -> std::io::Result<()>,
    ) -> Result<()> {
        let source = cached.store();
        let to_read = cached.to_read(words, |number| self.needed(source, number));
        for (listed, (number, generation)) in to_read {
            let opened = self.repository.pack_or_newer(source, number, generation);
            let opened = opened.and_then(|pack| match (&pack, self.needed(source, number)) {
                (Some(found), Some(witness)) => found.check_witness(witness).map(|()| pack),
                _ => Ok(pack),
            });
            let pack = match opened {
                Ok(Some(pack)) => pack,
                Ok(None) => continue,
                Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                    tables.damaged.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let witness = pack.reference().witness;
            tables.witnesses.insert((source, number), witness);
            cached.add(&pack);
            let damage = self
                .damage
                .get(&source)
                .map(|known| known.of(pack.reference()));
            let is_sound = |block| damage.is_none_or(|damage| !damage.contains(block));
            let slots = pack
                .slots()
                .iter()
                .zip(0..)
                .filter(|(_, block)| is_sound(*block));
            for (slot, block) in slots {
                let (number, listed) = (
                    number * BLOCKS_PER_PACK + block,
                    listed * BLOCKS_PER_PACK + block,
                );
                let block = Block {
                    pack: &pack,
                    number,
                    listed,
                    slot: *slot,
                };
                each(block, &tables.witnesses)?;
            }
        }
        cached.save();
        Ok(())
    }
}

/// A number of a pack that was read.
struct Block<'a> {
    pack: &'a Pack,
    number: u64,
    /// The block's place among all numbers of the store's listed packs.
    listed: u64,
    slot: Slot,
}

/// The number of a stored block, from its place among all numbers of the listed packs.
fn number(packs: &Packs, listed: u64) -> u64 {
    let (pack, _) = packs[(listed / BLOCKS_PER_PACK) as usize];
    pack * BLOCKS_PER_PACK + listed % BLOCKS_PER_PACK
}

/// The state of a content while its rows arrive.
struct Content {
    fingerprint: Fingerprint,
    /// The popular block that has the content.
    popular: Option<u64>,
    /// The last disk seen whose source has the content, and the number of its stored block.
    own: Option<(usize, u64)>,
    /// The first place at which the content was read.
    first_read: Option<Place>,
    /// Several disks have the content.
    is_shared: bool,
    /// The place whose block will be stored for the content.
    new: Option<Place>,
}

impl Content {
    fn new(fingerprint: Fingerprint) -> Self {
        Self {
            fingerprint,
            popular: None,
            own: None,
            first_read: None,
            is_shared: false,
            new: None,
        }
    }

    /// Decides to which stored block a block with this content refers; `None` if this block itself will be stored.
    fn decide(&mut self, place: Place) -> Option<Decision> {
        let first_read = *self.first_read.get_or_insert(place);
        self.is_shared |= first_read.disk() != place.disk();
        match (self.own, self.popular, self.new) {
            (Some((disk, number)), ..) if disk == place.disk() => Some(Decision::Own(number)),
            (_, Some(number), _) => Some(Decision::Popular(number)),
            (.., Some(first)) => Some(Decision::SameAs(first)),
            (.., None) => {
                self.new = Some(place);
                None
            }
        }
    }
}

/// Decisions, sorted by place.
struct Decisions {
    own: Sorter<NewBlock>,
    own_blocks: Vec<u64>,
    popular: Sorter<NewBlock>,
    popular_blocks: u64,
    decided: Sorter<Decided>,
}

impl Decisions {
    /// Ends a content, once it is known which disks have it.
    fn end(&mut self, content: &Content) -> Result<()> {
        let Some(place) = content.new else {
            return Ok(());
        };
        let new = NewBlock {
            place,
            fingerprint: content.fingerprint,
        };
        if content.is_shared {
            self.popular_blocks += 1;
            self.popular.push(new)?;
        } else {
            self.own_blocks[place.disk()] += 1;
            self.own.push(new)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_repository::Access;
    use onefold_sorter::{Record, Sorted};
    use std::collections::BTreeMap;

    fn fingerprint(content: u64) -> Fingerprint {
        const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        Fingerprint::new(u128::from(content).wrapping_mul(ODD).to_le_bytes())
    }

    fn scanned(source: u64, has_failed: bool) -> Scanned {
        Scanned {
            source: SourceId(source),
            blocks: 0,
            needed: NeededPacks::default(),
            read_blocks: 0,
            has_failed,
        }
    }

    fn temporary(memory_bytes: usize) -> Temporary {
        Temporary {
            folder: std::env::temp_dir(),
            memory_bytes,
        }
    }

    fn all<R: Record>(sorted: Sorted<R>) -> Vec<R> {
        sorted.map(std::io::Result::unwrap).collect()
    }

    #[test]
    fn each_block_is_decided_as_its_content_says_however_few_contents_there_are() {
        const DISKS: usize = 4;
        const FAILED: usize = 3;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("r");
        let (repository, _) = Repository::init(&root, &Access::Open, 1).unwrap();
        for (seed, contents, blocks) in [
            (1, 1, 20_000),
            (2, 3, 20_000),
            (3, 9_000, 5_000),
            (4, 20, 8),
        ] {
            let mut random = fastrand::Rng::with_seed(seed);
            let disks: Vec<_> = (0..DISKS).map(|n| scanned(n as u64, n == FAILED)).collect();
            let packs = |first| vec![(first, 0), (first + 2, 0)];
            let stores = Stores {
                repository: &repository,
                own: (0..DISKS as u64).map(|n| (SourceId(n), packs(n))).collect(),
                popular: (SourceId(9), packs(1 << 40)),
                scanned: &disks,
                condemned: Vec::new(),
                damage: FxHashMap::default(),
            };
            // For each content, the least number per source, and the least popular number.
            let mut own: BTreeMap<(u64, usize), u64> = BTreeMap::new();
            let mut popular: BTreeMap<u64, u64> = BTreeMap::new();
            let mut rows = Vec::new();
            for _ in 0..contents {
                let content = random.u64(..2 * contents);
                let listed = random.u64(..2 * BLOCKS_PER_PACK);
                let disk = random.usize(..DISKS);
                let (found, least) = if random.bool() {
                    (
                        Found::Own { disk, listed },
                        own.entry((content, disk)).or_insert(u64::MAX),
                    )
                } else {
                    (
                        Found::Popular { listed },
                        popular.entry(content).or_insert(u64::MAX),
                    )
                };
                let packs = match found {
                    Found::Own { .. } => &stores.own[disk].1,
                    _ => &stores.popular.1,
                };
                *least = number(packs, listed).min(*least);
                rows.push(Row::new(fingerprint(content), found));
            }
            let mut read: BTreeMap<Place, u64> = BTreeMap::new();
            for disk in 0..DISKS {
                for block in 0..blocks {
                    let content = random.u64(..2 * contents);
                    let place = Place::new(disk, block);
                    rows.push(Row::new(fingerprint(content), Found::Read(place)));
                    read.insert(place, content);
                }
            }
            read.retain(|place, _| place.disk() != FAILED);
            let temporary = temporary(0);
            random.shuffle(&mut rows);
            let sorter = temporary.sorter(1);
            sorter.add(&mut rows).unwrap();
            let decisions = stores.compare(sorter, &temporary).unwrap();

            let mut disks_of: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            for (place, content) in &read {
                disks_of.entry(*content).or_default().push(place.disk());
            }
            let mut first: BTreeMap<u64, Place> = BTreeMap::new();
            let (mut new_own, mut new_popular, mut decided) = (Vec::new(), Vec::new(), Vec::new());
            for (place, content) in read {
                let stored = own.get(&(content, place.disk()));
                let decision = match (stored, popular.get(&content), first.get(&content)) {
                    (Some(number), ..) => Decision::Own(*number),
                    (_, Some(number), _) => Decision::Popular(*number),
                    (.., Some(first)) => Decision::SameAs(*first),
                    _ => {
                        first.insert(content, place);
                        let (disks, fingerprint) = (&disks_of[&content], fingerprint(content));
                        if disks.iter().any(|disk| *disk != disks[0]) {
                            new_popular.push(NewBlock { place, fingerprint });
                        } else {
                            new_own.push(NewBlock { place, fingerprint });
                        }
                        continue;
                    }
                };
                decided.push(Decided::new(place, decision));
            }
            let of_disk = |disk| {
                new_own
                    .iter()
                    .filter(|block| block.place.disk() == disk)
                    .count() as u64
            };
            let own_blocks: Vec<_> = (0..DISKS).map(of_disk).collect();
            assert_eq!(decisions.own_blocks, own_blocks);
            assert_eq!(decisions.popular_blocks, new_popular.len() as u64);
            assert!(all(decisions.own.finish().unwrap()) == new_own);
            assert!(all(decisions.popular.finish().unwrap()) == new_popular);
            assert!(all(decisions.decided.finish().unwrap()) == decided);
        }
    }

    /// By hand: `cargo test --release -p onefold-backup -- --ignored --nocapture hundreds_of_gigabytes`.
    #[test]
    #[ignore = "takes minutes and 8 GB of temporary files"]
    fn hundreds_of_gigabytes_of_distinct_blocks_take_the_memory_that_is_given() {
        const MEMORY_BYTES: usize = 64 << 20;
        const SLACK_MIB: u64 = 32;
        const BLOCKS: u64 = (300 << 30) / 4096;
        const STORED: u64 = BLOCKS / 2;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("r");
        let (repository, _) = Repository::init(&root, &Access::Open, 1).unwrap();
        let disks = [scanned(1, false)];
        let packs = (0..BLOCKS / BLOCKS_PER_PACK + 1).map(|number| (number, 0));
        let stores = Stores {
            repository: &repository,
            own: vec![(SourceId(1), packs.collect())],
            popular: (SourceId(9), Vec::new()),
            scanned: &disks,
            condemned: Vec::new(),
            damage: FxHashMap::default(),
        };
        let temporary = temporary(MEMORY_BYTES);
        let mut rows = Rows::new(&temporary);
        let Rows { sorter, filter, .. } = &mut rows;
        for block in 0..BLOCKS {
            // Every eighth block equals the block before it.
            let fingerprint = fingerprint(block - u64::from(block % 8 == 7));
            filter.insert(fingerprint);
            sorter
                .push(Row::new(fingerprint, Found::Read(Place::new(0, block))))
                .unwrap();
        }
        for listed in 0..STORED {
            let found = Found::Own { disk: 0, listed };
            sorter
                .push(Row::new(fingerprint(2 * listed), found))
                .unwrap();
        }
        let Rows { sorter, filter, .. } = rows;
        drop(filter);
        let decisions = stores.compare(sorter, &temporary).unwrap();
        let (new, decided) = (decisions.own_blocks[0], decisions.decided.finish().unwrap());
        let mut own = ByPlace::new(decisions.own.finish().unwrap());
        let mut ranks = Ranks::new(&temporary, 16);
        while let Some(block) = own.next_in(&Place::all_of(0)).unwrap() {
            ranks.push(block.place).unwrap();
        }
        let mut others = 0;
        for decided in decided {
            others += 1;
            if let Decision::SameAs(first) = decided.unwrap().decision() {
                assert!(ranks.rank(first).unwrap().is_some());
            }
        }
        assert_eq!(new + others, BLOCKS);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        println!(
            "{} MiB at most; {new} blocks are new, {others} are not",
            peak >> 10
        );
        assert!(peak >> 10 <= (MEMORY_BYTES as u64 >> 20) + SLACK_MIB);
    }
}
