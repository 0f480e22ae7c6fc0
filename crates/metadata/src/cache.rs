//! A bounded cache with second chances: it first evicts values that were not used since the clock's
//! hand last passed.

use std::hash::Hash;

use rustc_hash::FxHashMap;

pub(super) struct ClockCache<K, V> {
    index: FxHashMap<K, usize>,
    slots: Vec<Slot<K, V>>,
    hand: usize,
    slots_max: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    used: bool,
}

impl<K: Copy + Eq + Hash, V> ClockCache<K, V> {
    pub(super) fn new(slots_max: usize) -> Self {
        Self {
            index: FxHashMap::default(),
            slots: Vec::new(),
            hand: 0,
            slots_max: slots_max.max(1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&mut self, key: K) -> Option<&mut V> {
        let slot = &mut self.slots[*self.index.get(&key)?];
        slot.used = true;
        Some(&mut slot.value)
    }

    /// Adds a new value. A full cache evicts a value that `may_go`; if there is none, the cache
    /// exceeds its bound, which callers that pin values must limit.
    pub(super) fn insert(&mut self, key: K, value: V, may_go: impl Fn(&V) -> bool) -> &mut V {
        if self.slots.len() >= self.slots_max {
            self.evict(may_go);
        }
        let at = self.slots.len();
        let replaced = self.index.insert(key, at);
        debug_assert!(replaced.is_none(), "a cached value was loaded again");
        self.slots.push(Slot {
            key,
            value,
            used: true,
        });
        &mut self.slots[at].value
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.index.get(&key).copied()?;
        Some(self.remove_slot(at))
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        for at in (0..self.slots.len()).rev() {
            if !keep(&self.slots[at].key) {
                self.remove_slot(at);
            }
        }
    }

    /// Goes round at most twice: the first round takes the second chances away. Evicts until the
    /// bound holds again, so that values that were pinned for a while do not stay for ever.
    fn evict(&mut self, may_go: impl Fn(&V) -> bool) {
        for _ in 0..2 * self.slots.len() {
            if self.slots.len() < self.slots_max {
                return;
            }
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let slot = &mut self.slots[self.hand];
            if slot.used {
                slot.used = false;
                self.hand += 1;
            } else if may_go(&slot.value) {
                self.remove_slot(self.hand);
            } else {
                self.hand += 1;
            }
        }
    }

    fn remove_slot(&mut self, at: usize) -> V {
        let slot = self.slots.swap_remove(at);
        self.index.remove(&slot.key);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.key, at);
        }
        slot.value
    }
}
