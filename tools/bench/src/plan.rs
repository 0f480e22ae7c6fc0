//! The sizes of the benchmark of volumes, and the processors it uses.

use anyhow::{Context, Result, ensure};

/// fio runs on the first processor and every server on the second: neither takes the other's time, and no server gains
/// by luck of placement.
pub(crate) const CLIENT_PROCESSOR: usize = 0;
pub(crate) const SERVER_PROCESSOR: usize = 1;

/// Fails on machines where client and servers would share a processor.
pub(crate) fn require_processors() -> Result<()> {
    let processors = std::thread::available_parallelism().context("cannot count processors")?;
    ensure!(
        processors.get() > SERVER_PROCESSOR,
        "this needs two processors, one for the client and one for the server"
    );
    Ok(())
}

/// The size of the measurement.
pub(crate) struct Plan {
    pub(crate) slices: usize,
    /// How often servers and their files are made again, with as many slices each time: the place of a file on the disk
    /// affects the cost of its I/O.
    pub(crate) layouts: usize,
    pub(crate) slice_seconds: u32,
    pub(crate) sharing_slices: usize,
    pub(crate) sharing_slice_seconds: u32,
    /// Slices of the load whose latency counts.
    pub(crate) latency_slices: usize,
    pub(crate) imports: usize,
    pub(crate) opens: usize,
    /// Snapshots made and deleted under load.
    pub(crate) snapshot_rounds: usize,
    /// Imports of one image into the pool that is checked.
    pub(crate) check_imports: u64,
    pub(crate) control: bool,
}

pub(crate) const WHOLE: Plan = Plan {
    slices: 12,
    layouts: 4,
    slice_seconds: 2,
    sharing_slices: 8,
    sharing_slice_seconds: 8,
    latency_slices: 12,
    imports: 5,
    opens: 5,
    snapshot_rounds: 12,
    check_imports: 39,
    control: false,
};
pub(crate) const QUICK: Plan = Plan {
    slices: 4,
    layouts: 2,
    slice_seconds: 1,
    sharing_slices: 2,
    sharing_slice_seconds: 8,
    latency_slices: 4,
    imports: 2,
    opens: 2,
    snapshot_rounds: 2,
    check_imports: 4,
    control: false,
};
