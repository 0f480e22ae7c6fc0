//! A host's view of the pool.
//!
//! Each operation on the cluster counts as an I/O of the host, which may die in it.

use super::super::Machine;
use super::super::stop::Stop;
use super::calls::Waiting;
use super::data::Client;
use super::extents::Exchange;
use super::faults::ClusterRates;
use super::{OnEvent, Pool, PoolState, SimulatedHolding, tell_lost};
use crate::cluster::{
    Answer, Answered, CallError, Cluster, Directory, Exchanged, ExtentCounts, Holding, Owned,
    OwnerEvent, Rows, TakeError, TakeOptions,
};
use onefold_format::{GivenRun, GroupId};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A process of a simulated host, as a client of its cluster.
pub struct SimulatedHost {
    pub(super) pool: Arc<Pool>,
    pub(super) number: usize,
    pub(super) client: Client,
    pub(super) on_event: Mutex<Option<OnOwnedEvent>>,
}

/// The event handler of a host for all that it takes.
pub type OnOwnedEvent = Arc<dyn Fn(Owned, OwnerEvent) + Send + Sync>;

/// How an operation on the cluster ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Known,
    /// The operation happens or not, and fails.
    Unknown {
        happens: bool,
    },
    /// The host dies in it.
    Dies {
        happens: bool,
    },
}

impl SimulatedHost {
    /// Counts an operation, and draws how it ends.
    fn begin(&self, rate: impl Fn(&ClusterRates) -> f64) -> io::Result<End> {
        self.pool.between_ios();
        let checked = self.pool.state().check_process(self.client);
        if checked.is_err() {
            self.pool.tell_fenced(self.client);
        }
        checked?;
        let dies = self.pool.count_io(self.number, self.client);
        let mut state = self.pool.state();
        if !dies {
            state.check_process(self.client)?;
        }
        let rate = rate(&state.rates);
        let is_unknown = !dies && state.random.chance(rate);
        if !dies && !is_unknown {
            return Ok(End::Known);
        }
        let happens = state.random.coin();
        state.counts.operations_unknown += 1;
        state.counts.operations_done_unknown += u64::from(happens);
        if dies {
            Ok(End::Dies { happens })
        } else {
            Ok(End::Unknown { happens })
        }
    }

    /// Runs an operation, which may not happen, or happen with an error.
    fn run<T>(
        &self,
        rate: impl Fn(&ClusterRates) -> f64,
        operation: impl FnOnce(&mut PoolState) -> io::Result<T>,
    ) -> io::Result<T> {
        let end = self.begin(rate)?;
        let lost = match end {
            End::Known => return operation(&mut self.pool.state()),
            End::Unknown { happens } => happens.then_some("no answer from the cluster"),
            End::Dies { happens } => happens.then_some("simulated crash"),
        };
        let dropped = lost.map(|_| operation(&mut self.pool.state()));
        drop(dropped);
        Err(unknown(end))
    }

    fn holding(&self, what: Owned, options: &TakeOptions) -> Result<SimulatedHolding, TakeError> {
        let take = || self.pool.take(self, what, options);
        match self.begin(|rates| rates.ownership_lost)? {
            End::Known => Ok(SimulatedHolding::new(self, what, take()?)),
            end @ End::Unknown { happens } => {
                if happens {
                    // The process learns nothing of what it owns, and gives that up before it returns the error.
                    drop(SimulatedHolding::new(self, what, take()?));
                }
                Err(unknown(end).into())
            }
            end @ End::Dies { happens } => {
                if happens {
                    self.pool.take_dying(self, what, options);
                }
                Err(unknown(end).into())
            }
        }
    }

    /// Handles the events of all that this process takes from now on, where an owner has set no handler of its own.
    pub fn on_event(&self, on_event: OnOwnedEvent) {
        *self.on_event.lock().unwrap_or_else(PoisonError::into_inner) = Some(on_event);
    }

    /// Like [`Cluster::take`], with the type of the simulation.
    pub fn take_simulated(
        &self,
        what: Owned,
        options: &TakeOptions,
    ) -> Result<Arc<SimulatedHolding>, TakeError> {
        self.holding(what, options).map(Arc::new)
    }
}

fn unknown(end: End) -> io::Error {
    match end {
        End::Dies { .. } => io::Error::other("simulated crash"),
        _ => io::Error::new(ErrorKind::TimedOut, "no answer from the simulated cluster"),
    }
}

impl Cluster for SimulatedHost {
    fn create(&self, what: Owned) -> io::Result<()> {
        self.run(|rates| rates.ownership_lost, |state| state.create(what))
    }

    fn take(&self, what: Owned, options: &TakeOptions) -> Result<Arc<dyn Holding>, TakeError> {
        let taken = self.take_simulated(what, options)?;
        let on_event = self.on_event.lock();
        if let Some(on_event) = on_event.unwrap_or_else(PoisonError::into_inner).clone() {
            taken.on_event(Box::new(move |event| on_event(what, event)));
        }
        Ok(taken)
    }

    fn remove(&self, holding: Arc<dyn Holding>) -> io::Result<()> {
        let (what, session) = (holding.owned(), holding.session());
        let removed = self.run(
            |rates| rates.ownership_lost,
            |state| self.pool.remove(state, what, session),
        );
        removed.map(drop)
    }

    fn call(&self, what: Owned, request: Vec<u8>, _timeout: Duration, answered: Answered) {
        let waiting = Waiting::new(&self.pool, answered);
        match self.begin(|_| 0.0) {
            Ok(End::Known | End::Unknown { .. }) => {
                self.pool.send(self.client, what, request, &waiting);
            }
            Ok(end @ End::Dies { happens }) => {
                if happens {
                    self.pool.keep(what, request);
                }
                waiting.end(Err(CallError::Unknown(unknown(end))));
            }
            Err(error) => waiting.end(Err(CallError::Unknown(error))),
        }
    }

    fn exchange(
        &self,
        group: GroupId,
        number: u64,
        give: &[GivenRun],
        take: u32,
    ) -> io::Result<Exchanged> {
        self.run(
            |rates| rates.exchange_lost,
            |state| {
                let exchange = Exchange {
                    group,
                    number,
                    give,
                    take,
                    is_number_kept: state.is_number_kept,
                };
                state.counts.exchanges += 1;
                let leased = state.extents.exchange(&exchange, &mut state.random)?;
                if state.is_map_latest {
                    self.pool.shared().learn_map(self.client);
                }
                Ok(leased)
            },
        )
    }

    fn last_exchange(&self, group: GroupId) -> io::Result<Option<Exchanged>> {
        self.run(
            |_| 0.0,
            |state| {
                if state.is_map_latest {
                    self.pool.shared().learn_map(self.client);
                }
                Ok(state.extents.last(group))
            },
        )
    }

    fn extent_counts(&self) -> io::Result<ExtentCounts> {
        self.run(|_| 0.0, |state| Ok(state.extents.counts()))
    }

    fn given_blocks(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.run(|_| 0.0, |state| Ok(state.extents.given(blocks)))
    }

    fn directory(&self) -> &dyn Directory {
        self
    }
}

impl Directory for SimulatedHost {
    fn read(&self) -> io::Result<Rows> {
        self.run(|_| 0.0, |state| Ok(state.directory.clone()))
    }

    fn change(&self, version: u64, changes: &[(String, Option<Vec<u8>>)]) -> io::Result<bool> {
        self.run(
            |rates| rates.directory_lost,
            |state| {
                let directory = &mut state.directory;
                if directory.version != version {
                    return Ok(false);
                }
                directory.version += 1;
                for (key, value) in changes {
                    match value {
                        Some(value) => directory.rows.insert(key.clone(), value.clone()),
                        None => directory.rows.remove(key),
                    };
                }
                Ok(true)
            },
        )
    }
}

impl Pool {
    pub(super) fn serve(
        &self,
        what: Owned,
        session: u64,
        answer: Arc<dyn Answer>,
    ) -> io::Result<()> {
        let mut state = self.state();
        let record = state.owned.get_mut(&what);
        let record = record.filter(|record| record.session == session);
        let Some(owner) = record.and_then(|record| record.owner.as_mut()) else {
            return Err(io::Error::other(format!("{what} is not owned any more")));
        };
        let before = owner.answer.replace(answer);
        drop(state);
        drop(before);
        Ok(())
    }

    /// Calls it at once for an owner that knows of its loss, and later for one that does not know yet.
    pub(super) fn set_on_event(
        &self,
        what: Owned,
        session: u64,
        machine: &Machine,
        on_event: OnEvent,
    ) {
        let mut state = self.state();
        let stopped = machine.state().stopped;
        match (stopped, &machine.member) {
            (Some(Stop::Lost), _) => {
                drop(state);
                tell_lost(&on_event);
            }
            (Some(Stop::Fenced), Some(member)) => {
                state.lost.entry(member.client).or_default().push(on_event);
            }
            _ => {
                let record = state.owned.get_mut(&what);
                let record = record.filter(|record| record.session == session);
                let owner = record.and_then(|record| record.owner.as_mut());
                let before = owner.and_then(|owner| owner.on_event.replace(on_event));
                drop(state);
                drop(before);
            }
        }
    }
}
