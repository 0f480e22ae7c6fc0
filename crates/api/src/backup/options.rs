//! Options that several requests about backups have.

use crate::error::Error;
use crate::size;

/// Default memory of each stage of a backup.
pub const MEMORY_DEFAULT: &str = "64M";

/// The least memory with which a stage can hold the blocks that it works on.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// The possible numbers of threads.
const THREADS: std::ops::RangeInclusive<u16> = 1..=256;

/// Default compression level of zstd.
pub const LEVEL_DEFAULT: i32 = 1;

/// Value parser for clap: the memory for a command.
///
/// # Errors
/// If the text is not a size, or too little memory.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < MEMORY_BYTES_MIN => Err(format!(
            "at least {} are needed",
            size::display(MEMORY_BYTES_MIN)
        )),
        bytes => Ok(bytes),
    }
}

/// The default of `memory_bytes` in JSON.
pub(crate) fn memory_default() -> u64 {
    size::parse(MEMORY_DEFAULT).unwrap_or(MEMORY_BYTES_MIN)
}

/// Refuses too little memory, and no threads or too many.
pub(crate) fn check(memory_bytes: u64, threads: Option<u16>) -> crate::error::Result<()> {
    if memory_bytes < MEMORY_BYTES_MIN {
        let least = size::display(MEMORY_BYTES_MIN);
        return Err(Error::usage(format!(
            "at least {least} of memory are needed"
        )));
    }
    if threads.is_some_and(|threads| !THREADS.contains(&threads)) {
        let (least, most) = (THREADS.start(), THREADS.end());
        return Err(Error::usage(format!(
            "{least} to {most} threads are possible"
        )));
    }
    Ok(())
}

/// The given number of threads, or the number of processors.
#[must_use]
pub fn threads(given: Option<u16>) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    given.map_or_else(processors, usize::from)
}
