//! Opens repositories. A repository's storage does not choose how the repository is protected: the user
//! states whether it is encrypted, and this host remembers it.

use super::host::{HostMemory, Known};
use super::{repository_error, secret};
use crate::context::Context;
use crate::foreground::interruption;
use crate::output::Output;
use onefold_api::{Error, ErrorKind, Result};
use onefold_format::backup::{ObjectName, RepositoryId, SourceId};
use onefold_repository::{Access, KnownSource, Reached, Repository, Unopened, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most changed sources that are named in one line.
const NAMED_MAX: usize = 3;

/// The repository, its keys, and how far to trust its storage.
#[derive(Debug, clap::Args)]
pub(super) struct RepositoryArgs {
    /// Folder of the repository.
    #[arg(long, env = "ONEFOLD_REPOSITORY", value_name = "DIR")]
    repository: Option<PathBuf>,

    /// File whose first line is the passphrase; /dev/fd/N works, too. Without this option, the passphrase is
    /// read from the terminal.
    #[arg(
        long,
        env = "ONEFOLD_PASSPHRASE_FILE",
        value_name = "FILE",
        conflicts_with = "key_file"
    )]
    passphrase_file: Option<PathBuf>,

    /// File whose content is the key, such as a recovery key.
    #[arg(long, env = "ONEFOLD_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Use a repository that is not encrypted: anybody who can read the folder can read the backups, and
    /// anybody who can write to it can change them. Without this option such a repository is refused.
    #[arg(
        long,
        env = "ONEFOLD_NO_ENCRYPTION",
        value_parser = clap::builder::FalseyValueParser::new()
    )]
    no_encryption: bool,

    /// Folder in which this host remembers the repositories that it has used. [default: $STATE_DIRECTORY, or
    /// /var/lib/onefold for root, or $XDG_STATE_HOME/onefold]
    #[arg(long, env = "ONEFOLD_STATE", value_name = "DIR")]
    state: Option<PathBuf>,

    /// Accept and remember the repository with this id, although this host knows another one in the same
    /// folder.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    trust: Option<RepositoryId>,

    /// Accept a repository that went back to an older state, and use it as it is. New numbers continue above
    /// the highest that this host has seen.
    #[arg(long)]
    accept_rollback: bool,
}

fn parse_id(text: &str) -> std::result::Result<RepositoryId, String> {
    let id = u128::from_str_radix(text, 16).ok();
    let id = id.map(|id| RepositoryId(std::array::from_fn(|n| (id >> (120 - 8 * n)) as u8)));
    let id = id.filter(|id| id.to_string() == text);
    id.ok_or_else(|| "not the id of a repository, which has 32 hexadecimal digits".to_owned())
}

/// An open repository, and this host's memory of it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) repository: Arc<Repository>,
    memory: HostMemory,
    /// Sources that this host knew before this command.
    known: BTreeSet<SourceId>,
    back: WentBack,
    output: Output,
}

/// Sources of a repository that are older than this host remembers, or missing.
#[derive(Debug, Default)]
struct WentBack {
    /// Sources with an older state: how far each had progressed, and a description.
    sources: BTreeMap<SourceId, (Reached, String)>,
    /// Sources that are missing completely.
    gone: Vec<SourceId>,
}

impl RepositoryArgs {
    pub(super) fn root(&self) -> Result<&Path> {
        self.repository.as_deref().ok_or_else(|| {
            Error::usage(
                "which repository? give its folder with --repository, or in ONEFOLD_REPOSITORY",
            )
        })
    }

    /// The key for a new repository, from the user's options.
    pub(super) fn new_access(&self, output: &Output) -> Result<Access> {
        let secret = secret::new_access(
            self.passphrase_file.as_deref(),
            self.key_file.as_deref(),
            output,
        )?;
        match (secret, self.no_encryption) {
            (Some(_), true) => Err(both()),
            (Some(secret), false) => Ok(secret),
            (None, true) => Ok(Access::Open),
            (None, false) => Err(Error::usage(
                "what shall open the repository? give --passphrase-file, --key-file or --no-encryption",
            )),
        }
    }

    /// Remembers a new repository.
    pub(super) fn remember_new(&self, root: &Path, repository: &Repository, output: &Output) {
        let known = canonical(root).and_then(|path| {
            let change = |known: &mut Known| {
                known.add_path(&path);
                known.is_writer = repository.has_one_writer();
            };
            let memory = HostMemory::new(self.state.as_deref());
            memory.update(repository.id(), repository.is_encrypted(), change)
        });
        if let Err(error) = known {
            warn_not_remembered(output, &error);
        }
    }

    /// Opens the repository for reading. If it went back, prints a warning and continues, because a backup
    /// that is named by its number is unchanged.
    pub(super) fn open(&self, context: &Context) -> Result<Opened> {
        let (opened, _) = self.open_as(context, false)?;
        if let Err(error) = opened.check_all() {
            opened.output.warn(format_args!("{error}"));
        }
        Ok(opened)
    }

    /// Opens the repository for changes; [`Opened::check`] refuses changes to individual sources. Opening may
    /// wait for other commands, says so, and stops when the user interrupts. Also returns the flag that
    /// becomes true on an interruption.
    pub(super) fn open_to_change(&self, context: &Context) -> Result<(Opened, Arc<AtomicBool>)> {
        self.open_as(context, true)
    }

    fn open_as(&self, context: &Context, is_to_change: bool) -> Result<(Opened, Arc<AtomicBool>)> {
        let root = self.root()?;
        let output = context.output;
        let found = Repository::find(root).map_err(repository_error)?;
        let (id, encrypted) = (found.id(), found.is_encrypted());
        let (memory, path) = (HostMemory::new(self.state.as_deref()), canonical(root)?);
        let known = memory.known(id)?;
        self.check_identity(&found, known.as_ref(), &memory, &path)?;
        let is_writer = is_to_change && found.has_one_writer();
        if is_writer {
            self.check_writer(id, known.as_ref())?;
        }
        let access = self.access_to(root, encrypted, &output)?;
        let mut repository = found.open(&access).map_err(repository_error)?;
        let mut wrong = repository.wrong_identity().into_iter();
        if let Some((_, error)) = wrong.find(|(name, _)| *name == ObjectName::Repository) {
            output.warn(format_args!(
                "{error}; its copy is used, and 'onefold backup repair --yes' makes it again"
            ));
        }
        // Only now, so that a prompt for the passphrase can be interrupted as usual.
        let interrupted = if is_to_change {
            interruption()?
        } else {
            Arc::default()
        };
        let asked = Arc::clone(&interrupted);
        repository.wait_with(Waiting::new(
            move |whom| output.note(whom),
            move || asked.load(Ordering::Relaxed),
        ));
        let is_new = known.is_none();
        let mut known = known.unwrap_or_else(|| Known::new(encrypted));
        let (mut back, mut seen) = WentBack::look(&repository, &known)?;
        let mut accepted = WentBack::default();
        if self.accept_rollback && !back.is_empty() {
            back.accept(&repository)?;
            back.gone.iter().for_each(|gone| known.forget(*gone));
            accepted = back;
            (back, seen) = WentBack::look(&repository, &known)?;
        }
        let remembered = memory.update(id, encrypted, |known| {
            known.add_path(&path);
            known.is_writer |= is_writer;
            accepted.gone.iter().for_each(|gone| known.forget(*gone));
            for (source, reached) in &seen {
                known.saw(*source, *reached);
            }
        });
        match remembered {
            Err(error) => warn_not_remembered(&output, &error),
            Ok(()) if is_new && self.trust.is_none() => output.note(format_args!(
                "this host has not used the repository {} in {root:?} before, and knows it from now on",
                id
            )),
            Ok(()) => {}
        }
        let opened = Opened {
            repository: Arc::new(repository),
            memory,
            known: known.sources().map(|(source, _)| source).collect(),
            back,
            output,
        };
        Ok((opened, interrupted))
    }

    /// Checks that the folder contains the repository that this host knows, with the same protection.
    fn check_identity(
        &self,
        found: &Unopened,
        known: Option<&Known>,
        memory: &HostMemory,
        path: &Path,
    ) -> Result<()> {
        let id = found.id();
        if let Some(meant) = self.trust.filter(|meant| *meant != id) {
            return Err(Error::usage(format!(
                "the repository in {path:?} is {id}, and --trust names {meant}"
            )));
        }
        if let Some(known) = known
            && known.encrypted != found.is_encrypted()
        {
            let (was, is) = if known.encrypted {
                ("is encrypted", "is not")
            } else {
                ("is not encrypted", "is")
            };
            let message = format!(
                "this host knows that the repository {id} {was}, and the one in {path:?} says that it {is}: it was changed, or \
                 it is damaged; nothing was read or written. Put its object 'repository' back, or use a copy of the repository"
            );
            return Err(Error::new(ErrorKind::Damaged, message));
        }
        if self.trust.is_some() || known.is_some_and(|known| known.is_at(path)) {
            return Ok(());
        }
        match memory.another_at(path, id)? {
            None => Ok(()),
            Some(another) => Err(Error::usage(format!(
                "this host knows the repository {another} in {path:?}, and the one that is there now is {id}: if both are meant, say so \
                 once with --trust {id}; nothing was read or written"
            ))),
        }
    }

    /// Checks that this host may write to a repository with one writer.
    fn check_writer(&self, id: RepositoryId, known: Option<&Known>) -> Result<()> {
        if self.trust.is_some() || known.is_some_and(|known| known.is_writer) {
            return Ok(());
        }
        Err(Error::usage(format!(
            "the repository {id} has one writer, and this host has not written it before: two hosts would destroy each other's backups. \
             When no other host writes it any more, say so once with --trust {id}; nothing was read or written"
        )))
    }

    /// Checks the user's options against the repository's encryption, and returns the key.
    fn access_to(&self, root: &Path, encrypted: bool, output: &Output) -> Result<Access> {
        let (passphrase_file, key_file) = (&self.passphrase_file, &self.key_file);
        let given = passphrase_file.is_some() || key_file.is_some();
        match (encrypted, given, self.no_encryption) {
            (_, true, true) => Err(both()),
            (true, _, true) => Err(Error::usage(format!(
                "the repository in {root:?} is encrypted: give --passphrase-file or --key-file, and not --no-encryption"
            ))),
            (true, _, false) => {
                let files = (passphrase_file.as_deref(), key_file.as_deref());
                let secret = match secret::access(files.0, files.1, output)? {
                    None => secret::ask(root)?,
                    secret => secret,
                };
                Ok(secret.unwrap_or(Access::Open))
            }
            (false, false, true) => Ok(Access::Open),
            // Anybody who can write to the folder can make the repository look unencrypted.
            (false, true, false) => Err(Error::usage(format!(
                "the repository in {root:?} says that it is not encrypted, and a passphrase or key file was given: \
                 either it is not the repository that was meant, or it was changed; nothing was read or written"
            ))),
            (false, false, false) => Err(Error::usage(format!(
                "the repository in {root:?} says that it is not encrypted: if that is meant, give --no-encryption, or set \
                 ONEFOLD_NO_ENCRYPTION=1; nothing was read or written"
            ))),
        }
    }
}

fn both() -> Error {
    Error::usage(
        "--no-encryption excludes a passphrase or key file, also those that the environment names",
    )
}

fn canonical(root: &Path) -> Result<PathBuf> {
    let path = root.canonicalize();
    path.map_err(|e| Error::io(format_args!("cannot open {root:?}"), &e))
}

fn warn_not_remembered(output: &Output, error: &Error) {
    output.warn(format_args!(
        "what this host sees of the repository is not remembered, so that it would not be noticed if the repository were replaced \
         or went back: {error}; --state names another folder"
    ));
}

impl WentBack {
    /// Compares a repository with this host's memory. Also returns how far its sources have progressed.
    fn look(repository: &Repository, known: &Known) -> Result<(Self, Vec<(SourceId, Reached)>)> {
        let (mut back, mut seen) = (Self::default(), Vec::new());
        let sources = repository.sources().map_err(repository_error)?.disks;
        let known: BTreeMap<SourceId, Reached> = known.sources().collect();
        for id in known.keys() {
            let is_listed = sources.iter().any(|source| source.id == *id);
            if !is_listed && !repository.has_source(*id).map_err(repository_error)? {
                back.gone.push(*id);
            }
        }
        for source in &sources {
            let before = known.get(&source.id).copied();
            let course = repository.course(source.id, before.unwrap_or_default());
            match (course, before) {
                // While a source is missing, an unknown source may be its replacement and is not trusted.
                (Ok(_), None) if !back.gone.is_empty() => {}
                (Ok(course), _) if course.listed.is_as_far_as(before.unwrap_or_default()) => {
                    seen.push((source.id, course.proved));
                }
                (Ok(course), Some(before)) => {
                    let why = went_back(source, before, course.listed);
                    back.sources.insert(source.id, (before, why));
                }
                (Err(error), Some(before)) => {
                    let why = format!("cannot determine whether {source} went back: {error}");
                    back.sources.insert(source.id, (before, why));
                }
                (_, None) => {}
            }
        }
        Ok((back, seen))
    }

    fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.gone.is_empty()
    }

    /// Records in the repository that the numbers this host has seen are used.
    fn accept(&self, repository: &Repository) -> Result<()> {
        for (source, (reached, _)) in &self.sources {
            let writer = repository.writer(*source, "backup --accept-rollback");
            let accepted = writer.and_then(|writer| writer.accept_rollback(*reached));
            accepted.map_err(repository_error)?;
        }
        Ok(())
    }

    fn error(&self, sources: &[&str], gone: &[SourceId]) -> Error {
        let gone = gone.iter().map(|source| {
            format!("the source with the id {source}, which this host knows, is gone")
        });
        let mut whats: Vec<String> = sources
            .iter()
            .map(|what| (*what).to_owned())
            .chain(gone)
            .collect();
        if whats.len() > NAMED_MAX {
            let rest = whats.len() - NAMED_MAX;
            whats.truncate(NAMED_MAX);
            whats.push(format!("and {rest} more"));
        }
        let message = format!(
            "the repository is not as far as it was: {}; put back the missing objects, or use it as it is with --accept-rollback: \
             numbers then continue above those that were seen",
            whats.join("; ")
        );
        Error::new(ErrorKind::Damaged, message)
    }
}

/// Describes how a source went back.
fn went_back(source: &KnownSource, before: Reached, now: Reached) -> String {
    let (what, before, now) = if now.next < before.next {
        ("backup", before.next, now.next)
    } else {
        ("pack", before.next_pack, now.next_pack)
    };
    // Backup numbers start at 1, pack numbers at 0.
    let newest = match now.checked_sub(1) {
        Some(newest) if now > u64::from(what == "backup") => format!("{what} {newest}"),
        _ => "none".to_owned(),
    };
    let seen = before.saturating_sub(1);
    format!("of {source} this host has seen {what} {seen}, and the newest is {newest} now")
}

impl Opened {
    /// Whether the repository is older than this host remembers, or lacks sources.
    pub(super) fn has_gone_back(&self) -> bool {
        !self.back.is_empty()
    }

    /// Fails if a source went back: it must not be written then, and its latest backup is unknown.
    pub(super) fn check(&self, source: SourceId) -> Result<()> {
        match self.back.sources.get(&source) {
            Some((_, why)) => Err(self.back.error(&[why], &[])),
            None if self.known.contains(&source) => Ok(()),
            None => self.check_new(),
        }
    }

    /// Fails if a source that this host does not know may have replaced a missing one.
    pub(super) fn check_new(&self) -> Result<()> {
        match &self.back.gone[..] {
            [] => Ok(()),
            gone => Err(self.back.error(&[], gone)),
        }
    }

    /// Fails if any source went back or is missing.
    pub(super) fn check_all(&self) -> Result<()> {
        if self.back.is_empty() {
            return Ok(());
        }
        let sources = self.back.sources.values().map(|(_, why)| why.as_str());
        Err(self
            .back
            .error(&sources.collect::<Vec<_>>(), &self.back.gone))
    }

    /// Removes a deleted source from this host's memory.
    pub(super) fn forget(&self, source: SourceId) {
        self.remember(|known| known.forget(source));
    }

    /// Records how far sources have progressed.
    pub(super) fn saw(&self, sources: &[(SourceId, Reached)]) {
        self.remember(|known| {
            for (source, reached) in sources {
                known.saw(*source, *reached);
            }
        });
    }

    fn remember(&self, change: impl Fn(&mut Known)) {
        let (id, encrypted) = (self.repository.id(), self.repository.is_encrypted());
        if let Err(error) = self.memory.update(id, encrypted, change) {
            warn_not_remembered(&self.output, &error);
        }
    }
}
