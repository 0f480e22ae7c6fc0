//! Syncs in flight when their process died: the kernel completes them, and no process receives the result.

use super::orders::{CrashKind, Op};
use super::part::PartState;
use super::random::Random;
use super::{SimulatedEngine, State};
#[cfg(doc)]
use crate::Engine;
use crate::Part;

/// The effect of such syncs on the data.
pub(super) struct Orphans {
    has_lost_data: bool,
    must_report: bool,
}

impl Orphans {
    /// Begins for a machine that stopped; a sync may have failed before.
    pub(super) fn of(state: &State, kind: CrashKind) -> Self {
        let has_failed = state.failures.contains_key(&(Part::Data, Op::Sync));
        Self {
            has_lost_data: kind == CrashKind::ProcessKilled && has_failed,
            must_report: false,
        }
    }

    /// Ends the syncs of one part.
    pub(super) fn end(
        &mut self,
        name: Part,
        part: &mut PartState,
        state: &State,
        random: &mut Random,
    ) {
        let (eviction, rate) = (
            state.eviction.get(&name).copied().unwrap_or_default(),
            state.orphan_failure_rate,
        );
        for (_, number) in state.in_flight.iter().filter(|(of, _)| *of == name) {
            if random.chance(rate) {
                part.sync_failed(*number, eviction, random);
                self.has_lost_data |= name == Part::Data;
            } else if random.coin() {
                part.sync(*number);
            }
        }
        // The kernel also writes data out by itself.
        if name == Part::Data && random.chance(rate / 4.0) {
            let number = part.next_number();
            part.sync_failed(number, eviction, random);
            (self.has_lost_data, self.must_report) = (true, true);
        }
    }

    /// Whether data is lost, and whether the host is going to report that.
    pub(super) fn outcome(&self, random: &mut Random) -> (bool, bool) {
        let reports = self.must_report || self.has_lost_data && random.coin();
        (self.has_lost_data, reports)
    }
}

impl SimulatedEngine {
    /// The probability that an in-flight sync fails when the process dies; 0 at first. The kernel's own writing at that
    /// time fails a quarter as often. The machine that comes back keeps the rate.
    pub fn set_orphan_failure_rate(&self, rate: f64) {
        self.machine.state().orphan_failure_rate = rate;
    }

    /// Whether a sync of the data failed in the process before this one, or as it died.
    pub fn has_lost_data(&self) -> bool {
        self.machine.state().has_lost_data
    }

    /// Whether [`Engine::has_lost_writes`] is going to report lost data.
    pub fn has_to_report(&self) -> bool {
        self.machine.state().has_to_report
    }
}
