//! The keys of an encrypted repository.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use onefold_backup::{add_key, export_recovery_key, remove_key};
use onefold_format::backup::Derivation;
use onefold_repository::Repository;
use serde::{Deserialize, Serialize};

use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::RepositoryService;
use crate::error::{Error, Result};

/// The number of a key: 16 hexadecimal digits. In JSON it is a string of this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyNumber(u64);

impl fmt::Display for KeyNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for KeyNumber {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = u64::from_str_radix(text, 16);
        let number = number.map_err(|_| "not the number of a key".to_owned())?;
        Ok(Self(number))
    }
}

impl TryFrom<String> for KeyNumber {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<KeyNumber> for String {
    fn from(number: KeyNumber) -> Self {
        number.to_string()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for KeyNumber {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .pattern(Some("^[0-9a-f]+$"))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for KeyNumber {}

/// Adds a passphrase or a key file that opens the repository.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupKeyAdd {
    /// File whose first line is the new passphrase.
    #[arg(long, value_name = "FILE", conflicts_with = "new_key_file")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub new_passphrase_file: Option<PathBuf>,

    /// File whose content is the new key.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "new_passphrase_file"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub new_key_file: Option<PathBuf>,
}

/// Lists the keys that open the repository.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupKeyList {}

/// Writes a new recovery key to a file. It opens the repository as a key file, and stays valid until it is
/// removed.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupKeyExport {
    /// File to create, readable only by its owner. It must not exist.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub file: PathBuf,
}

/// Removes a key. The repository is not encrypted again, so a former holder of the key may still be able to
/// read it.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupKeyRemove {
    /// Number of the key, as `backup key list` prints it.
    pub key: KeyNumber,

    /// Remove the key. Without this option nothing is changed.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// The keys that open a repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupKeysReply {
    /// The keys, one entry each.
    pub keys: Vec<ListedKey>,
}

/// A key in a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedKey {
    /// Number of the key, 16 hexadecimal digits.
    pub key: KeyNumber,
    /// Kind of the key: `passphrase`, `key file` or `recovery key`, which is used like a key file.
    pub kind: String,
    /// The moment at which the key was added, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
}

impl BackupKeysReply {
    fn of(repository: &Repository) -> Result<Self> {
        let keys = repository.keys()?.into_iter().map(|key| ListedKey {
            key: KeyNumber(key.number),
            kind: match key.derivation {
                Derivation::Passphrase { .. } => "passphrase",
                Derivation::KeyFile if key.is_recovery => "recovery key",
                Derivation::KeyFile => "key file",
            }
            .to_owned(),
            created_unix_seconds: key.created_unix_seconds,
        });
        Ok(Self {
            keys: keys.collect(),
        })
    }
}

impl RepositoryVerb for BackupKeyAdd {
    const NAME: &'static str = "backup key add";
    type Reply = BackupKeysReply;
}

impl RepositoryRequest for BackupKeyAdd {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupKeysReply> {
        let key = at.new_key()?;
        let key = key.ok_or_else(|| Error::usage("which key? give --new-key-file"))?;
        add_key(at.opened(), &key)?;
        BackupKeysReply::of(at.repository())
    }
}

impl RepositoryVerb for BackupKeyList {
    const NAME: &'static str = "backup key list";
    type Reply = BackupKeysReply;
}

impl RepositoryRequest for BackupKeyList {
    const USE: RepositoryUse = RepositoryUse::Read;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupKeysReply> {
        BackupKeysReply::of(at.repository())
    }
}

impl RepositoryVerb for BackupKeyExport {
    const NAME: &'static str = "backup key export";
    type Reply = BackupKeysReply;
}

impl RepositoryRequest for BackupKeyExport {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupKeysReply> {
        export_recovery_key(at.opened(), &self.file)?;
        BackupKeysReply::of(at.repository())
    }
}

impl RepositoryVerb for BackupKeyRemove {
    const NAME: &'static str = "backup key remove";
    type Reply = BackupKeysReply;
}

impl RepositoryRequest for BackupKeyRemove {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupKeysReply> {
        remove_key(at.opened(), self.key.0, !self.yes)?;
        if self.yes {
            return BackupKeysReply::of(at.repository());
        }
        Err(Error::usage(format!(
            "this would remove key {}, so that its passphrase or key file opens the repository no more; nothing \
             was changed, --yes goes on",
            self.key
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_number_of_sixteen_digits() {
        let number: KeyNumber = "1f".parse().unwrap();
        assert_eq!(number.to_string(), "000000000000001f");
        for text in ["", "x", "10000000000000000"] {
            text.parse::<KeyNumber>().unwrap_err();
        }
    }
}
