//! Renders lists of backups.

use std::io::{self, Write};

use onefold_api::backup::BackupListReply;
use onefold_api::size;

use crate::output::{Render, one_line};
use crate::rendering::utc;

impl Render for BackupListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.backups.iter().map(|backup| backup.name.len());
        let width = names.max().unwrap_or(0).max(4);
        let hosts = self.backups.iter().map(|backup| backup.host.len());
        let host_width = hosts.max().unwrap_or(0).max(4);
        if !self.backups.is_empty() {
            writeln!(
                out,
                "{:width$}  {:20}  {:>10}  {:>10}  {:>10}  {:>10}  {:host_width$}  SNAPSHOT AND TAGS",
                "NAME", "TIME", "SIZE", "DATA", "NEW", "STORED", "HOST"
            )?;
        }
        self.backups.iter().try_for_each(|backup| {
            let snapshot = backup.snapshot.iter().map(|name| format!("@{name}"));
            let marks: Vec<_> = snapshot.chain(backup.tags.iter().cloned()).collect();
            writeln!(
                out,
                "{:width$}  {:20}  {:>10}  {:>10}  {:>10}  {:>10}  {:host_width$}  {}",
                backup.name,
                utc(backup.unix_seconds),
                size::display(backup.size_bytes),
                size::display(backup.logical_bytes),
                size::display(backup.new_bytes),
                size::display(backup.stored_bytes),
                one_line(&backup.host),
                marks.join(", ")
            )
        })
    }
}
