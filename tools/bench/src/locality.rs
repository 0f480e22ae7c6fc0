//! `cargo xtask bench locality`: what sharing does to the order of a volume's blocks in the pool.
//!
//! The last of some related images is read from start to end, past the host's cache: alone in its
//! pool; beside its relatives, with which it shares all duplicates; with short runs of duplicates left
//! private; and after `volume defrag`. What counts are the reads of the pool that this takes, as
//! the kernel counts system calls of the daemon: clients' requests are received from sockets, which
//! it counts apart.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::plan::{CLIENT_PROCESSOR, SERVER_PROCESSOR};
use crate::report;
use crate::statistics::Estimate;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::{Cmd, last_lines};
use onefold_harness::distinct::BLOCK_BYTES;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::images::{self, Image};
use onefold_harness::packages;
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

/// Options of `cargo xtask bench locality`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// One round: an impression, not a result
    #[arg(long)]
    quick: bool,
    /// Raw disk images; the last one is read. Without any, those that are made for tests
    images: Vec<PathBuf>,
}

/// How often the image is read at each depth.
const ROUNDS: usize = 5;

const DEPTHS: [u32; 2] = [1, 4];

/// Blocks in the shortest run that is shared, where short ones are not.
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

/// What was measured in one state.
struct Measured {
    state: State,
    /// Blocks that the pool stores, for all images in it.
    stored_blocks: u64,
    /// Of the pool, for the whole image.
    reads: Vec<f64>,
    /// By depth.
    mb_per_second: [Vec<f64>; 2],
    /// Of the daemon, by mebibyte.
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
    let rounds = if arguments.quick { 1 } else { ROUNDS };
    let (mut measured, mut left_out) = (Vec::new(), Vec::new());
    for state in STATES {
        match measure(workspace, &images, state, rounds)? {
            Ok(one) => {
                println!("{}", one.cells());
                measured.push(one);
            }
            Err(why) => {
                println!("{} is left out: {why}", state.title());
                left_out.push(format!("{}: {why}", state.title()));
            }
        }
    }
    let conditions = report::conditions(workspace, "cargo xtask bench locality", start.elapsed())?;
    let image = images.last().context("there is no image")?;
    let mut page = report::heading("Benchmarks of locality", None, &conditions);
    page.push_str(&table(image, &measured, &left_out));
    println!("\n{page}");
    println!(
        "{}",
        json!(measured.iter().map(Measured::raw).collect::<Vec<_>>())
    );
    Ok(())
}

/// The inner error says why this state cannot be had.
fn measure(
    workspace: &Workspace,
    images: &[Image],
    state: State,
    rounds: usize,
) -> Result<std::result::Result<Measured, String>> {
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
    if state == State::Defragmented
        && let Some(why) = defragment(&product, &last.name)?
    {
        return Ok(Err(why));
    }
    // What the daemon found to do after the import is over.
    product.wait_for_backlog(std::time::Duration::from_secs(300), |backlog| {
        backlog.queued == 0
    })?;
    product.pause_jobs()?;
    let mut measured = Measured {
        state,
        stored_blocks: product.stat_number("physical_blocks")?,
        reads: Vec::new(),
        mb_per_second: [Vec::new(), Vec::new()],
        cpu_us: Vec::new(),
    };
    for _ in 0..rounds {
        for (depth, rates) in DEPTHS.iter().zip(0..) {
            measured.read(&scratch, &product, &daemon, last, (*depth, rates))?;
        }
    }
    daemon.stop()?;
    Ok(Ok(measured))
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

/// Why it cannot be done, if the product has no such command yet.
fn defragment(product: &Product, volume: &str) -> Result<Option<String>> {
    let output = product
        .command()
        .args(["--quiet", "volume", "defrag", volume, "--yes"])
        .output()?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        is_unknown_command(&said),
        "volume defrag fails\n{}",
        last_lines(&said)
    );
    Ok(Some("there is no command volume defrag".to_owned()))
}

fn is_unknown_command(said: &str) -> bool {
    said.contains("unrecognized subcommand")
}

impl Measured {
    fn read(
        &mut self,
        scratch: &Scratch,
        product: &Product,
        daemon: &Daemon,
        image: &Image,
        (depth, place): (u32, usize),
    ) -> Result<()> {
        Cmd::new("sync").run()?;
        let job = Section::new("read", &product.default_address().uri(&image.name))
            .set("rw", "read")
            .set("bs", "1m")
            .set("iodepth", depth)
            .set("size", image.size_bytes);
        let (reads, cpu) = (daemon.read_calls()?, daemon.cpu_seconds()?);
        let start = Instant::now();
        let results = Fio::new(scratch.path(), "read")
            .pin(Some(CLIENT_PROCESSOR))
            .job(job)
            .run()?;
        let elapsed = start.elapsed().as_secs_f64();
        let result = results.first().context("fio reported no job")?;
        let bytes = result.read.bytes as f64;
        ensure!(bytes > 0.0 && elapsed > 0.0, "fio read nothing");
        // fio's own rate: without its start.
        let per_second = result.read.iops * bytes / result.read.requests.max(1) as f64;
        if let Some(rates) = self.mb_per_second.get_mut(place) {
            rates.push(per_second / 1e6);
        }
        self.reads.push((daemon.read_calls()? - reads) as f64);
        let cpu = daemon.cpu_seconds()? - cpu;
        self.cpu_us.push(cpu * 1e6 / (bytes / f64::from(1 << 20)));
        Ok(())
    }

    fn cells(&self) -> String {
        let [first, second] = self.mb_per_second.each_ref().map(|rates| median(rates));
        format!(
            "| {} | {:.0} | {first:.0} | {second:.0} | {:.0} | {:.0} |",
            self.state.title(),
            median(&self.reads),
            median(&self.cpu_us),
            self.stored_blocks as f64 * BLOCK_BYTES as f64 / 1e6,
        )
    }

    fn raw(&self) -> Value {
        json!({"state": self.state.title(), "stored_blocks": self.stored_blocks, "reads": self.reads,
               "mb_per_second": self.mb_per_second, "cpu_us_per_mib": self.cpu_us})
    }
}

fn median(values: &[f64]) -> f64 {
    Estimate::of(values).map_or(f64::NAN, |estimate| estimate.median)
}

fn table(image: &Image, measured: &[Measured], left_out: &[String]) -> String {
    let mut page = format!(
        "\n{} ({}) is read from start to end by fio, 1 MiB at a time, `--cache direct`; imported after the \
         others. *Reads*: of the pool, for the whole image. *Stored*: all images in the pool. Medians.\n\n\
         | | reads | depth 1, MB/s | depth 4, MB/s | CPU, µs/MiB | stored, MB |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        image.name,
        image.describe(),
    );
    for one in measured {
        page.push_str(&one.cells());
        page.push('\n');
    }
    for why in left_out {
        page.push_str(&format!("\nLeft out: {why}.\n"));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_state_and_says_what_is_left_out() {
        let image = Image {
            name: "mail".to_owned(),
            path: "mail.raw".into(),
            size_bytes: 384 << 20,
            data_bytes: 200 << 20,
        };
        let measured = Measured {
            state: State::Shared,
            stored_blocks: 1000,
            reads: vec![10.0, 30.0, 20.0],
            mb_per_second: [vec![100.0], vec![200.0]],
            cpu_us: vec![50.0],
        };
        let page = table(&image, &[measured], &["x: it is missing".to_owned()]);
        let line = "| shared with its relatives | 20 | 100 | 200 | 50 | 4 |\n";
        assert!(page.contains(line), "{page}");
        assert!(page.ends_with("\nLeft out: x: it is missing.\n"), "{page}");
    }

    #[test]
    fn a_command_that_is_missing_is_told_from_one_that_fails() {
        assert!(is_unknown_command(
            "error: unrecognized subcommand 'defrag'"
        ));
        assert!(!is_unknown_command("error: the pool is full"));
    }
}
