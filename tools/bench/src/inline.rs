//! `cargo xtask bench inline`: writes that find duplicates, compared with the pass-through in the same mode, which
//! looks for none; and images written to a pool that has related images, in line compared with off-line.
//!
//! As in `slices`, both servers are measured in turn and compared pair by pair. A row of duplicates writes contents
//! that another volume has published; see `inline_load`. The finder is paused, unless the row says otherwise, because
//! publishing would turn later writes into copies. Counting and the collector run, because hits soon depend on them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::goals::Goal;
use crate::inline_images::{self, Images};
use crate::inline_load::{Contents, Load, Writer, publish};
use crate::inline_report::{self, NAME};
use crate::page;
use crate::plan::{SERVER_PROCESSOR, require_processors};
use crate::request_limit::RequestLimit;
use crate::slices::{
    Contender, DATA_BYTES, EXPORT, Fill, Mode, SETTINGS, fill, order, start_passthrough,
};
use crate::statistics::{Estimate, median};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::inline::Inline;
use onefold_harness::packages;
use onefold_harness::server::{Address, Product};
use onefold_harness::workspace::Workspace;

/// Options of `cargo xtask bench inline`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run fewer and shorter slices, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Measure only rows whose name contains this text: 'host', 'direct', 'depth 32', 'all duplicates', 'at most',
    /// 'images'
    #[arg(long)]
    rows: Option<String>,
    /// Raw disk images; the last one is written into a pool that has the others. By default, the test images
    images: Vec<PathBuf>,
}

/// The size of the measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) slices: usize,
    /// How often the servers and their files are made again.
    pub(crate) layouts: usize,
    pub(crate) slice_seconds: u64,
    pub(crate) image_rounds: usize,
}

const WHOLE: Plan = Plan {
    slices: 12,
    layouts: 4,
    slice_seconds: 2,
    image_rounds: 5,
};
pub(crate) const QUICK: Plan = Plan {
    slices: 2,
    layouts: 1,
    slice_seconds: 1,
    image_rounds: 1,
};

/// The limit of writes per second in rows on a slow disk.
const WRITES_PER_SECOND: u64 = 1000;

/// How far the share of hits in a row may be off its nominal value, in percent of all blocks.
const HITS_OFF_PERCENT: f64 = 10.0;

/// The volume whose blocks are published.
const SOURCE: &str = "source";

/// How long the collector may take to finish the work of one slice.
pub(crate) const REST_LIMIT: Duration = Duration::from_secs(300);

/// A load, and the part of the pass-through's rate that it must and should reach.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    mode: Mode,
    load: Load,
    is_limited: bool,
    finder_works: bool,
    goals: Option<(f64, Option<f64>)>,
}

const fn row(
    mode: Mode,
    (blocks, depth): (usize, usize),
    duplicates: u32,
    goals: (f64, Option<f64>),
) -> Row {
    Row {
        mode,
        load: Load {
            duplicates,
            repeats: 0,
            zeros: 0,
            blocks,
            depth,
        },
        is_limited: false,
        finder_works: false,
        goals: Some(goals),
    }
}

const fn limited(row: Row) -> Row {
    Row {
        is_limited: true,
        ..row
    }
}

/// A row with the finder running, for comparison: it has no goal.
const fn beside_the_finder(row: Row) -> Row {
    Row {
        finder_works: true,
        goals: None,
        ..row
    }
}

const SMALL: (usize, usize) = (1, 32);
const ALONE: (usize, usize) = (1, 1);
const LARGE: (usize, usize) = (256, 4);

/// In the order in which a layout runs them: new content is rewritten in place only while blocks are private, so it
/// comes before duplicates and before the finder.
const ROWS: [Row; 11] = [
    row(Mode::Host, SMALL, 0, (0.5, Some(0.75))),
    row(Mode::Host, LARGE, 0, (0.5, Some(0.7))),
    row(Mode::Host, SMALL, 100, (0.8, Some(1.0))),
    beside_the_finder(row(Mode::Host, SMALL, 0, (0.5, None))),
    row(Mode::Direct, SMALL, 0, (0.9, Some(1.0))),
    limited(row(Mode::Direct, SMALL, 0, (0.95, None))),
    limited(row(Mode::Direct, SMALL, 50, (1.7, None))),
    limited(row(Mode::Direct, SMALL, 100, (10.0, None))),
    row(Mode::Direct, SMALL, 100, (2.0, Some(3.0))),
    row(Mode::Direct, ALONE, 100, (1.5, Some(2.0))),
    beside_the_finder(row(Mode::Direct, SMALL, 0, (0.9, None))),
];

impl Row {
    fn name(&self, fill: Fill) -> String {
        let kind = match self.load.blocks {
            1 => "randwrite 4k",
            _ => "write 1m",
        };
        let content = match self.load.duplicates {
            0 => "unique".to_owned(),
            100 => "all duplicates".to_owned(),
            percent => format!("{percent} % duplicates"),
        };
        let fill = match self.mode {
            Mode::Host => format!(", filled in {}", fill.request()),
            Mode::Direct => String::new(),
        };
        let limit = if self.is_limited {
            format!(", at most {WRITES_PER_SECOND} writes/s")
        } else {
            String::new()
        };
        let finder = if self.finder_works {
            ", finder at work"
        } else {
            ""
        };
        format!(
            "{} {kind} depth {}, {content}{limit}{finder}{fill}",
            self.mode.name(),
            self.load.depth
        )
    }
}

/// All results of the benchmark.
pub(crate) struct Results {
    pub(crate) rows: Vec<Measured>,
    /// Why rows with a limit are missing, if they are missing.
    pub(crate) no_limit: Option<String>,
    pub(crate) images: Option<Images>,
    pub(crate) plan: Plan,
}

/// The slices of one row.
pub(crate) struct Measured {
    pub(crate) row: Row,
    pub(crate) name: String,
    pub(crate) pairs: Vec<Pair>,
}

/// A pair of slices, one of each server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    ours: Slice,
    base: Slice,
    inline: Inline,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    pub(crate) per_second: f64,
    pub(crate) cpu_us: f64,
}

/// `cargo xtask bench inline`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    require_processors()?;
    let start = Instant::now();
    let plan = if arguments.quick { QUICK } else { WHOLE };
    let wanted = |name: &str| {
        let rows = arguments.rows.as_deref();
        rows.is_none_or(|rows| name.contains(rows))
    };
    let limit = RequestLimit::new(&workspace.target, WRITES_PER_SECOND);
    let mut results = Results {
        rows: Vec::new(),
        no_limit: limit.as_ref().err().map(|error| format!("{error:#}")),
        images: None,
        plan,
    };
    if let Some(why) = &results.no_limit {
        println!("rows with a limited number of writes are left out: {why}");
    }
    let limit = limit.ok();
    let contents = Contents::make();
    for setting in SETTINGS {
        let settings = Settings {
            setting,
            plan,
            limit: limit.as_ref(),
            contents: &contents,
        };
        results.rows.extend(settings.measure(workspace, &wanted)?);
    }
    drop(limit);
    if wanted(inline_images::NAME) {
        let measured = inline_images::measure(workspace, plan.image_rounds, &arguments.images)?;
        results.images = Some(measured);
    }
    let conditions = page::conditions(workspace, "cargo xtask bench inline", start.elapsed())?;
    let page = inline_report::page(&conditions, &results);
    println!("\n{page}");
    if arguments.quick || arguments.rows.is_some() {
        println!("(not a whole run: docs/{NAME}.md stays as it is)");
        return Ok(());
    }
    let raw = inline_report::raw(&conditions, &results);
    page::write(workspace, NAME, &page, &raw)
}

/// The settings of rows with the same mode and the same way of filling files.
struct Settings<'a> {
    setting: (Mode, Fill),
    plan: Plan,
    limit: Option<&'a RequestLimit>,
    contents: &'a Contents,
}

impl Settings<'_> {
    fn measure(
        &self,
        workspace: &Workspace,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Measured>> {
        let (mode, fill) = self.setting;
        let rows = ROWS.iter().filter(|row| row.mode == mode);
        let rows = rows.filter(|row| self.limit.is_some() || !row.is_limited);
        let mut measured: Vec<Measured> = rows
            .map(|row| Measured {
                row: *row,
                name: row.name(fill),
                pairs: Vec::new(),
            })
            .filter(|measured| wanted(&measured.name))
            .collect();
        if measured.is_empty() {
            return Ok(measured);
        }
        for _ in 0..self.plan.layouts {
            let mut bench = Pairs::start(workspace, self)?;
            for row in &mut measured {
                bench
                    .row(self, row)
                    .with_context(|| format!("cannot measure {}", row.name))?;
            }
            bench.end()?;
        }
        for row in &measured {
            println!("{}", row.line());
        }
        Ok(measured)
    }
}

/// The product with its published contents.
pub(crate) struct Bench {
    pub(crate) product: Product,
    pub(crate) ours: Server,
}

/// A server, and the client that writes to its volume.
pub(crate) struct Server {
    pub(crate) contender: Contender,
    socket: PathBuf,
    writer: Writer,
}

/// The two servers of a row.
struct Pairs {
    // Scratch is removed last: fields are dropped in this order.
    bench: Bench,
    base: Server,
    _scratch: Scratch,
}

impl Bench {
    /// Starts the product and publishes these contents, and a number of other blocks, from a volume of their own. The
    /// finder of the measured volume is paused.
    pub(crate) fn product(
        workspace: &Workspace,
        directory: &Path,
        options: &[&str],
        (contents, others): (&Contents, u64),
    ) -> Result<Bench> {
        let product = Product::build(workspace, directory)?.pin(Some(SERVER_PROCESSOR));
        product.create_pool("16G")?;
        for (name, dedup) in [(SOURCE, "offline"), (EXPORT, "inline")] {
            let size = DATA_BYTES.to_string();
            product
                .command()
                .args(["volume", "create", name, "--size", &size, "--dedup", dedup])
                .run()?;
        }
        let daemon = product.serve(options, &[])?;
        let Address::Unix(socket) = product.default_address() else {
            bail!("the product does not listen at a unix socket");
        };
        publish(contents, others, (&socket, SOURCE))?;
        product.dedup(Some(SOURCE))?;
        set_finder(&product, false)?;
        let ours = Server::new(Contender::product(&product, daemon), socket);
        Ok(Bench { product, ours })
    }
}

impl Server {
    fn new(contender: Contender, socket: PathBuf) -> Server {
        Server {
            contender,
            socket,
            writer: Writer::new(DATA_BYTES),
        }
    }
}

impl Pairs {
    fn start(workspace: &Workspace, settings: &Settings) -> Result<Pairs> {
        let (mode, requests) = settings.setting;
        let scratch = Scratch::new(&workspace.scratch_parent(), "inline")?;
        let directory = scratch.path();
        let options = ["--cache", mode.name()];
        let bench = Bench::product(workspace, directory, &options, (settings.contents, 0))?;
        let base = start_passthrough(workspace, directory, mode)?;
        fill(directory, &[&bench.ours.contender, &base], requests, 0)?;
        Ok(Pairs {
            bench,
            base: Server::new(base, directory.join("pass.sock")),
            _scratch: scratch,
        })
    }

    fn end(self) -> Result<()> {
        self.bench.ours.contender.daemon.kill()?;
        self.base.contender.daemon.kill()
    }

    fn row(&mut self, settings: &Settings, row: &mut Measured) -> Result<()> {
        let plan = settings.plan;
        let limit = settings.limit.filter(|_| row.row.is_limited);
        let Pairs {
            bench: Bench { product, ours },
            base,
            ..
        } = self;
        set_finder(product, row.row.finder_works)?;
        for _ in 0..plan.slices.div_ceil(plan.layouts) {
            // The releases and the writeback of the previous slice must not slow this one down.
            product.wait_for_backlog(REST_LIMIT, |backlog| backlog.queued == 0)?;
            Cmd::new("sync").run()?;
            let before = product.inline(EXPORT)?;
            let mut slices = [None; 2];
            for number in order(row.pairs.len(), 2) {
                let server = if number == 0 { &mut *ours } else { &mut *base };
                slices[number] = Some(limited_slice(server, limit, settings, row.row.load)?);
            }
            let inline = product.inline(EXPORT)?.since(before);
            if let [Some(ours), Some(base)] = slices {
                row.pairs.push(Pair { ours, base, inline });
            }
        }
        Ok(())
    }
}

fn limited_slice(
    server: &mut Server,
    limit: Option<&RequestLimit>,
    settings: &Settings,
    load: Load,
) -> Result<Slice> {
    let process = server.contender.daemon.pid()?;
    if let Some(limit) = limit {
        limit.add(process)?;
    }
    let length = Duration::from_secs(settings.plan.slice_seconds);
    let measured = slice(server, settings.contents, load, length);
    if let Some(limit) = limit {
        limit.release(process)?;
    }
    measured
}

/// Loads a server for this long.
pub(crate) fn slice(
    server: &mut Server,
    contents: &Contents,
    load: Load,
    length: Duration,
) -> Result<Slice> {
    let before = server.contender.daemon.cpu_seconds()?;
    let to = (server.socket.as_path(), EXPORT);
    let written = server.writer.run(contents, to, load, length)?;
    let cpu = server.contender.daemon.cpu_seconds()? - before;
    Ok(Slice {
        per_second: written.requests as f64 / written.seconds,
        cpu_us: cpu * 1e6 / written.requests.max(1) as f64,
    })
}

/// Resumes or pauses the finder of the measured volume.
fn set_finder(product: &Product, works: bool) -> Result<()> {
    let verb = if works { "resume" } else { "pause" };
    product
        .command()
        .args(["--quiet", "job", verb, "finder", "--volume", EXPORT])
        .run()
}

impl Measured {
    pub(crate) fn ratio(&self) -> Option<Estimate> {
        let ratio = |pair: &Pair| pair.ours.per_second / pair.base.per_second;
        Estimate::over(self.pairs.iter().map(ratio))
    }

    fn median(&self, of: impl Fn(&Pair) -> f64) -> f64 {
        median(self.pairs.iter().map(of))
    }

    /// Requests per second of onefold and of the pass-through.
    pub(crate) fn per_second(&self) -> [f64; 2] {
        [
            self.median(|pair| pair.ours.per_second),
            self.median(|pair| pair.base.per_second),
        ]
    }

    /// Processor time per request of onefold and of the pass-through.
    pub(crate) fn cpu_us(&self) -> [f64; 2] {
        [
            self.median(|pair| pair.ours.cpu_us),
            self.median(|pair| pair.base.cpu_us),
        ]
    }

    /// The in-line counts of all slices together.
    pub(crate) fn inline(&self) -> Inline {
        let counts = self.pairs.iter().map(|pair| pair.inline);
        counts.fold(Inline::default(), Inline::plus)
    }

    /// Hits in percent of the blocks that were looked up.
    pub(crate) fn hits_percent(&self) -> f64 {
        let inline = self.inline();
        100.0 * inline.hits as f64 / inline.scanned.max(1) as f64
    }

    /// Whether the share of hits is near the row's nominal value.
    pub(crate) fn is_what_it_says(&self) -> bool {
        (self.hits_percent() - f64::from(self.row.load.duplicates)).abs() <= HITS_OFF_PERCENT
    }

    /// The row's goal, if it has one; without a number if the share of hits was too far off.
    pub(crate) fn goal(&self) -> Option<Goal> {
        let (must, aim) = self.row.goals?;
        let value = self.ratio().filter(|_| self.is_what_it_says());
        Some(Goal::at_least(
            self.name.clone(),
            value.map(|ratio| ratio.median),
            must,
            aim,
        ))
    }

    fn line(&self) -> String {
        let ratio = self.ratio().map_or(f64::NAN, |ratio| ratio.median);
        let goal = self.goal();
        let verdict = goal.map_or(String::new(), |goal| {
            format!(", must {}: {}", goal.must, goal.verdict(goal.must))
        });
        format!(
            "{}: {ratio:.2}{verdict}; {:.1} % hits",
            self.name,
            self.hits_percent()
        )
    }

    pub(crate) fn raw(&self) -> Value {
        let slice = |slice: &Slice| {
            json!({"requests_per_second": slice.per_second,
                   "server_cpu_us_per_request": slice.cpu_us})
        };
        let pairs = self.pairs.iter().map(|pair| {
            json!({"onefold": slice(&pair.ours), "pass-through": slice(&pair.base),
                   "looked_up_blocks": pair.inline.scanned, "hit_blocks": pair.inline.hits,
                   "refused_blocks": pair.inline.refused})
        });
        json!({"row": self.name, "pairs": pairs.collect::<Vec<_>>()})
    }
}

/// An example for tests of the report: a row with these ratios and hits.
#[cfg(test)]
pub(crate) fn example(ratios: &[f64], hits: u64) -> Measured {
    let slice = |per_second| Slice {
        per_second,
        cpu_us: 2.0,
    };
    let pair = |ratio: &f64| Pair {
        ours: slice(100.0 * ratio),
        base: slice(100.0),
        inline: Inline {
            scanned: 100,
            hits,
            ..Inline::default()
        },
    };
    Measured {
        row: ROWS[8],
        name: ROWS[8].name(Fill::Large),
        pairs: ratios.iter().map(pair).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_the_median_of_its_pairs() {
        let measured = example(&[1.9, 2.2, 2.5], 99);
        let goal = measured.goal().unwrap();
        assert_eq!((goal.value, goal.verdict(goal.must)), (Some(2.2), "met"));
        assert_eq!(goal.what, "direct randwrite 4k depth 32, all duplicates");
    }

    #[test]
    fn a_row_of_duplicates_that_are_no_hits_has_no_number() {
        let measured = example(&[2.5], 80);
        assert!(!measured.is_what_it_says());
        let goal = measured.goal().unwrap();
        assert_eq!(goal.verdict(goal.must), "not measured");
    }

    #[test]
    fn rows_have_different_names_and_new_content_comes_first() {
        let mut names: Vec<String> = ROWS.iter().map(|row| row.name(Fill::Large)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        for mode in [Mode::Host, Mode::Direct] {
            let rows = ROWS.iter().filter(|row| row.mode == mode);
            let rows: Vec<_> = rows.filter(|row| !row.finder_works).collect();
            assert!(rows.is_sorted_by_key(|row| row.load.duplicates > 0));
        }
    }
}
