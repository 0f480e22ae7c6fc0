//! The results of the benchmark of volumes, and their raw form.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::checking::Check;
use crate::finder::Finder;
use crate::import::Import;
use crate::large::Large;
use crate::open::Open;
use crate::sharing::Sharing;
use crate::slices::{Comparison, Measured, ROWS};
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

impl Results {
    pub(crate) fn raw(&self) -> Value {
        json!({
            "slices": self.raw_slices,
            "sharing": self.sharing.iter().map(Sharing::raw).collect::<Vec<_>>(),
            "finder": self.finder,
            "import": self.import,
            "large_pool": self.large,
            "open": self.open,
            "snapshots": self.snapshots,
            "check": self.check,
        })
    }

    /// The results in [`Results::raw`]; slices of rows that no longer exist are left out.
    pub(crate) fn of_raw(raw: &Value) -> Result<Results> {
        let list = |name: &str| raw[name].as_array().with_context(|| format!("no {name}"));
        let raw_slices = list("slices")?.clone();
        let mut comparisons = Vec::new();
        for slices in &raw_slices {
            if let Some(row) = ROWS.iter().find(|row| slices["row"] == row.name()) {
                comparisons.extend(Measured::of_raw(row, slices)?.compare(row)?);
            }
        }
        let sharing = list("sharing")?.iter().map(Sharing::of_raw);
        Ok(Results {
            comparisons,
            sharing: sharing.collect::<Result<_>>()?,
            finder: read(&raw["finder"])?,
            import: read(&raw["import"])?,
            large: read(&raw["large_pool"])?,
            open: read(&raw["open"])?,
            snapshots: read(&raw["snapshots"])?,
            check: read(&raw["check"])?,
            raw_slices,
        })
    }
}

/// Reads a part of raw results.
pub(crate) fn read<'a, T: Deserialize<'a>>(raw: &'a Value) -> Result<T> {
    T::deserialize(raw).with_context(|| format!("the raw results are not as expected: {raw}"))
}
