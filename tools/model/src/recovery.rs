//! Crashes, the states that they leave, and recovery.
//!
//! A killed process loses memory; the page cache keeps its writes. A power loss can take any part of the unsynced
//! state: of each block it leaves one of the contents written since the last sync or the one before; it may take the
//! unsynced frame (a torn one is lost) and the unsynced root.

use std::sync::Arc;

use crate::bits::Bits;
use crate::guards::{Guard, Guards};
use crate::image::{BLOCKS, Content, Contradiction, Image, Outcome, Record, VOLUMES, Volume};
use crate::index::Index;
use crate::properties::Violation;
use crate::state::{Config, Disk, Memory, Mode, Phase, Root, Stage, State};
use crate::volume_steps::answer;

/// The unsynced state that a power loss leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remains {
    /// The content of each block.
    pub blocks: [Content; BLOCKS],
    /// Whether the unsynced frame is left.
    pub frame: bool,
    /// Whether the unsynced root is left.
    pub root: bool,
    /// Whether the unsynced index is left.
    pub index: bool,
}

/// All states that a power loss may leave of `disk`.
pub(crate) fn remains(disk: &Disk) -> Vec<Remains> {
    let start = Remains {
        blocks: disk.now,
        frame: false,
        root: false,
        index: false,
    };
    let mut all = vec![start];
    for (block, lasting) in disk.lasting.iter().enumerate() {
        let options: Vec<Content> = lasting.iter().collect();
        all = all
            .iter()
            .flat_map(|r| {
                options.iter().map(|content| {
                    let mut r = *r;
                    r.blocks[block] = *content;
                    r
                })
            })
            .collect();
    }
    let mut double = |is_there: bool, set: fn(&mut Remains)| {
        if is_there {
            let mut with = all.clone();
            with.iter_mut().for_each(set);
            all.extend(with);
        }
    };
    double(disk.frame.as_ref().is_some_and(|f| !f.is_empty()), |r| {
        r.frame = true
    });
    double(disk.next_root.as_ref().is_some_and(|n| n.switched), |r| {
        r.root = true
    });
    double(*disk.index_durable != disk.index, |r| r.index = true);
    all
}

/// Kills the process; its writes stay in the page cache.
pub(crate) fn kill(state: &mut State, config: &Config) -> Option<()> {
    state.budget.kills = state.budget.kills.checked_sub(1)?;
    let mut survived = state.ghost.answered.map(|volume| volume.map(Bits::of));
    for writer in state.memory.writers.iter().flatten() {
        survived[usize::from(writer.volume)][usize::from(writer.lba)].insert(writer.content);
    }
    state.ghost.survived = Some(survived);
    if config.on(Guard::TailTakenOver) {
        leave_tail(state);
    }
    stop(state, config);
    Some(())
}

/// Leaves the records that the log lacks, in the memory that outlives the process.
fn leave_tail(state: &mut State) {
    let sealed = state.memory.commit.iter().filter(|commit| !commit.written);
    let sealed = sealed.flat_map(|commit| commit.records.clone());
    let tail = state.memory.tail.iter().cloned();
    state.disk.left = sealed.chain(tail).collect();
}

/// The machine loses power.
pub(crate) fn lose_power(state: &mut State, config: &Config, remains: &Remains) -> Option<()> {
    state.budget.power_losses = state.budget.power_losses.checked_sub(1)?;
    let disk = &mut state.disk;
    disk.now = remains.blocks;
    disk.lasting = remains.blocks.map(Bits::of);
    let frame = disk.frame.take().filter(|_| remains.frame);
    disk.log.extend(frame.unwrap_or_default());
    let next = disk.next_root.take().filter(|_| remains.root);
    let mut damaged = disk.root_damaged;
    if let Some(next) = next {
        damaged = !next.pages_synced;
        disk.root = next.root;
    }
    disk.root_damaged = false;
    if !remains.index {
        disk.index = (*disk.index_durable).clone();
    }
    disk.sync_index();
    state.ghost.survived = None;
    state.disk.left.clear();
    if !config.on(Guard::TailOfThisBoot) {
        leave_tail(state);
    }
    stop(state, config);
    if damaged {
        state.violate(Violation::RootDamaged);
    }
    Some(())
}

fn stop(state: &mut State, config: &Config) {
    state.memory = Memory::new(Mode::Down, Image::new(0));
    if config.index_in_memory {
        state.disk.index = Index::lost();
        state.disk.sync_index();
    }
}

/// Every image that a crash now, followed by recovery, can bring back.
pub(crate) fn recoverable(disk: &Disk, guards: Guards) -> Result<Vec<Arc<Image>>, Violation> {
    let next = disk.next_root.as_ref().filter(|next| next.switched);
    if disk.root_damaged || next.is_some_and(|next| !next.pages_synced) {
        return Err(Violation::RootDamaged);
    }
    let mut images = Vec::new();
    for root in std::iter::once(&disk.root).chain(next.map(|next| &next.root)) {
        images.push(replay(guards, root, &disk.log, None)?);
        if let Some(frame) = disk.frame.as_ref().filter(|frame| !frame.is_empty()) {
            images.push(replay(guards, root, &disk.log, Some(frame))?);
        }
    }
    Ok(images)
}

fn replay(
    guards: Guards,
    root: &Root,
    log: &[Record],
    frame: Option<&Vec<Record>>,
) -> Result<Arc<Image>, Violation> {
    let records = || {
        log.iter()
            .chain(frame.into_iter().flatten())
            .skip(usize::from(root.skip))
    };
    if records().next().is_none() {
        return Ok(Arc::clone(&root.image));
    }
    let mut image = (*root.image).clone();
    for record in records() {
        image
            .apply(guards, record)
            .map_err(|Contradiction| Violation::Contradiction)?;
    }
    Ok(Arc::new(image))
}

/// Syncs the disk, loads the newest root, replays the log, takes over the records that a killed process left, and
/// resumes the open batch.
pub(crate) fn recover(state: &mut State, config: &Config) -> Option<()> {
    let disk = &mut state.disk;
    if let Some(next) = disk.next_root.take_if(|next| next.switched) {
        disk.root = next.root;
    }
    disk.next_root = None;
    if config.on(Guard::RecoverySyncsFirst) {
        disk.sync_pool();
        disk.sync_index();
        let frame = disk.frame.take().unwrap_or_default();
        disk.log.extend(frame);
    }
    let mut image = (*disk.root.image).clone();
    let unsynced = disk.frame.iter().flatten();
    for record in disk
        .log
        .iter()
        .chain(unsynced)
        .skip(usize::from(disk.root.skip))
    {
        let record = replayed(disk, config, &image, record);
        if image.apply(config.guards, &record).is_err() {
            state.violate(Violation::Contradiction);
            return Some(());
        }
    }
    // A commit makes them durable before guests are served; the pool was synced above.
    let left = std::mem::take(&mut disk.left);
    for record in &left {
        if image.apply(config.guards, record).is_err() {
            state.violate(Violation::Contradiction);
            return Some(());
        }
    }
    disk.log.extend(left);
    if image.open.is_empty() && !config.on(Guard::NumbersNeverReused) {
        image.next_number = 1;
    }
    state.memory = Memory::new(Mode::Recovered, image);
    resume_job(&mut state.memory);
    observe(state, config);
    Some(())
}

/// The record as replay applies it. With its guard off, replay asks the index again for the outcome.
fn replayed(disk: &Disk, config: &Config, image: &Image, record: &Record) -> Record {
    let mut record = record.clone();
    if let (
        Record::Outcome {
            number, outcome, ..
        },
        false,
    ) = (&mut record, config.on(Guard::ReplayByRecord))
    {
        let item = image
            .batch(*number)
            .and_then(|batch| batch.unsettled().first());
        let content = item.map(|item| disk.now[usize::from(item.block)]);
        let fingerprint = content.map(|content| config.fingerprint(content));
        let row = fingerprint.and_then(|fp| disk.index.rows[usize::from(fp)]);
        *outcome = match (*outcome, row) {
            (Outcome::Aliased(_), Some(row)) => Outcome::Aliased(row.block),
            (Outcome::Dangling(_), Some(row)) => Outcome::Dangling(row.block),
            (outcome, _) => outcome,
        };
    }
    record
}

/// Makes the open batch a job again; its records are durable, and its call may be a repeat.
fn resume_job(memory: &mut Memory) {
    let numbers: Vec<_> = memory.image.open.iter().map(|open| open.number).collect();
    for number in numbers {
        memory.set_phase(number, Some(Phase::Intent(Stage::Durable)));
    }
}

/// Notes the contents that guests find after a restart: they may rely on these from now on.
fn observe(state: &mut State, config: &Config) {
    let survived = state.ghost.survived.take();
    for volume in 0..VOLUMES {
        let Some(live) = state.memory.image.live[volume] else {
            continue;
        };
        for lba in 0..config.lbas {
            let found = state.content(state.memory.image.resolve(live, lba).1);
            let allowed = &mut state.ghost.allowed[volume][usize::from(lba)];
            let is_allowed = allowed.has(found);
            let is_answered =
                survived.is_none_or(|survived| survived[volume][usize::from(lba)].has(found));
            *allowed = Bits::of(found);
            answer(state, volume as Volume, lba, found);
            let entry = state.memory.image.resolve(live, lba).1;
            if entry.block().is_some_and(|block| state.disk.bad.has(block)) {
                state.ghost.affected[volume].insert(lba);
            }
            if !is_allowed {
                state.violate(Violation::FlushedLost);
            }
            if !is_answered {
                state.violate(Violation::AnsweredLost);
            }
        }
    }
}
