//! Line plots as SVG, drawn small so that their labels can be read on a phone.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::error::Error as Cause;

/// Width and height of a plot, in pixels.
pub(super) const SIZE: (u32, u32) = (420, 280);

/// Fonts and sizes of titles and of all other text in plots.
pub(super) const TITLE: (&str, u32) = ("sans-serif", 17);
pub(super) const LABEL: (&str, u32) = ("sans-serif", 13);

/// Width reserved for the labels of the vertical axis.
pub(super) const BESIDE: u32 = 70;

/// Approximate number of labels on the vertical axis.
pub(super) const AMOUNTS: usize = 6;

/// Colours of the lines or bars of a plot.
pub(super) const COLOURS: [RGBColor; 4] = [
    RGBColor(0x30, 0x6d, 0xa8),
    RGBColor(0xd0, 0x7a, 0x22),
    RGBColor(0x3f, 0x8f, 0x4f),
    RGBColor(0x8a, 0x4f, 0x9e),
];

/// The scale of the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Linear, starting at zero.
    Linear,
    /// Powers of ten; all amounts are above zero.
    Logarithmic,
}

/// A line of a plot, its points from left to right.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// A plot of several lines.
pub(super) struct Plot<'a> {
    pub(super) title: String,
    pub(super) below: &'a str,
    pub(super) beside: &'a str,
    pub(super) lines: Vec<Line>,
    /// Formats a value of the horizontal axis.
    pub(super) x: fn(f64) -> String,
    /// Distance between labels on the horizontal axis; with 0, round values are chosen.
    pub(super) x_step: f64,
    /// Formats a value of the vertical axis.
    pub(super) y: fn(f64) -> String,
    pub(super) scale: Scale,
}

impl Plot<'_> {
    pub(super) fn draw(&self) -> Result<String, Box<dyn Cause>> {
        let height = |amount: f64| match self.scale {
            Scale::Linear => amount,
            Scale::Logarithmic => amount.max(1.0).log10(),
        };
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let widest = points().map(|(x, _)| *x).fold(0.0, f64::max).max(1e-3);
        let highest = points().map(|(_, y)| height(*y)).fold(1e-3, f64::max);
        let lowest = match self.scale {
            Scale::Linear => 0.0,
            Scale::Logarithmic => points().map(|(_, y)| height(*y)).fold(highest, f64::min),
        };
        let (floor, ceiling) = match self.scale {
            // Leave room above the lines for the legend.
            Scale::Linear if self.lines.len() > 1 => (0.0, highest * 1.4),
            Scale::Linear => (0.0, highest * 1.1),
            Scale::Logarithmic => (lowest.floor(), highest.ceil().max(lowest.floor() + 1.0)),
        };
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .caption(&self.title, TITLE)
                .margin(10)
                .margin_right(30)
                .x_label_area_size(45)
                .y_label_area_size(BESIDE)
                .build_cartesian_2d(0.0..widest, floor..ceiling)?;
            let amount = |height: &f64| match self.scale {
                Scale::Linear => (self.y)(*height),
                Scale::Logarithmic => (self.y)(10_f64.powf(*height)),
            };
            let places = if self.x_step > 0.0 {
                (widest / self.x_step) as usize + 1
            } else {
                AMOUNTS
            };
            let amounts = match self.scale {
                Scale::Linear => AMOUNTS,
                Scale::Logarithmic => (ceiling - floor) as usize + 1,
            };
            chart
                .configure_mesh()
                .light_line_style(WHITE)
                .label_style(LABEL)
                .x_labels(places)
                .y_labels(amounts)
                .x_label_formatter(&|x| (self.x)(*x))
                .y_label_formatter(&amount)
                .x_desc(self.below)
                .y_desc(self.beside)
                .draw()?;
            for (line, colour) in self.lines.iter().zip(COLOURS.into_iter().cycle()) {
                let points = line.points.iter().map(|(x, y)| (*x, height(*y)));
                let drawn = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
                drawn.label(&line.name).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 2), (x + 12, y + 2)], colour.filled())
                });
            }
            if self.lines.len() > 1 {
                draw_series_labels(&mut chart)?;
            }
            area.present()?;
        }
        Ok(svg)
    }
}

/// Draws the legend in the corner that is kept free for it.
pub(super) fn draw_series_labels<'a>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
) -> Result<(), Box<dyn Cause>> {
    chart
        .configure_series_labels()
        .label_font(LABEL)
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}
