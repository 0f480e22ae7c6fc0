//! One job: it has its own part of the region, remembers the data that it has written there, and
//! compares all data that it reads with it.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::addresses::{Addresses, Pattern};
use crate::content::Contents;
use crate::deal::{ContentId, Dealer, Run};
use crate::error::WorkloadError;
use crate::measure::{Measurement, Operation};
use crate::run::{LoadProgress, Region};
use crate::target::{Buffer, Connection, Target};

/// The content of a block that has not been written yet. No content has this number.
const UNKNOWN: ContentId = ContentId::MAX;

/// The longest sleep; after each, the job checks whether the load is ending.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The latest time at which a request can be due: thirty years.
const SECONDS_MAX: f64 = 1e9;

/// A part of a load.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    /// How many of a hundred requests read.
    pub(crate) read_percent: u8,
    pub(crate) pattern: Pattern,
    /// The number of requests of all jobs.
    pub(crate) requests: Option<u64>,
    pub(crate) time: Option<Duration>,
    /// Requests per second of all jobs.
    pub(crate) rate: Option<f64>,
    /// Reads written blocks only.
    pub(crate) is_read_back: bool,
}

/// A job's part of a phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The job's number, from 0.
    pub(crate) number: u64,
    pub(crate) jobs: u64,
}

impl Part {
    /// The part of `all` requests. Parts are equal, but the first ones get the rest.
    fn of(self, all: u64) -> u64 {
        all / self.jobs + u64::from(self.number < all % self.jobs)
    }
}

/// A block that differs from the data written there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The target's name.
    pub target: String,
    /// Where the block begins, in bytes.
    pub offset: u64,
    /// The written content.
    pub expected: ContentId,
    /// The actual content.
    pub found: Found,
}

/// The content in the place of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A content of this load, whole.
    Content {
        /// The number of the content.
        id: ContentId,
        /// The byte at which the job wrote this content last, if it should still be there.
        written_at: Option<u64>,
    },
    /// The right content, but not all of it.
    Damage {
        /// Bytes that differ.
        bytes: u64,
        /// The first differing byte, counted from the target's start.
        first: u64,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            target,
            offset,
            expected,
            found,
        } = self;
        write!(
            f,
            "{target} does not have the written data: in the block at byte {offset} should be content \
             {expected:#x}; "
        )?;
        match found {
            Found::Content {
                id,
                written_at: Some(place),
            } => write!(
                f,
                "there is content {id:#x}, which was written at byte {place}"
            ),
            Found::Content { id, .. } => write!(
                f,
                "there is content {id:#x} of this load, which should be nowhere in this part: an older \
                 one, or another job's"
            ),
            Found::Damage { bytes, first } => {
                write!(f, "{bytes} bytes differ from it, the first at byte {first}")
            }
        }
    }
}

pub(crate) struct Job<'a> {
    name: String,
    connection: Box<dyn Connection + 'a>,
    contents: &'a Contents,
    dealer: &'a Dealer,
    region: Region,
    /// The first byte of the job's part.
    start: u64,
    /// For each block of the part, the content written there last.
    written: Vec<ContentId>,
    /// Contents that were dealt and not yet written.
    run: Run,
    buffer: Buffer,
}

impl<'a> Job<'a> {
    pub(crate) fn new(
        number: u64,
        target: &'a dyn Target,
        region: Region,
        contents: &'a Contents,
        dealer: &'a Dealer,
    ) -> Result<Self, WorkloadError> {
        let name = target.name();
        let connection = target.connect();
        let connection =
            connection.map_err(|e| WorkloadError::new(format!("cannot connect to {name}"), e))?;
        let blocks = region.slots * region.request_blocks;
        let block_bytes = contents.block_bytes();
        Ok(Self {
            name,
            connection,
            contents,
            dealer,
            region,
            start: number * blocks * block_bytes as u64,
            written: vec![UNKNOWN; blocks as usize],
            run: Run::default(),
            buffer: Buffer::new(region.request_blocks as usize * block_bytes),
        })
    }

    /// Does this job's part of a phase.
    pub(crate) fn work(
        &mut self,
        phase: &Phase,
        part: Part,
        seed: u64,
        start: Instant,
        progress: &LoadProgress,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Measurement, WorkloadError> {
        let mut measurement = Measurement::new().map_err(WorkloadError::usage)?;
        let mut addresses = Addresses::new(phase.pattern, self.region.slots, seed);
        let mut drawn = Rng::with_seed(!seed);
        let requests = phase.requests.map_or(u64::MAX, |all| part.of(all));
        for n in 0..requests {
            if is_ending() {
                break;
            }
            match phase.time {
                None => progress.add(),
                Some(time) => {
                    let elapsed = start.elapsed();
                    progress.set(elapsed.as_millis() as u64);
                    if elapsed >= time {
                        break;
                    }
                }
            }
            let slot = addresses.next_slot();
            let reads = match phase.read_percent {
                0 => false,
                100 => true,
                percent => drawn.u8(0..100) < percent,
            };
            if phase.is_read_back && self.blocks_of(slot).iter().all(|id| *id == UNKNOWN) {
                continue;
            }
            let due = phase.rate.map(|rate| {
                let before = n as f64 * part.jobs as f64 + part.number as f64;
                start + Duration::from_secs_f64((before / rate).min(SECONDS_MAX))
            });
            if let (Some(due), Some(time)) = (due, phase.time)
                && due >= start + time
            {
                break;
            }
            if !reads {
                self.fill(slot, phase.pattern == Pattern::Sequential);
            }
            let Some(begin) = wait(due, is_ending) else {
                break;
            };
            let operation = self.request(slot, reads)?;
            let end = Instant::now();
            let bytes = self.buffer.bytes().len() as u64;
            measurement.add(operation, bytes, end - begin, end - start);
            if reads {
                self.verify(slot)?;
            }
        }
        Ok(measurement)
    }

    pub(crate) fn flush(&mut self) -> Result<(), WorkloadError> {
        let flushed = self.connection.flush();
        flushed.map_err(|e| WorkloadError::new(format!("cannot flush {}", self.name), e))
    }

    fn request(&mut self, slot: u64, reads: bool) -> Result<Operation, WorkloadError> {
        let bytes = self.buffer.bytes();
        let (at, len) = (self.start + slot * bytes.len() as u64, bytes.len());
        let (done, what, operation) = if reads {
            (self.connection.read(bytes, at), "read", Operation::Read)
        } else {
            (self.connection.write(bytes, at), "write", Operation::Write)
        };
        let name = &self.name;
        match done {
            Ok(()) => Ok(operation),
            Err(error) => {
                let what = format!("cannot {what} {len} bytes at byte {at} of {name}");
                Err(WorkloadError::new(what, error))
            }
        }
    }

    /// Deals contents to the blocks of a slot, and fills the buffer with them.
    fn fill(&mut self, slot: u64, is_sequential: bool) {
        let blocks = self.region.request_blocks;
        let start = slot * blocks;
        let part = self.written.len() as u64;
        let bytes = self.contents.block_bytes();
        let Self {
            buffer,
            written,
            run,
            dealer,
            contents,
            ..
        } = self;
        for (block, at) in buffer.bytes().chunks_exact_mut(bytes).zip(start..) {
            let id = loop {
                if let Some(id) = run.take_first() {
                    break id;
                }
                // No more than it needs in this pass, so that all jobs together write the whole
                // amount.
                *run = dealer.deal(if is_sequential { part - at } else { u64::MAX });
            };
            contents.fill(id, block);
            written[at as usize] = id;
        }
    }

    fn blocks_of(&self, slot: u64) -> &[ContentId] {
        let blocks = self.region.request_blocks as usize;
        let start = slot as usize * blocks;
        &self.written[start..start + blocks]
    }

    /// Compares read data with the written data.
    fn verify(&mut self, slot: u64) -> Result<(), WorkloadError> {
        let block_bytes = self.contents.block_bytes();
        let blocks = self.region.request_blocks;
        for (n, block) in (0..).zip(self.buffer.bytes().chunks_exact(block_bytes)) {
            let place = slot * blocks + n;
            let expected = self.written[place as usize];
            if expected != UNKNOWN && !self.contents.is(expected, block) {
                let block = block.to_vec();
                return Err(WorkloadError::Mismatch(self.mismatch(place, &block)));
            }
        }
        Ok(())
    }

    /// Describes how a block of the part differs from the written content.
    fn mismatch(&self, place: u64, block: &[u8]) -> Mismatch {
        let block_bytes = block.len() as u64;
        let offset = self.start + place * block_bytes;
        let expected = self.written[place as usize];
        let found = match self.contents.recognise(block) {
            Some(id) => {
                let place = self.written.iter().position(|written| *written == id);
                let written_at = place.map(|place| self.start + place as u64 * block_bytes);
                Found::Content { id, written_at }
            }
            None => {
                let mut right = vec![0; block.len()];
                self.contents.fill(expected, &mut right);
                let pairs = || block.iter().zip(&right);
                let first = pairs().position(|(one, other)| one != other);
                Found::Damage {
                    bytes: pairs().filter(|(one, other)| one != other).count() as u64,
                    first: offset + first.unwrap_or(0) as u64,
                }
            }
        };
        Mismatch {
            target: self.name.clone(),
            offset,
            expected,
            found,
        }
    }
}

/// Waits until a request is due. Returns the time from which its latency counts: a job that is late
/// because the previous request took too long counts that time too, because an application would
/// have waited for it. Returns `None` if the load ends during the wait.
fn wait(due: Option<Instant>, is_ending: &dyn Fn() -> bool) -> Option<Instant> {
    let Some(due) = due else {
        return Some(Instant::now());
    };
    let mut now = Instant::now();
    if now >= due {
        return Some(due);
    }
    while now < due {
        if is_ending() {
            return None;
        }
        thread::sleep((due - now).min(SLEEP_MAX));
        now = Instant::now();
    }
    Some(now)
}
