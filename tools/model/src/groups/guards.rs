//! The rules between groups, each with a switch.

use crate::guards::guards;

guards! {
    ReadersDrainedBeforeRelease, "readers-drained-before-release", "P3",
        "collector: a release is called only once the reads pinned when it was announced have ended";
    RecallBeforeRepeat, "recall-before-repeat", "P4",
        "batch: an owner that did not call a batch asks every shard for its answers before it calls it";
    BlocksReadBeforeRecall, "blocks-read-before-recall", "P4",
        "batch: that owner reads the blocks before it asks, not after";
    NumberKeptByShard, "number-kept-by-shard", "P4",
        "shard: keeps the number of the last batch of each stream, and executes only batches above it";
    PositionsKept, "positions-kept", "P4",
        "shard: keeps the positions of a batch's items with the answers";
    HeldBeforeAnswered, "held-before-answered", "P3",
        "lookup: the shard notes the hold before it answers that a block is present";
    HeldNotFreed, "held-not-freed", "P3",
        "release: the last reference of a held row is not taken";
    HitOfThisVersion, "hit-of-this-version", "P3",
        "hit: recorded only if the version of its lookup is still the present one";
    HoldsEndAfterCount, "holds-end-after-count", "P3",
        "holds: end once all claims of their versions are counted";
    HoldersListed, "holders-listed", "P3",
        "lookup: the shard lists the group as a holder, durably, before its first hold";
    OwingFreesNothing, "owing-frees-nothing", "P3",
        "release: takes no last reference while a group may have holds from before the shard's session";
    EndOfThisSession, "end-of-this-session", "P3",
        "holds: an end from before the shard's session does not end what the group owes";
    SessionRaisesVersion, "session-raises-version", "P3",
        "lookup: a group that meets a new session of a shard raises its lookup version first";
    ClaimsEndAtRebuild, "claims-end-at-rebuild", "P4, P6",
        "rebuild: a group's claims on rows of the shard end before it counts their entries";
    PausedInRebuild, "paused-in-rebuild", "P3, P4",
        "rebuild: a group announces no batch from its report until the rebuild ends";
    PublishedIfNamed, "published-if-named", "P3, P6",
        "rebuild: a finder's open item is published if anything else names its block, and private again if not";
    KeptIsReleased, "kept-is-released", "P6",
        "rebuild: a collector's open item has been executed if a group keeps its block";
    OneReleaseFrees, "one-release-frees", "P6",
        "rebuild: of the open items that release a block that nothing names, one frees it";
    LookupsEndAtRebuild, "lookups-end-at-rebuild", "P3",
        "rebuild: a group's lookups are void once it reports";
    AnswersEndAtRebuild, "answers-end-at-rebuild", "P3, P6",
        "rebuild: answers that a group has not settled are void once it reports";
    AllStreamsInRebuild, "all-streams-in-rebuild", "P4",
        "rebuild: takes up the stream of every group, not only those that call later";
}
