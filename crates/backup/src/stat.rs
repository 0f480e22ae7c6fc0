//! Figures of a repository's packs, and of what sharing would save.

use onefold_format::backup::SourceId;
use onefold_repository::{KnownSource, Repository, RepositoryErrorKind};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::share::{plan_share, relatives};

/// Memory for comparing the sources.
const MEMORY_BYTES: usize = 64 << 20;

/// Figures of a set of packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = BackupStatPacks))]
pub struct PackFigures {
    /// Number of packs that can be read.
    pub packs: u64,
    /// Bytes of content in the packs.
    pub content_bytes: u64,
    /// Bytes that the packs take in the repository.
    pub stored_bytes: u64,
    /// Number of packs that cannot be read.
    pub damaged_packs: u64,
    /// Blocks that were damaged and have not been repaired yet.
    pub lost_blocks: u64,
}

impl PackFigures {
    /// The figures of the packs of a source, or of a domain's popular blocks.
    ///
    /// # Errors
    ///
    /// If the packs cannot be listed, or the storage fails. Damaged packs are counted.
    pub fn of(repository: &Repository, store: SourceId) -> Result<Self> {
        let mut found = Self::default();
        for (number, generation) in repository.packs(store)? {
            let pack = match repository.pack_or_newer(store, number, generation) {
                Ok(Some(pack)) => pack,
                Ok(None) => continue,
                Err(error) if error.kind() == RepositoryErrorKind::Damaged => {
                    found.damaged_packs += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let slots = pack.slots().iter();
            let blocks = slots.clone().filter(|slot| slot.stored().is_some()).count();
            found.packs += 1;
            found.content_bytes += blocks as u64 * u64::from(pack.block_size());
            found.stored_bytes += pack.stored_bytes();
            found.lost_blocks += slots.filter(|slot| slot.lost().is_some()).count() as u64;
        }
        Ok(found)
    }
}

/// Bytes that sharing among these sources, and then pruning, would free.
///
/// # Errors
///
/// If packs cannot be read.
pub fn shareable_bytes(repository: &Repository, sources: Vec<KnownSource>) -> Result<u64> {
    let mut bytes = 0;
    for relatives in relatives(repository, sources) {
        let plan = plan_share(repository, &relatives, MEMORY_BYTES, &mut |_, _| Ok(()))?;
        let blocks = plan.freed_blocks - plan.copied_blocks;
        let block_size = relatives.sources.first();
        bytes += blocks * block_size.map_or(0, |known| u64::from(known.source.block_size));
    }
    Ok(bytes)
}
