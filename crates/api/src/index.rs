//! Requests about the index of fingerprints.

use clap::Args;
use onefold_store::IndexKind;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::limits::CENSUS_POLL_INTERVAL;
use crate::request::{Report, Request};
use crate::service::Service;
use crate::stores::Stores;

/// Describes the index. In a pool that hosts share, its space and memory are those of the shards that this host serves.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexStat {}

impl Request for IndexStat {
    const PATH: &'static str = "/v1/index/stat";
    type Reply = onefold_store::IndexStat;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<onefold_store::IndexStat> {
        match &service.stores {
            Stores::One(store) => Ok(store.index().stat()?),
            Stores::Shared(groups) => Ok(groups.pool().index_stat()?),
        }
    }
}

/// Rebuilds the index by reading every shared block of the pool. In a pool that hosts share, all groups must be open.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexRebuild {}

impl Request for IndexRebuild {
    const PATH: &'static str = "/v1/index/rebuild";
    type Reply = onefold_store::IndexStat;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<onefold_store::IndexStat> {
        let mut report = service.blocks(report);
        match &service.stores {
            Stores::One(store) => {
                store.index().rebuild(&mut report)?;
                Ok(store.index().stat()?)
            }
            Stores::Shared(groups) => {
                let mut wait = || std::thread::sleep(CENSUS_POLL_INTERVAL);
                let rebuilt = groups.pool().rebuild_index(&mut wait, &mut report)?;
                Ok(rebuilt.index)
            }
        }
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
    type Reply = onefold_store::IndexStat;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<onefold_store::IndexStat> {
        let store = service.stores.sole("converting the index")?;
        let mut report = service.blocks(report);
        store.index().convert(self.kind, &mut report)?;
        Ok(store.index().stat()?)
    }
}
