//! A part in the objects of a cluster: what of it survives the death of its owner, and what arrives after it.
//!
//! Each operation concerns one object and is never torn. Those of one owner on one object take effect in their
//! order; between objects there is no order. An operation that was acknowledged is durable. Of those that were not
//! when their owner died, the first ones on an object have taken effect, and the others are lost or *late*: they
//! may take effect while the next owner does its I/O.
//!
//! The part's length is in the pool's head, which is an object of its own and never takes what is late.
//!
//! Invariant: `current` is `durable` with all that is not acknowledged applied in order.

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

/// Bytes of an object, unless a test wants smaller ones.
pub(super) const OBJECT_BYTES: u64 = 4 << 20;

/// The probability that a late operation takes effect before an I/O, and then another one: one of these after each
/// death, so that some arrive while the next owner opens the pool, and others long after that.
const LATE_RATES: [f64; 3] = [0.2, 0.02, 0.005];

/// What the cluster makes sure of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) object_bytes: u64,
    /// An object that the next owner has touched takes nothing from those before.
    pub(super) is_fenced: bool,
    /// A guarded object takes nothing from anybody but the owner who opened its part last.
    pub(super) is_asserted: bool,
}

/// Where a part is, and what that means for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    pub(super) part: Part,
    pub(super) rules: Rules,
}

/// What is known of a part's objects besides their content.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    placement: Placement,
    /// A write that nobody waited for has failed since the last sync.
    failure: Option<ErrorKind>,
    late: Vec<Late>,
}

/// What a dead owner has sent to an object.
#[derive(Debug, Clone)]
struct Late {
    object: u64,
    operations: VecDeque<Unsynced>,
}

impl Placement {
    /// Its writes return before they are acknowledged.
    fn is_behind(self) -> bool {
        self.part != Part::Data
    }

    /// Operations on this object assert who owns the pool.
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
        match range.is_empty() {
            true => 0..0,
            false => range.start / bytes..range.end.div_ceil(bytes),
        }
    }

    /// The bytes of the object that has this one.
    pub(super) fn object_of(self, at: u64) -> Range<u64> {
        let start = at - at % self.rules.object_bytes;
        start..start + self.rules.object_bytes
    }

    /// The pieces of a range that are in one object each.
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

/// How a part in a cluster is changed. Nothing of it is for other parts.
impl PartState {
    /// Of a part that is in a cluster.
    pub(super) fn placement(&self) -> Option<Placement> {
        self.objects.as_ref().map(|objects| objects.placement)
    }

    /// Reads, writes and discards tell the object's keeper who the owner is.
    pub(super) fn touch(&mut self, range: Range<u64>) {
        if let Some(objects) = &mut self.objects
            && objects.placement.rules.is_fenced
        {
            let touched = objects.placement.objects(&range);
            objects.late.retain(|late| !touched.contains(&late.object));
        }
    }

    /// The owner opens the part: it makes its guarded objects its own, and clears what nobody has synced beyond the
    /// length.
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

    /// Why a write that nobody waited for has failed, until a sync tells.
    pub(super) fn failed_behind(&self) -> Option<ErrorKind> {
        self.objects.as_ref()?.failure
    }

    /// A write, one operation for each object.
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

    /// A write of which nobody knows whether it was sent when its owner died.
    pub(super) fn leave_write(&mut self, placement: Placement, bytes: &[u8], offset: u64) {
        for piece in placement.pieces(offset..offset + bytes.len() as u64) {
            let number = self.number();
            let of = (piece.start - offset) as usize..(piece.end - offset) as usize;
            self.send(Unsynced::exactly(number, &bytes[of], piece.start), true);
        }
    }

    /// A discard, one operation for each object, for all of which the owner waits.
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

    /// Discards what is from here on, and waits for it.
    fn clear(&mut self, placement: Placement, offset: u64) {
        for piece in placement.pieces(self.within(offset..u64::MAX)) {
            let number = self.number();
            self.send(Unsynced::discard_of(number, piece), false);
        }
    }

    /// What there may be of a range: beyond there are no objects.
    fn within(&self, range: Range<u64>) -> Range<u64> {
        let end = self.current.end().max(self.durable.end());
        range.start..range.end.min(end).max(range.start)
    }

    /// The part gets this length. What is beyond is cleared first, and the owner waits for each of the two.
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

    /// Whether all that was written by `number` has arrived. What has failed is not sent again.
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
                // An operation that fails has no effect, and those after it may have theirs.
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

    /// The owner dies.
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
            // Others are lost on their way.
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

    /// The cluster loses the object that has this byte, and what is on its way there.
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

    /// How many objects may still get something from a dead owner.
    pub(super) fn late(&self) -> usize {
        self.objects
            .as_ref()
            .map_or(0, |objects| objects.late.len())
    }

    /// The next late operation on one of these objects arrives.
    fn land(&mut self, nth: usize) {
        let Some(objects) = &mut self.objects else {
            return;
        };
        let late = &mut objects.late[nth];
        let (object, next) = (late.object, late.operations.pop_front());
        if late.operations.is_empty() {
            objects.late.swap_remove(nth);
        }
        // What the owner has sent to the object is there already.
        self.acknowledge(Some(object));
        if let Some(next) = next {
            next.apply_within(&mut self.current);
            next.apply_within(&mut self.durable);
        }
    }

    /// Readers see it from now on, and with it all that was sent to the same object before.
    fn send(&mut self, sent: Unsynced, is_unacknowledged: bool) {
        let object = self.object_of(&sent);
        sent.apply_within(&mut self.current);
        self.unsynced.push(sent);
        if !is_unacknowledged {
            self.acknowledge(object);
        }
    }

    /// All that was sent to an object, or to the head, is durable.
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

    /// The part reaches at least there, which a sync tells the head.
    fn grow(&mut self, end: u64) {
        if end > self.current.len {
            let number = self.number();
            self.send(Unsynced::grow(number, end), true);
        }
    }
}

impl Image {
    /// The end of all that is allocated, or of the image.
    fn end(&self) -> u64 {
        self.len.max(self.allocated_end())
    }
}

/// How soon late operations arrive after a death.
pub(super) fn draw_late_rate(random: &mut Random) -> f64 {
    LATE_RATES[random.below(LATE_RATES.len() as u64) as usize]
}

/// Lets late operations arrive, if there are any. Returns how many have.
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
    /// The probability that an operation of an owner before takes effect before an I/O, and then another one. Each
    /// death draws one.
    pub fn set_late_rate(&self, rate: f64) {
        self.machine.state().late_rate = rate;
    }

    /// How many operations of owners before have taken effect since this one began.
    pub fn landed_late(&self) -> u64 {
        self.machine.state().landed_late
    }

    /// To how many objects operations of owners before are still under way.
    pub fn objects_with_late(&self) -> usize {
        self.machine
            .state()
            .parts
            .values()
            .map(PartState::late)
            .sum()
    }
}
