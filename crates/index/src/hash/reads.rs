//! Reading many leaves with many of them in flight.

use std::io;
use std::panic;
use std::sync::{Mutex, PoisonError};
use std::thread;

use onefold_engine::{Disk, ReadRange};

use super::segment::{LEAF_BYTES, leaf_offset};

/// Leaves in flight. Disks do several times as many reads a second at this depth as one at a
/// time, and hardly more beyond it.
const DEPTH: usize = 32;

/// The most leaves that are not worth a thread.
const FEW: usize = 4;

/// Fills `into` with these leaves. Returns false if it would have to wait for one of them.
pub(super) fn try_read_leaves(
    disk: &dyn Disk,
    leaves: &[u64],
    into: &mut [u8],
) -> io::Result<bool> {
    for (leaf, buffer) in leaves.iter().zip(into.chunks_exact_mut(LEAF_BYTES)) {
        if !disk.try_read_at(buffer, leaf_offset(*leaf))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fills `into` with these leaves. The calling thread copies leaves in the host's cache; threads wait for the disk for
/// the rest, unless the disk bypasses the host's cache: such a disk reads all of them at once by itself.
pub(super) fn read_leaves(disk: &dyn Disk, leaves: &[u64], into: &mut [u8]) -> io::Result<()> {
    let mut absent = Vec::new();
    for (leaf, buffer) in leaves.iter().zip(into.chunks_exact_mut(LEAF_BYTES)) {
        let offset = leaf_offset(*leaf);
        if !disk.try_read_at(buffer, offset)? {
            absent.push((offset, buffer));
        }
    }
    if absent.len() <= FEW {
        let mut absent = absent.into_iter();
        return absent.try_for_each(|(offset, buffer)| disk.read_at(buffer, offset));
    }
    if !disk.is_cached() {
        let ranges = absent.into_iter();
        let mut ranges: Vec<ReadRange<'_>> = ranges
            .map(|(offset, buf)| ReadRange { buf, offset })
            .collect();
        let read = disk.read_together(&mut ranges);
        return read.map_err(|(_, error)| error);
    }
    let threads = absent.len().min(DEPTH);
    let left = Mutex::new(absent.into_iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((offset, buffer)) = next() {
            disk.read_at(buffer, offset)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        // If no more threads can be started, the existing ones do the work.
        let start = || thread::Builder::new().spawn_scoped(scope, work).ok();
        let workers: Vec<_> = (1..threads).map_while(|_| start()).collect();
        let mut result = work();
        for worker in workers {
            let theirs = worker.join();
            result = result.and(theirs.unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::simulated::{Op, SimulatedEngine};
    use onefold_engine::{Engine, Part};

    #[test]
    fn every_leaf_gets_to_its_place() {
        let engine = SimulatedEngine::new(1);
        let disk = engine.create(Part::Index, 0).unwrap();
        for page in 0..200_u64 {
            let bytes = [page as u8; LEAF_BYTES];
            disk.write_at(&bytes, leaf_offset(page)).unwrap();
        }
        for count in [0, 1, FEW, FEW + 1, DEPTH, 150] {
            for cold in [false, true] {
                if cold {
                    engine.set_cold(Part::Index, 0..u64::MAX);
                }
                let mut random = fastrand::Rng::with_seed(count as u64);
                let pages: Vec<u64> = (0..count).map(|_| random.u64(..200)).collect();
                let mut into = vec![0xff; count * LEAF_BYTES];
                read_leaves(&*disk, &pages, &mut into).unwrap();
                for (page, bytes) in pages.iter().zip(into.chunks(LEAF_BYTES)) {
                    assert!(bytes.iter().all(|byte| *byte == *page as u8));
                }
            }
        }
    }

    #[test]
    fn one_failure_among_many_is_told() {
        let engine = SimulatedEngine::new(1);
        let disk = engine.create(Part::Index, 0).unwrap();
        disk.write_at(&vec![7; 100 * LEAF_BYTES], leaf_offset(0))
            .unwrap();
        engine.fail_once(Part::Index, Op::Read, 57, io::ErrorKind::TimedOut);
        let pages: Vec<u64> = (0..100).collect();
        let error = read_leaves(&*disk, &pages, &mut vec![0; 100 * LEAF_BYTES]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
