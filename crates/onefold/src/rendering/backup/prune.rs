//! Renders what was pruned, or would be.

use std::io::{self, Write};

use onefold_api::backup::BackupPruneReply;
use onefold_api::size;

use crate::output::Render;

impl Render for BackupPruneReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (given_back, removed) = if self.is_done {
            ("are given back", "removed")
        } else {
            ("would be given back", "would be removed")
        };
        for source in &self.sources {
            writeln!(
                out,
                "{}: {} of data in {}; {} of it needed by no backup, {} popular, too, of which {} {given_back}; {} {removed}, {} written again",
                source.source,
                size::display(source.needed_bytes + source.wasted_bytes),
                size::display(source.stored_bytes),
                size::display(source.wasted_bytes),
                size::display(source.movable_bytes),
                size::display(source.given_back_bytes),
                size::count(source.removed_packs, "pack"),
                source.rewritten_packs,
            )?;
            if let Some(freed) = source.freed_bytes {
                writeln!(out, "{}: {} freed", source.source, size::display(freed))?;
            }
            for damaged in &source.damaged {
                writeln!(out, "{}: {damaged}", source.source)?;
            }
        }
        for popular in &self.popular {
            let name = format!("the popular blocks of domain '{}'", popular.domain);
            writeln!(
                out,
                "{name}: {} of data in {}; {} of it needed by no backup, of which {} {given_back}",
                size::display(popular.needed_bytes + popular.wasted_bytes),
                size::display(popular.stored_bytes),
                size::display(popular.wasted_bytes),
                size::display(popular.given_back_bytes),
            )?;
            if popular.waiting_bytes > 0 {
                writeln!(
                    out,
                    "{name}: {} wait for backups in progress, or for --grace; prune again later",
                    size::display(popular.waiting_bytes)
                )?;
            }
            if let Some(freed) = popular.freed_bytes {
                writeln!(out, "{name}: {} freed", size::display(freed))?;
            }
            for damaged in &popular.damaged {
                writeln!(out, "{name}: {damaged}")?;
            }
        }
        Ok(())
    }
}
