//! Counts chunks that are equal.

use std::collections::BTreeMap;
use std::io;

use onefold_sorter::Sorter;
use serde::Serialize;

use crate::record::{Chunk, Place};

/// Chunks that occur equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Copies {
    /// How often each of the chunks occurs.
    pub copies: u64,
    /// How many different chunks occur this often.
    pub chunks: u64,
    /// The chunks' total size, each counted once, in bytes.
    pub bytes: u64,
}

/// The chunks of one input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct InputShare {
    /// Different chunks in the input.
    pub distinct_chunks: u64,
    /// Size of the different chunks, each counted once, in bytes.
    pub distinct_bytes: u64,
    /// Different chunks that are also in another input.
    pub shared_chunks: u64,
    /// Size of the shared chunks, in bytes.
    pub shared_bytes: u64,
    /// Different chunks that are in no earlier input.
    pub new_chunks: u64,
    /// Size of the new chunks, in bytes: the amount that this input adds to earlier ones.
    pub new_bytes: u64,
}

/// The chunks of one kind of file. The stored size of a chunk is divided equally among all files
/// that refer to it [Meister13 §2.4].
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Category {
    /// Chunks that are not zero.
    pub chunks: u64,
    /// The chunks' size, in bytes.
    pub bytes: u64,
    /// The chunks' stored size, in bytes.
    pub stored_bytes: f64,
}

/// How often contents occur. Chunks of zeros are not included.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Redundancy {
    /// Chunks that are not zero.
    pub chunks: u64,
    /// The chunks' size, in bytes.
    pub bytes: u64,
    /// Different chunks.
    pub distinct_chunks: u64,
    /// Size of the different chunks, each counted once, in bytes: the amount that has to be stored.
    pub distinct_bytes: u64,
    /// By number of copies, ascending.
    pub copies: Vec<Copies>,
    /// By input.
    pub inputs: Vec<InputShare>,
    /// By category, as a scan numbers them.
    pub(crate) categories: BTreeMap<u16, Category>,
}

/// Equal chunks, while they are gathered.
struct Group {
    first: Chunk,
    count: u64,
    /// The number of copies in each input, ascending by input.
    inputs: Vec<(u16, u64)>,
    categories: Vec<(u16, u64)>,
}

impl Redundancy {
    /// Counts sorted chunks. Passes to `places` the place of each chunk and whether there are
    /// others like it.
    pub(crate) fn count(
        chunks: impl Iterator<Item = io::Result<(u128, u128)>>,
        inputs: usize,
        places: &Sorter<u128>,
    ) -> io::Result<Self> {
        let mut counting = Counting {
            sum: Self {
                inputs: vec![InputShare::default(); inputs],
                ..Self::default()
            },
            copies: BTreeMap::new(),
            places,
            told: Vec::with_capacity(TOLD_MAX),
        };
        let mut group: Option<Group> = None;
        for chunk in chunks {
            let (fingerprint, rest) = chunk?;
            let chunk = Chunk::unpack(fingerprint, rest);
            match &mut group {
                Some(group) if group.first.fingerprint == chunk.fingerprint => {
                    if group.count == 1 {
                        counting.tell(&group.first, true)?;
                    }
                    counting.tell(&chunk, true)?;
                    group.add(&chunk);
                }
                other => {
                    if let Some(group) = other.replace(Group::new(chunk)) {
                        counting.end(&group)?;
                    }
                }
            }
        }
        if let Some(group) = group {
            counting.end(&group)?;
        }
        places.add(&mut counting.told)?;
        let mut sum = counting.sum;
        sum.copies = counting.copies.into_values().collect();
        Ok(sum)
    }

    /// The bytes saved inside each input separately: repeats inside one input.
    #[must_use]
    pub fn within_bytes(&self) -> u64 {
        let distinct: u64 = self.inputs.iter().map(|input| input.distinct_bytes).sum();
        self.bytes - distinct
    }

    /// The bytes saved in addition because inputs are similar to each other.
    #[must_use]
    pub fn across_bytes(&self) -> u64 {
        self.bytes - self.distinct_bytes - self.within_bytes()
    }
}

/// The number of places passed at a time.
const TOLD_MAX: usize = 4096;

struct Counting<'a> {
    sum: Redundancy,
    copies: BTreeMap<u64, Copies>,
    places: &'a Sorter<u128>,
    told: Vec<u128>,
}

impl Counting<'_> {
    fn tell(&mut self, chunk: &Chunk, is_redundant: bool) -> io::Result<()> {
        let place = Place {
            position: chunk.position,
            bytes: chunk.bytes,
            is_redundant,
        };
        self.told.push(place.pack());
        if self.told.len() == TOLD_MAX {
            self.places.add(&mut self.told)?;
        }
        Ok(())
    }

    fn end(&mut self, group: &Group) -> io::Result<()> {
        if group.count == 1 {
            self.tell(&group.first, false)?;
        }
        let (bytes, count) = (group.first.bytes, group.count);
        let sum = &mut self.sum;
        sum.chunks += count;
        sum.bytes += bytes * count;
        sum.distinct_chunks += 1;
        sum.distinct_bytes += bytes;
        let copies = self.copies.entry(count).or_default();
        *copies = Copies {
            copies: count,
            chunks: copies.chunks + 1,
            bytes: copies.bytes + bytes,
        };
        for (n, (input, _)) in group.inputs.iter().enumerate() {
            let Some(share) = sum.inputs.get_mut(usize::from(*input)) else {
                continue;
            };
            share.distinct_chunks += 1;
            share.distinct_bytes += bytes;
            if group.inputs.len() > 1 {
                share.shared_chunks += 1;
                share.shared_bytes += bytes;
            }
            if n == 0 {
                share.new_chunks += 1;
                share.new_bytes += bytes;
            }
        }
        for (category, chunks) in &group.categories {
            let category = sum.categories.entry(*category).or_default();
            category.chunks += chunks;
            category.bytes += bytes * chunks;
            category.stored_bytes += bytes as f64 * *chunks as f64 / count as f64;
        }
        Ok(())
    }
}

impl Group {
    fn new(first: Chunk) -> Self {
        Self {
            first,
            count: 1,
            inputs: vec![(first.input, 1)],
            categories: vec![(first.category, 1)],
        }
    }

    /// Adds a chunk. Chunks come in the order of their positions, so all chunks of an input are
    /// adjacent.
    fn add(&mut self, chunk: &Chunk) {
        self.count += 1;
        match self.inputs.last_mut() {
            Some((input, count)) if *input == chunk.input => *count += 1,
            _ => self.inputs.push((chunk.input, 1)),
        }
        let mut categories = self.categories.iter_mut();
        match categories.find(|(category, _)| *category == chunk.category) {
            Some((_, count)) => *count += 1,
            None => self.categories.push((chunk.category, 1)),
        }
    }
}
