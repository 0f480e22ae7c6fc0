//! Giving all free space back to the host, for `pool trim`.

use crate::limits::{BATCH_GAP, FREE_POLL_INTERVAL, FREE_POLLS_MAX, TRIM_BYTES};
use onefold_store::{Pba, Result, Store};
use std::ops::ControlFlow;
use std::thread;

/// Walks the pool, and gives back all blocks that are free and for which the host has allocated
/// space.
///
/// `progress(done, all)` counts blocks of the pool, and can break the work off between steps. Returns
/// whether it did.
///
/// # Errors
///
/// Errors of the disk.
pub fn trim_now(
    store: &Store,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let _hurry = store.hurry_background();
    wait_until_free(store)?;
    let all = store.space().size_bytes()? / u64::from(store.block_size());
    let mut cursor = Pba(0);
    while store.space().trim_step(&mut cursor, TRIM_BYTES)? {
        if progress(cursor.0.min(all), all).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        thread::sleep(BATCH_GAP);
    }
    Ok(ControlFlow::Continue(()))
}

/// Waits until all blocks released before the call are free; gives up after half a minute if a read
/// pins one of them.
pub(crate) fn wait_until_free(store: &Store) -> Result<()> {
    let released = store.space().commit_released()?;
    for _ in 0..FREE_POLLS_MAX {
        if store.space().is_free(released)? {
            break;
        }
        thread::sleep(FREE_POLL_INTERVAL);
    }
    Ok(())
}
