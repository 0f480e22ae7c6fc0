//! The page `docs/benchmarks-index.md`, its raw results, and the plot of growth.

use anyhow::{Context, Result};
use plotters::prelude::*;
use serde_json::Value;

use crate::goals::{self, Goal};
use crate::index::{KINDS, Measured, Plan};
use crate::page::{Conditions, Page, write_files};
use crate::table::{Row, Table};
use onefold_harness::workspace::Workspace;

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks-index";
const GROWTH_PAGE: &str = "docs/benchmarks-index-growth.md";
const GROWTH_PLOT: &str = "docs/benchmarks-index-growth.svg";

/// Rows of the table: title, place in the results, and digits after the point.
const NUMBERS: [(&str, &str, usize); 10] = [
    ("mixed, operations/s", "/mixed/operations_per_second", 0),
    (
        "mixed, processor time, µs an operation",
        "/mixed_cpu_us_per_operation",
        2,
    ),
    ("mixed, batch, median, ms", "/mixed/batch_ms_median", 1),
    ("mixed, batch, p99, ms", "/mixed/batch_ms_p99", 1),
    (
        "mixed, written, bytes an operation",
        "/mixed/written_bytes_per_operation",
        0,
    ),
    ("release, operations/s", "/release/operations_per_second", 0),
    ("release, batch, median, ms", "/release/batch_ms_median", 1),
    ("release, batch, p99, ms", "/release/batch_ms_p99", 1),
    ("resident, bytes a row", "/resident_bytes_per_row", 1),
    ("on disk, bytes a row", "/disk_bytes_per_row", 1),
];

/// Rows of the table with memory for a quarter of the file of `hash`: title, and place in the results.
const TIGHT_NUMBERS: [(&str, &str); 4] = [
    ("mixed, operations/s", "/mixed/operations_per_second"),
    ("mixed, pages read/s", "/mixed/pages_read_per_second"),
    ("release, operations/s", "/release/operations_per_second"),
    ("release, pages read/s", "/release/pages_read_per_second"),
];

/// The numbers that `hash` must and should reach.
fn goals(measured: &Measured) -> Vec<Goal> {
    let [hash, btree, _] = &measured.back_ends;
    let times = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    let ratio = |pointer: &str| times(hash.median(pointer), btree.median(pointer));
    let mixed = "/mixed/operations_per_second";
    let release = ratio("/release/operations_per_second");
    let reads = hash.tight("/mixed/pages_read_per_second");
    let resident = hash.median("/resident_bytes_per_row");
    let on_disk = hash.median("/disk_bytes_per_row");
    let written = hash.median("/mixed/written_bytes_per_operation");
    let ready = hash.ready_seconds();
    let p99 = times(
        hash.median("/mixed/batch_ms_p99"),
        hash.median("/mixed/batch_ms_median"),
    );
    vec![
        Goal::at_least("mixed, operations/s", hash.median(mixed), 400e3, 1.5e6),
        Goal::at_least("mixed, times `btree`", ratio(mixed), 8.0, None),
        Goal::at_least("release, times `btree`", release, 6.0, None),
        Goal::at_least(
            "a quarter of the memory: mixed, pages read/s, part of fio's",
            times(reads, Some(measured.fio_reads_per_second)),
            0.5,
            0.8,
        ),
        Goal::at_least(
            "a quarter of the memory: mixed, operations/s, times `btree`",
            times(hash.tight(mixed), btree.tight(mixed)),
            8.0,
            20.0,
        ),
        Goal::at_most("resident, bytes a row", resident, 6.0, 3.0),
        Goal::at_most("on disk, bytes a row", on_disk, 64.0, 40.0),
        Goal::at_most("written, bytes an operation", written, 500.0, 250.0),
        Goal::at_most("batch, p99, times the median", p99, 3.0, 1.5),
        Goal::at_most("open, and a first batch answered, s", ready, 5.0, 1.0),
    ]
}

pub(crate) fn page(conditions: &Conditions, plan: &Plan, measured: &Measured) -> String {
    let mut page = Page::new("Index back ends, measured", Some(NAME), conditions);
    page.add(format!(
        "{} rows of random fingerprints; batches of 16,384 operations, each durable except with `memory`; one \
         processor; files in the page cache. *Mixed*: half new, half present; *release*: all present. Medians of {} \
         runs of {} batches of each kind ({} of `btree`). A back end may take 2 GiB of memory.",
        plan.rows, plan.runs, plan.batches, plan.btree_batches,
    ));
    let back_ends = &measured.back_ends;
    let rows = NUMBERS.iter().map(|(what, pointer, digits)| {
        let medians = back_ends.iter().map(|one| one.median(pointer));
        Row::of(what).numbers(medians, *digits)
    });
    let ready = Row::of("open with nothing in the page cache, and a first batch, s")
        .numbers(back_ends.iter().map(|one| one.ready_seconds()), 2);
    let table = Table::new(&format!("| | `{}` |", KINDS.join("` | `")));
    page.add(table.with(rows.chain([ready])));
    page.add(format!(
        "Both in a control group of {} MiB, a quarter of the file of `hash` (64 MiB at least), half of it for the \
         back end and half for the page cache; {} batches of each kind ({} of `btree`), one run. *Pages read* came \
         from the device, for lookups and for merges. fio, 32 random reads of 4 KiB of that file in flight past the \
         page cache, on the same processor: {:.0} reads/s.",
        measured.tight_bytes >> 20,
        plan.tight_batches,
        plan.tight_batches.min(plan.btree_batches),
        measured.fio_reads_per_second,
    ));
    let rows = TIGHT_NUMBERS.iter().map(|(what, pointer)| {
        let numbers = back_ends[..2].iter().map(|one| one.tight(pointer));
        Row::of(what).numbers(numbers, 0)
    });
    page.add(Table::new("| | `hash` | `btree` |").with(rows));
    page.add("The numbers that `hash` must and should reach:");
    page.add(goals::table(goals(measured)));
    page.to_string()
}

/// The results at one size.
struct Grown {
    rows: f64,
    cpu_us: f64,
    wall_us: f64,
    resident_bytes: f64,
}

pub(crate) fn write_growth(
    workspace: &Workspace,
    conditions: &Conditions,
    runs: &[Value],
) -> Result<()> {
    let grown: Option<Vec<Grown>> = runs.iter().map(grown).collect();
    let grown = grown.context("a number is missing")?;
    let title = "The cost of an operation of the `hash` index, by its size";
    let mut page = Page::new(title, None, conditions);
    page.add(
        "Batches of 16,384 operations, half new and half present, each durable, one processor, \
         files in the page cache.",
    );
    page.add("![µs an operation by rows](benchmarks-index-growth.svg)");
    let header =
        "| rows | processor time, µs an operation | wall clock, µs | resident, bytes a row |";
    page.add(Table::new(header).with(grown.iter().map(|point| {
        Row::of(format!("{:.1} M", point.rows / 1e6))
            .numbers([point.cpu_us, point.wall_us], 2)
            .number(point.resident_bytes, 1)
    })));
    let page = page.to_string();
    let plot = plot(&grown).map_err(|error| anyhow::anyhow!("cannot draw the plot: {error}"))?;
    write_files(workspace, &[(GROWTH_PAGE, &page), (GROWTH_PLOT, &plot)])
}

fn grown(run: &Value) -> Option<Grown> {
    let number = |pointer: &str| run.pointer(pointer).and_then(Value::as_f64);
    Some(Grown {
        rows: number("/rows")?,
        cpu_us: number("/mixed_cpu_us_per_operation")?,
        wall_us: 1e6 / number("/mixed/operations_per_second")?,
        resident_bytes: number("/resident_bytes_per_row")?,
    })
}

fn plot(grown: &[Grown]) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let most = |of: fn(&Grown) -> f64| grown.iter().map(of).fold(0.0, f64::max);
    let least_rows = grown
        .iter()
        .map(|point| point.rows)
        .fold(f64::MAX, f64::min);
    let costs_max = 1.2 * most(|point| point.wall_us);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (720, 400)).into_drawing_area();
        area.fill(&WHITE)?;
        let rows = (0.8 * least_rows..1.2 * most(|point| point.rows)).log_scale();
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(48)
            .build_cartesian_2d(rows, 0.0..costs_max)?;
        chart
            .configure_mesh()
            .x_desc("rows, millions")
            .y_desc("µs an operation")
            .x_label_formatter(&|rows| format!("{}", rows / 1e6))
            .draw()?;
        let line = |cost: fn(&Grown) -> f64| -> Vec<(f64, f64)> {
            grown
                .iter()
                .map(|point| (point.rows, cost(point)))
                .collect()
        };
        for (name, color, points) in [
            ("wall clock", BLUE, line(|point| point.wall_us)),
            ("processor time", RED, line(|point| point.cpu_us)),
        ] {
            chart
                .draw_series(LineSeries::new(points, color).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::BackEnd;
    use serde_json::json;

    fn back_end(rate: f64, tight_rate: f64) -> BackEnd {
        let asked = |rate: f64| {
            json!({"operations_per_second": rate, "batch_ms_median": 10.0, "batch_ms_p99": 25.0,
                   "written_bytes_per_operation": 300.0, "pages_read_per_second": 60e3})
        };
        let run = json!({"mixed": asked(rate), "release": asked(rate),
                         "resident_bytes_per_row": 6.5, "disk_bytes_per_row": 51.0});
        BackEnd {
            runs: vec![run],
            opens: vec![json!({"open_seconds": 0.5, "batch_seconds": [0.25, 0.1]})],
            tight: Some(json!({"mixed": asked(tight_rate)})),
        }
    }

    #[test]
    fn goals_are_of_hash_and_beside_btree() {
        let measured = Measured {
            back_ends: [
                back_end(450e3, 80e3),
                back_end(50e3, 8e3),
                BackEnd::default(),
            ],
            tight_bytes: 64 << 20,
            fio_reads_per_second: 100e3,
        };
        let verdicts: Vec<_> = goals(&measured)
            .iter()
            .map(|goal| (goal.value.unwrap(), goal.verdict(goal.must)))
            .collect();
        let expected = [
            (450e3, "met"),
            (9.0, "met"),
            (9.0, "met"),
            (0.6, "met"),
            (10.0, "met"),
            (6.5, "missed"),
            (51.0, "met"),
            (300.0, "met"),
            (2.5, "met"),
            (0.75, "met"),
        ];
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let measured = Measured {
            back_ends: Default::default(),
            tight_bytes: 64 << 20,
            fio_reads_per_second: 0.0,
        };
        let goals = goals(&measured);
        assert!(
            goals
                .iter()
                .all(|goal| goal.verdict(goal.must) == "not measured")
        );
    }

    #[test]
    fn growth_is_drawn() {
        let grown: Vec<Grown> = [1e6, 1e7, 1e8]
            .map(|rows| Grown {
                rows,
                cpu_us: 1.5,
                wall_us: 2.0,
                resident_bytes: 5.0,
            })
            .into();
        let svg = plot(&grown).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.contains("processor time"),
            "{svg}"
        );
    }
}
