//! Checks that every implementation of `Cluster` does what the others do.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

mod cluster_suite;

use cluster_suite::Hosts;
use onefold_engine::Cluster;
use onefold_engine::simulated::{CrashKind, SimulatedCluster};
use std::sync::Arc;

struct Simulated(SimulatedCluster);

impl Hosts for Simulated {
    fn host(&self, n: usize) -> Arc<dyn Cluster> {
        self.0.host(n)
    }

    fn set_extents(&self, extents: u64) {
        self.0.set_extents(extents);
    }

    fn kill(&self, n: usize) -> bool {
        self.0.kill(n, CrashKind::ProcessKilled);
        true
    }
}

#[test]
fn simulated() {
    for seed in 0..20 {
        cluster_suite::conforms(|_| Simulated(SimulatedCluster::new(seed)));
    }
}
