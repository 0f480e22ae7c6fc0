//! `onefold backup stat`

use super::{RepositoryArgs, name_damaged};
use crate::context::Context;
use crate::output::Render;
use onefold_api::backup::OriginReply;
use onefold_api::{Error, Result, size};
use onefold_backup::{Relatives, plan_share, relatives};
use onefold_format::backup::SourceId;
use onefold_repository::{Repository, RepositoryErrorKind};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// Memory for comparing the sources.
const MEMORY_BYTES: usize = 64 << 20;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    #[command(flatten)]
    repository: RepositoryArgs,
}

#[derive(Debug, Serialize)]
struct Reply {
    repository_id: String,
    encrypted: bool,
    sources: Vec<SourceReply>,
    popular: Vec<PopularReply>,
    /// Bytes of data of all backups.
    logical_bytes: u64,
    /// Bytes of content in all packs.
    content_bytes: u64,
    /// Bytes of all packs.
    stored_bytes: u64,
    /// Bytes that `share`, followed by pruning with --wasted 0%, would free.
    shareable_bytes: u64,
}

#[derive(Debug, Serialize)]
struct SourceReply {
    source: String,
    source_id: String,
    domain: String,
    /// Origin of the disk; null if it is not known.
    origin: Option<OriginReply>,
    backups: u64,
    /// Bytes of data of all backups of the source.
    logical_bytes: u64,
    #[serde(flatten)]
    packs: Packs,
}

#[derive(Debug, Serialize)]
struct PopularReply {
    domain: String,
    #[serde(flatten)]
    packs: Packs,
}

/// Figures of a set of packs.
#[derive(Debug, Default, Serialize)]
struct Packs {
    packs: u64,
    content_bytes: u64,
    stored_bytes: u64,
    /// Number of packs that cannot be read.
    damaged_packs: u64,
    /// Blocks that were damaged and have not been repaired yet.
    lost_blocks: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let opened = args.repository.open(context)?;
    let repository = Arc::clone(opened.repository());
    let mut reply = Reply {
        repository_id: repository.id().to_string(),
        encrypted: repository.is_encrypted(),
        sources: Vec::new(),
        popular: Vec::new(),
        logical_bytes: 0,
        content_bytes: 0,
        stored_bytes: 0,
        shareable_bytes: 0,
    };
    let sources = repository.sources()?;
    for relatives in relatives(&repository, sources.disks.clone()) {
        reply.shareable_bytes += shareable(&repository, &relatives)?;
    }
    let mut damaged = sources.damaged;
    for known in sources.disks {
        let backups = repository.backups(known.id)?;
        let mut logical_bytes = 0;
        for backup in &backups {
            match repository.listed_manifest(known.id, *backup) {
                Ok(None) => {}
                Ok(Some(manifest)) => {
                    let block_size = u64::from(manifest.block_size);
                    logical_bytes += manifest.counts.logical_blocks * block_size;
                }
                Err(error) => damaged.push(error),
            }
        }
        reply.sources.push(SourceReply {
            source: known.source.name,
            source_id: known.id.to_string(),
            origin: known.source.origin.as_ref().map(OriginReply::from),
            domain: known.source.domain,
            backups: backups.len() as u64,
            logical_bytes,
            packs: Packs::of(&repository, known.id)?,
        });
    }
    for known in sources.popular {
        reply.popular.push(PopularReply {
            domain: known.source.domain,
            packs: Packs::of(&repository, known.id)?,
        });
    }
    let packs = reply.sources.iter().map(|source| &source.packs);
    for packs in packs.chain(reply.popular.iter().map(|popular| &popular.packs)) {
        reply.content_bytes += packs.content_bytes;
        reply.stored_bytes += packs.stored_bytes;
    }
    reply.logical_bytes = reply
        .sources
        .iter()
        .map(|source| source.logical_bytes)
        .sum();
    context.output.document(&reply)?;
    Ok(name_damaged(context, &damaged))
}

fn shareable(repository: &Repository, relatives: &Relatives) -> Result<u64> {
    let plan = plan_share(repository, relatives, MEMORY_BYTES, &mut |_, _| Ok(()));
    let plan = plan?;
    let blocks = plan.freed_blocks - plan.copied_blocks;
    let block_size = relatives.sources.first();
    Ok(blocks * block_size.map_or(0, |known| u64::from(known.source.block_size)))
}

impl Packs {
    fn of(repository: &Repository, store: SourceId) -> Result<Self> {
        let mut found = Self::default();
        for (number, generation) in repository.packs(store)? {
            let pack = match repository.pack_or_newer(store, number, generation) {
                Ok(Some(pack)) => pack,
                Ok(None) => continue,
                Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                    found.damaged_packs += 1;
                    continue;
                }
                Err(error) => return Err(Error::from(error)),
            };
            let slots = pack.slots().iter();
            let blocks = slots.clone().filter(|slot| slot.stored().is_some()).count();
            found.packs += 1;
            found.content_bytes += blocks as u64 * u64::from(pack.block_size());
            found.stored_bytes += pack.stored_bytes();
            found.lost_blocks += slots.filter(|slot| slot.lost().is_some()).count() as u64;
        }
        Ok(found)
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.sources.iter().map(|source| source.source.len());
        let domains = self.popular.iter().map(|popular| popular.domain.len() + 10);
        let width = names.chain(domains).max().unwrap_or(0).max(6);
        writeln!(
            out,
            "{:width$}  {:>7}  {:>10}  {:>10}  {:>10}",
            "SOURCE", "BACKUPS", "DATA", "CONTENT", "STORED"
        )?;
        let line = |name: &str, backups: &str, logical: &str, packs: &Packs| {
            let (content, stored) = (packs.content_bytes, packs.stored_bytes);
            format!(
                "{name:width$}  {backups:>7}  {logical:>10}  {:>10}  {:>10}",
                size::display(content),
                size::display(stored)
            )
        };
        for source in &self.sources {
            let (backups, logical) = (source.backups.to_string(), source.logical_bytes);
            let logical = size::display(logical);
            writeln!(
                out,
                "{}",
                line(&source.source, &backups, &logical, &source.packs)
            )?;
        }
        for popular in &self.popular {
            let name = format!("({} popular)", popular.domain);
            writeln!(out, "{}", line(&name, "", "", &popular.packs))?;
        }
        let ratio = self.logical_bytes as f64 / self.content_bytes.max(1) as f64;
        writeln!(
            out,
            "{} of data in {} of content, {ratio:.1} to 1, stored in {}",
            size::display(self.logical_bytes),
            size::display(self.content_bytes),
            size::display(self.stored_bytes)
        )?;
        if self.shareable_bytes > 0 {
            writeln!(
                out,
                "{} of content is stored more than once: 'onefold backup share' and 'prune --wasted 0%' would free it",
                size::display(self.shareable_bytes)
            )?;
        }
        let packs = self.sources.iter().map(|source| &source.packs);
        let packs = packs.chain(self.popular.iter().map(|popular| &popular.packs));
        let (damaged, lost) = packs.fold((0, 0), |(damaged, lost), packs| {
            (damaged + packs.damaged_packs, lost + packs.lost_blocks)
        });
        if damaged + lost > 0 {
            let packs = size::count(damaged, "pack");
            let blocks = size::count(lost, "block");
            writeln!(
                out,
                "{packs} cannot be read, {blocks} lost; see 'onefold backup verify'"
            )?;
        }
        Ok(())
    }
}
