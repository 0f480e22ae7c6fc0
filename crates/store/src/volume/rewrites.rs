//! Blocks that a volume rewrites in place, without a record.

use onefold_format::VolumeId;
use onefold_journal::RewriteMark;
use onefold_metadata::PbaRun;

use crate::pool::Pool;

/// Rewrites in place of one volume.
pub(super) struct Rewrites {
    volume: VolumeId,
    /// When the volume last wrote in place.
    last: RewriteMark,
}

impl Rewrites {
    pub(super) fn new(volume: VolumeId) -> Self {
        Self {
            volume,
            last: RewriteMark::default(),
        }
    }

    /// Notes, for the next process if this one dies, that blocks are about to be rewritten in place.
    pub(super) fn begin(&self, pool: &Pool, run: PbaRun) {
        pool.journal().begin_rewrite(&self.last, self.volume, run);
    }

    /// Notes, before the request is answered, that the device has stored these blocks in place: none of them is bad
    /// any more.
    pub(super) fn end(&self, pool: &Pool, run: PbaRun) {
        pool.journal().end_rewrite(&self.last, self.volume);
        if pool.bad().is_any() {
            let start = run.start.0;
            pool.bad().rewritten(start..start + run.count);
        }
    }
}
