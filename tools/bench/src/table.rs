//! Tables of the pages, in Markdown.
//!
//! Every row has a cell for each column: a row that ends early is filled with dashes. A `|` in a cell is escaped.

use std::fmt::{self, Display};

use crate::statistics::Estimate;

/// The cell of a number that was not measured.
const NOTHING: &str = "-";

/// Titles of columns, which may be empty, and rows.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Row,
    rows: Vec<Row>,
}

impl Table {
    /// A table with a header in Markdown: `| | MB/s | range |`.
    pub(crate) fn new(header: &str) -> Table {
        Table {
            columns: Row::shown(header),
            rows: Vec::new(),
        }
    }

    /// Appends rows.
    pub(crate) fn with(mut self, rows: impl IntoIterator<Item = Row>) -> Table {
        let columns = self.columns.0.len();
        self.rows.extend(rows.into_iter().map(|mut row| {
            row.0.resize(columns.max(row.0.len()), NOTHING.to_owned());
            row
        }));
        self
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = " --- |".repeat(self.columns.0.len());
        write!(f, "{}\n|{line}", self.columns)?;
        self.rows.iter().try_for_each(|row| write!(f, "\n{row}"))
    }
}

/// The cells of a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row(Vec<String>);

impl Row {
    /// A row that begins with this cell.
    pub(crate) fn of(title: impl ToString) -> Row {
        Row::default().text(title)
    }

    /// A row in Markdown: `| copy | 778 |`.
    pub(crate) fn shown(line: &str) -> Row {
        let cells = line.trim_matches('|').split('|');
        Row::default().texts(cells.map(str::trim))
    }

    pub(crate) fn text(mut self, text: impl ToString) -> Row {
        self.0.push(text.to_string());
        self
    }

    pub(crate) fn texts<T: ToString>(mut self, texts: impl IntoIterator<Item = T>) -> Row {
        self.0
            .extend(texts.into_iter().map(|text| text.to_string()));
        self
    }

    /// Appends the text, or a dash.
    pub(crate) fn maybe(self, text: Option<impl ToString>) -> Row {
        self.text(text.map_or(NOTHING.to_owned(), |text| text.to_string()))
    }

    /// Appends a number with these digits after the point, or a dash.
    pub(crate) fn number(self, number: impl Into<Option<f64>>, digits: usize) -> Row {
        self.maybe(number.into().map(|number| format!("{number:.digits$}")))
    }

    /// Appends numbers, all with these digits after the point.
    pub(crate) fn numbers<N: Into<Option<f64>>>(
        self,
        numbers: impl IntoIterator<Item = N>,
        digits: usize,
    ) -> Row {
        let numbers = numbers.into_iter();
        numbers.fold(self, |row, number| row.number(number, digits))
    }

    /// Appends two cells: the median and its interval.
    pub(crate) fn estimate(self, estimate: Estimate, digits: usize) -> Row {
        let interval = estimate.interval(digits);
        self.number(estimate.median, digits).text(interval)
    }

    /// Appends two cells for each number that a row must or should reach: the number and the verdict on it, or a dash
    /// and nothing.
    pub(crate) fn goals<V: Display>(
        self,
        numbers: [Option<f64>; 2],
        verdict: impl Fn(f64) -> V,
    ) -> Row {
        numbers.into_iter().fold(self, |row, number| {
            let verdict = number.map_or(String::new(), |number| verdict(number).to_string());
            row.maybe(number).text(verdict)
        })
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cell in &self.0 {
            let space = if cell.is_empty() { "" } else { " " };
            write!(f, "| {}{space}", cell.replace('|', "\\|"))?;
        }
        f.write_str("|")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::verdict;

    #[test]
    fn cells_are_escaped_and_missing_ones_are_dashes() {
        let table = Table::new("| | MB/s | range | |").with([
            Row::of("a|b").number(1.26, 1),
            Row::of("c").numbers([Some(2.0), None], 0).text(""),
        ]);
        let expected = "| | MB/s | range | |\n\
                        | --- | --- | --- | --- |\n\
                        | a\\|b | 1.3 | - | - |\n\
                        | c | 2 | - | |";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_table_without_rows_has_its_header() {
        let expected = "| | |\n| --- | --- |";
        assert_eq!(Table::new("| | |").to_string(), expected);
    }

    #[test]
    fn a_line_and_its_row_are_the_same() {
        let line = "| copy | 778 | 750 to 858 | - | | - | |";
        assert_eq!(Row::shown(line).to_string(), line);
        let rate = Estimate {
            median: 778.0,
            low: 750.0,
            high: 858.0,
        };
        let row = Row::of("copy").estimate(rate, 0);
        let row = row.goals([None, None], |_| "met");
        assert_eq!(row, Row::shown(line));
    }

    #[test]
    fn a_rate_without_a_number_has_no_verdict() {
        let cells = |numbers| Row::default().goals(numbers, |number| verdict(500.0 >= number));
        assert_eq!(
            cells([Some(400.0), Some(1500.0)]).to_string(),
            "| 400 | met | 1500 | missed |"
        );
        assert_eq!(
            cells([Some(600.0), None]).to_string(),
            "| 600 | missed | - | |"
        );
    }
}
