//! The checkpoint: changed metadata is written to new places, and one root switches over.
//!
//! 1. seal under the uncommitted state, in one commit: every changed segment, free-space page and catalogue
//!    page as they are after exactly the records before the log position (a *sharp* checkpoint, so
//!    that replay can compare each record with the map it changes)
//! 2. write them to places that no durable root reaches, and the trees above them
//! 3. sync the pages (P2), then write and sync the root
//! 4. only now release the old pages and the log before the position
//!
//! Requests continue during a checkpoint: they change copies.

use onefold_format::Root;
use onefold_format::page::PAGE_BYTES;
use onefold_metadata::{Guard, PageWriter, Result, StoreError};

use super::Journal;
use super::failure::StopsOnPanic;

impl Journal {
    /// Writes a checkpoint with everything up to some moment after this call.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoints.run(|root| self.write_checkpoint(root))
    }

    fn write_checkpoint(&self, current: &mut Root) -> Result<()> {
        // The first step empties the list of changes.
        let _stops = StopsOnPanic::new(&self.failure, "a checkpoint");
        let mut log = self.commits.lock();
        let sealed = self.seal_and_commit(&mut log, |uncommitted| {
            uncommitted.metadata.seal(&self.maps)
        })?;
        let mark = log.end;
        drop(log);
        if !Guard::LogPrunedAfterRoot.holds() {
            self.log_span.set_start(mark.position);
        }
        let mut writer = PageWriter::new(&self.pages, current.sequence + 1);
        let trees = match sealed.write(&mut writer) {
            Ok(trees) => trees,
            Err(error) => {
                writer.abandon();
                let metadata = &mut self.uncommitted()?.metadata;
                metadata.unseal(&self.maps, sealed)?;
                return Err(error.during("writing a checkpoint"));
            }
        };
        let mark = if Guard::CheckpointIsSharp.holds() {
            mark
        } else {
            self.commits.lock().end
        };
        let root = Root {
            sequence: current.sequence + 1,
            log_position: mark.position,
            commit: mark.commit,
            frame_checksum: mark.checksum,
            when_full: self.when_full(),
            ..sealed.root(&trees, current)
        };
        self.switch_root(&mut writer, &root)
            .inspect_err(|error| self.fail(error))?;
        sealed.publish_maps(&self.maps, &trees);
        let metadata = &mut self.uncommitted()?.metadata;
        metadata.publish(&sealed, &trees)?;
        self.log_span.set_start(root.log_position);
        writer.complete();
        *current = root;
        Ok(())
    }

    fn switch_root(&self, writer: &mut PageWriter<'_>, root: &Root) -> Result<()> {
        if Guard::PagesSyncedBeforeRoot.holds() {
            writer.sync()?;
        }
        self.write_root(root)
    }

    /// Writes a root to its slot and makes it durable.
    pub(super) fn write_root(&self, root: &Root) -> Result<()> {
        let page = root.encode(self.superblock.pool);
        let at = root.slot().0 * PAGE_BYTES as u64;
        let disk = self.pages.disk();
        let mut written = disk.write_at(&page[..], at);
        if Guard::RootSyncedBeforeReuse.holds() {
            written = written.and_then(|()| disk.sync());
        }
        written.map_err(|error| StoreError::io("writing the pool's root", error))
    }
}
