//! Memory that librados fills while an operation is in flight.

use std::ptr::NonNull;

/// A value at a fixed address, which librados may write to until the operation has ended.
///
/// Moving a slot does not touch the value, as moving a [`Box`] would in the compiler's model.
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

    /// The address of the value, for librados.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.value.as_ptr()
    }

    /// Reads the value, once the operation has ended.
    pub(crate) fn get(&self) -> T
    where
        T: Copy,
    {
        // SAFETY: the pointer comes from a box. The operation has ended, so nothing writes to it.
        unsafe { *self.as_ptr() }
    }

    /// Takes the value, once the operation has ended or if it was never submitted.
    pub(crate) fn into_inner(self) -> T {
        let value = self.value;
        std::mem::forget(self);
        // SAFETY: the pointer comes from a box, and nothing else frees it.
        *unsafe { Box::from_raw(value.as_ptr()) }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from a box, and nothing else frees it.
        drop(unsafe { Box::from_raw(self.value.as_ptr()) });
    }
}
