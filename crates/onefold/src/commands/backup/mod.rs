//! `onefold backup`: copies of disks in a repository, made and restored by the command's own process.

mod create;
mod key;
mod mount;
mod opening;
mod restore;
mod secret;

use super::pool_check::FOUND_DAMAGE;
use crate::context::Context;
use crate::output::Render;
use clap::Subcommand;
use onefold_api::Result;
use onefold_api::backup::{
    Answer, BackupCreate, BackupDiff, BackupForget, BackupInit, BackupList, BackupProtect,
    BackupPrune, BackupRemove, BackupRename, BackupRepair, BackupRestore, BackupShare, BackupShow,
    BackupStat, BackupUnprotect, BackupVerify, Outcome, Planned, RepositoryRequest,
    RepositoryService,
};
use std::process::ExitCode;

use opening::RepositoryArgs;

#[derive(Debug, Subcommand)]
pub(super) enum BackupVerb {
    /// Create a repository in a new or empty folder.
    Init(At<BackupInit>),
    /// Back up disks: volumes, snapshots, and disk images.
    ///
    /// Each backup is complete in itself. Data that the repository already has for a source is not stored
    /// again.
    Create(At<BackupCreate>),
    /// List the sources of a repository, or the backups of one.
    #[command(visible_alias = super::LIST)]
    List(At<BackupList>),
    /// Show a backup's details.
    Show(At<BackupShow>),
    /// List what changed between two backups of a source.
    Diff(At<BackupDiff>),
    /// Serve backups as read-only NBD exports, directly from the repository, until interrupted.
    Mount(mount::Args),
    /// Restore a backup to a new or existing volume, a file, a block device or standard output.
    Restore(At<BackupRestore>),
    /// Prove that everything that backups need exists; exit code 3 if it does not.
    Verify(At<BackupVerify>),
    /// Forget backups: those named, or all that no rule keeps. `prune` then frees their space.
    Forget(At<BackupForget>),
    /// Rename a source.
    Rename(At<BackupRename>),
    /// Protect backups from being forgotten.
    Protect(At<BackupProtect>),
    /// Remove the protection of backups.
    Unprotect(At<BackupUnprotect>),
    /// Free space that no backup needs.
    Prune(At<BackupPrune>),
    /// Store blocks that several sources of a domain have once for all of them. `prune` then frees the
    /// sources' own copies.
    Share(At<BackupShare>),
    /// Remove a source with all its backups.
    Remove(At<BackupRemove>),
    /// Remove damaged blocks so that the next backup stores them again, restore blocks that have an intact
    /// copy, and remove leftovers of killed commands. Exit code 3 if damage remains.
    Repair(At<BackupRepair>),
    /// Show the content of a repository by source, and the savings by sharing.
    Stat(At<BackupStat>),
    /// Add, list, export and remove the keys of an encrypted repository.
    #[command(subcommand)]
    Key(key::KeyVerb),
}

impl BackupVerb {
    pub(super) fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Self::Init(at) => at.repository.init(context, &at.request),
            Self::Create(at) => create::run(context, &at),
            Self::List(at) => at.call(context),
            Self::Show(at) => at.call(context),
            Self::Diff(at) => at.call(context),
            Self::Mount(args) => mount::run(context, &args),
            Self::Restore(at) => restore::run(context, &at),
            Self::Verify(at) => at.call(context),
            Self::Forget(at) => at.call_planned(context),
            Self::Rename(at) => at.call(context),
            Self::Protect(at) => at.call(context),
            Self::Unprotect(at) => at.call(context),
            Self::Prune(at) => at.call_planned(context),
            Self::Share(at) => at.call_planned(context),
            Self::Remove(at) => at.call_planned(context),
            Self::Repair(at) => at.call_planned(context),
            Self::Stat(at) => at.call(context),
            Self::Key(verb) => verb.run(context),
        }
    }
}

/// A request, and the repository at which it is carried out.
#[derive(Debug, clap::Args)]
pub(super) struct At<R: clap::Args> {
    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    request: R,
}

impl<R: clap::Args + RepositoryRequest> At<R> {
    /// Carries out the request.
    fn answer(&self, context: &Context) -> Result<Answer<R::Reply>> {
        // Refuse an invalid request before the repository is opened.
        self.request.check()?;
        let opened = self.repository.open_for(context, R::USE)?;
        RepositoryService::new(&opened).call(&self.request)
    }

    /// Carries out the request and prints its reply.
    fn call(&self, context: &Context) -> Result<ExitCode>
    where
        R::Reply: Render,
    {
        let answer = self.answer(context)?;
        context.print(&answer.reply)?;
        Ok(code(answer.outcome))
    }

    /// Carries out a request that only plans until it is confirmed, and prints the plan.
    fn call_planned(&self, context: &Context) -> Result<ExitCode>
    where
        R::Reply: Render + Planned,
    {
        let answer = self.answer(context)?;
        context.print_plan(&answer.reply, answer.reply.is_settled())?;
        Ok(code(answer.outcome))
    }
}

/// The exit code for an outcome.
fn code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Complete => ExitCode::SUCCESS,
        Outcome::Damaged => ExitCode::from(FOUND_DAMAGE),
        Outcome::Incomplete => ExitCode::FAILURE,
    }
}
