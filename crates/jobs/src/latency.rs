//! How guests fare, over all stores.
//!
//! Whether guests are busy is a matter of the host, so the requests of all stores are summed: many stores with a few
//! requests each keep its processors and disks as busy as one store with many. How long requests take is judged for each
//! store, and the worst counts: a store that answers a hundred thousand requests a second in time must not hide another
//! whose guests wait. A store with few requests in the window has no percentile of its own, and the slowest of a hundred
//! such percentiles would be beyond any budget; so the requests of all such stores are judged together, as those of
//! several volumes in one store are.

use crate::limits::{BUDGET_PERCENTILE, JUDGED_ALONE_REQUESTS};
use crate::pacing::Window;
use crate::registry::JobRegistry;
use crate::store_jobs::StoreNumber;
use onefold_store::LatencyCounts;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// The counts of requests answered so far, by store.
pub(crate) struct GuestCounts(BTreeMap<StoreNumber, LatencyCounts>);

impl GuestCounts {
    pub(crate) fn now(registry: &JobRegistry) -> Self {
        let mut counts = BTreeMap::new();
        registry.for_each(|jobs| _ = counts.insert(jobs.number(), jobs.store().latencies()));
        Self(counts)
    }

    /// The window of this length between `earlier` counts and these. Stores that were not there all the time do not
    /// count.
    pub(crate) fn window_since(&self, earlier: &Self, length: Duration) -> Window {
        let stores = self.0.iter().filter_map(|(number, counts)| {
            let counts = counts.since(earlier.0.get(number)?);
            Some((counts.requests(), counts))
        });
        let stores: Vec<_> = stores.filter(|(requests, _)| *requests > 0).collect();
        Window {
            length,
            requests: stores.iter().map(|(requests, _)| requests).sum(),
            latency: Duration::from_nanos(worst_ns(stores)),
        }
    }
}

/// The worst percentile of stores with these numbers of requests, which are not zero, in nanoseconds; 0 without stores.
fn worst_ns(stores: Vec<(u64, LatencyCounts)>) -> u64 {
    let is_alone = |(requests, _): &(u64, LatencyCounts)| *requests >= JUDGED_ALONE_REQUESTS;
    let (alone, together): (Vec<_>, Vec<_>) = stores.into_iter().partition(is_alone);
    let alone = alone
        .iter()
        .map(|(_, counts)| counts.percentile_ns(BUDGET_PERCENTILE));
    alone.fold(together_ns(&together), u64::max)
}

/// The percentile of all requests of these stores. Takes the slowest requests away one by one.
fn together_ns(stores: &[(u64, LatencyCounts)]) -> u64 {
    let all: u64 = stores.iter().map(|(requests, _)| requests).sum();
    let slower = all - (all as f64 * BUDGET_PERCENTILE).ceil() as u64;
    // The request of this rank, from 1 for the fastest; half a rank less, so that rounding does not matter.
    let of_rank = |(requests, counts): &(u64, LatencyCounts), rank: u64| {
        counts.percentile_ns((rank as f64 - 0.5) / *requests as f64)
    };
    let places = stores.iter().enumerate();
    let slowest = places.map(|(place, store)| (of_rank(store, store.0), place, store.0));
    let mut slowest: BinaryHeap<_> = slowest.collect();
    for _ in 0..slower {
        let Some((_, place, rank)) = slowest.pop() else {
            break;
        };
        if let Some(store) = stores.get(place).filter(|_| rank > 1) {
            slowest.push((of_rank(store, rank - 1), place, rank - 1));
        }
    }
    slowest.peek().map_or(0, |(ns, ..)| *ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::{new_registry, new_store};
    use crate::store_jobs::StoreJobs;
    use onefold_store::{Blocking, Store, VolumeOptions};
    use std::sync::Arc;

    const SECOND: Duration = Duration::from_secs(1);

    /// Answers this many requests, each of which takes some time.
    fn answer(store: &Store, requests: u64) {
        let volume = store.volume("vm").unwrap();
        for _ in 0..requests {
            volume.write(0, &[1; 4096], Blocking::Yes).unwrap();
        }
    }

    /// A registry of this many stores.
    fn stores(count: usize) -> (Arc<JobRegistry>, Vec<Arc<StoreJobs>>) {
        let registry = new_registry();
        (1..count).for_each(|_| _ = registry.add(new_store(64 << 20).1));
        for jobs in registry.all() {
            let options = VolumeOptions::new(1 << 20);
            jobs.store().create_volume("vm", &options).unwrap();
        }
        let all = registry.all();
        (registry, all)
    }

    /// The window in which the stores answer these numbers of requests, and each store's own counts.
    fn window(requests: &[u64]) -> (Window, Vec<LatencyCounts>) {
        let (registry, stores) = stores(requests.len());
        let before = GuestCounts::now(&registry);
        for (jobs, requests) in stores.iter().zip(requests) {
            answer(jobs.store(), *requests);
        }
        let counts = stores.iter().map(|jobs| jobs.store().latencies());
        let window = GuestCounts::now(&registry).window_since(&before, SECOND);
        (window, counts.collect())
    }

    /// The latency of the requests of all these stores together, the plain way.
    fn merged_ns(stores: &[LatencyCounts]) -> u64 {
        let mut all = Vec::new();
        for counts in stores {
            let requests = counts.requests();
            let ranks = (1..=requests).map(|rank| (rank as f64 - 0.5) / requests as f64);
            all.extend(ranks.map(|p| counts.percentile_ns(p)));
        }
        all.sort_unstable();
        all[(all.len() as f64 * BUDGET_PERCENTILE).ceil() as usize - 1]
    }

    #[test]
    fn one_store_is_judged_by_its_percentile_however_many_requests_it_has() {
        for requests in [1, 2, 49, 99, 100, 101, 1000] {
            let (window, counts) = window(&[requests]);
            assert_eq!(window.requests, requests);
            let own = counts[0].percentile_ns(BUDGET_PERCENTILE);
            assert_eq!(window.latency, Duration::from_nanos(own), "{requests}");
        }
    }

    #[test]
    fn stores_with_few_requests_are_judged_together() {
        let (window, counts) = window(&[99, 1, 60, 0, 77, 99, 99]);
        assert_eq!(window.requests, 435);
        assert_eq!(window.latency, Duration::from_nanos(merged_ns(&counts)));
    }

    #[test]
    fn the_worst_of_the_stores_with_many_requests_counts() {
        let (window, counts) = window(&[100, 5000, 3]);
        assert_eq!(window.requests, 5103);
        let own = |counts: &LatencyCounts| counts.percentile_ns(BUDGET_PERCENTILE);
        let worst = counts.iter().map(own).max().unwrap();
        assert_eq!(window.latency, Duration::from_nanos(worst));
    }

    #[test]
    fn a_store_that_comes_or_goes_within_a_window_does_not_count() {
        let (registry, stores) = stores(2);
        let before = GuestCounts::now(&registry);
        answer(stores[0].store(), 10);
        registry.take(stores[0].store());
        let added = registry.add(new_store(64 << 20).1);
        let options = VolumeOptions::new(1 << 20);
        added.store().create_volume("vm", &options).unwrap();
        answer(added.store(), 10);
        let window = GuestCounts::now(&registry).window_since(&before, SECOND);
        assert_eq!((window.requests, window.latency), (0, Duration::ZERO));
    }
}
