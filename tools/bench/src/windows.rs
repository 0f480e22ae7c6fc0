//! Windows of a guest's load: spans of time, and the latencies that the load's log has for them.
//!
//! A load runs all the time, and its log is cut into windows afterwards: the load has no start or end of its own in any
//! window, and windows that follow each other see nearly the same machine.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

/// The length of a window, in which a guest runs either alone or next to another load. It is short because other work
/// on the host's processors changes from minute to minute by more than the differences that are measured here.
pub(crate) const WINDOW: Duration = Duration::from_secs(2);

/// The time, in milliseconds of the Unix epoch.
pub(crate) fn epoch_ms() -> Result<f64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(since.context("the clock is wrong")?.as_secs_f64() * 1000.0)
}
