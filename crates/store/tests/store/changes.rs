//! The changes between two snapshots: everything that differs, and nothing that was not written.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use onefold_engine::simulated::CrashKind;
use onefold_store::{
    Blocking, Change, ChangedExtent, SNAPSHOTS_AT_ONCE_MAX, Store, StoreErrorKind, Volume,
};
use proptest::prelude::*;

use crate::common::{
    self, BLOCK, LITTLE_MEMORY, MIB, collect, new_volume, pool_of, snapshot, write,
};

/// Blocks of the largest volume: three segments, the last one in part.
const BLOCKS_MAX: u64 = 1_200;

#[derive(Debug, Clone)]
enum Request {
    Write {
        at: u64,
        len: u64,
        byte: u8,
    },
    Trim {
        at: u64,
        len: u64,
    },
    Resize {
        blocks: u64,
    },
    /// Writes to another volume from now on.
    Turn {
        which: u8,
    },
    Snapshot,
    /// Clones a volume or snapshot.
    Clone {
        which: u8,
    },
    /// Takes the volume back to one of its snapshots.
    RollBack {
        which: u8,
    },
    /// Deletes one of the snapshots that there are.
    Delete {
        which: u8,
    },
    /// Does a step of pending deletions.
    Step,
    /// Publishes and shares the blocks of a volume or snapshot.
    Dedup {
        which: u8,
    },
    Tick,
    Reopen,
    /// Compares each volume and snapshot with every other one.
    Compare,
}

/// Ranges in half blocks, so that they often begin and end inside one.
fn request() -> impl Strategy<Value = Request> {
    let at = prop_oneof![0..2 * BLOCKS_MAX, 1000..1060_u64, 0..64_u64];
    let len = prop_oneof![1..9_u64, 1..200_u64];
    prop_oneof![
        6 => (at.clone(), len.clone(), 0..4_u8)
            .prop_map(|(at, len, byte)| Request::Write { at, len, byte }),
        2 => (at, len).prop_map(|(at, len)| Request::Trim { at, len }),
        1 => (1..BLOCKS_MAX).prop_map(|blocks| Request::Resize { blocks }),
        4 => Just(Request::Snapshot),
        1 => any::<u8>().prop_map(|which| Request::Turn { which }),
        1 => any::<u8>().prop_map(|which| Request::Clone { which }),
        1 => any::<u8>().prop_map(|which| Request::RollBack { which }),
        2 => any::<u8>().prop_map(|which| Request::Delete { which }),
        2 => Just(Request::Step),
        2 => any::<u8>().prop_map(|which| Request::Dedup { which }),
        1 => Just(Request::Tick),
        1 => Just(Request::Reopen),
        1 => Just(Request::Compare),
    ]
}

/// The expected content of one of them.
#[derive(Clone, Default)]
struct Model {
    bytes: Vec<u8>,
    /// The request that touched a block last.
    touched: Vec<u64>,
}

impl Model {
    fn touch(&mut self, bytes: Range<usize>, request: u64) {
        let blocks = bytes.start / BLOCK as usize..bytes.end.div_ceil(BLOCK as usize);
        self.touched[blocks].fill(request);
    }

    fn block(&self, block: u64) -> Option<(&[u8], u64)> {
        let start = (block * BLOCK) as usize;
        let bytes = self.bytes.get(start..start + BLOCK as usize)?;
        Some((bytes, self.touched[block as usize]))
    }
}

struct World {
    pool: common::World,
    /// Volumes and snapshots by name, as `v1` and `v1@2`.
    models: Vec<(String, Model)>,
    /// Which of them is written.
    turn: usize,
    requests: u64,
}

fn pool(blocks: u64) -> common::World {
    common::World::new(&pool_of(blocks * BLOCK), LITTLE_MEMORY)
}

fn dedup(store: &Store, volume: &Volume) {
    common::dedup(store, volume);
    collect(store).unwrap();
}

impl World {
    fn new() -> Self {
        let pool = pool(8 * BLOCKS_MAX);
        let size = BLOCKS_MAX / 2 * BLOCK;
        new_volume(&pool, "v0", size);
        let model = Model {
            bytes: vec![0; size as usize],
            touched: vec![0; (BLOCKS_MAX / 2) as usize],
        };
        Self {
            pool,
            models: vec![("v0".to_owned(), model)],
            turn: 0,
            requests: 0,
        }
    }

    fn volume(&self, which: usize) -> Arc<Volume> {
        self.pool.volume(&self.models[which].0).unwrap()
    }

    fn live(&mut self) -> &mut Model {
        &mut self.models[self.turn].1
    }

    /// One of those with the wanted names, if there are any.
    fn pick(&self, which: u8, is_wanted: impl Fn(&str) -> bool) -> Option<usize> {
        let wanted = self.models.iter().enumerate();
        let wanted: Vec<usize> = wanted
            .filter_map(|(at, (name, _))| is_wanted(name).then_some(at))
            .collect();
        let at = usize::from(which) % wanted.len().max(1);
        wanted.get(at).copied()
    }

    /// Half blocks as a range of bytes inside the volume.
    fn range(&mut self, at: u64, len: u64) -> Range<usize> {
        let size = self.live().bytes.len();
        let start = (at as usize * BLOCK as usize / 2) % size;
        start..(start + len as usize * BLOCK as usize / 2).min(size)
    }

    fn serve(&mut self, request: &Request) {
        self.requests += 1;
        let number = self.requests;
        let (turn, live_name) = (self.turn, self.models[self.turn].0.clone());
        match *request {
            Request::Write { at, len, byte } => {
                let range = self.range(at, len);
                let volume = self.volume(turn);
                let live = self.live();
                live.touch(range.clone(), number);
                live.bytes[range.clone()].fill(byte);
                let data = &live.bytes[range.clone()];
                volume
                    .write(range.start as u64, data, Blocking::Yes)
                    .unwrap();
            }
            Request::Trim { at, len } => {
                let range = self.range(at, len);
                let len = (range.end - range.start) as u64;
                self.volume(turn)
                    .trim(range.start as u64, len, Blocking::Yes)
                    .unwrap();
                let block = BLOCK as usize;
                let whole = range.start.next_multiple_of(block)..range.end / block * block;
                if whole.start < whole.end {
                    self.live().touch(whole.clone(), number);
                    self.live().bytes[whole].fill(0);
                }
            }
            Request::Resize { blocks } => {
                let size = blocks * BLOCK;
                self.pool.resize_volume(&live_name, size).unwrap();
                self.live().bytes.resize((blocks * BLOCK) as usize, 0);
                self.live().touched.resize(blocks as usize, number);
            }
            Request::Snapshot => {
                snapshot(&self.pool, &live_name, &number.to_string());
                let model = self.live().clone();
                self.models.push((format!("{live_name}@{number}"), model));
            }
            Request::Turn { .. }
            | Request::Clone { .. }
            | Request::RollBack { .. }
            | Request::Delete { .. } => self.change_layers(request),
            Request::Step => drop(self.pool.deletions().step().unwrap()),
            Request::Dedup { which } => {
                let which = usize::from(which) % self.models.len();
                dedup(&self.pool, &self.volume(which));
            }
            Request::Tick => self.pool.tidy(true).unwrap(),
            Request::Reopen => {
                self.pool.close().unwrap();
                self.pool = common::World::on(self.pool.engine.clone(), LITTLE_MEMORY);
            }
            Request::Compare => self.compare(),
        }
    }

    fn change_layers(&mut self, request: &Request) {
        let name = self.models[self.turn].0.clone();
        match *request {
            Request::Turn { which } => {
                let volume = self.pick(which, |name| !name.contains('@'));
                self.turn = volume.unwrap();
            }
            Request::Clone { which } => {
                let (source, model) = self.models[usize::from(which) % self.models.len()].clone();
                let name = format!("v{}", self.requests);
                self.pool.clone_volume(&source, &name).unwrap();
                self.models.push((name, model));
            }
            Request::RollBack { which } => {
                let prefix = format!("{name}@");
                if let Some(to) = self.pick(which, |name| name.starts_with(&prefix)) {
                    let (snapshot, model) = self.models[to].clone();
                    let snapshot = &snapshot[prefix.len()..];
                    self.pool.roll_back(&name, snapshot).unwrap();
                    *self.live() = model;
                }
            }
            Request::Delete { which } => {
                if let Some(which) = self.pick(which, |name| name.contains('@')) {
                    let (name, _) = self.models.remove(which);
                    self.turn -= usize::from(which < self.turn);
                    let (volume, snapshot) = name.split_once('@').unwrap();
                    self.pool.delete_snapshot(volume, snapshot).unwrap();
                }
            }
            _ => {}
        }
    }

    fn compare(&self) {
        for since in 0..self.models.len() {
            for new in 0..self.models.len() {
                let blocks = self.models[since]
                    .1
                    .touched
                    .len()
                    .max(self.models[new].1.touched.len());
                let changes = changes(&self.volume(new), &self.volume(since), blocks as u64);
                self.judge(since, new, &changes);
            }
        }
    }

    fn judge(&self, since: usize, new: usize, changes: &[Change]) {
        let [(_, old), (_, new)] = [&self.models[since], &self.models[new]];
        for (change, block) in changes.iter().zip(0..) {
            let (old, new) = (old.block(block), new.block(block));
            let content = |side: Option<(&[u8], u64)>| side.map(|(bytes, _)| bytes.to_vec());
            let touched = |side: Option<(&[u8], u64)>| side.map(|(_, request)| request);
            match change {
                Change::Same => assert!(content(old) == content(new), "block {block} differs"),
                Change::Data => assert!(new.is_some(), "block {block} is beyond the end"),
                Change::Zero => assert!(
                    new.is_none_or(|(bytes, _)| bytes.iter().all(|byte| *byte == 0)),
                    "block {block} is not zeros"
                ),
            }
            let is_same = *change == Change::Same;
            assert!(
                is_same || touched(old) != touched(new),
                "nobody touched block {block}"
            );
        }
    }
}

/// The change of each block, requested in pieces.
fn changes(new: &Volume, since: &Volume, blocks: u64) -> Vec<Change> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < blocks * BLOCK {
        let pieces = new
            .changes(since, at..blocks * BLOCK, 3, Blocking::Yes)
            .unwrap();
        assert!((1..=3).contains(&pieces.len()), "{pieces:?}");
        for ChangedExtent { len, change } in pieces {
            assert!(len > 0 && len % BLOCK == 0, "{len} bytes");
            found.extend(vec![change; (len / BLOCK) as usize]);
            at += len;
        }
    }
    assert_eq!(at, blocks * BLOCK);
    found
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_differs_is_among_the_changes(
        requests in prop::collection::vec(request(), 1..60),
    ) {
        let mut world = World::new();
        for request in &requests {
            world.serve(request);
        }
        world.compare();
    }
}

#[test]
fn a_range_is_answered_to_the_byte() {
    let mut world = World::new();
    world.serve(&Request::Snapshot);
    let write = |at, len| Request::Write { at, len, byte: 1 };
    world.serve(&write(20, 4));
    let ask = |range: Range<u64>| {
        let (new, since) = (world.volume(0), world.volume(1));
        let changes = new.changes(&since, range, 10, Blocking::Yes).unwrap();
        let pairs = changes
            .into_iter()
            .map(|extent| (extent.len, extent.change));
        pairs.collect::<Vec<_>>()
    };
    let (first, end) = (10 * BLOCK, 12 * BLOCK);
    assert_eq!(ask(first..end), [(2 * BLOCK, Change::Data)]);
    assert_eq!(ask(first + 1..first + 2), [(1, Change::Data)]);
    assert_eq!(
        ask(first - 1..end + 1),
        [
            (1, Change::Same),
            (2 * BLOCK, Change::Data),
            (1, Change::Same)
        ]
    );
    assert_eq!(ask(end..end + 5), [(5, Change::Same)]);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let store = pool(1000);
    let [a, b] = ["a", "b"].map(|name| new_volume(&store, name, MIB));
    snapshot(&store, "a", "s");
    let s = store.volume("a@s").unwrap();
    let error = a.changes(&b, 0..MIB, 10, Blocking::Yes).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert!(error.to_string().contains("in common"), "{error}");
    for range in [0..MIB + 1, 0..0] {
        let error = a.changes(&s, range, 10, Blocking::Yes).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
    }
    store.delete_snapshot("a", "s").unwrap();
    for (new, since) in [(&a, &s), (&s, &a)] {
        let error = new.changes(since, 0..MIB, 10, Blocking::Yes).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Gone);
    }
}

/// Snapshots between the two are made and deleted, and the finder works, while the changes are
/// requested again and again.
#[test]
fn merges_and_the_finder_hide_nothing() {
    const BLOCKS: u64 = 2 * 512;
    const WRITTEN: u64 = 64;
    let store = pool(16 * BLOCKS);
    let live = new_volume(&store, "v", BLOCKS * BLOCK);
    let fill = |lba: u64, round: u64| write(&live, lba, [lba << 32 | round | 1 << 60]);
    let snapshot = |name: &str| snapshot(&store, "v", name);
    (0..BLOCKS).for_each(|lba| fill(lba, 0));
    snapshot("first");
    // Every eighth block is written after the first snapshot, each in a layer of its own or in two.
    let is_written = |lba: u64| lba.is_multiple_of(8) && lba / 8 < WRITTEN;
    for n in 0..WRITTEN {
        fill(n * 8, 1);
        fill((n / 2) * 8, 2);
        snapshot(&n.to_string());
    }
    snapshot("last");
    let [since, last] = ["v@first", "v@last"].map(|name| store.volume(name).unwrap());
    let is_over = Arc::new(AtomicBool::new(false));
    // Nothing is merged before all threads have begun, and each makes one more request once all is
    // merged, whichever ran before that.
    let begun = Arc::new(Barrier::new(4));
    let asks = [(&since, &last), (&last, &since), (&since, &live)].map(|(since, new)| {
        let (since, new) = (Arc::clone(since), Arc::clone(new));
        let (is_over, begun) = (Arc::clone(&is_over), Arc::clone(&begun));
        thread::spawn(move || {
            let ask = || {
                let changes = changes(&new, &since, BLOCKS);
                let is_changed = changes.iter().map(|change| *change == Change::Data);
                assert!(is_changed.eq((0..BLOCKS).map(is_written)));
            };
            begun.wait();
            while !is_over.load(SeqCst) {
                ask();
            }
            ask();
        })
    });
    begun.wait();
    for n in 0..WRITTEN {
        // In an order that merges both into layers that are merged later and into ones that were
        // merged.
        let name = (n * 37 % WRITTEN).to_string();
        if n % 5 == 0 {
            dedup(&store, &store.volume(&format!("v@{name}")).unwrap());
        }
        store.delete_snapshot("v", &name).unwrap();
        store.deletions().finish(&mut |_, _| {}).unwrap();
        store.tidy(true).unwrap();
    }
    is_over.store(true, SeqCst);
    for asker in asks {
        asker.join().unwrap();
    }
}

/// The most snapshots that can be made at once, and no more; the host's death right after loses none.
#[test]
fn snapshots_of_many_volumes_are_of_one_moment() {
    let world = common::World::new(&pool_of(64 << 20), LITTLE_MEMORY);
    let wanted: Vec<_> = (0..SNAPSHOTS_AT_ONCE_MAX)
        .map(|n| (format!("vm-{n}"), "night".to_owned()))
        .collect();
    for (name, _) in &wanted {
        let volume = new_volume(&world, name, BLOCK * 4);
        write(&volume, 0, [7]);
    }
    let extra = ("one-more".to_owned(), "night".to_owned());
    new_volume(&world, &extra.0, BLOCK);
    let too_many = [&wanted[..], &[extra]].concat();
    let refused = world.create_snapshots(&too_many).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    world.create_snapshots(&wanted).unwrap();
    let world = world.crash(CrashKind::PowerLoss);
    for (name, snapshot) in &wanted {
        let snapshot = world.volume(&format!("{name}@{snapshot}")).unwrap();
        assert_eq!(snapshot.logical_blocks(), 1, "{name}");
    }
    common::assert_clean(&world);
}
