//! Objects: their bytes, attributes and rows, and conditions on them.

use std::io::ErrorKind;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use onefold_rados::{Create, is_condition_failed};

use crate::{PATIENCE, POOL, Space, kind, number};

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
