//! Targets of `backup restore`: image files, new volumes, and volumes that exist.

mod file;
mod into;
mod volume;

use crate::context::Context;
use file::FileTarget;
use into::VolumeToOverwrite;
use onefold_api::backup::{BackupRestore, RestoreTarget};
use onefold_api::transfer::{Chunk, ChunkPool, VolumeImport};
use onefold_api::{Error, Result};
use volume::NewVolume;

/// The target that a request names.
///
/// # Errors
/// `Usage` for a target that cannot have the format of the image, or if there is none.
pub(crate) fn target<'a>(
    context: &'a Context,
    request: &'a BackupRestore,
) -> Result<Box<dyn RestoreTarget + 'a>> {
    match (&request.into, &request.volume, &request.file) {
        (Some(name), _, _) => Ok(Box::new(VolumeToOverwrite {
            context,
            name,
            yes: request.yes,
        })),
        (None, Some(name), _) => Ok(Box::new(NewVolume {
            context,
            import: VolumeImport {
                name: name.clone(),
                image_bytes: 0,
                options: request.options.clone(),
                group: None,
            },
        })),
        (None, None, Some(file)) => Ok(Box::new(FileTarget::new(request, file)?)),
        (None, None, None) => Err(Error::usage("no target to restore to")),
    }
}

/// Copies bytes at an offset of the disk into a chunk.
fn chunk(pool: &ChunkPool, at: u64, bytes: &[u8]) -> Chunk {
    let mut chunk = pool.take(at);
    chunk.set_len(bytes.len());
    chunk.as_mut().copy_from_slice(bytes);
    chunk
}
