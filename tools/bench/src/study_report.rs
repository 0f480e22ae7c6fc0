//! The page `docs/benchmarks-study.md`, and its raw results.

use crate::goals::{self, Goal};
use crate::page::{Conditions, Page};
use crate::study::{FILES, Measured, Plan, TIMES, WAYS, Way};
use crate::table::{Row, Table};
use onefold_harness::distinct::BLOCK_BYTES;

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks-study";

/// The program's memory in addition to the records.
const SLACK_MIB: f64 = 32.0;

/// The memory that Harnik's estimate states, in MiB.
const HARNIK_MIB: f64 = 16.0;

fn goals(plan: &Plan, measured: &Measured) -> Vec<Goal> {
    let median = |way| Some(measured.rate(plan, way)?.median);
    let ratio = |one, other| Some(measured.ratio(plan, one, other)?.median);
    let excess = |way| plan.excess(way).unwrap_or(f64::NAN);
    let little = plan.little_mib;
    let peaks = [Way::Little, Way::SmallLittle].map(|way| measured.peak_mib(way));
    let peak = peaks.into_iter().flatten().reduce(f64::max);
    vec![
        Goal::at_least("4 KiB, GB/s", median(Way::Exact), 1.5, 4.0),
        Goal::at_least(
            format!(
                "4 KiB in {little} MiB, {:.1} times more records than fit: part of that speed",
                excess(Way::Little)
            ),
            ratio(Way::Little, Way::Exact),
            0.5,
            0.9,
        ),
        Goal::at_least(
            format!(
                "512 bytes in {little} MiB, {:.1} times more records than fit: part of the speed \
                 with enough memory",
                excess(Way::SmallLittle)
            ),
            ratio(Way::SmallLittle, Way::SmallMuch),
            0.5,
            0.9,
        ),
        Goal::at_most(
            format!("either in {little} MiB: peak memory, MiB"),
            peak,
            little as f64 + SLACK_MIB,
            None,
        ),
        Goal::at_least(
            "content-defined, 8 KiB on average, GB/s",
            median(Way::Content),
            0.6,
            1.2,
        ),
        Goal::at_most(
            "Harnik's estimate: time, times that of 4 KiB",
            ratio(Way::Exact, Way::Harnik),
            1.0,
            None,
        ),
        Goal::at_most(
            "Harnik's estimate: peak memory, MiB",
            measured.peak_mib(Way::Harnik),
            HARNIK_MIB,
            None,
        ),
        Goal::at_least(
            "`onefold bench` on memory, one processor: blocks written, read back and compared, a second",
            median(Way::Load).map(|rate| rate * 1e9 / BLOCK_BYTES as f64),
            300e3,
            1e6,
        ),
    ]
}

pub(crate) fn page(conditions: &Conditions, plan: &Plan, measured: &Measured) -> String {
    let mut page = Page::new("Analysis, measured", Some(NAME), conditions);
    let runs = measured.runs.iter().flatten();
    let from_device = runs.map(|run| run.device_read_bytes).max().unwrap_or(0);
    page.add(format!(
        "{FILES} files of {} MiB of random blocks, all different, in the page cache: at most {:.1} MB of any run \
         came from the device. The shipped `onefold analyze` runs on two processors and is timed from start to end; \
         `onefold bench` runs on one and is timed while it writes all blocks and reads them back. Medians of {} \
         rounds, in each of which every program runs once; ratios compare runs of the same round. Peak memory is \
         the highest resident memory of any round, as the kernel counts it.\n\n\
         The runs with little memory need more records, of 48 bytes per chunk, than fit. With blocks of 4 KiB that \
         takes more data than the page cache holds, so each file is named {TIMES} times; every chunk still gets a \
         record. With blocks of 512 bytes the data gives as many records, all different; sorting is then a larger \
         part of the work, and these runs are compared with the same run with `--memory {}`.",
        plan.file_bytes >> 20,
        from_device as f64 / 1e6,
        plan.rounds,
        plan.memory(Way::Much).unwrap_or_default(),
    ));
    page.add(goals::table(goals(plan, measured)));
    page.add("All measurements:");
    let table = Table::new(
        "| | `--memory` | data, GB | s | GB/s | lowest and highest | peak memory, MiB |",
    );
    page.add(table.with(WAYS.map(|way| way_row(plan, measured, way))));
    let factor = measured.ratio(plan, Way::Exact, Way::Duperemove);
    page.add(match (&measured.duperemove, factor) {
        (Ok(version), Some(factor)) => format!(
            "`duperemove` {version} makes checksums of the same blocks with two threads into a new file \
             (`--hashfile`, without `-d`, so that nothing is shared) and looks for equal ones: it \
             takes {:.1} times as long as `analyze` with blocks of 4 KiB.",
            factor.median
        ),
        (Ok(version), None) => format!("`duperemove` {version} could not be measured."),
        (Err(why), _) => format!("`duperemove` was not measured: {}", why.replace('\n', " ")),
    });
    page.add(
        "For context, on another machine, with six disk images of 12 GiB in total, zeros included: `vdoestimator` \
         took 28.8 s for blocks of 4 KiB, DEDISgen 161 s.",
    );
    page.to_string()
}

fn way_row(plan: &Plan, measured: &Measured, way: Way) -> Row {
    let row = Row::of(way.title());
    let (Some(rate), Some(peak)) = (measured.rate(plan, way), measured.peak_mib(way)) else {
        return row;
    };
    let gigabytes = plan.read_bytes(way) as f64 / 1e9;
    row.maybe(plan.memory(way))
        .number(gigabytes, 1)
        .number(gigabytes / rate.median, 2)
        .estimate(rate, 2)
        .number(peak, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Run;

    const PLAN: Plan = Plan {
        file_bytes: 1_250_000_000,
        rounds: 1,
        little_mib: 64,
        load_mib: 4000,
    };

    fn measured(seconds: [f64; WAYS.len()]) -> Measured {
        let runs = seconds.map(|seconds| {
            vec![Run {
                seconds,
                peak_memory_bytes: 97 << 20,
                device_read_bytes: 0,
            }]
        });
        Measured {
            runs,
            duperemove: Ok("1".to_owned()),
        }
    }

    #[test]
    fn goals_are_of_the_same_round_and_of_what_is_read() {
        // Ten gigabytes, or seventy.
        let measured = measured([5.0, 70.0, 35.0, 20.0, 8.0, 20.0, 6.0, 50.0, 2.0]);
        let verdicts: Vec<_> = goals(&PLAN, &measured)
            .iter()
            .map(|goal| (goal.value.unwrap(), goal.verdict(goal.must)))
            .collect();
        let expected = [
            (2.0, "met"),
            (0.5, "met"),
            (0.4, "missed"),
            (97.0, "missed"),
            (0.5, "missed"),
            (1.2, "missed"),
            (97.0, "missed"),
            (512_000.0, "met"),
        ];
        assert_eq!(verdicts, expected);
        let page = page(&Vec::new(), &PLAN, &measured);
        assert!(page.contains("takes 10.0 times as long"), "{page}");
    }

    #[test]
    fn what_was_not_measured_says_so() {
        let nothing = Measured {
            runs: [const { Vec::new() }; WAYS.len()],
            duperemove: Err("it is\nmissing".to_owned()),
        };
        let goals = goals(&PLAN, &nothing);
        assert!(
            goals
                .iter()
                .all(|goal| goal.verdict(goal.must) == "not measured")
        );
        let page = page(&Vec::new(), &PLAN, &nothing);
        assert!(page.contains("was not measured: it is missing"), "{page}");
    }
}
