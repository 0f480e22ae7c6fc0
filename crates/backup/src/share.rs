//! Makes popular the contents that are stored more than once, in whatever order the sources of a domain were backed up
//! [Zhang14 §4.2]. It partitions the tables of all packs, and stores one copy of each repeated content that no popular
//! block has as a popular block.
//!
//! Existing copies, recipes and manifests stay as they are: the next `prune` of a source moves its copies to the
//! popular blocks (`moves.rs`). Nothing refers to the new popular blocks before that, so an interrupted `share` loses
//! only time: the blocks that it completed are popular, and the next one continues.
//!
//! It holds the lease of the popular blocks, so none of them can be condemned concurrently, and no two commands store
//! the same content.

use std::collections::BTreeMap;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{NumberRun, Slot, SourceId};
use onefold_index::Key;
use onefold_repository::{KnownSource, Pack, Repository, Writer};

use crate::contents::{Contents, Store};
use crate::create::Report;
use crate::error::Result;
use crate::moves::{add_usable, condemned};
use crate::numbers::merged;
use crate::partitions::{Partitions, ROW_BYTES, of_row, row};
use crate::records::Place;
use crate::store::{self, Target, store_groups};

/// Packs per partition, so that the blocks copied from one partition fit into memory.
const PART_PACKS: u64 = 16;

/// Sources that share popular blocks: sources of one domain with the same block size.
#[derive(Debug, Clone)]
pub struct Relatives {
    /// The store of their popular blocks, which may not exist yet.
    pub popular: SourceId,
    /// The sources, by name.
    pub sources: Vec<KnownSource>,
}

impl Relatives {
    /// The domain of the sources.
    #[must_use]
    pub fn domain(&self) -> &str {
        let first = self.sources.first();
        first.map_or("", |known| &known.source.domain)
    }
}

/// Options for sharing.
#[derive(Debug, Clone, Copy)]
pub struct ShareOptions {
    /// The compression level for zstd.
    pub level: i32,
    /// Threads that compress.
    pub threads: usize,
    /// Memory for finding equal contents, in bytes.
    pub memory_bytes: usize,
}

/// The effect of sharing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharePlan {
    /// Blocks that become popular.
    pub copied_blocks: u64,
    /// The sources' blocks whose content will be popular: pruning with no waste allowed then frees all of them.
    pub freed_blocks: u64,
    /// Messages about objects that cannot be read and are skipped.
    pub damaged: Vec<String>,
}

/// The result of sharing.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The plan made under the lease.
    pub plan: SharePlan,
    /// Blocks stored as popular blocks: fewer than planned if some are damaged.
    pub copied_blocks: u64,
    /// Bytes of the popular packs that were written.
    pub stored_bytes: u64,
}

/// Groups sources by domain and block size: the sources of a group share popular blocks.
#[must_use]
pub fn relatives(repository: &Repository, sources: Vec<KnownSource>) -> Vec<Relatives> {
    let mut all: BTreeMap<_, Relatives> = BTreeMap::new();
    for known in sources {
        let key = (known.source.domain.clone(), known.source.block_size);
        let popular = repository.popular_id(&known.source);
        let relatives = all.entry(key).or_insert_with(|| Relatives {
            popular,
            sources: Vec::new(),
        });
        relatives.sources.push(known);
    }
    all.into_values().collect()
}

/// Plans sharing. `report` receives the numbers of packs read and of all packs.
///
/// # Errors
///
/// Any failure of listing, or of temporary files; any error of `report`.
pub fn plan_share(
    repository: &Repository,
    relatives: &Relatives,
    memory_bytes: usize,
    report: Report<'_>,
) -> Result<SharePlan> {
    let found = Found::find(repository, relatives, memory_bytes, report)?;
    Ok(found.plan)
}

/// Stores contents that several blocks of the sources have, and no popular block, as popular blocks. `writer` holds the
/// lease of the popular blocks. If it is interrupted at any point, all backups stay as they were, and the next run
/// continues. `report` receives the number of packs read.
///
/// # Errors
///
/// As [`plan_share`]; any failure of writing.
pub fn share(
    writer: &Writer<'_>,
    relatives: &Relatives,
    options: &ShareOptions,
    report: Report<'_>,
) -> Result<Shared> {
    let repository = writer.repository();
    let mut found = Found::find(repository, relatives, options.memory_bytes, report)?;
    let mut shared = Shared {
        plan: SharePlan::default(),
        copied_blocks: 0,
        stored_bytes: 0,
    };
    if found.plan.copied_blocks > 0 {
        let target = Target {
            writer,
            of: writer.source(),
            first_pack: Repository::draw_popular_pack()?,
            level: options.level,
            threads: options.threads,
        };
        let mut copied = 0;
        let stored = store_groups(&target, |packs| {
            copied = found.copy(repository, packs, report)?;
            Ok(())
        })?;
        (shared.copied_blocks, shared.stored_bytes) = (copied, stored.bytes);
    }
    found.plan.damaged.sort();
    found.plan.damaged.dedup();
    shared.plan = found.plan;
    Ok(shared)
}

/// The blocks to copy.
struct Found {
    plan: SharePlan,
    stores: Vec<Store>,
    /// The places of the contents, one for each, partitioned by the stores' packs.
    rows: Partitions<ROW_BYTES>,
    /// The first partition of each store.
    first_parts: Vec<usize>,
}

impl Found {
    fn find(
        repository: &Repository,
        relatives: &Relatives,
        memory_bytes: usize,
        report: Report<'_>,
    ) -> Result<Self> {
        let mut plan = SharePlan::default();
        let condemned = condemned(repository, relatives.popular)?;
        let count = relatives.sources.len();
        let mut popular = Store::list(repository, relatives.popular, count)?;
        let (mut stores, mut first_parts, mut parts) = (Vec::new(), Vec::new(), 0);
        for (index, source) in relatives.sources.iter().enumerate() {
            let store = Store::list(repository, source.id, index)?;
            first_parts.push(parts);
            parts += (store.blocks_max() / BLOCKS_PER_PACK).div_ceil(PART_PACKS) as usize;
            stores.push(store);
        }
        let blocks = stores.iter().map(Store::blocks_max).sum::<u64>() + popular.blocks_max();
        let mut contents = Contents::new(blocks, memory_bytes)?;
        for (done, (store, source)) in (0..).zip(stores.iter_mut().zip(&relatives.sources)) {
            report(done, count as u64)?;
            let needed = needed(repository, source, &mut plan.damaged)?;
            store.each(repository, &needed, &mut |found| match found.slot {
                Slot::Stored(fingerprint) => contents.add(fingerprint, found.place),
                _ => Ok(()),
            })?;
            plan.damaged.append(&mut store.damaged);
        }
        // If the list of condemned blocks is unreadable, no popular block is used.
        if let Some(condemned) = condemned {
            add_usable(repository, &mut popular, &condemned, &mut contents)?;
        }
        plan.damaged.append(&mut popular.damaged);
        report(count as u64, count as u64)?;
        let mut found = Self {
            plan,
            rows: Partitions::new(parts, memory_bytes / 8)?,
            stores,
            first_parts,
        };
        contents.each(|fingerprint, places| found.decide(fingerprint, places))?;
        Ok(found)
    }

    fn decide(&mut self, fingerprint: [u8; 16], places: &[Place]) -> Result<()> {
        let sources = self.stores.len();
        let own = places.partition_point(|place| place.disk() < sources);
        if own < places.len() {
            self.plan.freed_blocks += own as u64;
        } else if own > 1 {
            self.plan.freed_blocks += own as u64;
            self.plan.copied_blocks += 1;
            let first = places[0];
            let part = (first.block() / BLOCKS_PER_PACK / PART_PACKS) as usize;
            let part = self.first_parts[first.disk()] + part;
            self.rows.push(part, row(fingerprint, first))?;
        }
        Ok(())
    }

    /// Copies the blocks in the order of their numbers. Returns how many were readable.
    fn copy(
        &mut self,
        repository: &Repository,
        packs: &mut store::Writer<'_>,
        report: Report<'_>,
    ) -> Result<u64> {
        let key = Key::derive(&repository.fingerprint_secret(), 0);
        let (all, mut done) = (self.plan.copied_blocks, 0);
        let (stores, damaged) = (&self.stores, &mut self.plan.damaged);
        let mut group = Group::default();
        for part in 0..self.rows.count() {
            let mut rows = self.rows.take(part)?;
            rows.sort_unstable_by_key(|row| of_row(row).1);
            for of_pack in rows.chunk_by(|a, b| pack_of(stores, a) == pack_of(stores, b)) {
                let (store, number, generation) = pack_of(stores, &of_pack[0]);
                done += of_pack.len() as u64;
                match repository.pack_or_newer(store, number, generation) {
                    Ok(Some(pack)) => {
                        let mut source = Copied {
                            pack: &pack,
                            key: &key,
                            damaged,
                        };
                        source.copy(of_pack, &mut group, packs)?;
                    }
                    // A concurrent prune removed the pack.
                    Ok(None) => {}
                    Err(error) if error.is_of_object() => {
                        damaged.push(error.to_string());
                    }
                    Err(error) => return Err(error.into()),
                }
                report(done, all)?;
            }
        }
        group.send(packs)?;
        Ok(group.sent)
    }
}

/// The owner of a row's pack, and the pack's number and generation.
fn pack_of(stores: &[Store], row: &[u8; ROW_BYTES]) -> (SourceId, u64, u32) {
    let place = of_row(row).1;
    let store = &stores[place.disk()];
    let (number, generation) = store.pack(place);
    (store.id, number, generation)
}

/// The numbers that the backups of a source need. Skips unreadable backups.
fn needed(
    repository: &Repository,
    source: &KnownSource,
    damaged: &mut Vec<String>,
) -> Result<Vec<NumberRun>> {
    let mut needed = Vec::new();
    for backup in repository.backups(source.id)? {
        match repository.listed_manifest(source.id, backup) {
            Ok(None) => {}
            Ok(Some(manifest)) => needed.extend(manifest.own),
            Err(error) if error.is_of_object() => damaged.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        needed = merged(needed);
    }
    Ok(needed)
}

/// A pack from which blocks are copied.
struct Copied<'a> {
    pack: &'a Pack,
    key: &'a Key,
    damaged: &'a mut Vec<String>,
}

impl Copied<'_> {
    /// Copies the blocks that are still there and match their fingerprints.
    fn copy(
        &mut self,
        rows: &[[u8; ROW_BYTES]],
        group: &mut Group,
        packs: &mut store::Writer<'_>,
    ) -> Result<()> {
        let in_pack = |row: &[u8; ROW_BYTES]| (of_row(row).1.block() % BLOCKS_PER_PACK) as usize;
        let group_of = |row: &[u8; ROW_BYTES]| in_pack(row) / BLOCKS_PER_GROUP;
        let block_bytes = self.pack.block_size() as usize;
        let mut found = Vec::new();
        for of_group in rows.chunk_by(|a, b| group_of(a) == group_of(b)) {
            let content = match self.pack.read_group(group_of(&of_group[0])) {
                Ok(content) => content,
                Err(error) if error.is_of_object() => {
                    self.damaged.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for row in of_group {
                let (fingerprint, block) = (of_row(row).0, in_pack(row));
                let slot = self.pack.slots().get(block).copied();
                if slot != Some(Slot::Stored(fingerprint)) {
                    continue;
                }
                let (_, at) = self.pack.find(block)?;
                let content = content.get(at..at + block_bytes).unwrap_or_default();
                found.clear();
                self.key.fingerprints(content, block_bytes, &mut found);
                if found.first().is_some_and(|first| first.0 == fingerprint) {
                    group.add(fingerprint, content, packs)?;
                } else {
                    let number = self.pack.reference().number * BLOCKS_PER_PACK + block as u64;
                    let message =
                        format!("stored block {number} does not have the content that was stored");
                    self.damaged.push(message);
                }
            }
        }
        Ok(())
    }
}

/// Blocks that are compressed and sealed together.
#[derive(Default)]
struct Group {
    fingerprints: Vec<[u8; 16]>,
    content: Vec<u8>,
    /// How many blocks earlier groups had.
    sent: u64,
}

impl Group {
    fn add(
        &mut self,
        fingerprint: [u8; 16],
        content: &[u8],
        packs: &mut store::Writer<'_>,
    ) -> Result<()> {
        self.fingerprints.push(fingerprint);
        self.content.extend_from_slice(content);
        if self.fingerprints.len() == BLOCKS_PER_GROUP {
            self.send(packs)
        } else {
            Ok(())
        }
    }

    fn send(&mut self, packs: &mut store::Writer<'_>) -> Result<()> {
        if self.fingerprints.is_empty() {
            return Ok(());
        }
        self.sent += self.fingerprints.len() as u64;
        let fingerprints = std::mem::take(&mut self.fingerprints);
        packs.send(fingerprints, std::mem::take(&mut self.content))
    }
}
