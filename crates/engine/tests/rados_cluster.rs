//! Hosts that share a pool in Ceph, each with a client of its own: the requirements on every `Cluster`, and what only
//! Ceph does.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

mod cluster_suite;
mod rados_extents;

use cluster_suite::Hosts;
use onefold_engine::Part;
use onefold_engine::cluster::{
    Answer, Answered, CallError, Cluster, Holding, Owned, Reply, TakeError,
};
use onefold_engine::rados::{
    OwnerEvent, PoolDescription, RadosEngine, RadosHost, RadosPlace, TakeOptions,
};
use onefold_format::{GroupId, PoolId, Shard};
use onefold_rados::{Client, ConnectOptions};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::process::Command;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const CEPH_POOL: &str = "onefold";

const HOSTS: usize = 3;

const GROUP: Owned = Owned::Group(GroupId(1));
const OTHER: Owned = Owned::Group(GroupId(2));
const SHARD: Owned = Owned::Shard(Shard(3));
const HEAD_OF_SHARD: &str = "ix.3";

const DESCRIPTION: PoolDescription = PoolDescription {
    identity: PoolId([7; 16]),
    block_bytes: 4096,
    shards: 64,
};

/// A pool in the cluster of ONEFOLD_CEPH_CONF, and the hosts that use it.
struct InCeph {
    name: String,
    runs: [tempfile::TempDir; HOSTS],
    hosts: Mutex<[Option<Arc<RadosHost>>; HOSTS]>,
}

fn client() -> Option<Client> {
    let Some(conf) = std::env::var_os("ONEFOLD_CEPH_CONF") else {
        println!("SKIPPED: ONEFOLD_CEPH_CONF names no cluster");
        return None;
    };
    let options = ConnectOptions {
        conf_file: Some(conf.into()),
        ..ConnectOptions::default()
    };
    Some(Client::connect(&options).unwrap())
}

fn options(patience: Duration) -> TakeOptions {
    TakeOptions {
        patience,
        asks: false,
        fence_interval: Duration::from_secs(3600),
    }
}

impl InCeph {
    /// Returns nothing if there is no cluster.
    fn new(name: &str) -> Option<InCeph> {
        let client = client()?;
        let ceph = InCeph {
            name: format!("hosts-{name}-{}", std::process::id()),
            runs: std::array::from_fn(|_| tempfile::tempdir().unwrap()),
            hosts: Mutex::default(),
        };
        RadosHost::create_pool(&client, &ceph.place(0), &DESCRIPTION).unwrap();
        Some(ceph)
    }

    fn place(&self, n: usize) -> RadosPlace {
        RadosPlace {
            ceph_pool: CEPH_POOL.to_owned(),
            name: self.name.clone(),
            run: self.runs[n].path().to_path_buf(),
        }
    }

    fn open(&self, n: usize) -> Arc<RadosHost> {
        self.open_with(n, 60 * LONG)
    }

    /// Opens a host that renews the fences so often.
    fn open_with(&self, n: usize, fence_interval: Duration) -> Arc<RadosHost> {
        let mut hosts = self.hosts.lock().unwrap();
        let open = || RadosHost::open(&client().unwrap(), &self.place(n), fence_interval).unwrap();
        Arc::clone(hosts[n].get_or_insert_with(|| Arc::new(open())))
    }

    /// The pool's objects, through a client that is no host.
    fn objects(&self) -> onefold_rados::Pool {
        client().unwrap().pool(CEPH_POOL, &self.name).unwrap()
    }
}

impl Hosts for InCeph {
    fn host(&self, n: usize) -> Arc<dyn Cluster> {
        self.open(n)
    }

    fn set_extents(&self, extents: u64) {
        self.open(0).set_extents(extents).unwrap();
    }

    fn kill(&self, n: usize) -> bool {
        let host = self.hosts.lock().unwrap()[n].take();
        host.unwrap().fall_silent();
        true
    }
}

impl Drop for InCeph {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        *self.hosts.lock().unwrap() = Default::default();
        let client = client().unwrap();
        RadosHost::remove_pool(&client, &self.place(0), &options(Duration::ZERO)).unwrap();
        assert_eq!(
            self.objects().objects().unwrap().count(),
            0,
            "something is left"
        );
    }
}

#[test]
fn conforms() {
    if client().is_some() {
        cluster_suite::conforms(|name| InCeph::new(&format!("suite-{name}")).unwrap());
    }
}

/// Longer than anything takes here: a test that waits longer hangs.
const LONG: Duration = Duration::from_secs(60);

/// Two hosts of a new pool. The second one reports its events.
struct Two {
    ceph: InCeph,
    a: Arc<RadosHost>,
    b: Arc<RadosHost>,
    events: mpsc::Receiver<(Owned, OwnerEvent)>,
}

impl Two {
    /// Returns nothing if there is no cluster. Both groups and the shard exist.
    fn new(name: &str) -> Option<Two> {
        let ceph = InCeph::new(name)?;
        let (a, b) = (ceph.open(0), ceph.open(1));
        for what in [GROUP, OTHER, SHARD] {
            a.create(what).unwrap();
        }
        let (told, events) = mpsc::channel();
        let told = Mutex::new(told);
        // The test may have ended.
        b.on_event(move |owned, event| drop(told.lock().unwrap().send((owned, event))));
        Some(Two { ceph, a, b, events })
    }
}

fn take(host: &RadosHost, what: Owned) -> Arc<dyn Holding> {
    host.take(what, &options(LONG)).unwrap()
}

fn blocklist(arguments: &[&str]) -> String {
    let conf = std::env::var_os("ONEFOLD_CEPH_CONF").unwrap();
    let mut ceph = Command::new("ceph");
    let ceph = ceph.arg("--conf").arg(conf).args(["osd", "blocklist"]);
    let output = ceph.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The address of a lock's holder, as the blocklist shows it: without the protocol's name.
fn address_of_owner(pool: &onefold_rados::Pool, head: &str) -> String {
    let address = pool.lockers(head, "owner").unwrap().remove(0).address;
    address.trim_start_matches("v1:").to_owned()
}

fn is_fenced(address: &str) -> bool {
    blocklist(&["ls"]).contains(address)
}

fn forget_fence(address: &str) {
    assert!(is_fenced(address));
    blocklist(&["rm", address]);
}

/// Writes to every kind of object, and returns whether each of them was written.
fn writes(host: &RadosHost, holding: &dyn Holding) -> [bool; 4] {
    let data = holding.open(Part::Data).unwrap();
    let meta = holding
        .open(Part::Meta)
        .and_then(|meta| meta.write_at(&[2; 512], 5 << 20).and_then(|()| meta.sync()));
    let version = host.directory().read().map(|rows| rows.version);
    let change = [("late".to_owned(), Some(Vec::new()))];
    let changed = version.and_then(|version| host.directory().change(version, &change));
    [
        data.write_at(&[2; 512], 0).is_ok(),
        meta.is_ok(),
        host.exchange(GroupId(2), u64::from(u32::MAX), &[], 1)
            .is_ok(),
        changed.is_ok(),
    ]
}

#[test]
fn a_frozen_host_is_fenced_with_all_that_it_owns_and_stays_out() {
    let Some(Two { ceph, a, b, events }) = Two::new("frozen") else {
        return;
    };
    a.set_extents(10).unwrap();
    let holdings = [GROUP, OTHER, SHARD].map(|what| take(&b, what));
    for holding in &holdings {
        holding.create(Part::Meta, 16 << 20).unwrap();
    }
    let other = &*holdings[1];
    assert_eq!(writes(&b, other), [true; 4]);
    let address = address_of_owner(&ceph.objects(), "g.1");
    let before = ceph.objects().stat("g.2.meta.0000000000000001").unwrap();

    b.fall_silent();
    let taken = a.take(GROUP, &options(Duration::from_secs(1))).unwrap();
    assert!(taken.session() > holdings[0].session());
    assert!(is_fenced(&address));
    assert_eq!(writes(&b, other), [false; 4]);
    let found = ceph.objects().stat("g.2.meta.0000000000000001").unwrap();
    assert_eq!(found, before);
    let mut lost: Vec<Owned> = (0..3)
        .map(|_| match events.recv_timeout(LONG).unwrap() {
            (owned, OwnerEvent::Lost { .. }) => owned,
            (owned, event) => panic!("{owned}: {event:?}"),
        })
        .collect();
    lost.sort_unstable();
    assert_eq!(lost, [GROUP, OTHER, SHARD]);
    assert!(b.take(OTHER, &options(Duration::ZERO)).is_err());

    // The directory keeps the address, and shows no row of it. Every host renews the fence
    // when it starts, and periodically.
    let rows = a.directory().read().unwrap().rows;
    assert!(rows.keys().all(|key| key == "late"), "{rows:?}");
    drop((taken, a));
    forget_fence(&address);
    let c = ceph.open_with(2, Duration::from_secs(1));
    assert!(is_fenced(&address));
    forget_fence(&address);
    while !is_fenced(&address) {}
    // Its other holdings need no patience.
    drop(c.take(SHARD, &options(LONG * 60)));
}

#[test]
fn one_holding_is_lost_and_the_others_stay() {
    let Some(Two {
        ceph, b, events, ..
    }) = Two::new("one")
    else {
        return;
    };
    let holdings = [GROUP, OTHER, SHARD].map(|what| take(&b, what));
    let logs = holdings.each_ref().map(|holding| {
        let log = holding.create(Part::Log, 4 << 20).unwrap();
        log.write_at(&[1; 512], 0).unwrap();
        log.sync().unwrap();
        log
    });
    let objects = ceph.objects();
    // As by another owner, which took it although this one lives.
    let log = "g.1.log.0000000000000000";
    let stolen = objects.write_op().set_xattr("session", b"another's");
    objects.change(log, stolen).unwrap();
    assert!(
        logs[0]
            .write_at(&[2; 512], 0)
            .and_then(|()| logs[0].sync())
            .is_err()
    );
    let (owned, event) = events.recv_timeout(LONG).unwrap();
    assert!(
        matches!(event, OwnerEvent::Lost { .. }) && owned == GROUP,
        "{owned} {event:?}"
    );
    let error = holdings[0].create(Part::Meta, 0).err().unwrap();
    assert!(error.to_string().contains("taken group 1"), "{error}");

    objects.remove("g.2").unwrap();
    assert_eq!(
        events.recv_timeout(LONG).unwrap(),
        (OTHER, OwnerEvent::Gone)
    );
    assert!(
        holdings[1]
            .open(Part::Data)
            .unwrap()
            .write_at(&[1], 0)
            .is_err()
    );
    logs[2].write_at(&[3; 512], 0).unwrap();
    logs[2].sync().unwrap();
}

#[test]
fn an_owner_gives_up_when_it_is_asked_and_is_not_fenced() {
    let Some(Two { ceph, a, b, events }) = Two::new("asked") else {
        return;
    };
    let (group, other) = (take(&b, GROUP), take(&b, OTHER));
    let address = address_of_owner(&ceph.objects(), "g.1");
    let asks = TakeOptions {
        asks: true,
        ..options(LONG)
    };
    let asking = thread::spawn(move || a.take(GROUP, &asks).map(|taken| (a, taken)).is_ok());
    assert_eq!(
        events.recv_timeout(LONG).unwrap(),
        (GROUP, OwnerEvent::ReleaseWanted)
    );
    drop(group);
    assert!(asking.join().unwrap());
    assert!(!is_fenced(&address));
    other.open(Part::Data).unwrap().write_at(&[1], 0).unwrap();
}

#[test]
fn a_group_that_is_removed_while_another_host_waits_for_it_is_gone() {
    let Some(Two { ceph, a, b, events }) = Two::new("gone") else {
        return;
    };
    let group = take(&b, GROUP);
    let asks = TakeOptions {
        asks: true,
        ..options(LONG)
    };
    let asking = thread::spawn(move || match a.take(GROUP, &asks) {
        Err(TakeError::Io(error)) => (a, error),
        _ => panic!("a group that is gone was taken"),
    });
    assert_eq!(
        events.recv_timeout(LONG).unwrap(),
        (GROUP, OwnerEvent::ReleaseWanted)
    );
    b.remove(group).unwrap();
    let (a, error) = asking.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(
        !snapshot(&ceph.objects())
            .iter()
            .any(|(name, _)| name.starts_with("g.1"))
    );
    a.create(GROUP).unwrap();
}

#[test]
fn an_owner_that_has_given_up_while_it_was_silent_is_not_fenced() {
    let Some(Two { ceph, a, .. }) = Two::new("left") else {
        return;
    };
    let silent = ceph.objects();
    silent
        .lock_exclusive("g.1", "owner", "of a test", "silent", None)
        .unwrap();
    let address = address_of_owner(&silent, "g.1");
    let began = Instant::now();
    let asking = thread::spawn(move || drop(take(&a, GROUP)));
    thread::sleep(Duration::from_secs(2));
    silent.unlock("g.1", "owner", "of a test").unwrap();
    asking.join().unwrap();
    assert!(
        began.elapsed() < LONG,
        "it has waited for an owner that was gone"
    );
    assert!(!is_fenced(&address));
}

#[test]
fn threads_of_one_host_do_not_take_from_each_other() {
    let Some(Two { ceph: _ceph, a, .. }) = Two::new("threads") else {
        return;
    };
    for _ in 0..5 {
        let (begin, ready) = (Barrier::new(4), Barrier::new(4));
        let race = || {
            begin.wait();
            let taken = a.take(GROUP, &options(Duration::ZERO));
            ready.wait();
            taken.is_ok()
        };
        let won = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(race));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    }
}

/// Says who answers.
struct Named(u8);

impl Answer for Named {
    fn answer(&self, request: Vec<u8>, reply: Reply) {
        reply([request, vec![self.0]].concat());
    }
}

fn call(host: &RadosHost, shard: Shard, request: &[u8]) -> Result<Vec<u8>, CallError> {
    let (ended, end) = mpsc::channel();
    let answered: Answered = Box::new(move |outcome| ended.send(outcome).unwrap());
    let what = Owned::Shard(shard);
    host.call(what, request.to_vec(), Duration::from_secs(1), answered);
    end.recv_timeout(LONG).unwrap()
}

#[test]
fn calls_reach_the_present_owner_and_no_former_one() {
    let Some(Two { ceph, a, b, .. }) = Two::new("calls") else {
        return;
    };
    let (c, shard) = (ceph.open(2), Shard(3));
    let outcome = |host: &RadosHost| match call(host, shard, b"x") {
        Ok(reply) => reply.last().copied().map_or(' ', char::from),
        Err(CallError::Unserved) => '-',
        Err(CallError::Unknown(_)) => '?',
    };
    assert_eq!((outcome(&a), outcome(&c)), ('-', '-'));
    let of_b = take(&b, SHARD);
    // It owns the shard, and does not answer calls yet.
    assert_eq!(outcome(&a), '-');
    of_b.serve(Arc::new(Named(b'b'))).unwrap();
    assert_eq!((outcome(&a), outcome(&c), outcome(&b)), ('b', 'b', 'b'));
    b.fall_silent();
    assert_eq!((outcome(&a), outcome(&c)), ('?', '?'));
    let of_a = a.take(SHARD, &options(Duration::ZERO)).unwrap();
    of_a.serve(Arc::new(Named(b'a'))).unwrap();
    assert_eq!((outcome(&a), outcome(&c)), ('a', 'a'));
    // A watcher that pretends to be an owner is not believed.
    let liar = ceph.objects();
    let lie = |question: onefold_rados::Notification| drop(question.reply(b"reply former\nl"));
    let lying = liar.watch("ix.3", None, lie, |_| {}).unwrap();
    assert_eq!((outcome(&a), outcome(&c)), ('a', 'a'));
    drop(lying);
    drop(of_a);
    assert_eq!(outcome(&c), '-');
    let long = vec![0; (64 << 10) + 1];
    let Err(CallError::Unknown(error)) = call(&c, shard, &long) else {
        panic!("a request has no limit");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(
        a.create(Owned::Shard(Shard(64))).is_err() && a.create(Owned::Group(GroupId(0))).is_err()
    );
}

#[test]
fn all_shards_are_called_at_once() {
    let Some(Two {
        ceph: _ceph, a, b, ..
    }) = Two::new("shards")
    else {
        return;
    };
    let shards = (0..DESCRIPTION.shards).map(Shard);
    let holdings: Vec<_> = shards
        .clone()
        .map(|shard| {
            let what = Owned::Shard(shard);
            if what != SHARD {
                a.create(what).unwrap();
            }
            let holding = take(&b, what);
            holding.serve(Arc::new(Named(shard.0 as u8))).unwrap();
            holding
        })
        .collect();
    let (ended, ends) = mpsc::channel();
    for round in 0..8 {
        let began = Instant::now();
        for shard in shards.clone() {
            let ended = ended.clone();
            let answered: Answered = Box::new(move |outcome| ended.send((shard, outcome)).unwrap());
            a.call(Owned::Shard(shard), vec![7; 2048], LONG, answered);
        }
        for _ in shards.clone() {
            let (shard, outcome) = ends.recv_timeout(LONG).unwrap();
            let reply = outcome.unwrap();
            assert_eq!((reply.len(), reply[2048]), (2049, shard.0 as u8));
        }
        println!(
            "round {round}: {} calls in {:?}",
            holdings.len(),
            began.elapsed()
        );
    }
    // Dropped inside of an answer, a holding waits for nothing.
    drop(holdings);
}

#[test]
fn the_directory_has_any_number_of_rows() {
    let Some(Two {
        ceph: _ceph, a, b, ..
    }) = Two::new("directory")
    else {
        return;
    };
    let rows = (0..2500).map(|n| (format!("volume/{n}"), Some(vec![n as u8; 20])));
    let rows: Vec<_> = rows.collect();
    let version = a.directory().read().unwrap().version;
    assert!(a.directory().change(version, &rows).unwrap());
    let found = b.directory().read().unwrap();
    assert_eq!(found.rows.len(), 2500);
    assert!(
        rows.iter()
            .all(|(key, value)| found.rows.get(key) == value.as_ref())
    );
    let own = [("fenced/x".to_owned(), None)];
    let refused = b.directory().change(found.version, &own).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_process_of_the_same_directory_goes_on_at_once_with_its_memory() {
    let Some(Two { ceph, a, b, .. }) = Two::new("again") else {
        return;
    };
    let (group, other) = (take(&b, GROUP), take(&b, OTHER));
    let (last, number) = (take(&b, SHARD).session(), group.session());
    for holding in [&group, &other] {
        holding.host_memory(64).unwrap().write_at(&[5; 64], 0);
    }
    let memory = |holding: &dyn Holding| {
        let mut found = [0; 1];
        holding.host_memory(64).unwrap().read_at(&mut found, 63);
        found[0]
    };
    ceph.kill(1);
    let again = ceph.open(1);
    // The dead need no patience.
    let taken = again.take(GROUP, &options(LONG * 60)).unwrap();
    assert!(taken.session() > number);
    assert_eq!(memory(&*taken), 5);
    // Another host has had this one.
    drop(a.take(OTHER, &options(Duration::ZERO)).unwrap());
    assert_eq!(memory(&*take(&again, OTHER)), 0);
    // A shard that is made again has later sessions than the one before.
    a.remove(take(&a, SHARD)).unwrap();
    a.create(SHARD).unwrap();
    let last_of_shard = take(&again, SHARD).session();
    assert!(last_of_shard > last + 1);
    assert!(a.remove(taken).is_err());
    // Also if its objects are lost.
    ceph.objects().remove(HEAD_OF_SHARD).unwrap();
    a.create(SHARD).unwrap();
    assert!(take(&again, SHARD).session() > last_of_shard);
}

/// The names and versions of all objects.
fn snapshot(pool: &onefold_rados::Pool) -> BTreeSet<(String, u64)> {
    let names = pool.objects().unwrap();
    let with_version = |name: String| {
        let reply = pool.ask(&name, pool.read_op().stat()).unwrap();
        (name, reply.version.number())
    };
    names.map(|name| with_version(name.unwrap())).collect()
}

#[test]
fn a_pool_of_the_other_format_is_refused_and_stays_as_it_is() {
    let Some(ceph) = InCeph::new("format") else {
        return;
    };
    let (client, place, objects) = (client().unwrap(), ceph.place(0), ceph.objects());
    let before = snapshot(&objects);
    let options = options(Duration::ZERO);
    let error = match RadosEngine::take(&client, &place, options) {
        Err(TakeError::Io(error)) => error,
        _ => panic!("a shared pool has one owner"),
    };
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = RadosEngine::create_pool(&client, &place).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let error = RadosHost::create_pool(&client, &place, &DESCRIPTION).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert_eq!(snapshot(&objects), before);
    // What earlier releases look at: they know layout 1 only.
    let reply = objects.ask("g.0", objects.read_op().xattrs()).unwrap();
    assert_eq!(reply.xattrs, [("format".to_owned(), b"2".to_vec())]);

    let first = RadosPlace {
        name: format!("{}-one", place.name),
        ..place.clone()
    };
    RadosEngine::create_pool(&client, &first).unwrap();
    let objects = client.pool(CEPH_POOL, &first.name).unwrap();
    let before = snapshot(&objects);
    let error = RadosHost::open(&client, &first, LONG).err().unwrap();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(RadosHost::remove_pool(&client, &first, &options).is_err());
    assert!(RadosHost::create_pool(&client, &first, &DESCRIPTION).is_err());
    assert_eq!(snapshot(&objects), before);
    let engine = RadosEngine::take(&client, &first, options).unwrap();
    engine.remove_pool().unwrap();
    let error = RadosHost::open(&client, &first, LONG).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn a_pool_is_removed_when_nobody_owns_any_of_it() {
    let Some(Two { ceph, a, b, .. }) = Two::new("removal") else {
        return;
    };
    let group = take(&b, GROUP);
    let data = group.open(Part::Data).unwrap();
    data.write_at(&[1; 512], 1 << 40).unwrap();
    let (client, place, objects) = (client().unwrap(), ceph.place(2), ceph.objects());
    objects.write_now("a stranger", 0, b"x").unwrap();
    let before: Vec<_> = objects.objects().unwrap().map(Result::unwrap).collect();
    let removed = RadosHost::remove_pool(&client, &place, &options(LONG));
    assert!(
        matches!(removed, Err(TakeError::Held { .. })),
        "{removed:?}"
    );
    assert_eq!(objects.objects().unwrap().count(), before.len());
    // Those that it took first are free again.
    drop((take(&a, SHARD), group, data));
    // A removal that is interrupted is noticed, and can be repeated.
    objects.remove("pool").unwrap();
    let error = RadosHost::open(&client, &place, LONG).err().unwrap();
    println!("{error}");
    assert!(error.to_string().contains("interrupted"), "{error}");
    assert_eq!(
        a.create(Owned::Group(GroupId(9))).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    RadosHost::remove_pool(&client, &place, &options(LONG)).unwrap();
    let left: Vec<_> = objects.objects().unwrap().map(Result::unwrap).collect();
    assert_eq!(left, ["a stranger"]);
    objects.remove("a stranger").unwrap();
    RadosHost::create_pool(&client, &place, &DESCRIPTION).unwrap();
}
