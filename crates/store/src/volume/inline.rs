//! The state of in-line deduplication of one volume: counts, and whether a volume with `--dedup auto` looks up
//! blocks at present.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use onefold_format::DedupMode;
use onefold_index::Key;
use onefold_metadata::Refusal;
use onefold_metadata::sync::{AtomicBool, AtomicU64, Mutex, lock};

/// The approximate number of requests over which a volume's share of hits is averaged.
const SHARE_REQUESTS: u64 = 16;

/// A share of 100 %.
const SHARE_MAX: u64 = 1 << 16;

/// While it is off-line, `auto` looks up the first [`PROBED_BLOCKS`] of this many blocks written:
/// duplicates come in runs, and 64 in 4,096 cost 0.04 µs for each block written.
const PROBE_BLOCKS: u64 = 4096;
const PROBED_BLOCKS: u64 = 64;

/// Blocks written between two decisions of `auto`.
const WINDOW_BLOCKS: u64 = 16_384;

/// Windows in a row that must agree before `auto` switches.
const WINDOWS: u32 = 2;

/// The percentages of hits at which `auto` switches.
#[derive(Debug, Clone, Copy)]
struct Thresholds {
    on_percent: u64,
    off_percent: u64,
}

/// A hit saves a write that waits for the device.
const PAST_CACHE: Thresholds = Thresholds {
    on_percent: 30,
    off_percent: 10,
};

/// A write into the host's cache costs little more than a fingerprint.
const IN_CACHE: Thresholds = Thresholds {
    on_percent: 50,
    off_percent: 25,
};

/// Counts of a volume's in-line deduplication since it was opened, in blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InlineStat {
    /// Whether writes are looked up in the index now.
    #[cfg_attr(feature = "api", serde(rename = "on"))]
    pub is_on: bool,
    /// Blocks that writes checked for duplicates: the sum of the next five fields.
    pub scanned_blocks: u64,
    /// Blocks of zeros, which are never stored.
    pub zero_blocks: u64,
    /// Blocks whose fingerprint an earlier write had found shortly before.
    pub recently_seen_blocks: u64,
    /// Blocks that the index's signatures in memory proved absent.
    pub absent_by_signature_blocks: u64,
    /// Blocks that a lookup did not find in the index.
    pub absent_blocks: u64,
    /// Blocks that a lookup found in the index.
    pub found_blocks: u64,
    /// Blocks that were not written because a published block has the same content.
    pub hit_blocks: u64,
    /// Blocks that were found in the index but written anyway, by reason.
    pub refused: RefusedCounts,
    /// When `auto` switched last, and why. Not in JSON: a reply gives the time since.
    #[cfg_attr(feature = "api", serde(skip))]
    pub last_switch: Option<AutoSwitch>,
    /// Set while `auto` would be in-line if guests were not strained. Not in JSON: a reply gives the time since.
    #[cfg_attr(feature = "api", serde(skip))]
    pub held_back: Option<AutoHeldBack>,
}

impl InlineStat {
    /// Blocks that were looked up and stored.
    #[must_use]
    pub fn miss_blocks(&self) -> u64 {
        self.scanned_blocks
            .saturating_sub(self.zero_blocks + self.hit_blocks)
    }
}

/// Blocks that were found in the index in line but written anyway, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = RefusedReply))]
pub struct RefusedCounts {
    /// The lookup was out of date: published blocks had been freed since, or the index was being rebuilt.
    pub outdated_blocks: u64,
    /// The collector was releasing references to the block.
    pub releasing_blocks: u64,
    /// The finder was publishing the block.
    pub unsettled_blocks: u64,
    /// The block is known to be bad.
    pub bad_blocks: u64,
    /// The limit on claims was reached.
    pub claims_full_blocks: u64,
    /// The collector was waiting for all claims to be counted.
    pub held_blocks: u64,
    /// The pool was shrinking.
    pub shrinking_blocks: u64,
    /// The hit would have left too little space for the volume's reservation.
    pub reserved_blocks: u64,
    /// The bytes differed, or the published block could not be read (`--verify`).
    pub different_blocks: u64,
    /// The run was shorter than `--min-run`.
    pub short_run_blocks: u64,
}

impl RefusedCounts {
    /// Each reason, named as in metrics and documents, with its number of blocks.
    #[must_use]
    pub fn by_reason(&self) -> [(&'static str, u64); 10] {
        [
            ("outdated", self.outdated_blocks),
            ("releasing", self.releasing_blocks),
            ("unsettled", self.unsettled_blocks),
            ("bad", self.bad_blocks),
            ("claims-full", self.claims_full_blocks),
            ("held", self.held_blocks),
            ("shrinking", self.shrinking_blocks),
            ("reserved", self.reserved_blocks),
            ("different", self.different_blocks),
            ("short-run", self.short_run_blocks),
        ]
    }

    /// The sum over all reasons.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.by_reason().iter().map(|(_, blocks)| blocks).sum()
    }
}

/// A switch of `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoSwitch {
    /// True for a switch to in-line, false for one to off-line.
    pub to_inline: bool,
    /// The share of hits in the window that decided.
    pub hit_percent: u64,
    /// When it switched.
    pub at: Instant,
}

/// `auto` finds enough duplicates to go in-line, and does not while guests are strained: see
/// [`Store::set_guests_strained`](crate::Store::set_guests_strained).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoHeldBack {
    /// The share of hits in the last window.
    pub hit_percent: u64,
    /// When it would have switched.
    pub since: Instant,
}

/// Why a block that was found is stored all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    Refused(Refusal),
    Reserved,
    /// A block that was found has become known to be bad.
    Bad,
}

/// Results of the lookup for the blocks of one piece, in filter order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) zeros: u64,
    pub(super) recent: u64,
    pub(super) absent_by_signature: u64,
    pub(super) absent: u64,
    pub(super) found: u64,
    /// Blocks that were found and rejected as hits before the record is appended.
    pub(super) bad: u64,
    pub(super) different: u64,
    pub(super) short_run: u64,
}

impl Tally {
    fn looked_up(&self) -> u64 {
        self.recent + self.absent_by_signature + self.absent + self.found
    }
}

/// The state of in-line deduplication of one volume.
pub(super) struct Inline {
    /// The key of the volume's domain.
    pub(super) key: Key,
    counts: Mutex<InlineStat>,
    /// The share of found blocks in recent requests, of [`SHARE_MAX`].
    share: AtomicU64,
    auto: Auto,
}

impl Inline {
    pub(super) fn new(key: Key) -> Self {
        Self {
            key,
            counts: Mutex::default(),
            share: AtomicU64::new(0),
            auto: Auto::default(),
        }
    }

    /// Whether the next piece is looked up.
    pub(super) fn looks_up(&self, mode: DedupMode) -> bool {
        match mode {
            DedupMode::Off | DedupMode::Offline => false,
            DedupMode::Inline => true,
            DedupMode::Auto => self.auto.looks_up(),
        }
    }

    /// Whether most blocks of recent requests were found.
    pub(super) fn are_most_found(&self) -> bool {
        self.share.load(Relaxed) > SHARE_MAX / 2
    }

    /// Updates the share of hits by a piece, which may be looked up again if its write would block.
    pub(super) fn note_share(&self, tally: &Tally) {
        let found = (tally.recent + tally.found) * SHARE_MAX;
        if let Some(share) = found.checked_div(tally.looked_up()) {
            // An update that is lost among many does not matter.
            let before = self.share.load(Relaxed);
            let after = (before * (SHARE_REQUESTS - 1) + share) / SHARE_REQUESTS;
            self.share.store(after, Relaxed);
        }
    }

    /// Counts blocks that were written, looked up or not.
    pub(super) fn note_blocks(&self, blocks: u64) {
        self.auto.written.fetch_add(blocks, Relaxed);
    }

    /// Counts the blocks of a piece that was looked up and written.
    pub(super) fn note(&self, tally: &Tally, circumstances: Circumstances) {
        let found = tally.recent + tally.found;
        let mut counts = lock(&self.counts);
        counts.scanned_blocks += tally.looked_up() + tally.zeros;
        counts.zero_blocks += tally.zeros;
        counts.recently_seen_blocks += tally.recent;
        counts.absent_by_signature_blocks += tally.absent_by_signature;
        counts.absent_blocks += tally.absent;
        counts.found_blocks += tally.found;
        counts.refused.bad_blocks += tally.bad;
        counts.refused.different_blocks += tally.different;
        counts.refused.short_run_blocks += tally.short_run;
        drop(counts);
        if tally.looked_up() > 0 {
            self.auto.note(tally.looked_up(), found, circumstances);
        }
    }

    /// Counts blocks that were not written because of hits.
    pub(super) fn note_hits(&self, blocks: u64) {
        lock(&self.counts).hit_blocks += blocks;
    }

    /// Counts blocks that were found and are written all the same.
    pub(super) fn note_not_taken(&self, why: NotTaken, blocks: u64) {
        let mut counts = lock(&self.counts);
        let refused = &mut counts.refused;
        let counter = match why {
            NotTaken::Refused(Refusal::Outdated) => &mut refused.outdated_blocks,
            NotTaken::Refused(Refusal::Releasing) => &mut refused.releasing_blocks,
            NotTaken::Refused(Refusal::Unsettled) => &mut refused.unsettled_blocks,
            NotTaken::Refused(Refusal::ClaimsFull) => &mut refused.claims_full_blocks,
            NotTaken::Refused(Refusal::Held) => &mut refused.held_blocks,
            NotTaken::Refused(Refusal::Shrinking) => &mut refused.shrinking_blocks,
            NotTaken::Reserved => &mut refused.reserved_blocks,
            NotTaken::Bad => &mut refused.bad_blocks,
        };
        *counter += blocks;
    }

    pub(super) fn stat(&self, mode: DedupMode) -> InlineStat {
        let counts = lock(&self.counts).clone();
        let (last_switch, held_back) = match mode {
            DedupMode::Auto => self.auto.switches(),
            DedupMode::Off | DedupMode::Offline | DedupMode::Inline => (None, None),
        };
        InlineStat {
            is_on: match mode {
                DedupMode::Off | DedupMode::Offline => false,
                DedupMode::Inline => true,
                DedupMode::Auto => self.auto.is_on.load(Relaxed),
            },
            last_switch,
            held_back,
            ..counts
        }
    }
}

/// `--dedup auto`: off-line until duplicates come, in-line while they do.
#[derive(Default)]
struct Auto {
    is_on: AtomicBool,
    /// Blocks written.
    written: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    looked_up: u64,
    found: u64,
    /// Where the window ends, in [`Auto::written`].
    end: u64,
    /// Windows in a row for a switch.
    agreeing: u32,
    last_switch: Option<AutoSwitch>,
    held_back: Option<AutoHeldBack>,
}

/// The conditions besides hits that `auto` decides by.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Circumstances {
    /// Writes wait for the device.
    pub(super) past_cache: bool,
    pub(super) guests_strained: bool,
}

impl Auto {
    fn looks_up(&self) -> bool {
        let at = self.written.load(Relaxed);
        self.is_on.load(Relaxed) || at % PROBE_BLOCKS < PROBED_BLOCKS
    }

    fn switches(&self) -> (Option<AutoSwitch>, Option<AutoHeldBack>) {
        let window = lock(&self.window);
        (window.last_switch, window.held_back)
    }

    fn note(&self, looked_up: u64, found: u64, circumstances: Circumstances) {
        let written = self.written.load(Relaxed);
        let mut window = lock(&self.window);
        window.looked_up += looked_up;
        window.found += found;
        if written < window.end {
            return;
        }
        let is_first = window.end == 0;
        window.end = written + WINDOW_BLOCKS;
        let hit_percent = 100 * window.found / window.looked_up.max(1);
        (window.looked_up, window.found) = (0, 0);
        if is_first {
            return;
        }
        let thresholds = if circumstances.past_cache {
            PAST_CACHE
        } else {
            IN_CACHE
        };
        let is_on = self.is_on.load(Relaxed);
        let wants_switch = if is_on {
            hit_percent < thresholds.off_percent
        } else {
            hit_percent >= thresholds.on_percent
        };
        window.agreeing = if wants_switch { window.agreeing + 1 } else { 0 };
        let is_decided = window.agreeing >= WINDOWS;
        // It would cost every write a fingerprint, just when there is no processor time for it.
        if is_decided && !is_on && circumstances.guests_strained {
            let before = window.held_back;
            if before.is_none() {
                tracing::info!(
                    "dedup auto: not in-line while guests are strained, though {hit_percent} % of the \
                     blocks were found"
                );
            }
            let since = before.map_or_else(Instant::now, |before| before.since);
            window.held_back = Some(AutoHeldBack { hit_percent, since });
            return;
        }
        window.held_back = None;
        if is_decided {
            window.agreeing = 0;
            self.is_on.store(!is_on, Relaxed);
            window.last_switch = Some(AutoSwitch {
                to_inline: !is_on,
                hit_percent,
                at: Instant::now(),
            });
            let to = if is_on { "off-line" } else { "in-line" };
            tracing::info!("dedup auto: {to}, since {hit_percent} % of the blocks were found");
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn write(auto: &Auto, blocks: u64, found_percent: u64) {
        write_while(auto, blocks, found_percent, false);
    }

    fn write_while(auto: &Auto, blocks: u64, found_percent: u64, guests_strained: bool) {
        let circumstances = Circumstances {
            past_cache: true,
            guests_strained,
        };
        let mut looked_up = 0;
        for _ in 0..blocks {
            if auto.looks_up() {
                looked_up += 1;
                let is_found = looked_up * 7 % 100 < found_percent;
                auto.note(1, u64::from(is_found), circumstances);
            }
            auto.written.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn auto_goes_in_line_with_duplicates_and_back_without() {
        let auto = Auto::default();
        let is_on = |auto: &Auto| auto.is_on.load(Relaxed);
        write(&auto, 10 * WINDOW_BLOCKS, 20);
        assert!(!is_on(&auto), "too few are found");
        write(&auto, 4 * WINDOW_BLOCKS, 60);
        assert!(is_on(&auto));
        write(&auto, 10 * WINDOW_BLOCKS, 20);
        assert!(is_on(&auto), "between the two thresholds it stays as it is");
        write(&auto, 4 * WINDOW_BLOCKS, 0);
        assert!(!is_on(&auto));
        let switch = lock(&auto.window).last_switch.unwrap();
        assert_eq!((switch.to_inline, switch.hit_percent), (false, 0));
    }

    #[test]
    fn auto_does_not_go_in_line_while_guests_are_strained() {
        let auto = Auto::default();
        let is_on = |auto: &Auto| auto.is_on.load(Relaxed);
        write_while(&auto, 2 * WINDOW_BLOCKS, 60, true);
        assert_eq!(auto.switches(), (None, None), "one window is not enough");
        write_while(&auto, 2 * WINDOW_BLOCKS, 60, true);
        let (last_switch, held_back) = auto.switches();
        let held_back = held_back.unwrap();
        assert!((50..70).contains(&held_back.hit_percent));
        write_while(&auto, 2 * WINDOW_BLOCKS, 60, true);
        assert!(!is_on(&auto) && last_switch.is_none());
        let since = auto.switches().1.unwrap().since;
        assert_eq!(since, held_back.since, "it is the same all the time");
        write_while(&auto, 2 * WINDOW_BLOCKS, 20, true);
        assert_eq!(
            auto.switches(),
            (None, None),
            "it would not switch any more"
        );

        write_while(&auto, 4 * WINDOW_BLOCKS, 60, true);
        assert!(auto.switches().1.is_some());
        write(&auto, 2 * WINDOW_BLOCKS, 60);
        assert!(is_on(&auto), "the strain is over");
        let (last_switch, held_back) = auto.switches();
        assert!(last_switch.unwrap().to_inline && held_back.is_none());
    }

    #[test]
    fn strained_guests_neither_send_auto_off_line_nor_keep_it_in_line() {
        let auto = Auto::default();
        let is_on = |auto: &Auto| auto.is_on.load(Relaxed);
        write(&auto, 4 * WINDOW_BLOCKS, 60);
        write_while(&auto, 4 * WINDOW_BLOCKS, 60, true);
        assert!(is_on(&auto));
        write_while(&auto, 4 * WINDOW_BLOCKS, 0, true);
        let (last_switch, held_back) = auto.switches();
        assert!(!is_on(&auto) && held_back.is_none());
        assert!(!last_switch.unwrap().to_inline);
    }

    #[test]
    fn off_line_auto_looks_up_one_block_of_64() {
        let auto = Auto::default();
        let looked_up = (0..16 * PROBE_BLOCKS).filter(|_| {
            let looks_up = auto.looks_up();
            auto.written.fetch_add(1, Relaxed);
            looks_up
        });
        let looked_up = looked_up.count();
        assert_eq!(looked_up as u64, 16 * PROBED_BLOCKS);
    }
}
