//! What can be done to a pool's index.

use super::{Report, Service, Verb};
use crate::error::Result;
use crate::output::Document;
use crate::sharing::Index;
use crate::size;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Describes the index.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IndexStat {}

/// The document of `index stat`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IndexStatReply {
    kind: Index,
    unique_blocks: u64,
    shared_blocks: u64,
    references: u64,
    needs_rebuild: bool,
    converting_to: Option<Index>,
    bytes_on_disk: u64,
    memory_bytes_max: u64,
}

impl IndexStatReply {
    fn of(service: &Service) -> Result<Self> {
        let stat = service.store.index_stat()?;
        Ok(Self {
            kind: stat.kind.into(),
            unique_blocks: stat.unique_blocks,
            shared_blocks: stat.shared_blocks,
            references: stat.references,
            needs_rebuild: stat.needs_rebuild,
            converting_to: stat.converting_to.map(Into::into),
            bytes_on_disk: stat.bytes_on_disk,
            memory_bytes_max: stat.memory_bytes_max,
        })
    }
}

impl Verb for IndexStat {
    const PATH: &'static str = "/v1/index/stat";
    type Reply = IndexStatReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<IndexStatReply> {
        IndexStatReply::of(service)
    }
}

impl Document for IndexStatReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let blocks = self.unique_blocks + self.shared_blocks;
        writeln!(out, "index        {}", self.kind.name())?;
        if self.needs_rebuild {
            writeln!(out, "state        to be counted again from the pool")?;
        }
        if let Some(kind) = self.converting_to {
            writeln!(out, "state        being converted to {}", kind.name())?;
        }
        writeln!(
            out,
            "blocks       {blocks}, {} with two references or more",
            self.shared_blocks
        )?;
        writeln!(out, "references   {}", self.references)?;
        let on_disk = size::display(self.bytes_on_disk);
        match self.bytes_on_disk.checked_div(blocks) {
            Some(each) => writeln!(out, "on disk      {on_disk}, {each} bytes a block")?,
            None => writeln!(out, "on disk      {on_disk}")?,
        }
        writeln!(
            out,
            "memory       {} at most",
            size::display(self.memory_bytes_max)
        )
    }
}

/// Counts the index again from the pool; or converts it, if a kind is named.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IndexRebuild {
    pub(crate) kind: Option<Index>,
}

impl Verb for IndexRebuild {
    const PATH: &'static str = "/v1/index/rebuild";
    type Reply = IndexStatReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<IndexStatReply> {
        match self.kind {
            Some(kind) => service
                .store
                .convert_index(kind.into(), &mut service.blocks(report))?,
            None => service.store.rebuild_index(&mut service.blocks(report))?,
        }
        IndexStatReply::of(service)
    }
}
