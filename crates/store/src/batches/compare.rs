//! Whether blocks with equal fingerprints may become one.

use onefold_format::Pba;
use onefold_format::batch_page::BatchItem;
use onefold_index::{Counted, IndexReader};
use onefold_metadata::{Guard, Result};

use super::Batches;
use super::finder::Part;

impl Batches {
    /// Whether each item can share the index's block. With `--verify` nothing is repaired, because
    /// equal fingerprints do not prove equal content then; and a block that has the same bytes is
    /// not bad, even if it is listed. Nothing is repaired without an index.
    pub(super) fn heal_and_compare(
        &self,
        index: Option<&dyn IndexReader>,
        part: &Part<'_>,
    ) -> Result<Vec<bool>> {
        let mut equal = vec![true; part.items.len()];
        let verify = {
            let metadata = self.journal.metadata()?;
            // The setting of a volume that is gone is not known.
            let found = metadata.catalogue().by_layer(part.layer);
            found.is_none_or(|(_, volume)| volume.settings.verify) && Guard::VerifyBytes.holds()
        };
        if Guard::BadNotShared.holds()
            && !verify
            && self.blocks.bad().is_any()
            && let Some(index) = index
            && let Some(BatchItem { domain, .. }) = part.items.first()
        {
            let blocks = part.items.iter().map(|item| item.pba);
            self.blocks
                .repair(index, *domain, blocks.zip(part.answers.iter().copied()))?;
            for (equal, answer) in equal.iter_mut().zip(part.answers) {
                *equal = !matches!(answer, Counted::Shared(pba) if self.blocks.bad().get(*pba).is_some());
            }
        }
        if verify {
            self.compare(part, &mut equal)?;
        }
        Ok(equal)
    }

    /// Whether the items that are `equal` so far have the same bytes as the index's block. That
    /// block has been counted for the item, so it is not freed before the batch is settled. An
    /// unreadable block is listed as bad, and the call fails; when the batch is settled again, the
    /// block is not equal, unless it could be repaired.
    fn compare(&self, part: &Part<'_>, equal: &mut [bool]) -> Result<()> {
        let block_size = self.blocks.block_size() as usize;
        let (mut ours, mut theirs) = (vec![0; block_size], vec![0; block_size]);
        let pairs = part.items.iter().zip(part.answers);
        for ((item, answer), equal) in pairs.zip(equal) {
            if let Counted::Shared(indexed) = answer
                && *equal
            {
                *equal = self.read_unless_bad(item.pba, &mut ours)?
                    && self.read_unless_bad(*indexed, &mut theirs)?
                    && ours == theirs;
            }
        }
        Ok(())
    }

    fn read_unless_bad(&self, pba: Pba, buf: &mut [u8]) -> Result<bool> {
        match self.blocks.read_back(pba, buf) {
            Ok(()) => Ok(true),
            Err(_) if self.blocks.bad().get(pba).is_some() => Ok(false),
            Err(error) => {
                self.blocks.list_unreadable(&[pba])?;
                Err(error)
            }
        }
    }
}
