//! Renders what was repaired, or would be.

use std::io::{self, Write};

use onefold_api::backup::BackupRepairReply;
use onefold_api::size;

use super::InWords;
use crate::output::Render;

impl Render for BackupRepairReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (mended, removed) = if self.is_done {
            ("mended", "removed")
        } else {
            ("would be mended", "would be removed")
        };
        for source in &self.sources {
            writeln!(
                out,
                "{}: {} damaged, {} {mended} from elsewhere, {} missing until a backup has their content",
                source.title,
                size::count(source.repaired.damaged_blocks, "block"),
                source.repaired.mended_blocks,
                source.repaired.missing_blocks,
            )?;
            if source.repaired.tables > 0 {
                let tables = size::count(source.repaired.tables, "table");
                writeln!(out, "{}: {tables} of packs made again", source.title)?;
            }
        }
        for finding in &self.findings {
            writeln!(out, "{}", InWords(finding))?;
        }
        if self.leftovers > 0 {
            writeln!(
                out,
                "{} of commands that were killed, {}, {removed}",
                size::count(self.leftovers, "file"),
                size::display(self.leftover_bytes)
            )?;
        }
        match (self.is_done, self.findings.is_empty()) {
            _ if self.is_empty() => writeln!(out, "nothing to repair"),
            (false, _) => Ok(()),
            (true, true) => writeln!(out, "repaired"),
            (true, false) => writeln!(
                out,
                "back the sources up with --full and repair again: what their disks still have is mended then"
            ),
        }
    }
}
