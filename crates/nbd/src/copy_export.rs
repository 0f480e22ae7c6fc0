//! The name of the export through which a backup reads a snapshot.

use std::fmt;
use std::str::FromStr;

use onefold_store::split_name;

/// Prefix of exports through which backups read snapshots. No volume name contains a colon.
const COPY_OF: &str = "copy:";

/// The name of an export through which a backup reads a snapshot, so that guests go first: `copy:VOLUME@SNAPSHOT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyExport {
    snapshot: String,
}

impl CopyExport {
    /// The export for a snapshot that is named `VOLUME@SNAPSHOT`. Volumes have none.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        split_name(name).1.map(|_| Self {
            snapshot: name.to_owned(),
        })
    }

    /// The name of the snapshot, `VOLUME@SNAPSHOT`.
    #[must_use]
    pub fn snapshot(&self) -> &str {
        &self.snapshot
    }
}

impl fmt::Display for CopyExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{COPY_OF}{}", self.snapshot)
    }
}

/// The text is not the name of an export for a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an export for a backup is named {COPY_OF}VOLUME@SNAPSHOT")]
pub struct NoCopyExport;

impl FromStr for CopyExport {
    type Err = NoCopyExport;

    fn from_str(export: &str) -> Result<Self, NoCopyExport> {
        let snapshot = export.strip_prefix(COPY_OF);
        snapshot.and_then(Self::of).ok_or(NoCopyExport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_snapshots_are_exported_for_backups() {
        let export: CopyExport = "copy:vm@before".parse().unwrap();
        assert_eq!(export.snapshot(), "vm@before");
        assert_eq!(CopyExport::of("vm@before"), Some(export.clone()));
        assert_eq!(export.to_string(), "copy:vm@before");
        assert_eq!(CopyExport::of("vm"), None);
        for name in ["vm", "vm@before", "copy:vm", "copy:"] {
            assert_eq!(name.parse::<CopyExport>(), Err(NoCopyExport), "{name}");
        }
    }
}
