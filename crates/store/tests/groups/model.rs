//! What the volumes must hold.

use std::collections::BTreeSet;

/// The content of a block: 0 for zeros.
pub(crate) type Content = u64;

/// The possible contents of a block.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// What a reader may find now: more than one after a request without an answer.
    pub(crate) now: BTreeSet<Content>,
    /// What a reader may find on another host, or after a power loss: all since the last flush.
    pub(crate) since_flush: BTreeSet<Content>,
}

impl Block {
    pub(crate) fn zeros() -> Self {
        Self {
            now: BTreeSet::from([0]),
            since_flush: BTreeSet::from([0]),
        }
    }

    /// A request to write this content begins.
    pub(crate) fn begin(&mut self, content: Content) {
        self.now.insert(content);
        self.since_flush.insert(content);
    }

    /// The request was answered.
    pub(crate) fn answered(&mut self, content: Content) {
        self.now = BTreeSet::from([content]);
    }

    /// A flush was answered that began when the block had these contents.
    pub(crate) fn flushed(&mut self) {
        self.since_flush = self.now.clone();
    }

    /// What was not flushed may be lost.
    pub(crate) fn lose(&mut self) {
        self.now = self.since_flush.clone();
    }

    /// Whether a reader may find this content; no other is possible afterwards, unless it may be lost again.
    pub(crate) fn found(&mut self, content: Content) -> bool {
        let is_possible = self.now.contains(&content);
        self.now = BTreeSet::from([content]);
        is_possible
    }
}

/// A volume.
#[derive(Debug, Clone)]
pub(crate) struct VolumeModel {
    pub(crate) name: String,
    pub(crate) blocks: Vec<Block>,
}
