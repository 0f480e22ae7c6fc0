//! The page of `cargo xtask bench dedis`.

use crate::dedis::{
    DISK_MIB, HOSTS_MAX, HOSTS_OF_SETTINGS, JOBS, MEMORY, Performance, Run, SECONDS, SETTINGS,
    SHARDS,
};
use crate::page::{Conditions, Page};
use crate::statistics::{Estimate, median};
use crate::table::{Row, Table};

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "evaluation-dedis";

/// All results of the benchmark.
#[derive(Default)]
pub(crate) struct Figures {
    /// For each number of hosts, from one on, and round: the hosts, and RBD.
    pub(crate) hosts: [Vec<(Run, Performance)>; HOSTS_MAX],
    /// For each of [`SETTINGS`] and round.
    pub(crate) settings: [Vec<Run>; SETTINGS.len()],
}

/// Table XIII: requests per second, latency in ms, and MB/s of the finders, for each of [`SETTINGS`].
const TABLE_13: [(f64, f64, f64); SETTINGS.len()] = [
    (1710.0, 1.08, 2.52),
    (1854.0, 1.00, 31.46),
    (1807.0, 1.05, 3.92),
];

/// Table XIV: servers, and percent of the operations that shared a block, of the load's and of all.
const TABLE_14: [(u64, f64, f64); 5] = [
    (2, 16.9, 33.4),
    (4, 17.0, 38.6),
    (8, 17.2, 45.7),
    (16, 17.3, 51.6),
    (32, 17.5, 57.0),
];

fn of(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    median(runs.iter().map(figure))
}

fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

pub(crate) fn page(conditions: &Conditions, figures: &Figures) -> String {
    let mut page = Page::new("DEDIS, repeated in kind", Some(NAME), conditions);
    page.add(format!(
        "DEDIS (Paulo and Pereira, ACM Transactions on Storage 12 (2016), section 5.5) was measured on up to 32 servers with \
         disks of their own. Here a Ceph cluster of one monitor and three OSDs (BlueStore on files, three copies), up to \
         {HOSTS_MAX} daemons that share a pool with {SHARDS} shards, and the load of their virtual machines are on one machine. So the \
         ratios mean something, the shares of duplicates, and what a host uses; the rates do not, nor how they grow with hosts: \
         all hosts have the same processors and disks."
    ));
    page.add(format!(
        "Each host imports the same disk image, which shares what is there. Then each writes to a disk of {DISK_MIB} MiB for {SECONDS} s, {JOBS} \
         requests at a time, at TPC-C's hot spots, with the duplicates of DEDISbench's distribution, which the disks have in \
         common; finders work at the same time. Then they process the rest without any load. Medians of {} rounds. `--memory {MEMORY}`.",
        figures.settings[0].len()
    ));
    page.section(
        &format!("Table XIII: settings, with {HOSTS_OF_SETTINGS} hosts"),
        settings(figures),
    );
    page.add(
        "In DEDIS the hash cache is a database on disk that knows nearly all blocks; here it is memory. Bytes are compared before \
         blocks are shared.",
    );
    page.section(
        "Throughput and latency beside storage without deduplication",
        hosts(figures),
    );
    page.add(
        "DEDIS beside Tap:aio, with 2 to 32 servers: at most 14 % less throughput and 11 % more latency (figure 7).",
    );
    page.section(
        "Table XIV: operations that shared a block, in percent",
        shares(figures),
    );
    page.add(
        "*Of the load*: blocks that the finders processed. *Of all*: with the blocks of the image, which each host imports. Exact \
         deduplication over all hosts finds more the more hosts there are.",
    );
    page.section("Table XV: a host's resources", resources(figures));
    page.add(
        "Percent of one processor, during the load; memory is the highest of the daemon. *Metadata* are the hosts' logs, 32 MiB \
         for each group, with their maps; *index* is a host's part of all shards. The index messages of a batch have 27 to 32 \
         bytes for each block, as the simulation of groups counts them ([testing](testing.md)).",
    );
    page.to_string()
}

fn settings(figures: &Figures) -> Table {
    let header = "| | requests/s | DEDIS | latency, ms | DEDIS | finders, MB/s | DEDIS |";
    let rows = SETTINGS.iter().zip(&figures.settings).zip(TABLE_13);
    Table::new(header).with(rows.map(|((setting, runs), (requests, latency, found))| {
        Row::of(setting.title)
            .numbers([of(runs, |run| run.load.requests_per_second), requests], 0)
            .numbers([of(runs, |run| run.load.mean_ms), latency], 2)
            .numbers([of(runs, |run| run.sharing.mb_per_second), found], 1)
    }))
}

fn hosts(figures: &Figures) -> Table {
    let header = "| hosts | requests/s | RBD | ratio | latency, ms | RBD | ratio |";
    let rows = figures.hosts.iter().enumerate();
    Table::new(header).with(rows.map(|(n, runs)| {
        let compared = |figure: &dyn Fn(&Performance) -> f64| {
            let ours = median(runs.iter().map(|(run, _)| figure(&run.load)));
            let rbd = median(runs.iter().map(|(_, rbd)| figure(rbd)));
            let ratios = runs
                .iter()
                .map(|(run, rbd)| figure(&run.load) / figure(rbd));
            (ours, rbd, Estimate::over(ratios))
        };
        let (requests, of_rbd, ratio) = compared(&|load| load.requests_per_second);
        let row = Row::of(n + 1).numbers([requests, of_rbd], 0).maybe(ratio);
        let (latency, of_rbd, ratio) = compared(&|load| load.mean_ms);
        row.numbers([latency, of_rbd], 2).maybe(ratio)
    }))
}

fn shares(figures: &Figures) -> Table {
    let ours = figures.hosts.iter().enumerate().map(|(n, runs)| {
        let share = |share: &dyn Fn(&Run) -> f64| median(runs.iter().map(|(run, _)| share(run)));
        let of_load = share(&|run| percent(run.sharing.duplicates, run.sharing.scanned));
        let of_all = share(&|run| {
            let sharing = &run.sharing;
            percent(
                sharing.duplicates + sharing.imported_duplicates,
                sharing.scanned + sharing.imported,
            )
        });
        Row::of(format!("onefold, {}", n + 1)).numbers([of_load, of_all], 1)
    });
    let theirs = TABLE_14.map(|(servers, of_load, of_all)| {
        Row::of(format!("DEDIS, {servers}")).numbers([of_load, of_all], 1)
    });
    Table::new("| hosts | of the load | of all |").with(ours.chain(theirs))
}

fn resources(figures: &Figures) -> Table {
    let header = "| hosts | processor, % | memory, MiB | metadata, MiB | index, MiB |";
    let ours = figures.hosts.iter().enumerate().map(|(n, runs)| {
        let runs: Vec<Run> = runs.iter().map(|(run, _)| *run).collect();
        Row::of(format!("onefold, {}", n + 1)).numbers(
            [
                of(&runs, |run| run.sharing.processor_percent),
                of(&runs, |run| run.sharing.memory_mib),
                of(&runs, |run| run.sharing.metadata_mib),
                of(&runs, |run| run.sharing.index_mib),
            ],
            1,
        )
    });
    let theirs = [
        Row::of("DEDIS, 32")
            .numbers([6.44, 197.25], 1)
            .text("96.1 with the index")
            .text("-"),
        Row::of("Tap:aio, 32")
            .numbers([3.90, 6.25], 1)
            .texts(["-", "-"]),
    ];
    Table::new(header).with(ours.chain(theirs))
}
