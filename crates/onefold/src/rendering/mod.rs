//! Renders replies as text, which may change between releases.

pub(crate) mod backup;
pub(crate) mod diff;
mod group;
mod index;
mod job;
pub(crate) mod pool;
mod scrub;
mod snapshot;
mod transfer;
mod volume;

use clap::ValueEnum;
pub(crate) use onefold_api::utc;
use onefold_api::{DataReply, size};

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
