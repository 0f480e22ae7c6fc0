//! Crashes, what they leave, and recovery.
//!
//! A killed process loses memory; the page cache still holds what was written. A power loss takes
//! any part of what was not synced: of each block one of the contents written since the last
//! sync or the one before, the unsynced frame (torn is lost), the unsynced root.

use std::sync::Arc;

use crate::bits::Bits;
use crate::guards::{Guard, Guards};
use crate::image::{BLOCKS, Content, Contradiction, Image, Outcome, Record, VOLUMES, Volume};
use crate::index::Index;
use crate::properties::Violation;
use crate::state::{Config, Disk, Memory, Mode, Phase, Root, Stage, State};
use crate::volume_steps::answer;

/// What a power loss happens to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remains {
    /// What each block holds.
    pub blocks: [Content; BLOCKS],
    /// The unsynced frame is there.
    pub frame: bool,
    /// The unsynced root is there.
    pub root: bool,
    /// The unsynced index is there.
    pub index: bool,
}

/// Everything that a power loss may leave of `disk`.
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

/// The process dies; what it wrote stays in the page cache.
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

/// What is in memory that outlives the process: the records that the log lacks.
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

/// Every image that a crash now and a recovery may bring back.
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

/// Syncs what is there, loads the newest root, replays the log, takes over what a killed process left,
/// and takes up the open batch.
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
    // Made durable by a commit before guests are served: the pool was synced above.
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

/// The record as it is applied. With its guard off, the index is asked again what it meant.
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

/// The open batch becomes a job again; its records are durable, its call may be a repeat.
fn resume_job(memory: &mut Memory) {
    let numbers: Vec<_> = memory.image.open.iter().map(|open| open.number).collect();
    for number in numbers {
        memory.set_phase(number, Some(Phase::Intent(Stage::Durable)));
    }
}

/// What guests find after a restart is what they may rely on from then on.
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
