//! The reply to BLOCK_STATUS: the states of a range, in a chunk for each metadata context.

use crate::export::{Change, ChangedExtent, Changes, Export, ExportError, Extent, Failure};
use crate::handshake::Terms;
use crate::limits::EXTENTS_MAX;
use crate::wire::{self, BASE_ALLOCATION_ID, FIRST_BITMAP_ID, ReplyHeader, allocation, bitmap};
use onefold_store::Blocking;
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct StatusQuery {
    pub(crate) cookie: u64,
    /// The requested range, which is not empty.
    pub(crate) range: Range<u64>,
    pub(crate) only_first: bool,
    pub(crate) blocking: Blocking,
}

/// Bytes of the same state.
struct Run {
    len: u64,
    state: u32,
}

impl StatusQuery {
    /// Makes the whole reply.
    pub(crate) fn reply(
        &self,
        export: &dyn Export,
        terms: &Terms,
        changes: &[Arc<dyn Changes>],
    ) -> Result<Vec<u8>, ExportError> {
        let contexts = usize::from(terms.base_allocation) + changes.len();
        let extents_max = if self.only_first {
            1
        } else {
            EXTENTS_MAX / contexts.max(1)
        };
        let range = || self.range.clone();
        let mut reply = Vec::new();
        let mut add_chunk = |id, is_last, descriptors: Vec<u8>| {
            let len = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
            let header = ReplyHeader::block_status(self.cookie, is_last, id, len);
            reply.extend_from_slice(header.as_bytes());
            reply.extend(descriptors);
        };
        if terms.base_allocation {
            let extents = export.extents(range(), extents_max, self.blocking)?;
            let runs = extents.into_iter().map(|Extent { len, data }| {
                if data {
                    Run { len, state: 0 }
                } else {
                    Run {
                        len,
                        state: allocation::HOLE | allocation::ZERO,
                    }
                }
            });
            let descriptors = self.descriptors(extents_max, runs)?;
            add_chunk(BASE_ALLOCATION_ID, changes.is_empty(), descriptors);
        }
        let mut left = changes.len();
        for (changes, id) in changes.iter().zip(FIRST_BITMAP_ID..) {
            let extents = changes.extents(range(), extents_max, self.blocking)?;
            let runs = extents
                .into_iter()
                .map(|ChangedExtent { len, change }| Run {
                    len,
                    state: match change {
                        Change::Same => 0,
                        Change::Data | Change::Zero => bitmap::DIRTY,
                    },
                });
            let descriptors = self.descriptors(extents_max, runs)?;
            left -= 1;
            add_chunk(id, left == 0, descriptors);
        }
        Ok(reply)
    }

    /// The runs of a chunk: neighbours of the same state are merged, and the last one ends with the
    /// range at the latest.
    fn descriptors(
        &self,
        descriptors_max: usize,
        runs: impl Iterator<Item = Run>,
    ) -> Result<Vec<u8>, ExportError> {
        let mut left = self.range.end - self.range.start;
        let mut merged: Vec<Run> = Vec::new();
        for Run { len, state } in runs {
            let len = len.min(left);
            left -= len;
            match merged.last_mut() {
                _ if len == 0 => break,
                Some(last) if last.state == state => last.len += len,
                _ => merged.push(Run { len, state }),
            }
        }
        merged.truncate(descriptors_max);
        if merged.is_empty() {
            // The protocol has no answer without a state.
            let source = "the export returned no state of a range".into();
            return Err(ExportError::Failed {
                failure: Failure::Io,
                source,
            });
        }
        let mut descriptors = Vec::with_capacity(merged.len() * 8);
        for Run { len, state } in merged {
            // The range was given by a 32-bit length.
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            wire::push_descriptor(&mut descriptors, len, state);
        }
        Ok(descriptors)
    }
}
