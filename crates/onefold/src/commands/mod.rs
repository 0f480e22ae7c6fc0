//! The command line. Most commands are requests of `onefold-api`, which carry their own arguments; those
//! that do more have a file here.

mod analyze;
pub(crate) mod backup;
mod bench;
mod copy_out;
mod foreground;
mod html;
mod plots;
mod pool_check;
mod pool_create;
mod pool_export_metadata;
mod pool_import_metadata;
mod pool_scrub;
mod serve;
mod snapshot_diff;
mod volume_export;
mod volume_import;

use self::foreground::end_when_interrupted;
use crate::output::{Format, Output, Render};
use crate::pool::place::{CephOptions, PoolPlace};
use crate::progress::Progress;
use crate::rendering;
use crate::session::Session;
use crate::version;
use clap::{Parser, Subcommand};
use onefold_api::{
    Error, IndexConvert, IndexRebuild, IndexStat, JobList, JobPause, JobResume, PlanReply,
    PoolDedup, PoolResize, PoolSet, PoolStat, PoolTrim, PoolUpgrade, Request, Result,
    SnapshotCreate, SnapshotDelete, SnapshotDiff, SnapshotList, SnapshotRollback, UnshareReply,
    VolumeAcceptLoss, VolumeClone, VolumeCreate, VolumeDefrag, VolumeDelete, VolumeList,
    VolumeRename, VolumeResize, VolumeSet, VolumeStat, VolumeUnshare, size,
};
use std::ffi::OsString;
use std::process::ExitCode;

/// The heading of what every command takes.
const GLOBAL: &str = "Global options";

/// What people type who know other programs.
const SHOW: [&str; 3] = ["show", "status", "info"];
const LIST: &str = "ls";
const DELETE: &str = "rm";

/// Volumes for virtual machines, every block stored once.
#[derive(Debug, Parser)]
#[command(version = version::in_words(), about)]
pub(crate) struct Cli {
    /// The pool: its directory, or ceph:CEPHPOOL or ceph:CEPHPOOL/NAME.
    #[arg(long, global = true, env = "ONEFOLD_POOL", value_name = "POOL", help_heading = GLOBAL)]
    pool: Option<OsString>,

    #[command(flatten)]
    ceph: CephOptions,

    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value = "text", help_heading = GLOBAL)]
    format: Format,

    /// No progress and no remarks; only results, warnings and errors.
    #[arg(long, global = true, help_heading = GLOBAL)]
    quiet: bool,

    #[command(subcommand)]
    noun: Noun,
}

#[derive(Debug, Subcommand)]
enum Noun {
    /// Make a pool, look at it, check it.
    #[command(subcommand)]
    Pool(PoolVerb),
    /// Make volumes, fill, copy and delete them.
    #[command(subcommand)]
    Volume(VolumeVerb),
    /// Make snapshots of volumes, see, compare and delete them.
    #[command(subcommand)]
    Snapshot(SnapshotVerb),
    /// See and remake the index of fingerprints.
    #[command(subcommand)]
    Index(IndexVerb),
    /// See and steer the daemon's background work.
    #[command(subcommand)]
    Job(JobVerb),
    /// Find out what deduplication would save, before there is a pool.
    ///
    /// Reads files, folders, block devices and raw disk images, and counts exactly what is in them more
    /// often than once. Nothing is changed.
    Analyze(analyze::Args),
    /// Put a load on a file, a block device or an NBD export, and measure how it is borne.
    ///
    /// What is written has duplicates as a real data set has them. Everything that is read is compared with
    /// what was written. What the target holds is destroyed.
    Bench(bench::Args),
    /// Back disks up to a repository, and restore them.
    #[command(subcommand)]
    Backup(backup::BackupVerb),
    /// Serve the pool's volumes over NBD until stopped by SIGTERM or SIGINT.
    Serve(serve::Args),
}

#[derive(Debug, Subcommand)]
enum PoolVerb {
    /// Create a pool in a new or empty directory.
    Create(pool_create::Args),
    /// Describe the pool: blocks and bytes over everything.
    #[command(visible_aliases = SHOW)]
    Stat(PoolStat),
    /// Change the pool's settings, also while it is in use.
    Set(PoolSet),
    /// Prove that every block is accounted for; exit code 3 if one is not.
    Check(pool_check::Args),
    /// Find and share all present duplicates.
    ///
    /// Scans every block that has changed since its last scan, whatever cold passes and interval its
    /// volume has and whether or not the finder is paused, and then releases unused blocks.
    Dedup(PoolDedup),
    /// Copy everything but the blocks, of one moment, to a file.
    ///
    /// From it and the blocks, a pool whose metadata is lost can be restored. Volumes are served
    /// meanwhile. Keep it as secret as the pool's own files.
    ExportMetadata(pool_export_metadata::Args),
    /// Restore a pool's metadata from such a file.
    ///
    /// The blocks must be where they were. Existing metadata is renamed, not deleted.
    ImportMetadata(pool_import_metadata::Args),
    /// Bring the pool to the newest format.
    ///
    /// A pool keeps its format until this, or until it uses what needs a newer one. Releases that do not know the
    /// format only read the pool then. Without --yes, this says what would change.
    Upgrade(PoolUpgrade),
    /// Read stored blocks and find those that have decayed; exit code 3 if there are any.
    ///
    /// Every block in use is read once; a shared block is compared with its fingerprint. Volumes are
    /// served meanwhile. A daemon scrubs in the background: ending this command leaves it running. An
    /// interrupted scrub continues where it was.
    Scrub(pool_scrub::Args),
    /// Change the pool's size, also while it is in use.
    Resize(PoolResize),
    /// Return all free space to the host, single blocks included.
    ///
    /// Freed space is returned in the background in units of 64 KiB; this returns the rest.
    Trim(PoolTrim),
}

#[derive(Debug, Subcommand)]
enum SnapshotVerb {
    /// Create snapshots of one or several volumes, all at one moment.
    ///
    /// A client can read a snapshot as the export VOLUME@SNAPSHOT.
    Create(SnapshotCreate),
    /// List snapshots.
    #[command(visible_alias = LIST)]
    List(SnapshotList),
    /// List the differences of a snapshot or volume from an older one of the same family, or all of its data.
    ///
    /// Reads the maps only, so it takes time in proportion to the data written between the two. A volume
    /// is compared as it is now. A listed run may hold the same content again.
    Diff(SnapshotDiff),
    /// Delete a snapshot; its volume, its clones and other snapshots stay as they are.
    #[command(visible_alias = DELETE)]
    Delete(SnapshotDelete),
    /// Roll a volume back to a snapshot; data written since is discarded.
    Rollback(SnapshotRollback),
}

#[derive(Debug, Subcommand)]
enum IndexVerb {
    /// Describe the index.
    #[command(visible_aliases = SHOW)]
    Stat(IndexStat),
    /// Rebuild the index by reading every shared block of the pool.
    ///
    /// Volumes are served meanwhile, and no blocks are shared. If this is interrupted, the daemon
    /// continues it.
    Rebuild(IndexRebuild),
    /// Convert the index to another back end, by copying its rows.
    ///
    /// The old one is used until the new one takes its place. If this is interrupted, the daemon starts
    /// it again.
    Convert(IndexConvert),
}

#[derive(Debug, Subcommand)]
enum JobVerb {
    /// List jobs: their state, and their work since the daemon started.
    #[command(visible_alias = LIST)]
    List(JobList),
    /// Pause jobs until they are resumed or the daemon restarts.
    ///
    /// Returns once they rest.
    Pause(JobPause),
    /// Resume paused jobs.
    Resume(JobResume),
}

#[derive(Debug, Subcommand)]
enum VolumeVerb {
    /// Create an empty volume.
    Create(VolumeCreate),
    /// Create a volume with the content of another volume or a snapshot, without copying it.
    Clone(VolumeClone),
    /// Create a volume from a disk image.
    Import(volume_import::Args),
    /// Copy a volume to a new disk image.
    Export(volume_export::Args),
    /// List all volumes.
    #[command(visible_alias = LIST)]
    List(VolumeList),
    /// Describe a volume.
    #[command(visible_aliases = SHOW)]
    Stat(VolumeStat),
    /// Change a volume's settings, also while it is in use.
    Set(VolumeSet),
    /// Change a volume's size.
    Resize(VolumeResize),
    /// Copy blocks that a volume shares in short runs, so that it is read in longer ones.
    ///
    /// Costs space, for the finder leaves the copies alone. After an interruption the same command goes on
    /// with the rest.
    Defrag(VolumeDefrag),
    /// Copy all blocks that a volume shares, so that it has its own.
    ///
    /// Costs space, for the finder leaves the copies alone. After an interruption the same command goes on
    /// with the rest.
    Unshare(VolumeUnshare),
    /// Rename a volume.
    Rename(VolumeRename),
    /// Accept that a failed sync lost answered writes of a volume.
    ///
    /// Until then each flush of the volume fails, because a client that outlived the loss does not know of
    /// it. Restore the volume or check its file systems first.
    AcceptLoss(VolumeAcceptLoss),
    /// Delete a volume.
    #[command(visible_alias = DELETE)]
    Delete(VolumeDelete),
}

/// What every command gets to know.
struct Context {
    pool: Option<PoolPlace>,
    ceph: CephOptions,
    output: Output,
}

impl Context {
    /// The pool that the user named.
    fn pool(&self) -> Result<&PoolPlace> {
        self.pool.as_ref().ok_or_else(|| {
            Error::usage("which pool? give its directory with --pool, or in ONEFOLD_POOL")
        })
    }

    fn with_session<T>(&self, work: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
        Session::with(self.pool()?, &self.output, false, work)
    }

    /// Carries out a request, while a bar shows its progress.
    fn request<R: Request>(&self, request: &R, bar: Bar) -> Result<R::Reply> {
        // Nonsense is refused before the pool is opened.
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
    fn call<R: Request<Reply: Render>>(&self, request: &R) -> Result<ExitCode> {
        self.call_showing(request, Bar::None)
    }

    /// Carries out a long request and prints its reply.
    fn call_showing<R: Request<Reply: Render>>(&self, request: &R, bar: Bar) -> Result<ExitCode> {
        let reply = self.request(request, bar)?;
        self.print(&reply)
    }

    /// Carries out a request that only a daemon can, and prints its reply.
    fn call_daemon<R: Request<Reply: Render>>(&self, request: &R) -> Result<ExitCode> {
        request.check()?;
        let session = Session::of_daemon(self.pool()?, &self.output)?;
        self.print(&session.call(request, &mut |_, _| {})?)
    }

    /// Carries out a destructive request, and prints its plan.
    fn call_planned<R: Request<Reply = PlanReply>>(
        &self,
        request: &R,
        bar: Bar,
    ) -> Result<ExitCode> {
        let reply = self.request(request, bar)?;
        self.print_plan(&reply, reply.done)
    }

    /// The same with figures.
    fn unshare<R: Request<Reply = UnshareReply>>(&self, request: &R) -> Result<ExitCode> {
        let reply = self.request(
            request,
            Bar::Bytes(
                "copying",
                "blocks that were copied stay so; the same command copies the rest",
            ),
        )?;
        self.print_plan(&reply, reply.plan.done)
    }

    fn print_plan(&self, plan: &impl Render, is_done: bool) -> Result<ExitCode> {
        self.output.document(plan)?;
        match is_done {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Error::usage(
                "nothing was changed; --yes carries out this plan",
            )),
        }
    }

    fn dedup(&self, request: &PoolDedup) -> Result<ExitCode> {
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

    fn print(&self, document: &impl Render) -> Result<ExitCode> {
        self.output.document(document)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The bar that shows the progress of a request, by its label, and what becomes of work that is interrupted.
#[derive(Clone, Copy)]
enum Bar {
    None,
    Bytes(&'static str, &'static str),
    Steps(&'static str, &'static str),
}

/// After an interruption of a rebuild or a conversion.
const INDEX_REST: &str = "the daemon, or the next command that needs the index, starts it again";

/// After an interruption of a deletion or a rollback.
const DELETION_REST: &str = "if the list shows it as done, the daemon or 'onefold pool dedup' releases the rest of its blocks";

impl Cli {
    /// Where results and remarks go.
    pub(crate) fn output(&self) -> Output {
        Output::new(self.format, self.quiet)
    }

    /// Does what the user asked for.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let pool = self.pool.as_deref();
        let context = Context {
            output: self.output(),
            pool: pool
                .map(|it| PoolPlace::parse(it, &self.ceph))
                .transpose()?,
            ceph: self.ceph,
        };
        match self.noun {
            Noun::Pool(verb) => verb.run(&context),
            Noun::Volume(verb) => verb.run(&context),
            Noun::Snapshot(verb) => verb.run(&context),
            Noun::Index(IndexVerb::Stat(request)) => context.call(&request),
            Noun::Index(IndexVerb::Rebuild(request)) => {
                context.call_showing(&request, Bar::Bytes("counting the index", INDEX_REST))
            }
            Noun::Index(IndexVerb::Convert(request)) => {
                context.call_showing(&request, Bar::Bytes("converting the index", INDEX_REST))
            }
            Noun::Job(JobVerb::List(request)) => context.call_daemon(&request),
            Noun::Job(JobVerb::Pause(request)) => context.call_daemon(&request),
            Noun::Job(JobVerb::Resume(request)) => context.call_daemon(&request),
            Noun::Backup(verb) => verb.run(&context),
            Noun::Analyze(args) => analyze::run(&context, &args),
            Noun::Bench(args) => bench::run(&context, &args),
            Noun::Serve(args) => serve::run(&context, args),
        }
    }
}

impl PoolVerb {
    fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Self::Create(args) => pool_create::run(context, args),
            Self::Stat(request) => context.call(&request),
            Self::Set(request) => context.call(&request),
            Self::Check(args) => pool_check::run(context, &args),
            Self::Dedup(request) => context.dedup(&request),
            Self::ExportMetadata(args) => pool_export_metadata::run(context, args),
            Self::ImportMetadata(args) => pool_import_metadata::run(context, args),
            Self::Upgrade(request) => {
                let reply = context.request(&request, Bar::None)?;
                let is_newest = reply.format == reply.newest;
                context.print_plan(&reply, is_newest)
            }
            Self::Scrub(args) => pool_scrub::run(context, args),
            Self::Resize(request) => context.call_planned(
                &request,
                Bar::Bytes("resizing", "the daemon, or the same command, does the rest"),
            ),
            Self::Trim(request) => context.call_showing(
                &request,
                Bar::Bytes("trimming", "space that was returned to the host stays so"),
            ),
        }
    }
}

impl VolumeVerb {
    fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Self::Create(request) => context.call(&request),
            Self::Clone(request) => context.call(&request),
            Self::Import(args) => volume_import::run(context, args),
            Self::Export(args) => volume_export::run(context, args),
            Self::List(request) => context.call(&request),
            Self::Stat(request) => context.call_showing(
                &request,
                Bar::Steps("walking the maps", "nothing was changed"),
            ),
            Self::Set(request) => context.call(&request),
            Self::Resize(request) => context.call_planned(&request, Bar::None),
            Self::Rename(request) => context.call(&request),
            Self::AcceptLoss(request) => context.call_planned(&request, Bar::None),
            Self::Defrag(request) => context.unshare(&request),
            Self::Unshare(request) => context.unshare(&request),
            Self::Delete(request) => {
                context.call_planned(&request, Bar::Bytes("deleting", DELETION_REST))
            }
        }
    }
}

impl SnapshotVerb {
    fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Self::Create(request) => context.call(&request),
            Self::List(request) => context.call(&request),
            Self::Diff(request) => snapshot_diff::run(context, request),
            Self::Delete(request) => {
                context.call_planned(&request, Bar::Bytes("deleting", DELETION_REST))
            }
            Self::Rollback(request) => {
                context.call_planned(&request, Bar::Bytes("rolling back", DELETION_REST))
            }
        }
    }
}

/// For clap: a size such as `20G`.
fn parse_size(text: &str) -> std::result::Result<u64, String> {
    size::parse(text)
}
