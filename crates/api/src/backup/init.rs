//! A new repository.

use clap::Args;
use onefold_backup::{ASIDE_BYTES, InitOptions, NewRepository, Supervision};
use onefold_format::backup::Writers;
use onefold_repository::Access;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use super::request::RepositoryVerb;
use crate::error::Result;

/// Creates a repository in a new or empty folder.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupInit {
    /// Allow only one host to write to the repository, for file systems that cannot keep concurrent hosts
    /// apart, such as rclone's. Other hosts may read it.
    #[arg(long)]
    #[serde(default)]
    pub one_writer: bool,
}

/// A new repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupInitReply {
    /// Id of the repository.
    pub id: String,
    /// Whether the repository is encrypted.
    pub encrypted: bool,
    /// Whether only one host may write to the repository.
    pub one_writer: bool,
    /// A key that opens the repository if all other keys are lost; null without encryption.
    pub recovery_key: Option<String>,
    /// Bytes that are reserved so that a full repository can be pruned.
    pub aside_bytes: u64,
}

impl RepositoryVerb for BackupInit {
    const NAME: &'static str = "backup init";
    type Reply = BackupInitReply;
}

impl BackupInit {
    /// Creates the repository, and remembers it in the folder `state`.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage) for a folder inside a pool, [`Exists`](crate::ErrorKind::Exists) for one that
    /// is not empty; any failure of writing.
    pub fn run(
        &self,
        root: &Path,
        state: Option<PathBuf>,
        access: &Access,
        supervision: &Supervision,
    ) -> Result<BackupInitReply> {
        let options = InitOptions {
            root: root.to_owned(),
            state,
            writers: if self.one_writer {
                Writers::One
            } else {
                Writers::Many
            },
            aside_bytes: ASIDE_BYTES,
        };
        let made = NewRepository::create(&options, access, supervision)?;
        Ok(BackupInitReply {
            id: made.repository.id().to_string(),
            encrypted: made.repository.is_encrypted(),
            one_writer: made.repository.has_one_writer(),
            recovery_key: made.recovery_key.map(|key| key.to_string()),
            aside_bytes: made.aside_bytes,
        })
    }
}
