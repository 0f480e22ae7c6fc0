//! The keys that open an encrypted repository.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use onefold_repository::{Access, RecoveryKey, now_unix_seconds};

use crate::error::{BackupError, Result};
use crate::opening::Opened;

/// Adds a passphrase or key that opens the repository.
///
/// # Errors
///
/// `Invalid` if the repository is not encrypted, `Damaged` if it went back; any failure of writing.
pub fn add_key(opened: &Opened, access: &Access) -> Result<()> {
    opened.check_all()?;
    opened.repository().add_key(access, now_unix_seconds())?;
    Ok(())
}

/// Writes a new recovery key to a file, which must not exist. The file is durable before the repository accepts the
/// key.
///
/// # Errors
///
/// `Invalid` if the repository is not encrypted, `Damaged` if it went back; any failure of writing.
pub fn export_recovery_key(opened: &Opened, file: &Path) -> Result<()> {
    opened.check_all()?;
    let key = RecoveryKey::new()?;
    let failed = |e: io::Error| BackupError::failed(format!("cannot write {file:?}: {e}"));
    let mut options = File::options();
    let mut written = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(failed)?;
    let added = writeln!(written, "{key}")
        .and_then(|()| written.sync_all())
        .map_err(failed)
        .and_then(|()| {
            let added = opened
                .repository()
                .add_recovery_key(&key, now_unix_seconds());
            added.map(drop).map_err(BackupError::from)
        });
    if added.is_err() {
        // Without the repository's entry, the key opens nothing.
        let _ = std::fs::remove_file(file);
    }
    added
}

/// Removes a key, or with `is_planned` only checks that it can be removed.
///
/// # Errors
///
/// `NotFound` if there is no such key, `Invalid` for one that must stay, `Damaged` if the repository went back.
pub fn remove_key(opened: &Opened, number: u64, is_planned: bool) -> Result<()> {
    opened.check_all()?;
    if is_planned {
        opened.repository().check_key_removable(number)?;
    } else {
        opened.repository().remove_key(number)?;
    }
    Ok(())
}
