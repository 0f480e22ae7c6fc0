//! The ways in which data is cut into chunks.

use std::fmt;
use std::str::FromStr;

/// Sizes of fixed blocks, in bytes; multiples of the least.
const FIXED_MIN: usize = 512;
const FIXED_MAX: usize = 16 << 20;

/// Bounds of the average of content-defined chunks, in bytes: the longest, and the shortest.
const AVERAGE_MIN: usize = 256;
const AVERAGE_MAX: usize = 4 << 20;

/// Bounds of the least length of content-defined chunks, and the lower bound of the most.
const CONTENT_MIN: usize = 64;
const MIN_MAX: usize = 1 << 20;
const MAX_MIN: usize = 1024;

/// A way to cut data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Chunking {
    /// A file is one chunk.
    WholeFile,
    /// Blocks of a fixed size, counted from a file's start; the last one may be shorter.
    Fixed {
        /// The block size: 512 to 16 MiB, a multiple of 512.
        bytes: usize,
    },
    /// Content-defined: FastCDC in its version of 2020, with its normalization of level 1.
    Content {
        /// The fewest bytes of a chunk, except the last one of a file. Even, as the others are.
        min: usize,
        /// The approximate average length of a chunk.
        average: usize,
        /// The most bytes of a chunk.
        max: usize,
    },
}

/// An invalid chunking method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChunkingError(String);

impl Chunking {
    /// Blocks of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// For a size that is not a multiple of 512, or not from 512 to 16 MiB.
    pub fn fixed(bytes: usize) -> Result<Self, ChunkingError> {
        if (FIXED_MIN..=FIXED_MAX).contains(&bytes) && bytes.is_multiple_of(FIXED_MIN) {
            return Ok(Self::Fixed { bytes });
        }
        Err(ChunkingError(format!(
            "blocks of {bytes} bytes: multiples of {FIXED_MIN} up to {FIXED_MAX} make sense"
        )))
    }

    /// Content-defined chunks with these lengths.
    ///
    /// # Errors
    ///
    /// For an average that is not from 256 bytes to 4 MiB, for a minimum below 64 bytes or a
    /// maximum above 16 MiB, or if the average is not between the two.
    pub fn content(min: usize, average: usize, max: usize) -> Result<Self, ChunkingError> {
        if !(AVERAGE_MIN..=AVERAGE_MAX).contains(&average) {
            return Err(ChunkingError(format!(
                "chunks of {average} bytes on average: {AVERAGE_MIN} to {AVERAGE_MAX} make sense"
            )));
        }
        let is_fine = (CONTENT_MIN..average.min(MIN_MAX + 1)).contains(&min)
            && (average + 1..=FIXED_MAX).contains(&max)
            && max >= MAX_MIN
            && [min, average, max]
                .iter()
                .all(|size| size.is_multiple_of(2));
        if !is_fine {
            return Err(ChunkingError(format!(
                "chunks of {min} to {max} bytes, {average} on average: the least must be from \
                 {CONTENT_MIN} to {MIN_MAX} and below the average, the most above it and from \
                 {MAX_MIN} to {FIXED_MAX}, and all of them even"
            )));
        }
        Ok(Self::Content { min, average, max })
    }

    /// Whether a piece of a file can be cut without the bytes before it.
    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed { .. })
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WholeFile => write!(f, "file"),
            Self::Fixed { bytes } => write!(f, "fixed:{bytes}"),
            Self::Content { min, average, max } => write!(f, "content:{min},{average},{max}"),
        }
    }
}

impl FromStr for Chunking {
    type Err = ChunkingError;

    /// Parses `file`, `fixed:SIZE`, `content:AVERAGE` or `content:MIN,AVERAGE,MAX`; sizes in bytes,
    /// or with K or M. With the average alone, the minimum is a quarter of it and the maximum eight
    /// times as much.
    fn from_str(text: &str) -> Result<Self, ChunkingError> {
        let (kind, sizes) = text.split_once(':').unwrap_or((text, ""));
        let sizes: Option<Vec<usize>> = match sizes {
            "" => Some(Vec::new()),
            sizes => sizes.split(',').map(size).collect(),
        };
        match (kind, sizes.as_deref()) {
            ("file", Some([])) => Ok(Self::WholeFile),
            ("fixed", Some([bytes])) => Self::fixed(*bytes),
            ("content", Some([average])) => {
                Self::content(average / 4, *average, average.saturating_mul(8))
            }
            ("content", Some([min, average, max])) => Self::content(*min, *average, *max),
            _ => Err(ChunkingError(format!(
                "'{text}' is no way to cut data: file, fixed:4K, content:8K and content:2K,8K,64K are"
            ))),
        }
    }
}

/// Parses a number of bytes.
fn size(text: &str) -> Option<usize> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 1 << 10),
        b'M' | b'm' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(factor)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, canonical) in [
            ("file", "file"),
            ("fixed:4K", "fixed:4096"),
            ("fixed:12288", "fixed:12288"),
            ("content:8k", "content:2048,8192,65536"),
            ("content:1K,4K,1M", "content:1024,4096,1048576"),
        ] {
            let chunking: Chunking = text.parse().unwrap();
            assert_eq!(chunking.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(chunking));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "",
            "files",
            "file:4K",
            "fixed",
            "fixed:0",
            "fixed:100",
            "fixed:4K,8K",
            "fixed:32M",
            "fixed:99999999999999999999999",
            "content:",
            "content:128",
            "content:8K,8K,64K",
            "content:2K,8K,8K",
            "content:2K,8001,64K",
            "content:64,256,512",
            "content:2M,4M,8M",
            "content:2K,8K",
            "content:2K,8K,64K,1M",
            "content:é",
        ] {
            assert!(text.parse::<Chunking>().is_err(), "{text}");
        }
    }
}
