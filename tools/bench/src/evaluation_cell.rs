//! A cell of Dmdedup's figures 4 to 6: a load with one index, and its results.

use serde_json::{Value, json};

use crate::inline_load::{BLOCK_BYTES, Load};
use crate::statistics::{Estimate, median};
use onefold_harness::inline::Inline;

/// A request of 640 KiB, as Dmdedup's sequential writes.
const LARGE_BLOCKS: usize = 160;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Unique,
    Images,
    Duplicates,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    Sequential,
    Random,
}

/// A load with one index, and its results.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) content: Content,
    pub(crate) pattern: Pattern,
    pub(crate) back_end: &'static str,
    /// The memory requested for the index, and the memory it may use, in percent of the memory that its rows need.
    pub(crate) percent: u64,
    pub(crate) had_percent: f64,
    pub(crate) pairs: Vec<Pair>,
}

/// Requests per second of one slice of each server, and the duplicates that onefold found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) ours: f64,
    pub(crate) base: f64,
    pub(crate) inline: Inline,
}

impl Cell {
    pub(crate) fn load(&self) -> Load {
        let (blocks, depth) = match self.pattern {
            Pattern::Sequential => (LARGE_BLOCKS, 4),
            Pattern::Random => (1, 32),
        };
        Load {
            repeats: 0,
            zeros: 0,
            duplicates: 100 * u32::from(self.content == Content::Duplicates),
            blocks,
            depth,
        }
    }

    pub(crate) fn ratio(&self) -> Option<Estimate> {
        Estimate::over(self.pairs.iter().map(|pair| pair.ours / pair.base))
    }

    /// The rates of onefold and of the pass-through, in MB/s or requests/s.
    pub(crate) fn rates(&self) -> [f64; 2] {
        let unit = match self.pattern {
            Pattern::Sequential => (LARGE_BLOCKS * BLOCK_BYTES) as f64 / 1e6,
            Pattern::Random => 1.0,
        };
        [|pair: &Pair| pair.ours, |pair: &Pair| pair.base]
            .map(|of| median(self.pairs.iter().map(of)) * unit)
    }

    /// Hits, and blocks found and written all the same, in percent of the blocks looked up.
    pub(crate) fn found_percent(&self) -> [f64; 2] {
        let counts = self.pairs.iter().map(|pair| pair.inline);
        let counts = counts.fold(Inline::default(), Inline::plus);
        [counts.hits, counts.refused]
            .map(|blocks| 100.0 * blocks as f64 / counts.scanned.max(1) as f64)
    }

    pub(crate) fn line(&self) -> String {
        let ratio = self.ratio().map_or(f64::NAN, |ratio| ratio.median);
        let ([ours, base], [hits, refused]) = (self.rates(), self.found_percent());
        format!(
            "{:?} {:?}, {}, {} %: {ratio:.2} ({ours:.0} to {base:.0}); {hits:.1} % hits, {refused:.1} % refused",
            self.content, self.pattern, self.back_end, self.percent,
        )
    }

    pub(crate) fn raw(&self) -> Value {
        let pairs = self.pairs.iter().map(|pair| {
            json!({"requests_per_second": pair.ours, "pass_through_requests_per_second": pair.base,
                   "looked_up_blocks": pair.inline.scanned, "hit_blocks": pair.inline.hits,
                   "refused_blocks": pair.inline.refused})
        });
        json!({"content": format!("{:?}", self.content).to_lowercase(),
               "pattern": format!("{:?}", self.pattern).to_lowercase(),
               "index": self.back_end, "memory_percent": self.percent,
               "memory_percent_had": self.had_percent, "pairs": pairs.collect::<Vec<_>>()})
    }
}

/// An example for tests of the report.
#[cfg(test)]
pub(crate) fn example(content: Content, pattern: Pattern) -> Cell {
    let pair = |ours, hits| Pair {
        ours,
        base: 100.0,
        inline: Inline {
            scanned: 100,
            hits,
            refused: 1,
            ..Inline::default()
        },
    };
    Cell {
        content,
        pattern,
        back_end: "hash",
        percent: 25,
        had_percent: 25.0,
        pairs: vec![pair(90.0, 98), pair(100.0, 99), pair(110.0, 100)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_medians_in_its_unit_and_its_hits() {
        let random = example(Content::Duplicates, Pattern::Random);
        assert_eq!(random.ratio().unwrap().median, 1.0);
        assert_eq!(random.rates(), [100.0, 100.0]);
        assert_eq!(random.found_percent(), [99.0, 1.0]);
        let sequential = example(Content::Unique, Pattern::Sequential);
        assert_eq!(sequential.rates(), [65.536, 65.536]);
    }

    #[test]
    fn only_duplicates_are_written_as_such() {
        let load = |content| example(content, Pattern::Sequential).load();
        assert_eq!(load(Content::Duplicates).duplicates, 100);
        assert_eq!(load(Content::Images).duplicates, 0);
        assert_eq!(load(Content::Unique).blocks * BLOCK_BYTES, 640 << 10);
    }
}
