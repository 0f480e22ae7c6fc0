//! The page of `cargo xtask bench evaluation`: the figures of Dmdedup [Dmdedup §4] and of dedupv1 [Meister13 §6.2] next
//! to ours.

use serde_json::{Value, json};

use crate::evaluation::Results;
use crate::evaluation_cell::{Cell, Content, Pattern};
use crate::evaluation_figures::{Figures, WRITES_PER_SECOND};
use crate::evaluation_generations::Generations;
use crate::evaluation_revisions::{Revisions, Run, Stored};
use crate::page::{Conditions, Page, by_name};
use crate::table::{Row, Table};

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "evaluation-inline";

pub(crate) fn page(conditions: &Conditions, results: &Results) -> String {
    let title = "Published measurements of writes in line, repeated";
    let mut page = Page::new(title, Some(NAME), conditions);
    page.add(
        "Dmdedup is a device mapper target that finds duplicates when they are written; its paper compares three \
         indexes of the same kinds as ours. dedupv1 is a backup system that also finds them then. Their machines, \
         disks and data differ from ours: only the ratio to the raw device of the same machine can be compared, and \
         how it changes from row to row.",
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
    page.to_string()
}

fn figures_section(page: &mut Page, figures: &Figures, (slices, seconds): (usize, u64)) {
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
    let text = format!(
        "Writes to a volume in line with `--cache direct`, relative to the pass-through on a raw file with \
         O_DIRECT: {slices} pairs of slices of {seconds} s, 512 MiB each, client and server each on a processor of \
         its own. {limit}. *Sequential*: 640 KiB at depth 4; *random*: 4 KiB at depth 32. *Memory*: the memory that \
         the index may use, in percent of the memory that its rows need; a daemon has 64 MiB at least, so in a \
         small pool a quarter is more. `memory` opens with all its rows, whatever its limit, and accepts no more. \
         *Ratio*: the median of the pairs, and their range. *Hits* and *refused*: of the blocks looked up. The \
         finder is paused; counting and collector run.",
    );
    page.section("Dmdedup's figures 4 to 6", text);
    let figures_of = [
        (4, Content::Unique),
        (5, Content::Duplicates),
        (6, Content::Images),
    ];
    for (number, content) in figures_of {
        page.add(format!("### Figure {number}: {}", name(content)));
        page.add(difference(content));
        let table = Table::new(
            "| pattern | index | memory, % | ratio | range | theirs | ours | raw | unit | hits, % | refused, % |",
        );
        let cells = figures.cells.iter().filter(|cell| cell.content == content);
        let rows = [Pattern::Sequential, Pattern::Random].map(|pattern| {
            let cells = cells.clone().filter(move |cell| cell.pattern == pattern);
            cells.filter_map(row)
        });
        page.add(table.with(rows.into_iter().flatten()));
    }
    page.add(
        "*Theirs* are the numbers of the paper's text, relative to their raw disk: 147 MB/s and 420 random writes \
         a second. INRAM is compared with `memory`, CBT, a B-tree, with `btree`, and DTB, a hash table on disk, \
         with `hash`; a range covers all their cache sizes and lengths of transactions, or all back ends where the \
         text does not distinguish them. A dash: only in the plot.",
    );
}

fn row(cell: &Cell) -> Option<Row> {
    let (pattern, unit) = match cell.pattern {
        Pattern::Sequential => ("sequential", "MB/s"),
        Pattern::Random => ("random", "writes/s"),
    };
    let row = Row::of(pattern)
        .text(format!("`{}`", cell.back_end))
        .number(cell.had_percent, 0)
        .estimate(cell.ratio()?, 2)
        .text(theirs(cell.content, cell.pattern, cell.back_end))
        .numbers(cell.rates(), 0)
        .text(unit);
    Some(row.numbers(cell.found_percent(), 1))
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

fn revisions_section(page: &mut Page, revisions: &Revisions) {
    let text = format!(
        "{} revisions of this repository at equal distances, {} MB of archives, are unpacked by tar on a new ext4, \
         one after the other and each synced; theirs are 40 Linux kernels in one archive. The file system is the \
         kernel's, on a loop device over nbdfuse, so each request also passes through FUSE; it is unmounted before \
         the clock stops. Direct mode, no limit of writes, default `--memory`. *Logical*, *physical* and *saved* \
         when the finder is done; *data*: blocks that writes stored; *metadata*: everything else that the daemon \
         wrote until then. Medians of {} runs.",
        revisions.revisions,
        revisions.tar_bytes / 1_000_000,
        revisions
            .runs
            .iter()
            .map(|(_, runs)| runs.len())
            .max()
            .unwrap_or(0),
    );
    page.section("Dmdedup's table 2", text);
    let seconds = |runs: &[Run]| Revisions::median(runs, |run| Some(run.seconds));
    let base = revisions.runs.first().and_then(|(_, runs)| seconds(runs));
    let ours = revisions.runs.iter().map(|(target, runs)| {
        let of =
            |of: fn(&Stored) -> f64| Revisions::median(runs, |run| run.stored.as_ref().map(of));
        let seconds = seconds(runs).unwrap_or(f64::NAN);
        let row = Row::of(target.name()).number(seconds, 1);
        let row = row.number(seconds / base.unwrap_or(f64::NAN), 2);
        let stored = [
            of(|stored| stored.logical as f64 / 1e6),
            of(|stored| stored.physical as f64 / 1e6),
            of(Stored::saved_percent),
            of(|stored| stored.hits_percent),
            of(|stored| stored.data_written as f64 / 1e6),
            of(|stored| stored.metadata_written as f64 / 1e6),
        ];
        row.numbers(stored, 1)
    });
    let table = Table::new(
        "| | s | of the raw file's | logical, MB | physical, MB | saved, % | hits, % | data, MB | metadata, MB |",
    );
    let theirs = [
        "| Dmdedup: ext4 on the raw disk | 649 | 1.00 | - | - | 0 | - | - | - |",
        "| Dmdedup with its B-tree | 521 | 0.80 | - | - | 58 to 63 | - | - | - |",
        "| Lessfs, BerkeleyDB, 4 KiB | 1825 | 2.81 | - | - | 58 to 63 | - | - | - |",
    ];
    page.add(table.with(ours.chain(theirs.map(Row::shown))));
    page.add(
        "Their savings follow from the deduplication ratio, 2.4 to 2.7, which they give for all their \
         configurations. Dmdedup's writes find each other at once. Ours find only blocks that the finder has \
         published, and it scans every second, or every five while guests are busy: much data that is unpacked \
         within seconds is stored first and shared afterwards. *Published between*: `pool dedup` runs after each \
         revision while the clock is stopped, as if the revisions came hours apart.",
    );
}

fn generations_section(page: &mut Page, generations: &Generations, rounds: usize) {
    let text = format!(
        "nbdcopy writes an image in line, its flush included, into an empty pool (generation 1), and after a \
         restart of the daemon into a second volume of that pool, with one in 50 runs of 160 KiB changed \
         (generation 2); direct mode, server on one processor. MB/s of blocks with data; *raw*: writes to new files \
         by the pass-through. Medians of {rounds} rounds. Duplicates within generation 1 are hits only if the \
         finder has already published them. *Hits* and *refused* (found and stored all the same) are in percent of \
         the blocks with data.",
    );
    page.section("Two generations of dedupv1", text);
    let ours = generations.images.iter().map(|of| {
        let ([first, second], [[hits, _], more]) = (of.rates(), of.found_percent());
        let row = Row::of(&of.image).numbers(first, 0).number(hits, 1);
        let row = row.numbers(second, 0).numbers(more, 1);
        row.number(second[0] / first[0], 2)
    });
    let table = Table::new(
        "| image | generation 1, MB/s | raw | hits, % | generation 2, MB/s | raw | hits, % | refused, % | 2 over 1 |",
    );
    let theirs = Row::shown("| dedupv1, one node | 166 | - | - | 343 | - | - | - | 2.07 |");
    page.add(table.with(ours.chain([theirs])));
    page.add(
        "dedupv1 receives data over iSCSI, cuts it by content into chunks of 8 KiB, and stores to devices that \
         imitate the latencies of disks and SSDs and keep no data; each client writes 256 GB, ours a few hundred \
         MB.",
    );
}

pub(crate) fn raw(conditions: &Conditions, results: &Results) -> Value {
    let figures = results.figures.as_ref().map(|figures| {
        json!({"without_limit": figures.no_limit, "slice_seconds": results.plan.slice_seconds,
               "cells": figures.cells.iter().map(Cell::raw).collect::<Vec<_>>()})
    });
    json!({
        "conditions": by_name(conditions),
        "figures": figures,
        "revisions": results.revisions.as_ref().map(Revisions::raw),
        "generations": results.generations.as_ref().map(Generations::raw),
    })
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
