//! Renders a restore and its losses: as text, and as a map for GNU ddrescue.

use std::io::{self, Write};

use onefold_api::backup::{BackupRestoreReply, RestoreLosses, RestoreLostRange};
use onefold_api::size;

use crate::output::Render;
use crate::version::BUILD;

/// The most ranges that are printed as text.
const RANGES_PRINTED_MAX: usize = 100;

impl Render for BackupRestoreReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "backup {} restored: {}, {} of it written",
            self.name,
            size::display(self.size_bytes),
            size::display(self.restored.written_bytes)
        )?;
        losses(self, out)
    }
}

/// The losses, if the backup was salvaged.
pub(crate) fn losses(reply: &BackupRestoreReply, out: &mut dyn Write) -> io::Result<()> {
    let Some(lost) = &reply.lost else {
        return Ok(());
    };
    if lost.ranges.is_empty() {
        return writeln!(out, "nothing was lost");
    }
    let instead = if reply.keeps_lost {
        "the volume keeps its earlier content there"
    } else {
        "there are zeros instead"
    };
    let bytes = size::display(lost.bytes);
    writeln!(out, "{bytes} could not be restored; {instead}")?;
    for range in lost.ranges.iter().take(RANGES_PRINTED_MAX) {
        let RestoreLostRange {
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
    let left_out = lost.ranges.len().saturating_sub(RANGES_PRINTED_MAX);
    if left_out > 0 {
        let more = size::count(left_out as u64, "more range");
        writeln!(out, "lost: {more}; --map and --format json name all")?;
    }
    let mut reasons = lost.reasons.iter();
    reasons.try_for_each(|reason| writeln!(out, "because {reason}"))
}

/// The map in GNU ddrescue's format: a line with the current state, then the whole disk in ranges, `+`
/// for restored and `-` for lost ones.
pub(crate) fn map(losses: &RestoreLosses, name: &str, size_bytes: u64) -> String {
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
    for range in &losses.ranges {
        let end = range.offset_bytes + range.bytes;
        piece(at, range.offset_bytes, '+');
        piece(range.offset_bytes, end, '-');
        at = end;
    }
    piece(at, size_bytes, '+');
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_covers_the_disk() {
        let range = |lba, bytes| RestoreLostRange {
            lba,
            blocks: 1,
            offset_bytes: lba * 4096,
            bytes,
        };
        let losses = RestoreLosses {
            bytes: 4999,
            ranges: vec![range(0, 4096), range(2, 903)],
            reasons: Vec::new(),
        };
        let lines = |losses: &RestoreLosses, size| {
            let map = map(losses, "web@1", size);
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
        assert_eq!(lines(&RestoreLosses::default(), 1 << 32), whole);
        assert_eq!(lines(&RestoreLosses::default(), 0), ["0x00000000 + 1"]);
    }
}
