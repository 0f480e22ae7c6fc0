//! `cargo xtask bench snapshots`: reads and block status of a volume with many snapshots, in caches that are smaller
//! than the working set.
//!
//! Two volumes of one pool have a block in each segment. One of them has snapshots, with or without changes between
//! them. A round starts the daemon with little memory and sends the same requests to both volumes in turn; times are
//! compared within a round. If another build of the product is given, each round is repeated with it, on the same pool.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;

use crate::goals::{self, Goal};
use crate::page::{self, Page};
use crate::plan::{CLIENT_PROCESSOR, SERVER_PROCESSOR, require_processors};
use crate::statistics::{Estimate, median};
use crate::table::{Row, Table};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::packages;
use onefold_harness::pools::Place;
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

/// Options of `cargo xtask bench snapshots`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only one round with 100 snapshots, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Measure another build of onefold as well
    #[arg(long, value_name = "BINARY")]
    beside: Option<PathBuf>,
}

const ROUNDS: usize = 8;
const SNAPSHOTS: [u64; 2] = [100, 1000];

/// Memory of the daemon that is measured: its cache holds 4,204 segments.
const MEMORY: &str = "64M";

/// Memory of the daemon that makes the snapshots: more memory means fewer checkpoints.
const MEMORY_TO_PREPARE: &str = "2G";

/// Four times the segments that the cache holds.
const SEGMENTS: u64 = 16_384;

/// Segments of a smaller working set, which fits in the cache for both volumes.
const SEGMENTS_THAT_FIT: u64 = 1024;

const SEGMENT_BYTES: u64 = 512 * BLOCK_BYTES;
const BLOCK_BYTES: u64 = 4096;

/// Blocks that are written between two snapshots, in volumes with changes.
const CHANGED_BLOCKS: u64 = 500;

/// Reads of a volume in a round.
const READS: u64 = 4000;

/// Goals: the longest time, relative to the volume without snapshots.
const READ_MUST: f64 = 1.2;
const STATUS_MUST: f64 = 2.0;

const VOLUMES: [&str; 2] = ["many", "none"];

/// Seconds for the volume with snapshots, and for the one without.
type Pair = [f64; 2];

/// The snapshots of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    is_changed: bool,
    snapshots: u64,
}

/// The times of one build for one shape of volume and one working set.
struct Measured {
    build: &'static str,
    shape: Shape,
    segments: u64,
    read: Vec<Pair>,
    status: Vec<Pair>,
}

/// `cargo xtask bench snapshots`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    require_processors()?;
    let start = Instant::now();
    let (rounds, counts) = if arguments.quick {
        (1, &SNAPSHOTS[..1])
    } else {
        (ROUNDS, &SNAPSHOTS[..])
    };
    let mut all = Vec::new();
    for is_changed in [false, true] {
        for snapshots in counts {
            let shape = Shape {
                is_changed,
                snapshots: *snapshots,
            };
            all.extend(shape.measure(workspace, arguments, rounds)?);
        }
    }
    let conditions = page::conditions(workspace, "cargo xtask bench snapshots", start.elapsed())?;
    let mut page = Page::new("Benchmarks of many snapshots", None, &conditions);
    add_table(&mut page, &all);
    println!("\n{page}");
    println!(
        "{}",
        json!(all.iter().map(Measured::raw).collect::<Vec<_>>())
    );
    Ok(())
}

impl Shape {
    fn title(self) -> String {
        if self.is_changed {
            format!("{}, {CHANGED_BLOCKS} changed blocks each", self.snapshots)
        } else {
            format!("{}, empty", self.snapshots)
        }
    }

    fn measure(
        self,
        workspace: &Workspace,
        arguments: &Arguments,
        rounds: usize,
    ) -> Result<Vec<Measured>> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "chains")?;
        let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
        println!("preparing {}", self.title());
        self.prepare(&product, &scratch)?;
        let beside = arguments.beside.as_ref().map(|binary| {
            let place = Place::clone(product.place());
            let beside = Product::new(binary.clone(), place, scratch.path());
            ("beside", beside.pin(Some(SERVER_PROCESSOR)))
        });
        let builds: Vec<_> = [("this", product)].into_iter().chain(beside).collect();
        let sets = [SEGMENTS, SEGMENTS_THAT_FIT];
        let mut measured: Vec<Measured> = builds
            .iter()
            .flat_map(|(build, _)| sets.map(|segments| self.nothing_yet(build, segments)))
            .collect();
        for round in 0..rounds {
            for (build, product) in &builds {
                let daemon = product.serve(&["--memory", MEMORY], &[])?;
                product.pause_jobs()?;
                for one in measured.iter_mut().filter(|one| one.build == *build) {
                    one.round(product, &scratch, round)?;
                }
                daemon.stop()?;
            }
        }
        measured.iter().for_each(|one| println!("{}", one.row()));
        Ok(measured)
    }

    fn nothing_yet(self, build: &'static str, segments: u64) -> Measured {
        Measured {
            build,
            shape: self,
            segments,
            read: Vec::new(),
            status: Vec::new(),
        }
    }

    fn prepare(self, product: &Product, scratch: &Scratch) -> Result<()> {
        product.create_pool("16G")?;
        let daemon = product.serve(&["--memory", MEMORY_TO_PREPARE], &[])?;
        product.pause_jobs()?;
        let size = (SEGMENTS * SEGMENT_BYTES).to_string();
        for name in VOLUMES {
            let create = ["--quiet", "volume", "create", name, "--size", &size];
            product.command().args(create).run()?;
            let skipped = (SEGMENT_BYTES - BLOCK_BYTES) >> 10;
            let fill = job(product, name, &format!("write:{skipped}k"));
            let fill = fill
                .set("size", SEGMENTS * SEGMENT_BYTES)
                .set("iodepth", 16);
            Fio::new(scratch.path(), "fill").job(fill).run()?;
        }
        for n in 0..self.snapshots {
            let create = ["--quiet", "snapshot", "create", &format!("many@s{n}")];
            product.command().args(create).run()?;
            if self.is_changed {
                let change = at_random(job(product, "many", "randwrite"), SEGMENTS, CHANGED_BLOCKS);
                Fio::new(scratch.path(), "change")
                    .job(change.set("iodepth", 16))
                    .run()?;
            }
        }
        daemon.stop().map(drop)
    }
}

fn job(product: &Product, volume: &str, rw: &str) -> Section {
    Section::new("job", &product.default_address().uri(volume))
        .set("rw", rw)
        .set("bs", BLOCK_BYTES)
        .set("refill_buffers", 1)
}

/// Makes the job read or write the first block of random segments.
fn at_random(job: Section, segments: u64, requests: u64) -> Section {
    job.set("blockalign", SEGMENT_BYTES)
        .set("size", segments * SEGMENT_BYTES)
        .set("number_ios", requests)
        .set("norandommap", 1)
        .set("randrepeat", 0)
}

impl Measured {
    fn round(&mut self, product: &Product, scratch: &Scratch, round: usize) -> Result<()> {
        let read = |volume: &str, requests| -> Result<f64> {
            let job = at_random(job(product, volume, "randread"), self.segments, requests);
            let fio = Fio::new(scratch.path(), "read").pin(Some(CLIENT_PROCESSOR));
            let results = fio.job(job).run()?;
            Ok(results.first().context("fio reported no job")?.read.mean_us / 1e6)
        };
        let status = |volume: &str| -> Result<f64> {
            let uri = product.default_address().uri(volume);
            let begun = Instant::now();
            Cmd::new("nbdinfo")
                .args(["--map", "--totals", &uri])
                .output()?;
            Ok(begun.elapsed().as_secs_f64())
        };
        // First fill the cache with the segments that fit.
        for volume in VOLUMES {
            read(volume, 2 * READS)?;
        }
        let [mut reads, mut statuses] = [[0.0; 2]; 2];
        for turn in 0..VOLUMES.len() {
            let which = (round + turn) % VOLUMES.len();
            reads[which] = read(VOLUMES[which], READS)?;
        }
        self.read.push(reads);
        if self.segments == SEGMENTS {
            for turn in 0..VOLUMES.len() {
                let which = (round + turn) % VOLUMES.len();
                statuses[which] = status(VOLUMES[which])?;
            }
            self.status.push(statuses);
        }
        Ok(())
    }

    fn ratio(pairs: &[Pair]) -> Option<Estimate> {
        Estimate::over(pairs.iter().map(|[with, without]| with / without))
    }

    /// Appends the median ratio of some pairs with its interval, and both medians in microseconds.
    fn add_cells(row: Row, pairs: &[Pair]) -> Row {
        let Some(ratio) = Self::ratio(pairs) else {
            return row.texts(["-"; 3]);
        };
        let median = |which: usize| median(pairs.iter().map(|pair| pair[which] * 1e6));
        row.text(ratio).numbers([median(0), median(1)], 0)
    }

    fn fits(&self) -> bool {
        self.segments == SEGMENTS_THAT_FIT
    }

    fn row(&self) -> Row {
        let set = if self.fits() {
            "in the cache"
        } else {
            "four times the cache"
        };
        let row = Row::of(self.shape.title()).text(set).text(self.build);
        Self::add_cells(Self::add_cells(row, &self.read), &self.status)
    }

    fn raw(&self) -> serde_json::Value {
        json!({"snapshots": self.shape.title(), "segments": self.segments, "build": self.build,
               "read_seconds": self.read, "status_seconds": self.status})
    }

    /// The goals, which only the build under test has. Changed segments beyond the cache must be read, so they have
    /// none.
    fn goals(&self) -> Vec<Goal> {
        let Shape { is_changed, .. } = self.shape;
        if self.build != "this" || is_changed && !self.fits() {
            return Vec::new();
        }
        let goal = |what: &str, pairs: &[Pair], must| {
            let what = format!("{what}, {}", self.shape.title());
            let value = Self::ratio(pairs).map(|ratio| ratio.median);
            Goal::at_most(what, value, must, None)
        };
        if self.fits() {
            vec![goal("read in the cache", &self.read, READ_MUST)]
        } else {
            vec![
                goal("read", &self.read, READ_MUST),
                goal("block status", &self.status, STATUS_MUST),
            ]
        }
    }
}

fn add_table(page: &mut Page, measured: &[Measured]) {
    page.add(format!(
        "`serve --memory {MEMORY}`. Two volumes of {} GiB have one block in each segment of 2 MiB, and one of \
         them the snapshots. 4 KiB random reads of these blocks at depth 1, {READS} in a round, and the block \
         status of the whole volume (`nbdinfo --map`): medians in µs with and without snapshots, and the median of \
         the ratios in a round with its 95 % interval. *Four times the cache*: reads of {SEGMENTS} segments; *in \
         the cache*: reads of {SEGMENTS_THAT_FIT}.",
        (SEGMENTS * SEGMENT_BYTES) >> 30,
    ));
    let table = Table::new(
        "| snapshots | working set | build | read | with | without | block status | with | without |",
    );
    page.add(table.with(measured.iter().map(Measured::row)));
    page.add(goals::table(measured.iter().flat_map(Measured::goals)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_cache_has_no_goal_if_it_was_changed() {
        let shape = |is_changed| Shape {
            is_changed,
            snapshots: 100,
        };
        let one = |is_changed, segments| Measured {
            read: vec![[12e-6, 10e-6], [33e-6, 30e-6], [10e-6, 10e-6]],
            status: vec![[0.1, 0.1]],
            ..shape(is_changed).nothing_yet("this", segments)
        };
        let all = [
            one(false, SEGMENTS),
            one(true, SEGMENTS),
            one(true, SEGMENTS_THAT_FIT),
        ];
        assert_eq!(all.each_ref().map(|one| one.goals().len()), [2, 0, 1]);
        let line = "| 100, empty | four times the cache | this | 1.10 (1.00 to 1.20) | 12 | 10 | 1.00 \
                    (1.00 to 1.00) | 100000 | 100000 |";
        assert_eq!(all[0].row().to_string(), line);
    }
}
