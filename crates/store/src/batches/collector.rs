//! Steps 3 and 4 of a collector's batch ([`crate::dedup`]): calls the index, and logs its answers.

use onefold_format::{Pba, Record, Release};
use onefold_index::{Fingerprint, Released};
use onefold_metadata::{Blocking, Guard, OpenBatch, PbaRun, PbaRuns, Result};
use rustc_hash::FxHashMap;

use super::index::{STREAM, last_answers};
use super::{Batches, ITEMS_PER_STEP, Urgency};

/// The result of a collector's batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// References released.
    pub released: u64,
    /// Released references that were the last ones of their blocks, which are free.
    pub freed: u64,
    /// Released references that the index did not know: their blocks are left alone.
    pub quarantined: u64,
}

impl Batches {
    /// Steps 3 and 4; blocks whose fingerprints are not known are read.
    pub(crate) fn settle_collector(
        &self,
        batch: &OpenBatch,
        known: &FxHashMap<Pba, Fingerprint>,
        urgency: Urgency,
    ) -> Result<CollectReport> {
        let index = self.index.ready()?;
        let answers = self.run(urgency, || -> Result<_> {
            let items = batch.unsettled();
            let known = items.iter().map(|item| known.get(&item.pba).copied());
            let found = self
                .blocks
                .fingerprint_unknown(items, &known.collect::<Vec<_>>())?;
            let items = self.blocks.published_fingerprints(&*index, found)?;
            Ok(index.decrement(STREAM, batch.number, &items)?)
        })?;
        let answers = last_answers(&answers, batch)?;
        let mut report = CollectReport::default();
        let mut position = batch.done;
        while position < batch.items.len() {
            let end = (position + ITEMS_PER_STEP).min(batch.items.len());
            let part = &answers[position - batch.done..end - batch.done];
            self.settle_releases(batch, position..end, part, &mut report)?;
            position = end;
        }
        Ok(report)
    }

    fn settle_releases(
        &self,
        batch: &OpenBatch,
        positions: std::ops::Range<usize>,
        answers: &[Released],
        report: &mut CollectReport,
    ) -> Result<()> {
        let mut freed = PbaRuns::new();
        let mut releases: Vec<(u32, Release)> = Vec::new();
        for (item, answer) in batch.items[positions.clone()].iter().zip(answers) {
            let release = match answer {
                Released::Remaining if Guard::FreeOnlyAtZero.holds() => Release::Remaining,
                Released::Remaining | Released::Zero => Release::Freed,
                Released::Mismatch | Released::Unknown => {
                    tracing::error!(
                        "block {} of the pool was released, but the index does not have it: it is \
                         quarantined; run `pool check --repair`",
                        item.pba
                    );
                    Release::Quarantined
                }
            };
            report.released += 1;
            report.freed += u64::from(release == Release::Freed);
            report.quarantined += u64::from(release == Release::Quarantined);
            if release == Release::Freed {
                freed.push(PbaRun {
                    start: item.pba,
                    count: 1,
                });
            }
            match releases.last_mut() {
                Some((count, last)) if *last == release => *count += 1,
                _ => releases.push((1, release)),
            }
        }
        let mut position = positions.start as u32;
        let records: Vec<Record> = releases
            .into_iter()
            .map(|(count, release)| {
                let record = Record::Release {
                    number: batch.number,
                    position,
                    count,
                    release,
                };
                position += count;
                record
            })
            .collect();
        self.journal.append(&records, &freed, Blocking::Yes, None)
    }
}
