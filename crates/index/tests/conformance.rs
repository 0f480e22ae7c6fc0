//! Every back end against the suite.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::Disk;
use onefold_format::PoolId;
use onefold_index::conformance::{self, BackEnd};
use onefold_index::hash::{self, Shape};
use onefold_index::{FingerprintIndex, Result, btree, memory};
use std::sync::Arc;

struct Memory;

impl BackEnd for Memory {
    fn create(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
        memory::create(disk, pool)
    }

    fn replace(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
        memory::replace(disk, pool)
    }

    fn open(&self, disk: Arc<dyn Disk>, pool: PoolId) -> Result<Box<dyn FingerprintIndex>> {
        Ok(Box::new(memory::open(disk, pool, 64 << 20)?))
    }

    fn open_small(
        &self,
        disk: Arc<dyn Disk>,
        pool: PoolId,
    ) -> Option<Result<Box<dyn FingerprintIndex>>> {
        let opened = memory::open(disk, pool, 100_000);
        Some(opened.map(|index| Box::new(index) as Box<dyn FingerprintIndex>))
    }

    fn survives_crashes(&self) -> bool {
        false
    }
}

/// A B-tree with a cache of this many bytes.
struct Btree(u64);

/// A cache that holds everything that the suite does.
const BTREE: Btree = Btree(8 << 20);

/// A cache so small that redb has to read pages again that it wrote, and to write before it commits.
const BTREE_WITHOUT_CACHE: Btree = Btree(16 << 10);

impl BackEnd for Btree {
    fn create(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
        btree::create(disk, pool)
    }

    fn replace(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
        btree::replace(disk, pool)
    }

    fn open(&self, disk: Arc<dyn Disk>, pool: PoolId) -> Result<Box<dyn FingerprintIndex>> {
        Ok(Box::new(btree::open(disk, pool, self.0)?))
    }

    fn survives_crashes(&self) -> bool {
        true
    }
}

/// A hash index with this much memory, and of these sizes.
struct Hash(u64, Shape);

/// The sizes of a pool: all that the suite does stays in memory and in the log.
const HASH: fn() -> Hash = || Hash(8 << 20, Shape::default());

/// Sizes so small that a few rows make several segments, every batch merges some, and the log moves on.
const SMALL: Shape = Shape {
    segment_rows: 4,
    rows_per_change: 4,
    changes_min: 3,
    changes_behind: 6,
    log_pages: 2,
    log_bytes_min: 16 << 10,
    spare_pages: 8,
};

impl BackEnd for Hash {
    fn create(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
        hash::create_shaped(disk, pool, self.1)
    }

    fn replace(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
        hash::replace(disk, pool)
    }

    fn open(&self, disk: Arc<dyn Disk>, pool: PoolId) -> Result<Box<dyn FingerprintIndex>> {
        let index = hash::open_shaped(disk, pool, self.0, self.1)?;
        Ok(Box::new(index))
    }

    fn survives_crashes(&self) -> bool {
        true
    }
}

/// One module for each back end, one test for each part of the suite.
macro_rules! conforms {
    ($name:ident, $back_end:expr, $seeds:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn answers_as_it_should() {
                conformance::answers_as_it_should(&$back_end);
            }

            #[test]
            fn agrees_with_the_model() {
                conformance::agrees_with_the_model(&$back_end, 0..$seeds);
            }

            #[test]
            fn a_full_index_declines() {
                conformance::a_full_index_declines(&$back_end);
            }

            #[test]
            fn pools_do_not_mix() {
                conformance::pools_do_not_mix(&$back_end);
            }

            #[test]
            fn threads_take_turns() {
                conformance::threads_take_turns(&$back_end);
            }

            #[test]
            fn lookups_are_answered() {
                conformance::lookups_are_answered(&$back_end);
            }

            #[test]
            fn lookups_name_only_durable_rows() {
                conformance::lookups_name_only_durable_rows(&$back_end, 0..$seeds / 10);
            }

            #[test]
            fn no_row_is_named_whose_sync_failed() {
                conformance::no_row_is_named_whose_sync_failed(&$back_end);
            }

            #[test]
            fn batches_go_on_beside_a_lookup() {
                conformance::batches_go_on_beside_a_lookup(&$back_end);
            }

            #[test]
            fn what_may_not_wait_does_not_read() {
                conformance::what_may_not_wait_does_not_read(&$back_end);
            }

            #[test]
            fn a_lookup_that_fails_ends_all_use() {
                conformance::a_lookup_that_fails_ends_all_use(&$back_end);
            }

            #[test]
            fn a_rebuild_refuses_lookups() {
                conformance::a_rebuild_refuses_lookups(&$back_end);
            }

            #[test]
            fn survives_every_crash() {
                conformance::survives_every_crash(&$back_end);
            }

            #[test]
            fn survives_many_crashes() {
                conformance::survives_many_crashes(&$back_end, 0..$seeds);
            }

            #[test]
            fn a_rebuild_replaces_everything() {
                conformance::a_rebuild_replaces_everything(&$back_end);
            }

            #[test]
            fn a_rebuild_survives_every_crash() {
                conformance::a_rebuild_survives_every_crash(&$back_end);
            }

            #[test]
            fn a_rebuild_survives_failed_syncs() {
                conformance::a_rebuild_survives_failed_syncs(&$back_end);
            }

            #[test]
            fn what_is_no_index_is_rebuilt() {
                conformance::what_is_no_index_is_rebuilt(&$back_end);
            }

            #[test]
            fn what_is_replaced_is_rebuilt() {
                conformance::what_is_replaced_is_rebuilt(&$back_end);
            }

            #[test]
            fn a_failed_disk_makes_errors() {
                conformance::a_failed_disk_makes_errors(&$back_end);
            }

            #[test]
            fn a_full_disk_is_told_apart() {
                conformance::a_full_disk_is_told_apart(&$back_end);
            }
        }
    };
}

conforms!(memory_index, Memory, 50);
conforms!(btree_index, BTREE, 50);
conforms!(btree_index_without_cache, BTREE_WITHOUT_CACHE, 20);
conforms!(hash_index, HASH(), 50);
conforms!(small_hash_index, Hash(1 << 20, SMALL), 200);
conforms!(hash_index_without_memory, Hash(0, SMALL), 50);
