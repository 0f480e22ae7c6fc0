//! The options by which commands name a repository and what opens it, and how they open it.

use super::secret;
use crate::context::Context;
use crate::foreground::interrupt_by;
use crate::output::Output;
use onefold_api::backup::{BackupInit, RepositoryUse};
use onefold_api::{Error, Result};
use onefold_backup::{Found, Opened, OpeningOptions, Supervision};
use onefold_format::backup::RepositoryId;
use onefold_repository::Access;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The repository, its keys, and how far to trust its storage.
#[derive(Debug, clap::Args)]
pub(super) struct RepositoryArgs {
    /// Folder of the repository.
    #[arg(long, env = "ONEFOLD_REPOSITORY", value_name = "DIR")]
    repository: Option<PathBuf>,

    /// File whose first line is the passphrase; /dev/fd/N works, too. Without this option, the passphrase is
    /// read from the terminal.
    #[arg(
        long,
        env = "ONEFOLD_PASSPHRASE_FILE",
        value_name = "FILE",
        conflicts_with = "key_file"
    )]
    passphrase_file: Option<PathBuf>,

    /// File whose content is the key, such as a recovery key.
    #[arg(long, env = "ONEFOLD_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Use a repository that is not encrypted: anybody who can read the folder can read the backups, and
    /// anybody who can write to it can change them. Without this option such a repository is refused.
    #[arg(
        long,
        env = "ONEFOLD_NO_ENCRYPTION",
        value_parser = clap::builder::FalseyValueParser::new()
    )]
    no_encryption: bool,

    /// Folder in which this host remembers the repositories that it has used. [default: $STATE_DIRECTORY, or
    /// /var/lib/onefold for root, or $XDG_STATE_HOME/onefold]
    #[arg(long, env = "ONEFOLD_STATE", value_name = "DIR")]
    state: Option<PathBuf>,

    /// Accept and remember the repository with this id, although this host knows another one in the same
    /// folder.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    trust: Option<RepositoryId>,

    /// Accept a repository that went back to an older state, and use it as it is. New numbers continue above
    /// the highest that this host has seen.
    #[arg(long)]
    accept_rollback: bool,
}

fn parse_id(text: &str) -> std::result::Result<RepositoryId, String> {
    let id = u128::from_str_radix(text, 16).ok();
    let id = id.map(|id| RepositoryId(std::array::from_fn(|n| (id >> (120 - 8 * n)) as u8)));
    let id = id.filter(|id| id.to_string() == text);
    id.ok_or_else(|| "not the id of a repository, which has 32 hexadecimal digits".to_owned())
}

impl RepositoryArgs {
    pub(super) fn root(&self) -> Result<&Path> {
        self.repository.as_deref().ok_or_else(|| {
            Error::usage(
                "which repository? give its folder with --repository, or in ONEFOLD_REPOSITORY",
            )
        })
    }

    /// The key for a new repository, from the user's options.
    fn new_access(&self, output: &Output) -> Result<Access> {
        let secret = secret::new_access(
            self.passphrase_file.as_deref(),
            self.key_file.as_deref(),
            output,
        )?;
        match (secret, self.no_encryption) {
            (Some(_), true) => Err(both()),
            (Some(secret), false) => Ok(secret),
            (None, true) => Ok(Access::Open),
            (None, false) => Err(Error::usage(
                "what shall open the repository? give --passphrase-file, --key-file or --no-encryption",
            )),
        }
    }

    /// Creates the repository and prints it.
    pub(super) fn init(&self, context: &Context, request: &BackupInit) -> Result<ExitCode> {
        let access = self.new_access(&context.output)?;
        let supervision = Supervision::new(Arc::new(context.output), Arc::default());
        let reply = request.run(self.root()?, self.state.clone(), &access, &supervision)?;
        context.print(&reply)
    }

    /// Opens the repository for a kind of use. For changes, opening may wait for other commands, says so, and
    /// stops when the user interrupts; [`Opened::check`] refuses changes to individual sources. If a repository
    /// that is only read went back, prints a warning and continues, because a backup that is named by its number
    /// is unchanged.
    pub(super) fn open_for(&self, context: &Context, kind: RepositoryUse) -> Result<Opened> {
        let (root, output) = (self.root()?, context.output);
        let found = Found::find(OpeningOptions {
            root: root.to_owned(),
            state: self.state.clone(),
            trust: self.trust,
            accept_rollback: self.accept_rollback,
            is_to_change: kind == RepositoryUse::Change,
        })?;
        let access = self.access_to(root, found.is_encrypted(), &output)?;
        let interrupted = Arc::default();
        // Only now, so that a prompt for the passphrase can be interrupted as usual.
        if kind == RepositoryUse::Change {
            interrupt_by(&interrupted)?;
        }
        let supervision = Supervision::new(Arc::new(output), Arc::clone(&interrupted));
        let opened = found.open(&access, supervision)?;
        if kind != RepositoryUse::Change
            && let Err(error) = opened.check_all()
        {
            output.warn(error);
        }
        if kind == RepositoryUse::LongRead {
            interrupt_by(&interrupted)?;
        }
        Ok(opened)
    }

    /// Checks the user's options against the repository's encryption, and returns the key.
    fn access_to(&self, root: &Path, encrypted: bool, output: &Output) -> Result<Access> {
        let (passphrase_file, key_file) = (&self.passphrase_file, &self.key_file);
        let given = passphrase_file.is_some() || key_file.is_some();
        match (encrypted, given, self.no_encryption) {
            (_, true, true) => Err(both()),
            (true, _, true) => Err(Error::usage(format!(
                "the repository in {root:?} is encrypted: give --passphrase-file or --key-file, and not --no-encryption"
            ))),
            (true, _, false) => {
                let files = (passphrase_file.as_deref(), key_file.as_deref());
                let secret = match secret::access(files.0, files.1, output)? {
                    None => secret::ask(root)?,
                    secret => secret,
                };
                Ok(secret.unwrap_or(Access::Open))
            }
            (false, false, true) => Ok(Access::Open),
            // Anybody who can write to the folder can make the repository look unencrypted.
            (false, true, false) => Err(Error::usage(format!(
                "the repository in {root:?} says that it is not encrypted, and a passphrase or key file was given: \
                 either it is not the repository that was meant, or it was changed; nothing was read or written"
            ))),
            (false, false, false) => Err(Error::usage(format!(
                "the repository in {root:?} says that it is not encrypted: if that is meant, give --no-encryption, or set \
                 ONEFOLD_NO_ENCRYPTION=1; nothing was read or written"
            ))),
        }
    }
}

fn both() -> Error {
    Error::usage(
        "--no-encryption excludes a passphrase or key file, also those that the environment names",
    )
}
