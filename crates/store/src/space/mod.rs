//! The pool's space: its size, and space that is given back to the host.

mod discard;
mod resize;

use std::sync::Arc;

use onefold_metadata::sync::Mutex;

use crate::dedup::{Dedup, PoolIndex};
use crate::pool::Pool;

pub use discard::Released;
pub use resize::{ShrinkPlan, ShrinkReport};

/// The pool's space: see [`Store::space`](crate::Store::space).
pub struct Space {
    pool: Arc<Pool>,
    dedup: Arc<Dedup>,
    index: Arc<PoolIndex>,
    /// Held while blocks are moved from beyond the pool's new end.
    shrinking: Mutex<()>,
}

impl Space {
    pub(crate) fn new(pool: Arc<Pool>, dedup: Arc<Dedup>, index: Arc<PoolIndex>) -> Self {
        Self {
            pool,
            dedup,
            index,
            shrinking: Mutex::default(),
        }
    }
}
