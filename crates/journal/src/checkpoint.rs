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
use onefold_metadata::{Blocking, Guard, PageWriter, Result, StoreError, StoreErrorKind};

use super::Journal;
use super::failure::StopsOnPanic;
use super::watermarks::{PAGES_FOR_FINDER, PAGES_FOR_RECLAIMING};

impl Journal {
    /// Writes a checkpoint with everything up to some moment after this call.
    pub fn checkpoint(&self) -> Result<()> {
        self.root.run(|root| self.write_checkpoint(root))
    }

    fn write_checkpoint(&self, current: &mut Root) -> Result<()> {
        // The first step empties the list of changes.
        let _stops = StopsOnPanic::new(&self.state.failure, "a checkpoint");
        let mut log = self.commits.lock();
        let sealed = self.seal_and_commit(&mut log, |uncommitted| {
            uncommitted.metadata.seal(&self.state.maps)
        })?;
        let mark = log.end;
        drop(log);
        if !Guard::LogPrunedAfterRoot.holds() {
            self.log_span.set_start(mark.position);
        }
        let mut writer = PageWriter::new(&self.state.pages, current.sequence + 1);
        let trees = match sealed.write(&mut writer) {
            Ok(trees) => trees,
            Err(error) => {
                writer.abandon();
                let metadata = &mut self.state.uncommitted()?.metadata;
                metadata.unseal(&self.state.maps, sealed)?;
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
        sealed.publish_maps(&self.state.maps, &trees);
        let metadata = &mut self.state.uncommitted()?.metadata;
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
        self.root.write(root)
    }

    /// Ensures that `beyond` pages for metadata are left after the next checkpoint; writes that
    /// checkpoint if it helps.
    pub fn secure_pages(&self, beyond: u64, blocking: Blocking) -> Result<()> {
        let metadata = self.state.metadata()?;
        let Some(wanted) = self.state.pages_lacking(&metadata, beyond) else {
            return Ok(());
        };
        let has_changes = self.state.has_changes(&metadata);
        drop(metadata);
        if blocking == Blocking::No {
            return Err(StoreError::would_block());
        }
        let secured = self.state.pages.secure(wanted);
        if secured.is_ok() || !has_changes {
            return secured;
        }
        self.checkpoint()?;
        let wanted = self.state.pages_lacking(&*self.state.metadata()?, beyond);
        wanted.map_or(Ok(()), |wanted| self.state.pages.secure(wanted))
    }

    /// Ensures that the next checkpoint can be written, after more changes or now.
    pub(super) fn make_room_for_pages(&self) -> Result<()> {
        let wanted = self
            .state
            .pages_lacking(&*self.state.metadata()?, PAGES_FOR_RECLAIMING);
        match wanted.map_or(Ok(()), |wanted| self.state.pages.secure(wanted)) {
            Ok(()) => Ok(()),
            Err(_) => self.checkpoint(),
        }
    }

    /// Reserves pages. A host without room for them does not prevent opening: the shortage is
    /// reported when it matters.
    pub fn secure_first_pages(&self) -> Result<()> {
        let secured = self.state.pages.secure(PAGES_FOR_FINDER);
        secured.or_else(|error| match error.kind() {
            StoreErrorKind::NoSpace => Ok(()),
            _ => Err(error),
        })
    }
}
