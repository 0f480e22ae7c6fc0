//! The disks that `backup create` names.

use onefold_api::{SnapshotName, check_name};
use std::path::PathBuf;
use std::str::FromStr;

/// A disk to back up.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    Volume(String),
    Snapshot { volume: String, name: SnapshotName },
    Image { name: String, file: PathBuf },
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wanted = match (text.split_once('='), text.split_once('@')) {
            (Some((name, file)), _) => Self::Image {
                name: name.to_owned(),
                file: PathBuf::from(file),
            },
            (None, Some((volume, _))) => Self::Snapshot {
                volume: volume.to_owned(),
                name: text.parse()?,
            },
            (None, None) => Self::Volume(text.to_owned()),
        };
        check_name(wanted.disk()).map_err(|error| error.to_string())?;
        Ok(wanted)
    }
}

impl Wanted {
    /// The name of the disk.
    pub(super) fn disk(&self) -> &str {
        match self {
            Self::Volume(name) | Self::Image { name, .. } => name,
            Self::Snapshot { volume, .. } => volume,
        }
    }

    /// The volume that is backed up as it is now.
    pub(super) fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(name) => Some(name),
            Self::Snapshot { .. } | Self::Image { .. } => None,
        }
    }

    /// The name of the user's snapshot, without the volume's name; empty if the disk is not a snapshot.
    pub(super) fn snapshot(&self) -> String {
        match self {
            Self::Snapshot { name, .. } => name.snapshot().to_owned(),
            Self::Volume(_) | Self::Image { .. } => String::new(),
        }
    }
}
