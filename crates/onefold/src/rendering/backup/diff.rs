//! Renders the differences between two backups.

use std::io::{self, Write};

use onefold_api::backup::BackupDiffReply;

use crate::output::Render;
use crate::rendering::diff::{Totals, heading, rows};

impl Render for BackupDiffReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        heading(out)?;
        rows(&self.extents, out)?;
        let totals = Totals::default().and(&self.extents);
        totals.text(Some(&self.since), &self.name, out)
    }
}
