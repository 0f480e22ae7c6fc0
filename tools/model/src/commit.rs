//! The commit loop, the only caller of sync, and the checkpoint.
//!
//! Seal, sync the pool and write the frame, sync the log, answer, release. The pool's sync and the frame's write are
//! one step here: a crash between them leaves nothing that a crash before both could not leave.

use std::sync::Arc;

use crate::guards::Guard;
use crate::image::Record;
use crate::properties::Violation;
use crate::state::{Checkpoint, Commit, Config, NextRoot, Phase, Root, Stage, State};

/// Whether a request waits for a commit.
fn is_awaited(state: &State, config: &Config) -> bool {
    let memory = &state.memory;
    let mut jobs = memory.jobs.iter();
    let job_waits = jobs.any(|job| job.phase == Phase::Intent(Stage::Tail));
    let flush_waits = memory.flush.as_ref().is_some_and(|flush| !flush.joined);
    let snapshot_waits = matches!(memory.snapshot, Some((_, Stage::Tail)));
    let delete_waits = matches!(memory.delete, Some((_, Stage::Tail)));
    let rebuild_waits = matches!(memory.rebuild, Some((Stage::Tail, _)));
    let allocator_waits = !memory.freed_tail.is_empty() && memory.free_blocks(config).is_empty();
    let jobs_wait = job_waits || snapshot_waits || delete_waits || rebuild_waits;
    allocator_waits || flush_waits || jobs_wait
}

/// Seals the tail; with `checkpoint`, also captures content and position of a checkpoint.
pub(crate) fn seal(state: &mut State, config: &Config, checkpoint: bool) -> Option<()> {
    if state.memory.commit.is_some() {
        return None;
    }
    if checkpoint {
        if state.memory.checkpoint.is_some() {
            return None;
        }
        state.budget.checkpoints = state.budget.checkpoints.checked_sub(1)?;
    } else if !is_awaited(state, config) {
        if state.memory.tail.is_empty() {
            return None;
        }
        state.budget.idle_commits = state.budget.idle_commits.checked_sub(1)?;
    }
    let mut records = Vec::new();
    if config.on(Guard::SealBeforeSync) {
        records = take_tail(state);
    } else {
        state.disk.sync_pool();
    }
    if let Some(flush) = &mut state.memory.flush {
        flush.joined = true;
    }
    if checkpoint {
        capture(state, config, records.len());
    }
    state.memory.commit = Some(Commit {
        records,
        written: false,
    });
    Some(())
}

/// Moves the tail, and all state that depends on it, into the commit.
fn take_tail(state: &mut State) -> Vec<Record> {
    let memory = &mut state.memory;
    advance(memory, Stage::Tail, Stage::Sealed);
    memory.freed_sealed = memory.freed_sealed.or(memory.freed_tail);
    memory.freed_tail = crate::bits::Bits::NONE;
    std::mem::take(&mut memory.tail)
}

fn advance(memory: &mut crate::state::Memory, from: Stage, to: Stage) {
    for job in &mut memory.jobs {
        match &mut job.phase {
            Phase::Intent(stage) if *stage == from => *stage = to,
            _ => {}
        }
    }
    let layers = memory.snapshot.iter_mut().chain(&mut memory.delete);
    let rebuild = memory.rebuild.iter_mut().map(|(stage, _)| stage);
    for stage in layers.map(|(_, stage)| stage).chain(rebuild) {
        if *stage == from {
            *stage = to;
        }
    }
}

/// Syncs the pool and writes the sealed frame.
pub(crate) fn write_frame(state: &mut State, config: &Config) -> Option<()> {
    if state.memory.commit.as_ref()?.written {
        return None;
    }
    if !config.on(Guard::SealBeforeSync) {
        let records = take_tail(state);
        state.memory.commit = Some(Commit {
            records,
            written: false,
        });
    } else if config.on(Guard::PoolSyncBeforeLog) && !skips_sync(state, config) {
        state.disk.sync_pool();
    }
    let commit = state.memory.commit.as_mut()?;
    commit.written = true;
    let records = commit.records.clone();
    state.disk.frame.get_or_insert_default().extend(records);
    if !config.on(Guard::FlushAfterLogSync) {
        answer_flush(state);
    }
    Some(())
}

/// The shortcut that a guard forbids: records of jobs place no data, so why sync the pool?
fn skips_sync(state: &State, config: &Config) -> bool {
    let places_data = |record: &Record| matches!(record, Record::Write { .. });
    let commit = state.memory.commit.iter();
    !config.on(Guard::PublishedContentDurable)
        && state.memory.flush.is_none()
        && !commit.flat_map(|commit| &commit.records).any(places_data)
}

/// Syncs the log, answers the waiting requests, and releases the blocks that the records freed.
pub(crate) fn finish_commit(state: &mut State, config: &Config) -> Option<()> {
    if !state.memory.commit.as_ref()?.written {
        return None;
    }
    state.memory.commit = None;
    if !config.on(Guard::PoolSyncBeforeLog) {
        state.disk.sync_pool();
    }
    let frame = state.disk.frame.take().unwrap_or_default();
    state.disk.log.extend(frame);
    answer_flush(state);
    advance(&mut state.memory, Stage::Sealed, Stage::Durable);
    if let Some((layer, Stage::Durable)) = state.memory.snapshot {
        state.ghost.promised.insert(layer);
        state.memory.snapshot = None;
    }
    state
        .memory
        .delete
        .take_if(|(_, stage)| *stage == Stage::Durable);
    state.memory.freed_sealed = crate::bits::Bits::NONE;
    if let Some(Checkpoint::Captured(root)) = state.memory.checkpoint.clone() {
        state.memory.checkpoint = Some(Checkpoint::Ready(root));
    }
    if config.folds_log {
        fold(state, config);
    }
    Some(())
}

fn answer_flush(state: &mut State) {
    if let Some(flush) = state.memory.flush.take_if(|flush| flush.joined) {
        state.ghost.allowed[usize::from(flush.volume)] = flush.allowed;
    }
}

/// Replaces root and log by the root that a checkpoint would make now, in one indivisible step.
fn fold(state: &mut State, config: &Config) {
    let mut image = (*state.disk.root.image).clone();
    let log = std::mem::take(&mut state.disk.log);
    for record in log.iter().skip(usize::from(state.disk.root.skip)) {
        if image.apply(config.guards, record).is_err() {
            return state.violate(Violation::Contradiction);
        }
    }
    state.disk.root = Root {
        image: Arc::new(image),
        skip: 0,
    };
}

/// Captures content and position of a checkpoint, with `sealed` records about to be committed.
fn capture(state: &mut State, config: &Config, sealed: usize) {
    let position = state.disk.log.len() + sealed;
    let root = Root {
        image: Arc::new(state.memory.image.clone()),
        skip: position as u8,
    };
    let durable = config.on(Guard::CheckpointDurable);
    state.memory.checkpoint = Some(if durable {
        Checkpoint::Captured(root)
    } else {
        Checkpoint::Ready(root)
    });
}

/// Writes the checkpoint's pages to free places and syncs them.
pub(crate) fn write_pages(state: &mut State, config: &Config) -> Option<()> {
    let Some(Checkpoint::Ready(mut root)) = state.memory.checkpoint.clone() else {
        return None;
    };
    if !config.on(Guard::CheckpointSharp) {
        root.image = Arc::new(state.memory.image.clone());
    }
    let pages_synced = config.on(Guard::PagesBeforeRoot);
    state.disk.next_root = Some(NextRoot {
        root,
        pages_synced,
        switched: false,
    });
    state.disk.root_damaged = !config.on(Guard::OldPagesAfterRoot);
    state.memory.checkpoint = Some(Checkpoint::Written);
    Some(())
}

/// Writes the new root, unsynced.
pub(crate) fn switch_root(state: &mut State) -> Option<()> {
    let next = state
        .disk
        .next_root
        .as_mut()
        .filter(|next| !next.switched)?;
    next.switched = true;
    Some(())
}

/// Syncs the new root.
pub(crate) fn sync_root(state: &mut State) -> Option<()> {
    let next = state.disk.next_root.take_if(|next| next.switched)?;
    state.disk.root = next.root;
    state.disk.root_damaged = false;
    state.memory.checkpoint = Some(Checkpoint::Rooted);
    Some(())
}

/// Removes the records that the root contains from the log.
pub(crate) fn prune(state: &mut State, config: &Config) -> Option<()> {
    let disk = &mut state.disk;
    let next = disk.next_root.as_mut().filter(|next| next.switched);
    let root = match (&state.memory.checkpoint, next) {
        (Some(Checkpoint::Rooted), _) => &mut disk.root,
        (_, Some(next)) if !config.on(Guard::PruneAfterRoot) && next.root.skip > 0 => {
            &mut next.root
        }
        _ => return None,
    };
    let pruned = usize::from(root.skip).min(disk.log.len());
    root.skip -= pruned as u8;
    disk.log.drain(..pruned);
    if state.memory.checkpoint == Some(Checkpoint::Rooted) {
        state.memory.checkpoint = None;
    }
    Some(())
}
