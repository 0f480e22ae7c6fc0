//! Renders imports and exports.

use std::io::{self, Write};

use onefold_api::size;
use onefold_api::transfer::{MetadataExportReply, VolumeExportReply, VolumeImportReply};

use crate::output::Render;

impl Render for VolumeImportReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "volume '{}' imported: {}, {} of it data, of which {} were there already",
            self.name,
            size::display(self.size_bytes),
            size::display(self.logical_bytes),
            size::display(self.duplicate_bytes)
        )
    }
}

impl Render for VolumeExportReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "volume '{}' exported: {}, {} of it data",
            self.name,
            size::display(self.size_bytes),
            size::display(self.written_bytes)
        )
    }
}

impl Render for MetadataExportReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let size = size::display(self.bytes);
        writeln!(out, "metadata exported: {size} in {}", self.file)?;
        writeln!(out, "keep it secret: it holds the key of all fingerprints")
    }
}
