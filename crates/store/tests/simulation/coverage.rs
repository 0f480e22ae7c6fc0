//! The events of the runs: a simulation in which the interesting ones never happen proves nothing.

macro_rules! coverage {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of events.
        #[derive(Debug, Clone, Default)]
        pub(crate) struct Coverage {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl Coverage {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Each count with its name.
            pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

coverage! {
    requests,
    /// Openings after a crash that succeeded and were verified.
    recoveries,
    power_losses,
    kills,
    /// Openings that were cut short by another crash.
    crashes_in_recovery,
    clean_reopenings,
    openings_that_replayed,
    /// Openings that took over records that a killed process had not made durable.
    tails_taken_over,
    /// Openings that compared new blocks because a sync had been in progress, and found them all.
    syncs_doubted,
    /// Openings that found a failed sync.
    losses_found,
    /// Volumes whose flush failed because of one.
    losses_told,
    lost_blocks,
    /// Openings that wrote a checkpoint before the log was replayed.
    checkpoints_in_recovery,
    /// Runs whose log went round its ring.
    log_wraps,
    meta_writes,
    /// Pools of the format's first minor version that got a later one.
    versions_raised,
    /// Volumes that became smaller and ended inside a block.
    cut_in_a_block,
    imports_removed,
    /// Code that ran in the middle of an I/O.
    hooks_run,
    /// Writes during which other requests ran, and no thread waited.
    writes_prepared,
    /// Commits and checkpoints that a panic ended.
    panics,
    would_block,
    no_space,
    quota_reached,
    failed_requests,
    read_only,
    /// Blocks that the finder published as the first of their content.
    inserted,
    aliased,
    dangling,
    rejected,
    declined,
    /// Blocks that were not written because a published block had their content.
    hits,
    /// Blocks that were found and written all the same.
    hits_refused,
    claims_counted,
    /// References that the collector released.
    released,
    freed,
    remaining,
    /// Crashes while a batch that was announced durably was not settled.
    crashes_in_finder,
    crashes_in_collector,
    crashes_in_counting,
    crashes_in_rebuild,
    /// Roots, found by an opening, of checkpoints in the middle of a batch.
    roots_with_open_batch,
    snapshots,
    snapshots_deleted,
    /// Deletions of snapshots that a crash had cut short.
    deletions_resumed,
    clones,
    rolled_back,
    /// Times that a deleted layer stayed because several others need it.
    deletions_deferred,
    /// Pairs of volumes and snapshots of which the changes were compared with the contents.
    compared,
    /// Times that the pool became larger.
    pool_grown,
    pool_shrunk,
    /// Entries whose blocks a shrinking pool had to move.
    blocks_evacuated,
    /// Blocks that volumes got of their own again.
    blocks_unshared,
    /// Shrinkings that a crash had cut short.
    shrinks_cut_short,
    shrinks_cancelled,
    rebuilds,
    /// Conversions of the index that a crash had cut short.
    conversions_resumed,
    /// Requests refused because the index had to be counted again.
    index_busy,
    /// Times that the counts were compared with the contents, nothing being left to do.
    settled,
    /// Objects of a cluster with a dead owner's operations still in flight when the next owner began.
    objects_with_late,
    /// Such operations that took effect.
    landed_late,
}
