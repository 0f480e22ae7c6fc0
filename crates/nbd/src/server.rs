//! The server: accepts connections and gives each its thread, until it is shut down.

use crate::buffer::BufferPool;
use crate::connection::{self, Resources};
use crate::execution::panic_text;
use crate::export::Exports;
use crate::handshake::negotiate;
use crate::limits::{
    ACCEPT_RETRY_PAUSE, ATTACHMENT_LINES_MAX, CONNECTION_BYTES, FAILURE_LINES_MAX,
    HANDSHAKE_TIME_MAX, PLACE_RETRY_PAUSE, POOL_FRACTION_PER_CONNECTION,
};
use crate::listener::Listener;
use crate::log_limit::LogLimit;
use crate::parking::Parking;
use crate::registry::{Client, RegisteringExports, Registration, Registry};
use crate::socket::Socket;
use crate::statistics::ServerStatistics;
use crate::workers::WorkerPool;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Memory for requests and replies of all connections together, in bytes. At most half of it is
    /// for the fixed needs of connections, about 290 KiB each, which may lower the number of
    /// connections; the rest is shared by large requests and those that wait for the disk.
    pub memory_bytes: usize,
    /// Attached clients at a time; more are refused, except for a device's first client. In
    /// addition, there may be [`crate::HANDSHAKES_MAX`] connections that have not chosen an export.
    pub connections: usize,
    /// Threads for requests that wait for the disk.
    pub worker_threads: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 192 << 20,
            connections: 256,
            worker_threads: 64,
        }
    }
}

impl ServerLimits {
    /// The most clients that may be attached at a time, by number and by memory.
    #[must_use]
    pub fn clients_max(&self) -> usize {
        let affordable = (self.memory_bytes / 2 / CONNECTION_BYTES).max(1);
        self.connections.min(affordable)
    }
}

/// A running NBD server.
pub struct Server {
    registry: Arc<Registry>,
    resources: Arc<Resources>,
    /// Becomes readable once no more connections should be accepted.
    stop: Arc<OwnedFd>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

/// The result of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Shutdown {
    /// The number of connections that were cut off because they did not finish in time.
    pub cut_off: usize,
    /// Whether no request is in flight any more. If not, some wait for a disk that does not answer,
    /// and their threads still hold their exports.
    pub quiet: bool,
}

impl Server {
    /// Starts to serve `exports` at `listeners`.
    ///
    /// # Errors
    /// If the system provides no thread or descriptor.
    pub fn start(
        listeners: Vec<Listener>,
        exports: Arc<dyn Exports>,
        limits: &ServerLimits,
    ) -> io::Result<Self> {
        let connections = limits.clients_max();
        let pool_bytes = limits
            .memory_bytes
            .saturating_sub(connections * CONNECTION_BYTES);
        let registry = Registry::new(connections, connections < limits.connections);
        let resources = Arc::new(Resources {
            pool: BufferPool::new(pool_bytes),
            workers: WorkerPool::new(limits.worker_threads),
            parking: Parking::new(),
            refusals: LogLimit::new(1),
            attachments: LogLimit::new(ATTACHMENT_LINES_MAX),
            failures: Arc::new(LogLimit::new(FAILURE_LINES_MAX)),
            share_bytes: pool_bytes / POOL_FRACTION_PER_CONNECTION,
        });
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let acceptor = Acceptor {
            listeners,
            exports,
            registry: Arc::clone(&registry),
            resources: Arc::clone(&resources),
            stop: Arc::clone(&stop),
        };
        resources.workers.start_first()?;
        let thread = thread::Builder::new()
            .name("nbd-accept".to_owned())
            .spawn(move || acceptor.run())
            .inspect_err(|_| resources.workers.close())?;
        Ok(Self {
            registry,
            resources,
            stop,
            acceptor: Mutex::new(Some(thread)),
        })
    }

    /// The clients that are attached to an export, in the order in which they came.
    pub fn clients(&self) -> Vec<Client> {
        self.registry.clients()
    }

    /// Clients' requests since the start, by export. Totals never go down when clients come and go,
    /// until [`Server::forget_statistics`].
    pub fn statistics(&self) -> ServerStatistics {
        self.registry.statistics()
    }

    /// Drops the totals of a deleted export, once its clients are disconnected: otherwise they are
    /// kept as long as the server lives. [`ServerStatistics::durations`] stay.
    pub fn forget_statistics(&self, export: &str) {
        self.registry.forget_statistics(export);
    }

    /// The number of requests that wait until their device has space.
    pub fn requests_waiting_for_space(&self) -> usize {
        self.resources.parking.waiting()
    }

    /// The memory, in bytes, of shared request buffers.
    pub fn shared_memory_bytes(&self) -> usize {
        self.resources.pool.bytes()
    }

    /// The most memory, in bytes, that shared request buffers have taken so far.
    pub fn shared_memory_peak_bytes(&self) -> usize {
        self.resources.pool.bytes_peak()
    }

    /// Cuts off all clients of an export, and waits until their last request has ended. Returns
    /// their number. Clients can attach again unless [`Exports::attach`] refuses them first.
    ///
    /// # Errors
    /// The number of clients that still have requests in flight after `time_max`.
    pub fn disconnect(&self, export: &str, time_max: Duration) -> Result<usize, usize> {
        match self.registry.disconnect(export, time_max) {
            (cut_off, 0) => Ok(cut_off),
            (_, remaining) => Err(remaining),
        }
    }

    /// Stops: accepts no more clients, lets every client finish the requests it has sent, and after
    /// `time_max` cuts off the rest. Files of unix sockets are removed.
    pub fn shutdown(&self, time_max: Duration) -> Shutdown {
        let started = Instant::now();
        self.stop_accepting();
        self.registry.drain();
        let mut cut_off = 0;
        let mut quiet = self.registry.wait_until_empty(time_max);
        if !quiet {
            cut_off = self.registry.close();
            // Threads of cut-off connections still have to be woken by the system, which takes no
            // disk.
            let grace = Duration::from_secs(1).max(time_max.saturating_sub(started.elapsed()));
            quiet = self.registry.wait_until_empty(grace);
        }
        if quiet {
            self.resources.workers.close();
        }
        Shutdown { cut_off, quiet }
    }

    fn stop_accepting(&self) {
        // The write fails only when the counter is about to overflow, and it is readable then, too.
        let _ = rustix::io::write(&*self.stop, &[1; 8]);
        let acceptor = self
            .acceptor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = acceptor {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.shutdown(Duration::ZERO);
    }
}

/// The state of the accepting thread.
struct Acceptor {
    listeners: Vec<Listener>,
    exports: Arc<dyn Exports>,
    registry: Arc<Registry>,
    resources: Arc<Resources>,
    stop: Arc<OwnedFd>,
}

impl Acceptor {
    fn run(self) {
        let mut polled: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(
            std::os::fd::AsFd::as_fd(&*self.stop),
            PollFlags::IN,
        )];
        polled.extend(
            self.listeners
                .iter()
                .map(|listener| PollFd::new(listener, PollFlags::IN)),
        );
        loop {
            if !self.registry.make_room() {
                // In this time new connections wait to be accepted.
                if self.stops_within(PLACE_RETRY_PAUSE) {
                    return;
                }
                continue;
            }
            if let Err(error) = poll(&mut polled, None)
                && error != rustix::io::Errno::INTR
            {
                tracing::error!(%error, "cannot wait for connections");
                thread::sleep(ACCEPT_RETRY_PAUSE);
                continue;
            }
            let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
            if ready.next() == Some(true) {
                return;
            }
            for (listener, ready) in self.listeners.iter().zip(ready) {
                if ready {
                    self.accept_from(listener);
                }
            }
        }
    }

    fn accept_from(&self, listener: &Listener) {
        match listener.accept() {
            Ok(Some(socket)) => self.admit(socket),
            Ok(None) => {}
            Err(error) => {
                self.resources.refusals.line(|left_out| {
                    let address = listener.address();
                    tracing::error!(left_out, %error, "cannot accept a connection at {address}");
                });
                self.registry.give_up_one();
                self.stops_within(ACCEPT_RETRY_PAUSE);
            }
        }
    }

    /// Waits; returns whether the server stops.
    fn stops_within(&self, time: Duration) -> bool {
        let mut polled = [PollFd::new(&*self.stop, PollFlags::IN)];
        let time = Timespec::try_from(time).unwrap_or_default();
        poll(&mut polled, Some(&time)).is_ok_and(|ready| ready > 0)
    }

    fn admit(&self, socket: Socket) {
        let socket = Arc::new(socket);
        let peer = socket.peer();
        let Ok(registration) = self.registry.register(Arc::clone(&socket)) else {
            return;
        };
        let exports = Arc::clone(&self.exports);
        let resources = Arc::clone(&self.resources);
        let name = format!("nbd-client-{}", registration.id());
        let started = thread::Builder::new().name(name).spawn(move || {
            run_connection(&registration, &socket, exports.as_ref(), &resources);
        });
        if let Err(error) = started {
            self.resources.refusals.line(|left_out| {
                tracing::error!(left_out, %error, "cannot start a thread for {peer}; its connection is closed");
            });
        }
    }
}

/// Runs a connection's thread.
fn run_connection(
    registration: &Registration,
    socket: &Arc<Socket>,
    exports: &dyn Exports,
    resources: &Resources,
) {
    let id = registration.id();
    let peer = socket.peer();
    let serve = AssertUnwindSafe(|| serve(registration, socket, exports, resources));
    if let Err(panic) = catch_unwind(serve) {
        let text = panic_text(panic.as_ref());
        tracing::error!(client = id, "the connection of {peer} panicked: {text}");
        socket.close();
    }
}

fn serve(
    registration: &Registration,
    socket: &Arc<Socket>,
    exports: &dyn Exports,
    resources: &Resources,
) {
    let id = registration.id();
    let peer = socket.peer();
    let offered = RegisteringExports {
        exports,
        registration,
        refusals: &resources.refusals,
    };
    let mut stream = socket.with_deadline(HANDSHAKE_TIME_MAX);
    let session = match negotiate(&mut stream, &offered, &peer) {
        Ok(Some(session)) => session,
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(client = id, "no session with {peer}: {error}");
            return;
        }
    };
    let export = session.name.clone();
    if let Err(error) = socket.without_deadline() {
        resources.refusals.line(|left_out| {
            tracing::warn!(client = id, left_out, %error, "cannot serve {peer}");
        });
        return;
    }
    resources.attachments.line(|left_out| {
        tracing::info!(
            client = id,
            left_out,
            "{peer} attached to export {export:?}"
        );
    });
    if session.attached.export.is_background()
        && let Err(error) = stay_on_one_processor()
    {
        tracing::debug!(client = id, %error, "cannot keep the thread of this client on one processor");
    }
    let counters = registration.counters();
    match connection::serve(id, Arc::clone(socket), session, counters, resources) {
        Ok(()) => resources.attachments.line(|left_out| {
            tracing::info!(
                client = id,
                left_out,
                "{peer} detached from export {export:?}"
            );
        }),
        Err(error) => resources.refusals.line(|left_out| {
            tracing::warn!(
                client = id,
                left_out,
                "{peer} lost export {export:?}: {error}"
            );
        }),
    }
}

/// Keeps the calling thread on the last of the processors that it may use: the first ones tend to have the devices' interrupts.
fn stay_on_one_processor() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(last.unwrap_or_default());
    Ok(sched_setaffinity(None, &one)?)
}
