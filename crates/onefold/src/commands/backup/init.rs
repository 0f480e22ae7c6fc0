//! `onefold backup init`

use super::{ASIDE_BYTES, RepositoryArgs, now_unix_seconds};
use crate::context::Context;
use crate::output::Render;
use onefold_api::{Error, Result, size};
use onefold_format::backup::Writers;
use onefold_repository::Repository;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    #[command(flatten)]
    repository: RepositoryArgs,

    /// Allow only one host to write to the repository, for file systems that cannot keep concurrent hosts
    /// apart, such as rclone's. Other hosts may read it.
    #[arg(long)]
    one_writer: bool,
}

/// The JSON document of `backup init`.
#[derive(Debug, Serialize)]
struct Reply {
    id: String,
    encrypted: bool,
    /// Whether only one host may write to the repository.
    one_writer: bool,
    /// A key that opens the repository if all other keys are lost.
    recovery_key: Option<String>,
    /// Bytes that are reserved so that a full repository can be pruned.
    aside_bytes: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let access = args.repository.new_access(&context.output)?;
    let root = args.repository.root()?;
    check_outside_pools(root)?;
    let writers = if args.one_writer {
        Writers::One
    } else {
        Writers::Many
    };
    let made = Repository::init_for(writers, root, &access, now_unix_seconds());
    let (repository, recovery_key) = made?;
    args.repository
        .remember_new(root, &repository, &context.output);
    let is_aside = repository.set_room_aside(ASIDE_BYTES);
    context.print(&Reply {
        id: repository.id().to_string(),
        encrypted: repository.is_encrypted(),
        one_writer: repository.has_one_writer(),
        recovery_key: recovery_key.map(|key| key.to_string()),
        aside_bytes: if is_aside? { ASIDE_BYTES } else { 0 },
    })
}

/// A backup must survive the loss of a pool, so its repository must not be inside one.
fn check_outside_pools(root: &Path) -> Result<()> {
    let absolute = std::path::absolute(root);
    let absolute = absolute.map_err(|e| Error::io(format_args!("cannot use {root:?}"), &e))?;
    let is_pool = |folder: &&Path| folder.join("superblock").is_file();
    match absolute.ancestors().find(is_pool) {
        None => Ok(()),
        Some(pool) => Err(Error::usage(format!(
            "{root:?} is inside the pool {pool:?}, and would be lost with it; choose a folder elsewhere, best on \
             another disk"
        ))),
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let how = if self.encrypted {
            "encrypted"
        } else {
            "not encrypted"
        };
        writeln!(out, "repository {} created, {how}", self.id)?;
        if self.one_writer {
            writeln!(out, "only this host may write it")?;
        }
        match self.aside_bytes {
            0 => writeln!(
                out,
                "there is no room to set aside: once it is full, it cannot be pruned"
            )?,
            bytes => writeln!(
                out,
                "{} are set aside, so that it can be pruned when it is full",
                size::display(bytes)
            )?,
        }
        match &self.recovery_key {
            None => Ok(()),
            Some(key) => writeln!(
                out,
                "recovery key, shown only now; in a file it is a --key-file:\n{key}"
            ),
        }
    }
}
