//! Losses of a restore with `--salvage`: the report, and the map for GNU ddrescue.

use crate::image::writer::TextFile;
use crate::version::BUILD;
use onefold_api::{Result, size};
use onefold_backup::{LostBlocks, Restore};
use serde::Serialize;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// The most ranges that are printed as text.
const RANGES_PRINTED_MAX: usize = 100;

/// The blocks that could not be restored.
#[derive(Debug, Default, Serialize)]
pub(super) struct Losses {
    /// Bytes of the disk that are lost.
    pub(super) bytes: u64,
    pub(super) ranges: Vec<LostRange>,
    /// The first twenty reasons for the losses.
    reasons: Vec<String>,
}

/// A range of blocks that could not be restored.
#[derive(Debug, Serialize)]
pub(super) struct LostRange {
    /// The first block, in blocks of the backup.
    lba: u64,
    blocks: u64,
    offset_bytes: u64,
    bytes: u64,
}

impl Losses {
    pub(super) fn of(restore: &Restore, lost: &LostBlocks) -> Self {
        let manifest = restore.manifest();
        let (size_bytes, block_size) = (manifest.size_bytes, u64::from(manifest.block_size));
        let range = |blocks: Range<u64>| {
            let offset_bytes = blocks.start * block_size;
            LostRange {
                lba: blocks.start,
                blocks: blocks.end - blocks.start,
                offset_bytes,
                // The last block of the disk may be shorter.
                bytes: (blocks.end * block_size).min(size_bytes) - offset_bytes,
            }
        };
        let ranges: Vec<_> = lost.ranges(0..u64::MAX).into_iter().map(range).collect();
        Self {
            bytes: ranges.iter().map(|range| range.bytes).sum(),
            ranges,
            reasons: lost.reasons(),
        }
    }

    /// Writes the report as text. `instead` describes the content in place of lost blocks.
    pub(super) fn text(&self, out: &mut dyn Write, instead: &str) -> io::Result<()> {
        if self.ranges.is_empty() {
            return writeln!(out, "nothing was lost");
        }
        let bytes = size::display(self.bytes);
        writeln!(out, "{bytes} could not be restored; {instead}")?;
        for range in self.ranges.iter().take(RANGES_PRINTED_MAX) {
            let LostRange {
                lba,
                blocks,
                offset_bytes,
                bytes,
            } = range;
            let last = lba + blocks - 1;
            writeln!(
                out,
                "lost: blocks {lba} to {last}, {bytes} bytes from byte {offset_bytes} on"
            )?;
        }
        let left_out = self.ranges.len().saturating_sub(RANGES_PRINTED_MAX);
        if left_out > 0 {
            let more = size::count(left_out as u64, "more range");
            writeln!(out, "lost: {more}; --map and --format json name all")?;
        }
        let mut reasons = self.reasons.iter();
        reasons.try_for_each(|reason| writeln!(out, "because {reason}"))
    }

    /// The map in GNU ddrescue's format: a line with the current state, then the whole disk in ranges, `+`
    /// for restored and `-` for lost ones.
    fn map(&self, name: &str, size_bytes: u64) -> String {
        let mut map = format!(
            "# Mapfile of backup {name}, by onefold {BUILD}\n# current_pos  current_status  current_pass\n0x00000000     +               1\n\
             #      pos        size  status\n"
        );
        let mut at = 0;
        let mut piece = |from: u64, to: u64, status: char| {
            if from < to {
                map += &format!("0x{from:08X}  0x{:08X}  {status}\n", to - from);
            }
        };
        for range in &self.ranges {
            let end = range.offset_bytes + range.bytes;
            piece(at, range.offset_bytes, '+');
            piece(range.offset_bytes, end, '-');
            at = end;
        }
        piece(at, size_bytes, '+');
        map
    }
}

/// The map file of a restore. It is created at the start, so that a failure to create it shows before the
/// restore.
pub(super) struct MapFile(TextFile);

impl MapFile {
    pub(super) fn create(path: &Path) -> Result<Self> {
        Ok(Self(TextFile::create(path)?))
    }

    pub(super) fn write(self, losses: &Losses, name: &str, size_bytes: u64) -> Result<()> {
        self.0.write(&losses.map(name, size_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_covers_the_disk() {
        let range = |lba, bytes| LostRange {
            lba,
            blocks: 1,
            offset_bytes: lba * 4096,
            bytes,
        };
        let losses = Losses {
            bytes: 4999,
            ranges: vec![range(0, 4096), range(2, 903)],
            reasons: Vec::new(),
        };
        let lines = |losses: &Losses, size| {
            let map = losses.map("web@1", size);
            let lines = map.lines().filter(|line| !line.starts_with('#'));
            let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            words.collect::<Vec<_>>()
        };
        assert_eq!(
            lines(&losses, 2 * 4096 + 903),
            [
                "0x00000000 + 1",
                "0x00000000 0x00001000 -",
                "0x00001000 0x00001000 +",
                "0x00002000 0x00000387 -",
            ]
        );
        let whole = ["0x00000000 + 1", "0x00000000 0x100000000 +"];
        assert_eq!(lines(&Losses::default(), 1 << 32), whole);
        assert_eq!(lines(&Losses::default(), 0), ["0x00000000 + 1"]);
    }
}
