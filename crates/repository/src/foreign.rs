//! Foreign files: files in a repository's folder that do not belong to the repository.

use onefold_format::backup::SourceId;
use rustix::fs::FileType;

use crate::disk::{Root, joined};
use crate::error::{RepositoryError, Result};
use crate::layout::{LOST_AND_FOUND, is_ours};

/// The most foreign names that are returned.
const FOREIGN_MAX: usize = 100;

/// The foreign files in a repository's folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    /// The first hundred names, relative to the repository's folder.
    pub names: Vec<String>,
    /// Whether there are more.
    pub has_more: bool,
}

impl Foreign {
    /// Finds foreign files: in the folder of one source, or in the whole repository.
    pub(crate) fn find(root: &Root, only: Option<SourceId>) -> Result<Foreign> {
        let mut foreign = Foreign::default();
        let mut folders = vec![only.map_or_else(String::new, |id| format!("sources/{id}"))];
        while let Some(folder) = folders.pop() {
            let entries = root.list(&folder);
            let entries = entries
                .map_err(|e| RepositoryError::io(format_args!("cannot list {folder}"), &e))?;
            for entry in entries {
                let path = joined(&folder, &entry.name);
                if is_ours(&path, entry.kind) {
                    if entry.kind == FileType::Directory {
                        folders.push(path);
                    }
                } else if path != LOST_AND_FOUND {
                    if foreign.names.len() == FOREIGN_MAX {
                        foreign.has_more = true;
                    } else {
                        foreign.names.push(path);
                    }
                }
            }
        }
        foreign.names.sort_unstable();
        Ok(foreign)
    }
}
