//! Loading a volume from an image: it appears complete, or not at all.

use std::sync::Arc;

use onefold_format::units::VOLUME_BLOCKS_MAX;
use onefold_format::{Lba, SegmentIndex, VolumeState};
use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Blocking, Result, Wanted};

use crate::batches::BatchReport;
use crate::dedup::Ready;
use crate::snapshots::clear_segment;
use crate::store::Store;
use crate::volume::Volume;
use crate::volume_options::VolumeOptions;

/// A volume being loaded. Dropped before [`Import::finish`], it is removed again; if the process
/// dies, opening the pool does that.
pub struct Import {
    store: Arc<Store>,
    /// The volume, until `finish` takes it.
    volume: Option<Arc<Volume>>,
    /// Blocks before this one have been published.
    published: Mutex<Lba>,
}

impl Import {
    fn new(store: Arc<Store>, volume: Arc<Volume>) -> Self {
        Self {
            store,
            volume: Some(volume),
            published: Mutex::default(),
        }
    }

    /// Writes `data`, 32 MiB at most, at `offset`. Unwritten ranges read as zeros.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        // The rest of the host's space is for guests.
        self.store.pool.journal().free_space().room()?;
        self.volume
            .iter()
            .try_for_each(|volume| volume.write(offset, data, Blocking::Yes))
    }

    /// Publishes blocks that have been written so far, up to 16,384 of them, so that known contents
    /// are stored only once ([DEDIS §5.5]). May be called concurrently with [`Import::write`], and
    /// until `at_end` once all is written.
    ///
    /// # Errors
    ///
    /// As [`Dedup::find_batch`](crate::Dedup::find_batch).
    pub fn dedup_batch(&self) -> Result<BatchReport> {
        let mut published = lock(&self.published);
        let Some(volume) = &self.volume else {
            return Ok(BatchReport::default());
        };
        let report = self
            .store
            .dedup()
            .find_batch(volume, &mut published, Ready::All)?;
        if report.at_end {
            // Blocks written behind the cursor while it was moving come next.
            *published = Lba(0);
        }
        Ok(report)
    }

    /// Makes the volume durable and lets it appear.
    ///
    /// # Errors
    ///
    /// I/O errors; the volume is then removed.
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
        if let Err(error) = self.store.remove(&volume) {
            tracing::warn!(
                "'{}' is removed when the pool is opened again: {error}",
                volume.name()
            );
        }
    }
}

impl Store {
    /// Starts loading a new volume, which appears once [`Import::finish`] is called and is removed
    /// again if that never happens.
    ///
    /// # Errors
    ///
    /// As [`Store::create_volume`].
    pub fn begin_import(self: &Arc<Self>, name: &str, options: &VolumeOptions) -> Result<Import> {
        let volume = self.add(name, options, VolumeState::Importing)?;
        Ok(Import::new(Arc::clone(self), volume))
    }

    /// The import of this volume is complete and durable.
    fn finish_import(&self, volume: Arc<Volume>) -> Result<()> {
        let _changing = self.catalogue.turn();
        let name = volume.name();
        self.catalogue.change_volume(
            volume.id,
            |record| record.state = VolumeState::Ready,
            None,
        )?;
        volume.end_import();
        self.volumes.insert(&name, volume);
        Ok(())
    }

    /// Removes a volume whose import was not finished. It is not visible yet, so it goes at once.
    pub(crate) fn remove(&self, volume: &Volume) -> Result<()> {
        volume.mark_gone();
        let layer = volume.layer();
        // A request that was admitted before may still change the map, until this has its blocks.
        drop(layer.locks.lock(0..VOLUME_BLOCKS_MAX, Blocking::Yes));
        let mut from = SegmentIndex(0);
        while let Some(segment) = self
            .pool
            .maps()
            .next_segment(&layer, from, Wanted::Mapped)?
        {
            clear_segment(&self.pool, &layer, segment)?;
            from = segment + 1;
        }
        self.catalogue.remove_record(volume.id, layer.id)?;
        self.catalogue.release_name(&volume.name());
        Ok(())
    }
}
