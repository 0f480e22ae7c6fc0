//! A repository and its sources.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::{
    Derivation, ObjectHeader, ObjectName, Place, RepositoryId, RepositoryObject, Sealing, Source,
    SourceId, TAG_BYTES, WrappedKey, Writers,
};

use crate::access::{Access, RecoveryKey, unwrap, wrap};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::{Folder, NewObject, fill_random};
use crate::identity::identity;
use crate::layout::hexadecimal;
use crate::seal::{ChunkKey, MasterKey};
use crate::sources::KnownSource;
use crate::waiting::Waiting;

const POPULAR_CONTEXT: &str = "onefold 2026-11-26 ids of the popular blocks of a repository";

/// The most memory and passes of Argon2id with which a passphrase is tried.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const PASSES_MAX: u32 = 10;

/// The most bytes of an object that is read into memory.
const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// An open repository.
#[derive(Debug)]
pub struct Repository {
    pub(crate) folder: Folder,
    pub(crate) object: RepositoryObject,
    pub(crate) master: MasterKey,
    pub(crate) waiting: Waiting,
    /// The number of the key that opened it; `None` if this process created it, or it is not encrypted.
    pub(crate) opened_by: Option<u64>,
}

/// A repository that is not opened yet. Nothing that it claims is proved.
#[derive(Debug)]
pub struct Unopened {
    folder: Folder,
    object: RepositoryObject,
}

impl Unopened {
    /// The claimed id of the repository.
    #[must_use]
    pub fn id(&self) -> RepositoryId {
        self.object.id
    }

    /// Whether the repository claims that its chunks are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.object.sealing == Sealing::Encrypted
    }

    /// Whether the repository claims that only one host may write it.
    #[must_use]
    pub fn has_one_writer(&self) -> bool {
        self.object.writers == Writers::One
    }

    /// Opens the repository with the identity read before, even if its object has changed since.
    ///
    /// # Errors
    ///
    /// `Access` if the passphrase or the key file opens nothing; `Damaged`.
    pub fn open(self, access: &Access) -> Result<Repository> {
        let Self { folder, object } = self;
        let (master, opened_by) = match object.sealing {
            Sealing::Authenticated => (MasterKey::plain(object.id), None),
            Sealing::Encrypted => {
                let (master, key) = Repository::unlock(&folder, &object, access)?;
                (master, Some(key))
            }
        };
        Ok(Repository {
            folder: folder.for_writers(object.writers),
            object,
            master,
            waiting: Waiting::default(),
            opened_by,
        })
    }
}

impl Repository {
    /// Finds the repository in this folder.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none; `Damaged`.
    pub fn find(root: &Path) -> Result<Unopened> {
        let (folder, object) = identity(root)?;
        Ok(Unopened { folder, object })
    }

    /// Opens the repository in this folder.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Access` if the passphrase or the key file opens nothing; `Damaged`.
    pub fn open(root: &Path, access: &Access) -> Result<Self> {
        Self::find(root)?.open(access)
    }

    /// The master key, and the number of the key that unwrapped it.
    fn unlock(
        folder: &Folder,
        object: &RepositoryObject,
        access: &Access,
    ) -> Result<(MasterKey, u64)> {
        let mut damaged = None;
        let mut keys = wrapped_keys(folder, object.id)?;
        keys.sort_by_key(|key| key.as_ref().map_or(0, cost));
        for key in keys {
            match key.and_then(affordable) {
                Ok(key) => {
                    if let Some(master) = unwrap(&key, access)? {
                        return Ok((master, key.number));
                    }
                }
                // Another key may still work.
                Err(error) => damaged = Some(error),
            }
        }
        Err(damaged.unwrap_or_else(|| {
            let message = match access {
                Access::Passphrase(_) => "this passphrase opens no key of the repository",
                Access::KeyFile(_) => "this key file opens no key of the repository",
                Access::Open => "the repository is encrypted: give --passphrase-file or --key-file",
            };
            RepositoryError::new(RepositoryErrorKind::Access, message)
        }))
    }

    /// Adds a passphrase or a key file that opens the repository. Returns the number of the new key.
    ///
    /// # Errors
    ///
    /// `Invalid` if the repository is not encrypted; any failure of writing.
    pub fn add_key(&self, access: &Access, now_unix_seconds: u64) -> Result<u64> {
        self.wrap_and_put(access, false, now_unix_seconds)
    }

    /// Adds a recovery key, whose text opens the repository as a key file. Returns the number of the new key.
    ///
    /// # Errors
    ///
    /// As [`Repository::add_key`].
    pub fn add_recovery_key(&self, key: &RecoveryKey, now_unix_seconds: u64) -> Result<u64> {
        self.wrap_and_put(&key.access(), true, now_unix_seconds)
    }

    fn wrap_and_put(
        &self,
        access: &Access,
        is_recovery: bool,
        now_unix_seconds: u64,
    ) -> Result<u64> {
        self.check_encrypted()?;
        let key = wrap(&self.master, access, is_recovery, now_unix_seconds)?;
        self.put(ObjectName::Key(key.number), &key.encode(self.object.id))?;
        Ok(key.number)
    }

    /// The keys that open the repository, by age. Skips damaged keys.
    ///
    /// # Errors
    ///
    /// `Invalid` if the repository is not encrypted; any failure of reading.
    pub fn keys(&self) -> Result<Vec<WrappedKey>> {
        self.check_encrypted()?;
        let keys = wrapped_keys(&self.folder, self.object.id)?;
        let mut keys: Vec<_> = keys.into_iter().filter_map(Result::ok).collect();
        keys.sort_by_key(|key| (key.created_unix_seconds, key.number));
        Ok(keys)
    }

    /// The errors of damaged keys, which no passphrase or key file opens.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn wrong_keys(&self) -> Result<Vec<RepositoryError>> {
        let keys = wrapped_keys(&self.folder, self.object.id)?;
        Ok(keys.into_iter().filter_map(Result::err).collect())
    }

    /// Removes a key. Data is not encrypted again, so a reader that has used the key may still know the master key.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` if it is the last one, or the one that opened this repository; any failure of writing.
    pub fn remove_key(&self, number: u64) -> Result<()> {
        self.check_key_removable(number)?;
        self.remove(ObjectName::Key(number))
    }

    /// Fails if [`Repository::remove_key`] would refuse a key.
    ///
    /// # Errors
    ///
    /// As [`Repository::remove_key`].
    pub fn check_key_removable(&self, number: u64) -> Result<()> {
        use RepositoryErrorKind::{Invalid, NotFound};
        let keys = self.keys()?;
        let (kind, message) = if !keys.iter().any(|key| key.number == number) {
            (NotFound, format!("the repository has no key {number:016x}"))
        } else if keys.len() == 1 {
            let message = "is the only one: without it the repository could not be opened again";
            (Invalid, format!("key {number:016x} {message}"))
        } else if self.opened_by == Some(number) {
            let message = "is the one that opened the repository just now: open it with the passphrase or the key file \
                           that shall stay, and remove this key then";
            (Invalid, format!("key {number:016x} {message}"))
        } else {
            return Ok(());
        };
        Err(RepositoryError::new(kind, message))
    }

    /// Fails unless the header of a file says that it is this object of this repository: no other file is removed.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`; any failure of reading.
    pub fn check_removable(&self, name: ObjectName) -> Result<()> {
        match self.open_object(name) {
            Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                let message = format!(
                    "{} stays as it is, because nothing says that it is of this repository; remove it if it is of no use: \
                     {error}",
                    name.path()
                );
                Err(RepositoryError::new(error.kind(), message))
            }
            opened => opened.map(drop),
        }
    }

    pub(crate) fn remove(&self, name: ObjectName) -> Result<()> {
        self.check_removable(name)?;
        let path = name.path();
        let removed = self.folder.remove(&path);
        removed.map_err(|e| RepositoryError::io(format_args!("cannot remove object {path}"), &e))
    }

    fn check_encrypted(&self) -> Result<()> {
        match self.object.sealing {
            Sealing::Encrypted => Ok(()),
            Sealing::Authenticated => Err(RepositoryError::new(
                RepositoryErrorKind::Invalid,
                "the repository is not encrypted, so it has no keys",
            )),
        }
    }

    /// The id of the repository.
    #[must_use]
    pub fn id(&self) -> RepositoryId {
        self.object.id
    }

    /// Whether the repository's chunks are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.object.sealing == Sealing::Encrypted
    }

    /// Whether only one host may write the repository.
    #[must_use]
    pub fn has_one_writer(&self) -> bool {
        self.object.writers == Writers::One
    }

    /// The secret from which the keys of fingerprints are derived.
    #[must_use]
    pub fn fingerprint_secret(&self) -> [u8; 32] {
        self.master.fingerprint_secret()
    }

    /// The ids of all sources, including stores of popular blocks.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn source_ids(&self) -> Result<Vec<SourceId>> {
        let names = self
            .folder
            .folders("sources")
            .map_err(|e| RepositoryError::io("cannot list the sources of the repository", &e))?;
        Ok(names.iter().filter_map(|name| source_named(name)).collect())
    }

    pub(crate) fn source_in(&self, name: ObjectName) -> Result<Source> {
        let content = self.read_sealed(name)?;
        Source::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }

    /// Creates the folders of a new source, with copies of its object.
    pub(crate) fn complete_source(&self, known: &KnownSource) -> Result<()> {
        for place in Place::all(known.source.is_popular()) {
            let name = ObjectName::Copy(known.id, *place);
            self.put_over(name, &self.sealed(name, known.born.encode())?)?;
        }
        Ok(())
    }

    /// The id of the store of popular blocks that a source shares with others. The store may not exist yet.
    #[must_use]
    pub fn popular_id(&self, source: &Source) -> SourceId {
        let mut hasher = blake3::Hasher::new_derive_key(POPULAR_CONTEXT);
        hasher.update(&self.master.0);
        hasher.update(&source.block_size.to_le_bytes());
        hasher.update(source.domain.as_bytes());
        let mut id = [0; 8];
        hasher.finalize_xof().fill(&mut id);
        SourceId(u64::from_le_bytes(id).max(1))
    }

    /// Starts an object with chunks by writing its header.
    pub(crate) fn begin(
        &self,
        name: ObjectName,
        mut object: NewObject,
    ) -> Result<(NewObject, ChunkKey)> {
        let (header, key) = self.new_header(name)?;
        let written = object.write_all(&header);
        written.map_err(|e| {
            RepositoryError::io(format_args!("cannot write object {}", name.path()), &e)
        })?;
        Ok((object, key))
    }

    fn new_header(&self, name: ObjectName) -> Result<([u8; OBJECT_HEADER_BYTES], ChunkKey)> {
        let mut salt = [0; 16];
        fill_random(&mut salt).map_err(|e| {
            RepositoryError::io(format_args!("cannot write object {}", name.path()), &e)
        })?;
        let header = ObjectHeader {
            repository: self.object.id,
            name,
            salt,
        };
        let bytes = header.encode();
        Ok((bytes, self.master.chunks(self.object.sealing, bytes)))
    }

    /// Opens an object with chunks, and checks its header.
    pub(crate) fn open_object(&self, name: ObjectName) -> Result<(File, ChunkKey)> {
        self.open_object_at(&name.path(), name)
    }

    fn open_object_at(&self, path: &str, name: ObjectName) -> Result<(File, ChunkKey)> {
        let failed =
            |e: &std::io::Error| RepositoryError::io(format_args!("cannot read object {path}"), e);
        let file = self.folder.open_file(path).map_err(|e| failed(&e))?;
        let mut bytes = [0; OBJECT_HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0)
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => RepositoryError::damaged(path, "it is cut"),
                _ => failed(&e),
            })?;
        Ok((file, self.key_of_header(path, name, bytes)?))
    }

    /// The key for the chunks of the object with this header.
    pub(crate) fn key_of_header(
        &self,
        path: &str,
        name: ObjectName,
        header: [u8; OBJECT_HEADER_BYTES],
    ) -> Result<ChunkKey> {
        let decoded = ObjectHeader::decode(&header, name, Some(self.object.id));
        decoded.map_err(|e| RepositoryError::format(path, e))?;
        Ok(self.master.chunks(self.object.sealing, header))
    }

    /// The bytes of an object with one chunk.
    pub(crate) fn sealed(&self, name: ObjectName, mut content: Vec<u8>) -> Result<Vec<u8>> {
        check_readable(
            name,
            (OBJECT_HEADER_BYTES + content.len() + TAG_BYTES) as u64,
        )?;
        let (header, key) = self.new_header(name)?;
        let sealed = key.seal(0, &mut content);
        sealed.map_err(|e| RepositoryError::damaged(&name.path(), e))?;
        Ok([&header[..], &content].concat())
    }

    /// Reads the content of an object with one chunk.
    pub(crate) fn read_sealed(&self, name: ObjectName) -> Result<Vec<u8>> {
        self.read_sealed_at(&name.path(), name)
    }

    /// Reads the content of an object with one chunk, at another path because its folder was renamed.
    pub(crate) fn read_sealed_at(&self, path: &str, name: ObjectName) -> Result<Vec<u8>> {
        let (file, key) = self.open_object_at(path, name)?;
        let failed =
            |e: &std::io::Error| RepositoryError::io(format_args!("cannot read object {path}"), e);
        let bytes = file.metadata().map_err(|e| failed(&e))?.len();
        if bytes > WHOLE_BYTES_MAX {
            return Err(RepositoryError::damaged(
                path,
                format_args!("it has {bytes} bytes"),
            ));
        }
        let mut content = vec![0; bytes.saturating_sub(OBJECT_HEADER_BYTES as u64) as usize];
        file.read_exact_at(&mut content, OBJECT_HEADER_BYTES as u64)
            .map_err(|e| failed(&e))?;
        let opened = key.open(0, &mut content);
        opened.map_err(|e| RepositoryError::damaged(path, e))?;
        Ok(content)
    }

    pub(crate) fn put(&self, name: ObjectName, bytes: &[u8]) -> Result<()> {
        let path = name.path();
        self.folder
            .put(&path, bytes)
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))
    }

    /// As [`Repository::put`], but replaces an existing object.
    pub(crate) fn put_over(&self, name: ObjectName, bytes: &[u8]) -> Result<()> {
        let path = name.path();
        self.folder
            .put_over(&path, bytes)
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))
    }
}

/// Refuses to write an object that is too large for readers.
fn check_readable(name: ObjectName, bytes: u64) -> Result<()> {
    if bytes <= WHOLE_BYTES_MAX {
        return Ok(());
    }
    let remedy = match name {
        ObjectName::Manifest(..) => {
            "; the stored blocks of the backup are in too many runs: back the disk up as another source, with --as"
        }
        _ => "",
    };
    let message = format!(
        "object {} would have {bytes} bytes, and nothing reads more than {WHOLE_BYTES_MAX}{remedy}",
        name.path()
    );
    Err(RepositoryError::new(RepositoryErrorKind::Invalid, message))
}

/// Refuses a key that is costlier to try than any that this program creates: a writer to the folder chooses the cost.
fn affordable(key: WrappedKey) -> Result<WrappedKey> {
    match key.derivation {
        Derivation::Passphrase {
            memory_kib, passes, ..
        } if memory_kib > MEMORY_KIB_MAX || passes > PASSES_MAX => {
            let message = format!(
                "{} asks for {} MiB and {passes} passes to try a passphrase; {} MiB and {PASSES_MAX} passes are the limit",
                ObjectName::Key(key.number).path(),
                memory_kib >> 10,
                MEMORY_KIB_MAX >> 10,
            );
            Err(RepositoryError::new(RepositoryErrorKind::Access, message))
        }
        _ => Ok(key),
    }
}

/// The cost of trying a key, by which they are tried in ascending order.
fn cost(key: &WrappedKey) -> u64 {
    match key.derivation {
        Derivation::KeyFile => 0,
        Derivation::Passphrase {
            memory_kib, passes, ..
        } => u64::from(memory_kib) * u64::from(passes),
    }
}

/// The keys of a repository, each with the reason if it is unreadable.
fn wrapped_keys(folder: &Folder, id: RepositoryId) -> Result<Vec<Result<WrappedKey>>> {
    let names = folder.objects("keys");
    let names =
        names.map_err(|e| RepositoryError::io("cannot list the keys of the repository", &e))?;
    let numbers = names.iter().filter_map(|name| hexadecimal(name));
    let keys = numbers.map(|number| {
        let path = ObjectName::Key(number).path();
        let bytes = folder
            .read(&path)
            .map_err(|e| RepositoryError::io(format_args!("cannot read {path}"), &e))?;
        let key = WrappedKey::decode(&bytes, number, id);
        key.map_err(|e| RepositoryError::format(&path, e))
    });
    Ok(keys.collect())
}

/// The source whose folder has this name.
pub(crate) fn source_named(name: &str) -> Option<SourceId> {
    hexadecimal(name).map(SourceId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::backup::BackupNumber;
    use std::sync::Barrier;

    #[test]
    fn of_several_that_add_a_source_at_once_one_does() {
        for _ in 0..5 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("r");
            Repository::init(&root, &Access::Open, 1).unwrap();
            let all_are_there = Barrier::new(4);
            let add = || {
                let repository = Repository::open(&root, &Access::Open).unwrap();
                all_are_there.wait();
                repository.add_source(Source {
                    name: "web".to_owned(),
                    domain: "default".to_owned(),
                    block_size: 4096,
                    origin: None,
                })
            };
            let added = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(add));
                threads.map(|thread| thread.join().unwrap())
            });
            let alone: Vec<_> = added.iter().flatten().map(|known| known.id).collect();
            let repository = Repository::open(&root, &Access::Open).unwrap();
            let there = repository.sources().unwrap().disks;
            assert_eq!(alone, [there[0].id], "{added:?}");
            assert_eq!(there.len(), 1);
        }
    }

    #[test]
    fn an_object_that_could_not_be_read_is_refused_when_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("r");
        let (repository, _) = Repository::init(&root, &Access::Open, 1).unwrap();
        let name = ObjectName::Manifest(SourceId(1), BackupNumber(1));
        let most = WHOLE_BYTES_MAX as usize - OBJECT_HEADER_BYTES - TAG_BYTES;
        let refused = repository.sealed(name, vec![0; most + 1]).unwrap_err();
        assert_eq!(refused.kind(), RepositoryErrorKind::Invalid);
        assert!(refused.to_string().contains("--as"), "{refused}");
        check_readable(name, WHOLE_BYTES_MAX).unwrap();
    }
}
