//! Growing the pool, for `pool resize`.

use crate::limits::ALLOCATE_BYTES;
use onefold_store::{Result, Store};
use std::ops::ControlFlow;
use std::thread;
use std::time::Instant;

/// Grows the pool to the given size. A thick pool's new space is allocated first; half of the time is left to guests'
/// requests.
///
/// `progress(done, all)` counts blocks, and can cancel. Returns whether it did; the pool keeps its size then, and if the
/// space cannot be allocated.
///
/// # Errors
///
/// Errors of [`Space::grow`](onefold_store::Space::grow).
pub fn grow_to(
    store: &Store,
    size_bytes: u64,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let space = store.space();
    let allocated = allocate(store, size_bytes, progress);
    match allocated {
        Ok(ControlFlow::Continue(())) => space.grow(size_bytes)?,
        Ok(ControlFlow::Break(())) => space.give_up_growing()?,
        Err(error) => {
            if let Err(error) = space.give_up_growing() {
                tracing::warn!("what was allocated for a larger pool is kept: {error}");
            }
            return Err(error);
        }
    }
    allocated
}

fn allocate(
    store: &Store,
    size_bytes: u64,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let block_size = u64::from(store.block_size());
    let first = store.space().size_bytes()?;
    let all = size_bytes.saturating_sub(first) / block_size;
    let mut cursor = first;
    loop {
        let began = Instant::now();
        if !store
            .space()
            .allocate_step(size_bytes, &mut cursor, ALLOCATE_BYTES)?
        {
            return Ok(ControlFlow::Continue(()));
        }
        if progress((cursor - first) / block_size, all).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        thread::sleep(began.elapsed());
    }
}
