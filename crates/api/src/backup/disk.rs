//! The disks that a request to back up names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use onefold_backup::WantedDisk;
use serde::{Deserialize, Serialize};

use crate::service::check_name;
use crate::snapshot::SnapshotName;

/// A disk to back up: `VOLUME`, `VOLUME@SNAPSHOT`, or `NAME=FILE` for an image or a device. In JSON it is a string of
/// this form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskSpec(WantedDisk);

impl DiskSpec {
    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &WantedDisk {
        &self.0
    }
}

impl fmt::Display for DiskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            WantedDisk::Volume(name) => f.write_str(name),
            WantedDisk::Snapshot { volume, snapshot } => write!(f, "{volume}@{snapshot}"),
            WantedDisk::Image { name, file } => write!(f, "{name}={}", file.display()),
        }
    }
}

impl FromStr for DiskSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let disk = match (text.split_once('='), text.parse::<SnapshotName>()) {
            (Some((name, file)), _) => WantedDisk::Image {
                name: name.to_owned(),
                file: PathBuf::from(file),
            },
            (None, Ok(name)) => WantedDisk::Snapshot {
                volume: name.volume().to_owned(),
                snapshot: name.snapshot().to_owned(),
            },
            (None, Err(_)) => WantedDisk::Volume(text.to_owned()),
        };
        check_name(disk.name()).map_err(|error| error.to_string())?;
        Ok(Self(disk))
    }
}

impl TryFrom<String> for DiskSpec {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<DiskSpec> for String {
    fn from(spec: DiskSpec) -> Self {
        spec.to_string()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for DiskSpec {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for DiskSpec {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_a_volume_a_snapshot_or_an_image() {
        for (text, name, needs_pool) in [
            ("web", "web", true),
            ("web@before", "web", true),
            ("web=/srv/web@1.img", "web", false),
        ] {
            let spec: DiskSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
            let disk = spec.disk();
            assert_eq!((disk.name(), disk.needs_pool()), (name, needs_pool));
        }
        for text in ["", "@x", "=file", "a/b", "a/b=file"] {
            assert!(text.parse::<DiskSpec>().is_err(), "{text}");
        }
    }
}
