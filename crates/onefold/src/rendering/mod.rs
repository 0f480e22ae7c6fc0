//! Renders replies as text, which may change between releases.

pub(crate) mod backup;
pub(crate) mod diff;
mod index;
mod job;
pub(crate) mod pool;
mod scrub;
mod snapshot;
mod transfer;
mod volume;

use clap::ValueEnum;
use onefold_api::{DataReply, size};

/// Formats a time for people.
pub(crate) fn utc(unix_seconds: u64) -> String {
    let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(unix_seconds));
    time.map_or_else(
        || unix_seconds.to_string(),
        |time| humantime::format_rfc3339_seconds(time).to_string(),
    )
}

/// The name of a value on the command line.
pub(crate) fn word(value: impl ValueEnum) -> String {
    let word = value.to_possible_value();
    word.map(|word| word.get_name().to_owned())
        .unwrap_or_default()
}

/// Formats an amount of data for a table.
fn short(data: DataReply) -> String {
    let data = data.data_bytes;
    data.map_or_else(|| "-".to_owned(), size::display)
}
