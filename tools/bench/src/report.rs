//! The page `docs/benchmarks.md` and its raw results.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::checking::{self, Check};
use crate::expectations;
use crate::finder::Finder;
use crate::import::{IMAGE_BYTES, Import};
use crate::large::{self, Large};
use crate::open::{self, Open};
use crate::page::{self, Conditions, Page, by_name};
use crate::plan::{Plan, WHOLE};
use crate::results::Results;
use crate::sharing::{self, Sharing};
use crate::slices::Comparison;
use crate::snapshots::Snapshots;
use crate::statistics::verdict;
use crate::table::{Row, Table};
use onefold_harness::workspace::Workspace;

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks";

/// A comparison in one line, for the terminal.
pub(crate) fn line(comparison: &Comparison) -> String {
    let c = comparison;
    let verdict = c.must_verdict.text();
    format!(
        "{}, against {}: {}, must {}: {verdict}",
        c.row, c.baseline, c.ratio, c.must
    )
}

pub(crate) fn page(conditions: &Conditions, plan: &Plan, results: &Results) -> String {
    let mut page = Page::new("Benchmarks", Some(NAME), conditions);
    page.add(format!(
        "fio `ioengine=nbd` over a unix socket, one connection; client and server each on a processor of its own; \
         512 MiB of data per server, all written before the measurement, in turns of 16 MiB. {} alternating slices \
         of {} s per server and row, over {} layouts, each with new servers and files; {} of {} s for skewed loads, \
         {} where latency counts. `onefold serve --cache host` and `direct` are compared with the same NBD server \
         on a raw file (*pass-through*) and `qemu-nbd` on a raw file: `--cache=writeback` with `--aio=threads` or \
         `io_uring`, and `--cache=none` with `--aio=native` or `io_uring`, each row with the faster of the two.",
        plan.slices,
        plan.slice_seconds,
        plan.layouts,
        plan.sharing_slices,
        plan.sharing_slice_seconds,
        plan.latency_slices
    ));
    expectations::section(&mut page, results);
    throughput_section(&mut page, &results.comparisons);
    sharing_section(&mut page, &results.sharing);
    add(&mut page, results.finder.as_ref(), finder_section);
    add(&mut page, results.import.as_ref(), import_section);
    add(&mut page, results.large.as_ref(), large_section);
    add(&mut page, results.open.as_ref(), open_section);
    add(&mut page, results.snapshots.as_ref(), snapshots_section);
    add(&mut page, results.check.as_ref(), check_section);
    page.to_string()
}

/// Adds the section of a part that was measured.
fn add<T>(page: &mut Page, measured: Option<&T>, section: fn(&mut Page, &T)) {
    if let Some(measured) = measured {
        section(page, measured);
    }
}

const THROUGHPUT: &str = "\
    Private blocks are rewritten in place, with finder and collector paused. *Filled in* is the size of the \
    requests that first wrote the data. The host's page cache keeps a file that was written in requests of 1 MiB in \
    larger pieces, in which small writes cost more; onefold's data file is written in small pieces in either case. \
    *Ratio* is the median over the slices of onefold's requests per second divided by the baseline's in the same \
    group, with its 95 % interval. *CPU* is the server's processor time per request in µs, user and kernel. Where \
    the interval is wider than ±5 %, the processor time decides: at most 1.15 of the pass-through's. An interval \
    wholly below the number is a miss.";

fn throughput_section(page: &mut Page, comparisons: &[Comparison]) {
    if comparisons.is_empty() {
        return;
    }
    page.section("Throughput", THROUGHPUT);
    let header = "| row | against | ratio | 95 % | requests/s | baseline | CPU | baseline | must | | aim | |";
    page.add(Table::new(header).with(comparisons.iter().map(|c| {
        Row::of(&c.row)
            .text(c.baseline)
            .estimate(c.ratio, 2)
            .numbers([c.iops, c.baseline_iops], 0)
            .numbers([c.cpu_us, c.baseline_cpu_us], 1)
            .text(c.must)
            .text(c.must_verdict.text())
            .text(c.aim)
            .text(c.aim_verdict.text())
    })));
}

fn sharing_section(page: &mut Page, measured: &[Sharing]) {
    if measured.is_empty() {
        return;
    }
    let text = format!(
        "Finder and collector run, with the `hash` index and `--latency-budget {}`. They are paused while the \
         pass-through is measured. The data is filled in 64 KiB. *Skewed* is 4 KiB random reads and writes in equal \
         parts at depth 32, `{}`, {} % duplicates; the second rate is half of the pass-through's full speed. A \
         second volume always holds fresh data for the finder. *All shared* is one 4 KiB random write to each block \
         at depth 32 after `pool dedup`. *Ratio* is as above; for p99, lower is better. *Backlog* and *queue* are \
         the growth per second of the blocks to be scanned and of the references to be released. *Copied* is the \
         share of the writes that went to published blocks.",
        sharing::LATENCY_BUDGET,
        sharing::SKEW,
        sharing::DUPLICATES_PERCENT,
    );
    page.section("Sharing", text);
    let table = Table::new(
        "| load | ratio | 95 % | onefold | pass-through | unit | finder, MB/s | backlog | queue | copied | must | | \
         aim | |",
    );
    let rows = measured.iter().flat_map(Sharing::rows).flatten();
    page.add(table.with(rows.map(|row| {
        Row::of(&row.title)
            .estimate(row.ratio, 2)
            .numbers([row.ours, row.passthrough], 0)
            .text(row.unit)
            .number(row.finder_mb_per_second, 0)
            .text(format!("{:+.0}", row.dirty_growth))
            .text(format!("{:+.0}", row.queued_growth))
            .text(format!("{:.0} %", 100.0 * row.copied))
            .goals([Some(row.must), Some(row.aim)], |goal| row.verdict(goal))
    })));
    for sharing in measured {
        if let Ok(moments) = sharing.with_slow_moments() {
            page.add(moments.sentence(sharing.mode));
        }
    }
}

fn finder_section(page: &mut Page, measured: &Finder) {
    page.section(
        "Finder",
        "`pool dedup` over 1 GiB without duplicates that was not scanned before, in the page cache, on one \
         processor; the time of the whole command, its start and end included.",
    );
    let table = Table::new("| index | MB/s | range | must | | aim | |");
    page.add(table.with(measured.estimates().map(|(index, rate)| {
        let (must, aim) = index.numbers.unzip();
        Row::of(index.name)
            .estimate(rate, 0)
            .goals([must, aim], |goal| verdict(rate.median >= goal))
    })));
}

fn import_section(page: &mut Page, measured: &Import) {
    page.section(
        "Import",
        "Import of a raw image of 1 GiB without zeros and duplicates, in the page cache, into an empty pool; the \
         final sync included. *Copy* is `dd conv=fsync` of the same file, in turn with the imports: the disk's \
         limit.",
    );
    let imports = measured.estimates().map(|(way, rate)| {
        Row::of(way.title)
            .estimate(rate, 0)
            .goals([Some(way.must), way.aim], |goal| {
                verdict(rate.median >= goal)
            })
    });
    let copy = measured.copy_estimate().map(|rate| {
        let row = Row::of("copy").estimate(rate, 0);
        row.texts(["-", "", "-", ""])
    });
    page.add(Table::new("| | MB/s | range | must | | aim | |").with(imports.chain(copy)));
}

fn large_section(page: &mut Page, measured: &Large) {
    let text = format!(
        "As above, with {} GiB of new distinct data at a time, into a pool that holds {} GiB: the cost of an index \
         shows when it is large.",
        IMAGE_BYTES >> 30,
        large::HELD_BYTES >> 30
    );
    page.section("Import and finder in a large pool", text);
    let table = Table::new("| | `hash`, MB/s | range | `btree`, MB/s | range | times | must | |");
    page.add(table.with(measured.rows().into_iter().map(|row| {
        let [hash, btree] = row.rates;
        Row::of(row.title)
            .estimate(hash, 0)
            .estimate(btree, 0)
            .number(row.ratio, 1)
            .text(large::MUST_RATIO)
            .text(verdict(row.ratio >= large::MUST_RATIO))
    })));
}

fn open_section(page: &mut Page, measured: &Open) {
    page.section(
        "Open after kill -9",
        "The time from the start of the daemon until it greets a client, with four million mapped blocks, after a \
         kill while new blocks are written. The table has the time of the slowest open, and the most that one open \
         replayed.",
    );
    let goals = [open::MUST_SECONDS, open::AIM_SECONDS].map(Some);
    let row = Row::default()
        .number(measured.slowest(), 2)
        .texts(measured.replayed_max())
        .goals(goals, |goal| measured.verdict(goal));
    page.add(Table::new("| s | records | log, MiB | must | | aim | |").with([row]));
}

fn snapshots_section(page: &mut Page, measured: &Snapshots) {
    let text = format!(
        "Finder and collector are paused. A snapshot of a volume with {} mapped blocks, none of them shared, is \
         made and then deleted under 4 KiB random reads and writes in equal parts at depth 32, at half of the \
         volume's maximum rate. The longest request while the snapshot is made is compared with the longest in an \
         equal time before; the 99th percentile until all blocks of the deleted snapshot are released, with the \
         seconds before the deletion. *Chain*: 4 KiB random reads of 512 MiB, in the caches, with {} snapshots, \
         after each of which one part in {} of the blocks was rewritten at random, compared with an equal volume of \
         the same pool without snapshots; for 100 and 1,000 snapshots, empty and changed, in smaller caches, see \
         [decision 16](decisions/0016-snapshots-are-layers.md). *First write*: one 4 KiB random write to each block \
         of 512 MiB just after a snapshot, compared with the pass-through. The median deletion took {:.1} s.",
        measured.entries,
        measured.chain,
        measured.chain,
        measured.deletion_seconds(),
    );
    page.section("Snapshots", text);
    let table = Table::new("| | number | 95 % | with | without | unit | must | |");
    page.add(table.with(measured.rows().into_iter().map(|row| {
        Row::of(&row.title)
            .estimate(row.number, 2)
            .numbers([row.with, row.without], 0)
            .text(row.unit)
            .text(row.must)
            .text(verdict(row.is_met))
    })));
}

fn check_section(page: &mut Page, measured: &Check) {
    let text = format!(
        "`pool check` by a daemon with `--memory` {} MiB. One image of {} GiB without duplicates is imported again \
         and again, and all imports share its blocks: the check counts every reference, and the disk holds few \
         blocks. The table has the time of the slowest check, and the daemon's peak memory, the imports \
         included.",
        checking::MEMORY_BYTES >> 20,
        IMAGE_BYTES >> 30,
    );
    page.section("Check", text);
    let row = Row::of(measured.mapped_blocks)
        .number(measured.slowest(), 1)
        .text(measured.peak_memory_bytes >> 20)
        .text(checking::MUST_SECONDS)
        .text(measured.verdict());
    page.add(Table::new("| mapped blocks | s | memory, MiB | must | |").with([row]));
    page.add(format!(
        "`pool scrub` of that image's blocks, all shared and in the page cache, on one processor and without a \
         daemon, from the start to the end of the command. The slowest scrub: {:.2} GB/s (must {}).",
        measured.scrub_rate(),
        checking::SCRUB_MUST,
    ));
}

pub(crate) fn raw(conditions: &Conditions, plan: &Plan, results: &Results) -> Value {
    let mut raw = results.raw();
    raw["conditions"] = by_name(conditions);
    raw["slice_seconds"] = json!(plan.slice_seconds);
    raw
}

/// Writes the page of a whole run again, from its raw results.
pub(crate) fn render(workspace: &Workspace) -> Result<()> {
    let path = workspace.root.join(page::raw_path(NAME));
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let raw: Value = serde_json::from_slice(&text).context("the raw results are no JSON")?;
    let conditions = page::of_names(&raw["conditions"])?;
    let text = page(&conditions, &WHOLE, &Results::of_raw(&raw)?);
    page::write_files(workspace, &[(&page::path(NAME), &text)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Estimate, Verdict};

    #[test]
    fn a_row_shows_ratio_interval_and_verdicts() {
        let verdict = |met| Verdict { met, by_cpu: false };
        let comparison = Comparison {
            row: "host randread 4k depth 1, filled in 1m".to_owned(),
            baseline: "pass-through",
            ratio: Estimate {
                median: 0.95,
                low: 0.94,
                high: 0.96,
            },
            iops: 95.0,
            baseline_iops: 100.0,
            cpu_us: 3.0,
            baseline_cpu_us: 2.9,
            must: 0.9,
            aim: 0.97,
            must_verdict: verdict(true),
            aim_verdict: verdict(false),
        };
        let results = Results {
            comparisons: vec![comparison],
            ..Results::default()
        };
        let page = page(&vec![("date", "today".to_owned())], &WHOLE, &results);
        assert!(page.contains("| date | today |"), "{page}");
        let row = "| host randread 4k depth 1, filled in 1m | pass-through | 0.95 | 0.94 to 0.96 | 95 | 100 \
                   | 3.0 | 2.9 | 0.9 | met | 0.97 | missed |";
        assert!(page.contains(row), "{page}");
        assert!(!page.contains("## Import") && !page.contains("## Open"));
        assert!(!page.contains("## Sharing") && !page.contains("## Finder"));
    }
}
