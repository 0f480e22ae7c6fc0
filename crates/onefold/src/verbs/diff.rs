//! What changed between two snapshots, page by page.

use super::{Report, Service, Verb};
use crate::error::{Error, Result};
use crate::limits::DIFF_EXTENTS_MAX;
use crate::output::Document;
use onefold_store::{Blocking, Change, ChangedExtent};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Lists what is different in one snapshot or volume from another one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotDiff {
    pub(crate) since: String,
    pub(crate) name: String,
    /// Where the page before ended.
    pub(crate) page: Option<NextPage>,
}

/// Where a page begins, and of what: another snapshot may have got the name meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NextPage {
    offset: u64,
    numbers: [u64; 2],
}

/// One page of the list.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DiffPage {
    pub(crate) since_size_bytes: u64,
    pub(crate) size_bytes: u64,
    pub(crate) extents: Vec<DiffExtent>,
    /// Nothing after the last page.
    pub(crate) next: Option<NextPage>,
}

/// A run of bytes that may be different.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct DiffExtent {
    offset: u64,
    pub(crate) length: u64,
    pub(crate) content: DiffContent,
}

/// What is in a run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DiffContent {
    Data,
    /// Also beyond the end of a volume that became smaller.
    Zero,
}

impl Verb for SnapshotDiff {
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

impl Document for DiffPage {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for extent in &self.extents {
            let DiffExtent {
                offset,
                length,
                content,
            } = extent;
            let content = match content {
                DiffContent::Data => "data",
                DiffContent::Zero => "zero",
            };
            writeln!(out, "{offset:>18}  {length:>18}  {content}")?;
        }
        Ok(())
    }
}
