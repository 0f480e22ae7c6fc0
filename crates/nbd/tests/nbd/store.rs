//! A volume of a real store behind the server.

use crate::client::Client;
use onefold_engine::simulated::{Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_nbd::wire::{Errno, command};
use onefold_nbd::{
    AttachError, Attached, ExportSummary, Exports, ListenAddress, ListenOptions, Listener, Peer,
    Server, ServerLimits,
};
use onefold_store::{CreateOptions, OpenOptions, Store, Volume, VolumeOptions};
use std::io;
use std::sync::Arc;

struct OneVolume(Arc<Volume>);

impl Exports for OneVolume {
    fn names(&self, _: Option<&str>, _: usize) -> Vec<String> {
        vec![self.0.name()]
    }

    fn describe(&self, _: &str) -> Result<ExportSummary, AttachError> {
        Ok(ExportSummary::of(self.0.as_ref()))
    }

    fn attach(&self, _: &str, _: &[String], _: &Peer) -> Result<Attached, AttachError> {
        Ok(Attached::to(Arc::<Volume>::clone(&self.0)))
    }
}

#[test]
fn after_a_failed_sync_writes_are_io_errors_and_reads_go_on() {
    let engine = Arc::new(SimulatedEngine::new(1));
    let options = CreateOptions {
        size_bytes: 16 << 20,
        log_bytes: 4 << 20,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    let as_engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(&engine);
    let (store, _) = Store::open(as_engine, &OpenOptions::default()).unwrap();
    store
        .create_volume("vol", &VolumeOptions::new(1 << 20))
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let address = ListenAddress::Unix(socket.clone());
    let listener = Listener::bind(&address, &ListenOptions::default()).unwrap();
    let exports = Arc::new(OneVolume(store.volume("vol").unwrap()));
    let _server = Server::start(vec![listener], exports, &ServerLimits::default()).unwrap();

    let mut client = Client::attach(&socket, true);
    assert_eq!(client.write(0, 0, &[7; 8192]).error, 0);
    assert_eq!(client.call(0, command::FLUSH, 0, 0).error, 0);
    assert_eq!(client.write(0, 8192, &[7; 4096]).error, 0);
    engine.fail_once(Part::Data, Op::Sync, 1, io::ErrorKind::Other);
    let io_error = Errno::Io as u32;
    assert_eq!(client.call(0, command::FLUSH, 0, 0).error, io_error);
    assert_eq!(client.write(0, 4096, &[8; 4096]).error, io_error);
    assert_eq!(client.call(0, command::TRIM, 0, 4096).error, io_error);
    let zeroed = client.call(0, command::WRITE_ZEROES, 0, 4096);
    assert_eq!(zeroed.error, io_error);
    assert_eq!(client.call(0, command::FLUSH, 0, 0).error, io_error);
    assert_eq!(client.read(0, 8192), vec![7; 8192]);
    assert_eq!(client.call(0, command::CACHE, 0, 8192).error, 0);
    // The data of that sync may belong to another volume by now.
    assert_eq!(client.call(0, command::READ, 8192, 4096).error, io_error);
}
