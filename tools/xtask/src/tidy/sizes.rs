//! How large crates, files and functions are: a table for the reviewer, two numbers that may only go
//! down, and a limit for test files. Single long functions are no faults, because a table or a decision
//! in one piece can be clearer than its parts.

use super::SourceFile;
use super::crates::{Crate, Parsed};
use super::cycles;
use super::measures::{self, Measures};
use super::methods::Methods;

/// A function with more lines is long.
const FUNCTION_LINES_MAX: usize = 70;

/// A file with more lines is remarked. A test file with more lines is a fault: tests are independent of
/// each other, so they can always have files by subject.
const FILE_LINES_MAX: usize = 800;

/// Lines of the product's largest file. May only go down.
const LARGEST_FILE: usize = 674;

/// The product's long functions. May only go down.
const LONG_FUNCTIONS: usize = 6;

/// A line for each function and file that is too long, including tests.
pub(super) fn remarks(parsed: &[Parsed]) -> Vec<String> {
    let mut remarks = Vec::new();
    for parsed in parsed {
        let place = parsed.file.path.display();
        let measures = measures::of(parsed);
        if measures.lines > FILE_LINES_MAX && !is_test_file(parsed.file) {
            remarks.push(format!("{place}: {} lines without tests", measures.lines));
        }
        for long in measures
            .functions
            .iter()
            .filter(|of| of.lines > FUNCTION_LINES_MAX)
        {
            remarks.push(format!(
                "{place}:{}: function {} has {} lines",
                long.line, long.name, long.lines
            ));
        }
    }
    remarks
}

/// Test files that are too long.
pub(super) fn test_file_faults(files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| is_test_file(file)) {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            let place = file.path.display();
            faults.push(format!(
                "{place}: {lines} lines, and {FILE_LINES_MAX} is the limit of a test file: split it by subject"
            ));
        }
    }
    faults
}

/// Whether only tests use all of it.
fn is_test_file(file: &SourceFile) -> bool {
    file.is_rust() && file.path.iter().any(|part| part == "tests")
}

/// The numbers of a crate, or of several.
#[derive(Default)]
pub(super) struct Sizes {
    name: String,
    /// Lines of each file.
    files: Vec<usize>,
    /// Lines of each function.
    functions: Vec<usize>,
    comment_lines: usize,
    public: usize,
    undocumented: usize,
    crate_wide: usize,
    /// Files of the largest import cycle.
    cycle: usize,
}

impl Sizes {
    pub(super) fn of(krate: &Crate, methods: &Methods) -> Sizes {
        let mut sizes = Sizes {
            name: krate.name.clone(),
            cycle: cycles::largest(krate, methods).len(),
            ..Sizes::default()
        };
        for file in &krate.files {
            sizes.add_file(&measures::of(file));
        }
        sizes
    }

    /// All of these together.
    pub(super) fn sum(name: &str, parts: &[Sizes]) -> Sizes {
        let mut sum = Sizes {
            name: name.to_owned(),
            ..Sizes::default()
        };
        for part in parts {
            sum.files.extend(&part.files);
            sum.functions.extend(&part.functions);
            sum.comment_lines += part.comment_lines;
            sum.public += part.public;
            sum.undocumented += part.undocumented;
            sum.crate_wide += part.crate_wide;
            sum.cycle = sum.cycle.max(part.cycle);
        }
        sum
    }

    fn add_file(&mut self, measures: &Measures) {
        self.files.push(measures.lines);
        let functions = measures.functions.iter().map(|function| function.lines);
        self.functions.extend(functions);
        self.comment_lines += measures.comment_lines;
        self.public += measures.public;
        self.undocumented += measures.undocumented;
        self.crate_wide += measures.crate_wide;
    }

    fn lines(&self) -> usize {
        self.files.iter().sum()
    }

    fn long_functions(&self) -> usize {
        let long = self
            .functions
            .iter()
            .filter(|lines| **lines > FUNCTION_LINES_MAX);
        long.count()
    }

    fn row(&self) -> [String; COLUMNS.len()] {
        let long = percent(self.long_functions(), self.functions.len());
        [
            self.name.clone(),
            self.lines().to_string(),
            spread(&self.files),
            spread(&self.functions),
            format!("{} ({long:.1} %)", self.long_functions()),
            format!("{:.0} %", percent(self.comment_lines, self.lines())),
            format!("{} ({})", self.public, self.undocumented),
            self.crate_wide.to_string(),
            self.cycle.to_string(),
        ]
    }
}

const COLUMNS: [&str; 9] = [
    "without tests",
    "lines",
    "file med/p90/max",
    "function med/p90/max",
    "> 70 lines",
    "comments",
    "pub (undoc.)",
    "pub(crate)",
    "cycle",
];

/// A line for each row, in columns as wide as they have to be.
pub(super) fn table(rows: &[&Sizes]) -> Vec<String> {
    let mut cells = vec![COLUMNS.map(str::to_owned)];
    cells.extend(rows.iter().map(|row| row.row()));
    let width = |column: usize| {
        let widths = cells.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS.len()]| {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        line
    };
    cells.iter().map(line).collect()
}

/// The product has grown beyond a limit, or a limit is looser than the measurement.
pub(super) fn faults(product: &Sizes) -> Vec<String> {
    let largest = product.files.iter().copied().max().unwrap_or(0);
    let limits = [
        (
            "the largest file, in lines",
            largest,
            "LARGEST_FILE",
            LARGEST_FILE,
        ),
        (
            "long functions",
            product.long_functions(),
            "LONG_FUNCTIONS",
            LONG_FUNCTIONS,
        ),
    ];
    let faults = limits
        .into_iter()
        .filter_map(|(what, measured, name, limit)| {
            if measured > limit {
                return Some(format!("{what}: {measured}, and {limit} is the limit"));
            }
            (measured < limit).then(|| {
                format!(
                    "{what}: {measured}, so {name} in tidy/sizes.rs can be lowered from {limit}"
                )
            })
        });
    faults.collect()
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Median, ninetieth percentile and maximum.
fn spread(numbers: &[usize]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| {
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    };
    format!("{} / {} / {}", at(50), at(90), at(100))
}

#[cfg(test)]
mod tests {
    use super::super::{crates, file};
    use super::*;

    fn remarks_of(text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let files = [file("a.rs", text)];
        let parsed = crates::parse(&files, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        remarks(&parsed)
    }

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    ();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_may_have_as_many_lines_as_the_limit() {
        assert!(remarks_of(&function("f", FUNCTION_LINES_MAX)).is_empty());
        let found = remarks_of(&format!("\n{}", function("f", FUNCTION_LINES_MAX + 1)));
        assert_eq!(found, ["a.rs:2: function f has 71 lines"]);
        let long = function("g", 80);
        assert!(remarks_of(&format!("#[cfg(test)]\nmod tests {{\n{long}}}\n")).is_empty());
    }

    #[test]
    fn a_file_counts_without_its_tests() {
        let body = "const A: u8 = 0;\n".repeat(FILE_LINES_MAX);
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        assert!(remarks_of(&format!("{body}{tests}")).is_empty());
        assert_eq!(remarks_of(&format!("{body}\n{tests}")).len(), 1);
        assert!(remarks_of(&body).is_empty());
        assert_eq!(remarks_of(&format!("{body}//\n")).len(), 1);
    }

    #[test]
    fn a_test_file_may_have_as_many_lines_as_the_limit() {
        let text = |lines: usize| "//\n".repeat(lines);
        let faults_of = |path, lines| test_file_faults(&[file(path, &text(lines))]);
        let (long, nested) = ("crates/a/tests/t.rs", "tools/b/tests/t/main.rs");
        assert!(faults_of(long, FILE_LINES_MAX).is_empty());
        let limit = "and 800 is the limit of a test file: split it by subject";
        for path in [long, nested] {
            let found = faults_of(path, FILE_LINES_MAX + 1);
            assert_eq!(found, [format!("{path}: 801 lines, {limit}")]);
        }
        for path in ["crates/a/src/tests_of.rs", "crates/a/tests/golden.txt"] {
            assert!(faults_of(path, FILE_LINES_MAX + 1).is_empty());
        }
    }

    #[test]
    fn a_test_file_counts_with_everything_in_it() {
        let body = "const A: u8 = 0;\n".repeat(FILE_LINES_MAX);
        let files = [file(
            "crates/a/tests/t.rs",
            &format!("{body}#[cfg(test)]\nmod tests {{\n}}\n"),
        )];
        assert_eq!(test_file_faults(&files).len(), 1);
        // It is not remarked as well.
        let parsed = crates::parse(&files, &mut Vec::new());
        assert!(remarks(&parsed).is_empty());
    }

    #[test]
    fn a_row_has_the_numbers_of_all_files() {
        let files = [
            file("crates/a/src/lib.rs", "mod b;\n/// It.\npub fn f() {\n}\n"),
            file(
                "crates/a/src/b.rs",
                &format!("pub(crate) {}", function("g", 71)),
            ),
            file("crates/a/tests/t.rs", "not counted"),
        ];
        let mut faults = Vec::new();
        let parsed = crates::parse(&files[..2], &mut faults);
        let crates = crates::crates(&parsed, &mut faults);
        let methods = Methods::of(&crates);
        let sizes = Sizes::of(&crates[0], &methods[0]);
        let row = [
            "a",
            "75",
            "4 / 71 / 71",
            "2 / 71 / 71",
            "1 (50.0 %)",
            "1 %",
            "1 (0)",
            "1",
            "0",
        ];
        assert_eq!(sizes.row(), row);
        let total = Sizes::sum("all", &[Sizes::of(&crates[0], &methods[0]), sizes]);
        assert_eq!(total.row()[1..3], ["150", "4 / 71 / 71"]);
        let lines = table(&[&total]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].len(), lines[1].len());
    }

    #[test]
    fn percentiles_are_of_numbers_that_occur() {
        assert_eq!(spread(&[]), "0 / 0 / 0");
        assert_eq!(spread(&[7]), "7 / 7 / 7");
        assert_eq!(spread(&(1..=10).collect::<Vec<_>>()), "5 / 9 / 10");
    }

    #[test]
    fn limits_hold_exactly() {
        let product = |largest: usize, long: usize| Sizes {
            files: vec![1, largest],
            functions: vec![FUNCTION_LINES_MAX + 1; long],
            ..Sizes::default()
        };
        assert!(faults(&product(LARGEST_FILE, LONG_FUNCTIONS)).is_empty());
        for (largest, long) in [(1, 0), (LARGEST_FILE + 1, LONG_FUNCTIONS + 1)] {
            assert_eq!(faults(&product(largest, long)).len(), 2);
        }
    }
}
