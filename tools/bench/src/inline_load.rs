//! A client that writes a given share of duplicates.
//!
//! fio can only repeat a buffer, or draw from a set that it also writes as new content, and it often rewrites a place
//! with the content that is there already, which costs a store nothing. This client knows the content of each place: a
//! duplicate is always the next of [`CONTENTS`] published contents that is not there already. All other blocks are new
//! content or the next block of an image, unless a load asks for zeros or for a few contents again and again.
//!
//! One connection, one thread, up to `depth` requests in flight, as fio's `ioengine=nbd` has them.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use onefold_nbd::client::{option_bytes, request_bytes};
use onefold_nbd::wire::{self, command, handshake_flag, option};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::plan::CLIENT_PROCESSOR;

/// Number of published contents: more than the product's cache of recent lookups holds, so that each one is looked up,
/// and few enough to be written before the measurement.
pub(crate) const CONTENTS: usize = 4096;

pub(crate) const BLOCK_BYTES: usize = 4096;

/// Number of contents that a load of repeated duplicates uses: few enough to stay in the cache of recent lookups.
const REPEATED: usize = 64;

/// The greeting of a server: two words and its flags.
const GREETING_BYTES: usize = 18;

/// The answer to the name of an export: its size and flags, without a reserve of zeros.
const EXPORT_BYTES: usize = 10;

const REPLY_BYTES: usize = 16;

/// How long a server may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The contents that are published before anything is measured.
pub(crate) struct Contents {
    bytes: Vec<u8>,
}

impl Contents {
    /// Makes the contents, which are the same in every run.
    pub(crate) fn make() -> Contents {
        let mut bytes = vec![0; CONTENTS * BLOCK_BYTES];
        fastrand::Rng::with_seed(7).fill(&mut bytes);
        Contents { bytes }
    }

    pub(crate) fn all(&self) -> &[u8] {
        &self.bytes
    }

    fn block(&self, number: usize) -> &[u8] {
        &self.bytes[number * BLOCK_BYTES..][..BLOCK_BYTES]
    }
}

/// The mix of blocks that a slice writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Duplicates, in percent of the blocks.
    pub(crate) duplicates: u32,
    /// Duplicates of the first [`REPEATED`] contents, in percent of the blocks.
    pub(crate) repeats: u32,
    /// Zero blocks, in percent of the blocks.
    pub(crate) zeros: u32,
    /// Blocks per request. With one, places are random; with more, requests are sequential.
    pub(crate) blocks: usize,
    pub(crate) depth: usize,
}

/// Writes to one volume, and remembers the content of each place.
pub(crate) struct Writer {
    /// By place, the content that was written there last.
    last: Vec<u16>,
    random: fastrand::Rng,
    /// New contents so far. Each new block begins with this number and the salt of this writer.
    unique: u64,
    salt: u64,
    next: usize,
    /// The last duplicate written: of all contents, and of the repeated ones.
    turns: [usize; 2],
    filler: [u8; BLOCK_BYTES],
    /// Data that is written instead of new contents, block after block, and repeated from the start.
    image: Option<Arc<Vec<u8>>>,
    next_of_image: usize,
}

/// Requests that were answered, and the seconds they took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
}

impl Writer {
    pub(crate) fn new(bytes: u64) -> Writer {
        let mut random = fastrand::Rng::new();
        let mut filler = [0; BLOCK_BYTES];
        random.fill(&mut filler);
        Writer {
            last: vec![0; bytes as usize / BLOCK_BYTES],
            salt: random.u64(..),
            random,
            unique: 0,
            next: 0,
            turns: [0; 2],
            filler,
            image: None,
            next_of_image: 0,
        }
    }

    /// Sets the image whose blocks are written, or `None` for new contents.
    pub(crate) fn set_image(&mut self, image: Option<Arc<Vec<u8>>>) {
        self.image = image;
    }

    /// Writes for this long from the client's processor, and waits for all replies.
    pub(crate) fn run(
        &mut self,
        contents: &Contents,
        (socket, export): (&Path, &str),
        load: Load,
        length: Duration,
    ) -> Result<Written> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut processors = CpuSet::new();
                processors.set(CLIENT_PROCESSOR);
                sched_setaffinity(None, &processors).context("cannot stay on one processor")?;
                self.write(contents, Connection::open(socket, export)?, load, length)
            });
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(anyhow!("the client panicked")))
        })
    }

    fn write(
        &mut self,
        contents: &Contents,
        mut connection: Connection,
        load: Load,
        length: Duration,
    ) -> Result<Written> {
        let mut data = vec![0; load.blocks * BLOCK_BYTES];
        let (start, mut in_flight, mut requests) = (Instant::now(), 0, 0);
        loop {
            while in_flight < load.depth && start.elapsed() < length {
                let at = self.fill(contents, load, &mut data);
                connection.send(command::WRITE, at as u64, &data)?;
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            let answered = connection.receive_some()?;
            in_flight -= answered;
            requests += answered as u64;
        }
        Ok(Written {
            requests,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// The next request: its data, and its place in bytes.
    fn fill(&mut self, contents: &Contents, load: Load, data: &mut [u8]) -> usize {
        let first = match load.blocks {
            1 => self.random.usize(..self.last.len()),
            blocks => {
                let first = self.next;
                self.next = if first + 2 * blocks <= self.last.len() {
                    first + blocks
                } else {
                    0
                };
                first
            }
        };
        for (block, place) in data.chunks_exact_mut(BLOCK_BYTES).zip(first..) {
            let kind = self.random.u32(..100);
            let duplicates = load.duplicates + load.repeats;
            if kind < duplicates {
                let next = if kind < load.duplicates {
                    self.turn(0, CONTENTS, place)
                } else {
                    self.turn(1, REPEATED, place)
                };
                block.copy_from_slice(contents.block(next));
            } else if kind < duplicates + load.zeros {
                block.fill(0);
            } else if let Some(image) = &self.image {
                let from = self.next_of_image;
                block.copy_from_slice(&image[from..][..BLOCK_BYTES]);
                self.next_of_image = (from + BLOCK_BYTES) % image.len();
            } else {
                self.unique += 1;
                block.copy_from_slice(&self.filler);
                block[..8].copy_from_slice(&self.unique.to_le_bytes());
                block[8..16].copy_from_slice(&self.salt.to_le_bytes());
            }
        }
        first * BLOCK_BYTES
    }

    /// The next of the first `contents` contents that is not in this place.
    fn turn(&mut self, which: usize, contents: usize, place: usize) -> usize {
        let last = usize::from(self.last[place]);
        let turn = &mut self.turns[which];
        *turn = (*turn + 1) % contents;
        if *turn == last {
            *turn = (*turn + 1) % contents;
        }
        self.last[place] = *turn as u16;
        *turn
    }
}

/// Writes all contents to the start of an export, then a number of blocks that no load uses, and flushes.
pub(crate) fn publish(
    contents: &Contents,
    others: u64,
    (socket, export): (&Path, &str),
) -> Result<()> {
    let mut connection = Connection::open(socket, export)?;
    let mut at = 0;
    for piece in contents.all().chunks(16 * BLOCK_BYTES) {
        connection.send(command::WRITE, at, piece)?;
        connection.receive()?;
        at += piece.len() as u64;
    }
    let mut random = fastrand::Rng::with_seed(8);
    let mut piece = vec![0; 256 * BLOCK_BYTES];
    for _ in 0..others.div_ceil(256) {
        random.fill(&mut piece);
        connection.send(command::WRITE, at, &piece)?;
        connection.receive()?;
        at += piece.len() as u64;
    }
    connection.send(command::FLUSH, 0, &[])?;
    connection.receive()
}

/// A connection that is attached to an export.
struct Connection {
    input: BufReader<UnixStream>,
    output: UnixStream,
    cookie: u64,
}

#[allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]
impl Connection {
    fn open(socket: &Path, export: &str) -> Result<Connection> {
        let attach = || -> Result<Connection> {
            let mut output = UnixStream::connect(socket)?;
            output.set_read_timeout(Some(ANSWER_LIMIT))?;
            let mut input = BufReader::new(output.try_clone()?);
            let mut greeting = [0; GREETING_BYTES];
            input.read_exact(&mut greeting)?;
            let magic = [wire::NBDMAGIC.to_be_bytes(), wire::IHAVEOPT.to_be_bytes()].concat();
            ensure!(greeting.starts_with(&magic), "it is no NBD server");
            let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
            output.write_all(&u32::from(flags).to_be_bytes())?;
            output.write_all(&option_bytes(option::EXPORT_NAME, export.as_bytes()))?;
            input.read_exact(&mut [0; EXPORT_BYTES])?;
            Ok(Connection {
                input,
                output,
                cookie: 0,
            })
        };
        attach().with_context(|| format!("cannot attach to {export} at {}", socket.display()))
    }

    fn send(&mut self, command: u16, at: u64, data: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut request = request_bytes(0, command, self.cookie, at, data.len() as u32);
        request.extend_from_slice(data);
        self.output
            .write_all(&request)
            .context("cannot send a request")
    }

    /// Waits for one reply.
    fn receive(&mut self) -> Result<()> {
        let mut reply = [0; REPLY_BYTES];
        self.input.read_exact(&mut reply).context("no reply")?;
        let [a, b, c, d, e, f, g, h, ..] = reply;
        let magic = u32::from_be_bytes([a, b, c, d]);
        ensure!(magic == wire::SIMPLE_REPLY_MAGIC, "a reply of another kind");
        let error = u32::from_be_bytes([e, f, g, h]);
        ensure!(error == 0, "a write fails with error {error}");
        Ok(())
    }

    /// Waits for one reply, then receives those that have arrived with it. Returns how many it received.
    fn receive_some(&mut self) -> Result<usize> {
        self.receive()?;
        let mut count = 1;
        while self.input.buffer().len() >= REPLY_BYTES {
            self.receive()?;
            count += 1;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn load(duplicates: u32, blocks: usize) -> Load {
        Load {
            duplicates,
            repeats: 0,
            zeros: 0,
            blocks,
            depth: 1,
        }
    }

    #[test]
    fn a_duplicate_is_published_and_never_what_is_there() {
        let contents = Contents::make();
        let published: HashSet<&[u8]> = contents.all().chunks(BLOCK_BYTES).collect();
        assert_eq!(published.len(), CONTENTS);
        let mut writer = Writer::new(8 * BLOCK_BYTES as u64);
        let mut there = vec![Vec::new(); 8];
        let mut data = vec![0; BLOCK_BYTES];
        for _ in 0..200 {
            let at = writer.fill(&contents, load(100, 1), &mut data) / BLOCK_BYTES;
            assert!(published.contains(&data[..]));
            assert_ne!(there[at], data);
            there[at].clone_from(&data);
        }
    }

    #[test]
    fn every_published_content_is_written_before_one_comes_again() {
        let contents = Contents::make();
        let mut writer = Writer::new(1 << 20);
        let mut data = vec![0; BLOCK_BYTES];
        let mut seen = HashSet::new();
        for _ in 0..CONTENTS / 2 {
            writer.fill(&contents, load(100, 1), &mut data);
            assert!(seen.insert(data.clone()));
        }
    }

    #[test]
    fn zeros_and_repeats_are_as_many_as_asked_for() {
        let contents = Contents::make();
        let few: HashSet<&[u8]> = contents.all().chunks(BLOCK_BYTES).take(REPEATED).collect();
        let mut writer = Writer::new(1 << 20);
        let mut data = vec![0; BLOCK_BYTES];
        let mix = Load {
            repeats: 25,
            zeros: 25,
            ..load(0, 1)
        };
        let (mut zeros, mut repeats) = (0, 0);
        for _ in 0..1000 {
            writer.fill(&contents, mix, &mut data);
            zeros += u32::from(data.iter().all(|byte| *byte == 0));
            repeats += u32::from(few.contains(&data[..]));
        }
        assert!((200..300).contains(&zeros), "{zeros}");
        assert!((200..300).contains(&repeats), "{repeats}");
        assert_eq!(1000 - zeros - repeats, writer.unique as u32);
    }

    #[test]
    fn everything_else_is_new_also_to_other_writers() {
        let contents = Contents::make();
        let mut seen: HashSet<Vec<u8>> = contents
            .all()
            .chunks(BLOCK_BYTES)
            .map(<[u8]>::to_vec)
            .collect();
        let mut data = vec![0; BLOCK_BYTES];
        for mut writer in [Writer::new(1 << 20), Writer::new(1 << 20)] {
            for _ in 0..100 {
                writer.fill(&contents, load(0, 1), &mut data);
                assert!(seen.insert(data.clone()));
            }
        }
    }

    #[test]
    fn half_duplicates_are_about_half() {
        let contents = Contents::make();
        let mut writer = Writer::new(1 << 20);
        let mut data = vec![0; BLOCK_BYTES];
        let mut new = 0;
        for _ in 0..1000 {
            let before = writer.unique;
            writer.fill(&contents, load(50, 1), &mut data);
            new += writer.unique - before;
        }
        assert!((400..600).contains(&new), "{new}");
    }

    #[test]
    fn an_image_is_written_block_by_block_and_again() {
        let contents = Contents::make();
        let image: Vec<u8> = [[1; BLOCK_BYTES], [2; BLOCK_BYTES], [3; BLOCK_BYTES]].concat();
        let mut writer = Writer::new(1 << 20);
        writer.set_image(Some(Arc::new(image)));
        let mut data = vec![0; 2 * BLOCK_BYTES];
        let firsts: Vec<_> = (0..3)
            .map(|_| {
                writer.fill(&contents, load(0, 2), &mut data);
                (data[0], data[BLOCK_BYTES])
            })
            .collect();
        assert_eq!(firsts, [(1, 2), (3, 1), (2, 3)]);
    }

    #[test]
    fn large_requests_follow_each_other_and_stay_inside() {
        let contents = Contents::make();
        let mut writer = Writer::new(5 * BLOCK_BYTES as u64);
        let mut data = vec![0; 2 * BLOCK_BYTES];
        let places: Vec<_> = (0..4)
            .map(|_| writer.fill(&contents, load(0, 2), &mut data) / BLOCK_BYTES)
            .collect();
        assert_eq!(places, [0, 2, 0, 2]);
    }
}
