//! The memory of a simulated host, which outlives processes.

use super::Machine;
use super::stop::Stop;
use crate::HostMemory;
use std::sync::Arc;

/// The memory of a simulated host.
pub(super) struct SimulatedMemory {
    pub(super) machine: Arc<Machine>,
}

impl HostMemory for SimulatedMemory {
    fn len(&self) -> usize {
        self.machine.state().host_memory.len as usize
    }

    fn read_at(&self, buf: &mut [u8], offset: usize) {
        let state = self.machine.state();
        assert!((offset + buf.len()) as u64 <= state.host_memory.len);
        state.host_memory.read(buf, offset as u64);
    }

    fn write_at(&self, bytes: &[u8], offset: usize) {
        let mut state = self.machine.state();
        assert!((offset + bytes.len()) as u64 <= state.host_memory.len);
        // A process that is dead writes nothing. No fence reaches the memory.
        if state.stopped != Some(Stop::Crashed) {
            state.host_memory.write(bytes, offset as u64);
        }
    }

    fn write_word(&self, word: u64, offset: usize) {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        self.write_at(&word.to_le_bytes(), offset);
    }

    fn set_bits(&self, bits: u64, offset: usize) {
        let mut word = [0; 8];
        self.read_at(&mut word, offset);
        self.write_word(u64::from_le_bytes(word) | bits, offset);
    }
}
