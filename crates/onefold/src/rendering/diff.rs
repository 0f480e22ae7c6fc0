//! Rendering of differences.

use std::io::{self, Write};

use onefold_api::{DiffContent, DiffExtent, DiffPage};

use crate::output::Render;

impl Render for DiffPage {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for extent in &self.extents {
            let DiffExtent {
                offset,
                length,
                content,
            } = extent;
            let content = match content {
                DiffContent::Data => "data",
                DiffContent::Zero => "zero",
            };
            writeln!(out, "{offset:>18}  {length:>18}  {content}")?;
        }
        Ok(())
    }
}
