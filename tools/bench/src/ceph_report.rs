//! The page of `cargo xtask bench ceph`.

use std::fmt::Write as _;

use anyhow::Result;

use crate::ceph::{PATIENCE, PUBLISHED_ROWS, ROWS, SCATTERED, SCATTERED_OVER, release};
use crate::goals::{self, Goal};
use crate::report::{self, Conditions};
use crate::statistics::Estimate;
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
        let ratios = self.rates[row].iter().map(|[ours, rbd]| ours / rbd);
        Estimate::of(&ratios.collect::<Vec<_>>())
    }

    fn goals(&self) -> Vec<Goal> {
        let median = |values: &[f64]| Estimate::of(values).map(|estimate| estimate.median);
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
            Goal::at_least(
                "finder on scattered blocks, MB/s",
                median(&self.finder),
                100.0,
                None,
            ),
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

pub(crate) fn page(conditions: &Conditions, figures: &Figures) -> String {
    let raw = Some("benchmarks-ceph.json");
    let mut page = report::heading("Benchmarks of a pool in Ceph", raw, conditions);
    // Writing to a `String` cannot fail.
    let _ = write!(
        page,
        "\n{}: one monitor and three OSDs (BlueStore on files, three copies), and all clients, on this machine. A \
         volume of {} and an RBD image of the same size, both over NBD, RBD by `qemu-nbd --cache=none`. {} rounds; \
         *relative to RBD* is the ratio within a round, with its median's interval. Another host takes over a pool \
         whose owner is silent for {} s, the default.\n\n\
         | | onefold, requests/s | RBD, requests/s | relative to RBD |\n\
         | --- | --- | --- | --- |\n",
        figures.release,
        figures.disk,
        figures.opened.len(),
        PATIENCE.as_secs(),
    );
    for (n, row) in ROWS.iter().enumerate() {
        let median = |of: usize| {
            let rates: Vec<f64> = figures.rates[n].iter().map(|rates| rates[of]).collect();
            Estimate::of(&rates)
                .map_or("-".to_owned(), |estimate| format!("{:.0}", estimate.median))
        };
        let ratio = figures.ratio(n).map_or("-".to_owned(), |estimate| {
            format!(
                "{:.2} ({:.2} to {:.2})",
                estimate.median, estimate.low, estimate.high
            )
        });
        let _ = writeln!(
            page,
            "| {} | {} | {} | {ratio} |",
            row.title,
            median(0),
            median(1)
        );
    }
    page.push_str(
        "\nIn the table above the volume's blocks are private. The next table has the same requests on a volume \
         whose blocks the finder has published, so that the first write to each block goes to a new block, relative \
         to the RBD rates above:\n\n\
         | to published blocks | onefold, requests/s | relative to RBD |\n\
         | --- | --- | --- |\n",
    );
    for (row, rates) in PUBLISHED_ROWS.iter().zip(&figures.published) {
        let beside = rates.iter().zip(&figures.rates[*row]);
        let ratios: Vec<f64> = beside.map(|(ours, [_, rbd])| ours / rbd).collect();
        if let (Some(rate), Some(ratio)) = (Estimate::of(rates), Estimate::of(&ratios)) {
            let _ = writeln!(
                page,
                "| {} | {:.0} | {:.2} ({:.2} to {:.2}) |",
                ROWS[*row].title, rate.median, ratio.median, ratio.low, ratio.high
            );
        }
    }
    let _ = writeln!(
        page,
        "\nThe finder is measured on {SCATTERED} of new blocks at random places of a volume of {SCATTERED_OVER}.\n"
    );
    goals::table(&mut page, &figures.goals());
    page
}
