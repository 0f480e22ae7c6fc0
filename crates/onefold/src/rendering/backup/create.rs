//! Renders the backups that were made.

use std::io::{self, Write};

use onefold_api::backup::BackupCreateReply;
use onefold_api::size;

use crate::output::Render;

impl Render for BackupCreateReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for backup in &self.backups {
            writeln!(
                out,
                "{}: {} of data, {} read, {} popular, {} new, stored in {}",
                backup.name,
                size::display(backup.logical_bytes),
                size::display(backup.read_bytes),
                size::display(backup.popular_bytes),
                size::display(backup.new_bytes),
                size::display(backup.stored_bytes),
            )?;
        }
        if self.new_popular_bytes > 0 {
            writeln!(
                out,
                "{} that several have, stored once in {}",
                size::display(self.new_popular_bytes),
                size::display(self.stored_popular_bytes)
            )?;
        }
        writeln!(out, "took {:.1} s", self.seconds)
    }
}
