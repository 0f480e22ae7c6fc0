//! The copy-on-write trees on disk: layer maps, free space and catalogue.
//!
//! A tree maps leaf numbers to leaf pages through one to four levels of 256 pointers. Pages on disk
//! never change; `rewrite` writes the next version to other places, sharing unchanged pages.

use std::sync::Arc;

use onefold_format::node::{LEVELS_MAX, NODE_FANOUT, Node};
use onefold_format::page::{PageBytes, PageKind};
use onefold_format::{PageNumber, Pointer, TreeRoot};

use super::pages::{PageWriter, Pages};
use crate::error::{Result, StoreError};

/// A node and its subtree; a leaf at level 0.
#[derive(Clone, Copy)]
struct Subtree {
    level: u8,
    /// The number of the first leaf.
    first: u64,
    pointer: Pointer,
}

impl Subtree {
    fn of(root: TreeRoot) -> Option<Self> {
        root.top.map(|pointer| Self {
            level: root.levels,
            first: 0,
            pointer,
        })
    }

    fn child(self, slot: u64, pointer: Pointer) -> Self {
        Self {
            level: self.level - 1,
            first: self.first + slot * span(self.level - 1),
            pointer,
        }
    }

    fn read(self, pages: &Pages, owner: u64) -> Result<Arc<Node>> {
        pages.node(self.level, owner, self.first, self.pointer)
    }
}

/// The number of leaves below a node of this level.
fn span(level: u8) -> u64 {
    NODE_FANOUT.pow(u32::from(level))
}

/// The pointer to a leaf.
pub fn lookup(pages: &Pages, owner: u64, root: TreeRoot, index: u64) -> Result<Option<Pointer>> {
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
/// levels, not to a gap, and inspects the pointers of skipped leaves.
pub fn next_leaf(
    pages: &Pages,
    owner: u64,
    root: TreeRoot,
    from: u64,
    is_wanted: &dyn Fn(&Pointer) -> bool,
) -> Result<Option<(u64, Pointer)>> {
    match Subtree::of(root) {
        Some(top) => next_below(pages, owner, top, from, is_wanted),
        None => Ok(None),
    }
}

fn next_below(
    pages: &Pages,
    owner: u64,
    tree: Subtree,
    from: u64,
    is_wanted: &dyn Fn(&Pointer) -> bool,
) -> Result<Option<(u64, Pointer)>> {
    let node = tree.read(pages, owner)?;
    let start = from.saturating_sub(tree.first) / span(tree.level - 1);
    for slot in start..NODE_FANOUT {
        let Some(pointer) = node.children[slot as usize] else {
            continue;
        };
        let child = tree.child(slot, pointer);
        if child.level == 0 {
            if is_wanted(&pointer) {
                return Ok(Some((child.first, pointer)));
            }
            continue;
        }
        let found = next_below(pages, owner, child, from, is_wanted)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The pages that [`walk`] meets, in order.
pub(super) enum Visit {
    /// An inner page, before the pages below it.
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
    match Subtree::of(root) {
        Some(top) => walk_below(pages, owner, top, visit),
        None => Ok(()),
    }
}

fn walk_below(
    pages: &Pages,
    owner: u64,
    tree: Subtree,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    visit(Visit::Node(tree.pointer.page))?;
    let node = tree.read(pages, owner)?;
    for (slot, pointer) in (0..).zip(node.children.iter()) {
        let Some(pointer) = *pointer else { continue };
        let child = tree.child(slot, pointer);
        match child.level {
            0 => visit(Visit::Leaf(child.first, pointer))?,
            _ => walk_below(pages, owner, child, visit)?,
        }
    }
    Ok(())
}

/// Reads every page, a node before the pages below it, and visits its content on disk.
pub fn each_page(
    pages: &Pages,
    owner: u64,
    root: TreeRoot,
    leaf: PageKind,
    visit: &mut dyn FnMut(&PageBytes) -> Result<()>,
) -> Result<()> {
    match Subtree::of(root) {
        Some(top) => each_page_below(pages, owner, leaf, top, visit),
        None => Ok(()),
    }
}

fn each_page_below(
    pages: &Pages,
    owner: u64,
    leaf: PageKind,
    tree: Subtree,
    visit: &mut dyn FnMut(&PageBytes) -> Result<()>,
) -> Result<()> {
    let Subtree {
        level,
        first,
        pointer,
    } = tree;
    if level == 0 {
        return visit(&*pages.read(leaf, 0, owner, first, pointer)?);
    }
    visit(&*pages.read(PageKind::Node, level, owner, first, pointer)?)?;
    let node = tree.read(pages, owner)?;
    for (slot, pointer) in (0..).zip(node.children.iter()) {
        if let Some(pointer) = *pointer {
            each_page_below(pages, owner, leaf, tree.child(slot, pointer), visit)?;
        }
    }
    Ok(())
}

/// A changed leaf: its new pointer, or `None` if it is gone.
pub(super) type Change = (u64, Option<Pointer>);

/// Writes the next version of a tree, in which the leaves in `changes`, sorted and each listed
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
        // The tree grows at the top: the old top becomes the first child of the new one.
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

/// Releases every page of a tree that the next root does not reach at all.
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
