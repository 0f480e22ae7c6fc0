//! Objects in one namespace of a pool.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use crate::callback::{Wait, may_wait};
use crate::failure::{c_string, check};
use crate::library::{Library, ObjectList};
use crate::memory::Slot;
use crate::operation::{Version, refuse, submit};
use crate::read_op::{Answers, ReadOp, ReadReply, Stat, add_read};
use crate::session::{Namespace, Session};
use crate::write_op::WriteOp;

/// What becomes of a change when the cluster or the pool is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It fails if it takes more space than there was: `StorageFull`, or `QuotaExceeded` where the pool has a quota.
    Fail,
    /// It is done all the same. For changes that make room, or are needed for those.
    Go,
}

impl WhenFull {
    /// librados' flag: LIBRADOS_OPERATION_FULL_TRY, LIBRADOS_OPERATION_FULL_FORCE.
    fn flag(self) -> c_int {
        match self {
            WhenFull::Fail => 64,
            WhenFull::Go => 128,
        }
    }
}

/// A namespace of a pool. Clones are the same one.
///
/// What a caller gives to an operation is called once, on a thread of librados, where it must not wait; or before
/// the call returns, if librados refuses the operation.
#[derive(Clone)]
pub struct Pool {
    pub(crate) namespace: Arc<Namespace>,
}

impl Pool {
    pub(crate) fn open(session: Arc<Session>, pool: &str, namespace: &str) -> io::Result<Pool> {
        may_wait()?;
        let namespace = Arc::new(Namespace::open(session, pool, namespace)?);
        Ok(Pool { namespace })
    }

    /// Whether objects can be changed in place. An erasure-coded pool without overwrites takes nothing but whole
    /// new objects; it answers other writes with `Unsupported`.
    pub fn takes_overwrites(&self) -> io::Result<bool> {
        may_wait()?;
        let mut is_append_only = 0;
        // SAFETY: the handle is valid. It writes a number.
        check(unsafe {
            let requires_alignment = self.library().rados_ioctx_pool_requires_alignment2;
            requires_alignment(self.namespace.io(), &mut is_append_only)
        })?;
        Ok(is_append_only == 0)
    }

    /// An operation that changes an object, to be filled.
    pub fn write_op(&self) -> WriteOp {
        WriteOp::new(self.library())
    }

    /// An operation that asks an object, to be filled.
    pub fn read_op(&self) -> ReadOp {
        ReadOp::new(self.library())
    }

    /// Submits a change.
    pub fn submit_write(
        &self,
        object: &str,
        mut op: WriteOp,
        when_full: WhenFull,
        on_done: impl FnOnce(io::Result<Version>) + Send + 'static,
    ) {
        let on_end = |ended, ()| on_done(ended);
        let (name, handle) = match (c_string(object), op.handle()) {
            (Ok(name), Ok(handle)) => (name, handle),
            (Err(error), _) | (_, Err(error)) => return refuse(error, (), on_end),
        };
        let start = |library: &Library, io, completion| {
            let operate = library.rados_aio_write_op_operate;
            // SAFETY: all handles are valid, and the name is copied. Without a time it is the present one.
            unsafe {
                operate(
                    handle,
                    io,
                    completion,
                    name.as_ptr(),
                    null_mut(),
                    when_full.flag(),
                )
            }
        };
        submit(&self.namespace, (), start, on_end);
    }

    /// Submits questions.
    pub fn submit_read(
        &self,
        object: &str,
        mut op: ReadOp,
        on_done: impl FnOnce(io::Result<ReadReply>) + Send + 'static,
    ) {
        let answers = op.take_answers();
        let on_end = |ended: io::Result<Version>, answers: Answers| {
            on_done(ended.and_then(|version| answers.into_reply(version)));
        };
        let (name, handle) = match (c_string(object), op.handle()) {
            (Ok(name), Ok(handle)) => (name, handle),
            (Err(error), _) | (_, Err(error)) => {
                // It refers to the answers.
                drop(op);
                return refuse(error, answers, on_end);
            }
        };
        let start = |library: &Library, io, completion| {
            let operate = library.rados_aio_read_op_operate;
            // SAFETY: all handles are valid, and the name is copied. What is filled belongs to the operation.
            let result = unsafe { operate(handle, io, completion, name.as_ptr(), 0) };
            drop(op);
            result
        };
        submit(&self.namespace, answers, start, on_end);
    }

    /// Reads a range: the bytes that there are, fewer than asked for at the object's end.
    pub fn read(
        &self,
        object: &str,
        offset: u64,
        len: usize,
        on_done: impl FnOnce(io::Result<Vec<u8>>) + Send + 'static,
    ) {
        self.read_into(object, offset, vec![0; len], |read, mut buffer| {
            on_done(read.map(|len| {
                buffer.truncate(len);
                buffer
            }));
        });
    }

    /// Fills a buffer, which it gives back with the number of bytes that there were; the rest of the buffer, and
    /// all of it after an error, holds anything.
    pub fn read_into<B: AsMut<[u8]> + Send + 'static>(
        &self,
        object: &str,
        offset: u64,
        buffer: B,
        on_done: impl FnOnce(io::Result<usize>, B) + Send + 'static,
    ) {
        let (buffer, read, result) = (Slot::new(buffer), Slot::new(0), Slot::new(0));
        let on_end =
            |ended: io::Result<Version>,
             (buffer, read, result): (Slot<B>, Slot<usize>, Slot<c_int>)| {
                let read = ended.and_then(|_| check(result.get())).map(|()| read.get());
                on_done(read, buffer.into_inner());
            };
        let mut op = self.read_op();
        let (name, handle) = match (c_string(object), op.handle()) {
            (Ok(name), Ok(handle)) => (name, handle),
            (Err(error), _) | (_, Err(error)) => {
                return refuse(error, (buffer, read, result), on_end);
            }
        };
        // SAFETY: nobody else has the slot. What it lends here may be used until the slot is used again, and that is
        // when the operation has ended.
        unsafe {
            let bytes = (*buffer.as_ptr()).as_mut();
            let (to, len) = (bytes.as_mut_ptr(), bytes.len());
            add_read(self.library(), handle, offset, len, to, &read, &result);
        }
        let start = |library: &Library, io, completion| {
            let operate = library.rados_aio_read_op_operate;
            // SAFETY: all handles are valid, and the name is copied. What is filled belongs to the operation.
            let result = unsafe { operate(handle, io, completion, name.as_ptr(), 0) };
            drop(op);
            result
        };
        submit(&self.namespace, (buffer, read, result), start, on_end);
    }

    /// Writes bytes at an offset. They are copied, so nothing waits for the end of the operation.
    pub fn write(
        &self,
        object: &str,
        offset: u64,
        bytes: &[u8],
        on_done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        let op = self.write_op().write(offset, bytes);
        self.submit_write(object, op, WhenFull::Fail, |written| {
            on_done(written.map(drop))
        });
    }

    /// As [`Pool::submit_write`], and waits. It fails where the pool is full.
    pub fn change(&self, object: &str, op: WriteOp) -> io::Result<Version> {
        Wait::of(|on_done| self.submit_write(object, op, WhenFull::Fail, on_done))
    }

    /// As [`Pool::submit_read`], and waits.
    pub fn ask(&self, object: &str, op: ReadOp) -> io::Result<ReadReply> {
        Wait::of(|on_done| self.submit_read(object, op, on_done))
    }

    /// As [`Pool::read`], and waits.
    pub fn read_now(&self, object: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        Wait::of(|on_done| self.read(object, offset, len, on_done))
    }

    /// As [`Pool::write`], and waits.
    pub fn write_now(&self, object: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Wait::of(|on_done| self.write(object, offset, bytes, on_done))
    }

    /// Length and time of change; waits.
    pub fn stat(&self, object: &str) -> io::Result<Stat> {
        let reply = self.ask(object, self.read_op().stat())?;
        // There is one, because it was asked for.
        reply.stat.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Removes an object, and waits. A missing one is `NotFound`.
    pub fn remove(&self, object: &str) -> io::Result<()> {
        self.change(object, self.write_op().remove()).map(drop)
    }

    /// The objects of this namespace, in no order; waits for each part of the list. What is made or removed meanwhile
    /// may be in it or not.
    pub fn objects(&self) -> io::Result<Objects> {
        may_wait()?;
        let mut list = null_mut();
        // SAFETY: the handle is valid. It writes another one.
        check(unsafe {
            (self.library().rados_nobjects_list_open)(self.namespace.io(), &mut list)
        })?;
        Ok(Objects {
            namespace: Arc::clone(&self.namespace),
            list,
        })
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.namespace.library()
    }
}

/// The names of all objects of a namespace; ends after an error of the list. A name that is not UTF-8 is an error,
/// `InvalidData`, after which it goes on.
pub struct Objects {
    namespace: Arc<Namespace>,
    /// Null once it has come to its end.
    list: ObjectList,
}

// SAFETY: nothing but the owner uses the list, on whichever thread that is.
unsafe impl Send for Objects {}

impl Iterator for Objects {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<io::Result<String>> {
        if self.list.is_null() {
            return None;
        }
        match may_wait().and_then(|()| self.advance()) {
            Ok(name) => Some(name),
            Err(error) => {
                self.close();
                (error.kind() != io::ErrorKind::NotFound).then_some(Err(error))
            }
        }
    }
}

impl Objects {
    /// The next name; `NotFound` at the end.
    fn advance(&mut self) -> io::Result<io::Result<String>> {
        let library = self.namespace.library();
        let (mut name, mut len) = (std::ptr::null(), 0);
        // SAFETY: the list is open. Places for what nobody wants may be null. The name stays until the next call.
        let bytes = unsafe {
            check((library.rados_nobjects_list_next2)(
                self.list,
                &mut name,
                null_mut(),
                null_mut(),
                &mut len,
                null_mut(),
                null_mut(),
            ))?;
            CStr::from_ptr(name).to_bytes()
        };
        let name = std::str::from_utf8(bytes).map(str::to_owned);
        Ok(name.map_err(|_| io::ErrorKind::InvalidData.into()))
    }

    fn close(&mut self) {
        if !self.list.is_null() {
            // SAFETY: the list is open, and not used after this.
            unsafe { (self.namespace.library().rados_nobjects_list_close)(self.list) };
            self.list = null_mut();
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.close();
    }
}
