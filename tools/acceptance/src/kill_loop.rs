//! Kills the server again and again under load, and checks flushed data.
//!
//! # What a round does
//! 1. *Settle*: fio writes an area of each of two volumes, in random order at depth 16, and ends
//!    with a flush. fio has succeeded: all of this was flushed.
//! 2. *Scribble*: fio writes, flushes and discards other areas of both volumes at depth 16, until a
//!    SIGKILL hits the server after an amount of work that differs from round to round. In every
//!    second round `pool dedup` scans both volumes meanwhile.
//! 3. The server starts again; fio reads the settled areas and compares.
//! 4. The server's own check finds nothing wrong.
//!
//! The areas change places in each round, so that settled writes go to blocks in every state:
//! never written, rewritten in place, discarded, and half-way through something when the kill
//! came.
//!
//! # Duplicates
//! Finder and collector run all the time, with the shortest interval and one cold pass. Settled
//! data is the same in both volumes, but for fio's headers: nearly half of it can be shared, and
//! everything shared is rewritten in the next round but one. Some of the scribbled data repeats
//! itself, too.
//!
//! # Why a lost write can not hide
//! A checksum alone would accept the content of an earlier round: that too was written whole. So
//! the data differs from round to round in a way that the comparison knows. In the *checksummed*
//! half of an area, fio's crc32c headers cover a length that changes with the round, and a header
//! with another length is refused. In the *pattern* half, every block holds its own offset and the
//! round's number, and each byte is compared. The first would miss a write that went back exactly
//! [`HEADER_LENGTHS`] rounds; the second misses none. Running it against a server that forgets
//! (`--against forgetful`) shows that the test can fail.
//!
//! # What this does not show
//! The page cache survives a killed process, so a server that never syncs would pass. Only the
//! simulation shows power loss.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::answered;
use crate::forgetful::must_be_found_out;
use onefold_harness::cleanup::Scratch;
use onefold_harness::fio::{Background, Fio, Section};
use onefold_harness::packages;
use onefold_harness::server::{Against, Disks, VolumeSpec};
use onefold_harness::workspace::Workspace;

const VOLUMES: [VolumeSpec; 2] = [("red", 256 << 20), ("blue", 256 << 20)];

/// Each volume has two areas of this size, which change places in each round.
const AREA_BYTES: u64 = 64 << 20;

/// Lengths that a crc32c header covers, taken in turn. Beyond a block's, because a block with a
/// header, which holds the time, has no duplicate.
const HEADER_LENGTHS: [u64; 4] = [64 << 10, 32 << 10, 16 << 10, 8 << 10];

/// The kill comes when fio has worked on the scribble for this many milliseconds of processor
/// time, times a number from 1 to [`KILL_STEPS`] that depends on the round. Processor time, because
/// on a busy machine fio may need long before it sends anything; and not the server's, which the
/// finder takes as well.
const KILL_STEP_MS: u64 = 30;
const KILL_STEPS: u64 = 17;

/// How long fio may take to get that far.
const WORK_LIMIT: Duration = Duration::from_secs(120);

/// A run of at least this many rounds must have seen shared blocks. Fewer may end before the
/// finder's first.
const ROUNDS_WITH_SHARING: u64 = 4;

/// How long fio may take to notice that its server is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// Options of `cargo xtask kill-loop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many times to kill the server
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// What to kill
    #[arg(long, value_enum, default_value_t = Against::Onefold)]
    against: Against,
    /// Look for every answered request, flushed or not, among snapshots, deletions and new sizes
    #[arg(long)]
    answered: bool,
    /// See that this check passes a good server and finds a forgetful one
    #[arg(long, conflicts_with_all = ["against", "rounds"])]
    control: bool,
}

/// `cargo xtask kill-loop`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let Arguments {
        rounds, against, ..
    } = *arguments;
    match (arguments.answered, arguments.control) {
        (true, true) => answered::control(workspace),
        (true, false) => answered::kill_and_compare(workspace, against, rounds),
        (false, true) => control(workspace),
        (false, false) => kill_and_verify(workspace, against, rounds),
    }
}

/// The forgetful server must be detected in its first round.
fn control(workspace: &Workspace) -> Result<()> {
    kill_and_verify(workspace, Against::QemuNbd, 3).context("a good server was found guilty")?;
    let checked = kill_and_verify(workspace, Against::Forgetful, 1);
    must_be_found_out(checked, "verif")
}

/// Runs the loop. Its first finding is an error.
fn kill_and_verify(workspace: &Workspace, against: Against, rounds: u64) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "kill")?;
    let mut disks = Disks::new(workspace, against, scratch.path(), &VOLUMES)?;
    let start = Instant::now();
    let (mut scribbled, mut replayed_max, mut published_max) = (0, 0, None);
    for round in 0..rounds {
        scribbled += one_round(&mut disks, &scratch, round)
            .with_context(|| format!("in round {round} of the kill loop"))?;
        replayed_max = replayed_max.max(disks.records_replayed()?);
        published_max = published_max.max(disks.published_blocks()?);
    }
    disks.stop()?;
    if published_max == Some(0) && rounds >= ROUNDS_WITH_SHARING {
        bail!("nothing was ever shared: the finder did not work");
    }
    if scribbled == 0 {
        bail!("every kill came before the first answer: nothing was ever in its way");
    }
    println!(
        "{rounds} kills in {:.0} s: every flushed block found; {scribbled} requests were answered \
         between flush and kill; at most {replayed_max} records replayed and {} blocks shared",
        start.elapsed().as_secs_f64(),
        published_max.unwrap_or(0)
    );
    Ok(())
}

/// Returns how many requests the scribblers had answered when the kill came.
fn one_round(disks: &mut Disks, scratch: &Scratch, round: u64) -> Result<u64> {
    settle(disks, scratch, round, false).context("cannot write")?;
    let dedup = match round % 2 {
        0 => None,
        _ => disks.start_dedup()?,
    };
    let mut scribbler = scribble(disks, round).spawn_in(scratch, "both")?;
    wait_for_work(&mut scribbler, KILL_STEP_MS * (1 + round * 7 % KILL_STEPS))?;
    disks.kill()?;
    drop(dedup);
    let answered = scribbler.wait_for_failure(NOTICE_LIMIT)?.requests();
    disks.start().context("cannot start again after the kill")?;
    settle(disks, scratch, round, true).context("verification after the kill")?;
    disks.check().context("check after the kill")?;
    Ok(answered)
}

/// Waits until the scribbler has used that much processor time.
fn wait_for_work(scribbler: &mut Background, milliseconds: u64) -> Result<()> {
    let start = Instant::now();
    while scribbler.cpu_seconds()? < milliseconds as f64 / 1000.0 {
        if !scribbler.is_running()? || start.elapsed() > WORK_LIMIT {
            bail!("the scribbler does not work\n{}", scribbler.said());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Writes this round's area of both volumes at the same time and flushes, or compares it.
fn settle(disks: &Disks, scratch: &Scratch, round: u64, verify_only: bool) -> Result<()> {
    let mut both: Vec<Background> = VOLUMES
        .iter()
        .map(|(volume, _)| settle_one(disks, volume, round, verify_only).spawn_in(scratch, volume))
        .collect::<Result<_>>()?;
    both.iter_mut()
        .try_for_each(|fio| fio.wait_for_success().map(drop))
}

/// Each volume has a fio of its own: its data depends on its seed and on the numbers of its jobs,
/// and both volumes should hold the same.
fn settle_one(disks: &Disks, volume: &str, round: u64, verify_only: bool) -> Jobs {
    let area = (round % 2) * AREA_BYTES;
    let section = |kind: &str, offset: u64| {
        let section = Section::new(kind, &disks.uri(volume))
            .set("rw", "randwrite")
            .set("offset", offset)
            .set("size", AREA_BYTES / 2)
            .set("iodepth", 16)
            .set("randseed", 1 + round)
            .set("verify_fatal", 1);
        match verify_only {
            true => section.set("verify_only", 1),
            false => section.set("do_verify", 0).set("end_fsync", 1),
        }
    };
    let length = HEADER_LENGTHS[round as usize % HEADER_LENGTHS.len()];
    let checksummed = section("crc32c", area)
        .set("verify", "crc32c")
        .set("verify_interval", length)
        .set("bsrange", format!("{length}-65536"))
        .set("blockalign", length);
    let pattern = section("pattern", area + AREA_BYTES / 2)
        .set("verify", "pattern")
        .set("verify_pattern", format!("\"r{round:05}\"%o"))
        .set("verify_interval", 4096)
        .set("bs", "4k");
    let name = if verify_only { "verify" } else { "settle" };
    Jobs {
        name,
        sections: vec![checksummed, pattern],
    }
}

/// Endless load on the areas that are not settled in this round.
fn scribble(disks: &Disks, round: u64) -> Jobs {
    let area = (1 - round % 2) * AREA_BYTES;
    let section = |name: String, volume: &str, rw: &str| {
        Section::new(&name, &disks.second_uri(volume))
            .set("rw", rw)
            .set("iodepth", 16)
            .set("offset", area)
            .set("size", AREA_BYTES)
            .set("randseed", 1000 + round)
            .set("time_based", 1)
            .set("runtime", 600)
    };
    let mut sections = Vec::new();
    for (volume, _) in &VOLUMES {
        // Odd sizes make the server read, change and write blocks; flushes make it commit.
        let writes = section(format!("{volume}-write"), volume, "randwrite")
            .set("bsrange", "512-128k")
            .set("fsync", 64);
        let repeats = section(format!("{volume}-repeat"), volume, "randwrite")
            .set("bs", "4k")
            .set("refill_buffers", 1)
            .set("dedupe_percentage", 50);
        let discards = section(format!("{volume}-trim"), volume, "randtrim")
            .set("iodepth", 1)
            .set("bsrange", "4k-1m")
            // Slow enough to leave something to rewrite. (Not by `rate_iops`: with it, fio 3.33
            // never ends once its server is gone.)
            .set("thinktime", "2ms");
        sections.extend([writes, repeats, discards]);
    }
    Jobs {
        name: "scribble",
        sections,
    }
}

/// The work of one fio.
struct Jobs {
    name: &'static str,
    sections: Vec<Section>,
}

impl Jobs {
    /// `volume` distinguishes the files of those that run at the same time.
    fn spawn_in(self, scratch: &Scratch, volume: &str) -> Result<Background> {
        let fio = Fio::new(scratch.path(), &format!("{}-{volume}", self.name));
        self.sections.into_iter().fold(fio, Fio::job).spawn()
    }
}
