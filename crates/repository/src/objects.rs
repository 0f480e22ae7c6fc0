//! The objects of a repository: sealed with its keys, and kept as files of its folder.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::{
    BackupNumber, ObjectHeader, ObjectName, RepositoryId, RepositoryObject, TAG_BYTES,
};
use rustix::fs::FileType;

use crate::disk::{Root, joined, split};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::{Folder, NewObject, fill_random};
use crate::layout::{decimal, is_ours, number_and_generation};
use crate::seal::{ChunkKey, MasterKey};

/// The most bytes of an object that is read into memory.
const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// A repository's folder, and the keys of the objects in it.
#[derive(Debug)]
pub(crate) struct Objects {
    folder: Folder,
    identity: RepositoryObject,
    master: MasterKey,
}

impl Objects {
    pub(crate) fn new(folder: Folder, identity: RepositoryObject, master: MasterKey) -> Self {
        Self {
            folder: folder.for_writers(identity.writers),
            identity,
            master,
        }
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn root(&self) -> &Root {
        self.folder.root()
    }

    /// The object that says what repository this is, and how it is sealed.
    pub(crate) fn identity(&self) -> &RepositoryObject {
        &self.identity
    }

    pub(crate) fn id(&self) -> RepositoryId {
        self.identity.id
    }

    pub(crate) fn master(&self) -> &MasterKey {
        &self.master
    }

    /// Makes the name of an object durable that another process wrote.
    pub(crate) fn sync_name(&self, name: ObjectName) -> Result<()> {
        let path = name.path();
        let synced = self.folder.sync(split(&path).0);
        synced
            .map_err(|e| RepositoryError::io(format_args!("cannot sync the folder of {path}"), &e))
    }

    /// The names of the complete objects in a folder; empty if there is no folder.
    pub(crate) fn names(&self, folder: &str) -> Result<Vec<String>> {
        let names = self.folder.objects(folder);
        names.map_err(|e| RepositoryError::io(format_args!("cannot list {folder}"), &e))
    }

    /// The names of the folders in a folder, except names that begin with a dot.
    pub(crate) fn folders(&self, folder: &str) -> Result<Vec<String>> {
        let names = self.folder.folders(folder);
        names.map_err(|e| RepositoryError::io(format_args!("cannot list {folder}"), &e))
    }

    /// The objects in a folder whose names are numbers of backups, in order.
    pub(crate) fn numbers(&self, folder: &str) -> Result<Vec<BackupNumber>> {
        let names = self.names(folder)?;
        let numbers = names.iter().filter_map(|name| decimal(name));
        let mut numbers: Vec<_> = numbers.map(BackupNumber).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The numbers below 2^32 in a folder, in order.
    pub(crate) fn generations(&self, folder: &str) -> Result<Vec<u32>> {
        let numbers = self.numbers(folder)?.into_iter();
        let mut generations: Vec<u32> = numbers
            .filter_map(|number| number.0.try_into().ok())
            .collect();
        generations.sort_unstable();
        Ok(generations)
    }

    /// The numbers and generations of the objects below a folder that `named` gives their names, in order.
    pub(crate) fn packs_below(
        &self,
        folder: &str,
        named: impl Fn(u64, u32) -> ObjectName,
    ) -> Result<Vec<(u64, u32)>> {
        let mut found = Vec::new();
        for part in self.folders(folder)? {
            let part = joined(folder, &part);
            if is_ours(&part, FileType::Directory) {
                found.extend(self.packs_in(&part, &named)?);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The numbers and generations of the objects in a folder that `named` gives their names.
    pub(crate) fn packs_in(
        &self,
        folder: &str,
        named: impl Fn(u64, u32) -> ObjectName,
    ) -> Result<Vec<(u64, u32)>> {
        let names = self.names(folder)?.into_iter();
        let found = names.filter_map(|name| {
            let (number, generation) = number_and_generation(&name)?;
            let is_it = named(number, generation).path() == joined(folder, &name);
            is_it.then_some((number, generation))
        });
        Ok(found.collect())
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
            repository: self.identity.id,
            name,
            salt,
        };
        let bytes = header.encode();
        Ok((bytes, self.master.chunks(self.identity.sealing, bytes)))
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
        let decoded = ObjectHeader::decode(&header, name, Some(self.identity.id));
        decoded.map_err(|e| RepositoryError::format(path, e))?;
        Ok(self.master.chunks(self.identity.sealing, header))
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

    /// As [`Objects::put`], but replaces an existing object.
    pub(crate) fn put_over(&self, name: ObjectName, bytes: &[u8]) -> Result<()> {
        let path = name.path();
        self.folder
            .put_over(&path, bytes)
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))
    }

    /// Fails unless the header of a file says that it is this object of this repository: no other file is removed.
    pub(crate) fn check_removable(&self, name: ObjectName) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::repository::Repository;
    use onefold_format::backup::SourceId;

    #[test]
    fn an_object_that_could_not_be_read_is_refused_when_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("r");
        let (repository, _) = Repository::init(&root, &Access::Open, 1).unwrap();
        let name = ObjectName::Manifest(SourceId(1), BackupNumber(1));
        let most = WHOLE_BYTES_MAX as usize - OBJECT_HEADER_BYTES - TAG_BYTES;
        let refused = repository
            .objects()
            .sealed(name, vec![0; most + 1])
            .unwrap_err();
        assert_eq!(refused.kind(), RepositoryErrorKind::Invalid);
        assert!(refused.to_string().contains("--as"), "{refused}");
        check_readable(name, WHOLE_BYTES_MAX).unwrap();
    }
}
