//! The origin of a disk, in replies.

use onefold_format::backup::Origin;
use serde::{Deserialize, Serialize};

/// The origin of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum OriginReply {
    /// A volume of a pool.
    Volume {
        /// Id of the pool.
        pool: String,
        /// Number of the volume in the pool.
        volume: u64,
    },
    /// A disk image or device.
    File {
        /// Hash of the machine's id.
        machine: String,
        /// Absolute path on the machine.
        path: String,
    },
}

impl From<&Origin> for OriginReply {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::Volume { pool, volume } => Self::Volume {
                pool: pool.to_string(),
                volume: volume.0,
            },
            Origin::File { machine, path } => Self::File {
                machine: machine.to_string(),
                path: path.clone(),
            },
        }
    }
}
