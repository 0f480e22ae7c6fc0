//! The effect of a batch on rows: the same for every back end.
//!
//! Items are processed in the order of their fingerprints, equal ones in their own order. So a back
//! end that keeps rows sorted is asked in its own order, and a row that several items need is read
//! and written once.

use onefold_format::Pba;
use onefold_format::index_message::{IndexAnswer, IndexOperation};

use crate::row::is_block;
use crate::{Counted, Fingerprint, IndexCounts, IndexError, REFERENCES_MAX, Released, Result, Row};

/// An item of a batch.
pub(crate) type Item = (Fingerprint, Pba);

/// An item with the effect of its batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationItem {
    pub(crate) operation: IndexOperation,
    pub(crate) item: Item,
}

/// The rows of a back end, in the middle of a batch.
pub(crate) trait Rows {
    /// Announces the rows that will be requested, in this order. A back end that reads them from a
    /// disk can do so now, many at a time.
    fn expect(&mut self, _fingerprints: &[Fingerprint]) -> Result<()> {
        Ok(())
    }

    /// The row of this fingerprint.
    fn get(&mut self, fingerprint: Fingerprint) -> Result<Option<Row>>;

    /// Replaces the row of this fingerprint, or removes it.
    fn set(&mut self, fingerprint: Fingerprint, row: Option<Row>) -> Result<()>;

    /// Whether a row for this fingerprint, which has none, may be added now.
    fn has_room(&mut self, fingerprint: Fingerprint) -> bool;
}

/// Refuses addresses that no pool has, before anything is changed.
pub(crate) fn check_blocks(mut blocks: impl Iterator<Item = Pba>) -> Result<()> {
    match blocks.find(|pba| !is_block(*pba)) {
        Some(pba) => Err(IndexError::BadBlock(pba)),
        None => Ok(()),
    }
}

/// Counts one reference for each item.
pub(crate) fn increment<R: Rows>(
    rows: &mut R,
    counts: &mut IndexCounts,
    items: &[Item],
) -> Result<Vec<Counted>> {
    apply(rows, counts, items, |item| item.0, Counted::Full, insert)
}

/// Counts one reference for each item whose row has the item's own block.
pub(crate) fn count_existing<R: Rows>(
    rows: &mut R,
    counts: &mut IndexCounts,
    items: &[Item],
) -> Result<Vec<Counted>> {
    apply(
        rows,
        counts,
        items,
        |item| item.0,
        Counted::Full,
        |_, row, item| count(row, item),
    )
}

/// Releases one reference for each item.
pub(crate) fn decrement<R: Rows>(
    rows: &mut R,
    counts: &mut IndexCounts,
    items: &[Item],
) -> Result<Vec<Released>> {
    apply(
        rows,
        counts,
        items,
        |item| item.0,
        Released::Unknown,
        |_, row, item| release(row, item),
    )
}

/// Executes items of several batches. `may_remove` decides whether a row may lose its last reference.
pub(crate) fn execute<R: Rows>(
    rows: &mut R,
    counts: &mut IndexCounts,
    items: &[OperationItem],
    may_remove: &mut dyn FnMut(Fingerprint) -> bool,
) -> Result<Vec<IndexAnswer>> {
    apply(
        rows,
        counts,
        items,
        |one| one.item.0,
        IndexAnswer::Unknown,
        |rows, row, OperationItem { operation, item }| match operation {
            IndexOperation::Increment => insert(rows, row, item).into(),
            IndexOperation::CountExisting => count(row, item).into(),
            IndexOperation::Decrement => {
                let is_last = row.is_some_and(|row| row.pba == item.1 && row.references == 1);
                if is_last && !may_remove(item.0) {
                    Released::Held.into()
                } else {
                    release(row, item).into()
                }
            }
        },
    )
}

fn insert<R: Rows>(rows: &mut R, row: &mut Option<Row>, item: &Item) -> Counted {
    match row {
        None if !rows.has_room(item.0) => Counted::Full,
        None => {
            *row = Some(Row {
                pba: item.1,
                references: 1,
            });
            Counted::Inserted
        }
        Some(row) if row.references >= REFERENCES_MAX => Counted::Full,
        Some(row) => {
            row.references += 1;
            if row.pba == item.1 {
                Counted::Inserted
            } else {
                Counted::Shared(row.pba)
            }
        }
    }
}

fn count(row: &mut Option<Row>, item: &Item) -> Counted {
    match row {
        Some(row) if row.pba == item.1 && row.references < REFERENCES_MAX => {
            row.references += 1;
            Counted::Inserted
        }
        Some(_) | None => Counted::Full,
    }
}

fn release(row: &mut Option<Row>, item: &Item) -> Released {
    match row {
        None => Released::Unknown,
        Some(found) if found.pba != item.1 => Released::Mismatch,
        Some(found) if found.references > 1 => {
            found.references -= 1;
            Released::Remaining
        }
        Some(_) => {
            *row = None;
            Released::Zero
        }
    }
}

/// Lets `decide` change the row of each item, and collects its answers in the items' order.
fn apply<R: Rows, I, A: Copy>(
    rows: &mut R,
    counts: &mut IndexCounts,
    items: &[I],
    fingerprint_of: impl Fn(&I) -> Fingerprint,
    unanswered: A,
    mut decide: impl FnMut(&mut R, &mut Option<Row>, &I) -> A,
) -> Result<Vec<A>> {
    // Equal fingerprints stay in the items' order.
    let mut order: Vec<(Fingerprint, usize)> = items.iter().map(fingerprint_of).zip(0..).collect();
    order.sort_unstable();
    let mut fingerprints: Vec<Fingerprint> =
        order.iter().map(|(fingerprint, _)| *fingerprint).collect();
    fingerprints.dedup();
    rows.expect(&fingerprints)?;
    let mut answers = vec![unanswered; items.len()];
    for equal in order.chunk_by(|one, other| one.0 == other.0) {
        let fingerprint = equal[0].0;
        let before = rows.get(fingerprint)?;
        let mut row = before;
        for (_, at) in equal {
            answers[*at] = decide(rows, &mut row, &items[*at]);
        }
        if row != before {
            rows.set(fingerprint, row)?;
            counts.replace(before, row);
        }
    }
    Ok(answers)
}

/// Adds rows counted from the maps, and returns those that were not taken.
pub(crate) fn add<R: Rows>(
    rows: &mut R,
    counts: &mut IndexCounts,
    added: &[(Fingerprint, Row)],
) -> Result<Vec<(Fingerprint, Row)>> {
    let mut order: Vec<&(Fingerprint, Row)> = added.iter().collect();
    order.sort_by_key(|(fingerprint, _)| *fingerprint);
    let mut fingerprints: Vec<Fingerprint> =
        order.iter().map(|(fingerprint, _)| *fingerprint).collect();
    fingerprints.dedup();
    rows.expect(&fingerprints)?;
    let mut refused = Vec::new();
    for (fingerprint, row) in order {
        if row.references == 0 {
            continue;
        }
        let before = rows.get(*fingerprint)?;
        let already = before.map_or(0, |old| old.references);
        let together = already.saturating_add(row.references);
        if before.is_some_and(|old| old.pba != row.pba) || together > REFERENCES_MAX {
            refused.push((*fingerprint, *row));
            continue;
        }
        let after = Some(Row {
            pba: row.pba,
            references: together,
        });
        rows.set(*fingerprint, after)?;
        counts.replace(before, after);
    }
    Ok(refused)
}
