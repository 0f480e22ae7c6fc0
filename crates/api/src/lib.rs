//! Users' requests to onefold, their replies, and the service that carries them out.
//!
//! Each request is defined once. Its command-line arguments (clap), its JSON on the control socket (serde)
//! and its part of the [OpenAPI document](openapi::json) all come from that definition. The command line runs
//! a request itself if it has opened the pool, and sends it to the daemon otherwise; both ways give the same
//! answer and refuse the same requests.
//!
//! May use: the store and its jobs, backups and their repository. Must not: open sockets, files or pools, print, or render for people;
//! front ends do that.
//!
//! | file | contents |
//! | --- | --- |
//! | `request.rs` `requests.rs` | the trait [`Request`]; the list of all requests |
//! | `service.rs` | [`Service`]: an open pool with its clients and jobs |
//! | `volume.rs` `unshare.rs` `snapshot.rs` `diff.rs` | requests about volumes |
//! | `pool.rs` `scrub.rs` `index.rs` `job.rs` | requests about the pool |
//! | [`backup`] | requests about backups, which the caller's own process carries out |
//! | `measure.rs` | figures for monitoring |
//! | [`transfer`] | import and export, which stream their data separately from the request |
//! | `options.rs` `size.rs` `moment.rs` | options of volumes; sizes and times as people write them |
//! | `error.rs` | a failure, its kind and its message |
//! | `openapi.rs` `openapi_document.rs` | the OpenAPI document, and how it is made |
//! | [`limits`] | every bound, with its reason |

pub mod backup;
mod diff;
mod error;
mod group;
mod health;
mod index;
mod job;
pub mod limits;
mod loss;
mod measure;
mod moment;
pub mod openapi;
#[cfg(feature = "openapi")]
mod openapi_document;
mod options;
mod pool;
mod request;
mod requests;
mod scrub;
mod service;
pub mod size;
mod snapshot;
mod stores;
pub mod transfer;
mod unshare;
mod volume;

pub use diff::{DiffContent, DiffExtent, DiffPage, NextPage, SnapshotDiff};
pub use error::{Error, ErrorKind, Result};
pub use group::{
    GroupCreate, GroupList, GroupListReply, GroupReply, GroupTake, HostList, HostListReply,
    HostReply,
};
pub use health::{Health, PoolState, Problem, ProblemReason};
pub use index::{IndexConvert, IndexRebuild, IndexStat};
pub use job::{JobList, JobListReply, JobPause, JobResume, SelectedJobs};
pub use loss::{DamagedVolumeReply, VolumeAcceptLoss};
pub use measure::{
    ExportStatistics, JobMeasurement, Measurements, NbdStatistics, OpDurations, OpStatistics,
};
pub use moment::utc;
pub use options::NewVolumeOptions;
pub use pool::{
    PoolCheck, PoolCheckReply, PoolDedup, PoolDedupReply, PoolResize, PoolSet, PoolSetReply,
    PoolStat, PoolStatReply, PoolTrim, PoolTrimReply, PoolUpgrade, PoolUpgradeReply, PoolVolume,
};
pub use request::{Report, Request, SCHEMA_VERSION, Versioned};
pub use requests::{Visitor, visit_requests};
pub use scrub::{BadBlock, BlockFault, PoolBadBlocks, PoolScrub, PoolScrubReply};
pub use service::{Abandonment, Clients, DataReply, Hold, LocalityReply, Service, check_name};
pub use snapshot::{
    DeletionReply, SnapshotCreate, SnapshotDelete, SnapshotList, SnapshotListReply, SnapshotName,
    SnapshotReply, SnapshotRollback,
};
pub use stores::{Groups, Stores};
pub use unshare::{UnshareReply, VolumeDefrag, VolumeUnshare};
pub use volume::{
    AutoHeldBackReply, AutoSwitchReply, InlineReply, PlanReply, UsageReply, VolumeClone,
    VolumeCreate, VolumeDelete, VolumeList, VolumeListReply, VolumeRename, VolumeReply,
    VolumeResize, VolumeSet, VolumeStat,
};
