//! The page `docs/benchmarks.md` and its raw results.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::checking::{self, Check};
use crate::finder::Finder;
use crate::import::{IMAGE_BYTES, Import};
use crate::large::{self, Large};
use crate::open::{self, Open};
use crate::plan::Plan;
use crate::results::Results;
use crate::sharing::{self, Sharing};
use crate::slices::Comparison;
use crate::snapshots::{self, Snapshots};
use crate::statistics::Verdict;
use onefold_harness::command::Cmd;
use onefold_harness::workspace::Workspace;

const PAGE: &str = "docs/benchmarks.md";
const RAW: &str = "tools/bench/results/benchmarks.json";

/// The conditions of a measurement, such as place and time, by name.
pub(crate) type Conditions = Vec<(&'static str, String)>;

pub(crate) fn conditions(
    workspace: &Workspace,
    command: &str,
    took: Duration,
) -> Result<Conditions> {
    let line = |program: &str, arguments: &[&str]| -> Result<String> {
        let text = Cmd::new(program)
            .args(arguments)
            .dir(&workspace.root)
            .read()?;
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    };
    let git = |arguments: &[&str]| Cmd::new("git").args(arguments).dir(&workspace.root).read();
    // A tree without git, or without a commit, can be measured, too.
    let mut commit = git(&["rev-parse", "--short", "HEAD"])
        .map_or_else(|_| "none".to_owned(), |text| text.trim().to_owned());
    if git(&["status", "--porcelain"]).is_ok_and(|changes| !changes.trim().is_empty()) {
        commit.push_str(", with changes");
    }
    let cpus = std::fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let memory = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let target = workspace.target.to_string_lossy();
    Ok(vec![
        ("date", line("date", &["-u", "+%Y-%m-%d"])?),
        ("commit", commit),
        ("measures", measured_folders(command).to_owned()),
        ("command", command.to_owned()),
        ("took", format!("{:.0} min", took.as_secs_f64() / 60.0)),
        (
            "processor",
            field(&cpus, "model name").unwrap_or_else(|| "unknown".to_owned()),
        ),
        (
            "processors",
            cpus.lines()
                .filter(|l| l.starts_with("processor"))
                .count()
                .to_string(),
        ),
        (
            "memory",
            field(&memory, "MemTotal").unwrap_or_else(|| "unknown".to_owned()),
        ),
        ("kernel", line("uname", &["-r"])?),
        (
            "file system",
            line("findmnt", &["-n", "-o", "FSTYPE,OPTIONS", "-T", &target])?,
        ),
        ("fio", line("fio", &["--version"])?),
        ("qemu-nbd", line("qemu-nbd", &["--version"])?),
        ("rustc", line("rustc", &["--version"])?),
    ])
}

/// The folders that a command measures. Commits to them make its page older, which `cargo xtask tidy` counts.
fn measured_folders(command: &str) -> &'static str {
    let folders = [
        ("bench index", "crates/index"),
        ("bench backup", "crates/backup crates/repository"),
        (
            "bench ceph",
            "crates/engine/src/rados crates/rados crates/store crates/journal",
        ),
        ("bench study", "crates/analyze crates/workload"),
    ];
    let found = folders.iter().find(|(name, _)| command.contains(name));
    found.map_or("crates", |(_, folders)| folders)
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A comparison in one line, for the terminal.
pub(crate) fn line(comparison: &Comparison) -> String {
    let Comparison {
        row,
        baseline,
        ratio,
        must,
        must_verdict,
        ..
    } = comparison;
    format!(
        "{row}, against {baseline}: {:.2} ({:.2} to {:.2}), must {must}: {}",
        ratio.median,
        ratio.low,
        ratio.high,
        must_verdict.text()
    )
}

/// The beginning of every page.
pub(crate) fn heading(title: &str, raw: Option<&str>, conditions: &Conditions) -> String {
    let mut page = format!("# {title}\n\nWritten by the command below; do not edit.");
    // Writing to a `String` cannot fail.
    if let Some(raw) = raw {
        let _ = write!(
            page,
            " The raw results are in [{raw}](../tools/bench/results/{raw})."
        );
    }
    page.push_str("\n\n## Conditions\n\n| | |\n| --- | --- |\n");
    for (name, value) in conditions {
        let _ = writeln!(page, "| {name} | {value} |");
    }
    page
}

pub(crate) fn page(conditions: &Conditions, plan: &Plan, results: &Results) -> String {
    let mut page = heading("Benchmarks", Some("benchmarks.json"), conditions);
    let _ = write!(
        page,
        "\nfio `ioengine=nbd` over a unix socket, one connection; client and server each on a processor of its own; \
         512 MiB of data per server, all written before the measurement, in turns of 16 MiB. {} alternating slices \
         of {} s per server and row, over {} layouts, each with new servers and files; {} of {} s for skewed loads, \
         {} where latency counts. `onefold serve --cache host` and `direct` are compared with the same NBD server \
         on a raw file (*pass-through*) and `qemu-nbd` on a raw file: `--cache=writeback` with `--aio=threads` or \
         `io_uring`, and `--cache=none` with `--aio=native` or `io_uring`, each row with the faster of the two.\n",
        plan.slices,
        plan.slice_seconds,
        plan.layouts,
        plan.sharing_slices,
        plan.sharing_slice_seconds,
        plan.latency_slices
    );
    if !results.comparisons.is_empty() {
        page.push_str(THROUGHPUT);
        for comparison in &results.comparisons {
            table_row(&mut page, comparison);
        }
    }
    sharing_section(&mut page, results);
    finder_section(&mut page, results);
    import_section(&mut page, results);
    large_section(&mut page, results);
    open_section(&mut page, results);
    snapshots_section(&mut page, results);
    check_section(&mut page, results);
    page
}

const THROUGHPUT: &str = "\n## Throughput\n\n\
    Private blocks are rewritten in place, with finder and collector paused. *Filled in* is the size of the \
    requests that first wrote the data. The host's page cache keeps a file that was written in requests of 1 MiB in \
    larger pieces, in which small writes cost more; onefold's data file is written in small pieces in either case. \
    *Ratio* is the median over the slices of onefold's requests per second divided by the baseline's in the same \
    group, with its 95 % interval. *CPU* is the server's processor time per request in µs, user and kernel. Where \
    the interval is wider than ±5 %, the processor time decides: at most 1.15 of the pass-through's. An interval \
    wholly below the number is a miss.\n\n\
    | row | against | ratio | 95 % | requests/s | baseline | CPU | baseline | must | | aim | |\n\
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";

fn table_row(page: &mut String, comparison: &Comparison) {
    let c = comparison;
    let _ = writeln!(
        page,
        "| {} | {} | {:.2} | {:.2} to {:.2} | {:.0} | {:.0} | {:.1} | {:.1} | {} | {} | {} | {} |",
        c.row,
        c.baseline,
        c.ratio.median,
        c.ratio.low,
        c.ratio.high,
        c.iops,
        c.baseline_iops,
        c.cpu_us,
        c.baseline_cpu_us,
        c.must,
        c.must_verdict.text(),
        c.aim,
        c.aim_verdict.text()
    );
}

fn sharing_section(page: &mut String, results: &Results) {
    let rows: Vec<_> = results.sharing.iter().map(Sharing::rows).collect();
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "\n## Sharing\n\n\
         Finder and collector run, with the `hash` index and `--latency-budget {}`. They are paused while the \
         pass-through is measured. The data is filled in 64 KiB. *Skewed* is 4 KiB random reads and writes in equal \
         parts at depth 32, `{}`, {} % duplicates; the second rate is half of the pass-through's full speed. A \
         second volume always holds fresh data for the finder. *All shared* is one 4 KiB random write to each block \
         at depth 32 after `pool dedup`. *Ratio* is as above; for p99, lower is better. *Backlog* and *queue* are \
         the growth per second of the blocks to be scanned and of the references to be released. *Copied* is the \
         share of the writes that went to published blocks.\n\n\
         | load | ratio | 95 % | onefold | pass-through | unit | finder, MB/s | backlog | queue | copied | must | | \
         aim | |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        sharing::LATENCY_BUDGET,
        sharing::SKEW,
        sharing::DUPLICATES_PERCENT,
    );
    for row in rows.into_iter().flatten().flatten() {
        let _ = writeln!(
            page,
            "| {} | {:.2} | {:.2} to {:.2} | {:.0} | {:.0} | {} | {:.0} | {:+.0} | {:+.0} \
             | {:.0} % | {} | {} | {} | {} |",
            row.title,
            row.ratio.median,
            row.ratio.low,
            row.ratio.high,
            row.ours,
            row.passthrough,
            row.unit,
            row.finder_mb_per_second,
            row.dirty_growth,
            row.queued_growth,
            100.0 * row.copied,
            row.must,
            row.verdict(row.must),
            row.aim,
            row.verdict(row.aim),
        );
    }
    for sharing in &results.sharing {
        if let Ok(moments) = sharing.with_slow_moments() {
            let _ = writeln!(page, "\n{}", moments.sentence(sharing.mode));
        }
    }
}

/// Cells of a rate and of the rates that it must and should reach; `-` without such a goal.
fn rate_cells(rate: f64, numbers: [Option<f64>; 2]) -> String {
    numbers
        .map(|number| match number {
            Some(number) => {
                let met = rate >= number;
                let verdict = Verdict { met, by_cpu: false };
                format!("{number} | {}", verdict.text())
            }
            None => "- |".to_owned(),
        })
        .join(" | ")
}

fn finder_section(page: &mut String, results: &Results) {
    let Some(measured) = &results.finder else {
        return;
    };
    page.push_str(
        "\n## Finder\n\n\
         `pool dedup` over 1 GiB without duplicates that was not scanned before, in the page cache, on one \
         processor; the time of the whole command, its start and end included.\n\n\
         | index | MB/s | range | must | | aim | |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (index, rate) in measured.estimates() {
        let (must, aim) = index.numbers.unzip();
        let _ = writeln!(
            page,
            "| {} | {:.0} | {:.0} to {:.0} | {} |",
            index.name,
            rate.median,
            rate.low,
            rate.high,
            rate_cells(rate.median, [must, aim])
        );
    }
}

fn import_section(page: &mut String, results: &Results) {
    let Some(measured) = &results.import else {
        return;
    };
    page.push_str(
        "\n## Import\n\n\
         Import of a raw image of 1 GiB without zeros and duplicates, in the page cache, into an empty pool; the \
         final sync included. *Copy* is `dd conv=fsync` of the same file, in turn with the imports: the disk's \
         limit.\n\n\
         | | MB/s | range | must | | aim | |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (way, rate) in measured.estimates() {
        let _ = writeln!(
            page,
            "| {} | {:.0} | {:.0} to {:.0} | {} |",
            way.title,
            rate.median,
            rate.low,
            rate.high,
            rate_cells(rate.median, [Some(way.must), way.aim])
        );
    }
    if let Some(copy) = measured.copy_estimate() {
        let _ = writeln!(
            page,
            "| copy | {:.0} | {:.0} to {:.0} | - | | - | |",
            copy.median, copy.low, copy.high
        );
    }
}

fn large_section(page: &mut String, results: &Results) {
    let Some(measured) = &results.large else {
        return;
    };
    let _ = write!(
        page,
        "\n## Import and finder in a large pool\n\n\
         As above, with {} GiB of new distinct data at a time, into a pool that holds {} GiB: the cost of an index \
         shows when it is large.\n\n\
         | | `hash`, MB/s | range | `btree`, MB/s | range | times | must | |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        IMAGE_BYTES >> 30,
        large::HELD_BYTES >> 30
    );
    let must = large::MUST_RATIO;
    for row in measured.rows() {
        let [hash, btree] = &row.rates;
        let met = row.ratio >= must;
        let _ = writeln!(
            page,
            "| {} | {:.0} | {:.0} to {:.0} | {:.0} | {:.0} to {:.0} | {:.1} | {must} | {} |",
            row.title,
            hash.median,
            hash.low,
            hash.high,
            btree.median,
            btree.low,
            btree.high,
            row.ratio,
            Verdict { met, by_cpu: false }.text()
        );
    }
}

fn open_section(page: &mut String, results: &Results) {
    let Some(measured) = &results.open else {
        return;
    };
    let slowest = measured.slowest();
    let verdict = |number: f64| match (slowest <= number, measured.log_was_full()) {
        (true, false) => "not shown: the log was less than half full",
        (met, _) => Verdict { met, by_cpu: false }.text(),
    };
    let (must, aim) = (open::MUST_SECONDS, open::AIM_SECONDS);
    let _ = write!(
        page,
        "\n## Open after kill -9\n\n\
         The time from the start of the daemon until it greets a client, with four million mapped blocks, after a \
         kill while new blocks are written. The table has the time of the slowest open, and the most that one open \
         replayed.\n\n\
         | s | records | log, MiB | must | | aim | |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n\
         | {slowest:.2} | {} | {} | {must} | {} | {aim} | {} |\n",
        measured.records_max(),
        measured.log_mib_max(),
        verdict(must),
        verdict(aim),
    );
}

fn snapshots_section(page: &mut String, results: &Results) {
    let Some(measured) = &results.snapshots else {
        return;
    };
    let _ = write!(
        page,
        "\n## Snapshots\n\n\
         Finder and collector are paused. A snapshot of a volume with {} mapped blocks, none of them shared, is \
         made and then deleted under 4 KiB random reads and writes in equal parts at depth 32, at half of the \
         volume's maximum rate. The longest request while the snapshot is made is compared with the longest in an \
         equal time before; the 99th percentile until all blocks of the deleted snapshot are released, with the \
         seconds before the deletion. *Chain*: 4 KiB random reads of 512 MiB, in the caches, with {} snapshots, \
         after each of which one part in {} of the blocks was rewritten at random, compared with an equal volume of \
         the same pool without snapshots; for 100 and 1,000 snapshots, empty and changed, in smaller caches, see \
         [decision 16](decisions/0016-snapshots-are-layers.md). *First write*: one 4 KiB random write to each block \
         of 512 MiB just after a snapshot, compared with the pass-through. The median deletion took {:.1} s.\n\n\
         | | number | 95 % | with | without | unit | must | |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        snapshots::ENTRIES,
        snapshots::CHAIN,
        snapshots::CHAIN,
        measured.deletion_seconds(),
    );
    for row in measured.rows() {
        let met = row.is_met;
        let _ = writeln!(
            page,
            "| {} | {:.2} | {:.2} to {:.2} | {:.0} | {:.0} | {} | {} | {} |",
            row.title,
            row.number.median,
            row.number.low,
            row.number.high,
            row.with,
            row.without,
            row.unit,
            row.must,
            Verdict { met, by_cpu: false }.text()
        );
    }
}

fn check_section(page: &mut String, results: &Results) {
    let Some(measured) = &results.check else {
        return;
    };
    let _ = write!(
        page,
        "\n## Check\n\n\
         `pool check` by a daemon with `--memory` {} MiB. One image of {} GiB without duplicates is imported again \
         and again, and all imports share its blocks: the check counts every reference, and the disk holds few \
         blocks. The table has the time of the slowest check, and the daemon's peak memory, the imports \
         included.\n\n\
         | mapped blocks | s | memory, MiB | must | |\n\
         | --- | --- | --- | --- | --- |\n\
         | {} | {:.1} | {} | {} | {} |\n",
        checking::MEMORY_BYTES >> 20,
        IMAGE_BYTES >> 30,
        measured.mapped_blocks,
        measured.slowest(),
        measured.peak_memory_bytes >> 20,
        checking::MUST_SECONDS,
        measured.verdict(),
    );
    let _ = write!(
        page,
        "\n`pool scrub` of that image's blocks, all shared and in the page cache, on one processor and without a \
         daemon, from the start to the end of the command. The slowest scrub: {:.2} GB/s (must {}).\n",
        measured.scrub_rate(),
        checking::SCRUB_MUST,
    );
}

pub(crate) fn raw(conditions: &Conditions, plan: &Plan, results: &Results) -> Value {
    let conditions: serde_json::Map<String, Value> = conditions
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    json!({
        "conditions": conditions,
        "slice_seconds": plan.slice_seconds,
        "slices": results.raw_slices,
        "sharing": results.sharing.iter().map(Sharing::raw).collect::<Vec<_>>(),
        "finder": results.finder.as_ref().map(Finder::raw),
        "import": results.import.as_ref().map(Import::raw),
        "large_pool": results.large.as_ref().map(Large::raw),
        "open": results.open.as_ref().map(Open::raw),
        "snapshots": results.snapshots.as_ref().map(Snapshots::raw),
        "check": results.check.as_ref().map(Check::raw),
    })
}

pub(crate) fn write(workspace: &Workspace, page: &str, raw: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(raw).context("cannot write the raw results")?;
    write_files(workspace, &[(PAGE, page), (RAW, &text)])
}

/// Writes files into the repository.
pub(crate) fn write_files(workspace: &Workspace, files: &[(&str, &str)]) -> Result<()> {
    for (name, content) in files {
        let path = workspace.root.join(Path::new(name));
        std::fs::write(&path, format!("{}\n", content.trim_end()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", workspace.shown(&path));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::WHOLE;
    use crate::statistics::Estimate;

    #[test]
    fn fields_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 1 GHz\n";
        assert_eq!(
            field(text, "model name").as_deref(),
            Some("Some CPU @ 1 GHz")
        );
        assert_eq!(field(text, "flags"), None);
    }

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

    #[test]
    fn a_rate_without_a_number_has_no_verdict() {
        let cells = rate_cells(500.0, [Some(400.0), Some(1500.0)]);
        assert_eq!(cells, "400 | met | 1500 | missed");
        assert_eq!(rate_cells(500.0, [Some(600.0), None]), "600 | missed | - |");
    }
}
