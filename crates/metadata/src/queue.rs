//! References that wait for a change of the index: first in, first out. There are two queues.
//!
//! *Dropped references* wait for the collector. Each block of an element is one that a shared entry
//! referred to and no longer does. The index still counts that entry (P3), so the blocks stay in use
//! until the collector has released the references in the index.
//!
//! *Claims* wait to be counted. A write found content in each block of an element, and an entry refers
//! to the block since then. The index does not count that entry yet, so no reference is released while
//! there is a claim (P3).
//!
//! Elements are numbered from the pool's creation on and stored in pages by their numbers. Memory
//! holds the pages that changed since the last checkpoint, the last page, and the pages at the
//! head.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use onefold_format::page::{CLAIMS_OWNER, PageBytes, PageKind, QUEUE_OWNER};
use onefold_format::queue_page::{self, ELEMENT_BLOCKS_MAX, ELEMENTS_PER_PAGE, NO_ELEMENTS};
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::{BatchItem, DomainId, QueueElement, Root, TreeRoot};

use super::batch::items_of;
use super::pages::Pages;
use super::run::PbaRun;
use super::tree;
use crate::error::{Result, StoreError};

/// Pages at the head that stay in memory: counted elements can be taken without the disk.
const HEAD_PAGES: u64 = BATCH_ITEMS_MAX as u64 / ELEMENTS_PER_PAGE as u64 + 2;

/// Elements from the first of a page on, without gaps.
type Elements = Vec<QueueElement>;

/// Selects one of the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// References that wait to be released.
    Dropped,
    /// References that wait to be counted.
    Claims,
}

impl QueueKind {
    /// The owner of the queue's pages.
    pub(super) fn owner(self) -> u64 {
        match self {
            Self::Dropped => QUEUE_OWNER,
            Self::Claims => CLAIMS_OWNER,
        }
    }

    /// The queue's name in messages.
    fn name(self) -> &'static str {
        match self {
            Self::Dropped => "the queue of dropped references",
            Self::Claims => "the queue of claims",
        }
    }
}

/// A queue on disk.
#[derive(Debug, Clone)]
pub struct StoredQueue {
    /// The kind of the queue.
    pub kind: QueueKind,
    /// The root of the queue's pages.
    pub root: TreeRoot,
    /// The numbers of its elements.
    pub numbers: Range<u64>,
}

impl StoredQueue {
    /// A queue of a checkpoint.
    pub fn of(root: &Root, kind: QueueKind) -> Self {
        let (tree, numbers) = match kind {
            QueueKind::Dropped => (root.queue, root.queue_head..root.queue_end),
            QueueKind::Claims => (root.claims, root.claims_head..root.claims_end),
        };
        Self {
            kind,
            root: tree,
            numbers,
        }
    }
}

/// References that wait, in order.
pub struct Queue {
    pages: Arc<Pages>,
    kind: QueueKind,
    pub(super) root: TreeRoot,
    /// Number of the first element, and of the first element that does not exist yet.
    head: u64,
    end: u64,
    /// Blocks of all elements.
    blocks: u64,
    /// Blocks of the elements that were taken since the pool was opened.
    taken_blocks: u64,
    /// The pages in memory. A page starts with the element that has its first number, consumed or
    /// not.
    resident: BTreeMap<u64, Arc<Elements>>,
    /// Pages of `resident` that differ from the tree on disk.
    dirty: BTreeSet<u64>,
    /// The first page that the tree on disk has.
    first_stored: u64,
}

/// The queue as it was when a checkpoint was sealed.
pub(super) struct SealedQueue {
    pub(super) kind: QueueKind,
    pub(super) root: TreeRoot,
    pub(super) head: u64,
    pub(super) end: u64,
    pub(super) pages: Vec<(u64, Arc<Elements>)>,
    /// Pages whose elements are all consumed.
    pub(super) gone: Range<u64>,
}

impl Queue {
    /// The queue as the last checkpoint left it. Reads all of it, to count its blocks.
    pub(super) fn open(pages: Arc<Pages>, stored: &StoredQueue) -> Result<Self> {
        let StoredQueue { kind, root, .. } = *stored;
        let Range { start: head, end } = stored.numbers;
        tree::walk(&pages, kind.owner(), root, &mut |visit| match visit {
            tree::Visit::Node(page) => pages.mark_used(page),
            tree::Visit::Leaf(_, pointer) => pages.mark_used(pointer.page),
        })?;
        let mut queue = Self {
            pages,
            kind,
            root,
            head,
            end,
            blocks: 0,
            taken_blocks: 0,
            resident: BTreeMap::new(),
            dirty: BTreeSet::new(),
            first_stored: page_of(head),
        };
        let mut blocks = 0;
        read_elements(&queue.pages, stored, &mut |element| {
            blocks += u64::from(element.count);
            Ok(())
        })?;
        queue.blocks = blocks;
        queue.load_last()?;
        Ok(queue)
    }

    /// The number of waiting references.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The waiting references, numbered from the opening of the pool. The next reference gets the end of
    /// the range.
    pub fn numbers(&self) -> Range<u64> {
        self.taken_blocks..self.taken_blocks + self.blocks
    }

    /// The number of elements.
    fn len(&self) -> u64 {
        self.end - self.head
    }

    /// Pages that the next checkpoint must write.
    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Appends the references to the blocks of `run`.
    pub(super) fn push(&mut self, mut run: PbaRun, domain: DomainId) {
        self.blocks += run.count;
        while run.count > 0 {
            let taken = self.extend_last(run, domain).unwrap_or_else(|| {
                let count = run.count.min(u64::from(ELEMENT_BLOCKS_MAX));
                self.append(QueueElement {
                    pba: run.start,
                    count: count as u16,
                    domain,
                });
                count
            });
            run.start.0 += taken;
            run.count -= taken;
        }
    }

    /// The number of blocks of `run` that the last element can take, if they follow it.
    fn extend_last(&mut self, run: PbaRun, domain: DomainId) -> Option<u64> {
        // Not if its page is full: whether that page is in memory is chance, and replay must do the
        // same.
        let is_page_open = index_in_page(self.end) != 0;
        let number = self.end.checked_sub(1);
        let number = number.filter(|last| *last >= self.head && is_page_open)?;
        let page = page_of(number);
        let elements = Arc::make_mut(self.resident.get_mut(&page)?);
        let last = elements.last_mut()?;
        let follows = last.pba + u64::from(last.count) == run.start && last.domain == domain;
        let taken = run
            .count
            .min(u64::from(ELEMENT_BLOCKS_MAX.saturating_sub(last.count)));
        if !follows || taken == 0 {
            return None;
        }
        last.count += taken as u16;
        self.dirty.insert(page);
        Some(taken)
    }

    fn append(&mut self, element: QueueElement) {
        let page = page_of(self.end);
        Arc::make_mut(self.resident.entry(page).or_default()).push(element);
        self.dirty.insert(page);
        self.end += 1;
    }

    /// The number of elements at the head with at most `blocks_max` blocks in total, even if more
    /// are pushed concurrently. Loads their pages.
    pub fn count_head(&mut self, blocks_max: u64) -> Result<u64> {
        let (mut count, mut blocks) = (0, 0);
        for number in self.head..self.end {
            let element = self.element(number)?;
            // The last element may grow until it is taken.
            blocks += if number + 1 == self.end {
                u64::from(ELEMENT_BLOCKS_MAX)
            } else {
                u64::from(element.count)
            };
            if blocks > blocks_max {
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    /// The items that a batch of at most `blocks_max` blocks from the head would have now.
    pub fn peek_head(&mut self, blocks_max: u64) -> Result<Vec<BatchItem>> {
        let end = self.head + self.count_head(blocks_max)?;
        let elements = (self.head..end).map(|number| self.element(number));
        let elements: Elements = elements.collect::<Result<_>>()?;
        Ok(items_of(&elements).collect())
    }

    /// Takes `count` elements off the head.
    pub(super) fn take(&mut self, count: u64) -> Result<Elements> {
        if count > self.len() {
            return Err(StoreError::damaged(format!(
                "{count} elements are taken from {}, which has {}",
                self.kind.name(),
                self.len()
            )));
        }
        let numbers = self.head..self.head + count;
        let taken: Elements = numbers
            .map(|number| self.element(number))
            .collect::<Result<_>>()?;
        self.head += count;
        let blocks: u64 = taken.iter().map(|e| u64::from(e.count)).sum();
        self.blocks -= blocks;
        self.taken_blocks += blocks;
        let first = page_of(self.head);
        self.resident.retain(|page, _| *page >= first);
        self.dirty.retain(|page| *page >= first);
        Ok(taken)
    }

    fn element(&mut self, number: u64) -> Result<QueueElement> {
        let page = page_of(number);
        if !self.resident.contains_key(&page) {
            let elements = read_page(&self.pages, self.kind, self.root, page)?;
            self.resident.insert(page, Arc::new(elements));
        }
        let found = self.resident.get(&page);
        let element = found.and_then(|elements| elements.get(index_in_page(number)));
        let missing = || {
            let queue = self.kind.name();
            StoreError::damaged(format!("element {number} of {queue} is missing"))
        };
        element.copied().ok_or_else(missing)
    }

    pub(super) fn seal(&mut self) -> SealedQueue {
        let dirty = std::mem::take(&mut self.dirty);
        let pages = dirty.into_iter().filter_map(|page| {
            let elements = self.resident.get(&page)?;
            Some((page, Arc::clone(elements)))
        });
        SealedQueue {
            kind: self.kind,
            root: self.root,
            head: self.head,
            end: self.end,
            pages: pages.collect(),
            gone: self.first_stored..page_of(self.head),
        }
    }

    /// Marks the pages of a failed checkpoint as dirty again.
    pub(super) fn unseal(&mut self, sealed: SealedQueue) {
        let first = page_of(self.head);
        let pages = sealed.pages.into_iter().map(|(page, _)| page);
        self.dirty.extend(pages.filter(|page| *page >= first));
    }

    /// Notes that the checkpoint is durable, so that its pages can be dropped and read again.
    pub(super) fn publish(&mut self, root: TreeRoot, sealed: &SealedQueue) {
        self.root = root;
        self.first_stored = sealed.gone.end;
        let (dirty, last) = (&self.dirty, page_of(self.end));
        let head = page_of(self.head)..page_of(self.head) + HEAD_PAGES;
        self.resident
            .retain(|page, _| dirty.contains(page) || *page == last || head.contains(page));
    }

    /// Loads the last page if it is not full, even if all of its elements are consumed: pushing
    /// must not need the disk.
    fn load_last(&mut self) -> Result<()> {
        if index_in_page(self.end) != 0 {
            self.element(self.end - 1)?;
        }
        Ok(())
    }
}

/// A page's body.
pub(super) fn encode(elements: &[QueueElement], page: &mut PageBytes) {
    let mut places = Box::new(NO_ELEMENTS);
    for (place, element) in places.iter_mut().zip(elements) {
        *place = Some(*element);
    }
    queue_page::encode(&places, page);
}

fn page_of(number: u64) -> u64 {
    number / ELEMENTS_PER_PAGE as u64
}

fn index_in_page(number: u64) -> usize {
    (number % ELEMENTS_PER_PAGE as u64) as usize
}

fn read_page(pages: &Pages, kind: QueueKind, root: TreeRoot, index: u64) -> Result<Elements> {
    let name = kind.name();
    let Some(pointer) = tree::lookup(pages, kind.owner(), root, index)? else {
        return Err(StoreError::damaged(format!(
            "page {index} of {name} is missing"
        )));
    };
    let page = pages.read(PageKind::Queue, 0, kind.owner(), index, pointer)?;
    let elements = queue_page::decode(&page)
        .map_err(|error| StoreError::format(format_args!("page {index} of {name}"), error))?;
    Ok(elements.iter().flatten().copied().collect())
}

/// Visits the elements that a checkpoint's queue has.
pub fn read_elements(
    pages: &Pages,
    stored: &StoredQueue,
    visit: &mut dyn FnMut(QueueElement) -> Result<()>,
) -> Result<()> {
    let StoredQueue { kind, root, .. } = *stored;
    let numbers = stored.numbers.clone();
    let mut number = numbers.start;
    while number < numbers.end {
        let elements = read_page(pages, kind, root, page_of(number))?;
        let page_end = (page_of(number) + 1) * ELEMENTS_PER_PAGE as u64;
        let count = (page_end.min(numbers.end) - number) as usize;
        let wanted = elements.iter().skip(index_in_page(number)).take(count);
        if wanted.clone().count() != count {
            let message = format!("{} ends before element {number}", kind.name());
            return Err(StoreError::damaged(message));
        }
        for element in wanted {
            visit(*element)?;
        }
        number = page_end;
    }
    Ok(())
}
