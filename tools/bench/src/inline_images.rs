//! A disk image written to a pool that has related images: bytes written and time, in line and off-line.
//!
//! All images but the last are written and published. Then nbdcopy writes the last one into an empty volume, and the
//! time counts until its flush is answered. Bytes count until the finder is done with the volume: blocks written to the
//! data part, from the counts of `volume stat`, because a block that is looked up is either a hit or written once; and
//! all bytes that the daemon wrote according to the kernel, which include maps, log and index.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::goals::Goal;
use crate::slices::Mode;
use crate::statistics::{Estimate, median};
use crate::table::Row;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct::{self, BLOCK_BYTES};
use onefold_harness::images::{self, Image};
use onefold_harness::inline::{Inline, Mode as Dedup};
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

pub(crate) const NAME: &str = "images";

/// Goals for the data written, relative to the blocks that are not duplicates.
const MUST_OF_DATA: f64 = 1.1;
const AIM_OF_DATA: f64 = 1.03;

/// Goals for the time, relative to the time off-line.
const MUST_OF_TIME: f64 = 1.0;
const AIM_OF_TIME: f64 = 0.8;

/// How long the finder may take for an image.
const PUBLISH_LIMIT: Duration = Duration::from_secs(600);

/// The cache modes, which are measured separately.
const MODES: [Mode; 2] = [Mode::Host, Mode::Direct];

/// The last image, written in both ways.
pub(crate) struct Images {
    /// Blocks with data.
    pub(crate) blocks: u64,
    /// Blocks with data whose content is in an earlier image, or occurred earlier in this one.
    pub(crate) duplicates: u64,
    /// The rounds of each cache mode.
    modes: Vec<(Mode, Vec<Round>)>,
}

/// The image written off-line and in line, directly after each other.
#[derive(Debug, Clone, Copy)]
struct Round {
    offline: Written,
    inline: Written,
}

#[derive(Debug, Clone, Copy)]
struct Written {
    seconds: f64,
    /// Blocks written to the data part.
    blocks: u64,
    /// All bytes that the daemon wrote.
    bytes: u64,
    cpu_seconds: f64,
    found: Inline,
}

impl Written {
    fn data_mb(&self) -> f64 {
        self.blocks as f64 * BLOCK_BYTES as f64 / 1e6
    }
}

pub(crate) fn measure(workspace: &Workspace, rounds: usize, paths: &[PathBuf]) -> Result<Images> {
    let images = match paths {
        [] => images::make_three(workspace)?,
        _ => {
            let images = paths.iter().map(|path| Image::of_user(path));
            images.collect::<Result<_>>()?
        }
    };
    let paths: Vec<_> = images.iter().map(|image| &image.path).collect();
    let (_, relatives) = paths.split_last().context("there is no image")?;
    ensure!(
        !relatives.is_empty(),
        "this needs two images that are related"
    );
    let (all, before) = (distinct::count(&paths)?, distinct::count(relatives)?);
    let blocks = all.nonzero - before.nonzero;
    let duplicates = blocks - (all.distinct - before.distinct);
    let mut modes = Vec::new();
    for mode in MODES {
        let mut measured = Vec::new();
        for round in 0..rounds {
            let write = |dedup| write_last(workspace, &images, mode, dedup, blocks);
            measured.push(match round % 2 {
                0 => {
                    let offline = write(Dedup::Offline)?;
                    let inline = write(Dedup::Inline)?;
                    Round { offline, inline }
                }
                _ => {
                    let inline = write(Dedup::Inline)?;
                    let offline = write(Dedup::Offline)?;
                    Round { offline, inline }
                }
            });
        }
        modes.push((mode, measured));
    }
    let measured = Images {
        blocks,
        duplicates,
        modes,
    };
    for goal in measured.goals() {
        let value = goal.value.unwrap_or(f64::NAN);
        println!(
            "{}: {value:.2}, must {:.2}: {}",
            goal.what,
            goal.must,
            goal.verdict(goal.must)
        );
    }
    Ok(measured)
}

fn write_last(
    workspace: &Workspace,
    images: &[Image],
    mode: Mode,
    dedup: Dedup,
    blocks: u64,
) -> Result<Written> {
    let scratch = Scratch::new(&workspace.scratch_parent(), NAME)?;
    let product = Product::build(workspace, scratch.path())?;
    product.create_pool("64G")?;
    let daemon = product.serve(&["--cache", mode.name()], &[])?;
    let (last, relatives) = images.split_last().context("there is no image")?;
    for image in relatives {
        copy(&product, image, dedup)?;
    }
    product.dedup(None)?;
    Cmd::new("sync").run()?;
    let (bytes, cpu) = (daemon.device_written_bytes()?, daemon.cpu_seconds()?);
    let start = Instant::now();
    copy(&product, last, dedup)?;
    let seconds = start.elapsed().as_secs_f64();
    let found = product.inline(&last.name)?;
    product.wait_for_backlog(PUBLISH_LIMIT, |backlog| backlog.dirty == 0)?;
    let written = Written {
        seconds,
        blocks: blocks.saturating_sub(found.hits),
        bytes: daemon.device_written_bytes()? - bytes,
        cpu_seconds: daemon.cpu_seconds()? - cpu,
        found,
    };
    daemon.stop()?;
    Ok(written)
}

fn copy(product: &Product, image: &Image, dedup: Dedup) -> Result<()> {
    let size = image.size_bytes.to_string();
    product
        .command()
        .args(["volume", "create", &image.name, "--size", &size])
        .args(["--dedup", dedup.name()])
        .run()?;
    Cmd::new("nbdcopy")
        .arg("--flush")
        .arg(&image.path)
        .arg(product.default_address().uri(&image.name))
        .run()
}

impl Images {
    /// The share of duplicates among the blocks with data.
    pub(crate) fn duplicate_part(&self) -> f64 {
        self.duplicates as f64 / self.blocks.max(1) as f64
    }

    pub(crate) fn goals(&self) -> Vec<Goal> {
        let new = 1.0 - self.duplicate_part();
        let goals = self.modes.iter().flat_map(|(mode, rounds)| {
            let name = mode.name();
            let ratio = |of: fn(&Written) -> f64| {
                let ratios = rounds
                    .iter()
                    .map(|round| of(&round.inline) / of(&round.offline));
                Estimate::over(ratios).map(|ratio| ratio.median)
            };
            [
                Goal::at_most(
                    format!("{name} {NAME}, data written over off-line"),
                    ratio(|written| written.blocks as f64),
                    rounded(MUST_OF_DATA * new),
                    rounded(AIM_OF_DATA * new),
                ),
                Goal::at_most(
                    format!("{name} {NAME}, time over off-line"),
                    ratio(|written| written.seconds),
                    MUST_OF_TIME,
                    AIM_OF_TIME,
                ),
            ]
        });
        goals.collect()
    }

    /// Rows of the table, with the medians of each way: seconds, data, all bytes, processor time, hits.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.modes.iter().flat_map(|(mode, rounds)| {
            let row = |title: &str, way: fn(&Round) -> &Written| {
                let median =
                    |of: fn(&Written) -> f64| median(rounds.iter().map(|round| of(way(round))));
                Row::of(format!("{} {title}", mode.name()))
                    .number(median(|written| written.seconds), 2)
                    .number(median(Written::data_mb), 0)
                    .number(median(|written| written.bytes as f64) / 1e6, 0)
                    .number(median(|written| written.cpu_seconds), 2)
                    .number(median(|written| written.found.hits as f64), 0)
                    .number(median(|written| written.found.refused as f64), 0)
            };
            [
                row("off-line", |round| &round.offline),
                row("in line", |round| &round.inline),
            ]
        })
    }

    pub(crate) fn raw(&self) -> Value {
        let written = |written: &Written| {
            json!({"seconds": written.seconds, "data_bytes": written.blocks * BLOCK_BYTES as u64,
                   "written_bytes": written.bytes, "cpu_seconds": written.cpu_seconds,
                   "hit_blocks": written.found.hits, "refused_blocks": written.found.refused})
        };
        let modes = self.modes.iter().map(|(mode, rounds)| {
            let rounds = rounds.iter().map(|round| {
                json!({"offline": written(&round.offline), "inline": written(&round.inline)})
            });
            json!({"cache": mode.name(), "rounds": rounds.collect::<Vec<_>>()})
        });
        json!({"blocks": self.blocks, "duplicate_blocks": self.duplicates,
               "modes": modes.collect::<Vec<_>>()})
    }
}

/// Rounds to the digits that the page prints.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// An example for tests of the report.
#[cfg(test)]
pub(crate) fn example() -> Images {
    let written = |seconds, hits| Written {
        seconds,
        blocks: 1000 - hits,
        bytes: (1000 - hits) * 5000,
        cpu_seconds: 1.0,
        found: Inline {
            scanned: 1100,
            zeros: 100,
            absent_by_signature: 200,
            absent: 50,
            found: 750,
            hits,
            ..Inline::default()
        },
    };
    let round = Round {
        offline: written(2.0, 0),
        inline: written(3.0, 750),
    };
    Images {
        blocks: 1000,
        duplicates: 760,
        modes: vec![(Mode::Host, vec![round])],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_judged_by_what_is_no_duplicate_and_time_by_off_line() {
        let [data, time] = example().goals().try_into().unwrap();
        assert_eq!(data.value, Some(0.25));
        assert!((data.must - 1.1 * 0.24).abs() < 1e-9);
        assert_eq!(data.verdict(data.must), "met");
        assert_eq!((time.value, time.verdict(time.must)), (Some(1.5), "missed"));
    }

    #[test]
    fn each_way_has_its_cells() {
        let cells: Vec<_> = example().rows().map(|row| row.to_string()).collect();
        assert_eq!(cells[0], "| host off-line | 2.00 | 4 | 5 | 1.00 | 0 | 0 |");
        assert_eq!(cells[1], "| host in line | 3.00 | 1 | 1 | 1.00 | 750 | 0 |");
    }
}
