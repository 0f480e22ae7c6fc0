//! Each guard of the protocol is necessary: without it the simulation finds a loss.
//!
//! For every guard there is a script that leads to where the guard matters. With the guard it must
//! always end well, without it some seed must find a violation.

mod log;
mod lost_writes;
mod sharing;
mod sizes;
mod writes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onefold_store::{CreateOptions, Guard, Scarcity};

use crate::common::{MEMORY, MIB, pool_of};
use crate::crash::Recovery;
use crate::inline;
use crate::model::Violation;
use crate::scrub_guards;
use crate::takeover;
use crate::world::{Step, Stop, World, violation};

pub(crate) use lost_writes::with_new_blocks;
pub(crate) use sharing::shared_pool;

/// Seeds tried for each guard, with it and without it.
const SEEDS: u64 = 60;

fn pool(seed: u64, size_bytes: u64, log_bytes: u64) -> Result<Arc<World>, Stop> {
    opened(seed, size_bytes, log_bytes, |_| {})
}

/// A pool past the host's cache.
pub(crate) fn direct_pool(seed: u64) -> Result<Arc<World>, Stop> {
    opened(seed, 4 * MIB, 256 << 10, World::go_direct)
}

fn opened(
    seed: u64,
    size_bytes: u64,
    log_bytes: u64,
    set: impl FnOnce(&World),
) -> Result<Arc<World>, Stop> {
    let options = CreateOptions {
        log_bytes,
        ..pool_of(size_bytes)
    };
    let world = World::new(seed, &options);
    set(&world);
    world.state().trace = std::env::var_os("ONEFOLD_SIM_TRACE").is_some();
    let opened = world.open(MEMORY);
    opened.map_err(|error| violation(error.to_string()))?;
    Ok(world)
}

pub(crate) fn small_pool(seed: u64) -> Result<Arc<World>, Stop> {
    pool(seed, 4 * MIB, 256 << 10)
}

/// Continues where a script ordered a crash.
pub(crate) fn crash_is_fine(step: Step) -> Step {
    match step {
        Err(Stop::Crashed) => Ok(()),
        other => other,
    }
}

pub(crate) fn power_loss(world: &World) -> Step {
    world.found()?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.check()
}

/// The script in which a guard matters; none where only real threads meet it (`schedules.rs`).
fn script(guard: Guard) -> Option<fn(u64) -> Step> {
    let script: fn(u64) -> Step = match guard {
        Guard::PublishedLocked | Guard::ReplacedWhenUnused => return None,
        // Rules between groups: see `tests/groups`.
        Guard::ReadersDrainedBeforeRelease
        | Guard::RecallBeforeRepeat
        | Guard::NumberKeptByShard
        | Guard::HeldBeforeAnswered
        | Guard::HeldNotFreed
        | Guard::HoldersListed
        | Guard::OwingFreesNothing
        | Guard::HoldsEndAfterCount
        | Guard::ExtentNumberRecorded
        | Guard::ExchangeDurableBeforeNext
        | Guard::BadBlocksMarked => return None,
        Guard::LookupValidated => writes::layer_emptied_while_read,
        Guard::TailCopied | Guard::TailMatchedToLog => lost_writes::answered_then_killed,
        Guard::SyncsCounted => lost_writes::killed_in_a_sync_that_fails,
        Guard::NewBlocksCompared => lost_writes::failed_sync_then_killed,
        Guard::RewritesMarked => lost_writes::killed_in_a_sync_after_rewrites,
        Guard::LostListedFirst => lost_writes::failed_sync_then_killed_twice,
        Guard::LossTold => lost_writes::failed_sync_of_rewrites,
        Guard::HostAskedForLosses => lost_writes::killed_after_the_host_lost_data,
        Guard::TailOfThisBoot => lost_writes::left_behind_then_power_loss,
        Guard::PanicStopsWrites => log::panic_in_commit,
        Guard::PoolSyncedBeforeLog | Guard::LogSyncedBeforeReply | Guard::FlushJoinsLaterCommit => {
            log::flushed
        }
        Guard::ReuseAfterCommit => writes::reused_before_commit,
        Guard::ReuseAfterReaders => writes::reused_while_read,
        Guard::BlocksLocked => writes::two_writers_of_a_block,
        Guard::EndLookedAtLocked => sizes::cut_while_written,
        Guard::LastBlockCut => sizes::cut_in_a_block,
        Guard::DataBeforeRecord => writes::committed_before_written,
        Guard::PagesSyncedBeforeRoot | Guard::RootSyncedBeforeReuse => log::checkpoints_cut_short,
        Guard::DataGrownBeforeRoot => sizes::grown_before_root,
        Guard::CutWhenEmpty => sizes::cut_when_empty,
        Guard::CutAfterRecovery => sizes::shrinking_begun_then_crash,
        Guard::LogPrunedAfterRoot => log::log_wanted_during_checkpoint,
        Guard::CheckpointIsSharp => log::committed_during_checkpoint,
        Guard::RecoverySyncsFirst => log::killed_then_power_loss,
        Guard::GapIsDamage => log::frame_decays,
        Guard::SessionsKeptApart => log::torn_twice,
        Guard::FailedSyncStopsWrites => lost_writes::sync_fails,
        Guard::DoubtedNotRead => lost_writes::neighbours_read_after_failed_sync,
        Guard::ImportsFinishedOrRemoved => writes::import_interrupted,
        Guard::DiscardBeforeReuse => writes::reused_while_discarded,
        Guard::ZerosBeforeReuse => writes::used_while_preallocated,
        Guard::CandidatesDropped => sharing::written_while_read,
        Guard::SharedNotInPlace => sharing::shared_is_rewritten,
        Guard::IntentBeforeCall => sharing::index_hears_first,
        Guard::AliasOnlyIfUnmoved | Guard::DanglingGivesBack => sharing::rewritten_while_published,
        Guard::VerifyBytes => sharing::fingerprints_collide,
        Guard::FreeOnlyAtZero => sharing::one_reference_of_two,
        Guard::SettledBeforeConversion => sharing::converted_after_batch,
        Guard::FrozenNotInPlace => writes::written_after_snapshot,
        Guard::FrozenTogether => log::frozen_across_frames,
        Guard::SettledBeforeMerge => sharing::merged_while_published,
        Guard::SuspectsConfirmed => |seed| Ok(scrub_guards::freed_while_scrubbed(seed)?),
        Guard::BadNotShared => |seed| Ok(scrub_guards::met_again(seed)?),
        Guard::HealedBeforeUnlisted => |seed| Ok(scrub_guards::healed_then_power_loss(seed)?),
        Guard::ListedNotReused => |seed| Ok(scrub_guards::wanted_while_forgotten(seed)?),
        Guard::ReserveForOverwrites => crate::full::overwritten_when_full,
        Guard::UnclosedDataReadAfresh => crate::closing::shared_after_failed_sync,
        Guard::QuotaLookedAtLocked => crate::space_limits::quota_wanted_twice,
        Guard::ReservedKeptFromOthers => crate::space_limits::reserved_then_wanted,
        Guard::RepeatTakesFirstAnswers => crate::open_batches::counted_then_repeated,
        Guard::ClaimWithEntry => |seed| Ok(inline::hit_then_power_loss(seed)?),
        Guard::ClaimsBeforeRelease => |seed| Ok(inline::released_while_claimed(seed)?),
        Guard::HitNotCollected => |seed| Ok(inline::hit_while_collected(seed)?),
        Guard::HitSettled => |seed| Ok(inline::hit_while_published(seed)?),
        Guard::HitStillValid => |seed| Ok(inline::freed_before_hit(seed)?),
        Guard::SameStillValid => |seed| Ok(inline::freed_before_same(seed)?),
        Guard::CountIntentDurable => |seed| Ok(inline::counted_before_durable(seed)?),
        Guard::RebuildLessClaims => |seed| Ok(inline::rebuilt_while_claimed(seed)?),
        Guard::RebuildCountsHits => |seed| Ok(inline::hit_on_announced_entry(seed)?),
        Guard::HitOfThisIndex => |seed| Ok(inline::hit_across_rebuild(seed)?),
        Guard::CountKnownRow => |seed| Ok(inline::row_lost_while_claimed(seed)?),
        Guard::HitNotBad => |seed| Ok(inline::bad_block_written_again(seed)?),
        Guard::FencedBeforeTaken => takeover::died_in_a_write,
        Guard::LockedInEveryOwnersWrite => takeover::died_unfenced_in_a_commit,
        Guard::LostIsNotZeros => takeover::an_object_is_lost,
    };
    Some(script)
}

/// Runs a script with or without its guard.
fn attempt(guard: Guard, script: fn(u64) -> Step, off: bool, seed: u64) -> Result<(), String> {
    Guard::turn_off(off.then_some(guard));
    let ended = catch_unwind(AssertUnwindSafe(|| script(seed)));
    Guard::turn_off(None);
    Scarcity::default().set();
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Stop::Violation(Violation(message)))) => Err(message),
        Ok(Err(Stop::Crashed)) => Err("a crash that nobody ordered".to_owned()),
        Err(_) => Err("a panic".to_owned()),
    }
}

#[test]
fn every_guard_is_worth_something() {
    let mut useless = Vec::new();
    let only = std::env::var("ONEFOLD_SIM_GUARD").ok();
    for guard in Guard::ALL {
        if only
            .as_ref()
            .is_some_and(|only| *only != format!("{guard:?}"))
        {
            continue;
        }
        let Some(script) = script(guard) else {
            continue;
        };
        for seed in 1..=SEEDS {
            if let Err(message) = attempt(guard, script, false, seed) {
                panic!("{guard:?} holds, and yet, with seed {seed}: {message}");
            }
        }
        let found = (1..=SEEDS).find_map(|seed| {
            let message = attempt(guard, script, true, seed).err()?;
            Some((seed, message))
        });
        match found {
            Some((seed, message)) => println!("{guard:?}: seed {seed}: {message}"),
            None => useless.push(guard),
        }
    }
    assert_eq!(
        useless,
        [],
        "nothing was lost without them in {SEEDS} seeds"
    );
}
