//! Pools that refuse some writes.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc;

use crate::{PATIENCE, Space, ceph, connect, kind};

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
