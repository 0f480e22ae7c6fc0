//! Creates repositories.

use std::path::{Path, PathBuf};

use onefold_format::backup::Writers;
use onefold_repository::{Access, RecoveryKey, Repository, now_unix_seconds};

use crate::error::{BackupError, Result};
use crate::opening::remember_new;
use crate::supervision::Supervision;

/// The repository to create.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// Folder of the repository: a new or empty one.
    pub root: PathBuf,
    /// Folder in which this host remembers repositories; the usual folder if absent.
    pub state: Option<PathBuf>,
    /// Whether only one host may write to the repository.
    pub writers: Writers,
    /// Bytes to reserve so that a full repository can be pruned.
    pub aside_bytes: u64,
}

/// A new repository.
#[derive(Debug)]
pub struct NewRepository {
    /// The repository.
    pub repository: Repository,
    /// A key that opens the repository if all other keys are lost. It is not stored.
    pub recovery_key: Option<RecoveryKey>,
    /// Bytes that are reserved so that a full repository can be pruned; 0 if there is no room.
    pub aside_bytes: u64,
}

impl NewRepository {
    /// Creates a repository, and remembers it.
    ///
    /// # Errors
    ///
    /// `Invalid` for a folder inside a pool, `Exists` for one that is not empty; any failure of writing.
    pub fn create(
        options: &InitOptions,
        access: &Access,
        supervision: &Supervision,
    ) -> Result<Self> {
        let (root, state) = (&options.root, options.state.as_deref());
        check_outside_pools(root)?;
        let made = Repository::init_for(options.writers, root, access, now_unix_seconds());
        let (repository, recovery_key) = made?;
        remember_new(root, state, &repository, supervision);
        let is_aside = repository.set_room_aside(options.aside_bytes)?;
        Ok(Self {
            repository,
            recovery_key,
            aside_bytes: if is_aside { options.aside_bytes } else { 0 },
        })
    }
}

/// A backup must survive the loss of a pool, so its repository must not be inside one.
fn check_outside_pools(root: &Path) -> Result<()> {
    let absolute = std::path::absolute(root);
    let absolute =
        absolute.map_err(|e| BackupError::failed(format!("cannot use {root:?}: {e}")))?;
    let is_pool = |folder: &&Path| folder.join("superblock").is_file();
    match absolute.ancestors().find(is_pool) {
        None => Ok(()),
        Some(pool) => Err(BackupError::usage(format!(
            "{root:?} is inside the pool {pool:?}, and would be lost with it; choose a folder elsewhere, best on \
             another disk"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_repository::RepositoryErrorKind;

    #[test]
    fn a_repository_is_not_created_inside_a_pool() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        check_outside_pools(&pool.join("backups")).unwrap();
        std::fs::write(pool.join("superblock"), b"").unwrap();
        for inside in ["", "backups", "a/b"] {
            let error = check_outside_pools(&pool.join(inside)).unwrap_err();
            assert_eq!(error.kind(), RepositoryErrorKind::Invalid, "{error}");
        }
        check_outside_pools(&folder.path().join("backups")).unwrap();
    }
}
