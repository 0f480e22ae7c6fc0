//! A group that is counted in a census of the pool: it pauses its jobs, and reports its use of blocks.
//!
//! Requests arrive on threads that must not wait. So they only note what is wanted, and get *under way* as the answer
//! until a thread of this host has done it ([`GroupCensus::work`]). All of them can be repeated.
//!
//! Invariants:
//! - The pause begins under the job lock, with no batch open. From then on, the references of the group and the rows of
//!   the index differ by nothing but claims and dropped references, which the group reports; and no block leaves it.
//! - A pause that ran out ends the census, and the host that takes it learns so.
//!
//! Crash behaviour: nothing is stored. A new owner of the group has another session, which ends the census.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use onefold_engine::cluster::{Answer, Reply};
use onefold_format::census_message::{
    CENSUS_FINDINGS_MAX, CENSUS_RUNS_MAX, CensusRefusal, CensusReply, CensusReplyBody,
    CensusRequest, CensusRequestBody,
};
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_format::{GroupId, Pba, PoolId};
use onefold_metadata::Result;
use onefold_metadata::sync::{Mutex, lock};

use super::Leases;
use crate::dedup::Window;
use crate::integrity::{self, Survey};
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
    step: Step,
    survey: Option<Survey>,
    /// The findings of all surveys.
    findings: Vec<String>,
    mapped_blocks: u64,
    pages_read: u64,
}

enum Step {
    /// The jobs have to be paused.
    Beginning,
    /// The jobs are paused.
    Begun,
    /// The jobs are paused, and these blocks have to be surveyed.
    Surveying(Range<u64>),
    Failed(String),
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
        while let Some((census, pool_end, blocks)) = self.wanted() {
            let done = match blocks {
                None => self.pause(&store, census).map(|()| None),
                Some(blocks) => {
                    let is_cancelled = || !self.is_in_progress(census);
                    survey(&store, blocks, pool_end, &is_cancelled).map(Some)
                }
            };
            let mut state = lock(&self.state);
            if let Some(open) = state.open.as_mut().filter(|open| open.census == census) {
                open.did(done);
            }
        }
    }

    /// The census with work to do: the blocks to survey, or nothing if the jobs have to be paused first.
    fn wanted(&self) -> Option<(u64, Pba, Option<Range<u64>>)> {
        let state = lock(&self.state);
        let open = state.open.as_ref()?;
        let blocks = match &open.step {
            Step::Beginning => None,
            Step::Surveying(blocks) => Some(blocks.clone()),
            Step::Begun | Step::Failed(_) => return None,
        };
        Some((open.census, open.pool_end, blocks))
    }

    fn pause(&self, store: &Store, census: u64) -> Result<()> {
        let pool = &store.pool;
        let Some(leases) = leases(store) else {
            return Ok(());
        };
        let job = pool.batches().job()?;
        pool.journal().check_writable()?;
        pool.batches().settle_open_batch()?;
        let state = lock(&self.state);
        if state
            .open
            .as_ref()
            .is_some_and(|open| open.census == census)
        {
            leases.pause().begin(Instant::now() + PAUSE);
        }
        drop(state);
        drop(job);
        // What was given until now is the pool's.
        leases.settled().map(drop)
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
        if let CensusRequestBody::End = body {
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
        if let CensusRequestBody::Begin { pool_end } = body
            && !state.is_closed
            && state.ended != Some(census)
        {
            match &state.open {
                Some(open) if open.census == census => {}
                Some(open) if open.heard.elapsed() < PAUSE => {
                    let text = "the pool is being checked already";
                    return refused(CensusRefusal::Busy, text);
                }
                _ => state.open = Some(Open::new(census, pool_end)),
            }
        }
        if state
            .open
            .as_ref()
            .is_some_and(|open| open.census == census && open.is_begun())
            && !self.extend_pause()
        {
            self.end(&mut state);
        }
        match &mut state.open {
            Some(open) if open.census == census => self.answer_in(open, &body),
            _ => refused(CensusRefusal::Ended, "the check has ended here"),
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
        if let Step::Failed(text) = &open.step {
            let (reason, text) = (CensusRefusal::Failed, text.clone());
            return CensusReplyBody::Refused { reason, text };
        }
        match *body {
            CensusRequestBody::Begin { .. } if open.is_begun() => CensusReplyBody::Begun,
            CensusRequestBody::Blocks { from, to } if open.is_begun() => {
                let survey = open.survey.as_ref();
                match survey.filter(|survey| survey.blocks().contains(&from.0)) {
                    Some(survey) => {
                        let (runs, next) = survey.runs(from, CENSUS_RUNS_MAX);
                        return CensusReplyBody::Blocks { next, runs };
                    }
                    None => open.step = Step::Surveying(self.blocks_at_once(from, to)),
                }
                self.wake();
                CensusReplyBody::UnderWay
            }
            CensusRequestBody::Findings { from } => open.listed(from),
            _ => {
                self.wake();
                CensusReplyBody::UnderWay
            }
        }
    }

    /// The blocks from `from` on that there is memory to survey, up to `to`.
    fn blocks_at_once(&self, from: Pba, to: Pba) -> Range<u64> {
        let start = from.0 / BLOCKS_PER_SPACE_PAGE * BLOCKS_PER_SPACE_PAGE;
        let bytes = self
            .store
            .upgrade()
            .map(|store| store.pool.limits().check_bytes);
        let step = Window::blocks_for(bytes.unwrap_or_default(), to.0 - start);
        start..start + step.max(BLOCKS_PER_SPACE_PAGE)
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake();
        }
    }
}

impl Open {
    fn new(census: u64, pool_end: Pba) -> Self {
        Self {
            census,
            pool_end,
            heard: Instant::now(),
            step: Step::Beginning,
            survey: None,
            findings: Vec::new(),
            mapped_blocks: 0,
            pages_read: 0,
        }
    }

    /// Whether the jobs are paused, unless the pause has run out.
    fn is_begun(&self) -> bool {
        matches!(self.step, Step::Begun | Step::Surveying(_))
    }

    /// Notes the result of work.
    fn did(&mut self, done: Result<Option<Survey>>) {
        match done {
            Ok(survey) => {
                self.step = Step::Begun;
                self.survey = survey;
            }
            Err(error) => self.step = Step::Failed(error.to_string()),
        }
        if let Some(survey) = &mut self.survey {
            let room = FINDINGS_MAX.saturating_sub(self.findings.len());
            let found = std::mem::take(&mut survey.findings);
            self.findings.extend(found.into_iter().take(room));
            self.mapped_blocks += survey.mapped_blocks;
            self.pages_read += survey.pages_read;
        }
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

fn survey(
    store: &Store,
    blocks: Range<u64>,
    pool_end: Pba,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Survey> {
    if let Some(leases) = leases(store) {
        // The group may have taken space extents without knowing it.
        drop(leases.settled()?);
    }
    integrity::survey(store.scrub(), blocks, pool_end, is_cancelled)
}

fn leases(store: &Store) -> Option<&Arc<Leases>> {
    store.pool.group().map(|group| group.leases())
}
