//! The space extents of a group of a shared pool: it takes some when its free blocks run out, and gives to the pool the
//! blocks that it has no use for.
//!
//! 1. blocks that are to be given go into flight, so that no request gets them
//! 2. the exchange takes place in the cluster, which keeps its outcome (P4)
//! 3. a record changes the free-space map
//!
//! A crash between 2 and 3 leaves an outcome without a record. So an opening asks for the group's last exchange, and makes
//! up for the record before any block is handed out. An error of 2 leaves an unknown outcome; the next exchange asks for
//! it first. The cluster keeps the outcome of one exchange, so its record is durable before the next exchange.

use std::error::Error;
use std::io;
use std::sync::Arc;

use super::Pause;
use onefold_engine::Cluster;
use onefold_engine::cluster::Exchanged;
use onefold_format::record::EXCHANGE_ITEMS_MAX;
use onefold_format::units::BLOCKS_PER_SPACE_EXTENT;
use onefold_format::{GivenRun, GroupId, Record};
use onefold_journal::{Journal, SharedSpace};
use onefold_metadata::sync::{Mutex, MutexGuard, lock};
use onefold_metadata::{Blocking, Guard, PbaRun, Result, StoreError, StoreErrorKind};

/// A group with fewer free blocks takes a space extent.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// The most runs that one exchange gives: its record has room for each space extent that they complete.
const GIVEN_MAX: usize = EXCHANGE_ITEMS_MAX / 2;

/// The most space extents that one exchange takes.
const TAKEN_MAX: u32 = 16;

/// The group's right to the pool's space.
pub(crate) struct Leases {
    journal: Arc<Journal>,
    cluster: Arc<dyn Cluster>,
    group: GroupId,
    pause: Pause,
    /// Held during an exchange.
    turn: Mutex<Turn>,
}

struct Turn {
    /// Blocks of an exchange whose outcome is unknown.
    pending: Option<Vec<GivenRun>>,
    /// Space extents that the next exchange takes. They double, so that a group that is filled has few exchanges.
    take: u32,
    /// The group's last exchange in the cluster. One that exchanged nothing has no record.
    last: u64,
    /// The record of the last exchange may not be durable.
    is_fresh: bool,
}

/// No exchange is in progress, and the outcomes of all are known, as long as this exists.
#[must_use]
pub(crate) struct Settled<'a> {
    _turn: MutexGuard<'a, Turn>,
}

impl Leases {
    /// The leases of a group. When its free blocks run out, the journal takes more from here.
    pub(crate) fn new(
        journal: Arc<Journal>,
        cluster: Arc<dyn Cluster>,
        group: GroupId,
    ) -> Arc<Self> {
        let leases = Arc::new(Self {
            journal,
            cluster,
            group,
            pause: Pause::default(),
            turn: Mutex::new(Turn {
                pending: None,
                take: 1,
                last: 0,
                is_fresh: false,
            }),
        });
        if let Some(space) = leases.space() {
            let weak = Arc::downgrade(&leases);
            space.set_more(Box::new(move |blocks| {
                weak.upgrade()
                    .map_or(Ok(false), |leases| leases.take_for(blocks))
            }));
        }
        leases
    }

    /// The pause of the group's jobs. No block is given to the pool as long as it lasts.
    pub(crate) fn pause(&self) -> &Pause {
        &self.pause
    }

    fn space(&self) -> Option<&SharedSpace> {
        self.journal.free_space().shared()
    }

    /// Makes up for the record of an exchange whose outcome no record has. For openings, before any block is handed out.
    pub(crate) fn settle(&self) -> Result<()> {
        let mut turn = lock(&self.turn);
        self.learn_outcome(&mut turn)?;
        self.look_again();
        Ok(())
    }

    /// Takes space extents if the group has few free blocks, and gives blocks to the pool if it has many. Returns whether
    /// it did either. Writes that find no free block wait for it, and no others.
    ///
    /// A group without volumes gives all of them, also single blocks of space extents that others have parts of: nobody
    /// else could use them.
    pub(crate) fn balance(&self) -> Result<bool> {
        match self.balance_now() {
            // The engine logs what it waits for.
            Err(error) if is_late(&error) => Ok(false),
            balanced => balanced,
        }
    }

    fn balance_now(&self) -> Result<bool> {
        self.journal.check_writable()?;
        if self.journal.maps().layers().is_empty() {
            return self.give_blocks(0);
        }
        let metadata = self.journal.metadata()?;
        let (free, extents) = (
            metadata.space().free_blocks(),
            metadata.space().whole_extents(),
        );
        drop(metadata);
        let least = self.journal.maps().unused_reservations() + FREE_BYTES_MIN / self.block_size();
        if free < least {
            return self.take_extents(least - free).map(|taken| taken > 0);
        }
        // A group that is being filled keeps what it has taken ahead; one that rests gives it back, step by step.
        let ahead = {
            let mut turn = lock(&self.turn);
            let fewer = turn.take.div_ceil(2);
            std::mem::replace(&mut turn.take, fewer)
        };
        let most = least + 2 * u64::from(ahead) * BLOCKS_PER_SPACE_EXTENT;
        if extents > 0 && free > most {
            return self.give_blocks(most);
        }
        self.look_again();
        Ok(false)
    }

    /// Gives all free blocks to the pool.
    pub(crate) fn give_all(&self) -> Result<()> {
        while self.give_blocks(0)? {}
        Ok(())
    }

    /// Takes space extents until this many blocks more can be kept free for a volume, unless the pool has too few.
    pub(crate) fn take_to_keep(&self, blocks: u64) -> Result<()> {
        loop {
            let metadata = self.journal.metadata()?;
            let free = metadata.space().free_blocks();
            let (_, available) = self.journal.free_space().counts(&metadata);
            drop(metadata);
            let kept = self
                .journal
                .maps()
                .unused_reservations()
                .saturating_add(blocks);
            if free >= kept || available < kept || self.take_extents(kept - free)? == 0 {
                return Ok(());
            }
        }
    }

    /// Takes space extents for `blocks` blocks, or as many as there are. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// `Busy` if the cluster has not answered in time: then the request waits, and no thread for it.
    fn take_for(&self, blocks: u64) -> Result<bool> {
        match self.take_extents(blocks) {
            Err(error) if is_late(&error) => {
                let group = self.group;
                let message =
                    format!("group {group} has no free blocks, and gets none yet: {error}");
                Err(StoreError::new(StoreErrorKind::Busy, message))
            }
            taken => taken.map(|taken| taken > 0),
        }
    }

    fn take_extents(&self, blocks: u64) -> Result<usize> {
        let mut turn = lock(&self.turn);
        let needed = blocks.div_ceil(BLOCKS_PER_SPACE_EXTENT);
        let take = u32::try_from(needed).unwrap_or(u32::MAX);
        let take = take.max(turn.take).min(EXCHANGE_ITEMS_MAX as u32);
        let exchanged = self.exchange(&mut turn, Vec::new(), take)?;
        turn.take = (turn.take * 2).min(TAKEN_MAX);
        self.look_again();
        Ok(exchanged.taken.len())
    }

    /// Gives blocks to the pool, at least `kept` fewer than are free. Returns whether there were any.
    fn give_blocks(&self, kept: u64) -> Result<bool> {
        let mut turn = lock(&self.turn);
        if self.pause.is_on() {
            return Ok(false);
        }
        let free_space = self.journal.free_space();
        let given = free_space.take_to_give(GIVEN_MAX, kept, kept == 0)?;
        if given.is_empty() {
            return Ok(false);
        }
        turn.take = 1;
        if let Err(error) = self.discard_given(&given) {
            self.take_back_given(&given)?;
            return Err(error);
        }
        self.exchange(&mut turn, given, 0)?;
        self.look_again();
        Ok(true)
    }

    fn exchange(
        &self,
        turn: &mut MutexGuard<'_, Turn>,
        given: Vec<GivenRun>,
        take: u32,
    ) -> Result<Exchanged> {
        let number = match self.next_number(turn) {
            Ok(number) => number,
            Err(error) => {
                self.take_back_given(&given)?;
                return Err(error);
            }
        };
        let exchanged = self.cluster.exchange(self.group, number, &given, take);
        match exchanged {
            Ok(exchanged) => {
                if let Err(error) = self.record_exchange(&exchanged) {
                    turn.pending = Some(given);
                    return Err(error);
                }
                (turn.last, turn.is_fresh) = (exchanged.number, true);
                Ok(exchanged)
            }
            Err(error) => {
                turn.pending = Some(given);
                Err(self.failed("exchanging space extents of", error))
            }
        }
    }

    /// The number of the next exchange. From now on, the cluster may forget the last one.
    fn next_number(&self, turn: &mut Turn) -> Result<u64> {
        self.settle_pending(turn)?;
        if turn.is_fresh && Guard::ExchangeDurableBeforeNext.holds() {
            self.journal.commit()?;
        }
        turn.is_fresh = false;
        self.journal.check_writable()?;
        Ok(turn.last.max(self.journal.metadata()?.exchanged()) + 1)
    }

    /// Finds out what became of an exchange whose outcome is unknown.
    fn settle_pending(&self, turn: &mut Turn) -> Result<()> {
        let Some(pending) = turn.pending.take() else {
            return Ok(());
        };
        match self.learn_outcome(turn) {
            Ok(true) => Ok(()),
            Ok(false) => self.take_back_given(&pending),
            Err(error) => {
                turn.pending = Some(pending);
                Err(error)
            }
        }
    }

    /// Asks for the group's last exchange, and records it if no record has it. Returns whether it is later than the last
    /// known one.
    fn learn_outcome(&self, turn: &mut Turn) -> Result<bool> {
        let last = self.cluster.last_exchange(self.group);
        let last = last.map_err(|error| self.failed("asking for space extents of", error))?;
        let Some(last) = last else {
            return Ok(false);
        };
        let is_news = last.number > turn.last;
        if last.number > self.journal.metadata()?.exchanged()
            || !Guard::ExtentNumberRecorded.holds()
        {
            self.record_exchange(&last)?;
        }
        (turn.last, turn.is_fresh) = (last.number, true);
        Ok(is_news)
    }

    fn record_exchange(&self, exchanged: &Exchanged) -> Result<()> {
        let Exchanged {
            number,
            given,
            taken,
        } = exchanged;
        if given.is_empty() && taken.is_empty() {
            return Ok(());
        }
        let record = Record::Exchange {
            number: *number,
            given: given.clone(),
            taken: taken.clone(),
        };
        let extents = taken.iter().map(|extent| PbaRun {
            start: extent.first(),
            count: BLOCKS_PER_SPACE_EXTENT,
        });
        let runs: Vec<PbaRun> = given.iter().map(run_of).chain(extents).collect();
        self.journal.append(&[record], &runs, Blocking::Yes, None)
    }

    /// Gives the space of blocks that are about to be given back to the cluster. Nothing reads them.
    fn discard_given(&self, given: &[GivenRun]) -> Result<()> {
        let (data, block_size) = (self.journal.data(), self.block_size());
        given.iter().try_for_each(|run| {
            let (at, len) = (run.pba.0 * block_size, u64::from(run.count) * block_size);
            let discarded = data.discard(at, len);
            discarded.map_err(|error| StoreError::io(data.name(), error))
        })
    }

    fn take_back_given(&self, given: &[GivenRun]) -> Result<()> {
        let runs: Vec<PbaRun> = given.iter().map(run_of).collect();
        self.journal.take_back(&runs)
    }

    /// The turn, once no exchange has an unknown outcome: what the index has freed until now was given, if at all, by
    /// exchanges that have records.
    ///
    /// # Errors
    ///
    /// Errors of the cluster.
    pub(crate) fn settled(&self) -> Result<Settled<'_>> {
        let mut turn = lock(&self.turn);
        self.settle_pending(&mut turn)?;
        Ok(Settled { _turn: turn })
    }

    /// Notes how much space the pool has. If that fails, the former numbers stay.
    fn look_again(&self) {
        if let Err(error) = self.look() {
            tracing::debug!("{error}");
        }
    }

    fn look(&self) -> Result<()> {
        let counts = self.cluster.extent_counts();
        let counts = counts.map_err(|error| self.failed("counting the space extents of", error))?;
        if let Some(space) = self.space() {
            let blocks = |extents: u64| extents * BLOCKS_PER_SPACE_EXTENT;
            space.set(blocks(counts.free), blocks(counts.all));
        }
        Ok(())
    }

    fn block_size(&self) -> u64 {
        self.journal.data().block_size()
    }

    fn failed(&self, doing: &str, error: std::io::Error) -> StoreError {
        StoreError::io(
            format_args!("{doing} the pool for group {}", self.group),
            error,
        )
    }
}

fn run_of(given: &GivenRun) -> PbaRun {
    PbaRun {
        start: given.pba,
        count: given.count.into(),
    }
}

/// Whether the cluster has not answered in time. The next exchange asks for the outcome.
fn is_late(error: &StoreError) -> bool {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::TimedOut)
}
