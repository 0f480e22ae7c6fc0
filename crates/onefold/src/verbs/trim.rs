//! Giving free space back to the host.

use super::{Report, Service, Verb};
use crate::error::{Error, Result};
use crate::output::Document;
use crate::size;
use onefold_jobs::trim_now;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Gives all free space back that the host has allocated.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolTrim {}

/// The document of `pool trim`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolTrimReply {
    /// What the host had allocated for data before.
    before_bytes_on_disk: u64,
    /// What it has now.
    pool_bytes_on_disk: u64,
    /// Of that, for blocks that are free.
    free_bytes_on_disk: u64,
}

impl Verb for PoolTrim {
    const PATH: &'static str = "/v1/pool/trim";
    type Reply = PoolTrimReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolTrimReply> {
        let before = service.store.stat()?.pool_bytes_on_disk;
        let trimmed = trim_now(&service.store, &mut service.blocks_until_stopped(report))?;
        if trimmed.is_break() {
            return Err(Error::failed(
                "the daemon was stopped before all free space was given back",
            ));
        }
        let stat = service.store.stat()?;
        Ok(PoolTrimReply {
            before_bytes_on_disk: before,
            pool_bytes_on_disk: stat.pool_bytes_on_disk,
            free_bytes_on_disk: stat.free_bytes_on_disk,
        })
    }
}

impl Document for PoolTrimReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let given_back = self
            .before_bytes_on_disk
            .saturating_sub(self.pool_bytes_on_disk);
        writeln!(
            out,
            "{} given back; the host has allocated {} for data",
            size::display(given_back),
            size::display(self.pool_bytes_on_disk)
        )
    }
}
