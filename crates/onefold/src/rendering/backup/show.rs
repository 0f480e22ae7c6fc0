//! Renders a backup's details.

use std::io::{self, Write};

use onefold_api::backup::BackupShowReply;
use onefold_api::size;

use crate::output::{Render, one_line};
use crate::rendering::utc;

impl Render for BackupShowReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let listed = &self.listed;
        writeln!(out, "backup {}, {}", listed.name, utc(listed.unix_seconds))?;
        for (what, value) in [
            ("origin", self.from.clone()),
            ("host", listed.host.clone()),
            ("snapshot", listed.snapshot.clone().unwrap_or_default()),
            ("size", size::display(listed.size_bytes)),
            ("block", size::display(self.block_size.into())),
            ("data", size::display(listed.logical_bytes)),
            ("read", size::display(self.read_bytes)),
            ("popular", size::display(self.popular_bytes)),
            ("new", size::display(listed.new_bytes)),
            ("stored", size::display(listed.stored_bytes)),
            ("recipe", size::display(self.recipe_bytes)),
            ("runs", self.number_runs.to_string()),
            ("tags", listed.tags.join(", ")),
        ] {
            if !value.is_empty() {
                writeln!(out, "{what:10}{}", one_line(&value))?;
            }
        }
        Ok(())
    }
}
