//! Requests about the index of fingerprints.

use clap::Args;
use onefold_store::IndexKind;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::request::{Report, Request};
use crate::service::Service;

/// Describes the index.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexStat {}

/// The index as it is now.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexStatReply {
    /// The back end of the index.
    pub kind: IndexKind,
    /// Published blocks with one reference.
    pub unique_blocks: u64,
    /// Published blocks with several references.
    pub shared_blocks: u64,
    /// References to published blocks.
    pub references: u64,
    /// Whether the index must be rebuilt from the pool before more blocks are shared.
    pub needs_rebuild: bool,
    /// The back end that the index is being converted to.
    pub converting_to: Option<IndexKind>,
    /// Size of the index on disk.
    pub bytes_on_disk: u64,
    /// The most memory that the index may use.
    pub memory_bytes_max: u64,
}

impl IndexStatReply {
    fn of(service: &Service) -> Result<Self> {
        let stat = service.store.index_stat()?;
        Ok(Self {
            kind: stat.kind,
            unique_blocks: stat.unique_blocks,
            shared_blocks: stat.shared_blocks,
            references: stat.references,
            needs_rebuild: stat.needs_rebuild,
            converting_to: stat.converting_to,
            bytes_on_disk: stat.bytes_on_disk,
            memory_bytes_max: stat.memory_bytes_max,
        })
    }
}

impl Request for IndexStat {
    const PATH: &'static str = "/v1/index/stat";
    type Reply = IndexStatReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<IndexStatReply> {
        IndexStatReply::of(service)
    }
}

/// Rebuilds the index by reading every shared block of the pool.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexRebuild {}

impl Request for IndexRebuild {
    const PATH: &'static str = "/v1/index/rebuild";
    type Reply = IndexStatReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<IndexStatReply> {
        service.store.rebuild_index(&mut service.blocks(report))?;
        IndexStatReply::of(service)
    }
}

/// Converts the index to another back end, by copying its rows.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexConvert {
    /// The new back end.
    #[arg(long = "to", value_enum, value_name = "KIND")]
    pub kind: IndexKind,
}

impl Request for IndexConvert {
    const PATH: &'static str = "/v1/index/convert";
    type Reply = IndexStatReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<IndexStatReply> {
        let mut report = service.blocks(report);
        service.store.convert_index(self.kind, &mut report)?;
        IndexStatReply::of(service)
    }
}
