//! The page of `cargo xtask bench sharing`.

use anyhow::{Context, Result};
use onefold_harness::workspace::Workspace;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::guest::{POOL_BYTES, STRETCH_WINDOWS, SUPPLY_BYTES};
use crate::page::{self, Conditions, Page};
use crate::results::read;
use crate::sharing::LATENCY_BUDGET;
use crate::slices::DATA_BYTES;
use crate::statistics::{Estimate, median, verdict};
use crate::table::{Row, Table};
use crate::windows::{PERCENTILES, Pair, WINDOW, Window};

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks-sharing";

/// The least rate of copies in a window with deduplication for its pair to count.
const COPIES_PER_SECOND_MIN: f64 = 100.0;

/// The most requests in a window, relative to the guest's nominal rate, for its pair to count. A guest that was slowed
/// down makes the requests that it owes as fast as it can, which is another load.
const NOMINAL_MAX: f64 = 1.02;

/// The least rate of the finder for a verdict on jobs.
const FINDER_MB_PER_SECOND_MIN: f64 = 10.0;

/// The cell of a count that this machine does not offer.
const UNKNOWN: &str = "unknown";

/// A row: the form of deduplication that is measured, and the state of the pool's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Case {
    NewFile,
    UsedFile,
    Device,
    JobsAtWork,
}

/// The numbers that a ratio must and should reach at most, where there are such goals.
type Goals = [Option<f64>; 2];

impl Case {
    fn title(self) -> &'static str {
        match self {
            Case::NewFile => "after `pool dedup`, new file",
            Case::UsedFile => "after `pool dedup`, used file",
            Case::Device => "after `pool dedup`, block device",
            Case::JobsAtWork => "jobs at work, new file",
        }
    }

    /// The goals of each of [`PERCENTILES`].
    fn goals(self) -> [Goals; PERCENTILES.len()] {
        let none = [None; 2];
        match self {
            Case::NewFile => [[Some(1.3), Some(1.1)], [Some(1.7), Some(1.3)], none],
            Case::UsedFile | Case::Device => [none; 3],
            Case::JobsAtWork => [[Some(1.1), Some(1.02)], none, [Some(1.25), Some(1.11)]],
        }
    }
}

/// The pairs of windows of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    case: Case,
    runs: Vec<Run>,
    /// The reason why there are no runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_run: Option<String>,
}

/// The pairs of windows of one run of the guest, and the rate that it is limited to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) nominal_per_second: f64,
    pub(crate) pairs: Vec<Pair>,
}

impl Run {
    /// The pairs with enough copies, and at the same rate of requests.
    fn counted(&self) -> impl Iterator<Item = &Pair> {
        let requests_max = self.nominal_per_second * NOMINAL_MAX;
        self.pairs.iter().filter(move |pair| {
            let windows = [&pair.with, &pair.without];
            let owes = |window: &&Window| window.requests_per_second > requests_max;
            pair.with.copies_per_second >= COPIES_PER_SECOND_MIN && !windows.iter().any(owes)
        })
    }
}

impl Measured {
    pub(crate) fn nothing_yet(case: Case) -> Measured {
        Measured {
            case,
            runs: Vec::new(),
            not_run: None,
        }
    }

    pub(crate) fn not_run(case: Case, reason: &str) -> Measured {
        Measured {
            not_run: Some(reason.to_owned()),
            ..Measured::nothing_yet(case)
        }
    }

    pub(crate) fn add(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn counted(&self) -> impl Iterator<Item = &Pair> {
        self.runs.iter().flat_map(Run::counted)
    }

    /// The ratio at each of [`PERCENTILES`], or the reason why there is none.
    fn ratios(&self) -> Result<[Estimate; PERCENTILES.len()], String> {
        if let Some(reason) = &self.not_run {
            return Err(format!("not run: {reason}"));
        }
        let ratio = |n: usize| Estimate::over(self.counted().map(|pair| pair.ratios()[n]));
        match [ratio(0), ratio(1), ratio(2)] {
            [Some(p50), Some(p95), Some(p99)] => Ok([p50, p95, p99]),
            _ => Err("no verdict: no pair counts".to_owned()),
        }
    }

    /// The medians of a number of the windows with and without deduplication.
    fn medians(&self, of: impl Fn(&Window) -> f64) -> [f64; 2] {
        let with = self.counted().map(|pair| of(&pair.with));
        let without = self.counted().map(|pair| of(&pair.without));
        [median(with), median(without)]
    }

    fn verdict(&self, ratio: Estimate, goal: f64) -> String {
        let [finder, _] = self.medians(|window| window.finder_mb_per_second);
        if self.case == Case::JobsAtWork && finder < FINDER_MB_PER_SECOND_MIN {
            return format!("no verdict: the finder did {finder:.1} MB/s");
        }
        verdict(ratio.median <= goal).to_owned()
    }

    /// A row of the page for each percentile.
    fn latency_rows(&self) -> Vec<Row> {
        let title = Row::of(self.case.title());
        let ratios = match self.ratios() {
            Ok(ratios) => ratios,
            Err(reason) => return vec![title.text(reason)],
        };
        let rows = PERCENTILES.iter().zip(ratios).zip(self.case.goals());
        rows.enumerate()
            .map(|(n, ((percent, ratio), goals))| {
                title
                    .clone()
                    .text(format!("p{percent}"))
                    .estimate(ratio, 2)
                    .numbers(self.medians(|window| window.latencies_us[n]), 0)
                    .goals(goals, |goal| self.verdict(ratio, goal))
            })
            .collect()
    }

    fn counts_row(&self) -> Option<Row> {
        self.ratios().ok()?;
        let passed_on = |window: &Window| window.passed_on_per_second.unwrap_or(f64::NAN);
        let passed_on = self.medians(passed_on).map(|rate| {
            if rate.is_nan() {
                UNKNOWN.to_owned()
            } else {
                format!("{rate:.0}")
            }
        });
        let [finder, _] = self.medians(|window| window.finder_mb_per_second);
        let all: usize = self.runs.iter().map(|run| run.pairs.len()).sum();
        let nominal = self.runs.iter().map(|run| run.nominal_per_second);
        let row = Row::of(self.case.title())
            .text(format!("{} of {all}", self.counted().count()))
            .number(median(nominal), 0)
            .numbers(self.medians(|window| window.requests_per_second), 0)
            .numbers(self.medians(|window| window.copies_per_second), 0)
            .texts(passed_on)
            .number(finder, 1);
        Some(row)
    }

    /// The ratios in one line.
    pub(crate) fn line(&self) -> String {
        let ratios = match self.ratios() {
            Ok(ratios) => PERCENTILES
                .iter()
                .zip(ratios)
                .map(|(percent, ratio)| format!("p{percent} {ratio}"))
                .collect::<Vec<_>>()
                .join(", "),
            Err(reason) => reason,
        };
        format!("{}: {ratios}", self.case.title())
    }
}

pub(crate) fn page(conditions: &Conditions, rows: &[Measured]) -> String {
    let mut page = Page::new("Benchmarks of sharing", Some(NAME), conditions);
    page.add(format!(
        "A guest makes random reads and writes of 4 KiB in equal parts at depth 32, at half of the rate that it reaches \
         at full speed. Its volume has {} MiB in a pool of {} GiB, and a quarter of the data that it writes are duplicates. \
         `serve --cache direct --latency-budget {LATENCY_BUDGET}`; client and daemon each on a processor of its own. The guest runs all the time, and its \
         requests are assigned to windows of {} s by the time of their answers. A window with deduplication and one \
         without it, of the same run, are a pair. A pair counts if its window with deduplication has at least \
         {COPIES_PER_SECOND_MIN:.0} copies a second, which are writes to published blocks, each of which needs a new block; \
         and if neither window has more than {NOMINAL_MAX} times the nominal number of requests, because a guest that was \
         slowed down makes its late requests at full speed.",
        DATA_BYTES >> 20,
        POOL_BYTES >> 30,
        WINDOW.as_secs(),
    ));
    page.add(format!(
        "*After `pool dedup`*: jobs are paused, and all blocks are equally likely. The windows without deduplication are \
         before the command, where writes go in place; the windows with it begin when the command ends, and the first \
         write to each block is a copy. *New file*: the pool was just made, and its data is a sparse file. *Used file*: \
         each block was rewritten and released three times before. *Block device*: a loop device, all of whose bytes were \
         written before. *Jobs at work*: 90 % of the requests go to a tenth of the blocks, and a second volume has {} GiB \
         of new data for the finder. In turns of {} windows, in random order, the jobs are resumed and paused; windows at the same place in \
         both are a pair. The finder publishes a batch every few seconds, and its rate is that of a turn. `pool dedup` published the guest's blocks before, so both have copies, and the ratio is the effect of the \
         jobs alone.",
        SUPPLY_BYTES >> 30,
        STRETCH_WINDOWS,
    ));
    page.section(
        "Latencies",
        "*Ratio*: the percentile with deduplication divided by the one without it in the same pair, the median with its 95 % \
         interval; then the medians of both percentiles in µs.",
    );
    let table = Table::new("| | | ratio | 95 % | with, µs | without, µs | must | | aim | |");
    page.add(table.with(rows.iter().flat_map(Measured::latency_rows)));
    page.section(
        "Counts",
        "Per second, with and without deduplication, medians. *Nominal*: the rate that the guest is limited to. *To workers*: \
         requests that the daemon's io_uring passed to workers of the kernel because they would have had to wait. The daemon's \
         flushes and discards are not counted.",
    );
    let table = Table::new(
        "| | pairs | nominal | requests, with | without | copies, with | without | to workers, with | without \
         | finder, MB/s |",
    );
    page.add(table.with(rows.iter().filter_map(Measured::counts_row)));
    page.to_string()
}

pub(crate) fn raw(conditions: &Conditions, rows: &[Measured]) -> Value {
    json!({"conditions": page::by_name(conditions), "rows": rows})
}

/// Writes the page of the last run again, from its raw results.
pub(crate) fn render(workspace: &Workspace) -> Result<()> {
    let path = workspace.root.join(page::raw_path(NAME));
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let raw: Value = serde_json::from_slice(&text).context("the raw results are no JSON")?;
    let conditions = page::of_names(&raw["conditions"])?;
    let rows: Vec<Measured> = read(&raw["rows"])?;
    page::write_files(workspace, &[(&page::path(NAME), &page(&conditions, &rows))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(latency_us: f64, copies: f64, finder: f64) -> Window {
        Window {
            latencies_us: [latency_us, 2.0 * latency_us, 4.0 * latency_us],
            requests_per_second: 1000.0,
            copies_per_second: copies,
            finder_mb_per_second: finder,
            passed_on_per_second: None,
        }
    }

    /// Pairs whose ratio is 1.2, and three that do not count, whose ratio is 9.
    fn measured(case: Case, finder: f64) -> Measured {
        let pair = |latency_us, copies| Pair {
            with: window(latency_us, copies, finder),
            without: window(100.0, 0.0, 0.0),
        };
        let run = |nominal_per_second, pairs| Run {
            nominal_per_second,
            pairs,
        };
        let mut measured = Measured::nothing_yet(case);
        measured.add(run(1000.0, vec![pair(120.0, 100.0); 3]));
        measured.add(run(1000.0, vec![pair(900.0, 99.0)]));
        measured.add(run(900.0, vec![pair(900.0, 100.0); 2]));
        measured
    }

    fn shown(rows: &[Row]) -> Vec<String> {
        rows.iter().map(Row::to_string).collect()
    }

    #[test]
    fn pairs_without_copies_or_at_another_rate_do_not_count() {
        let measured = measured(Case::NewFile, 0.0);
        let title = "| after `pool dedup`, new file |";
        let expected = [
            "p50 | 1.20 | 1.20 to 1.20 | 120 | 100 | 1.3 | met | 1.1 | missed |",
            "p95 | 1.20 | 1.20 to 1.20 | 240 | 200 | 1.7 | met | 1.3 | met |",
            "p99 | 1.20 | 1.20 to 1.20 | 480 | 400 | - | | - | |",
        ];
        let expected = expected.map(|cells| format!("{title} {cells}"));
        assert_eq!(shown(&measured.latency_rows()), expected);
        let counts = "3 of 6 | 1000 | 1000 | 1000 | 100 | 0 | unknown | unknown | 0.0 |";
        let row = measured.counts_row().unwrap();
        assert_eq!(row.to_string(), format!("{title} {counts}"));
    }

    #[test]
    fn a_slow_finder_and_missing_pairs_have_no_verdict() {
        let slow = measured(Case::JobsAtWork, 3.7);
        let [ratio, ..] = slow.ratios().unwrap();
        let verdict = slow.verdict(ratio, 9.0);
        assert_eq!(verdict, "no verdict: the finder did 3.7 MB/s");
        let fast = measured(Case::JobsAtWork, 10.0);
        assert_eq!(fast.verdict(ratio, 1.1), "missed");
        let reason = Measured::nothing_yet(Case::NewFile).ratios().unwrap_err();
        assert_eq!(reason, "no verdict: no pair counts");
        let none = Measured::not_run(Case::Device, "no loop device");
        let row = "| after `pool dedup`, block device | not run: no loop device |";
        assert_eq!(shown(&none.latency_rows()), [row]);
        assert_eq!(none.counts_row(), None);
    }

    #[test]
    fn raw_results_can_be_read_again() {
        let rows = [
            measured(Case::UsedFile, 0.0),
            Measured::not_run(Case::Device, "no loop device"),
        ];
        let raw = raw(&vec![("date", "today".to_owned())], &rows);
        assert_eq!(raw["rows"][1]["case"], "device");
        assert_eq!(read::<Vec<Measured>>(&raw["rows"]).unwrap(), rows);
    }
}
