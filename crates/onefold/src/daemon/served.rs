//! The stores that a daemon serves: each with its housekeeping, its background jobs, and the turns of its backups.
//!
//! Stores of a shared pool come and go while others are served.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use onefold_jobs::{Maintenance, SnapshotReads};
use onefold_store::Store;

use super::housekeeping::Housekeeping;

/// A store that is served.
pub(super) struct ServedStore {
    pub(super) store: Arc<Store>,
    snapshot_reads: Arc<SnapshotReads>,
    /// Taken when the store is removed, even while others still hold this.
    housekeeping: Mutex<Option<Housekeeping>>,
}

impl ServedStore {
    /// The turns in which backups read the store's snapshots.
    pub(super) fn snapshot_reads(&self) -> Arc<SnapshotReads> {
        Arc::clone(&self.snapshot_reads)
    }

    fn end_housekeeping(&self) {
        let mut housekeeping = self
            .housekeeping
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(housekeeping.take());
    }
}

/// All stores that are served.
pub(super) struct ServedStores {
    maintenance: Arc<Maintenance>,
    /// Held briefly, and with no other lock.
    stores: RwLock<Vec<Arc<ServedStore>>>,
}

impl ServedStores {
    pub(super) fn new(maintenance: &Arc<Maintenance>) -> Self {
        Self {
            maintenance: Arc::clone(maintenance),
            stores: RwLock::default(),
        }
    }

    /// Begins to serve a store.
    pub(super) fn add(&self, store: Arc<Store>) {
        let served = ServedStore {
            snapshot_reads: self.maintenance.add(Arc::clone(&store)),
            housekeeping: Mutex::new(Some(Housekeeping::tidy(Arc::clone(&store)))),
            store,
        };
        let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
        stores.push(Arc::new(served));
    }

    /// Ends the work on a store here. Its clients have gone.
    pub(super) fn remove(&self, store: &Arc<Store>) {
        let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
        let at = stores
            .iter()
            .position(|served| Arc::ptr_eq(&served.store, store));
        let served = at.map(|at| stores.remove(at));
        drop(stores);
        if let Some(served) = served {
            served.end_housekeeping();
            self.maintenance.remove(store);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<ServedStore>> {
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        stores.clone()
    }

    /// The store that has this volume or snapshot.
    pub(super) fn of(&self, name: &str) -> Option<Arc<ServedStore>> {
        let mut stores = self.all().into_iter();
        stores.find(|served| served.store.volumes().has(name))
    }

    /// The first `names_max` of the names that `of_store` finds in each store in order.
    pub(super) fn first_names(
        &self,
        names_max: usize,
        of_store: impl Fn(&Store) -> Vec<String>,
    ) -> Vec<String> {
        let stores = self.all();
        if let [served] = &stores[..] {
            return of_store(&served.store);
        }
        let names = stores.iter().flat_map(|served| of_store(&served.store));
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names.truncate(names_max);
        names
    }

    /// Ends the work on all stores here.
    pub(super) fn remove_all(&self) {
        for served in self.all() {
            let store = Arc::clone(&served.store);
            drop(served);
            self.remove(&store);
        }
    }

    /// Ends the housekeeping of all stores.
    pub(super) fn end(&self) {
        self.all()
            .iter()
            .for_each(|served| served.end_housekeeping());
    }
}
