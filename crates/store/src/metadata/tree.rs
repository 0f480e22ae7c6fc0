//! The copy-on-write trees on disk: layer maps, free space and catalogue.
//!
//! A tree maps leaf numbers to leaf pages through one to four levels of 256 pointers. What is on
//! disk never changes; [`rewrite`] makes the next version beside it, sharing what stayed.

use onefold_format::node::{LEVELS_MAX, NODE_FANOUT, Node};
use onefold_format::page::{PageBytes, PageKind};
use onefold_format::{PageNumber, Pointer, TreeRoot};

use super::pages::{PageWriter, Pages};
use crate::error::{Result, StoreError};

/// Leaves below a node of this level.
fn span(level: u8) -> u64 {
    NODE_FANOUT.pow(u32::from(level))
}

/// The pointer to a leaf.
pub(crate) fn lookup(
    pages: &Pages,
    owner: u64,
    root: TreeRoot,
    index: u64,
) -> Result<Option<Pointer>> {
    let Some(mut pointer) = root.top.filter(|_| index < span(root.levels)) else {
        return Ok(None);
    };
    for level in (1..=root.levels).rev() {
        let first = index - index % span(level);
        let node = pages.node(level, owner, first, pointer)?;
        let slot = (index - first) / span(level - 1);
        match node.children[slot as usize] {
            Some(child) => pointer = child,
            None => return Ok(None),
        }
    }
    Ok(Some(pointer))
}

/// The first leaf at or after `from` whose pointer is wanted. Takes time in proportion to the
/// levels, not to a gap, and looks at the pointers of leaves that are passed over.
pub(crate) fn next_leaf(
    pages: &Pages,
    owner: u64,
    root: TreeRoot,
    from: u64,
    is_wanted: &dyn Fn(&Pointer) -> bool,
) -> Result<Option<(u64, Pointer)>> {
    match root.top {
        Some(top) => next_below(pages, owner, (root.levels, 0, top), from, is_wanted),
        None => Ok(None),
    }
}

fn next_below(
    pages: &Pages,
    owner: u64,
    (level, first, pointer): (u8, u64, Pointer),
    from: u64,
    is_wanted: &dyn Fn(&Pointer) -> bool,
) -> Result<Option<(u64, Pointer)>> {
    let node = pages.node(level, owner, first, pointer)?;
    let below = span(level - 1);
    let start = from.saturating_sub(first) / below;
    for slot in start..NODE_FANOUT {
        let Some(child) = node.children[slot as usize] else {
            continue;
        };
        let child_first = first + slot * below;
        if level == 1 {
            if is_wanted(&child) {
                return Ok(Some((child_first, child)));
            }
            continue;
        }
        let below = (level - 1, child_first, child);
        let found = next_below(pages, owner, below, from, is_wanted)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What [`walk`] meets, in order.
pub(super) enum Visit {
    /// An inner page, before what lies below it.
    Node(PageNumber),
    /// A leaf, which is not read.
    Leaf(u64, Pointer),
}

/// Visits every inner page and every pointer to a leaf.
pub(super) fn walk(
    pages: &Pages,
    owner: u64,
    root: TreeRoot,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    match root.top {
        Some(top) => walk_below(pages, owner, root.levels, 0, top, visit),
        None => Ok(()),
    }
}

fn walk_below(
    pages: &Pages,
    owner: u64,
    level: u8,
    first: u64,
    pointer: Pointer,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    visit(Visit::Node(pointer.page))?;
    let node = pages.node(level, owner, first, pointer)?;
    for (slot, child) in node.children.iter().enumerate() {
        let Some(child) = *child else { continue };
        let child_first = first + slot as u64 * span(level - 1);
        if level == 1 {
            visit(Visit::Leaf(child_first, child))?;
        } else {
            walk_below(pages, owner, level - 1, child_first, child, visit)?;
        }
    }
    Ok(())
}

/// Reads every page, a node before what lies below it, and visits it as it is on disk.
pub(crate) fn each_page(
    pages: &Pages,
    owner: u64,
    root: TreeRoot,
    leaf: PageKind,
    visit: &mut dyn FnMut(&PageBytes) -> Result<()>,
) -> Result<()> {
    match root.top {
        Some(top) => each_page_below(pages, (owner, leaf), (root.levels, 0, top), visit),
        None => Ok(()),
    }
}

fn each_page_below(
    pages: &Pages,
    (owner, leaf): (u64, PageKind),
    (level, first, pointer): (u8, u64, Pointer),
    visit: &mut dyn FnMut(&PageBytes) -> Result<()>,
) -> Result<()> {
    if level == 0 {
        return visit(&*pages.read(leaf, 0, owner, first, pointer)?);
    }
    visit(&*pages.read(PageKind::Node, level, owner, first, pointer)?)?;
    let node = pages.node(level, owner, first, pointer)?;
    for (slot, child) in (0..).zip(node.children.iter()) {
        if let Some(child) = *child {
            let below = (level - 1, first + slot * span(level - 1), child);
            each_page_below(pages, (owner, leaf), below, visit)?;
        }
    }
    Ok(())
}

/// A leaf that changed: where it is now, or that it is gone.
pub(super) type Change = (u64, Option<Pointer>);

/// Writes the next version of a tree, in which the leaves in `changes`, sorted and each named
/// once, have moved.
pub(super) fn rewrite(
    writer: &mut PageWriter<'_>,
    owner: u64,
    root: TreeRoot,
    changes: &[Change],
) -> Result<TreeRoot> {
    let Some((highest, _)) = changes.last() else {
        return Ok(root);
    };
    let mut levels = root.levels.max(1);
    let mut top = root.top;
    while *highest >= span(levels) {
        if levels == LEVELS_MAX {
            return Err(StoreError::damaged(format!(
                "leaf {highest} is beyond any tree"
            )));
        }
        // The tree grows at the top: what it was becomes the first child of the new top.
        levels += 1;
        if top.is_some() {
            let mut node = Node::default();
            node.children[0] = top;
            top = Some(write_node(writer, owner, levels, 0, &node)?);
            // The new top is read again below, like any other.
            writer.flush()?;
        }
    }
    let top = rewrite_below(writer, owner, levels, 0, top, changes)?;
    Ok(TreeRoot {
        top,
        levels: if top.is_some() { levels } else { 0 },
    })
}

fn rewrite_below(
    writer: &mut PageWriter<'_>,
    owner: u64,
    level: u8,
    first: u64,
    old: Option<Pointer>,
    changes: &[Change],
) -> Result<Option<Pointer>> {
    let mut node = Node::default();
    if let Some(old) = old {
        node = Node::clone(&*writer.pages().node(level, owner, first, old)?);
        writer.replace(old.page);
    }
    let below = span(level - 1);
    for group in changes.chunk_by(|a, b| a.0 / below == b.0 / below) {
        let Some((index, leaf)) = group.first().copied() else {
            continue;
        };
        let slot = (index - first) / below;
        let child = &mut node.children[slot as usize];
        if level == 1 {
            if let Some(replaced) = *child {
                writer.replace(replaced.page);
            }
            *child = leaf;
        } else {
            *child = rewrite_below(
                writer,
                owner,
                level - 1,
                first + slot * below,
                *child,
                group,
            )?;
        }
    }
    if node.is_empty() {
        return Ok(None);
    }
    write_node(writer, owner, level, first, &node).map(Some)
}

fn write_node(
    writer: &mut PageWriter<'_>,
    owner: u64,
    level: u8,
    first: u64,
    node: &Node,
) -> Result<Pointer> {
    writer.write(PageKind::Node, level, owner, first, 0, |page| {
        node.encode(page)
    })
}

/// Gives up every page of a tree that the next root does not reach at all.
pub(super) fn discard(writer: &mut PageWriter<'_>, owner: u64, root: TreeRoot) -> Result<()> {
    let mut gone = Vec::new();
    walk(writer.pages(), owner, root, &mut |visit| {
        gone.push(visit);
        Ok(())
    })?;
    for visit in gone {
        match visit {
            Visit::Node(page) => writer.replace(page),
            Visit::Leaf(_, pointer) => writer.replace(pointer.page),
        }
    }
    Ok(())
}
