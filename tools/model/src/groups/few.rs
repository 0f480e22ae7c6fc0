//! A few values in order, stored in place: states are copied and compared by the million, so they allocate nothing.

use std::fmt;
use std::hash::{Hash, Hasher};

/// At most `N` values, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Few<T, const N: usize> {
    /// The values come first, then `None`s.
    items: [Option<T>; N],
}

impl<T: Copy + Ord, const N: usize> Few<T, N> {
    /// No values.
    pub const NONE: Self = Few { items: [None; N] };

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.items.iter().map_while(|item| *item)
    }

    /// The values in order, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().map_while(Option::as_mut)
    }

    /// The first value.
    pub fn first(&self) -> Option<T> {
        self.items[0]
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.items[0].is_none()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether `value` is one of the values.
    pub fn has(&self, value: T) -> bool {
        self.items.contains(&Some(value))
    }

    /// Appends `value`.
    ///
    /// # Panics
    ///
    /// If there is no room: a budget of the configuration is larger than the state permits.
    pub fn push(&mut self, value: T) {
        let at = self.len();
        assert!(at < N, "the state has room for {N} of these values");
        self.items[at] = Some(value);
    }

    /// Removes and returns the first value.
    pub fn pop_first(&mut self) -> Option<T> {
        let first = self.items[0].take();
        self.items.rotate_left(1);
        first
    }

    /// Adds `value` unless it is there, and sorts, so that equal sets are equal states.
    pub fn insert(&mut self, value: T) {
        if !self.has(value) {
            self.push(value);
            let len = self.len();
            self.items[..len].sort_unstable();
        }
    }

    /// Keeps only the values that `wanted` picks.
    pub fn retain(&mut self, wanted: impl Fn(T) -> bool) {
        let all = std::mem::replace(self, Self::NONE);
        for value in all.iter().filter(|value| wanted(*value)) {
            self.push(value);
        }
    }
}

impl<T: Hash, const N: usize> Hash for Few<T, N> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let len = self.items.iter().map_while(Option::as_ref).count();
        hasher.write_usize(len);
        for item in self.items.iter().map_while(Option::as_ref) {
            item.hash(hasher);
        }
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Few<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.items.iter().flatten()).finish()
    }
}
