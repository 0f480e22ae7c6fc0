//! Sets of places that answer how many members precede a place. New blocks are numbered in the order of their places,
//! so the number of a new block is the first number plus its rank.
//!
//! The places are bits in a temporary file, 24 bytes for each 64 consecutive places with at least one member. Memory
//! holds the pages used last, and 8 bytes for each page.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::records::Place;
use crate::temporary::Temporary;

/// The members of the set among 64 consecutive places.
#[derive(Debug, Clone, Copy)]
struct Word {
    /// The first of the places, divided by 64.
    at: u64,
    bits: u64,
    /// Members of the set below this word.
    before: u64,
}

const WORD_BYTES: usize = 24;

/// Words that are written and read together: about 4 KiB.
const PAGE_WORDS: usize = 170;

const PAGE_BYTES: usize = PAGE_WORDS * WORD_BYTES;

/// A set of places.
pub(crate) struct Ranks {
    count: u64,
    temporary: Temporary,
    /// The words after the last full page.
    open: Vec<Word>,
    /// The position of the first word of each full page.
    starts: Vec<u64>,
    /// The full pages, once there is one.
    file: Option<File>,
    /// A cache of full pages, each at its number modulo the cache's length.
    cache: Vec<Option<(usize, Vec<Word>)>>,
}

impl Ranks {
    /// Creates a set whose cache takes one part in `share` of the memory.
    pub(crate) fn new(temporary: &Temporary, share: usize) -> Self {
        let pages = (temporary.memory_bytes / share / PAGE_BYTES).max(1);
        Self {
            count: 0,
            temporary: temporary.clone(),
            open: Vec::new(),
            starts: Vec::new(),
            file: None,
            cache: vec![None; pages],
        }
    }

    /// Adds a place that is above all places in the set.
    pub(crate) fn push(&mut self, place: Place) -> io::Result<()> {
        let (at, bit) = (place.0 / 64, 1 << (place.0 % 64));
        match self.open.last_mut() {
            Some(word) if word.at == at => word.bits |= bit,
            _ => {
                if self.open.len() == PAGE_WORDS {
                    self.write_page()?;
                }
                self.open.push(Word {
                    at,
                    bits: bit,
                    before: self.count,
                });
            }
        }
        self.count += 1;
        Ok(())
    }

    fn write_page(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.temporary.file()?),
        };
        let words = self.open.iter();
        let bytes: Vec<u8> = words
            .flat_map(|word| [word.at, word.bits, word.before])
            .flat_map(u64::to_le_bytes)
            .collect();
        let page = self.starts.len();
        file.write_all_at(&bytes, (page * PAGE_BYTES) as u64)?;
        self.starts.extend(self.open.first().map(|word| word.at));
        let slot = page % self.cache.len();
        self.cache[slot] = Some((page, std::mem::take(&mut self.open)));
        Ok(())
    }

    /// How many members precede this place; `None` if the place is not in the set.
    pub(crate) fn rank(&mut self, place: Place) -> io::Result<Option<u64>> {
        let (at, bit) = (place.0 / 64, 1 << (place.0 % 64));
        let words = match self.open.first() {
            Some(first) if first.at <= at => &self.open,
            _ => match self.starts.partition_point(|start| *start <= at) {
                0 => return Ok(None),
                pages => self.page(pages - 1)?,
            },
        };
        let found = words.binary_search_by_key(&at, |word| word.at);
        let word = found.ok().map(|found| words[found]);
        Ok(word.filter(|word| word.bits & bit != 0).map(|word| {
            let before = (word.bits & (bit - 1)).count_ones();
            word.before + u64::from(before)
        }))
    }

    fn page(&mut self, page: usize) -> io::Result<&[Word]> {
        let slot = page % self.cache.len();
        let cached = &mut self.cache[slot];
        if cached.as_ref().is_none_or(|(number, _)| *number != page)
            && let Some(file) = &self.file
        {
            let mut bytes = vec![0; PAGE_BYTES];
            file.read_exact_at(&mut bytes, (page * PAGE_BYTES) as u64)?;
            let mut words = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes);
            let mut next = || words.next().unwrap_or_default();
            let words = (0..PAGE_WORDS).map(|_| Word {
                at: next(),
                bits: next(),
                before: next(),
            });
            *cached = Some((page, words.collect()));
        }
        Ok(cached.as_ref().map_or(&[], |(_, words)| words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranks_are_those_of_a_sorted_set_however_little_memory_there_is() {
        for (seed, memory_bytes) in [(1, 0), (2, 1 << 20)] {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut places = BTreeSet::new();
            // Dense places, sparse places, and places of another disk.
            for _ in 0..20_000 {
                places.insert(Place::new(0, random.u64(..30_000)));
                places.insert(Place::new(0, random.u64(1 << 30..1 << 40)));
                places.insert(Place::new(3, random.u64(..1 << 20)));
            }
            let temporary = Temporary {
                folder: std::env::temp_dir(),
                memory_bytes,
            };
            let mut ranks = Ranks::new(&temporary, 1);
            for place in &places {
                ranks.push(*place).unwrap();
            }
            assert!(ranks.starts.len() > 100);
            let mut each: Vec<_> = places.iter().zip(0..).collect();
            random.shuffle(&mut each);
            for (place, rank) in each {
                assert_eq!(ranks.rank(*place).unwrap(), Some(rank));
                let after = Place(place.0 + 1);
                let is_new = ranks.rank(after).unwrap().is_some();
                assert_eq!(is_new, places.contains(&after));
            }
            assert_eq!(ranks.rank(Place::new(2, 0)).unwrap(), None);
        }
    }
}
