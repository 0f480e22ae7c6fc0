//! Reads and writes for which no thread waits.

use super::disk::{Outcome, SimulatedDisk};
use super::part::PartState;
use super::random::Random;
use crate::{Disk, Part, PreparedRead, PreparedWrite, ReadEnded, WriteEnded};

/// The longest write that is prepared.
pub(super) const WRITE_BYTES_MAX: usize = 64 << 10;

/// A read that ends as soon as it starts.
pub(super) struct PreparedRanges {
    pub(super) disk: SimulatedDisk,
    pub(super) ranges: Vec<(u64, usize)>,
}

impl PreparedRead for PreparedRanges {
    fn start(self: Box<Self>, ended: ReadEnded) {
        let read = |(offset, len): &(u64, usize)| {
            let mut bytes = vec![0; *len];
            let read = self.disk.read_at(&mut bytes, *offset);
            read.is_ok().then_some(bytes)
        };
        ended(self.ranges.iter().map(read).collect());
    }
}

/// A prepared write.
pub(super) struct Prepared {
    pub(super) disk: SimulatedDisk,
    pub(super) bytes: Vec<u8>,
    pub(super) offset: u64,
}

/// A started write. It does nothing until `submit` begins all started writes; they then end one after the other, in any
/// order.
pub(super) struct StartedWrite {
    write: Prepared,
    ended: WriteEnded,
}

impl PreparedWrite for Prepared {
    fn start(self: Box<Self>, ended: WriteEnded) {
        let machine = self.disk.machine.clone();
        let write = *self;
        machine.state().started.push(StartedWrite { write, ended });
    }
}

impl StartedWrite {
    pub(super) fn end(self) {
        let Prepared {
            disk,
            bytes,
            offset,
        } = self.write;
        let written = disk.write_at(&bytes, offset);
        (self.ended)(written, &bytes);
    }

    /// Sends the write to the data of a shared pool, whose host dies.
    pub(super) fn leave_in_pool(&self) {
        let Prepared {
            disk,
            bytes,
            offset,
        } = &self.write;
        if let Some(mut shared) = disk.machine.shared(disk.part) {
            if let Some(part) = shared.part(disk.part)
                && let Some(placement) = part.placement()
            {
                part.leave_write(placement, bytes, *offset);
            }
            shared.settle(disk.part, Outcome::Crash);
        }
    }

    /// Applies the remains of the write when the machine or the process stops: each sector may be written.
    pub(super) fn remains(&self, part: Part, state: &mut PartState, random: &mut Random) {
        let Prepared {
            disk,
            bytes,
            offset,
        } = &self.write;
        match state.placement() {
            _ if disk.part != part => {}
            Some(placement) => state.leave_write(placement, bytes, *offset),
            None => state.write_torn(bytes, *offset, random),
        }
    }
}
