//! Renders the content of a repository.

use std::io::{self, Write};

use onefold_api::backup::BackupStatReply;
use onefold_api::size;
use onefold_backup::PackFigures;

use crate::output::Render;

impl Render for BackupStatReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.sources.iter().map(|source| source.source.len());
        let domains = self.popular.iter().map(|popular| popular.domain.len() + 10);
        let width = names.chain(domains).max().unwrap_or(0).max(6);
        writeln!(
            out,
            "{:width$}  {:>7}  {:>10}  {:>10}  {:>10}",
            "SOURCE", "BACKUPS", "DATA", "CONTENT", "STORED"
        )?;
        let line = |name: &str, backups: &str, logical: &str, packs: &PackFigures| {
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
        let (damaged, lost) = self.packs().fold((0, 0), |(damaged, lost), packs| {
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
