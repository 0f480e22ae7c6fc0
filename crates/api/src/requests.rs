//! The list of all requests.

use crate::request::Request;
use crate::{diff, group, index, job, loss, pool, scrub, snapshot, unshare, volume};

/// A visitor that is called once for each type of request.
pub trait Visitor {
    /// Visits one type of request.
    fn request<R: Request>(&mut self);
}

/// Passes every type of request to a visitor. The routes of the control socket and the OpenAPI document are
/// built from this list alone.
pub fn visit_requests(visitor: &mut impl Visitor) {
    visitor.request::<pool::PoolStat>();
    visitor.request::<pool::PoolSet>();
    visitor.request::<pool::PoolCheck>();
    visitor.request::<pool::PoolDedup>();
    visitor.request::<pool::PoolResize>();
    visitor.request::<pool::PoolTrim>();
    visitor.request::<pool::PoolUpgrade>();
    visitor.request::<scrub::PoolScrub>();
    visitor.request::<scrub::PoolBadBlocks>();
    visitor.request::<index::IndexStat>();
    visitor.request::<index::IndexRebuild>();
    visitor.request::<index::IndexConvert>();
    visitor.request::<job::JobList>();
    visitor.request::<job::JobPause>();
    visitor.request::<job::JobResume>();
    visitor.request::<volume::VolumeCreate>();
    visitor.request::<volume::VolumeClone>();
    visitor.request::<volume::VolumeList>();
    visitor.request::<volume::VolumeStat>();
    visitor.request::<volume::VolumeSet>();
    visitor.request::<volume::VolumeRename>();
    visitor.request::<volume::VolumeResize>();
    visitor.request::<volume::VolumeDelete>();
    visitor.request::<loss::VolumeAcceptLoss>();
    visitor.request::<unshare::VolumeDefrag>();
    visitor.request::<unshare::VolumeUnshare>();
    visitor.request::<snapshot::SnapshotCreate>();
    visitor.request::<snapshot::SnapshotList>();
    visitor.request::<diff::SnapshotDiff>();
    visitor.request::<snapshot::SnapshotDelete>();
    visitor.request::<snapshot::SnapshotRollback>();
    visitor.request::<group::GroupList>();
    visitor.request::<group::GroupCreate>();
    visitor.request::<group::GroupTake>();
    visitor.request::<group::HostList>();
}
