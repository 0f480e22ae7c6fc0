//! Fields of variable length, one after another: writing them, and reading them back.

use crate::error::FormatError;

/// Most bytes in a text.
pub const TEXT_BYTES_MAX: usize = u16::MAX as usize;

/// The bytes left to read.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

/// The error for a value that no release writes.
pub(crate) fn impossible(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { field, value }
}

/// Appends a `u16` length and the bytes.
///
/// # Panics
///
/// If the text is too long, which is the writer's mistake.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    assert!(text.len() <= TEXT_BYTES_MAX, "a text of {}", text.len());
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text);
}

/// Appends a number, seven bits at a time from the lowest; the highest bit of a byte says that
/// another one follows.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 1 << 7 {
        out.push(number as u8 | 1 << 7);
        number >>= 7;
    }
    out.push(number as u8);
}

impl<'a> Cursor<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let Some((first, rest)) = self.0.split_first_chunk() else {
            return Err(self.short(N));
        };
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let Some((bytes, rest)) = self.0.split_at_checked(len) else {
            return Err(self.short(len));
        };
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads a varint. Each number has one form: a last byte of zero is refused.
    pub(crate) fn varint(&mut self) -> Result<u64, FormatError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.take()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(impossible("number", bits));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return if byte == 0 && shift > 0 {
                    Err(impossible("number", number))
                } else {
                    Ok(number)
                };
            }
        }
        Err(impossible("number", number))
    }

    pub(crate) fn text(&mut self) -> Result<Vec<u8>, FormatError> {
        let len = usize::from(self.u16()?);
        Ok(self.bytes(len)?.to_vec())
    }

    pub(crate) fn utf8(&mut self, field: &'static str) -> Result<String, FormatError> {
        let text = self.text()?;
        let len = text.len() as u64;
        String::from_utf8(text).map_err(|_| impossible(field, len))
    }

    /// Fails if any bytes are left.
    pub(crate) fn finish(self) -> Result<(), FormatError> {
        match self.0 {
            [] => Ok(()),
            more => Err(impossible("bytes after the last field", more.len() as u64)),
        }
    }

    fn short(&self, needed: usize) -> FormatError {
        FormatError::Short {
            needed,
            got: self.0.len(),
        }
    }
}
