//! The page of `cargo xtask bench inline`.

use serde_json::{Value, json};

use crate::goals;
use crate::inline::{Measured, Results};
use crate::inline_load::CONTENTS;
use crate::page::{Conditions, Page, by_name};
use crate::table::{Row, Table};

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks-inline";

pub(crate) fn page(conditions: &Conditions, results: &Results) -> String {
    let mut page = Page::new("Benchmarks of writes in line", Some(NAME), conditions);
    page.add(format!(
        "A client of our own over a unix socket, one connection; client and server each on a processor of its \
         own; 512 MiB of data per server. {} alternating slices of {} s, over {} layouts, each with new servers and \
         files. A *duplicate* is the next of {CONTENTS} contents that another volume has published, so no write \
         finds its own content in its place; all other blocks are *unique*. Unique rows come first, so that their \
         blocks are private. The finder is paused unless a row says otherwise; counting and collector run. *Filled \
         in* is the size of the requests that first wrote the data of both servers.",
        results.plan.slices, results.plan.slice_seconds, results.plan.layouts,
    ));
    if let Some(why) = &results.no_limit {
        page.add(format!(
            "Rows with a limited number of writes are left out: {why}."
        ));
    }
    add_rows(&mut page, &results.rows);
    add_images(&mut page, results);
    let goals = results.rows.iter().filter_map(Measured::goal);
    let of_images = results.images.iter().flat_map(|images| images.goals());
    page.section("Goals", goals::table(goals.chain(of_images)));
    page.to_string()
}

fn add_rows(page: &mut Page, rows: &[Measured]) {
    if rows.is_empty() {
        return;
    }
    page.section(
        "Against the pass-through",
        "*Ratio*: onefold's requests per second divided by the pass-through's in the same pair, the median with its \
         95 % interval. *CPU*: the server's processor time per request in µs. *Hits* and *refused*: of the blocks \
         looked up. A row whose share of hits is not the one in its name has no verdict.",
    );
    let table = Table::new(
        "| row | ratio | 95 % | requests/s | pass-through | CPU | pass-through | hits | refused |",
    );
    page.add(table.with(rows.iter().filter_map(|row| {
        let inline = row.inline();
        let refused = 100.0 * inline.refused as f64 / inline.scanned.max(1) as f64;
        let cells = Row::of(&row.name).estimate(row.ratio()?, 2);
        let cells = cells.numbers(row.per_second(), 0).numbers(row.cpu_us(), 1);
        Some(cells.texts([row.hits_percent(), refused].map(|part| format!("{part:.1} %"))))
    })));
}

fn add_images(page: &mut Page, results: &Results) {
    let Some(images) = &results.images else {
        return;
    };
    let text = format!(
        "nbdcopy writes the image into an empty volume, its flush included; it has {} blocks with data, of which \
         {:.1} % are duplicates of earlier images or within the image. *Data*: blocks that were looked up and were \
         not hits. *All*: all that the daemon wrote until the finder was done, with maps, log and index. Medians of \
         {} rounds.",
        images.blocks,
        100.0 * images.duplicate_part(),
        results.plan.image_rounds,
    );
    page.section("An image written to a pool that has related images", text);
    let table = Table::new("| | s | data, MB | all, MB | CPU, s | hits | refused |");
    page.add(table.with(images.rows()));
}

pub(crate) fn raw(conditions: &Conditions, results: &Results) -> Value {
    json!({
        "conditions": by_name(conditions),
        "slice_seconds": results.plan.slice_seconds,
        "rows": results.rows.iter().map(Measured::raw).collect::<Vec<_>>(),
        "rows_left_out": results.no_limit,
        "images": results.images.as_ref().map(|images| images.raw()),
    })
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
