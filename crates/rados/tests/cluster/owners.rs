//! Owners of objects: locks, and clients that are fenced.

use std::io::ErrorKind;
use std::time::Duration;

use onefold_rados::{Pool, is_fenced};

use crate::{Space, kind, number};

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
