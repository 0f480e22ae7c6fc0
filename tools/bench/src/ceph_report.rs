//! The page of `cargo xtask bench ceph`.

use anyhow::Result;

use crate::ceph::{PATIENCE, PUBLISHED_ROWS, ROWS, SCATTERED, SCATTERED_OVER, release};
use crate::goals::{self, Goal};
use crate::page::{Conditions, Page};
use crate::statistics::Estimate;
use crate::table::{Row, Table};
use onefold_harness::ceph::Cluster;

/// All results of the benchmark.
pub(crate) struct Figures {
    release: String,
    disk: &'static str,
    /// For each row and round, the requests per second of onefold and of RBD.
    pub(crate) rates: [Vec<[f64; 2]>; ROWS.len()],
    /// For each of [`PUBLISHED_ROWS`] and round, the requests per second.
    pub(crate) published: [Vec<f64>; PUBLISHED_ROWS.len()],
    /// The finder's megabytes per second.
    pub(crate) finder: Vec<f64>,
    pub(crate) opened: Vec<f64>,
    pub(crate) opened_by_another: Vec<f64>,
}

impl Figures {
    pub(crate) fn new(cluster: &Cluster, disk: &'static str) -> Result<Figures> {
        Ok(Figures {
            release: release(cluster)?,
            disk,
            rates: [const { Vec::new() }; ROWS.len()],
            published: [const { Vec::new() }; PUBLISHED_ROWS.len()],
            finder: Vec::new(),
            opened: Vec::new(),
            opened_by_another: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, row: usize, rates: [f64; 2]) {
        self.rates[row].push(rates);
    }

    pub(crate) fn published(&mut self, row: usize, rate: f64) {
        self.published[row].push(rate);
    }

    pub(crate) fn finder(&mut self, mb_per_second: f64) {
        self.finder.push(mb_per_second);
    }

    pub(crate) fn opened(&mut self, seconds: f64, by_another: f64) {
        self.opened.push(seconds);
        self.opened_by_another.push(by_another);
    }

    fn ratio(&self, row: usize) -> Option<Estimate> {
        Estimate::over(self.rates[row].iter().map(|[ours, rbd]| ours / rbd))
    }

    fn goals(&self) -> Vec<Goal> {
        let median = |values: &[f64]| Estimate::of(values).map(|estimate| estimate.median);
        let finder = median(&self.finder);
        let rows = ROWS.iter().enumerate().map(|(n, row)| {
            let ratio = self.ratio(n).map(|estimate| estimate.median);
            Goal::at_least(
                format!("{}, relative to RBD", row.title),
                ratio,
                row.must,
                row.aim,
            )
        });
        let others = [
            Goal::at_least("finder on scattered blocks, MB/s", finder, 100.0, None),
            Goal::at_most(
                "opened after a kill by another host, s",
                median(&self.opened_by_another),
                15.0,
                None,
            ),
            Goal::at_most(
                "opened after a kill on the same host, s",
                median(&self.opened),
                2.0,
                None,
            ),
        ];
        rows.chain(others).collect()
    }
}

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks-ceph";

pub(crate) fn page(conditions: &Conditions, figures: &Figures) -> String {
    let mut page = Page::new("Benchmarks of a pool in Ceph", Some(NAME), conditions);
    page.add(format!(
        "{}: one monitor and three OSDs (BlueStore on files, three copies), and all clients, on this machine. A \
         volume of {} and an RBD image of the same size, both over NBD, RBD by `qemu-nbd --cache=none`. {} rounds; \
         *relative to RBD* is the ratio within a round, with its median's interval. Another host takes over a pool \
         whose owner is silent for {} s, the default.",
        figures.release,
        figures.disk,
        figures.opened.len(),
        PATIENCE.as_secs(),
    ));
    let rows = ROWS.iter().enumerate().map(|(n, row)| {
        let rates = [0, 1].map(|of| Estimate::over(figures.rates[n].iter().map(|rates| rates[of])));
        Row::of(row.title)
            .numbers(rates.map(|rate| rate.map(|rate| rate.median)), 0)
            .maybe(figures.ratio(n))
    });
    let table = Table::new("| | onefold, requests/s | RBD, requests/s | relative to RBD |");
    page.add(table.with(rows));
    page.add(
        "In the table above the volume's blocks are private. The next table has the same requests on a volume \
         whose blocks the finder has published, so that the first write to each block goes to a new block, relative \
         to the RBD rates above:",
    );
    let published = PUBLISHED_ROWS.iter().zip(&figures.published);
    let rows = published.filter_map(|(row, rates)| {
        let both = rates.iter().zip(&figures.rates[*row]);
        let ratio = Estimate::over(both.map(|(ours, [_, rbd])| ours / rbd))?;
        let rate = Estimate::of(rates)?;
        let row = Row::of(ROWS[*row].title).number(rate.median, 0);
        Some(row.text(ratio))
    });
    let table = Table::new("| to published blocks | onefold, requests/s | relative to RBD |");
    page.add(table.with(rows));
    page.add(format!(
        "The finder is measured on {SCATTERED} of new blocks at random places of a volume of {SCATTERED_OVER}."
    ));
    page.add(goals::table(figures.goals()));
    page.to_string()
}
