//! The changes between a volume and its snapshots, and among these: they include all differences.

use std::ops::Range;

use onefold_store::{Blocking, Change, StoreError, Volume};

use crate::common::MIB;
use crate::world::{Step, World, violation};

impl World {
    /// Compares each volume and snapshot with the next one of its family, both ways.
    pub(crate) fn verify_changes(&self) -> Step {
        self.trace(|| "compare what changed".to_owned());
        for id in self.volume_ids() {
            let state = self.state();
            let snapshots = state.volumes.iter();
            let of_family = snapshots.filter(|volume| volume.snapshot_of == Some(id));
            let mut family: Vec<u64> = of_family.map(|snapshot| snapshot.id).collect();
            drop(state);
            family.push(id);
            for pair in family.windows(2) {
                self.verify_pair(pair[0], pair[1])?;
                self.verify_pair(pair[1], pair[0])?;
            }
        }
        Ok(())
    }

    fn verify_pair(&self, since: u64, new: u64) -> Step {
        let (since, new) = (self.handle(since)?, self.handle(new)?);
        let differing = find_difference(&since, &new);
        match differing {
            Ok(None) => {
                self.state().coverage.compared += 1;
                Ok(())
            }
            Ok(Some(message)) => Err(violation(format!(
                "'{}' since '{}': {message}",
                new.name(),
                since.name()
            ))),
            Err(error) => self.judge("comparing", &error, Blocking::Yes),
        }
    }
}

/// Faults of the changes from one to the other.
fn find_difference(since: &Volume, new: &Volume) -> Result<Option<String>, StoreError> {
    let (old_size, new_size) = (since.size_bytes(), new.size_bytes());
    let (both, end) = (old_size.min(new_size), old_size.max(new_size));
    let mut at = 0;
    while at < end {
        for extent in new.changes(since, at..end, 100, Blocking::Yes)? {
            let range = at..at + extent.len;
            at = range.end;
            let is_wrong = match extent.change {
                Change::Same => range.end > both || !is_equal(since, new, range.clone())?,
                Change::Data => range.end > new_size,
                Change::Zero => has_data(new, range.start..range.end.min(new_size))?,
            };
            if is_wrong {
                return Ok(Some(format!("{range:?} is not {:?}", extent.change)));
            }
        }
    }
    Ok(None)
}

fn is_equal(one: &Volume, other: &Volume, range: Range<u64>) -> Result<bool, StoreError> {
    for (first, second) in [(one, other), (other, one)] {
        let mut at = range.start;
        while at < range.end {
            for extent in first.extents(at..range.end, 256, Blocking::Yes)? {
                let end = at + extent.len;
                while at < end {
                    let len = (end - at).min(MIB);
                    if extent.data && read(first, at, len)? != read(second, at, len)? {
                        return Ok(false);
                    }
                    at += len;
                }
            }
        }
    }
    Ok(true)
}

fn read(volume: &Volume, at: u64, len: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![0xdd; len as usize];
    volume.read(at, &mut bytes, Blocking::Yes)?;
    Ok(bytes)
}

fn has_data(volume: &Volume, range: Range<u64>) -> Result<bool, StoreError> {
    if range.is_empty() {
        return Ok(false);
    }
    let extents = volume.extents(range, 2, Blocking::Yes)?;
    Ok(extents.iter().any(|extent| extent.data))
}
