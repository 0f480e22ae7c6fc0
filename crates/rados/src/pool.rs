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

/// Whether a change fails or is made when the cluster or the pool is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Fail if the change takes more space than before: `StorageFull`, or `QuotaExceeded` where the pool has a quota.
    Fail,
    /// Make the change all the same. For changes that make room, or that making room depends on.
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

/// A namespace of a pool. Clones refer to the same one.
///
/// The callback of an operation is called once: on a thread of librados, where it must not wait, or before the call
/// returns, if librados refuses the operation.
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

    /// Whether objects can be changed in place. An erasure-coded pool without overwrites accepts only whole new
    /// objects, and answers other writes with `Unsupported`.
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

    /// A new, empty write operation.
    pub fn write_op(&self) -> WriteOp {
        WriteOp::new(self.library())
    }

    /// A new, empty read operation.
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

    /// Submits a read operation.
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
                // The operation's handle refers to the answers.
                drop(op);
                return refuse(error, answers, on_end);
            }
        };
        let start = |library: &Library, io, completion| {
            let operate = library.rados_aio_read_op_operate;
            // SAFETY: all handles are valid, and the name is copied. The output memory belongs to the operation.
            let result = unsafe { operate(handle, io, completion, name.as_ptr(), 0) };
            drop(op);
            result
        };
        submit(&self.namespace, answers, start, on_end);
    }

    /// Reads a range. Returns fewer bytes than requested at the object's end.
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

    /// Reads into a buffer, and returns it with the number of bytes read. The content of the rest of the buffer is
    /// unspecified, and of the whole buffer after an error.
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
        // SAFETY: this is the slot's only owner. The borrowed memory is valid until the slot is used again, which
        // happens after the operation has ended.
        unsafe {
            let bytes = (*buffer.as_ptr()).as_mut();
            let (to, len) = (bytes.as_mut_ptr(), bytes.len());
            add_read(self.library(), handle, offset, len, to, &read, &result);
        }
        let start = |library: &Library, io, completion| {
            let operate = library.rados_aio_read_op_operate;
            // SAFETY: all handles are valid, and the name is copied. The output memory belongs to the operation.
            let result = unsafe { operate(handle, io, completion, name.as_ptr(), 0) };
            drop(op);
            result
        };
        submit(&self.namespace, (buffer, read, result), start, on_end);
    }

    /// Writes bytes at an offset. They are copied, so the caller may drop them at once.
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

    /// Like [`Pool::submit_write`], but waits for the end. Fails if the pool is full.
    pub fn change(&self, object: &str, op: WriteOp) -> io::Result<Version> {
        Wait::of(|on_done| self.submit_write(object, op, WhenFull::Fail, on_done))
    }

    /// Like [`Pool::submit_read`], but waits for the end.
    pub fn ask(&self, object: &str, op: ReadOp) -> io::Result<ReadReply> {
        Wait::of(|on_done| self.submit_read(object, op, on_done))
    }

    /// Like [`Pool::read`], but waits for the end.
    pub fn read_now(&self, object: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        Wait::of(|on_done| self.read(object, offset, len, on_done))
    }

    /// Like [`Pool::write`], but waits for the end.
    pub fn write_now(&self, object: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Wait::of(|on_done| self.write(object, offset, bytes, on_done))
    }

    /// Reads an object's length and time of change; waits for the end.
    pub fn stat(&self, object: &str) -> io::Result<Stat> {
        let reply = self.ask(object, self.read_op().stat())?;
        // A reply has one for each request.
        reply.stat.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Removes an object and waits for the end. `NotFound` if it is missing.
    pub fn remove(&self, object: &str) -> io::Result<()> {
        self.change(object, self.write_op().remove()).map(drop)
    }

    /// Lists the objects of this namespace, in no order; waits for each part of the list. Objects that are created or
    /// removed concurrently may be in it or not.
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

/// The names of all objects of a namespace. An error of the list ends it. A name that is not UTF-8 is an error,
/// `InvalidData`, and does not end it.
pub struct Objects {
    namespace: Arc<Namespace>,
    /// Null after the end of the list.
    list: ObjectList,
}

// SAFETY: only the owner uses the list, on whichever thread that is.
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
        // SAFETY: the list is open. Outputs that are not needed may be null. The name is valid until the next call.
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
