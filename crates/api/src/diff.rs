//! Lists the differences between two states of a volume in pages.

use std::ops::Range;

use clap::Args;
use onefold_store::{Blocking, Change, ChangedExtent, Extent, Volume};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::DIFF_EXTENTS_MAX;
use crate::request::{Report, Request};
use crate::service::Service;

/// Lists the differences between a snapshot or volume and an older one of the same family, or all of its
/// data, one page at a time.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[command(allow_missing_positional = true)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotDiff {
    /// The older state. If it is left out, all data is listed.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    pub since: Option<String>,
    /// The newer state, whose content is listed.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    pub name: String,
    /// Where the previous page ended.
    #[arg(skip)]
    #[serde(default)]
    pub page: Option<NextPage>,
}

/// Where the next page begins. Volume numbers identify the two states, because names can be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NextPage {
    /// First byte of the page.
    offset: u64,
    /// Numbers of the older and the newer state; the newer number twice if there is no older state.
    numbers: [u64; 2],
}

impl NextPage {
    /// Offset of the page's first byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// A page of differences.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffPage {
    /// Size of the older state; absent if none was given.
    pub since_size_bytes: Option<u64>,
    /// Size of the newer state.
    pub size_bytes: u64,
    /// Runs that may differ, in ascending order.
    pub extents: Vec<DiffExtent>,
    /// Where the next page begins; absent on the last page.
    pub next: Option<NextPage>,
}

/// A run of bytes that may differ.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffExtent {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Content of the run in the newer state.
    pub content: DiffContent,
}

/// Content of a run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DiffContent {
    /// Data.
    Data,
    /// Zeros; also beyond the end of a volume that shrank.
    Zero,
}

impl Request for SnapshotDiff {
    const PATH: &'static str = "/v1/snapshot/diff";
    type Reply = DiffPage;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<DiffPage> {
        let store = service.store_of(&self.name)?;
        let since = self.since.as_ref().map(|name| store.volume(name));
        let since = since.transpose()?;
        let volume = store.volume(&self.name)?;
        let since_size_bytes = since.as_ref().map(|since| since.size_bytes());
        let size_bytes = volume.size_bytes();
        let end = size_bytes.max(since_size_bytes.unwrap_or(0));
        let number = volume.number();
        let next = |offset| NextPage {
            offset,
            numbers: [
                since.as_ref().map_or(number, |since| since.number()),
                number,
            ],
        };
        if self.page.is_some_and(|page| page != next(page.offset)) {
            let names = [self.since.as_ref(), Some(&self.name)];
            let names: Vec<_> = names
                .into_iter()
                .flatten()
                .map(|name| format!("'{name}'"))
                .collect();
            return Err(Error::failed(format!(
                "{} was replaced while the list was made; ask again",
                names.join(" or ")
            )));
        }
        let mut at = self.page.map_or(0, |page| page.offset);
        let mut extents = Vec::new();
        if at < end {
            for ChangedExtent { len, change } in changes(&volume, since.as_deref(), at..end)? {
                let content = match change {
                    Change::Same => None,
                    Change::Data => Some(DiffContent::Data),
                    Change::Zero => Some(DiffContent::Zero),
                };
                extents.extend(content.map(|content| DiffExtent {
                    offset: at,
                    length: len,
                    content,
                }));
                at += len;
            }
        }
        Ok(DiffPage {
            since_size_bytes,
            size_bytes,
            extents,
            next: (at < end).then(|| next(at)),
        })
    }
}

/// The differences from `since`, or all data if there is no `since`, from the start of the range.
fn changes(
    volume: &Volume,
    since: Option<&Volume>,
    range: Range<u64>,
) -> Result<Vec<ChangedExtent>> {
    if let Some(since) = since {
        return Ok(volume.changes(since, range, DIFF_EXTENTS_MAX, Blocking::Yes)?);
    }
    let extents = volume.extents(range, DIFF_EXTENTS_MAX, Blocking::Yes)?;
    let changes = extents
        .into_iter()
        .map(|Extent { len, data }| ChangedExtent {
            len,
            change: if data { Change::Data } else { Change::Same },
        });
    Ok(changes.collect())
}
