//! Watches on objects, and notifications of their watchers.

use std::io::ErrorKind;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use onefold_rados::Create;

use crate::{PATIENCE, Space, kind};

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
