//! The blocks that a record puts to use.

use onefold_format::{LayerId, Record, record};
use onefold_metadata::PbaRun;

/// The new blocks of a record, and the layer that owns them.
pub(super) fn new_blocks(record: &Record) -> Option<(LayerId, PbaRun)> {
    match record {
        Record::Map {
            layer, count, new, ..
        } => new.own_pba().map(|start| {
            let count = u64::from(*count);
            (*layer, PbaRun { start, count })
        }),
        _ => None,
    }
}

/// How many new blocks encoded records have.
pub(super) fn new_blocks_of(records: &[u8]) -> usize {
    let records = record::decode_all(records).filter_map(Result::ok);
    let runs = records.filter_map(|record| new_blocks(&record));
    runs.map(|(_, run)| run.count as usize).sum()
}
