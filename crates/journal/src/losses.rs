//! The part `losses`: blocks whose content a failed sync lost, and the volumes that lost answered
//! writes.
//!
//! A lost block reads as a block that the device cannot read, for guests and for every job, until
//! it is freed. A write to it gets a new block. A volume that lost writes fails each flush until
//! its user accepts the loss, because a client that outlived the loss does not know of it.
//!
//! Invariants:
//! - A block is on the list on disk before a record that refers to it is durable.
//! - A lost block is not handed out before the list without it is durable. So an address in the list
//!   always means the intended block, whatever a crash undoes.
//!
//! The part is created with the first loss. Most pools have none.
//!
//! Lock order: the part, then the uncommitted state, then the damaged volumes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::{Disk, Engine, Part};
use onefold_format::loss_page::{LOSS_LISTS, LOST_RUNS_MAX, LOST_VOLUMES_MAX};
use onefold_format::page::{self, PAGE_BYTES};
use onefold_format::{
    DamagedVolume, FormatError, LossPage, Losses, LostRun, MINOR_OF_CLAIMS, PageNumber, Pba,
    PoolId, VolumeId,
};
use onefold_metadata::sync::{AtomicBool, Mutex, lock};
use onefold_metadata::{Guard, PbaRun, Result, StoreError};

use super::Journal;

/// The known losses of a pool.
pub struct LossList {
    volumes: Mutex<BTreeMap<VolumeId, u64>>,
    /// Whether any volume is damaged: a flush takes no lock if none is.
    is_any_damaged: AtomicBool,
    part: Mutex<SavedPart>,
}

struct SavedPart {
    disk: Option<Arc<dyn Disk>>,
    name: String,
    pool: PoolId,
    /// The sequence of the last write.
    sequence: u64,
}

impl LossList {
    /// Reads the part, if it exists. Returns the lost blocks as well.
    ///
    /// # Errors
    ///
    /// `Damaged` if neither list can be read: then no block of the pool could be trusted.
    pub fn open(engine: &dyn Engine, pool: PoolId) -> Result<(Self, Vec<LostRun>)> {
        let name = engine.describe(Part::Losses);
        let disk = match engine.open(Part::Losses) {
            Ok(disk) => Some(disk),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(StoreError::io(name, error)),
        };
        let (sequence, losses) = match &disk {
            None => (0, Losses::default()),
            Some(disk) => newest(&**disk, pool, &name)?,
        };
        let volumes: BTreeMap<VolumeId, u64> = losses
            .volumes
            .iter()
            .map(|damaged| (damaged.volume, damaged.found_unix_seconds))
            .collect();
        let list = Self {
            is_any_damaged: AtomicBool::new(!volumes.is_empty()),
            volumes: Mutex::new(volumes),
            part: Mutex::new(SavedPart {
                disk,
                name,
                pool,
                sequence,
            }),
        };
        Ok((list, losses.runs))
    }

    /// Whether a volume lost answered writes and its user has not accepted the loss.
    #[inline]
    pub fn is_damaged(&self, volume: VolumeId) -> bool {
        self.is_any_damaged.load(SeqCst) && lock(&self.volumes).contains_key(&volume)
    }

    /// The damaged volumes, and when their loss was found, in seconds since the Unix epoch.
    pub fn damaged(&self) -> Vec<DamagedVolume> {
        let volumes = lock(&self.volumes);
        let all = volumes.iter().map(|(volume, found)| DamagedVolume {
            volume: *volume,
            found_unix_seconds: *found,
        });
        all.collect()
    }

    /// Adds lost blocks and damaged volumes. Durable when it returns.
    pub(super) fn add(
        &self,
        journal: &Journal,
        engine: &dyn Engine,
        blocks: &[PbaRun],
        volumes: impl IntoIterator<Item = VolumeId>,
    ) -> Result<()> {
        journal.root.ensure_minor(MINOR_OF_CLAIMS)?;
        for run in blocks {
            journal.state.data.lose(*run);
        }
        let now = engine.unix_seconds();
        let mut damaged = lock(&self.volumes);
        for volume in volumes {
            damaged.entry(volume).or_insert(now);
        }
        self.is_any_damaged.store(!damaged.is_empty(), SeqCst);
        drop(damaged);
        if !Guard::LostListedFirst.holds() {
            return Ok(());
        }
        let mut part = lock(&self.part);
        part.make(engine)?;
        part.write(&self.now(journal))
    }

    /// Accepts a volume's loss on behalf of its user. Durable when it returns. Returns whether the
    /// volume was damaged.
    pub fn accept(&self, journal: &Journal, volume: VolumeId) -> Result<bool> {
        let mut part = lock(&self.part);
        let Some(found) = lock(&self.volumes).remove(&volume) else {
            return Ok(false);
        };
        if let Err(error) = part.write(&self.now(journal)) {
            lock(&self.volumes).insert(volume, found);
            return Err(error);
        }
        self.is_any_damaged
            .store(!lock(&self.volumes).is_empty(), SeqCst);
        Ok(true)
    }

    /// Housekeeping: takes lost blocks off the list once nothing refers to them, and lets them be
    /// handed out again.
    pub fn tidy(&self, journal: &Journal) -> Result<()> {
        if !journal.state.data.has_lost() {
            return Ok(());
        }
        let kept_back = journal.state.uncommitted()?.metadata.space().kept_back();
        self.forget(journal, &kept_back)
    }

    /// Takes freed blocks off the list, if they are on it, and lets them be handed out. Durable when it
    /// returns.
    pub fn forget(&self, journal: &Journal, freed: &[Pba]) -> Result<()> {
        let mut part = lock(&self.part);
        let mut lost = freed.to_vec();
        lost.retain(|pba| journal.state.data.find(*pba));
        if lost.is_empty() {
            return Ok(());
        }
        if let Err(error) = part.write(&self.now(journal)) {
            for pba in lost {
                journal.state.data.lose(PbaRun {
                    start: pba,
                    count: 1,
                });
            }
            return Err(error);
        }
        let mut uncommitted = journal.state.uncommitted()?;
        for pba in lost {
            uncommitted.metadata.space_mut().end_quarantine(pba)?;
        }
        Ok(())
    }

    /// Quarantines all lost blocks after opening.
    pub fn quarantine(&self, journal: &Journal) -> Result<()> {
        let mut uncommitted = journal.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        for run in journal.state.data.lost() {
            for n in 0..run.count {
                let pba = run.start + n;
                if pba.0 < space.blocks() {
                    space.quarantine(pba)?;
                }
            }
        }
        Ok(())
    }

    /// The present list. If there are too many runs, the gaps between them already count as lost in
    /// memory: see `left_behind.rs`.
    fn now(&self, journal: &Journal) -> Losses {
        Losses {
            volumes: self.damaged(),
            runs: journal.state.data.lost(),
        }
    }
}

impl SavedPart {
    fn make(&mut self, engine: &dyn Engine) -> Result<()> {
        if self.disk.is_none() {
            let made = engine.create(Part::Losses, 0);
            self.disk = Some(made.map_err(|error| StoreError::io(&self.name, error))?);
        }
        Ok(())
    }

    fn write(&mut self, losses: &Losses) -> Result<()> {
        let failed = |error| StoreError::io(format_args!("writing {}", self.name), error);
        let (runs, volumes) = (losses.runs.len(), losses.volumes.len());
        if runs > LOST_RUNS_MAX as usize || volumes > LOST_VOLUMES_MAX as usize {
            return Err(StoreError::damaged(format!(
                "{runs} runs of lost blocks in {volumes} volumes are more than {} can hold: restore \
                 the pool from a backup",
                self.name
            )));
        }
        let Some(disk) = &self.disk else {
            return Err(failed(std::io::ErrorKind::NotFound.into()));
        };
        let sequence = self.sequence + 1;
        let written = losses
            .encode(sequence, self.pool)
            .iter()
            .try_for_each(|(number, page)| disk.write_at(&page[..], number.0 * PAGE_BYTES as u64))
            .and_then(|()| disk.sync());
        // Remains of a failed write are ignored: the next write has another sequence and goes to
        // the same place, so that the other list stays whole.
        self.sequence = sequence + u64::from(written.is_err());
        written.map_err(failed)
    }
}

/// The whole list with the higher sequence, and its sequence.
fn newest(disk: &dyn Disk, pool: PoolId, name: &str) -> Result<(u64, Losses)> {
    // As for every other part, only the medium's content counts.
    let settled = disk.sync().and_then(|()| disk.forget_cached());
    settled.map_err(|error| StoreError::io(format_args!("syncing {name}"), error))?;
    let (mut newest, mut problems, mut is_new) = ((0, Losses::default()), Vec::new(), false);
    for list in 0..LOSS_LISTS {
        let read = read_list(disk, pool, list).map_err(|error| StoreError::io(name, error))?;
        match read {
            Ok(Some(found)) if found.0 > newest.0 => newest = found,
            Ok(Some(_)) => {}
            Ok(None) => is_new = true,
            Err(error) => problems.push(format!("list {list}: {error}")),
        }
    }
    // The first write was cut short: its losses are found again, or are gone with the host.
    if newest.0 > 0 || is_new {
        return Ok(newest);
    }
    Err(StoreError::damaged(format!(
        "{name} cannot be read, so blocks that were lost are not known: {}; restore the pool from a \
         backup",
        problems.join("; ")
    )))
}

/// Reads a list; `None` if none was ever written.
fn read_list(
    disk: &dyn Disk,
    pool: PoolId,
    list: u64,
) -> std::io::Result<std::result::Result<Option<(u64, Losses)>, FormatError>> {
    let mut losses = Losses::default();
    let mut first = None;
    for n in 0.. {
        let mut bytes = page::blank();
        let number = PageNumber(n * LOSS_LISTS + list);
        disk.read_at(&mut bytes[..], number.0 * PAGE_BYTES as u64)?;
        if n == 0 && bytes.iter().all(|byte| *byte == 0) {
            return Ok(Ok(None));
        }
        let page = match LossPage::decode(&bytes, pool, number) {
            Ok(page) => page,
            Err(error) => return Ok(Err(error)),
        };
        let (sequence, pages) = *first.get_or_insert((page.sequence, page.pages()));
        if page.sequence != sequence {
            return Ok(Err(FormatError::Address {
                field: "losses sequence",
                expected: sequence,
                found: page.sequence,
            }));
        }
        if let Err(error) = losses.extend(&page.part) {
            return Ok(Err(error));
        }
        if n + 1 == pages {
            break;
        }
    }
    let sequence = first.map_or(0, |(sequence, _)| sequence);
    Ok(Ok(Some((sequence, losses))))
}
