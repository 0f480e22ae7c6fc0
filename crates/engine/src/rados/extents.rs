//! The space extents of a shared pool: which of them can be taken, and which blocks of the others the pool has. All hosts
//! change the one object by guarded operations.
//!
//! Rows of the object:
//! - `next`: the first extent that was never taken; extent 0 never is, because it has the pool's label.
//! - `limit`: the first extent beyond the pool.
//! - `free`: how many extents below `next` were given as a whole.
//! - `free.PAGE`: which ones of 4,096 consecutive extents these are, a bitmap; missing if there are none.
//! - `part.EXTENT`: the blocks that were given of an extent that is out, a bitmap; missing if there are none.
//! - `group.GROUP`: the group's last exchange: its number, the given runs, and the taken extents.
//!
//! Crash behaviour: each exchange is one operation, which asserts that the object is as it was read. A repeat finds its
//! number in the group's row.

use super::names::EXTENTS;
use super::rows::{self, Found, invalid, took_effect};
use super::space::{self, Bitmap, EXTENTS_END, FIRST, PAGE_EXTENTS, Space};
use crate::cluster::{Exchanged, ExtentCounts};
use onefold_format::record::EXCHANGE_ITEMS_MAX;
use onefold_format::units::{BLOCKS_PER_SPACE_EXTENT, ID_END};
use onefold_format::{GivenRun, GroupId, Pba, SpaceExtent};
use onefold_rados::{Client, Create, Pool, Version, Wait, WhenFull};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

/// The bitmaps of extents that one operation reads: 2 MiB.
const PARTS_AT_ONCE: usize = 1024;

const NEXT: &str = "next";
const LIMIT: &str = "limit";
const FREE: &str = "free";
const FREE_PAGE: &str = "free.";
const PART: &str = "part.";

/// Creates the object, without extents.
pub(super) fn create(pool: &Pool) -> io::Result<()> {
    let rows = [(NEXT, FIRST), (LIMIT, FIRST), (FREE, 0)];
    let rows = rows.map(|(key, value)| (key, value.to_string()));
    let op = pool.write_op().create(Create::Exclusive).set_rows(&rows);
    pool.change(EXTENTS, op).map(drop)
}

/// Sets the number of extents that the pool has.
///
/// # Errors
///
/// `InvalidInput` if extents beyond were taken before, or if there cannot be so many.
pub(super) fn set_count(pool: &Pool, count: u64) -> io::Result<()> {
    let refused = |message| io::Error::new(io::ErrorKind::InvalidInput, message);
    let limit = FIRST.saturating_add(count);
    if limit > EXTENTS_END {
        let most = EXTENTS_END - FIRST;
        return Err(refused(format!("a pool has at most {most} space extents")));
    }
    rows::retried(|| {
        let (space, version) = read_counts(pool)?;
        if limit < space.next {
            return Err(refused(format!(
                "groups have taken extents up to number {}: a pool does not shrink below",
                space.next - 1
            )));
        }
        let op = pool.write_op().assert_version(version);
        let op = op.set_rows(&[(LIMIT, limit.to_string())]);
        Ok(took_effect(pool.change(EXTENTS, op))?.then_some(()))
    })
}

/// Makes `leased` the extents of groups, of all below `end`. No group has taken one before.
pub(super) fn set_leased(pool: &Pool, end: u64, leased: &[SpaceExtent]) -> io::Result<()> {
    let space = Space::leased(end, leased).map_err(invalid)?;
    let rows = rows_of(&space).into_iter();
    let mut set: Vec<(String, Vec<u8>)> = rows
        .filter_map(|(key, value)| Some((key, value?)))
        .collect();
    set.push((LIMIT.to_owned(), space.limit.to_string().into_bytes()));
    let op = pool.write_op().assert_exists().set_rows(&set);
    pool.change(EXTENTS, op).map(drop)
}

/// Implements [`crate::Cluster::extent_counts`].
pub(super) fn counts(pool: &Pool) -> io::Result<ExtentCounts> {
    let (space, _) = read_counts(pool)?;
    Ok(ExtentCounts {
        free: space.free + (space.limit - space.next),
        all: space.limit - FIRST,
    })
}

/// Implements [`crate::Cluster::given_blocks`].
pub(super) fn given_blocks(pool: &Pool, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let extents =
        blocks.start / BLOCKS_PER_SPACE_EXTENT..blocks.end.div_ceil(BLOCKS_PER_SPACE_EXTENT);
    let pages = extents.start / PAGE_EXTENTS..extents.end.div_ceil(PAGE_EXTENTS);
    let keys = [NEXT, LIMIT, FREE].map(str::to_owned);
    let keys: Vec<String> = keys.into_iter().chain(pages.map(page_row)).collect();
    let parts: Vec<String> = extents.map(part_row).collect();
    let space = rows::retried(|| {
        let (mut found, version) = rows::read_some(pool, EXTENTS, &keys)?;
        for some in parts.chunks(PARTS_AT_ONCE) {
            let (parts, at) = rows::read_some(pool, EXTENTS, some)?;
            if at != version {
                return Ok(None);
            }
            found.extend(parts);
        }
        space_of(&found).map(Some)
    })?;
    Ok(space.given(blocks))
}

/// Implements [`crate::Cluster::last_exchange`].
pub(super) fn last_exchange(
    client: &Client,
    pool: &Pool,
    group: GroupId,
) -> io::Result<Option<Exchanged>> {
    let key = group_row(group);
    // The group's former owner was fenced. From now on, reading makes the cluster refuse a late exchange from it.
    client.wait_for_latest_osdmap()?;
    let (found, _) = rows::read_some(pool, EXTENTS, std::slice::from_ref(&key))?;
    let last = exchange_of(&found, &key)?;
    // The host that made the exchange may have died before it waited for this.
    client.wait_for_latest_osdmap()?;
    Ok(last)
}

/// A group's request.
pub(super) struct Exchange {
    pub(super) group: GroupId,
    pub(super) number: u64,
    pub(super) give: Vec<GivenRun>,
    pub(super) take: u32,
}

impl Exchange {
    /// Implements [`crate::Cluster::exchange`].
    pub(super) fn run(&self, client: &Client, pool: &Pool) -> io::Result<Exchanged> {
        // No more is read for it.
        if self.give.len() > EXCHANGE_ITEMS_MAX {
            return Err(self.refused(&format!("it gives more than {EXCHANGE_ITEMS_MAX} runs")));
        }
        let exchanged = rows::retried(|| self.attempt(pool))?;
        // From now on, a write to these extents makes the cluster know every fence (P7).
        client.wait_for_latest_osdmap()?;
        Ok(exchanged)
    }

    /// Makes one attempt. Returns nothing if another host has changed the object since it was read.
    fn attempt(&self, pool: &Pool) -> io::Result<Option<Exchanged>> {
        let group_row = group_row(self.group);
        let (found, version) = self.read(pool, &group_row)?;
        if let Some(last) = exchange_of(&found, &group_row)? {
            if last.number == self.number {
                return Ok(Some(last));
            }
            if last.number > self.number {
                let last = last.number;
                return Err(self.refused(&format!("its last exchange had number {last}")));
            }
        }
        let mut space = space_of(&found)?;
        let exchanged = Exchanged {
            number: self.number,
            given: self.give.clone(),
            taken: space
                .exchange(&self.give, self.take)
                .map_err(|why| self.refused(&why))?,
        };
        let mut set = vec![(group_row, exchange_row(&exchanged))];
        let mut removed = Vec::new();
        for (key, value) in rows_of(&space) {
            let before = found.get(key.as_bytes());
            match value {
                Some(value) if before != Some(&value) => set.push((key, value)),
                None if before.is_some() => removed.push(key),
                _ => {}
            }
        }
        let mut op = pool.write_op().assert_version(version).set_rows(&set);
        if !removed.is_empty() {
            op = op.remove_rows(&removed);
        }
        // Giving makes room.
        let when_full = if self.take == 0 {
            WhenFull::Go
        } else {
            WhenFull::Fail
        };
        let changed = Wait::of(|ended| pool.submit_write(EXTENTS, op, when_full, ended));
        Ok(took_effect(changed)?.then_some(exchanged))
    }

    /// Reads all rows that the exchange depends on, as of one moment.
    fn read(&self, pool: &Pool, group_row: &str) -> io::Result<(Found, Version)> {
        let mut keys = BTreeSet::from([NEXT, LIMIT, FREE, group_row].map(str::to_owned));
        for run in &self.give {
            let extent = run.pba.space_extent().0;
            keys.insert(page_row(extent / PAGE_EXTENTS));
            keys.insert(part_row(extent));
        }
        let keys: Vec<String> = keys.into_iter().collect();
        let mut op = pool.read_op().rows_by_keys(&keys);
        // Each page has an extent at least.
        let pages = u64::from(self.take).min(EXCHANGE_ITEMS_MAX as u64);
        if pages > 0 {
            op = op.rows("", FREE_PAGE, pages);
        }
        rows::read_op(pool, EXTENTS, op)
    }

    fn refused(&self, why: &str) -> io::Error {
        let Exchange { group, number, .. } = self;
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("exchange {number} of group {group} is refused: {why}"),
        )
    }
}

fn page_row(page: u64) -> String {
    format!("{FREE_PAGE}{page:016x}")
}

fn part_row(extent: u64) -> String {
    format!("{PART}{extent:016x}")
}

fn group_row(group: GroupId) -> String {
    format!("group.{group}")
}

/// The rows that an exchange may have changed; without a value if there is nothing to keep.
fn rows_of(space: &Space) -> Vec<(String, Option<Vec<u8>>)> {
    let number = |key: &str, number: u64| (key.to_owned(), Some(number.to_string().into_bytes()));
    let bitmap = |bits: &Bitmap| (!bits.is_empty()).then(|| bits.bytes().to_vec());
    let mut rows = vec![number(NEXT, space.next), number(FREE, space.free)];
    let pages = space.pages.iter();
    rows.extend(pages.map(|(page, bits)| (page_row(*page), bitmap(bits))));
    let parts = space.parts.iter();
    rows.extend(parts.map(|(extent, bits)| (part_row(*extent), bitmap(bits))));
    rows
}

fn read_counts(pool: &Pool) -> io::Result<(Space, Version)> {
    let keys = [NEXT, LIMIT, FREE].map(str::to_owned);
    let (found, version) = rows::read_some(pool, EXTENTS, &keys)?;
    Ok((space_of(&found)?, version))
}

/// Reads the rows that were found.
fn space_of(found: &Found) -> io::Result<Space> {
    let number = |key: &str| {
        let row = found.get(key.as_bytes());
        let number = row.and_then(|row| std::str::from_utf8(row).ok()?.parse().ok());
        number.ok_or_else(|| damaged(key, "is no number"))
    };
    let (next, limit, free) = (number(NEXT)?, number(LIMIT)?, number(FREE)?);
    if limit > EXTENTS_END {
        return Err(damaged(LIMIT, "is beyond the most that a pool has"));
    }
    if !(FIRST..=limit).contains(&next) {
        return Err(damaged(NEXT, "is no extent of the pool"));
    }
    let pages = bitmaps_of(found, FREE_PAGE, &Bitmap::page())?;
    for (page, bits) in &pages {
        let first = page.saturating_mul(PAGE_EXTENTS);
        let is_taken = |bit| (FIRST..next).contains(&first.saturating_add(bit));
        if !bits.ones().all(is_taken) {
            let message = "has an extent that no group has taken";
            return Err(damaged(&page_row(*page), message));
        }
    }
    let listed: u64 = pages.values().map(Bitmap::count).sum();
    if listed > free || free >= next {
        return Err(damaged(FREE, "is not the number of extents that are free"));
    }
    let parts = bitmaps_of(found, PART, &Bitmap::part())?;
    if let Some((extent, _)) = parts.iter().find(|(_, bits)| bits.is_full()) {
        return Err(damaged(&part_row(*extent), "has all blocks of its extent"));
    }
    Ok(Space {
        next,
        limit,
        free,
        pages,
        parts,
    })
}

/// The bitmaps in rows with this prefix. Each has a bit at least.
fn bitmaps_of(found: &Found, prefix: &str, empty: &Bitmap) -> io::Result<BTreeMap<u64, Bitmap>> {
    let mut bitmaps = BTreeMap::new();
    for (key, row) in found {
        let Some(number) = key.strip_prefix(prefix.as_bytes()) else {
            continue;
        };
        let name = String::from_utf8_lossy(key);
        let number = std::str::from_utf8(number).ok();
        let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        let number = number.ok_or_else(|| damaged(&name, "has no number"))?;
        let bits = empty.clone().filled(row).filter(|bits| !bits.is_empty());
        let wrong = || damaged(&name, "is no bitmap of the right length with a bit");
        bitmaps.insert(number, bits.ok_or_else(wrong)?);
    }
    Ok(bitmaps)
}

/// The row of a group's last exchange: a line each for the number, the given runs, and the taken extents.
fn exchange_row(exchanged: &Exchanged) -> Vec<u8> {
    let Exchanged {
        number,
        given,
        taken,
    } = exchanged;
    let runs = given.iter().map(|run| format!("{}+{}", run.pba, run.count));
    let runs: Vec<String> = runs.collect();
    let extents: Vec<String> = taken.iter().map(SpaceExtent::to_string).collect();
    format!("{number}\n{}\n{}", runs.join(" "), extents.join(" ")).into_bytes()
}

/// A group's last exchange, if there is a row.
fn exchange_of(found: &Found, key: &str) -> io::Result<Option<Exchanged>> {
    let Some(row) = found.get(key.as_bytes()) else {
        return Ok(None);
    };
    let exchanged = std::str::from_utf8(row).ok().and_then(parse_exchange);
    let exchanged = exchanged.ok_or_else(|| damaged(key, "is no exchange"))?;
    Ok(Some(exchanged))
}

fn parse_exchange(text: &str) -> Option<Exchanged> {
    let mut lines = text.split('\n');
    let number = lines
        .next()?
        .parse()
        .ok()
        .filter(|number| (1..ID_END).contains(number))?;
    let given = words(lines.next()?).map(parse_run);
    let taken = words(lines.next()?).map(parse_extent);
    let exchanged = Exchanged {
        number,
        given: given.collect::<Option<_>>()?,
        taken: taken.collect::<Option<_>>()?,
    };
    let items = exchanged.given.len() + exchanged.taken.len();
    let is_whole = lines.next().is_none() && items <= EXCHANGE_ITEMS_MAX;
    is_whole.then_some(exchanged)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').filter(|_| !line.is_empty())
}

fn parse_run(word: &str) -> Option<GivenRun> {
    let (pba, count) = word.split_once('+')?;
    let run = GivenRun {
        pba: Pba(pba.parse().ok()?),
        count: count.parse().ok()?,
    };
    space::blocks(&run).map(|_| run)
}

fn parse_extent(word: &str) -> Option<SpaceExtent> {
    let number = word.parse().ok()?;
    (FIRST..EXTENTS_END)
        .contains(&number)
        .then_some(SpaceExtent(number))
}

fn damaged(row: &str, what: &str) -> io::Error {
    invalid(format!("object {EXTENTS} is damaged: row {row} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pba: u64, count: u32) -> GivenRun {
        GivenRun {
            pba: Pba(pba),
            count,
        }
    }

    fn found(rows: &[(&str, &[u8])]) -> Found {
        let owned = |(key, value): &(&str, &[u8])| (key.as_bytes().to_vec(), value.to_vec());
        rows.iter().map(owned).collect()
    }

    #[test]
    fn an_exchange_is_read_as_written() {
        let most: Vec<GivenRun> = (0..512).map(|n| run((1 << 40) - 1024 + 2 * n, 1)).collect();
        for (given, taken) in [
            (vec![], vec![]),
            (vec![run(16_384, 16_384)], vec![]),
            (vec![], vec![SpaceExtent(1), SpaceExtent(EXTENTS_END - 1)]),
            (vec![run(1, 5), run(32_767, 1)], vec![SpaceExtent(7)]),
            (most, vec![]),
        ] {
            let exchanged = Exchanged {
                number: 9,
                given,
                taken,
            };
            let row = exchange_row(&exchanged);
            let read = exchange_of(&found(&[("group.3", &row)]), "group.3").unwrap();
            assert_eq!(read, Some(exchanged));
        }
        assert_eq!(exchange_of(&Found::new(), "group.3").unwrap(), None);
    }

    #[test]
    fn a_damaged_exchange_is_an_error_with_its_row() {
        let many = format!("1\n\n{}", ["5"; 513].join(" "));
        let mut wrong = vec![
            "", "a", "1", "1\n", "1\n\n\n", "1\n5\n", "1\n5+\n", "1\n+5\n",
        ];
        wrong.extend(["1\n5+0\n", "1\n16383+2\n", "1\n1099511627776+1\n", "-1\n\n"]);
        wrong.extend([
            "1\n\n0",
            "1\n\n67108864",
            "1\n\n5 ",
            "1\n\n 5",
            "1\n5+1  6+1\n",
            &many,
        ]);
        let wrong = wrong.into_iter().map(str::as_bytes);
        for row in wrong.chain([&b"\xff"[..]]) {
            let error = exchange_of(&found(&[("group.3", row)]), "group.3").unwrap_err();
            let message = "object extents is damaged: row group.3 is no exchange";
            assert_eq!(error.to_string(), message, "{row:?}");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn rows_are_read_as_written_and_empty_ones_are_not_kept() {
        let page = Bitmap::page().filled(&[[6; 1].as_slice(), &[0; 511]].concat());
        let part = Bitmap::part().filled(&[[0; 2047].as_slice(), &[0x80]].concat());
        let space = Space {
            next: 5000,
            limit: 9000,
            free: 3,
            pages: BTreeMap::from([(0, page.unwrap()), (1, Bitmap::page())]),
            parts: BTreeMap::from([(3, part.unwrap()), (4, Bitmap::part())]),
        };
        let rows = rows_of(&space);
        let kept = rows.iter().filter_map(|(key, value)| {
            let value = value.clone()?;
            Some((key.clone().into_bytes(), value))
        });
        let mut kept: Found = kept.collect();
        assert_eq!((rows.len(), kept.len()), (6, 4));
        kept.insert(b"limit".to_vec(), b"9000".to_vec());
        let read = space_of(&kept).unwrap();
        assert_eq!(read.pages, BTreeMap::from([(0, space.pages[&0].clone())]));
        assert_eq!(read.parts, BTreeMap::from([(3, space.parts[&3].clone())]));
        assert_eq!((read.next, read.limit, read.free), (5000, 9000, 3));
    }

    #[test]
    fn damaged_rows_are_errors_with_their_names() {
        let page = |first: u8| [[first].as_slice(), &[0; 511]].concat();
        let (zero, low, high) = (page(1), page(2), page(0x80));
        let (long, full, short) = (vec![2; 513], vec![0xff; 2048], vec![1; 512]);
        let good: [(&str, &[u8]); 4] = [
            ("next", b"5"),
            ("limit", b"9"),
            ("free", b"1"),
            ("free.0000000000000000", &low),
        ];
        assert!(space_of(&found(&good)).is_ok());
        let no_bit = vec![0; 2048];
        let damages: [(&str, &[u8]); 17] = [
            ("next", b"0"),
            ("next", b"10"),
            ("next", b"\xff"),
            ("limit", b""),
            ("limit", b"4"),
            ("limit", b"67108865"),
            ("free", b"0"),
            ("free", b"5"),
            ("free.0000000000000000", &zero),
            ("free.0000000000000000", &high),
            ("free.0000000000000000", &long),
            ("free.ffffffffffffffff", &low),
            ("free.x", &low),
            ("part.0000000000000003", &full),
            ("part.0000000000000003", &short),
            ("part.0000000000000003", &no_bit),
            ("part.", &no_bit),
        ];
        for (key, value) in damages {
            let mut rows = found(&good);
            rows.insert(key.as_bytes().to_vec(), value.to_vec());
            let error = space_of(&rows).unwrap_err();
            let row = if (key, value) == ("limit", b"4") {
                "next"
            } else {
                key
            };
            let begins = format!("object extents is damaged: row {row} ");
            assert!(error.to_string().starts_with(&begins), "{key}: {error}");
        }
        for missing in [NEXT, LIMIT, FREE] {
            let mut rows = found(&good);
            rows.remove(missing.as_bytes());
            assert!(space_of(&rows).is_err(), "{missing}");
        }
    }
}
