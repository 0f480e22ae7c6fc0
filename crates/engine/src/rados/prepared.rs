//! Reads and writes of data for which no thread waits: librados' threads collect the results, and writes end on a thread
//! of the estate.

use super::ends::Ends;
use super::operations::{ObjectChange, Operations};
use super::place::Place;
use crate::failure::explain;
use crate::{PreparedRead, PreparedWrite, ReadEnded, WriteEnded};
use onefold_rados::WhenFull;
use std::sync::{Arc, Mutex, PoisonError};

/// A prepared write to one object.
pub(super) struct PreparedChange {
    pub(super) owner: Arc<Operations>,
    pub(super) ends: Ends,
    pub(super) object: String,
    pub(super) change: ObjectChange,
    pub(super) bytes: Vec<u8>,
    /// The write in errors.
    pub(super) doing: String,
}

impl PreparedWrite for PreparedChange {
    fn start(self: Box<Self>, ended: WriteEnded) {
        let PreparedChange {
            owner,
            ends,
            object,
            change,
            bytes,
            doing,
        } = *self;
        owner.submit(&object, change, WhenFull::Fail, move |written| {
            let written = written.map_err(|error| explain(doing, error));
            ends.run(move || ended(written, &bytes));
        });
    }
}

/// A read that has not begun.
pub(super) struct PreparedOperations {
    pub(super) owner: Arc<Operations>,
    /// The operations: the object of each, and the places that it reads.
    pub(super) operations: Vec<(String, Vec<Place>)>,
    /// The lengths of the ranges, in bytes.
    pub(super) lens: Vec<usize>,
}

/// A read with operations in flight.
struct ReadUnderWay {
    operations: usize,
    /// The bytes of each range; nothing once an operation has failed, or found fewer bytes than it should.
    found: Option<Vec<Vec<u8>>>,
    ended: Option<ReadEnded>,
}

impl PreparedRead for PreparedOperations {
    fn start(self: Box<Self>, ended: ReadEnded) {
        let found = self.lens.iter().map(|len| vec![0; *len]).collect();
        let state = Arc::new(Mutex::new(ReadUnderWay {
            operations: self.operations.len(),
            found: Some(found),
            ended: Some(ended),
        }));
        for (object, places) in self.operations {
            let asked: Vec<_> = (places.iter())
                .map(|place| (place.piece.offset, place.piece.len()))
                .collect();
            let state = Arc::clone(&state);
            self.owner.read(&object, asked, move |read| {
                let mut under_way = state.lock().unwrap_or_else(PoisonError::into_inner);
                under_way.end(&places, read.ok().flatten());
                if under_way.operations > 0 {
                    return;
                }
                let (found, ended) = (under_way.found.take(), under_way.ended.take());
                drop(under_way);
                if let Some(ended) = ended {
                    ended(found);
                }
            });
        }
    }
}

impl ReadUnderWay {
    /// Takes the result of the operation that reads these places.
    fn end(&mut self, places: &[Place], read: Option<Vec<Vec<u8>>>) {
        self.operations -= 1;
        let (Some(found), Some(read)) = (&mut self.found, read) else {
            self.found = None;
            return;
        };
        let mut read = places.iter().zip(read);
        let is_whole = read.all(|(Place { request, piece }, bytes)| {
            let is_whole = bytes.len() == piece.len();
            if is_whole {
                found[*request][piece.bytes.clone()].copy_from_slice(&bytes);
            }
            is_whole
        });
        if !is_whole {
            self.found = None;
        }
    }
}
