//! The page of `cargo xtask bench hosts`.

use crate::goals::{self, Goal};
use crate::hosts::{
    DISK_MIB, DUPLICATES_MIB, GROUP_ROWS, HOSTS, IDLE_GROUPS, IDLE_MEMORY_MIB, IDLE_SHARDS,
    INLINE_ROWS, Load, SECONDS, SHARDS,
};
use crate::hosts_callers::{CALLERS, ITEMS};
use crate::page::{Conditions, Page};
use crate::statistics::Estimate;
use crate::table::{Row, Table};

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks-hosts";

/// All results of the benchmark.
#[derive(Default)]
pub(crate) struct Figures {
    /// For each of [`GROUP_ROWS`] and round, the requests per second of a group, of a pool with one owner, and of RBD.
    pub(crate) groups: [Vec<[f64; 3]>; GROUP_ROWS.len()],
    /// For each of [`INLINE_ROWS`] and round, the requests per second in line, and off-line.
    pub(crate) inline: [Vec<[f64; 2]>; INLINE_ROWS.len()],
    /// The share of duplicates that were hits.
    pub(crate) hits: f64,
    /// The highest memory of a daemon with idle groups, in MiB.
    pub(crate) idle_mib: f64,
    /// For each round, the items per second of one shard: of [`CALLERS`] callers, and of one.
    pub(crate) callers: Vec<[f64; 2]>,
    /// For each round, the processor time of all daemons for a block that finders share, in microseconds: with [`HOSTS`]
    /// hosts, and with one.
    pub(crate) dedup_micros: Vec<[f64; 2]>,
}

/// The most memory of an idle daemon beyond its `--memory`, in MiB.
const BESIDE_MIB: u64 = 64;

/// The least and the wanted ratio of a group to RBD, for each of [`GROUP_ROWS`].
const RBD_GOALS: [(f64, f64); GROUP_ROWS.len()] = [(0.9, 1.0), (0.9, 1.2), (1.0, 1.5), (1.0, 1.2)];

/// The ratio of the first side to another.
fn ratio<const N: usize>(rates: &[[f64; N]], to: usize) -> Option<Estimate> {
    Estimate::over(rates.iter().map(|sides| sides[0] / sides[to]))
}

fn row<const N: usize>(title: &str, figures: &[[f64; N]], digits: usize) -> Row {
    let medians = (0..N).map(|of| Estimate::over(figures.iter().map(|sides| sides[of])));
    let row = medians.fold(Row::of(title), |row, median| {
        row.number(median.map(|median| median.median), digits)
    });
    (1..N).fold(row, |row, to| row.maybe(ratio(figures, to)))
}

fn rows<'a, const N: usize>(
    loads: &'a [Load],
    rates: &'a [Vec<[f64; N]>],
) -> impl Iterator<Item = Row> + use<'a, N> {
    let rows = loads.iter().zip(rates);
    rows.map(|(load, rates)| row(load.title, rates, 0))
}

impl Figures {
    fn goals(&self) -> Vec<Goal> {
        let goal = |title: &str, ratio: Option<Estimate>, other: &str, must, aim| {
            let ratio = ratio.map(|ratio| ratio.median);
            Goal::at_least(format!("{title}, relative to {other}"), ratio, must, aim)
        };
        let groups = || GROUP_ROWS.iter().zip(&self.groups);
        let of_owner =
            groups().map(|(load, rates)| goal(load.title, ratio(rates, 1), "one owner", 0.95, 1.0));
        let of_rbd = groups().zip(RBD_GOALS).map(|((load, rates), (must, aim))| {
            goal(load.title, ratio(rates, 2), "RBD", must, aim)
        });
        let inline = INLINE_ROWS.iter().zip(&self.inline);
        let inline =
            inline.map(|(load, rates)| goal(load.title, ratio(rates, 1), "off-line", 0.7, 0.9));
        let memory_max = (IDLE_MEMORY_MIB + BESIDE_MIB) as f64;
        let others = [
            Goal::at_least("duplicates that were hits", Some(self.hits), 0.5, None),
            Goal::at_most(
                "memory of idle groups, MiB",
                Some(self.idle_mib),
                memory_max,
                None,
            ),
            Goal::at_most(
                format!("processor time for a shared block, {HOSTS} hosts relative to one"),
                ratio(&self.dedup_micros, 1).map(|ratio| ratio.median),
                1.3,
                1.1,
            ),
            Goal::at_least(
                format!("items/s of one shard, {CALLERS} callers relative to one"),
                ratio(&self.callers, 1).map(|ratio| ratio.median),
                3.0,
                6.0,
            ),
        ];
        of_owner.chain(of_rbd).chain(inline).chain(others).collect()
    }
}

pub(crate) fn page(conditions: &Conditions, figures: &Figures) -> String {
    let mut page = Page::new(
        "Benchmarks of hosts that share a pool",
        Some(NAME),
        conditions,
    );
    page.add(format!(
        "A Ceph cluster of one monitor and three OSDs (BlueStore on files, three copies), the daemons and all clients are on \
         this machine. RBD is served by qemu-nbd without a cache. Volumes of {DISK_MIB} MiB, over NBD; {} rounds of {SECONDS} s for each row and side, in turn. Ratios \
         are within a round, with their median's interval. The shared pool has {SHARDS} shards, all of which one host serves.",
        figures.groups[0].len(),
    ));
    let header =
        "| | group, requests/s | one owner, requests/s | RBD, requests/s | of one owner | of RBD |";
    page.add(Table::new(header).with(rows(&GROUP_ROWS, &figures.groups)));
    page.add(
        "The blocks above are private, and rewritten in place. Below, two volumes of the shared pool get data that is nowhere \
         else: in line, each block is looked up in its shard first. A lookup that takes longer than 5 ms is a miss.",
    );
    let header = "| | in line, requests/s | off-line, requests/s | ratio |";
    page.add(Table::new(header).with(rows(&INLINE_ROWS, &figures.inline)));
    page.add(format!(
        "Hits: {DUPLICATES_MIB} MiB that another volume has are written in line, 4 KiB at a time, one request at a time. Memory: a \
         daemon with {IDLE_GROUPS} groups without volumes, {IDLE_SHARDS} shards and `--memory {IDLE_MEMORY_MIB}M`."
    ));
    let title = "processor time of all daemons while their finders share the blocks of six images";
    let header = format!("| | {HOSTS} hosts, us a block | one host, us a block | ratio |");
    page.add(Table::new(&header).with([row(title, &figures.dedup_micros, 1)]));
    let title = format!("calls of {ITEMS} items of new contents to one shard");
    let header = format!("| | {CALLERS} callers, items/s | one caller, items/s | ratio |");
    page.add(Table::new(&header).with([row(&title, &figures.callers, 0)]));
    page.add(goals::table(figures.goals()));
    page.to_string()
}
