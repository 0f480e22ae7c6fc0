//! `cargo xtask demo`: the main job on real input, step by step, each with its duration.
//!
//! The crash part: before the kill, fio has written region A and its flush has returned; the kill comes while fio
//! writes region B. After the restart region A and both imported volumes must be unchanged. Region B was never flushed
//! and may hold old or new blocks.
//!
//! The sharing part is counted twice: the pool's own count must equal the count of [`distinct`] in
//! the volumes' content, as any client reads it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::clients::compare;
use crate::{demo_backup, sharing};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct::{self, Counted};
use onefold_harness::fio::{Fio, JobResult, Section};
use onefold_harness::images::{self, Image};
use onefold_harness::packages;
use onefold_harness::server::{Daemon, Product, records_replayed};
use onefold_harness::workspace::Workspace;

/// Region A is `0..REGION_BYTES` of the scratch volume, region B the same length after it.
const REGION_BYTES: u64 = 256 << 20;
const SCRATCH_VOLUME: &str = "scratch";
const SCRATCH_SIZE: &str = "1G";

/// The volume that is deleted, and later written through a guest's tools.
const SECOND_VOLUME: &str = "dev";

/// The daemon is killed this long after fio began to write region B.
const KILL_AFTER: Duration = Duration::from_millis(1500);

/// How long fio may take to notice that the daemon is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// How long the daemon may take to return freed space to the file system, which it does in the background.
const GIVE_BACK_LIMIT: Duration = Duration::from_secs(60);

/// The share of the freed bytes by which `du` must drop.
const GIVEN_BACK_MIN: f64 = 0.9;

/// The figures that are printed at the end.
#[derive(Default)]
pub(crate) struct Summary {
    rows: Vec<(&'static str, String)>,
}

impl Summary {
    pub(crate) fn add(&mut self, what: &'static str, found: impl Into<String>) {
        self.rows.push((what, found.into()));
    }

    fn print(&self) {
        let width = self
            .rows
            .iter()
            .map(|(what, _)| what.len())
            .max()
            .unwrap_or(0);
        println!("\nIn short");
        for (what, found) in &self.rows {
            println!("  {what:width$}  {found}");
        }
    }
}

/// Runs one step and prints its duration and its result, as a sentence.
pub(crate) fn step<T>(title: &str, work: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
    println!("{title} ...");
    let start = Instant::now();
    let (value, found) = work().with_context(|| format!("demo: {title}"))?;
    println!("  {:6.1} s  {found}", start.elapsed().as_secs_f64());
    Ok(value)
}

/// `cargo xtask demo`
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let start = Instant::now();
    let mut summary = Summary::default();
    step("System packages", || {
        packages::require(packages::CLIENTS)?;
        Ok((
            (),
            format!("{} are installed.", packages::CLIENTS.join(", ")),
        ))
    })?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "demo")?;
    let product = step("Build in release mode", || {
        Ok((
            Product::build(workspace, scratch.path())?,
            "The binary is onefold.".to_owned(),
        ))
    })?;
    let images = step("Two disk images from Debian packages", || {
        let images = images::make(workspace)?;
        let described: Vec<_> = images
            .iter()
            .map(|image| format!("{}: {}", image.name, image.describe()))
            .collect();
        Ok((images, format!("{}.", described.join("; "))))
    })?;
    step("Count what the images have in common", || {
        have_in_common(&images)
    })?;
    import(&product, &images, &mut summary)?;
    let daemon = serve(&product, &images)?;
    write_and_kill(&product, daemon, &scratch, &mut summary)?;
    let daemon = recover(&product, &scratch, &images, &mut summary)?;
    give_back(&product, &mut summary)?;
    share(&product, &scratch, &images, &mut summary)?;
    demo_backup::run(&product, &scratch, &images, &mut summary)?;
    stop(&product, daemon, &mut summary)?;
    summary.add(
        "all of it",
        format!("{:.0} s", start.elapsed().as_secs_f64()),
    );
    summary.print();
    Ok(())
}

/// Fails if the images have nothing in common: the demo would then show nothing.
fn have_in_common(images: &[Image]) -> Result<((), String)> {
    let mut one_by_one = 0;
    for image in images {
        one_by_one += distinct::count(&[&image.path])?.distinct;
    }
    let paths: Vec<_> = images.iter().map(|image| &image.path).collect();
    let together = distinct::count(&paths)?;
    ensure!(
        together.distinct < one_by_one,
        "the images have no block in common"
    );
    let found = format!(
        "{} different blocks one by one, {} together: {} in both.",
        one_by_one,
        together.distinct,
        one_by_one - together.distinct
    );
    Ok(((), found))
}

fn import(product: &Product, images: &[Image], summary: &mut Summary) -> Result<()> {
    step("Create a pool", || {
        product.create_pool("16G")?;
        Ok(((), "A sparse file of 16 GiB at most, empty now.".to_owned()))
    })?;
    for image in images {
        step(&format!("Import {}", image.name), || {
            product
                .command()
                .args(["--quiet", "volume", "import", &image.name])
                .arg(&image.path)
                .args(["--image-format", "raw"])
                .run()?;
            Ok((
                (),
                format!(
                    "Volume {} holds the image: no zeros stored, no block twice.",
                    image.name
                ),
            ))
        })?;
        summary.add("image", format!("{}: {}", image.name, image.describe()));
    }
    let stat = |key| product.stat_number(key);
    let block_size = stat("block_size")?;
    let (logical, physical) = (stat("logical_blocks")?, stat("physical_blocks")?);
    summary.add(
        "after the imports",
        format!(
            "{logical} blocks of {block_size} bytes with data, {physical} stored; {} MiB saved",
            stat("saved_bytes")? >> 20
        ),
    );
    summary.add(
        "du of the pool",
        format!("{} MiB", product.disk_usage()? >> 20),
    );
    Ok(())
}

fn serve(product: &Product, images: &[Image]) -> Result<Daemon> {
    let daemon = step("Serve over NBD", || {
        let daemon = product.serve(&[], &[])?;
        let ready = format!("Ready after {:.2} s.", daemon.started_in.as_secs_f64());
        Ok((daemon, ready))
    })?;
    step("List the exports with nbdinfo", || {
        let uri = product.default_address().uri("");
        let list = Cmd::new("nbdinfo")
            .args(["--list", "--json", &uri])
            .read()?;
        for image in images {
            ensure!(
                list.contains(&format!("\"{}\"", image.name)),
                "{} is missing",
                image.name
            );
        }
        let names: Vec<_> = images.iter().map(|image| image.name.as_str()).collect();
        Ok((
            (),
            format!("Each volume is an export: {}.", names.join(", ")),
        ))
    })?;
    compare_all(product, images)?;
    Ok(daemon)
}

fn compare_all(product: &Product, images: &[Image]) -> Result<()> {
    for image in images {
        step(
            &format!(
                "Compare volume {} with its image (qemu-img compare)",
                image.name
            ),
            || {
                compare(&image.path, &product.default_address().uri(&image.name))?;
                Ok(((), "Identical.".to_owned()))
            },
        )?;
    }
    Ok(())
}

fn region(product: &Product, name: &str, index: u64) -> Section {
    Section::new(name, &product.default_address().uri(SCRATCH_VOLUME))
        .set("rw", "randwrite")
        .set("bsrange", "4k-64k")
        .set("blockalign", "4k")
        .set("iodepth", 16)
        .set("offset", index * REGION_BYTES)
        .set("size", REGION_BYTES)
}

fn region_a(product: &Product) -> Section {
    // Verification reads back the data that a second run of the same job, from the same seed, would
    // write.
    region(product, "region-a", 0)
        .set("randseed", 4711)
        .set("verify", "crc32c")
        .set("verify_fatal", 1)
}

fn write_and_kill(
    product: &Product,
    daemon: Daemon,
    scratch: &Scratch,
    summary: &mut Summary,
) -> Result<()> {
    step("Create an empty volume while the daemon runs", || {
        product
            .command()
            .args(["volume", "create", SCRATCH_VOLUME, "--size", SCRATCH_SIZE])
            .run()?;
        Ok(((), format!("Volume {SCRATCH_VOLUME}, {SCRATCH_SIZE}.")))
    })?;
    let written = step(
        "fio writes region A at depth 16, flushes, reads back (crc32c)",
        || {
            let job = region_a(product).set("end_fsync", 1);
            let results = Fio::new(scratch.path(), "region-a").job(job).run()?;
            let result = results.into_iter().next().context("fio reported no job")?;
            let found = describe(&result);
            Ok((result, format!("{found}, verified.")))
        },
    )?;
    summary.add(
        "fio, region A",
        format!("{}, crc32c verified", describe(&written)),
    );
    let lost = step(
        "fio writes region B at depth 16; SIGKILL to the daemon in the middle",
        || {
            let job = region(product, "region-b", 1)
                .set("time_based", 1)
                .set("runtime", 600);
            let mut fio = Fio::new(scratch.path(), "region-b").job(job).spawn()?;
            std::thread::sleep(KILL_AFTER);
            ensure!(
                fio.is_running()?,
                "fio ended before the kill\n{}",
                fio.said()
            );
            daemon.kill()?;
            let result = fio.wait_for_failure(NOTICE_LIMIT)?;
            ensure!(
                result.write.requests > 0,
                "fio had written nothing before the kill"
            );
            let answered = result.write.requests;
            Ok((
                answered,
                format!("The daemon died after answering {answered} writes of region B."),
            ))
        },
    )?;
    summary.add(
        "killed with SIGKILL",
        format!("after {lost} unflushed writes"),
    );
    Ok(())
}

fn recover(
    product: &Product,
    scratch: &Scratch,
    images: &[Image],
    summary: &mut Summary,
) -> Result<Daemon> {
    let (daemon, line) = step("Start the daemon again", || {
        let daemon = product.serve(&[], &[])?;
        let line = daemon.recovery_line()?;
        let replayed = records_replayed(&line).context("no number of records replayed")?;
        let found = format!(
            "Ready after {:.2} s, {replayed} log records replayed.",
            daemon.started_in.as_secs_f64()
        );
        Ok(((daemon, found.clone()), found))
    })?;
    summary.add("recovery", line);
    step("fio verifies region A (crc32c)", || {
        let job = region_a(product).set("verify_only", 1);
        Fio::new(scratch.path(), "verify-a").job(job).run()?;
        Ok(((), "Every block that was flushed is there.".to_owned()))
    })?;
    compare_all(product, images)?;
    let found = step("Check the pool", || {
        product.check()?;
        Ok(("nothing wrong", "Every block is accounted for.".to_owned()))
    })?;
    summary.add("check", found);
    Ok(daemon)
}

fn describe(result: &JobResult) -> String {
    let write = &result.write;
    format!("{} writes, {} MiB", write.requests, write.bytes >> 20)
}

fn give_back(product: &Product, summary: &mut Summary) -> Result<()> {
    let found = step(
        "Discard the scratch volume's content and delete volume dev",
        || {
            let block_size = product.stat_number("block_size")?;
            let (du_before, blocks_before) = (
                product.disk_usage()?,
                product.stat_number("physical_blocks")?,
            );
            Cmd::new("qemu-io")
                .args(["-f", "raw", "-c", "discard 0 1G", "-c", "flush"])
                .arg(product.default_address().uri(SCRATCH_VOLUME))
                .run()?;
            product
                .command()
                .args(["--quiet", "volume", "delete", SECOND_VOLUME, "--yes"])
                .run()?;
            // Blocks that other volumes share remain; the others are free once the collector has released them.
            product.wait_for_backlog(GIVE_BACK_LIMIT, |backlog| backlog.queued == 0)?;
            let blocks_freed =
                blocks_before.saturating_sub(product.stat_number("physical_blocks")?);
            ensure!(blocks_freed > 0, "nothing was freed");
            let freed = (blocks_freed * block_size) as f64;
            let start = Instant::now();
            let given_back = loop {
                let given_back = du_before.saturating_sub(product.disk_usage()?) as f64;
                if given_back >= GIVEN_BACK_MIN * freed || start.elapsed() > GIVE_BACK_LIMIT {
                    break given_back;
                }
                std::thread::sleep(Duration::from_millis(200));
            };
            ensure!(
                given_back >= GIVEN_BACK_MIN * freed,
                "of {freed} bytes freed, du shows {given_back} given back"
            );
            let found = format!(
                "{:.0} MiB freed, du dropped by {:.0} MiB",
                freed / 1048576.0,
                given_back / 1048576.0
            );
            Ok((found.clone(), format!("{found}.")))
        },
    )?;
    summary.add("space given back", found);
    Ok(())
}

fn share(
    product: &Product,
    scratch: &Scratch,
    images: &[Image],
    summary: &mut Summary,
) -> Result<()> {
    write_as_guest(product, images)?;
    let rate = step("Find and share all duplicates (pool dedup)", || {
        let dedup = product.dedup(None)?;
        let rate = dedup.mb_per_second(product.stat_number("block_size")?);
        let found = format!(
            "{} blocks looked at, {} of them duplicates: {rate:.0} MB/s.",
            dedup.looked_at, dedup.duplicates
        );
        Ok((rate, found))
    })?;
    summary.add("the finder's rate", format!("{rate:.0} MB/s"));
    compare_all(product, images)?;
    let counted = step("Read all volumes and count their different blocks", || {
        let counted = count_volumes(product, scratch)?;
        sharing::expect(product, &counted)?;
        let found = format!(
            "{} different ones, and the pool says that it holds as many.",
            counted.distinct
        );
        Ok((counted, found))
    })?;
    let stat = product.stat()?;
    let ratio = stat.get("dedup_ratio").and_then(Value::as_f64);
    let saved_mib = product.stat_number("saved_bytes")? >> 20;
    summary.add("logical blocks", format!("{}", counted.nonzero));
    summary.add(
        "physical blocks",
        format!("{}, counted independently as well", counted.distinct),
    );
    summary.add(
        "saved",
        format!(
            "{saved_mib} MiB, ratio {:.2}",
            ratio.context("pool stat lacks dedup_ratio")?
        ),
    );
    Ok(())
}

fn write_as_guest(product: &Product, images: &[Image]) -> Result<()> {
    let image = images.iter().find(|image| image.name == SECOND_VOLUME);
    let image = image.context("there is no such image")?;
    step(
        "Write image dev over NBD into an empty volume (nbdcopy)",
        || {
            let size = image.size_bytes.to_string();
            product
                .command()
                .args(["volume", "create", &image.name, "--size", &size])
                .run()?;
            Cmd::new("nbdcopy")
                .arg("--flush")
                .arg(&image.path)
                .arg(product.default_address().uri(&image.name))
                .run()?;
            Ok(((), "As a guest writes: nothing is looked up.".to_owned()))
        },
    )
}

/// The content of all volumes of the pool, as any client reads it.
fn count_volumes(product: &Product, scratch: &Scratch) -> Result<Counted> {
    let stat = product.stat()?;
    let volumes = stat.get("volumes").and_then(Value::as_array);
    let mut files = Vec::new();
    for volume in volumes.context("pool stat lacks volumes")? {
        let name = volume.get("name").and_then(Value::as_str);
        let name = name.context("a volume has no name")?;
        let file = scratch.path().join(format!("{name}.raw"));
        Cmd::new("nbdcopy")
            .arg(product.default_address().uri(name))
            .arg(&file)
            .run()?;
        files.push(file);
    }
    let counted = distinct::count(&files)?;
    for file in files {
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(counted)
}

fn stop(product: &Product, daemon: Daemon, summary: &mut Summary) -> Result<()> {
    step("Stop the daemon with SIGTERM", || {
        let took = daemon.stop()?;
        Ok((
            (),
            format!("It drained and closed within {:.2} s.", took.as_secs_f64()),
        ))
    })?;
    let found = step("Open once more", || {
        let daemon = product.serve(&[], &[])?;
        let line = daemon.recovery_line()?;
        let replayed = records_replayed(&line).context("no number of records replayed")?;
        ensure!(
            replayed == 0,
            "{replayed} records were replayed after a clean stop"
        );
        daemon.stop()?;
        Ok((
            "0 records replayed",
            "Nothing to replay after a clean stop.".to_owned(),
        ))
    })?;
    summary.add("open after clean stop", found);
    let found = step("Check the pool without the daemon", || {
        product.check()?;
        Ok(("nothing wrong", "Every block is accounted for.".to_owned()))
    })?;
    summary.add("check, offline", found);
    Ok(())
}
