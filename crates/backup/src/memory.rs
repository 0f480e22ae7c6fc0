//! This host's memory of the repositories it has used. It keeps a repository's storage from choosing how the
//! repository is protected, from replacing it by another repository, and from going back to an older state
//! unnoticed.
//!
//! Each repository has a file, which is replaced as a whole by the process that holds the lock next to it. A
//! file that cannot be read is an error, because ignoring it would end the protection silently. If the folder
//! cannot be written, nothing new is remembered, and the caller warns.

use crate::error::{BackupError, Result};
use crate::folders::STATE;
use onefold_format::backup::recipe::NUMBER_END;
use onefold_format::backup::{RepositoryId, SourceId};
use onefold_repository::{Reached, RepositoryErrorKind};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The version of the files that this build writes. A file with a higher version contains data that this
/// build must not ignore.
const VERSION: u32 = 1;

/// Suffix of a repository's file.
const SUFFIX: &str = ".json";

/// The folder of the memory.
#[derive(Debug)]
pub(crate) struct HostMemory {
    /// `None` if no folder is named and the user has no home.
    folder: Option<PathBuf>,
}

/// This host's memory of one repository.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Known {
    version: u32,
    /// Whether the repository is encrypted.
    pub(crate) encrypted: bool,
    /// Whether this host is the writer of a repository with one writer.
    #[serde(default)]
    pub(crate) is_writer: bool,
    /// Paths at which the repository was used.
    paths: BTreeSet<String>,
    /// The repository's sources, by id.
    sources: BTreeMap<String, KnownSource>,
    /// Fields that a later build added.
    #[serde(flatten)]
    others: Others,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct KnownSource {
    /// All backups with lower numbers existed or were forgotten.
    next_backup: u64,
    /// Packs with lower numbers may have existed.
    next_pack: u64,
    /// Fields that a later build added.
    #[serde(flatten)]
    others: Others,
}

type Others = serde_json::Map<String, serde_json::Value>;

impl Known {
    pub(crate) fn new(encrypted: bool) -> Self {
        Self {
            version: VERSION,
            encrypted,
            is_writer: false,
            paths: BTreeSet::new(),
            sources: BTreeMap::new(),
            others: Others::new(),
        }
    }

    pub(crate) fn is_at(&self, path: &Path) -> bool {
        self.paths.contains(&*path.to_string_lossy())
    }

    pub(crate) fn add_path(&mut self, path: &Path) {
        self.paths.insert(path.to_string_lossy().into_owned());
    }

    /// The sources, and how far each had progressed.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (SourceId, Reached)> {
        self.sources.iter().filter_map(|(id, source)| {
            let reached = Reached {
                next: source.next_backup,
                next_pack: source.next_pack,
            };
            Some((source_id(id)?, reached))
        })
    }

    /// Records that a source has progressed at least this far. A source without backups and packs has nothing
    /// to lose and is not remembered: the command that created it may fail and remove it.
    pub(crate) fn saw(&mut self, id: SourceId, reached: Reached) {
        if reached.next <= 1 && reached.next_pack == 0 {
            return;
        }
        let source = self.sources.entry(id.to_string()).or_default();
        source.next_backup = source.next_backup.max(reached.next);
        source.next_pack = source.next_pack.max(reached.next_pack);
    }

    /// Removes a source, which may be missing from now on.
    pub(crate) fn forget(&mut self, id: SourceId) {
        self.sources.remove(&id.to_string());
    }

    /// Why this build cannot rely on the content, if so.
    fn defect(&self) -> Option<String> {
        if self.version > VERSION {
            let version = self.version;
            return Some(format!(
                "a later onefold has written it (version {version})"
            ));
        }
        let is_possible = |(id, source): (&String, &KnownSource)| {
            source_id(id).is_some() && source.next_backup.max(source.next_pack) <= NUMBER_END
        };
        let is_sound = self.version > 0 && self.sources.iter().all(is_possible);
        (!is_sound).then(|| "a number in it is impossible".to_owned())
    }
}

fn source_id(text: &str) -> Option<SourceId> {
    let id = SourceId(u64::from_str_radix(text, 16).ok()?);
    (id.to_string() == text).then_some(id)
}

impl HostMemory {
    /// The memory in this folder, or in the default folder.
    pub(crate) fn new(state: Option<&Path>) -> Self {
        let folder = state.map_or_else(|| STATE.usual(), |state| Some(state.to_owned()));
        Self {
            folder: folder.map(|folder| folder.join("repositories")),
        }
    }

    /// Returns the memory of a repository, if there is any.
    ///
    /// # Errors
    ///
    /// `Damaged` if the repository's file exists and cannot be read.
    pub(crate) fn known(&self, id: RepositoryId) -> Result<Option<Known>> {
        match self.file(id) {
            Some(file) => read(&file),
            None => Ok(None),
        }
    }

    /// Returns another repository that was used at this path, if there is one.
    ///
    /// # Errors
    ///
    /// `Damaged` if a file cannot be read, because it may belong to that repository.
    pub(crate) fn another_at(&self, path: &Path, id: RepositoryId) -> Result<Option<String>> {
        let Some(folder) = &self.folder else {
            return Ok(None);
        };
        let failed = |e: io::Error| unreadable(folder, &e.to_string());
        let entries = match fs::read_dir(folder) {
            Err(error) if is_absence(&error) => return Ok(None),
            entries => entries.map_err(failed)?,
        };
        let own = id.to_string();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let another = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let Some(another) = another.filter(|name| *name != own && !name.starts_with('.'))
            else {
                continue;
            };
            if read(&entry.path())?.is_some_and(|known| known.is_at(path)) {
                return Ok(Some(another.to_owned()));
            }
        }
        Ok(None)
    }

    /// Changes the memory of a repository. The change is durable when this returns.
    ///
    /// # Errors
    ///
    /// If the memory cannot be read or written.
    pub(crate) fn update(
        &self,
        id: RepositoryId,
        encrypted: bool,
        change: impl Fn(&mut Known),
    ) -> Result<()> {
        let (Some(folder), Some(file)) = (&self.folder, self.file(id)) else {
            return Err(BackupError::failed("the user has no home"));
        };
        let changed = || -> Result<Option<Known>> {
            let before = read(&file)?;
            let mut known = before.clone().unwrap_or_else(|| Known::new(encrypted));
            change(&mut known);
            Ok((before.as_ref() != Some(&known)).then_some(known))
        };
        // First without the lock: usually there is nothing new, and then a read-only memory suffices.
        if changed()?.is_none() {
            return Ok(());
        }
        let failed = |e: io::Error| BackupError::failed(format!("cannot write {file:?}: {e}"));
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("lock"));
        let lock = lock.map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        match changed()? {
            Some(known) => replace(&file, &known).map_err(failed),
            None => Ok(()),
        }
    }

    fn file(&self, id: RepositoryId) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        Some(folder.join(format!("{id}{SUFFIX}")))
    }
}

fn read(file: &Path) -> Result<Option<Known>> {
    let bytes = match fs::read(file) {
        Err(error) if is_absence(&error) => return Ok(None),
        bytes => bytes.map_err(|e| unreadable(file, &e.to_string()))?,
    };
    let known: Known =
        serde_json::from_slice(&bytes).map_err(|e| unreadable(file, &e.to_string()))?;
    match known.defect() {
        Some(defect) => Err(unreadable(file, &defect)),
        None => Ok(Some(known)),
    }
}

fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

fn unreadable(file: &Path, why: &str) -> BackupError {
    let message = format!(
        "what this host remembers of repositories cannot be read: {file:?}: {why}; mend it, or remove it if you are sure \
         that the repository is the one it was"
    );
    BackupError::refused(RepositoryErrorKind::Damaged, message)
}

/// Replaces the file. The lock is held, so no other process uses the name of the new file.
fn replace(file: &Path, known: &Known) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut written = File::create(&new)?;
    serde_json::to_writer_pretty(&mut written, known)?;
    written.write_all(b"\n")?;
    written.sync_all()?;
    fs::rename(&new, file)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RepositoryId = RepositoryId([7; 16]);
    const OTHER: RepositoryId = RepositoryId([8; 16]);
    const SOURCE: SourceId = SourceId(0x00ab_cdef);

    fn reached(next: u64, next_pack: u64) -> Reached {
        Reached { next, next_pack }
    }

    struct Scene {
        folder: tempfile::TempDir,
        memory: HostMemory,
    }

    fn scene() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let memory = HostMemory::new(Some(folder.path()));
        Scene { folder, memory }
    }

    impl Scene {
        fn file(&self) -> PathBuf {
            self.folder
                .path()
                .join(format!("repositories/{ID}{SUFFIX}"))
        }

        fn source(&self) -> Option<Reached> {
            let known = self.memory.known(ID).unwrap()?;
            known
                .sources()
                .find(|source| source.0 == SOURCE)
                .map(|source| source.1)
        }
    }

    #[test]
    fn what_was_seen_is_remembered_and_never_less_of_it() {
        let Scene { memory, .. } = &scene();
        assert_eq!(memory.known(ID).unwrap(), None);
        let path = Path::new("/srv/backup");
        let see = |next, next_pack| {
            let change = |known: &mut Known| {
                known.add_path(path);
                known.saw(SOURCE, reached(next, next_pack));
            };
            memory.update(ID, true, change).unwrap();
        };
        see(5, 9);
        see(4, 10);
        let known = memory.known(ID).unwrap().unwrap();
        assert!(known.encrypted && known.is_at(path));
        let sources: Vec<_> = known.sources().collect();
        assert_eq!(sources, [(SOURCE, reached(5, 10))]);
        assert_eq!(memory.another_at(path, ID).unwrap(), None);
        assert_eq!(
            memory.another_at(path, OTHER).unwrap(),
            Some(ID.to_string())
        );
        let elsewhere = Path::new("/srv/backup/below");
        assert_eq!(memory.another_at(elsewhere, OTHER).unwrap(), None);
        memory
            .update(ID, true, |known| known.forget(SOURCE))
            .unwrap();
        let known = memory.known(ID).unwrap().unwrap();
        assert_eq!(known.sources().count(), 0);
    }

    /// Many concurrent commands each record a source.
    #[test]
    fn commands_at_the_same_time_lose_nothing_of_each_other() {
        let scene = scene();
        let memory = &scene.memory;
        std::thread::scope(|threads| {
            for n in 1..=8 {
                threads.spawn(move || {
                    for round in 1..=10 {
                        let change = |known: &mut Known| known.saw(SourceId(n), reached(round, 1));
                        memory.update(ID, false, change).unwrap();
                    }
                });
            }
        });
        let known = memory.known(ID).unwrap().unwrap();
        let expected: Vec<_> = (1..=8).map(|n| (SourceId(n), reached(10, 1))).collect();
        assert_eq!(known.sources().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_a_later_build_added_stays() {
        let scene = scene();
        let text = format!(
            r#"{{"version": 1, "encrypted": true, "paths": [], "label": ["x"],
                "sources": {{"{SOURCE}": {{"next_backup": 3, "next_pack": 2, "tag": 7}}}}}}"#
        );
        fs::create_dir(scene.folder.path().join("repositories")).unwrap();
        fs::write(scene.file(), text).unwrap();
        let change = |known: &mut Known| known.saw(SOURCE, reached(9, 9));
        scene.memory.update(ID, true, change).unwrap();
        let text = fs::read_to_string(scene.file()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["label"][0], "x");
        let source = serde_json::json!({"next_backup": 9, "next_pack": 9, "tag": 7});
        assert_eq!(value["sources"][SOURCE.to_string()], source);
    }

    #[test]
    fn damage_is_refused_with_the_file_and_never_taken_for_nothing() {
        let scene = scene();
        let change = |known: &mut Known| known.saw(SOURCE, reached(5, 5));
        scene.memory.update(ID, true, change).unwrap();
        let good = fs::read_to_string(scene.file()).unwrap();
        let bad = [
            String::new(),
            good[..good.len() / 2].to_owned(),
            good.replace("\"version\": 1", "\"version\": 2"),
            good.replace("\"version\": 1", "\"version\": 0"),
            good.replace(": 5", ": 4611686018427387905"),
            good.replace(&SOURCE.to_string(), "web"),
            good.replace("\"encrypted\": true", "\"encrypted\": 1"),
        ];
        for bad in bad {
            assert_ne!(bad, good);
            fs::write(scene.file(), &bad).unwrap();
            let known = scene.memory.known(ID).unwrap_err();
            let another = scene.memory.another_at(Path::new("/"), OTHER).unwrap_err();
            for error in [known, another] {
                assert_eq!(error.kind(), RepositoryErrorKind::Damaged, "{bad}");
                assert!(error.to_string().contains(&ID.to_string()), "{error}");
            }
            assert!(scene.memory.update(ID, true, change).is_err());
            assert_eq!(fs::read_to_string(scene.file()).unwrap(), bad);
        }
        fs::write(scene.file(), &good).unwrap();
        assert_eq!(scene.source(), Some(reached(5, 5)));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let memory = HostMemory::new(Some(file.path()));
        assert_eq!(memory.known(ID).unwrap(), None);
        assert_eq!(memory.another_at(Path::new("/"), ID).unwrap(), None);
        assert!(memory.update(ID, true, |_| ()).is_err());
    }
}
