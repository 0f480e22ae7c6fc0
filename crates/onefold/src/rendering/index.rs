//! Renders the index.

use std::io::{self, Write};

use onefold_api::size;
use onefold_store::IndexStat;

use super::word;
use crate::output::Render;

impl Render for IndexStat {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let blocks = self.unique_blocks + self.shared_blocks;
        writeln!(out, "index        {}", word(self.kind))?;
        if self.needs_rebuild {
            writeln!(out, "state        to be counted again from the pool")?;
        }
        if let Some(kind) = self.converting_to {
            writeln!(out, "state        being converted to {}", word(kind))?;
        }
        writeln!(
            out,
            "blocks       {blocks}, {} with two references or more",
            self.shared_blocks
        )?;
        writeln!(out, "references   {}", self.references)?;
        let on_disk = size::display(self.bytes_on_disk);
        match self.bytes_on_disk.checked_div(blocks) {
            Some(each) => writeln!(out, "on disk      {on_disk}, {each} bytes a block")?,
            None => writeln!(out, "on disk      {on_disk}")?,
        }
        writeln!(
            out,
            "memory       {} at most",
            size::display(self.memory_bytes_max)
        )
    }
}
