//! The version of the pool, as in the root: opening a pool does not raise it.

use std::sync::atomic::Ordering::SeqCst;

use onefold_format::{MAJOR_VERSION, Root};
use onefold_metadata::Result;

use super::PoolRoot;

impl PoolRoot {
    /// The minor version of the pool.
    pub fn minor(&self) -> u8 {
        self.minor.load(SeqCst)
    }

    /// Raises the minor version of the pool to this one, if it is lower. It is durable when this returns; only then may
    /// the caller write data that needs it. A release that does not know the version opens the pool read-only.
    pub fn ensure_minor(&self, minor: u8) -> Result<()> {
        let mut root = self.lock();
        if root.minor >= minor {
            return Ok(());
        }
        self.state.check_writable()?;
        let next = Root {
            minor,
            sequence: root.sequence + 1,
            ..*root
        };
        self.switch(&mut root, next)?;
        self.minor.store(minor, SeqCst);
        tracing::info!(
            "the pool has format {MAJOR_VERSION}.{minor} from now on: releases that do not know it only read the pool"
        );
        Ok(())
    }
}
