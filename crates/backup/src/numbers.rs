//! Sets of numbers, as runs in ascending order.

use onefold_format::backup::NumberRun;

/// Merges runs in any order into ascending runs with each number once.
pub(crate) fn merged(mut runs: Vec<NumberRun>) -> Vec<NumberRun> {
    runs.sort_unstable_by_key(|run| run.first);
    let mut merged: Vec<NumberRun> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.first <= last.first + last.blocks => {
                let end = (run.first + run.blocks).max(last.first + last.blocks);
                last.blocks = end - last.first;
            }
            _ => merged.push(run),
        }
    }
    merged
}

/// Yields, for each number from `first`, whether a run contains it.
pub(crate) fn are_in(runs: &[NumberRun], first: u64) -> impl Iterator<Item = bool> {
    let end = |run: &NumberRun| run.first + run.blocks;
    let before = runs.partition_point(|run| end(run) <= first);
    let mut runs = runs[before..].iter().peekable();
    (first..).map(move |number| {
        while runs.next_if(|run| end(run) <= number).is_some() {}
        runs.peek().is_some_and(|run| run.first <= number)
    })
}

/// Appends a number that is above all runs.
pub(crate) fn push(runs: &mut Vec<NumberRun>, number: u64) {
    match runs.last_mut() {
        Some(last) if last.first + last.blocks == number => last.blocks += 1,
        _ => runs.push(NumberRun {
            first: number,
            blocks: 1,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_the_set_if_a_run_has_it() {
        const NUMBERS: u64 = 10;
        for set in 0..1_u64 << NUMBERS {
            let is_in = |number: u64| set >> number & 1 == 1;
            let mut runs: Vec<NumberRun> = Vec::new();
            for number in (0..NUMBERS).filter(|number| is_in(*number)) {
                push(&mut runs, number);
            }
            for first in 0..=NUMBERS {
                let found = are_in(&runs, first).take(NUMBERS as usize);
                let expected = (first..).take(NUMBERS as usize).map(is_in);
                assert!(found.eq(expected), "{set:b} from {first}");
            }
        }
    }
}
