//! Moments as people read them.

use std::time::{Duration, UNIX_EPOCH};

/// Formats a time for people.
#[must_use]
pub fn utc(unix_seconds: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(unix_seconds));
    time.map_or_else(
        || unix_seconds.to_string(),
        |time| humantime::format_rfc3339_seconds(time).to_string(),
    )
}
