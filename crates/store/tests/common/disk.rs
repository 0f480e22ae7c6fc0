//! The content of a simulated machine's disks.

use onefold_engine::Part;
use onefold_engine::simulated::SimulatedEngine;
use onefold_format::page::{PAGE_BYTES, PageBytes};
use onefold_format::{PageNumber, Root, Superblock};

use super::blocks::{BLOCK, blocks};

pub(crate) fn page(engine: &SimulatedEngine, part: Part, page: PageNumber) -> Box<PageBytes> {
    let bytes = engine.read_raw(part, page.0 * PAGE_BYTES as u64, PAGE_BYTES);
    Box::new(bytes.try_into().expect("a page"))
}

pub(crate) fn superblock(engine: &SimulatedEngine) -> Superblock {
    let page = page(engine, Part::Superblock, PageNumber(0));
    Superblock::decode(&page).expect("a superblock")
}

/// The root that an opening starts from, if it finds one.
pub(crate) fn newest_root(engine: &SimulatedEngine) -> Option<Root> {
    let pool = superblock(engine).pool;
    let roots = [PageNumber(0), PageNumber(1)]
        .into_iter()
        .filter_map(|slot| {
            let page = page(engine, Part::Meta, slot);
            Root::decode(&page, pool, slot).ok()
        });
    roots.max_by_key(|root| root.sequence)
}

/// The block of the pool that has this content.
pub(crate) fn place_of(engine: &SimulatedEngine, pool_bytes: u64, content: u64) -> u64 {
    let wanted = blocks([content]);
    let mut pool =
        (0..pool_bytes / BLOCK).map(|pba| engine.read_raw(Part::Data, pba * BLOCK, BLOCK as usize));
    pool.position(|block| block == wanted)
        .expect("it is nowhere") as u64
}
