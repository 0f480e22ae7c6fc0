//! Opens repositories. A repository's storage does not choose how the repository is protected: the user
//! states whether it is encrypted, and this host remembers it.

use crate::error::{BackupError, Result};
use crate::memory::{HostMemory, Known};
use crate::supervision::Supervision;
use onefold_format::backup::{ObjectName, RepositoryId, SourceId};
use onefold_repository::{
    Access, KnownSource, Reached, Repository, RepositoryErrorKind, Unopened, Waiting,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most changed sources that are named in one line.
const NAMED_MAX: usize = 3;

/// Which repository is opened, and how far to trust its storage.
#[derive(Debug, Clone)]
pub struct OpeningOptions {
    /// Folder of the repository.
    pub root: PathBuf,
    /// Folder in which this host remembers repositories; the usual folder if absent.
    pub state: Option<PathBuf>,
    /// Accept and remember the repository with this id, although this host knows another one in the same folder.
    pub trust: Option<RepositoryId>,
    /// Accept a repository that went back to an older state.
    pub accept_rollback: bool,
    /// Whether the repository will be changed.
    pub is_to_change: bool,
}

/// A repository that is the one this host knows in its folder, or a new one to it.
#[derive(Debug)]
pub struct Found {
    options: OpeningOptions,
    unopened: Unopened,
    memory: HostMemory,
    path: PathBuf,
    known: Option<Known>,
}

/// An open repository, and this host's memory of it.
#[derive(Debug)]
pub struct Opened {
    root: PathBuf,
    repository: Arc<Repository>,
    memory: HostMemory,
    /// Sources that this host knew before this command.
    known: BTreeSet<SourceId>,
    back: WentBack,
    supervision: Supervision,
}

/// Sources of a repository that are older than this host remembers, or missing.
#[derive(Debug, Default)]
struct WentBack {
    /// Sources with an older state: how far each had progressed, and a description.
    sources: BTreeMap<SourceId, (Reached, String)>,
    /// Sources that are missing completely.
    gone: Vec<SourceId>,
}

/// Remembers a new repository in the given folder, or in the usual one.
pub(crate) fn remember_new(
    root: &Path,
    state: Option<&Path>,
    repository: &Repository,
    supervision: &Supervision,
) {
    let known = canonical(root).and_then(|path| {
        let change = |known: &mut Known| {
            known.add_path(&path);
            known.is_writer = repository.has_one_writer();
        };
        let memory = HostMemory::new(state);
        memory.update(repository.id(), repository.is_encrypted(), change)
    });
    if let Err(error) = known {
        warn_not_remembered(supervision, &error);
    }
}

impl Found {
    /// Finds the repository in its folder, and compares it with this host's memory.
    ///
    /// # Errors
    ///
    /// If there is none, if it is not the one that this host knows there, or if it has one writer, which is not this
    /// host, and is to be changed.
    pub fn find(options: OpeningOptions) -> Result<Self> {
        let unopened = Repository::find(&options.root)?;
        let memory = HostMemory::new(options.state.as_deref());
        let path = canonical(&options.root)?;
        let known = memory.known(unopened.id())?;
        let found = Self {
            options,
            unopened,
            memory,
            path,
            known,
        };
        found.check_identity()?;
        if found.is_writer() {
            found.check_writer()?;
        }
        Ok(found)
    }

    /// Whether the repository is encrypted, so that it opens with a passphrase or key.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.unopened.is_encrypted()
    }

    fn is_writer(&self) -> bool {
        self.options.is_to_change && self.unopened.has_one_writer()
    }

    /// Opens the repository, and remembers how far its sources have progressed. A source that went back is refused
    /// only when it is used: see [`Opened::check`].
    ///
    /// # Errors
    ///
    /// If the key opens nothing, or the list of sources cannot be read.
    pub fn open(self, access: &Access, supervision: Supervision) -> Result<Opened> {
        let (id, encrypted) = (self.unopened.id(), self.is_encrypted());
        let is_writer = self.is_writer();
        let mut repository = self.unopened.open(access)?;
        let mut wrong = repository.wrong_identity().into_iter();
        if let Some((_, error)) = wrong.find(|(name, _)| *name == ObjectName::Repository) {
            supervision.warn(format_args!(
                "{error}; its copy is used, and 'onefold backup repair --yes' makes it again"
            ));
        }
        let (tells, asks) = (supervision.clone(), supervision.clone());
        repository.wait_with(Waiting::new(
            move |whom| tells.note(whom),
            move || asks.is_interrupted(),
        ));
        let is_new = self.known.is_none();
        let mut known = self.known.unwrap_or_else(|| Known::new(encrypted));
        let (mut back, mut seen) = WentBack::look(&repository, &known)?;
        let mut accepted = WentBack::default();
        if self.options.accept_rollback && !back.is_empty() {
            back.accept(&repository)?;
            back.gone.iter().for_each(|gone| known.forget(*gone));
            accepted = back;
            (back, seen) = WentBack::look(&repository, &known)?;
        }
        let remembered = self.memory.update(id, encrypted, |known| {
            known.add_path(&self.path);
            known.is_writer |= is_writer;
            accepted.gone.iter().for_each(|gone| known.forget(*gone));
            for (source, reached) in &seen {
                known.saw(*source, *reached);
            }
        });
        match remembered {
            Err(error) => warn_not_remembered(&supervision, &error),
            Ok(()) if is_new && self.options.trust.is_none() => supervision.note(format_args!(
                "this host has not used the repository {} in {:?} before, and knows it from now on",
                id, self.options.root
            )),
            Ok(()) => {}
        }
        Ok(Opened {
            root: self.options.root,
            repository: Arc::new(repository),
            memory: self.memory,
            known: known.sources().map(|(source, _)| source).collect(),
            back,
            supervision,
        })
    }

    /// Checks that the folder contains the repository that this host knows, with the same protection.
    fn check_identity(&self) -> Result<()> {
        let (id, path, known) = (self.unopened.id(), &self.path, self.known.as_ref());
        if let Some(meant) = self.options.trust.filter(|meant| *meant != id) {
            return Err(BackupError::usage(format!(
                "the repository in {path:?} is {id}, and --trust names {meant}"
            )));
        }
        if let Some(known) = known
            && known.encrypted != self.is_encrypted()
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
            return Err(BackupError::refused(RepositoryErrorKind::Damaged, message));
        }
        if self.options.trust.is_some() || known.is_some_and(|known| known.is_at(path)) {
            return Ok(());
        }
        match self.memory.another_at(path, id)? {
            None => Ok(()),
            Some(another) => Err(BackupError::usage(format!(
                "this host knows the repository {another} in {path:?}, and the one that is there now is {id}: if both are meant, say so \
                 once with --trust {id}; nothing was read or written"
            ))),
        }
    }

    /// Checks that this host may write to a repository with one writer.
    fn check_writer(&self) -> Result<()> {
        let (id, known) = (self.unopened.id(), self.known.as_ref());
        if self.options.trust.is_some() || known.is_some_and(|known| known.is_writer) {
            return Ok(());
        }
        Err(BackupError::usage(format!(
            "the repository {id} has one writer, and this host has not written it before: two hosts would destroy each other's backups. \
             When no other host writes it any more, say so once with --trust {id}; nothing was read or written"
        )))
    }
}

fn canonical(root: &Path) -> Result<PathBuf> {
    let path = root.canonicalize();
    path.map_err(|e| BackupError::failed(format!("cannot open {root:?}: {e}")))
}

fn warn_not_remembered(supervision: &Supervision, error: &BackupError) {
    supervision.warn(format_args!(
        "what this host sees of the repository is not remembered, so that it would not be noticed if the repository were replaced \
         or went back: {error}; --state names another folder"
    ));
}

impl WentBack {
    /// Compares a repository with this host's memory. Also returns how far its sources have progressed.
    fn look(repository: &Repository, known: &Known) -> Result<(Self, Vec<(SourceId, Reached)>)> {
        let (mut back, mut seen) = (Self::default(), Vec::new());
        let sources = repository.sources()?.disks;
        let known: BTreeMap<SourceId, Reached> = known.sources().collect();
        for id in known.keys() {
            let is_listed = sources.iter().any(|source| source.id == *id);
            if !is_listed && !repository.has_source(*id)? {
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
            accepted?;
        }
        Ok(())
    }

    fn error(&self, sources: &[&str], gone: &[SourceId]) -> BackupError {
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
        BackupError::refused(RepositoryErrorKind::Damaged, message)
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
    /// The open repository.
    #[must_use]
    pub fn repository(&self) -> &Arc<Repository> {
        &self.repository
    }

    /// The repository's folder, as the user named it.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The caller that the repository was opened for.
    #[must_use]
    pub fn supervision(&self) -> &Supervision {
        &self.supervision
    }

    /// Whether the repository is older than this host remembers, or lacks sources.
    #[must_use]
    pub fn has_gone_back(&self) -> bool {
        !self.back.is_empty()
    }

    /// Fails if a source went back: it must not be written then, and its latest backup is unknown.
    ///
    /// # Errors
    ///
    /// `Damaged`, with what is missing.
    pub fn check(&self, source: SourceId) -> Result<()> {
        match self.back.sources.get(&source) {
            Some((_, why)) => Err(self.back.error(&[why], &[])),
            None if self.known.contains(&source) => Ok(()),
            None => self.check_new(),
        }
    }

    /// Fails if a source that this host does not know may have replaced a missing one.
    ///
    /// # Errors
    ///
    /// `Damaged`, with what is missing.
    pub fn check_new(&self) -> Result<()> {
        match &self.back.gone[..] {
            [] => Ok(()),
            gone => Err(self.back.error(&[], gone)),
        }
    }

    /// Fails if any source went back or is missing.
    ///
    /// # Errors
    ///
    /// `Damaged`, with what is missing.
    pub fn check_all(&self) -> Result<()> {
        if self.back.is_empty() {
            return Ok(());
        }
        let sources = self.back.sources.values().map(|(_, why)| why.as_str());
        Err(self
            .back
            .error(&sources.collect::<Vec<_>>(), &self.back.gone))
    }

    /// Removes a deleted source from this host's memory.
    pub fn forget(&self, source: SourceId) {
        self.remember(|known| known.forget(source));
    }

    /// Records how far sources have progressed.
    pub fn saw(&self, sources: &[(SourceId, Reached)]) {
        self.remember(|known| {
            for (source, reached) in sources {
                known.saw(*source, *reached);
            }
        });
    }

    fn remember(&self, change: impl Fn(&mut Known)) {
        let (id, encrypted) = (self.repository.id(), self.repository.is_encrypted());
        if let Err(error) = self.memory.update(id, encrypted, change) {
            warn_not_remembered(&self.supervision, &error);
        }
    }
}
