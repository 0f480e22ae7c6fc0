//! Checks that writes themselves find the duplicates in real disk images.
//!
//! nbdcopy writes the images one after the other into empty volumes that are in line. After each image the finder
//! publishes its blocks, because a write finds only published blocks. In one run the daemon is killed in the middle of
//! the second image, which is then written again.
//!
//! The finder finds the duplicates that the writes miss. So in the end, after `pool dedup`, the pool must hold exactly
//! as many blocks as [`distinct`](onefold_harness::distinct) counts, whatever the number of hits. And enough writes
//! must have been hits: at least [`HITS_PERCENT_MIN`] of the contents that an earlier image has, too.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::clients::compare;
use crate::sharing::expect;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct::Counted;
use onefold_harness::images::Image;
use onefold_harness::inline::{Inline, Mode};
use onefold_harness::pools::Pools;
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

/// Whether the daemon is killed during the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Undisturbed,
    Killed,
}

/// Runs every index, but only one of them undisturbed: a run with a kill also covers undisturbed writes. `cargo xtask
/// test` runs the first [`FEW_RUNS`].
const RUNS: [(Way, &str, &str); 4] = [
    (Way::Undisturbed, "hash", "host"),
    (Way::Killed, "hash", "direct"),
    (Way::Killed, "btree", "host"),
    (Way::Killed, "memory", "host"),
];

const FEW_RUNS: usize = 2;

/// The least share of hits among the distinct contents that an image has in common with an earlier one. It is not 100,
/// because a hit is refused while finder or collector are using the block.
const HITS_PERCENT_MIN: u64 = 80;

/// The kill comes when this percentage of the image's blocks with data was looked up.
const KILL_AT_PERCENT: u64 = 50;

/// How often a run is repeated because its kill came too late.
const ATTEMPTS_MAX: u32 = 6;

/// How long the finder may take to publish an image.
const PUBLISH_LIMIT: Duration = Duration::from_secs(600);

/// How long nbdcopy may take to notice that its server is gone, and to reach the point of the kill.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);
const WORK_LIMIT: Duration = Duration::from_secs(600);

/// Writes the images in a few ways, or in all of them. Fails at the first way that leaves a duplicate or loses a block.
pub(crate) fn check(
    workspace: &Workspace,
    pools: &Pools,
    images: &[Image],
    counted: &Counted,
    every_way: bool,
) -> Result<()> {
    ensure!(
        images.len() > 1,
        "this needs two images, whose common blocks are found"
    );
    let runs = if every_way { RUNS.len() } else { FEW_RUNS };
    for (way, index, cache) in RUNS.into_iter().take(runs) {
        let start = Instant::now();
        let title = match way {
            Way::Undisturbed => format!("in line, {index} index, --cache {cache}"),
            Way::Killed => {
                format!("in line with kill -9 in the second image, {index} index, --cache {cache}")
            }
        };
        let mut attempts = 1;
        let hits = loop {
            let run = Run::start(workspace, pools, index, cache)?;
            if let Some(hits) = run
                .write_and_compare(way, images, counted)
                .with_context(|| format!("sharing: {title}"))?
            {
                break hits;
            }
            ensure!(attempts < ATTEMPTS_MAX, "{title}: each kill came too late");
            attempts += 1;
        };
        println!("  {:6.1} s  {title}", start.elapsed().as_secs_f64());
        for line in hits {
            println!("            {line}");
        }
    }
    Ok(())
}

/// A pool and its daemon.
struct Run {
    daemon: Daemon,
    product: Product,
    cache: &'static str,
    scratch: Scratch,
}

impl Run {
    fn start(
        workspace: &Workspace,
        pools: &Pools,
        index: &str,
        cache: &'static str,
    ) -> Result<Run> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "sharing")?;
        let product = Product::build_in(workspace, pools, scratch.path())?;
        product.create_pool_with("64G", &["--index", index])?;
        let daemon = product.serve(&["--cache", cache], &[])?;
        Ok(Run {
            daemon,
            product,
            cache,
            scratch,
        })
    }

    /// Writes and compares the images. Returns a sentence about the hits in each; `None` if the kill came too late.
    fn write_and_compare(
        mut self,
        way: Way,
        images: &[Image],
        counted: &Counted,
    ) -> Result<Option<Vec<String>>> {
        let (mut found, mut known, mut hits) = (Vec::new(), 0, 0);
        for (number, (image, share)) in images.iter().zip(&counted.files).enumerate() {
            self.create(image)?;
            if way == Way::Killed && number == 1 {
                let blocks = share.distinct * KILL_AT_PERCENT / 100;
                self = match self.write_until_killed(image, blocks)? {
                    Some(killed) => killed,
                    None => return Ok(None),
                };
            }
            self.copy(image).run()?;
            let inline = self.product.inline(&image.name)?;
            let claimed = self.product.stat_number("claimed_blocks")?;
            found.push(found_line(image, &inline, claimed));
            known += share.distinct - share.new;
            hits += inline.hits;
            self.product
                .wait_for_backlog(PUBLISH_LIMIT, |backlog| backlog.dirty == 0)?;
        }
        ensure!(
            hits >= known * HITS_PERCENT_MIN / 100,
            "only {hits} blocks were hits, but {known} contents were in an earlier image:\n{}",
            found.join("\n")
        );
        self.finish(images, counted)?;
        Ok(Some(found))
    }

    fn create(&self, image: &Image) -> Result<()> {
        let size = image.size_bytes.to_string();
        self.product
            .command()
            .args(["volume", "create", &image.name, "--size", &size])
            .args(["--dedup", Mode::Inline.name()])
            .run()
    }

    fn copy(&self, image: &Image) -> Cmd {
        Cmd::new("nbdcopy")
            .arg("--flush")
            .arg(&image.path)
            .arg(self.product.default_address().uri(&image.name))
    }

    /// Kills the daemon when this many blocks were looked up, and starts it again. Returns `None` if the image was
    /// written before that.
    fn write_until_killed(mut self, image: &Image, blocks: u64) -> Result<Option<Run>> {
        let log = self.scratch.path().join("nbdcopy.log");
        let mut copy = self.copy(image).spawn_logged(&log)?;
        let start = Instant::now();
        let looked_up = loop {
            let inline = self.product.inline(&image.name)?;
            if inline.scanned - inline.zeros >= blocks {
                break inline;
            }
            if copy.try_wait()?.is_some() {
                let said = std::fs::read_to_string(&log)?;
                bail!("nbdcopy ended with {inline:?}, before {blocks} blocks: {said}");
            }
            ensure!(start.elapsed() < WORK_LIMIT, "nbdcopy does not get on");
        };
        ensure!(looked_up.hits > 0, "no hit before the kill: {looked_up:?}");
        self.daemon.kill()?;
        let was_cut_short = !copy.wait_at_most(NOTICE_LIMIT)?.success();
        self.daemon = self.product.serve(&["--cache", self.cache], &[])?;
        self.product.check().context("check after the kill")?;
        Ok(was_cut_short.then_some(self))
    }

    fn finish(self, images: &[Image], counted: &Counted) -> Result<()> {
        self.product.dedup(None)?;
        expect(&self.product, counted)?;
        for image in images {
            let uri = self.product.default_address().uri(&image.name);
            compare(&image.path, &uri)?;
        }
        self.product.check()?;
        self.daemon.stop()?;
        self.product.check().map(drop)
    }
}

fn found_line(image: &Image, inline: &Inline, claimed: u64) -> String {
    let data = inline.scanned - inline.zeros;
    format!(
        "{}: {data} blocks with data looked up, {} hits ({:.1} %), {} refused, {claimed} claims pending",
        image.name,
        inline.hits,
        100.0 * inline.hits as f64 / data.max(1) as f64,
        inline.refused,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_share_of_hits_in_blocks_with_data() {
        let image = Image {
            name: "web".to_owned(),
            path: "web.raw".into(),
            size_bytes: 0,
            data_bytes: 0,
        };
        let inline = Inline {
            scanned: 110,
            zeros: 10,
            hits: 25,
            refused: 3,
            ..Inline::default()
        };
        assert_eq!(
            found_line(&image, &inline, 7),
            "web: 100 blocks with data looked up, 25 hits (25.0 %), 3 refused, 7 claims pending"
        );
        assert!(found_line(&image, &Inline::default(), 0).contains("(0.0 %)"));
    }
}
