//! Imports and exports whole images.
//!
//! The data moves as [`Piece`]s, so this code does not depend on whether a file or the control socket is at
//! the other end.

mod loading;
mod metadata;
mod piece;

use std::sync::Arc;

use clap::Args;
use onefold_store::{Blocking, DedupMode, Import, SECTOR_BYTES, Volume};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::TRANSFER_CHUNK_BYTES;
use crate::openapi::Described;
use crate::options::NewVolumeOptions;
use crate::service::{Service, check_name};
use loading::{Loading, Published, load_and_publish};

pub use metadata::{MetadataExport, MetadataExportReply};
pub use piece::{Chunk, ChunkPool, Piece, PieceReceiver, PieceSender, transfer};

/// The path of imports on the control socket.
pub const IMPORT_PATH: &str = "/v1/volume/import";

/// Creates a volume from an image, which follows as a stream of pieces.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeImport {
    /// The new volume's name.
    pub name: String,
    /// Size of the image in bytes.
    pub image_bytes: u64,
    #[serde(flatten)]
    /// How the volume takes part in deduplication, and its share of the pool.
    pub options: NewVolumeOptions,
    /// The group of the volume, for a pool that hosts share.
    #[serde(default)]
    pub group: Option<u64>,
}

/// An imported volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeImportReply {
    /// Name of the new volume.
    pub name: String,
    /// Size of the image in bytes.
    pub image_bytes: u64,
    /// Size of the volume: the size of the image, rounded up to whole sectors.
    pub size_bytes: u64,
    /// Bytes of the image that were read; the rest were holes.
    pub read_bytes: u64,
    /// Blocks with data in the volume.
    pub logical_blocks: u64,
    /// Blocks whose content the pool did not have.
    pub unique_blocks: u64,
    /// Blocks whose content was already in the pool or in an earlier part of the image.
    pub duplicate_blocks: u64,
    /// Data of the volume, in bytes.
    pub logical_bytes: u64,
    /// Bytes of data that were already in the pool or in an earlier part of the image.
    pub duplicate_bytes: u64,
    /// Why some blocks were not scanned for duplicates, although the volume's dedup is on.
    pub sharing_failure: Option<String>,
}

impl VolumeImport {
    /// Refuses a request that is invalid for every pool.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage), with the fault.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        self.options.check()
    }

    /// Writes the pieces to a new volume until the image is complete. If anything fails, the volume is
    /// deleted again.
    ///
    /// # Errors
    /// The failure; the volume does not exist then.
    pub fn run(&self, service: &Service, mut pieces: PieceReceiver) -> Result<VolumeImportReply> {
        self.check()?;
        if self.image_bytes == 0 {
            return Err(Error::failed(
                "the image is empty; a volume's size must not be 0",
            ));
        }
        let size_bytes = self
            .image_bytes
            .checked_next_multiple_of(SECTOR_BYTES)
            .ok_or_else(|| Error::usage("the image is larger than any volume can be"))?;
        // Dropping this on an early return deletes the volume again.
        let options = self.options.volume_options(size_bytes);
        let (name, stores) = (&self.name, &service.stores);
        let (store, import) = stores.create_volume(name, self.group, |store| {
            Ok(store.begin_import(name, &options)?)
        })?;
        let (read_bytes, published) = match self.options.dedup {
            DedupMode::Off => {
                let read_bytes = self.write_all(&mut pieces, &import, None)?;
                (read_bytes, Published::default())
            }
            DedupMode::Offline | DedupMode::Inline | DedupMode::Auto => {
                load_and_publish(&store, &import, |loading| {
                    self.write_all(&mut pieces, &import, Some(loading))
                })?
            }
        };
        import.finish()?;
        let logical_blocks = service.find(&self.name)?.logical_blocks;
        let bytes = |blocks: u64| blocks * u64::from(service.stores.block_size());
        let sharing_failure = published.failure();
        let Published {
            unique_blocks,
            duplicate_blocks,
            ..
        } = published;
        Ok(VolumeImportReply {
            name: self.name.clone(),
            image_bytes: self.image_bytes,
            size_bytes,
            read_bytes,
            logical_blocks,
            unique_blocks,
            duplicate_blocks,
            logical_bytes: bytes(logical_blocks),
            duplicate_bytes: bytes(duplicate_blocks),
            sharing_failure,
        })
    }

    /// Writes all pieces and returns the number of bytes received.
    fn write_all(
        &self,
        pieces: &mut PieceReceiver,
        import: &Import,
        loading: Option<&Loading>,
    ) -> Result<u64> {
        let mut read_bytes = 0;
        loop {
            match pieces.blocking_recv() {
                None => {
                    return Err(Error::failed(
                        "the import was interrupted; nothing was kept",
                    ));
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(Piece::End { image_bytes })) if image_bytes == self.image_bytes => {
                    return Ok(read_bytes);
                }
                Some(Ok(Piece::End { image_bytes })) => {
                    return Err(Error::failed(format!(
                        "the image ended after {image_bytes} of {} bytes; nothing was kept",
                        self.image_bytes
                    )));
                }
                Some(Ok(Piece::Data(mut chunk))) => {
                    let len = chunk.as_ref().len() as u64;
                    read_bytes += len;
                    chunk.pad_to(SECTOR_BYTES as usize);
                    import.write(chunk.offset, chunk.as_ref())?;
                    if let Some(loading) = loading {
                        loading.add_written(len);
                    }
                }
            }
        }
    }
}

/// Exports a volume's content.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeExport {
    /// The volume, or VOLUME@SNAPSHOT.
    pub name: String,
}

/// Results of an export.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeExportReply {
    /// Name of the exported volume or snapshot.
    pub name: String,
    /// Size of the volume or snapshot in bytes.
    pub size_bytes: u64,
    /// Bytes of data written; the rest of the image is holes.
    pub written_bytes: u64,
}

/// Extents that an export requests from the volume per call. The number does not affect the image.
const EXTENTS_PER_CALL: usize = 1024;

/// Something that can be copied out of a pool.
pub trait Export: Serialize + DeserializeOwned + Described + Send + 'static {
    /// The path of the export on the control socket.
    const PATH: &'static str;

    /// Opens the source of the export.
    ///
    /// # Errors
    /// If it does not exist or cannot be read.
    fn open(&self, service: &Service) -> Result<OpenExport>;
}

/// Sends all data in ascending order, then its size.
type SendAll = Box<dyn FnOnce(&PieceSender) -> Result<()> + Send>;

/// The source of an export.
pub struct OpenExport {
    size_bytes: u64,
    send_all: SendAll,
}

impl OpenExport {
    pub(crate) fn new(
        size_bytes: u64,
        send_all: impl FnOnce(&PieceSender) -> Result<()> + Send + 'static,
    ) -> Self {
        Self {
            size_bytes,
            send_all: Box::new(send_all),
        }
    }

    /// The size of the copy, as far as it is known in advance.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sends the data. An error is sent to the receiver too; if the receiver has gone, the export just ends.
    pub fn run(self, pieces: &PieceSender) {
        if let Err(error) = (self.send_all)(pieces) {
            let _ = pieces.blocking_send(Err(error));
        }
    }
}

impl Export for VolumeExport {
    const PATH: &'static str = "/v1/volume/export";

    fn open(&self, service: &Service) -> Result<OpenExport> {
        service.find(&self.name)?;
        let volume = service.store_of(&self.name)?.volume(&self.name)?;
        let size_bytes = volume.size_bytes();
        let source = VolumeSource {
            volume,
            name: self.name.clone(),
            size_bytes,
        };
        Ok(OpenExport::new(size_bytes, move |pieces| {
            source.send_all(pieces)
        }))
    }
}

/// A volume that is being exported.
struct VolumeSource {
    volume: Arc<Volume>,
    name: String,
    size_bytes: u64,
}

impl VolumeSource {
    fn send_all(&self, pieces: &PieceSender) -> Result<()> {
        let (volume, size_bytes) = (&self.volume, self.size_bytes);
        let pool = ChunkPool::default();
        let mut position = 0;
        while position < size_bytes {
            let extents = volume.extents(position..size_bytes, EXTENTS_PER_CALL, Blocking::Yes)?;
            if extents.iter().all(|extent| extent.len == 0) {
                return Err(Error::failed(format!(
                    "volume '{}' does not say what lies at byte {position}",
                    self.name
                )));
            }
            for extent in extents {
                let end = position.saturating_add(extent.len).min(size_bytes);
                while extent.data && position < end {
                    let chunk = read_chunk(volume, &pool, position, end)?;
                    position += chunk.as_ref().len() as u64;
                    if pieces.blocking_send(Ok(Piece::Data(chunk))).is_err() {
                        return Ok(());
                    }
                }
                position = end;
            }
        }
        let _ = pieces.blocking_send(Ok(Piece::End {
            image_bytes: size_bytes,
        }));
        Ok(())
    }
}

fn read_chunk(volume: &Volume, pool: &ChunkPool, start: u64, end: u64) -> Result<Chunk> {
    let mut chunk = pool.take(start);
    chunk.set_len((end - start).min(TRANSFER_CHUNK_BYTES as u64) as usize);
    volume.read(start, chunk.as_mut(), Blocking::Yes)?;
    Ok(chunk)
}
