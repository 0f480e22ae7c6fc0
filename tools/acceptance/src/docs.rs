//! `cargo xtask docs`: runs the commands of the README and of `docs/operating`.
//!
//! Runs every block of shell commands of every document. The blocks of one document run in one shell and in order. The
//! prerequisites of a document are made first, its paths are below a scratch directory, and slow steps are made
//! smaller: [`DOCUMENTS`] has the changes. All other blocks run as printed.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

const FOLDER: &str = "docs/operating";

/// Directories of a host in the documents. They are made below the scratch directory.
const HOST: [&str; 6] = [
    "/srv/",
    "/var/lib/libvirt/images",
    "/run/onefold",
    "/home",
    "/dev/vg0/",
    "/dev/sd",
];

/// The changes and prerequisites of a document.
struct Document {
    /// The path of the document in the repository.
    name: &'static str,
    /// Commands that run before the first block, after [`PRELUDE`].
    before: &'static str,
    /// Blocks, by their first words, and the commands that run before them, because they assume a later day than the
    /// blocks above them.
    days: &'static [(&'static str, &'static str)],
    /// Replacements in the commands, mostly with smaller sizes and shorter times.
    smaller: &'static [(&'static str, &'static str)],
    /// Blocks that do not run, by their first words, and their substitutes.
    left_out: &'static [(&'static str, &'static str)],
}

const PLAIN: Document = Document {
    name: "",
    before: "",
    days: &[],
    smaller: &[],
    left_out: &[],
};

const DOCUMENTS: &[Document] = &[
    Document {
        name: "README.md",
        before: "mkdir -p $host/srv $host/var/lib/libvirt/images; image web.raw
                 cp web.raw $host/var/lib/libvirt/images",
        smaller: &[
            ("cargo build --release -p onefold ", ": "),
            ("--size 10G", "--size 64M"),
            (
                "onefold --pool /srv/pool serve &",
                "ONEFOLD_POOL=/srv/pool onefold serve",
            ),
            // QEMU opens the disk with the same options, and no guest starts.
            ("qemu-system-x86_64 ... -blockdev", "qemu-img info --image-opts"),
        ],
        left_out: &[("cargo xtask demo", "steps of their own")],
        ..PLAIN
    },
    Document {
        name: "docs/operating/analysis.md",
        before: "image web.raw; image db.raw; image mon.raw; cp mon.raw tue.raw; image wed.raw
                 mkdir -p $host/var/lib/libvirt/images $host/srv/images $host/home $host/dev/vg0
                 cp web.raw $host/var/lib/libvirt/images; cp db.raw $host/srv/images; cp web.raw $host/home
                 image $host/dev/vg0/mail
                 onefold analyze db.raw --chunking fixed:4K --chunking content:8K --trace web2.trace",
        ..PLAIN
    },
    Document {
        name: "docs/operating/backup.md",
        before: "pool; image web.raw; image db.raw; mkdir -p $host/srv/images $host/srv/backup $host/run/onefold
                 onefold volume import web web.raw; onefold volume import db db.raw
                 qemu-img convert -f raw -O qcow2 web.raw $host/srv/images/router.qcow2",
        ..PLAIN
    },
    Document {
        name: "docs/operating/bench.md",
        before: "mkdir -p $host/srv/images $host/dev/vg0 $host/run; image $host/srv/images/web.raw
                 truncate -s 64M $host/dev/vg0/test
                 pool; onefold volume create vol --size 64M
                 onefold serve --nbd unix:$host/run/onefold.sock",
        smaller: &[
            ("--size 4G", "--size 64M"),
            ("memory:1G", "memory:64M"),
            ("--seconds 600", "--seconds 1"),
            ("--seconds 60", "--seconds 1"),
        ],
        ..PLAIN
    },
    Document {
        name: "docs/operating/control-and-permissions.md",
        before: "pool",
        // A group that contains every user who may run this check.
        smaller: &[("--socket-group kvm", "--socket-group $(id -gn)")],
        ..PLAIN
    },
    Document {
        name: "docs/operating/deduplication.md",
        before: "pool; image web.raw; onefold volume import web web.raw; onefold serve",
        ..PLAIN
    },
    Document {
        name: "docs/operating/getting-started.md",
        before: "mkdir -p $host/srv; image web.raw
                 qemu-img convert -f raw -O qcow2 web.raw debian-12.qcow2",
        left_out: &[("qemu-system-x86_64", "cargo xtask guest")],
        ..PLAIN
    },
    Document {
        name: "docs/operating/import-export.md",
        before: "pool; image web.raw; qemu-img convert -f raw -O qcow2 web.raw db.qcow2",
        ..PLAIN
    },
    Document {
        name: "docs/operating/recovery.md",
        before: "pool; image web.raw; onefold volume import web web.raw",
        ..PLAIN
    },
    Document {
        name: "docs/operating/resizing.md",
        before: "pool; onefold volume create web --size 20G",
        ..PLAIN
    },
    Document {
        name: "docs/operating/scrub.md",
        before: "pool; image web.raw; onefold volume import web web.raw; onefold volume import db web.raw",
        ..PLAIN
    },
    Document {
        name: "docs/operating/snapshots.md",
        before: "pool; image web.raw; onefold volume import web web.raw; onefold volume import data web.raw
                 onefold volume import template web.raw
                 onefold serve",
        days: &[
            (
                "onefold snapshot create web@monday\nnbdcopy",
                "onefold snapshot delete web@monday --yes; rm web.raw",
            ),
            (
                "onefold snapshot create web@tuesday",
                "onefold bench \"nbd+unix:///web?socket=$ONEFOLD_POOL/nbd.sock\" --yes --no-read-back \
                 --pattern uniform --requests 500",
            ),
        ],
        ..PLAIN
    },
    Document {
        name: "docs/operating/space-accounting.md",
        before: "pool; image web.raw; onefold volume import web web.raw
                 onefold snapshot create web@monday",
        ..PLAIN
    },
    Document {
        name: "docs/operating/space.md",
        before: "pool; onefold volume create web-1 --size 1G; onefold volume create db-1 --size 1G",
        ..PLAIN
    },
];

/// Runs `serve` in the background, as a service manager would; a second daemon replaces the first one.
const PRELUDE: &str = r#"set -euo pipefail
shopt -s inherit_errexit
daemon=
stop() {
    [ -z "$daemon" ] || { kill "$daemon"; wait "$daemon"; }
    daemon=
}
trap stop EXIT
onefold() {
    # The documents end it by the number of its job.
    if [ "$1 ${2-}" = "backup mount" ]; then exec onefold "$@"; fi
    if [ "$1" != serve ]; then command onefold "$@"; return; fi
    stop
    command onefold "$@" &
    daemon=$!
    for tick in $(seq 300); do
        [ -S "$ONEFOLD_POOL/control.sock" ] && return
        kill -0 "$daemon" && sleep 0.1
    done
    echo "the daemon does not listen" >&2
    return 1
}
pool() {
    mkdir -p "$host/srv"
    onefold pool create "$ONEFOLD_POOL" --size 100G
}
image() {
    command onefold --quiet bench "$1" --size 16M --no-read-back >/dev/null
}
"#;

/// Consecutive commands that a document prints as one block.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The line of the document where the block begins, from 1 on.
    line: usize,
    commands: String,
}

/// `cargo xtask docs`
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(packages::DOCUMENTS)?;
    let binary = workspace.build_release("onefold")?;
    let folder = workspace.root.join(FOLDER);
    let entries = std::fs::read_dir(&folder).context("cannot list the documents")?;
    let names = entries.map(|entry| {
        let name = entry?.file_name();
        Ok(format!("{FOLDER}/{}", name.to_string_lossy()))
    });
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    names.push("README.md".to_owned());
    names.sort();
    for known in DOCUMENTS {
        let is_there = names.iter().any(|name| name == known.name);
        ensure!(is_there, "there is no {}", known.name);
    }
    let (mut ran, mut failed) = (0, Vec::new());
    for name in names.iter().filter(|name| name.ends_with(".md")) {
        let path = workspace.root.join(name);
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let blocks = blocks(&text);
        if blocks.is_empty() {
            continue;
        }
        let document = DOCUMENTS.iter().find(|document| document.name == name);
        let document = document.unwrap_or(&PLAIN);
        match type_in(workspace, &binary, document, name, &blocks) {
            Ok(count) => {
                println!("{name}: {count} of {} blocks work", blocks.len());
                ran += count;
            }
            Err(error) => {
                println!("{name}: {error:#}");
                failed.push(name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        bail!("what these print does not work: {}", failed.join(", "));
    }
    println!("{ran} blocks of commands work as printed");
    Ok(())
}

/// Feeds the blocks of a document to a shell. Returns how many ran.
fn type_in(
    workspace: &Workspace,
    binary: &Path,
    document: &Document,
    name: &str,
    blocks: &[Block],
) -> Result<usize> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "docs")?;
    let directory = scratch.path().join("here");
    std::fs::create_dir(&directory).context("cannot make a directory")?;
    let host = scratch.path().to_string_lossy().into_owned();
    let (script, ran) = script(document, name, blocks, &host)?;
    let programs = binary.parent().context("a binary is in a directory")?;
    let path = std::env::var("PATH").unwrap_or_default();
    Cmd::new("bash")
        .args(["-c", &script])
        .dir(&directory)
        .env(
            "PATH",
            format!("{}:{path}:/usr/sbin:/sbin", programs.display()),
        )
        .env("ONEFOLD_POOL", format!("{host}/srv/onefold"))
        .env("ONEFOLD_STATE", format!("{host}/state"))
        .env("ONEFOLD_CACHE", format!("{host}/cache"))
        .env("host", &host)
        .run()?;
    Ok(ran)
}

/// The whole input of a document's shell, and the number of blocks in it.
fn script(
    document: &Document,
    name: &str,
    blocks: &[Block],
    host: &str,
) -> Result<(String, usize)> {
    let mut script = format!("{PRELUDE}{}\nset -x\n", document.before);
    let mut ran = 0;
    let begins = |block: &Block, start: &str| block.commands.starts_with(start);
    for list in [document.days, document.left_out] {
        for (start, _) in list {
            let is_there = blocks.iter().any(|block| begins(block, start));
            ensure!(is_there, "no block begins with {start:?}");
        }
    }
    for (from, _) in document.smaller {
        let is_there = blocks.iter().any(|block| block.commands.contains(from));
        ensure!(is_there, "no block has {from:?}");
    }
    for block in blocks {
        let said = |list: &[(&'static str, &'static str)]| {
            let of_block = list.iter().find(|(start, _)| begins(block, start));
            of_block.map(|(_, text)| *text)
        };
        if said(document.left_out).is_some() {
            continue;
        }
        let mut commands = block.commands.clone();
        for (from, to) in document.smaller {
            commands = commands.replace(from, to);
        }
        for directory in HOST {
            commands = commands.replace(directory, &format!("{host}{directory}"));
        }
        let before = said(document.days).unwrap_or_default();
        let line = block.line;
        script.push_str(&format!("{before}\n: {name}:{line}\n{commands}"));
        ran += 1;
    }
    Ok((script, ran))
}

/// The blocks of shell commands of a document.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (line, text) in (1..).zip(text.lines()) {
        match open.take() {
            Some(block) if text == "```" => blocks.push(block),
            Some(mut block) => {
                block.commands.push_str(text);
                block.commands.push('\n');
                open = Some(block);
            }
            None if text == "```sh" => {
                open = Some(Block {
                    line,
                    commands: String::new(),
                });
            }
            None => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# Title\n```sh\none /srv/a\n```\n```xml\n<no/>\n```\n\n```sh\ntwo\nthree\n```\n";

    #[test]
    fn only_shell_commands_are_run() {
        let found = blocks(TEXT);
        let lines: Vec<_> = found
            .iter()
            .map(|block| (block.line, &*block.commands))
            .collect();
        assert_eq!(lines, [(2, "one /srv/a\n"), (9, "two\nthree\n")]);
        let (script, ran) = script(&PLAIN, "x.md", &found, "/scratch").unwrap();
        assert_eq!(ran, 2);
        assert!(script.contains("\none /scratch/srv/a\n"), "{script}");
        assert!(script.contains("x.md:9\ntwo\nthree\n"), "{script}");
    }

    #[test]
    fn what_is_said_of_a_block_that_is_gone_is_an_error() {
        let found = blocks(TEXT);
        let gone = Document {
            left_out: &[("four", "")],
            ..PLAIN
        };
        assert!(script(&gone, "x.md", &found, "/scratch").is_err());
        let left_out = Document {
            left_out: &[("two", "")],
            ..PLAIN
        };
        assert_eq!(script(&left_out, "x.md", &found, "/").unwrap().1, 1);
    }
}
