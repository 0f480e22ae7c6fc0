//! How often contents occur, and the lengths of runs: measured by an analysis, reproduced by a
//! load.
//!
//! A distribution is a text that people can read and write, one field a line;
//! `docs/operating/bench.md` describes the lines. Zeros are not in it.

use std::fmt;

use onefold_analyze::{Chunking, ChunkingReport, RunClass, RunCount};

use crate::dedisbench;

/// The first line.
const HEADING: &str = "onefold distribution 1";

/// The most blocks of a distribution: 2^48. Sums stay far below 2^63.
pub(crate) const BLOCKS_MAX: u64 = 1 << 48;

/// Contents that occur as often as each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyCount {
    /// How often each of the contents occurs, at least once.
    pub copies: u64,
    /// How many different contents occur this often, at least one.
    pub contents: u64,
}

/// How often the contents of a data set occur, and how long its runs are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    pub(crate) block_bytes: u64,
    /// By copies, ascending.
    pub(crate) copies: Vec<CopyCount>,
    /// The runs of unique contents, and the runs of redundant ones: the n-th entry has the runs of
    /// 2^n blocks to below 2^(n+1).
    pub(crate) runs: [Vec<RunCount>; 2],
}

/// A fault in the text of a distribution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct DistributionError {
    /// The line of the fault, counted from 1.
    pub line: usize,
    /// The fault.
    pub what: String,
}

impl Distribution {
    /// The distribution of an analysis in fixed blocks. `None` for other chunks, or if all of them
    /// are zero.
    #[must_use]
    pub fn of(report: &ChunkingReport) -> Option<Self> {
        let Chunking::Fixed { bytes } = report.chunking else {
            return None;
        };
        let copies = report.redundancy.copies.iter().map(|found| CopyCount {
            copies: found.copies,
            contents: found.chunks,
        });
        let found = Self {
            block_bytes: bytes as u64,
            copies: copies.collect(),
            runs: report.runs.each_ref().map(|runs| runs.by_chunks.clone()),
        };
        (found.blocks() > 0).then_some(found)
    }

    /// Reads the text of a distribution, in this format or in DEDISbench's.
    ///
    /// # Errors
    ///
    /// Returns the line of a fault; sums that contradict each other are reported at the end.
    pub fn parse(text: &str) -> Result<Self, DistributionError> {
        if dedisbench::is_meant(text) {
            let mut parsing = dedisbench::Parsing::default();
            let last = each_line(text, |_, text| parsing.line(text))?;
            return parsing
                .finish()
                .map_err(|what| DistributionError { line: last, what });
        }
        let mut parsing = Parsing::default();
        let last = each_line(text, |line, text| match line {
            1 if text == HEADING => Ok(()),
            1 => Err(format!(
                "'{HEADING}' must be the first line, or two numbers as DEDISbench has them"
            )),
            _ => parsing.line(text),
        })?;
        parsing
            .finish()
            .map_err(|what| DistributionError { line: last, what })
    }

    /// Size of its blocks, in bytes: a multiple of 512 up to 16 MiB.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// This distribution, with blocks of another size.
    #[must_use]
    pub fn with_block_bytes(self, block_bytes: u64) -> Self {
        Self {
            block_bytes,
            ..self
        }
    }

    /// By copies, ascending.
    #[must_use]
    pub fn copies(&self) -> &[CopyCount] {
        &self.copies
    }

    /// The runs of a class: the n-th entry has the runs of 2^n blocks to below 2^(n+1).
    #[must_use]
    pub fn runs(&self, class: RunClass) -> &[RunCount] {
        let [unique, redundant] = &self.runs;
        match class {
            RunClass::Unique => unique,
            RunClass::Redundant => redundant,
        }
    }

    /// All blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let blocks = self
            .copies
            .iter()
            .map(|count| count.copies * count.contents);
        blocks.sum()
    }

    /// Different contents.
    #[must_use]
    pub fn contents(&self) -> u64 {
        self.copies.iter().map(|count| count.contents).sum()
    }

    /// Blocks whose content occurs once.
    #[must_use]
    pub fn unique_blocks(&self) -> u64 {
        let first = self.copies.first().filter(|first| first.copies == 1);
        first.map_or(0, |first| first.contents)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADING}")?;
        writeln!(f, "block {}", self.block_bytes)?;
        for CopyCount { copies, contents } in &self.copies {
            writeln!(f, "copies {copies} {contents}")?;
        }
        for (class, runs) in [("unique", &self.runs[0]), ("redundant", &self.runs[1])] {
            for (power, count) in runs.iter().enumerate().filter(|(_, count)| count.runs > 0) {
                let RunCount { runs, chunks } = count;
                writeln!(f, "runs {class} {} {runs} {chunks}", 1_u64 << power)?;
            }
        }
        Ok(())
    }
}

/// Calls `read` for each line with its number, from 1. Returns the last number, 1 for an empty
/// text.
fn each_line(
    text: &str,
    mut read: impl FnMut(usize, &str) -> Result<(), String>,
) -> Result<usize, DistributionError> {
    let mut last = 1;
    for (line, text) in (1..).zip(text.lines()) {
        read(line, text.trim()).map_err(|what| DistributionError { line, what })?;
        last = line;
    }
    Ok(last)
}

/// The state after the lines read so far.
#[derive(Default)]
struct Parsing {
    block_bytes: Option<u64>,
    copies: Vec<CopyCount>,
    runs: [Vec<RunCount>; 2],
    blocks: u64,
}

impl Parsing {
    fn line(&mut self, text: &str) -> Result<(), String> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        match fields[..] {
            [] => Ok(()),
            [first, ..] if first.starts_with('#') => Ok(()),
            ["block", bytes] => self.block(number(bytes)?),
            ["copies", copies, contents] => self.copies(number(copies)?, number(contents)?),
            ["runs", class, from, runs, blocks] => {
                let class = match class {
                    "unique" => 0,
                    "redundant" => 1,
                    _ => {
                        return Err(format!(
                            "'{class}' runs: unique and redundant ones there are"
                        ));
                    }
                };
                self.runs(class, number(from)?, number(runs)?, number(blocks)?)
            }
            [kind, ..] => Err(format!(
                "'{kind}' with {} fields: a line is 'block BYTES', 'copies COPIES CONTENTS', 'runs \
                 unique|redundant FROM RUNS BLOCKS', or begins with #",
                fields.len() - 1
            )),
        }
    }

    fn block(&mut self, bytes: u64) -> Result<(), String> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        Chunking::fixed(size).map_err(|error| error.to_string())?;
        match self.block_bytes.replace(bytes) {
            None => Ok(()),
            Some(_) => Err("the size of blocks was given before".to_owned()),
        }
    }

    fn copies(&mut self, copies: u64, contents: u64) -> Result<(), String> {
        let before = self.copies.last().map_or(0, |last| last.copies);
        if copies <= before {
            return Err(format!(
                "{copies} copies after {before}: numbers of copies ascend, from 1 on"
            ));
        }
        let blocks = copies.checked_mul(contents);
        let blocks = blocks.and_then(|blocks| self.blocks.checked_add(blocks));
        let Some(blocks) = blocks.filter(|blocks| contents > 0 && *blocks <= BLOCKS_MAX) else {
            return Err(format!(
                "{contents} contents in {copies} copies: at least one there must be, and 2^48 \
                 blocks at most"
            ));
        };
        self.blocks = blocks;
        self.copies.push(CopyCount { copies, contents });
        Ok(())
    }

    fn runs(&mut self, class: usize, from: u64, runs: u64, blocks: u64) -> Result<(), String> {
        let places = &mut self.runs[class];
        if !from.is_power_of_two() || from > BLOCKS_MAX {
            return Err(format!(
                "runs from {from} blocks on: a power of two it must be"
            ));
        }
        let power = from.ilog2() as usize;
        if power < places.len() {
            return Err(format!(
                "runs from {from} blocks on after longer ones: lengths ascend in each class"
            ));
        }
        let (least, most) = (runs.checked_mul(from), runs.checked_mul(from * 2 - 1));
        let is_fine = least.zip(most);
        let is_fine = is_fine.is_some_and(|(least, most)| (least..=most).contains(&blocks));
        if runs == 0 || !is_fine || blocks > BLOCKS_MAX {
            return Err(format!(
                "{runs} runs with {blocks} blocks: each has from {from} to {}",
                from * 2 - 1
            ));
        }
        places.resize(power, RunCount::default());
        places.push(RunCount {
            runs,
            chunks: blocks,
        });
        Ok(())
    }

    fn finish(self) -> Result<Distribution, String> {
        let block_bytes = self.block_bytes.ok_or("no line has the size of blocks")?;
        if self.copies.is_empty() {
            return Err("no line has copies".to_owned());
        }
        let found = Distribution {
            block_bytes,
            copies: self.copies,
            runs: self.runs,
        };
        let unique = found.unique_blocks();
        let blocks = [unique, found.blocks() - unique];
        for ((class, runs), blocks) in ["unique", "redundant"].iter().zip(&found.runs).zip(blocks) {
            // No overflow: each is 2^48 at most, and there are 49 powers.
            let in_runs: u64 = runs.iter().map(|count| count.chunks).sum();
            if in_runs != blocks {
                return Err(format!(
                    "the {class} runs have {in_runs} blocks together, and the copies {blocks}"
                ));
            }
        }
        Ok(found)
    }
}

/// Digits only: no sign, no unit.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| format!("'{text}' is not a number"))
}

/// The built-in distributions: names and texts. A document next to each text gives its origin.
#[must_use]
pub fn shipped_distributions() -> [(&'static str, &'static str); 3] {
    [
        ("guests", include_str!("../distributions/guests")),
        ("dedis", include_str!("../distributions/dedis")),
        ("paulo09", include_str!("../distributions/paulo09")),
    ]
}
