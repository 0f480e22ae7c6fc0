//! Pages of results, in Markdown: a heading, the conditions of the measurement, and sections.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::table::{Row, Table};
use onefold_harness::command::Cmd;
use onefold_harness::workspace::Workspace;

/// A page, block by block: headings, paragraphs and tables, with an empty line between them.
pub(crate) struct Page(Vec<String>);

impl Page {
    /// A page with its heading and conditions. `raw` names the raw results, if they are written.
    pub(crate) fn new(title: &str, raw: Option<&str>, conditions: &Conditions) -> Page {
        let raw = raw.map_or(String::new(), |raw| {
            format!(" The raw results are in [{raw}.json](../tools/bench/results/{raw}.json).")
        });
        let rows = conditions.iter();
        let rows = rows.map(|(name, value)| Row::of(name).text(value));
        let mut page = Page(vec![format!("# {title}")]);
        page.add(format!("Written by the command below; do not edit.{raw}"));
        page.section("Conditions", Table::new("| | |").with(rows));
        page
    }

    /// Adds a section that begins with a text or a table.
    pub(crate) fn section(&mut self, title: &str, first: impl ToString) {
        self.add(format!("## {title}"));
        self.add(first);
    }

    /// Adds a text or a table.
    pub(crate) fn add(&mut self, block: impl ToString) {
        self.0.push(block.to_string());
    }
}

impl Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.join("\n\n"))
    }
}

/// The names of the conditions, in the order of the pages.
const NAMES: [&str; 13] = [
    "date",
    "commit",
    "measures",
    "command",
    "took",
    "processor",
    "processors",
    "memory",
    "kernel",
    "file system",
    "fio",
    "qemu-nbd",
    "rustc",
];

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
    let processors = cpus.lines().filter(|line| line.starts_with("processor"));
    let unknown = || "unknown".to_owned();
    let values = [
        line("date", &["-u", "+%Y-%m-%d"])?,
        commit,
        measured_folders(command).to_owned(),
        command.to_owned(),
        format!("{:.0} min", took.as_secs_f64() / 60.0),
        field(&cpus, "model name").unwrap_or_else(unknown),
        processors.count().to_string(),
        field(&memory, "MemTotal").unwrap_or_else(unknown),
        line("uname", &["-r"])?,
        line("findmnt", &["-n", "-o", "FSTYPE,OPTIONS", "-T", &target])?,
        line("fio", &["--version"])?,
        line("qemu-nbd", &["--version"])?,
        line("rustc", &["--version"])?,
    ];
    Ok(NAMES.into_iter().zip(values).collect())
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

/// The conditions as an object, for raw results.
pub(crate) fn by_name(conditions: &Conditions) -> Value {
    json!(conditions.iter().cloned().collect::<BTreeMap<_, _>>())
}

/// The conditions in [`by_name`], in the order of the pages.
pub(crate) fn of_names(raw: &Value) -> Result<Conditions> {
    let conditions = NAMES.into_iter().map(|name| {
        let value = raw[name].as_str();
        let value = value.with_context(|| format!("no condition {name}"))?;
        Ok((name, value.to_owned()))
    });
    conditions.collect()
}

/// The place of a page in the repository.
pub(crate) fn path(name: &str) -> String {
    format!("docs/{name}.md")
}

/// The place of a page's raw results in the repository.
pub(crate) fn raw_path(name: &str) -> String {
    format!("tools/bench/results/{name}.json")
}

/// Writes a page and its raw results.
pub(crate) fn write(workspace: &Workspace, name: &str, page: &str, raw: &Value) -> Result<()> {
    let raw = serde_json::to_string_pretty(raw).context("cannot write the raw results")?;
    write_files(workspace, &[(&path(name), page), (&raw_path(name), &raw)])
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
    fn a_page_has_its_conditions_first_and_empty_lines_between_blocks() {
        let conditions = vec![("date", "today".to_owned())];
        let mut page = Page::new("Speed", Some("speed"), &conditions);
        page.add("All of it.");
        page.section("Finder", "The rate:");
        page.add(Table::new("| MB/s |").with([Row::of(4)]));
        let expected = "# Speed\n\n\
                        Written by the command below; do not edit. The raw results are in \
                        [speed.json](../tools/bench/results/speed.json).\n\n\
                        ## Conditions\n\n| | |\n| --- | --- |\n| date | today |\n\n\
                        All of it.\n\n\
                        ## Finder\n\nThe rate:\n\n| MB/s |\n| --- |\n| 4 |\n";
        assert_eq!(page.to_string(), expected);
        let page = Page::new("Speed", None, &conditions).to_string();
        assert!(page.contains("do not edit.\n\n## Conditions"), "{page}");
    }
}
