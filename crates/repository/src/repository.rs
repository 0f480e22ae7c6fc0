//! A repository: opening it, and the requests that concern all of it.
//!
//! `Repository` has the objects, and says how to wait for other processes. Each kind of objects has an owner, which
//! borrows both; most methods here and in the files below only name it.

mod catalogue;
mod content;

use std::path::Path;

use onefold_format::backup::{
    ObjectName, RepositoryId, RepositoryObject, Sealing, SourceId, WrappedKey, Writers,
};

use crate::access::{Access, RecoveryKey};
use crate::error::{RepositoryError, Result};
use crate::folder::Folder;
use crate::foreign::Foreign;
use crate::identity::{identity, mend_identity, wrong_identity};
use crate::init::init;
use crate::keys::{Keys, unlock};
use crate::leases::Leases;
use crate::leftovers::Leftovers;
use crate::objects::Objects;
use crate::reader::Readers;
use crate::reserve::{MakingRoom, Reserve};
use crate::seal::MasterKey;
use crate::waiting::Waiting;

/// An open repository.
#[derive(Debug)]
pub struct Repository {
    objects: Objects,
    waiting: Waiting,
    /// The number of the key that opened it; `None` if this process created it, or it is not encrypted.
    opened_by: Option<u64>,
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
                let (master, key) = unlock(&folder, &object, access)?;
                (master, Some(key))
            }
        };
        Ok(Repository {
            objects: Objects::new(folder, object, master),
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

    /// Creates a repository that any number of hosts may write. As [`Repository::init_for`].
    ///
    /// # Errors
    ///
    /// As [`Repository::init_for`].
    pub fn init(
        root: &Path,
        access: &Access,
        now_unix_seconds: u64,
    ) -> Result<(Self, Option<RecoveryKey>)> {
        Self::init_for(Writers::Many, root, access, now_unix_seconds)
    }

    /// Creates a repository in a new or empty folder, or in one in which an earlier attempt failed. Tries every file
    /// system call that a repository needs. With encryption, also creates a recovery key, which is shown only once.
    ///
    /// # Errors
    ///
    /// `Exists` if the folder is not empty; `Io` if the file system lacks a call that is needed for this number of
    /// writers; any failure of writing.
    pub fn init_for(
        writers: Writers,
        root: &Path,
        access: &Access,
        now_unix_seconds: u64,
    ) -> Result<(Self, Option<RecoveryKey>)> {
        let (objects, recovery) = init(writers, root, access, now_unix_seconds)?;
        let repository = Self {
            objects,
            waiting: Waiting::default(),
            opened_by: None,
        };
        Ok((repository, recovery))
    }

    /// Sets how this repository waits for other processes.
    pub fn wait_with(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    pub(crate) fn leases(&self) -> Leases<'_> {
        Leases::new(&self.objects, &self.waiting)
    }

    pub(crate) fn readers(&self) -> Readers<'_> {
        Readers::new(&self.objects, &self.waiting)
    }

    /// The id of the repository.
    #[must_use]
    pub fn id(&self) -> RepositoryId {
        self.objects.id()
    }

    /// Whether the repository's chunks are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.objects.identity().sealing == Sealing::Encrypted
    }

    /// Whether only one host may write the repository.
    #[must_use]
    pub fn has_one_writer(&self) -> bool {
        self.objects.identity().writers == Writers::One
    }

    /// The secret from which the keys of fingerprints are derived.
    #[must_use]
    pub fn fingerprint_secret(&self) -> [u8; 32] {
        self.objects.master().fingerprint_secret()
    }

    /// Errors of the repository's object and of its copy.
    #[must_use]
    pub fn wrong_identity(&self) -> Vec<(ObjectName, RepositoryError)> {
        wrong_identity(&self.objects)
    }

    /// Writes the object of the repository, or its copy, again if it is missing or damaged. Returns how many were
    /// written.
    ///
    /// # Errors
    ///
    /// Any failure of writing.
    pub fn mend_identity(&self) -> Result<u64> {
        mend_identity(&self.objects)
    }

    /// Adds a passphrase or a key file that opens the repository. Returns the number of the new key.
    ///
    /// # Errors
    ///
    /// `Invalid` if the repository is not encrypted; any failure of writing.
    pub fn add_key(&self, access: &Access, now_unix_seconds: u64) -> Result<u64> {
        Keys::new(&self.objects, self.opened_by).add(access, now_unix_seconds)
    }

    /// Adds a recovery key, whose text opens the repository as a key file. Returns the number of the new key.
    ///
    /// # Errors
    ///
    /// As [`Repository::add_key`].
    pub fn add_recovery_key(&self, key: &RecoveryKey, now_unix_seconds: u64) -> Result<u64> {
        Keys::new(&self.objects, self.opened_by).add_recovery(key, now_unix_seconds)
    }

    /// The keys that open the repository, by age. Skips damaged keys.
    ///
    /// # Errors
    ///
    /// `Invalid` if the repository is not encrypted; any failure of reading.
    pub fn keys(&self) -> Result<Vec<WrappedKey>> {
        Keys::new(&self.objects, self.opened_by).readable()
    }

    /// The errors of damaged keys, which no passphrase or key file opens.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn wrong_keys(&self) -> Result<Vec<RepositoryError>> {
        Keys::new(&self.objects, self.opened_by).wrong()
    }

    /// Removes a key. Data is not encrypted again, so a reader that has used the key may still know the master key.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` if it is the last one, or the one that opened this repository; any failure of writing.
    pub fn remove_key(&self, number: u64) -> Result<()> {
        Keys::new(&self.objects, self.opened_by).remove(number)
    }

    /// Fails if [`Repository::remove_key`] would refuse a key.
    ///
    /// # Errors
    ///
    /// As [`Repository::remove_key`].
    pub fn check_key_removable(&self, number: u64) -> Result<()> {
        Keys::new(&self.objects, self.opened_by).check_removable(number)
    }

    /// Fails unless the header of a file says that it is this object of this repository: no other file is removed.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`; any failure of reading.
    pub fn check_removable(&self, name: ObjectName) -> Result<()> {
        self.objects.check_removable(name)
    }

    /// Sets space aside: an object of `bytes` allocated bytes. Returns whether it is there afterwards; without free
    /// space, it is not created.
    ///
    /// # Errors
    ///
    /// Any other failure of writing.
    pub fn set_room_aside(&self, bytes: u64) -> Result<bool> {
        Reserve::of(&self.objects).set_aside(bytes)
    }

    /// Releases the space that is set aside. Returns whether there was any.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn give_up_room(&self) -> Result<bool> {
        Reserve::of(&self.objects).give_up()
    }

    /// Begins to free space. At the end, `aside_bytes` are set aside.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn make_room(&self, aside_bytes: u64) -> Result<MakingRoom<'_>> {
        Reserve::of(&self.objects).make_room(aside_bytes)
    }

    /// Finds foreign files: in the folder of one source, or in the whole repository.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn foreign(&self, only: Option<SourceId>) -> Result<Foreign> {
        Foreign::find(self.objects.root(), only)
    }

    /// Counts the files left behind by killed commands.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn leftovers(&self) -> Result<Leftovers> {
        Leftovers::find(&self.objects, &self.waiting, false)
    }

    /// Removes the files left behind by killed commands.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn remove_leftovers(&self) -> Result<Leftovers> {
        Leftovers::find(&self.objects, &self.waiting, true)
    }
}
