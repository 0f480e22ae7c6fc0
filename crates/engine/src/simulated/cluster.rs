//! A part in the objects of a cluster: which operations survive the death of its owner, and which arrive afterwards.
//!
//! Each operation concerns one object and is never torn. One owner's operations on one object take effect in their
//! order; between objects there is no order. An acknowledged operation is durable. When an owner dies, the first of its
//! unacknowledged operations on an object have taken effect, and the others are lost or *late*: they may take effect
//! while the next owner does its I/O.
//!
//! The part's length is in the pool's head, which is a separate object and never takes late operations.
//!
//! Invariant: `current` is `durable` with all unacknowledged operations applied in order.

use super::SimulatedEngine;
use super::disk::{Outcome, Trouble};
use super::image::Image;
use super::part::PartState;
use super::random::Random;
use super::unsynced::Unsynced;
use crate::Part;
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::ops::Range;

/// The size of an object, unless a test sets a smaller one.
pub(super) const OBJECT_BYTES: u64 = 4 << 20;

/// The probability that a late operation takes effect before an I/O, and then another one. Each death draws one of
/// these, so that some operations arrive while the next owner opens the pool, and others long afterwards.
const LATE_RATES: [f64; 3] = [0.2, 0.02, 0.005];

/// The guarantees of the cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) object_bytes: u64,
    /// An object that the next owner has touched takes no operations of earlier owners.
    pub(super) is_fenced: bool,
    /// A guarded object takes operations only from the owner that opened its part last.
    pub(super) is_asserted: bool,
}

/// A part, and the rules for its objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    pub(super) part: Part,
    pub(super) rules: Rules,
}

/// The state of a part's objects besides their content.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    placement: Placement,
    /// The error of a write that failed after it had returned, until the next sync.
    failure: Option<ErrorKind>,
    late: Vec<Late>,
}

/// Late operations of a dead owner on one object.
#[derive(Debug, Clone)]
struct Late {
    object: u64,
    operations: VecDeque<Unsynced>,
}

impl Placement {
    /// Whether writes of the part return before they are acknowledged.
    fn is_behind(self) -> bool {
        self.part != Part::Data
    }

    /// Whether operations on this object assert the owner's session.
    fn is_guarded(self, object: u64) -> bool {
        let is_guarded = match self.part {
            Part::Log => true,
            Part::Data => false,
            _ => object == 0,
        };
        is_guarded && self.rules.is_asserted
    }

    fn objects(self, range: &Range<u64>) -> Range<u64> {
        let bytes = self.rules.object_bytes;
        if range.is_empty() {
            0..0
        } else {
            range.start / bytes..range.end.div_ceil(bytes)
        }
    }

    /// The range of the object that contains this byte.
    pub(super) fn object_of(self, at: u64) -> Range<u64> {
        let start = at - at % self.rules.object_bytes;
        start..start + self.rules.object_bytes
    }

    /// Splits a range at the borders of objects.
    pub(super) fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let bytes = self.rules.object_bytes;
        self.objects(&range).map(move |object| {
            let (start, end) = (object * bytes, (object + 1) * bytes);
            start.max(range.start)..end.min(range.end)
        })
    }
}

impl Objects {
    pub(super) fn new(placement: Placement) -> Objects {
        Objects {
            placement,
            failure: None,
            late: Vec::new(),
        }
    }
}

/// Changes of a part in a cluster. They are not for other parts.
impl PartState {
    /// The placement of a part in a cluster.
    pub(super) fn placement(&self) -> Option<Placement> {
        self.objects.as_ref().map(|objects| objects.placement)
    }

    /// Fences the objects that a read, write or discard touches: late operations no longer arrive there.
    pub(super) fn touch(&mut self, range: Range<u64>) {
        if let Some(objects) = &mut self.objects
            && objects.placement.rules.is_fenced
        {
            let touched = objects.placement.objects(&range);
            objects.late.retain(|late| !touched.contains(&late.object));
        }
    }

    /// Opens the part for an owner, which takes over the guarded objects and clears unsynced bytes beyond the length.
    pub(super) fn take_over(&mut self) {
        let Some(objects) = &mut self.objects else {
            return;
        };
        let placement = objects.placement;
        objects
            .late
            .retain(|late| !placement.is_guarded(late.object));
        if placement.part != Part::Data {
            self.touch(self.current.len..u64::MAX);
            self.clear(placement, self.current.len);
        }
    }

    /// The error of a write that failed after it had returned, until a sync returns it.
    pub(super) fn failed_behind(&self) -> Option<ErrorKind> {
        self.objects.as_ref()?.failure
    }

    /// Sends a write, as one operation for each object.
    pub(super) fn send_write(
        &mut self,
        placement: Placement,
        bytes: &[u8],
        offset: u64,
        outcome: Outcome,
        random: &mut Random,
    ) {
        let range = offset..offset + bytes.len() as u64;
        if range.is_empty() {
            return;
        }
        self.grow(range.end);
        self.readable(&range);
        for piece in placement.pieces(range) {
            if let Outcome::Failure(_) | Outcome::FailsBehind(_) = outcome
                && random.coin()
            {
                continue;
            }
            let number = self.number();
            let of = (piece.start - offset) as usize..(piece.end - offset) as usize;
            let write = Unsynced::exactly(number, &bytes[of], piece.start);
            self.send(write, placement.is_behind() || outcome == Outcome::Crash);
        }
        if let (Some(objects), Outcome::FailsBehind(kind)) = (&mut self.objects, outcome) {
            objects.failure.get_or_insert(kind);
        }
    }

    /// Sends a write that its owner started before it died: it may arrive or not.
    pub(super) fn leave_write(&mut self, placement: Placement, bytes: &[u8], offset: u64) {
        for piece in placement.pieces(offset..offset + bytes.len() as u64) {
            let number = self.number();
            let of = (piece.start - offset) as usize..(piece.end - offset) as usize;
            self.send(Unsynced::exactly(number, &bytes[of], piece.start), true);
        }
    }

    /// Sends a discard, as one operation for each object. The owner waits for all of them.
    pub(super) fn send_discard(
        &mut self,
        placement: Placement,
        range: Range<u64>,
        outcome: Outcome,
        random: &mut Random,
    ) {
        for piece in placement.pieces(self.within(range)) {
            if let Outcome::Failure(_) = outcome
                && random.coin()
            {
                continue;
            }
            let number = self.number();
            let discard = Unsynced::discard_of(number, piece);
            self.send(discard, outcome == Outcome::Crash);
        }
    }

    /// Discards everything from here on, and waits for that.
    fn clear(&mut self, placement: Placement, offset: u64) {
        for piece in placement.pieces(self.within(offset..u64::MAX)) {
            let number = self.number();
            self.send(Unsynced::discard_of(number, piece), false);
        }
    }

    /// Limits a range to where objects may exist.
    fn within(&self, range: Range<u64>) -> Range<u64> {
        let end = self.current.end().max(self.durable.end());
        range.start..range.end.min(end).max(range.start)
    }

    /// Sets the part's length. Clears the bytes beyond it first; the owner waits for both steps.
    pub(super) fn send_len(
        &mut self,
        placement: Placement,
        len: u64,
        outcome: Outcome,
        random: &mut Random,
    ) {
        if let Outcome::Failure(_) = outcome {
            return;
        }
        let is_cut_short = outcome == Outcome::Crash;
        if is_cut_short && random.coin() {
            return self.send_discard(placement, len..u64::MAX, outcome, random);
        }
        self.clear(placement, len);
        let number = self.number();
        self.send(Unsynced::len(number, len), is_cut_short);
    }

    /// Waits for all operations before `number`. Failed ones are not sent again.
    pub(super) fn acknowledged(
        &mut self,
        number: u64,
        outcome: Outcome,
        random: &mut Random,
    ) -> Result<(), Trouble> {
        let Some(objects) = &mut self.objects else {
            return Ok(());
        };
        let failure = objects.failure.take();
        match outcome {
            Outcome::Crash => Ok(()),
            Outcome::Failure(_) => {
                // A failed operation has no effect; operations after it may have theirs.
                self.unsynced
                    .retain(|sent| sent.number >= number || random.coin());
                self.current = self.without_dropped();
                Ok(())
            }
            Outcome::Success | Outcome::FailsBehind(_) => {
                self.sync(number);
                failure.map_or(Ok(()), |kind| Err(Trouble::Behind(kind)))
            }
        }
    }

    /// The part after its owner's death.
    pub(super) fn after_death(&self, placement: Placement, random: &mut Random) -> PartState {
        let mut of_objects: BTreeMap<Option<u64>, VecDeque<Unsynced>> = BTreeMap::new();
        for sent in &self.unsynced {
            let object = sent.object(placement.rules.object_bytes);
            of_objects
                .entry(object)
                .or_default()
                .push_back(sent.clone());
        }
        let mut objects = Objects::new(placement);
        if let Some(before) = &self.objects {
            objects.late.clone_from(&before.late);
        }
        let mut image = self.durable.clone();
        let extreme = random.below(8);
        for (object, mut operations) in of_objects {
            let count = operations.len() as u64;
            let arrived = match extreme {
                0 => count,
                1 => 0,
                _ => random.below(count + 1),
            };
            for sent in operations.drain(..arrived as usize) {
                sent.apply_within(&mut image);
            }
            // The remaining operations are lost on their way, or late.
            if let Some(object) = object
                && !operations.is_empty()
                && random.coin()
            {
                objects.late.push(Late { object, operations });
            }
        }
        let mut after = PartState::durably(image, Some(objects));
        after.unreadable.clone_from(&self.unreadable);
        after
    }

    /// The part after its owner gave it up. That owner has no operations in flight.
    pub(super) fn after_end(&self, placement: Placement, random: &mut Random) -> PartState {
        let mut after = self.after_death(placement, random);
        if let (Some(objects), Some(before)) = (&mut after.objects, &self.objects) {
            objects.late.clone_from(&before.late);
        }
        after
    }

    /// Loses the object that contains this byte, and the operations on their way there.
    pub(super) fn lose_object(&mut self, at: u64) {
        let Some(objects) = &mut self.objects else {
            return;
        };
        let range = objects.placement.object_of(at);
        let bytes = objects.placement.rules.object_bytes;
        let object = Some(at / bytes);
        objects.late.retain(|late| Some(late.object) != object);
        self.unsynced.retain(|sent| sent.object(bytes) != object);
        self.current.punch(range.clone());
        self.durable.punch(range);
    }

    /// How many objects may still receive operations of a dead owner.
    pub(super) fn late(&self) -> usize {
        self.objects
            .as_ref()
            .map_or(0, |objects| objects.late.len())
    }

    /// Applies the next operation of one of the objects with late operations.
    fn land(&mut self, nth: usize) {
        let Some(objects) = &mut self.objects else {
            return;
        };
        let late = &mut objects.late[nth];
        let (object, next) = (late.object, late.operations.pop_front());
        if late.operations.is_empty() {
            objects.late.swap_remove(nth);
        }
        // The present owner's operations on the object have arrived already.
        self.acknowledge(Some(object));
        if let Some(next) = next {
            next.apply_within(&mut self.current);
            next.apply_within(&mut self.durable);
        }
    }

    /// Makes an operation visible to readers. If it is acknowledged, so are all earlier ones on the same object.
    fn send(&mut self, sent: Unsynced, is_unacknowledged: bool) {
        let object = self.object_of(&sent);
        sent.apply_within(&mut self.current);
        self.unsynced.push(sent);
        if !is_unacknowledged {
            self.acknowledge(object);
        }
    }

    /// Makes everything durable that was sent to an object, or to the head.
    fn acknowledge(&mut self, object: Option<u64>) {
        let sent = std::mem::take(&mut self.unsynced);
        for sent in sent {
            if self.object_of(&sent) == object {
                sent.apply_within(&mut self.durable);
            } else {
                self.unsynced.push(sent);
            }
        }
    }

    fn object_of(&self, sent: &Unsynced) -> Option<u64> {
        sent.object(self.placement()?.rules.object_bytes)
    }

    /// Makes the part reach at least to this end. A sync records that in the head.
    fn grow(&mut self, end: u64) {
        if end > self.current.len {
            let number = self.number();
            self.send(Unsynced::grow(number, end), true);
        }
    }
}

impl Image {
    /// The end of the image, or of its last allocated byte.
    fn end(&self) -> u64 {
        self.len.max(self.allocated_end())
    }
}

/// Draws how soon late operations arrive after a death.
pub(super) fn draw_late_rate(random: &mut Random) -> f64 {
    LATE_RATES[random.below(LATE_RATES.len() as u64) as usize]
}

/// Lets late operations arrive, if there are any. Returns their number.
pub(super) fn land_late(
    parts: &mut BTreeMap<Part, PartState>,
    rate: f64,
    random: &mut Random,
) -> u64 {
    let mut landed = 0;
    loop {
        let count: usize = parts.values().map(PartState::late).sum();
        if count == 0 || !random.chance(rate) {
            return landed;
        }
        let mut nth = random.below(count as u64) as usize;
        for part in parts.values_mut() {
            let here = part.late();
            if nth < here {
                part.land(nth);
                landed += 1;
                break;
            }
            nth -= here;
        }
    }
}

impl SimulatedEngine {
    /// Sets the probability that an operation of an earlier owner takes effect before an I/O, and then another one.
    /// Each death draws one.
    pub fn set_late_rate(&self, rate: f64) {
        self.machine.state().late_rate = rate;
    }

    /// How many operations of earlier owners have taken effect since the present one began.
    pub fn landed_late(&self) -> u64 {
        self.machine.state().landed_late
    }

    /// The number of objects for which operations of earlier owners are in flight.
    pub fn objects_with_late(&self) -> usize {
        self.machine
            .state()
            .parts
            .values()
            .map(PartState::late)
            .sum()
    }
}
