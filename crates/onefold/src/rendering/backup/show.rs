//! Renders a backup's details.

use std::io::{self, Write};

use onefold_api::backup::BackupShowReply;
use onefold_api::size;

use crate::output::{Render, one_line};
use crate::rendering::utc;

impl Render for BackupShowReply {
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
