//! The atomics of [`super::dirty`], which takes them only from here, so that
//! `tests/interleavings.rs` can compile the same file against shuttle's.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
