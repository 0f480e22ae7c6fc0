//! Lengths of runs of unique and of redundant data: how much a reader gets before it has to seek,
//! and how much of a duplicate is contiguous.

use std::io;

use serde::Serialize;

use crate::record::Place;

/// Whether a run's chunks occur once or more often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunClass {
    /// Each chunk occurs once.
    Unique,
    /// Each chunk occurs more than once.
    Redundant,
}

/// Runs of one class: consecutive chunks of a file, with neither zeros nor the other class between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunLengths {
    /// The class of the runs.
    pub class: RunClass,
    /// The number of runs.
    pub runs: u64,
    /// Total size of the runs, in bytes.
    pub bytes: u64,
    /// The longest run, in bytes.
    pub longest_bytes: u64,
    /// The number of runs of 2^n bytes to below 2^(n+1), at index n, up to the last that has any.
    pub by_power_of_two: Vec<u64>,
    /// Runs by chunks: the n-th entry has the runs of 2^n chunks to below 2^(n+1).
    pub by_chunks: Vec<RunCount>,
}

/// Runs of about the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RunCount {
    /// The number of runs.
    pub runs: u64,
    /// The number of chunks in these runs.
    pub chunks: u64,
}

impl RunLengths {
    fn new(class: RunClass) -> Self {
        Self {
            class,
            runs: 0,
            bytes: 0,
            longest_bytes: 0,
            by_power_of_two: Vec::new(),
            by_chunks: Vec::new(),
        }
    }

    fn add(&mut self, bytes: u64, chunks: u64) {
        *at_power_of(bytes, &mut self.by_power_of_two) += 1;
        let count = at_power_of(chunks, &mut self.by_chunks);
        count.runs += 1;
        count.chunks += chunks;
        self.runs += 1;
        self.bytes += bytes;
        self.longest_bytes = self.longest_bytes.max(bytes);
    }

    /// The mean length, in bytes; 0 if there are no runs.
    #[must_use]
    pub fn mean_bytes(&self) -> f64 {
        match self.runs {
            0 => 0.0,
            runs => self.bytes as f64 / runs as f64,
        }
    }
}

/// The entry for a number by its power of two, created if necessary.
fn at_power_of<T: Clone + Default>(number: u64, places: &mut Vec<T>) -> &mut T {
    let power = number.max(1).ilog2() as usize;
    if places.len() <= power {
        places.resize(power + 1, T::default());
    }
    &mut places[power]
}

/// Joins chunks, which come in the order of their positions, into runs: unique ones, redundant
/// ones.
pub(crate) fn run_lengths(
    places: impl Iterator<Item = io::Result<u128>>,
) -> io::Result<[RunLengths; 2]> {
    let mut lengths = [RunClass::Unique, RunClass::Redundant].map(RunLengths::new);
    let mut run: Option<(Place, u64)> = None;
    for place in places {
        let place = Place::unpack(place?);
        match &mut run {
            Some((run, chunks))
                if run.position + run.bytes == place.position
                    && run.is_redundant == place.is_redundant =>
            {
                run.bytes += place.bytes;
                *chunks += 1;
            }
            other => {
                if let Some((run, chunks)) = other.replace((place, 1)) {
                    lengths[usize::from(run.is_redundant)].add(run.bytes, chunks);
                }
            }
        }
    }
    if let Some((run, chunks)) = run {
        lengths[usize::from(run.is_redundant)].add(run.bytes, chunks);
    }
    Ok(lengths)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_class_are_one_run() {
        let place = |position, bytes, is_redundant| {
            let place = Place {
                position,
                bytes,
                is_redundant,
            };
            Ok(place.pack())
        };
        let places = [
            place(0, 10, false),
            place(10, 6, false),
            place(16, 1, true),
            place(17, 1, false),
            // Zeros, or another file, between.
            place(30, 64, false),
        ];
        let [unique, redundant] = run_lengths(places.into_iter()).unwrap();
        assert_eq!(
            (unique.runs, unique.bytes, unique.longest_bytes),
            (3, 81, 64)
        );
        assert_eq!(unique.by_power_of_two, [1, 0, 0, 0, 1, 0, 1]);
        let count = |runs, chunks| RunCount { runs, chunks };
        assert_eq!(unique.by_chunks, [count(2, 2), count(1, 2)]);
        assert_eq!(unique.mean_bytes(), 27.0);
        assert_eq!((redundant.runs, redundant.bytes), (1, 1));
        let nothing = run_lengths(std::iter::empty()).unwrap();
        assert_eq!(nothing[0].mean_bytes(), 0.0);
    }
}
