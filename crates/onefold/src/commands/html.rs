//! Self-contained HTML pages: the main result as a headline, the time, place and command, plots, and the
//! figures as tables. Nothing is wider than the window, even on a phone.

use crate::version::BUILD;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};
use onefold_api::{Error, Result};
use rustix::system::uname;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Tables with more columns than this are shown as lists in narrow windows.
const NARROW_COLUMNS: usize = 4;

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:72em;margin:0 auto;padding:1em 1em 3em;color:#1a1a1a}\
    h1{font-size:clamp(1.7rem,6vw,2.8rem);line-height:1.15;margin:.1em 0 .3em}h2{margin:2em 0 .5em}\
    p{margin:.4em 0}.warning{color:#a02020;overflow-wrap:anywhere}\
    dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em 1em;font-size:.9em;margin:1.5em 0}\
    dt{color:#555}dd{margin:0;overflow-wrap:anywhere}\
    .plots{display:grid;gap:1.5em;grid-template-columns:repeat(auto-fit,minmax(min(100%,25em),1fr))}\
    svg{width:100%;height:auto}.tables{columns:25em;column-gap:3em}.wide{column-span:all}\
    table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;break-inside:avoid;margin:0 0 1.5em}\
    caption{text-align:left;font-weight:bold}td,th{padding:.2em .5em;text-align:right;border-bottom:1px solid #ddd}\
    th{font-weight:normal;color:#555}td:first-child,th:first-child{text-align:left}.wide td:first-child{overflow-wrap:anywhere}\
    @media(max-width:700px){.wide thead{display:none}.wide tr{display:block;padding:.5em 0;border-bottom:1px solid #999}\
    .wide td{display:flex;justify-content:space-between;border:0;padding:.1em 0}.wide td:first-child{font-weight:bold}\
    .wide td:empty{display:none}.wide td+td::before{content:attr(data-column);color:#555}}\
    @media(prefers-color-scheme:dark){body{background:#17181a;color:#e4e4e4}dt,th,.wide td+td::before{color:#a8a8a8}\
    .warning{color:#ff8f8f}td,th{border-color:#3a3a3a}svg{filter:invert(.9) hue-rotate(180deg)}}";

/// The content of a page.
pub(super) struct Page {
    /// Title of the page.
    pub(super) about: &'static str,
    /// The main result, in a few words.
    pub(super) headline: String,
    /// Explanations of the result.
    pub(super) remarks: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) sections: Vec<Section>,
}

/// A part of a page.
pub(super) struct Section {
    pub(super) heading: String,
    /// Plots as SVG.
    pub(super) plots: Vec<String>,
    pub(super) tables: Vec<Table>,
    pub(super) notes: Vec<String>,
}

/// A table of figures. The first column names the rows.
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) columns: Vec<Cow<'static, str>>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A new file for a page, which is removed if the page is not written.
pub(super) struct PageFile {
    path: PathBuf,
    file: Option<File>,
}

impl PageFile {
    /// Creates the file before any long work, so that a failure shows early.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path);
        let file = file.map_err(|e| Error::io(format_args!("cannot make {path:?}"), &e))?;
        Ok(Self {
            path: path.to_owned(),
            file: Some(file),
        })
    }

    pub(super) fn write(mut self, page: &Page) -> Result<()> {
        let written = self.file.as_mut().map_or(Ok(()), |file| {
            file.write_all(page.html(&conditions()).0.as_bytes())
        });
        written.map_err(|e| Error::io(format_args!("cannot write {:?}", self.path), &e))?;
        self.file = None;
        Ok(())
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The time, host and command shown on a page.
fn conditions() -> [(&'static str, String); 4] {
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| quoted(&argument))
        .collect();
    [
        ("date", now.to_string()),
        ("host", uname().nodename().to_string_lossy().into_owned()),
        ("version", format!("onefold {BUILD}")),
        ("command", format!("onefold {}", arguments.join(" "))),
    ]
}

/// Quotes an argument for a shell.
fn quoted(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

impl Page {
    fn html(&self, conditions: &[(&str, String)]) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width,initial-scale=1";
                    title { (self.headline) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    p { (self.about) }
                    h1 { (self.headline) }
                    @for remark in &self.remarks { p { (remark) } }
                    @for warning in &self.warnings { p.warning { (warning) } }
                    dl {
                        @for (name, value) in conditions { dt { (name) } dd { (value) } }
                    }
                    @for section in &self.sections { (section) }
                }
            }
        }
    }
}

impl Render for Section {
    fn render(&self) -> Markup {
        html! {
            h2 { (self.heading) }
            div.plots {
                @for plot in &self.plots { div { (PreEscaped(plot)) } }
            }
            div.tables {
                @for table in self.tables.iter().filter(|table| !table.rows.is_empty()) { (table) }
            }
            @for note in &self.notes { p { (note) } }
        }
    }
}

impl Render for Table {
    fn render(&self) -> Markup {
        let is_wide = self.columns.len() > NARROW_COLUMNS;
        html! {
            table class=[is_wide.then_some("wide")] {
                caption { (self.caption) }
                thead { tr { @for column in &self.columns { th { (column) } } } }
                tbody {
                    @for row in &self.rows {
                        tr {
                            @for (column, cell) in self.columns.iter().zip(row) {
                                td data-column=(column) { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_outside_is_neither_html_nor_shell() {
        let table = Table {
            caption: String::new(),
            columns: vec![Cow::Borrowed("\"")],
            rows: vec![vec![r#"<a href="&">"#.to_owned()]],
        };
        let cell = r#"<td data-column="&quot;">&lt;a href=&quot;&amp;&quot;&gt;</td>"#;
        assert!(table.render().0.contains(cell));
        for (argument, shell) in [
            ("--size", "--size"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(rm)", "'$(rm)'"),
        ] {
            assert_eq!(quoted(OsStr::new(argument)), shell);
        }
    }
}
