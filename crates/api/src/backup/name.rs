//! Names of backups.

use std::fmt;
use std::str::FromStr;

use onefold_backup::{Opened, find_backup};
use onefold_format::backup::BackupNumber;
use onefold_repository::KnownSource;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The word for the latest backup of a source, in place of a number.
const LATEST: &str = "latest";

/// A backup as users name it: `SOURCE@N` or `SOURCE@latest`. In JSON it is a string of this form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupName {
    source: String,
    /// The backup's number; `None` for the latest.
    number: Option<BackupNumber>,
}

impl BackupName {
    /// The name of a backup by its number.
    #[must_use]
    pub fn new(source: &KnownSource, number: BackupNumber) -> Self {
        Self {
            source: source.source.name.clone(),
            number: Some(number),
        }
    }

    /// The name or id of the source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The number of the backup; `None` for the latest.
    #[must_use]
    pub fn number(&self) -> Option<BackupNumber> {
        self.number
    }

    /// Finds the backup.
    ///
    /// # Errors
    /// `NotFound` if there is none. For the latest backup, also if the source went back: the newest backup that is left
    /// may not be the latest.
    pub fn find(&self, opened: &Opened) -> Result<(KnownSource, BackupNumber)> {
        Ok(find_backup(opened, &self.source, self.number)?)
    }
}

impl fmt::Display for BackupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{}@{number}", self.source),
            None => write!(f, "{}@{LATEST}", self.source),
        }
    }
}

impl FromStr for BackupName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let unusable = || format!("'{text}' is not a backup; write SOURCE@N or SOURCE@latest");
        let (source, number) = text.rsplit_once('@').ok_or_else(unusable)?;
        let number = match number {
            LATEST => None,
            number => Some(BackupNumber(number.parse().map_err(|_| unusable())?)),
        };
        Ok(Self {
            source: source.to_owned(),
            number,
        })
    }
}

impl TryFrom<String> for BackupName {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<BackupName> for String {
    fn from(name: BackupName) -> Self {
        name.to_string()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for BackupName {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .pattern(Some("^.+@([0-9]+|latest)$"))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for BackupName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_named_with_its_source() {
        for text in ["web@3", "web@latest", "a@b@7"] {
            let name: BackupName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        let name: BackupName = "a@b@7".parse().unwrap();
        assert_eq!(
            (name.source(), name.number()),
            ("a@b", Some(BackupNumber(7)))
        );
        for text in ["web", "web@", "web@x", "web@-1"] {
            let error = text.parse::<BackupName>().unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
