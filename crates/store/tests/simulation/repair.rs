//! `check --repair`: its findings in a wrong free-space map, and the blocks that it leaves alone.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_format::node::Node;
use onefold_format::page::{self, PAGE_BYTES, PageBytes, PageHeader, PageKind, SPACE_OWNER};
use onefold_format::space_page::{self, Bitmap};
use onefold_format::{PageNumber, Root, Superblock};
use onefold_store::{
    Blocking, CheckReport, CreateOptions, Finding, OpenOptions, Store, StoreErrorKind,
};

use crate::crash::Recovery;
use crate::world::{Fill, MIB, World};

/// Free blocks that the tests make leak.
const LEAKED: std::ops::Range<u64> = 3000..3003;

/// A closed pool: its last checkpoint is everything.
fn closed_pool() -> Arc<World> {
    let options = CreateOptions {
        block_size: 4096,
        size_bytes: 16 * MIB,
        log_bytes: 256 << 10,
        ..CreateOptions::default()
    };
    let world = World::new(3, &options);
    world.open(8 * MIB).unwrap();
    world.create_volume(8 * MIB).unwrap();
    let id = world.volume_ids()[0];
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

fn read_page(engine: &SimulatedEngine, part: Part, page: PageNumber) -> Box<PageBytes> {
    let bytes = engine.read_raw(part, page.0 * PAGE_BYTES as u64, PAGE_BYTES);
    Box::new(bytes.try_into().unwrap())
}

fn newest_root(engine: &SimulatedEngine) -> (Superblock, Root) {
    let page = read_page(engine, Part::Superblock, PageNumber(0));
    let superblock = Superblock::decode(&page).unwrap();
    let root = |slot| {
        let page = read_page(engine, Part::Meta, PageNumber(slot));
        Root::decode(&page, superblock.pool, PageNumber(slot)).ok()
    };
    let roots = [root(0), root(1)].into_iter().flatten();
    let newest = roots.max_by_key(|root| root.sequence).unwrap();
    (superblock, newest)
}

/// Where the free-space map's inner page and its only leaf are.
fn space_pages(engine: &SimulatedEngine) -> (PageNumber, PageNumber) {
    let (_, root) = newest_root(engine);
    assert_eq!(root.space.levels, 1);
    let top = root.space.top.unwrap().page;
    let node = Node::decode(&read_page(engine, Part::Meta, top)).unwrap();
    (top, node.children[0].unwrap().page)
}

/// Writes another free-space map in the place of the one there is, with all checksums right.
fn replace_free_space(engine: &SimulatedEngine, change: impl FnOnce(&mut Bitmap)) {
    let (superblock, mut root) = newest_root(engine);
    let (top, leaf) = space_pages(engine);
    let write = |kind, level, place: PageNumber, fill: &dyn Fn(&mut PageBytes)| {
        let mut bytes = page::blank();
        fill(&mut bytes);
        let header = PageHeader {
            kind,
            level,
            pool: superblock.pool,
            page: place,
            owner: SPACE_OWNER,
            index: 0,
            sequence: root.sequence,
        };
        let checksum = page::seal(&mut bytes, &header);
        engine.overwrite(Part::Meta, place.0 * PAGE_BYTES as u64, &bytes[..]);
        checksum
    };
    let mut bitmap = space_page::decode(&read_page(engine, Part::Meta, leaf)).unwrap();
    change(&mut bitmap);
    let leaf_checksum = write(PageKind::Space, 0, leaf, &|page| {
        space_page::encode(&bitmap, page);
    });
    let mut node = Node::decode(&read_page(engine, Part::Meta, top)).unwrap();
    let child = node.children[0].as_mut().unwrap();
    child.checksum = leaf_checksum;
    child.info = space_page::allocated(&bitmap);
    let top_checksum = write(PageKind::Node, 1, top, &|page| node.encode(page));
    root.space.top.as_mut().unwrap().checksum = top_checksum;
    let at = root.slot().0 * PAGE_BYTES as u64;
    engine.overwrite(Part::Meta, at, &root.encode(superblock.pool)[..]);
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

fn damaged(world: &World, damage: impl FnOnce(&SimulatedEngine)) -> SimulatedEngine {
    let engine = world.engine().crash(CrashKind::ProcessKilled);
    damage(&engine);
    engine
}

fn check(store: &Store, repair: bool) -> (CheckReport, Vec<Finding>) {
    let mut findings = Vec::new();
    let report = store.check(repair, &mut |finding| findings.push(finding));
    (report.unwrap(), findings)
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
        let page = read_page(&world.engine(), Part::Meta, *place);
        let header = PageHeader {
            kind: PageKind::Map,
            level: 0,
            pool: newest_root(&world.engine()).0.pool,
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
    let options = OpenOptions {
        memory_bytes: 8 * MIB,
        ..OpenOptions::default()
    };
    let engine = Arc::new(damaged(&world, damage));
    let error = Store::open(engine, &options).err().unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    let options = OpenOptions {
        rebuild_free_space: true,
        ..options
    };
    let engine = Arc::new(damaged(&world, damage));
    let as_engine: Arc<dyn onefold_engine::Engine> = Arc::<SimulatedEngine>::clone(&engine);
    let (store, report) = Store::open(as_engine, &options).unwrap();
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
