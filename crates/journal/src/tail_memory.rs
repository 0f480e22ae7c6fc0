//! The layout of a pool's memory on the host: see [`onefold_format::tail`].

use std::sync::Arc;

use onefold_engine::{Engine, HostMemory};
use onefold_format::tail::LEDGER_BYTES;
use onefold_format::{PoolId, TailOwner};
use onefold_metadata::{Result, StoreError, StoreErrorKind};

/// Bytes of each half: room for some 65,000 changes between two commits. With less room, random
/// writes make housekeeping commit so often that guests notice.
pub(super) const HALF_BYTES: usize = 8 << 20;

/// Bits of the marks of each half. Blocks whose numbers differ by a multiple of it, 16 GiB in a pool
/// with blocks of 4 KiB, share a mark: then one of them cannot be compared because of the other.
#[cfg(not(any(feature = "simulation", feature = "shuttle")))]
pub(super) const MARK_BITS: u64 = 1 << 22;

/// Few bits, so that blocks of simulated pools share marks, too, and because each word takes time under the
/// scheduler that tries interleavings.
#[cfg(any(feature = "simulation", feature = "shuttle"))]
pub(super) const MARK_BITS: u64 = 1 << 12;

/// Words of the marks of each half.
pub(super) const MARK_WORDS: usize = (MARK_BITS / u64::BITS as u64) as usize;

const MARKS_BYTES: usize = MARK_WORDS * size_of::<u64>();
const HALVES_AT: usize = LEDGER_BYTES + 2 * MARKS_BYTES;
pub(super) const MEMORY_BYTES: usize = HALVES_AT + 2 * HALF_BYTES;

/// A pool's memory that outlives the process.
#[derive(Clone)]
pub struct TailMemory {
    /// The memory; `None` if the host has no room for it.
    memory: Option<Arc<dyn HostMemory>>,
    pub(super) owner: TailOwner,
}

impl TailMemory {
    /// Finds or creates the memory of a pool, and writes nothing to it.
    ///
    /// # Errors
    ///
    /// `Io`, except for lack of room: then there is only the ledger, or nothing.
    pub fn open(engine: &dyn Engine, pool: PoolId) -> Result<Self> {
        let opening = |error| StoreError::io("opening the copy of the log's tail", error);
        let find = |bytes| match engine.host_memory(bytes).map_err(opening) {
            Err(error) if error.kind() == StoreErrorKind::NoSpace => Ok(Err(error)),
            found => found.map(Ok),
        };
        let mut memory = find(MEMORY_BYTES)?;
        if let Err(error) = &memory {
            tracing::warn!(
                "{error}: until the pool is opened again with room for it, every change of a volume's \
                 map waits for the disk before it is answered"
            );
            memory = find(LEDGER_BYTES)?;
        }
        if let Err(error) = &memory {
            tracing::warn!("{error}: if a sync of the data fails, the next opening will not know");
        }
        let boot = engine.boot_id().map_err(opening)?;
        Ok(Self {
            memory: memory.ok(),
            owner: TailOwner { pool, boot },
        })
    }

    /// A test's memory.
    #[cfg(all(test, feature = "shuttle"))]
    pub(super) fn of(memory: Arc<dyn HostMemory>, owner: TailOwner) -> Self {
        Self {
            memory: Some(memory),
            owner,
        }
    }

    /// The memory that holds the ledger; `None` if the host has no room even for the ledger.
    pub(super) fn ledger(&self) -> Option<&Arc<dyn HostMemory>> {
        self.memory.as_ref()
    }

    /// The memory, if it also has room for records and marks.
    pub(super) fn halves(&self) -> Option<&Arc<dyn HostMemory>> {
        self.memory
            .as_ref()
            .filter(|memory| memory.len() >= MEMORY_BYTES)
    }
}

/// The offset of a half.
pub(super) fn half_at(half: usize) -> usize {
    HALVES_AT + half * HALF_BYTES
}

/// The offset of this word of a half's marks.
pub(super) fn mark_at(half: usize, word: usize) -> usize {
    LEDGER_BYTES + half * MARKS_BYTES + word * size_of::<u64>()
}

/// The memory of a host whose processes are threads.
#[cfg(all(test, feature = "shuttle"))]
pub(super) mod tests {
    use super::*;
    use onefold_metadata::sync::{Mutex, lock};

    pub(crate) struct Bytes(Mutex<Vec<u8>>);

    impl Bytes {
        pub(crate) fn memory() -> (Arc<Self>, TailMemory) {
            let bytes = Arc::new(Self(Mutex::new(vec![0; MEMORY_BYTES])));
            let owner = TailOwner {
                pool: PoolId([1; 16]),
                boot: [2; 16],
            };
            (Arc::clone(&bytes), TailMemory::of(bytes, owner))
        }
    }

    impl HostMemory for Bytes {
        fn len(&self) -> usize {
            lock(&self.0).len()
        }

        fn read_at(&self, buf: &mut [u8], offset: usize) {
            buf.copy_from_slice(&lock(&self.0)[offset..offset + buf.len()]);
        }

        fn write_at(&self, bytes: &[u8], offset: usize) {
            lock(&self.0)[offset..offset + bytes.len()].copy_from_slice(bytes);
        }

        fn write_word(&self, word: u64, offset: usize) {
            self.write_at(&word.to_le_bytes(), offset);
        }

        fn set_bits(&self, bits: u64, offset: usize) {
            let mut all = lock(&self.0);
            let word = &mut all[offset..offset + 8];
            let set = bits.to_le_bytes();
            word.iter_mut()
                .zip(set)
                .for_each(|(byte, bits)| *byte |= bits);
        }
    }
}
