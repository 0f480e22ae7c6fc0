//! One owner of a pool in Ceph (promise P7), with real processes: two run directories stand for two hosts, which are
//! two clients of the cluster and compete for one pool.
//!
//! 1. The first is alive: the second is refused, and the message names the owner.
//! 2. The first is asked (`--take`): it ends cleanly, and the second finds everything that was answered.
//! 3. The second is killed: the first gets the pool after its patience, and after another kill at once.
//! 4. The first is frozen with writes in flight. The second takes the pool and writes over the same blocks. Then the
//!    first is woken: it must end with an error, its guests must get errors, and none of its late writes may take
//!    effect: every byte stays as the second host has it. Afterwards the first opens the pool again: requests that it
//!    answered and never flushed are void, although the memory that outlives a process still holds them.
//! 5. As part 4, with a first host that is killed while it is frozen.
//!
//! With `--control` the fourth part runs with a build without fencing, and must fail. The assertions of the log and of
//! the roots hold in that build, too; only the data goes wrong.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use onefold_nbd::client::{Address, Client};
use rustix::process::Signal;

use crate::answered::read_all;
use onefold_harness::ceph::POOL;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::last_lines;
use onefold_harness::fio::{Background, Fio, Section};
use onefold_harness::packages;
use onefold_harness::pools::{Ceph, Pools};
use onefold_harness::server::{Daemon, Product, records_taken_over};
use onefold_harness::workspace::Workspace;

const VOLUME: &str = "v";
const VOLUME_BYTES: u64 = 96 << 20;

/// A snapshot of the volume, made when the second host has taken the pool.
const SNAPSHOT: &str = "v@taken";

/// Blocks that have flushed data from the start, and blocks that have none.
const OLD: Range<u64> = 0..48 << 20;
const FRESH: Range<u64> = 48 << 20..96 << 20;

/// The blocks that a frozen host has writes in flight to, some of each kind.
const IN_FLIGHT: Range<u64> = 32 << 20..64 << 20;

/// Blocks that are unflushed when the first host is frozen, and never written again.
const UNFLUSHED: Range<u64> = 80 << 20..88 << 20;

/// How long a pool may be without an owner after its host died, with the default patience of 10 s; and if the same host
/// opens it again. Both limits are in the documentation.
const OTHER_HOST_LIMIT: Duration = Duration::from_secs(15);
const SAME_HOST_LIMIT: Duration = Duration::from_secs(2);

/// How long a host may take to give up the pool when it is asked, or to end after it was woken.
const END_LIMIT: Duration = Duration::from_secs(60);

/// How long guests may take to notice that their host is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// The text of the writes that a frozen host has in flight.
const LOST: &str = "lost";

const BLOCK_BYTES: usize = 4096;

/// Part of the message about a write that should have had no effect.
const FINDING: &str = "is not what its owner wrote";

/// Options of `cargo xtask ownership`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Check that this check finds a build without fencing
    #[arg(long)]
    control: bool,
}

/// `cargo xtask ownership`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let ceph = Ceph::open(workspace, POOL)?;
    let pools = Pools::Ceph(ceph.into());
    if arguments.control {
        return control(workspace, &pools);
    }
    let hosts = Hosts::new(workspace, &pools, workspace.build_release("onefold")?)?;
    let start = Instant::now();
    let step = |title: &str, step: &dyn Fn() -> Result<String>| {
        let start = Instant::now();
        let said = step().with_context(|| format!("ownership: {title}"))?;
        let seconds = start.elapsed().as_secs_f64();
        println!("  {seconds:6.1} s  {title}{said}");
        anyhow::Ok(())
    };
    step("a host that lives keeps the pool", &|| refused(&hosts))?;
    step("a host that is asked gives the pool up", &|| agreed(&hosts))?;
    step("a host that is dead is replaced", &|| replaced(&hosts))?;
    for end in [End::Woken, End::Killed] {
        step(end.title(), &|| taken_from_frozen(&hosts, end))?;
    }
    println!(
        "one owner at any time, in {:.0} s: every byte is what its owner wrote",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn control(workspace: &Workspace, pools: &Pools) -> Result<()> {
    let binary = workspace.build_without("fencing")?;
    let hosts = Hosts::new(workspace, pools, binary)?;
    match taken_from_frozen(&hosts, End::Woken) {
        Ok(_) => bail!("a build that fences nobody was not found out"),
        Err(error) if format!("{error:#}").contains(FINDING) => {
            println!("{error:#}");
            println!("the build that fences nobody was found out, as it must be");
            Ok(())
        }
        Err(error) => Err(error.context("the build that fences nobody failed for another reason")),
    }
}

/// A pool with a volume, and two hosts that can open it.
struct Hosts {
    first: Product,
    second: Product,
    scratch: Scratch,
}

impl Hosts {
    fn new(workspace: &Workspace, pools: &Pools, binary: PathBuf) -> Result<Hosts> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "owner")?;
        let first = Product::new(binary, pools.place(scratch.path()), scratch.path());
        let hosts = Hosts {
            second: first.on_host("second")?,
            first,
            scratch,
        };
        hosts.first.create_pool("4G")?;
        let size = VOLUME_BYTES.to_string();
        let create = hosts.first.command().args(["volume", "create", VOLUME]);
        create.args(["--size", &size]).run()?;
        Ok(hosts)
    }

    /// Gives the volume its initial content, and flushes it.
    fn fill(&self, host: &Product) -> Result<()> {
        Client::connect(&address(host, VOLUME)?)
            .and_then(|mut client| {
                client.trim(0, VOLUME_BYTES as usize)?;
                client.flush()
            })
            .context("cannot empty the volume")?;
        self.write(host, "old", OLD, Durability::Flushed)
    }

    fn write(
        &self,
        host: &Product,
        text: &str,
        range: Range<u64>,
        until: Durability,
    ) -> Result<()> {
        let section = pattern(host, text, range).set("do_verify", 0);
        let section = match until {
            Durability::Flushed => section.set("end_fsync", 1),
            Durability::Answered => section,
        };
        let fio = Fio::new(self.scratch.path(), "write").job(section);
        fio.run()
            .map(drop)
            .with_context(|| format!("cannot write {text}"))
    }

    fn verify(&self, host: &Product, text: &str, range: Range<u64>) -> Result<()> {
        let section = pattern(host, text, range).set("verify_only", 1);
        let fio = Fio::new(self.scratch.path(), "verify").job(section);
        fio.run()
            .map(drop)
            .with_context(|| format!("{text} is not there"))
    }

    /// Starts writes that never end and are never flushed.
    fn keep_in_flight(&self, host: &Product) -> Result<Background> {
        let section = pattern(host, LOST, IN_FLIGHT)
            .set("bs", "4k")
            .set("do_verify", 0)
            .set("time_based", 1)
            .set("runtime", 600);
        let mut fio = Fio::new(self.scratch.path(), "in-flight")
            .job(section)
            .spawn()?;
        // Wait until some of the writes have arrived: the others are then in flight.
        let mut client = Client::connect(&address(host, VOLUME)?)?;
        let mut found = vec![0; (IN_FLIGHT.end - IN_FLIGHT.start) as usize];
        while !found
            .chunks(BLOCK_BYTES)
            .any(|block| block.starts_with(LOST.as_bytes()))
        {
            ensure!(fio.is_running()?, "fio does not work\n{}", fio.said());
            std::thread::sleep(Duration::from_millis(20));
            client.read(&mut found, IN_FLIGHT.start)?;
        }
        Ok(fio)
    }
}

/// The event that a write must survive.
#[derive(Debug, Clone, Copy)]
enum Durability {
    Flushed,
    Answered,
}

/// Fills each block with its own offset and a text.
fn pattern(host: &Product, text: &str, range: Range<u64>) -> Section {
    Section::new(text, &host.default_address().uri(VOLUME))
        .set("rw", "randwrite")
        .set("bs", "64k")
        .set("offset", range.start)
        .set("size", range.end - range.start)
        .set("iodepth", 16)
        .set("randseed", 1)
        .set("verify", "pattern")
        .set("verify_pattern", format!("\"{text}\"%o"))
        .set("verify_interval", 4096)
        .set("verify_fatal", 1)
}

fn address(host: &Product, export: &str) -> Result<Address> {
    let uri = host.default_address().uri(export);
    uri.parse().map_err(|error: String| anyhow!(error))
}

/// The content of the volume, followed by its snapshot's.
fn content(host: &Product) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for export in [VOLUME, SNAPSHOT] {
        let mut client = Client::connect(&address(host, export)?)
            .with_context(|| format!("cannot attach to {export}"))?;
        all.append(&mut read_all(&mut client)?);
    }
    Ok(all)
}

fn refused(hosts: &Hosts) -> Result<String> {
    let daemon = hosts.first.serve(&[], &[])?;
    let owner = format!("in use by process {} on host ", daemon.pid()?);
    for command in [&["volume", "list"][..], &["pool", "check"], &["serve"]] {
        let output = hosts.second.command().args(command).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code();
        ensure!(
            code == Some(1) && said.contains(&owner),
            "{command:?} on another host ended with {code:?}, not because the pool is {owner}\n{}",
            last_lines(&said)
        );
    }
    // The refused host must have left no trace.
    hosts.fill(&hosts.first)?;
    hosts.verify(&hosts.first, "old", OLD)?;
    daemon.stop()?;
    Ok(String::new())
}

fn agreed(hosts: &Hosts) -> Result<String> {
    let Hosts { first, second, .. } = hosts;
    let mut asked = first.serve(&[], &[])?;
    hosts.write(first, "answered", FRESH, Durability::Answered)?;
    let daemon = second.serve(&["--take"], &[])?;
    let status = asked.wait_for_end(END_LIMIT)?;
    ensure!(
        status.success(),
        "the host that was asked for the pool ended with {status}\n{}",
        last_lines(&asked.said())
    );
    hosts.verify(second, "old", OLD)?;
    hosts.verify(second, "answered", FRESH)?;
    let seconds = daemon.started_in.as_secs_f64();
    daemon.stop()?;
    second.check()?;
    Ok(format!(", after {seconds:.1} s"))
}

fn replaced(hosts: &Hosts) -> Result<String> {
    let Hosts { first, second, .. } = hosts;
    let dies = second.serve(&[], &[])?;
    hosts.write(second, "flushed", OLD, Durability::Flushed)?;
    dies.kill()?;
    let daemon = first.serve(&[], &[])?;
    let other_host = within(&daemon, OTHER_HOST_LIMIT)?;
    hosts.verify(first, "flushed", OLD)?;
    hosts.write(first, "answered", FRESH, Durability::Answered)?;
    daemon.kill()?;
    let daemon = first.serve(&[], &[])?;
    let same_host = within(&daemon, SAME_HOST_LIMIT)?;
    hosts.verify(first, "flushed", OLD)?;
    hosts.verify(first, "answered", FRESH)?;
    daemon.stop()?;
    first.check()?;
    Ok(format!(
        ": by another host after {other_host:.1} s, by the same after {same_host:.1} s"
    ))
}

fn within(daemon: &Daemon, limit: Duration) -> Result<f64> {
    let took = daemon.started_in.as_secs_f64();
    ensure!(
        daemon.started_in <= limit,
        "the next owner served after {took:.1} s only\n{}",
        last_lines(&daemon.said())
    );
    Ok(took)
}

/// How the frozen host ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Woken,
    Killed,
}

impl End {
    fn title(self) -> &'static str {
        match self {
            End::Woken => "a host that wakes up has no effect, and forgets",
            End::Killed => "a host that was killed while it was frozen forgets",
        }
    }
}

fn taken_from_frozen(hosts: &Hosts, end: End) -> Result<String> {
    let Hosts { first, second, .. } = hosts;
    let frozen = first.serve(&[], &[])?;
    hosts.fill(first)?;
    hosts.write(first, "unflushed", UNFLUSHED, Durability::Answered)?;
    let in_flight = hosts.keep_in_flight(first)?;
    frozen.signal(Signal::STOP)?;

    let daemon = second
        .serve(&[], &[])
        .context("the pool of a frozen host")?;
    let seconds = daemon.started_in.as_secs_f64();
    // The snapshot's blocks are the ones that the frozen host still writes in place.
    let create = ["--quiet", "snapshot", "create", SNAPSHOT];
    second.command().args(create).run()?;
    hosts.write(second, "new", IN_FLIGHT, Durability::Flushed)?;
    let written = content(second)?;

    finish(frozen, in_flight, end)?;
    must_be(&written, &content(second)?, "while the second host has it")?;
    hosts.verify(second, "new", IN_FLIGHT)?;
    hosts.verify(second, "old", OLD.start..IN_FLIGHT.start)?;
    second.check().context("check by the second host")?;
    daemon.stop()?;

    let daemon = first.serve(&[], &[])?;
    let line = daemon.recovery_line()?;
    ensure!(
        records_taken_over(&line) == Some(0),
        "the first host remembers what is void: {line}"
    );
    must_be(
        &written,
        &content(first)?,
        "when the first host has it again",
    )?;
    first
        .command()
        .args(["--quiet", "snapshot", "delete", "--yes", SNAPSHOT])
        .run()?;
    hosts.write(first, "again", FRESH, Durability::Flushed)?;
    hosts.verify(first, "again", FRESH)?;
    daemon.stop()?;
    first.check().context("check by the first host")?;
    Ok(format!("; it was taken from after {seconds:.1} s"))
}

/// Ends the frozen host, which must have no further effect on the pool.
fn finish(mut frozen: Daemon, mut in_flight: Background, end: End) -> Result<()> {
    if end == End::Killed {
        drop(frozen);
        return in_flight.wait_for_failure(NOTICE_LIMIT).map(drop);
    }
    frozen.signal(Signal::CONT)?;
    in_flight
        .wait_for_failure(NOTICE_LIMIT)
        .context("guests of a host that has lost the pool")?;
    let status = frozen.wait_for_end(END_LIMIT)?;
    let said = frozen.said();
    ensure!(
        status.code() == Some(1) && said.contains("another host has taken the pool"),
        "a host that lost its pool ended with {status}\n{}",
        last_lines(&said)
    );
    Ok(())
}

/// Checks that every byte is as expected.
fn must_be(expected: &[u8], found: &[u8], when: &str) -> Result<()> {
    let blocks = expected.chunks(BLOCK_BYTES).zip(found.chunks(BLOCK_BYTES));
    let different = blocks.filter(|(expected, found)| expected != found).count();
    ensure!(
        expected.len() == found.len() && different == 0,
        "{when}, the volume or its snapshot {FINDING}: {different} blocks of {} differ",
        expected.len() / BLOCK_BYTES
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_is_a_finding() {
        let (one, mut other) = (vec![0; 8192], vec![0; 8192]);
        must_be(&one, &other, "now").unwrap();
        other[8191] = 1;
        let error = must_be(&one, &other, "now").unwrap_err();
        assert!(format!("{error:#}").contains(FINDING), "{error:#}");
        assert!(must_be(&one, &[0; 4096], "now").is_err());
    }

    #[test]
    fn what_is_in_flight_goes_to_old_and_to_fresh_blocks() {
        assert!(OLD.contains(&IN_FLIGHT.start) && FRESH.contains(&IN_FLIGHT.end));
        const { assert!(IN_FLIGHT.end <= UNFLUSHED.start && UNFLUSHED.end <= VOLUME_BYTES) };
    }
}
