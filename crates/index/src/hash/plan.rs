//! Parts of batches of a shard: which of their items are executed, and which have an answer already.
//!
//! A plan takes parts in their order, before any is executed. A position is executed at most once for each number of a
//! stream: a part that comes twice, even in the same plan, gets the answers of the first one. The plan changes nothing;
//! its result is durable with the frame that has the rows.

use std::collections::BTreeMap;

use onefold_format::index_message::{IndexAnswer, IndexOperation, PositionedAnswer};

use super::PartAnswers;
use crate::batch::{OperationItem, check_blocks};
use crate::shard::{Positioned, ShardBatch, ShardWork};
use crate::stream::{Answers, LastBatch, Parts};
use crate::{IndexError, Result, StreamId};

/// The parts that are carried out together.
#[derive(Default)]
pub(super) struct Plan {
    /// The last batches of the parts' streams.
    streams: BTreeMap<StreamId, Planned>,
    items: Vec<OperationItem>,
    parts: Vec<Result<Vec<Place>>>,
}

/// The last batch of a stream, as it will be.
struct Planned {
    number: u64,
    operation: IndexOperation,
    is_sealed: bool,
    answers: BTreeMap<u16, Source>,
    /// Whether it differs from the batch that the stream has.
    is_new: bool,
}

/// Where an answer comes from.
#[derive(Clone, Copy)]
enum Source {
    Kept(IndexAnswer),
    /// The answer to the item with this number in the plan.
    Executed(usize),
}

/// An answer of a part.
struct Place {
    position: u16,
    source: Source,
}

impl Plan {
    /// Adds a part. `last` is the last batch that its stream has on the disk.
    pub(super) fn add(&mut self, part: &ShardBatch, last: Option<&LastBatch>) {
        let planned = self.try_add(part, last);
        self.parts.push(planned);
    }

    fn try_add(&mut self, part: &ShardBatch, last: Option<&LastBatch>) -> Result<Vec<Place>> {
        if let ShardWork::Execute(items) = &part.work {
            check_blocks(items.iter().map(|item| item.pba))?;
        }
        let is_question = matches!(part.work, ShardWork::Recall { is_sealing: false });
        let Some(planned) = self.batch_of(part, last, is_question)? else {
            return Ok(Vec::new());
        };
        match &part.work {
            ShardWork::Execute(items) => self.plan_items(part, items),
            ShardWork::Recall { is_sealing } => {
                planned.is_new |= *is_sealing && !planned.is_sealed;
                planned.is_sealed |= *is_sealing;
                let place = |(position, source): (&u16, &Source)| Place {
                    position: *position,
                    source: *source,
                };
                Ok(planned.answers.iter().map(place).collect())
            }
        }
    }

    /// The batch of a part, which replaces one with a lower number. If the part is only a question, it replaces
    /// nothing, and the answer is `None`.
    fn batch_of(
        &mut self,
        part: &ShardBatch,
        last: Option<&LastBatch>,
        is_question: bool,
    ) -> Result<Option<&mut Planned>> {
        let (stream, number) = (part.stream, part.number);
        let planned = self.streams.get(&stream).map(|planned| planned.number);
        let newest = planned.or_else(|| last.map(|last| last.number));
        let newest = newest.filter(|_| numbers_count());
        if newest.is_none_or(|newest| newest < number) {
            if is_question {
                return Ok(None);
            }
            self.streams.insert(stream, Planned::empty(part));
        } else if let Some(newest) = newest.filter(|newest| *newest > number) {
            return Err(part.stale(newest));
        } else if planned.is_none()
            && let Some(last) = last
        {
            let planned = Planned::of(part, last)?;
            self.streams.insert(stream, planned);
        }
        let planned = self.streams.get_mut(&stream);
        match planned.filter(|planned| planned.operation == part.operation) {
            Some(planned) => Ok(Some(planned)),
            None => Err(part.stale(number)),
        }
    }

    fn plan_items(&mut self, part: &ShardBatch, items: &[Positioned]) -> Result<Vec<Place>> {
        let Some(planned) = self.streams.get_mut(&part.stream) else {
            return Err(part.stale(part.number));
        };
        let kept = order_of_kept(planned);
        let mut places = Vec::with_capacity(items.len());
        for (n, item) in items.iter().enumerate() {
            let known = match &kept {
                None => planned.answers.get(&item.position).copied(),
                Some(kept) => kept.get(n).copied(),
            };
            let source = match known {
                Some(source) => source,
                // A sealed batch executes nothing, so no item before this one was planned.
                None if planned.is_sealed => {
                    return Err(IndexError::Sealed {
                        stream: part.stream,
                        number: part.number,
                    });
                }
                None => {
                    let source = Source::Executed(self.items.len());
                    self.items.push(OperationItem {
                        operation: part.operation,
                        item: (item.fingerprint, item.pba),
                    });
                    planned.answers.insert(item.position, source);
                    planned.is_new = true;
                    source
                }
            };
            places.push(Place {
                position: item.position,
                source,
            });
        }
        Ok(places)
    }

    /// Whether there is anything to make durable.
    pub(super) fn changes_anything(&self) -> bool {
        self.streams.values().any(|planned| planned.is_new)
    }

    /// The items to execute, in order.
    pub(super) fn items(&self) -> &[OperationItem] {
        &self.items
    }

    /// The last batches that change, once the items have these answers.
    pub(super) fn streams(&self, executed: &[IndexAnswer]) -> BTreeMap<StreamId, LastBatch> {
        let changed = self.streams.iter().filter(|(_, planned)| planned.is_new);
        let last = |(stream, planned): (&StreamId, &Planned)| {
            let places = planned.answers.iter();
            let answers = places
                .filter_map(|(position, source)| source.positioned(*position, executed))
                .collect();
            let parts = Parts {
                operation: planned.operation,
                is_sealed: planned.is_sealed,
                answers,
            };
            let last = LastBatch {
                number: planned.number,
                answers: Answers::Parts(parts),
            };
            (*stream, last)
        };
        changed.map(last).collect()
    }

    /// The answers to each part, once the items have these answers.
    pub(super) fn into_answers(self, executed: &[IndexAnswer]) -> Vec<PartAnswers> {
        let answers = |places: Vec<Place>| {
            let places = places.into_iter();
            places
                .filter_map(|place| place.source.positioned(place.position, executed))
                .collect()
        };
        let parts = self.parts.into_iter();
        parts.map(|part| part.map(answers)).collect()
    }
}

impl Planned {
    fn empty(part: &ShardBatch) -> Planned {
        Planned {
            number: part.number,
            operation: part.operation,
            is_sealed: false,
            answers: BTreeMap::new(),
            is_new: true,
        }
    }

    /// The batch that the stream has, to which the part belongs.
    fn of(part: &ShardBatch, last: &LastBatch) -> Result<Planned> {
        let parts = match &last.answers {
            Answers::Parts(parts) => parts,
            Answers::Forgotten => {
                return Err(IndexError::Forgotten {
                    stream: part.stream,
                    number: part.number,
                });
            }
            Answers::Counted(_) | Answers::Released(_) => return Err(part.stale(last.number)),
        };
        let kept = |at: &PositionedAnswer| (at.position, Source::Kept(at.answer));
        Ok(Planned {
            number: last.number,
            operation: parts.operation,
            is_sealed: parts.is_sealed,
            answers: parts.answers.iter().map(kept).collect(),
            is_new: false,
        })
    }
}

impl Source {
    /// Each item of a plan has an answer, so this is never `None` after the execution.
    fn positioned(self, position: u16, executed: &[IndexAnswer]) -> Option<PositionedAnswer> {
        let answer = match self {
            Source::Kept(answer) => answer,
            Source::Executed(item) => *executed.get(item)?,
        };
        Some(PositionedAnswer { position, answer })
    }
}

impl ShardBatch {
    fn stale(&self, last: u64) -> IndexError {
        IndexError::Stale {
            stream: self.stream,
            number: self.number,
            last,
        }
    }
}

/// Whether the last number of a stream has a meaning: always, outside simulations.
fn numbers_count() -> bool {
    #[cfg(feature = "simulation")]
    if FORGETS_NUMBERS.get() {
        return false;
    }
    true
}

/// The kept answers in their order, if positions have no meaning; always `None` outside simulations.
fn order_of_kept(_planned: &Planned) -> Option<Vec<Source>> {
    #[cfg(feature = "simulation")]
    if FORGETS_POSITIONS.get() {
        return Some(_planned.answers.values().copied().collect());
    }
    None
}

/// Makes every shard, on this thread from now on, execute each part as if its batch were new, or no longer.
#[cfg(feature = "simulation")]
pub fn forget_shard_numbers(forget: bool) {
    FORGETS_NUMBERS.set(forget);
}

/// Makes every shard, on this thread from now on, give kept answers to the items of a part in their order, whatever
/// their positions, or no longer.
#[cfg(feature = "simulation")]
pub fn forget_positions(forget: bool) {
    FORGETS_POSITIONS.set(forget);
}

#[cfg(feature = "simulation")]
thread_local! {
    static FORGETS_NUMBERS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    static FORGETS_POSITIONS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
