//! Kills the server again and again under load, and checks everything that it has answered.
//!
//! A complement of `kill_loop`, where fio compares flushed data only, because fio cannot know which requests were
//! answered when the kill came. The load here can: it keeps each volume's content in memory and changes it with every
//! answer.
//!
//! # A round
//! 1. Several connections on each volume write, zero, trim and read ranges of any size, with few flushes or none.
//!    Ranges in flight at the same time do not overlap. Concurrent commands make and delete snapshots and clones,
//!    resize volumes, roll them back to snapshots, and share duplicates. With `--dedup inline` they also switch volumes
//!    between in line, auto and off-line.
//! 2. A SIGKILL hits the server after a number of answers that differs from round to round.
//! 3. The next process to open the pool is a daemon, a command, or a daemon that is killed at once.
//! 4. A FLUSH succeeds, and every byte of every volume, snapshot and clone is compared.
//!
//! # The comparison
//! A byte without an unanswered request must be as answered; a byte of a request in flight may also be as that request
//! makes it. A killed command was carried out as a whole or not at all. The content found counts as answered in the
//! next round.

mod commands;
mod volume;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::forgetful::must_be_found_out;
use onefold_harness::cleanup::Scratch;
use onefold_harness::inline::Mode;
use onefold_harness::packages;
use onefold_harness::server::{Against, Disks, Setting, VolumeSpec};
use onefold_harness::workspace::Workspace;

use commands::Commands;
pub(crate) use volume::{Kept, Volume, read_all};

const VOLUMES: [VolumeSpec; 3] = [("red", 16 << 20), ("green", 16 << 20), ("blue", 16 << 20)];

/// Connections to each volume.
const CONNECTIONS: usize = 3;

/// A round ends after a number of answers in this range.
const ANSWERS: std::ops::Range<u64> = 20..1500;

/// How long that many answers may take.
const WORK_LIMIT: Duration = Duration::from_secs(300);

/// A run of this many rounds must have seen shared blocks, and unflushed requests.
const ROUNDS_WITH_EVERYTHING: u64 = 8;

/// The state that the threads of a round share.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) answered: AtomicU64,
    /// Set just before the server is killed: from then on requests may fail.
    pub(crate) is_over: AtomicBool,
    has_failed: AtomicBool,
    /// The share of flushes, per thousand requests.
    flushes_per_mille: u32,
}

impl Round {
    /// A round with this share of flushes, per thousand requests.
    pub(crate) fn new(flushes_per_mille: u32) -> Round {
        Round {
            flushes_per_mille,
            ..Round::default()
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Whether a request has failed that must not.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Returns an error as the test's finding, unless the server is being killed.
    pub(crate) fn judge(&self, result: Result<()>) -> Result<()> {
        if result.is_ok() || self.is_over() {
            return Ok(());
        }
        self.has_failed.store(true, Ordering::SeqCst);
        result
    }

    pub(crate) fn wait_for_answers(&self, count: u64) -> Result<()> {
        let start = Instant::now();
        while self.answered.load(Ordering::SeqCst) < count {
            if self.has_failed() {
                return Ok(());
            }
            if start.elapsed() > WORK_LIMIT {
                bail!("the server does not answer");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Checks that the good server passes and that the forgetful one is found out.
pub(crate) fn control(workspace: &Workspace, dedup: Mode) -> Result<()> {
    let setting = || Setting {
        dedup,
        ..Setting::default()
    };
    kill_and_compare(workspace, Against::QemuNbd, setting(), 3)
        .context("a good server was found guilty")?;
    let checked = kill_and_compare(workspace, Against::Forgetful, setting(), 1);
    must_be_found_out(checked, volume::FINDING)
}

/// Runs the loop. The first finding is returned as an error.
pub(crate) fn kill_and_compare(
    workspace: &Workspace,
    against: Against,
    setting: Setting,
    rounds: u64,
) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "answered")?;
    let is_inline = setting.dedup != Mode::Offline;
    let mut disks = Disks::new(workspace, against, scratch.path(), &VOLUMES, setting)?;
    let volumes = VOLUMES
        .iter()
        .map(|(name, bytes)| Volume::of_disks(name, *bytes, &disks))
        .collect::<Result<Vec<_>>>()?;
    let commands = disks.product().cloned();
    let mut commands = commands.map(|product| Commands::new(product, is_inline));
    let start = Instant::now();
    let mut random = fastrand::Rng::new();
    let (mut answered, mut taken_over, mut hits, mut published_max) = (0, 0, 0, None);
    for round in 0..rounds {
        let seed = random.u64(..);
        let one = One {
            volumes: &volumes,
            disks: &mut disks,
            commands: &mut commands,
            random: fastrand::Rng::with_seed(seed),
        };
        let outcome = one
            .run()
            .with_context(|| format!("in round {round}, which had the seed {seed}"))?;
        answered += outcome.answered;
        taken_over += outcome.taken_over;
        hits += outcome.hits;
        published_max = published_max.max(disks.published_blocks()?);
    }
    disks.stop()?;
    disks.start()?;
    compare(&volumes, &mut commands).context("after a clean stop")?;
    disks.stop()?;
    let is_long = rounds >= ROUNDS_WITH_EVERYTHING && against == Against::Onefold;
    if is_long && published_max == Some(0) {
        bail!("nothing was ever shared: the finder did not work");
    }
    if is_long && taken_over == 0 {
        bail!("nothing was ever taken over: all that was answered was flushed");
    }
    if is_inline && is_long && hits == 0 {
        bail!("no write ever found its content: nothing was in line");
    }
    let done = commands.map_or(0, |commands| commands.done);
    println!(
        "{rounds} kills in {:.0} s: each of {answered} answered requests and {done} commands found; \
         {taken_over} records taken over; at most {} blocks shared",
        start.elapsed().as_secs_f64(),
        published_max.unwrap_or(0)
    );
    if is_inline && against == Against::Onefold {
        println!("{hits} blocks were hits");
    }
    Ok(())
}

/// Counts of one round.
struct Outcome {
    /// Requests that were answered.
    answered: u64,
    /// Records of the killed daemon that were not in its log.
    taken_over: u64,
    /// Blocks that were not written because a published one has their content.
    hits: u64,
}

/// The parts of one round.
struct One<'a> {
    volumes: &'a [Volume],
    disks: &'a mut Disks,
    commands: &'a mut Option<Commands>,
    random: fastrand::Rng,
}

impl One<'_> {
    fn run(mut self) -> Result<Outcome> {
        // In two rounds of three, only commands make anything durable.
        let round = Round::new(*self.random.choice(&[0, 0, 10]).unwrap_or(&0));
        let hits = self.load_and_kill(&round)?;
        let taken_over = self.open_again()?;
        compare(self.volumes, self.commands).context("after the kill")?;
        self.disks.check().context("check after the kill")?;
        Ok(Outcome {
            answered: round.answered.into_inner(),
            taken_over,
            hits,
        })
    }

    /// Loads the volumes and kills the server. Returns how many blocks were hits just before the kill.
    fn load_and_kill(&mut self, round: &Round) -> Result<u64> {
        let answers = self.random.u64(ANSWERS);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for volume in self.volumes {
                for connection in 0..CONNECTIONS {
                    let random = self.random.fork();
                    threads.push(
                        scope.spawn(move || round.judge(volume.load(round, connection, random))),
                    );
                }
            }
            if let Some(commands) = self.commands {
                let (volumes, random) = (self.volumes, self.random.fork());
                threads
                    .push(scope.spawn(move || round.judge(commands.go_on(round, volumes, random))));
            }
            let waited = round.wait_for_answers(answers);
            let inline = self.disks.inline();
            round.is_over.store(true, Ordering::SeqCst);
            let killed = self.disks.kill();
            let ended = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("a thread of the load panicked")))
            });
            let ended = ended
                .collect::<Vec<_>>()
                .into_iter()
                .collect::<Result<()>>();
            killed.and(ended).and(waited)?;
            Ok(inline?.hits)
        })
    }

    /// Opens the pool: the first process to do so takes over the requests that the killed daemon had answered. Returns
    /// the number of records taken over.
    fn open_again(&mut self) -> Result<u64> {
        let first = self.random.u8(..4);
        let mut taken_over = 0;
        if let (Some(product), 0 | 1) = (self.disks.product(), first) {
            let command = [["volume", "list"], ["pool", "check"]][usize::from(first)];
            taken_over += product.take_over_by(&command)?;
        }
        if first == 2 {
            self.disks.start().context("starting after the kill")?;
            taken_over += self.disks.records_taken_over()?;
            self.disks.kill()?;
        }
        self.disks.start().context("starting after the kill")?;
        Ok(taken_over + self.disks.records_taken_over()?)
    }
}

/// Compares all volumes, snapshots and clones.
fn compare(volumes: &[Volume], commands: &mut Option<Commands>) -> Result<()> {
    for volume in volumes {
        volume.compare(Kept::Answered)?;
    }
    match (commands, volumes.first()) {
        (Some(commands), Some(volume)) => commands.compare(volume),
        _ => Ok(()),
    }
}
