//! Renders differences.

use std::io::{self, Write};

use onefold_api::{DiffContent, DiffExtent, DiffPage, size};

use crate::output::Render;

/// Sums over a list of differences.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) extents: u64,
    pub(crate) data_bytes: u64,
    pub(crate) zero_bytes: u64,
}

impl Totals {
    pub(crate) fn and(mut self, extents: &[DiffExtent]) -> Self {
        for extent in extents {
            self.extents += 1;
            match extent.content {
                DiffContent::Data => self.data_bytes += extent.length,
                DiffContent::Zero => self.zero_bytes += extent.length,
            }
        }
        self
    }

    /// The last line of a list.
    pub(crate) fn text(
        self,
        since: Option<&str>,
        name: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let extents = size::count(self.extents, "extent");
        let data = size::display(self.data_bytes);
        match since {
            Some(since) => writeln!(
                out,
                "{extents} of '{name}' changed since '{since}': {data} of data, {} of zeros",
                size::display(self.zero_bytes)
            ),
            None => writeln!(out, "{extents} of '{name}': {data} of data"),
        }
    }
}

/// The first line of a list.
pub(crate) fn heading(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:>18}  {:>18}  CONTENT", "OFFSET", "LENGTH")
}

pub(crate) fn rows(extents: &[DiffExtent], out: &mut dyn Write) -> io::Result<()> {
    extents.iter().try_for_each(|extent| {
        let content = match extent.content {
            DiffContent::Data => "data",
            DiffContent::Zero => "zero",
        };
        writeln!(
            out,
            "{:>18}  {:>18}  {content}",
            extent.offset, extent.length
        )
    })
}

impl Render for DiffPage {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        rows(&self.extents, out)
    }
}
