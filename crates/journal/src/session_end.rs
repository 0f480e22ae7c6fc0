//! The end of a session: a frame without records, after which the log is empty.
//!
//! At an opening the host's cache may hold blocks that the medium never got: a sync failed, and the
//! kernel dropped the data that it could not write, but still shows it. After a closed session the
//! cache holds none, and only then is it trusted; otherwise the data is read from the medium.
//! Records to replay, or their absence, prove nothing about that, because blocks are rewritten in
//! place without one.
//!
//! The mark is certain: it is written only after every sync of the data in its session succeeded,
//! and it carries the session's number, while any later session has made a root with a higher one
//! durable before it wrote anything.

use onefold_metadata::{Result, StoreError};

use super::Journal;

impl Journal {
    /// Commits the remaining records, with the mark that closes the session. The caller ensures
    /// that no request is in flight.
    pub fn close_session(&self) -> Result<()> {
        let mut log = self.commits.lock();
        self.seal_and_commit(&mut log, |uncommitted| {
            uncommitted.tail.append_closing();
            Ok(())
        })
    }

    /// Makes later reads of data come from the medium.
    pub fn read_data_afresh(&self) -> Result<()> {
        let forgotten = self.data.forget_cached();
        forgotten.map_err(|error| {
            let what = format_args!("reading {} afresh", self.data.name());
            StoreError::io(what, error)
        })
    }
}
