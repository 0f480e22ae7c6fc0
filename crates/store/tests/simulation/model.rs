//! The possible contents of the volumes.
//!
//! For each sector the model keeps a history: the content that is known to be durable, and every
//! version written since. A power loss may leave any of them, because blocks are rewritten in place
//! and a block may be torn at sectors. Without a crash a read returns the last version that was
//! answered, or one of those that failed since.
//!
//! Every sector that is written whole carries a stamp of volume, sector and version, so that a
//! misplaced block reveals its origin. The exception are common contents, which occur in many
//! places on purpose.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

pub(crate) const SECTOR: u64 = 512;

/// Sectors kept together: purely a matter of speed.
const GROUP: u64 = 64;

/// Identifies one content of one sector. 0 is zeros.
pub(crate) type Version = u64;

/// Versions of this kind are sectors that were written in part: their bytes are kept.
const MIXED: Version = 1 << 63;

/// Versions of this kind determine all of the content: it depends on no volume and no place.
const COMMON: Version = 1 << 62;

/// How many common contents there are.
const COMMON_CONTENTS: u64 = 6;

/// The content found is not a possible one.
#[derive(Debug, Clone)]
pub(crate) struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One version in a sector's history.
#[derive(Debug, Clone, Copy)]
struct Step {
    version: Version,
    /// The model's clock when it was answered, or begun.
    at: u64,
    /// It was answered. One that was not may or may not have happened.
    answered: bool,
}

/// Orders requests and flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// A volume as it should be.
#[derive(Debug, Clone)]
pub(crate) struct VolumeModel {
    /// Never used again for another volume or snapshot.
    pub(crate) id: u64,
    /// Part of the stamps: the volume that was written, of a snapshot the one that it is of.
    writer: u64,
    /// Which volume this is a snapshot of.
    pub(crate) snapshot_of: Option<u64>,
    pub(crate) name: String,
    pub(crate) size: u64,
    /// The domain in which it may share blocks.
    pub(crate) domain: String,
    /// Where the finder continues: a block.
    pub(crate) cursor: u64,
    /// Contents of sectors without a history, by group; a group that is missing is zeros.
    settled: BTreeMap<u64, [Version; GROUP as usize]>,
    /// Sectors with more than one possible content, durable one first.
    open: FxHashMap<u64, SmallVec<[Step; 2]>>,
    mixed: FxHashMap<(u64, Version), Box<[u8; SECTOR as usize]>>,
    clock: u64,
    /// Requests in flight. Until they end nothing is forgotten: a read may return it, and a write
    /// may take effect after another one.
    under_way: usize,
    /// Flushes that ended while these requests were in flight.
    flushed_late: Option<Moment>,
    /// The last recovery found answered content to be gone.
    pub(crate) is_missing_any: bool,
    /// A snapshot or clone whose creation was not answered: a crash came first. Its content may not be durable.
    pub(crate) is_unanswered: bool,
}

/// The answered content that a recovery may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayCost {
    /// None: the host lived, and no sync failed (P12).
    Nothing,
    /// Content that was not flushed: its sector shows an older version.
    Unflushed,
    /// As [`MayCost::Unflushed`], and nobody knows of it. A block that was new and rewritten in place has no checksum,
    /// so its sectors may also show what an earlier owner left there.
    UnflushedUnknown,
}

/// How a request that changes contents ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Answered,
    /// Any part of it may have happened.
    Failed,
}

impl VolumeModel {
    pub(crate) fn new(id: u64, name: &str, size: u64, domain: &str) -> Self {
        Self {
            id,
            writer: id,
            snapshot_of: None,
            name: name.to_owned(),
            size,
            domain: domain.to_owned(),
            cursor: 0,
            settled: BTreeMap::new(),
            open: FxHashMap::default(),
            mixed: FxHashMap::default(),
            clock: 1,
            under_way: 0,
            flushed_late: None,
            is_missing_any: false,
            is_unanswered: false,
        }
    }

    /// Its snapshot of this moment, in which everything answered is durable.
    pub(crate) fn frozen(&mut self, id: u64, name: &str) -> Self {
        let asked = self.now();
        let mut frozen = Self {
            id,
            snapshot_of: Some(self.id),
            name: format!("{}@{name}", self.name),
            under_way: 0,
            flushed_late: None,
            cursor: 0,
            ..self.clone()
        };
        frozen.flushed(asked);
        frozen
    }

    /// Another volume that holds the same at this moment.
    pub(crate) fn cloned(&mut self, id: u64, name: &str) -> Self {
        Self {
            snapshot_of: None,
            name: name.to_owned(),
            ..self.frozen(id, "")
        }
    }

    /// The state after a rollback to a snapshot.
    pub(crate) fn rolled_back(&mut self, snapshot: &Self) -> Self {
        Self {
            id: self.id,
            snapshot_of: None,
            name: self.name.clone(),
            domain: self.domain.clone(),
            clock: self.clock.max(snapshot.clock) + 1,
            ..snapshot.clone()
        }
    }

    pub(crate) fn now(&mut self) -> Moment {
        self.clock += 1;
        Moment(self.clock)
    }

    fn settled(&self, sector: u64) -> Version {
        let group = self.settled.get(&(sector / GROUP));
        group.map_or(0, |versions| versions[(sector % GROUP) as usize])
    }

    fn settle(&mut self, sector: u64, version: Version) {
        if version == 0 && !self.settled.contains_key(&(sector / GROUP)) {
            return;
        }
        let empty = [0; GROUP as usize];
        let group = self.settled.entry(sector / GROUP).or_insert(empty);
        group[(sector % GROUP) as usize] = version;
    }

    /// The content that a read returns now, if only one is possible.
    pub(crate) fn certain(&self, sector: u64) -> Option<Version> {
        match self.open.get(&sector).map(SmallVec::as_slice) {
            None => Some(self.settled(sector)),
            Some([.., last]) if last.answered => Some(last.version),
            Some(_) => None,
        }
    }

    /// Notes that `sectors` are about to become the content of `version`.
    pub(crate) fn begin(
        &mut self,
        sectors: Range<u64>,
        version: impl Fn(u64) -> Version,
    ) -> Moment {
        self.under_way += 1;
        let begun = self.now();
        for sector in sectors {
            self.push(sector, version(sector), false);
        }
        begun
    }

    /// Notes how a request ended. A sector that a concurrent request changed may hold either content.
    pub(crate) fn end(
        &mut self,
        begun: Moment,
        sectors: Range<u64>,
        version: impl Fn(u64) -> Version,
        ended: Ended,
    ) {
        self.clock += 1;
        for sector in sectors {
            let Some(history) = self.open.get(&sector) else {
                continue;
            };
            let own = version(sector);
            let others = history
                .iter()
                .rev()
                .take_while(|step| step.at >= begun.0)
                .any(|step| step.version != own);
            match ended {
                Ended::Answered => self.push(sector, own, !others),
                // It may have come after concurrent requests.
                Ended::Failed if others => self.push(sector, own, false),
                Ended::Failed => {}
            }
        }
        self.request_ended();
    }

    /// Notes that `sectors` are zeros, or unchanged.
    pub(crate) fn may_become_zeros(&mut self, sectors: &Range<u64>) {
        self.clock += 1;
        let groups = sectors.start / GROUP..sectors.end.div_ceil(GROUP).max(sectors.start / GROUP);
        let settled = self.settled.range(groups);
        let settled = settled.flat_map(|(group, _)| group * GROUP..(group + 1) * GROUP);
        let open = self.open.keys().copied();
        let mut held: Vec<u64> = settled.chain(open).collect();
        held.retain(|sector| sectors.contains(sector));
        held.sort_unstable();
        held.dedup();
        for sector in held {
            self.push(sector, 0, false);
        }
    }

    fn request_ended(&mut self) {
        self.under_way -= 1;
        if self.under_way == 0
            && let Some(asked) = self.flushed_late.take()
        {
            self.flushed(asked);
        }
    }

    fn push(&mut self, sector: u64, version: Version, answered: bool) {
        let at = self.clock;
        let settled = self.settled(sector);
        if settled == 0 && version == 0 && !self.open.contains_key(&sector) {
            return;
        }
        let history = self.open.entry(sector).or_insert_with(|| {
            smallvec![Step {
                version: settled,
                at: 0,
                answered: true,
            }]
        });
        if answered
            && let Some(last) = history.last_mut()
            && last.version == version
            && !last.answered
        {
            *last = Step {
                version,
                at,
                answered,
            };
            return;
        }
        history.push(Step {
            version,
            at,
            answered,
        });
    }

    /// A flush that was requested at `asked` was answered: everything answered before that is durable.
    pub(crate) fn flushed(&mut self, asked: Moment) {
        if self.under_way > 0 {
            self.flushed_late = self.flushed_late.max(Some(asked));
            return;
        }
        let mut done = Vec::new();
        for (sector, history) in &mut self.open {
            let last = history
                .iter()
                .rposition(|step| step.answered && step.at <= asked.0);
            history.drain(..last.unwrap_or(0));
            if let [only] = history[..] {
                done.push((*sector, only.version));
            }
        }
        for (sector, version) in done {
            self.open.remove(&sector);
            self.settle(sector, version);
        }
    }

    pub(crate) fn begin_read(&mut self) -> Moment {
        self.under_way += 1;
        self.now()
    }

    /// Compares the result of a read with the possible ones, and remembers which it was. After a
    /// failed sync unflushed data `may_be_gone`: a read finds it, or the content from before it.
    pub(crate) fn end_read(
        &mut self,
        begun: Moment,
        offset: u64,
        found: &[u8],
        may_be_gone: bool,
    ) -> Result<(), Violation> {
        let compared = self.compare(begun, offset, found, may_be_gone);
        self.request_ended();
        compared
    }

    /// The read failed.
    pub(crate) fn abandon_read(&mut self) {
        self.request_ended();
    }

    fn compare(
        &mut self,
        begun: Moment,
        offset: u64,
        found: &[u8],
        may_be_gone: bool,
    ) -> Result<(), Violation> {
        for (sector, range, inside) in sectors_of(offset, found.len() as u64) {
            let bytes = &found[range];
            let Some(history) = self.open.get(&sector) else {
                self.version_of(sector, &[self.settled(sector)], &inside, bytes)?;
                continue;
            };
            let first = history
                .iter()
                .rposition(|step| step.answered && step.at <= begun.0)
                .filter(|_| !may_be_gone)
                .unwrap_or(0);
            let possible: Vec<Version> = history[first..].iter().map(|step| step.version).collect();
            let is_alone = self.under_way == 1 && history.iter().all(|step| step.at <= begun.0);
            let version = self.version_of(sector, &possible, &inside, bytes)?;
            // The remains of a failed write stay until the next write.
            let is_whole = inside == (0..SECTOR as usize);
            if possible.len() > 1 && is_alone && !may_be_gone && is_whole {
                self.push(sector, version, true);
            }
        }
        Ok(())
    }

    /// Compares the content of a recovered volume in a range with all possible ones; the content
    /// found is durable from now on. Returns whether a sector has content that the model does not know.
    pub(crate) fn recovered(
        &mut self,
        offset: u64,
        found: &[u8],
        may_cost: MayCost,
    ) -> Result<bool, Violation> {
        let mut is_unknown = false;
        for (sector, range, inside) in sectors_of(offset, found.len() as u64) {
            let bytes = &found[range];
            let Some(history) = self.open.get(&sector) else {
                self.version_of(sector, &[self.settled(sector)], &inside, bytes)?;
                continue;
            };
            let answered = history.iter().rposition(|step| step.answered);
            let first = answered
                .filter(|_| may_cost == MayCost::Nothing)
                .unwrap_or(0);
            let possible: Vec<Version> = history[first..].iter().map(|step| step.version).collect();
            let version = match self.version_of(sector, &possible, &inside, bytes) {
                Err(_) if may_cost == MayCost::UnflushedUnknown => {
                    is_unknown = true;
                    continue;
                }
                found => found?,
            };
            let mut newer = history[answered.unwrap_or(0)..].iter();
            self.is_missing_any |= newer.all(|step| step.version != version);
            self.open.remove(&sector);
            self.settle(sector, version);
        }
        Ok(is_unknown)
    }

    /// A block cannot be read, because a sync that failed has lost it: something in it was never flushed.
    /// The caller writes all of it next.
    pub(crate) fn lost(&mut self, block: Range<u64>) -> Result<(), Violation> {
        let sectors = block.start / SECTOR..block.end / SECTOR;
        if !sectors
            .clone()
            .any(|sector| self.open.contains_key(&sector))
        {
            return Err(Violation(format!(
                "volume '{}' (number {}), sector {}: it was flushed, and is lost",
                self.name, self.id, sectors.start
            )));
        }
        self.is_missing_any = true;
        for sector in sectors {
            self.open.remove(&sector);
            self.settle(sector, 0);
        }
        Ok(())
    }

    /// As [`VolumeModel::recovered`], for a range that reads as zeros because nothing is stored.
    pub(crate) fn recovered_hole(
        &mut self,
        range: Range<u64>,
        may_cost: MayCost,
    ) -> Result<(), Violation> {
        // A hole has no former content to show.
        let may_cost = match may_cost {
            MayCost::Nothing => MayCost::Nothing,
            MayCost::Unflushed | MayCost::UnflushedUnknown => MayCost::Unflushed,
        };
        let sectors = range.start / SECTOR..range.end / SECTOR;
        let open = self.open.keys().filter(|sector| sectors.contains(sector));
        let open: Vec<u64> = open.copied().collect();
        for sector in open {
            self.recovered(sector * SECTOR, &[0; SECTOR as usize], may_cost)?;
        }
        let groups = sectors.start / GROUP..sectors.end.div_ceil(GROUP);
        for (group, versions) in self.settled.range(groups) {
            for (version, sector) in versions.iter().zip(group * GROUP..) {
                if *version != 0 && sectors.contains(&sector) {
                    return Err(self.unexpected(sector, &[0; SECTOR as usize], &[*version]));
                }
            }
        }
        Ok(())
    }

    /// No request from before a crash is in flight any more.
    pub(crate) fn forget_requests(&mut self) {
        self.under_way = 0;
        self.flushed_late = None;
    }

    /// Blocks of `block_size` bytes in which some byte is not zero, as far as that is certain.
    pub(crate) fn blocks_with_data(&self, block_size: u64) -> u64 {
        let mut last = None;
        let mut count = 0;
        for (group, versions) in &self.settled {
            for (version, sector) in versions.iter().zip(group * GROUP..) {
                let block = sector * SECTOR / block_size;
                let has_data = !self.open.contains_key(&sector) && *version != 0;
                if has_data && last != Some(block) {
                    last = Some(block);
                    count += 1;
                }
            }
        }
        count
    }

    /// Cutting the volume at `size` was not answered: the block of the new end was written again, and no
    /// flush says that this is durable.
    pub(crate) fn may_lose_the_cut_block(&mut self, size: u64, block_size: u64) {
        let end = size / SECTOR;
        let mut cut = end..size.next_multiple_of(block_size) / SECTOR;
        let is_rewritten = cut.any(|sector| self.open.contains_key(&sector));
        if let (true, Some(kept)) = (is_rewritten, end.checked_sub(1)) {
            self.clock += 1;
            let unchanged = self.settled(kept);
            self.push(kept, unchanged, false);
        }
    }

    /// Cuts or extends it. Content beyond a smaller end is gone.
    pub(crate) fn resize(&mut self, size: u64) {
        self.size = size;
        let end = size / SECTOR;
        self.open.retain(|sector, _| *sector < end);
        let cut = self.settled.split_off(&(end / GROUP));
        for (group, versions) in cut {
            for (version, sector) in versions.into_iter().zip(group * GROUP..) {
                if sector < end {
                    self.settle(sector, version);
                }
            }
        }
    }

    /// The bytes of a sector's version.
    pub(crate) fn bytes(&self, sector: u64, version: Version) -> [u8; SECTOR as usize] {
        match version {
            0 => [0; SECTOR as usize],
            mixed if mixed & MIXED != 0 => *self.mixed[&(sector, mixed)],
            common if common & COMMON != 0 => common_bytes(common),
            whole => stamp(self.writer, sector, whole),
        }
    }

    /// Makes a version of a sector of which only the part `inside` takes the content of `source`.
    pub(crate) fn mix(
        &mut self,
        sector: u64,
        before: Version,
        (version, source): (Version, Version),
        inside: Range<usize>,
    ) -> Version {
        let mut bytes = self.bytes(sector, before);
        let whole = self.bytes(sector, source);
        bytes[inside.clone()].copy_from_slice(&whole[inside]);
        if bytes == [0; SECTOR as usize] {
            return 0;
        }
        let mixed = version | MIXED;
        self.mixed.insert((sector, mixed), Box::new(bytes));
        mixed
    }

    /// The newest of the possible versions that these bytes of a sector may be of.
    fn version_of(
        &self,
        sector: u64,
        possible: &[Version],
        inside: &Range<usize>,
        bytes: &[u8],
    ) -> Result<Version, Violation> {
        let mut newest_first = possible.iter().rev();
        let found = newest_first.find(|version| self.is(sector, **version, inside.clone(), bytes));
        found
            .copied()
            .ok_or_else(|| self.unexpected(sector, bytes, possible))
    }

    fn is(&self, sector: u64, version: Version, inside: Range<usize>, bytes: &[u8]) -> bool {
        if version == 0 {
            return bytes.iter().all(|byte| *byte == 0);
        }
        self.bytes(sector, version)[inside] == *bytes
    }

    fn unexpected(&self, sector: u64, bytes: &[u8], possible: &[Version]) -> Violation {
        let versions = |versions: &[Version]| {
            let texts: Vec<String> = versions
                .iter()
                .map(|version| match *version {
                    0 => "zeros".to_owned(),
                    mixed if mixed & MIXED != 0 => format!("write {} in part", mixed & !MIXED),
                    common if common & COMMON != 0 => format!("content {}", common & !COMMON),
                    own => format!("write {own}"),
                })
                .collect();
            texts.join(" or ")
        };
        Violation(format!(
            "volume '{}' (number {}), sector {sector}: found {}, expected {}",
            self.name,
            self.id,
            describe(bytes),
            versions(possible),
        ))
    }
}

/// The sectors of a range of bytes: number, place in the caller's buffer, place in the sector.
pub(crate) fn sectors_of(
    offset: u64,
    len: u64,
) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = offset + len;
    (offset / SECTOR..end.div_ceil(SECTOR)).map(move |sector| {
        let start = (sector * SECTOR).max(offset);
        let stop = ((sector + 1) * SECTOR).min(end);
        let inside = (start - sector * SECTOR) as usize..(stop - sector * SECTOR) as usize;
        (
            sector,
            (start - offset) as usize..(stop - offset) as usize,
            inside,
        )
    })
}

/// The common content that a write gives this block.
pub(crate) fn common(write: Version, block: u64) -> Version {
    let mixed = (write << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    COMMON | (mixed % COMMON_CONTENTS + 1)
}

/// The first word identifies it, so that it is found in a block of any sectors.
fn common_bytes(version: Version) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&(version | 1 << 59).to_le_bytes());
    }
    bytes
}

/// The content of a whole sector of a write.
pub(crate) fn stamp(volume: u64, sector: u64, version: Version) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    let words = [volume | 1 << 56, sector | 1 << 57, version | 1 << 58];
    for (word, n) in bytes.chunks_exact_mut(8).zip(0..) {
        word.copy_from_slice(&words[n % 3].to_le_bytes());
    }
    bytes
}

fn describe(bytes: &[u8]) -> String {
    let word = |n: usize| {
        bytes
            .get(n * 8..n * 8 + 8)
            .map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()))
    };
    if bytes.iter().all(|byte| *byte == 0) {
        "zeros".to_owned()
    } else if word(0) >> 56 == 1 && word(1) >> 57 == 1 && word(2) >> 58 == 1 {
        format!(
            "write {} to sector {} of volume number {}",
            word(2) & !(1 << 58),
            word(1) & !(1 << 57),
            word(0) & !(1 << 56)
        )
    } else if word(0) & COMMON != 0 && word(0) == word(1) {
        format!("content {}", word(0) & !(COMMON | 1 << 59))
    } else {
        format!(
            "rubbish beginning with {:02x?}",
            &bytes[..bytes.len().min(24)]
        )
    }
}
