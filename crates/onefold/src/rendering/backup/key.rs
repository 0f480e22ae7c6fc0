//! Renders the keys of a repository.

use std::io::{self, Write};

use onefold_api::backup::BackupKeysReply;
use onefold_api::size;

use crate::output::Render;
use crate::rendering::utc;

impl Render for BackupKeysReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for key in &self.keys {
            let created = utc(key.created_unix_seconds);
            writeln!(out, "{}  {created}  {}", key.key, key.kind)?;
        }
        let count = size::count(self.keys.len() as u64, "key");
        writeln!(out, "{count}, any of which opens the repository")
    }
}
