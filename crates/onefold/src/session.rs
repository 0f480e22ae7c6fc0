//! Connects a command to the pool: opens the pool, or reaches the daemon that has it open.
//!
//! The pool's lock decides. Only if the lock is free does the command open the pool itself; otherwise the
//! daemon's socket must answer. If the daemon dies during a request, the command fails: the reply may be
//! lost, and repeating the request is the user's decision.

use crate::control::client::ControlClient;
use crate::control::socket_path;
use crate::output::Output;
use crate::pool::place::PoolPlace;
use crate::pool::{self, Claim, Opening};
use onefold_api::transfer::{Export, VolumeImport, VolumeImportReply};
use onefold_api::transfer::{PieceReceiver, transfer};
use onefold_api::{Error, Result};
use onefold_api::{Report, Request, Service, Stores};
use onefold_engine::embedded::PoolLock;
use onefold_store::{RecoveryReport, StoreErrorKind};
use std::thread;

/// Access to a pool for one command.
pub(crate) enum Session {
    /// The pool is open in this process.
    Direct {
        service: Service,
        /// Held while the store is open.
        _lock: PoolLock,
    },
    /// A daemon has the pool open.
    Remote(ControlClient),
}

impl Session {
    /// Opens the pool, passes it to `work`, and always closes it. With `repair`, a free-space map that cannot
    /// be opened is rebuilt.
    pub(crate) fn with<T>(
        pool: &PoolPlace,
        output: &Output,
        repair: bool,
        work: impl FnOnce(&Session) -> Result<T>,
    ) -> Result<T> {
        let session = Self::open(pool, output, repair)?;
        let worked = work(&session);
        let closed = session.close();
        // The error of the work takes precedence over an error on closing the pool.
        worked.and_then(|result| closed.map(|()| result))
    }

    /// Connects to the daemon, which must be running.
    pub(crate) fn of_daemon(pool: &PoolPlace, output: &Output) -> Result<Self> {
        match pool::claim(pool)? {
            Claim::Ours(_) => Err(Error::failed(format!(
                "no daemon has the pool {pool} open, and there are jobs only while 'onefold serve' \
                 runs"
            ))),
            Claim::Held { holder } => Self::connect(pool, &holder, output),
        }
    }

    fn connect(pool: &PoolPlace, holder: &str, output: &Output) -> Result<Self> {
        ControlClient::connect(pool.directory(), holder, output)
            .map(Self::Remote)
            .map_err(|error| {
                Error::failed(format!(
                    "the pool {pool} is in use by {holder}, which does not answer on {}: {error}; \
                     try again when it has started, or ended",
                    socket_path(pool.directory()).display()
                ))
            })
    }

    fn open(pool: &PoolPlace, output: &Output, repair: bool) -> Result<Self> {
        match pool::claim(pool)? {
            Claim::Ours(lock) => {
                let opening = Opening {
                    repair,
                    ..Opening::default()
                };
                let (store, recovery) = pool::open(pool, opening)?;
                if recovery.free_space_rebuilt {
                    output
                        .note("the free-space map was damaged; it was counted again from the maps");
                }
                if !recovery.clean {
                    output.note(recovery_line(&recovery));
                }
                for warning in recovery.warnings() {
                    output.warn(warning);
                }
                Ok(Self::Direct {
                    service: Service::without_clients(store),
                    _lock: lock,
                })
            }
            Claim::Held { holder } => Self::connect(pool, &holder, output),
        }
    }

    fn close(self) -> Result<()> {
        let Self::Direct { service, .. } = self else {
            return Ok(());
        };
        // A command opens no other stores itself.
        let Stores::One(store) = service.stores else {
            return Ok(());
        };
        match store.close() {
            // A pool that takes no writes, such as one of a newer version, has nothing to write when it is
            // closed either; callers that tried to write received the error.
            Err(error) if error.kind() == StoreErrorKind::ReadOnly => Ok(()),
            closed => Ok(closed?),
        }
    }

    /// Carries out a request.
    pub(crate) fn call<R: Request>(&self, request: &R, report: Report<'_>) -> Result<R::Reply> {
        match self {
            Self::Direct { service, .. } => service.call(request, report),
            Self::Remote(client) => client.call(request, report),
        }
    }

    /// Creates a volume from an image.
    pub(crate) fn import(
        &self,
        import: &VolumeImport,
        pieces: PieceReceiver,
    ) -> Result<VolumeImportReply> {
        match self {
            Self::Direct { service, .. } => import.run(service, pieces),
            Self::Remote(client) => client.import(import, pieces),
        }
    }

    /// Starts an export; returns its size and a receiver of its pieces.
    pub(crate) fn export<E: Export>(&self, export: &E) -> Result<(u64, PieceReceiver)> {
        match self {
            Self::Direct { service, .. } => {
                let export = export.open(service)?;
                let size_bytes = export.size_bytes();
                let (sender, receiver) = transfer();
                thread::spawn(move || export.run(&sender));
                Ok((size_bytes, receiver))
            }
            Self::Remote(client) => client.export(export),
        }
    }
}

/// Summarises a recovery in one line.
pub(crate) fn recovery_line(recovery: &RecoveryReport) -> String {
    let mut line = format!(
        "pool opened in {:.3} s, {} log records ({} bytes) replayed, {} records taken over from a \
         process that died",
        recovery.seconds,
        recovery.records_replayed,
        recovery.log_bytes_replayed,
        recovery.records_taken_over
    );
    if !recovery.volumes_removed.is_empty() {
        let names = recovery.volumes_removed.join(", ");
        line.push_str(&format!("; removed the remains of {names}"));
    }
    line
}
