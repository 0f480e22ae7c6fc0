//! The page of `cargo xtask bench inline`, and what each filter is worth.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::goals;
use crate::inline::{Measured, Results};
use crate::inline_load::CONTENTS;
use crate::plan::SERVER_PROCESSOR;
use crate::report::{self, Conditions, heading};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::inline::Inline;
use onefold_harness::workspace::Workspace;

pub(crate) const PAGE: &str = "docs/benchmarks-inline.md";
const RAW: &str = "docs/benchmarks-inline.json";

/// Rows of the index whose answers are timed.
const INDEX_ROWS: u64 = 1_000_000;
const INDEX_MEMORY: u64 = 64 << 20;

pub(crate) fn page(conditions: &Conditions, results: &Results) -> String {
    let title = "Benchmarks of writes in line";
    let mut page = heading(title, Some("benchmarks-inline.json"), conditions);
    // Writing to a String can not fail.
    let _ = write!(
        page,
        "\nA client of our own over a unix socket, one connection; client and server each on a processor of \
         its own; 512 MiB of data per server. {} alternating slices of {} s, over {} layouts, that is with \
         servers and files made anew. A *duplicate* is the next of {CONTENTS} contents that another volume \
         has published, so no write finds its own content in its place; all else is *unique*. Unique \
         rows come first, so that their blocks are private. The finder rests unless a row says \
         otherwise; counting and collector work. *Filled in*: the size of the requests in which both \
         sides' data was written first.\n",
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
        "\n## Against the pass-through\n\n*Ratio*: onefold's requests per second divided by the \
         pass-through's in the same pair, the median with its 95 % interval. *CPU*: the server's processor \
         time per request in µs. *Hits* and *refused*: of the blocks looked up. A row whose share of hits is \
         not what its name says has no verdict.\n\n\
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
        // Writing to a String can not fail.
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
    // Writing to a String can not fail.
    let _ = write!(
        page,
        "\n## An image into a pool that has its relatives\n\nnbdcopy into an empty volume, its flush \
         included; {} blocks with data, of which {:.1} % are duplicates of earlier images or within the \
         image. *Data*: blocks looked up that were no hits. *All*: what the daemon wrote until the finder \
         was done, with maps, log and index. Medians of {} rounds.\n\n\
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

/// Nanoseconds that a block costs.
#[derive(Debug, Clone, Copy)]
struct Costs {
    fingerprint: f64,
    present: f64,
    absent: f64,
    absent_by_signature: f64,
}

/// What each answer before the index saves, from the counts of this run.
pub(crate) fn filters(workspace: &Workspace, results: &Results) -> Result<String> {
    let costs = Costs::measure(workspace)?;
    let mut page = format!(
        "\n## What each filter is worth\n\nNone can be switched off in the product. So its share of the \
         blocks that were looked up, times what these would have cost without it: a block of zeros a \
         fingerprint and a look at the index; one that was seen a moment ago the lookup of a present row; \
         one that the signatures exclude that of an absent one. Measured with {INDEX_ROWS} rows in memory: \
         fingerprint {:.0} ns, present {:.0} ns, absent {:.0} ns, absent by signature {:.0} ns.\n\n\
         | load | filter | blocks answered | saved, ns for each block looked up |\n\
         | --- | --- | --- | --- |\n",
        costs.fingerprint, costs.present, costs.absent, costs.absent_by_signature,
    );
    let images = results.images.iter();
    let images = images.map(|images| ("images".to_owned(), images.found()));
    let rows = results.rows.iter();
    let rows = rows.map(|row| (row.name.clone(), row.inline()));
    for (load, inline) in images.chain(rows) {
        for (filter, answered, saved) in costs.worth(&inline) {
            // Writing to a String can not fail.
            let _ = writeln!(
                page,
                "| {load} | {filter} | {:.1} % | {saved:.0} |",
                100.0 * answered
            );
        }
    }
    Ok(page)
}

impl Costs {
    /// By a process of its own, on the server's processor.
    fn measure(workspace: &Workspace) -> Result<Costs> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "filters")?;
        let printed = Cmd::new("taskset")
            .args(["-c", &SERVER_PROCESSOR.to_string()])
            .arg(workspace.build_release("onefold-bench")?)
            .args(["index-worker", "hash"])
            .args([INDEX_ROWS.to_string(), "0".to_owned()])
            .arg(scratch.path())
            .args([&INDEX_MEMORY.to_string(), "lookup"])
            .read()?;
        let told: Value = serde_json::from_str(&printed).context("no JSON")?;
        let number = |key: &str| {
            let number = told.get(key).and_then(Value::as_f64);
            number.with_context(|| format!("there is no {key}"))
        };
        Ok(Costs {
            fingerprint: number("fingerprint_ns")?,
            present: number("present_ns")?,
            absent: number("absent_ns")?,
            absent_by_signature: number("absent_by_signature_ns")?,
        })
    }

    /// Each filter's part of the blocks, and what it saves for each block looked up.
    fn worth(&self, inline: &Inline) -> [(&'static str, f64, f64); 3] {
        let part = |blocks: u64| blocks as f64 / inline.scanned.max(1) as f64;
        let (zeros, recent) = (part(inline.zeros), part(inline.recently_seen));
        let signature = part(inline.absent_by_signature);
        [
            (
                "zeros",
                zeros,
                zeros * (self.fingerprint + self.absent_by_signature),
            ),
            ("seen a moment ago", recent, recent * self.present),
            (
                "signatures",
                signature,
                signature * (self.absent - self.absent_by_signature),
            ),
        ]
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

    #[test]
    fn a_filter_is_worth_what_its_blocks_would_have_cost() {
        let costs = Costs {
            fingerprint: 1000.0,
            present: 2000.0,
            absent: 500.0,
            absent_by_signature: 100.0,
        };
        let inline = Inline {
            scanned: 100,
            zeros: 10,
            recently_seen: 20,
            absent_by_signature: 50,
            ..Inline::default()
        };
        let [zeros, recent, signatures] = costs.worth(&inline);
        assert_eq!(zeros, ("zeros", 0.1, 110.0));
        assert_eq!(recent, ("seen a moment ago", 0.2, 400.0));
        assert_eq!(signatures, ("signatures", 0.5, 200.0));
    }
}
