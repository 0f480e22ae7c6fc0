//! The daemon's memory limit, under the largest load that clients can make.
//!
//! 64 connections with 128 requests of 1 MiB each need 8 GiB of buffers at once, while finder and
//! collector process their data. The daemon's peak resident memory, as the kernel counted it, must
//! stay under its limit plus 64 MiB.

use anyhow::{Context, Result, bail};

use onefold_harness::cleanup::Scratch;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::packages;
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

const LIMIT_MIB: u64 = 512;
const SLACK_MIB: u64 = 64;

/// Runs the load in both cache modes.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    for cache in ["host", "direct"] {
        let peak_mib = peak(workspace, cache).with_context(|| format!("with --cache {cache}"))?;
        println!("--memory {LIMIT_MIB}M --cache {cache}: peak resident memory {peak_mib} MiB");
        if peak_mib > LIMIT_MIB + SLACK_MIB {
            bail!("{peak_mib} MiB exceed the limit of {LIMIT_MIB} MiB by more than {SLACK_MIB}");
        }
    }
    Ok(())
}

fn peak(workspace: &Workspace, cache: &str) -> Result<u64> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "memory")?;
    let product = Product::build(workspace, scratch.path())?;
    product.create_pool("8G")?;
    product
        .command()
        .args(["volume", "create", "load", "--size", "2G"])
        .args(["--interval", "1", "--cold-passes", "1"])
        .run()?;
    let limit = format!("{LIMIT_MIB}M");
    let options = ["--cache", cache, "--memory", &limit];
    let daemon = product.serve(&options, &[])?;
    let load = Section::new("load", &product.default_address().uri("load"))
        .set("rw", "randrw")
        .set("bs", "1M")
        .set("iodepth", 128)
        .set("numjobs", 64)
        .set("thread", 1)
        .set("size", "2G")
        .set("time_based", 1)
        .set("runtime", 8)
        .set("group_reporting", 1);
    let results = Fio::new(scratch.path(), "load").job(load).run()?;
    if results.iter().map(|result| result.requests()).sum::<u64>() == 0 {
        bail!("no request was answered");
    }
    let peak_mib = daemon.peak_memory_bytes()? >> 20;
    daemon.stop()?;
    product.check()?;
    Ok(peak_mib)
}
