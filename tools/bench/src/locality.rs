//! `cargo xtask bench locality`: how sharing changes the order of a volume's blocks in the pool.
//!
//! The last of some related images is read from start to end, past the host's cache: alone in its pool; in a pool with
//! its relatives, with which it shares all duplicates; with short runs of duplicates left private; and after `volume
//! defrag`. A round reads each state once, one after the other, and compares states within the round, because other
//! load on the machine then affects all of them. The reads are all that the kernel counts at the device.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::goals::{self, Goal};
use crate::page::{self, Page};
use crate::plan::{CLIENT_PROCESSOR, SERVER_PROCESSOR};
use crate::statistics::{Estimate, median};
use crate::table::{Row, Table};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct::BLOCK_BYTES;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::images::{self, Image};
use onefold_harness::packages;
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

/// Options of `cargo xtask bench locality`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only one round, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Raw disk images; the last one is read. By default, the test images
    images: Vec<PathBuf>,
}

/// How often the image is read at each depth.
const ROUNDS: usize = 40;

const DEPTHS: [u32; 2] = [1, 4];

/// Blocks in the shortest run that is shared, in the state without short runs.
const MIN_RUN: &str = "4";

/// How the image came into its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Alone,
    Shared,
    LongRuns,
    Defragmented,
}

const STATES: [State; 4] = [
    State::Alone,
    State::Shared,
    State::LongRuns,
    State::Defragmented,
];

/// The least rate at depth 1, relative to the image alone in its pool.
const GOALS: [(State, f64); 2] = [(State::Shared, 0.95), (State::Defragmented, 0.98)];

impl State {
    fn title(self) -> &'static str {
        match self {
            State::Alone => "alone in its pool",
            State::Shared => "shared with its relatives",
            State::LongRuns => "the same with --min-run 4",
            State::Defragmented => "shared, after volume defrag",
        }
    }
}

/// The image in one of its states, served.
struct Case {
    // The daemon ends before its folder is removed.
    daemon: Daemon,
    product: Product,
    scratch: Scratch,
    measured: Measured,
}

/// The results of one state.
struct Measured {
    state: State,
    /// Blocks that the pool stores, for all images in it.
    stored_blocks: u64,
    /// Reads of the device for the whole image at depth 1; none where the kernel does not count them.
    reads: Vec<f64>,
    /// Rates by depth, and by round.
    mb_per_second: [Vec<f64>; 2],
    /// Processor time of the daemon per MiB.
    cpu_us: Vec<f64>,
}

/// `cargo xtask bench locality`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let start = Instant::now();
    let images = match arguments.images.as_slice() {
        [] => images::make_three(workspace)?,
        paths => {
            let images = paths.iter().map(|path| Image::of_user(path));
            images.collect::<Result<_>>()?
        }
    };
    ensure!(images.len() > 1, "this needs two images that are related");
    let image = images.last().context("there is no image")?;
    let mut cases = Vec::new();
    for state in STATES {
        println!("preparing it {}", state.title());
        cases.push(Case::prepare(workspace, &images, state)?);
    }
    for round in 1..=if arguments.quick { 1 } else { ROUNDS } {
        for (place, depth) in DEPTHS.into_iter().enumerate() {
            for case in &mut cases {
                case.read(image, depth, place)?;
            }
        }
        println!("round {round}");
    }
    let conditions = page::conditions(workspace, "cargo xtask bench locality", start.elapsed())?;
    let mut page = Page::new("Benchmarks of locality", None, &conditions);
    let mut results = Vec::new();
    for case in cases {
        case.daemon.stop()?;
        results.push(case.measured);
    }
    add_table(&mut page, image, &results);
    println!("\n{page}");
    println!(
        "{}",
        json!(results.iter().map(Measured::raw).collect::<Vec<_>>())
    );
    Ok(())
}

fn import(product: &Product, image: &Image, options: &[&str]) -> Result<()> {
    product
        .command()
        .args(["--quiet", "volume", "import", &image.name])
        .arg(&image.path)
        .args(["--image-format", "raw"])
        .args(options)
        .run()
}

impl Case {
    fn prepare(workspace: &Workspace, images: &[Image], state: State) -> Result<Case> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "locality")?;
        let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
        product.create_pool("64G")?;
        let (last, relatives) = images.split_last().context("there is no image")?;
        if state != State::Alone {
            for image in relatives {
                import(&product, image, &[])?;
            }
        }
        match state {
            State::LongRuns => import(&product, last, &["--min-run", MIN_RUN])?,
            _ => import(&product, last, &[])?,
        }
        product.dedup(None)?;
        let daemon = product.serve(&["--cache", "direct"], &[])?;
        if state == State::Defragmented {
            let command = product.command();
            command
                .args(["--quiet", "volume", "defrag", &last.name, "--yes"])
                .run()?;
        }
        // Wait for the work that the import left to the daemon.
        product.wait_for_backlog(Duration::from_secs(300), |backlog| backlog.queued == 0)?;
        product.pause_jobs()?;
        let stored_blocks = product.stat_number("physical_blocks")?;
        Ok(Case {
            daemon,
            product,
            scratch,
            measured: Measured {
                state,
                stored_blocks,
                reads: Vec::new(),
                mb_per_second: [Vec::new(), Vec::new()],
                cpu_us: Vec::new(),
            },
        })
    }

    fn read(&mut self, image: &Image, depth: u32, place: usize) -> Result<()> {
        Cmd::new("sync").run()?;
        let uri = self.product.default_address().uri(&image.name);
        let job = Section::new("read", &uri)
            .set("rw", "read")
            .set("bs", "1m")
            .set("iodepth", depth)
            .set("size", image.size_bytes);
        let reads = device_reads(self.scratch.path());
        let cpu = self.daemon.cpu_seconds()?;
        let results = Fio::new(self.scratch.path(), "read")
            .pin(Some(CLIENT_PROCESSOR))
            .job(job)
            .run()?;
        let result = results.first().context("fio reported no job")?;
        let bytes = result.read.bytes as f64;
        ensure!(bytes > 0.0, "fio read nothing");
        let measured = &mut self.measured;
        // fio's own rate excludes its start.
        let per_second = result.read.iops * bytes / result.read.requests.max(1) as f64;
        if let Some(rates) = measured.mb_per_second.get_mut(place) {
            rates.push(per_second / 1e6);
        }
        if let (1, Some(before)) = (depth, reads)
            && let Some(after) = device_reads(self.scratch.path())
        {
            measured.reads.push((after - before) as f64);
        }
        let cpu = self.daemon.cpu_seconds()? - cpu;
        measured
            .cpu_us
            .push(cpu * 1e6 / (bytes / f64::from(1 << 20)));
        Ok(())
    }
}

/// Reads that the device of this folder has completed so far, if the kernel counts them.
fn device_reads(folder: &Path) -> Option<u64> {
    let device = std::fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let counts = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    counts.split_whitespace().next()?.parse().ok()
}

impl Measured {
    /// The ratio of this state's rates to another's in the same rounds, at one depth.
    fn of(&self, other: &Measured, place: usize) -> Option<Estimate> {
        let (own, others) = (
            self.mb_per_second.get(place)?,
            other.mb_per_second.get(place)?,
        );
        Estimate::over(own.iter().zip(others).map(|(own, other)| own / other))
    }

    fn row(&self, alone: &Measured) -> Row {
        let reads = Estimate::of(&self.reads).map(|reads| reads.median);
        let row = Row::of(self.state.title()).number(reads, 0);
        let rates = self.mb_per_second.iter().zip(0..);
        let row = rates.fold(row, |row, (rates, place)| {
            let ratio = self.of(alone, place);
            let rate = ratio.map(|_| median(rates.iter().copied()));
            row.number(rate, 0).maybe(ratio)
        });
        let stored = self.stored_blocks as f64 * BLOCK_BYTES as f64 / 1e6;
        row.numbers([median(self.cpu_us.iter().copied()), stored], 0)
    }

    fn raw(&self) -> Value {
        json!({"state": self.state.title(), "stored_blocks": self.stored_blocks, "reads": self.reads,
               "mb_per_second": self.mb_per_second, "cpu_us_per_mib": self.cpu_us})
    }
}

fn add_table(page: &mut Page, image: &Image, measured: &[Measured]) {
    page.add(format!(
        "fio reads {} ({}) from start to end, 1 MiB at a time, with `--cache direct`; it was imported after the \
         others. *Reads*: reads of the device, for the whole image at depth 1. *Of alone*: the rate relative to the \
         image alone in its pool, in the same round, with the median's 95 % interval. *Stored*: all images in the \
         pool. Medians.",
        image.name,
        image.describe(),
    ));
    let table = Table::new(
        "| | reads | depth 1, MB/s | of alone | depth 4, MB/s | of alone | CPU, µs/MiB | stored, MB |",
    );
    let Some(alone) = measured.iter().find(|one| one.state == State::Alone) else {
        page.add(table);
        return;
    };
    page.add(table.with(measured.iter().map(|one| one.row(alone))));
    page.add(goals::table(GOALS.map(|(state, must)| {
        let one = measured.iter().find(|one| one.state == state);
        let ratio = one.and_then(|one| one.of(alone, 0));
        let what = format!("{}, depth 1, of alone", state.title());
        Goal::at_least(what, ratio.map(|ratio| ratio.median), must, 1.0)
    })));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_within_a_round() {
        let image = Image {
            name: "mail".to_owned(),
            path: "mail.raw".into(),
            size_bytes: 384 << 20,
            data_bytes: 200 << 20,
        };
        let one = |state, rates| Measured {
            state,
            stored_blocks: 1000,
            reads: vec![10.0, 30.0, 20.0],
            mb_per_second: [rates, vec![200.0]],
            cpu_us: vec![50.0],
        };
        let alone = one(State::Alone, vec![100.0, 1000.0, 200.0]);
        let shared = one(State::Shared, vec![90.0, 900.0, 200.0]);
        let mut page = Page::new("Locality", None, &Vec::new());
        add_table(&mut page, &image, &[alone, shared]);
        let page = page.to_string();
        let line = "| shared with its relatives | 20 | 200 | 0.90 (0.90 to 1.00) | 200 | 1.00 (1.00 to 1.00) \
                    | 50 | 4 |\n";
        assert!(page.contains(line), "{page}");
        let goal = "| shared with its relatives, depth 1, of alone | 0.90 | 0.95 | missed |";
        assert!(page.contains(goal), "{page}");
    }
}
