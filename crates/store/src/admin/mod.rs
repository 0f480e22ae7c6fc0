//! Administration of an open pool besides its volumes' data: size, import and export, figures,
//! discarding free space.

mod accounting;
mod data;
mod discard;
mod export;
mod import;
mod moving;
mod resize;
mod stat;
mod unshare;
mod usage;

pub use data::{Data, Locality};
pub use discard::Released;
pub use export::{LogAfter, MetadataExport};
pub use import::Import;
pub use resize::{ShrinkPlan, ShrinkReport};
pub use stat::{IndexStat, MemoryStat, PoolStat, SnapshotStat, VolumeStat};
pub use unshare::{UnsharePlan, Unsharing};
pub use usage::Usage;
pub(crate) use usage::Usages;
