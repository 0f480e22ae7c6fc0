//! I/Os that fail, and callbacks in the middle of one.

use super::orders::{FailureRates, Op, When};
use super::random::Random;
use crate::Part;
use std::io::ErrorKind;

/// Code of a test that runs inside an I/O.
pub(super) type Hook = Box<dyn FnOnce() + Send>;

/// A test's orders.
#[derive(Default)]
pub(super) struct Plan {
    /// How many more I/Os succeed before the machine stops; `None` if it does not.
    pub(super) ios_until_crash: Option<u64>,
    failures: Vec<Failure>,
    pub(super) rates: FailureRates,
    hooks: Vec<(Part, Op, When, Hook)>,
}

struct Failure {
    part: Part,
    op: Op,
    /// Counts such I/Os down; 1 is the next one.
    nth: u64,
    kind: ErrorKind,
}

impl Plan {
    pub(super) fn fail(&mut self, part: Part, op: Op, nth: u64, kind: ErrorKind) {
        self.failures.push(Failure {
            part,
            op,
            nth,
            kind,
        });
    }

    pub(super) fn hook(&mut self, part: Part, op: Op, when: When, hook: Hook) {
        self.hooks.push((part, op, when, hook));
    }

    /// Takes the first hook ordered for such an I/O.
    pub(super) fn take_hook(&mut self, part: Part, op: Op, when: When) -> Option<Hook> {
        let matches = |hook: &(Part, Op, When, Hook)| (hook.0, hook.1, hook.2) == (part, op, when);
        let at = self.hooks.iter().position(matches)?;
        Some(self.hooks.remove(at).3)
    }

    /// Counts an I/O, and returns the kind of its error, if it fails.
    pub(super) fn failure(&mut self, part: Part, op: Op, random: &mut Random) -> Option<ErrorKind> {
        let mut ordered = None;
        self.failures.retain_mut(|failure| {
            if (failure.part, failure.op) == (part, op) {
                failure.nth = failure.nth.saturating_sub(1);
                if failure.nth == 0 {
                    ordered = Some(failure.kind);
                    return false;
                }
            }
            true
        });
        let rate = match op {
            Op::Read => self.rates.read,
            Op::Write => self.rates.write,
            Op::Sync => self.rates.sync,
            Op::Discard => self.rates.discard,
            Op::Reserve | Op::SetLen | Op::Create | Op::Replace | Op::Remove => 0.0,
        };
        let by_chance = random.chance(rate).then_some(ErrorKind::Other);
        ordered.or(by_chance)
    }
}
