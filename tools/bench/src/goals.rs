//! The numbers that a row must and should reach, for the pages of single commands.

use crate::table::{Row, Table};

/// A measured number, and the numbers that it must and should reach.
#[derive(Debug, Clone)]
pub(crate) struct Goal {
    pub(crate) what: String,
    /// The measured number, unless it could not be measured.
    pub(crate) value: Option<f64>,
    pub(crate) must: f64,
    pub(crate) aim: Option<f64>,
    /// Whether more is better.
    at_least: bool,
}

impl Goal {
    pub(crate) fn at_least(
        what: impl Into<String>,
        value: Option<f64>,
        must: f64,
        aim: impl Into<Option<f64>>,
    ) -> Goal {
        Goal {
            what: what.into(),
            value,
            must,
            aim: aim.into(),
            at_least: true,
        }
    }

    pub(crate) fn at_most(
        what: impl Into<String>,
        value: Option<f64>,
        must: f64,
        aim: impl Into<Option<f64>>,
    ) -> Goal {
        Goal {
            at_least: false,
            ..Goal::at_least(what, value, must, aim)
        }
    }

    pub(crate) fn verdict(&self, number: f64) -> &'static str {
        match self.value {
            None => "not measured",
            Some(value) if self.at_least && value >= number => "met",
            Some(value) if !self.at_least && value <= number => "met",
            Some(_) => "missed",
        }
    }
}

/// A table of the goals.
pub(crate) fn table(goals: impl IntoIterator<Item = Goal>) -> Table {
    Table::new("| | | must | | aim | |").with(goals.into_iter().map(|goal| {
        let row = Row::of(&goal.what).number(goal.value, 2);
        row.goals([Some(goal.must), goal.aim], |number| goal.verdict(number))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_meets_what_it_reaches_and_nothing_meets_nothing() {
        let rate = |value| Goal::at_least("rate", value, 2.0, 4.0);
        assert_eq!(rate(Some(2.0)).verdict(2.0), "met");
        assert_eq!(rate(Some(1.9)).verdict(2.0), "missed");
        assert_eq!(rate(None).verdict(2.0), "not measured");
        let time = Goal::at_most("time", Some(1.0), 1.0, None);
        assert_eq!((time.verdict(1.0), time.verdict(0.9)), ("met", "missed"));
        let page = table([rate(Some(3.0)), time]).to_string();
        assert!(
            page.ends_with(
                "| rate | 3.00 | 2 | met | 4 | missed |\n| time | 1.00 | 1 | met | - | |"
            ),
            "{page}"
        );
    }
}
