//! Giving free space back to the host, and knowing when there is some: see `journal/src/host_space.rs`.

use onefold_format::Pba;
use onefold_journal::Epoch;
use onefold_metadata::Result;

use super::Space;

/// Blocks released before a moment: see [`Space::commit_released`].
#[derive(Debug, Clone, Copy)]
pub struct Released(Epoch);

impl Space {
    /// Discards up to `bytes` of freed space, rounded up to 64 KiB. Returns whether there may be
    /// more. A refusal by the host is not an error: it costs nothing but space.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map.
    pub fn give_back(&self, bytes: u64) -> Result<bool> {
        Ok(self.pool.journal().reuse().host_space().give_back(bytes)?
            || self.pool.journal().reuse().host_space().walk_free(bytes)?)
    }

    /// Discards the next free blocks from `cursor` on, `bytes` at most, and moves the cursor. The
    /// cost depends on the space that the host has allocated, plus a check of each page of the
    /// free-space map. Returns whether there may be more.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map, and from querying the host.
    pub fn trim_step(&self, cursor: &mut Pba, bytes: u64) -> Result<bool> {
        let most = (bytes / self.pool.block_size()).max(1);
        Ok(self
            .pool
            .journal()
            .reuse()
            .host_space()
            .trim_step(&mut cursor.0, most, 1)?
            .is_some())
    }

    /// Makes all releases until now durable. Released blocks are free once they have no readers:
    /// see [`Space::is_free`].
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn commit_released(&self) -> Result<Released> {
        self.pool.journal().commit_in_background()?;
        Ok(Released(self.pool.journal().reuse().epochs().current()))
    }

    /// Frees blocks without readers. Returns whether all of the `released` blocks are free.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map.
    pub fn is_free(&self, released: Released) -> Result<bool> {
        self.pool.journal().reuse().reclaim()?;
        Ok(self.pool.journal().reuse().is_reclaimed(released.0))
    }
}
