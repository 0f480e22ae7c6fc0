//! Checks that every duplicate in real disk images is found, in each way of loading the images.
//!
//! Three images are loaded by `volume import`, which finds duplicates while it loads; or by nbdcopy
//! into empty volumes, followed by `pool dedup`; or the same with the daemon killed in the middle
//! of it. In the end the pool must hold exactly as many blocks as [`distinct`] counts in the
//! images, the volumes must equal the images, and the pool's own check must find nothing. Before
//! any of that, `analyze` must agree with [`distinct`] about the images, for every number of
//! copies.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::clients::compare;
use crate::inline;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct::{self, BLOCK_BYTES, Counted};
use onefold_harness::images::{self, Image};
use onefold_harness::inline::Mode;
use onefold_harness::packages;
use onefold_harness::pools::{PoolArguments, Pools};
use onefold_harness::server::{Daemon, Product};
use onefold_harness::workspace::Workspace;

/// How the images get into the pool.
#[derive(Debug, Clone, Copy)]
enum Way {
    Import,
    CopyThenDedup,
    KillWhileDedup,
}

/// All ways with one index; with the others only the ways in which the index does something different.
const RUNS: [(Way, &str); 7] = [
    (Way::Import, "hash"),
    (Way::CopyThenDedup, "hash"),
    (Way::KillWhileDedup, "hash"),
    (Way::Import, "btree"),
    (Way::KillWhileDedup, "btree"),
    (Way::Import, "memory"),
    (Way::KillWhileDedup, "memory"),
];

/// The daemon is killed each time this percentage of the blocks remains to be scanned.
const KILLS_AT_PERCENT: [u64; 3] = [80, 60, 40];

/// How often everything is repeated because a kill came too late. With its index in memory the finder needs a third of
/// a second for everything, and this process may not be scheduled for that long.
const ATTEMPTS_MAX: u32 = 6;

/// How long `pool dedup` may take to notice that its daemon is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// The daemon's memory for the user's images: the `memory` index gets an eighth of it, enough for 50 GB without
/// duplicates.
const MEASURE_MEMORY: &str = "4G";

impl Way {
    fn title(self) -> &'static str {
        match self {
            Way::Import => "volume import",
            Way::CopyThenDedup => "nbdcopy, then pool dedup",
            Way::KillWhileDedup => "nbdcopy, then pool dedup with kill -9 in the middle",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Raw disk images: copy them into empty volumes, share the duplicates, and print how long that took and how much
    /// space it saved
    images: Vec<PathBuf>,
    /// Have the writes find duplicates: images are written one after the other, once with a kill in the middle of an
    /// image
    #[arg(long, value_enum, default_value_t = Mode::Offline)]
    dedup: Mode,
    #[command(flatten)]
    pools: PoolArguments,
}

/// `cargo xtask sharing`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let pools = &arguments.pools.open(workspace)?;
    match (arguments.dedup, arguments.images.is_empty()) {
        (Mode::Offline, true) => check(workspace, pools),
        (Mode::Offline, false) => measure(workspace, pools, &arguments.images),
        (Mode::Inline, _) => check_inline(workspace, pools, &arguments.images),
        (Mode::Auto, _) => bail!("in mode auto the number of hits is not known beforehand"),
    }
}

/// Checks in-line writes with these images, or with the test images.
fn check_inline(workspace: &Workspace, pools: &Pools, paths: &[PathBuf]) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let images = match paths {
        [] => images::make_three(workspace)?,
        _ => {
            let images = paths.iter().map(|path| Image::of_user(path));
            images.collect::<Result<_>>()?
        }
    };
    let counted = count(&images)?;
    inline::check(workspace, pools, &images, &counted, !paths.is_empty())
}

/// Counts the blocks of the images. They must have duplicates, or every check would pass without a finder.
fn count(images: &[Image]) -> Result<Counted> {
    let paths: Vec<_> = images.iter().map(|image| &image.path).collect();
    let counted = distinct::count(&paths)?;
    println!(
        "  {} blocks with data, {} different ones",
        counted.nonzero, counted.distinct
    );
    ensure!(
        counted.distinct < counted.nonzero,
        "the images have no block in common"
    );
    Ok(counted)
}

/// Shares all duplicates of these images, with each index.
fn measure(workspace: &Workspace, pools: &Pools, paths: &[PathBuf]) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let images = paths.iter().map(|path| Image::of_user(path));
    let images: Vec<Image> = images.collect::<Result<_>>()?;
    let counted = distinct::count(paths)?;
    let megabytes = |blocks: u64| (blocks * BLOCK_BYTES as u64) as f64 / 1e6;
    println!(
        "{:.0} MB of data, {:.0} MB could be saved",
        megabytes(counted.nonzero),
        megabytes(counted.nonzero - counted.distinct),
    );
    for index in ["memory", "hash", "btree"] {
        let scratch = Scratch::new(&workspace.scratch_parent(), "sharing")?;
        let product = Product::build_in(workspace, pools, scratch.path())?;
        product.create_pool_with("64G", &["--index", index])?;
        let daemon = copy(&product, &images, &["--memory", MEASURE_MEMORY])?;
        let (start, cpu) = (Instant::now(), daemon.cpu_seconds()?);
        product.dedup(None)?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), daemon.cpu_seconds()? - cpu);
        expect(&product, &counted)?;
        let left = product.stat_number("physical_blocks")?;
        println!(
            "{index}: {:.0} MB saved in {seconds:.1} s, {cpu:.1} s of processor time, {:.0} MB/s",
            megabytes(counted.nonzero - left),
            megabytes(counted.nonzero) / seconds,
        );
        daemon.stop()?;
        product.check()?;
    }
    Ok(())
}

/// Loads the images in every way. Fails at the first way that leaves a duplicate or loses a block.
fn check(workspace: &Workspace, pools: &Pools) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let images = images::make_three(workspace)?;
    let paths: Vec<_> = images.iter().map(|image| &image.path).collect();
    let counted = count(&images)?;
    let start = Instant::now();
    expect_of_analysis(workspace, &paths, &counted).context("sharing: analyze")?;
    println!("  {:6.1} s  analyze", start.elapsed().as_secs_f64());
    for (way, index) in RUNS {
        let start = Instant::now();
        let title = format!("{}, {index} index", way.title());
        let mut attempts = 1;
        while !load_and_compare(workspace, pools, way, index, &images, &counted)
            .with_context(|| format!("sharing: {title}"))?
        {
            ensure!(attempts < ATTEMPTS_MAX, "{title}: each kill came too late");
            attempts += 1;
        }
        println!("  {:6.1} s  {title}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// `analyze` must report exactly the independent count of the images.
fn expect_of_analysis(
    workspace: &Workspace,
    paths: &[impl AsRef<Path>],
    counted: &Counted,
) -> Result<()> {
    let printed = Cmd::new(workspace.build_release("onefold")?)
        .args(["--format", "json", "analyze", "--chunking", "fixed:4K"])
        .args(paths.iter().map(AsRef::as_ref))
        .read()?;
    let printed: Value = serde_json::from_str(&printed).context("analyze did not print JSON")?;
    let said = printed.pointer("/chunkings/0").context("no way to cut")?;
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let copies = counted.copies.iter().map(
        |(copies, blocks)| json!({"copies": copies, "chunks": blocks, "bytes": bytes(*blocks)}),
    );
    let one_by_one: u64 = counted.files.iter().map(|file| file.distinct).sum();
    for (field, expected) in [
        ("chunks", json!(counted.blocks)),
        ("zero_chunks", json!(counted.blocks - counted.nonzero)),
        ("data_chunks", json!(counted.nonzero)),
        ("distinct_chunks", json!(counted.distinct)),
        ("copies", copies.collect()),
        (
            "duplicate_within_bytes",
            json!(bytes(counted.nonzero - one_by_one)),
        ),
        (
            "duplicate_across_bytes",
            json!(bytes(one_by_one - counted.distinct)),
        ),
    ] {
        let found = said.get(field).context("a field is missing")?;
        ensure!(
            *found == expected,
            "it says {field} {found}, but there are {expected}"
        );
    }
    for (n, share) in counted.files.iter().enumerate() {
        let number = |field: &str| said.pointer(&format!("/inputs/{n}/{field}"))?.as_u64();
        let found = (
            number("distinct_chunks"),
            number("shared_chunks"),
            number("new_chunks"),
        );
        let expected = (Some(share.distinct), Some(share.shared), Some(share.new));
        ensure!(
            found == expected,
            "of image {n} it says {found:?} different, shared and new blocks, but there are {expected:?}"
        );
    }
    Ok(())
}

/// Loads the images in one way and compares them. Returns false if a kill came too late to show anything.
fn load_and_compare(
    workspace: &Workspace,
    pools: &Pools,
    way: Way,
    index: &str,
    images: &[Image],
    counted: &Counted,
) -> Result<bool> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "sharing")?;
    let product = Product::build_in(workspace, pools, scratch.path())?;
    product.create_pool_with("8G", &["--index", index])?;
    let daemon = match way {
        Way::Import => {
            import(&product, images)?;
            // Checked now, before a daemon could finish the rest of the import.
            expect(&product, counted)?;
            product.serve(&[], &[])?
        }
        Way::CopyThenDedup => {
            let daemon = copy(&product, images, &[])?;
            product.dedup(None)?;
            daemon
        }
        Way::KillWhileDedup => {
            let daemon = copy(&product, images, &[])?;
            let Some(daemon) = kill_while_dedup(&product, daemon, &scratch)? else {
                return Ok(false);
            };
            product.dedup(None)?;
            daemon
        }
    };
    expect(&product, counted)?;
    for image in images {
        compare(&image.path, &product.default_address().uri(&image.name))?;
    }
    daemon.stop()?;
    product.check()?;
    Ok(true)
}

fn import(product: &Product, images: &[Image]) -> Result<()> {
    images.iter().try_for_each(|image| {
        product
            .command()
            .args(["--quiet", "volume", "import", &image.name])
            .arg(&image.path)
            .run()
    })
}

fn copy(product: &Product, images: &[Image], serve: &[&str]) -> Result<Daemon> {
    for image in images {
        let size = image.size_bytes.to_string();
        // With a day between passes, only `pool dedup` shares until the daemon is started again.
        product
            .command()
            .args(["volume", "create", &image.name, "--size", &size])
            .args(["--interval", "86400"])
            .run()?;
    }
    let daemon = product.serve(serve, &[])?;
    for image in images {
        Cmd::new("nbdcopy")
            .arg("--flush")
            .arg(&image.path)
            .arg(product.default_address().uri(&image.name))
            .run()?;
    }
    Ok(daemon)
}

/// Starts `pool dedup` and kills the daemon during it, several times. Returns `None` if the last kill came after all
/// blocks were scanned.
fn kill_while_dedup(
    product: &Product,
    mut daemon: Daemon,
    scratch: &Scratch,
) -> Result<Option<Daemon>> {
    let log = scratch.path().join("dedup.log");
    let all = product.backlog()?.dirty;
    for percent in KILLS_AT_PERCENT {
        let mut dedup = product
            .command()
            .args(["--quiet", "pool", "dedup"])
            .spawn_logged(&log)?;
        loop {
            let ended = dedup.try_wait()?;
            let dirty = product.backlog()?.dirty;
            if dirty <= all * percent / 100 {
                break;
            }
            ensure!(
                ended.is_none(),
                "pool dedup ended with {dirty} blocks not looked at: {}",
                std::fs::read_to_string(&log)?
            );
        }
        daemon.kill()?;
        dedup.wait_at_most(NOTICE_LIMIT)?;
        daemon = product.serve(&[], &[])?;
    }
    let in_the_middle = product.backlog()?.dirty > 0;
    Ok(in_the_middle.then_some(daemon))
}

/// Checks that the pool holds each distinct block once.
pub(crate) fn expect(product: &Product, counted: &Counted) -> Result<()> {
    let physical = product.stat_number("physical_blocks")?;
    ensure!(
        physical == counted.distinct,
        "the pool says that it holds {physical} blocks, but there are {} different ones",
        counted.distinct
    );
    let logical = product.stat_number("logical_blocks")?;
    ensure!(
        logical == counted.nonzero,
        "the pool says that its volumes map {logical} blocks, but {} hold data",
        counted.nonzero
    );
    Ok(())
}
