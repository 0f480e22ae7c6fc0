//! `onefold backup key`

use super::{RepositoryArgs, now_unix_seconds, secret};
use crate::context::Context;
use crate::output::Render;
use crate::rendering::utc;
use clap::Subcommand;
use onefold_api::{Error, Result, size};
use onefold_format::backup::Derivation;
use onefold_repository::{RecoveryKey, Repository};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(in crate::commands) enum KeyVerb {
    /// Add a passphrase or a key file that opens the repository.
    Add(Add),
    /// List the keys that open the repository.
    #[command(visible_alias = crate::commands::LIST)]
    List(List),
    /// Write a new recovery key to a file. It opens the repository as a key file, and stays valid until it is
    /// removed.
    Export(Export),
    /// Remove a key. The repository is not encrypted again, so a former holder of the key may still be able to
    /// read it.
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Add {
    #[command(flatten)]
    repository: RepositoryArgs,

    /// File whose first line is the new passphrase.
    #[arg(long, value_name = "FILE", conflicts_with = "new_key_file")]
    new_passphrase_file: Option<PathBuf>,

    /// File whose content is the new key.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "new_passphrase_file"
    )]
    new_key_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct List {
    #[command(flatten)]
    repository: RepositoryArgs,
}

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Export {
    /// File to create, readable only by its owner. It must not exist.
    file: PathBuf,

    #[command(flatten)]
    repository: RepositoryArgs,
}

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Remove {
    /// Number of the key, as `backup key list` prints it.
    #[arg(value_parser = parse_number)]
    key: u64,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Remove the key. Without this option nothing is changed.
    #[arg(long)]
    yes: bool,
}

fn parse_number(text: &str) -> std::result::Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| "not the number of a key".to_owned())
}

#[derive(Debug, Serialize)]
struct Reply {
    keys: Vec<KeyReply>,
}

#[derive(Debug, Serialize)]
struct KeyReply {
    /// Number of the key, 16 hexadecimal digits.
    key: String,
    /// Kind of the key: `passphrase`, `key file` or `recovery key`, which is used like a key file.
    kind: &'static str,
    created_unix_seconds: u64,
}

pub(super) fn run(context: &Context, verb: KeyVerb) -> Result<ExitCode> {
    let opened = match &verb {
        KeyVerb::List(List { repository }) => repository.open(context)?,
        KeyVerb::Add(Add { repository, .. })
        | KeyVerb::Export(Export { repository, .. })
        | KeyVerb::Remove(Remove { repository, .. }) => {
            let (opened, _) = repository.open_to_change(context)?;
            opened.check_all()?;
            opened
        }
    };
    let repository = opened.repository();
    match verb {
        KeyVerb::List(_) => {}
        KeyVerb::Add(args) => {
            let files = (&args.new_passphrase_file, &args.new_key_file);
            let access =
                secret::new_access(files.0.as_deref(), files.1.as_deref(), &context.output)?;
            let access = access.ok_or_else(|| Error::usage("which key? give --new-key-file"))?;
            let added = repository.add_key(&access, now_unix_seconds());
            added?;
        }
        KeyVerb::Export(args) => export(repository, &args.file)?,
        KeyVerb::Remove(args) if args.yes => {
            repository.remove_key(args.key)?;
        }
        KeyVerb::Remove(args) => {
            let checked = repository.check_key_removable(args.key);
            checked?;
            return Err(Error::usage(format!(
                "this would remove key {:016x}, so that its passphrase or key file opens the repository no more; nothing \
                 was changed, --yes goes on",
                args.key
            )));
        }
    }
    let keys = repository.keys()?;
    let keys = keys.into_iter().map(|key| KeyReply {
        key: format!("{:016x}", key.number),
        kind: match key.derivation {
            Derivation::Passphrase { .. } => "passphrase",
            Derivation::KeyFile if key.is_recovery => "recovery key",
            Derivation::KeyFile => "key file",
        },
        created_unix_seconds: key.created_unix_seconds,
    });
    let keys = keys.collect();
    context.print(&Reply { keys })
}

/// Writes a recovery key. The file is durable before the repository accepts the key.
fn export(repository: &Repository, file: &Path) -> Result<()> {
    let key = RecoveryKey::new()?;
    let failed = |e: io::Error| Error::io(format_args!("cannot write {file:?}"), &e);
    let mut options = File::options();
    let mut written = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(failed)?;
    let added = writeln!(written, "{key}")
        .and_then(|()| written.sync_all())
        .map_err(failed)
        .and_then(|()| {
            let added = repository.add_recovery_key(&key, now_unix_seconds());
            added.map(drop).map_err(Error::from)
        });
    if added.is_err() {
        // Without the repository's entry, the key opens nothing.
        let _ = std::fs::remove_file(file);
    }
    added
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for key in &self.keys {
            let created = utc(key.created_unix_seconds);
            writeln!(out, "{}  {created}  {}", key.key, key.kind)?;
        }
        let count = size::count(self.keys.len() as u64, "key");
        writeln!(out, "{count}, any of which opens the repository")
    }
}
