//! Kills the server again and again under load, and checks flushed data.
//!
//! # A round
//! 1. *Settle*: fio writes an area of each of two volumes, in random order at depth 16, and ends
//!    with a flush. fio has succeeded: all of this was flushed.
//! 2. *Scribble*: fio writes, flushes and discards other areas of both volumes at depth 16, until a SIGKILL hits the
//!    server after an amount of work that differs from round to round. In every second round `pool dedup` scans both
//!    volumes at the same time.
//! 3. The server starts again; fio reads the settled areas and compares.
//! 4. The server's own check finds nothing wrong.
//!
//! The areas change places in each round, so that settled writes go to blocks in every state: never written, rewritten
//! in place, discarded, and in the middle of an operation when the kill came.
//!
//! # In Ceph
//! With `--pool ceph:...` the same host starts the server again in two rounds of three. In the third round another host
//! does, as another client of the cluster, and must find the flushed data; and an OSD is killed in the middle of the
//! scribble and started when the server is dead. The two hosts take turns, so each has to drop its cached state of the
//! pool.
//!
//! # Duplicates
//! Finder and collector run all the time, with the shortest interval and one cold pass. Settled data is the same in
//! both volumes, except for fio's headers: nearly half of it can be shared, and everything shared is rewritten two
//! rounds later. Some of the scribbled data repeats itself, too.
//!
//! # In line
//! With `--dedup inline` each round begins with *stock*: a third volume, which nothing else writes, gets the pattern
//! half of this round's area, and the finder publishes it. Writing the pattern half of both volumes then gives hits,
//! and these blocks are compared after the kill. One of the scribbles writes contents that the stock still has from the
//! round before. The modes of both volumes change from round to round and in the middle of each scribble.
//!
//! # Why a lost write cannot hide
//! A checksum alone would accept the content of an earlier round: that too was written whole. So
//! the data differs from round to round in a way that the comparison knows. In the *checksummed*
//! half of an area, fio's crc32c headers cover a length that changes with the round, and a header
//! with another length is refused. In the *pattern* half, every block holds its own offset and the
//! round's number, and each byte is compared. The first would miss a write that went back exactly
//! [`HEADER_LENGTHS`] rounds; the second misses none. Running it against a server that forgets
//! (`--against forgetful`) shows that the test can fail.
//!
//! # Limits
//! The page cache survives a killed process, so a server that never syncs would pass. Only the
//! simulation shows power loss.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::answered;
use crate::forgetful::must_be_found_out;
use onefold_harness::ceph::{OSDS, Osd};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Running;
use onefold_harness::fio::{Background, Fio, Section};
use onefold_harness::inline::Mode;
use onefold_harness::packages;
use onefold_harness::pools::{Ceph, PoolArguments, Pools};
use onefold_harness::server::{Against, Disks, Setting, VolumeSpec};
use onefold_harness::workspace::Workspace;

const VOLUMES: [VolumeSpec; 2] = [("red", 256 << 20), ("blue", 256 << 20)];

/// In line, the volume whose published contents the writes to both others must find.
const STOCK: VolumeSpec = ("stock", 256 << 20);

/// In line, the modes that a volume takes in turn.
const MODES: [Mode; 5] = [
    Mode::Inline,
    Mode::Inline,
    Mode::Offline,
    Mode::Auto,
    Mode::Inline,
];

/// How long the finder may take to publish the stock.
const PUBLISH_LIMIT: Duration = Duration::from_secs(120);

/// Each volume has two areas of this size, which change places in each round.
const AREA_BYTES: u64 = 64 << 20;

/// Lengths that a crc32c header covers, taken in turn. They are larger than a block, because a block with a header,
/// which holds the time, has no duplicate.
const HEADER_LENGTHS: [u64; 4] = [64 << 10, 32 << 10, 16 << 10, 8 << 10];

/// The kill comes when fio has used this many milliseconds of processor time on the scribble, times a number from 1 to
/// [`KILL_STEPS`] that depends on the round. It is processor time because on a busy machine fio may need long before it
/// sends anything; and fio's rather than the server's, because the finder uses the server's, too.
const KILL_STEP_MS: u64 = 30;
const KILL_STEPS: u64 = 17;

/// How long fio may take to use that much processor time.
const WORK_LIMIT: Duration = Duration::from_secs(120);

/// A run of this many rounds must have seen shared blocks. A shorter one may end before the finder publishes any.
const ROUNDS_WITH_SHARING: u64 = 4;

/// How long fio may take to write or compare an area.
const SETTLE_LIMIT: Duration = Duration::from_secs(300);

/// How long fio may take to notice that its server is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// In Ceph, the pool moves to another host after every round of this number.
const MOVE_EACH: u64 = 3;

/// Options of the host that takes over: the old one is dead, so a short patience is enough.
const MOVE_OPTIONS: &[&str] = &["--patience", "2s"];

/// Options of `cargo xtask kill-loop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many times to kill the server
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Which server to kill
    #[arg(long, value_enum, default_value_t = Against::Onefold)]
    against: Against,
    /// Look for every answered request, flushed or not, and run commands for snapshots, clones and sizes at the same
    /// time
    #[arg(long)]
    answered: bool,
    /// How duplicates are found; in line, the load has many of them, and modes change between rounds
    #[arg(long, value_enum, default_value_t = Mode::Offline)]
    dedup: Mode,
    /// Check that this check passes a good server and finds a forgetful one
    #[arg(long, conflicts_with_all = ["against", "rounds", "pool"])]
    control: bool,
    #[command(flatten)]
    pools: PoolArguments,
}

/// `cargo xtask kill-loop`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let Arguments {
        rounds,
        against,
        dedup,
        ..
    } = *arguments;
    match (arguments.answered, arguments.control) {
        (true, true) => answered::control(workspace, dedup),
        (true, false) => {
            let setting = setting(dedup, arguments.pools.open(workspace)?);
            answered::kill_and_compare(workspace, against, setting, rounds)
        }
        (false, true) => control(workspace, dedup),
        (false, false) => {
            let setting = setting(dedup, arguments.pools.open(workspace)?);
            kill_and_verify(workspace, against, setting, rounds)
        }
    }
}

fn setting(dedup: Mode, pools: Pools) -> Setting {
    Setting {
        dedup,
        pools,
        ..Setting::default()
    }
}

/// The forgetful server must be detected in its first round.
fn control(workspace: &Workspace, dedup: Mode) -> Result<()> {
    let setting = || setting(dedup, Pools::default());
    kill_and_verify(workspace, Against::QemuNbd, setting(), 3)
        .context("a good server was found guilty")?;
    let checked = kill_and_verify(workspace, Against::Forgetful, setting(), 1);
    must_be_found_out(checked, "verif")
}

/// Runs the loop. The first finding is returned as an error.
fn kill_and_verify(
    workspace: &Workspace,
    against: Against,
    setting: Setting,
    rounds: u64,
) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "kill")?;
    let is_inline = setting.dedup != Mode::Offline;
    if let Some(ceph) = setting.pools.ceph()
        && ceph.throw_away().is_none()
    {
        println!("left out: killing OSDs, because cargo xtask ceph has not started this cluster");
    }
    let mut volumes = VOLUMES.to_vec();
    volumes.extend(is_inline.then_some(STOCK));
    let mut disks = Disks::new(workspace, against, scratch.path(), &volumes, setting)?;
    let start = Instant::now();
    let (mut scribbled, mut replayed_max, mut published_max) = (0, 0, None);
    let (mut hits, mut settled_hits) = (0, 0);
    for round in 0..rounds {
        let one = if is_inline {
            one_round_in_line(&mut disks, &scratch, round)
        } else {
            one_round(&mut disks, &scratch, round)
        };
        let outcome = one.with_context(|| {
            let said = disks.said();
            format!("in round {round} of the kill loop, and the server said\n{said}")
        })?;
        println!(
            "round {round}: {} requests answered, killed and compared after {:.0} s",
            outcome.answered,
            start.elapsed().as_secs_f64()
        );
        scribbled += outcome.answered;
        hits += outcome.hits;
        settled_hits += outcome.settled_hits;
        replayed_max = replayed_max.max(disks.records_replayed()?);
        published_max = published_max.max(disks.published_blocks()?);
    }
    disks.stop()?;
    disks.check().context("check after a clean stop")?;
    if published_max == Some(0) && rounds >= ROUNDS_WITH_SHARING {
        bail!("nothing was ever shared: the finder did not work");
    }
    let is_product = disks.product().is_some();
    let all_kinds = rounds >= ROUNDS_WITH_SHARING && is_product;
    if is_inline && all_kinds && (settled_hits == 0 || hits == settled_hits) {
        bail!("{hits} hits, of which {settled_hits} were flushed: the writes found too little");
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
    if is_inline && is_product {
        println!("{hits} blocks were hits, {settled_hits} of them flushed and compared");
    }
    Ok(())
}

/// Counts of one round.
#[derive(Default)]
struct Outcome {
    /// Requests of the scribblers that were answered before the kill.
    answered: u64,
    /// Blocks that were not written because a published one has their content.
    hits: u64,
    /// Hits among the blocks that were flushed before the kill.
    settled_hits: u64,
}

fn one_round(disks: &mut Disks, scratch: &Scratch, round: u64) -> Result<Outcome> {
    settle(disks, scratch, round, false).context("cannot write")?;
    let dedup = match round % 2 {
        0 => None,
        _ => disks.start_dedup()?,
    };
    let mut scribbler = scribble(disks, round).spawn_in(scratch, "both")?;
    let work = KILL_STEP_MS * (1 + round * 7 % KILL_STEPS);
    wait_for_work(&mut scribbler, work / 2)?;
    let osd = kill_osd(disks, round)?;
    wait_for_work(&mut scribbler, work)?;
    disks.kill()?;
    drop(dedup);
    let answered = scribbler.wait_for_failure(NOTICE_LIMIT)?.requests();
    move_on(disks, round, osd)?;
    start_and_verify(disks, scratch, round)?;
    Ok(Outcome {
        answered,
        ..Outcome::default()
    })
}

/// Whether the pool moves to another host after this round.
fn moves(disks: &Disks, round: u64) -> bool {
    disks.pools().ceph().is_some() && round % MOVE_EACH == MOVE_EACH - 1
}

/// Kills an OSD in rounds that end on another host.
fn kill_osd(disks: &Disks, round: u64) -> Result<Option<Osd>> {
    let cluster = disks.pools().ceph().and_then(Ceph::throw_away);
    let Some(cluster) = cluster.filter(|_| moves(disks, round)) else {
        return Ok(None);
    };
    let osd = cluster.osd((round / MOVE_EACH % u64::from(OSDS)) as u32)?;
    osd.kill()?;
    Ok(Some(osd))
}

/// Starts the killed OSD and moves the pool to the other host, after the kill of the server.
fn move_on(disks: &mut Disks, round: u64, killed: Option<Osd>) -> Result<()> {
    if let Some(osd) = killed {
        osd.start()?;
    }
    if moves(disks, round) {
        disks.move_to_another_host(MOVE_OPTIONS)
    } else {
        Ok(())
    }
}

fn start_and_verify(disks: &mut Disks, scratch: &Scratch, round: u64) -> Result<()> {
    disks.start().context("cannot start again after the kill")?;
    settle(disks, scratch, round, true).context("verification after the kill")?;
    disks.check().context("check after the kill")
}

/// Runs a round as [`one_round`], with duplicates of published blocks and with other modes each time.
fn one_round_in_line(disks: &mut Disks, scratch: &Scratch, round: u64) -> Result<Outcome> {
    stock(disks, scratch, round).context("cannot write the stock")?;
    switch(disks, round)?;
    settle(disks, scratch, round, false).context("cannot write")?;
    let settled_hits = disks.inline()?.hits;
    let dedup = match round % 2 {
        0 => None,
        _ => disks.start_dedup()?,
    };
    let mut jobs = scribble(disks, round);
    jobs.sections.extend(finds(disks, round));
    let mut scribbler = jobs.spawn_in(scratch, "both")?;
    let work = KILL_STEP_MS * (1 + round * 7 % KILL_STEPS);
    wait_for_work(&mut scribbler, work / 2)?;
    let osd = kill_osd(disks, round)?;
    // At least one volume is in line, before and after the switch.
    let switches = begin_switch(disks, scratch, round, 1)?;
    wait_for_work(&mut scribbler, work)?;
    let hits = disks.inline()?.hits;
    disks.kill()?;
    drop((dedup, switches));
    let answered = scribbler.wait_for_failure(NOTICE_LIMIT)?.requests();
    move_on(disks, round, osd)?;
    start_and_verify(disks, scratch, round)?;
    Ok(Outcome {
        answered,
        hits,
        settled_hits,
    })
}

/// Gives both volumes their modes for the beginning of the round.
fn switch(disks: &Disks, round: u64) -> Result<()> {
    let Some(product) = disks.product() else {
        return Ok(());
    };
    for ((volume, _), place) in VOLUMES.iter().zip(0..) {
        product.set_mode(volume, mode(round, 0, place))?;
    }
    Ok(())
}

/// Begins to switch the modes under load, without waiting for the end: a switch waits for batches of finder and
/// collector, which get only the processor time that the load leaves.
fn begin_switch(disks: &Disks, scratch: &Scratch, round: u64, part: u64) -> Result<Vec<Running>> {
    let Some(product) = disks.product() else {
        return Ok(Vec::new());
    };
    let switches = VOLUMES.iter().zip(0..).map(|((volume, _), place)| {
        let log = scratch.path().join(format!("set-{volume}.log"));
        let mode = mode(round, part, place).name();
        let set = product.command().args(["--quiet", "volume", "set", volume]);
        set.args(["--dedup", mode]).spawn_logged(&log)
    });
    switches.collect()
}

/// The mode of a volume in a part of a round. Red and blue are two places apart in [`MODES`].
fn mode(round: u64, part: u64, place: u64) -> Mode {
    MODES[((round + part + 2 * place) % MODES.len() as u64) as usize]
}

/// Writes the contents that both volumes must find, and waits until they are published.
fn stock(disks: &Disks, scratch: &Scratch, round: u64) -> Result<()> {
    let area = (round % 2) * AREA_BYTES;
    let section = Section::new("stock", &disks.uri(STOCK.0))
        .set("rw", "write")
        .set("offset", area + AREA_BYTES / 2)
        .set("size", AREA_BYTES / 2)
        .set("iodepth", 16)
        .set("do_verify", 0)
        .set("end_fsync", 1);
    let jobs = Jobs {
        name: "stock",
        sections: vec![with_pattern(section, round)],
    };
    jobs.spawn_in(scratch, STOCK.0)?.wait_for_success()?;
    let Some(product) = disks.product() else {
        return Ok(());
    };
    let waited = product.wait_for_backlog(PUBLISH_LIMIT, |backlog| backlog.dirty == 0);
    waited.map(drop)
}

/// Scribbles with contents that the stock has from the round before.
fn finds(disks: &Disks, round: u64) -> Vec<Section> {
    let area = (1 - round % 2) * AREA_BYTES + AREA_BYTES / 2;
    let finds = VOLUMES.iter().map(|(volume, _)| {
        let section = Section::new(&format!("{volume}-find"), &disks.second_uri(volume))
            .set("rw", "randwrite")
            .set("offset", area)
            .set("size", AREA_BYTES / 2)
            .set("iodepth", 16)
            .set("randseed", 2000 + round)
            .set("do_verify", 0)
            .set("fsync", 256)
            .set("time_based", 1)
            .set("runtime", 600);
        with_pattern(section, round.saturating_sub(1))
    });
    finds.collect()
}

/// Fills each block with its own offset and the round's number, in any volume.
fn with_pattern(section: Section, round: u64) -> Section {
    section
        .set("verify", "pattern")
        .set("verify_pattern", format!("\"r{round:05}\"%o"))
        .set("verify_interval", 4096)
        .set("bs", "4k")
}

/// Waits until the scribbler has used this much processor time.
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
        .try_for_each(|fio| fio.wait_for_success_within(SETTLE_LIMIT).map(drop))
}

/// Runs one fio per volume: its data depends on its seed and on the numbers of its jobs, and both volumes should hold
/// the same.
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
        if verify_only {
            section.set("verify_only", 1)
        } else {
            section.set("do_verify", 0).set("end_fsync", 1)
        }
    };
    let length = HEADER_LENGTHS[round as usize % HEADER_LENGTHS.len()];
    let checksummed = section("crc32c", area)
        .set("verify", "crc32c")
        .set("verify_interval", length)
        .set("bsrange", format!("{length}-65536"))
        .set("blockalign", length);
    let pattern = with_pattern(section("pattern", area + AREA_BYTES / 2), round);
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

/// The jobs of one fio.
struct Jobs {
    name: &'static str,
    sections: Vec<Section>,
}

impl Jobs {
    /// Starts fio in the background. `volume` distinguishes the files of concurrent ones.
    fn spawn_in(self, scratch: &Scratch, volume: &str) -> Result<Background> {
        let fio = Fio::new(scratch.path(), &format!("{}-{volume}", self.name));
        self.sections.into_iter().fold(fio, Fio::job).spawn()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_line_some_volume_finds_duplicates_at_any_moment() {
        for round in 0..20 {
            for part in 0..2 {
                let modes = [0, 1].map(|place| mode(round, part, place));
                assert!(modes.contains(&Mode::Inline), "{round}, {part}: {modes:?}");
            }
        }
    }
}
