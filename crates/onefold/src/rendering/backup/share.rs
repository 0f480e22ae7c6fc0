//! Renders what was shared, or would be.

use std::io::{self, Write};

use onefold_api::backup::BackupShareReply;
use onefold_api::size;

use crate::output::Render;

impl Render for BackupShareReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for domain in &self.domains {
            let copied = size::display(domain.copied_bytes);
            write!(
                out,
                "domain '{}': {}; ",
                domain.domain,
                size::count(domain.sources, "source")
            )?;
            match domain.stored_bytes {
                Some(stored) => write!(
                    out,
                    "{copied} became popular, stored in {}; ",
                    size::display(stored)
                )?,
                None => write!(out, "{copied} would become popular; ")?,
            }
            writeln!(
                out,
                "'backup prune --wasted 0%' {} {} of the sources' own copies",
                if self.is_done {
                    "frees"
                } else {
                    "would then free"
                },
                size::display(domain.movable_bytes)
            )?;
            for damaged in &domain.damaged {
                writeln!(out, "domain '{}': {damaged}", domain.domain)?;
            }
        }
        Ok(())
    }
}
