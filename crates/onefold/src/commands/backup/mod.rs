//! `onefold backup`: copies of disks in a repository, made and restored by the command's own process.

pub(crate) mod base;
mod clock;
mod create;
mod diff;
mod disk;
mod folders;
mod forget;
mod host;
mod identity;
mod init;
mod into;
mod key;
mod link;
mod list;
mod losses;
mod mount;
mod opening;
mod prune;
mod remove;
mod rename;
mod repair;
mod restore;
mod retention;
mod secret;
mod share;
mod show;
mod stat;
mod verify;
mod wanted;

use super::pool_check::FOUND_DAMAGE;
use crate::context::Context;
use crate::progress::Progress;
use clap::Subcommand;
use onefold_api::{Error, ErrorKind, Result, size};
use onefold_backup::BackupError;
use onefold_repository::{KnownSource, Repository, RepositoryError, RepositoryErrorKind};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use onefold_format::backup::BackupNumber;
use opening::{Opened, RepositoryArgs};

/// Space that is reserved in a repository, so that it can be pruned when it is full: leases, tombstones and
/// heartbeats of a command take some KiB for each source.
const ASIDE_BYTES: u64 = 8 << 20;

/// Default memory of each stage of a backup.
const MEMORY_DEFAULT: &str = "64M";

/// The least memory with which a stage can hold the blocks that it works on.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// Value parser for clap: the memory for a command.
fn parse_memory(text: &str) -> std::result::Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < MEMORY_BYTES_MIN => Err(format!(
            "at least {} are needed",
            size::display(MEMORY_BYTES_MIN)
        )),
        bytes => Ok(bytes),
    }
}

/// Default compression level of zstd.
const LEVEL_DEFAULT: i32 = 1;

/// The given number of threads, or the number of processors.
fn threads(given: Option<u16>) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    given.map_or_else(processors, usize::from)
}

/// Reports the progress of a stage, and stops it when the user interrupts; `state` describes the repository's
/// state then.
fn reporting<'a>(
    progress: &'a Progress,
    interrupted: &'a AtomicBool,
    state: &'static str,
) -> impl FnMut(u64, u64) -> onefold_backup::Result<()> + 'a {
    move |done, all| {
        progress.set(done, all);
        if interrupted.load(Ordering::Relaxed) {
            Err(BackupError::Receiver(format!("interrupted; {state}")))
        } else {
            Ok(())
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum BackupVerb {
    /// Create a repository in a new or empty folder.
    Init(init::Args),
    /// Back up disks: volumes, snapshots, and disk images.
    ///
    /// Each backup is complete in itself. Data that the repository already has for a source is not stored
    /// again.
    Create(create::Args),
    /// List the sources of a repository, or the backups of one.
    #[command(visible_alias = super::LIST)]
    List(list::Args),
    /// Show a backup's details.
    Show(show::Args),
    /// List what changed between two backups of a source.
    Diff(diff::Args),
    /// Serve backups as read-only NBD exports, directly from the repository, until interrupted.
    Mount(mount::Args),
    /// Restore a backup to a new or existing volume, a file, a block device or standard output.
    Restore(restore::Args),
    /// Prove that everything that backups need exists; exit code 3 if it does not.
    Verify(verify::Args),
    /// Forget backups: those named, or all that no rule keeps. `prune` then frees their space.
    Forget(forget::Args),
    /// Rename a source.
    Rename(rename::Args),
    /// Protect backups from being forgotten.
    Protect(forget::ProtectArgs),
    /// Remove the protection of backups.
    Unprotect(forget::ProtectArgs),
    /// Free space that no backup needs.
    Prune(prune::Args),
    /// Store blocks that several sources of a domain have once for all of them. `prune` then frees the
    /// sources' own copies.
    Share(share::Args),
    /// Remove a source with all its backups.
    Remove(remove::Args),
    /// Remove damaged blocks so that the next backup stores them again, restore blocks that have an intact
    /// copy, and remove leftovers of killed commands. Exit code 3 if damage remains.
    Repair(repair::Args),
    /// Show the content of a repository by source, and the savings by sharing.
    Stat(stat::Args),
    /// Add, list, export and remove the keys of an encrypted repository.
    #[command(subcommand)]
    Key(key::KeyVerb),
}

impl BackupVerb {
    pub(super) fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Self::Init(args) => init::run(context, &args),
            Self::Create(args) => create::run(context, &args),
            Self::List(args) => list::run(context, &args),
            Self::Show(args) => show::run(context, &args),
            Self::Diff(args) => diff::run(context, &args),
            Self::Mount(args) => mount::run(context, &args),
            Self::Restore(args) => restore::run(context, args),
            Self::Verify(args) => verify::run(context, &args),
            Self::Forget(args) => forget::run(context, &args),
            Self::Rename(args) => rename::run(context, &args),
            Self::Protect(args) => forget::protect(context, &args, true),
            Self::Unprotect(args) => forget::protect(context, &args, false),
            Self::Prune(args) => prune::run(context, &args),
            Self::Share(args) => share::run(context, &args),
            Self::Remove(args) => remove::run(context, &args),
            Self::Repair(args) => repair::run(context, &args),
            Self::Stat(args) => stat::run(context, &args),
            Self::Key(verb) => key::run(context, verb),
        }
    }
}

fn is_full(error: &Error) -> bool {
    error.kind == ErrorKind::NoSpace
}

fn repository_error(error: RepositoryError) -> Error {
    let kind = match error.kind() {
        RepositoryErrorKind::Invalid => ErrorKind::Usage,
        RepositoryErrorKind::NotFound => ErrorKind::NotFound,
        RepositoryErrorKind::Exists => ErrorKind::Exists,
        RepositoryErrorKind::InUse => ErrorKind::InUse,
        RepositoryErrorKind::NoSpace => ErrorKind::NoSpace,
        RepositoryErrorKind::ReadOnly => ErrorKind::ReadOnly,
        RepositoryErrorKind::Damaged => ErrorKind::Damaged,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, error.to_string())
}

fn backup_error(error: BackupError) -> Error {
    match error {
        BackupError::Repository(error) => repository_error(error),
        BackupError::Damaged { .. } => Error::new(ErrorKind::Damaged, error.to_string()),
        BackupError::NoRoom { .. } => Error::new(ErrorKind::NoSpace, error.to_string()),
        _ => Error::failed(error.to_string()),
    }
}

/// A backup as users name it: `SOURCE@N` or `SOURCE@latest`.
#[derive(Debug, Clone)]
struct BackupName {
    source: String,
    /// The backup's number; `None` for the latest.
    number: Option<BackupNumber>,
}

impl FromStr for BackupName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let unusable = || format!("'{text}' is not a backup; write SOURCE@N or SOURCE@latest");
        let (source, number) = text.rsplit_once('@').ok_or_else(unusable)?;
        let number = match number {
            "latest" => None,
            number => Some(BackupNumber(number.parse().map_err(|_| unusable())?)),
        };
        Ok(Self {
            source: source.to_owned(),
            number,
        })
    }
}

impl BackupName {
    /// # Errors
    ///
    /// For the latest backup, if the source went back: the newest backup that is left may not be the latest.
    fn find(&self, opened: &Opened) -> Result<(KnownSource, BackupNumber)> {
        let repository = &opened.repository;
        let source = find_source(repository, &self.source)?;
        let backups = repository.backups(source.id).map_err(repository_error)?;
        let found = match self.number {
            Some(number) => backups.contains(&number).then_some(number),
            None => {
                opened.check(source.id)?;
                latest(repository, &source, &backups)?
            }
        };
        let number = found.ok_or_else(|| {
            let message = match self.number {
                Some(number) => format!("there is no backup {}@{number}", self.source),
                None => format!("there is no backup of '{}'", self.source),
            };
            Error::new(ErrorKind::NotFound, message)
        })?;
        Ok((source, number))
    }
}

/// The backup with the latest time; a backup of an old snapshot may have the highest number.
fn latest(
    repository: &Repository,
    source: &KnownSource,
    backups: &[BackupNumber],
) -> Result<Option<BackupNumber>> {
    let moments = backups.iter().map(|backup| {
        let manifest = repository.manifest(source.id, *backup);
        let manifest = manifest.map_err(|error| {
            let error = repository_error(error);
            let message = format!(
                "the latest backup of {source} cannot be determined, so name one by its number: {error}"
            );
            Error::new(error.kind, message)
        })?;
        Ok((manifest.unix_seconds, *backup))
    });
    let moments = moments.collect::<Result<Vec<_>>>()?;
    Ok(moments.into_iter().max().map(|(_, backup)| backup))
}

fn find_source(repository: &Repository, name: &str) -> Result<KnownSource> {
    let found = repository.source(name).map_err(repository_error)?;
    found.ok_or_else(|| {
        let message = format!("the repository has no source '{name}'");
        Error::new(ErrorKind::NotFound, message)
    })
}

/// Prints the objects that cannot be read, in addition to the results. Returns the exit code.
fn name_damaged(context: &Context, damaged: &[RepositoryError]) -> ExitCode {
    for error in damaged {
        context.output.warn(format_args!("{error}"));
    }
    match damaged {
        [] => ExitCode::SUCCESS,
        _ => ExitCode::from(FOUND_DAMAGE),
    }
}

fn now_unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
