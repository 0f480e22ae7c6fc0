//! Which share of time background work may take, decided by the latency that guests see (P10).
//!
//! While guests are idle, work takes all the time it needs. While they are busy its share, which
//! has an upper bound, grows linearly with the time in which requests keep within the budget, and
//! shrinks by a factor with each window in which they do not: additive increase, multiplicative
//! decrease, as in networks, because several independent loops of this kind still settle on fair
//! shares. A floor keeps work going if the budget cannot be met at all.
//!
//! A window must span whole cycles of work and rest. Then the percentile covers all of the guests'
//! requests, and not only the moments in which they are disturbed most.
//!
//! A share is that of one thread, which works for all stores of the process in turn: processors and disks are the host's,
//! and so is the share of them that background work may take, however many stores there are.
//!
//! There is no clock in here: windows come in, shares and rests go out.

use crate::limits::{
    AT_REST_AFTER, IDLE_REQUESTS_PER_SECOND, REST_MAX, SHARE_BUSY_MAX, SHARE_DECREASE,
    SHARE_INCREASE, SHARE_INCREASE_MAX, SHARE_START, WINDOW,
};
use std::time::Duration;

/// The requests of the guests of all stores in a span of time, and their latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) length: Duration,
    pub(crate) requests: u64,
    /// The latency that 99 of 100 requests did not exceed, in the store where that is worst.
    pub(crate) latency: Duration,
}

impl Window {
    pub(crate) fn is_idle(&self) -> bool {
        (self.requests as f64) < IDLE_REQUESTS_PER_SECOND * self.length.as_secs_f64()
    }
}

/// Holds work to its share.
#[derive(Debug)]
pub(crate) struct Pacer {
    budget: Duration,
    floor: f64,
    most: f64,
    /// The share while guests are busy. Kept while they are idle: it is the best guess for when
    /// they return.
    busy_share: f64,
    guests_are_idle: bool,
    /// How long guests have been idle.
    idle_for: Duration,
    is_over_budget: bool,
}

impl Pacer {
    /// `floor` is the least share, above 0.
    pub(crate) fn new(budget: Duration, floor: f64) -> Self {
        assert!(floor > 0.0 && floor <= 1.0, "a floor of {floor}");
        Self {
            budget,
            floor,
            most: SHARE_BUSY_MAX,
            busy_share: SHARE_START.max(floor),
            guests_are_idle: false,
            idle_for: Duration::ZERO,
            is_over_budget: false,
        }
    }

    /// Limits the share that work takes while guests are busy.
    pub(crate) fn at_most(self, most: f64) -> Self {
        Self {
            most,
            busy_share: self.busy_share.min(most),
            ..self
        }
    }

    /// Updates the share from one more window.
    pub(crate) fn observe(&mut self, window: &Window) {
        self.glance(window);
        if self.guests_are_idle {
            return;
        }
        let share = if self.is_over_budget {
            self.busy_share * SHARE_DECREASE
        } else {
            let windows = window.length.as_secs_f64() / WINDOW.as_secs_f64();
            self.busy_share + (SHARE_INCREASE * windows).min(SHARE_INCREASE_MAX)
        };
        self.busy_share = share.clamp(self.floor, self.most);
    }

    /// Notes only how guests fare, from a window in which no work was done: its latencies say
    /// nothing about a share.
    pub(crate) fn glance(&mut self, window: &Window) {
        self.guests_are_idle = window.is_idle();
        self.idle_for = if self.guests_are_idle {
            self.idle_for.saturating_add(window.length)
        } else {
            Duration::ZERO
        };
        self.is_over_budget = !self.guests_are_idle && window.latency > self.budget;
    }

    /// Whether busy guests' requests took longer than the budget, with or without concurrent work.
    pub(crate) fn is_over_budget(&self) -> bool {
        self.is_over_budget
    }

    pub(crate) fn guests_are_idle(&self) -> bool {
        self.guests_are_idle
    }

    /// Whether guests have been idle for so long that they do not just pause between two bursts of requests.
    pub(crate) fn guests_are_at_rest(&self) -> bool {
        self.idle_for >= AT_REST_AFTER
    }

    /// The share of time that work may take now: above 0, 1 for all.
    pub(crate) fn share(&self) -> f64 {
        if self.guests_are_idle {
            1.0
        } else {
            self.busy_share
        }
    }

    /// The rest after a batch that took `worked`.
    pub(crate) fn rest_after(&self, worked: Duration) -> Duration {
        let share = self.share();
        worked.mul_f64((1.0 - share) / share).min(REST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FINDER_SHARE_FLOOR;

    const BUDGET: Duration = Duration::from_millis(2);

    fn busy(latency: Duration) -> Window {
        Window {
            length: Duration::from_millis(100),
            requests: 1000,
            latency,
        }
    }

    fn idle() -> Window {
        Window {
            requests: 1,
            ..busy(Duration::from_secs(1))
        }
    }

    fn observe_all(pacer: &mut Pacer, windows: impl IntoIterator<Item = Window>) {
        windows
            .into_iter()
            .for_each(|window| pacer.observe(&window));
    }

    #[test]
    fn busy_guests_bear_no_more_than_the_most_that_is_said() {
        let mut pacer = Pacer::new(BUDGET, 0.01).at_most(0.02);
        assert_eq!(pacer.share(), 0.02, "from the start");
        observe_all(&mut pacer, [busy(Duration::ZERO); 100]);
        assert_eq!(pacer.share(), 0.02);
        observe_all(&mut pacer, [busy(BUDGET * 2); 100]);
        assert_eq!(pacer.share(), 0.01);
        pacer.observe(&idle());
        assert_eq!(pacer.share(), 1.0);
    }

    #[test]
    fn idle_guests_leave_all_the_time_whatever_the_few_requests_took() {
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        pacer.observe(&idle());
        assert_eq!(pacer.share(), 1.0);
        assert_eq!(pacer.rest_after(Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn one_request_in_a_window_is_idle_and_two_are_not() {
        let of = |requests, millis| Window {
            length: Duration::from_millis(millis),
            requests,
            latency: Duration::ZERO,
        };
        assert!(of(0, 100).is_idle() && of(1, 100).is_idle());
        assert!(!of(2, 100).is_idle());
        assert!(of(39, 2000).is_idle() && !of(40, 2000).is_idle());
    }

    #[test]
    fn guests_between_two_bursts_are_idle_and_not_at_rest() {
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        for _ in 0..20 {
            observe_all(&mut pacer, [busy(BUDGET), idle(), idle()]);
            assert!(pacer.guests_are_idle() && !pacer.guests_are_at_rest());
        }
        observe_all(&mut pacer, [idle(); 8]);
        assert!(pacer.guests_are_at_rest());
        pacer.glance(&busy(BUDGET));
        assert!(!pacer.guests_are_at_rest());
    }

    #[test]
    fn before_anything_is_known_work_is_held_back() {
        let pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        assert_eq!(pacer.share(), SHARE_START);
        let rest = pacer.rest_after(Duration::from_millis(20));
        assert_eq!(rest.as_millis(), 180);
    }

    #[test]
    fn a_budget_that_is_kept_leads_to_the_largest_share_in_equal_steps() {
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        let mut shares = vec![pacer.share()];
        for _ in 0..50 {
            pacer.observe(&busy(BUDGET));
            shares.push(pacer.share());
        }
        for pair in shares.windows(2) {
            let step = pair[1] - pair[0];
            assert!((step - SHARE_INCREASE).abs() < 1e-9 || pair[1] == SHARE_BUSY_MAX);
        }
        assert_eq!(pacer.share(), SHARE_BUSY_MAX);
    }

    #[test]
    fn a_longer_window_adds_as_much_more_but_not_without_bound() {
        let shares = [1, 3, 50].map(|windows| {
            let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
            pacer.observe(&Window {
                length: WINDOW * windows,
                requests: 1000 * u64::from(windows),
                latency: BUDGET,
            });
            pacer.share() - SHARE_START
        });
        let steps = [SHARE_INCREASE, 3.0 * SHARE_INCREASE, SHARE_INCREASE_MAX];
        for (share, step) in shares.into_iter().zip(steps) {
            assert!((share - step).abs() < 1e-9, "{share} instead of {step}");
        }
    }

    #[test]
    fn a_budget_that_is_exceeded_ends_at_the_floor_and_not_below() {
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        observe_all(&mut pacer, [busy(BUDGET); 50]);
        let beyond = busy(BUDGET + Duration::from_nanos(1));
        pacer.observe(&beyond);
        assert_eq!(pacer.share(), SHARE_BUSY_MAX * SHARE_DECREASE);
        observe_all(&mut pacer, [beyond; 5]);
        assert!(pacer.share() > FINDER_SHARE_FLOOR);
        pacer.observe(&beyond);
        assert_eq!(pacer.share(), FINDER_SHARE_FLOOR, "in seven windows");
        observe_all(&mut pacer, [beyond; 100]);
        assert_eq!(pacer.share(), FINDER_SHARE_FLOOR);
        let rest = pacer.rest_after(Duration::from_millis(10));
        assert_eq!(rest.as_millis(), 190);
    }

    #[test]
    fn the_share_settles_where_the_budget_is_just_kept() {
        // Guests whose latency grows with the share of work, and exceeds the budget beyond 0.2.
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        let mut shares = Vec::new();
        for _ in 0..1000 {
            let latency = BUDGET.mul_f64(pacer.share() / 0.2);
            pacer.observe(&busy(latency));
            shares.push(pacer.share());
        }
        let settled = &shares[100..];
        let mean = settled.iter().sum::<f64>() / settled.len() as f64;
        assert!((0.15..=0.2).contains(&mean), "{mean}");
        assert!(settled.iter().all(|share| (0.13..=0.23).contains(share)));
    }

    #[test]
    fn two_that_share_one_budget_end_up_equal() {
        let mut pacers = [
            Pacer::new(BUDGET, FINDER_SHARE_FLOOR),
            Pacer::new(BUDGET, FINDER_SHARE_FLOOR),
        ];
        observe_all(&mut pacers[0], [busy(BUDGET); 40]);
        assert!(pacers[0].share() > 2.0 * pacers[1].share());
        for _ in 0..1000 {
            let together = pacers[0].share() + pacers[1].share();
            let latency = BUDGET.mul_f64(together / 0.4);
            pacers.iter_mut().for_each(|p| p.observe(&busy(latency)));
        }
        assert!((pacers[0].share() - pacers[1].share()).abs() < 0.05);
    }

    #[test]
    fn what_was_learned_of_busy_guests_outlasts_their_pauses() {
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        observe_all(&mut pacer, [busy(BUDGET * 2); 50]);
        observe_all(&mut pacer, [idle(); 50]);
        assert_eq!(pacer.share(), 1.0);
        pacer.observe(&busy(BUDGET));
        let share = FINDER_SHARE_FLOOR + SHARE_INCREASE;
        assert!((pacer.share() - share).abs() < 1e-9);
    }

    #[test]
    fn a_window_without_work_tells_who_is_busy_and_nothing_else() {
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        pacer.glance(&idle());
        assert_eq!(pacer.share(), 1.0);
        pacer.glance(&busy(BUDGET));
        assert_eq!(pacer.share(), SHARE_START);
        pacer.glance(&busy(BUDGET * 2));
        assert_eq!(pacer.share(), SHARE_START);
    }

    #[test]
    fn only_busy_guests_are_over_the_budget_and_work_does_not_matter() {
        let mut pacer = Pacer::new(BUDGET, FINDER_SHARE_FLOOR);
        assert!(!pacer.is_over_budget(), "nothing is known");
        for learn in [Pacer::observe, Pacer::glance] {
            learn(&mut pacer, &busy(BUDGET * 2));
            assert!(pacer.is_over_budget());
            learn(&mut pacer, &busy(BUDGET));
            assert!(!pacer.is_over_budget());
            learn(&mut pacer, &busy(BUDGET * 2));
            learn(&mut pacer, &idle());
            assert!(!pacer.is_over_budget());
        }
    }

    #[test]
    fn no_rest_is_endless() {
        let mut pacer = Pacer::new(BUDGET, 0.001);
        observe_all(&mut pacer, [busy(BUDGET * 2); 50]);
        assert_eq!(pacer.rest_after(Duration::from_secs(1)), REST_MAX);
    }
}
