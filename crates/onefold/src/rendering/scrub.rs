//! Renders bad blocks.

use std::io::{self, Write};

use onefold_api::{BlockFault, PoolScrubReply, size};

use crate::output::Render;

impl Render for PoolScrubReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for block in &self.bad_blocks {
            let fault = match block.fault {
                BlockFault::Unreadable => "cannot be read",
                BlockFault::Changed => "differs from the stored data",
            };
            let remedy = match (block.repairable, block.affected) {
                (_, 0) => "no volume uses it, and it is quarantined",
                (true, _) => "it is repaired when the same content is written or imported",
                (false, _) => "it is repaired when it is overwritten",
            };
            writeln!(out, "block {} {fault}; {remedy}", block.pba)?;
            for place in &block.places {
                let snapshot = place.snapshot.as_ref();
                let snapshot = snapshot.map(|name| format!("@{name}")).unwrap_or_default();
                writeln!(out, "  {}{snapshot}  LBA {}", place.volume, place.lba)?;
            }
            let unlisted = block.affected - block.places.len() as u64;
            if unlisted > 0 {
                writeln!(out, "  and {unlisted} more")?;
            }
        }
        match self.left_blocks {
            0 => writeln!(
                out,
                "{}",
                size::count(self.bad_blocks.len() as u64, "bad block")
            ),
            left => writeln!(
                out,
                "{}; {left} of {} blocks of the pool are still to be read",
                size::count(self.bad_blocks.len() as u64, "bad block"),
                self.pool_blocks
            ),
        }
    }
}
