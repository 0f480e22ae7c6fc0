//! `onefold backup show`

use super::identity::OriginReply;
use super::{BackupName, RepositoryArgs, repository_error};
use crate::context::Context;
use crate::output::{Render, one_line};
use crate::rendering::utc;
use onefold_api::{Result, size};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Backup to show.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    name: BackupName,

    #[command(flatten)]
    repository: RepositoryArgs,
}

#[derive(Debug, Serialize)]
struct Reply {
    name: String,
    source_id: String,
    /// Name of the host that made the backup.
    host: String,
    /// Origin of the source's disk; null if it is not known.
    origin: Option<OriginReply>,
    /// The origin in words, for the text.
    #[serde(skip)]
    from: String,
    /// Name of the user's snapshot that was backed up, without the volume's name; null if no snapshot was
    /// named.
    snapshot: Option<String>,
    unix_seconds: u64,
    size_bytes: u64,
    block_size: u32,
    logical_bytes: u64,
    read_bytes: u64,
    new_bytes: u64,
    stored_bytes: u64,
    /// Bytes of data that popular blocks hold.
    popular_bytes: u64,
    /// Size of the recipe in the repository.
    recipe_bytes: u64,
    /// Runs of stored blocks with consecutive numbers.
    number_runs: u64,
    tags: Vec<String>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let opened = args.repository.open(context)?;
    let (source, number) = args.name.find(&opened)?;
    let manifest = opened.repository.manifest(source.id, number);
    let manifest = manifest.map_err(repository_error)?;
    let block_size = u64::from(manifest.block_size);
    let (counts, origin) = (manifest.counts, source.source.origin.as_ref());
    context.print(&Reply {
        name: format!("{}@{number}", source.source.name),
        source_id: source.id.to_string(),
        host: manifest.host,
        origin: origin.map(OriginReply::from),
        from: origin.map(ToString::to_string).unwrap_or_default(),
        snapshot: Some(manifest.snapshot).filter(|name| !name.is_empty()),
        unix_seconds: manifest.unix_seconds,
        size_bytes: manifest.size_bytes,
        block_size: manifest.block_size,
        logical_bytes: counts.logical_blocks * block_size,
        read_bytes: counts.read_blocks * block_size,
        new_bytes: counts.new_blocks * block_size,
        stored_bytes: counts.stored_bytes,
        popular_bytes: counts.popular_blocks * block_size,
        recipe_bytes: manifest.recipe_pages.iter().copied().map(u64::from).sum(),
        number_runs: (manifest.own.len() + manifest.popular.len()) as u64,
        tags: manifest.tags,
    })
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "backup {}, {}", self.name, utc(self.unix_seconds))?;
        let (block, tags) = (size::display(self.block_size.into()), self.tags.join(", "));
        for (what, value) in [
            ("origin", self.from.clone()),
            ("host", self.host.clone()),
            ("snapshot", self.snapshot.clone().unwrap_or_default()),
            ("size", size::display(self.size_bytes)),
            ("block", block),
            ("data", size::display(self.logical_bytes)),
            ("read", size::display(self.read_bytes)),
            ("popular", size::display(self.popular_bytes)),
            ("new", size::display(self.new_bytes)),
            ("stored", size::display(self.stored_bytes)),
            ("recipe", size::display(self.recipe_bytes)),
            ("runs", self.number_runs.to_string()),
            ("tags", tags),
        ] {
            if !value.is_empty() {
                writeln!(out, "{what:10}{}", one_line(&value))?;
            }
        }
        Ok(())
    }
}
