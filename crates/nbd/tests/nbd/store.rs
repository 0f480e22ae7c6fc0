//! A volume of a real store behind the server.

use crate::client::Client;
use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_engine::simulated::{Op, SimulatedEngine, When};
use onefold_engine::{Engine, Part};
use onefold_nbd::wire::{Errno, command, command_flag};
use onefold_nbd::{
    AttachError, Attached, ExportSummary, Exports, ListenAddress, ListenOptions, Listener, Peer,
    Server, ServerLimits,
};
use onefold_store::{
    BackgroundExecutor, CreateOptions, OpenOptions, Store, Volume, VolumeOptions, WhenFull,
};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

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

const SIZE: u64 = 4 << 20;

/// A server with the volume of a new pool.
struct Served {
    // Fields are dropped in this order.
    server: Server,
    store: Arc<Store>,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Served {
    fn on(engine: Arc<dyn Engine>, directory: tempfile::TempDir) -> Self {
        Self::with_log(engine, directory, 4 << 20)
    }

    fn with_log(engine: Arc<dyn Engine>, directory: tempfile::TempDir, log_bytes: u64) -> Self {
        let options = CreateOptions {
            size_bytes: 16 << 20,
            log_bytes,
            ..CreateOptions::default()
        };
        Store::create(&*engine, &options).unwrap();
        let (store, _) = Store::open(engine, &OpenOptions::default()).unwrap();
        let created = store.create_volume("vol", &VolumeOptions::new(SIZE));
        created.unwrap();
        let socket = directory.path().join("nbd.sock");
        let address = ListenAddress::Unix(socket.clone());
        let listener = Listener::bind(&address, &ListenOptions::default()).unwrap();
        let exports = Arc::new(OneVolume(store.volume("vol").unwrap()));
        let server = Server::start(vec![listener], exports, &ServerLimits::default()).unwrap();
        Self {
            server,
            store,
            socket,
            _directory: directory,
        }
    }

    /// On a simulated machine, whose writes wait for the disk.
    fn simulated(alignment: usize) -> (Self, Arc<SimulatedEngine>) {
        let engine = Arc::new(SimulatedEngine::new(1));
        engine.set_alignment(Part::Data, alignment);
        let as_engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(&engine);
        let served = Self::on(as_engine, tempfile::tempdir().unwrap());
        (served, engine)
    }

    fn client(&self) -> Client {
        Client::attach(&self.socket, true)
    }
}

#[test]
fn after_a_failed_sync_writes_are_io_errors_and_reads_go_on() {
    let (served, engine) = Served::simulated(1);
    let mut client = served.client();
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
    // The blocks of that sync's data may belong to another volume by this time.
    assert_eq!(client.call(0, command::READ, 8192, 4096).error, io_error);
}

/// The cookies of the finished writes, which return in any order.
fn cookies_of(client: &mut Client, count: u64) -> Vec<u64> {
    let mut cookies = Vec::new();
    for _ in 0..count {
        let reply = client.reply(0).unwrap();
        assert_eq!(reply.error, 0, "{reply:?}");
        cookies.push(reply.cookie);
    }
    cookies.sort_unstable();
    cookies
}

#[test]
fn new_blocks_are_written_while_the_log_fills_up() {
    let engine = Arc::new(SimulatedEngine::new(1));
    engine.set_alignment(Part::Data, 4096);
    // So small that it is full several times, in the middle of what the device is given at once.
    let served = Served::with_log(engine, tempfile::tempdir().unwrap(), 256 << 10);
    let mut client = served.client();
    let blocks = SIZE / 4096;
    for round in 1..=8_u64 {
        let content = |n: u64| [(n + round) as u8 | 1; 4096];
        // Neighbours do not make one record.
        let order: Vec<u64> = (0..blocks).map(|n| n * 389 % blocks).collect();
        for some in order.chunks(64) {
            for n in some {
                client.send_write(0, *n, n * 4096, &content(*n));
            }
            cookies_of(&mut client, some.len() as u64);
        }
        for n in 0..blocks {
            assert_eq!(client.read(n * 4096, 4096), content(n), "{n}");
        }
        // The next round needs new blocks again.
        let trimmed = client.call(0, command::TRIM, 0, SIZE as u32);
        assert_eq!(trimmed.error, 0);
        assert_eq!(client.call(0, command::FLUSH, 0, 0).error, 0);
    }
    assert_eq!(served.store.check(false, &mut |_| {}).unwrap().findings, 0);
}

/// Writes in place, many of them concurrently, together with others that need a worker.
fn writes_many_at_once(served: &Served) {
    let mut client = served.client();
    assert_eq!(client.write(0, 0, &vec![1; 2 << 20]).error, 0);
    // More than one connection hands over, and than the device takes at a time.
    const COUNT: u64 = 500;
    for n in 0..COUNT {
        client.send_write(0, n, n * 4096, &[n as u8; 4096]);
    }
    assert!(cookies_of(&mut client, COUNT).into_iter().eq(0..COUNT));
    for n in [0, 1, 255, 256, COUNT - 1] {
        assert_eq!(client.read(n * 4096, 4096), vec![n as u8; 4096], "{n}");
    }
    // In place, in part, to new blocks, large, and through to the device.
    client.send_write(0, 0, 0, &[10; 8192]);
    client.send_write(0, 1, 4096 * 4 + 512, &[11; 512]);
    client.send_write(0, 2, 3 << 20, &[12; 4096]);
    client.send_write(0, 3, 1 << 20, &vec![13; 256 << 10]);
    client.send_write(command_flag::FUA, 4, 4096 * 6, &[14; 4096]);
    client.send(0, command::FLUSH, 5, 0, 0);
    assert!(cookies_of(&mut client, 6).into_iter().eq(0..6));
    assert_eq!(client.read(0, 8192), vec![10; 8192]);
    assert_eq!(client.read(4096 * 4, 512), vec![4; 512]);
    assert_eq!(client.read(4096 * 4 + 512, 512), vec![11; 512]);
    assert_eq!(client.read(3 << 20, 4096), vec![12; 4096]);
    assert_eq!(client.read(1 << 20, 256 << 10), vec![13; 256 << 10]);
    assert_eq!(client.read(4096 * 6, 4096), vec![14; 4096]);
    // The same blocks again and again: the last write, whichever it is, must be there whole.
    for n in 0..COUNT {
        client.send_write(0, n, 4096 * 9, &[n as u8; 8192]);
    }
    assert!(cookies_of(&mut client, COUNT).into_iter().eq(0..COUNT));
    let last = client.read(4096 * 9, 8192);
    assert_eq!(last, vec![last[0]; 8192]);
}

#[test]
fn many_writes_in_place_go_on_at_once() {
    let (served, _) = Served::simulated(4096);
    writes_many_at_once(&served);
}

#[test]
fn many_writes_in_place_go_on_at_once_past_the_hosts_cache() {
    // Not in the usual place for temporary files, which may be in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pool = directory.path().join("pool");
    let engine = EmbeddedEngine::new(&pool, CacheMode::Direct);
    engine.create_directory().unwrap();
    match engine.create(Part::Data, 0) {
        Ok(data) => drop(data),
        Err(error) => {
            println!("SKIPPED: {error}");
            return;
        }
    }
    engine.remove(Part::Data).unwrap();
    let served = Served::on(Arc::new(engine), directory);
    writes_many_at_once(&served);
    // A client that goes while its writes are in flight takes nothing with it.
    for _ in 0..20 {
        let mut client = served.client();
        for n in 0..100 {
            client.send_write(0, n, n * 4096, &[99; 4096]);
        }
        drop(client);
    }
    let mut client = served.client();
    for n in 0..100 {
        assert_eq!(client.write(0, n * 4096, &[77; 4096]).error, 0);
    }
    assert_eq!(client.read(0, 100 * 4096), vec![77; 100 * 4096]);
}

/// Reports the thread of the next write: a worker, or the connection, whose writes then need no worker.
fn name_of_next_writer(engine: &SimulatedEngine) -> Receiver<String> {
    let (told, hears) = channel();
    let hook = move || {
        let name = std::thread::current().name().map(str::to_owned);
        told.send(name.unwrap_or_default()).unwrap();
    };
    engine.on_next_io(Part::Data, Op::Write, When::Before, Box::new(hook));
    hears
}

#[test]
fn a_write_in_place_that_fails_is_an_error_of_its_own() {
    let (served, engine) = Served::simulated(4096);
    let mut client = served.client();
    assert_eq!(client.write(0, 0, &[1; 16384]).error, 0);
    let writer = name_of_next_writer(&engine);
    engine.fail_once(Part::Data, Op::Write, 1, io::ErrorKind::Other);
    client.send_two_writes((0, &[2; 4096]), (4096, &[3; 4096]));
    let mut replies = [client.reply(0).unwrap(), client.reply(0).unwrap()];
    replies.sort_by_key(|reply| reply.cookie);
    assert!(writer.recv().unwrap().starts_with("nbd-client"));
    // They end in any order, and the first to end fails.
    let [failed, written] = match replies[0].error {
        0 => [1, 0],
        _ => [0, 1],
    };
    assert_eq!(replies[failed].error, Errno::Io as u32);
    assert_eq!(replies[written].error, 0);
    let found = client.read(written as u64 * 4096, 4096);
    assert_eq!(found, vec![written as u8 + 2; 4096]);
    assert_eq!(client.call(0, command::FLUSH, 0, 0).error, 0);
}

/// A thin device may have no room even for a block that already exists.
#[test]
fn a_write_in_place_waits_for_room_on_the_host() {
    let (served, engine) = Served::simulated(4096);
    served.store.set_when_full(WhenFull::Pause).unwrap();
    let mut client = served.client();
    assert_eq!(client.write(0, 0, &[1; 16384]).error, 0);
    for _ in 0..3 {
        let writer = name_of_next_writer(&engine);
        engine.fail_once(Part::Data, Op::Write, 1, io::ErrorKind::StorageFull);
        client.send_two_writes((4096, &[2; 4096]), (8192, &[3; 4096]));
        assert_eq!(cookies_of(&mut client, 2), [0, 1]);
        assert!(writer.recv().unwrap().starts_with("nbd-client"));
        assert_eq!(client.read(4096, 4096), vec![2; 4096]);
        assert_eq!(client.read(8192, 4096), vec![3; 4096]);
    }
    assert_eq!(served.server.requests_waiting_for_space(), 0);
}

/// Records each change of urgency of background work.
struct Noting(Arc<Mutex<Vec<bool>>>);

impl BackgroundExecutor for Noting {
    fn run(&self, work: &mut (dyn FnMut() + Send)) {
        work();
    }

    fn set_hurried(&self, is_hurried: bool) {
        self.0.lock().unwrap().push(is_hurried);
    }
}

#[test]
fn background_work_is_hurried_while_a_write_waits_for_space() {
    let (served, engine) = Served::simulated(4096);
    served.store.set_when_full(WhenFull::Pause).unwrap();
    let told: Arc<Mutex<Vec<bool>>> = Arc::default();
    let noting = Box::new(Noting(Arc::clone(&told)));
    served.store.set_background_executor(noting);
    let mut client = served.client();
    assert_eq!(client.write(0, 0, &[1; 4096]).error, 0);
    assert!(told.lock().unwrap().is_empty());
    engine.fail_once(Part::Data, Op::Write, 1, io::ErrorKind::StorageFull);
    assert_eq!(client.write(0, 0, &[2; 4096]).error, 0);
    assert_eq!(*told.lock().unwrap(), [true, false]);
}
