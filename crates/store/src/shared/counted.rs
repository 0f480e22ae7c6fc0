//! A group that is counted in a census of the pool: it pauses its jobs, and reports its use of blocks. In a rebuild of the
//! index, it also settles its open batch as it is decided, and reads fingerprints.
//!
//! Requests arrive on threads that must not wait. So they only note what is wanted, and get *under way* as the answer
//! until a thread of this host has done it ([`GroupCensus::work`]). All of them can be repeated.
//!
//! Invariants:
//! - The pause begins under the job lock. In a check no batch is open then; from then on, the references of the group and
//!   the rows of the index differ by nothing but claims and dropped references, which the group reports; and no block
//!   leaves it.
//! - In a rebuild, the report of the group stays true until the batch is settled: no read has a block that the batch
//!   releases, and no write refers to a block that was found before the report (P3).
//! - A pause that ran out ends the census, and the host that takes it learns so.
//!
//! Crash behaviour: nothing is stored. A new owner of the group has another session, which ends the census.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use onefold_engine::cluster::{Answer, Reply};
use onefold_format::batch_page::BatchItem;
use onefold_format::census_message::{
    CENSUS_FINDINGS_MAX, CENSUS_RUNS_MAX, CensusRefusal, CensusReply, CensusReplyBody,
    CensusRequest, CensusRequestBody,
};
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_format::{GroupId, Pba, PoolId};
use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Result, StoreError, StoreErrorKind};

use super::Leases;
use crate::batches::Granted;
use crate::dedup::{Window, fingerprint_published};
use crate::integrity::{self, Survey, SurveyKind};
use crate::store::Store;

/// How long jobs stay paused after a request.
const PAUSE: Duration = Duration::from_secs(60);

/// Findings that a group keeps. A group that is damaged everywhere does not need memory in proportion.
const FINDINGS_MAX: usize = 10_000;

/// Wakes the thread that does the work of groups in a census.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The part of an open group in a census.
pub(super) struct GroupCensus {
    /// Weak, because the store has the ownership that keeps this.
    store: Weak<Store>,
    pool: PoolId,
    group: GroupId,
    session: u64,
    wake: Option<Wake>,
    /// Held briefly, and before the lock of the pause.
    state: Mutex<State>,
    /// Held during work. Before all locks of the store.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// The last census that ended. Late requests do not begin it again.
    ended: Option<u64>,
    is_closed: bool,
}

/// A census in progress.
struct Open {
    census: u64,
    pool_end: Pba,
    heard: Instant,
    /// The jobs are paused, unless the pause has run out.
    is_begun: bool,
    work: Option<Work>,
    failed: Option<String>,
    survey: Option<Survey>,
    /// The findings of all surveys.
    findings: Vec<String>,
    mapped_blocks: u64,
    pages_read: u64,
    rebuild: Option<Rebuild>,
}

/// The group's part in a rebuild of the index.
#[derive(Default)]
struct Rebuild {
    /// The decisions for the open batch, about all blocks below `decided_to`.
    granted: Granted,
    decided_to: u64,
    /// The number of the last batch, once it is settled.
    last_number: Option<u64>,
    found: Option<Found>,
}

/// Fingerprints that were read last.
#[derive(Clone)]
struct Found {
    asked: Vec<Range<u64>>,
    next: Pba,
    fingerprints: Vec<(Pba, [u8; 16])>,
}

/// Work for a thread of this host.
#[derive(Clone)]
enum Work {
    /// Pause the jobs.
    Pause,
    /// Survey these blocks.
    Survey(Range<u64>),
    /// Settle the open batch as it was decided, and end all claims.
    Settle,
    /// Read the fingerprints of these blocks.
    Fingerprint(Vec<Range<u64>>),
}

impl GroupCensus {
    pub(super) fn new(
        store: &Arc<Store>,
        (pool, group, session): (PoolId, GroupId, u64),
        wake: Option<Wake>,
    ) -> Self {
        Self {
            store: Arc::downgrade(store),
            pool,
            group,
            session,
            wake,
            state: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    /// Ends the census, for good. Once this returns, no thread uses the store for it.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        self.end(&mut state);
        drop(state);
        drop(lock(&self.turn));
    }

    fn end(&self, state: &mut State) {
        let Some(open) = state.open.take() else {
            return;
        };
        state.ended = Some(open.census);
        if let Some(store) = self.store.upgrade()
            && let Some(leases) = leases(&store)
        {
            leases.pause().end();
        }
    }

    fn is_in_progress(&self, census: u64) -> bool {
        let state = lock(&self.state);
        state
            .open
            .as_ref()
            .is_some_and(|open| open.census == census)
    }

    /// Does what requests have asked for.
    pub(super) fn work(&self) {
        let _turn = lock(&self.turn);
        let Some(store) = self.store.upgrade() else {
            return;
        };
        while let Some((census, work)) = self.wanted() {
            let done = self.done(&store, census, &work);
            self.change(census, |open| {
                open.work = None;
                if let Err(error) = done {
                    open.failed = Some(error.to_string());
                }
            });
        }
    }

    fn wanted(&self) -> Option<(u64, Work)> {
        let state = lock(&self.state);
        let open = state.open.as_ref()?;
        Some((open.census, open.work.clone()?))
    }

    /// Changes the state of a census, unless it has ended.
    fn change<T>(&self, census: u64, change: impl FnOnce(&mut Open) -> T) -> Option<T> {
        let mut state = lock(&self.state);
        let open = state.open.as_mut();
        open.filter(|open| open.census == census).map(change)
    }

    fn done(&self, store: &Store, census: u64, work: &Work) -> Result<()> {
        match work {
            Work::Pause => self.pause(store, census),
            Work::Survey(blocks) => self.survey(store, census, blocks.clone()),
            Work::Settle => self.settle(store, census),
            Work::Fingerprint(blocks) => self.fingerprint(store, census, blocks),
        }
    }

    fn pause(&self, store: &Store, census: u64) -> Result<()> {
        let pool = &store.pool;
        let Some(leases) = leases(store) else {
            return Ok(());
        };
        let job = pool.batches().job()?;
        pool.journal().check_writable()?;
        if self.change(census, |open| open.rebuild.is_some()) == Some(true) {
            pool.batches().await_released()?;
        } else {
            pool.batches().settle_open_batch()?;
        }
        self.change(census, |open| {
            leases.pause().begin(Instant::now() + PAUSE);
            open.is_begun = true;
        });
        drop(job);
        // What was given until now is the pool's.
        leases.settled().map(drop)
    }

    fn survey(&self, store: &Store, census: u64, blocks: Range<u64>) -> Result<()> {
        let kind = self.change(census, |open| (open.survey_kind(), open.pool_end));
        let Some((kind, pool_end)) = kind else {
            return Ok(());
        };
        if let Some(leases) = leases(store) {
            // The group may have taken space extents without knowing it.
            drop(leases.settled()?);
        }
        if kind == SurveyKind::Unsettled {
            // The lost index has found blocks for which nobody vouches any more.
            store.pool.journal().outdate_lookups()?;
        }
        let is_cancelled = || !self.is_in_progress(census);
        let survey = integrity::survey(store.scrub(), kind, blocks, pool_end, &is_cancelled)?;
        self.change(census, |open| open.surveyed(survey));
        Ok(())
    }

    fn settle(&self, store: &Store, census: u64) -> Result<()> {
        let granted = self.change(census, |open| {
            let rebuild = open.rebuild.as_mut()?;
            Some(std::mem::take(&mut rebuild.granted))
        });
        let Some(granted) = granted.flatten() else {
            return Ok(());
        };
        let batches = store.pool.batches();
        let last_number = {
            let _job = batches.job_in_pause()?;
            if !self.extend_pause() {
                return Err(StoreError::new(
                    StoreErrorKind::Busy,
                    "the pause of the jobs has run out",
                ));
            }
            batches.settle_decided(&granted)?
        };
        self.change(census, |open| {
            open.survey = None;
            if let Some(rebuild) = &mut open.rebuild {
                rebuild.last_number = Some(last_number);
            }
        });
        Ok(())
    }

    fn fingerprint(&self, store: &Store, census: u64, asked: &[Range<u64>]) -> Result<()> {
        let survey = self.change(census, |open| open.survey.take()).flatten();
        let Some(survey) = survey else {
            return Ok(());
        };
        let end = survey.blocks().end;
        let blocks = asked
            .iter()
            .flat_map(|range| range.start..range.end.min(end));
        let item = |pba: u64| {
            let (pba, domain) = (Pba(pba), survey.domain(Pba(pba))?);
            Some(BatchItem {
                pba,
                domain,
                ..BatchItem::default()
            })
        };
        let items: Vec<BatchItem> = blocks.filter_map(item).collect();
        let pool = &store.pool;
        let read = pool
            .background()
            .run(|| fingerprint_published(pool, &items))?;
        let mut fingerprints: Vec<_> = read
            .into_iter()
            .map(|(fingerprint, pba)| (pba, fingerprint.0))
            .collect();
        fingerprints.sort_unstable_by_key(|(pba, _)| *pba);
        let last = asked.last().map_or(end, |range| range.end);
        let found = Found {
            asked: asked.to_vec(),
            next: Pba(last.min(end)),
            fingerprints,
        };
        self.change(census, |open| {
            open.survey = Some(survey);
            if let Some(rebuild) = &mut open.rebuild {
                rebuild.found = Some(found);
            }
        });
        Ok(())
    }

    fn reply_to(&self, request: &[u8]) -> CensusReplyBody {
        let refused = |reason, text: &str| CensusReplyBody::Refused {
            reason,
            text: text.to_owned(),
        };
        let request = match CensusRequest::decode(request) {
            Ok(request) if (request.pool, request.group) == (self.pool, self.group) => request,
            Ok(_) => return refused(CensusRefusal::Malformed, "it is for another group"),
            Err(error) => return refused(CensusRefusal::Malformed, &error.to_string()),
        };
        let mut state = lock(&self.state);
        let CensusRequest { census, body, .. } = request;
        if body == CensusRequestBody::End {
            if state
                .open
                .as_ref()
                .is_some_and(|open| open.census == census)
            {
                self.end(&mut state);
            }
            state.ended = Some(census);
            return CensusReplyBody::Ended;
        }
        if let Some((pool_end, rebuild)) = begun(&body)
            && !state.is_closed
            && state.ended != Some(census)
        {
            match &state.open {
                Some(open) if open.census == census => {}
                Some(open) if open.heard.elapsed() < PAUSE => {
                    let text = "the pool is being checked, or its index rebuilt, already";
                    return refused(CensusRefusal::Busy, text);
                }
                _ => state.open = Some(Open::new(census, pool_end, rebuild)),
            }
        }
        if state
            .open
            .as_ref()
            .is_some_and(|open| open.census == census && open.is_begun)
            && !self.extend_pause()
        {
            self.end(&mut state);
        }
        match &mut state.open {
            Some(open) if open.census == census => self.answer_in(open, &body),
            _ => refused(CensusRefusal::Ended, "it has ended here"),
        }
    }

    /// Lets the pause last. Returns whether it still did.
    fn extend_pause(&self) -> bool {
        let until = Instant::now() + PAUSE;
        let store = self.store.upgrade();
        store.is_some_and(|store| leases(&store).is_some_and(|it| it.pause().extend(until)))
    }

    fn answer_in(&self, open: &mut Open, body: &CensusRequestBody) -> CensusReplyBody {
        open.heard = Instant::now();
        if let Some(text) = &open.failed {
            let (reason, text) = (CensusRefusal::Failed, text.clone());
            return CensusReplyBody::Refused { reason, text };
        }
        let work = match body {
            CensusRequestBody::Findings { from } => return open.listed(*from),
            _ if !open.is_begun => Work::Pause,
            CensusRequestBody::Begin { .. } | CensusRequestBody::BeginRebuild { .. } => {
                return CensusReplyBody::Begun;
            }
            CensusRequestBody::Blocks { from, to } => match open.survey_from(*from) {
                Some(survey) => {
                    let (runs, next) = survey.runs(*from, CENSUS_RUNS_MAX);
                    return CensusReplyBody::Blocks { next, runs };
                }
                None => Work::Survey(self.blocks_at_once(*from, *to, open.survey_kind())),
            },
            CensusRequestBody::Decide { from, to, granted } => {
                return open.decide(from.0..to.0, granted);
            }
            CensusRequestBody::Settle => match open.settled() {
                Ok(Some(reply)) | Err(reply) => return reply,
                Ok(None) => Work::Settle,
            },
            CensusRequestBody::Fingerprints(blocks) => match open.fingerprints(blocks) {
                Ok(reply) => return reply,
                Err(Work::Survey(from)) => {
                    let (from, to) = (Pba(from.start), open.pool_end);
                    Work::Survey(self.blocks_at_once(from, to, open.survey_kind()))
                }
                Err(work) => work,
            },
            CensusRequestBody::End => return CensusReplyBody::Ended,
        };
        open.work.get_or_insert(work);
        self.wake();
        CensusReplyBody::UnderWay
    }

    /// The blocks from `from` on that there is memory to survey, up to `to`.
    fn blocks_at_once(&self, from: Pba, to: Pba, kind: SurveyKind) -> Range<u64> {
        let start = from.0 / BLOCKS_PER_SPACE_PAGE * BLOCKS_PER_SPACE_PAGE;
        let bytes = self
            .store
            .upgrade()
            .map_or(0, |store| store.pool.limits().check_bytes);
        let bytes = match kind {
            SurveyKind::Check => bytes,
            // Domains, or the blocks of the open batch, besides.
            SurveyKind::Unsettled | SurveyKind::Settled => bytes / 2,
        };
        let step = Window::blocks_for(bytes, to.0.saturating_sub(start));
        start..start + step.max(BLOCKS_PER_SPACE_PAGE)
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake();
        }
    }
}

/// The end of the pool, and a part in a rebuild if it is one, of a request that begins a census.
fn begun(body: &CensusRequestBody) -> Option<(Pba, Option<Rebuild>)> {
    match body {
        CensusRequestBody::Begin { pool_end } => Some((*pool_end, None)),
        CensusRequestBody::BeginRebuild { pool_end } => Some((*pool_end, Some(Rebuild::default()))),
        _ => None,
    }
}

impl Open {
    fn new(census: u64, pool_end: Pba, rebuild: Option<Rebuild>) -> Self {
        Self {
            census,
            pool_end,
            heard: Instant::now(),
            is_begun: false,
            work: None,
            failed: None,
            survey: None,
            findings: Vec::new(),
            mapped_blocks: 0,
            pages_read: 0,
            rebuild,
        }
    }

    fn survey_kind(&self) -> SurveyKind {
        match &self.rebuild {
            None => SurveyKind::Check,
            Some(rebuild) if rebuild.last_number.is_none() => SurveyKind::Unsettled,
            Some(_) => SurveyKind::Settled,
        }
    }

    /// The last survey, if it has this block.
    fn survey_from(&self, from: Pba) -> Option<&Survey> {
        let survey = self.survey.as_ref();
        survey.filter(|survey| survey.blocks().contains(&from.0))
    }

    fn surveyed(&mut self, mut survey: Survey) {
        let room = FINDINGS_MAX.saturating_sub(self.findings.len());
        let found = std::mem::take(&mut survey.findings);
        self.findings.extend(found.into_iter().take(room));
        self.mapped_blocks += survey.mapped_blocks;
        self.pages_read += survey.pages_read;
        self.survey = Some(survey);
    }

    /// Notes what is decided about blocks, which follow those of the last decision unless it is repeated.
    fn decide(&mut self, blocks: Range<u64>, granted: &[Range<u64>]) -> CensusReplyBody {
        match &mut self.rebuild {
            Some(rebuild) if blocks.start == rebuild.decided_to => {
                rebuild.granted.extend(granted.iter().cloned());
                rebuild.decided_to = blocks.end;
                CensusReplyBody::Decided
            }
            Some(rebuild) if blocks.end <= rebuild.decided_to => CensusReplyBody::Decided,
            _ => out_of_order(),
        }
    }

    /// The reply to a request to settle, if it is settled already, or cannot be.
    fn settled(&self) -> std::result::Result<Option<CensusReplyBody>, CensusReplyBody> {
        let rebuild = self.rebuild.as_ref().ok_or_else(out_of_order)?;
        if rebuild.decided_to < self.pool_end.0 {
            return Err(out_of_order());
        }
        let settled = |last_number| CensusReplyBody::Settled { last_number };
        Ok(rebuild.last_number.map(settled))
    }

    /// The fingerprints that were asked for, or the work to get them.
    fn fingerprints(&self, asked: &[Range<u64>]) -> std::result::Result<CensusReplyBody, Work> {
        let settled = self.rebuild.as_ref();
        let settled = settled.filter(|rebuild| rebuild.last_number.is_some());
        let (Some(rebuild), Some(first)) = (settled, asked.first()) else {
            return Ok(out_of_order());
        };
        if let Some(found) = rebuild.found.as_ref().filter(|found| found.asked == asked) {
            return Ok(CensusReplyBody::Fingerprints {
                next: found.next,
                found: found.fingerprints.clone(),
            });
        }
        Err(match self.survey_from(Pba(first.start)) {
            Some(_) => Work::Fingerprint(asked.to_vec()),
            None => Work::Survey(first.clone()),
        })
    }

    /// The findings so far, from this one on.
    fn listed(&self, from: u64) -> CensusReplyBody {
        let all = &self.findings;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(all.len());
        let end = all.len().min(from + CENSUS_FINDINGS_MAX);
        CensusReplyBody::Findings {
            mapped_blocks: self.mapped_blocks,
            pages_read: self.pages_read,
            findings: all[from..end].to_vec(),
            has_more: end < all.len(),
        }
    }
}

impl Answer for GroupCensus {
    fn answer(&self, request: Vec<u8>, reply: Reply) {
        let body = self.reply_to(&request);
        let sent = CensusReply {
            session: self.session,
            request: CensusRequest::checksum(&request),
            body,
        };
        reply(sent.encode());
    }
}

/// Refuses a request that no host sends at this point.
fn out_of_order() -> CensusReplyBody {
    CensusReplyBody::Refused {
        reason: CensusRefusal::Malformed,
        text: "the request does not fit the ones before".to_owned(),
    }
}

fn leases(store: &Store) -> Option<&Arc<Leases>> {
    store.pool.group().map(|group| group.leases())
}
