//! Two generations of one image, as dedupv1 was measured with [Meister13 §6.2]: the first goes into an empty pool, the
//! second into another volume of that pool, with a few changes.
//!
//! As there, the server is restarted between the two. The second generation has two percent of its data changed,
//! because up to 98 % of the data in their traces was in the generation before. The changes are in runs as long as
//! their mean run. nbdcopy writes both generations, its flush included.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::evaluation::Plan;
use crate::inline_load::BLOCK_BYTES;
use crate::plan::SERVER_PROCESSOR;
use crate::slices::{Mode, start_passthrough_of};
use crate::statistics;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::images::{self, Image};
use onefold_harness::inline::{Inline, Mode as Dedup};
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

/// The mean length of the new runs in their second generation, 162.4 KB.
const RUN_BYTES: usize = 160 << 10;

/// The second generation changes one run with data in this many.
const CHANGED_OF: usize = 50;

/// How long the finder may take for a generation.
const PUBLISH_LIMIT: Duration = Duration::from_secs(600);

pub(crate) struct Generations {
    pub(crate) images: Vec<Of>,
}

/// The results of one image.
pub(crate) struct Of {
    pub(crate) image: String,
    /// Blocks with data, in bytes.
    pub(crate) data_bytes: u64,
    pub(crate) rounds: Vec<Round>,
}

/// Seconds of both generations with each server, and the duplicates that onefold found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    ours: [f64; 2],
    base: [f64; 2],
    found: [Inline; 2],
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Generations> {
    let mut measured = Vec::new();
    for image in images::make(workspace)? {
        let scratch = Scratch::new(&workspace.scratch_parent(), "changed")?;
        let second = scratch.path().join("second.raw");
        let data_bytes = change(&image.path, &second)?;
        let generations = [image.path.clone(), second];
        let mut of = Of {
            image: image.name.clone(),
            data_bytes,
            rounds: Vec::new(),
        };
        for round in 0..plan.rounds {
            let ours = || in_line(workspace, &image, &generations);
            let base = || pass_through(workspace, &image, &generations);
            let ((ours, found), base) = match round % 2 {
                0 => (ours()?, base()?),
                _ => {
                    let base = base()?;
                    (ours()?, base)
                }
            };
            of.rounds.push(Round { ours, base, found });
        }
        println!("{}", of.line());
        measured.push(of);
    }
    Ok(Generations { images: measured })
}

/// Copies an image and changes one run of its data in every [`CHANGED_OF`]. Returns the bytes of its blocks with data.
fn change(image: &Path, changed: &Path) -> Result<u64> {
    Cmd::new("cp")
        .arg("--sparse=always")
        .args([image, changed])
        .run()?;
    let doing = || format!("cannot change {}", changed.display());
    let file = File::options()
        .read(true)
        .write(true)
        .open(changed)
        .with_context(doing)?;
    let length = file.metadata().with_context(doing)?.len();
    let mut run = vec![0; RUN_BYTES];
    let mut random = fastrand::Rng::with_seed(9);
    let (mut data_blocks, mut runs) = (0, 0);
    for at in (0..length).step_by(RUN_BYTES) {
        let bytes = (length - at).min(RUN_BYTES as u64) as usize;
        let run = &mut run[..bytes];
        file.read_exact_at(run, at).with_context(doing)?;
        let blocks = run.chunks(BLOCK_BYTES);
        let data = blocks.filter(|block| block.iter().any(|byte| *byte != 0));
        let data = data.count();
        if data == 0 {
            continue;
        }
        data_blocks += data;
        runs += 1;
        if runs % CHANGED_OF == 0 {
            // The changed run has as much data as before, so that the rates of both generations refer to the same
            // number of bytes.
            for block in run.chunks_mut(BLOCK_BYTES) {
                if block.iter().any(|byte| *byte != 0) {
                    random.fill(block);
                }
            }
            file.write_all_at(run, at).with_context(doing)?;
        }
    }
    Ok((data_blocks * BLOCK_BYTES) as u64)
}

fn in_line(
    workspace: &Workspace,
    image: &Image,
    generations: &[PathBuf; 2],
) -> Result<([f64; 2], [Inline; 2])> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "generations")?;
    let product = Product::build(workspace, scratch.path())?.pin(Some(SERVER_PROCESSOR));
    product.create_pool("16G")?;
    let (mut seconds, mut found) = ([f64::NAN; 2], [Inline::default(); 2]);
    for (number, path) in generations.iter().enumerate() {
        let volume = format!("generation{}", number + 1);
        let size = image.size_bytes.to_string();
        product
            .command()
            .args(["volume", "create", &volume, "--size", &size])
            .args(["--dedup", Dedup::Inline.name()])
            .run()?;
        let daemon = product.serve(&["--cache", Mode::Direct.name()], &[])?;
        seconds[number] = copy(path, &product.default_address().uri(&volume))?;
        found[number] = product.inline(&volume)?;
        product.wait_for_backlog(PUBLISH_LIMIT, |backlog| {
            backlog.dirty == 0 && backlog.claimed == 0
        })?;
        daemon.stop()?;
    }
    Ok((seconds, found))
}

/// Writes both generations to files of their own through the pass-through.
fn pass_through(
    workspace: &Workspace,
    image: &Image,
    generations: &[PathBuf; 2],
) -> Result<[f64; 2]> {
    let mut seconds = [f64::NAN; 2];
    for (seconds, path) in seconds.iter_mut().zip(generations) {
        let scratch = Scratch::new(&workspace.scratch_parent(), "generations")?;
        let server =
            start_passthrough_of(image.size_bytes, workspace, scratch.path(), Mode::Direct)?;
        *seconds = copy(path, &server.uri)?;
        server.daemon.kill()?;
    }
    Ok(seconds)
}

fn copy(path: &Path, uri: &str) -> Result<f64> {
    Cmd::new("sync").run()?;
    let start = Instant::now();
    Cmd::new("nbdcopy")
        .arg("--flush")
        .arg(path)
        .arg(uri)
        .run()?;
    Ok(start.elapsed().as_secs_f64())
}

impl Of {
    /// MB of data per second in each generation, of onefold and of the pass-through.
    pub(crate) fn rates(&self) -> [[f64; 2]; 2] {
        let median = |of: &dyn Fn(&Round) -> f64| {
            let rates = self.rounds.iter().map(of);
            statistics::median(rates.map(|s| self.data_bytes as f64 / 1e6 / s))
        };
        [0, 1].map(|number| {
            [
                median(&|round| round.ours[number]),
                median(&|round| round.base[number]),
            ]
        })
    }

    /// Hits of each generation, and blocks found and written all the same, in percent of the blocks
    /// with data.
    pub(crate) fn found_percent(&self) -> [[f64; 2]; 2] {
        [0, 1].map(|number| {
            let found = self.rounds.iter().map(|round| round.found[number]);
            let found = found.fold(Inline::default(), Inline::plus);
            let data = found.scanned - found.zeros;
            [found.hits, found.refused].map(|blocks| 100.0 * blocks as f64 / data.max(1) as f64)
        })
    }

    fn line(&self) -> String {
        let ([first, second], [[hits, _], [more, refused]]) = (self.rates(), self.found_percent());
        format!(
            "{}: generation 1 {:.0} MB/s (pass-through {:.0}, {hits:.1} % hits), 2 {:.0} MB/s ({:.0}, {more:.1} % hits, {refused:.1} % refused)",
            self.image, first[0], first[1], second[0], second[1]
        )
    }
}

impl Generations {
    pub(crate) fn raw(&self) -> Value {
        let images = self.images.iter().map(|of| {
            let rounds = of.rounds.iter().map(|round| {
                json!({"seconds": round.ours, "pass_through_seconds": round.base,
                       "hit_blocks": round.found.map(|found| found.hits),
                       "refused_blocks": round.found.map(|found| found.refused),
                       "looked_up_blocks": round.found.map(|found| found.scanned)})
            });
            json!({"image": of.image, "data_bytes": of.data_bytes,
                   "rounds": rounds.collect::<Vec<_>>()})
        });
        json!(images.collect::<Vec<_>>())
    }
}

/// An example for tests of the report.
#[cfg(test)]
pub(crate) fn example() -> Generations {
    let found = |hits, refused| Inline {
        scanned: 110,
        zeros: 10,
        hits,
        refused,
        ..Inline::default()
    };
    let round = Round {
        ours: [2.0, 1.0],
        base: [1.0, 1.0],
        found: [found(5, 0), found(98, 1)],
    };
    Generations {
        images: vec![Of {
            image: "web".to_owned(),
            data_bytes: 400_000_000,
            rounds: vec![round],
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_data_and_hits_of_what_was_looked_up_without_zeros() {
        let of = &example().images[0];
        assert_eq!(of.rates(), [[200.0, 400.0], [400.0, 400.0]]);
        assert_eq!(of.found_percent(), [[5.0, 0.0], [98.0, 1.0]]);
    }

    #[test]
    fn one_run_of_fifty_with_data_is_changed_and_holes_stay() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
        let mut image = vec![1; 100 * RUN_BYTES];
        image[..2 * RUN_BYTES].fill(0);
        image.extend([0; BLOCK_BYTES]);
        std::fs::write(&first, &image).unwrap();
        let data = change(&first, &second).unwrap();
        assert_eq!(data, 98 * RUN_BYTES as u64);
        let changed = std::fs::read(&second).unwrap();
        let runs = image.chunks(RUN_BYTES).zip(changed.chunks(RUN_BYTES));
        let differ: Vec<_> = (0..).zip(runs).filter(|(_, (a, b))| a != b).collect();
        assert_eq!(differ.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [51]);
    }
}
