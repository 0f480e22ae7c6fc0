//! The version of the pool: opening it does not change the version.

use onefold_format::{
    DedupMode, MAJOR_VERSION, MINOR_OF_CLAIMS, MINOR_OF_SHORT_BLOCKS, MINOR_VERSION,
};
use onefold_metadata::Result;

use crate::store::Store;
use crate::volume_options::VolumeOptions;

impl Store {
    /// The newest format that this build writes, major and minor.
    pub const NEWEST_FORMAT: (u8, u8) = (MAJOR_VERSION, MINOR_VERSION);

    /// The version of the pool's format, major and minor. Opening a pool does not change it.
    ///
    /// # Errors
    ///
    /// `ReadOnly` where a later version wrote it, and after a failure.
    pub fn format_version(&self) -> Result<(u8, u8)> {
        self.pool.journal().check_writable()?;
        Ok((MAJOR_VERSION, self.pool.journal().root().minor()))
    }

    /// Brings the pool to the newest format. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `ReadOnly` where a later version wrote it, and after a failure; `Io`.
    pub fn upgrade(&self) -> Result<()> {
        self.pool.journal().check_writable()?;
        self.pool.journal().root().ensure_minor(MINOR_VERSION)
    }

    /// Raises the version of the pool if volumes with these options need a later one.
    pub(crate) fn ensure_version_for(&self, options: &VolumeOptions) -> Result<()> {
        let settings = &options.settings;
        let is_inline = matches!(settings.dedup, DedupMode::Inline | DedupMode::Auto);
        if is_inline || settings.min_run > 1 {
            self.pool.journal().root().ensure_minor(MINOR_OF_CLAIMS)?;
        }
        self.ensure_version_for_size(options.size_bytes)
    }

    /// Raises the version of the pool if a volume of this size, in bytes, needs a later one.
    pub(crate) fn ensure_version_for_size(&self, size_bytes: u64) -> Result<()> {
        if size_bytes.is_multiple_of(self.pool.block_size()) {
            Ok(())
        } else {
            self.pool
                .journal()
                .root()
                .ensure_minor(MINOR_OF_SHORT_BLOCKS)
        }
    }
}
