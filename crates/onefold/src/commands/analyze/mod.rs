//! `onefold analyze`

mod html;
mod reply;
mod tables;

use self::reply::{EstimateReply, Reply};
use self::tables::TableFolder;
use super::html::PageFile;
use crate::context::Context;
use crate::foreground::{self, random_seed};
use crate::image::ImageFormat;
use crate::image::writer::TextFile;
use crate::output::Output;
use crate::progress::Progress as Bar;
use onefold_analyze::{
    Analysis, AnalyzeError, Chunking, EstimateOptions, Options, Problem, Progress, Source,
    TraceOptions, analyze, estimate, trace_ways,
};
use onefold_api::{Error, Result, size};
use onefold_image::Backing;
use onefold_workload::Distribution;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const CHUNKING_DEFAULT: Chunking = Chunking::Fixed { bytes: 4096 };

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Inputs to analyse: files, folders with everything below them, block devices, disk images. Symbolic
    /// links below a folder are not followed.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Read the paths as traces that --trace wrote, instead of data, and analyse all their inputs together.
    /// The traces must have been made with the same chunking.
    #[arg(long, conflicts_with_all = ["image_format", "allow_backing", "trace"])]
    from_traces: bool,

    /// Write chunks and fingerprints to this new file, for --from-traces.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Store only hashes of the paths in the trace; their key is discarded.
    #[arg(long, requires = "trace")]
    hide_names: bool,

    /// Format of the inputs. With qcow2, files that begin as qcow2 images are read as the disks inside them;
    /// all other files are read as they are.
    #[arg(long, value_enum, default_value = "raw")]
    image_format: ImageFormat,

    /// Read the backing files of a qcow2 image, too, where the image itself has no data. Only for images that
    /// you trust. Without this option, only data in the image itself is counted.
    #[arg(long)]
    allow_backing: bool,

    /// Chunking method: file, fixed:SIZE, content:AVERAGE or content:MIN,AVERAGE,MAX. May be repeated; the
    /// data is read only once. [default: fixed:4K, or all methods in the traces]
    #[arg(long, value_name = "WAY")]
    chunking: Vec<Chunking>,

    /// Treat the inputs as generations of the same data: report what each adds to the ones before it.
    #[arg(long)]
    generations: bool,

    /// Method of the analysis.
    #[arg(long, value_enum, default_value = "exact")]
    method: Method,

    /// Maximum error of Harnik's estimate, in percent of the data.
    #[arg(long, value_name = "PERCENT", default_value = "1")]
    error: f64,

    /// Probability that Harnik's estimate is within this error, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "99.9")]
    confidence: f64,

    /// Seed for the sample of Harnik's estimate. [default: random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Write the figures as CSV tables into this new folder.
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,

    /// Write a self-contained HTML page with plots to this new file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the distribution of copies and of run lengths to this new file, for `onefold bench`.
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,

    /// Memory for the table of chunks; the rest goes to a temporary file. The sample of an estimate must fit
    /// in memory.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", default_value = "256M")]
    memory: u64,
}

/// How redundancy is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// Count all chunks.
    Exact,
    /// Harnik's method: estimate the savings of fixed blocks within an error bound, in 16 MiB of memory.
    Harnik,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    match args.method {
        Method::Exact => run_exact(context, args),
        Method::Harnik => run_harnik(context, args),
    }
}

fn run_exact(context: &Context, args: &Args) -> Result<ExitCode> {
    let chunkings = args.chunkings()?;
    let fixed = |way: &&Chunking| matches!(way, Chunking::Fixed { .. });
    if args.distribution.is_some() && chunkings.iter().filter(fixed).count() != 1 {
        let message = "a distribution is of fixed blocks of one size: --chunking fixed:SIZE, once";
        return Err(Error::usage(message));
    }
    let options = Options {
        chunkings,
        memory_bytes: usize::try_from(args.memory)
            .map_err(|_| Error::usage("more memory than this machine can address"))?,
        temporary: std::env::temp_dir(),
        trace: args.trace.as_ref().map(|path| TraceOptions {
            path: path.clone(),
            hides_names: args.hide_names,
        }),
    };
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    let tables = args.csv.as_deref().map(TableFolder::create).transpose()?;
    let distribution = args.distribution.as_deref();
    let distribution = distribution.map(TextFile::create).transpose()?;
    let source = args.source();
    let all = source.bytes();
    let progress = Arc::new(Progress::default());
    stop_when_interrupted(&progress)?;
    let analysis = with_bar(&context.output, &progress, all, || {
        analyze(source, &options, &progress)
    });
    let analysis = analysis.map_err(said)?;
    refuse_if_unreadable(&context.output, &analysis.problems, analysis.survey.bytes)?;
    note_unopened_disks(&context.output, analysis.unopened_disks);
    let code = warn(&context.output, &analysis.problems, analysis.is_complete);
    match distribution {
        Some(file) if analysis.is_complete => write_distribution(&analysis, file)?,
        Some(_) => context
            .output
            .warn("no distribution was written: it would be of a part of the data"),
        None => {}
    }
    let reply = Reply::of(analysis, args.generations);
    if let Some(folder) = tables {
        folder.write(&reply)?;
    }
    if let Some(file) = page {
        file.write(&html::page(&reply)?)?;
    }
    context.output.document(&reply)?;
    Ok(code)
}

fn write_distribution(analysis: &Analysis, file: TextFile) -> Result<()> {
    let found = analysis.chunkings.iter().find_map(Distribution::of);
    let found = found.ok_or_else(|| {
        Error::failed("there is nothing but zeros, which are in no distribution: none was written")
    })?;
    file.write(&found.to_string())
}

/// Fails if nothing could be read, because the figures would suggest that there is nothing to save.
fn refuse_if_unreadable(output: &Output, problems: &[Problem], bytes: u64) -> Result<()> {
    let Some((last, others)) = problems.split_last().filter(|_| bytes == 0) else {
        return Ok(());
    };
    warn(output, others, true);
    let Problem { path, what } = last;
    Err(Error::failed(format!(
        "nothing could be read, so there are no figures: {path:?}: {what}"
    )))
}

fn run_harnik(context: &Context, args: &Args) -> Result<ExitCode> {
    let bytes = args.one_size_of_blocks()?;
    let options = EstimateOptions {
        block_bytes: bytes,
        error: args.error / 100.0,
        confidence: args.confidence / 100.0,
        seed: args.seed.unwrap_or_else(random_seed),
    };
    options.check().map_err(said)?;
    if options.sample_bytes() > args.memory {
        return Err(Error::usage(format!(
            "--error {} with --confidence {} takes a sample of {} of memory, more than --memory {}: allow a larger \
             error, or give more memory",
            args.error,
            args.confidence,
            size::display(options.sample_bytes()),
            size::display(args.memory)
        )));
    }
    let source = args.source();
    let all = source.bytes();
    let progress = Arc::new(Progress::default());
    stop_when_interrupted(&progress)?;
    let found = with_bar(&context.output, &progress, all, || {
        estimate(source, &options, &progress)
    });
    let found = found.map_err(said)?;
    refuse_if_unreadable(&context.output, &found.problems, found.survey.bytes)?;
    if !found.is_complete {
        return Err(Error::failed(
            "interrupted: an estimate needs all of the data, so there is none",
        ));
    }
    note_unopened_disks(&context.output, found.unopened_disks);
    let code = warn(&context.output, &found.problems, found.is_complete);
    context
        .output
        .document(&EstimateReply::of(found, &options))?;
    Ok(code)
}

impl Args {
    fn source(&self) -> Source<'_> {
        if self.from_traces {
            return Source::Traces(&self.paths);
        }
        let beneath = if self.allow_backing {
            Backing::Follow
        } else {
            Backing::Leave
        };
        Source::Paths {
            paths: &self.paths,
            disks: (self.image_format == ImageFormat::Qcow2).then_some(beneath),
        }
    }

    /// The block size for the estimate, which supports only one size of fixed blocks.
    fn one_size_of_blocks(&self) -> Result<usize> {
        let [Chunking::Fixed { bytes }] = self.chunkings()?[..] else {
            return Err(Error::usage(
                "an estimate is of fixed blocks of one size: --chunking fixed:SIZE, once",
            ));
        };
        let files = [&self.csv, &self.html, &self.trace, &self.distribution];
        if files.into_iter().any(Option::is_some) {
            return Err(Error::usage(
                "tables, pages, traces and distributions are of exact figures: only with --method exact",
            ));
        }
        Ok(bytes)
    }

    fn chunkings(&self) -> Result<Vec<Chunking>> {
        if self.chunking.is_empty() {
            return if self.from_traces {
                trace_ways(&self.paths).map_err(said)
            } else {
                Ok(vec![CHUNKING_DEFAULT])
            };
        }
        let mut chunkings: Vec<Chunking> = Vec::new();
        for chunking in &self.chunking {
            if !chunkings.contains(chunking) {
                chunkings.push(*chunking);
            }
        }
        Ok(chunkings)
    }
}

fn note_unopened_disks(output: &Output, count: u64) {
    if count > 0 {
        output.warn(format_args!(
            "{count} files look like qcow2 images but were read byte for byte; --image-format qcow2 \
             reads the disks inside them"
        ));
    }
}

/// Prints a warning for each problem with an input, and returns the exit code.
fn warn(output: &Output, problems: &[Problem], is_complete: bool) -> ExitCode {
    for problem in problems {
        output.warn(format_args!("{:?}: {}", problem.path, problem.what));
    }
    if !is_complete {
        output.warn("stopped: the figures cover only the data read so far");
    }
    ExitCode::from(u8::from(!problems.is_empty() || !is_complete))
}

fn stop_when_interrupted(progress: &Arc<Progress>) -> Result<()> {
    let progress = Arc::clone(progress);
    foreground::stop_when_interrupted(move || {
        let was_stopping = progress.is_stopping();
        progress.stop();
        was_stopping
    })
}

fn with_bar<T>(output: &Output, progress: &Progress, all: u64, work: impl FnOnce() -> T) -> T {
    let bar = Bar::bytes(output, "analysing");
    foreground::with_bar(&bar, || (progress.done_bytes().min(all), all), work)
}

fn said(error: AnalyzeError) -> Error {
    match error {
        AnalyzeError::Usage(message) => Error::usage(message),
        AnalyzeError::Io(..) | AnalyzeError::Trace(_) => Error::failed(error.to_string()),
    }
}
