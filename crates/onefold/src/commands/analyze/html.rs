//! Builds an HTML page with plots of the figures.

use super::super::html::{Page, Section, Table};
use super::super::plots::{AMOUNTS, BESIDE, COLOURS, LABEL, SIZE, TITLE, draw_series_labels};
use super::reply::{Reply, WayReply};
use onefold_analyze::{Compressed, Compressibility, RunLengths};
use onefold_api::size;
use onefold_api::{Error, Result};
use plotters::prelude::*;
use std::error::Error as Cause;
use std::path::Path;

const UNIQUE: RGBColor = COLOURS[0];
const REDUNDANT: RGBColor = COLOURS[1];

/// The most bars with names below them, and the most characters of all these names together.
const NAMES_MAX: usize = 7;
const NAME_LETTERS: usize = 44;

/// Longer names are cut, because otherwise neighbouring names would have to be left out.
const LETTERS_MAX: usize = 11;

/// A bar chart: names, and the heights of the bars for each name.
struct Bars<'a> {
    title: String,
    below: &'a str,
    beside: &'a str,
    names: Vec<String>,
    series: Vec<Series<'a>>,
    is_logarithmic: bool,
}

/// The bars of one colour, one height for each name.
struct Series<'a> {
    name: &'a str,
    colour: RGBColor,
    heights: Vec<f64>,
}

impl<'a> Series<'a> {
    fn new(name: &'a str, colour: RGBColor, heights: Vec<f64>) -> Self {
        Self {
            name,
            colour,
            heights,
        }
    }
}

pub(super) fn page(reply: &Reply) -> Result<Page> {
    draw(reply).map_err(|e| Error::failed(format!("cannot draw the plots: {e}")))
}

fn draw(reply: &Reply) -> std::result::Result<Page, Box<dyn Cause>> {
    let mut warnings = Vec::new();
    if !reply.is_complete {
        warnings.push("Stopped: the figures cover only the data read so far.".to_owned());
    }
    for problem in &reply.problems {
        warnings.push(format!("Not read: {:?}: {}", problem.path, problem.what));
    }
    let mut sections = Vec::new();
    for way in &reply.chunkings {
        let plots = plots(way).into_iter().map(|bars| bars.draw());
        sections.push(Section {
            heading: format!("Cut as {}: {}", way.chunking, saved(way)),
            plots: plots.collect::<std::result::Result<_, _>>()?,
            tables: tables(way),
            notes: way.remarks(),
        });
    }
    let mut remarks = vec![reply.survey()];
    let first = reply.chunkings.first();
    remarks.extend(first.map(|way| {
        format!(
            "Cut as {}, {} of {} are duplicates; zeros are not counted.",
            way.chunking,
            size::display(way.duplicate_bytes),
            size::display(way.data_bytes)
        )
    }));
    Ok(Page {
        about: "onefold analyze: what deduplication would save",
        headline: first.map_or_else(String::new, saved),
        remarks,
        warnings,
        sections,
    })
}

fn saved(way: &WayReply) -> String {
    format!("{:.1} % would not be stored", 100.0 * way.saved_ratio)
}

fn tables(way: &WayReply) -> Vec<Table> {
    let table = |caption: &str, columns: &[&'static str], rows: Vec<Vec<String>>| Table {
        caption: caption.to_owned(),
        columns: columns.iter().map(|column| (*column).into()).collect(),
        rows,
    };
    let totals = way.totals_rows().map(Vec::from).to_vec();
    let mut tables = vec![table("All", &["", "chunks", "bytes", "part"], totals)];
    let inputs = way.inputs.iter().map(|input| {
        let [data, distinct, elsewhere, new] = input.amounts();
        let path = input.path.to_string_lossy().into_owned();
        vec![path, data, distinct, elsewhere, new]
    });
    let columns = ["input", "data", "distinct", "elsewhere", "new in order"];
    tables.push(table("Inputs, in their order", &columns, inputs.collect()));
    for figures in way.figures() {
        let rows = figures.rows.into_iter().map(Vec::from).collect();
        tables.push(table("", &figures.columns, rows));
    }
    tables
}

fn plots(way: &WayReply) -> Vec<Bars<'_>> {
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let single = way.copies.first().filter(|row| row.copies == 1);
    let single = single.map_or(0, |row| row.bytes);
    let parts = [
        way.totals.zero_bytes,
        single,
        way.distinct_bytes - single,
        way.duplicate_bytes,
    ];
    let mut plots = vec![Bars {
        title: "What there is".to_owned(),
        below: "",
        beside: "MiB",
        names: ["zeros", "single", "first copy", "duplicate"]
            .map(str::to_owned)
            .to_vec(),
        series: vec![Series::new("", UNIQUE, parts.map(mebibytes).to_vec())],
        is_logarithmic: false,
    }];
    if way.inputs.len() > 1 {
        let of = |bytes: fn(&super::reply::InputReply) -> u64| {
            way.inputs
                .iter()
                .map(|input| mebibytes(bytes(input)))
                .collect()
        };
        plots.push(Bars {
            title: "Inputs, in their order".to_owned(),
            below: "",
            beside: "MiB",
            names: way
                .inputs
                .iter()
                .map(|input| name_of(&input.path))
                .collect(),
            series: vec![
                Series::new("distinct", UNIQUE, of(|input| input.share.distinct_bytes)),
                Series::new("new", REDUNDANT, of(|input| input.share.new_bytes)),
            ],
            is_logarithmic: false,
        });
    }
    plots.push(copies(way));
    plots.push(runs(way));
    plots.extend(way.compression.as_ref().map(compression));
    plots
}

/// Number of distinct chunks by number of copies, in powers of two.
fn copies(way: &WayReply) -> Bars<'_> {
    let mut counts: Vec<f64> = Vec::new();
    for copies in &way.copies {
        let power = copies.copies.max(1).ilog2() as usize;
        counts.resize(counts.len().max(power + 1), 0.0);
        counts[power] += copies.chunks as f64;
    }
    let name = |power: usize| match power {
        0 => "1".to_owned(),
        power => format!("{}+", 1_u64 << power),
    };
    Bars {
        title: "Different chunks by number of copies".to_owned(),
        below: "copies",
        beside: "different chunks",
        names: (0..counts.len()).map(name).collect(),
        series: vec![Series::new("", REDUNDANT, counts)],
        is_logarithmic: true,
    }
}

fn runs(way: &WayReply) -> Bars<'_> {
    let [unique, redundant] = &way.runs;
    let end = unique
        .by_power_of_two
        .len()
        .max(redundant.by_power_of_two.len());
    let first = |runs: &RunLengths| runs.by_power_of_two.iter().position(|count| *count > 0);
    let start = [unique, redundant].into_iter().filter_map(first).min();
    let powers = start.unwrap_or(end)..end;
    let counts = |runs: &RunLengths| {
        let count = |power: usize| runs.by_power_of_two.get(power).copied().unwrap_or(0) as f64;
        powers.clone().map(count).collect()
    };
    Bars {
        title: "Runs by length".to_owned(),
        below: "bytes from",
        beside: "runs",
        series: vec![
            Series::new("unique", UNIQUE, counts(unique)),
            Series::new("redundant", REDUNDANT, counts(redundant)),
        ],
        names: powers.map(|power| size::display(1 << power)).collect(),
        is_logarithmic: true,
    }
}

/// Share of the sample by compressed size under LZ4, in percent.
fn compression(found: &Compressibility) -> Bars<'_> {
    let percent = |found: &Compressed| {
        let all = found.sampled.max(1) as f64;
        let parts = found.by_tenth.iter();
        parts.map(|count| 100.0 * *count as f64 / all).collect()
    };
    let mut series = vec![Series::new("each chunk", UNIQUE, percent(&found.chunks))];
    if found.groups.sampled > 0 {
        let groups = percent(&found.groups);
        series.push(Series::new("64 KiB together", REDUNDANT, groups));
    }
    Bars {
        title: "Distinct chunks by what compressing leaves".to_owned(),
        below: "left, up to this part",
        beside: "% of a sample",
        names: (1..=10).map(|tenth| format!("{tenth}0 %")).collect(),
        series,
        is_logarithmic: false,
    }
}

impl Bars<'_> {
    fn draw(&self) -> std::result::Result<String, Box<dyn Cause>> {
        let mut svg = String::new();
        let heights = self.series.iter().flat_map(|series| &series.heights);
        let highest = self.height(heights.copied().fold(1.0, f64::max));
        // Leave room above the bars, and more if there is a legend.
        let room = if self.series.len() > 1 { 1.45 } else { 1.05 };
        let amounts = if self.is_logarithmic {
            highest.ceil() as usize + 1
        } else {
            AMOUNTS
        };
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .caption(&self.title, TITLE)
                .margin(10)
                .x_label_area_size(45)
                .y_label_area_size(BESIDE)
                .build_cartesian_2d(0.0..self.names.len().max(1) as f64, 0.0..highest * room)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(WHITE)
                .label_style(LABEL)
                .y_labels(amounts)
                .x_labels(self.names.len() * 2 + 1)
                .x_label_formatter(&|at| self.name_at(*at))
                .y_label_formatter(&|at| self.amount_at(*at))
                .x_desc(self.below)
                .y_desc(self.beside)
                .draw()?;
            let width = 0.8 / self.series.len().max(1) as f64;
            for (n, series) in self.series.iter().enumerate() {
                let colour = series.colour;
                let bars = (0..).zip(&series.heights).map(|(place, height)| {
                    let left = f64::from(place) + 0.1 + n as f64 * width;
                    let corners = [(left, 0.0), (left + width * 0.95, self.height(*height))];
                    Rectangle::new(corners, colour.filled())
                });
                let drawn = chart.draw_series(bars)?;
                if !series.name.is_empty() {
                    drawn.label(series.name).legend(move |(x, y)| {
                        Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                    });
                }
            }
            if self.series.len() > 1 {
                draw_series_labels(&mut chart)?;
            }
            area.present()?;
        }
        Ok(svg)
    }

    /// The height as drawn. On a logarithmic scale it is the logarithm of the count plus one, so that a count
    /// of one is visible.
    fn height(&self, value: f64) -> f64 {
        if self.is_logarithmic {
            (value + 1.0).log10()
        } else {
            value
        }
    }

    /// The label at a position. Labels are centred on their bars; labels that would overlap are omitted, and
    /// long ones are cut.
    fn name_at(&self, at: f64) -> String {
        let letters = self.names.iter().map(|name| name.chars().count()).max();
        let names_max = NAME_LETTERS / letters.unwrap_or(0).clamp(1, LETTERS_MAX);
        let step = self.names.len().div_ceil(names_max.min(NAMES_MAX)).max(1);
        let letters_max = NAME_LETTERS / self.names.len().div_ceil(step).max(1);
        let place = at.floor() as usize;
        let is_middle = (at - at.floor() - 0.5).abs() < 0.01;
        let name = self.names.get(place);
        let name = name.filter(|_| is_middle && place.is_multiple_of(step));
        name.map_or_else(String::new, |name| shortened(name, letters_max))
    }

    fn amount_at(&self, height: f64) -> String {
        if !self.is_logarithmic {
            format!("{height:.0}")
        } else if height == 0.0 {
            "0".to_owned()
        } else {
            // The added one does not show at this precision.
            format!("{:.0}", 10_f64.powf(height))
        }
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

fn shortened(name: &str, letters_max: usize) -> String {
    if name.chars().count() > letters_max {
        let start: String = name.chars().take(letters_max.saturating_sub(1)).collect();
        format!("{start}\u{2026}")
    } else {
        name.to_owned()
    }
}
