//! Checks whether a target holds anything, before a load or another command destroys it.

use std::io;

use onefold_analyze::is_zero;
use onefold_format::PoolId;
use onefold_format::page::{PAGE_BYTES, claimed_pool};
use onefold_format::superblock::check_data_label;
use onefold_image::QCOW2_MAGIC;

use crate::run::LoadProgress;
use crate::target::{Buffer, Target};

/// The bytes at the beginning of a target that identify its content: the magic of btrfs comes last.
pub const MARKS_BYTES: u64 = 128 << 10;

/// Bytes read at a time.
const STEP_BYTES: usize = 1 << 20;

/// Sectors of 512 bytes in which LVM's label may be.
const LVM_SECTORS: usize = 4;

/// Describes the content of a target's first `bytes`, by its format if the beginning is known.
/// `None` if there are only zeros, or if it was stopped before it found anything.
///
/// # Errors
///
/// If the target cannot be read.
pub fn inspect(
    target: &dyn Target,
    bytes: u64,
    progress: &LoadProgress,
) -> io::Result<Option<String>> {
    progress.begin(bytes);
    let mut connection = target.connect()?;
    let mut buffer = Buffer::new(STEP_BYTES);
    let marks = target.bytes().min(MARKS_BYTES) as usize / 512 * 512;
    connection.read(&mut buffer.bytes()[..marks], 0)?;
    if let Some(known) = known_content(&buffer.bytes()[..marks]) {
        return Ok(Some(known));
    }
    let mut data = 0..0;
    let mut at = 0;
    while at < bytes && !progress.is_stopping() {
        progress.set(at);
        if data.end <= at {
            data = target.next_data(at, bytes)?;
        }
        // Whole steps, as direct access requires.
        let step = STEP_BYTES as u64;
        at = at.max(data.start / step * step);
        if at >= bytes {
            break;
        }
        let some = &mut buffer.bytes()[..step.min(bytes - at) as usize];
        connection.read(some, at)?;
        if !is_zero(some) {
            let place = some.iter().position(|byte| *byte != 0).unwrap_or(0);
            return Ok(Some(format!("data at byte {}", at + place as u64)));
        }
        at += step;
    }
    Ok(None)
}

/// The format that begins with these bytes, if it is known: the first [`MARKS_BYTES`] of a target decide.
#[must_use]
pub fn known_content(bytes: &[u8]) -> Option<String> {
    let pool = pool_with_data(bytes).map(|pool| format!("the blocks of the onefold pool {pool}"));
    pool.or_else(|| foreign_content(bytes).map(str::to_owned))
}

/// The pool whose blocks begin with these bytes.
fn pool_with_data(bytes: &[u8]) -> Option<PoolId> {
    let label = bytes.first_chunk::<PAGE_BYTES>()?;
    let pool = claimed_pool(label);
    check_data_label(label, pool).is_ok().then_some(pool)
}

fn foreign_content(bytes: &[u8]) -> Option<&'static str> {
    let has = |at: usize, mark: &[u8]| bytes.get(at..at + mark.len()) == Some(mark);
    let lvm = (0..LVM_SECTORS).any(|sector| has(sector * 512, b"LABELONE"));
    let marks = [
        (has(0, b"LUKS\xba\xbe"), "a LUKS volume"),
        (has(0, &QCOW2_MAGIC), "a qcow2 image"),
        (has(0, b"XFSB"), "an XFS file system"),
        (
            has(1024 + 56, b"\x53\xef"),
            "an ext2, ext3 or ext4 file system",
        ),
        (has(0x10040, b"_BHRfS_M"), "a btrfs file system"),
        (lvm, "an LVM physical volume"),
        (
            has(4096 - 10, b"SWAPSPACE2") || has(65536 - 10, b"SWAPSPACE2"),
            "swap space",
        ),
        (
            has(512, b"EFI PART") || has(4096, b"EFI PART"),
            "a GPT partition table",
        ),
        (
            has(510, b"\x55\xaa"),
            "an MBR partition table or a boot sector",
        ),
    ];
    let mut marks = marks.into_iter().filter(|(is_there, _)| *is_there);
    marks.next().map(|(_, what)| what)
}
