//! Renders the removal of a source.

use std::io::{self, Write};

use onefold_api::backup::BackupRemoveReply;
use onefold_api::size;

use crate::output::Render;

impl Render for BackupRemoveReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let verb = if self.is_done {
            "removed"
        } else {
            "would be removed"
        };
        for backup in &self.backups {
            writeln!(out, "{backup} {verb}")?;
        }
        writeln!(
            out,
            "source '{}' {verb}, with {} of {}",
            self.source,
            size::count(self.packs, "pack"),
            size::display(self.stored_bytes)
        )
    }
}
