//! `onefold backup key`

use super::{At, code, secret};
use crate::context::Context;
use clap::Subcommand;
use onefold_api::Result;
use onefold_api::backup::{
    BackupKeyAdd, BackupKeyExport, BackupKeyList, BackupKeyRemove, RepositoryRequest,
    RepositoryService,
};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(in crate::commands) enum KeyVerb {
    /// Add a passphrase or a key file that opens the repository.
    Add(At<BackupKeyAdd>),
    /// List the keys that open the repository.
    #[command(visible_alias = crate::commands::LIST)]
    List(At<BackupKeyList>),
    /// Write a new recovery key to a file. It opens the repository as a key file, and stays valid until it is
    /// removed.
    Export(At<BackupKeyExport>),
    /// Remove a key. The repository is not encrypted again, so a former holder of the key may still be able to
    /// read it.
    Remove(At<BackupKeyRemove>),
}

impl KeyVerb {
    pub(super) fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Self::Add(at) => add(context, &at),
            Self::List(at) => at.call(context),
            Self::Export(at) => at.call(context),
            Self::Remove(at) => at.call(context),
        }
    }
}

fn add(context: &Context, at: &At<BackupKeyAdd>) -> Result<ExitCode> {
    let files = (&at.request.new_passphrase_file, &at.request.new_key_file);
    let read = || secret::new_access(files.0.as_deref(), files.1.as_deref(), &context.output);
    let opened = at.repository.open_for(context, BackupKeyAdd::USE)?;
    let service = RepositoryService::new(&opened).with_new_key(&read);
    let answer = service.call(&at.request)?;
    context.print(&answer.reply)?;
    Ok(code(answer.outcome))
}
