//! The names of volumes and snapshots.

use onefold_format::catalogue_page::name_is_valid;

use crate::error::{Result, StoreError, StoreErrorKind};

/// The name of a snapshot in commands that also take volumes.
pub fn full_name(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}

/// Splits a name that [`full_name`] put together into the volume's name and, for a snapshot, its
/// own.
pub fn split_name(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((volume, snapshot)) => (volume, Some(snapshot)),
        None => (name, None),
    }
}

/// `Invalid` if `name` cannot name a volume, snapshot or domain; `of` says which.
pub fn check_name(name: &str, of: &str) -> Result<()> {
    if name_is_valid(name) {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Invalid,
        format!(
            "'{}' cannot name a {of}: letters, digits, '.', '_' and '-', beginning with a letter \
             or digit, 63 at most",
            name.escape_debug()
        ),
    ))
}
