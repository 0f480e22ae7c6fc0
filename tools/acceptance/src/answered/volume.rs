//! A volume, its content as answered, and the requests that change it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use anyhow::{Context, Result, anyhow, bail, ensure};
use onefold_nbd::client::{Address, Client};
use onefold_nbd::wire::command_flag;

use onefold_harness::server::Disks;

use super::Round;

/// Part of every message about lost answered data.
pub(super) const FINDING: &str = "is not as answered";

const BLOCK_BYTES: usize = 4096;

/// Number of contents that occur again and again, in all volumes.
const REPEATED: u64 = 32;

/// The size of a read of an export.
const READ_BYTES: usize = 1 << 20;

/// A volume under load.
pub(crate) struct Volume {
    pub(crate) name: String,
    /// Whether the server zeroes trimmed ranges, which the protocol does not require.
    trims_to_zeros: bool,
    /// Requests hold it shared; a command that must run without requests in flight holds it alone.
    gate: RwLock<()>,
    state: Mutex<State>,
}

/// The requests that must be found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// All that were answered.
    Answered,
    /// Those that were answered before a flush. Of each later one, any byte may be lost.
    Flushed,
}

/// The content that a volume must have.
pub(super) struct State {
    /// Where clients attach, in turn.
    addresses: Vec<Address>,
    /// The content after all answered requests.
    pub(super) bytes: Arc<Vec<u8>>,
    /// The content if a command that has not returned was carried out.
    pub(super) other: Option<Arc<Vec<u8>>>,
    /// Changes with each command that disconnects the volume's clients.
    pub(super) generation: u64,
    /// Unanswered requests, none of which overlap.
    in_flight: Vec<Change>,
    /// The bytes that requests have replaced since the last flush, oldest first.
    replaced: VecDeque<Change>,
    /// The number of changes whose replaced bytes are forgotten, because a flush came after them.
    forgotten: u64,
}

impl State {
    /// The number of answered changes since the start.
    fn changes(&self) -> u64 {
        self.forgotten + self.replaced.len() as u64
    }

    /// Applies an answered request.
    fn apply(&mut self, mut change: Change) {
        let range = change.range();
        let bytes = &mut Arc::make_mut(&mut self.bytes)[range];
        bytes.swap_with_slice(&mut change.bytes);
        self.replaced.push_back(change);
    }

    /// Forgets the bytes that the first `changes` changes have replaced: these changes were flushed.
    fn forget_replaced(&mut self, changes: u64) {
        while self.forgotten < changes && self.replaced.pop_front().is_some() {
            self.forgotten += 1;
        }
    }
}

/// A range and its content once the request is answered. A read does not change the content.
#[derive(Clone)]
struct Change {
    start: usize,
    bytes: Vec<u8>,
}

impl Change {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes.len()
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Write,
    Zeroes(u16),
    Trim,
    Read,
}

impl Volume {
    pub(super) fn of_disks(name: &str, bytes: u64, disks: &Disks) -> Result<Volume> {
        let uris = [disks.uri(name), disks.second_uri(name)];
        let volume = Volume::new(name, bytes, &uris)?;
        Ok(Volume {
            trims_to_zeros: disks.product().is_some(),
            ..volume
        })
    }

    /// An empty volume of the product, at these URIs.
    pub(crate) fn new(name: &str, bytes: u64, uris: &[String]) -> Result<Volume> {
        let bytes = usize::try_from(bytes).context("the volume is too large for memory")?;
        Ok(Volume {
            name: name.to_owned(),
            trims_to_zeros: true,
            gate: RwLock::default(),
            state: Mutex::new(State {
                addresses: addresses(uris)?,
                bytes: Arc::new(vec![0; bytes]),
                other: None,
                generation: 0,
                in_flight: Vec::new(),
                replaced: VecDeque::new(),
                forgotten: 0,
            }),
        })
    }

    /// Has clients attach at these URIs from now on.
    pub(crate) fn move_to(&self, uris: &[String]) -> Result<()> {
        let mut state = self.state();
        state.addresses = addresses(uris)?;
        state.generation += 1;
        Ok(())
    }

    /// The content after all answered requests.
    pub(crate) fn bytes(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.state().bytes)
    }

    /// Connects to another export of the same server.
    pub(super) fn connect_to(&self, export: &str) -> Result<Client> {
        let addresses = &self.state().addresses;
        let address = addresses.first().context("no server")?.with_export(export);
        Client::connect(&address).with_context(|| format!("cannot attach to {address}"))
    }

    /// Locks the volume while no request is in flight. Returns `None` if the server left requests without an answer.
    pub(super) fn rest(&self) -> Option<(RwLockWriteGuard<'_, ()>, MutexGuard<'_, State>)> {
        let gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        state.in_flight.is_empty().then_some((gate, state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request after another until the round is over.
    pub(crate) fn load(
        &self,
        round: &Round,
        connection: usize,
        mut random: fastrand::Rng,
    ) -> Result<()> {
        let mut attached: Option<(u64, Client)> = None;
        loop {
            let _shared = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            // Checked behind the gate: the command that held it may have been killed half-way.
            if round.is_over() {
                return Ok(());
            }
            let generation = self.state().generation;
            let client = match &mut attached {
                Some((attached, client)) if *attached == generation => client,
                stale => {
                    let addresses = self.state().addresses.clone();
                    let address = &addresses[connection % addresses.len()];
                    let client = Client::connect(address)
                        .with_context(|| format!("cannot attach to {address}"))?;
                    &mut stale.insert((generation, client)).1
                }
            };
            if random.u32(..1000) < round.flushes_per_mille {
                let answered = self.state().changes();
                client.flush().context("a flush fails")?;
                self.state().forget_replaced(answered);
            } else {
                self.request(client, &mut random)?;
            }
            round.answered.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Sends one request, and applies its change when it is answered.
    fn request(&self, client: &mut Client, random: &mut fastrand::Rng) -> Result<()> {
        let (kind, change) = self.begin(random);
        let (at, len) = (change.start as u64, change.bytes.len());
        let answer = match kind {
            Kind::Write => client.write(0, &change.bytes, at),
            Kind::Zeroes(flags) => client.write_zeroes(flags, at, len),
            Kind::Trim => client.trim(at, len),
            Kind::Read => {
                let mut found = vec![0; len];
                let answer = client.read(&mut found, at);
                if answer.is_ok() {
                    same(
                        &format!("{}, read under load", self.name),
                        &found,
                        &change.bytes,
                    )?;
                }
                answer
            }
        };
        answer.with_context(|| format!("{}: {kind:?} of {len} bytes at {at} fails", self.name))?;
        let mut state = self.state();
        state.in_flight.retain(|other| other.start != change.start);
        if !matches!(kind, Kind::Read) {
            state.apply(change);
        }
        Ok(())
    }

    /// Chooses a request on a range that no request in flight touches.
    fn begin(&self, random: &mut fastrand::Rng) -> (Kind, Change) {
        let kind = match random.u8(..10) {
            0..6 => Kind::Write,
            6 => Kind::Zeroes(0),
            7 => Kind::Zeroes(command_flag::NO_HOLE),
            8 if self.trims_to_zeros => Kind::Trim,
            _ => Kind::Read,
        };
        let mut state = self.state();
        let range = loop {
            let range = some_range(kind, state.bytes.len(), random);
            let apart =
                |other: &Change| other.range().end <= range.start || range.end <= other.start;
            if state.in_flight.iter().all(apart) {
                break range;
            }
        };
        let bytes = match kind {
            Kind::Write => content(&range, random),
            Kind::Zeroes(_) | Kind::Trim => vec![0; range.len()],
            Kind::Read => state.bytes[range.clone()].to_vec(),
        };
        let change = Change {
            start: range.start,
            bytes,
        };
        state.in_flight.push(change.clone());
        (kind, change)
    }

    /// Flushes the volume, which must succeed, and compares it with the requests that it must have kept.
    pub(crate) fn compare(&self, kept: Kept) -> Result<()> {
        let mut client = self.connect_to(&self.name)?;
        client.flush().context("the first flush fails")?;
        let found = read_all(&mut client)?;
        let mut state = self.state();
        if let Some(other) = state.other.take()
            && *other == found
        {
            state.bytes = other;
        }
        let flushed = state.changes();
        let State {
            bytes,
            in_flight,
            replaced,
            ..
        } = &mut *state;
        let bytes = Arc::make_mut(bytes);
        ensure!(
            found.len() == bytes.len(),
            "{} has {} bytes, which {FINDING}: {}",
            self.name,
            found.len(),
            bytes.len()
        );
        let lost = match kept {
            Kept::Answered => 0,
            Kept::Flushed => replaced.len(),
        };
        for change in in_flight
            .drain(..)
            .chain(replaced.iter().take(lost).cloned())
        {
            let range = change.range();
            let answered = bytes[range.clone()].iter_mut();
            for ((answered, found), changed) in answered.zip(&found[range]).zip(&change.bytes) {
                if found == changed {
                    *answered = *changed;
                }
            }
        }
        same(&self.name, &found, bytes)?;
        state.forget_replaced(flushed);
        Ok(())
    }
}

fn addresses(uris: &[String]) -> Result<Vec<Address>> {
    let parse = |uri: &String| uri.parse::<Address>().map_err(|error| anyhow!(error));
    uris.iter().map(parse).collect()
}

/// A random range. Trims cover whole blocks, because the server may choose how to treat parts of blocks.
fn some_range(kind: Kind, size: usize, random: &mut fastrand::Rng) -> Range<usize> {
    let blocks = size / BLOCK_BYTES;
    let in_blocks = |most: usize, random: &mut fastrand::Rng| {
        let start = random.usize(..blocks);
        let end = (start + random.usize(1..=most)).min(blocks);
        start * BLOCK_BYTES..end * BLOCK_BYTES
    };
    match (kind, random.u8(..4)) {
        (Kind::Trim, _) => in_blocks(256, random),
        (_, 0) => {
            let start = random.usize(..size);
            start..(start + random.usize(1..=40_000)).min(size)
        }
        (_, 1) => in_blocks(64, random),
        _ => in_blocks(4, random),
    }
}

/// Random content, about half of whose blocks also occur elsewhere.
fn content(range: &Range<usize>, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    let first = (BLOCK_BYTES - range.start % BLOCK_BYTES).min(bytes.len());
    let (head, rest) = bytes.split_at_mut(first);
    for block in std::iter::once(head).chain(rest.chunks_mut(BLOCK_BYTES)) {
        let seed = if random.bool() {
            random.u64(..REPEATED)
        } else {
            random.u64(..)
        };
        fastrand::Rng::with_seed(seed).fill(block);
    }
    bytes
}

/// Reads a whole export.
pub(crate) fn read_all(client: &mut Client) -> Result<Vec<u8>> {
    let size = usize::try_from(client.bytes()).context("the export is too large for memory")?;
    let mut bytes = vec![0; size];
    for (number, piece) in bytes.chunks_mut(READ_BYTES).enumerate() {
        client
            .read(piece, (number * READ_BYTES) as u64)
            .context("a read after the kill fails")?;
    }
    Ok(bytes)
}

/// Fails with the first difference of two contents, and the number of blocks that differ.
pub(super) fn same(name: &str, found: &[u8], answered: &[u8]) -> Result<()> {
    if found == answered {
        return Ok(());
    }
    let blocks = found.chunks(BLOCK_BYTES).zip(answered.chunks(BLOCK_BYTES));
    let different: Vec<usize> = blocks
        .enumerate()
        .filter(|(_, (found, answered))| found != answered)
        .map(|(number, _)| number)
        .collect();
    let zeros = |block: &usize| {
        let bytes = found.chunks(BLOCK_BYTES).nth(*block).unwrap_or_default();
        bytes.iter().all(|byte| *byte == 0)
    };
    bail!(
        "{name} {FINDING}: {} of {} blocks differ, {} of which are zeros; the first are {:?}; {} bytes \
         of {}",
        different.len(),
        answered.len().div_ceil(BLOCK_BYTES),
        different.iter().filter(|block| zeros(block)).count(),
        different.iter().take(8).collect::<Vec<_>>(),
        found.len(),
        answered.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_inside_and_trims_are_of_blocks() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let size = BLOCK_BYTES * random.usize(1..100);
            for kind in [Kind::Write, Kind::Zeroes(0), Kind::Trim, Kind::Read] {
                let range = some_range(kind, size, &mut random);
                assert!(!range.is_empty() && range.end <= size);
            }
            let trim = some_range(Kind::Trim, size, &mut random);
            assert_eq!((trim.start % BLOCK_BYTES, trim.end % BLOCK_BYTES), (0, 0));
        }
    }

    #[test]
    fn blocks_repeat_wherever_they_lie() {
        let mut random = fastrand::Rng::with_seed(1);
        let range = 5000..5000 + 64 * BLOCK_BYTES;
        let bytes = content(&range, &mut random);
        assert_eq!(bytes.len(), range.len());
        let aligned = bytes[2 * BLOCK_BYTES - 5000..].chunks_exact(BLOCK_BYTES);
        let different: std::collections::HashSet<_> = aligned.clone().collect();
        assert!(different.len() < aligned.len());
    }

    #[test]
    fn replaced_bytes_are_forgotten_by_the_flush_that_followed() {
        let volume = Volume::new("v", 8, &[]).unwrap();
        let mut state = volume.state();
        let change = |start, byte| Change {
            start,
            bytes: vec![byte; 2],
        };
        state.apply(change(0, 1));
        let first = state.changes();
        state.apply(change(1, 2));
        let second = state.changes();
        state.apply(change(4, 3));
        assert_eq!(**state.bytes, [1, 2, 2, 0, 3, 3, 0, 0]);
        // Flushes of two connections end in the other order.
        state.forget_replaced(second);
        state.forget_replaced(first);
        let left: Vec<&[u8]> = state.replaced.iter().map(|old| &old.bytes[..]).collect();
        assert_eq!(left, [[0, 0]]);
    }

    #[test]
    fn a_difference_is_a_finding() {
        let error = same("v", &[0; 8192], &[1; 8192]).unwrap_err();
        assert!(format!("{error:#}").contains(FINDING));
        assert!(same("v", &[1; 3], &[1; 3]).is_ok());
        assert!(same("v", &[1; 3], &[1; 4]).is_err());
    }
}
