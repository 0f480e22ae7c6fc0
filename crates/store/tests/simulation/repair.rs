//! `check --repair`: its findings in a wrong free-space map, and the blocks that it leaves alone.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_format::PageNumber;
use onefold_format::node::Node;
use onefold_format::page::{self, PAGE_BYTES, PageBytes, PageHeader, PageKind, SPACE_OWNER};
use onefold_format::space_page::{self, Bitmap};
use onefold_store::{Blocking, Finding, OpenOptions, Store, StoreErrorKind};

use crate::common::{self, LITTLE_MEMORY, MIB, check, newest_root, pool_of, superblock};
use crate::crash::Recovery;
use crate::damage::damaged;
use crate::world::{Fill, World};

/// Free blocks that the tests make leak.
const LEAKED: std::ops::Range<u64> = 3000..3003;

/// A closed pool: its last checkpoint is everything.
fn closed_pool() -> Arc<World> {
    let world = World::opened(3, &pool_of(16 * MIB));
    let id = world.new_volume(8 * MIB).unwrap();
    for n in 0..3 {
        let offset = n * 2 * MIB;
        world
            .write(id, offset, MIB, Fill::Data, Blocking::Yes)
            .unwrap();
    }
    world.close_and_open(8 * MIB).unwrap();
    world.engine().halt();
    world
}

/// Where the free-space map's inner page and its only leaf are.
fn space_pages(engine: &SimulatedEngine) -> (PageNumber, PageNumber) {
    let root = newest_root(engine).unwrap();
    assert_eq!(root.space.levels, 1);
    let top = root.space.top.unwrap().page;
    let node = Node::decode(&common::page(engine, Part::Meta, top)).unwrap();
    (top, node.children[0].unwrap().page)
}

/// Writes another free-space map in the place of the one there is, with all checksums right.
fn replace_free_space(engine: &SimulatedEngine, change: impl FnOnce(&mut Bitmap)) {
    let pool = superblock(engine).pool;
    let mut root = newest_root(engine).unwrap();
    let (top, leaf) = space_pages(engine);
    let write = |kind, level, place: PageNumber, fill: &dyn Fn(&mut PageBytes)| {
        let mut bytes = page::blank();
        fill(&mut bytes);
        let header = PageHeader {
            kind,
            level,
            pool,
            page: place,
            owner: SPACE_OWNER,
            index: 0,
            sequence: root.sequence,
        };
        let checksum = page::seal(&mut bytes, &header);
        engine.overwrite(Part::Meta, place.0 * PAGE_BYTES as u64, &bytes[..]);
        checksum
    };
    let mut bitmap = space_page::decode(&common::page(engine, Part::Meta, leaf)).unwrap();
    change(&mut bitmap);
    let leaf_checksum = write(PageKind::Space, 0, leaf, &|page| {
        space_page::encode(&bitmap, page);
    });
    let mut node = Node::decode(&common::page(engine, Part::Meta, top)).unwrap();
    let child = node.children[0].as_mut().unwrap();
    child.checksum = leaf_checksum;
    child.info = space_page::allocated(&bitmap);
    let top_checksum = write(PageKind::Node, 1, top, &|page| node.encode(page));
    root.space.top.as_mut().unwrap().checksum = top_checksum;
    let at = root.slot().0 * PAGE_BYTES as u64;
    engine.overwrite(Part::Meta, at, &root.encode(pool)[..]);
}

/// Makes some blocks leak, and counts two that a volume owns as free.
fn disagree(bitmap: &mut Bitmap) {
    for block in LEAKED {
        assert_eq!(bitmap[block as usize / 64] >> (block % 64) & 1, 0);
        bitmap[block as usize / 64] |= 1 << (block % 64);
    }
    assert_eq!(bitmap[8], u64::MAX, "blocks 512 to 575 are in use");
    bitmap[8] &= !0b110;
}

fn messages(findings: &[Finding]) -> Vec<&str> {
    findings
        .iter()
        .map(|finding| finding.message.as_str())
        .collect()
}

#[test]
fn free_space_that_disagrees_is_reported_and_repaired() {
    let world = closed_pool();
    let engine = damaged(&world, |engine| replace_free_space(engine, disagree));
    world.open_after(Recovery::KILLED, engine).unwrap();
    world.verify_contents().unwrap();
    let expected = [
        "PBA 513 to 514: counted as free, but entries own them",
        "PBA 3000 to 3002: leaked: counted as in use, but no entry owns them",
    ];
    let (report, findings) = check(&world.store(), false);
    assert_eq!(
        (report.findings, report.repaired, report.leaked_blocks),
        (2, 0, 3)
    );
    assert_eq!(messages(&findings), expected);
    assert!(findings.iter().all(|finding| finding.repairable));

    let (report, findings) = check(&world.store(), true);
    assert_eq!((report.findings, report.repaired), (2, 2));
    assert_eq!(messages(&findings), expected);
    world.check().unwrap();
    world.recover_by(Recovery::POWER_LOSS).unwrap();
    world.check().unwrap();
    let stat = world.store().stat().unwrap();
    assert_eq!(stat.private_blocks, 3 * 256);
    assert_eq!(stat.free_blocks, stat.pool_blocks - 1 - 3 * 256);
}

#[test]
fn nothing_is_freed_while_a_map_cannot_be_read() {
    let world = closed_pool();
    let is_map = |place: &PageNumber| {
        let page = common::page(&world.engine(), Part::Meta, *place);
        let header = PageHeader {
            kind: PageKind::Map,
            level: 0,
            pool: superblock(&world.engine()).pool,
            page: *place,
            owner: 1,
            index: 1,
            sequence: 0,
        };
        page::open(&page, &header).is_ok()
    };
    let map = (2..200).map(PageNumber).find(is_map).unwrap();
    let engine = damaged(&world, |engine| {
        replace_free_space(engine, disagree);
        engine.flip_bit(Part::Meta, map.0 * PAGE_BYTES as u64 + 500, 1);
    });
    world.open_after(Recovery::KILLED, engine).unwrap();
    let store = world.store();
    let free = store.stat().unwrap().free_blocks;
    let (report, findings) = check(&store, true);
    // Two blocks that the readable maps own are claimed; apparent leaks may belong to the
    // unreadable page.
    assert_eq!(report.repaired, 1, "{findings:?}");
    let freeable = findings.iter().filter(|finding| finding.repairable).count();
    assert_eq!(freeable, 1, "{findings:?}");
    assert_eq!(store.stat().unwrap().free_blocks, free - 2);
}

#[test]
fn an_unreadable_page_of_free_space_is_made_again_from_the_maps() {
    let world = closed_pool();
    let (_, leaf) = space_pages(&world.engine());
    let engine = damaged(&world, |engine| {
        engine.flip_bit(Part::Meta, leaf.0 * PAGE_BYTES as u64 + 100, 5);
    });
    world.open_after(Recovery::KILLED, engine).unwrap();
    let (report, findings) = check(&world.store(), false);
    assert_eq!((report.findings, report.repaired), (1, 0));
    assert!(
        findings[0]
            .message
            .contains(&format!("page {leaf} of simulated:meta"))
            && findings[0].repairable,
        "{findings:?}"
    );
    let (report, _) = check(&world.store(), true);
    assert_eq!(report.repaired, 1);
    world.check().unwrap();
    world.recover_by(Recovery::POWER_LOSS).unwrap();
    world.check().unwrap();
}

#[test]
fn free_space_without_its_inner_page_is_counted_again_on_request() {
    let world = closed_pool();
    let (top, _) = space_pages(&world.engine());
    let damage = |engine: &SimulatedEngine| {
        engine.flip_bit(Part::Meta, top.0 * PAGE_BYTES as u64 + 100, 5);
    };
    let opened = common::open(damaged(&world, damage), LITTLE_MEMORY);
    let error = opened.err().unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    let options = OpenOptions {
        memory_bytes: LITTLE_MEMORY,
        rebuild_free_space: true,
        shared: None,
    };
    let engine = damaged(&world, damage);
    let (store, report) = Store::open(Arc::new(engine.clone()), &options).unwrap();
    assert!(report.free_space_rebuilt);
    let (report, findings) = check(&store, true);
    assert!(
        findings.iter().all(|finding| finding.repairable),
        "{report:?}: {findings:?}"
    );
    assert_eq!(check(&store, false).1, []);
    drop(store);
    world
        .open_after(Recovery::POWER_LOSS, engine.crash(CrashKind::PowerLoss))
        .unwrap();
    world.verify().unwrap();
    world.check().unwrap();
}
