//! The requirements on every [`Cluster`], the same for all. It uses the trait alone.

use onefold_engine::cluster::{
    Answer, CallError, Cluster, Exchanged, ExtentCounts, Holding, Owned, OwnerEvent, Reply,
    TakeError, TakeOptions,
};
use onefold_engine::{Disk, Part};
use onefold_format::record::EXCHANGE_ITEMS_MAX;
use onefold_format::units::BLOCKS_PER_SPACE_EXTENT;
use onefold_format::{GivenRun, GroupId, Shard, SpaceExtent};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const BLOCK: u64 = 4096;

/// The size of a data object.
const OBJECT: u64 = 4 << 20;

/// The bytes that blocks of 4 KiB can address.
const DATA_BYTES: u64 = BLOCK << 40;

/// The time for an owner to be silent before it is dead: enough that a live one answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// The time-out of a call that is answered: longer than an answer takes on a busy machine.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The time-out of a call that is never answered.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

const GROUP: Owned = Owned::Group(GroupId(1));
const OTHER: Owned = Owned::Group(GroupId(2));
const SHARD: Owned = Owned::Shard(Shard(3));

/// The hosts of one pool. The pool has no groups, no shards and no space extents when it is made.
pub(crate) trait Hosts {
    /// The view of host `n`, 0 to 2: the same one each time, until the host is killed.
    fn host(&self, n: usize) -> Arc<dyn Cluster>;

    /// Sets the number of space extents that the pool has.
    fn set_extents(&self, extents: u64);

    /// Ends host `n` as if its process had died: its holdings stay its own until they are taken. Returns whether this
    /// can be done.
    fn kill(&self, n: usize) -> bool;
}

type Check = fn(&dyn Hosts);

/// Checks all requirements, each with a new pool, whose name is given.
pub(crate) fn conforms<H: Hosts>(new_pool: impl Fn(&str) -> H) {
    let checks: [(&str, Check); 17] = [
        ("created", created_once),
        ("exclusive", owned_by_one),
        ("race", taken_by_one_of_two),
        ("wanted", an_owner_hears_that_it_is_asked),
        ("owners", parts_keep_their_content),
        ("apart", parts_are_of_one_group),
        ("data", data_is_shared),
        ("missing", missing_data_is_an_error),
        ("secret", secret_is_shared),
        ("exchange", extents_are_leased_once),
        ("completed", extents_are_completed),
        ("refused", exchanges_are_refused),
        ("record", exchanges_fit_a_record),
        ("directory", directory_changes_by_version),
        ("calls", calls_reach_the_owner),
        ("dead", the_dead_are_replaced),
        ("removed", removed_with_its_parts),
    ];
    for (name, check) in checks {
        println!("checking '{name}'");
        check(&new_pool(name));
    }
}

fn options() -> TakeOptions {
    TakeOptions {
        patience: PATIENCE,
        asks: false,
        fence_interval: Duration::from_secs(3600),
    }
}

fn take(host: &Arc<dyn Cluster>, what: Owned) -> Arc<dyn Holding> {
    host.take(what, &options()).unwrap()
}

fn is_held(host: &Arc<dyn Cluster>, what: Owned) -> bool {
    match host.take(what, &options()) {
        Err(TakeError::Held { owner }) => !owner.is_empty(),
        Err(TakeError::Io(error)) => panic!("{error}"),
        Ok(_) => false,
    }
}

fn kind_of<T>(taken: Result<T, TakeError>) -> Option<ErrorKind> {
    match taken {
        Err(TakeError::Io(error)) => Some(error.kind()),
        _ => None,
    }
}

fn error_of<T>(result: io::Result<T>) -> ErrorKind {
    match result {
        Err(error) => error.kind(),
        Ok(_) => panic!("it succeeded"),
    }
}

fn read(disk: &dyn Disk, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    disk.read_at(&mut bytes, offset).unwrap();
    bytes
}

fn created_once(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    for what in [GROUP, SHARD] {
        assert_eq!(
            kind_of(a.take(what, &options())),
            Some(ErrorKind::NotFound),
            "{what}"
        );
        a.create(what).unwrap();
        assert_eq!(error_of(a.create(what)), ErrorKind::AlreadyExists);
        assert_eq!(error_of(b.create(what)), ErrorKind::AlreadyExists);
        let holding = take(&b, what);
        assert_eq!(holding.owned(), what);
        for part in Part::ALL {
            if part != Part::Data {
                assert_eq!(error_of(holding.open(part)), ErrorKind::NotFound);
            }
        }
    }
}

fn owned_by_one(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    for what in [GROUP, SHARD] {
        a.create(what).unwrap();
        let mut sessions = Vec::new();
        for (host, other) in [(&a, &b), (&b, &a), (&b, &a), (&a, &b)] {
            let holding = take(host, what);
            sessions.push(holding.session());
            assert!(is_held(other, what) && is_held(host, what));
            let handle = Arc::clone(&holding);
            drop(holding);
            assert!(is_held(other, what), "a handle is left");
            assert_eq!(handle.session(), sessions[sessions.len() - 1]);
        }
        assert!(sessions.is_sorted_by(|a, b| a < b), "{sessions:?}");
    }
    // Others are not concerned.
    a.create(OTHER).unwrap();
    let (_one, _two) = (take(&a, GROUP), take(&b, OTHER));
}

fn taken_by_one_of_two(hosts: &dyn Hosts) {
    let both = [hosts.host(0), hosts.host(1)];
    both[0].create(GROUP).unwrap();
    for _ in 0..5 {
        let (barrier, ready) = (Barrier::new(2), Barrier::new(2));
        let race = |host: &Arc<dyn Cluster>| {
            barrier.wait();
            let taken = host.take(GROUP, &options());
            // The winner keeps it until the other has tried.
            ready.wait();
            match taken {
                Ok(_) => true,
                Err(TakeError::Held { .. }) => false,
                Err(TakeError::Io(error)) => panic!("{error}"),
            }
        };
        let won = thread::scope(|scope| {
            let threads = both.each_ref().map(|host| scope.spawn(|| race(host)));
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(won[0] != won[1], "{won:?}");
    }
}

fn an_owner_hears_that_it_is_asked(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    let asks = TakeOptions {
        asks: true,
        ..options()
    };
    for what in [GROUP, SHARD] {
        a.create(what).unwrap();
        let holding = take(&a, what);
        let session = holding.session();
        let (told, events) = mpsc::channel();
        holding.on_event(Box::new(|event| {
            panic!("{event:?} came to an old callback")
        }));
        // The receiver may have ended.
        holding.on_event(Box::new(move |event| drop(told.send(event))));
        // A callback must not wait, so it does not give up by itself.
        let owner = thread::spawn(move || {
            let event = events.recv().unwrap();
            drop(holding);
            event
        });
        let taken = loop {
            match b.take(what, &asks) {
                Ok(taken) => break taken,
                Err(TakeError::Held { .. }) => thread::yield_now(),
                Err(TakeError::Io(error)) => panic!("{error}"),
            }
        };
        assert_eq!(owner.join().unwrap(), OwnerEvent::ReleaseWanted);
        assert!(taken.session() > session);
    }
}

fn parts_keep_their_content(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    let parts = [
        Part::Superblock,
        Part::Meta,
        Part::Log,
        Part::Index,
        Part::Scrub,
        Part::Losses,
    ];
    for what in [GROUP, SHARD] {
        a.create(what).unwrap();
        let holding = take(&a, what);
        for (part, byte) in parts.into_iter().zip(1..) {
            let disk = holding.create(part, 2 * BLOCK).unwrap();
            disk.write_at(&[byte; BLOCK as usize], BLOCK).unwrap();
            disk.sync().unwrap();
        }
        drop(holding);
        let holding = take(&b, what);
        for (part, byte) in parts.into_iter().zip(1..) {
            assert_eq!(error_of(holding.create(part, 0)), ErrorKind::AlreadyExists);
            let disk = holding.open(part).unwrap();
            assert_eq!(disk.len().unwrap(), 2 * BLOCK);
            assert_eq!(read(&*disk, BLOCK, 2), [byte; 2]);
            assert_eq!(read(&*disk, 0, 2), [0; 2]);
            disk.write_at(&[byte + 100], 0).unwrap();
            disk.sync().unwrap();
        }
        let next = holding.create(Part::NextIndex, 0).unwrap();
        next.write_at(&[77; 512], 0).unwrap();
        next.sync().unwrap();
        drop(next);
        holding.replace(Part::Index, Part::NextIndex).unwrap();
        holding.remove(Part::Losses).unwrap();
        drop(holding);
        let holding = take(&a, what);
        let first = |part| read(&*holding.open(part).unwrap(), 0, 1)[0];
        assert_eq!((first(Part::Log), first(Part::Index)), (103, 77));
        assert_eq!(error_of(holding.open(Part::Losses)), ErrorKind::NotFound);
    }
}

fn parts_are_of_one_group(hosts: &dyn Hosts) {
    let a = hosts.host(0);
    let all = [GROUP, OTHER, SHARD, Owned::Shard(Shard(1))];
    let holdings = all.map(|what| {
        a.create(what).unwrap();
        take(&a, what)
    });
    let disks = holdings
        .each_ref()
        .map(|holding| holding.create(Part::Index, 0).unwrap());
    for (disk, byte) in disks.iter().zip(1..) {
        disk.write_at(&[byte; 512], 0).unwrap();
        disk.sync().unwrap();
    }
    for (disk, byte) in disks.iter().zip(1..) {
        assert_eq!(read(&**disk, 0, 512), [byte; 512]);
    }
    let mut memories = Vec::new();
    for (holding, byte) in holdings.iter().zip(1..) {
        let memory = holding.host_memory(64).unwrap();
        memory.write_at(&[byte; 64], 0);
        memories.push(memory);
    }
    for (memory, byte) in memories.iter().zip(1..) {
        let mut found = [0; 64];
        memory.read_at(&mut found, 0);
        assert_eq!(found, [byte; 64]);
    }
}

/// Two groups on two hosts, and their views of the data.
fn two_groups(hosts: &dyn Hosts) -> [(Arc<dyn Holding>, Arc<dyn Disk>); 2] {
    let (a, b) = (hosts.host(0), hosts.host(1));
    a.create(GROUP).unwrap();
    a.create(OTHER).unwrap();
    [(&a, GROUP), (&b, OTHER)].map(|(host, what)| {
        let holding = take(host, what);
        let data = holding.open(Part::Data).unwrap();
        (holding, data)
    })
}

fn data_is_shared(hosts: &dyn Hosts) {
    let [(one, data), (_two, others)] = two_groups(hosts);
    assert!(data.len().unwrap() >= DATA_BYTES);
    // It is always there.
    assert_eq!(
        error_of(one.create(Part::Data, 0)),
        ErrorKind::AlreadyExists
    );
    let far = DATA_BYTES - 2 * OBJECT;
    for (offset, byte) in [(0, 1), (OBJECT - BLOCK, 2), (far, 3)] {
        let bytes = vec![byte; 2 * BLOCK as usize];
        data.write_at(&bytes, offset).unwrap();
        assert_eq!(read(&*others, offset, bytes.len()), bytes);
    }
    others.write_at(&[4; BLOCK as usize], BLOCK).unwrap();
    assert_eq!(read(&*data, BLOCK, 2), [4; 2]);
    // It has no length of its own, and no reservations.
    data.set_len(0).unwrap();
    data.reserve(OBJECT).unwrap();
    data.sync().unwrap();
    assert!(others.len().unwrap() >= DATA_BYTES);
    assert_eq!(read(&*others, 0, 1), [1]);
    drop((one, data));
    // The group's end is not the data's.
    hosts.host(0).remove(take(&hosts.host(0), GROUP)).unwrap();
    assert_eq!(read(&*others, far, 1), [3]);
}

fn missing_data_is_an_error(hosts: &dyn Hosts) {
    let [(_one, data), (_two, others)] = two_groups(hosts);
    let block = || vec![0; BLOCK as usize];
    let eof = |disk: &dyn Disk, offset| {
        assert_eq!(
            error_of(disk.read_at(&mut block(), offset)),
            ErrorKind::UnexpectedEof,
            "at {offset}"
        );
    };
    eof(&*data, 0);
    data.write_at(&[1; 2 * BLOCK as usize], 7 * OBJECT).unwrap();
    // The object is too short, and the next one is missing.
    eof(&*others, 7 * OBJECT + 2 * BLOCK);
    eof(&*others, 8 * OBJECT);
    eof(&*others, 6 * OBJECT);
    // A part of it becomes zeros, and the rest stays.
    others.discard(7 * OBJECT, BLOCK).unwrap();
    assert_eq!(read(&*data, 7 * OBJECT + BLOCK, 1), [1]);
    // The whole object is removed.
    data.write_at(&[2; BLOCK as usize], 8 * OBJECT).unwrap();
    others.discard(7 * OBJECT, OBJECT).unwrap();
    eof(&*data, 7 * OBJECT + BLOCK);
    assert_eq!(read(&*others, 8 * OBJECT, 1), [2]);
}

fn secret_is_shared(hosts: &dyn Hosts) {
    let [(one, _), (two, _)] = two_groups(hosts);
    let secret = one.create(Part::Secret, BLOCK).unwrap();
    secret.write_at(&[5; BLOCK as usize], 0).unwrap();
    secret.sync().unwrap();
    assert_eq!(
        error_of(two.create(Part::Secret, BLOCK)),
        ErrorKind::AlreadyExists
    );
    let found = two.open(Part::Secret).unwrap();
    assert_eq!(read(&*found, 0, BLOCK as usize), [5; BLOCK as usize]);
}

/// All blocks of an extent.
fn whole(extent: &SpaceExtent) -> GivenRun {
    GivenRun {
        pba: extent.first(),
        count: BLOCKS_PER_SPACE_EXTENT as u32,
    }
}

fn wholes(extents: &[SpaceExtent]) -> Vec<GivenRun> {
    extents.iter().map(whole).collect()
}

fn taken(exchanged: io::Result<Exchanged>) -> Vec<SpaceExtent> {
    exchanged.unwrap().taken
}

fn free_extents(host: &Arc<dyn Cluster>) -> u64 {
    host.extent_counts().unwrap().free
}

fn extents_are_leased_once(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    let (one, two) = (GroupId(1), GroupId(2));
    a.create(GROUP).unwrap();
    a.create(OTHER).unwrap();
    assert_eq!(a.last_exchange(one).unwrap(), None);
    assert_eq!(free_extents(&a), 0);
    assert_eq!(taken(a.exchange(one, 1, &[], 1)), []);
    hosts.set_extents(5);
    assert_eq!(b.extent_counts().unwrap(), ExtentCounts { free: 5, all: 5 });
    // The answer to number 1 is what it was.
    assert_eq!(taken(a.exchange(one, 1, &[], 1)), []);
    let first = taken(a.exchange(one, 5, &[], 3));
    assert_eq!(first.len(), 3);
    assert_eq!(free_extents(&a), 2);
    // A repeat changes nothing, wherever it comes from.
    assert_eq!(taken(a.exchange(one, 5, &[], 3)), first);
    assert_eq!(taken(b.exchange(one, 5, &[], 3)), first);
    assert_eq!(free_extents(&b), 2);
    // The numbers of another group are its own.
    let others = taken(b.exchange(two, 1, &[], 2));
    assert_eq!(others.len(), 2);
    let all: BTreeSet<SpaceExtent> = first.iter().chain(&others).copied().collect();
    assert_eq!(all.len(), 5, "one extent is leased twice");
    assert!(!all.contains(&SpaceExtent(0)), "block 0 is in it");
    assert_eq!(taken(a.exchange(one, 6, &[], 1)), []);
    // Extents that are given back are leased again.
    let gift = wholes(&first[..2]);
    assert_eq!(taken(a.exchange(one, 7, &gift, 0)), []);
    assert_eq!(free_extents(&b), 2);
    let last = b.last_exchange(one).unwrap().unwrap();
    assert_eq!(
        (last.number, last.given, last.taken),
        (7, gift.clone(), vec![])
    );
    let again = taken(b.exchange(two, 2, &[], 2));
    let given: BTreeSet<_> = first[..2].iter().copied().collect();
    assert_eq!(again.iter().copied().collect::<BTreeSet<_>>(), given);
    // The repeat of an exchange that gave does not give again.
    assert_eq!(taken(a.exchange(one, 7, &gift, 0)), []);
    assert_eq!(free_extents(&a), 0);
    hosts.set_extents(9);
    assert_eq!(free_extents(&a), 4);
    let swapped = taken(a.exchange(one, 8, &wholes(&first[2..]), 2));
    assert_eq!(swapped.len(), 2);
    assert!(!swapped.contains(&first[2]) && !swapped.iter().any(|extent| all.contains(extent)));
    assert_eq!(free_extents(&a), 3);
}

/// An extent whose blocks are given part by part, by several groups, is taken by the group that gives the last part.
fn extents_are_completed(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    let (one, two) = (GroupId(1), GroupId(2));
    a.create(GROUP).unwrap();
    a.create(OTHER).unwrap();
    hosts.set_extents(1);
    let extent = taken(a.exchange(one, 1, &[], 1))[0];
    let all = whole(&extent);
    let part = |from: u32, to: u32| GivenRun {
        pba: all.pba + u64::from(from),
        count: to - from,
    };
    assert_eq!(
        taken(a.exchange(one, 2, &[part(0, 5), part(100, 1000)], 1)),
        []
    );
    let refused = b.exchange(two, 1, &[part(999, 1001)], 0);
    assert_eq!(error_of(refused), ErrorKind::InvalidInput);
    assert_eq!(taken(b.exchange(two, 1, &[part(5, 100)], 0)), []);
    assert_eq!(free_extents(&a), 0);
    let (first, end) = (all.pba.0, all.pba.0 + u64::from(all.count));
    let given = |blocks| -> Vec<(u64, u64)> {
        let runs = b.given_blocks(blocks).unwrap().into_iter();
        runs.map(|run| (run.start, run.end)).collect()
    };
    assert_eq!(given(0..2 * end), [(first, first + 1000)]);
    assert_eq!(given(first + 7..first + 9), [(first + 7, first + 9)]);
    assert!(given(first + 1000..end).is_empty());
    assert_eq!(
        taken(b.exchange(two, 2, &[part(1000, all.count)], 0)),
        [extent]
    );
    assert_eq!(
        taken(b.exchange(two, 2, &[part(1000, all.count)], 0)),
        [extent]
    );
    assert_eq!(free_extents(&a), 0);
    assert!(given(0..2 * end).is_empty());
    assert_eq!(taken(b.exchange(two, 3, &[all], 0)), []);
    assert_eq!(given(0..2 * end), [(first, end)]);
    assert_eq!(taken(a.exchange(one, 3, &[], 1)), [extent]);
}

fn exchanges_are_refused(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    let (one, two) = (GroupId(1), GroupId(2));
    a.create(GROUP).unwrap();
    a.create(OTHER).unwrap();
    hosts.set_extents(4);
    let mine = taken(a.exchange(one, 5, &[], 2));
    let gift = wholes(&mine);
    let unknown = [gift[0], whole(&SpaceExtent(1 << 20))];
    let twice = [gift[0], gift[0]];
    let part = |from: u64, count| GivenRun {
        pba: gift[0].pba + from,
        count,
    };
    let (none, beyond) = ([part(5, 0)], [part(1, gift[0].count)]);
    let overlapping = [part(0, 5), part(9, 5), part(4, 1)];
    let label = [whole(&SpaceExtent(0))];
    for (number, give) in [
        (4, &[][..]),
        (4, &gift),
        (6, &unknown),
        (6, &twice),
        (6, &none),
        (6, &beyond),
        (6, &overlapping),
        (6, &label),
    ] {
        let refused = a.exchange(one, number, give, 0);
        assert_eq!(error_of(refused), ErrorKind::InvalidInput, "{give:?}");
    }
    // Nothing has changed, and no number is used up.
    assert_eq!(free_extents(&a), 2);
    assert_eq!(taken(a.exchange(one, 5, &[], 2)), mine);
    assert_eq!(taken(b.exchange(two, 1, &[], 1)).len(), 1);
    assert_eq!(taken(a.exchange(one, 6, &gift, 0)), []);
    assert_eq!(free_extents(&a), 3);
}

/// What an exchange completes beyond the room in a record is free.
fn exchanges_fit_a_record(hosts: &dyn Hosts) {
    let a = hosts.host(0);
    let one = GroupId(1);
    a.create(GROUP).unwrap();
    hosts.set_extents(1000);
    let mine = taken(a.exchange(one, 1, &[], u32::MAX));
    assert_eq!(mine.len(), EXCHANGE_ITEMS_MAX);
    let part = |extent: usize, from: usize, to: usize| GivenRun {
        pba: mine[extent].first() + from as u64,
        count: (to - from) as u32,
    };
    let blocks = |extent, from, to| (from..to).map(move |n| part(extent, n, n + 1));
    let all = BLOCKS_PER_SPACE_EXTENT as usize;
    let many: Vec<GivenRun> = blocks(0, 0, EXCHANGE_ITEMS_MAX + 1).collect();
    let refused = a.exchange(one, 2, &many, 0);
    assert_eq!(error_of(refused), ErrorKind::InvalidInput);
    let first = taken(a.exchange(one, 2, &many[1..], u32::MAX));
    assert_eq!(first, []);
    let rests = [
        part(0, EXCHANGE_ITEMS_MAX + 1, all),
        part(1, 1, all),
        part(2, 1, all),
    ];
    assert_eq!(taken(a.exchange(one, 3, &rests, 0)), []);
    // Three are completed, and there is room for one.
    let free = free_extents(&a);
    let mut give: Vec<GivenRun> = (0..3).map(|extent| part(extent, 0, 1)).collect();
    give.extend(blocks(3, 0, EXCHANGE_ITEMS_MAX - 4));
    let completed = taken(a.exchange(one, 4, &give, 0));
    assert!(completed.len() == 1 && mine[..3].contains(&completed[0]));
    assert_eq!(free_extents(&a), free + 2);
}

fn directory_changes_by_version(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    let set = |key: &str, value: &[u8]| (key.to_owned(), Some(value.to_vec()));
    let first = a.directory().read().unwrap();
    assert!(first.rows.is_empty());
    assert!(
        a.directory()
            .change(first.version, &[set("one", b"1"), set("two", b"")])
            .unwrap()
    );
    let second = b.directory().read().unwrap();
    assert_ne!(second.version, first.version);
    assert_eq!(second.rows.len(), 2);
    assert_eq!(second.rows["one"], b"1");
    assert_eq!(second.rows["two"], b"");
    assert!(
        !b.directory()
            .change(first.version, &[set("one", b"old")])
            .unwrap()
    );
    assert_eq!(a.directory().read().unwrap(), second);
    let large = vec![7; 4096];
    let changes = [
        ("two".to_owned(), None),
        set("one", &large),
        ("none".to_owned(), None),
    ];
    assert!(b.directory().change(second.version, &changes).unwrap());
    let third = a.directory().read().unwrap();
    assert_eq!(third.rows.len(), 1);
    assert_eq!(third.rows["one"], large);
    assert!(third.version != second.version && third.version != first.version);
}

/// Appends its name to each request, and drops the reply to an empty one.
struct Named(&'static [u8]);

impl Answer for Named {
    fn answer(&self, request: Vec<u8>, reply: Reply) {
        if !request.is_empty() {
            reply([&request, self.0].concat());
        }
    }
}

/// Answers later, on another thread.
struct Later(mpsc::Sender<(Vec<u8>, Reply)>);

impl Answer for Later {
    fn answer(&self, request: Vec<u8>, reply: Reply) {
        self.0.send((request, reply)).unwrap();
    }
}

fn call(
    host: &Arc<dyn Cluster>,
    what: Owned,
    request: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, CallError> {
    let (ended, end) = mpsc::channel();
    let answered = Box::new(move |outcome| ended.send(outcome).unwrap());
    host.call(what, request.to_vec(), timeout, answered);
    let outcome = end.recv().unwrap();
    assert!(end.recv().is_err(), "answered twice");
    outcome
}

fn is_unserved(outcome: Result<Vec<u8>, CallError>) -> bool {
    matches!(outcome, Err(CallError::Unserved))
}

fn calls_reach_the_owner(hosts: &dyn Hosts) {
    for what in [GROUP, SHARD] {
        calls_reach_the_owner_of(hosts, what);
    }
}

fn calls_reach_the_owner_of(hosts: &dyn Hosts, what: Owned) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    a.create(what).unwrap();
    assert!(is_unserved(call(&a, what, b"x", CALL_TIMEOUT)));
    let holding = take(&a, what);
    holding.serve(Arc::new(Named(b" of a"))).unwrap();
    for host in [&a, &b] {
        assert_eq!(
            call(host, what, b"asked", CALL_TIMEOUT).unwrap(),
            b"asked of a"
        );
        let dropped = call(host, what, b"", SHORT_TIMEOUT);
        assert!(matches!(dropped, Err(CallError::Unknown(_))), "{dropped:?}");
    }
    let long = vec![9; 64 << 10];
    assert_eq!(
        call(&b, what, &long, CALL_TIMEOUT).unwrap().len(),
        long.len() + 5
    );
    drop(holding);
    assert!(is_unserved(call(&b, what, b"x", CALL_TIMEOUT)));
    let holding = take(&b, what);
    let (sender, asked) = mpsc::channel::<(Vec<u8>, Reply)>();
    holding.serve(Arc::new(Later(sender))).unwrap();
    let owner = thread::spawn(move || {
        for (request, reply) in asked.iter().take(3) {
            reply([&request[..], b" of b"].concat());
        }
    });
    for host in [&a, &b, &a] {
        assert_eq!(
            call(host, what, b"asked", CALL_TIMEOUT).unwrap(),
            b"asked of b"
        );
    }
    owner.join().unwrap();
}

fn the_dead_are_replaced(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    for what in [GROUP, OTHER, SHARD] {
        a.create(what).unwrap();
    }
    let (one, two, shard) = (take(&a, GROUP), take(&a, OTHER), take(&a, SHARD));
    shard.serve(Arc::new(Named(b" of the dead"))).unwrap();
    let log = one.create(Part::Log, 0).unwrap();
    log.write_at(&[1; 512], 0).unwrap();
    log.sync().unwrap();
    let data = one.open(Part::Data).unwrap();
    if !hosts.kill(0) {
        println!("SKIPPED: no host of this pool can be killed");
        return;
    }
    let options = TakeOptions {
        patience: Duration::ZERO,
        ..options()
    };
    let taken = b.take(GROUP, &options).unwrap();
    assert!(taken.session() > one.session());
    let found = taken.open(Part::Log).unwrap();
    assert_eq!(read(&*found, 0, 1), [1]);
    // The former owner can no longer change anything.
    assert!(
        log.write_at(&[2; 512], 0)
            .and_then(|()| log.sync())
            .is_err()
    );
    assert!(data.write_at(&[2; 512], 0).is_err());
    assert_eq!(read(&*found, 0, 1), [1]);
    let taken_shard = b.take(SHARD, &options).unwrap();
    assert!(taken_shard.session() > shard.session());
    taken_shard.serve(Arc::new(Named(b" of b"))).unwrap();
    assert_eq!(
        call(&b, SHARD, b"asked", CALL_TIMEOUT).unwrap(),
        b"asked of b"
    );
    // A host that comes back takes what its own dead process had.
    drop((one, two, shard, log, data));
    let again = hosts.host(0);
    let _own = again.take(OTHER, &options).unwrap();
    assert!(is_held(&again, GROUP));
    assert_eq!(
        call(&again, SHARD, b"asked", CALL_TIMEOUT).unwrap(),
        b"asked of b"
    );
}

fn removed_with_its_parts(hosts: &dyn Hosts) {
    let (a, b) = (hosts.host(0), hosts.host(1));
    for what in [GROUP, SHARD] {
        a.create(what).unwrap();
        let holding = take(&b, what);
        let disk = holding.create(Part::Index, 0).unwrap();
        disk.write_at(&[1; 512], 0).unwrap();
        disk.sync().unwrap();
        drop(disk);
        b.remove(holding).unwrap();
        for host in [&a, &b] {
            let taken = host.take(what, &options());
            assert_eq!(kind_of(taken), Some(ErrorKind::NotFound));
        }
        a.create(what).unwrap();
        let holding = take(&a, what);
        assert_eq!(error_of(holding.open(Part::Index)), ErrorKind::NotFound);
    }
}
