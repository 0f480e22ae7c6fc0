//! The section of `docs/benchmarks.md` for users: few rows, in plain words. The other sections have all rows and their
//! goals.

use crate::page::Page;
use crate::results::Results;
use crate::slices::{Comparison, Mode, ROWS};
use crate::statistics::Estimate;
use crate::table::{Row, Table};

pub(crate) fn section(page: &mut Page, results: &Results) {
    let loads = ROWS.iter().filter(|row| row.mode == Mode::Direct);
    let loads = loads.filter_map(|row| {
        let ratios = [Mode::Host, Mode::Direct].map(|mode| ratio(results, mode, &row.load()));
        let is_measured = ratios.iter().any(Option::is_some);
        is_measured.then(|| ratios.into_iter().fold(Row::of(row.in_words()), Row::maybe))
    });
    let loads: Vec<Row> = loads.collect();
    let others = others(results);
    if loads.is_empty() && others.is_empty() {
        return;
    }
    page.section(
        "What to expect",
        "The first table has requests per second relative to the pass-through, the same NBD server on a raw file: \
         1.00 is as fast, more is faster. Nothing is shared there, and finder and collector are paused. In parentheses \
         is the 95 % interval of the median, or the range of all runs if there are fewer than six. With `--cache host`, \
         the less favourable of the two ways to fill the file counts. The sections below have all rows, and say how \
         each is measured.",
    );
    page.add(Table::new("| | `--cache host` | `--cache direct` |").with(loads));
    page.add("Other figures, under the conditions of their sections:");
    page.add(Table::new("| | |").with(others));
}

/// The ratio to the pass-through, of the less favourable way to fill the file.
fn ratio(results: &Results, mode: Mode, load: &str) -> Option<Estimate> {
    let name = format!("{} {load}", mode.name());
    let is_of_load = |comparison: &&Comparison| {
        let load = comparison.row.split(',').next();
        load == Some(&name) && comparison.baseline == "pass-through"
    };
    let ratios = results.comparisons.iter().filter(is_of_load);
    let ratios = ratios.map(|comparison| comparison.ratio);
    ratios.min_by(|one, other| one.median.total_cmp(&other.median))
}

/// A number with its unit and its interval.
fn with_unit(estimate: Estimate, digits: usize, unit: &str) -> String {
    let (median, interval) = (estimate.median, estimate.interval(digits));
    format!("{median:.digits$} {unit} ({interval})")
}

/// The other rows: latencies next to the finder, rates of the finder and of an import, snapshots, and times.
fn others(results: &Results) -> Vec<Row> {
    let latencies = results.sharing.iter().filter_map(|sharing| {
        let row = sharing.p99_with_finder()?;
        let what = "99th percentile of random requests of 4 KiB at half speed, next to the finder";
        let figure = format!(
            "{:.2} times the pass-through's ({}); the finder searched {:.0} MB/s",
            row.ratio.median,
            row.ratio.interval(2),
            row.finder_mb_per_second
        );
        let mode = sharing.mode.name();
        Some(Row::of(format!("{what}, `--cache {mode}`")).text(figure))
    });
    let finder = results.finder.iter().flat_map(|finder| finder.estimates());
    let finder = finder.filter(|(index, _)| index.name == "hash");
    let finder = finder.map(|(_, rate)| {
        let what = "finder over new data (`pool dedup`), `hash` index";
        Row::of(what).text(with_unit(rate, 0, "MB/s"))
    });
    let import = results.import.iter().filter_map(|import| {
        let mut ways = import.estimates();
        let (_, rate) = ways.find(|(way, _)| way.title == "dedup, `hash` index")?;
        let figure = with_unit(rate, 0, "MB/s");
        let copy = import.copy_estimate()?.median;
        let figure = format!("{figure}; `dd` copies the file at {copy:.0} MB/s");
        Some(Row::of("import of an image, with its duplicates found, `hash` index").text(figure))
    });
    let open = results.open.iter().map(|open| {
        let what = "start of the daemon after `kill -9`, with four million mapped blocks";
        Row::of(what).text(format!("at most {:.2} s", open.slowest()))
    });
    let stall = results.snapshots.iter().filter_map(|measured| {
        let row = measured.stall()?;
        let figure = with_unit(row.number, 1, "ms");
        let figure = format!("{figure}; {:.0} ms in an equal time before", row.without);
        Some(Row::of(row.title).text(figure))
    });
    let first_write = results.snapshots.iter().filter_map(|measured| {
        let row = measured.first_write()?;
        let what = "first write to each block after a snapshot, 4 KiB, 32 at a time";
        let (median, interval) = (row.number.median, row.number.interval(2));
        let figure = format!("{median:.2} of the pass-through's requests per second ({interval})");
        Some(Row::of(what).text(figure))
    });
    let check = results.check.iter().map(|check| {
        let what = format!("`pool check` of {} mapped blocks", check.mapped_blocks);
        Row::of(what).text(format!("at most {:.1} s", check.slowest()))
    });
    let rows = latencies.chain(finder).chain(import).chain(open);
    rows.chain(stall).chain(first_write).chain(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Verdict;
    use serde_json::json;

    fn comparison(row: &str, baseline: &'static str, median: f64) -> Comparison {
        let verdict = Verdict {
            met: true,
            by_cpu: false,
        };
        Comparison {
            row: row.to_owned(),
            baseline,
            ratio: Estimate {
                median,
                low: median - 0.01,
                high: median + 0.01,
            },
            iops: 1.0,
            baseline_iops: 1.0,
            cpu_us: 1.0,
            baseline_cpu_us: 1.0,
            must: 0.9,
            aim: 1.0,
            must_verdict: verdict,
            aim_verdict: verdict,
        }
    }

    #[test]
    fn the_less_favourable_way_to_fill_the_file_is_shown() {
        let results = Results {
            comparisons: vec![
                comparison(
                    "host randread 4k depth 1, filled in 1m",
                    "pass-through",
                    0.98,
                ),
                comparison(
                    "host randread 4k depth 1, filled in 64k",
                    "pass-through",
                    0.95,
                ),
                comparison("host randread 4k depth 1, filled in 64k", "qemu-nbd", 0.5),
                comparison("direct randread 4k depth 1", "pass-through", 1.0),
                comparison("direct randread 4k depth 32", "pass-through", 0.9),
            ],
            ..Results::default()
        };
        let mut page = Page::new("Speed", None, &Vec::new());
        section(&mut page, &results);
        let page = page.to_string();
        let rows = "| random reads of 4 KiB, 1 at a time | 0.95 (0.94 to 0.96) | 1.00 (0.99 to 1.01) |\n\
                    | random reads of 4 KiB, 32 at a time | - | 0.90 (0.89 to 0.91) |\n";
        assert!(page.contains(rows), "{page}");
        assert!(!page.contains("random writes"), "{page}");
    }

    #[test]
    fn the_other_figures_have_units_and_intervals() {
        let rates = ["memory", "hash", "btree"]
            .map(|index| json!({"index": index, "mb_per_second": [400.0, 500.0, 600.0]}));
        let round = json!({"stall_ms": 7.0, "usual_ms": 2.0, "p99_deleting_us": 1.0,
                           "p99_before_us": 1.0, "deletion_seconds": 1.0});
        let open = json!({"seconds": 1.25, "records_replayed": 1, "log_bytes_replayed": 1});
        let raw = json!({
            "slices": [],
            "sharing": [],
            "finder": {"volume_bytes": 1, "rates": rates},
            "open": {"mapped_blocks_min": 1, "opens": [open]},
            "snapshots": {"entries": 1, "chain": 1, "rounds": [round], "read_depth_1": [],
                          "read_depth_32": [], "first_write": [[60.0, 100.0]]},
        });
        let rows = others(&Results::of_raw(&raw).unwrap());
        let rows: Vec<String> = rows.iter().map(Row::to_string).collect();
        let expected = [
            "| finder over new data (`pool dedup`), `hash` index | 500 MB/s (400 to 600) |",
            "| start of the daemon after `kill -9`, with four million mapped blocks | at most 1.25 s |",
            "| longest request while a snapshot is made | 7.0 ms (7.0 to 7.0); 2 ms in an equal time before |",
            "| first write to each block after a snapshot, 4 KiB, 32 at a time | 0.60 of the pass-through's \
             requests per second (0.60 to 0.60) |",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn nothing_measured_gives_no_section() {
        let mut page = Page::new("Speed", None, &Vec::new());
        section(&mut page, &Results::default());
        assert!(!page.to_string().contains("What to expect"));
    }
}
