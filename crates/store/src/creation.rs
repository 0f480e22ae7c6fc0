//! Creating a pool, or a group of a shared pool.

use std::io;

use onefold_engine::{Disk, Engine, Part, reserve};
use onefold_format::node::ROOT_SLOTS;
use onefold_format::page::PAGE_BYTES;
use onefold_format::superblock::{self, LOG_BYTES_MAX, LOG_BYTES_MIN};
use onefold_format::units::{BLOCK_SIZES, PBA_END, SECTOR_BYTES};
use onefold_format::{
    GroupId, IndexKind, MINOR_OF_GROUPS, MINOR_VERSION, PoolId, Provisioning, Root, Secret,
    Superblock, TreeRoot, WhenFull,
};
use onefold_metadata::{Result, StoreError, StoreErrorKind, display_bytes};

use crate::batches;
use crate::recovery::part_error;

/// Bytes that are written together to allocate a pool's space.
const ALLOCATED_TOGETHER_BYTES: usize = 4 << 20;

/// Options for creating a pool.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Bytes in a block: 4096, 8192, 16384 or 65536.
    pub block_size: u32,
    /// Bytes for data: a multiple of the block size. A device's length is the most it can be.
    pub size_bytes: u64,
    /// Bytes in the log's ring, 256 KiB to 1 GiB. Bounds the replay at an opening.
    pub log_bytes: u64,
    /// The back end of the fingerprint index.
    pub index: IndexKind,
    /// Whether the data takes all of its space on the host at once, and keeps it.
    pub provisioning: Provisioning,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            block_size: 4096,
            size_bytes: 0,
            log_bytes: 32 << 20,
            index: IndexKind::Hash,
            provisioning: Provisioning::Thin,
        }
    }
}

impl CreateOptions {
    /// Refuses options with which no pool can be created.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the option that is impossible.
    pub fn check(&self) -> Result<()> {
        self.pool_blocks().map(drop)
    }

    /// The number of the pool's blocks, if the options are possible.
    fn pool_blocks(&self) -> Result<u64> {
        let invalid = |message: String| Err(StoreError::new(StoreErrorKind::Invalid, message));
        let CreateOptions {
            block_size,
            size_bytes,
            log_bytes,
            index: _,
            provisioning: _,
        } = *self;
        if !BLOCK_SIZES.contains(&block_size) {
            return invalid(format!(
                "a block has 4, 8, 16 or 64 KiB, not {block_size} bytes"
            ));
        }
        check_log(log_bytes)?;
        let pool_blocks = size_bytes / u64::from(block_size);
        match pool_size_problem(size_bytes, block_size.into()) {
            Some(problem) => invalid(problem),
            None => Ok(pool_blocks),
        }
    }
}

fn check_log(log_bytes: u64) -> Result<()> {
    let fits = (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_bytes);
    if fits && log_bytes.is_multiple_of(SECTOR_BYTES) {
        return Ok(());
    }
    let message = format!(
        "a log has 256 KiB to 1 GiB, in whole sectors of {SECTOR_BYTES} bytes, not {log_bytes} bytes"
    );
    Err(StoreError::new(StoreErrorKind::Invalid, message))
}

/// Writes the parts of a new pool, and reports the bytes that were written to allocate space, and how many there are. The
/// root comes last: without it there is no pool.
pub(crate) fn create(
    engine: &dyn Engine,
    options: &CreateOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let pool_blocks = options.pool_blocks()?;
    let pool = PoolId(
        engine
            .random_id()
            .map_err(|e| StoreError::io("making an id", e))?,
    );
    let superblock = Superblock {
        pool,
        block_size: options.block_size,
        log_bytes: options.log_bytes,
        created_unix_seconds: engine.unix_seconds(),
        index: options.index,
        group: None,
    };
    let part = |part, len| {
        engine
            .create(part, len)
            .map_err(|e| part_error(engine, part, e))
    };
    let identity = part(Part::Superblock, PAGE_BYTES as u64)?;
    let meta = part(Part::Meta, ROOT_SLOTS * PAGE_BYTES as u64)?;
    let log = part(Part::Log, options.log_bytes)?;
    let data = part(Part::Data, options.size_bytes)?;
    let secret_part = part(Part::Secret, PAGE_BYTES as u64)?;
    batches::create(engine, options.index, pool)?;

    step("reserving the log", reserve(&*log, options.log_bytes))?;
    step("syncing the log", log.sync())?;
    write_secret(engine, &*secret_part, pool)?;
    if options.provisioning == Provisioning::Thick {
        let allocated = allocate(&*data, options.size_bytes, progress);
        step("allocating space for the data", allocated)?;
    }
    write_label(&*data, pool, options.block_size)?;
    write_superblock(&*identity, &superblock)?;
    write_root(&*meta, pool, &first_root(pool_blocks, options.provisioning))
}

/// A new group of a shared pool.
#[derive(Debug, Clone, Copy)]
pub struct GroupOptions {
    /// The pool.
    pub pool: PoolId,
    /// The group, an id that was never used.
    pub group: GroupId,
    /// Bytes in a block of the pool.
    pub block_size: u32,
    /// Bytes in the log's ring, 256 KiB to 1 GiB. Bounds the replay at an opening.
    pub log_bytes: u64,
    /// How writes end for which the pool has no room.
    pub when_full: WhenFull,
}

/// Writes the label and the secret of a new shared pool, whose parts the engine of any group has.
pub(crate) fn create_shared(engine: &dyn Engine, pool: PoolId, block_size: u32) -> Result<()> {
    let data = engine
        .open(Part::Data)
        .map_err(|e| part_error(engine, Part::Data, e))?;
    let secret_part = engine
        .create(Part::Secret, PAGE_BYTES as u64)
        .map_err(|e| part_error(engine, Part::Secret, e))?;
    write_secret(engine, &*secret_part, pool)?;
    write_label(&*data, pool, block_size)
}

/// Writes the parts of a new group. The root comes last: without it there is no group.
pub(crate) fn create_group(engine: &dyn Engine, options: &GroupOptions) -> Result<()> {
    let GroupOptions {
        pool,
        group,
        block_size,
        log_bytes,
        when_full,
    } = *options;
    check_log(log_bytes)?;
    let superblock = Superblock {
        pool,
        block_size,
        log_bytes,
        created_unix_seconds: engine.unix_seconds(),
        index: IndexKind::Hash,
        group: Some(group),
    };
    let part = |part, len| {
        engine
            .create(part, len)
            .map_err(|e| part_error(engine, part, e))
    };
    let identity = part(Part::Superblock, PAGE_BYTES as u64)?;
    let meta = part(Part::Meta, ROOT_SLOTS * PAGE_BYTES as u64)?;
    let log = part(Part::Log, log_bytes)?;
    step("reserving the log", reserve(&*log, log_bytes))?;
    step("syncing the log", log.sync())?;
    write_superblock(&*identity, &superblock)?;
    let root = Root {
        minor: MINOR_OF_GROUPS,
        when_full,
        ..first_root(PBA_END, Provisioning::Thin)
    };
    write_root(&*meta, pool, &root)
}

fn step(what: &str, done: io::Result<()>) -> Result<()> {
    done.map_err(|e| StoreError::io(format_args!("creating the pool: {what}"), e))
}

fn write_secret(engine: &dyn Engine, part: &dyn Disk, pool: PoolId) -> Result<()> {
    let secret = new_secret(engine)?.encode(pool);
    step("writing the secret", part.write_at(&secret[..], 0))?;
    step("syncing the secret", part.sync())
}

fn write_label(data: &dyn Disk, pool: PoolId, block_size: u32) -> Result<()> {
    let mut label = vec![0; block_size as usize];
    label[..PAGE_BYTES].copy_from_slice(&superblock::encode_data_label(pool)[..]);
    step("labelling the data", data.write_at(&label, 0))?;
    step("syncing the data", data.sync())
}

pub(crate) fn write_superblock(part: &dyn Disk, superblock: &Superblock) -> Result<()> {
    step(
        "writing the superblock",
        part.write_at(&superblock.encode()[..], 0),
    )?;
    step("syncing the superblock", part.sync())
}

pub(crate) fn write_root(meta: &dyn Disk, pool: PoolId, root: &Root) -> Result<()> {
    let at = root.slot().0 * PAGE_BYTES as u64;
    step(
        "writing the root",
        meta.write_at(&root.encode(pool)[..], at),
    )?;
    step("syncing the root", meta.sync())
}

/// The root of a new pool.
fn first_root(pool_blocks: u64, provisioning: Provisioning) -> Root {
    Root {
        minor: MINOR_VERSION,
        sequence: 1,
        session: 0,
        log_position: 0,
        commit: 0,
        frame_checksum: 0,
        next_volume_id: 1,
        next_layer_id: 1,
        catalogue: TreeRoot::default(),
        space: TreeRoot::default(),
        pool_blocks,
        next_domain_id: 1,
        when_full: WhenFull::default(),
        provisioning,
        queue: TreeRoot::default(),
        queue_head: 0,
        queue_end: 0,
        batch: TreeRoot::default(),
        open_batch: None,
        next_batch: 1,
        shrink_to: None,
        claims: TreeRoot::default(),
        claims_head: 0,
        claims_end: 0,
        exchanged: 0,
    }
}

/// Allocates all of a disk's space and writes zeros to it.
fn allocate(disk: &dyn Disk, len: u64, progress: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
    // Fails before anything is written.
    reserve(disk, len)?;
    let zeros = vec![0; ALLOCATED_TOGETHER_BYTES];
    let mut at = 0;
    while at < len {
        let bytes = (len - at).min(zeros.len() as u64);
        disk.write_at(&zeros[..bytes as usize], at)?;
        at += bytes;
        progress(at, len);
    }
    Ok(())
}

fn new_secret(engine: &dyn Engine) -> Result<Secret> {
    let mut secret = Secret([0; 32]);
    for half in secret.0.chunks_exact_mut(16) {
        let random = engine.random_id();
        half.copy_from_slice(&random.map_err(|e| StoreError::io("making a secret", e))?);
    }
    Ok(secret)
}

/// Why a pool cannot have this size.
pub(crate) fn pool_size_problem(size_bytes: u64, block_size: u64) -> Option<String> {
    let (least, most) = (2 * block_size, PBA_END.saturating_mul(block_size));
    let what = match size_bytes {
        bytes if bytes < least => "too small",
        bytes if bytes > most => "too large",
        _ => return None,
    };
    Some(format!(
        "a pool of {} is {what}: with blocks of {} it has {} to {}",
        display_bytes(size_bytes),
        display_bytes(block_size),
        display_bytes(least),
        display_bytes(most)
    ))
}
