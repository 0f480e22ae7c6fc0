//! The I/O of a simulated machine: counted, failed, interrupted and only then done.
//!
//! Each I/O has two moments under the lock, its start and its effect. A test's code runs between
//! them, or after the effect, without the lock, and may do I/O itself.

use super::faults::Hook;
use super::orders::{Op, When};
use super::part::PartState;
use super::prepared::{Prepared, PreparedRanges, WRITE_BYTES_MAX};
use super::random::Random;
use super::stop::Stop;
use super::{Machine, State, cluster};
use crate::{Disk, Part, PreparedRead, PreparedWrite, WriteRange};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// The content of an undefined buffer, so that it is not mistaken for zeros.
const UNDEFINED_BYTE: u8 = 0xee;

/// An open part of a simulated machine.
#[derive(Clone)]
pub(super) struct SimulatedDisk {
    pub(super) machine: Arc<Machine>,
    pub(super) part: Part,
}

/// An I/O that has started.
pub(super) struct Started {
    request: Request,
    outcome: Outcome,
    /// The part's next change when it started: a sync covers those before.
    next_number: u64,
    after: Option<Hook>,
}

/// An I/O's operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) part: Part,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// How an I/O ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    /// The I/O fails, and the machine continues.
    Failure(ErrorKind),
    /// The I/O fails after it has returned: the next sync returns the error.
    FailsBehind(ErrorKind),
    /// The machine stops in this I/O.
    Crash,
}

/// Why an I/O fails without an order to.
pub(super) enum Trouble {
    /// There is no room for all of a write or reservation.
    NoRoom,
    /// The medium cannot read it.
    Unreadable,
    /// The medium has less than was read.
    Missing,
    /// A write has failed after it had returned.
    Behind(ErrorKind),
}

impl Machine {
    /// Counts an I/O, draws its outcome, and runs the code ordered for its middle.
    pub(super) fn start(&self, request: Request) -> io::Result<Started> {
        let Request {
            part,
            op,
            offset,
            bytes,
        } = request;
        let end_max = i64::MAX as u64;
        if bytes > end_max || offset > end_max - bytes {
            return Err(request.failed(ErrorKind::InvalidInput, "out of range"));
        }
        let stops = self.begin_of_host(&request)?;
        let mut state = self.state();
        // One that is fenced was admitted by its host.
        if !stops && state.stopped != Some(Stop::Fenced) {
            state.check_running(&request)?;
        }
        state.land_late();
        let outcome = state.begin(request, stops);
        if let (Outcome::Crash, Some(member)) = (outcome, &self.member) {
            drop(state);
            member.host_dies();
            state = self.state();
        }
        let next_number = state.parts.get(&part).map_or(0, PartState::next_number);
        let before = state.plan.take_hook(part, op, When::Before);
        let after = state.plan.take_hook(part, op, When::After);
        drop(state);
        if let Some(hook) = before {
            hook();
        }
        Ok(Started {
            request,
            outcome,
            next_number,
            after,
        })
    }

    /// Does the effect of an I/O, and ends it as was drawn.
    pub(super) fn finish(
        &self,
        started: Started,
        effect: impl FnOnce(&mut State, Outcome) -> io::Result<()>,
    ) -> io::Result<()> {
        let Started {
            request,
            mut outcome,
            after,
            ..
        } = started;
        let mut state = self.state();
        if outcome != Outcome::Crash {
            // The code that ran in the middle may have stopped the machine.
            match self.admits(&state, &request) {
                // Of the pool's data, what was sent may arrive.
                Err(_) if self.is_of_pool(request.part) => outcome = Outcome::Crash,
                admitted => admitted?,
            }
        }
        let result = effect(&mut state, outcome);
        let stopped = state.stopped.unwrap_or(Stop::Crashed);
        drop(state);
        if let (Outcome::Crash, Stop::Fenced, Some(member)) = (outcome, stopped, &self.member) {
            member.tell_fenced();
        }
        if let Some(hook) = after {
            hook();
        }
        match outcome {
            Outcome::Success | Outcome::FailsBehind(_) => result,
            Outcome::Failure(kind) => Err(request.failed(kind, "simulated failure")),
            Outcome::Crash => Err(request.failed(ErrorKind::Other, stopped.why())),
        }
    }
}

impl Request {
    pub(super) fn failed(&self, kind: ErrorKind, why: &str) -> io::Error {
        let Request {
            part,
            op,
            offset,
            bytes,
        } = self;
        let (doing, name) = (op.verb(), part.name());
        let what = format!("{doing} {bytes} bytes at {offset} of simulated:{name}: {why}");
        io::Error::new(kind, what)
    }
}

impl State {
    /// Fails after the machine stopped.
    pub(super) fn check_running(&self, request: &Request) -> io::Result<()> {
        match self.stopped {
            Some(stop) => Err(request.failed(ErrorKind::Other, stop.why())),
            None => Ok(()),
        }
    }

    fn begin(
        &mut self,
        Request {
            part, op, bytes, ..
        }: Request,
        stops: bool,
    ) -> Outcome {
        self.ios += 1;
        let count = self.counts.entry((part, op)).or_default();
        count.count += 1;
        count.bytes += bytes;
        let failure = self.plan.failure(part, op, &mut self.random);
        let mut stops = stops;
        if let Some(left) = &mut self.plan.ios_until_crash {
            *left = left.saturating_sub(1);
            stops |= *left == 0;
        }
        if stops {
            self.stopped.get_or_insert(Stop::Crashed);
            return Outcome::Crash;
        }
        if failure.is_some() {
            *self.failures.entry((part, op)).or_default() += 1;
        }
        let is_behind = self.cluster.is_some() && op == Op::Write && part != Part::Data;
        match failure {
            None => Outcome::Success,
            Some(kind) if is_behind => Outcome::FailsBehind(kind),
            Some(kind) => Outcome::Failure(kind),
        }
    }

    fn land_late(&mut self) {
        if self.cluster.is_some() {
            self.landed_late +=
                cluster::land_late(&mut self.parts, self.late_rate, &mut self.random);
        }
    }

    /// Whether a read that must not wait would have to.
    fn is_cold(&mut self, part: Part, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        let marked = self.cold.iter().any(|(cold_part, range)| {
            *cold_part == part && range.start < end && offset < range.end
        });
        marked || self.random.chance(self.cold_rate)
    }
}

impl SimulatedDisk {
    fn request(&self, op: Op, offset: u64, bytes: u64) -> Request {
        Request {
            part: self.part,
            op,
            offset,
            bytes,
        }
    }

    /// Runs an I/O whose effect concerns this part alone.
    fn run(
        &self,
        request: Request,
        effect: impl FnOnce(&mut PartState, Circumstances<'_>) -> Result<(), Trouble>,
    ) -> io::Result<()> {
        let started = self.machine.start(request)?;
        let started_at = started.next_number;
        self.machine.finish(started, |state, outcome| {
            let mut shared = self.machine.shared(self.part);
            if let (Some(shared), Outcome::Success) = (&mut shared, outcome) {
                shared.touch(&request);
            }
            let part = match &mut shared {
                Some(shared) => shared.part(self.part),
                None => state.parts.get_mut(&self.part),
            };
            let Some(part) = part else {
                return Err(request.failed(ErrorKind::NotFound, "the part is gone"));
            };
            let circumstances = Circumstances {
                outcome,
                started_at,
                // In a cluster that is full, guests' writes fail, and parts do not grow.
                capacity: match state.cluster {
                    Some(_) if self.part != Part::Data && request.op != Op::Reserve => None,
                    _ => state.capacity.get(&self.part).copied(),
                },
                discard_ignored_rate: state.discard_ignored_rate,
                eviction_rate: state.eviction.get(&self.part).copied().unwrap_or_default(),
                random: &mut state.random,
            };
            if (outcome, request.op) == (Outcome::Crash, Op::Sync) {
                state.in_flight.push((self.part, started_at));
            }
            if let Op::Read | Op::Write | Op::Discard = request.op {
                part.touch(request.offset..request.offset + request.bytes);
            }
            let done = effect(part, circumstances);
            if let Some(shared) = &mut shared {
                shared.settle(self.part, outcome);
            }
            done.map_err(|trouble| match trouble {
                Trouble::Behind(kind) => {
                    request.failed(kind, "simulated failure of an earlier write")
                }
                Trouble::NoRoom => request.failed(ErrorKind::StorageFull, "no space left"),
                Trouble::Unreadable => request.failed(ErrorKind::Other, "unreadable medium"),
                Trouble::Missing => request.failed(ErrorKind::UnexpectedEof, "nothing is there"),
            })
        })
    }

    /// Whether this is the data of a shared pool.
    fn has_no_length(&self) -> bool {
        self.part == Part::Data && self.machine.is_of_pool(self.part)
    }

    fn is_in_cluster(&self) -> bool {
        self.machine.state().cluster.is_some()
    }

    /// Whether a write is in one object, and makes the part no longer.
    fn is_one_operation(&self, bytes: &[u8], offset: u64) -> bool {
        let Some(rules) = self.machine.state().cluster else {
            return true;
        };
        let end = offset.saturating_add(bytes.len() as u64);
        let objects = offset / rules.object_bytes..end.div_ceil(rules.object_bytes);
        objects.count() == 1 && self.len().is_ok_and(|len| end <= len)
    }

    /// Inspects the part; not an I/O.
    fn look<T>(&self, look: impl FnOnce(&PartState) -> T) -> io::Result<T> {
        let mut state = self.machine.state();
        let name = self.part.name();
        if let Some(stop) = state.stopped {
            let message = format!("simulated:{name}: {}", stop.why());
            return Err(io::Error::other(message));
        }
        let mut shared = self.machine.shared(self.part);
        let part = match &mut shared {
            Some(shared) => shared.part(self.part),
            None => state.parts.get_mut(&self.part),
        };
        match part {
            Some(part) => Ok(look(part)),
            None => {
                let message = format!("simulated:{name}: the part is gone");
                Err(io::Error::new(ErrorKind::NotFound, message))
            }
        }
    }
}

/// Decides the effect of an I/O.
struct Circumstances<'a> {
    outcome: Outcome,
    /// The part's next change when the I/O started.
    started_at: u64,
    capacity: Option<u64>,
    discard_ignored_rate: f64,
    eviction_rate: f64,
    random: &'a mut Random,
}

impl Disk for SimulatedDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.run(
            self.request(Op::Read, offset, buf.len() as u64),
            |part, now| {
                if let Some(kind) = part.failed_behind() {
                    buf.fill(UNDEFINED_BYTE);
                    return Err(Trouble::Behind(kind));
                }
                match now.outcome {
                    Outcome::Success
                        if part.is_unreadable(&(offset..offset + buf.len() as u64)) =>
                    {
                        buf.fill(UNDEFINED_BYTE);
                        return Err(Trouble::Unreadable);
                    }
                    Outcome::Success
                        if self.part == Part::Data
                            && !part.holds(&(offset..offset + buf.len() as u64)) =>
                    {
                        buf.fill(UNDEFINED_BYTE);
                        return Err(Trouble::Missing);
                    }
                    Outcome::Success => part.current.read(buf, offset),
                    Outcome::Failure(_) | Outcome::FailsBehind(_) | Outcome::Crash => {
                        buf.fill(UNDEFINED_BYTE);
                    }
                }
                Ok(())
            },
        )
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        {
            let mut state = self.machine.state();
            state.check_running(&self.request(Op::Read, offset, buf.len() as u64))?;
            if state.cluster.is_some() || state.is_cold(self.part, offset, buf.len()) {
                buf.fill(UNDEFINED_BYTE);
                return Ok(false);
            }
        }
        self.read_at(buf, offset)?;
        Ok(true)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let alignment = self.alignment();
        assert!(
            offset.is_multiple_of(alignment as u64) && buf.len().is_multiple_of(alignment),
            "a write of {} bytes at {offset} of simulated:{} lacks the alignment {alignment}",
            buf.len(),
            self.part.name(),
        );
        self.run(
            self.request(Op::Write, offset, buf.len() as u64),
            |part, now| {
                let fits = &buf[..part.room_for(offset, buf.len(), now.capacity)];
                if let Some(placement) = part.placement() {
                    if fits.len() < buf.len() {
                        return Err(Trouble::NoRoom);
                    }
                    part.send_write(placement, buf, offset, now.outcome, now.random);
                    return Ok(());
                }
                match now.outcome {
                    Outcome::Failure(_) => part.write_torn(fits, offset, now.random),
                    // The remains of the write after the crash are drawn together with all others.
                    _ => part.write(fits, offset),
                }
                if fits.len() == buf.len() {
                    Ok(())
                } else {
                    Err(Trouble::NoRoom)
                }
            },
        )
    }

    /// Writes the last range first, because callers must not rely on their order. Stops at the first error.
    fn write_together(&self, ranges: &[WriteRange<'_>]) -> Result<(), (usize, io::Error)> {
        for (n, range) in ranges.iter().enumerate().rev() {
            let written = self.write_at(range.bytes, range.offset);
            written.map_err(|error| (n, error))?;
        }
        Ok(())
    }

    /// Prepares writes only where each write waits for the disk.
    fn prepare_write(&self, bytes: &[u8], offset: u64) -> Option<Box<dyn PreparedWrite>> {
        let fits = bytes.len() <= self.prepared_bytes_max() && self.is_one_operation(bytes, offset);
        let prepared = Prepared {
            disk: self.clone(),
            bytes: bytes.to_vec(),
            offset,
        };
        fits.then(|| Box::new(prepared) as Box<dyn PreparedWrite>)
    }

    fn prepared_bytes_max(&self) -> usize {
        let is_direct = self.alignment() > 1 || self.is_in_cluster();
        if is_direct && self.part == Part::Data {
            WRITE_BYTES_MAX
        } else {
            0
        }
    }

    fn prepare_read(&self, ranges: &[(u64, usize)]) -> Option<Box<dyn PreparedRead>> {
        let bytes = ranges.iter().map(|(_, len)| *len).sum::<usize>();
        let fits = (1..=self.prepared_read_bytes_max()).contains(&bytes);
        let prepared = PreparedRanges {
            disk: self.clone(),
            ranges: ranges.to_vec(),
        };
        fits.then(|| Box::new(prepared) as Box<dyn PreparedRead>)
    }

    fn prepared_read_bytes_max(&self) -> usize {
        if self.is_in_cluster() && self.part == Part::Data {
            WRITE_BYTES_MAX
        } else {
            0
        }
    }

    fn is_cached(&self) -> bool {
        self.alignment() == 1 && !self.is_in_cluster()
    }

    fn is_durable_once_written(&self) -> bool {
        self.part == Part::Data && self.is_in_cluster()
    }

    fn writes_are_whole(&self) -> bool {
        self.is_in_cluster()
    }

    fn submit(&self) {
        loop {
            let mut state = self.machine.state();
            let count = state.started.len() as u64;
            if count == 0 {
                return;
            }
            let next = state.random.below(count) as usize;
            let write = state.started.swap_remove(next);
            drop(state);
            write.end();
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.run(self.request(Op::Sync, 0, 0), |part, now| {
            if part.objects.is_some() {
                return part.acknowledged(now.started_at, now.outcome, now.random);
            }
            match now.outcome {
                Outcome::Success | Outcome::FailsBehind(_) => part.sync(now.started_at),
                Outcome::Failure(_) => {
                    part.sync_failed(now.started_at, now.eviction_rate, now.random);
                }
                // Its progress is drawn with everything else that is not durable.
                Outcome::Crash => {}
            }
            Ok(())
        })
    }

    /// Not an I/O: the medium is not involved.
    fn forget_cached(&self) -> io::Result<()> {
        let mut state = self.machine.state();
        *state.forgotten.entry(self.part).or_default() += 1;
        if let Some(part) = state.parts.get_mut(&self.part) {
            part.forget_cached();
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(self.request(Op::Discard, offset, len), |part, now| {
            let ignored = now.random.chance(now.discard_ignored_rate);
            let mut range = offset..offset + len;
            if self.has_no_length() {
                range.end = range.end.min(part.current.allocated_end()).max(offset);
            }
            match (now.outcome, part.placement()) {
                (Outcome::Success | Outcome::Crash, _) if ignored => {}
                (_, Some(placement)) => {
                    part.send_discard(placement, range, now.outcome, now.random)
                }
                (Outcome::Failure(_), None) => part.discard_torn(range, now.random),
                (_, None) => part.discard(range),
            }
            Ok(())
        })
    }

    fn reserve_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(self.request(Op::Reserve, offset, len), |part, now| {
            if self.has_no_length() {
                return Ok(());
            }
            let range = offset..offset + len;
            if !part.can_reserve(range.clone(), now.capacity) {
                return Err(Trouble::NoRoom);
            }
            match now.outcome {
                Outcome::Failure(_) => {}
                _ => part.reserve(range),
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let request = self.request(Op::SetLen, 0, len);
        self.run(request, |part, now| {
            if self.has_no_length() {
                return Ok(());
            }
            match (now.outcome, part.placement()) {
                (_, Some(placement)) => part.send_len(placement, len, now.outcome, now.random),
                (Outcome::Failure(_), None) => {}
                (_, None) => part.set_len(len),
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.look(|part| part.current.len)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.look(|part| part.current.allocated_bytes())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.look(|part| part.current.next_data(offset))
    }

    fn data_end(&self, offset: u64) -> io::Result<u64> {
        self.look(|part| part.current.data_end(offset))
    }

    fn waits_to_allocate(&self) -> bool {
        self.alignment() > 1
    }

    fn host_free_bytes(&self) -> Option<u64> {
        let capacity = *self.machine.state().capacity.get(&self.part)?;
        let allocated = self.look(|part| part.current.allocated_bytes()).ok()?;
        Some(capacity.saturating_sub(allocated))
    }

    fn alignment(&self) -> usize {
        self.machine
            .state()
            .alignment
            .get(&self.part)
            .copied()
            .unwrap_or(1)
    }
}
