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

impl Request for IndexStat {
    const PATH: &'static str = "/v1/index/stat";
    type Reply = onefold_store::IndexStat;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<onefold_store::IndexStat> {
        let store = service.stores.sole("a description of the index")?;
        Ok(store.index().stat()?)
    }
}

/// Rebuilds the index by reading every shared block of the pool.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexRebuild {}

impl Request for IndexRebuild {
    const PATH: &'static str = "/v1/index/rebuild";
    type Reply = onefold_store::IndexStat;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<onefold_store::IndexStat> {
        let store = service.stores.sole("rebuilding the index")?;
        store.index().rebuild(&mut service.blocks(report))?;
        Ok(store.index().stat()?)
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
