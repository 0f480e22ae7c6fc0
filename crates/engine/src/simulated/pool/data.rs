//! The parts that all groups of a pool share, and which operations of a dead or fenced host still arrive there.
//!
//! Data is durable when its write returns. The operations in which a host died, was cut off or was fenced are lost, have
//! arrived, or are late: those of one process on one object arrive in their order. No session guards data. An object
//! refuses an operation of a fenced process once another has touched it that knows the cluster map with the fence.
//!
//! Invariant: between two I/Os the parts have no unacknowledged operations.

use super::super::cluster::{Objects, Placement, Rules, draw_late_rate};
use super::super::disk::{Outcome, Request};
use super::super::image::Image;
use super::super::orders::Op;
use super::super::part::PartState;
use super::super::random::Random;
use super::super::unsynced::Unsynced;
use crate::Part;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::MutexGuard;

/// The length of the pool's data: all that can be addressed.
pub(in super::super) const POOL_DATA_BYTES: u64 = 1 << 60;

/// A process of a host, as the cluster sees it.
pub(in super::super) type Client = u64;

/// Whether a part belongs to the pool, and not to one of its groups.
pub(super) fn is_of_pool(part: Part) -> bool {
    matches!(part, Part::Data | Part::Secret)
}

/// The parts, and the cluster maps that objects and processes have seen.
pub(in super::super) struct Shared {
    parts: BTreeMap<Part, PartState>,
    random: Random,
    rules: Rules,
    late: Vec<Late>,
    /// The data objects on which an operation of a process was lost: later ones do not overtake it.
    lost: BTreeSet<(Client, u64)>,
    pub(super) late_rate: f64,
    pub(super) landed_late: u64,
    pub(super) refused_late: u64,
    /// The newest map that an operation on each data object knew.
    seen: BTreeMap<u64, u64>,
    /// The map that each process knows.
    known: BTreeMap<Client, u64>,
    newest: u64,
    /// The first map in which each fenced process is fenced.
    fences: BTreeMap<Client, u64>,
}

/// Late operations of one process on one data object.
struct Late {
    client: Client,
    object: u64,
    operations: VecDeque<Unsynced>,
}

impl Shared {
    pub(super) fn new(random: Random, rules: Rules) -> Shared {
        let mut shared = Shared {
            parts: BTreeMap::new(),
            random,
            rules,
            late: Vec::new(),
            lost: BTreeSet::new(),
            late_rate: 0.0,
            landed_late: 0,
            refused_late: 0,
            seen: BTreeMap::new(),
            known: BTreeMap::new(),
            newest: 0,
            fences: BTreeMap::new(),
        };
        shared.insert(Part::Data, POOL_DATA_BYTES);
        shared
    }

    /// Sets rules before anything is written.
    pub(super) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.insert(Part::Data, POOL_DATA_BYTES);
    }

    fn insert(&mut self, part: Part, len: u64) {
        let objects = Objects::new(Placement {
            part,
            rules: self.rules,
        });
        self.parts.insert(part, PartState::new(len, Some(objects)));
    }

    /// Makes a process know the newest map.
    pub(super) fn learn_map(&mut self, client: Client) {
        self.known.insert(client, self.newest);
    }

    /// Fences a process in a new map.
    pub(super) fn fence(&mut self, client: Client) {
        self.newest += 1;
        self.fences.entry(client).or_insert(self.newest);
        self.late_rate = draw_late_rate(&mut self.random);
    }

    /// Draws again how soon late operations arrive.
    pub(super) fn draw_late_rate(&mut self) {
        self.late_rate = draw_late_rate(&mut self.random);
    }

    /// How many data objects have late operations.
    pub(super) fn objects_with_late(&self) -> usize {
        self.late.len()
    }

    /// Lets late operations arrive, or be refused, between two I/Os.
    pub(super) fn land(&mut self) {
        while !self.late.is_empty() && self.random.chance(self.late_rate) {
            let nth = self.random.below(self.late.len() as u64) as usize;
            let late = &mut self.late[nth];
            let (client, object, next) = (late.client, late.object, late.operations.pop_front());
            if late.operations.is_empty() {
                self.late.swap_remove(nth);
            }
            if !self.accepts(client, object) {
                self.refused_late += 1;
                continue;
            }
            if let (Some(next), Some(data)) = (next, self.parts.get_mut(&Part::Data)) {
                arrive(data, &next);
                self.landed_late += 1;
            }
        }
    }

    /// Whether an object takes operations of a process.
    fn accepts(&self, client: Client, object: u64) -> bool {
        let seen = self.seen.get(&object).copied().unwrap_or_default();
        self.fences.get(&client).is_none_or(|fence| seen < *fence)
    }

    fn objects(&self, range: &Range<u64>) -> Range<u64> {
        let bytes = self.rules.object_bytes;
        range.start / bytes..range.end.div_ceil(bytes)
    }

    /// Whether an operation on data that a fenced process sends now is done as if there were no fence.
    pub(super) fn slips_through(&mut self, client: Client, range: &Range<u64>) -> bool {
        if !self.fences.contains_key(&client) {
            return true;
        }
        let mut objects = self.objects(range);
        objects.all(|object| self.accepts(client, object)) && self.random.coin()
    }

    /// Decides the fate of the operations that a process has just sent.
    fn settle(&mut self, part: Part, client: Client, outcome: Outcome) {
        let Some(state) = self.parts.get_mut(&part) else {
            return;
        };
        let sent = std::mem::take(&mut state.unsynced);
        if outcome != Outcome::Crash {
            sent.iter()
                .for_each(|sent| sent.apply_within(&mut state.durable));
            return;
        }
        state.current = state.durable.clone();
        for sent in sent {
            self.decide(part, client, sent);
        }
    }

    /// Lets an operation arrive, be late or be lost.
    fn decide(&mut self, part: Part, client: Client, sent: Unsynced) {
        let object = sent.object(self.rules.object_bytes);
        let (arrives, is_late) = (self.random.coin(), self.random.coin());
        let (Part::Data, Some(object)) = (part, object) else {
            if let (true, Some(state)) = (arrives, self.parts.get_mut(&part)) {
                arrive(state, &sent);
            }
            return;
        };
        if self.lost.contains(&(client, object)) {
            return;
        }
        let mut late = self.late.iter_mut();
        let before = late.find(|late| (late.client, late.object) == (client, object));
        match before {
            // It stays behind the one before it.
            Some(late) if is_late => late.operations.push_back(sent),
            None if arrives => {
                if let (true, Some(data)) =
                    (self.accepts(client, object), self.parts.get_mut(&part))
                {
                    arrive(data, &sent);
                }
            }
            None if is_late => self.late.push(Late {
                client,
                object,
                operations: VecDeque::from([sent]),
            }),
            _ => {
                self.lost.insert((client, object));
            }
        }
    }

    /// Loses the late operations of a process that was only cut off, and can send others now.
    pub(super) fn lose_late_of(&mut self, client: Client) {
        self.late.retain(|late| late.client != client);
        self.lost.retain(|(of, _)| *of != client);
    }
}

/// Makes an operation durable and visible.
fn arrive(part: &mut PartState, sent: &Unsynced) {
    for image in [&mut part.current, &mut part.durable] {
        let image: &mut Image = image;
        sent.apply_within(image);
    }
}

/// The shared parts, locked by one process for one operation.
pub(in super::super) struct SharedParts<'a> {
    pub(super) shared: MutexGuard<'a, Shared>,
    pub(super) client: Client,
}

impl SharedParts<'_> {
    pub(in super::super) fn has(&self, part: Part) -> bool {
        self.shared.parts.contains_key(&part)
    }

    pub(in super::super) fn part(&mut self, part: Part) -> Option<&mut PartState> {
        self.shared.parts.get_mut(&part)
    }

    /// Creates a part. Returns whether there was none, as there always is for the data.
    pub(in super::super) fn create(&mut self, part: Part, len: u64, outcome: Outcome) -> bool {
        if self.has(part) {
            return false;
        }
        let happens = match outcome {
            Outcome::Success => true,
            Outcome::Failure(_) | Outcome::FailsBehind(_) => false,
            Outcome::Crash => self.shared.random.coin(),
        };
        if happens {
            self.shared.insert(part, len);
        }
        true
    }

    /// Gives the objects of an operation the map that its process knows.
    pub(in super::super) fn touch(&mut self, request: &Request) {
        let is_of_objects = matches!(request.op, Op::Read | Op::Write | Op::Discard);
        if request.part != Part::Data || !is_of_objects {
            return;
        }
        let known = self.shared.known.get(&self.client).copied();
        let known = known.unwrap_or_default();
        let range = request.offset..request.offset + request.bytes;
        // No object beyond the last one learns it: there is nothing to be late for.
        for object in self.shared.objects(&range).take(OBJECTS_MAX) {
            let seen = self.shared.seen.entry(object).or_default();
            *seen = known.max(*seen);
        }
    }

    /// Decides the fate of the operations that were just sent.
    pub(in super::super) fn settle(&mut self, part: Part, outcome: Outcome) {
        self.shared.settle(part, self.client, outcome);
    }

    /// Loses the late operations on the data object that contains this byte.
    pub(in super::super) fn lose_late(&mut self, at: u64) {
        let object = at / self.shared.rules.object_bytes;
        self.shared.late.retain(|late| late.object != object);
    }
}

/// The most objects of one operation, so that a discard of everything ends.
const OBJECTS_MAX: usize = 1 << 20;
