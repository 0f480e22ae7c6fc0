//! Renders the new name of a source.

use std::io::{self, Write};

use onefold_api::backup::BackupRenameReply;

use crate::output::Render;

impl Render for BackupRenameReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "source '{}' is '{}' now", self.old_name, self.new_name)
    }
}
