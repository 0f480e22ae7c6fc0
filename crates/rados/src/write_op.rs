//! Changes of one object that take effect together or not at all.

use std::ffi::{CString, c_char};
use std::io;
use std::ptr::{null, null_mut};

use crate::failure::c_string;
use crate::library::{COMPARE_EQUAL, Library, Lists, WriteHandle, parts};
use crate::operation::Version;

/// Whether creating an existing object is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// Create the object if it is missing.
    IfMissing,
    /// Fail with `AlreadyExists` if the object exists.
    Exclusive,
}

/// Conditions and changes of one object, in this order. If a condition fails, nothing is changed, and
/// [`is_condition_failed`](crate::is_condition_failed) recognizes the error.
///
/// Conditions see the object before the operation, and not its own changes. A condition on a missing object is
/// `NotFound` unless the operation creates it first.
pub struct WriteOp {
    library: &'static Library,
    handle: WriteHandle,
    /// Why the operation cannot be submitted: a name that Ceph cannot have.
    invalid: Option<io::Error>,
}

// SAFETY: nothing but the owner uses the handle, on whichever thread that is.
unsafe impl Send for WriteOp {}

impl WriteOp {
    pub(crate) fn new(library: &'static Library) -> WriteOp {
        // SAFETY: it returns a new handle, or null where there is no memory.
        let handle = unsafe { (library.rados_create_write_op)() };
        WriteOp {
            library,
            handle,
            invalid: handle.is_null().then(|| io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Creates the object.
    pub fn create(self, create: Create) -> WriteOp {
        let is_exclusive = (create == Create::Exclusive).into();
        // SAFETY: the handle is valid; the category no longer has a meaning.
        self.add(|library, op| unsafe { (library.rados_write_op_create)(op, is_exclusive, null()) })
    }

    /// Requires that the object exists.
    pub fn assert_exists(self) -> WriteOp {
        // SAFETY: the handle is valid.
        self.add(|library, op| unsafe { (library.rados_write_op_assert_exists)(op) })
    }

    /// Requires that nothing has changed the object since it had this version.
    pub fn assert_version(self, version: Version) -> WriteOp {
        // SAFETY: the handle is valid.
        self.add(|library, op| unsafe { (library.rados_write_op_assert_version)(op, version.0) })
    }

    /// Requires that the attribute has this value.
    pub fn compare_xattr(self, name: &str, value: &[u8]) -> WriteOp {
        let (value, len) = parts(value);
        // SAFETY: the handle is valid, and name and value are copied.
        self.add_named([name], |library, op, [name]| unsafe {
            (library.rados_write_op_cmpxattr)(op, name, COMPARE_EQUAL, value, len);
        })
    }

    /// Requires that the row has this value; a missing row counts as empty.
    pub fn compare_row(self, key: &[u8], value: &[u8]) -> WriteOp {
        let ((key, key_len), (value, len)) = (parts(key), parts(value));
        // SAFETY: the handle is valid, and key and value are copied. Both addresses come before both lengths.
        self.add(|library, op| unsafe {
            let compare = library.rados_write_op_omap_cmp2;
            compare(op, key, COMPARE_EQUAL, value, key_len, len, null_mut());
        })
    }

    /// Writes bytes at an offset; the object grows as needed, with zeros before them.
    pub fn write(self, offset: u64, bytes: &[u8]) -> WriteOp {
        let (bytes, len) = parts(bytes);
        // SAFETY: the handle is valid, and the bytes are copied.
        self.add(|library, op| unsafe { (library.rados_write_op_write)(op, bytes, len, offset) })
    }

    /// Replaces the object's whole content by these bytes.
    pub fn write_full(self, bytes: &[u8]) -> WriteOp {
        let (bytes, len) = parts(bytes);
        // SAFETY: the handle is valid, and the bytes are copied.
        self.add(|library, op| unsafe { (library.rados_write_op_write_full)(op, bytes, len) })
    }

    /// Zeroes a range and frees its space. The object does not grow.
    pub fn zero(self, offset: u64, len: u64) -> WriteOp {
        // SAFETY: the handle is valid.
        self.add(|library, op| unsafe { (library.rados_write_op_zero)(op, offset, len) })
    }

    /// Cuts off or extends the object to this length.
    pub fn truncate(self, len: u64) -> WriteOp {
        // SAFETY: the handle is valid.
        self.add(|library, op| unsafe { (library.rados_write_op_truncate)(op, len) })
    }

    /// Removes the object.
    pub fn remove(self) -> WriteOp {
        // SAFETY: the handle is valid.
        self.add(|library, op| unsafe { (library.rados_write_op_remove)(op) })
    }

    /// Sets an attribute.
    pub fn set_xattr(self, name: &str, value: &[u8]) -> WriteOp {
        let (value, len) = parts(value);
        // SAFETY: the handle is valid, and name and value are copied.
        self.add_named([name], |library, op, [name]| unsafe {
            (library.rados_write_op_setxattr)(op, name, value, len);
        })
    }

    /// Sets rows. Only objects of replicated pools have any.
    pub fn set_rows<K: AsRef<[u8]>, V: AsRef<[u8]>>(self, rows: &[(K, V)]) -> WriteOp {
        let keys = Lists::of(rows.iter().map(|(key, _)| key.as_ref()));
        let values = Lists::of(rows.iter().map(|(_, value)| value.as_ref()));
        // SAFETY: the handle is valid; keys and values are copied, and each list has as many as there are rows.
        self.add(|library, op| unsafe {
            (library.rados_write_op_omap_set2)(
                op,
                keys.pointers.as_ptr(),
                values.pointers.as_ptr(),
                keys.lens.as_ptr(),
                values.lens.as_ptr(),
                rows.len(),
            );
        })
    }

    /// Removes rows. Missing rows are ignored.
    pub fn remove_rows<K: AsRef<[u8]>>(self, keys: &[K]) -> WriteOp {
        let lists = Lists::of(keys.iter().map(AsRef::as_ref));
        let (pointers, lens) = (lists.pointers.as_ptr(), lists.lens.as_ptr());
        // SAFETY: the handle is valid; the keys are copied, and each list has as many as there are keys.
        self.add(|library, op| unsafe {
            (library.rados_write_op_omap_rm_keys2)(op, pointers, lens, keys.len());
        })
    }

    /// Calls a method of an object class. Its error becomes the error of the operation.
    pub fn execute(self, class: &str, method: &str, input: &[u8]) -> WriteOp {
        let (input, len) = parts(input);
        // SAFETY: the handle is valid, and names and input are copied.
        self.add_named([class, method], |library, op, [class, method]| unsafe {
            (library.rados_write_op_exec)(op, class, method, input, len, null_mut());
        })
    }

    /// The handle, if all arguments were valid.
    pub(crate) fn handle(&mut self) -> io::Result<WriteHandle> {
        self.invalid.take().map_or(Ok(self.handle), Err)
    }

    fn add(self, step: impl FnOnce(&Library, WriteHandle)) -> WriteOp {
        if self.invalid.is_none() {
            step(self.library, self.handle);
        }
        self
    }

    /// Adds a step that takes names as librados wants them.
    fn add_named<const N: usize>(
        mut self,
        names: [&str; N],
        step: impl FnOnce(&Library, WriteHandle, [*const c_char; N]),
    ) -> WriteOp {
        let names: io::Result<Vec<CString>> = names.into_iter().map(c_string).collect();
        match names {
            Ok(names) => {
                let pointers = std::array::from_fn(|n| names[n].as_ptr());
                self.add(|library, op| step(library, op, pointers))
            }
            Err(error) => {
                self.invalid.get_or_insert(error);
                self
            }
        }
    }
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is valid. librados has its own copy of an operation that was submitted.
            unsafe { (self.library.rados_release_write_op)(self.handle) };
        }
    }
}
