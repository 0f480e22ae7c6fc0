//! The space extents of a pool that hosts share in Ceph: exchanges at once, repeats, refusals and damaged rows.

use crate::cluster_suite::Hosts;
use crate::{InCeph, Two, snapshot};
use onefold_engine::cluster::{Cluster, ExtentCounts};
use onefold_engine::rados::RadosHost;
use onefold_format::units::BLOCKS_PER_SPACE_EXTENT;
use onefold_format::{GivenRun, GroupId, SpaceExtent};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// The blocks of an extent.
const ALL: u32 = BLOCKS_PER_SPACE_EXTENT as u32;

/// The blocks `from` to `to` of an extent.
fn run(extent: SpaceExtent, from: u32, to: u32) -> GivenRun {
    GivenRun {
        pba: extent.first() + u64::from(from),
        count: to - from,
    }
}

fn whole(extent: &SpaceExtent) -> GivenRun {
    run(*extent, 0, ALL)
}

fn free_extents(host: &RadosHost) -> u64 {
    host.extent_counts().unwrap().free
}

#[test]
fn hosts_that_exchange_at_once_never_share_an_extent() {
    let Some(Two {
        ceph: _ceph, a, b, ..
    }) = Two::new("exchange")
    else {
        return;
    };
    a.set_extents(700).unwrap();
    let ready = Barrier::new(2);
    let exchanges = |host: &RadosHost, group: u64| {
        let (group, mut leased) = (GroupId(group), BTreeSet::new());
        ready.wait();
        for number in 1..=40 {
            let given: Vec<SpaceExtent> = leased.iter().copied().step_by(3).take(9).collect();
            let give: Vec<GivenRun> = given.iter().map(whole).collect();
            let exchanged = host.exchange(group, number, &give, 16).unwrap();
            assert_eq!((exchanged.number, &exchanged.given), (number, &give));
            if number % 4 == 0 {
                assert_eq!(host.exchange(group, number, &give, 16).unwrap(), exchanged);
            }
            given
                .iter()
                .for_each(|extent| assert!(leased.remove(extent)));
            let taken = exchanged.taken.iter();
            taken.for_each(|extent| assert!(leased.insert(*extent)));
        }
        leased
    };
    let began = Instant::now();
    let [one, two] = thread::scope(|scope| {
        let threads =
            [(&a, 1), (&b, 2)].map(|(host, group)| scope.spawn(move || exchanges(host, group)));
        threads.map(|thread| thread.join().unwrap())
    });
    println!("80 exchanges and 20 repeats in {:?}", began.elapsed());
    assert!(one.is_disjoint(&two));
    let leased = (one.len() + two.len()) as u64;
    assert_eq!(free_extents(&a), 700 - leased);
    assert!(
        one.iter()
            .chain(&two)
            .all(|extent| (1..=700).contains(&extent.0))
    );
    for extents in [1, 1 << 26] {
        assert_eq!(
            b.set_extents(extents).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}

#[test]
fn hosts_that_give_parts_at_once_complete_each_extent_once() {
    let Some(Two { ceph, a, b, .. }) = Two::new("parts") else {
        return;
    };
    const EXTENTS: u64 = 12;
    const STEP: u32 = ALL / 8;
    a.set_extents(EXTENTS).unwrap();
    let extents = a
        .exchange(GroupId(1), 1, &[], EXTENTS as u32)
        .unwrap()
        .taken;
    assert_eq!(extents.len() as u64, EXTENTS);
    let ready = Barrier::new(2);
    // Each gives every second part of each extent, from both sides.
    let gives = |host: &RadosHost, n: u32| {
        let (group, mut completed) = (GroupId(u64::from(n)), Vec::new());
        ready.wait();
        for round in 0..4 {
            let part = if n == 1 { 2 * round } else { 7 - 2 * round };
            for (extent, number) in extents.iter().zip(2..) {
                let give = [run(*extent, part * STEP, (part + 1) * STEP)];
                let number = number + u64::from(round) * EXTENTS;
                let exchanged = host.exchange(group, number, &give, 1).unwrap();
                assert_eq!(exchanged.given, give);
                let is_own = exchanged.taken.iter().all(|taken| taken == extent);
                assert!(is_own, "{exchanged:?}");
                assert_eq!(host.exchange(group, number, &give, 1).unwrap(), exchanged);
                completed.extend(exchanged.taken);
            }
        }
        completed
    };
    let [one, two] = thread::scope(|scope| {
        let threads = [(&a, 1), (&b, 2)].map(|(host, n)| scope.spawn(move || gives(host, n)));
        threads.map(|thread| thread.join().unwrap())
    });
    println!(
        "the first one has completed {}, the other {}",
        one.len(),
        two.len()
    );
    let mut completed = [one, two].concat();
    completed.sort_unstable();
    assert_eq!(completed, extents);
    let counts = ExtentCounts {
        free: 0,
        all: EXTENTS,
    };
    assert_eq!(b.extent_counts().unwrap(), counts);
    let rows = extent_rows(&ceph);
    assert!(!rows.iter().any(|key| key.starts_with("part.")), "{rows:?}");
}

/// The keys of the rows of space extents.
fn extent_rows(ceph: &InCeph) -> Vec<String> {
    let objects = ceph.objects();
    let reply = objects.ask("extents", objects.read_op().rows("", "", 1000));
    let rows = reply.unwrap().rows.remove(0).rows;
    rows.into_iter()
        .map(|(key, _)| String::from_utf8(key).unwrap())
        .collect()
}

#[test]
fn the_last_exchange_is_known_to_every_host_after_a_lost_reply() {
    let Some(Two { ceph, a, b, .. }) = Two::new("repeat") else {
        return;
    };
    let (one, two) = (GroupId(1), GroupId(2));
    a.set_extents(4).unwrap();
    let extents = a.exchange(one, 1, &[], 3).unwrap().taken;
    let parts = [run(extents[0], 0, 7), run(extents[1], 9, ALL)];
    b.exchange(two, 1, &parts, 0).unwrap();
    // It gives a whole, a part that completes and one that does not, and takes one.
    let give = [
        run(extents[0], 7, ALL),
        run(extents[1], 0, 5),
        whole(&extents[2]),
    ];
    let exchanged = a.exchange(one, 2, &give, 9).unwrap();
    assert_eq!(exchanged.taken, [SpaceExtent(4), extents[0]]);
    drop(a);
    ceph.kill(0);
    // The reply is lost with the host. Another one asks, and repeats it, when other groups have the extents that it gave.
    assert_eq!(b.exchange(two, 2, &[], 9).unwrap().taken, [extents[2]]);
    let counts = b.extent_counts().unwrap();
    assert_eq!(b.last_exchange(one).unwrap().as_ref(), Some(&exchanged));
    for _ in 0..2 {
        assert_eq!(b.exchange(one, 2, &give, 9).unwrap(), exchanged);
    }
    assert_eq!(b.extent_counts().unwrap(), counts);
    assert_eq!(b.last_exchange(GroupId(3)).unwrap(), None);
    let rest = run(extents[1], 5, 9);
    assert_eq!(b.exchange(two, 3, &[rest], 0).unwrap().taken, [extents[1]]);
}

#[test]
fn refused_exchanges_change_no_row() {
    let Some(Two { ceph, a, .. }) = Two::new("refusals") else {
        return;
    };
    let group = GroupId(1);
    a.set_extents(600).unwrap();
    let extents = a.exchange(group, 5, &[], 4).unwrap().taken;
    let [first, second, third] = [extents[0], extents[1], extents[2]];
    let give = [whole(&first), run(second, 10, 20)];
    a.exchange(group, 6, &give, 0).unwrap();
    let before = snapshot(&ceph.objects());
    let refused = |number, give: &[GivenRun]| {
        let error = a.exchange(group, number, give, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        println!("{error}");
    };
    refused(5, &[]);
    refused(7, &[whole(&SpaceExtent(0))]);
    for extent in [first, SpaceExtent(5), SpaceExtent(601)] {
        refused(7, &[run(extent, 3, 4)]);
        refused(7, &[whole(&third), whole(&extent)]);
    }
    refused(7, &[whole(&second)]);
    refused(7, &[run(second, 0, 11)]);
    refused(7, &[run(third, 0, 9), run(third, 8, 12)]);
    refused(7, &[whole(&third), whole(&third)]);
    refused(7, &[run(third, 5, 5)]);
    refused(7, &[run(third, 5, ALL + 1)]);
    let many: Vec<GivenRun> = (0..513).map(|n| run(third, n, n + 1)).collect();
    refused(7, &many);
    assert_eq!(snapshot(&ceph.objects()), before);

    // Two fit a record.
    let exchanged = a.exchange(group, 7, &many[..510], u32::MAX).unwrap();
    assert_eq!(exchanged.taken.len(), 2);
    assert_eq!(a.last_exchange(group).unwrap(), Some(exchanged));
}

#[test]
fn damaged_rows_are_errors_with_their_names() {
    let Some(Two { ceph, a, .. }) = Two::new("damage") else {
        return;
    };
    a.set_extents(4).unwrap();
    let extents = a.exchange(GroupId(1), 1, &[], 2).unwrap().taken;
    let objects = ceph.objects();
    let set = |rows: &[(String, Vec<u8>)]| {
        let op = objects.write_op().set_rows(rows);
        objects.change("extents", op).unwrap();
    };
    let part = format!("part.{:016x}", extents[0].0);
    for key in [&part, "free.0000000000000000", "group.1", "next"] {
        let read = objects.ask("extents", objects.read_op().rows_by_keys(&[key]));
        let before = read.unwrap().rows.remove(0).rows;
        set(&[(key.to_owned(), b"?".to_vec())]);
        let error = a.exchange(GroupId(1), 2, &[run(extents[0], 0, 1)], 1);
        let error = error.unwrap_err();
        println!("{error}");
        let says = format!("object extents is damaged: row {key} ");
        assert!(error.to_string().contains(&says), "{error}");
        if key == "group.1" {
            assert!(a.last_exchange(GroupId(1)).is_err());
        }
        let op = objects.write_op().remove_rows(&[key]);
        objects.change("extents", op).unwrap();
        for (key, value) in before {
            set(&[(String::from_utf8(key).unwrap(), value)]);
        }
    }
    let taken = a.exchange(GroupId(1), 2, &[run(extents[0], 0, 1)], 9);
    assert_eq!(taken.unwrap().taken.len(), 2);
}

#[test]
fn extents_are_counted_over_many_pages() {
    let Some(Two { ceph, a, .. }) = Two::new("pages") else {
        return;
    };
    let group = GroupId(1);
    let (mut leased, mut number) = (BTreeSet::new(), 0);
    let mut exchange = |give: &[SpaceExtent], take, leased: &mut BTreeSet<SpaceExtent>| {
        number += 1;
        let runs: Vec<GivenRun> = give.iter().map(whole).collect();
        let taken = a.exchange(group, number, &runs, take).unwrap().taken;
        give.iter()
            .for_each(|extent| assert!(leased.remove(extent)));
        taken
            .iter()
            .for_each(|extent| assert!(leased.insert(*extent)));
        taken.len()
    };
    a.set_extents(9000).unwrap();
    while exchange(&[], 2000, &mut leased) == 512 {}
    assert_eq!((leased.len(), free_extents(&a)), (9000, 0));
    let some: Vec<SpaceExtent> = leased.iter().copied().step_by(20).collect();
    assert_eq!(exchange(&some, 7, &mut leased), 0);
    assert_eq!(free_extents(&a), 450);
    let pages = || {
        let rows = extent_rows(&ceph);
        rows.iter().filter(|key| key.starts_with("free.")).count()
    };
    assert_eq!(pages(), 3);
    assert_eq!(exchange(&[], 400, &mut leased), 400);
    assert_eq!(pages(), 2);
    a.set_extents(9100).unwrap();
    assert_eq!(free_extents(&a), 150);
    assert_eq!(exchange(&some[..3], 140, &mut leased), 140);
    assert_eq!(free_extents(&a), 13);
    assert_eq!(exchange(&[], 4000, &mut leased), 13);
    assert_eq!((leased.len(), pages()), (9100, 0));
    let all: Vec<SpaceExtent> = leased.iter().copied().collect();
    for some in all.chunks(512) {
        assert_eq!(exchange(some, 0, &mut leased), 0);
    }
    assert_eq!((leased.len(), free_extents(&a)), (0, 9100));
}
