//! Opening a pool, or a group of a shared pool.
//!
//! The possible states of the two roots and the log, and the consequences:
//!
//! | roots readable | then |
//! | --- | --- |
//! | both | the higher sequence: the other is the one it replaced |
//! | one | that one: the other was being written, or is damaged; the log decides which |
//! | none | damage |
//!
//! | frame at the expected position | later commit found behind it | then |
//! | --- | --- | --- |
//! | whole, and it follows the one before | - | its records are applied |
//! | anything else | no | the end of the log: nothing behind it was answered; remains of it are reported |
//! | anything else | yes | damage (P8): that later commit proves that this frame was durable |
//!
//! Recovery changes nothing but by ordinary checkpoints, so a crash in it is a crash before it.

use std::sync::Arc;
use std::time::Instant;

use onefold_engine::{Disk, Engine, Part};
use onefold_format::node::ROOT_SLOTS;
use onefold_format::page::{self, PAGE_BYTES, PageBytes};
use onefold_format::superblock;
use onefold_format::{FormatError, PageNumber, PoolId, Root, Secret, Superblock};
use onefold_journal::{
    BackgroundWork, BadBlocks, DataDisk, FoundLedger, IncompleteCommit, Journal, JournalParts, Log,
    LogMark, LossList, LossReport, Predecessor, SharedSpace, SyncLedger, TailMemory, check_length,
};
use onefold_metadata::{
    self, Guard, Limits, Maps, Pages, Result, SpaceOf, StoreError, StoreErrorKind,
};

use crate::batches::IndexSlot;
use crate::pool::{Pool, PoolParts};
use crate::shared::Shared;

/// Options for opening a pool, or a group of a shared pool.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The memory of the store's caches and queues, in bytes. Front ends' buffers come on top.
    pub memory_bytes: u64,
    /// If the free-space map cannot be opened, count it again from the maps. For repairs: it reads
    /// every page of every map, and keeps all of the new free-space map in memory.
    pub rebuild_free_space: bool,
    /// What a group has in common with the other groups of its pool; nothing for a pool with one owner.
    pub shared: Option<Shared>,
}

/// The report of opening a pool.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// The pool was closed before; nothing had to be replayed.
    pub clean: bool,
    /// Records replayed.
    pub records_replayed: u64,
    /// Bytes of log that were replayed.
    pub log_bytes_replayed: u64,
    /// Records taken over from a process that died before it could make them durable.
    pub records_taken_over: u64,
    /// The losses, if a sync of the data failed in the process before, or was running when it died:
    /// the blocks compared with the disk, and the lost ones.
    pub losses: Option<LossReport>,
    /// The free-space map could not be opened and was counted again.
    pub free_space_rebuilt: bool,
    /// The log ends in a commit that is not whole: a power loss cut it short, or it was damaged
    /// since.
    pub incomplete_commit: Option<IncompleteCommit>,
    /// The pool had commits, but the log has none of them: another log took its place.
    pub is_log_replaced: bool,
    /// Volumes whose import a crash had interrupted, and that were removed.
    pub volumes_removed: Vec<String>,
    /// How long the opening took, in seconds.
    pub seconds: f64,
}

impl RecoveryReport {
    /// A sentence for each thing that may have cost data.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let incomplete = self.incomplete_commit.map(|found| {
            let IncompleteCommit {
                commit,
                position,
                bytes,
            } = found;
            let lost = match bytes {
                0 => "some of its records".to_owned(),
                bytes => format!("up to {bytes} bytes of records"),
            };
            format!(
                "commit {commit}, the last one in the log, may be incomplete: {lost} from position \
                 {position} on were not durable or are damaged, and are not applied. A power loss \
                 in the middle of a commit leaves this, and then no flush was answered with it; \
                 without one the log is damaged"
            )
        });
        let replaced = self.is_log_replaced.then(|| {
            "the log is empty, though there were commits: if another took its place before the pool \
             was closed, what was flushed since the last checkpoint is lost"
                .to_owned()
        });
        let losses = self.losses.as_ref().filter(|losses| losses.has_failed);
        let losses = losses.map(|losses| {
            let volumes = if losses.volumes.is_empty() {
                "no volume lost answered writes".to_owned()
            } else {
                format!(
                    "each flush of these volumes fails until `volume accept-loss`: {}",
                    losses.volumes.join(", ")
                )
            };
            format!(
                "a sync of the data failed before the pool was opened: {} of {} new blocks that no \
                 flush had made durable are lost and cannot be read until they are written again; \
                 {volumes}",
                losses.lost_blocks,
                losses.compared_blocks + losses.uncompared_blocks
            )
        });
        incomplete
            .into_iter()
            .chain(replaced)
            .chain(losses)
            .collect()
    }
}

pub(crate) fn part_error(engine: &dyn Engine, part: Part, error: std::io::Error) -> StoreError {
    let name = engine.describe(part);
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => StoreErrorKind::MissingPart,
        std::io::ErrorKind::AlreadyExists => StoreErrorKind::Exists,
        _ => return StoreError::io(name, error),
    };
    let what = if kind == StoreErrorKind::MissingPart {
        "is missing"
    } else {
        "exists already"
    };
    StoreError::new(kind, format!("{name} {what}"))
}

/// Opens a pool and brings it to where the last commit left it.
pub(crate) fn open(
    engine: &dyn Engine,
    options: &OpenOptions,
) -> Result<(Arc<Pool>, RecoveryReport)> {
    let started = Instant::now();
    let mut report = RecoveryReport::default();
    let parts = Parts::open(engine)?;
    let superblock = parts.superblock;
    check_group(&superblock, options.shared.as_ref())?;
    let bad = BadBlocks::open(engine, superblock.pool, !parts.is_later_minor)?;
    let (losses, lost) = LossList::open(engine, superblock.pool)?;
    let limits = Limits::from_memory(options.memory_bytes);
    let index = match &options.shared {
        Some(shared) => IndexSlot::of_group(Arc::clone(&shared.index)),
        None => IndexSlot::open(
            engine,
            superblock.index,
            superblock.pool,
            limits.index_bytes,
        ),
    };
    let background = Arc::new(BackgroundWork::default());
    let rebuild_free_space = options.rebuild_free_space;
    let name = engine.describe(Part::Data);
    let data = DataDisk::new(Arc::clone(&parts.data), name, superblock.block_size, &lost)
        .provisioned(parts.root.provisioning);
    let (journal, is_rebuilt) = parts.journal(
        engine,
        data,
        limits,
        rebuild_free_space,
        Arc::clone(&background),
    )?;
    report.free_space_rebuilt = is_rebuilt;
    let closed_session = replay(&journal, parts.is_later_minor, &mut report)?;
    let is_closed = closed_session == Some(parts.root.session);
    if !is_closed && Guard::UnclosedDataReadAfresh.holds() {
        journal.data().read_afresh()?;
    }
    bad.quarantine_listed(&journal)?;
    let from = Predecessor {
        ledger: parts.found_ledger,
        is_closed,
        host_reports_losses: !is_closed && host_reports_losses(engine, &parts.ledger)?,
        losses: &losses,
        engine,
    };
    begin_session(&journal, parts.is_later_minor, &from, &mut report)?;
    journal.end_recovery()?;
    let pool = Pool::new(PoolParts {
        superblock,
        limits,
        journal,
        background,
        index,
        shared: options.shared.clone(),
        secret: parts.secret,
        bad,
        losses,
    })?;
    let pool = Arc::new(pool);
    settle_exchange(&pool)?;
    report.clean = report.records_replayed == 0 && report.records_taken_over == 0;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((pool, report))
}

/// The parts of a pool that are there before anything is made of them.
struct Parts {
    superblock: Superblock,
    root: Root,
    secret: Secret,
    /// A later minor version wrote some of it: it is only read.
    is_later_minor: bool,
    meta: Arc<dyn Disk>,
    log: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
    tail_memory: TailMemory,
    ledger: Arc<SyncLedger>,
    /// The ledger as the process before left it.
    found_ledger: FoundLedger,
}

impl Parts {
    fn open(engine: &dyn Engine) -> Result<Self> {
        let part = |part| engine.open(part).map_err(|e| part_error(engine, part, e));
        let (identity, meta, log, data, secret) = (
            part(Part::Superblock)?,
            part(Part::Meta)?,
            part(Part::Log)?,
            part(Part::Data)?,
            part(Part::Secret)?,
        );
        let name = |part| engine.describe(part);
        let page = read_page(&*identity, 0, &name(Part::Superblock))?;
        let superblock = Superblock::decode(&page)
            .map_err(|error| StoreError::format(name(Part::Superblock), error))?;
        let tail_memory = TailMemory::open(engine, superblock.pool)?;
        let (ledger, found_ledger) =
            SyncLedger::open(tail_memory.clone(), !data.is_durable_once_written());
        if Guard::RecoverySyncsFirst.holds() {
            let parts = [(&data, Part::Data), (&log, Part::Log), (&meta, Part::Meta)];
            settle(engine, &ledger, parts)?;
        }
        let mut is_later_minor = page::is_of_later_minor(&page);
        let meta_name = name(Part::Meta);
        let root = read_root(&*meta, superblock.pool, &meta_name, &mut is_later_minor)?;
        check_data(&*data, &superblock, &root, &name(Part::Data))?;
        check_log(&*log, &superblock, &name(Part::Log))?;
        let secret = read_page(&*secret, 0, &name(Part::Secret))?;
        let secret = Secret::decode(&secret, superblock.pool)
            .map_err(|error| StoreError::format(name(Part::Secret), error))?;
        Ok(Self {
            superblock,
            root,
            secret,
            is_later_minor,
            meta,
            log,
            data,
            tail_memory,
            ledger: Arc::new(ledger),
            found_ledger,
        })
    }

    /// Reads the metadata that the root reaches. Returns whether free space was counted again.
    fn journal(
        &self,
        engine: &dyn Engine,
        data: DataDisk,
        limits: Limits,
        rebuild_free_space: bool,
        background: Arc<BackgroundWork>,
    ) -> Result<(Journal, bool)> {
        let name = |part| engine.describe(part);
        let (superblock, root) = (self.superblock, self.root);
        let space_of = match superblock.group {
            Some(_) => SpaceOf::Group,
            None => SpaceOf::Pool,
        };
        let pages = Arc::new(Pages::new(
            Arc::clone(&self.meta),
            name(Part::Meta),
            superblock.pool,
            limits.nodes_max,
        ));
        let maps = Maps::new(Arc::clone(&pages), &limits, superblock.block_size);
        let (metadata, is_rebuilt) =
            onefold_metadata::open(&pages, &maps, &root, space_of, &limits, rebuild_free_space)?;
        let mark = LogMark {
            position: root.log_position,
            commit: root.commit,
            checksum: root.frame_checksum,
        };
        let log = Log::new(
            Arc::clone(&self.log),
            name(Part::Log),
            superblock.pool,
            superblock.log_bytes,
            mark,
        );
        let journal = Journal::new(JournalParts {
            superblock,
            limits,
            data,
            pages,
            maps,
            metadata,
            tail_memory: self.tail_memory.clone(),
            ledger: Arc::clone(&self.ledger),
            log,
            root,
            shared_space: superblock.group.map(|_| SharedSpace::default()),
            background,
        });
        Ok((journal, is_rebuilt))
    }
}

/// Returns the session that was closed at the end of the log.
fn replay(
    journal: &Journal,
    is_later_minor: bool,
    report: &mut RecoveryReport,
) -> Result<Option<u64>> {
    let replayed = journal.replay(is_later_minor)?;
    report.records_replayed = replayed.records;
    report.log_bytes_replayed = replayed.log_bytes;
    report.incomplete_commit = replayed.incomplete_commit;
    report.is_log_replaced = replayed.is_log_replaced;
    Ok(replayed.closed_session)
}

/// Begins a session: from here on the pool can be written, unless a later version wrote it.
fn begin_session(
    journal: &Journal,
    is_later_minor: bool,
    from: &Predecessor<'_>,
    report: &mut RecoveryReport,
) -> Result<()> {
    if is_later_minor {
        from.losses.quarantine(journal)?;
        journal.fail(&StoreError::new(
            StoreErrorKind::ReadOnly,
            "a later version of onefold wrote it; this one only reads it",
        ));
        return Ok(());
    }
    journal.start_session()?;
    let taken_over = journal.take_over_tail(from)?;
    report.records_taken_over = taken_over.records;
    report.losses = taken_over.losses;
    if report.records_taken_over > 0 {
        // They continue where the log ended: the end of the process cut the commit short, and
        // all of its records are there.
        report.incomplete_commit = None;
    }
    journal.secure_first_pages()
}

/// Makes up for the record of an exchange of space extents, before any block is handed out.
fn settle_exchange(pool: &Pool) -> Result<()> {
    match pool.group() {
        Some(group) if pool.journal().check_writable().is_ok() => group.leases().settle(),
        _ => Ok(()),
    }
}

/// A group can be opened only with what it shares, and a pool with one owner only without.
fn check_group(superblock: &Superblock, shared: Option<&Shared>) -> Result<()> {
    let message = match (superblock.group, shared) {
        (None, None) => return Ok(()),
        (Some(group), Some(shared)) if group == shared.group => return Ok(()),
        (Some(group), _) => format!("this is group {group} of a shared pool"),
        (None, _) => "this is a pool with one owner, and no group of a shared pool".to_owned(),
    };
    Err(StoreError::new(StoreErrorKind::Invalid, message))
}

pub(crate) fn identify(engine: &dyn Engine) -> Result<(Superblock, Root)> {
    let part = |part| engine.open(part).map_err(|e| part_error(engine, part, e));
    let page = read_page(&*part(Part::Superblock)?, 0, "superblock")?;
    let superblock = Superblock::decode(&page).map_err(|e| StoreError::format("superblock", e))?;
    let root = read_root(&*part(Part::Meta)?, superblock.pool, "meta", &mut false)?;
    Ok((superblock, root))
}

/// Whether the host reports data of the pool that it could not write since the pool was last opened.
fn host_reports_losses(engine: &dyn Engine, ledger: &SyncLedger) -> Result<bool> {
    if !Guard::HostAskedForLosses.holds() {
        return Ok(false);
    }
    let reported = engine.has_lost_writes();
    let reported = reported
        .map_err(|error| StoreError::io("looking for data that the host has lost", error))?;
    if reported {
        ledger.note_failure();
    }
    Ok(reported)
}

/// Makes later reads agree with the medium.
fn settle(
    engine: &dyn Engine,
    ledger: &SyncLedger,
    parts: [(&Arc<dyn Disk>, Part); 3],
) -> Result<()> {
    let failed = |doing: &str, part, error| {
        StoreError::io(format_args!("{doing} {}", engine.describe(part)), error)
    };
    for (disk, part) in parts {
        // Data that survived only in the host's cache must be durable before anything relies on it.
        let synced = match part {
            Part::Data => ledger.counted(|| disk.sync()),
            _ => disk.sync(),
        };
        // Data that a failed sync left there, this one or an earlier one, never will be, so roots, pages
        // and frames are read from the medium. So is the data after a session that was not closed, as the
        // log shows later: otherwise every start would be a cold one.
        if part != Part::Data || synced.is_err() {
            let forgotten = disk.forget_cached();
            forgotten.map_err(|error| failed("reading afresh", part, error))?;
        }
        synced.map_err(|error| failed("syncing", part, error))?;
    }
    Ok(())
}

fn read_page(disk: &dyn Disk, at: u64, name: &str) -> Result<Box<PageBytes>> {
    let mut bytes = page::blank();
    disk.read_at(&mut bytes[..], at)
        .map_err(|e| StoreError::io(name, e))?;
    Ok(bytes)
}

fn read_root(meta: &dyn Disk, pool: PoolId, name: &str, is_later_minor: &mut bool) -> Result<Root> {
    let mut newest: Option<Root> = None;
    let mut problems = Vec::new();
    for slot in (0..ROOT_SLOTS).map(PageNumber) {
        let page = read_page(meta, slot.0 * PAGE_BYTES as u64, name)?;
        match Root::decode(&page, pool, slot) {
            Ok(root) => {
                *is_later_minor |= page::is_of_later_minor(&page);
                newest = newest
                    .filter(|other| other.sequence > root.sequence)
                    .or(Some(root));
            }
            Err(error @ FormatError::Newer { .. }) => {
                return Err(StoreError::format(
                    format_args!("root {slot} of {name}"),
                    error,
                ));
            }
            Err(error) => problems.push(format!("root {slot}: {error}")),
        }
    }
    let none = || StoreError::damaged(format!("{name} has no root: {}", problems.join("; ")));
    newest.ok_or_else(none)
}

pub(crate) fn check_log(log: &dyn Disk, superblock: &Superblock, name: &str) -> Result<()> {
    let len = log.len().map_err(|e| StoreError::io(name, e))?;
    check_length(len, superblock.log_bytes, name)
}

pub(crate) fn check_data(
    data: &dyn Disk,
    superblock: &Superblock,
    root: &Root,
    name: &str,
) -> Result<()> {
    let needed = root.pool_blocks * u64::from(superblock.block_size);
    let len = data.len().map_err(|e| StoreError::io(name, e))?;
    if len < needed {
        let message = format!("{name} has {len} bytes of the pool's {needed}: it was cut");
        return Err(StoreError::damaged(message));
    }
    let alignment = data.alignment();
    if alignment > superblock.block_size as usize {
        return Err(StoreError::new(
            StoreErrorKind::Invalid,
            format!(
                "{name} wants writes of {alignment} bytes where the pool's blocks have {}; \
                 use the host's cache",
                superblock.block_size
            ),
        ));
    }
    let mut block = vec![0; superblock.block_size as usize];
    data.read_at(&mut block, 0)
        .map_err(|e| StoreError::io(name, e))?;
    let mut label = page::blank();
    label.copy_from_slice(&block[..PAGE_BYTES]);
    superblock::check_data_label(&label, superblock.pool)
        .map_err(|error| StoreError::format(format_args!("the label of {name}"), error))
}
