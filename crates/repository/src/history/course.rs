//! How far a source has come. A host that has seen a later state notices when the source's storage goes back.

use onefold_format::backup::{ObjectName, SourceId};

use super::{History, Reached};
use crate::backup::Backups;
use crate::error::Result;
use crate::objects::Objects;
use crate::packs::Packs;

/// The most manifests that are tried to find the newest readable one.
const UNREADABLE_MAX: usize = 100;

/// How far a source has come, as far as a rollback check needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Course {
    /// According to the names of objects, which any writer to the folder can make up.
    pub listed: Reached,
    /// According to manifests and closed numbers that were read; older ones are not read.
    pub proved: Reached,
}

impl Course {
    /// Finds how far a source has come, given that it had come as far as `known`. Unless it has gone back, this lists
    /// two folders, and reads one manifest if there is a new one.
    ///
    /// Only manifests and closed numbers count, not recipes or records of backups in progress: a completed backup whose
    /// manifest is hidden counts as gone.
    pub(crate) fn find(objects: &Objects, source: SourceId, known: Reached) -> Result<Course> {
        let backups = Backups::of(objects, source);
        let manifests = objects.numbers(&ObjectName::manifests(source))?;
        let mut listed = Reached {
            next: manifests.last().map_or(0, |newest| newest.0 + 1),
            next_pack: listed_near(objects, source, known.next_pack)?,
        };
        let mut proved = Reached::default();
        let newer = manifests
            .iter()
            .rev()
            .take_while(|backup| backup.0 >= known.next);
        for backup in newer.take(UNREADABLE_MAX) {
            match backups.manifest(*backup) {
                Ok(manifest) => {
                    proved = Reached::by(*backup, &manifest);
                    break;
                }
                Err(error) if error.is_of_object() => {}
                Err(error) => return Err(error),
            }
        }
        if !listed.is_as_far_as(known) {
            let history = History::read(objects, source)?;
            let needed = backups.needed_packs()?.own;
            let needed = needed.last_key_value().map_or(0, |(number, _)| number + 1);
            let closed = Reached {
                next: history.closed.0.last().map_or(0, |range| range.end),
                next_pack: history.closed_next_pack,
            };
            proved = proved.max(closed);
            listed = listed.max(closed).max(Reached {
                next: 0,
                next_pack: history.next_pack.max(needed),
            });
        }
        Ok(Course { listed, proved })
    }
}

/// The number after the highest pack in the folder of pack `next` - 1, if it is at least `next`; otherwise 0.
fn listed_near(objects: &Objects, source: SourceId, next: u64) -> Result<u64> {
    let Some(number) = next.checked_sub(1) else {
        return Ok(0);
    };
    let packs = Packs::of(objects, source).beside(number)?.into_iter();
    let last = packs.map(|(number, _)| number).max();
    Ok(last
        .filter(|last| *last >= number)
        .map_or(0, |last| last + 1))
}
