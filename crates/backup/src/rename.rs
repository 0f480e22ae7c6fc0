//! Renames a source.

use onefold_format::backup::Label;
use onefold_repository::KnownSource;

use crate::error::Result;
use crate::finding::find_source;
use crate::opening::Opened;

/// Renames the source with this name or id. Returns the source as it was before.
///
/// # Errors
///
/// `NotFound` if there is no such source, `Exists` if another one has the new name, `Damaged` if the source went back.
pub fn rename_source(opened: &Opened, name: &str, new_name: &str) -> Result<KnownSource> {
    let repository = opened.repository();
    let known = find_source(repository, name)?;
    opened.check(known.id)?;
    let mut writer = repository.writer(known.id, "backup rename")?;
    writer.set_label(Label {
        name: new_name.to_owned(),
        origin: known.source.origin.clone(),
    })?;
    Ok(known)
}
