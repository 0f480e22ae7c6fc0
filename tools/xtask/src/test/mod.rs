//! `cargo xtask test`: everything that CI runs, each step with its duration and its processor time.
//!
//! A step that fails does not stop the later ones, so that one run reports every failure. A missing
//! tool is installed or is a failure. The exceptions are cargo-deny, which takes long to build, and Ceph, which not
//! every machine can have. Each is named in a closing line if it is missing: nothing is left out silently.
//!
//! Two steps run at a time, and from when the product is built one of them mostly waits. A third one takes what they
//! leave of the processors. The output of steps that wait or fill appears at their end.

mod changed;
mod steps;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onefold_harness::packages;
use onefold_harness::usage::{let_others_first, processor_time};
use onefold_harness::workspace::Workspace;

use crate::compiled;
use steps::{CEPH, CHANGED_STEPS, LICENSES, STEPS, Step, Work};

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only the steps whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Run the tests of the tests even if the checks do not differ from main
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Check only what differs from main: formatting, clippy, tidy, and the tests and some seeds of the crates that the
    /// difference reaches
    #[arg(long, conflicts_with_all = ["only", "all"])]
    changed: bool,
}

/// How a step ended.
struct Outcome {
    name: &'static str,
    took: Duration,
    /// Of processors, without daemons that nobody waits for.
    used: Duration,
    error: Option<anyhow::Error>,
}

/// `cargo xtask test`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let wanted = |step: &&Step| {
        let only = arguments.only.as_ref();
        only.is_none_or(|only| step.name.contains(only))
    };
    let steps = if arguments.changed {
        CHANGED_STEPS
    } else {
        STEPS
    };
    let mut steps: Vec<&Step> = steps.iter().filter(wanted).collect();
    let mut skipped = Vec::new();
    let is_wanted = arguments.all || arguments.only.is_some();
    if !is_wanted && !changed::reaches_checks(workspace) {
        let before = steps.len();
        steps.retain(|step| !step.is_control);
        if steps.len() < before {
            skipped.push(format!(
                "skipped: {} tests of the tests, because the checks are as on main; --all runs them",
                before - steps.len()
            ));
        }
    }
    if steps.iter().any(|step| step.name == LICENSES) && !steps::has_cargo_deny(workspace) {
        steps.retain(|step| step.name != LICENSES);
        skipped.push(format!(
            "skipped: {LICENSES}, because cargo-deny is not installed"
        ));
    }
    if steps.iter().any(|step| step.name == CEPH)
        && let Err(error) = packages::require(packages::CEPH)
    {
        steps.retain(|step| step.name != CEPH);
        let reason = format!("{error:#}");
        let reason = reason.lines().next().unwrap_or_default();
        skipped.push(format!("skipped: {CEPH}, because {reason}"));
    }
    let outcomes = perform_all(workspace, &steps);
    print!("{}", table(&outcomes, start.elapsed()));
    // The inner loop builds its tests with a call of Cargo that is not counted.
    if !arguments.changed
        && let Some(line) = compiled::line()
    {
        println!("{line}");
    }
    for line in &skipped {
        println!("{line}");
    }
    let failed = outcomes.iter().filter(|outcome| outcome.error.is_some());
    let failed = failed.count();
    println!("{}", closing_line(outcomes.len() - failed, failed));
    match (outcomes.len() + skipped.len(), failed) {
        (0, _) => bail!("no step has such a name"),
        (_, 0) => Ok(()),
        _ => bail!("{failed} steps failed"),
    }
}

/// The outcomes are in the order of the steps.
fn perform_all(workspace: &Workspace, steps: &[&'static Step]) -> Vec<Outcome> {
    let of = |is_wanted: fn(&Work) -> bool| steps.iter().filter(move |step| is_wanted(&step.work));
    let perform = |step: &&'static Step| perform(workspace, step);
    let mut outcomes: Vec<Outcome> = of(|work| matches!(work, Work::Alone(_)))
        .map(perform)
        .collect();
    let waiting = Queue::new(of(|work| {
        matches!(work, Work::Beside(_) | Work::Accepting(_))
    }));
    let filling = Queue::new(of(|work| matches!(work, Work::Filling(_))));
    // A lane that is done with its own steps takes those of the next one.
    let take_all = |queues: &[&Queue]| -> Vec<Outcome> {
        let steps = queues.iter().flat_map(|queue| queue.steps());
        steps.map(|step| perform(&step)).collect()
    };
    let others = std::thread::scope(|scope| {
        let beside = scope.spawn(|| take_all(&[&waiting, &filling]));
        let filler = scope.spawn(|| {
            let_others_first();
            take_all(&[&filling])
        });
        outcomes.extend(of(|work| matches!(work, Work::Computing(_))).map(perform));
        outcomes.extend(take_all(&[&waiting, &filling]));
        [beside.join(), filler.join()]
    });
    // A panic of another thread is one of this run.
    let others = others
        .into_iter()
        .flat_map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    outcomes.extend(others);
    outcomes.sort_by_key(|outcome| steps.iter().position(|step| step.name == outcome.name));
    outcomes
}

/// Steps that several threads take, each the next one.
struct Queue(Mutex<VecDeque<&'static Step>>);

impl Queue {
    fn new<'a>(steps: impl Iterator<Item = &'a &'static Step>) -> Queue {
        Queue(Mutex::new(steps.copied().collect()))
    }

    /// Takes one step after the other until none is left.
    fn steps(&self) -> impl Iterator<Item = &'static Step> {
        std::iter::from_fn(|| {
            // A panic while it is held leaves nothing half done.
            let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            steps.pop_front()
        })
    }
}

fn perform(workspace: &Workspace, step: &'static Step) -> Outcome {
    let name = step.name;
    let start = Instant::now();
    let used_before = processor_time();
    let beside = || format!("\n=== {name}, beside others\n");
    let (said, error) = match step.work {
        Work::Alone(work) | Work::Computing(work) => {
            println!("\n=== {name}");
            (String::new(), work(workspace).err())
        }
        Work::Beside(work) | Work::Filling(work) => {
            let mut said = beside();
            let error = work(workspace, &mut said).err();
            (said, error)
        }
        Work::Accepting(calls) => {
            let mut said = beside();
            let error = accept(workspace, calls, &mut said).err();
            (said, error)
        }
    };
    let outcome = Outcome {
        name,
        took: start.elapsed(),
        used: processor_time().saturating_sub(used_before),
        error,
    };
    let mut text = said;
    if let Some(error) = &outcome.error {
        // Writing to a String can not fail.
        let _ = writeln!(text, "{error:#}");
    }
    let _ = writeln!(text, "=== {}", outcome.line());
    // In one piece, so that lines of two steps do not mix. A closed pipe loses the text only.
    let _ = std::io::stdout().write_all(text.as_bytes());
    outcome
}

/// Makes calls of `onefold-acceptance`, and keeps their output.
fn accept(workspace: &Workspace, calls: &[&[&str]], said: &mut String) -> Result<()> {
    for arguments in calls {
        let call = steps::acceptance(workspace)?.args(*arguments);
        steps::keep(call, said).with_context(|| format!("cargo xtask {}", arguments.join(" ")))?;
    }
    Ok(())
}

/// The duration and the processor time of each step, and of all of them.
fn table(outcomes: &[Outcome], took: Duration) -> String {
    let sum = |of: fn(&Outcome) -> Duration| outcomes.iter().map(of).sum::<Duration>();
    let seconds = columns(sum(|outcome| outcome.took), sum(|outcome| outcome.used));
    let mut table = String::from("\nAll steps, with their duration and their processor time:\n");
    for outcome in outcomes {
        // Writing to a String can not fail.
        let _ = writeln!(table, "  {}", outcome.line());
        // Once more, because often only the end of the output is kept.
        if let Some(error) = &outcome.error {
            let _ = writeln!(table, "{error:#}");
        }
    }
    let _ = writeln!(table, "         {seconds}  together");
    let took = took.as_secs_f64();
    let _ = writeln!(table, "         {took:7.1} s  from start to end");
    table
}

fn columns(took: Duration, used: Duration) -> String {
    let (took, used) = (took.as_secs_f64(), used.as_secs_f64());
    format!("{took:7.1} s {used:7.1} s")
}

impl Outcome {
    fn line(&self) -> String {
        let verdict = if self.error.is_none() { "ok" } else { "FAILED" };
        let columns = columns(self.took, self.used);
        format!("{verdict:6} {columns}  {}", self.name)
    }
}

fn closing_line(passed: usize, failed: usize) -> String {
    format!("{passed} passed, {failed} failed")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_closing_line_is_plain() {
        assert_eq!(closing_line(11, 1), "11 passed, 1 failed");
    }

    #[test]
    fn every_step_is_performed_once_and_the_outcomes_are_in_order() {
        const fn step(name: &'static str, work: Work) -> Step {
            Step {
                name,
                work,
                is_control: false,
            }
        }
        static STEPS: [Step; 5] = [
            step("waits", Work::Beside(|_, _| Ok(()))),
            step("alone", Work::Alone(|_| Ok(()))),
            step("fills", Work::Filling(|_, _| bail!("why"))),
            step("waits too", Work::Beside(|_, _| Ok(()))),
            step("computes", Work::Computing(|_| Ok(()))),
        ];
        let workspace = Workspace {
            root: PathBuf::new(),
            target: PathBuf::new(),
            metadata: serde_json::Value::Null,
        };
        let steps: Vec<&'static Step> = STEPS.iter().collect();
        let outcomes = perform_all(&workspace, &steps);
        let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name).collect();
        let expected = ["waits", "alone", "fills", "waits too", "computes"];
        assert_eq!(names, expected);
        let failed = outcomes.iter().filter(|outcome| outcome.error.is_some());
        assert_eq!(
            failed.map(|outcome| outcome.name).collect::<Vec<_>>(),
            ["fills"]
        );
    }

    #[test]
    fn the_table_has_every_step_and_what_failed() {
        let outcome = |name, seconds, error: Option<&str>| Outcome {
            name,
            took: Duration::from_secs(seconds),
            used: Duration::from_millis(1500),
            error: error.map(|text| anyhow::anyhow!(text.to_owned())),
        };
        let outcomes = [outcome("a", 2, None), outcome("b", 3, Some("why"))];
        let table = table(&outcomes, Duration::from_secs(4));
        assert!(table.contains("ok         2.0 s     1.5 s  a\n"), "{table}");
        assert!(
            table.contains("FAILED     3.0 s     1.5 s  b\nwhy\n"),
            "{table}"
        );
        assert!(table.contains("5.0 s     3.0 s  together\n"), "{table}");
        assert!(table.ends_with("4.0 s  from start to end\n"), "{table}");
    }
}
