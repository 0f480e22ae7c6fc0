//! Backs up the disks of a command: finds their sources, takes their leases and snapshots, chooses parents, and backs up
//! together those that can share blocks. A disk that fails is left out, and the others are backed up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use onefold_format::backup::SourceId;
use onefold_repository::{KnownSource, Reached, Repository, RepositoryErrorKind, Writer};

use crate::base::{Bases, Parent};
use crate::cache::TableCache;
use crate::clock::{StepBack, last_step_back};
use crate::create::{Batch, Created, DiskToBackUp, Options, create};
use crate::error::{BackupError, Result};
use crate::host::DiskHost;
use crate::identify::{FoundDisk, Identified, SourceChoice, origin_of};
use crate::opening::Opened;
use crate::parent::check_parent;
use crate::supervision::{ProgressUnit, Stage, Supervision};

/// Block size for disks that are not in a pool.
const BLOCK_SIZE: u32 = 4096;

/// Domain of disks that are not in a pool: the default domain of volumes.
const DOMAIN: &str = "default";

/// A disk to back up, as a command names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedDisk {
    /// A volume of the pool, as it is now.
    Volume(String),
    /// A snapshot of the user.
    Snapshot {
        /// Name of the volume.
        volume: String,
        /// Name of the snapshot without the volume's name.
        snapshot: String,
    },
    /// A disk image or device.
    Image {
        /// Name of the disk.
        name: String,
        /// The image or device.
        file: PathBuf,
    },
}

impl WantedDisk {
    /// The name of the disk.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Volume(name) | Self::Image { name, .. } => name,
            Self::Snapshot { volume, .. } => volume,
        }
    }

    /// Whether the disk is in a pool.
    #[must_use]
    pub fn needs_pool(&self) -> bool {
        !matches!(self, Self::Image { .. })
    }

    /// The volume that is backed up as it is now.
    fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(name) => Some(name),
            Self::Snapshot { .. } | Self::Image { .. } => None,
        }
    }

    /// The name of the user's snapshot, without the volume's name; empty if the disk is not a snapshot.
    fn snapshot(&self) -> &str {
        match self {
            Self::Snapshot { snapshot, .. } => snapshot,
            Self::Volume(_) | Self::Image { .. } => "",
        }
    }
}

/// What to back up, and how.
pub struct CreateAll<'a> {
    /// The repository.
    pub opened: &'a Opened,
    /// Opens the disks.
    pub host: &'a dyn DiskHost,
    /// The host's cache of the repository's tables, if it has one.
    pub cache: Option<&'a TableCache>,
    /// The user's choice of a source.
    pub choice: SourceChoice,
    /// How backups are made.
    pub options: Options,
    /// Whether all of each volume is read, not only the changes since its last backup.
    pub is_full: bool,
    /// Whether the snapshot of a volume stays as the base of its next backup.
    pub keeps_base: bool,
    /// The time of backups of disks without a snapshot.
    pub unix_seconds: u64,
}

/// A backup that was made.
#[derive(Debug)]
pub struct MadeBackup {
    /// Name of the disk, which may differ from the name of its source.
    pub disk: String,
    /// The source of the disk.
    pub source: KnownSource,
    /// The backup.
    pub created: Created,
    /// Set if the backup has an earlier time than the one before it.
    pub step_back: Option<StepBack>,
}

/// The backups that were made, and the failures of the others.
#[derive(Debug, Default)]
pub struct CreatedAll {
    /// The backups.
    pub backups: Vec<MadeBackup>,
    /// New content that several of the disks have, which is stored once.
    pub new_popular_bytes: u64,
    /// Bytes that the new popular content takes in the repository, compressed.
    pub stored_popular_bytes: u64,
    /// Why other backups were not made.
    pub failures: Vec<BackupError>,
}

/// A disk, and the lease of its source.
type Taken<'d, 'r> = (&'d WantedDisk, Writer<'r>);

impl CreateAll<'_> {
    /// Backs up the disks. `is_wanted` chooses other volumes of the pool to back up, too.
    ///
    /// # Errors
    ///
    /// If no disk can be backed up for the same reason, such as a pool that cannot be reached.
    pub fn run(
        &self,
        disks: &[WantedDisk],
        is_wanted: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<CreatedAll> {
        let Some(host) = self.host.pool() else {
            return self.back_up(disks, None);
        };
        let mut bases = Bases::new(host, self.supervision(), self.repository().id());
        if host.is_paused()? {
            self.supervision().note(format_args!(
                "the daemon's job 'copying' is paused, and the backup waits for it; 'onefold job resume copying' resumes it"
            ));
        }
        let mut disks = disks.to_vec();
        if let Some(is_wanted) = is_wanted {
            let volumes = host.volumes()?.into_iter();
            let is_new = |name: &String| disks.iter().all(|disk| disk.name() != name);
            let others = volumes.filter(|name| is_wanted(name) && is_new(name));
            let others: Vec<_> = others.map(WantedDisk::Volume).collect();
            disks.extend(others);
        }
        let made = self.back_up(&disks, Some(&mut bases));
        bases.clear();
        made
    }

    fn repository(&self) -> &Repository {
        self.opened.repository()
    }

    fn supervision(&self) -> &Supervision {
        self.opened.supervision()
    }

    fn back_up(
        &self,
        disks: &[WantedDisk],
        mut bases: Option<&mut Bases<'_>>,
    ) -> Result<CreatedAll> {
        let mut new = BTreeSet::new();
        let taken = self.writers(disks, bases.as_deref(), &mut new);
        let (mut writers, failures) =
            taken.inspect_err(|_| self.remove_unused(&new, Vec::new()))?;
        let mut all = CreatedAll {
            failures,
            ..CreatedAll::default()
        };
        if let Some(bases) = bases.as_deref_mut() {
            // After the leases are taken: their previous holder may have been about to delete new snapshots.
            let volumes = writers.iter().filter_map(|(wanted, _)| wanted.volume());
            all.failures
                .extend(bases.take(&volumes.collect::<Vec<_>>()));
            let is_taken = |name| bases.taken(name).is_ok();
            writers.retain(|(wanted, _)| wanted.volume().is_none_or(is_taken));
        }
        for ((_, block_size), group) in &alike(&writers) {
            let (mut disks, mut opened) = (Vec::new(), Vec::new());
            for (wanted, writer) in group.iter().map(|n| &writers[*n]) {
                match self.open(wanted, writer, bases.as_deref()) {
                    Ok(disk) => {
                        disks.push(disk);
                        opened.push((*wanted, writer.source()));
                    }
                    Err(failure) => all.failures.push(failure),
                }
            }
            if disks.is_empty() {
                continue;
            }
            let batch = match self.create(&mut disks) {
                Ok(batch) => batch,
                Err(error) => {
                    all.failures.push(error);
                    break;
                }
            };
            all.new_popular_bytes += batch.new_popular_blocks * u64::from(*block_size);
            all.stored_popular_bytes += batch.popular_bytes;
            self.add(&mut all, &opened, batch, bases.as_deref_mut())?;
        }
        self.remove_unused(&new, writers);
        Ok(all)
    }

    /// Adds the backups of a batch, which are durable: their snapshots become bases, or will be deleted.
    fn add(
        &self,
        all: &mut CreatedAll,
        disks: &[(&WantedDisk, &KnownSource)],
        batch: Batch,
        mut bases: Option<&mut Bases<'_>>,
    ) -> Result<()> {
        for damaged in &batch.damaged {
            self.supervision().warn(format_args!(
                "{damaged}; the blocks that the disks still have were stored again"
            ));
        }
        let mut seen = Vec::new();
        for ((wanted, source), made) in disks.iter().zip(batch.backups) {
            match made {
                Ok(created) => {
                    let reached = Reached::by(created.backup, &created.manifest);
                    seen.push((source.id, reached));
                    all.backups.push(MadeBackup {
                        disk: wanted.name().to_owned(),
                        source: (*source).clone(),
                        created,
                        step_back: last_step_back(self.repository(), source),
                    });
                    if let (Some(volume), Some(bases)) = (wanted.volume(), bases.as_deref_mut()) {
                        let snapshot = bases.taken(volume)?;
                        bases.backed_up(&snapshot, self.keeps_base);
                    }
                }
                Err(error) => all.failures.push(error),
            }
        }
        self.opened.saw(&seen);
        Ok(())
    }

    /// Removes new sources that got no backup, once their leases are released.
    fn remove_unused(&self, new: &BTreeSet<SourceId>, writers: Vec<Taken<'_, '_>>) {
        drop(writers);
        for source in new {
            match self.repository().remove_unused_source(*source) {
                Ok(false) => {}
                Ok(true) => self.opened.forget(*source),
                Err(error) => self
                    .supervision()
                    .warn(format_args!("a source without a backup is left: {error}")),
            }
        }
    }

    /// Takes the leases of the disks' sources, creating missing sources, which are added to `new`. Also
    /// returns the errors of disks that are left out.
    fn writers<'d>(
        &self,
        disks: &'d [WantedDisk],
        bases: Option<&Bases<'_>>,
        new: &mut BTreeSet<SourceId>,
    ) -> Result<(Vec<Taken<'d, '_>>, Vec<BackupError>)> {
        let (mut sources, mut failures) = (Vec::<(&WantedDisk, Identified)>::new(), Vec::new());
        for wanted in disks {
            let identified = self.source_of(wanted, bases).and_then(|identified| {
                let id = identified.source.id;
                if identified.is_new {
                    new.insert(id);
                }
                match sources.iter().find(|(_, before)| before.source.id == id) {
                    Some((before, _)) => Err(BackupError::usage(format!(
                        "'{}' and '{}' are the same disk, source {} of the repository",
                        before.name(),
                        wanted.name(),
                        identified.source
                    ))),
                    None => Ok(identified),
                }
            });
            match identified {
                Ok(identified) => sources.push((wanted, identified)),
                Err(failure) => failures.push(failure),
            }
        }
        // Always in the same order, so that two commands with the same sources cannot deadlock.
        sources.sort_by_key(|(_, identified)| identified.source.id);
        let ids = sources.iter().map(|(_, identified)| identified.source.id);
        let ids: Vec<_> = ids.collect();
        let taken = self.repository().writers(&ids, "backup create")?;
        let mut writers = Vec::new();
        for ((wanted, identified), writer) in sources.into_iter().zip(taken) {
            let writer = writer.map_err(BackupError::from);
            match writer.and_then(|writer| self.labelled(wanted, identified, writer)) {
                Ok(writer) => writers.push((wanted, writer)),
                Err(failure) => failures.push(failure),
            }
        }
        let place = |wanted: &WantedDisk| {
            let mut disks = disks.iter();
            disks.position(|disk| disk.name() == wanted.name())
        };
        writers.sort_by_key(|(wanted, _)| place(wanted));
        Ok((writers, failures))
    }

    fn labelled<'r>(
        &self,
        wanted: &WantedDisk,
        Identified { source, label, .. }: Identified,
        mut writer: Writer<'r>,
    ) -> Result<Writer<'r>> {
        // The source was chosen before its lease was taken: another command may have changed its name or disk
        // since.
        if writer.source().source != source.source {
            let message = format!(
                "{source} of the repository was changed by another command just now; try again"
            );
            return Err(BackupError::refused(RepositoryErrorKind::InUse, message));
        }
        if let Some(label) = label {
            writer.set_label(label)?;
        }
        let (name, disk) = (&source.source.name, wanted.name());
        if name != disk {
            let supervision = self.supervision();
            supervision.note(format_args!("'{disk}' continues the source '{name}'"));
        }
        Ok(writer)
    }

    /// Finds or creates the source of a disk. A disk that does not exist gets no source.
    fn source_of(&self, wanted: &WantedDisk, bases: Option<&Bases<'_>>) -> Result<Identified> {
        let disk = match (wanted, bases) {
            (WantedDisk::Volume(name) | WantedDisk::Snapshot { volume: name, .. }, Some(bases)) => {
                bases.disk(name)?
            }
            (WantedDisk::Image { name, file }, _) => FoundDisk {
                name,
                domain: DOMAIN.to_owned(),
                block_size: BLOCK_SIZE,
                origin: origin_of(file)?,
            },
            (_, None) => return Err(no_pool()),
        };
        let identified = self.choice.identify(self.opened, disk)?;
        self.opened.check(identified.source.id)?;
        Ok(identified)
    }

    fn open<'p>(
        &'p self,
        wanted: &WantedDisk,
        writer: &'p Writer<'p>,
        bases: Option<&Bases<'p>>,
    ) -> Result<DiskToBackUp<'p>> {
        match (wanted, bases) {
            (WantedDisk::Image { file, .. }, _) => Ok(DiskToBackUp {
                writer,
                disk: Box::new(self.host.open_image(file)?),
                parent: None,
                base: None,
                unix_seconds: self.unix_seconds,
                snapshot: String::new(),
            }),
            (wanted, Some(bases)) => self.open_snapshot(wanted, writer, bases),
            (_, None) => Err(no_pool()),
        }
    }

    fn open_snapshot<'p>(
        &'p self,
        wanted: &WantedDisk,
        writer: &'p Writer<'p>,
        bases: &Bases<'p>,
    ) -> Result<DiskToBackUp<'p>> {
        let volume = wanted.name();
        let snapshots = bases.host.snapshots(volume)?;
        let snapshot = match wanted {
            WantedDisk::Snapshot { snapshot: name, .. } => {
                let found = snapshots
                    .iter()
                    .find(|snapshot| snapshot.snapshot_name == *name);
                found.cloned().ok_or_else(|| {
                    let message = format!("there is no snapshot '{volume}@{name}'");
                    BackupError::refused(RepositoryErrorKind::NotFound, message)
                })?
            }
            WantedDisk::Volume(_) | WantedDisk::Image { .. } => bases.taken(volume)?,
        };
        let mut disk = bases.host.open(&snapshot)?;
        let mut parent = if self.is_full {
            None
        } else {
            bases.parent(self.repository(), writer.source(), &snapshots)?
        };
        let source = &writer.source().source.name;
        if let Some(Parent { backup, .. }) = &parent
            && let Err(error) =
                check_parent(self.repository(), writer.source(), *backup, self.cache)
        {
            self.supervision().warn(format_args!(
                "all of '{volume}' is read: {source}@{backup} of the repository cannot be restored: {error}"
            ));
            parent = None;
        }
        if let Some(Parent { backup, base }) = &parent
            && let Err(error) = disk.compare_with(base)
        {
            self.supervision().note(format_args!(
                "all of '{volume}' is read: what changed since {source}@{backup} of the repository is not \
                 known: {error}"
            ));
            parent = None;
        }
        Ok(DiskToBackUp {
            writer,
            disk,
            parent: parent.map(|parent| parent.backup),
            base: Some(bases.base_of(&snapshot)),
            unix_seconds: snapshot.created_unix_seconds,
            snapshot: wanted.snapshot().to_owned(),
        })
    }

    fn create(&self, disks: &mut [DiskToBackUp<'_>]) -> Result<Batch> {
        let label = match &*disks {
            [disk] => format!("backing up {}", disk.writer.source().source.name),
            disks => format!("backing up {} disks", disks.len()),
        };
        let stage = Stage {
            label: &label,
            unit: ProgressUnit::Bytes,
            if_interrupted: "incomplete data is not a backup",
        };
        self.supervision().stage(stage, |report| {
            create(self.repository(), disks, &self.options, self.cache, report)
        })
    }
}

fn no_pool() -> BackupError {
    BackupError::usage("volumes are backed up from a pool")
}

/// Groups sources that can share blocks: those in the same domain with the same block size.
fn alike<'a>(writers: &'a [Taken<'_, '_>]) -> BTreeMap<(&'a str, u32), Vec<usize>> {
    let mut groups: BTreeMap<(&str, u32), Vec<usize>> = BTreeMap::new();
    for (n, (_, writer)) in writers.iter().enumerate() {
        let source = &writer.source().source;
        let group = groups.entry((&source.domain, source.block_size));
        group.or_default().push(n);
    }
    groups
}
