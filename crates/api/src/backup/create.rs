//! Making backups.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use clap::{Args, ValueEnum};
use onefold_backup::folders::{self, CACHE};
use onefold_backup::{CreateAll, MadeBackup, Options, SourceChoice, TableCache};
use onefold_format::backup::ChangedBy;
use onefold_repository::{host_name, now_unix_seconds};
use serde::{Deserialize, Serialize};

use super::clock;
use super::disk::DiskSpec;
use super::name::BackupName;
use super::options::{self, LEVEL_DEFAULT, MEMORY_DEFAULT, memory_default, parse_memory, threads};
use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::{Error, Result};
use crate::service::check_name;

/// The possible compression levels of zstd.
const LEVELS: std::ops::RangeInclusive<i32> = 1..=19;

/// Backs up disks: volumes, snapshots, and disk images.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupCreate {
    /// Disks to back up: a volume of the pool, as of one moment; a snapshot; or a disk image or device, with
    /// its name in the repository.
    #[arg(
        value_name = "VOLUME|VOLUME@SNAPSHOT|NAME=FILE",
        required_unless_present = "all"
    )]
    #[serde(default)]
    pub disks: Vec<DiskSpec>,

    /// Back up all volumes of the pool, in addition to the named disks.
    // Listed before the options of the repository.
    #[arg(long, display_order = 0)]
    #[serde(default)]
    pub all: bool,

    /// With --all, leave out volumes whose name matches. `*` stands for any characters, `?` for one, `[a-z]`
    /// for one of several. May be given several times.
    #[arg(long, value_name = "PATTERN", requires = "all", display_order = 0)]
    #[serde(default)]
    pub exclude: Vec<NamePattern>,

    /// Back the disk up as the source of this name, regardless of the disk's own name. For one disk.
    #[arg(long = "as", value_name = "NAME")]
    pub source: Option<String>,

    /// Continue the source of this name with a disk of another origin: a volume that was moved to another
    /// pool or recreated, or an image that was moved.
    #[arg(long)]
    #[serde(default)]
    pub adopt: bool,

    /// Format of disk images, which is never detected. Without this option, images are read as raw.
    #[arg(long, value_enum)]
    pub image_format: Option<ImageFormat>,

    /// Read other files to which a qcow2 image refers, too. Only for images that you trust.
    #[arg(long)]
    #[serde(default)]
    pub allow_backing: bool,

    /// Read all of a volume, not only the changes since its last backup. The result is the same.
    #[arg(long)]
    #[serde(default)]
    pub full: bool,

    /// Keep the volume's snapshot as the base of the next backup, which then reads only changes, or drop it
    /// to save pool space.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = BaseFate::Keep)]
    #[serde(default)]
    pub base: BaseFate,

    /// Tag by which to find the backups later; may be given several times.
    #[arg(long = "tag", value_name = "TAG")]
    #[serde(default)]
    pub tags: Vec<String>,

    /// Compression level of zstd, 1 to 19.
    #[arg(long, value_name = "LEVEL", default_value_t = LEVEL_DEFAULT, value_parser = clap::value_parser!(i32).range(1..=19))]
    #[serde(default = "level_default")]
    pub level: i32,

    /// Number of threads that compress and encrypt. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// Memory limit of each stage.
    #[arg(long = "memory", value_name = "SIZE", value_parser = parse_memory, default_value = MEMORY_DEFAULT)]
    #[serde(default = "memory_default")]
    pub memory_bytes: u64,

    /// Folder for temporary files: 48 bytes for each block that is read, and up to as much for each block
    /// that is stored. [default: TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub temp: Option<PathBuf>,

    /// Folder in which this host caches the contents of the repository's packs: 12 bytes for each stored
    /// block. With the cache, a small backup reads little of the repository. [default: $CACHE_DIRECTORY, or
    /// /var/cache/onefold for root, or $XDG_CACHE_HOME/onefold]
    #[arg(long, env = "ONEFOLD_CACHE", value_name = "DIR")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub cache: Option<PathBuf>,

    /// Do not use the cache.
    #[arg(long)]
    #[serde(default)]
    pub no_cache: bool,

    /// Run at normal priority. Without this option, a host whose guests use all processors is backed up
    /// slowly.
    #[arg(long)]
    #[serde(default)]
    pub hurry: bool,
}

/// The fate of a snapshot after its backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum BaseFate {
    /// Keep the snapshot until the next backup.
    #[default]
    Keep,
    /// Delete the snapshot, and the base of the previous backup, too.
    Drop,
}

/// The layout of a disk's bytes in an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// The disk's bytes, unchanged.
    #[default]
    Raw,
    /// QEMU's format, versions 2 and 3.
    Qcow2,
}

/// A pattern of volumes' names, as in a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(glob::Pattern);

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

impl FromStr for NamePattern {
    type Err = glob::PatternError;

    fn from_str(text: &str) -> std::result::Result<Self, glob::PatternError> {
        Ok(Self(glob::Pattern::new(text)?))
    }
}

impl TryFrom<String> for NamePattern {
    type Error = glob::PatternError;

    fn try_from(text: String) -> std::result::Result<Self, glob::PatternError> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.0.as_str().to_owned()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for NamePattern {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for NamePattern {}

/// The backups that were made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupCreateReply {
    /// The backups, one entry each.
    pub backups: Vec<CreatedBackup>,
    /// Bytes of new content that several of the disks have, which is stored once.
    pub new_popular_bytes: u64,
    /// Bytes that the new popular content takes in the repository, compressed.
    pub stored_popular_bytes: u64,
    /// Seconds that the backups took.
    pub seconds: f64,
    /// Why other backups were not made.
    pub failures: Vec<String>,
}

/// A backup that was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedBackup {
    /// Name of the backup, SOURCE@N.
    pub name: String,
    /// Name of the disk, which may differ from the name of its source.
    pub disk: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Bytes of data on the disk.
    pub logical_bytes: u64,
    /// How changes were found.
    pub changed_by: ChangedByReply,
    /// The number of the parent backup.
    pub parent: Option<u64>,
    /// Bytes that were read from the disk, without blocks that are known to be zeros.
    pub read_bytes: u64,
    /// Bytes of data that popular blocks hold.
    pub popular_bytes: u64,
    /// Bytes of content that the repository did not have and that was stored for this source alone.
    pub new_bytes: u64,
    /// Bytes that the source's new content takes in the repository, compressed.
    pub stored_bytes: u64,
}

/// How the changes of a disk were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChangedByReply {
    /// From the pool's layers.
    Layers,
    /// Everything was read.
    Nobody,
}

fn level_default() -> i32 {
    LEVEL_DEFAULT
}

impl BackupCreate {
    /// Whether a disk is in a pool.
    #[must_use]
    pub fn needs_pool(&self) -> bool {
        self.all || self.disks.iter().any(|spec| spec.disk().needs_pool())
    }

    /// Opens the host's cache of the repository's tables, which are read from the repository without it.
    fn open_cache(&self, at: &RepositoryService<'_>) -> Option<TableCache> {
        if self.no_cache {
            return None;
        }
        let folder = self.cache.clone().or_else(|| CACHE.usual())?;
        let opened = TableCache::open(&folder, at.repository(), self.memory_bytes as usize);
        opened.inspect_err(|error| note_cache(at, error)).ok()
    }

    fn is_wanted(&self, volume: &str) -> bool {
        !self.exclude.iter().any(|pattern| pattern.matches(volume))
    }
}

fn note_cache(at: &RepositoryService<'_>, error: &io::Error) {
    at.supervision().note(format_args!(
        "the cache of tables is not used, and they are read from the repository: {error}"
    ));
}

impl RepositoryVerb for BackupCreate {
    const NAME: &'static str = "backup create";
    type Reply = BackupCreateReply;

    fn check(&self) -> Result<()> {
        let disks: Vec<_> = self.disks.iter().map(DiskSpec::disk).collect();
        for (n, disk) in disks.iter().enumerate() {
            if disks[..n]
                .iter()
                .any(|earlier| earlier.name() == disk.name())
            {
                return Err(Error::usage(format!("'{}' is named twice", disk.name())));
            }
        }
        if disks.is_empty() && !self.all {
            return Err(Error::usage("which disks?"));
        }
        if !LEVELS.contains(&self.level) {
            let (least, most) = (LEVELS.start(), LEVELS.end());
            return Err(Error::usage(format!("the levels are {least} to {most}")));
        }
        options::check(self.memory_bytes, self.threads)?;
        match &self.source {
            Some(name) if disks.len() == 1 && !self.all => check_name(name),
            Some(_) => Err(Error::usage("--as is for one disk")),
            None => Ok(()),
        }
    }
}

impl RepositoryRequest for BackupCreate {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupCreateReply> {
        let began = Instant::now();
        let cache = self.open_cache(at);
        let job = CreateAll {
            opened: at.opened(),
            host: at.disks()?,
            cache: cache.as_ref(),
            choice: SourceChoice {
                name: self.source.clone(),
                adopt: self.adopt,
            },
            options: Options {
                tags: self.tags.clone(),
                host: host_name(),
                level: self.level,
                threads: threads(self.threads),
                memory_bytes: self.memory_bytes as usize,
                temporary: folders::temporary(self.temp.as_deref()),
            },
            is_full: self.full,
            keeps_base: self.base == BaseFate::Keep,
            unix_seconds: now_unix_seconds(),
        };
        let disks: Vec<_> = self.disks.iter().map(|spec| spec.disk().clone()).collect();
        let is_wanted = |volume: &str| self.is_wanted(volume);
        let made = if self.all {
            job.run(&disks, Some(&is_wanted))?
        } else {
            job.run(&disks, None)?
        };
        for step in made
            .backups
            .iter()
            .filter_map(|made| made.step_back.as_ref())
        {
            at.warn(clock::warning(step));
        }
        let mut failures: Vec<_> = made.failures.into_iter().map(Error::from).collect();
        let reply = BackupCreateReply {
            backups: made.backups.into_iter().map(CreatedBackup::from).collect(),
            new_popular_bytes: made.new_popular_bytes,
            stored_popular_bytes: made.stored_popular_bytes,
            seconds: began.elapsed().as_secs_f64(),
            failures: failures.iter().map(ToString::to_string).collect(),
        };
        let last = reply.backups.is_empty().then(|| failures.pop()).flatten();
        for failure in &failures {
            at.warn(failure);
        }
        if let Some(failure) = last {
            return Err(failure);
        }
        if let Some(error) = cache.as_ref().and_then(TableCache::take_failure) {
            note_cache(at, &error);
        }
        if !failures.is_empty() {
            at.found(Outcome::Incomplete);
        }
        Ok(reply)
    }
}

impl From<MadeBackup> for CreatedBackup {
    fn from(made: MadeBackup) -> Self {
        let MadeBackup {
            disk,
            source,
            created,
            ..
        } = made;
        let manifest = created.manifest;
        let (counts, block_size) = (manifest.counts, u64::from(manifest.block_size));
        Self {
            name: BackupName::new(&source, created.backup).to_string(),
            disk,
            size_bytes: manifest.size_bytes,
            logical_bytes: counts.logical_blocks * block_size,
            changed_by: match manifest.changed_by {
                ChangedBy::Nobody => ChangedByReply::Nobody,
                ChangedBy::Layers => ChangedByReply::Layers,
            },
            parent: manifest.parent.map(|parent| parent.0),
            read_bytes: counts.read_blocks * block_size,
            popular_bytes: counts.popular_blocks * block_size,
            new_bytes: counts.new_blocks * block_size,
            stored_bytes: counts.stored_bytes,
        }
    }
}
