//! The time.

use std::time::{SystemTime, UNIX_EPOCH};

/// The present moment, in seconds since the Unix epoch.
pub(crate) fn now_unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
