//! Reads of one object that are answered together, as of one moment.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::ptr::null_mut;
use std::time::{Duration, SystemTime};

use crate::failure::{c_string, check};
use crate::library::{Library, Lists, ReadHandle, RowIterator, XattrIterator};
use crate::memory::Slot;
use crate::operation::Version;

/// Reads of one object. A missing object is `NotFound`.
pub struct ReadOp {
    library: &'static Library,
    handle: ReadHandle,
    /// Why the operation cannot be submitted: a name that Ceph cannot have.
    invalid: Option<io::Error>,
    answers: Answers,
}

// SAFETY: nothing but the owner uses the handle, on whichever thread that is.
unsafe impl Send for ReadOp {}

/// The object's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadReply {
    /// The object's version.
    pub version: Version,
    /// For each [`ReadOp::read`], in order, the bytes found: fewer than requested at the object's end.
    pub data: Vec<Vec<u8>>,
    /// The answer to the last [`ReadOp::stat`].
    pub stat: Option<Stat>,
    /// The answer to the last [`ReadOp::xattrs`]: names and values, by name.
    pub xattrs: Vec<(String, Vec<u8>)>,
    /// The answer to each [`ReadOp::rows`] and [`ReadOp::rows_by_keys`], in order.
    pub rows: Vec<Rows>,
}

/// The length of an object, and the time when it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The object's length in bytes.
    pub size: u64,
    /// The time of the last change, in whole seconds of the writer's clock.
    pub modified: SystemTime,
}

/// Rows of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Keys and values, by key.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the object has more rows after these.
    pub has_more: bool,
}

/// Memory that librados fills while the operation is in flight.
pub(crate) struct Answers {
    library: &'static Library,
    list: Vec<Answer>,
}

// SAFETY: nothing but the owner uses the iterators, on whichever thread that is; librados fills them before.
unsafe impl Send for Answers {}

enum Answer {
    Data {
        /// The memory belongs to librados until the operation has ended; its length is the requested one.
        buffer: Vec<u8>,
        read: Slot<usize>,
        result: Slot<c_int>,
    },
    Stat {
        size: Slot<u64>,
        mtime: Slot<libc::time_t>,
        result: Slot<c_int>,
    },
    Xattrs {
        iterator: XattrIterator,
        result: Slot<c_int>,
    },
    Rows {
        iterator: RowIterator,
        more: Slot<u8>,
        result: Slot<c_int>,
    },
}

/// The value of a result that librados has not written.
const UNANSWERED: c_int = -libc::EIO;

impl ReadOp {
    pub(crate) fn new(library: &'static Library) -> ReadOp {
        // SAFETY: it returns a new handle, or null where there is no memory.
        let handle = unsafe { (library.rados_create_read_op)() };
        ReadOp {
            library,
            handle,
            invalid: handle.is_null().then(|| io::ErrorKind::OutOfMemory.into()),
            answers: Answers {
                library,
                list: Vec::new(),
            },
        }
    }

    /// Reads a range.
    pub fn read(self, offset: u64, len: usize) -> ReadOp {
        let mut buffer = vec![0; len];
        let (read, result) = (Slot::new(0), Slot::new(UNANSWERED));
        let to = buffer.as_mut_ptr();
        // SAFETY: the buffer has `len` bytes; it and the slots belong to the operation.
        self.add(|library, op| unsafe {
            add_read(library, op, offset, len, to, &read, &result);
            Answer::Data {
                buffer,
                read,
                result,
            }
        })
    }

    /// Reads the length and the time of change.
    pub fn stat(self) -> ReadOp {
        let (size, mtime, result) = (Slot::new(0), Slot::new(0), Slot::new(UNANSWERED));
        self.add(|library, op| {
            // SAFETY: the handle is valid, and the slots belong to the operation.
            unsafe {
                let stat = library.rados_read_op_stat;
                stat(op, size.as_ptr(), mtime.as_ptr(), result.as_ptr());
            }
            Answer::Stat {
                size,
                mtime,
                result,
            }
        })
    }

    /// Reads all attributes.
    pub fn xattrs(self) -> ReadOp {
        let (mut iterator, result) = (null_mut(), Slot::new(UNANSWERED));
        self.add(|library, op| {
            // SAFETY: the handle is valid. The iterator is written at once, and the slot belongs to the operation.
            unsafe { (library.rados_read_op_getxattrs)(op, &mut iterator, result.as_ptr()) };
            Answer::Xattrs { iterator, result }
        })
    }

    /// Reads rows whose keys begin with a prefix and come after another key, at most `count_max`; an OSD has a limit of
    /// its own, 1,024 by default. Keys may contain zero bytes, but neither of these texts may: librados takes no other.
    pub fn rows(mut self, start_after: &str, prefix: &str, count_max: u64) -> ReadOp {
        let (after, prefix) = match (c_string(start_after), c_string(prefix)) {
            (Ok(after), Ok(prefix)) => (after, prefix),
            (Err(error), _) | (_, Err(error)) => {
                self.invalid.get_or_insert(error);
                return self;
            }
        };
        let (mut iterator, more, result) = (null_mut(), Slot::new(0), Slot::new(UNANSWERED));
        self.add(|library, op| {
            // SAFETY: the handle is valid, and both texts are copied. The iterator is written at once, and the
            // slots belong to the operation.
            unsafe {
                (library.rados_read_op_omap_get_vals2)(
                    op,
                    after.as_ptr(),
                    prefix.as_ptr(),
                    count_max,
                    &mut iterator,
                    more.as_ptr(),
                    result.as_ptr(),
                );
            }
            Answer::Rows {
                iterator,
                more,
                result,
            }
        })
    }

    /// Reads the rows with these keys. Missing rows are left out.
    pub fn rows_by_keys<K: AsRef<[u8]>>(self, keys: &[K]) -> ReadOp {
        let lists = Lists::of(keys.iter().map(AsRef::as_ref));
        let (mut iterator, result) = (null_mut(), Slot::new(UNANSWERED));
        self.add(|library, op| {
            // SAFETY: the handle is valid; the keys are copied, and each list has as many as there are keys. The
            // iterator is written at once, and the slot belongs to the operation.
            unsafe {
                (library.rados_read_op_omap_get_vals_by_keys2)(
                    op,
                    lists.pointers.as_ptr(),
                    keys.len(),
                    lists.lens.as_ptr(),
                    &mut iterator,
                    result.as_ptr(),
                );
            }
            Answer::Rows {
                iterator,
                more: Slot::new(0),
                result,
            }
        })
    }

    /// The handle, if all arguments were valid.
    pub(crate) fn handle(&mut self) -> io::Result<ReadHandle> {
        self.invalid.take().map_or(Ok(self.handle), Err)
    }

    /// Takes the memory that the operation needs while it is in flight.
    pub(crate) fn take_answers(&mut self) -> Answers {
        let library = self.library;
        let list = std::mem::take(&mut self.answers.list);
        Answers { library, list }
    }

    fn add(mut self, step: impl FnOnce(&Library, ReadHandle) -> Answer) -> ReadOp {
        if self.invalid.is_none() {
            let answer = step(self.library, self.handle);
            self.answers.list.push(answer);
        }
        self
    }
}

/// # Safety
/// The handle is valid. Until the operation has ended, `to` has `len` bytes that nothing else uses.
pub(crate) unsafe fn add_read(
    library: &Library,
    op: ReadHandle,
    offset: u64,
    len: usize,
    to: *mut u8,
    read: &Slot<usize>,
    result: &Slot<c_int>,
) {
    // SAFETY: as the caller says; the slots belong to the operation.
    unsafe {
        let to = to.cast::<c_char>();
        (library.rados_read_op_read)(op, offset, len, to, read.as_ptr(), result.as_ptr());
    }
}

impl Drop for ReadOp {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is valid. librados has its own copy of an operation that was submitted. Answers that
            // are still here belong to an operation that was not submitted, and are dropped after this.
            unsafe { (self.library.rados_release_read_op)(self.handle) };
        }
    }
}

impl Answers {
    /// The reply of an operation that succeeded.
    pub(crate) fn into_reply(mut self, version: Version) -> io::Result<ReadReply> {
        let mut reply = ReadReply {
            version,
            data: Vec::new(),
            stat: None,
            xattrs: Vec::new(),
            rows: Vec::new(),
        };
        for answer in &mut self.list {
            answer.add_to(&mut reply, self.library)?;
        }
        Ok(reply)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        for answer in &self.list {
            // SAFETY: the operation has ended, or was never submitted, so only we have the iterator.
            unsafe {
                match answer {
                    Answer::Xattrs { iterator, .. } => {
                        (self.library.rados_getxattrs_end)(*iterator)
                    }
                    Answer::Rows { iterator, .. } => (self.library.rados_omap_get_end)(*iterator),
                    Answer::Data { .. } | Answer::Stat { .. } => {}
                }
            }
        }
    }
}

impl Answer {
    fn add_to(&mut self, reply: &mut ReadReply, library: &Library) -> io::Result<()> {
        match self {
            Answer::Data {
                buffer,
                read,
                result,
            } => {
                check(result.get())?;
                buffer.truncate(read.get());
                reply.data.push(std::mem::take(buffer));
            }
            Answer::Stat {
                size,
                mtime,
                result,
            } => {
                check(result.get())?;
                let since_epoch = Duration::from_secs(mtime.get().try_into().unwrap_or(0));
                reply.stat = Some(Stat {
                    size: size.get(),
                    modified: SystemTime::UNIX_EPOCH + since_epoch,
                });
            }
            Answer::Xattrs { iterator, result } => {
                check(result.get())?;
                reply.xattrs = xattrs(library, *iterator)?;
            }
            Answer::Rows {
                iterator,
                more,
                result,
            } => {
                check(result.get())?;
                reply.rows.push(Rows {
                    rows: rows(library, *iterator)?,
                    has_more: more.get() != 0,
                });
            }
        }
        Ok(())
    }
}

/// Reads all attributes from an iterator whose operation has succeeded.
fn xattrs(library: &Library, iterator: XattrIterator) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    loop {
        let (mut name, mut value, mut len) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the operation has succeeded, so the iterator is valid. Its pointers are valid until the next call.
        unsafe {
            check((library.rados_getxattrs_next)(
                iterator, &mut name, &mut value, &mut len,
            ))?;
            if name.is_null() {
                return Ok(found);
            }
            let name = CStr::from_ptr(name).to_string_lossy().into_owned();
            found.push((name, bytes(value, len)));
        }
    }
}

/// Reads all rows from an iterator whose operation has succeeded.
fn rows(library: &Library, iterator: RowIterator) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    loop {
        let (mut key, mut value, mut key_len, mut len) = (null_mut(), null_mut(), 0, 0);
        // SAFETY: the operation has succeeded, so the iterator is valid. Its pointers are valid as long as the
        // iterator.
        unsafe {
            let next = library.rados_omap_get_next2;
            check(next(iterator, &mut key, &mut value, &mut key_len, &mut len))?;
            if key.is_null() {
                return Ok(found);
            }
            found.push((bytes(key, key_len), bytes(value, len)));
        }
    }
}

/// Copies bytes of librados, whose address may be null if there are none.
///
/// # Safety
/// There are `len` bytes at the address, unless it is null.
unsafe fn bytes(at: *const c_char, len: usize) -> Vec<u8> {
    if at.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec()
}
