//! The page of `cargo xtask bench inline`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::goals;
use crate::inline::{Measured, Results};
use crate::inline_load::CONTENTS;
use crate::report::{self, Conditions, heading};
use onefold_harness::workspace::Workspace;

pub(crate) const PAGE: &str = "docs/benchmarks-inline.md";
const RAW: &str = "tools/bench/results/benchmarks-inline.json";

pub(crate) fn page(conditions: &Conditions, results: &Results) -> String {
    let title = "Benchmarks of writes in line";
    let mut page = heading(title, Some("benchmarks-inline.json"), conditions);
    // Writing to a `String` cannot fail.
    let _ = write!(
        page,
        "\nA client of our own over a unix socket, one connection; client and server each on a processor of its \
         own; 512 MiB of data per server. {} alternating slices of {} s, over {} layouts, each with new servers and \
         files. A *duplicate* is the next of {CONTENTS} contents that another volume has published, so no write \
         finds its own content in its place; all other blocks are *unique*. Unique rows come first, so that their \
         blocks are private. The finder is paused unless a row says otherwise; counting and collector run. *Filled \
         in* is the size of the requests that first wrote the data of both servers.\n",
        results.plan.slices, results.plan.slice_seconds, results.plan.layouts,
    );
    if let Some(why) = &results.no_limit {
        let _ = writeln!(
            page,
            "\nRows with a limited number of writes are left out: {why}."
        );
    }
    rows(&mut page, &results.rows);
    images(&mut page, results);
    let goals = results.rows.iter().filter_map(Measured::goal);
    let of_images = results.images.iter().flat_map(|images| images.goals());
    let goals: Vec<_> = goals.chain(of_images).collect();
    page.push_str("\n## Goals\n\n");
    goals::table(&mut page, &goals);
    page
}

fn rows(page: &mut String, rows: &[Measured]) {
    if rows.is_empty() {
        return;
    }
    page.push_str(
        "\n## Against the pass-through\n\n\
         *Ratio*: onefold's requests per second divided by the pass-through's in the same pair, the median with its \
         95 % interval. *CPU*: the server's processor time per request in µs. *Hits* and *refused*: of the blocks \
         looked up. A row whose share of hits is not the one in its name has no verdict.\n\n\
         | row | ratio | 95 % | requests/s | pass-through | CPU | pass-through | hits | refused |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let Some(ratio) = row.ratio() else {
            continue;
        };
        let ([ours, base], [our_cpu, base_cpu]) = (row.per_second(), row.cpu_us());
        let inline = row.inline();
        let refused = 100.0 * inline.refused as f64 / inline.scanned.max(1) as f64;
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            page,
            "| {} | {:.2} | {:.2} to {:.2} | {ours:.0} | {base:.0} | {our_cpu:.1} | {base_cpu:.1} | {:.1} % \
             | {refused:.1} % |",
            row.name,
            ratio.median,
            ratio.low,
            ratio.high,
            row.hits_percent(),
        );
    }
}

fn images(page: &mut String, results: &Results) {
    let Some(images) = &results.images else {
        return;
    };
    // Writing to a `String` cannot fail.
    let _ = write!(
        page,
        "\n## An image written to a pool that has related images\n\n\
         nbdcopy writes the image into an empty volume, its flush included; it has {} blocks with data, of which \
         {:.1} % are duplicates of earlier images or within the image. *Data*: blocks that were looked up and were \
         not hits. *All*: all that the daemon wrote until the finder was done, with maps, log and index. Medians of \
         {} rounds.\n\n\
         | | s | data, MB | all, MB | CPU, s | hits | refused |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
        images.blocks,
        100.0 * images.duplicate_part(),
        results.plan.image_rounds,
    );
    for cells in images.cells() {
        page.push_str(&cells);
        page.push('\n');
    }
}

pub(crate) fn raw(conditions: &Conditions, results: &Results) -> Value {
    let conditions: serde_json::Map<String, Value> = conditions
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    json!({
        "conditions": conditions,
        "slice_seconds": results.plan.slice_seconds,
        "rows": results.rows.iter().map(Measured::raw).collect::<Vec<_>>(),
        "rows_left_out": results.no_limit,
        "images": results.images.as_ref().map(|images| images.raw()),
    })
}

pub(crate) fn write(workspace: &Workspace, page: &str, raw: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(raw).context("cannot write the raw results")?;
    report::write_files(workspace, &[(PAGE, page), (RAW, &text)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{inline, inline_images};

    fn results() -> Results {
        Results {
            rows: vec![inline::example(&[2.5], 98)],
            no_limit: Some("there are none".to_owned()),
            images: Some(inline_images::example()),
            plan: inline::QUICK,
        }
    }

    #[test]
    fn the_page_has_rows_images_goals_and_what_is_left_out() {
        let page = page(&vec![("date", "today".to_owned())], &results());
        for expected in [
            "left out: there are none.",
            "| direct randwrite 4k depth 32, all duplicates | 2.50 | 2.50 to 2.50 | 250 | 100 | 2.0 | 2.0 \
             | 98.0 % | 0.0 % |",
            "| host in line | 3.00 | 1 |",
            "76.0 % are duplicates",
            "| direct randwrite 4k depth 32, all duplicates | 2.50 | 2 | met | 3 | missed |",
            "| host images, time over off-line | 1.50 | 1 | missed |",
        ] {
            assert!(page.contains(expected), "no {expected} in\n{page}");
        }
    }
}
