//! A buffer at an address that O_DIRECT accepts.

/// Bytes that start at a multiple of an alignment.
pub(super) struct AlignedBuffer {
    /// Longer than the alignment requires, so that it contains a suitable start.
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A zeroed buffer of `len` bytes; `alignment` is a power of two.
    pub(super) fn new(len: usize, alignment: usize) -> AlignedBuffer {
        let storage = vec![0; len + alignment];
        let address = storage.as_ptr().addr();
        let start = address.next_multiple_of(alignment) - address;
        AlignedBuffer {
            storage,
            start,
            len,
        }
    }

    /// The bytes.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_where_it_should_and_is_as_long_as_asked() {
        for alignment in [1, 512, 4096, 65536] {
            for len in [0, 1, 512, 10_000] {
                let mut buffer = AlignedBuffer::new(len, alignment);
                assert_eq!(buffer.bytes().len(), len);
                assert!(buffer.bytes().as_ptr().addr().is_multiple_of(alignment));
            }
        }
    }
}
