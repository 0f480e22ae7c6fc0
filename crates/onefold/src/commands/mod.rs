//! The command line. Most commands are requests of `onefold-api`, which define their own arguments; commands
//! that do more have a file here.

mod analyze;
pub(crate) mod backup;
mod bench;
mod copy_out;
mod html;
mod plots;
mod pool_check;
mod pool_convert;
mod pool_create;
mod pool_export_metadata;
mod pool_import_metadata;
mod pool_scrub;
mod serve;
mod snapshot_diff;
mod volume_export;
mod volume_import;

use crate::context::{Bar, Context};
use crate::output::{Format, Output};
use crate::pool::place::{CephOptions, PoolPlace};
use crate::version;
use clap::{Parser, Subcommand};
use onefold_api::{
    GroupCreate, GroupList, GroupTake, HostList, IndexConvert, IndexRebuild, IndexStat, JobList,
    JobPause, JobResume, PoolDedup, PoolResize, PoolSet, PoolStat, PoolTrim, PoolUpgrade, Result,
    SnapshotCreate, SnapshotDelete, SnapshotDiff, SnapshotList, SnapshotRollback, VolumeAcceptLoss,
    VolumeClone, VolumeCreate, VolumeDefrag, VolumeDelete, VolumeList, VolumeRename, VolumeResize,
    VolumeSet, VolumeStat, VolumeUnshare,
};
use std::ffi::OsString;
use std::process::ExitCode;

/// Help heading of the options that every command takes.
const GLOBAL: &str = "Global options";

/// Aliases for users of other programs.
const SHOW: [&str; 3] = ["show", "status", "info"];
const LIST: &str = "ls";
const DELETE: &str = "rm";

/// Volumes for virtual machines, every block stored once.
#[derive(Debug, Parser)]
#[command(version = version::in_words(), about)]
pub(crate) struct Cli {
    /// Pool to use: its directory, or ceph:CEPHPOOL or ceph:CEPHPOOL/NAME.
    #[arg(long, global = true, env = "ONEFOLD_POOL", value_name = "POOL", help_heading = GLOBAL)]
    pool: Option<OsString>,

    #[command(flatten)]
    ceph: CephOptions,

    /// Output format of results.
    #[arg(long, global = true, value_enum, default_value = "text", help_heading = GLOBAL)]
    format: Format,

    /// Print no progress and no remarks, only results, warnings and errors.
    #[arg(long, global = true, help_heading = GLOBAL)]
    quiet: bool,

    #[command(subcommand)]
    noun: Noun,
}

#[derive(Debug, Subcommand)]
enum Noun {
    /// Create, inspect, check and maintain a pool.
    #[command(subcommand)]
    Pool(PoolVerb),
    /// Create, fill, copy, change and delete volumes.
    #[command(subcommand)]
    Volume(VolumeVerb),
    /// Create, list, compare, roll back to and delete snapshots of volumes.
    #[command(subcommand)]
    Snapshot(SnapshotVerb),
    /// Inspect, rebuild and convert the index of fingerprints.
    #[command(subcommand)]
    Index(IndexVerb),
    /// List, pause and resume the daemon's background jobs.
    #[command(subcommand)]
    Job(JobVerb),
    /// List, create and move the groups of a pool that hosts share.
    #[command(subcommand)]
    Group(GroupVerb),
    /// List the hosts of a pool that hosts share.
    #[command(subcommand)]
    Host(HostVerb),
    /// Measure how much deduplication would save, without a pool.
    ///
    /// Reads files, folders, block devices and raw disk images, and counts exactly which content occurs in
    /// them more than once. Nothing is changed.
    Analyze(analyze::Args),
    /// Run a load against a file, a block device or an NBD export, and report its performance.
    ///
    /// Written data contains duplicates in the proportions of a real data set. Everything that is read is
    /// compared with the data written. The content of the target is destroyed.
    Bench(bench::Args),
    /// Back up disks to a repository, and restore them.
    #[command(subcommand)]
    Backup(backup::BackupVerb),
    /// Serve the pool's volumes over NBD until stopped by SIGTERM or SIGINT.
    Serve(serve::Args),
}

#[derive(Debug, Subcommand)]
enum PoolVerb {
    /// Create a pool in a new or empty directory.
    Create(pool_create::Args),
    /// Show the pool's state, space and deduplication.
    #[command(visible_aliases = SHOW)]
    Stat(PoolStat),
    /// Change the pool's settings. The pool may be in use.
    Set(PoolSet),
    /// Prove that every block is accounted for; exit code 3 if one is not.
    Check(pool_check::Args),
    /// Find and share all present duplicates.
    ///
    /// Scans every block that has changed since its last scan, regardless of its volume's cold passes and
    /// interval and of whether the finder is paused, then releases unused blocks.
    Dedup(PoolDedup),
    /// Export the pool's metadata as of one moment, without the blocks, to a file.
    ///
    /// If the metadata of a pool is lost, it can be restored from this file and the blocks. Volumes are
    /// served during the export. Keep the file as secret as the pool's own files.
    ExportMetadata(pool_export_metadata::Args),
    /// Restore a pool's metadata from an export.
    ///
    /// The blocks must be where they were. Existing metadata is renamed, not deleted.
    ImportMetadata(pool_import_metadata::Args),
    /// Upgrade the pool to the newest format.
    ///
    /// A pool keeps its format until it is upgraded, or until a feature is used that needs a newer format.
    /// Older releases that do not know the new format can then only read the pool. Without --yes, this
    /// command says what would change.
    Upgrade(PoolUpgrade),
    /// Convert a pool in Ceph with one owner to a pool that hosts share.
    ///
    /// No daemon may have the pool open. Its volumes become the first group of the shared pool. The data stays where it is;
    /// metadata and index are copied. If this command is interrupted, the pool is what it was, or converted: run it again.
    /// Without --yes, it says what would change.
    Convert(pool_convert::Args),
    /// Read stored blocks and find those that have decayed; exit code 3 if there are any.
    ///
    /// Every block in use is read once; a shared block is compared with its fingerprint. Volumes are served
    /// during the scrub. A daemon scrubs in the background: ending this command leaves the scrub running. An
    /// interrupted scrub continues where it stopped.
    Scrub(pool_scrub::Args),
    /// Change the pool's size. The pool may be in use.
    Resize(PoolResize),
    /// Return all free space to the host, including single blocks.
    ///
    /// Freed space is returned in the background in units of 64 KiB; this command returns the rest.
    Trim(PoolTrim),
}

#[derive(Debug, Subcommand)]
enum SnapshotVerb {
    /// Create snapshots of one or several volumes, all at the same moment.
    ///
    /// A client can read a snapshot as the export VOLUME@SNAPSHOT.
    Create(SnapshotCreate),
    /// List snapshots.
    #[command(visible_alias = LIST)]
    List(SnapshotList),
    /// List the differences between a snapshot or volume and an older one of the same family, or all of its
    /// data.
    ///
    /// Reads only the maps, so the time is proportional to the data written between the two. A volume is
    /// compared in its current state. A listed run may contain unchanged data.
    Diff(SnapshotDiff),
    /// Delete a snapshot. Its volume, its clones and other snapshots are not affected.
    #[command(visible_alias = DELETE)]
    Delete(SnapshotDelete),
    /// Roll a volume back to a snapshot. Data written since then is discarded.
    Rollback(SnapshotRollback),
}

#[derive(Debug, Subcommand)]
enum IndexVerb {
    /// Show the index's size and settings.
    #[command(visible_aliases = SHOW)]
    Stat(IndexStat),
    /// Rebuild the index by reading every shared block of the pool.
    ///
    /// Volumes are served during the rebuild, but no blocks are shared. If the rebuild is interrupted, the
    /// daemon continues it.
    Rebuild(IndexRebuild),
    /// Convert the index to another back end by copying its rows.
    ///
    /// The old index is used until the new one replaces it. If the conversion is interrupted, the daemon
    /// starts it again.
    Convert(IndexConvert),
}

#[derive(Debug, Subcommand)]
enum JobVerb {
    /// List jobs, with their state and their work since the daemon started.
    #[command(visible_alias = LIST)]
    List(JobList),
    /// Pause jobs until they are resumed or the daemon restarts.
    ///
    /// Returns once the jobs have stopped working.
    Pause(JobPause),
    /// Resume paused jobs.
    Resume(JobResume),
}

#[derive(Debug, Subcommand)]
enum GroupVerb {
    /// List groups, with their hosts and volumes.
    #[command(visible_alias = LIST)]
    List(GroupList),
    /// Create a group, and open it on this host.
    Create(GroupCreate),
    /// Open a group on this host, and serve its volumes here.
    ///
    /// A host that lives keeps the group, unless --take asks it to give the group up. A host that is dead is fenced.
    Take(GroupTake),
}

#[derive(Debug, Subcommand)]
enum HostVerb {
    /// List the hosts that ever opened the pool, with their groups.
    #[command(visible_alias = LIST)]
    List(HostList),
}

#[derive(Debug, Subcommand)]
enum VolumeVerb {
    /// Create an empty volume.
    Create(VolumeCreate),
    /// Create a volume with the content of another volume or of a snapshot, without copying it.
    Clone(VolumeClone),
    /// Create a volume from a disk image.
    Import(volume_import::Args),
    /// Export a volume to a new disk image.
    Export(volume_export::Args),
    /// List all volumes.
    #[command(visible_alias = LIST)]
    List(VolumeList),
    /// Show a volume's settings and figures.
    #[command(visible_aliases = SHOW)]
    Stat(VolumeStat),
    /// Change a volume's settings. The volume may be in use.
    Set(VolumeSet),
    /// Change a volume's size.
    Resize(VolumeResize),
    /// Copy the blocks that a volume shares in short runs, so that it is read in longer runs.
    ///
    /// The copies take space, because the finder does not share them again. If this command is interrupted,
    /// run it again to copy the rest.
    Defrag(VolumeDefrag),
    /// Copy all blocks that a volume shares, so that it shares none.
    ///
    /// The copies take space, because the finder does not share them again. If this command is interrupted,
    /// run it again to copy the rest.
    Unshare(VolumeUnshare),
    /// Rename a volume.
    Rename(VolumeRename),
    /// Accept that a failed sync lost answered writes of a volume.
    ///
    /// Until then every flush of the volume fails, because a client that kept running does not know of the
    /// loss. Restore the volume or check its file systems first.
    AcceptLoss(VolumeAcceptLoss),
    /// Delete a volume.
    #[command(visible_alias = DELETE)]
    Delete(VolumeDelete),
}

/// The note after an interrupted rebuild or conversion.
const INDEX_REST: &str = "the daemon, or the next command that needs the index, starts it again";

/// The note after an interrupted deletion or rollback.
const DELETION_REST: &str = "if the list shows it as done, the daemon or 'onefold pool dedup' releases the rest of its blocks";

impl Cli {
    /// The destination of results and remarks.
    pub(crate) fn output(&self) -> Output {
        Output::new(self.format, self.quiet)
    }

    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let pool = self.pool.as_deref();
        let context = Context {
            output: self.output(),
            pool: pool
                .map(|place| PoolPlace::parse(place, &self.ceph))
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
            Noun::Group(GroupVerb::List(request)) => context.call(&request),
            Noun::Group(GroupVerb::Create(request)) => context.call(&request),
            Noun::Group(GroupVerb::Take(request)) => context.call(&request),
            Noun::Host(HostVerb::List(request)) => context.call(&request),
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
            Self::Convert(args) => pool_convert::run(context, args),
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
