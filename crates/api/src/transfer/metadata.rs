//! Exports all metadata of a pool.

use std::io::{self, Write};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Chunk, ChunkPool, Export, OpenExport, Piece, PieceSender};
use crate::error::Result;
use crate::limits::TRANSFER_CHUNK_BYTES;
use crate::service::Service;

/// Exports all metadata as of one moment.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MetadataExport {}

/// Results of an export of metadata.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MetadataExportReply {
    /// Name of the file.
    pub file: String,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl Export for MetadataExport {
    const PATH: &'static str = "/v1/pool/export-metadata";

    fn open(&self, service: &Service) -> Result<OpenExport> {
        let store = service.stores.sole("an export of the metadata")?;
        // Checkpoints before the export begins can change this size, which affects only the progress bar.
        let bytes = store.exporter().bytes();
        Ok(OpenExport::new(bytes, move |pieces| {
            let mut file = PieceWriter::new(pieces);
            store.exporter().write(&mut file)?;
            let _ = pieces.blocking_send(Ok(Piece::End {
                image_bytes: file.position,
            }));
            Ok(())
        }))
    }
}

/// A writer that cuts a file into pieces. Writing fails once the receiver is gone.
struct PieceWriter<'a> {
    pieces: &'a PieceSender,
    pool: ChunkPool,
    chunk: Option<Chunk>,
    position: u64,
}

impl<'a> PieceWriter<'a> {
    fn new(pieces: &'a PieceSender) -> Self {
        Self {
            pieces,
            pool: ChunkPool::default(),
            chunk: None,
            position: 0,
        }
    }
}

impl Write for PieceWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (pool, position) = (&self.pool, self.position);
        let chunk = self.chunk.get_or_insert_with(|| {
            let mut chunk = pool.take(position);
            chunk.set_len(0);
            chunk
        });
        let filled = chunk.as_ref().len();
        let taken = bytes.len().min(TRANSFER_CHUNK_BYTES - filled);
        chunk.set_len(filled + taken);
        if let (Some(to), Some(from)) = (chunk.as_mut().get_mut(filled..), bytes.get(..taken)) {
            to.copy_from_slice(from);
        }
        self.position += taken as u64;
        if filled + taken == TRANSFER_CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(chunk) = self.chunk.take() else {
            return Ok(());
        };
        let sent = self.pieces.blocking_send(Ok(Piece::Data(chunk)));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the receiver has gone"))
    }
}
