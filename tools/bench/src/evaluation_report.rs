//! The page of `cargo xtask bench evaluation`: the figures of Dmdedup [Dmdedup §4] and of dedupv1 [Meister13 §6.2] next
//! to ours.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::evaluation::Results;
use crate::evaluation_cell::{Cell, Content, Pattern};
use crate::evaluation_figures::{Figures, WRITES_PER_SECOND};
use crate::evaluation_generations::Generations;
use crate::evaluation_revisions::{Revisions, Run, Stored};
use crate::report::{self, Conditions, heading};
use onefold_harness::workspace::Workspace;

pub(crate) const PAGE: &str = "docs/evaluation-inline.md";
const RAW: &str = "tools/bench/results/evaluation-inline.json";

pub(crate) fn page(conditions: &Conditions, results: &Results) -> String {
    let title = "Published measurements of writes in line, repeated";
    let mut page = heading(title, Some("evaluation-inline.json"), conditions);
    page.push_str(
        "\nDmdedup is a device mapper target that finds duplicates when they are written; its paper compares three \
         indexes of the same kinds as ours. dedupv1 is a backup system that also finds them then. Their machines, \
         disks and data differ from ours: only the ratio to the raw device of the same machine can be compared, and \
         how it changes from row to row.\n",
    );
    if let Some(figures) = &results.figures {
        let (slices, seconds) = (results.plan.slices, results.plan.slice_seconds);
        figures_section(&mut page, figures, (slices, seconds));
    }
    if let Some(revisions) = &results.revisions {
        revisions_section(&mut page, revisions);
    }
    if let Some(generations) = &results.generations {
        generations_section(&mut page, generations, results.plan.rounds);
    }
    page
}

fn figures_section(page: &mut String, figures: &Figures, (slices, seconds): (usize, u64)) {
    let limit = match &figures.no_limit {
        None => format!(
            "Both servers are in a control group that may make {WRITES_PER_SECOND} writes a second past the \
             page cache, as many as Dmdedup's disk makes at random; commits and the index, which go through \
             the page cache, are not limited, as Dmdedup's metadata is on a disk of its own"
        ),
        Some(why) => {
            format!("There is no limit of writes ({why}), so the disk runs at full speed")
        }
    };
    // Writing to a `String` cannot fail.
    let _ = write!(
        page,
        "\n## Dmdedup's figures 4 to 6\n\n\
         Writes to a volume in line with `--cache direct`, relative to the pass-through on a raw file with \
         O_DIRECT: {slices} pairs of slices of {seconds} s, 512 MiB each, client and server each on a processor of \
         its own. {limit}. *Sequential*: 640 KiB at depth 4; *random*: 4 KiB at depth 32. *Memory*: the memory that \
         the index may use, in percent of the memory that its rows need; a daemon has 64 MiB at least, so in a \
         small pool a quarter is more. `memory` opens with all its rows, whatever its limit, and accepts no more. \
         *Ratio*: the median of the pairs, and their range. *Hits* and *refused*: of the blocks looked up. The \
         finder is paused; counting and collector run.\n",
    );
    for (number, content) in [
        (4, Content::Unique),
        (5, Content::Duplicates),
        (6, Content::Images),
    ] {
        let _ = write!(
            page,
            "\n### Figure {number}: {}\n\n{}\n\n\
             | pattern | index | memory, % | ratio | range | theirs | ours | raw | unit | hits, % | refused, % |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            name(content),
            difference(content),
        );
        for pattern in [Pattern::Sequential, Pattern::Random] {
            let cells = figures.cells.iter();
            let cells = cells.filter(|cell| cell.content == content && cell.pattern == pattern);
            cells.for_each(|cell| row(page, cell));
        }
    }
    page.push_str(
        "\n*Theirs* are the numbers of the paper's text, relative to their raw disk: 147 MB/s and 420 random writes \
         a second. INRAM is compared with `memory`, CBT, a B-tree, with `btree`, and DTB, a hash table on disk, \
         with `hash`; a range covers all their cache sizes and lengths of transactions, or all back ends where the \
         text does not distinguish them. A dash: only in the plot.\n",
    );
}

fn row(page: &mut String, cell: &Cell) {
    let Some(ratio) = cell.ratio() else {
        return;
    };
    let ([ours, base], [hits, refused]) = (cell.rates(), cell.found_percent());
    let (pattern, unit) = match cell.pattern {
        Pattern::Sequential => ("sequential", "MB/s"),
        Pattern::Random => ("random", "writes/s"),
    };
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        page,
        "| {pattern} | `{}` | {:.0} | {:.2} | {:.2} to {:.2} | {} | {ours:.0} | {base:.0} | {unit} | {hits:.1} | \
         {refused:.1} |",
        cell.back_end,
        cell.had_percent,
        ratio.median,
        ratio.low,
        ratio.high,
        theirs(cell.content, cell.pattern, cell.back_end),
    );
}

fn name(content: Content) -> &'static str {
    match content {
        Content::Unique => "unique",
        Content::Duplicates => "all duplicates",
        Content::Images => "images",
    }
}

/// The content that our load writes, and the reason for the difference to the other figure.
fn difference(content: Content) -> &'static str {
    match content {
        Content::Unique => {
            "New content over private blocks: onefold writes it in place, so there is no metadata to write and a \
             random write stays random. Dmdedup places new blocks one after the other, which makes random writes \
             sequential; its ratio of random writes is the ratio of a disk's two speeds."
        }
        Content::Duplicates => {
            "4,096 contents in turn, which another volume has published, so no write finds its own content in its \
             place. Dmdedup writes one block again and again, whose row is always in its cache, and its random \
             writes are compared with a disk that seeks."
        }
        Content::Images => {
            "The blocks with data of one image (`dev` of `cargo xtask images`), in order, into a pool that has \
             another (`web`); random writes put each block in a place of its own. Dmdedup writes the sources of 40 \
             kernels in one archive, with duplicates inside it; duplicates inside our image are not hits, because \
             the finder is paused. Where hits are scattered in a sequential request, onefold writes the blocks \
             between them in place, in separate pieces, and each piece counts under a limit of writes; Dmdedup \
             writes them in one."
        }
    }
}

/// Dmdedup's figure relative to the raw disk [Dmdedup §4.2.1].
fn theirs(content: Content, pattern: Pattern, back_end: &str) -> &'static str {
    match (content, pattern, back_end) {
        (Content::Unique, Pattern::Sequential, "memory") => "1.0",
        (Content::Unique, Pattern::Sequential, "btree") => "0.02 to 0.65",
        (Content::Unique, Pattern::Sequential, _) => "0.23 to 1.0",
        (Content::Unique, Pattern::Random, _) => "1.6 to 26",
        (Content::Duplicates, Pattern::Sequential, "btree") => "0.08 to 2",
        (Content::Duplicates, Pattern::Sequential, _) => "1.4 to 2",
        (Content::Duplicates, Pattern::Random, _) => "2 to 140",
        (Content::Images, Pattern::Sequential, "memory") => "1.11 to 1.45",
        (Content::Images, _, _) => "-",
    }
}

fn revisions_section(page: &mut String, revisions: &Revisions) {
    // Writing to a `String` cannot fail.
    let _ = write!(
        page,
        "\n## Dmdedup's table 2\n\n\
         {} revisions of this repository at equal distances, {} MB of archives, are unpacked by tar on a new ext4, \
         one after the other and each synced; theirs are 40 Linux kernels in one archive. The file system is the \
         kernel's, on a loop device over nbdfuse, so each request also passes through FUSE; it is unmounted before \
         the clock stops. Direct mode, no limit of writes, default `--memory`. *Logical*, *physical* and *saved* \
         when the finder is done; *data*: blocks that writes stored; *metadata*: everything else that the daemon \
         wrote until then. Medians of {} runs.\n\n\
         | | s | of the raw file's | logical, MB | physical, MB | saved, % | hits, % | data, MB | metadata, MB |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        revisions.revisions,
        revisions.tar_bytes / 1_000_000,
        revisions
            .runs
            .iter()
            .map(|(_, runs)| runs.len())
            .max()
            .unwrap_or(0),
    );
    let seconds = |runs: &[Run]| Revisions::median(runs, |run| Some(run.seconds));
    let base = revisions.runs.first().and_then(|(_, runs)| seconds(runs));
    for (target, runs) in &revisions.runs {
        let of = |of: fn(&Stored) -> f64| {
            let median = Revisions::median(runs, |run| run.stored.as_ref().map(of));
            median.map_or_else(|| "-".to_owned(), |number| format!("{number:.1}"))
        };
        let seconds = seconds(runs).unwrap_or(f64::NAN);
        let _ = writeln!(
            page,
            "| {} | {seconds:.1} | {:.2} | {} | {} | {} | {} | {} | {} |",
            target.name(),
            seconds / base.unwrap_or(f64::NAN),
            of(|stored| stored.logical as f64 / 1e6),
            of(|stored| stored.physical as f64 / 1e6),
            of(Stored::saved_percent),
            of(|stored| stored.hits_percent),
            of(|stored| stored.data_written as f64 / 1e6),
            of(|stored| stored.metadata_written as f64 / 1e6),
        );
    }
    page.push_str(
        "| Dmdedup: ext4 on the raw disk | 649 | 1.00 | - | - | 0 | - | - | - |\n\
         | Dmdedup with its B-tree | 521 | 0.80 | - | - | 58 to 63 | - | - | - |\n\
         | Lessfs, BerkeleyDB, 4 KiB | 1825 | 2.81 | - | - | 58 to 63 | - | - | - |\n\n\
         Their savings follow from the deduplication ratio, 2.4 to 2.7, which they give for all their \
         configurations. Dmdedup's writes find each other at once. Ours find only blocks that the finder has \
         published, and it scans every second, or every five while guests are busy: much data that is unpacked \
         within seconds is stored first and shared afterwards. *Published between*: `pool dedup` runs after each \
         revision while the clock is stopped, as if the revisions came hours apart.\n",
    );
}

fn generations_section(page: &mut String, generations: &Generations, rounds: usize) {
    // Writing to a `String` cannot fail.
    let _ = write!(
        page,
        "\n## Two generations of dedupv1\n\n\
         nbdcopy writes an image in line, its flush included, into an empty pool (generation 1), and after a \
         restart of the daemon into a second volume of that pool, with one in 50 runs of 160 KiB changed \
         (generation 2); direct mode, server on one processor. MB/s of blocks with data; *raw*: writes to new files \
         by the pass-through. Medians of {rounds} rounds. Duplicates within generation 1 are hits only if the \
         finder has already published them. *Hits* and *refused* (found and stored all the same) are in percent of \
         the blocks with data.\n\n\
         | image | generation 1, MB/s | raw | hits, % | generation 2, MB/s | raw | hits, % | refused, % | 2 over 1 |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for of in &generations.images {
        let ([first, second], [[hits, _], [more, refused]]) = (of.rates(), of.found_percent());
        let _ = writeln!(
            page,
            "| {} | {:.0} | {:.0} | {hits:.1} | {:.0} | {:.0} | {more:.1} | {refused:.1} | {:.2} |",
            of.image,
            first[0],
            first[1],
            second[0],
            second[1],
            second[0] / first[0],
        );
    }
    page.push_str(
        "| dedupv1, one node | 166 | - | - | 343 | - | - | - | 2.07 |\n\n\
         dedupv1 receives data over iSCSI, cuts it by content into chunks of 8 KiB, and stores to devices that \
         imitate the latencies of disks and SSDs and keep no data; each client writes 256 GB, ours a few hundred \
         MB.\n",
    );
}

pub(crate) fn raw(conditions: &Conditions, results: &Results) -> Value {
    let conditions: serde_json::Map<String, Value> = conditions
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let figures = results.figures.as_ref().map(|figures| {
        json!({"without_limit": figures.no_limit, "slice_seconds": results.plan.slice_seconds,
               "cells": figures.cells.iter().map(Cell::raw).collect::<Vec<_>>()})
    });
    json!({
        "conditions": conditions,
        "figures": figures,
        "revisions": results.revisions.as_ref().map(Revisions::raw),
        "generations": results.generations.as_ref().map(Generations::raw),
    })
}

pub(crate) fn write(workspace: &Workspace, page: &str, raw: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(raw).context("cannot write the raw results")?;
    report::write_files(workspace, &[(PAGE, page), (RAW, &text)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{BACK_ENDS, QUICK};
    use crate::{evaluation_cell, evaluation_generations, evaluation_revisions};

    fn results(no_limit: Option<&str>) -> Results {
        let cells = [
            (Content::Duplicates, Pattern::Random),
            (Content::Unique, Pattern::Sequential),
        ];
        Results {
            figures: Some(Figures {
                cells: cells
                    .map(|(content, pattern)| evaluation_cell::example(content, pattern))
                    .into(),
                no_limit: no_limit.map(str::to_owned),
            }),
            revisions: Some(evaluation_revisions::example()),
            generations: Some(evaluation_generations::example()),
            plan: QUICK,
        }
    }

    fn printed(no_limit: Option<&str>) -> String {
        page(&vec![("date", "today".to_owned())], &results(no_limit))
    }

    #[test]
    fn each_part_has_its_rows_with_theirs_beside() {
        let page = printed(None);
        for expected in [
            "| sequential | `hash` | 25 | 1.00 | 0.90 to 1.10 | 0.23 to 1.0 | 66 | 66 | MB/s | 99.0 | 1.0 |",
            "| random | `hash` | 25 | 1.00 | 0.90 to 1.10 | 2 to 140 | 100 | 100 | writes/s | 99.0 | 1.0 |",
            "| pass-through | 10.0 | 1.00 | - | - | - | - | - | - |",
            "| in line, `hash` | 8.0 | 0.80 | 200.0 | 50.0 | 75.0 | 60.0 | 60.0 | 10.0 |",
            "| web | 200 | 400 | 5.0 | 400 | 400 | 98.0 | 1.0 | 2.00 |",
            "| dedupv1, one node | 166 |",
        ] {
            assert!(page.contains(expected), "no {expected} in\n{page}");
        }
    }

    #[test]
    fn the_page_says_whether_writes_were_limited() {
        assert!(printed(None).contains("420 writes a second"));
        let page = printed(Some("there are none"));
        assert!(page.contains("There is no limit of writes (there are none)"));
    }

    #[test]
    fn a_part_that_was_not_measured_is_not_on_the_page() {
        let results = Results {
            figures: None,
            revisions: None,
            ..results(None)
        };
        let page = page(&vec![("date", "today".to_owned())], &results);
        assert!(!page.contains("## Dmdedup") && page.contains("## Two generations"));
    }

    #[test]
    fn every_cell_of_theirs_has_a_number_or_a_dash() {
        for back_end in BACK_ENDS {
            for content in [Content::Unique, Content::Duplicates, Content::Images] {
                assert!(!theirs(content, Pattern::Sequential, back_end).is_empty());
            }
            assert_eq!(theirs(Content::Images, Pattern::Random, back_end), "-");
        }
    }

    #[test]
    fn raw_results_have_all_parts() {
        let raw = raw(&vec![("date", "today".to_owned())], &results(None));
        assert_eq!(raw["figures"]["cells"][0]["memory_percent"], 25);
        assert_eq!(raw["revisions"]["targets"][1]["runs"][0]["seconds"], 8.0);
        assert_eq!(raw["generations"][0]["image"], "web");
    }
}
