//! The pool and the output that the user chose, and how commands send requests to the pool.

use crate::foreground::end_when_interrupted;
use crate::output::{Output, Render};
use crate::pool::place::{CephOptions, PoolPlace};
use crate::progress::Progress;
use crate::rendering;
use crate::session::Session;
use onefold_api::{Error, PlanReply, PoolDedup, Request, Result, UnshareReply};
use std::process::ExitCode;

/// The global options, as commands receive them.
pub(crate) struct Context {
    pub(crate) pool: Option<PoolPlace>,
    pub(crate) ceph: CephOptions,
    pub(crate) output: Output,
}

impl Context {
    /// The pool that the user named, or an error.
    pub(crate) fn pool(&self) -> Result<&PoolPlace> {
        self.pool.as_ref().ok_or_else(|| {
            Error::usage("which pool? give its directory with --pool, or in ONEFOLD_POOL")
        })
    }

    pub(crate) fn with_session<T>(&self, work: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
        Session::with(self.pool()?, &self.output, false, work)
    }

    /// Carries out a request and shows its progress.
    pub(crate) fn request<R: Request>(&self, request: &R, bar: Bar) -> Result<R::Reply> {
        // Refuse an invalid request before the pool is opened.
        request.check()?;
        let progress = match bar {
            Bar::None => None,
            Bar::Bytes(label, _) => Some(Progress::bytes(&self.output, label)),
            Bar::Steps(label, _) => Some(Progress::steps(&self.output, label)),
        };
        let progress = progress.map(|progress| progress.of_pool(&self.output));
        if let Bar::Bytes(_, rest) | Bar::Steps(_, rest) = bar {
            end_when_interrupted(&self.output, rest)?;
        }
        self.with_session(|session| {
            session.call(request, &mut |done, all| {
                if let Some(progress) = &progress {
                    progress.set(done, all);
                }
            })
        })
    }

    /// Carries out a short request and prints its reply.
    pub(crate) fn call<R: Request<Reply: Render>>(&self, request: &R) -> Result<ExitCode> {
        self.call_showing(request, Bar::None)
    }

    /// Carries out a long request and prints its reply.
    pub(crate) fn call_showing<R: Request<Reply: Render>>(
        &self,
        request: &R,
        bar: Bar,
    ) -> Result<ExitCode> {
        let reply = self.request(request, bar)?;
        self.print(&reply)
    }

    /// Carries out a request that only a daemon can carry out, and prints its reply.
    pub(crate) fn call_daemon<R: Request<Reply: Render>>(&self, request: &R) -> Result<ExitCode> {
        request.check()?;
        let session = Session::of_daemon(self.pool()?, &self.output)?;
        self.print(&session.call(request, &mut |_, _| {})?)
    }

    /// Carries out a destructive request, and prints its plan.
    pub(crate) fn call_planned<R: Request<Reply = PlanReply>>(
        &self,
        request: &R,
        bar: Bar,
    ) -> Result<ExitCode> {
        let reply = self.request(request, bar)?;
        self.print_plan(&reply, reply.done)
    }

    /// Carries out `volume defrag` or `volume unshare`, and prints the plan with its figures.
    pub(crate) fn unshare<R: Request<Reply = UnshareReply>>(
        &self,
        request: &R,
    ) -> Result<ExitCode> {
        let reply = self.request(
            request,
            Bar::Bytes(
                "copying",
                "blocks that were copied stay so; the same command copies the rest",
            ),
        )?;
        self.print_plan(&reply, reply.plan.done)
    }

    pub(crate) fn print_plan(&self, plan: &impl Render, is_done: bool) -> Result<ExitCode> {
        self.output.document(plan)?;
        if is_done {
            Ok(ExitCode::SUCCESS)
        } else {
            Err(Error::usage(
                "nothing was changed; --yes carries out this plan",
            ))
        }
    }

    pub(crate) fn dedup(&self, request: &PoolDedup) -> Result<ExitCode> {
        let reply = self.request(
            request,
            Bar::Bytes(
                "deduplicating",
                "blocks that were shared stay so; the same command does the rest",
            ),
        )?;
        for warning in rendering::pool::warnings(&reply) {
            self.output.warn(warning);
        }
        self.print(&reply)
    }

    pub(crate) fn print(&self, document: &impl Render) -> Result<ExitCode> {
        self.output.document(document)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The progress bar of a request: its label, and a note on what happens to interrupted work.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    None,
    Bytes(&'static str, &'static str),
    Steps(&'static str, &'static str),
}
