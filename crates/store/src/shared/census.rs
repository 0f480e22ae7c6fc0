//! A census of a shared pool, for a check or a rebuild of the index: the owners of all groups pause their jobs and report
//! their use of blocks.
//!
//! Guests continue. A write may drop references, which join the group's queue; it may refer to a published
//! block, which is a claim; it may take free blocks, also of space extents that the group takes from the pool. So the
//! groups need not be counted at one moment, and the sum of their reports is right.
//!
//! It is not right if some group is not paused: because it is new, because its owner has changed, or because the pause
//! has run out. So the results count once [`Census::confirm`] has found all groups paused since the beginning.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use onefold_engine::cluster::{CallError, Owned};
use onefold_format::census_message::{
    BlockRun, CENSUS_RANGES_MAX, CensusReply, CensusReplyBody, CensusRequest, CensusRequestBody,
};
use onefold_format::{GroupId, Pba};
use onefold_index::Fingerprint;
use onefold_metadata::{Result, StoreError, StoreErrorKind};

use super::SharedPool;

/// How often a request is sent whose outcome stays unknown.
const ATTEMPTS: usize = 2;

/// How often the owners hear of a census in progress, so that their pauses last.
const KEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A census in progress. It ends when it is dropped.
pub(super) struct Census<'a> {
    pool: &'a SharedPool,
    number: u64,
    begin: CensusRequestBody,
    /// The groups, and the sessions of their owners.
    sessions: BTreeMap<GroupId, u64>,
    totals: BTreeMap<GroupId, GroupTotals>,
    kept: Instant,
    /// Called when an answer is not there yet; it waits a moment.
    wait: &'a mut dyn FnMut(),
}

/// The totals of a group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupTotals {
    pub(super) mapped_blocks: u64,
    pub(super) pages_read: u64,
    /// Findings that were passed on.
    findings: u64,
}

impl<'a> Census<'a> {
    /// Settles the open batches and pauses the jobs of all groups, for a check.
    ///
    /// # Errors
    ///
    /// `Busy` if a group is not open on any host, or another census is in progress; errors of a group.
    pub(super) fn begin(
        pool: &'a SharedPool,
        pool_end: Pba,
        wait: &'a mut dyn FnMut(),
    ) -> Result<Self> {
        Self::begin_with(pool, CensusRequestBody::Begin { pool_end }, wait)
    }

    /// Pauses the jobs of all groups for a rebuild of the index. Their open batches stay open.
    ///
    /// # Errors
    ///
    /// As [`Census::begin`].
    pub(super) fn begin_rebuild(
        pool: &'a SharedPool,
        pool_end: Pba,
        wait: &'a mut dyn FnMut(),
    ) -> Result<Self> {
        Self::begin_with(pool, CensusRequestBody::BeginRebuild { pool_end }, wait)
    }

    fn begin_with(
        pool: &'a SharedPool,
        begin: CensusRequestBody,
        wait: &'a mut dyn FnMut(),
    ) -> Result<Self> {
        let groups = pool.groups()?.into_keys();
        let mut census = Self {
            pool,
            number: RandomState::new().build_hasher().finish(),
            begin,
            sessions: groups.map(|group| (group, 0)).collect(),
            totals: BTreeMap::new(),
            kept: Instant::now(),
            wait,
        };
        let groups = census.groups();
        // All begin at once; the replies are asked for afterwards.
        for group in &groups {
            census.ask_once(*group, &census.begin)?;
        }
        for group in groups {
            let session = census.begin_group(group)?;
            census.sessions.insert(group, session);
        }
        Ok(census)
    }

    pub(super) fn groups(&self) -> Vec<GroupId> {
        self.sessions.keys().copied().collect()
    }

    fn begin_group(&mut self, group: GroupId) -> Result<u64> {
        loop {
            let reply = self.ask_once(group, &self.begin)?;
            match reply.body {
                CensusReplyBody::Begun => return Ok(reply.session),
                _ => (self.wait)(),
            }
        }
    }

    /// Asks for a group's use of blocks, and passes each run on.
    pub(super) fn blocks_of(
        &mut self,
        group: GroupId,
        (mut from, to): (Pba, Pba),
        visit: &mut dyn FnMut(&BlockRun),
    ) -> Result<()> {
        while from < to {
            let body = CensusRequestBody::Blocks { from, to };
            match self.ask(group, &body)? {
                CensusReplyBody::Blocks { next, runs } if next > from => {
                    runs.iter().for_each(&mut *visit);
                    from = next;
                }
                _ => return Err(misfit(group)),
            }
        }
        Ok(())
    }

    /// Has a group begin to survey blocks, so that all groups do it at once.
    pub(super) fn prepare(&mut self, group: GroupId, (from, to): (Pba, Pba)) -> Result<()> {
        self.ask_once(group, &CensusRequestBody::Blocks { from, to })
            .map(drop)
    }

    /// Passes on the findings of a group since the last call of this.
    pub(super) fn findings_of(
        &mut self,
        group: GroupId,
        visit: &mut dyn FnMut(String),
    ) -> Result<()> {
        let mut totals = self.totals.get(&group).copied().unwrap_or_default();
        loop {
            let from = totals.findings;
            match self.ask(group, &CensusRequestBody::Findings { from })? {
                CensusReplyBody::Findings {
                    mapped_blocks,
                    pages_read,
                    findings,
                    has_more,
                } => {
                    (totals.mapped_blocks, totals.pages_read) = (mapped_blocks, pages_read);
                    totals.findings += findings.len() as u64;
                    let is_last = !has_more || findings.is_empty();
                    findings.into_iter().for_each(&mut *visit);
                    if is_last {
                        self.totals.insert(group, totals);
                        return Ok(());
                    }
                }
                _ => return Err(misfit(group)),
            }
        }
    }

    /// Decides what a group's open batch does with its blocks of a range: the finder has published those that are granted,
    /// or the collector frees them. The ranges of all calls for the group follow one another, from block 0 to the end.
    pub(super) fn decide(
        &mut self,
        group: GroupId,
        blocks: &Range<u64>,
        granted: &[Range<u64>],
    ) -> Result<()> {
        let mut from = blocks.start;
        let mut pieces = granted.chunks(CENSUS_RANGES_MAX).peekable();
        while from < blocks.end {
            let granted = pieces.next().unwrap_or_default();
            let is_last = pieces.peek().is_none();
            let to = granted
                .last()
                .filter(|_| !is_last)
                .map_or(blocks.end, |last| last.end);
            let body = CensusRequestBody::Decide {
                from: Pba(from),
                to: Pba(to),
                granted: granted.to_vec(),
            };
            match self.ask(group, &body)? {
                CensusReplyBody::Decided => from = to,
                _ => return Err(misfit(group)),
            }
        }
        Ok(())
    }

    /// Has all groups settle their open batches as it was decided, and end their claims. Returns the number of each group's
    /// last batch.
    pub(super) fn settle(&mut self) -> Result<Vec<(GroupId, u64)>> {
        let groups = self.groups();
        for group in &groups {
            self.ask_once(*group, &CensusRequestBody::Settle)?;
        }
        let mut last_numbers = Vec::with_capacity(groups.len());
        for group in groups {
            match self.ask(group, &CensusRequestBody::Settle)? {
                CensusReplyBody::Settled { last_number } => last_numbers.push((group, last_number)),
                _ => return Err(misfit(group)),
            }
        }
        Ok(last_numbers)
    }

    /// Has a group begin to read blocks for [`Census::fingerprints_of`], so that all groups do it at once.
    pub(super) fn prepare_fingerprints(&self, group: GroupId, blocks: &[Range<u64>]) -> Result<()> {
        let body = CensusRequestBody::Fingerprints(blocks.to_vec());
        self.ask_once(group, &body).map(drop)
    }

    /// Asks a group for fingerprints of blocks that it shares: at most [`CENSUS_FINGERPRINTS_MAX`], in ascending order.
    /// Those of blocks that cannot be read are missing.
    ///
    /// [`CENSUS_FINGERPRINTS_MAX`]: onefold_format::census_message::CENSUS_FINGERPRINTS_MAX
    pub(super) fn fingerprints_of(
        &mut self,
        group: GroupId,
        mut blocks: Vec<Range<u64>>,
        visit: &mut dyn FnMut(Pba, Fingerprint),
    ) -> Result<()> {
        while let Some(first) = blocks.first().map(|range| range.start) {
            let body = CensusRequestBody::Fingerprints(blocks.clone());
            match self.ask(group, &body)? {
                CensusReplyBody::Fingerprints { next, found } if next.0 > first => {
                    for (pba, fingerprint) in found {
                        visit(pba, Fingerprint(fingerprint));
                    }
                    for range in &mut blocks {
                        range.start = range.start.max(next.0);
                    }
                    blocks.retain(|range| range.start < range.end);
                }
                _ => return Err(misfit(group)),
            }
            self.keep()?;
        }
        Ok(())
    }

    /// The totals of all groups.
    pub(super) fn totals(&self) -> impl Iterator<Item = &GroupTotals> {
        self.totals.values()
    }

    /// Makes sure that the pauses last, from time to time.
    pub(super) fn keep(&mut self) -> Result<()> {
        if self.kept.elapsed() < KEEP_INTERVAL {
            return Ok(());
        }
        self.kept = Instant::now();
        for group in self.groups() {
            let reply = self.ask_once(group, &self.begin)?;
            let is_same = self.sessions.get(&group) == Some(&reply.session);
            if !is_same || reply.body != CensusReplyBody::Begun {
                return Err(moved(group));
            }
        }
        Ok(())
    }

    /// Checks that all groups of the pool have been paused since the beginning.
    ///
    /// # Errors
    ///
    /// `Busy` if not: nothing that was counted is certain.
    pub(super) fn confirm(&mut self) -> Result<()> {
        let groups = self.pool.groups()?.into_keys();
        for group in groups {
            if !self.sessions.contains_key(&group) {
                return Err(moved(group));
            }
        }
        self.kept = self.kept.checked_sub(KEEP_INTERVAL).unwrap_or(self.kept);
        self.keep()
    }

    /// Asks until the answer is there.
    fn ask(&mut self, group: GroupId, body: &CensusRequestBody) -> Result<CensusReplyBody> {
        loop {
            let reply = self.ask_once(group, body)?;
            if self.sessions.get(&group) != Some(&reply.session) {
                return Err(moved(group));
            }
            match reply.body {
                CensusReplyBody::UnderWay => {
                    (self.wait)();
                    self.keep()?;
                }
                body => return Ok(body),
            }
        }
    }

    fn ask_once(&self, group: GroupId, body: &CensusRequestBody) -> Result<CensusReply> {
        let request = self.request(group, body);
        let busy = |message| StoreError::new(StoreErrorKind::Busy, message);
        let mut outcome = Err(String::new());
        for _ in 0..ATTEMPTS {
            outcome = match self.call(group, &request) {
                Ok(bytes) => CensusReply::decode(&bytes, CensusRequest::checksum(&request))
                    .map_err(|error| format!("its reply cannot be decoded: {error}")),
                Err(error) => Err(error.to_string()),
            };
            if outcome.is_ok() {
                break;
            }
        }
        let reply = outcome.map_err(|why| {
            busy(format!(
                "group {group} cannot be counted: {why}; if its host is down, open the group here with 'onefold group \
                 take {group}'"
            ))
        })?;
        match reply.body {
            CensusReplyBody::Refused { text, .. } => Err(busy(format!("group {group}: {text}"))),
            _ => Ok(reply),
        }
    }

    fn request(&self, group: GroupId, body: &CensusRequestBody) -> Vec<u8> {
        CensusRequest {
            pool: self.pool.description().pool,
            group,
            census: self.number,
            body: body.clone(),
        }
        .encode()
    }

    fn call(&self, group: GroupId, request: &[u8]) -> std::result::Result<Vec<u8>, CallError> {
        let (sender, outcome) = mpsc::channel();
        // If nobody waits any more, the answer is not needed.
        let answered = Box::new(move |outcome| _ = sender.send(outcome));
        let (cluster, timeout) = (self.pool.cluster(), self.pool.call_timeout());
        cluster.call(Owned::Group(group), request.to_vec(), timeout, answered);
        let given_up = || CallError::Unknown(std::io::Error::other("the call was given up"));
        outcome.recv().unwrap_or_else(|_| Err(given_up()))
    }
}

impl Drop for Census<'_> {
    /// A group that does not hear of the end resumes its jobs when its pause has run out.
    fn drop(&mut self) {
        for group in self.groups() {
            let end = self.request(group, &CensusRequestBody::End);
            let (cluster, timeout) = (self.pool.cluster(), self.pool.call_timeout());
            cluster.call(Owned::Group(group), end, timeout, Box::new(drop));
        }
    }
}

fn moved(group: GroupId) -> StoreError {
    let message = format!(
        "group {group} was opened in between, or its host was late, so nothing is certain: try again"
    );
    StoreError::new(StoreErrorKind::Busy, message)
}

fn misfit(group: GroupId) -> StoreError {
    let message = format!(
        "group {group}: its reply does not fit the request; all hosts must have the same release"
    );
    StoreError::new(StoreErrorKind::Busy, message)
}
