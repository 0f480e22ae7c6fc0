//! The output of `analyze`.

use crate::output::{Render, one_line};
use onefold_analyze::{
    Advice, Analysis, Category, ChunkingReport, Compressed, Compressibility, Copies, Estimate,
    EstimateOptions, InputShare, Problem, RunLengths, Totals,
};
use onefold_api::size;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// The most rows of a table of file kinds, file sizes or numbers of copies; JSON has all rows.
const ROWS_MAX: usize = 12;

/// The most rows of a table of runs.
const RUN_ROWS_MAX: usize = 24;

/// The JSON document of `analyze`. Field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Reply {
    pub(super) is_complete: bool,
    pub(super) is_by_generation: bool,
    pub(super) files: u64,
    pub(super) empty_files: u64,
    pub(super) skipped_files: u64,
    pub(super) found_bytes: u64,
    pub(super) problems: Vec<Problem>,
    pub(super) chunkings: Vec<WayReply>,
}

/// The result of one chunking method.
#[derive(Debug, Serialize)]
pub(super) struct WayReply {
    pub(super) chunking: String,
    #[serde(flatten)]
    pub(super) totals: Totals,
    /// Chunks other than zeros.
    pub(super) data_chunks: u64,
    pub(super) data_bytes: u64,
    pub(super) distinct_chunks: u64,
    pub(super) distinct_bytes: u64,
    /// Distinct chunks that occur only once.
    pub(super) single_chunks: u64,
    pub(super) duplicate_chunks: u64,
    pub(super) duplicate_bytes: u64,
    /// Bytes that occur again in the same input; the next field has the further savings across inputs.
    pub(super) duplicate_within_bytes: u64,
    pub(super) duplicate_across_bytes: u64,
    /// Share of the data other than zeros that deduplication saves.
    pub(super) saved_ratio: f64,
    pub(super) inputs: Vec<InputReply>,
    pub(super) copies: Vec<Copies>,
    pub(super) kinds: Vec<KindReply>,
    pub(super) sizes: Vec<SizeReply>,
    pub(super) runs: [RunLengths; 2],
    /// Compressibility of a sample of the distinct chunks; `None` for whole files.
    pub(super) compression: Option<Compressibility>,
    /// The cost of the savings in a pool; `None` for chunks that a pool cannot store.
    pub(super) advice: Option<Advice>,
}

#[derive(Debug, Serialize)]
pub(super) struct InputReply {
    pub(super) path: PathBuf,
    #[serde(flatten)]
    pub(super) totals: Totals,
    #[serde(flatten)]
    pub(super) share: InputShare,
}

#[derive(Debug, Serialize)]
pub(super) struct KindReply {
    /// The file name extension; empty if there is none.
    pub(super) kind: String,
    #[serde(flatten)]
    pub(super) share: Category,
}

#[derive(Debug, Serialize)]
pub(super) struct SizeReply {
    pub(super) from_bytes: u64,
    #[serde(flatten)]
    pub(super) share: Category,
}

impl Reply {
    pub(super) fn of(analysis: Analysis, is_by_generation: bool) -> Self {
        let (survey, inputs) = (analysis.survey, analysis.inputs);
        let ways = analysis.chunkings.into_iter();
        Self {
            is_complete: analysis.is_complete,
            is_by_generation,
            files: survey.files,
            empty_files: survey.empty_files,
            skipped_files: survey.skipped,
            found_bytes: survey.bytes,
            problems: analysis.problems,
            chunkings: ways.map(|way| WayReply::of(way, &inputs)).collect(),
        }
    }
}

impl Reply {
    pub(super) fn survey(&self) -> String {
        format!(
            "{} files, {} of them empty, {} links and special files left out, {} in all",
            self.files,
            self.empty_files,
            self.skipped_files,
            size::display(self.found_bytes)
        )
    }
}

impl WayReply {
    fn of(report: ChunkingReport, paths: &[PathBuf]) -> Self {
        let advice = Advice::of(&report);
        let found = &report.redundancy;
        let single = found.copies.first().filter(|first| first.copies == 1);
        let inputs = report.inputs.iter().zip(&found.inputs).zip(paths);
        let inputs = inputs.map(|((totals, share), path)| InputReply {
            path: path.clone(),
            totals: *totals,
            share: *share,
        });
        let mut kinds: Vec<KindReply> = report
            .kinds
            .into_iter()
            .map(|(kind, share)| KindReply { kind, share })
            .collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.share.bytes));
        let sizes = report.sizes.into_iter().map(|(power, share)| SizeReply {
            from_bytes: 1 << power,
            share,
        });
        Self {
            chunking: report.chunking.to_string(),
            totals: report.total,
            data_chunks: found.chunks,
            data_bytes: found.bytes,
            distinct_chunks: found.distinct_chunks,
            distinct_bytes: found.distinct_bytes,
            single_chunks: single.map_or(0, |single| single.chunks),
            duplicate_chunks: found.chunks - found.distinct_chunks,
            duplicate_bytes: found.bytes - found.distinct_bytes,
            duplicate_within_bytes: found.within_bytes(),
            duplicate_across_bytes: found.across_bytes(),
            saved_ratio: part(found.bytes - found.distinct_bytes, found.bytes),
            inputs: inputs.collect(),
            copies: found.copies.clone(),
            kinds,
            sizes: sizes.collect(),
            runs: report.runs,
            compression: report.compression,
            advice,
        }
    }

    fn text(&self, is_by_generation: bool, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\ncut as {}", self.chunking)?;
        for [name, chunks, bytes, part] in self.totals_rows() {
            writeln!(
                out,
                "  {name:10} {chunks:>14} chunks {bytes:>12}  {part:>6}"
            )?;
        }
        writeln!(
            out,
            "  of the duplicates {} within inputs, {} across them",
            size::display(self.duplicate_within_bytes),
            size::display(self.duplicate_across_bytes)
        )?;
        if self.inputs.len() > 1 || is_by_generation {
            self.inputs_text(is_by_generation, out)?;
        }
        for figures in self.figures() {
            figures.text(out)?;
        }
        let mut remarks = self.remarks().into_iter();
        remarks.try_for_each(|remark| writeln!(out, "  {remark}"))
    }

    /// The number, bytes and share of the chunks of each kind.
    pub(super) fn totals_rows(&self) -> [[String; 4]; 5] {
        let (all, data) = ((self.totals.bytes, "all"), (self.data_bytes, "data"));
        let totals = &self.totals;
        let row = |name: &str, chunks: u64, bytes: u64, (of, whole): (u64, &str)| {
            let part = format!("{:6.2} % of {whole}", 100.0 * part(bytes, of));
            [
                name.to_owned(),
                chunks.to_string(),
                size::display(bytes),
                part,
            ]
        };
        [
            row("all", totals.chunks, totals.bytes, all),
            row("zeros", totals.zero_chunks, totals.zero_bytes, all),
            row("data", self.data_chunks, self.data_bytes, all),
            row("distinct", self.distinct_chunks, self.distinct_bytes, data),
            row(
                "duplicate",
                self.duplicate_chunks,
                self.duplicate_bytes,
                data,
            ),
        ]
    }

    fn inputs_text(&self, is_by_generation: bool, out: &mut dyn Write) -> io::Result<()> {
        let last = if is_by_generation {
            "adds"
        } else {
            "new in order"
        };
        writeln!(
            out,
            "  {:>12} {:>12} {:>12} {last:>12}  input",
            "data", "distinct", "elsewhere"
        )?;
        for input in &self.inputs {
            let [data, distinct, elsewhere, new] = input.amounts();
            let path = one_line(&input.path.to_string_lossy());
            writeln!(
                out,
                "  {data:>12} {distinct:>12} {elsewhere:>12} {new:>12}  {path}"
            )?;
        }
        Ok(())
    }

    /// Tables of chunks by copies, files by kind and size, and runs by length.
    pub(super) fn figures(&self) -> Vec<Figures> {
        let mut all = vec![self.copies_figures()];
        all.extend(self.kinds_figures());
        all.extend(self.sizes_figures());
        all.push(self.runs_figures());
        all
    }

    fn copies_figures(&self) -> Figures {
        let row = |name: String, chunks: u64, bytes: u64| {
            [name, chunks.to_string(), size::display(bytes)]
        };
        let (first, others) = self.copies.split_at(self.copies.len().min(ROWS_MAX));
        let mut rows: Vec<_> = first
            .iter()
            .map(|copied| row(copied.copies.to_string(), copied.chunks, copied.bytes))
            .collect();
        if let Some(last) = others.last() {
            let chunks = others.iter().map(|copied| copied.chunks).sum();
            let bytes = others.iter().map(|copied| copied.bytes).sum();
            rows.push(row(format!("to {}", last.copies), chunks, bytes));
        }
        Figures {
            columns: ["copies", "chunks", "each once"],
            rows,
        }
    }

    fn kinds_figures(&self) -> Option<Figures> {
        let name = |kind: &KindReply| match kind.kind.as_str() {
            "" => "(none)".to_owned(),
            kind => kind.to_owned(),
        };
        let rows = self.kinds.iter().take(ROWS_MAX);
        (self.kinds.len() > 1).then(|| Figures {
            columns: ["kind", "data", "saved"],
            rows: rows
                .map(|kind| category_row(name(kind), &kind.share))
                .collect(),
        })
    }

    fn sizes_figures(&self) -> Option<Figures> {
        let rows = self.sizes.iter();
        (self.sizes.len() > 1).then(|| Figures {
            columns: ["files from", "data", "saved"],
            rows: rows
                .map(|row| category_row(size::display(row.from_bytes), &row.share))
                .collect(),
        })
    }

    fn runs_figures(&self) -> Figures {
        let [unique, redundant] = &self.runs;
        let powers = unique
            .by_power_of_two
            .len()
            .max(redundant.by_power_of_two.len());
        let count =
            |runs: &RunLengths, power: usize| runs.by_power_of_two.get(power).copied().unwrap_or(0);
        let any = (0..powers).filter(|power| count(unique, *power) + count(redundant, *power) > 0);
        let row = |power: usize| {
            [
                size::display(1 << power),
                count(unique, power).to_string(),
                count(redundant, power).to_string(),
            ]
        };
        let mut rows: Vec<_> = any.take(RUN_ROWS_MAX).map(row).collect();
        let mean = |runs: &RunLengths| size::display(runs.mean_bytes() as u64);
        rows.push(["mean".to_owned(), mean(unique), mean(redundant)]);
        Figures {
            columns: ["runs from", "of unique", "of redundant"],
            rows,
        }
    }

    /// Sentences about compressed sizes and the cost in a pool.
    pub(super) fn remarks(&self) -> Vec<String> {
        let compression = self.compression.iter().flat_map(|found| {
            let chunks = compressed_remark("chunk for itself", &found.chunks);
            let groups = compressed_remark("64 KiB together", &found.groups);
            [chunks, groups].into_iter().flatten()
        });
        let advice = self.advice.iter().flat_map(advice_remarks);
        compression.chain(advice).collect()
    }
}

impl InputReply {
    /// The input's data, and the parts of it that are distinct, that are in other inputs, and that are in no
    /// earlier input.
    pub(super) fn amounts(&self) -> [String; 4] {
        let share = &self.share;
        let data = self.totals.bytes - self.totals.zero_bytes;
        [
            data,
            share.distinct_bytes,
            share.shared_bytes,
            share.new_bytes,
        ]
        .map(size::display)
    }
}

/// A table whose first column names the rows.
pub(super) struct Figures {
    pub(super) columns: [&'static str; 3],
    pub(super) rows: Vec<[String; 3]>,
}

impl Figures {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let heading = self.columns.map(str::to_owned);
        for [name, first, second] in std::iter::once(&heading).chain(&self.rows) {
            writeln!(out, "  {name:>12} {first:>14} {second:>12}")?;
        }
        Ok(())
    }
}

fn category_row(name: String, share: &Category) -> [String; 3] {
    let saved = 100.0 * (1.0 - share.stored_bytes / share.bytes.max(1) as f64);
    [name, size::display(share.bytes), format!("{saved:.2} %")]
}

fn compressed_remark(unit: &str, found: &Compressed) -> Option<String> {
    (found.sampled > 0).then(|| {
        format!(
            "LZ4 would leave {:.1} % of the distinct data, each {unit} (sample of {}, standard error {:.1} %)",
            100.0 * found.ratio(),
            found.sampled,
            100.0 * found.standard_error
        )
    })
}

/// The recommendation and the reasons for it.
fn advice_remarks(advice: &Advice) -> [String; 4] {
    let whole = |blocks: u64| size::display(blocks * advice.block_bytes);
    let costs = size::display(advice.map_bytes + advice.index_bytes);
    let (verb, bytes) = match u64::try_from(advice.saved_bytes) {
        Ok(saved) => ("saves", saved),
        Err(_) => ("would cost", advice.saved_bytes.unsigned_abs()),
    };
    [
        format!(
            "in a pool with blocks of {}, to which short ones are filled up:",
            size::display(advice.block_bytes)
        ),
        format!(
            "  maps    {} blocks x {:.2} bytes = {}",
            advice.mapped_blocks,
            advice.map_bytes_per_block,
            size::display(advice.map_bytes)
        ),
        format!(
            "  index   {} different ones x {} bytes = {} on disk, x {} bytes in memory: serve with \
             --memory {}M or more",
            advice.distinct_blocks,
            advice.index_bytes_per_row,
            size::display(advice.index_bytes),
            advice.memory_bytes_per_row,
            advice.memory_bytes >> 20
        ),
        format!(
            "  {} - {} stored - {costs} = onefold {verb} {} ({:.1} %)",
            whole(advice.mapped_blocks),
            whole(advice.distinct_blocks),
            size::display(bytes),
            100.0 * part(bytes, advice.mapped_blocks * advice.block_bytes)
        ),
    ]
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.survey())?;
        let mut ways = self.chunkings.iter();
        ways.try_for_each(|way| way.text(self.is_by_generation, out))
    }
}

/// The JSON document of `analyze --method harnik`.
#[derive(Debug, Serialize)]
pub(super) struct EstimateReply {
    pub(super) is_complete: bool,
    pub(super) chunking: String,
    pub(super) files: u64,
    pub(super) skipped_files: u64,
    pub(super) problems: Vec<Problem>,
    #[serde(flatten)]
    pub(super) totals: Totals,
    pub(super) data_bytes: u64,
    /// Estimated share of the data that deduplication saves. The estimate is off by at most `error`, with a
    /// probability of `confidence`.
    pub(super) saved_ratio: f64,
    pub(super) error: f64,
    pub(super) confidence: f64,
    pub(super) sample_blocks: u64,
    pub(super) seed: u64,
}

impl EstimateReply {
    pub(super) fn of(found: Estimate, options: &EstimateOptions) -> Self {
        Self {
            is_complete: found.is_complete,
            chunking: format!("fixed:{}", options.block_bytes),
            files: found.survey.files,
            skipped_files: found.survey.skipped,
            problems: found.problems,
            data_bytes: found.totals.bytes - found.totals.zero_bytes,
            totals: found.totals,
            saved_ratio: 1.0 - found.distinct_ratio,
            error: found.error,
            confidence: options.confidence,
            sample_blocks: found.sample_blocks,
            seed: options.seed,
        }
    }
}

impl Render for EstimateReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{} files, cut as {}: {} of data, and {} of zeros",
            self.files,
            self.chunking,
            size::display(self.data_bytes),
            size::display(self.totals.zero_bytes)
        )?;
        writeln!(
            out,
            "{:.2} % of the data would not be stored, {}; within {:.2} percent of the data with a \
             probability of {} % (Harnik's method, {} bytes drawn, seed {})",
            100.0 * self.saved_ratio,
            size::display((self.saved_ratio * self.data_bytes as f64) as u64),
            100.0 * self.error,
            100.0 * self.confidence,
            self.sample_blocks,
            self.seed
        )
    }
}

fn part(of: u64, all: u64) -> f64 {
    of as f64 / all.max(1) as f64
}
