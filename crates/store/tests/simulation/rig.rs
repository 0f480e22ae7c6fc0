//! Blocks that decay: a pool whose volumes hold contents from a short list, so that the content of
//! each block of the pool is known, and the possible results of a read.
//!
//! A content is *spoilt* once a shared block that had it has decayed, until it was repaired.
//! Reading it may fail, or return the stored content; nothing else is ever read.

use std::collections::BTreeSet;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_store::{
    Blocking, CreateOptions, IndexKind, Lba, Ready, ScrubReport, ScrubRun, Store, StoreError,
    StoreErrorKind,
};

use crate::common::{BLOCK, LITTLE_MEMORY, World, blocks, new_volume, open, pool_of};
use crate::model::Violation;

/// Steps after which a job that is still not done never will be.
const STEPS_MAX: usize = 10_000;

/// The content of a block: 0 for zeros.
pub(crate) type Content = u64;

/// Nothing where the machine stopped.
pub(crate) type Tried<T> = Result<Option<T>, Violation>;

pub(crate) struct Rig {
    pub(crate) engine: SimulatedEngine,
    pub(crate) store: Arc<Store>,
    /// By volume and block, its possible contents: more than one if a write was cut short, and none
    /// if that left something else.
    pub(crate) volumes: Vec<Vec<BTreeSet<Content>>>,
    pub(crate) spoilt: BTreeSet<Content>,
    pub(crate) recoveries: u64,
}

pub(crate) fn violation<T>(message: String) -> Result<T, Violation> {
    Err(Violation(message))
}

impl Rig {
    /// A pool of `pool_blocks` blocks with volumes of `blocks` blocks each, all zeros.
    pub(crate) fn new(seed: u64, index: IndexKind, pool_blocks: u64, volumes: &[u64]) -> Self {
        let options = CreateOptions {
            index,
            ..pool_of(pool_blocks * BLOCK)
        };
        let World { engine, store, .. } = World::seeded(seed, &options, LITTLE_MEMORY);
        for (n, blocks) in volumes.iter().enumerate() {
            new_volume(&store, &name(n), blocks * BLOCK);
        }
        let zeros = |blocks: &u64| vec![BTreeSet::from([0]); *blocks as usize];
        Self {
            engine,
            store,
            volumes: volumes.iter().map(zeros).collect(),
            spoilt: BTreeSet::new(),
            recoveries: 0,
        }
    }

    /// The result of a request; an error is a violation unless the machine has stopped.
    pub(crate) fn tried<T>(&self, what: &str, done: Result<T, StoreError>) -> Tried<T> {
        match done {
            Ok(result) => Ok(Some(result)),
            Err(_) if self.engine.is_crashed() => Ok(None),
            Err(error) => violation(format!("{what}: {:?}: {error}", error.kind())),
        }
    }

    /// Writes blocks, and makes them durable.
    pub(crate) fn write(&mut self, volume: usize, lba: u64, contents: &[Content]) -> Tried<()> {
        for (n, content) in contents.iter().enumerate() {
            self.volumes[volume][lba as usize + n].insert(*content);
        }
        let bytes = blocks(contents.iter().copied());
        let handle = self.store.volume(&name(volume)).unwrap();
        let done = handle.write(lba * BLOCK, &bytes, Blocking::Yes);
        let done = done.and_then(|()| handle.flush());
        if self.tried("write", done)?.is_none() {
            return Ok(None);
        }
        for (n, content) in contents.iter().enumerate() {
            self.volumes[volume][lba as usize + n] = BTreeSet::from([*content]);
        }
        Ok(Some(()))
    }

    /// Reads a block. Returns whether it could be read.
    pub(crate) fn read(&mut self, volume: usize, lba: u64) -> Tried<bool> {
        let handle = self.store.volume(&name(volume)).unwrap();
        let mut found = vec![0; BLOCK as usize];
        let read = handle.read(lba * BLOCK, &mut found, Blocking::Yes);
        let possible = &mut self.volumes[volume][lba as usize];
        match read {
            Ok(()) => {
                let holds = possible.iter().find(|content| blocks([**content]) == found);
                let Some(holds) = holds.copied() else {
                    if possible.len() != 1 {
                        // A power loss tore blocks rewritten in place.
                        possible.clear();
                        return Ok(Some(true));
                    }
                    return violation(format!(
                        "block {lba} of {volume} is not one of {possible:?}"
                    ));
                };
                *possible = BTreeSet::from([holds]);
                Ok(Some(true))
            }
            Err(error)
                if error.kind() == StoreErrorKind::Io
                    && possible.iter().any(|content| self.spoilt.contains(content)) =>
            {
                Ok((!self.engine.is_crashed()).then_some(false))
            }
            Err(error) => self.tried("read", Err(error)),
        }
    }

    /// Reads everything. Returns how many blocks could not be read.
    pub(crate) fn read_all(&mut self) -> Tried<u64> {
        let mut unreadable = 0;
        for volume in 0..self.volumes.len() {
            for lba in 0..self.volumes[volume].len() as u64 {
                match self.read(volume, lba)? {
                    Some(could) => unreadable += u64::from(!could),
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(unreadable))
    }

    /// Publishes everything.
    pub(crate) fn dedup(&self) -> Tried<()> {
        for volume in 0..self.volumes.len() {
            let handle = self.store.volume(&name(volume)).unwrap();
            let mut cursor = Lba(0);
            for _ in 0..STEPS_MAX {
                let done = self
                    .store
                    .dedup()
                    .find_batch(&handle, &mut cursor, Ready::All);
                match self.tried("dedup", done)? {
                    None => return Ok(None),
                    Some(report) if report.at_end => break,
                    Some(_) => {}
                }
            }
        }
        Ok(Some(()))
    }

    /// Releases all pending references, and lets the blocks be reused.
    pub(crate) fn collect(&self) -> Tried<()> {
        for _ in 0..STEPS_MAX {
            match self.tried("collect", self.store.dedup().collect_batch())? {
                None => return Ok(None),
                Some(report) if report.quarantined > 0 => {
                    return violation(format!("{report:?}"));
                }
                Some(report) if report.released == 0 => break,
                Some(_) => {}
            }
        }
        for _ in 0..3 {
            if self.tried("tick", self.store.tidy(true))?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    /// Scrubs to the end of the run, and begins one if none is in progress. Returns the sums.
    pub(crate) fn scrub(&self) -> Tried<ScrubReport> {
        if self
            .tried("begin", self.store.scrub().begin(None, 0))?
            .is_none()
        {
            return Ok(None);
        }
        let mut scrub = ScrubRun::default();
        let mut sum = ScrubReport::default();
        while !sum.is_over {
            let Some(report) = self.tried("scrub", self.store.scrub().step(&mut scrub))? else {
                return Ok(None);
            };
            sum.passed_blocks += report.passed_blocks;
            sum.compared_blocks += report.compared_blocks;
            sum.bytes += report.bytes;
            sum.found_bad += report.found_bad;
            sum.found_good += report.found_good;
            sum.is_over = report.is_over;
        }
        Ok(Some(sum))
    }

    /// Blocks that are known to be bad, after another look.
    pub(crate) fn bad(&self) -> Tried<Vec<u64>> {
        let bad = self.store.scrub().bad_blocks(&mut |_| {});
        let bad = self.tried("list", bad)?;
        Ok(bad.map(|bad| bad.iter().map(|block| block.pba).collect()))
    }

    /// Everything is accounted for, and nothing is bad.
    pub(crate) fn check(&self) -> Tried<()> {
        let mut findings = Vec::new();
        let done = self
            .store
            .check(false, &mut |finding| findings.push(finding));
        match self.tried("check", done)? {
            Some(_) if !findings.is_empty() => violation(format!("check: {findings:?}")),
            done => Ok(done.map(|_| ())),
        }
    }

    /// The block of the pool in which a volume has this content: one that is read for it.
    pub(crate) fn place(&self, content: Content) -> Option<u64> {
        let volumes = self.volumes.iter().zip(0..);
        let all = volumes
            .flat_map(|(blocks, volume)| blocks.iter().zip(0..).map(move |block| (volume, block)));
        let holds = |(_, (possible, _)): &(usize, (&BTreeSet<Content>, u64))| {
            **possible == BTreeSet::from([content])
        };
        let (volume, (_, lba)) = all.into_iter().find(holds)?;
        // An error names it.
        let kind = std::io::ErrorKind::Other;
        self.engine.fail_once(Part::Data, Op::Read, 1, kind);
        let handle = self.store.volume(&name(volume)).unwrap();
        let mut block = vec![0; BLOCK as usize];
        let error = handle
            .read(lba * BLOCK, &mut block, Blocking::Yes)
            .unwrap_err();
        let message = error.to_string();
        let (before, _) = message.split_once(" of the pool")?;
        before.rsplit(' ').next()?.parse().ok()
    }

    /// The block with this content decays, or cannot be read any more. Returns it.
    pub(crate) fn decay(&mut self, content: Content, unreadable: bool) -> Option<u64> {
        let place = self.place(content)?;
        let at = place * BLOCK;
        if unreadable {
            self.engine.make_unreadable(Part::Data, at..at + 512);
        } else {
            self.engine.flip_bit(Part::Data, at + 1000, 3);
        }
        self.spoilt.insert(content);
        Some(place)
    }

    /// The machine stops, if it has not, comes back, and the pool is opened.
    pub(crate) fn recover(&mut self, kind: CrashKind) -> Result<(), Violation> {
        self.engine.halt();
        let engine = self.engine.crash(kind);
        self.resume(engine)
    }

    /// The pool is opened on a machine that came back.
    pub(crate) fn resume(&mut self, engine: SimulatedEngine) -> Result<(), Violation> {
        self.engine = engine;
        self.recoveries += 1;
        match open(self.engine.clone(), LITTLE_MEMORY) {
            Ok((store, _)) => self.store = store,
            Err(error) => return violation(format!("opening: {error}")),
        }
        let rebuilt = self.store.index().rebuild_if_needed(&mut |_, _| {});
        self.tried("rebuild", rebuilt).map(|_| ())
    }
}

pub(crate) fn name(volume: usize) -> String {
    format!("volume-{volume}")
}
