//! The part of `cargo xtask demo` in which two guests are backed up for two nights.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::clients::compare;
use crate::demo::{Summary, step};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct;
use onefold_harness::images::Image;
use onefold_harness::server::Product;

/// What a guest writes between the nights: where, how much and with which pattern (qemu-io).
const CHANGES: [(&str, u8); 2] = [("64M 8M", 0x5a), ("200M 3M", 0xa5)];

/// The repository, and what opens it.
struct Night<'a> {
    product: &'a Product,
    repository: &'a Path,
    passphrase: &'a Path,
}

impl Night<'_> {
    fn command(&self, verb: &[&str]) -> Cmd {
        self.product
            .command()
            .args(["--quiet", "--format", "json", "backup"])
            .args(verb)
            .arg("--repository")
            .arg(self.repository)
            .arg("--passphrase-file")
            .arg(self.passphrase)
    }

    fn json(&self, verb: &[&str]) -> Result<Value> {
        let text = self.command(verb).read()?;
        serde_json::from_str(&text).with_context(|| format!("{verb:?} did not print JSON"))
    }
}

/// Backs the volumes of these images up, changes them, backs them up again, forgets the first night, prunes and
/// restores.
pub(crate) fn run(
    product: &Product,
    scratch: &Scratch,
    images: &[Image],
    summary: &mut Summary,
) -> Result<()> {
    let (repository, passphrase) = (
        scratch.path().join("repository"),
        scratch.path().join("passphrase"),
    );
    std::fs::write(&passphrase, "correct horse battery staple\n")
        .context("cannot write the passphrase")?;
    let night = Night {
        product,
        repository: &repository,
        passphrase: &passphrase,
    };
    let names: Vec<_> = images.iter().map(|image| image.name.as_str()).collect();
    let create = [&["create"], &names[..]].concat();
    let first = step(
        "Back both guests up into a new repository, encrypted",
        || {
            night.json(&["init"])?;
            let made = night.json(&create)?;
            let popular = number(&made, "new_popular_bytes")?;
            let new: u64 = each(&made, "new_bytes")?.iter().sum();
            let paths: Vec<_> = images.iter().map(|image| &image.path).collect();
            let distinct = distinct::count(&paths)?.distinct * 4096;
            ensure!(
                popular + new == distinct,
                "{} bytes are stored, and the guests have {distinct} different ones",
                popular + new
            );
            let found = format!(
                "{} MiB are new, {} MiB of them in both guests and stored once: as many as the images have different \
             blocks.",
                distinct >> 20,
                popular >> 20
            );
            Ok((distinct >> 20, found))
        },
    )?;
    let (second, read) = step("The guests write; back them up again", || {
        for (image, (place, pattern)) in images.iter().zip(CHANGES) {
            let write = format!("write -P {pattern} {place}");
            Cmd::new("qemu-io")
                .args(["-f", "raw", "-c", &write, "-c", "flush"])
                .arg(product.default_address().uri(&image.name))
                .run()?;
        }
        let made = night.json(&create)?;
        let read: u64 = each(&made, "read_bytes")?.iter().sum();
        let new: u64 = each(&made, "new_bytes")?.iter().sum();
        let new = new + number(&made, "new_popular_bytes")?;
        ensure!(
            read <= 12 << 20,
            "{read} bytes were read of what did not change"
        );
        let found = format!(
            "{} MiB changed and were read, {} KiB are new.",
            read >> 20,
            new >> 10
        );
        Ok(((new >> 10, read >> 20), found))
    })?;
    summary.add(
        "two nights of backups",
        format!("{first} MiB new, then {read} MiB read and {second} KiB new"),
    );
    step("Forget the first night, and prune", || {
        night.json(&["forget", "--keep-last", "1", "--yes"])?;
        let pruned = night.json(&["prune", "--wasted", "0%", "--yes"])?;
        let given_back = each_of(&pruned, "sources", "given_back_bytes")?;
        let given_back: u64 = given_back.iter().sum();
        let verified = night.json(&["verify", "--data"])?;
        let findings = verified["findings"].as_array().map(Vec::len);
        ensure!(findings == Some(0), "{verified}");
        let found = format!(
            "{} MiB given back; what is left is verified.",
            given_back >> 20
        );
        Ok(((), found))
    })?;
    let found = step("Restore both into another folder, and compare", || {
        for image in images {
            let restored = scratch.path().join(format!("{}-restored.raw", image.name));
            let name = format!("{}@latest", image.name);
            night.command(&["restore", &name]).arg(&restored).run()?;
            compare(&restored, &product.default_address().uri(&image.name))?;
            std::fs::remove_file(&restored).context("cannot remove a restored image")?;
        }
        Ok((
            "identical",
            "Identical with the guests' volumes.".to_owned(),
        ))
    })?;
    summary.add("restored", found);
    // The bases of the next backups are snapshots, and the rest of the demo is about the volumes alone.
    let snapshots = product
        .command()
        .args(["--format", "json", "snapshot", "list"])
        .read()?;
    let snapshots: Value = serde_json::from_str(&snapshots).context("no list of snapshots")?;
    for snapshot in snapshots["snapshots"].as_array().into_iter().flatten() {
        let name = snapshot["name"]
            .as_str()
            .context("a snapshot has no name")?;
        product
            .command()
            .args(["--quiet", "snapshot", "delete", name, "--yes"])
            .run()?;
    }
    Ok(())
}

fn number(reply: &Value, key: &str) -> Result<u64> {
    let number = reply.get(key).and_then(Value::as_u64);
    number.with_context(|| format!("the reply lacks {key}"))
}

fn each(reply: &Value, key: &str) -> Result<Vec<u64>> {
    each_of(reply, "backups", key)
}

fn each_of(reply: &Value, list: &str, key: &str) -> Result<Vec<u64>> {
    let list = reply.get(list).and_then(Value::as_array);
    let list = list.context("the reply lacks its list")?;
    list.iter().map(|one| number(one, key)).collect()
}
