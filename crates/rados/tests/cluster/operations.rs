//! Operations under way: their order, their number, and the functions called at their end.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use onefold_rados::{Create, Wait};

use crate::{PATIENCE, Space, kind};

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
