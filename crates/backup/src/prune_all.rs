//! Prunes several sources, and the popular blocks that they share. A source that is in use or damaged is left out, and
//! the others are pruned.

use std::path::Path;
use std::time::Duration;

use onefold_repository::{KnownSource, Sources, Writer, now_unix_seconds};

use crate::create::Report;
use crate::error::{BackupError, Result};
use crate::finding::find_source;
use crate::opening::Opened;
use crate::popular::{PrunedPopular, plan_popular, prune_popular};
use crate::prune::{PruneOptions, PrunePlan, prune};
use crate::room::Room;
use crate::supervision::{ProgressUnit, Stage};

/// How long popular blocks stay condemned in a folder that other hosts may see with a delay.
const GRACE: Duration = Duration::from_secs(3600);

/// Magic numbers of file systems that show the current content of folders (statfs(2)): ext2 to ext4, XFS,
/// Btrfs, tmpfs, ZFS, F2FS, bcachefs and overlays of them.
const LOCAL: [u32; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x2fc1_2fc1,
    0xf2f5_2010,
    0xca45_1a4e,
    0x794c_7630,
];

/// What to prune, and how.
#[derive(Debug)]
pub struct PruneAll<'a> {
    /// The repository.
    pub opened: &'a Opened,
    /// How each source is pruned.
    pub options: PruneOptions,
    /// Time between finding that no backup needs a popular block and removing it. `None` for an hour on file systems
    /// that other hosts may see with a delay, and no time on others.
    pub grace: Option<Duration>,
    /// Whether the plan is carried out.
    pub is_to_change: bool,
}

/// A source that was pruned, or a plan for it.
#[derive(Debug)]
pub struct PrunedSource {
    /// The source.
    pub source: KnownSource,
    /// The plan.
    pub plan: PrunePlan,
    /// Bytes by which the packs shrank; `None` if the plan was not carried out.
    pub freed_bytes: Option<u64>,
}

/// What was pruned, or would be.
#[derive(Debug, Default)]
pub struct PrunedAll {
    /// The sources.
    pub sources: Vec<PrunedSource>,
    /// The stores of popular blocks, with their results.
    pub popular: Vec<(KnownSource, PrunedPopular)>,
    /// Why sources were left out: another process is changing them, or they are damaged.
    pub left: Vec<BackupError>,
}

impl PruneAll<'_> {
    /// Prunes the sources with these names; without names, all sources and the popular blocks.
    ///
    /// # Errors
    ///
    /// If a source does not exist, or the sources cannot be listed. If nothing could be pruned, the last reason.
    pub fn run(&self, names: &[String]) -> Result<PrunedAll> {
        let sources = self.find(names)?;
        let room = Room::new(self.opened.repository(), self.is_to_change)?;
        let mut done = PrunedAll {
            left: sources.damaged.into_iter().map(BackupError::from).collect(),
            ..PrunedAll::default()
        };
        let all = sources.disks.into_iter().chain(sources.popular);
        for source in self.free(all.collect(), &mut done.left)? {
            // Disks come first, so that popular blocks that only they needed go in the same run.
            if source.source.is_popular() {
                match room.with(|| self.popular(&source)) {
                    Ok(pruned) => done.popular.push((source, pruned)),
                    Err(error) => done.left.push(error),
                }
            } else {
                match room.with(|| self.source(&source)) {
                    Ok(pruned) => done.sources.push(pruned),
                    Err(error) => done.left.push(error),
                }
            }
        }
        if done.sources.is_empty()
            && done.popular.is_empty()
            && let Some(error) = done.left.pop()
        {
            return Err(error);
        }
        Ok(done)
    }

    fn find(&self, names: &[String]) -> Result<Sources> {
        let repository = self.opened.repository();
        if names.is_empty() {
            return Ok(repository.sources()?);
        }
        let disks = names.iter().map(|name| find_source(repository, name));
        Ok(Sources {
            disks: disks.collect::<Result<_>>()?,
            ..Sources::default()
        })
    }

    /// The sources whose lease is free. A plan needs no leases, so it includes all sources.
    fn free(
        &self,
        mut sources: Vec<KnownSource>,
        left: &mut Vec<BackupError>,
    ) -> Result<Vec<KnownSource>> {
        if self.is_to_change {
            let ids: Vec<_> = sources.iter().map(|source| source.id).collect();
            let mut waited = self.opened.repository().wait_for_leases(&ids)?.into_iter();
            sources.retain(|_| match waited.next() {
                Some(Err(error)) => {
                    left.push(error.into());
                    false
                }
                _ => true,
            });
        }
        Ok(sources)
    }

    fn source(&self, source: &KnownSource) -> Result<PrunedSource> {
        self.opened.check(source.id)?;
        let source = source.clone();
        if !self.is_to_change {
            let plan = PrunePlan::new(self.opened.repository(), &source, &self.options)?;
            return Ok(PrunedSource {
                source,
                plan,
                freed_bytes: None,
            });
        }
        let writer = self.writer(&source)?;
        let label = format!("pruning {}", source.source.name);
        let pruned = self.stage(&label, |report| prune(&writer, &self.options, report))?;
        Ok(PrunedSource {
            source,
            plan: pruned.plan,
            freed_bytes: Some(pruned.freed_bytes),
        })
    }

    fn popular(&self, popular: &KnownSource) -> Result<PrunedPopular> {
        // Backups that are missing after a rollback of the storage may need the blocks.
        self.opened.check_all()?;
        if !self.is_to_change {
            let plan = plan_popular(self.opened.repository(), popular, &self.options)?;
            return Ok(PrunedPopular::planned(plan));
        }
        let writer = self.writer(popular)?;
        let usual = || usual_grace(self.opened.root());
        let grace = self.grace.unwrap_or_else(usual);
        let (now, grace) = (now_unix_seconds(), grace.as_secs());
        self.stage("pruning popular blocks", |report| {
            prune_popular(&writer, &self.options, now, grace, report)
        })
    }

    fn writer(&self, source: &KnownSource) -> Result<Writer<'_>> {
        let repository = self.opened.repository();
        Ok(repository.writer(source.id, "backup prune")?)
    }

    fn stage<T>(&self, label: &str, work: impl FnOnce(Report<'_>) -> Result<T>) -> Result<T> {
        let stage = Stage {
            label,
            unit: ProgressUnit::Bytes,
            if_interrupted: "all backups are as they were, and the same command does the rest",
        };
        self.opened.supervision().stage(stage, work)
    }
}

/// The default grace period: other hosts may see an old listing of a folder on a network file system.
fn usual_grace(root: &Path) -> Duration {
    let stat = rustix::fs::statfs(root);
    if stat.is_ok_and(|stat| LOCAL.contains(&(stat.f_type as u32))) {
        Duration::ZERO
    } else {
        GRACE
    }
}
