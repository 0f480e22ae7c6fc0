//! Reading records: see `record.rs` for their layout.

use crate::bytes::{is_zero, u16_at, u32_at, u64_at};
use crate::catalogue_page::VolumeRecord;
use crate::entry::Entry;
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::units::{
    BLOCKS_PER_SEGMENT, LayerId, Lba, PBA_END, Pba, SegmentIndex, VOLUME_BLOCKS_MAX, VolumeId,
    is_id, is_run,
};

use super::*;

impl Record {
    /// Reads the record at the start of `bytes` and returns it with its length.
    ///
    /// # Errors
    ///
    /// [`FormatError`] for values that no release writes.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), FormatError> {
        if bytes.len() < HEADER_BYTES {
            return Err(FormatError::Short {
                needed: HEADER_BYTES,
                got: bytes.len(),
            });
        }
        let needed = usize::from(u16_at(bytes, 2));
        let has_its_length = match bytes[0] {
            KIND_MAP => needed == MAP_BYTES,
            KIND_UNMAP => needed == UNMAP_BYTES,
            KIND_PUT => needed == PUT_BYTES,
            KIND_GONE => needed == GONE_BYTES,
            KIND_PUBLISH => {
                (PUBLISH_HEADER_BYTES + RUN_BYTES..=RECORD_BYTES_MAX).contains(&needed)
                    && needed.is_multiple_of(RUN_BYTES)
            }
            KIND_OUTCOME => needed == OUTCOME_BYTES,
            KIND_COLLECT | KIND_COUNT => needed == COLLECT_BYTES,
            KIND_RELEASE | KIND_COUNTED => needed == RELEASE_BYTES,
            KIND_FREEZE => needed == FREEZE_BYTES,
            KIND_MERGE => needed == MERGE_BYTES,
            KIND_EXCHANGE => {
                (EXCHANGE_HEADER_BYTES + RUN_BYTES..=RECORD_BYTES_MAX).contains(&needed)
                    && needed.is_multiple_of(RUN_BYTES)
            }
            other => {
                return Err(FormatError::Field {
                    field: "record kind",
                    value: u64::from(other),
                });
            }
        };
        if !has_its_length {
            return Err(FormatError::Field {
                field: "record length",
                value: needed as u64,
            });
        }
        if bytes.len() < needed {
            return Err(FormatError::Short {
                needed,
                got: bytes.len(),
            });
        }
        if bytes[1] != 0 || u32_at(bytes, 4) != 0 {
            return Err(FormatError::Reserved {
                structure: "record header",
            });
        }
        Ok((decode_body(&bytes[..needed])?, needed))
    }
}

/// Reads the fields after the header of a record whose kind and length have been checked.
fn decode_body(bytes: &[u8]) -> Result<Record, FormatError> {
    match bytes[0] {
        KIND_MAP => decode_map(bytes),
        KIND_UNMAP => decode_unmap(bytes),
        KIND_PUT => decode_put(bytes),
        KIND_GONE => decode_gone(bytes),
        KIND_PUBLISH => decode_publish(bytes),
        KIND_OUTCOME => decode_outcome(bytes),
        KIND_COLLECT | KIND_COUNT => decode_elements(bytes),
        KIND_RELEASE => decode_release(bytes),
        KIND_COUNTED => decode_counted(bytes),
        KIND_FREEZE => decode_freeze(bytes),
        KIND_EXCHANGE => decode_exchange(bytes),
        _ => decode_merge(bytes),
    }
}

fn decode_map(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = layer_at(bytes)?;
    let (lba, count) = range_at(bytes)?;
    if u32_at(bytes, 28) != 0 {
        return Err(FormatError::Reserved {
            structure: "map record",
        });
    }
    let old = Entry::from_bits(u64_at(bytes, 32))?;
    let new = Entry::from_bits(u64_at(bytes, 40))?;
    for entry in [old, new] {
        let fits = entry.pba().is_none_or(|pba| is_run(pba, u64::from(count)));
        if !fits {
            return Err(FormatError::Field {
                field: "map entry",
                value: entry.to_bits(),
            });
        }
    }
    Ok(Record::Map {
        layer,
        lba,
        count,
        old,
        new,
    })
}

fn decode_unmap(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = layer_at(bytes)?;
    let (lba, count) = range_at(bytes)?;
    let to = match u32_at(bytes, 28) {
        0 => UnmapTo::Absent,
        1 => UnmapTo::Zero,
        other => {
            return Err(FormatError::Field {
                field: "unmap to",
                value: other.into(),
            });
        }
    };
    Ok(Record::Unmap {
        layer,
        lba,
        count,
        to,
    })
}

fn decode_put(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = u64_at(bytes, 8);
    match VolumeRecord::decode(&bytes[24..])? {
        Some(volume) if volume.map == TreeRoot::default() && layer == 0 => Ok(Record::VolumePut {
            slot: u64_at(bytes, 16),
            volume,
        }),
        _ => Err(FormatError::Reserved {
            structure: "volume record",
        }),
    }
}

fn decode_gone(bytes: &[u8]) -> Result<Record, FormatError> {
    let volume = u64_at(bytes, 24);
    if !is_id(volume) {
        return Err(FormatError::Field {
            field: "volume id",
            value: volume,
        });
    }
    Ok(Record::VolumeGone {
        slot: u64_at(bytes, 16),
        volume: VolumeId(volume),
        layer: layer_at(bytes)?,
    })
}

fn decode_publish(bytes: &[u8]) -> Result<Record, FormatError> {
    let segment = segment_at(bytes)?;
    let first = segment.first();
    let mut runs = Vec::with_capacity(bytes.len() / RUN_BYTES);
    for at in (PUBLISH_HEADER_BYTES..bytes.len()).step_by(RUN_BYTES) {
        let bits = u64_at(bytes, at);
        if bits >> RUN_END != 0 {
            return Err(FormatError::Reserved {
                structure: "publish record",
            });
        }
        runs.push(PublishRun {
            lba: first + (bits >> SLOT_SHIFT) % BLOCKS_PER_SEGMENT,
            pba: Pba(bits & (PBA_END - 1)),
            count: (bits >> COUNT_SHIFT) as u32 + 1,
        });
    }
    if !runs_fit(&runs) {
        return Err(FormatError::Field {
            field: "runs of segment",
            value: segment.0,
        });
    }
    Ok(Record::Publish {
        layer: layer_at(bytes)?,
        number: batch_number_at(bytes)?,
        runs,
    })
}

fn decode_outcome(bytes: &[u8]) -> Result<Record, FormatError> {
    let (position, count) = items_at(bytes)?;
    Ok(Record::Outcome {
        layer: layer_at(bytes)?,
        number: batch_number_at(bytes)?,
        position,
        count,
        outcome: Outcome::from_parts(u32_at(bytes, 28), u64_at(bytes, 32), count)?,
    })
}

/// A record that takes elements off a queue.
fn decode_elements(bytes: &[u8]) -> Result<Record, FormatError> {
    let elements = u32_at(bytes, 24);
    if !(1..=BATCH_ITEMS_MAX).contains(&elements) {
        return Err(FormatError::Field {
            field: "queue elements",
            value: u64::from(elements),
        });
    }
    if u64_at(bytes, 8) != 0 || u32_at(bytes, 28) != 0 {
        return Err(FormatError::Reserved {
            structure: "collect or count record",
        });
    }
    let number = batch_number_at(bytes)?;
    Ok(match bytes[0] {
        KIND_COLLECT => Record::Collect { number, elements },
        _ => Record::Count { number, elements },
    })
}

fn decode_release(bytes: &[u8]) -> Result<Record, FormatError> {
    let (position, count) = items_at(bytes)?;
    let release = match u32_at(bytes, 28) {
        1 => Release::Remaining,
        2 => Release::Freed,
        3 => Release::Quarantined,
        4 => Release::Held,
        other => {
            return Err(FormatError::Field {
                field: "release",
                value: u64::from(other),
            });
        }
    };
    if u64_at(bytes, 8) != 0 {
        return Err(FormatError::Reserved {
            structure: "release record",
        });
    }
    Ok(Record::Release {
        number: batch_number_at(bytes)?,
        position,
        count,
        release,
    })
}

fn decode_counted(bytes: &[u8]) -> Result<Record, FormatError> {
    let (position, count) = items_at(bytes)?;
    let outcome = match u32_at(bytes, 28) {
        1 => ClaimOutcome::Counted,
        2 => ClaimOutcome::Quarantined,
        other => {
            return Err(FormatError::Field {
                field: "outcome of a claim",
                value: u64::from(other),
            });
        }
    };
    if u64_at(bytes, 8) != 0 {
        return Err(FormatError::Reserved {
            structure: "counted record",
        });
    }
    Ok(Record::Counted {
        number: batch_number_at(bytes)?,
        position,
        count,
        outcome,
    })
}

fn decode_freeze(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = layer_at(bytes)?;
    let (live, below) = (u64_at(bytes, 24), u64_at(bytes, 32));
    if !is_id(live) || live == layer.0 {
        return Err(FormatError::Field {
            field: "live layer",
            value: live,
        });
    }
    if !is_id(below) || below == live {
        return Err(FormatError::Field {
            field: "layer below",
            value: below,
        });
    }
    match VolumeRecord::decode(&bytes[40..])? {
        Some(snapshot)
            if snapshot.snapshot_of.is_some()
                && snapshot.layer == layer
                && snapshot.map == TreeRoot::default() =>
        {
            Ok(Record::Freeze {
                slot: u64_at(bytes, 16),
                snapshot,
                live: LayerId(live),
                below: LayerId(below),
            })
        }
        _ => Err(FormatError::Reserved {
            structure: "snapshot record",
        }),
    }
}

fn decode_merge(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = layer_at(bytes)?;
    let above = u64_at(bytes, 16);
    if !is_id(above) || above == layer.0 {
        return Err(FormatError::Field {
            field: "layer above",
            value: above,
        });
    }
    Ok(Record::Merge {
        layer,
        above: LayerId(above),
        segment: segment_at(bytes)?,
    })
}

fn decode_exchange(bytes: &[u8]) -> Result<Record, FormatError> {
    let given_count = usize::from(u16_at(bytes, 24));
    let items: Vec<u64> = (EXCHANGE_HEADER_BYTES..bytes.len())
        .step_by(RUN_BYTES)
        .map(|at| u64_at(bytes, at))
        .collect();
    let is_whole = given_count + usize::from(u16_at(bytes, 26)) == items.len();
    let Some((given, taken)) = items.split_at_checked(given_count).filter(|_| is_whole) else {
        return Err(FormatError::Field {
            field: "number of exchanged runs",
            value: given_count as u64,
        });
    };
    let is_reserved = given.iter().any(|item| item >> GIVEN_END != 0);
    if is_reserved || u64_at(bytes, 8) != 0 || u32_at(bytes, 28) != 0 {
        return Err(FormatError::Reserved {
            structure: "exchange record",
        });
    }
    let run = |item: &u64| GivenRun {
        pba: Pba(item & (PBA_END - 1)),
        count: (item >> SLOT_SHIFT) as u32 + 1,
    };
    let given: Vec<GivenRun> = given.iter().map(run).collect();
    let taken: Vec<SpaceExtent> = taken.iter().map(|extent| SpaceExtent(*extent)).collect();
    let number = u64_at(bytes, 16);
    if !is_id(number) {
        return Err(FormatError::Field {
            field: "exchange number",
            value: number,
        });
    }
    if !exchange_fits(&given, &taken) {
        return Err(FormatError::Field {
            field: "blocks of exchange",
            value: number,
        });
    }
    Ok(Record::Exchange {
        number,
        given,
        taken,
    })
}

/// The segment that a record is about.
fn segment_at(bytes: &[u8]) -> Result<SegmentIndex, FormatError> {
    let segment = u64_at(bytes, 24);
    if segment < VOLUME_BLOCKS_MAX / BLOCKS_PER_SEGMENT {
        Ok(SegmentIndex(segment))
    } else {
        Err(FormatError::Field {
            field: "segment",
            value: segment,
        })
    }
}

/// The batch that a record is about.
fn batch_number_at(bytes: &[u8]) -> Result<u64, FormatError> {
    let number = u64_at(bytes, 16);
    if is_id(number) {
        Ok(number)
    } else {
        Err(FormatError::Field {
            field: "batch number",
            value: number,
        })
    }
}

/// Position and count of the items that a record settles.
fn items_at(bytes: &[u8]) -> Result<(u32, u32), FormatError> {
    let (position, count) = (u16_at(bytes, 24).into(), u16_at(bytes, 26).into());
    if items_fit(position, count) {
        Ok((position, count))
    } else {
        Err(FormatError::Field {
            field: "number of batch items",
            value: u64::from(count),
        })
    }
}

/// The layer that a record is about.
fn layer_at(bytes: &[u8]) -> Result<LayerId, FormatError> {
    let layer = u64_at(bytes, 8);
    if is_id(layer) {
        Ok(LayerId(layer))
    } else {
        Err(FormatError::Field {
            field: "layer id",
            value: layer,
        })
    }
}

/// A record's range, which must be in one segment of a volume.
fn range_at(bytes: &[u8]) -> Result<(Lba, u32), FormatError> {
    let (lba, count) = (Lba(u64_at(bytes, 16)), u32_at(bytes, 24));
    if lba.0 >= VOLUME_BLOCKS_MAX {
        return Err(FormatError::Field {
            field: "block number",
            value: lba.0,
        });
    }
    let fits = count != 0 && lba.slot() as u64 + u64::from(count) <= BLOCKS_PER_SEGMENT;
    if fits {
        Ok((lba, count))
    } else {
        Err(FormatError::Field {
            field: "block count",
            value: u64::from(count),
        })
    }
}

/// The records in a frame's payload, one after the other; ends after the first error.
pub fn decode_all(payload: &[u8]) -> impl Iterator<Item = Result<Record, FormatError>> + '_ {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if is_zero(rest) {
            return None;
        }
        match Record::decode(rest) {
            Ok((record, size)) => {
                rest = &rest[size..];
                Some(Ok(record))
            }
            Err(error) => {
                rest = &[];
                Some(Err(error))
            }
        }
    })
}
