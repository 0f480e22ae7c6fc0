//! Whole images into and out of the pool.
//!
//! The data comes and goes as [`Piece`]s, so it makes no difference here whether a file or the
//! control socket is at the other end.

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

/// Where the control socket takes images.
pub const IMPORT_PATH: &str = "/v1/volume/import";

/// Creates a volume from an image, which follows as a stream of pieces.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeImport {
    /// The new volume's name.
    pub name: String,
    /// The image's size.
    pub image_bytes: u64,
    #[serde(flatten)]
    /// How the volume takes part in deduplication, and its share of the pool.
    pub options: NewVolumeOptions,
}

/// An imported volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeImportReply {
    /// Its name.
    pub name: String,
    /// The image's size.
    pub image_bytes: u64,
    /// Its size, in whole blocks.
    pub size_bytes: u64,
    /// Bytes of the image that were read; the rest were holes.
    pub read_bytes: u64,
    /// Blocks with data.
    pub logical_blocks: u64,
    /// Of these, blocks whose content the pool did not have.
    pub unique_blocks: u64,
    /// Of these, blocks whose content the pool, or an earlier part of the image, had already.
    pub duplicate_blocks: u64,
    /// Data of the volume, in bytes.
    pub logical_bytes: u64,
    /// Of this, data that the pool, or an earlier part of the image, had already, in bytes.
    pub duplicate_bytes: u64,
    /// Why some blocks were not scanned for duplicates, although the volume's dedup is on.
    pub sharing_failure: Option<String>,
}

impl VolumeImport {
    /// Refuses requests that every pool would refuse.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage), with the fault.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        self.options.check()
    }

    /// Takes the pieces until the image is complete; after anything else the volume is gone again.
    ///
    /// # Errors
    /// The failure; nothing of the volume is left then.
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
        // Dropped on any of the ways out below, this deletes the volume again.
        let options = self.options.volume_options(size_bytes);
        let import = service.store.begin_import(&self.name, &options)?;
        let store = &service.store;
        let (read_bytes, published) = match self.options.dedup {
            DedupMode::Off => {
                let read_bytes = self.write_all(&mut pieces, &import, None)?;
                (read_bytes, Published::default())
            }
            DedupMode::Offline | DedupMode::Inline | DedupMode::Auto => {
                load_and_publish(store, &import, |loading| {
                    self.write_all(&mut pieces, &import, Some(loading))
                })?
            }
        };
        import.finish()?;
        let logical_blocks = service.find(&self.name)?.logical_blocks;
        let bytes = |blocks: u64| blocks * u64::from(service.store.block_size());
        Ok(VolumeImportReply {
            name: self.name.clone(),
            image_bytes: self.image_bytes,
            size_bytes,
            read_bytes,
            logical_blocks,
            unique_blocks: published.unique_blocks,
            duplicate_blocks: published.duplicate_blocks,
            logical_bytes: bytes(logical_blocks),
            duplicate_bytes: bytes(published.duplicate_blocks),
            sharing_failure: published.failure(),
        })
    }

    /// Returns how many bytes came.
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

/// Copies a volume out.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeExport {
    /// The volume, or VOLUME@SNAPSHOT.
    pub name: String,
}

/// An exported volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeExportReply {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes written; the rest are holes.
    pub written_bytes: u64,
}

/// How many extents to ask the volume for at a time; any number gives the same image.
const EXTENTS_PER_CALL: usize = 1024;

/// Something that can be copied out of a pool.
pub trait Export: Serialize + DeserializeOwned + Described + Send + 'static {
    /// Where the control socket gives it.
    const PATH: &'static str;

    /// Makes sure that it is there.
    ///
    /// # Errors
    /// Where it is not, or cannot be read.
    fn open(&self, service: &Service) -> Result<OpenExport>;
}

/// Sends the data in ascending order, then its size.
type SendAll = Box<dyn FnOnce(&PieceSender) -> Result<()> + Send>;

/// The export's source.
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

    /// The size of the copy, as far as it is known.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sends it. An error goes the same way; a receiver that went away only ends the work.
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
        let volume = service.store.volume(&self.name)?;
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

/// A volume that is being copied out.
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
