//! The open batch: items that finder, collector or counting have announced in the log and not settled
//! yet.
//!
//! A pool has one open batch at most. Its items are settled in order, each by a record, so after a
//! crash a tail of them remains; the index is then asked again under the same number and gives its
//! original answers (P4).

use onefold_format::batch_page::{self, BatchItem, ITEMS_PER_PAGE};
use onefold_format::page::{BATCH_OWNER, PageKind};
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::{
    BatchKind, LayerId, Lba, OpenBatchHead, PageNumber, Pba, PublishRun, QueueElement, Root,
    TreeRoot,
};

use rustc_hash::FxHashSet;

use super::pages::Pages;
use super::tree;
use crate::error::{Result, StoreError};

/// An open batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBatch {
    /// The batch's number in the series of all batches.
    pub number: u64,
    /// The component that announced the batch.
    pub kind: BatchKind,
    /// The announced items, in order.
    pub items: Vec<BatchItem>,
    /// The number of settled items: the first ones.
    pub done: usize,
    /// The blocks of a finder's or collector's batch, to which no write may refer while it is open.
    busy: FxHashSet<Pba>,
}

/// The pool's batches.
#[derive(Default)]
pub struct Batches {
    pub(super) open: Option<OpenBatch>,
    /// The first number never used; it never goes back.
    pub(super) next_number: u64,
    /// The tree on disk.
    pub(super) root: TreeRoot,
}

impl OpenBatch {
    fn new(number: u64, kind: BatchKind) -> Self {
        Self {
            number,
            kind,
            items: Vec::new(),
            done: 0,
            busy: FxHashSet::default(),
        }
    }

    fn extend(&mut self, items: impl Iterator<Item = BatchItem>) {
        let first = self.items.len();
        self.items.extend(items);
        if self.kind != BatchKind::Counting {
            let added = self.items[first..].iter();
            self.busy.extend(added.map(|item| item.pba));
        }
    }

    /// Whether the open batch is the finder's or the collector's and contains the block.
    pub fn is_busy(&self, pba: Pba) -> bool {
        self.busy.contains(&pba)
    }

    /// The items that no record has settled yet.
    pub fn unsettled(&self) -> &[BatchItem] {
        &self.items[self.done..]
    }

    /// Notes that `lba` of `layer` no longer refers to `pba`. Returns whether the batch had not
    /// settled that item yet: then only the batch settles the block.
    pub(super) fn note_moved(&mut self, layer: LayerId, lba: Lba, pba: Pba) -> bool {
        if self.kind != BatchKind::Finder(layer) {
            return false;
        }
        let unsettled = &mut self.items[self.done..];
        let found = unsettled.binary_search_by_key(&lba, |item| item.lba);
        let Some(item) = found.ok().and_then(|n| unsettled.get_mut(n)) else {
            return false;
        };
        if item.pba != pba || item.moved {
            return false;
        }
        item.moved = true;
        true
    }

    pub(super) fn head(&self) -> OpenBatchHead {
        OpenBatchHead {
            number: self.number,
            kind: self.kind,
            items: self.items.len() as u32,
            done: self.done as u32,
        }
    }
}

impl Batches {
    /// The open batch, if there is one.
    pub fn open(&self) -> Option<&OpenBatch> {
        self.open.as_ref()
    }

    /// Extracts the open batch.
    pub fn into_open(self) -> Option<OpenBatch> {
        self.open
    }

    /// The first number never used.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Reads the batch of a checkpoint; passes each page that it reads to `visit_page`.
    pub fn read(
        pages: &Pages,
        root: &Root,
        visit_page: &mut dyn FnMut(PageNumber) -> Result<()>,
    ) -> Result<Self> {
        let mut items = Vec::new();
        tree::walk(pages, BATCH_OWNER, root.batch, &mut |visit| {
            let (index, pointer) = match visit {
                tree::Visit::Node(page) => return visit_page(page),
                tree::Visit::Leaf(index, pointer) => (index, pointer),
            };
            visit_page(pointer.page)?;
            let page = pages.read(PageKind::Batch, 0, BATCH_OWNER, index, pointer)?;
            let more = batch_page::decode(&page);
            items.extend(
                more.map_err(|e| StoreError::format(format_args!("batch page {index}"), e))?,
            );
            Ok(())
        })?;
        let counted = root.open_batch.map_or(0, |head| head.items as usize);
        if items.len() != counted {
            return Err(StoreError::damaged(format!(
                "the open batch has {} items where the root counts {counted}",
                items.len()
            )));
        }
        Ok(Self {
            open: root.open_batch.map(|head| {
                let mut batch = OpenBatch::new(head.number, head.kind);
                batch.extend(items.into_iter());
                batch.done = head.done as usize;
                batch
            }),
            next_number: root.next_batch,
            root: root.batch,
        })
    }

    /// Begins the batch of a record that announces blocks of `layer` for publishing.
    pub(super) fn announce(
        &mut self,
        layer: LayerId,
        domain: onefold_format::DomainId,
        number: u64,
        runs: &[PublishRun],
    ) -> Result<()> {
        let kind = BatchKind::Finder(layer);
        let batch = self.begin_or_continue(number, kind)?;
        for run in runs {
            let ascends = batch.items.last().is_none_or(|last| last.lba < run.lba);
            if !ascends || batch.items.len() + run.count as usize > BATCH_ITEMS_MAX as usize {
                return Err(misfit(number));
            }
            batch.extend((0..u64::from(run.count)).map(|n| BatchItem {
                lba: run.lba + n,
                pba: run.pba + n,
                domain,
                moved: false,
            }));
        }
        Ok(())
    }

    /// Begins the batch of a record that takes these elements from a queue, to release or count
    /// their references.
    pub(super) fn begin_with(
        &mut self,
        number: u64,
        kind: BatchKind,
        elements: &[QueueElement],
    ) -> Result<()> {
        if self.open.is_some() {
            return Err(misfit(number));
        }
        let batch = self.begin_or_continue(number, kind)?;
        batch.extend(items_of(elements));
        if batch.items.len() > BATCH_ITEMS_MAX as usize {
            return Err(misfit(number));
        }
        Ok(())
    }

    fn begin_or_continue(&mut self, number: u64, kind: BatchKind) -> Result<&mut OpenBatch> {
        let continues = self
            .open
            .as_ref()
            .map(|batch| (batch.number, batch.kind, batch.done) == (number, kind, 0));
        let begins = continues.is_none() && number == self.next_number;
        if !continues.unwrap_or(begins) {
            return Err(misfit(number));
        }
        self.next_number = self.next_number.max(number + 1);
        Ok(self
            .open
            .get_or_insert_with(|| OpenBatch::new(number, kind)))
    }

    /// The next `count` items of batch `number`, which a record settles from `position` on.
    pub(super) fn settle(
        &mut self,
        number: u64,
        position: u32,
        count: u32,
    ) -> Result<(BatchKind, Vec<BatchItem>)> {
        let Some(batch) = self.open.as_mut() else {
            return Err(misfit(number));
        };
        let end = position as usize + count as usize;
        let fits = batch.number == number
            && batch.done == position as usize
            && count > 0
            && end <= batch.items.len();
        if !fits {
            return Err(misfit(number));
        }
        let items = batch.items[batch.done..end].to_vec();
        let kind = batch.kind;
        batch.done = end;
        if end == batch.items.len() {
            self.open = None;
        }
        Ok((kind, items))
    }
}

/// The items of a batch, one slice per page.
pub(super) fn page_slices(batch: &OpenBatch) -> impl Iterator<Item = (u64, &[BatchItem])> {
    (0..).zip(batch.items.chunks(ITEMS_PER_PAGE))
}

fn misfit(number: u64) -> StoreError {
    StoreError::damaged(format!(
        "a record of batch {number} does not fit the open batch"
    ))
}

/// The items that these elements have in a batch of the collector or of counting.
pub(crate) fn items_of(elements: &[QueueElement]) -> impl Iterator<Item = BatchItem> + '_ {
    elements.iter().flat_map(|element| {
        (0..u64::from(element.count)).map(|n| BatchItem {
            lba: Lba(0),
            pba: element.pba + n,
            domain: element.domain,
            moved: false,
        })
    })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use onefold_format::DomainId;

    use super::*;

    fn item(n: u64) -> BatchItem {
        BatchItem {
            lba: Lba(n),
            pba: Pba(100 + n),
            domain: DomainId(0),
            moved: false,
        }
    }

    #[test]
    fn the_blocks_of_every_record_of_a_batch_are_busy() {
        let kinds = [
            (BatchKind::Finder(LayerId(1)), true),
            (BatchKind::Collector, true),
            (BatchKind::Counting, false),
        ];
        for (kind, is_busy) in kinds {
            let mut batch = OpenBatch::new(1, kind);
            batch.extend([item(1), item(2)].into_iter());
            batch.extend([item(7)].into_iter());
            for n in [1, 2, 7] {
                assert_eq!(batch.is_busy(Pba(100 + n)), is_busy, "{kind:?}, {n}");
            }
            assert!(!batch.is_busy(Pba(103)));
        }
    }
}
