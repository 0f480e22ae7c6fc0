//! A session starts with a root that has its number. It ends with a frame without records, after which the log is
//! empty.
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

use onefold_format::Root;
use onefold_metadata::{Guard, Result};

use super::Journal;

impl Journal {
    /// Makes a root with the next session's number durable, before any frame carries it: so a frame
    /// torn by the crash can never be mistaken for one of the new session.
    pub fn start_session(&self) -> Result<()> {
        let mut root = self.root.lock();
        let mut log = self.commits.lock();
        let last = root.session.max(log.session);
        let session = if Guard::SessionsKeptApart.holds() {
            last + 1
        } else {
            last
        };
        let next = Root {
            sequence: root.sequence + 1,
            session,
            ..*root
        };
        self.root.write(&next)?;
        *root = next;
        log.session = session;
        self.lookup_version.begin_session(session);
        Ok(())
    }

    /// Commits the remaining records, with the mark that closes the session. The caller ensures
    /// that no request is in flight.
    pub fn close_session(&self) -> Result<()> {
        let mut log = self.commits.lock();
        self.seal_and_commit(&mut log, |uncommitted| {
            uncommitted.tail.append_closing();
            Ok(())
        })
    }
}
