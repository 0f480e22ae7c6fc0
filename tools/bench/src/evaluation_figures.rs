//! The loads of Dmdedup's figures 4 to 6: contents and patterns, with each back end of the index, and
//! with memory for all of its rows and for a quarter of them.
//!
//! As in `inline`, onefold and the pass-through are measured in turn and compared pair by pair, past
//! the page cache, and under one limit of writes where there are control groups. Each pool holds
//! other data first, so that its index is large; then one image, and the contents that are written
//! as duplicates. The finder rests, so that unique blocks stay private and are rewritten in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::evaluation::{BACK_ENDS, Plan};
use crate::evaluation_cell::{Cell, Content, Pair, Pattern};
use crate::inline_load::{BLOCK_BYTES, Contents, Load, Writer, publish};
use crate::large;
use crate::plan::SERVER_PROCESSOR;
use crate::request_limit::RequestLimit;
use crate::slices::{Contender, DATA_BYTES, EXPORT, Mode, order, start_passthrough};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::images;
use onefold_harness::server::{Address, Daemon, Product};
use onefold_harness::workspace::Workspace;

/// Random writes per second of the disk in Dmdedup's figures.
pub(crate) const WRITES_PER_SECOND: u64 = 420;

/// The smallest `serve --memory`, and the divisor that gives the index's part of it.
const MEMORY_MIN: u64 = 64 << 20;
const INDEX_PART: u64 = 16;

/// Memory for the index, in percent of the memory that its rows need.
pub(crate) const PERCENTS: [u64; 2] = [100, 25];

/// Distinct data that a quick run's pool holds.
const LITTLE_BYTES: u64 = 256 << 20;

/// The volume whose blocks are published.
const SOURCE: &str = "source";

/// How long counting and the collector may take to finish the work of one slice.
const REST_LIMIT: Duration = Duration::from_secs(300);

/// In the order in which a server gets them: unique content is rewritten in place only while blocks are private.
const CONTENTS: [Content; 3] = [Content::Unique, Content::Images, Content::Duplicates];
const PATTERNS: [Pattern; 2] = [Pattern::Sequential, Pattern::Random];

/// The measured cells, and why writes were not limited.
pub(crate) struct Figures {
    pub(crate) cells: Vec<Cell>,
    /// Why there was no limit of writes, if there was none.
    pub(crate) no_limit: Option<String>,
}

/// Bytes of memory per row with all of the index in memory, from `docs/index-back-ends.md`; for `memory` the highest
/// figure there, because its table doubles.
fn row_bytes(back_end: &str) -> u64 {
    match back_end {
        "memory" => 70,
        "btree" => 61,
        _ => 6,
    }
}

/// Data whose rows need four times the smallest memory that an index can have.
fn held_bytes(back_end: &str, plan: &Plan) -> u64 {
    if !plan.holds_much {
        return LITTLE_BYTES;
    }
    let rows = 100 / PERCENTS[1] * MEMORY_MIN / INDEX_PART / row_bytes(back_end);
    rows * BLOCK_BYTES as u64
}

/// The `serve --memory` that gives the index this percentage of the memory that its rows need.
fn memory_bytes(rows: u64, back_end: &str, percent: u64) -> u64 {
    let index = rows * row_bytes(back_end) * percent / 100;
    (index * INDEX_PART).max(MEMORY_MIN)
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Figures> {
    let limit = RequestLimit::new(&workspace.target, WRITES_PER_SECOND);
    let no_limit = limit.as_ref().err().map(|error| format!("{error:#}"));
    if let Some(why) = &no_limit {
        println!("the figures are without a limited number of writes: {why}");
    }
    let limit = limit.ok();
    let [web, dev] = &images::make(workspace)?[..] else {
        bail!("there are not two images");
    };
    let loads = Loads {
        plan: *plan,
        limit: limit.as_ref(),
        contents: Contents::make(),
        image: Arc::new(data_blocks(&dev.path)?),
        relative: web.path.clone(),
    };
    let mut figures = Figures {
        cells: Vec::new(),
        no_limit,
    };
    for back_end in BACK_ENDS {
        let cells = loads.with(workspace, back_end);
        figures
            .cells
            .extend(cells.with_context(|| format!("with the index {back_end}"))?);
    }
    Ok(figures)
}

/// The blocks of a file that are not all zeros.
fn data_blocks(path: &Path) -> Result<Vec<u8>> {
    let all = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let blocks = all.chunks_exact(BLOCK_BYTES);
    let data: Vec<&[u8]> = blocks
        .filter(|block| block.iter().any(|byte| *byte != 0))
        .collect();
    Ok(data.concat())
}

/// The common inputs of all cells.
struct Loads<'a> {
    plan: Plan,
    limit: Option<&'a RequestLimit>,
    contents: Contents,
    image: Arc<Vec<u8>>,
    /// An image that pools hold, and that has blocks in common with the one that is written.
    relative: PathBuf,
}

/// Both servers, with the volume that is written.
struct Servers<'a> {
    product: &'a Product,
    contenders: [Contender; 2],
    sockets: [PathBuf; 2],
    writers: [Writer; 2],
    volume: String,
}

impl Loads<'_> {
    /// Measures all cells of one back end.
    fn with(&self, workspace: &Workspace, back_end: &'static str) -> Result<Vec<Cell>> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "figures")?;
        let directory = scratch.path();
        let product = Product::build(workspace, directory)?;
        product.create_pool_with("64G", &["--index", back_end])?;
        self.publish(&product)?;
        product
            .command()
            .args(["--quiet", "volume", "import", "relative"])
            .arg(&self.relative)
            .args(["--image-format", "raw"])
            .run()?;
        large::hold(&product, directory, held_bytes(back_end, &self.plan))?;
        let rows = product.stat_number("unique_blocks")? + product.stat_number("shared_blocks")?;
        let product = product.pin(Some(SERVER_PROCESSOR));
        let mut cells = Vec::new();
        for percent in PERCENTS {
            let memory = memory_bytes(rows, back_end, percent);
            let had = memory / INDEX_PART * 100;
            let had_percent = had as f64 / (rows * row_bytes(back_end)) as f64;
            println!("index {back_end}: {rows} rows, memory for {had_percent:.0} %");
            let daemon = serve(&product, memory)?;
            let mut servers = Servers::start(workspace, directory, &product, daemon, percent)?;
            for content in CONTENTS {
                for pattern in PATTERNS {
                    let mut cell = Cell {
                        content,
                        pattern,
                        back_end,
                        percent,
                        had_percent,
                        pairs: Vec::new(),
                    };
                    servers
                        .cell(self, &mut cell)
                        .with_context(|| format!("cannot measure {}", cell.line()))?;
                    println!("{}", cell.line());
                    cells.push(cell);
                }
            }
            servers.end()?;
        }
        Ok(cells)
    }

    /// Writes and publishes the contents that are written as duplicates.
    fn publish(&self, product: &Product) -> Result<()> {
        let size = DATA_BYTES.to_string();
        product
            .command()
            .args(["volume", "create", SOURCE, "--size", &size])
            .run()?;
        let daemon = serve(product, MEMORY_MIN)?;
        publish(&self.contents, 0, (&socket(product)?, SOURCE))?;
        product.dedup(Some(SOURCE))?;
        daemon.stop()?;
        Ok(())
    }
}

fn serve(product: &Product, memory: u64) -> Result<Daemon> {
    let memory = memory.to_string();
    let options = ["--cache", Mode::Direct.name(), "--memory", &memory];
    product.serve(&options, &[])
}

fn socket(product: &Product) -> Result<PathBuf> {
    match product.default_address() {
        Address::Unix(socket) => Ok(socket),
        Address::Tcp(_) => bail!("the product does not listen at a unix socket"),
    }
}

/// Writes a whole volume or file with large sequential requests, so that a later sequential request falls into one
/// piece on the disk.
fn fill(directory: &Path, uri: &str) -> Result<()> {
    let job = Section::new("fill", uri)
        .set("rw", "write")
        .set("bs", "4m")
        .set("iodepth", 1)
        .set("size", DATA_BYTES)
        .set("refill_buffers", 1)
        .set("end_fsync", 1);
    let filled = Fio::new(directory, "fill").job(job).run();
    filled
        .map(drop)
        .with_context(|| format!("cannot fill {uri}"))
}

impl Servers<'_> {
    /// Starts both servers, with a new volume that is filled as the pass-through's file is.
    fn start<'a>(
        workspace: &Workspace,
        directory: &Path,
        product: &'a Product,
        daemon: Daemon,
        percent: u64,
    ) -> Result<Servers<'a>> {
        let volume = format!("written{percent}");
        let size = DATA_BYTES.to_string();
        product
            .command()
            .args(["volume", "create", &volume, "--size", &size])
            .args(["--dedup", "inline"])
            .run()?;
        product
            .command()
            .args(["--quiet", "job", "pause", "finder", "--volume", &volume])
            .run()?;
        let mut ours = Contender::product(product, daemon);
        ours.uri = product.default_address().uri(&volume);
        let base = start_passthrough(workspace, directory, Mode::Direct)?;
        for contender in [&ours, &base] {
            fill(directory, &contender.uri)?;
        }
        Ok(Servers {
            product,
            contenders: [ours, base],
            sockets: [socket(product)?, directory.join("pass.sock")],
            writers: [Writer::new(DATA_BYTES), Writer::new(DATA_BYTES)],
            volume,
        })
    }

    /// Stops the daemon cleanly, because the next one opens the pool; the pass-through has no clean end.
    fn end(self) -> Result<()> {
        self.rest()?;
        let [ours, base] = self.contenders;
        ours.daemon.stop()?;
        base.daemon.kill()
    }

    /// Waits until all hits are counted and all released blocks are free.
    fn rest(&self) -> Result<()> {
        self.product.wait_for_backlog(REST_LIMIT, |backlog| {
            backlog.queued == 0 && backlog.claimed == 0
        })?;
        Cmd::new("sync").run()
    }

    fn cell(&mut self, loads: &Loads, cell: &mut Cell) -> Result<()> {
        let image = (cell.content == Content::Images).then(|| Arc::clone(&loads.image));
        for writer in &mut self.writers {
            writer.set_image(image.clone());
        }
        for _ in 0..loads.plan.slices {
            // The releases and the writeback of the previous slice must not slow this one down.
            self.rest()?;
            let before = self.product.inline(&self.volume)?;
            let mut slices = [f64::NAN; 2];
            for server in order(cell.pairs.len(), 2) {
                slices[server] = self.slice(server, loads, cell.load())?;
            }
            let [ours, base] = slices;
            let inline = self.product.inline(&self.volume)?.since(before);
            cell.pairs.push(Pair { ours, base, inline });
        }
        Ok(())
    }

    /// Loads one server for one slice. Returns its requests per second.
    fn slice(&mut self, server: usize, loads: &Loads, load: Load) -> Result<f64> {
        let process = self.contenders[server].daemon.pid()?;
        let export = [self.volume.as_str(), EXPORT][server];
        let to = (self.sockets[server].as_path(), export);
        let length = Duration::from_secs(loads.plan.slice_seconds);
        if let Some(limit) = loads.limit {
            limit.add(process)?;
        }
        let written = self.writers[server].run(&loads.contents, to, load, length);
        if let Some(limit) = loads.limit {
            limit.release(process)?;
        }
        let written = written?;
        Ok(written.requests as f64 / written.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::QUICK;

    #[test]
    fn a_quarter_of_the_rows_memory_is_what_a_daemon_has_at_least() {
        let plan = Plan {
            holds_much: true,
            ..QUICK
        };
        for back_end in BACK_ENDS {
            let rows = held_bytes(back_end, &plan) / BLOCK_BYTES as u64 + 1;
            let quarter = memory_bytes(rows, back_end, 25);
            assert!((MEMORY_MIN..MEMORY_MIN + 65536).contains(&quarter));
            assert!(memory_bytes(rows, back_end, 100).abs_diff(4 * quarter) < 65536);
        }
        assert_eq!(memory_bytes(1000, "hash", 100), MEMORY_MIN);
    }

    #[test]
    fn blocks_of_zeros_are_left_out_of_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let blocks = [[0; BLOCK_BYTES], [1; BLOCK_BYTES], [0; BLOCK_BYTES]];
        std::fs::write(&path, blocks.concat()).unwrap();
        assert_eq!(data_blocks(&path).unwrap(), [1; BLOCK_BYTES]);
    }
}
