//! The content of parts, for tests to look at and to damage. None of this counts as I/O.

use super::SimulatedEngine;
use super::part::PartState;
use super::pool::POOL_DATA_BYTES;
use crate::Part;
use std::ops::Range;

impl SimulatedEngine {
    /// The content that a power loss could not take away now.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn durable_image(&self, part: Part) -> Vec<u8> {
        self.with_part(part, |state| {
            // The data of a shared pool has no end.
            let len = match state.durable.len {
                POOL_DATA_BYTES => state.durable.allocated_end(),
                len => len,
            };
            let mut bytes = vec![0; len as usize];
            state.durable.read(&mut bytes, 0);
            bytes
        })
    }

    /// The content that readers see.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn read_raw(&self, part: Part, offset: u64, len: usize) -> Vec<u8> {
        self.with_part(part, |state| {
            let mut bytes = vec![0; len];
            state.current.read(&mut bytes, offset);
            bytes
        })
    }

    /// The content of the memory that outlives processes. Zeros if no process has made it.
    pub fn read_host_memory(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.machine.state().host_memory.read(&mut bytes, offset);
        bytes
    }

    /// The length of the memory that outlives processes, in bytes.
    pub fn host_memory_len(&self) -> u64 {
        self.machine.state().host_memory.len
    }

    /// Inverts one bit, 0 to 7, of the byte at `offset`, on the medium and for readers.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn flip_bit(&self, part: Part, offset: u64, bit: u32) {
        self.with_part(part, |state| {
            for image in [&mut state.current, &mut state.durable] {
                let mut byte = [0];
                image.read(&mut byte, offset);
                image.write(&[byte[0] ^ (1 << (bit % 8))], offset);
            }
        });
    }

    /// Replaces bytes on the medium and for readers.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn overwrite(&self, part: Part, offset: u64, bytes: &[u8]) {
        self.with_part(part, |state| {
            state.current.write(bytes, offset);
            state.durable.write(bytes, offset);
        });
    }

    /// Makes every read that touches this range fail, until all of the touched part has been
    /// written again.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn make_unreadable(&self, part: Part, range: Range<u64>) {
        self.with_part(part, |state| state.unreadable.push(range));
    }

    /// Loses the object of a cluster that contains this byte of a part, as if it had been removed.
    ///
    /// # Panics
    ///
    /// If the part does not exist.
    pub fn lose_object(&self, part: Part, at: u64) {
        self.with_part(part, |state| state.lose_object(at));
        if let Some(mut shared) = self.machine.shared(part) {
            shared.lose_late(at);
        }
    }

    /// Undoes all [`SimulatedEngine::make_unreadable`] of a part.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn clear_unreadable(&self, part: Part) {
        self.with_part(part, |state| state.unreadable.clear());
    }

    /// Removes a part as if its file had been deleted. Open disks fail from now on.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn lose_part(&self, part: Part) {
        assert!(
            self.machine.state().parts.remove(&part).is_some(),
            "there is no part {} to lose",
            part.name()
        );
    }

    /// A test that damages or inspects nothing would prove nothing, hence the panic.
    fn with_part<T>(&self, part: Part, look: impl FnOnce(&mut PartState) -> T) -> T {
        let mut state = self.machine.state();
        let mut shared = self.machine.shared(part);
        let found = match &mut shared {
            Some(shared) => shared.part(part),
            None => state.parts.get_mut(&part),
        };
        match found {
            Some(state) => look(state),
            None => panic!("there is no part {}", part.name()),
        }
    }
}
