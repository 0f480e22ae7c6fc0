//! Loading a volume from an image: it appears complete, or not at all.

use std::sync::Arc;

use crate::Wait;
use crate::error::Result;
use crate::store::Store;
use crate::volume::Volume;

/// A volume being loaded. Dropped before [`Import::finish`], it is removed again; if the process
/// dies, opening the pool does that.
pub struct Import {
    store: Arc<Store>,
    /// Taken by `finish`.
    volume: Option<Arc<Volume>>,
}

impl Import {
    pub(crate) fn new(store: Arc<Store>, volume: Arc<Volume>) -> Self {
        Self {
            store,
            volume: Some(volume),
        }
    }

    /// Writes `data`, 32 MiB at most, at `offset`. What is never written reads as zeros.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.volume
            .iter()
            .try_for_each(|volume| volume.write(offset, data, Wait::Yes))
    }

    /// Makes the volume durable and lets it appear.
    ///
    /// # Errors
    ///
    /// Those of the disk; the volume is removed then.
    pub fn finish(mut self) -> Result<()> {
        let Some(volume) = self.volume.take() else {
            return Ok(());
        };
        let finished = volume
            .flush()
            .and_then(|()| self.store.finish_import(Arc::clone(&volume)));
        if finished.is_err() {
            self.volume = Some(volume);
        }
        finished
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let Some(volume) = self.volume.take() else {
            return;
        };
        if let Err(error) = self.store.remove(&volume, &mut |_, _| {}) {
            tracing::warn!(
                "'{}' is removed when the pool is opened again: {error}",
                volume.name()
            );
        }
    }
}
