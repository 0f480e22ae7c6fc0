//! The guards of the protocol, each of which closes a sequence of events that loses data.
//!
//! In ordinary builds every guard holds, and the checks compile to nothing. In builds with the
//! `simulation` feature one guard can be turned off, and the simulation must then find the loss:
//! this shows that both guard and simulation work.

#[cfg(feature = "simulation")]
use onefold_index::holds::HoldRule;

/// A rule of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Guard {
    /// P2: the pool is synced before a record that refers to new blocks goes to the log.
    PoolSyncedBeforeLog,
    /// P5: the log is synced before a flush is answered.
    LogSyncedBeforeReply,
    /// P5: a flush joins only a commit that was sealed after it arrived.
    FlushJoinsLaterCommit,
    /// P3: a released block is reused only after the releasing record is durable.
    ReuseAfterCommit,
    /// P3: and only after every read that may have looked it up has ended.
    ReuseAfterReaders,
    /// Blocks are locked from before they are looked up until the map has changed.
    BlocksLocked,
    /// The volume's end is checked once more after its blocks are locked.
    EndLookedAtLocked,
    /// Shrinking a volume zeroes the rest of its last block.
    LastBlockCut,
    /// P2: the record is appended only after the data was written.
    DataBeforeRecord,
    /// P2: pages are durable before the root that refers to them is written.
    PagesSyncedBeforeRoot,
    /// The root is durable before the pages it replaces are released.
    RootSyncedBeforeReuse,
    /// The data part has the new length before a root has the pool's new size.
    DataGrownBeforeRoot,
    /// A pool is cut only if nothing is mapped or in flight beyond its new end.
    CutWhenEmpty,
    /// The log is pruned only up to where the durable root starts its replay.
    LogPrunedAfterRoot,
    /// A checkpoint holds exactly the state after the records before its log position.
    CheckpointIsSharp,
    /// Recovery makes the data that it reads durable before it continues.
    RecoverySyncsFirst,
    /// P8: a bad frame before a frame of a later commit is damage, not the end of the log.
    GapIsDamage,
    /// Frames that a crash tore in an earlier session are never read as frames of the present
    /// session.
    SessionsKeptApart,
    /// P8: after a failed sync nothing is written until the pool is opened again.
    FailedSyncStopsWrites,
    /// P1: after a failed sync of the data no block is read that may show its last owner's content.
    DoubtedNotRead,
    /// A volume whose import was interrupted is removed.
    ImportsFinishedOrRemoved,
    /// Blocks are discarded before they can be handed out again.
    DiscardBeforeReuse,
    /// Zeros are written to free blocks before they can be handed out again.
    ZerosBeforeReuse,
    /// P1: the finder publishes a block that it has read before only if it was not written since.
    CandidatesDropped,
    /// P1: a shared block is never written in place.
    SharedNotInPlace,
    /// P2, P4: the announcement of a batch is durable before the index gets it.
    IntentBeforeCall,
    /// P5: an entry is aliased only if it still refers to the block that was published.
    AliasOnlyIfUnmoved,
    /// P4: a reference that no entry takes is released again.
    DanglingGivesBack,
    /// P8: with `verify`, an entry is aliased only if the bytes are equal.
    VerifyBytes,
    /// P3: in a shared pool references are released only once the reads have ended that began before that was announced.
    ReadersDrainedBeforeRelease,
    /// P4: a batch that a group may have called before is recalled from all shards.
    RecallBeforeRepeat,
    /// P4: a shard keeps the number of each group's last batch, and executes no batch before it.
    NumberKeptByShard,
    /// P3: a shard holds a row before it answers the lookup that found it.
    HeldBeforeAnswered,
    /// P3: a row that is held does not lose its last reference.
    HeldNotFreed,
    /// P3: a group is listed, durably, before its first hold in a shard.
    HoldersListed,
    /// P3: the new owner of a shard removes no row before the groups that were listed have ended their holds.
    OwingFreesNothing,
    /// P3: a group ends its holds once the claims that came of them are counted.
    HoldsEndAfterCount,
    /// P4: an exchange of space extents is recorded with its number, and once.
    ExtentNumberRecorded,
    /// P4: the record of an exchange is durable before the next exchange.
    ExchangeDurableBeforeNext,
    /// P3: a block is freed only once the index has released its last reference.
    FreeOnlyAtZero,
    /// P4: the outcomes of the last batch are durable before an index that cannot repeat its
    /// answers replaces the one that gave them.
    SettledBeforeConversion,
    /// P1: a block that a frozen layer owns is never written in place.
    FrozenNotInPlace,
    /// Volumes are frozen at one moment, or none of them is: their records are in one frame.
    FrozenTogether,
    /// P4: no batch is open about entries that move to another layer.
    SettledBeforeMerge,
    /// P8: a block is called bad only if the index still has it, and its content still differs.
    SuspectsConfirmed,
    /// P8: no entry is aliased to a block that is known to be bad.
    BadNotShared,
    /// P8: the groups of a pool let each other know of bad blocks.
    BadBlocksMarked,
    /// P8: a block is good again only once its new content is durable and was read back.
    HealedBeforeUnlisted,
    /// P8: a known bad block is handed out only once its removal from the list is durable.
    ListedNotReused,
    /// New data leaves a reserve for overwriting data.
    ReserveForOverwrites,
    /// A shrinking pool is cut only once an opening has applied all records: later ones may refer
    /// to blocks beyond the new end.
    CutAfterRecovery,
    /// P1: the blocks that the finder publishes are locked.
    PublishedLocked,
    /// A lookup counts only if its layer was still the volume's when it ended.
    LookupValidated,
    /// P3: an index is replaced only once no lookup in it is in progress.
    ReplacedWhenUnused,
    /// P12: records are copied to memory that outlives the process before a request is answered.
    TailCopied,
    /// P8: syncs of the data are counted in memory that outlives the process, so that the next
    /// process notices a sync that failed or never returned.
    SyncsCounted,
    /// P8: after such a sync the new blocks of records that the log lacks are compared with the disk.
    NewBlocksCompared,
    /// P12: a new block is marked before it is rewritten in place, so that it is not compared.
    RewritesMarked,
    /// P8: a lost block is durably listed before a record that refers to it is.
    LostListedFirst,
    /// P8: a volume that lost answered writes fails its flushes.
    LossTold,
    /// P8: after a session that was not closed the host is asked for writes that it has lost.
    HostAskedForLosses,
    /// P12: records that the log has already are not taken over from the copy.
    TailMatchedToLog,
    /// P12: a copy that was made in another boot of the host is void.
    TailOfThisBoot,
    /// P8: after a panic in the middle of a commit or checkpoint nothing is written.
    PanicStopsWrites,
    /// P8: after a session that was not closed, data is read from the medium: a failed sync may
    /// have left data in the host's cache that the medium never got.
    UnclosedDataReadAfresh,
    /// A quota is checked once more under the lock that keeps others from using it up before the
    /// map changes.
    QuotaLookedAtLocked,
    /// Free blocks are kept for the reservations of other volumes.
    ReservedKeptFromOthers,
    /// P4: a batch that is repeated under its number counts nothing again, and gets the answers that
    /// were given first.
    RepeatTakesFirstAnswers,
    /// P3: the claim is part of the record that makes the entry.
    ClaimWithEntry,
    /// P3: a release is announced only while there is no claim.
    ClaimsBeforeRelease,
    /// P3: no hit on a block of the collector's open batch.
    HitNotCollected,
    /// P3: no hit on a block of the finder's open batch.
    HitSettled,
    /// P1: nothing was freed between the lookup and the record of the hit.
    HitStillValid,
    /// P5: nothing was freed between the lookup and the moment in which a write is taken for no
    /// change.
    SameStillValid,
    /// P4: the announcement, and with it the entries, are durable before the index counts claims.
    CountIntentDurable,
    /// P4: an index that is counted again leaves out claims.
    RebuildLessClaims,
    /// P4: an index that is counted again counts the hit of an entry that an open batch announced.
    RebuildCountsHits,
    /// P8: no hit on a block that is known to be bad.
    HitNotBad,
    /// P3: the index was not being counted again between the lookup and the record of the hit.
    HitOfThisIndex,
    /// P3: a claim is counted only in a row that exists: a new one would count too few references.
    CountKnownRow,
    /// P7: a pool is taken over only once the cluster accepts no more writes from its previous owner. The engine
    /// keeps this rule and the next; the simulated engine has a switch for each.
    FencedBeforeTaken,
    /// P7: every write of the log and the roots asserts the pool's owner in the cluster.
    LockedInEveryOwnersWrite,
    /// P8: in a cluster, a block that reads as zeros was lost, because zeros are not stored.
    LostIsNotZeros,
}

impl Guard {
    /// Every guard.
    pub const ALL: [Self; 83] = [
        Self::PoolSyncedBeforeLog,
        Self::LogSyncedBeforeReply,
        Self::FlushJoinsLaterCommit,
        Self::ReuseAfterCommit,
        Self::ReuseAfterReaders,
        Self::BlocksLocked,
        Self::EndLookedAtLocked,
        Self::LastBlockCut,
        Self::DataBeforeRecord,
        Self::PagesSyncedBeforeRoot,
        Self::RootSyncedBeforeReuse,
        Self::DataGrownBeforeRoot,
        Self::CutWhenEmpty,
        Self::LogPrunedAfterRoot,
        Self::CheckpointIsSharp,
        Self::RecoverySyncsFirst,
        Self::GapIsDamage,
        Self::SessionsKeptApart,
        Self::FailedSyncStopsWrites,
        Self::DoubtedNotRead,
        Self::ImportsFinishedOrRemoved,
        Self::DiscardBeforeReuse,
        Self::ZerosBeforeReuse,
        Self::CandidatesDropped,
        Self::SharedNotInPlace,
        Self::IntentBeforeCall,
        Self::AliasOnlyIfUnmoved,
        Self::DanglingGivesBack,
        Self::VerifyBytes,
        Self::ReadersDrainedBeforeRelease,
        Self::RecallBeforeRepeat,
        Self::NumberKeptByShard,
        Self::HeldBeforeAnswered,
        Self::HeldNotFreed,
        Self::HoldersListed,
        Self::OwingFreesNothing,
        Self::HoldsEndAfterCount,
        Self::ExtentNumberRecorded,
        Self::ExchangeDurableBeforeNext,
        Self::FreeOnlyAtZero,
        Self::SettledBeforeConversion,
        Self::FrozenNotInPlace,
        Self::FrozenTogether,
        Self::SettledBeforeMerge,
        Self::SuspectsConfirmed,
        Self::BadNotShared,
        Self::BadBlocksMarked,
        Self::HealedBeforeUnlisted,
        Self::ListedNotReused,
        Self::ReserveForOverwrites,
        Self::CutAfterRecovery,
        Self::PublishedLocked,
        Self::LookupValidated,
        Self::ReplacedWhenUnused,
        Self::TailCopied,
        Self::SyncsCounted,
        Self::NewBlocksCompared,
        Self::RewritesMarked,
        Self::LostListedFirst,
        Self::LossTold,
        Self::HostAskedForLosses,
        Self::TailMatchedToLog,
        Self::TailOfThisBoot,
        Self::PanicStopsWrites,
        Self::UnclosedDataReadAfresh,
        Self::QuotaLookedAtLocked,
        Self::ReservedKeptFromOthers,
        Self::RepeatTakesFirstAnswers,
        Self::ClaimWithEntry,
        Self::ClaimsBeforeRelease,
        Self::HitNotCollected,
        Self::HitSettled,
        Self::HitStillValid,
        Self::SameStillValid,
        Self::CountIntentDurable,
        Self::RebuildLessClaims,
        Self::RebuildCountsHits,
        Self::HitNotBad,
        Self::HitOfThisIndex,
        Self::CountKnownRow,
        Self::FencedBeforeTaken,
        Self::LockedInEveryOwnersWrite,
        Self::LostIsNotZeros,
    ];

    /// Whether the rule is kept: always, outside simulations.
    #[cfg(not(feature = "simulation"))]
    #[inline(always)]
    pub fn holds(self) -> bool {
        true
    }

    /// Whether the rule is kept on this thread.
    #[cfg(feature = "simulation")]
    pub fn holds(self) -> bool {
        OFF.get() != Some(self)
    }

    /// The rule of the index that it is.
    #[cfg(feature = "simulation")]
    fn hold_rule(self) -> Option<HoldRule> {
        Some(match self {
            Self::HeldBeforeAnswered => HoldRule::HeldBeforeAnswered,
            Self::HeldNotFreed => HoldRule::HeldNotFreed,
            Self::HoldersListed => HoldRule::HoldersListed,
            Self::OwingFreesNothing => HoldRule::OwingFreesNothing,
            _ => return None,
        })
    }

    /// Turns off one guard, or none, on this thread from now on.
    #[cfg(feature = "simulation")]
    pub fn turn_off(guard: Option<Self>) {
        OFF.set(guard);
        onefold_index::forget_answers(guard == Some(Self::RepeatTakesFirstAnswers));
        onefold_index::hash::forget_shard_numbers(guard == Some(Self::NumberKeptByShard));
        onefold_index::holds::break_hold_rule(guard.and_then(Self::hold_rule));
    }
}

/// Resources that simulations make scarce on this thread, so that rare cases happen in small pools.
/// By default nothing is scarce.
#[cfg(feature = "simulation")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scarcity {
    /// The bits of a fingerprint that count, so that contents collide.
    pub fingerprint_bits: Option<u32>,
    /// The bytes that the index may take, so that it declines blocks.
    pub index_bytes: Option<usize>,
}

#[cfg(feature = "simulation")]
impl Scarcity {
    /// Sets the limits of this thread.
    pub fn set(self) {
        SCARCITY.set(self);
    }

    /// The present limits of this thread.
    #[must_use]
    pub fn now() -> Self {
        SCARCITY.get()
    }
}

#[cfg(feature = "simulation")]
thread_local! {
    static OFF: std::cell::Cell<Option<Guard>> = const { std::cell::Cell::new(None) };
    static SCARCITY: std::cell::Cell<Scarcity> = const {
        std::cell::Cell::new(Scarcity {
            fingerprint_bits: None,
            index_bytes: None,
        })
    };
}
