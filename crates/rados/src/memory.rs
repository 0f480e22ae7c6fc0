//! Memory that librados fills while an operation is under way.

use std::ptr::NonNull;

/// A value at an address of its own, which librados may write to until the operation has ended.
///
/// Moving it does not touch the value, as moving a [`Box`] would in the eyes of the compiler.
pub(crate) struct Slot<T> {
    value: NonNull<T>,
}

// SAFETY: it owns its value, as a box does.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T> Slot<T> {
    pub(crate) fn new(value: T) -> Slot<T> {
        Slot {
            value: NonNull::from(Box::leak(Box::new(value))),
        }
    }

    /// Where the value is, for librados.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.value.as_ptr()
    }

    /// The value, once the operation has ended.
    pub(crate) fn get(&self) -> T
    where
        T: Copy,
    {
        // SAFETY: the pointer is that of a box. The operation has ended, so nothing writes to it.
        unsafe { *self.as_ptr() }
    }

    /// The value, once the operation has ended or was never submitted.
    pub(crate) fn into_inner(self) -> T {
        let value = self.value;
        std::mem::forget(self);
        // SAFETY: the pointer is that of a box, and nothing else frees it.
        *unsafe { Box::from_raw(value.as_ptr()) }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is that of a box, and nothing else frees it.
        drop(unsafe { Box::from_raw(self.value.as_ptr()) });
    }
}
