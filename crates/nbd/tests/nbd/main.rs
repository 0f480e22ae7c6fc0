//! The server as its clients see it: over sockets, with an export in memory that follows a test's
//! orders.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "exports are told ranges of bytes"
)]

mod client;
mod commands;
mod full;
mod handshake;
mod memory;
mod pressure;
mod rude;
mod server;
mod statistics;
mod store;

use memory::MemoryExport;
use onefold_nbd::{
    AttachError, Attached, Changes, ExportSummary, Exports, ListenAddress, ListenOptions, Listener,
    Peer, Server, ServerLimits,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Exports "vol", and "locked", which refuses all clients.
pub(crate) struct TestExports {
    pub(crate) export: Arc<MemoryExport>,
    pub(crate) attached: Arc<AtomicUsize>,
    pub(crate) barred: AtomicBool,
    /// The number of other names.
    pub(crate) others: AtomicUsize,
    /// The most names that were requested at once.
    pub(crate) asked_max: AtomicUsize,
    pub(crate) default_export: Option<String>,
}

impl TestExports {
    pub(crate) fn new(export: Arc<MemoryExport>) -> Self {
        Self {
            export,
            attached: Arc::default(),
            barred: AtomicBool::new(false),
            others: AtomicUsize::new(0),
            asked_max: AtomicUsize::new(0),
            default_export: None,
        }
    }
}

impl Exports for TestExports {
    fn names(&self, after: Option<&str>, names_max: usize) -> Vec<String> {
        self.asked_max.fetch_max(names_max, Ordering::SeqCst);
        let mut names = vec!["vol".to_owned(), "locked".to_owned()];
        let others = 0..self.others.load(Ordering::SeqCst);
        names.extend(others.map(|n| format!("other-{n}")));
        let begin = after.map_or(0, |after| {
            1 + names.iter().position(|name| name == after).unwrap()
        });
        names.into_iter().skip(begin).take(names_max).collect()
    }

    fn describe(&self, name: &str) -> Result<ExportSummary, AttachError> {
        match name {
            "vol" => Ok(ExportSummary::of(self.export.as_ref())),
            "locked" => Err(AttachError::Refused("it is locked".to_owned())),
            _ => Err(AttachError::Unknown),
        }
    }

    fn default_export(&self) -> Option<String> {
        self.default_export.clone()
    }

    fn snapshots(&self, _name: &str, snapshots_max: usize) -> Vec<String> {
        let snapshots = (0..memory::SNAPSHOTS).take(snapshots_max);
        snapshots.map(|n| format!("s{n}")).collect()
    }

    fn has_snapshot(&self, name: &str, snapshot: &str) -> bool {
        let snapshots = self.snapshots(name, usize::MAX);
        snapshots.iter().any(|existing| existing == snapshot)
    }

    fn attach(&self, name: &str, since: &[String], _: &Peer) -> Result<Attached, AttachError> {
        self.describe(name)?;
        if self.barred.load(Ordering::SeqCst) {
            return Err(AttachError::Refused("it is being deleted".to_owned()));
        }
        let changes = since.iter().map(|snapshot| {
            let changes: Arc<dyn Changes> = Arc::new(memory::Since::new(&self.export, snapshot));
            changes
        });
        Ok(Attached {
            export: Arc::new(memory::Counted::new(&self.export, &self.attached)),
            changes: changes.collect(),
        })
    }
}

/// A server on a unix socket in a separate directory.
pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) exports: Arc<TestExports>,
    pub(crate) export: Arc<MemoryExport>,
    pub(crate) socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl TestServer {
    pub(crate) fn start(export: MemoryExport) -> Self {
        Self::with_limits(export, &ServerLimits::default())
    }

    pub(crate) fn with_limits(export: MemoryExport, limits: &ServerLimits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let export = Arc::new(export);
        let exports = Arc::new(TestExports::new(Arc::clone(&export)));
        let listener = Listener::bind(
            &ListenAddress::Unix(socket.clone()),
            &ListenOptions::default(),
        );
        let served: Arc<dyn Exports> = Arc::<TestExports>::clone(&exports);
        let server = Server::start(vec![listener.unwrap()], served, limits).unwrap();
        Self {
            server,
            exports,
            export,
            socket,
            _directory: directory,
        }
    }

    pub(crate) fn client(&self) -> client::Client {
        client::Client::attach(&self.socket, true)
    }

    /// Cuts off all clients and waits until they are gone: a server with next to no memory allows
    /// one at a time.
    pub(crate) fn without_clients(&self) -> &Self {
        self.server
            .disconnect("vol", std::time::Duration::from_secs(60))
            .unwrap();
        self
    }
}
