//! The command line: one file a command.

mod analyze;
mod bench;
mod foreground;
mod html;
mod index_convert;
mod index_rebuild;
mod index_stat;
mod job_list;
mod job_pause;
mod job_resume;
mod plots;
mod pool_check;
mod pool_create;
mod pool_dedup;
mod pool_export_metadata;
mod pool_import_metadata;
mod pool_resize;
mod pool_scrub;
mod pool_set;
mod pool_stat;
mod pool_trim;
mod pool_upgrade;
mod serve;
mod snapshot_create;
mod snapshot_delete;
mod snapshot_diff;
mod snapshot_list;
mod snapshot_rollback;
mod volume_clone;
mod volume_create;
mod volume_delete;
mod volume_export;
mod volume_import;
mod volume_list;
mod volume_rename;
mod volume_resize;
mod volume_set;
mod volume_stat;

use crate::duration;
use crate::error::{Error, Result};
use crate::output::{Document, Format, Output};
use crate::session::Session;
use crate::size;
use crate::verbs::Verb;
use crate::verbs::volume::PlanReply;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The heading of what every command takes.
const GLOBAL: &str = "Global options";

/// What people type who know other programs.
const SHOW: [&str; 3] = ["show", "status", "info"];
const LIST: &str = "ls";
const DELETE: &str = "rm";

/// Volumes for virtual machines, every block stored once.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Cli {
    /// The pool's directory.
    #[arg(long, global = true, env = "ONEFOLD_POOL", value_name = "DIR", help_heading = GLOBAL)]
    pool: Option<PathBuf>,

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
    /// Serve the pool's volumes over NBD until stopped by SIGTERM or SIGINT.
    Serve(serve::Args),
}

#[derive(Debug, Subcommand)]
enum PoolVerb {
    /// Make a pool in a new or empty directory.
    Create(pool_create::Args),
    /// Print numbers of blocks and bytes.
    #[command(visible_aliases = SHOW)]
    Stat,
    /// Change how the pool behaves, also while it is in use.
    Set(pool_set::Args),
    /// Prove that every block is accounted for; exit code 3 if one is not.
    Check(pool_check::Args),
    /// Find and share all duplicates that are there now.
    ///
    /// Looks at every block that has changed since it was last looked at, whatever rounds and
    /// interval its volume has and whether or not the finder is paused, and then gives back what
    /// nothing names any more.
    Dedup(pool_dedup::Args),
    /// Copy everything but the blocks, of one moment, to a file.
    ///
    /// With it, and with the blocks, a pool can be made again whose metadata is lost. Volumes are
    /// served meanwhile. Keep it as secret as the pool's own files.
    ExportMetadata(pool_export_metadata::Args),
    /// Make a pool's metadata again from such a file.
    ///
    /// Needs the blocks to be where they were. What is there of the metadata is renamed, not deleted.
    ImportMetadata(pool_import_metadata::Args),
    /// Bring the pool to the newest format.
    ///
    /// There is only one so far: this says so, and changes nothing.
    Upgrade,
    /// Read what is stored, and find blocks that have decayed; exit code 3 if there are any.
    ///
    /// Every block that is in use is read once, and compared with its fingerprint if it is shared.
    /// Volumes are served meanwhile. A daemon does it in the background: ending this command leaves
    /// it running. One that was cut short goes on where it was.
    Scrub(pool_scrub::Args),
    /// Change the pool's size, also while it is in use.
    Resize(pool_resize::Args),
    /// Give all free space back to the host, single blocks included.
    ///
    /// What is freed is given back in the background, in units of 64 KiB; this gives back the rest.
    Trim,
}

#[derive(Debug, Subcommand)]
enum SnapshotVerb {
    /// Make snapshots of one or several volumes, all of one moment.
    ///
    /// A client can read a snapshot as the export VOLUME@SNAPSHOT.
    Create(snapshot_create::Args),
    /// Name the snapshots.
    #[command(visible_alias = LIST)]
    List(snapshot_list::Args),
    /// List what is different in one snapshot or volume from another one of the same family.
    ///
    /// Looks at the maps only, so it takes time in proportion to what was written in between. A volume
    /// is compared as it is now. What is listed may have got the content back that it had.
    Diff(snapshot_diff::Args),
    /// Delete a snapshot; its volume, its clones and other snapshots stay as they are.
    #[command(visible_alias = DELETE)]
    Delete(snapshot_delete::Args),
    /// Take a volume back to a snapshot; what was written since is gone.
    Rollback(snapshot_rollback::Args),
}

#[derive(Debug, Subcommand)]
enum IndexVerb {
    /// Print what the index holds and takes.
    #[command(visible_aliases = SHOW)]
    Stat,
    /// Count the index again, by reading every shared block of the pool.
    ///
    /// Volumes are served meanwhile, and nothing is shared. If this is interrupted, the daemon goes on
    /// with it.
    Rebuild,
    /// Make it an index of another kind, by copying its rows.
    ///
    /// The old one is used until the new one takes its place. If this is interrupted, the daemon does
    /// it again.
    Convert(index_convert::Args),
}

#[derive(Debug, Subcommand)]
enum JobVerb {
    /// Print what each job does and has done since the daemon was started.
    #[command(visible_alias = LIST)]
    List,
    /// Let jobs rest until they are resumed or the daemon is started anew.
    ///
    /// Returns when none of them does anything any more.
    Pause(job_pause::Args),
    /// Let paused jobs go on.
    Resume(job_resume::Args),
}

#[derive(Debug, Subcommand)]
enum VolumeVerb {
    /// Make an empty volume.
    Create(volume_create::Args),
    /// Make a volume that holds what another one, or a snapshot, does, without copying it.
    Clone(volume_clone::Args),
    /// Make a volume from a disk image.
    Import(volume_import::Args),
    /// Copy a volume to a new disk image.
    Export(volume_export::Args),
    /// Name all volumes.
    #[command(visible_alias = LIST)]
    List,
    /// Describe a volume.
    #[command(visible_aliases = SHOW)]
    Stat(volume_stat::Args),
    /// Change how a volume takes part in sharing, also while it is in use.
    Set(volume_set::Args),
    /// Change a volume's size.
    Resize(volume_resize::Args),
    /// Give a volume another name.
    Rename(volume_rename::Args),
    /// Delete a volume.
    #[command(visible_alias = DELETE)]
    Delete(volume_delete::Args),
}

/// What every command gets to know.
struct Context {
    pool: Option<PathBuf>,
    output: Output,
}

impl Context {
    /// The pool that the user named.
    fn pool(&self) -> Result<&Path> {
        self.pool.as_deref().ok_or_else(|| {
            Error::usage("which pool? give its directory with --pool, or in ONEFOLD_POOL")
        })
    }

    fn with_session<T>(&self, work: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
        Session::with(self.pool()?, &self.output, false, work)
    }

    /// Does a short verb and prints its reply.
    fn call<V: Verb>(&self, verb: &V) -> Result<ExitCode> {
        let reply = self.with_session(|session| session.call(verb, &mut |_, _| {}))?;
        self.print(&reply)
    }

    /// Does a verb that only a daemon can do, and prints its reply.
    fn call_daemon<V: Verb>(&self, verb: &V) -> Result<ExitCode> {
        let session = Session::of_daemon(self.pool()?, &self.output)?;
        self.print(&session.call(verb, &mut |_, _| {})?)
    }

    /// Prints what was done, or what would be done if the user said so.
    fn print_plan(&self, reply: &PlanReply) -> Result<ExitCode> {
        self.output.document(reply)?;
        if !reply.done {
            return Err(Error::usage(
                "nothing was changed; --yes carries out this plan",
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, document: &impl Document) -> Result<ExitCode> {
        self.output.document(document)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Cli {
    /// Does what the user asked for.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let context = Context {
            pool: self.pool,
            output: Output::new(self.format, self.quiet),
        };
        match self.noun {
            Noun::Pool(PoolVerb::Create(args)) => pool_create::run(&context, args),
            Noun::Pool(PoolVerb::Stat) => pool_stat::run(&context),
            Noun::Pool(PoolVerb::Set(args)) => pool_set::run(&context, &args),
            Noun::Pool(PoolVerb::Check(args)) => pool_check::run(&context, &args),
            Noun::Pool(PoolVerb::Dedup(args)) => pool_dedup::run(&context, args),
            Noun::Pool(PoolVerb::ExportMetadata(args)) => pool_export_metadata::run(&context, args),
            Noun::Pool(PoolVerb::ImportMetadata(args)) => pool_import_metadata::run(&context, args),
            Noun::Pool(PoolVerb::Upgrade) => pool_upgrade::run(&context),
            Noun::Pool(PoolVerb::Scrub(args)) => pool_scrub::run(&context, &args),
            Noun::Pool(PoolVerb::Resize(args)) => pool_resize::run(&context, &args),
            Noun::Pool(PoolVerb::Trim) => pool_trim::run(&context),
            Noun::Index(IndexVerb::Stat) => index_stat::run(&context),
            Noun::Index(IndexVerb::Rebuild) => index_rebuild::run(&context, None),
            Noun::Index(IndexVerb::Convert(args)) => index_convert::run(&context, &args),
            Noun::Job(JobVerb::List) => job_list::run(&context),
            Noun::Job(JobVerb::Pause(args)) => job_pause::run(&context, args),
            Noun::Job(JobVerb::Resume(args)) => job_resume::run(&context, args),
            Noun::Snapshot(SnapshotVerb::Create(args)) => snapshot_create::run(&context, args),
            Noun::Snapshot(SnapshotVerb::List(args)) => snapshot_list::run(&context, args),
            Noun::Snapshot(SnapshotVerb::Diff(args)) => snapshot_diff::run(&context, args),
            Noun::Snapshot(SnapshotVerb::Delete(args)) => snapshot_delete::run(&context, args),
            Noun::Snapshot(SnapshotVerb::Rollback(args)) => snapshot_rollback::run(&context, args),
            Noun::Volume(VolumeVerb::Clone(args)) => volume_clone::run(&context, args),
            Noun::Volume(VolumeVerb::Create(args)) => volume_create::run(&context, args),
            Noun::Volume(VolumeVerb::Import(args)) => volume_import::run(&context, args),
            Noun::Volume(VolumeVerb::Export(args)) => volume_export::run(&context, args),
            Noun::Volume(VolumeVerb::List) => volume_list::run(&context),
            Noun::Volume(VolumeVerb::Stat(args)) => volume_stat::run(&context, args),
            Noun::Volume(VolumeVerb::Set(args)) => volume_set::run(&context, args),
            Noun::Volume(VolumeVerb::Resize(args)) => volume_resize::run(&context, args),
            Noun::Volume(VolumeVerb::Rename(args)) => volume_rename::run(&context, args),
            Noun::Volume(VolumeVerb::Delete(args)) => volume_delete::run(&context, args),
            Noun::Analyze(args) => analyze::run(&context, &args),
            Noun::Bench(args) => bench::run(&context, &args),
            Noun::Serve(args) => serve::run(&context, args),
        }
    }
}

/// For clap: a size such as `20G`.
fn parse_size(text: &str) -> std::result::Result<u64, String> {
    size::parse(text)
}

/// For clap: a time such as `2ms`.
fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    duration::parse(text)
}
