//! The differences between two states of a volume, page by page.

use clap::Args;
use onefold_store::{Blocking, Change, ChangedExtent};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::DIFF_EXTENTS_MAX;
use crate::request::{Report, Request};
use crate::service::Service;

/// Lists the differences of a snapshot or volume from an older one of the same family, a page at a time.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotDiff {
    /// The older state.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    pub since: String,
    /// The newer state, whose content is listed.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    pub name: String,
    /// Continues the page that ended here.
    #[arg(skip)]
    #[serde(default)]
    pub page: Option<NextPage>,
}

/// Where the next page begins. The numbers identify both states, since a name may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NextPage {
    /// First byte of the page.
    offset: u64,
    /// Numbers of the older and of the newer state.
    numbers: [u64; 2],
}

impl NextPage {
    /// Its first byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// One page of the list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffPage {
    /// Size of the older state.
    pub since_size_bytes: u64,
    /// Size of the newer state.
    pub size_bytes: u64,
    /// Runs that may differ, in ascending order.
    pub extents: Vec<DiffExtent>,
    /// Where the next page begins; absent on the last.
    pub next: Option<NextPage>,
}

/// A run of bytes that may differ.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffExtent {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its content now.
    pub content: DiffContent,
}

/// Content of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DiffContent {
    /// Data.
    Data,
    /// Zeros; also beyond the end of a volume that became smaller.
    Zero,
}

impl Request for SnapshotDiff {
    const PATH: &'static str = "/v1/snapshot/diff";
    type Reply = DiffPage;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<DiffPage> {
        let since = service.store.volume(&self.since)?;
        let volume = service.store.volume(&self.name)?;
        let numbers = [since.number(), volume.number()];
        if self.page.is_some_and(|page| page.numbers != numbers) {
            return Err(Error::failed(format!(
                "'{}' or '{}' was replaced while the list was made; ask again",
                self.since, self.name
            )));
        }
        let (since_size_bytes, size_bytes) = (since.size_bytes(), volume.size_bytes());
        let end = since_size_bytes.max(size_bytes);
        let mut at = self.page.map_or(0, |page| page.offset);
        let mut extents = Vec::new();
        if at < end {
            for extent in volume.changes(&since, at..end, DIFF_EXTENTS_MAX, Blocking::Yes)? {
                let ChangedExtent { len, change } = extent;
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
            next: (at < end).then_some(NextPage {
                offset: at,
                numbers,
            }),
        })
    }
}
