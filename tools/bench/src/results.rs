//! The results of the benchmark of volumes.

use serde_json::Value;

use crate::checking::Check;
use crate::finder::Finder;
use crate::import::Import;
use crate::large::Large;
use crate::open::Open;
use crate::sharing::Sharing;
use crate::slices::Comparison;
use crate::snapshots::Snapshots;

/// The results of a run.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) raw_slices: Vec<Value>,
    pub(crate) sharing: Vec<Sharing>,
    pub(crate) finder: Option<Finder>,
    pub(crate) import: Option<Import>,
    pub(crate) large: Option<Large>,
    pub(crate) open: Option<Open>,
    pub(crate) snapshots: Option<Snapshots>,
    pub(crate) check: Option<Check>,
}
