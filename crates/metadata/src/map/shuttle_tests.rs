//! Readers, changes of frozen layers and merges, in orders that a scheduler tries.

use onefold_engine::simulated::SimulatedEngine;
use onefold_engine::{Engine, Part};
use onefold_format::{
    DedupMode, DomainId, Pba, PoolId, TreeRoot, VolumeId, VolumeSettings, VolumeState,
};
use shuttle::rand::Rng;
use shuttle::thread;

use super::*;
use crate::sync::AtomicBool;

pub(crate) const SEGMENT: SegmentIndex = SegmentIndex(0);

/// A layer in which these slots refer to these blocks.
pub(crate) fn layer(
    maps: &Maps,
    id: u64,
    below: Option<u64>,
    blocks: &[(usize, u64)],
) -> Arc<Layer> {
    let layer = maps.add_layer(&VolumeRecord {
        id: VolumeId(id),
        layer: LayerId(id),
        below: None,
        snapshot_of: None,
        state: VolumeState::Ready,
        size_bytes: 4096,
        created_unix_seconds: 0,
        map: TreeRoot::default(),
        name: String::new(),
        domain: DomainId(0),
        domain_name: String::new(),
        settings: VolumeSettings::of_mode(DedupMode::Off),
        counts: LayerCounts::default(),
    });
    for (slot, block) in blocks {
        set(maps, &layer, *slot, *block);
    }
    maps.put_above(&layer, below.map(LayerId)).unwrap();
    layer
}

fn set(maps: &Maps, layer: &Arc<Layer>, slot: usize, block: u64) {
    let leaf = maps.leaf(layer, SEGMENT, Blocking::Yes).unwrap();
    maps.change(layer, SEGMENT, &leaf, slot..slot + 1, |entries| {
        entries[0] = Entry::shared(Pba(block));
    });
}

/// Three layers: two frozen ones, and a live one above them.
pub(crate) fn maps() -> (Arc<Maps>, [Arc<Layer>; 3]) {
    let disk = SimulatedEngine::new(1).create(Part::Meta, 0).unwrap();
    let pages = Arc::new(Pages::new(disk, String::new(), PoolId([0; 16]), 8));
    let maps = Arc::new(Maps::new(pages, &Limits::from_memory(8 << 20), 4096));
    let bottom = layer(&maps, 1, None, &[(0, 10), (1, 11)]);
    let middle = layer(&maps, 2, Some(1), &[(2, 12)]);
    let live = layer(&maps, 3, Some(2), &[]);
    // In half of the cases the view is in the cache already.
    if shuttle::rand::thread_rng().gen_bool(0.5) {
        assert_eq!(blocks(&maps, &live), [10, 11, 12]);
    }
    (maps, [bottom, middle, live])
}

/// Merges `gone` into `above`, which has no entries where `gone` has some.
pub(crate) fn merge_away(maps: &Maps, gone: &Arc<Layer>, above: &Arc<Layer>) {
    let [lower, upper] =
        [gone, above].map(|layer| maps.leaf(layer, SEGMENT, Blocking::Yes).unwrap());
    let moved = lower.with(Segment::clone);
    maps.merge(
        SEGMENT,
        LeafOf {
            layer: gone,
            leaf: &lower,
        },
        LeafOf {
            layer: above,
            leaf: &upper,
        },
        &moved,
    );
    maps.remove_layer(gone.id).unwrap();
}

/// A checkpoint's work once a merge has emptied a segment.
pub(crate) fn forget(layer: &Layer, segment: SegmentIndex) {
    lock(&layer.fresh).remove(&segment);
}

fn blocks(maps: &Maps, layer: &Layer) -> Vec<u64> {
    let mut entries = Entries::new();
    maps.resolve(layer, SEGMENT, 0..3, Blocking::Yes, &mut entries)
        .unwrap();
    let blocks = entries
        .iter()
        .map(|entry| entry.pba().map_or(0, |pba| pba.0));
    blocks.collect()
}

#[test]
fn shuttle_who_looks_after_a_change_below_sees_it() {
    shuttle::check_random(
        || {
            let (maps, [bottom, _, live]) = maps();
            let is_changed = Arc::new(AtomicBool::new(false));
            let readers = [0, 1].map(|_| {
                let (maps, live) = (Arc::clone(&maps), Arc::clone(&live));
                let is_changed = Arc::clone(&is_changed);
                thread::spawn(move || {
                    for _ in 0..2 {
                        let must_be_new = is_changed.load(SeqCst);
                        let found = blocks(&maps, &live);
                        assert!(
                            found[0] == 20 || found[0] == 10 && !must_be_new,
                            "{found:?}"
                        );
                        assert_eq!(found[1..], [11, 12]);
                    }
                })
            });
            set(&maps, &bottom, 0, 20);
            is_changed.store(true, SeqCst);
            for reader in readers {
                reader.join().unwrap();
            }
            assert_eq!(blocks(&maps, &live), [20, 11, 12]);
        },
        2000,
    );
}

#[test]
fn shuttle_merging_changes_nothing_for_those_above() {
    let interleave = || {
        let (maps, layers) = maps();
        let live = Arc::clone(&layers[2]);
        let reader = {
            let (maps, live) = (Arc::clone(&maps), Arc::clone(&live));
            thread::spawn(move || {
                for _ in 0..3 {
                    assert_eq!(blocks(&maps, &live), [10, 11, 12]);
                }
            })
        };
        // The one in the middle or the one at the bottom goes first; in the end nothing is below.
        let goes_first = shuttle::rand::thread_rng().gen_range(0..2);
        let (gone, above) = (&layers[goes_first], &layers[goes_first + 1]);
        merge_away(&maps, gone, above);
        merge_away(&maps, &layers[1 - goes_first], &live);
        reader.join().unwrap();
        assert!(live.below().is_none());
        assert_eq!(blocks(&maps, &live), [10, 11, 12]);
    };
    shuttle::check_random(interleave, 2000);
    // A reader that stands still while all layers below it are removed.
    shuttle::check_pct(interleave, 2000, 3);
}

/// Two live layers above an empty one, so that nothing but it can have what leaves the layers below.
fn maps_with_empty() -> (Arc<Maps>, [Arc<Layer>; 3], [Arc<Layer>; 2]) {
    let (maps, [bottom, middle, empty]) = maps();
    let live = [4, 5].map(|id| layer(&maps, id, Some(3), &[]));
    (maps, [bottom, middle, empty], live)
}

#[test]
fn shuttle_an_empty_layer_is_not_passed_by_once_it_has_entries() {
    let interleave = || {
        let (maps, [bottom, middle, empty], live) = maps_with_empty();
        let readers = live.clone().map(|live| {
            let maps = Arc::clone(&maps);
            thread::spawn(move || {
                for _ in 0..2 {
                    assert_eq!(blocks(&maps, &live), [10, 11, 12]);
                }
            })
        });
        merge_away(&maps, &middle, &empty);
        merge_away(&maps, &bottom, &empty);
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(empty.below().is_none() && empty.next_occupied().is_none());
        assert!(
            live.iter()
                .all(|live| live.next_occupied().is_some_and(|next| next.id == empty.id))
        );
        assert_eq!(blocks(&maps, &live[0]), [10, 11, 12]);
    };
    shuttle::check_random(interleave, 2000);
    shuttle::check_pct(interleave, 2000, 3);
}

#[test]
fn shuttle_who_holds_a_removed_layer_finds_what_moves_below_it() {
    let interleave = || {
        let (maps, [bottom, middle, empty]) = maps();
        merge_away(&maps, &bottom, &middle);
        let removed = layer(&maps, 4, Some(3), &[(3, 13)]);
        let live = layer(&maps, 5, Some(4), &[]);
        let reader = {
            let (maps, live) = (Arc::clone(&maps), Arc::clone(&live));
            thread::spawn(move || {
                for _ in 0..2 {
                    assert_eq!(blocks(&maps, &live), [10, 11, 12]);
                }
            })
        };
        merge_away(&maps, &removed, &live);
        merge_away(&maps, &middle, &empty);
        reader.join().unwrap();
        // A reader that stood still all the time finds the layers as they are now.
        let view = maps.view(&removed, SEGMENT, Blocking::Yes).unwrap();
        assert_eq!(view[2], Entry::shared(Pba(12)));
    };
    shuttle::check_random(interleave, 2000);
    shuttle::check_pct(interleave, 2000, 3);
}

#[test]
fn shuttle_a_change_below_drops_the_views_of_snapshots_made_since() {
    let interleave = || {
        let (maps, [bottom, _, snapshot]) = maps();
        set(&maps, &bottom, 0, 20);
        set(&maps, &snapshot, 2, 13);
        let live = layer(&maps, 4, Some(3), &[]);
        assert_eq!(blocks(&maps, &live), [20, 11, 13]);
        set(&maps, &bottom, 0, 30);
        assert_eq!(blocks(&maps, &live), [30, 11, 13]);
    };
    shuttle::check_random(interleave, 10);
}
