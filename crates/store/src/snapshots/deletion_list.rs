//! Volumes and snapshots that were deleted and still hold something, and the order of their deletions.

use std::sync::Arc;

use onefold_format::{LayerId, SegmentIndex, VolumeId};
use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Result, StoreError};

use crate::volume::Volume;

/// A volume or snapshot that was deleted and still holds something.
#[derive(Clone)]
pub(crate) struct Deletion {
    pub(super) volume: Arc<Volume>,
    /// Nothing is left before this segment.
    pub(super) cursor: SegmentIndex,
    /// Why the last step of the deletion failed.
    pub(super) failure: Option<String>,
    /// Steps in a row that failed.
    pub(super) failures: u32,
}

impl Deletion {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        volume.mark_gone();
        Self {
            volume,
            cursor: SegmentIndex(0),
            failure: None,
            failures: 0,
        }
    }

    /// Notes a failed step. Logs only the first of several failures in a row.
    fn failed(&mut self, error: &StoreError) {
        if self.failures == 0 {
            tracing::warn!(
                "{error}; other deletions continue, and this one is tried again after them"
            );
        }
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(error.to_string());
    }
}

/// All deletions that are not finished.
#[derive(Default)]
pub(crate) struct DeletionList {
    list: Mutex<Vec<Deletion>>,
}

impl DeletionList {
    pub(crate) fn new(list: Vec<Deletion>) -> Self {
        Self {
            list: Mutex::new(list),
        }
    }

    pub(super) fn add(&self, deletion: Deletion) {
        lock(&self.list).push(deletion);
    }

    /// Removes a deletion that is finished.
    pub(super) fn remove(&self, id: VolumeId) {
        lock(&self.list).retain(|deletion| deletion.volume.id != id);
    }

    /// A copy of the present list.
    pub(super) fn all(&self) -> Vec<Deletion> {
        lock(&self.list).clone()
    }

    /// The next deletion: the first with the fewest failures among all that neither stay nor wait for
    /// another one.
    pub(super) fn next(&self) -> Option<Deletion> {
        let deleting = lock(&self.list);
        let goes = |layer: LayerId| {
            let found = deleting
                .iter()
                .find(|deletion| deletion.volume.layer().id == layer);
            found.is_some_and(|deletion| deletion.volume.layer().above().len() <= 1)
        };
        let is_next = |deletion: &&Deletion| match deletion.volume.layer().above()[..] {
            [] => true,
            [above] => !goes(above),
            _ => false,
        };
        let candidates = deleting.iter().filter(is_next);
        candidates.min_by_key(|deletion| deletion.failures).cloned()
    }

    /// Notes the result of a step of this one: where the next step continues, or an error.
    pub(super) fn note_step(&self, id: VolumeId, done: &Result<SegmentIndex>) {
        let mut list = lock(&self.list);
        let own = list.iter_mut().find(|deletion| deletion.volume.id == id);
        match (done, own) {
            (Ok(cursor), Some(own)) => {
                own.cursor = *cursor;
                own.failures = 0;
                if own.failure.take().is_some() {
                    tracing::info!("deleting '{}' works again", own.volume.name());
                }
            }
            (Err(error), Some(own)) => own.failed(error),
            (_, None) => {}
        }
    }

    /// Forgets all failures, so that each deletion is tried at least once more.
    pub(super) fn forget_failures(&self) {
        let mut list = lock(&self.list);
        list.iter_mut().for_each(|deletion| deletion.failures = 0);
    }
}
