//! An export in memory that waits, fails and panics on request.

use onefold_nbd::{
    Blocking, Change, ChangedExtent, Changes, Export, ExportError, Extent, Failure, ZeroOptions,
};
use rustix::process::getpid;
use rustix::thread::sched_getaffinity;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

#[derive(Default)]
pub(crate) struct MemoryExport {
    pub(crate) data: Mutex<Vec<u8>>,
    /// Requests that touch these bytes cannot be answered without waiting.
    pub(crate) waits: Vec<Range<u64>>,
    /// Requests that touch these bytes wait for [`MemoryExport::open_gate`].
    pub(crate) gated: Vec<Range<u64>>,
    pub(crate) fails: Vec<(Range<u64>, Failure)>,
    pub(crate) panics: Vec<Range<u64>>,
    pub(crate) read_only: bool,
    pub(crate) is_background: bool,
    /// Changes of these bytes have to wait for space while [`MemoryExport::is_full`].
    pub(crate) new: Vec<Range<u64>>,
    pub(crate) is_full: AtomicBool,
    pub(crate) gate: Mutex<Gate>,
    pub(crate) gate_changed: Condvar,
    pub(crate) flushes: AtomicUsize,
    pub(crate) prefetches: AtomicUsize,
    /// Bytes of scratch memory that prefetches have received, now and at most.
    pub(crate) scratch: AtomicUsize,
    pub(crate) scratch_peak: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Gate {
    open: bool,
    waiting: usize,
}

/// The byte that a fresh export has at an offset.
pub(crate) fn pattern(offset: u64) -> u8 {
    (offset / 512 + offset).to_le_bytes()[0]
}

impl MemoryExport {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            data: Mutex::new((0..size).map(pattern).collect()),
            ..Self::default()
        }
    }

    /// Lets all requests at the gate pass, now and later.
    pub(crate) fn open_gate(&self) {
        self.gate.lock().unwrap().open = true;
        self.gate_changed.notify_all();
    }

    /// Returns when `count` requests wait at the gate.
    pub(crate) fn wait_for_waiting(&self, count: usize) {
        let mut gate = self.gate.lock().unwrap();
        while gate.waiting < count {
            gate = self.gate_changed.wait(gate).unwrap();
        }
    }

    pub(crate) fn byte(&self, offset: u64) -> u8 {
        self.data.lock().unwrap()[offset as usize]
    }

    fn enter(&self, offset: u64, len: u64, blocking: Blocking) -> Result<(), ExportError> {
        let processors = sched_getaffinity(None).unwrap().count();
        let all = sched_getaffinity(Some(getpid())).unwrap().count();
        if self.is_background {
            // A worker started by this thread would be pinned to one processor, too.
            let thread = thread::current();
            assert!(thread.name().unwrap().starts_with("nbd-client"));
            assert_eq!((processors, blocking), (1, Blocking::Yes));
        } else {
            assert_eq!(processors, all);
        }
        let touches = |range: &Range<u64>| offset < range.end && range.start < offset + len;
        let gated = self.gated.iter().any(touches);
        if blocking == Blocking::No && (gated || self.waits.iter().any(touches)) {
            return Err(ExportError::WouldBlock);
        }
        if gated {
            let mut gate = self.gate.lock().unwrap();
            gate.waiting += 1;
            self.gate_changed.notify_all();
            while !gate.open {
                gate = self.gate_changed.wait(gate).unwrap();
            }
            gate.waiting -= 1;
        }
        assert!(!self.panics.iter().any(touches), "told to panic");
        match self.fails.iter().find(|(range, _)| touches(range)) {
            Some((_, failure)) => Err(ExportError::Failed {
                failure: *failure,
                source: "told to fail".into(),
            }),
            None => Ok(()),
        }
    }

    /// Enters a change as [`MemoryExport::enter`] does, and checks whether it has to wait for space.
    fn change(&self, offset: u64, len: u64, blocking: Blocking) -> Result<(), ExportError> {
        self.enter(offset, len, blocking)?;
        let touches = |range: &Range<u64>| offset < range.end && range.start < offset + len;
        if !self.new.iter().any(touches) || !self.is_full.load(Ordering::SeqCst) {
            return Ok(());
        }
        match blocking {
            Blocking::No => Err(ExportError::WouldBlock),
            Blocking::Yes => Err(ExportError::WaitForSpace("told to be full".into())),
        }
    }

    fn zero(&self, range: Range<u64>, blocking: Blocking) -> Result<(), ExportError> {
        self.change(range.start, range.end - range.start, blocking)?;
        self.data.lock().unwrap()[range.start as usize..range.end as usize].fill(0);
        Ok(())
    }
}

impl Export for MemoryExport {
    fn size_bytes(&self) -> u64 {
        self.data.lock().unwrap().len() as u64
    }

    fn preferred_block_bytes(&self) -> u32 {
        4096
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn is_background(&self) -> bool {
        self.is_background
    }

    fn read(&self, offset: u64, buf: &mut [u8], blocking: Blocking) -> Result<(), ExportError> {
        assert_eq!(buf.as_ptr().addr() % 4096, 0);
        self.enter(offset, buf.len() as u64, blocking)?;
        let at = offset as usize;
        buf.copy_from_slice(&self.data.lock().unwrap()[at..at + buf.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], blocking: Blocking) -> Result<(), ExportError> {
        assert!(blocking == Blocking::No || data.as_ptr().addr().is_multiple_of(4096));
        self.change(offset, data.len() as u64, blocking)?;
        let at = offset as usize;
        self.data.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> Result<(), ExportError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn trim(&self, range: Range<u64>, blocking: Blocking) -> Result<(), ExportError> {
        self.zero(range, blocking)
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        _options: ZeroOptions,
        blocking: Blocking,
    ) -> Result<(), ExportError> {
        self.zero(range, blocking)
    }

    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<Extent>, ExportError> {
        self.enter(range.start, range.end - range.start, blocking)?;
        let data = self.data.lock().unwrap();
        let mut extents: Vec<Extent> = Vec::new();
        for block in data[range.start as usize..range.end as usize].chunks(4096) {
            let is_data = block.iter().any(|byte| *byte != 0);
            match extents.last_mut() {
                Some(last) if last.data == is_data => last.len += block.len() as u64,
                _ => extents.push(Extent {
                    len: block.len() as u64,
                    data: is_data,
                }),
            }
        }
        extents.truncate(extents_max);
        Ok(extents)
    }

    fn prefetch(&self, range: Range<u64>, scratch: &mut [u8]) -> Result<(), ExportError> {
        assert!(scratch.len() >= 4096 && scratch.as_ptr().addr().is_multiple_of(4096));
        let now = self.scratch.fetch_add(scratch.len(), Ordering::SeqCst) + scratch.len();
        self.scratch_peak.fetch_max(now, Ordering::SeqCst);
        self.prefetches.fetch_add(1, Ordering::SeqCst);
        let entered = self.enter(range.start, range.end - range.start, Blocking::Yes);
        self.scratch.fetch_sub(scratch.len(), Ordering::SeqCst);
        entered
    }
}

/// The number of snapshots, more than one client may select.
pub(crate) const SNAPSHOTS: u64 = 40;

/// The differences since snapshot `sN`: the first of every N + 1 blocks, alternately data and
/// zeros.
pub(crate) struct Since {
    export: Arc<MemoryExport>,
    number: u64,
}

impl Since {
    pub(crate) fn new(export: &Arc<MemoryExport>, snapshot: &str) -> Self {
        Self {
            export: Arc::clone(export),
            number: snapshot[1..].parse().unwrap(),
        }
    }
}

impl Changes for Since {
    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<ChangedExtent>, ExportError> {
        // Waits and fails as the export does.
        self.export.extents(range.clone(), 1, blocking)?;
        let mut extents = Vec::new();
        let mut at = range.start;
        while at < range.end && extents.len() < extents_max {
            let (block, period) = (at / 4096, self.number + 1);
            let end = ((block + 1) * 4096).min(range.end);
            let change = match block % (2 * period) {
                0 => Change::Data,
                n if n == period => Change::Zero,
                _ => Change::Same,
            };
            let len = end - at;
            extents.push(ChangedExtent { len, change });
            at = end;
        }
        Ok(extents)
    }
}

/// A client's attachment: counts itself.
pub(crate) struct Counted {
    export: Arc<MemoryExport>,
    attached: Arc<AtomicUsize>,
}

impl Counted {
    pub(crate) fn new(export: &Arc<MemoryExport>, attached: &Arc<AtomicUsize>) -> Self {
        attached.fetch_add(1, Ordering::SeqCst);
        Self {
            export: Arc::clone(export),
            attached: Arc::clone(attached),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.attached.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Export for Counted {
    fn size_bytes(&self) -> u64 {
        self.export.size_bytes()
    }
    fn preferred_block_bytes(&self) -> u32 {
        self.export.preferred_block_bytes()
    }
    fn read_only(&self) -> bool {
        self.export.read_only()
    }
    fn is_background(&self) -> bool {
        self.export.is_background()
    }
    fn read(&self, offset: u64, buf: &mut [u8], blocking: Blocking) -> Result<(), ExportError> {
        self.export.read(offset, buf, blocking)
    }
    fn write(&self, offset: u64, data: &[u8], blocking: Blocking) -> Result<(), ExportError> {
        self.export.write(offset, data, blocking)
    }
    fn flush(&self) -> Result<(), ExportError> {
        self.export.flush()
    }
    fn trim(&self, range: Range<u64>, blocking: Blocking) -> Result<(), ExportError> {
        self.export.trim(range, blocking)
    }
    fn write_zeroes(
        &self,
        range: Range<u64>,
        options: ZeroOptions,
        blocking: Blocking,
    ) -> Result<(), ExportError> {
        self.export.write_zeroes(range, options, blocking)
    }
    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<Extent>, ExportError> {
        self.export.extents(range, extents_max, blocking)
    }
    fn prefetch(&self, range: Range<u64>, scratch: &mut [u8]) -> Result<(), ExportError> {
        self.export.prefetch(range, scratch)
    }
}
