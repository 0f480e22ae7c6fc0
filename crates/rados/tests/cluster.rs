//! Tests of each function of librados that we use, on a real cluster: `cargo xtask ceph start` makes one.
//!
//! They run where `ONEFOLD_CEPH_CONF` names the `ceph.conf` of a cluster with a replicated pool `onefold`, and the
//! keyring of `client.admin`. Each has a namespace of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use onefold_rados::{
    Client, ConnectError, ConnectOptions, Create, Pool, Wait, is_condition_failed, is_fenced,
};

const POOL: &str = "onefold";

/// Every wait ends within milliseconds; a test that waits longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn conf() -> Option<PathBuf> {
    let conf = std::env::var_os("ONEFOLD_CEPH_CONF").map(PathBuf::from);
    if conf.is_none() {
        println!("skipped: ONEFOLD_CEPH_CONF names no cluster");
    }
    conf
}

fn options(conf: &Path) -> ConnectOptions {
    ConnectOptions {
        conf_file: Some(conf.to_path_buf()),
        ..ConnectOptions::default()
    }
}

fn connect(conf: &Path) -> Client {
    Client::connect(&options(conf)).unwrap()
}

/// A namespace that is empty at the start and the end of a test.
struct Space {
    conf: PathBuf,
    client: Client,
    pool: Pool,
    name: String,
}

impl Space {
    /// Returns nothing if there is no cluster.
    fn new(test: &str) -> Option<Space> {
        let conf = conf()?;
        let client = connect(&conf);
        let name = format!("{test}.{}", std::process::id());
        let pool = client.pool(POOL, &name).unwrap();
        Some(Space {
            conf,
            client,
            pool,
            name,
        })
    }

    /// The same namespace, through a client of its own.
    fn other(&self) -> (Client, Pool) {
        let client = connect(&self.conf);
        let pool = client.pool(POOL, &self.name).unwrap();
        (client, pool)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for object in connect(&self.conf)
            .pool(POOL, &self.name)
            .unwrap()
            .objects()
            .unwrap()
        {
            self.pool.remove(&object.unwrap()).unwrap_or_default();
        }
    }
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

fn number<T>(result: io::Result<T>) -> i32 {
    result
        .err()
        .and_then(|error| error.raw_os_error())
        .expect("an error number")
}

#[test]
fn a_client_knows_itself_and_its_cluster() {
    let Some(space) = Space::new("client") else {
        return;
    };
    assert!(
        space.client.version().major >= 3,
        "{}",
        space.client.version()
    );
    assert!(space.client.addresses().unwrap().contains("127.0.0.1"));
    assert_ne!(space.client.instance_id(), space.other().0.instance_id());
    space.client.statistics().unwrap();
    space.client.wait_for_latest_osdmap().unwrap();
    assert_eq!(
        kind(space.client.pool("no-such-pool", "")),
        ErrorKind::NotFound
    );
    assert!(space.pool.takes_overwrites().unwrap());
}

#[test]
fn a_client_that_cannot_connect_says_why() {
    let Some(conf) = conf() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = options(&conf);
    let error_of = |options: &ConnectOptions| {
        let error = Client::connect(options).err().expect("an error");
        println!("{error}");
        error
    };
    let with_file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let with = |settings: &[(&str, &str)]| {
        let mut options = options.clone();
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        options.settings = settings.collect();
        options.timeout = Duration::from_secs(2);
        options
    };
    let of_file = |path: PathBuf| ConnectOptions {
        conf_file: Some(path),
        ..with(&[])
    };

    let missing = error_of(&of_file(directory.path().join("none")));
    assert!(matches!(missing, ConnectError::ConfMissing { .. }));
    let unreadable = error_of(&of_file(directory.path().to_path_buf()));
    assert!(matches!(unreadable, ConnectError::ConfUnreadable { .. }));
    let setting = error_of(&with(&[("no_such_option", "1")]));
    assert!(matches!(setting, ConnectError::Setting { .. }));
    let no_monitors = error_of(&of_file(with_file("empty.conf", "[global]\n")));
    assert!(
        matches!(no_monitors, ConnectError::NoMonitors { .. }),
        "{no_monitors:?}"
    );
    let unreachable = error_of(&with(&[("mon_host", "[v2:127.0.0.1:1/0]")]));
    assert!(
        matches!(unreachable, ConnectError::Unreachable { seconds: 2, .. }),
        "{unreachable:?}"
    );

    let no_keyring = error_of(&with(&[("keyring", "/nonexistent/a,/nonexistent/b")]));
    assert!(
        matches!(no_keyring, ConnectError::KeyringMissing { .. }),
        "{no_keyring:?}"
    );
    let key = "AQBBXkhlAAAAABAAyYJzEoHCCbZ2DpYmCXiOJw==";
    let wrong = with_file("keyring", &format!("[client.admin]\n\tkey = {key}\n"));
    let wrong = error_of(&with(&[("keyring", wrong.to_str().unwrap())]));
    assert!(
        matches!(wrong, ConnectError::PermissionDenied { .. }),
        "{wrong:?}"
    );
    let stranger = ConnectOptions {
        user: Some("stranger".to_owned()),
        ..with(&[])
    };
    let stranger = error_of(&stranger);
    assert!(
        matches!(stranger, ConnectError::PermissionDenied { .. }),
        "{stranger:?}"
    );
}

#[test]
fn bytes_are_written_and_read() {
    let Some(space) = Space::new("bytes") else {
        return;
    };
    let pool = &space.pool;
    assert_eq!(kind(pool.read_now("o", 0, 8)), ErrorKind::NotFound);
    assert_eq!(kind(pool.stat("o")), ErrorKind::NotFound);
    assert_eq!(kind(pool.remove("o")), ErrorKind::NotFound);
    assert_eq!(kind(pool.write_now("o\0", 0, b"")), ErrorKind::InvalidInput);

    pool.write_now("o", 4, b"abcdef").unwrap();
    assert_eq!(pool.read_now("o", 0, 100).unwrap(), b"\0\0\0\0abcdef");
    assert_eq!(pool.read_now("o", 6, 2).unwrap(), b"cd");
    assert_eq!(pool.read_now("o", 100, 2).unwrap(), b"");
    let stat = pool.stat("o").unwrap();
    assert_eq!(stat.size, 10);
    assert!(stat.modified > SystemTime::now() - Duration::from_secs(3600));

    let (told, hears) = mpsc::channel();
    pool.read_into("o", 4, [b'-'; 8], move |read, buffer| {
        told.send((read, buffer)).unwrap()
    });
    let (read, buffer) = hears.recv_timeout(PATIENCE).unwrap();
    assert_eq!((read.unwrap(), &buffer[..6]), (6, &b"abcdef"[..]));
    let (told, hears) = mpsc::channel();
    pool.read_into("none", 0, vec![1; 8], move |read, buffer| {
        told.send((read, buffer)).unwrap()
    });
    let (read, buffer) = hears.recv_timeout(PATIENCE).unwrap();
    assert_eq!((kind(read), buffer.len()), (ErrorKind::NotFound, 8));

    pool.change("o", pool.write_op().zero(5, 2)).unwrap();
    assert_eq!(pool.read_now("o", 4, 100).unwrap(), b"a\0\0def");
    pool.change("o", pool.write_op().truncate(6)).unwrap();
    assert_eq!(pool.stat("o").unwrap().size, 6);
    pool.change("o", pool.write_op().write_full(b"xy").write(1, b"z"))
        .unwrap();
    assert_eq!(pool.read_now("o", 0, 100).unwrap(), b"xz");
    let exclusive = || pool.write_op().create(Create::Exclusive);
    assert_eq!(
        kind(pool.change("o", exclusive())),
        ErrorKind::AlreadyExists
    );
    pool.change("o", pool.write_op().create(Create::IfMissing))
        .unwrap();
    pool.remove("o").unwrap();
    pool.change("o", exclusive()).unwrap();
    assert_eq!(pool.stat("o").unwrap().size, 0);
}

#[test]
fn a_write_of_more_than_an_object_may_have_is_an_error() {
    let Some(space) = Space::new("large") else {
        return;
    };
    let error = space.pool.write_now("o", 0, &vec![0; 100 << 20]);
    assert_eq!(number(error), libc::EMSGSIZE);
    assert_eq!(
        number(space.pool.write_now("o", 1 << 40, b"x")),
        libc::EFBIG
    );
}

#[test]
fn conditions_hold_or_nothing_changes() {
    let Some(space) = Space::new("conditions") else {
        return;
    };
    let pool = &space.pool;
    let owner = b"a\0\xff";
    let first = pool
        .change(
            "o",
            pool.write_op().write_full(b"1").set_xattr("owner", owner),
        )
        .unwrap();
    assert_eq!(
        kind(pool.change("none", pool.write_op().assert_exists().write(0, b"x"))),
        ErrorKind::NotFound
    );
    pool.change("o", pool.write_op().assert_exists().write(0, b"2"))
        .unwrap();

    let outdated = pool.change("o", pool.write_op().assert_version(first).write(0, b"x"));
    assert!(is_condition_failed(&outdated.unwrap_err()));
    let reply = pool
        .ask("o", pool.read_op().read(0, 9).xattrs().stat())
        .unwrap();
    assert_eq!(reply.data, [b"2"]);
    assert_eq!(reply.xattrs, [("owner".to_owned(), owner.to_vec())]);
    assert_eq!(reply.stat.unwrap().size, 1);
    let second = pool
        .change(
            "o",
            pool.write_op().assert_version(reply.version).write(0, b"3"),
        )
        .unwrap();
    assert!(second > first);

    let guarded = |value: &[u8]| pool.write_op().compare_xattr("owner", value).write(0, b"4");
    let refused = pool.change("o", guarded(b"a\0\xfe")).unwrap_err();
    assert!(is_condition_failed(&refused), "{refused}");
    assert!(pool.change("o", guarded(b"a")).is_err());
    assert_eq!(pool.read_now("o", 0, 9).unwrap(), b"3");
    pool.change("o", guarded(owner)).unwrap();
    assert_eq!(pool.read_now("o", 0, 9).unwrap(), b"4");
    assert_eq!(
        kind(pool.change("o", pool.write_op().set_xattr("a\0", b""))),
        ErrorKind::InvalidInput
    );
}

#[test]
fn rows_have_any_bytes_and_are_compared_by_key_and_value() {
    let Some(space) = Space::new("rows") else {
        return;
    };
    let pool = &space.pool;
    let rows: [(&[u8], &[u8]); 4] = [
        (b"\0\xff\0", b"binary"),
        (b"a", b""),
        (b"key", b"a longer value\0with zero"),
        (b"kez", b"z"),
    ];
    pool.change("o", pool.write_op().set_rows(&rows)).unwrap();
    let by_keys = |keys: &[&[u8]]| {
        let reply = pool.ask("o", pool.read_op().rows_by_keys(keys)).unwrap();
        reply.rows.into_iter().next().unwrap().rows
    };
    let owned = |rows: &[(&[u8], &[u8])]| -> Vec<_> {
        rows.iter()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect()
    };
    assert_eq!(by_keys(&[b"\0\xff\0", b"missing", b"a"]), owned(&rows[..2]));

    // Two reads in one operation, each with its own answer.
    let reply = pool
        .ask("o", pool.read_op().rows("", "", 3).rows("a", "ke", 9))
        .unwrap();
    assert_eq!(reply.rows[0].rows, owned(&rows[..3]));
    assert!(reply.rows[0].has_more);
    assert_eq!(reply.rows[1].rows, owned(&rows[2..]));
    assert!(!reply.rows[1].has_more);
    assert_eq!(
        kind(pool.ask("o", pool.read_op().rows("\0", "", 1))),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(pool.ask("none", pool.read_op().rows("", "", 1).xattrs())),
        ErrorKind::NotFound
    );

    // Key and value have different lengths, so the test notices if they are swapped.
    let change = |key: &[u8], value: &[u8]| {
        let op = pool.write_op().compare_row(key, value);
        pool.change(
            "o",
            op.set_rows(&[("set", key)])
                .remove_rows(&["kez", "missing"]),
        )
    };
    for (key, value) in [
        (&b"key"[..], &b"a longer value"[..]),
        (b"ke", b""),
        (b"\0\xff", b"binary"),
    ] {
        let changed = change(key, value);
        match (key, value) {
            // A missing row counts as a row without a value.
            (b"ke", b"") => assert!(changed.is_ok(), "{changed:?}"),
            _ => assert!(is_condition_failed(&changed.unwrap_err())),
        }
    }
    assert_eq!(by_keys(&[b"set", b"kez"]), owned(&[(b"set", b"ke")]));
    change(b"key", rows[2].1).unwrap();
    change(b"\0\xff\0", b"binary").unwrap();
    assert_eq!(by_keys(&[b"set"]), owned(&[(b"set", b"\0\xff\0")]));
    let missing = pool.change("none", pool.write_op().compare_row(b"key", b""));
    assert_eq!(kind(missing), ErrorKind::NotFound);
}

/// The input of the lock class: name, exclusive, cookie and tag.
fn assert_locked(cookie: &str) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let body = [text("owner"), vec![1], text(cookie), text("")].concat();
    [&[1, 1][..], &(body.len() as u32).to_le_bytes(), &body].concat()
}

#[test]
fn a_lock_has_one_owner() {
    let Some(space) = Space::new("locks") else {
        return;
    };
    let pool = &space.pool;
    let (other_client, other) = space.other();
    let lock = |pool: &Pool, cookie| pool.lock_exclusive("o", "owner", cookie, "of a test", None);
    assert_eq!(kind(pool.lockers("o", "owner")), ErrorKind::NotFound);
    lock(pool, "ours").unwrap();
    assert_eq!(number(lock(&other, "theirs")), libc::EBUSY);
    assert_eq!(kind(lock(pool, "ours")), ErrorKind::AlreadyExists);
    let lockers = other.lockers("o", "owner").unwrap();
    assert_eq!(lockers.len(), 1);
    assert_eq!(
        lockers[0].client,
        format!("client.{}", space.client.instance_id())
    );
    assert_eq!(lockers[0].cookie, "ours");
    assert!(lockers[0].address.contains("127.0.0.1"), "{lockers:?}");

    let guarded = |pool: &Pool, cookie| {
        let op = pool
            .write_op()
            .execute("lock", "assert_locked", &assert_locked(cookie));
        pool.change("o", op.write(0, b"x"))
    };
    guarded(pool, "ours").unwrap();
    assert_eq!(kind(guarded(&other, "theirs")), ErrorKind::ResourceBusy);

    assert_eq!(
        kind(other.unlock("o", "owner", "theirs")),
        ErrorKind::NotFound
    );
    pool.unlock("o", "owner", "ours").unwrap();
    assert_eq!(pool.lockers("o", "owner").unwrap(), []);
    lock(&other, "theirs").unwrap();
    let long = "long ".repeat(2000);
    assert!(
        pool.lockers("o", "owner").unwrap()[0]
            .client
            .ends_with(&other_client.instance_id().to_string())
    );
    pool.lock_exclusive("p", "owner", &long, "", Some(Duration::from_secs(3600)))
        .unwrap();
    assert_eq!(pool.lockers("p", "owner").unwrap()[0].cookie, long);
}

#[test]
fn a_client_that_was_fenced_changes_nothing() {
    let Some(space) = Space::new("fencing") else {
        return;
    };
    let pool = &space.pool;
    let (_, victim) = space.other();
    victim
        .lock_exclusive("o", "owner", "victim", "", None)
        .unwrap();
    victim.write_now("o", 0, b"victim").unwrap();
    victim.write_now("untouched", 0, b"victim").unwrap();

    let locker = pool.lockers("o", "owner").unwrap().remove(0);
    space.client.blocklist_add(&locker.address, 600).unwrap();
    space.client.wait_for_latest_osdmap().unwrap();
    pool.break_lock("o", "owner", &locker.client, &locker.cookie)
        .unwrap();
    assert_eq!(
        kind(pool.break_lock("o", "owner", &locker.client, &locker.cookie)),
        ErrorKind::NotFound
    );
    pool.lock_exclusive("o", "owner", "heir", "", None).unwrap();
    pool.write_now("o", 0, b"heir  ").unwrap();
    pool.read_now("untouched", 0, 9).unwrap();

    for object in ["o", "untouched", "new"] {
        let error = victim.write_now(object, 0, b"late").unwrap_err();
        assert!(is_fenced(&error), "{error}");
        assert_eq!(error.raw_os_error(), Some(108));
    }
    assert!(is_fenced(&victim.read_now("o", 0, 9).unwrap_err()));
    assert_eq!(pool.read_now("o", 0, 9).unwrap(), b"heir  ");
    assert_eq!(kind(pool.stat("new")), ErrorKind::NotFound);
}

#[test]
fn a_client_can_be_fenced_by_its_own_addresses() {
    let Some(space) = Space::new("addresses") else {
        return;
    };
    let (client, victim) = space.other();
    victim.write_now("o", 0, b"x").unwrap();
    space
        .client
        .blocklist_add(&client.addresses().unwrap(), 600)
        .unwrap();
    space.client.wait_for_latest_osdmap().unwrap();
    space.pool.write_now("o", 0, b"y").unwrap();
    assert!(is_fenced(&victim.write_now("o", 0, b"x").unwrap_err()));
    assert_eq!(
        number(space.client.blocklist_add("nonsense", 600)),
        libc::EINVAL
    );
}

#[test]
fn operations_on_one_object_take_effect_in_order() {
    let Some(space) = Space::new("order") else {
        return;
    };
    let pool = &space.pool;
    let (told, hears) = mpsc::channel();
    const COUNT: u32 = 500;
    for number in 0..COUNT {
        let bytes = number.to_le_bytes().repeat(64);
        pool.write("o", u64::from(number % 7), &bytes, |written| {
            written.unwrap()
        });
        let told = told.clone();
        // The read sees the write before it, and none after it.
        pool.read("o", u64::from(number % 7), 256, move |read| {
            told.send((number, read.unwrap() == bytes)).unwrap();
        });
    }
    for number in 0..COUNT {
        assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), (number, true));
    }
}

#[test]
fn thousands_of_operations_are_under_way_from_one_thread() {
    let Some(space) = Space::new("many") else {
        return;
    };
    let pool = &space.pool;
    const COUNT: usize = 2000;
    let ended = Arc::new(AtomicUsize::new(0));
    let (told, hears) = mpsc::channel();
    let mut bytes = vec![0; 4096];
    let start = std::time::Instant::now();
    for number in 0..COUNT {
        bytes.fill(number as u8);
        let (ended, told) = (Arc::clone(&ended), told.clone());
        pool.write(
            &format!("o{}", number % 50),
            number as u64 / 50 * 4096,
            &bytes,
            move |written| {
                ended.fetch_add(1, Ordering::Relaxed);
                told.send(written).unwrap();
            },
        );
        // The bytes were copied.
        bytes.fill(0xee);
    }
    let before = ended.load(Ordering::Relaxed);
    println!(
        "{before} of {COUNT} have ended when the last one is submitted, after {:?}",
        start.elapsed()
    );
    for _ in 0..COUNT {
        hears.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    let (told, hears) = mpsc::channel();
    for number in 0..COUNT {
        let told = told.clone();
        pool.read(
            &format!("o{}", number % 50),
            number as u64 / 50 * 4096,
            4096,
            move |read| {
                told.send((number, read)).unwrap();
            },
        );
    }
    for _ in 0..COUNT {
        let (number, read) = hears.recv_timeout(PATIENCE).unwrap();
        assert_eq!(read.unwrap(), vec![number as u8; 4096]);
    }
}

#[test]
fn notifications_are_answered() {
    let Some(space) = Space::new("notify") else {
        return;
    };
    let pool = &space.pool;
    let (other_client, other) = space.other();
    let ignore = |_| {};
    assert_eq!(
        kind(pool.watch("o", None, |_| {}, ignore)),
        ErrorKind::NotFound
    );
    pool.change("o", pool.write_op().create(Create::Exclusive))
        .unwrap();
    let notify = |payload: &[u8], seconds| {
        other
            .notify_now("o", payload, Duration::from_secs(seconds))
            .unwrap()
    };
    assert_eq!(notify(b"nobody", 5), onefold_rados::Replies::default());

    // Answered at once, on librados' thread.
    let notifier = other_client.instance_id();
    let first = pool
        .watch(
            "o",
            Some(Duration::from_secs(10)),
            move |notification| {
                assert_eq!(notification.notifier(), notifier);
                let reply = [b"first: ", notification.payload()].concat();
                notification.reply(&reply).unwrap();
            },
            ignore,
        )
        .unwrap();
    // Answered later, on another thread.
    let (given, takes) = mpsc::channel();
    let given = Mutex::new(given);
    let second = pool
        .watch(
            "o",
            None,
            move |notification| given.lock().unwrap().send(notification).unwrap(),
            ignore,
        )
        .unwrap();
    let answering = std::thread::spawn(move || {
        let notification: onefold_rados::Notification = takes.recv_timeout(PATIENCE).unwrap();
        notification.reply(b"").unwrap();
        takes
    });
    assert!(first.check().unwrap() < PATIENCE);
    let binary = [0, 0xff, 0];
    let replies = notify(&binary, 30);
    assert_eq!(replies.timed_out, []);
    let mut payloads: Vec<_> = replies
        .replies
        .iter()
        .map(|reply| reply.payload.clone())
        .collect();
    payloads.sort();
    assert_eq!(payloads, [b"".to_vec(), b"first: \0\xff\0".to_vec()]);
    assert!(
        replies
            .replies
            .iter()
            .all(|reply| reply.watcher.client == space.client.instance_id())
    );
    let takes = answering.join().unwrap();

    // The second watcher does not answer any more.
    let replies = notify(b"again", 1);
    assert_eq!((replies.replies.len(), replies.timed_out.len()), (1, 1));
    drop(takes.recv_timeout(PATIENCE).unwrap());
    drop(second);
    assert_eq!(notify(b"alone", 30).replies.len(), 1);
    drop(first);
    assert_eq!(notify(b"none", 5), onefold_rados::Replies::default());
}

#[test]
fn a_watch_that_is_fenced_hears_of_it() {
    let Some(space) = Space::new("lost") else {
        return;
    };
    let (victim_client, victim) = space.other();
    victim.write_now("o", 0, b"x").unwrap();
    let (told, hears) = mpsc::channel();
    let told = Mutex::new(told);
    let watch = victim
        .watch(
            "o",
            None,
            |_| {},
            move |error| told.lock().unwrap().send(error).unwrap(),
        )
        .unwrap();
    space
        .client
        .blocklist_add(&victim_client.addresses().unwrap(), 600)
        .unwrap();
    let error = hears.recv_timeout(PATIENCE).unwrap();
    println!("the watch ended with {error:?}");
    watch.check().unwrap_err();
    drop(watch);
}

#[test]
fn a_panic_goes_no_further_than_the_function_that_was_given() {
    let Some(space) = Space::new("panic") else {
        return;
    };
    let pool = &space.pool;
    pool.write_now("o", 0, b"x").unwrap();
    for _ in 0..3 {
        pool.read("o", 0, 1, |_| panic!("of a test"));
        assert_eq!(pool.read_now("o", 0, 1).unwrap(), b"x");
    }
    let watch = pool
        .watch("o", None, |_| panic!("of a test"), |_| {})
        .unwrap();
    assert_eq!(
        pool.notify_now("o", b"", Duration::from_secs(1))
            .unwrap()
            .timed_out
            .len(),
        1
    );
    drop(watch);
}

#[test]
fn librados_thread_is_not_waited_for_on_itself() {
    let Some(space) = Space::new("threads") else {
        return;
    };
    let pool = &space.pool;
    pool.write_now("o", 0, b"x").unwrap();
    let (told, hears) = mpsc::channel();
    let of_callback = pool.clone();
    let inner = told.clone();
    pool.read("o", 0, 1, move |_| {
        told.send(kind(of_callback.stat("o"))).unwrap();
        // Other operations may be submitted.
        of_callback.read("o", 0, 1, move |_| inner.send(ErrorKind::Other).unwrap());
    });
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), ErrorKind::Deadlock);
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), ErrorKind::Other);

    // The last reference to a watch, and to a whole client, is dropped in a callback of librados.
    let (client, other) = space.other();
    let watch = other.watch("o", None, |_| {}, |_| {}).unwrap();
    let (told, hears) = mpsc::channel();
    let reader = other.clone();
    drop(client);
    reader.read("o", 0, 1, move |read| {
        drop(watch);
        drop(other);
        told.send(read).unwrap();
    });
    drop(reader);
    hears.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(pool.read_now("o", 0, 1).unwrap(), b"x");
    let start = std::time::Instant::now();
    while !pool
        .notify_now("o", b"", Duration::from_secs(1))
        .unwrap()
        .timed_out
        .is_empty()
    {
        assert!(start.elapsed() < PATIENCE, "the watch has not ended");
    }
}

#[test]
fn an_operation_ends_although_nobody_waits() {
    let Some(space) = Space::new("abandoned") else {
        return;
    };
    let (on_done, wait) = Wait::new();
    space.pool.write("o", 0, b"x", on_done);
    drop(wait);
    // The read is on the same object, so it follows the write.
    assert_eq!(space.pool.read_now("o", 0, 9).unwrap(), b"x");
    drop(
        space
            .pool
            .write_op()
            .set_xattr("a", b"b")
            .create(Create::Exclusive),
    );
    drop(
        space
            .pool
            .read_op()
            .read(0, 100)
            .stat()
            .xattrs()
            .rows("", "", 9),
    );
}

#[test]
fn objects_of_a_namespace_are_listed() {
    let Some(space) = Space::new("list") else {
        return;
    };
    let empty = space
        .client
        .pool(POOL, &format!("{}.other", space.name))
        .unwrap();
    let mut expected: Vec<String> = (0..100)
        .map(|number| format!("object.{number:03}"))
        .collect();
    expected.push("Größe/ Ω".to_owned());
    for name in &expected {
        space.pool.write_now(name, 0, name.as_bytes()).unwrap();
    }
    let mut found: Vec<String> = space.pool.objects().unwrap().map(Result::unwrap).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(empty.objects().unwrap().count(), 0);
    // A list that is dropped before its end.
    assert!(space.pool.objects().unwrap().next().is_some());
}

/// Runs Ceph's own tool; returns nothing where it is not installed.
fn ceph(conf: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("ceph")
        .arg("--conf")
        .arg(conf)
        .args(arguments)
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: there is no ceph");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_user_can_be_kept_to_a_namespace() {
    let Some(space) = Space::new("caps") else {
        return;
    };
    let name = format!("client.{}", space.name);
    let osd = format!("allow rwx pool={POOL} namespace={}", space.name);
    let arguments = [
        "auth",
        "get-or-create",
        &name,
        "mon",
        "profile rbd",
        "osd",
        &osd,
    ];
    let Some(keyring) = ceph(&space.conf, &arguments) else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, keyring).unwrap();
    let user = Client::connect(&ConnectOptions {
        user: Some(space.name.clone()),
        settings: vec![(
            "keyring".to_owned(),
            file.path().to_str().unwrap().to_owned(),
        )],
        ..options(&space.conf)
    })
    .unwrap();
    let pool = user.pool(POOL, &space.name).unwrap();
    pool.write_now("o", 0, b"x").unwrap();
    pool.lock_exclusive("o", "owner", "cookie", "", None)
        .unwrap();
    assert_eq!(pool.objects().unwrap().count(), 1);
    let elsewhere = user.pool(POOL, "elsewhere").unwrap();
    assert_eq!(
        kind(elsewhere.write_now("o", 0, b"x")),
        ErrorKind::PermissionDenied
    );
    // The user may fence other clients.
    let (victim, _) = space.other();
    user.blocklist_add(&victim.addresses().unwrap(), 600)
        .unwrap();
    ceph(&space.conf, &["auth", "rm", &name]);
}

#[test]
fn an_erasure_coded_pool_says_what_it_does_not_take() {
    let Some(space) = Space::new("erasure") else {
        return;
    };
    let (conf, name) = (&space.conf, format!("erasure.{}", std::process::id()));
    let profile = [
        "osd",
        "erasure-code-profile",
        "set",
        &name,
        "k=2",
        "m=1",
        "crush-failure-domain=osd",
    ];
    if ceph(conf, &profile).is_none() {
        return;
    }
    ceph(
        conf,
        &["osd", "pool", "create", &name, "4", "4", "erasure", &name],
    );
    let pool = connect(conf).pool(&name, "").unwrap();
    assert!(!pool.takes_overwrites().unwrap());
    pool.change("o", pool.write_op().write_full(&[1; 8192]))
        .unwrap();
    assert_eq!(kind(pool.write_now("o", 0, b"x")), ErrorKind::Unsupported);
    assert_eq!(
        kind(pool.change("o", pool.write_op().set_rows(&[("a", "b")]))),
        ErrorKind::Unsupported
    );
    ceph(
        conf,
        &["osd", "pool", "set", &name, "allow_ec_overwrites", "true"],
    );
    space.client.wait_for_latest_osdmap().unwrap();
    ceph(
        conf,
        &[
            "osd",
            "pool",
            "rm",
            &name,
            &name,
            "--yes-i-really-really-mean-it",
        ],
    );
}

/// Sets the ratios at which the cluster counts as nearly full, too full to move data, and full.
fn set_ratios(conf: &Path, ratios: [&str; 3]) -> Option<()> {
    let names = ["nearfull", "backfillfull", "full"];
    names.iter().zip(ratios).try_for_each(|(name, ratio)| {
        ceph(conf, &["osd", &format!("set-{name}-ratio"), ratio]).map(drop)
    })
}

/// Run by hand, alone: `cargo test -p onefold-rados --test cluster -- --ignored`. Other writes fail or wait during the
/// test.
#[test]
#[ignore = "stops the writes of all other tests"]
fn a_full_pool_refuses_writes_and_takes_removals() {
    let Some(space) = Space::new("full") else {
        return;
    };
    let (conf, pool) = (&space.conf, &space.pool);
    for object in ["o", "p"] {
        pool.write_now(object, 0, b"x").unwrap();
    }
    let is_full = |wanted: bool| {
        let start = std::time::Instant::now();
        while ceph(conf, &["osd", "dump"])
            .unwrap()
            .contains("hashpspool,full")
            != wanted
        {
            assert!(
                start.elapsed() < PATIENCE,
                "the pool's state does not change"
            );
        }
        space.client.wait_for_latest_osdmap().unwrap();
    };
    if set_ratios(conf, ["0.00001", "0.00002", "0.0001"]).is_none() {
        return;
    }
    is_full(true);
    let (told, hears) = mpsc::channel();
    pool.write("new", 0, b"x", move |written| told.send(written).unwrap());
    let written = hears.recv_timeout(PATIENCE);
    // Changes that take no additional space succeed.
    let overwritten = pool.write_now("o", 0, b"y");
    let removed = pool.remove("p");
    set_ratios(conf, ["0.93", "0.95", "0.97"]);
    is_full(false);
    assert_eq!(kind(written.unwrap()), ErrorKind::StorageFull);
    overwritten.unwrap();
    removed.unwrap();
    assert_eq!(pool.read_now("o", 0, 9).unwrap(), b"y");
    pool.write_now("new", 0, b"x").unwrap();
}
