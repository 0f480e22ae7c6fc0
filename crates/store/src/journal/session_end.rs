//! The end of a session: a frame without records, behind which the log has nothing.
//!
//! At an opening the host's cache may hold blocks that the medium never got: a sync failed, and the
//! kernel dropped what it could not write, but shows it on. After a closed session it holds none,
//! and only then is it believed; after any other the data is read from the medium. Whether there are
//! records to replay says nothing about that, for blocks are rewritten in place without one.
//!
//! The mark is certain: it is written only after every sync of the data in its session succeeded, and
//! it carries the session's number, while any later session has made a root with a higher one durable
//! before it wrote anything.

use super::Journal;
use crate::error::{Result, StoreError};

impl Journal {
    /// Commits what is left, with the mark that closes the session. The caller sees to it that no
    /// request is under way.
    pub(crate) fn close_session(&self) -> Result<()> {
        let mut log = self.commits.lock();
        self.seal_and_commit(&mut log, |uncommitted| {
            uncommitted.tail.append_closing();
            Ok(())
        })
    }

    /// Later reads of data come from the medium.
    pub(crate) fn read_data_afresh(&self) -> Result<()> {
        let forgotten = self.data.forget_cached();
        forgotten.map_err(|error| {
            let what = format_args!("reading {} afresh", self.data.name());
            StoreError::io(what, error)
        })
    }
}
