//! Restores to a new volume of a pool.

use super::chunk;
use crate::context::Context;
use onefold_api::backup::{RestoreTarget, RestoredBytes};
use onefold_api::transfer::{ChunkPool, Piece, PieceSender, VolumeImport, transfer};
use onefold_api::{Error, Result};
use onefold_backup::{RestoredBackup, Supervision};
use std::thread;

/// A volume to create.
pub(super) struct NewVolume<'a> {
    pub(super) context: &'a Context,
    /// The volume's name and options, without a size.
    pub(super) import: VolumeImport,
}

impl RestoreTarget for NewVolume<'_> {
    fn prepare(&self, _backup: &RestoredBackup) -> Result<()> {
        Ok(())
    }

    fn write(&self, backup: &RestoredBackup, supervision: &Supervision) -> Result<RestoredBytes> {
        let import = VolumeImport {
            image_bytes: backup.size_bytes(),
            ..self.import.clone()
        };
        let written_bytes = self.context.with_session(|session| {
            let (sender, receiver) = transfer();
            thread::scope(|scope| {
                let reading = scope.spawn(|| send(backup, supervision, sender));
                let imported = session.import(&import, receiver);
                let sent = reading.join();
                imported?;
                sent.map_err(|_| Error::failed("the restore panicked"))?
            })
        })?;
        Ok(RestoredBytes {
            written_bytes,
            pack_reads: None,
        })
    }
}

/// Sends the data in pieces. Returns the number of bytes.
fn send(backup: &RestoredBackup, supervision: &Supervision, sender: PieceSender) -> Result<u64> {
    let pool = ChunkPool::default();
    let sent = backup.read_all(supervision, |at, bytes| {
        let piece = Piece::Data(chunk(&pool, at, bytes));
        let sent = sender.blocking_send(Ok(piece));
        sent.map_err(|_| Error::failed("the import ended early"))
    });
    let last = sent.clone().map(|_| Piece::End {
        image_bytes: backup.size_bytes(),
    });
    // If the receiver is gone, it has its own error.
    let _ = sender.blocking_send(last);
    sent
}
