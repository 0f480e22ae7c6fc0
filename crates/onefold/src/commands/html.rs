//! Pages that need only a browser: the main result as a headline, the time, place and command,
//! plots, and the figures as tables. Nothing in them is wider than the window, down to that of a
//! telephone.

use onefold_api::{Error, Result};
use rustix::system::uname;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Tables with more columns than this become lists where the window is narrow.
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
    .wide td:empty{display:none}.wide td+td::before{content:attr(data-column);color:#555}}";

/// The content of a page.
pub(super) struct Page {
    /// Its subject.
    pub(super) about: &'static str,
    /// The result, in a few words.
    pub(super) headline: String,
    /// The subject of the result.
    pub(super) remarks: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) sections: Vec<Section>,
}

/// A part of a page.
pub(super) struct Section {
    pub(super) heading: String,
    pub(super) plots: Vec<String>,
    pub(super) tables: Vec<Table>,
    pub(super) notes: Vec<String>,
}

/// Figures. The first column has the names of the rows.
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) columns: Vec<Cow<'static, str>>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A new file for a page; gone again if the page is not written.
pub(super) struct PageFile {
    path: PathBuf,
    file: Option<File>,
}

impl PageFile {
    /// Makes the file, so that a failure shows before any long work.
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
            file.write_all(page.html(&conditions()).as_bytes())
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

/// The time, host and command of a page.
fn conditions() -> [(&'static str, String); 4] {
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|it| quoted(&it)).collect();
    [
        ("date", now.to_string()),
        ("host", uname().nodename().to_string_lossy().into_owned()),
        ("version", format!("onefold {}", env!("CARGO_PKG_VERSION"))),
        ("command", format!("onefold {}", arguments.join(" "))),
    ]
}

/// As a shell would have to be given it.
fn quoted(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

impl Page {
    fn html(&self, conditions: &[(&str, String)]) -> String {
        let headline = escaped(&self.headline);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>{headline}</title><style>{STYLE}</style></head><body>\n<p>{}</p>\n<h1>{headline}</h1>\n",
            escaped(self.about)
        );
        let mut paragraphs = |class: &str, all: &[String]| {
            for text in all {
                page.push_str(&format!("<p{class}>{}</p>\n", escaped(text)));
            }
        };
        paragraphs("", &self.remarks);
        paragraphs(" class=\"warning\"", &self.warnings);
        page.push_str("<dl>\n");
        for (name, value) in conditions {
            page.push_str(&format!("<dt>{name}</dt><dd>{}</dd>\n", escaped(value)));
        }
        page.push_str("</dl>\n");
        for section in &self.sections {
            section.html(&mut page);
        }
        page.push_str("</body></html>\n");
        page
    }
}

impl Section {
    fn html(&self, page: &mut String) {
        page.push_str(&format!("<h2>{}</h2>\n", escaped(&self.heading)));
        page.push_str("<div class=\"plots\">\n");
        for plot in &self.plots {
            page.push_str(&format!("<div>{plot}</div>\n"));
        }
        page.push_str("</div>\n<div class=\"tables\">\n");
        for table in self.tables.iter().filter(|table| !table.rows.is_empty()) {
            table.html(page);
        }
        page.push_str("</div>\n");
        for note in &self.notes {
            page.push_str(&format!("<p>{}</p>\n", escaped(note)));
        }
    }
}

impl Table {
    fn html(&self, page: &mut String) {
        let class = match self.columns.len() > NARROW_COLUMNS {
            true => " class=\"wide\"",
            false => "",
        };
        let caption = escaped(&self.caption);
        page.push_str(&format!(
            "<table{class}><caption>{caption}</caption><thead><tr>"
        ));
        for column in &self.columns {
            page.push_str(&format!("<th>{}</th>", escaped(column)));
        }
        page.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            page.push_str("<tr>");
            for (column, cell) in self.columns.iter().zip(row) {
                let (column, cell) = (escaped(column), escaped(cell));
                page.push_str(&format!("<td data-column=\"{column}\">{cell}</td>"));
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody></table>\n");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_outside_is_neither_html_nor_shell() {
        assert_eq!(
            escaped(r#"<a href="&">"#),
            "&lt;a href=&quot;&amp;&quot;&gt;"
        );
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
