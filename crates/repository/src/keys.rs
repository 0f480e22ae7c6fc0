//! The keys of a repository: passphrases and key files that open it.

use onefold_format::backup::{
    Derivation, ObjectName, RepositoryId, RepositoryObject, Sealing, WrappedKey,
};

use crate::access::{Access, RecoveryKey, unwrap, wrap};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::Folder;
use crate::layout::hexadecimal;
use crate::objects::Objects;
use crate::seal::MasterKey;

/// The most memory and passes of Argon2id with which a passphrase is tried.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const PASSES_MAX: u32 = 10;

/// The keys of an open repository.
pub(crate) struct Keys<'a> {
    objects: &'a Objects,
    /// The number of the key that opened the repository; `None` if this process created it, or it is not encrypted.
    opened_by: Option<u64>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(objects: &'a Objects, opened_by: Option<u64>) -> Self {
        Self { objects, opened_by }
    }

    /// Adds a passphrase or a key file that opens the repository. Returns the number of the new key.
    pub(crate) fn add(&self, access: &Access, now_unix_seconds: u64) -> Result<u64> {
        self.wrap_and_put(access, false, now_unix_seconds)
    }

    /// Adds a recovery key, whose text opens the repository as a key file. Returns the number of the new key.
    pub(crate) fn add_recovery(&self, key: &RecoveryKey, now_unix_seconds: u64) -> Result<u64> {
        self.wrap_and_put(&key.access(), true, now_unix_seconds)
    }

    fn wrap_and_put(
        &self,
        access: &Access,
        is_recovery: bool,
        now_unix_seconds: u64,
    ) -> Result<u64> {
        self.check_encrypted()?;
        let key = wrap(self.objects.master(), access, is_recovery, now_unix_seconds)?;
        self.objects
            .put(ObjectName::Key(key.number), &key.encode(self.objects.id()))?;
        Ok(key.number)
    }

    /// The keys that open the repository, by age. Skips damaged keys.
    pub(crate) fn readable(&self) -> Result<Vec<WrappedKey>> {
        self.check_encrypted()?;
        let keys = wrapped_keys(self.objects.folder(), self.objects.id())?;
        let mut keys: Vec<_> = keys.into_iter().filter_map(Result::ok).collect();
        keys.sort_by_key(|key| (key.created_unix_seconds, key.number));
        Ok(keys)
    }

    /// The errors of damaged keys, which no passphrase or key file opens.
    pub(crate) fn wrong(&self) -> Result<Vec<RepositoryError>> {
        let keys = wrapped_keys(self.objects.folder(), self.objects.id())?;
        Ok(keys.into_iter().filter_map(Result::err).collect())
    }

    /// Removes a key. Data is not encrypted again, so a reader that has used the key may still know the master key.
    pub(crate) fn remove(&self, number: u64) -> Result<()> {
        self.check_removable(number)?;
        self.objects.remove(ObjectName::Key(number))
    }

    /// Fails if [`Keys::remove`] would refuse a key.
    pub(crate) fn check_removable(&self, number: u64) -> Result<()> {
        use RepositoryErrorKind::{Invalid, NotFound};
        let keys = self.readable()?;
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

    fn check_encrypted(&self) -> Result<()> {
        match self.objects.identity().sealing {
            Sealing::Encrypted => Ok(()),
            Sealing::Authenticated => Err(RepositoryError::new(
                RepositoryErrorKind::Invalid,
                "the repository is not encrypted, so it has no keys",
            )),
        }
    }
}

/// The master key, and the number of the key that unwrapped it.
pub(crate) fn unlock(
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
