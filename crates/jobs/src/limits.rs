//! Every bound of background work, with the reason for its value.

use std::time::Duration;

/// Guests are not strained while at least this part of one processor is idle: enough for a hundred
/// thousand fingerprints and lookups a second.
pub(crate) const PROCESSOR_LEFT_OVER: f64 = 0.25;

/// How long guests' requests are counted before their latency is judged. Shorter, and few requests
/// make chance rule; longer, and a guest suffers for longer before anything gives way.
pub(crate) const WINDOW: Duration = Duration::from_millis(100);

/// Guests that send fewer requests a second than this have nothing that could be slowed down: the
/// occasional writes of an idle system. One request in a window is below it.
pub(crate) const IDLE_REQUESTS_PER_SECOND: f64 = 20.0;

/// Guests are at rest once they have been idle for this long. Many make a burst of requests several times a second, and
/// work that begins in a pause would be in the way of the next burst.
pub(crate) const AT_REST_AFTER: Duration = Duration::from_secs(1);

/// The part of requests that must be within the budget.
pub(crate) const BUDGET_PERCENTILE: f64 = 0.99;

/// The requests of a store in a window from which its latency is judged for itself: with fewer, a single slow one would
/// be beyond [`BUDGET_PERCENTILE`].
pub(crate) const JUDGED_ALONE_REQUESTS: u64 = 100;

/// The share of time that work takes when guests are first seen busy. Low, because guests come
/// first; if they do not mind, a few seconds raise it to all.
pub(crate) const SHARE_START: f64 = 0.1;

/// The largest share of time that work takes while guests are busy: its batches make the disk write
/// at once the data that the guests' own flushes would have spread over time.
pub(crate) const SHARE_BUSY_MAX: f64 = 0.5;

/// The increase of the share for each [`WINDOW`] of time within the budget: from the floor to the
/// largest in little more than a second.
pub(crate) const SHARE_INCREASE: f64 = 0.02;

/// The most that one measurement adds, however long ago the last one was: a batch and the rest
/// after it may take seconds, and the load that guests tolerate is found in steps.
pub(crate) const SHARE_INCREASE_MAX: f64 = 0.1;

/// The factor on the share for a window beyond the budget: from the largest to the floor in seven
/// windows.
pub(crate) const SHARE_DECREASE: f64 = 0.7;

/// The finder's share is never less, so that its backlog does not grow for ever however slow the
/// disk is.
pub(crate) const FINDER_SHARE_FLOOR: f64 = 0.05;

/// The collector gets more: a pool that runs full fails writes, which is worse than slow ones.
pub(crate) const COLLECTOR_SHARE_FLOOR: f64 = 0.1;

/// Counting gets as much as the collector, which waits for it.
pub(crate) const COUNTING_SHARE_FLOOR: f64 = 0.1;

/// Deletions are not urgent until the pool is full; then there is little else to do.
pub(crate) const DELETION_SHARE_FLOOR: f64 = 0.01;

/// Each step of a deletion blocks changes of the maps for a moment, and the blocks it frees make
/// work for the disk. The steps are so few that they are not among the slowest hundredth of
/// requests: a snapshot of a million entries takes some fifteen seconds.
pub(crate) const DELETION_SHARE_MAX: f64 = 0.02;

/// Accounting is not urgent: its figures may be an hour old.
pub(crate) const ACCOUNTING_SHARE_FLOOR: f64 = 0.05;

/// How long a scan of the maps runs before it looks at guests' latency: a page takes some
/// microseconds, or a read of the disk.
pub(crate) const ACCOUNTING_SLICE: Duration = Duration::from_millis(2);

/// When a daemon first scans the maps: once its caches have filled with the guests' data.
pub(crate) const FIRST_ACCOUNTING: Duration = Duration::from_secs(60);
/// The scrub's share is never less. It has no backlog that grows, but a run should come to an end.
pub(crate) const SCRUB_SHARE_FLOOR: f64 = 0.02;

/// An operator waits for a volume to be copied, but guests wait for their requests.
pub(crate) const UNSHARE_SHARE_FLOOR: f64 = 0.05;

/// An operator waits for a backup, and its snapshots keep blocks that guests have overwritten.
pub(crate) const COPYING_SHARE_FLOOR: f64 = 0.05;

/// The most that is read for backups per second and processor while guests are busy. The read itself is a small part of
/// the cost to guests, a twentieth for data in memory. The rest is sending, receiving and fingerprinting the reply,
/// which fill the processors' caches. Guests share that cost among all processors.
pub(crate) const COPYING_BYTES_PER_SECOND: u64 = 16 << 20;

/// Bytes of a batch that are read at a time while guests are busy: few enough that guests do not meet a burst.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;

/// Bytes of a batch that are read at a time while guests are at rest: the whole batch with blocks of 4 KiB.
pub(crate) const PIECE_BYTES_IDLE: u64 = 64 << 20;

/// The longest rest after a piece on a fast disk: at least 10 MB/s are read, however slow guests' requests are, so that the
/// backlog does not grow for ever.
pub(crate) const PIECE_REST_MAX: Duration = Duration::from_millis(25);

/// The longest rest on a slow disk, by the time that a piece took: a fifth of the time is left for reading.
pub(crate) const PIECE_REST_FACTOR: u32 = 4;

/// The shortest rest after a piece while guests are busy: at most some 40 MB/s are read.
pub(crate) const PIECE_REST_MIN: Duration = Duration::from_millis(6);

/// Shorter rests are saved up: falling asleep and waking up would cost more than they give.
pub(crate) const REST_MIN: Duration = Duration::from_micros(400);

/// The longest rest after one batch, whatever its duration.
pub(crate) const REST_MAX: Duration = Duration::from_secs(5);

/// Pause after a batch that needs no rest: lets another job, which waits for its end, begin.
/// Batches take tens of milliseconds, so it costs about a hundredth.
pub(crate) const BATCH_GAP: Duration = Duration::from_micros(200);

/// Flushes of the device by one batch: of the data, the log and the index.
pub(crate) const BATCH_FLUSHES: u32 = 3;

/// The least time for each flush of the device by jobs while guests are busy, however many volumes have batches: on many
/// disks guests' requests wait for it, 5 to 20 ms. Longer, and the small batches of busy volumes leave a large backlog less
/// than 10 MB/s.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// How often idle threads check for work. The shortest interval between passes is the same.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often blocks that the device could not read are tried once more: each that it still cannot
/// read may keep it busy for seconds.
pub(crate) const LOOK_AGAIN_INTERVAL: Duration = Duration::from_secs(20);

/// The shortest interval between passes while guests are busy: a pass ends in a batch, which makes
/// the host write out everything that guests wrote, however little there is to publish.
pub(crate) const ROUND_INTERVAL_BUSY: Duration = Duration::from_secs(5);

/// How many claims are counted at once: a batch costs the disk the same however few claims it has.
pub(crate) const COUNT_BATCH_BLOCKS: u64 = 8192;

/// Counting waits for no turn to flush once there are as many claims as this: in turns it does not keep up with the guests.
pub(crate) const COUNT_IN_TURNS_BLOCKS: u64 = 4 * COUNT_BATCH_BLOCKS;

/// Counting stops resting for guests, and runs at ordinary priority, once claims reach this part of the claims whose
/// fingerprints fit in memory. Counting the others has to read their blocks, and at the limit of claims hits are refused,
/// which costs guests more.
pub(crate) const COUNT_PRESSING_DIVISOR: u64 = 2;

/// How long claims, or references that fill less than a batch, may gather.
pub(crate) const COLLECT_INTERVAL: Duration = Duration::from_secs(5);

/// How often a store of a shared pool ends the holds of its lookups in line, while it has any. Rows that are held cannot be
/// freed.
pub(crate) const HOLDS_INTERVAL: Duration = Duration::from_secs(1);

/// The same if a shard did not answer: asking it takes some time, in which nothing is counted.
pub(crate) const HOLDS_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long references may gather while guests are busy and the pool has room: most turns are left to the finder.
pub(crate) const COLLECT_INTERVAL_BUSY: Duration = Duration::from_secs(20);

/// The amount that is discarded at a time while guests are at rest: few holes for much space, and a guest that comes back
/// does not wait for long.
pub(crate) const GIVE_BACK_BYTES_IDLE: u64 = 1 << 20;

/// The amount that is discarded at a time while guests are busy: about 100 us in which no guest can write.
pub(crate) const GIVE_BACK_BYTES: u64 = 256 << 10;

/// How long the walk that finds spare blocks goes before others are preallocated.
pub(crate) const WALK_FIRST: Duration = Duration::from_secs(60);

/// The least pause after each piece of free space that is given back or preallocated while guests are busy: 10 MB/s, which
/// guests do not notice.
pub(crate) const TEND_PAUSE: Duration = Duration::from_millis(25);

/// The amount of free space that is preallocated at a time.
pub(crate) const PREALLOCATE_BYTES: u64 = 256 << 10;

/// The part of a pool that is kept as spare blocks even if guests use none, from [`SPARE_BYTES_MIN`] to an eighth of
/// [`SPARE_BYTES_MAX`]: a pool that is deduplicated for the first time copies many blocks in its next seconds.
pub(crate) const SPARE_POOL_DIVISOR: u64 = 64;

/// The least bytes in spare blocks.
pub(crate) const SPARE_BYTES_MIN: u64 = 16 << 20;

/// The most bytes in spare blocks: a thin pool is not made thick.
pub(crate) const SPARE_BYTES_MAX: u64 = 4 << 30;

/// The most of a small pool that is kept as spare blocks.
pub(crate) const SPARE_POOL_DIVISOR_MAX: u64 = 8;

/// The most of the room in the host's file system that is kept as spare blocks: others store there, too.
pub(crate) const SPARE_ROOM_DIVISOR: u64 = 8;

/// The time in which new blocks of small requests are counted.
pub(crate) const SPARE_INTERVAL: Duration = Duration::from_secs(60);

/// Spare blocks suffice for this many intervals as busy as the busiest recent one.
pub(crate) const SPARE_INTERVALS: u64 = 3;

/// How long preallocating rests after the host could not do it.
pub(crate) const PREALLOCATE_RETRY_PAUSE: Duration = Duration::from_secs(60);

/// The amount that `pool trim` discards at a time: few holes for much space, and no guest waits for
/// long.
pub(crate) const TRIM_BYTES: u64 = 1 << 20;

/// The amount that a growing thick pool allocates at a time: checkpoints wait for no more than that.
pub(crate) const ALLOCATE_BYTES: u64 = 1 << 20;

/// How often to check whether released blocks are free, and how many times at most: a read that
/// never ends delays the caller for at most half a minute.
pub(crate) const FREE_POLL_INTERVAL: Duration = Duration::from_millis(5);
pub(crate) const FREE_POLLS_MAX: u32 = 6000;

/// Pause after the first failure of a job; each further one doubles it.
pub(crate) const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest pause after a failure: the longest that an operator who has fixed the cause has to
/// wait.
pub(crate) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Pause of a volume's passes after one in which the index had no room: the same blocks would be
/// read and refused again, and room comes only with deletions or a larger limit.
pub(crate) const INDEX_FULL_PAUSE: Duration = Duration::from_secs(600);

/// Bytes per second are counted over at least this time.
pub(crate) const RATE_WINDOW: Duration = Duration::from_secs(2);

/// The pause between two steps of a shrink, in which readers and writers release their blocks.
pub(crate) const SHRINK_PAUSE: Duration = Duration::from_millis(50);

/// Steps in a row that free nothing, after which the rest stays: a second and more.
pub(crate) const SHRINK_STEPS_MAX: u32 = 30;
