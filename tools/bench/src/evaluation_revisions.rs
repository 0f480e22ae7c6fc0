//! Dmdedup's table 2 in kind: unpacks many revisions of one source on a new file system.
//!
//! The revisions are commits of this repository at equal distances. The file system is the kernel's ext4, over a loop
//! device on the file that nbdfuse makes of an export; that needs root. The clock runs while tar unpacks and syncs each
//! revision, and until the file system is unmounted. The pass-through stands in for their ext4 without deduplication.
//!
//! The whole load takes some seconds. In that time the finder publishes little, and in-line writes find only published
//! blocks. So in one row everything is published after each revision while the clock is stopped, as if revisions came
//! hours apart.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::evaluation::{BACK_ENDS, Plan};
use crate::inline_load::BLOCK_BYTES;
use crate::plan::SERVER_PROCESSOR;
use crate::slices::{EXPORT, Mode, start_passthrough};
use crate::statistics::Estimate;
use onefold_harness::cleanup::{Mount, Scratch};
use onefold_harness::command::Cmd;
use onefold_harness::fuse::Fused;
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

/// The size of the file system, which equals the pass-through's file.
const DISK_BYTES: u64 = crate::slices::DATA_BYTES;

/// How long the finder may take after the last revision.
const PUBLISH_LIMIT: Duration = Duration::from_secs(300);

/// The disk that the revisions are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    PassThrough,
    InLine(&'static str),
    /// A volume whose blocks are published after each revision.
    Published(&'static str),
}

/// All runs on each target.
pub(crate) struct Revisions {
    pub(crate) revisions: usize,
    /// Size of all archives together.
    pub(crate) tar_bytes: u64,
    pub(crate) runs: Vec<(Target, Vec<Run>)>,
}

/// The result of unpacking all revisions on one new file system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    /// The space and writes of the pool; none for the pass-through.
    pub(crate) stored: Option<Stored>,
}

/// The pool's figures when the finder is done, in bytes except for the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stored {
    /// Hits in percent of the blocks that were looked up.
    pub(crate) hits_percent: f64,
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    /// Blocks that the volume wrote.
    pub(crate) data_written: u64,
    /// Everything else that the daemon wrote.
    pub(crate) metadata_written: u64,
}

impl Stored {
    pub(crate) fn saved_percent(&self) -> f64 {
        100.0 * (1.0 - self.physical as f64 / self.logical.max(1) as f64)
    }
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Revisions> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "revisions")?;
    let archives = archives(workspace, scratch.path(), plan.revisions)?;
    let sizes = archives.iter().map(|path| Ok(path.metadata()?.len()));
    let tar_bytes = sizes.sum::<std::io::Result<u64>>();
    let targets = [Target::PassThrough].into_iter();
    let targets = targets.chain(BACK_ENDS.map(Target::InLine));
    let mut runs: Vec<(Target, Vec<Run>)> = targets
        .chain([Target::Published("hash")])
        .map(|target| (target, Vec::new()))
        .collect();
    for round in 0..plan.rounds {
        let count = runs.len();
        for turn in 0..count {
            let (target, of) = &mut runs[(round + turn) % count];
            let run = run(workspace, *target, &archives);
            let run = run.with_context(|| format!("cannot unpack on {}", target.name()))?;
            println!(
                "{} revisions, {}: {:.1} s",
                plan.revisions,
                target.name(),
                run.seconds
            );
            of.push(run);
        }
    }
    Ok(Revisions {
        revisions: plan.revisions,
        tar_bytes: tar_bytes.context("cannot look at the archives")?,
        runs,
    })
}

/// Commits at equal distances, the oldest first, each as an archive below a folder of its own.
fn archives(workspace: &Workspace, directory: &Path, count: usize) -> Result<Vec<PathBuf>> {
    let git = || Cmd::new("git").dir(&workspace.root);
    let log = git().args(["rev-list", "--reverse", "HEAD"]).read()?;
    let commits: Vec<&str> = log.lines().collect();
    ensure!(
        commits.len() >= count,
        "this repository has {} commits and not {count}: is it a shallow clone?",
        commits.len()
    );
    let archive = |number: usize| -> Result<PathBuf> {
        let path = directory.join(format!("{number}.tar"));
        git()
            .args(["archive", "--format=tar", "-o"])
            .arg(&path)
            .arg(format!("--prefix={number}/"))
            .arg(commits[place(number, count, commits.len())])
            .run()?;
        Ok(path)
    };
    (0..count).map(archive).collect()
}

/// The index of the `number`th of `count` items at equal distances out of `of` items, the first and the last included.
fn place(number: usize, count: usize, of: usize) -> usize {
    number * (of - 1) / (count - 1).max(1)
}

fn run(workspace: &Workspace, target: Target, archives: &[PathBuf]) -> Result<Run> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "table2")?;
    let directory = scratch.path();
    match target {
        Target::PassThrough => {
            let server = start_passthrough(workspace, directory, Mode::Direct)?;
            let seconds = unpack(directory, &server.uri, archives, || Ok(()))?;
            server.daemon.kill()?;
            Ok(Run {
                seconds,
                stored: None,
            })
        }
        Target::InLine(index) => in_line(workspace, directory, index, archives, false),
        Target::Published(index) => in_line(workspace, directory, index, archives, true),
    }
}

fn in_line(
    workspace: &Workspace,
    directory: &Path,
    index: &str,
    archives: &[PathBuf],
    publishes: bool,
) -> Result<Run> {
    let product = Product::build(workspace, directory)?.pin(Some(SERVER_PROCESSOR));
    product.create_pool_with("8G", &["--index", index])?;
    let size = DISK_BYTES.to_string();
    product
        .command()
        .args(["volume", "create", EXPORT, "--size", &size])
        .args(["--dedup", "inline"])
        .run()?;
    let daemon = product.serve(&["--cache", Mode::Direct.name()], &[])?;
    let before = daemon.device_written_bytes()?;
    let uri = product.default_address().uri(EXPORT);
    let seconds = unpack(directory, &uri, archives, || {
        if publishes {
            product.dedup(Some(EXPORT)).map(drop)
        } else {
            Ok(())
        }
    })?;
    product.wait_for_backlog(PUBLISH_LIMIT, |backlog| {
        backlog.dirty == 0 && backlog.claimed == 0
    })?;
    // Afterwards all released blocks are free, so the space in use is only the remaining data.
    product.dedup(Some(EXPORT))?;
    let written = daemon.device_written_bytes()? - before;
    let inline = product.inline(EXPORT)?;
    let blocks = |key| Ok::<_, anyhow::Error>(product.stat_number(key)? * BLOCK_BYTES as u64);
    let data_written = (inline.scanned - inline.zeros - inline.hits) * BLOCK_BYTES as u64;
    let stored = Stored {
        hits_percent: 100.0 * inline.hits as f64 / inline.scanned.max(1) as f64,
        logical: blocks("logical_blocks")?,
        physical: blocks("physical_blocks")?,
        data_written,
        metadata_written: written.saturating_sub(data_written),
    };
    daemon.stop()?;
    Ok(Run {
        seconds,
        stored: Some(stored),
    })
}

/// Makes a file system and unpacks all archives on it. Returns the seconds of unpacking, without the work between two
/// archives.
fn unpack(
    directory: &Path,
    uri: &str,
    archives: &[PathBuf],
    between: impl Fn() -> Result<()>,
) -> Result<f64> {
    let fused = Fused::new(directory, uri)?;
    Cmd::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-m", "0"])
        .args(["-E", "lazy_itable_init=0,lazy_journal_init=0"])
        .arg(&fused.disk)
        .run()?;
    let point = directory.join("ext4");
    std::fs::create_dir(&point).context("cannot make the mount point")?;
    let mount = Mount::new(point.clone());
    Cmd::new("mount")
        .args(["-t", "ext4", "-o", "loop"])
        .args([&fused.disk, &point])
        .run()?;
    let mut took = Duration::ZERO;
    for archive in archives {
        let start = Instant::now();
        Cmd::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(&point)
            .run()?;
        Cmd::new("sync").arg("-f").arg(&point).run()?;
        took += start.elapsed();
        between()?;
    }
    let start = Instant::now();
    Cmd::new("umount").arg(&point).run()?;
    took += start.elapsed();
    drop(mount);
    fused.finish()?;
    Ok(took.as_secs_f64())
}

impl Target {
    pub(crate) fn name(self) -> String {
        match self {
            Target::PassThrough => "pass-through".to_owned(),
            Target::InLine(index) => format!("in line, `{index}`"),
            Target::Published(index) => format!("in line, `{index}`, published between"),
        }
    }
}

impl Revisions {
    /// The median of one figure over a target's runs.
    pub(crate) fn median(runs: &[Run], of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        Some(Estimate::over(runs.iter().filter_map(of))?.median)
    }

    pub(crate) fn raw(&self) -> Value {
        let stored = |stored: &Stored| {
            json!({"hits_percent": stored.hits_percent, "logical_bytes": stored.logical,
                   "physical_bytes": stored.physical, "data_written_bytes": stored.data_written,
                   "metadata_written_bytes": stored.metadata_written})
        };
        let runs = self.runs.iter().map(|(target, runs)| {
            let runs = runs.iter().map(
                |run| json!({"seconds": run.seconds, "stored": run.stored.as_ref().map(stored)}),
            );
            json!({"target": target.name(), "runs": runs.collect::<Vec<_>>()})
        });
        json!({"revisions": self.revisions, "tar_bytes": self.tar_bytes,
               "targets": runs.collect::<Vec<_>>()})
    }
}

/// An example for tests of the report.
#[cfg(test)]
pub(crate) fn example() -> Revisions {
    let stored = Stored {
        hits_percent: 60.0,
        logical: 200_000_000,
        physical: 50_000_000,
        data_written: 60_000_000,
        metadata_written: 10_000_000,
    };
    let run = |seconds, stored| Run { seconds, stored };
    Revisions {
        revisions: 40,
        tar_bytes: 150_000_000,
        runs: vec![
            (Target::PassThrough, vec![run(10.0, None)]),
            (Target::InLine("hash"), vec![run(8.0, Some(stored))]),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_at_equal_distances_from_the_first_to_the_last() {
        let places: Vec<_> = (0..5).map(|number| place(number, 5, 9)).collect();
        assert_eq!(places, [0, 2, 4, 6, 8]);
        let all: Vec<_> = (0..40).map(|number| place(number, 40, 40)).collect();
        assert_eq!(all, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_saved_is_a_part_of_what_is_logical() {
        let revisions = example();
        let stored = revisions.runs[1].1[0].stored.unwrap();
        assert_eq!(stored.saved_percent(), 75.0);
    }
}
