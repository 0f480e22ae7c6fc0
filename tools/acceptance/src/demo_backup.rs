//! The part of `cargo xtask demo` that backs two guests up for two nights.

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

/// Writes of a guest between the nights: place, length and pattern, as qemu-io takes them.
const CHANGES: [(&str, u8); 2] = [("64M 8M", 0x5a), ("200M 3M", 0xa5)];

/// The repository, and the file with its passphrase.
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
        || night.first(&create, images),
    )?;
    let second = step("The guests write; back them up again", || {
        night.second(&create, images)
    })?;
    summary.add("two nights of backups", format!("{first}, then {second}"));
    step("Forget the first night, and prune", || night.forget())?;
    let found = step("Restore both into another folder, and compare", || {
        night.restore(scratch, images)
    })?;
    summary.add("restored", found);
    night.delete_bases()
}

impl Night<'_> {
    fn first(&self, create: &[&str], images: &[Image]) -> Result<(String, String)> {
        self.json(&["init"])?;
        let made = self.json(create)?;
        let popular = number(&made, "new_popular_bytes")?;
        let new: u64 = each(&made, "backups", "new_bytes")?.iter().sum();
        let paths: Vec<_> = images.iter().map(|image| &image.path).collect();
        let distinct = distinct::count(&paths)?.distinct * 4096;
        ensure!(
            popular + new == distinct,
            "{} bytes are stored, and the guests have {distinct} different ones",
            popular + new
        );
        let found = format!(
            "{} MiB are new, {} MiB of them in both guests and stored once: as many as the images have \
             different blocks.",
            distinct >> 20,
            popular >> 20
        );
        Ok((format!("{} MiB new", distinct >> 20), found))
    }

    fn second(&self, create: &[&str], images: &[Image]) -> Result<(String, String)> {
        for (image, (place, pattern)) in images.iter().zip(CHANGES) {
            let write = format!("write -P {pattern} {place}");
            Cmd::new("qemu-io")
                .args(["-f", "raw", "-c", &write, "-c", "flush"])
                .arg(self.product.default_address().uri(&image.name))
                .run()?;
        }
        let made = self.json(create)?;
        let read: u64 = each(&made, "backups", "read_bytes")?.iter().sum();
        let new: u64 = each(&made, "backups", "new_bytes")?.iter().sum();
        let new = new + number(&made, "new_popular_bytes")?;
        ensure!(
            read <= 12 << 20,
            "{read} bytes were read of what did not change"
        );
        let (read, new) = (read >> 20, new >> 10);
        let found = format!("{read} MiB changed and were read, {new} KiB are new.");
        Ok((format!("{read} MiB read and {new} KiB new"), found))
    }

    fn forget(&self) -> Result<((), String)> {
        self.json(&["forget", "--keep-last", "1", "--yes"])?;
        let pruned = self.json(&["prune", "--wasted", "0%", "--yes"])?;
        let given_back: u64 = each(&pruned, "sources", "given_back_bytes")?.iter().sum();
        let verified = self.json(&["verify", "--data"])?;
        let findings = verified["findings"].as_array().map(Vec::len);
        ensure!(findings == Some(0), "{verified}");
        let mib = given_back >> 20;
        Ok((
            (),
            format!("{mib} MiB given back; what is left is verified."),
        ))
    }

    fn restore(&self, scratch: &Scratch, images: &[Image]) -> Result<(&'static str, String)> {
        for image in images {
            let restored = scratch.path().join(format!("{}-restored.raw", image.name));
            let name = format!("{}@latest", image.name);
            self.command(&["restore", &name]).arg(&restored).run()?;
            let uri = self.product.default_address().uri(&image.name);
            compare(&restored, &uri)?;
            std::fs::remove_file(&restored).context("cannot remove a restored image")?;
        }
        let found = "Identical with the guests' volumes.".to_owned();
        Ok(("identical", found))
    }

    /// Deletes the snapshots that would be the bases of the next backups: the rest of the demo is about volumes only.
    fn delete_bases(&self) -> Result<()> {
        let list = self.product.command();
        let list = list.args(["--format", "json", "snapshot", "list"]).read()?;
        let list: Value = serde_json::from_str(&list).context("no list of snapshots")?;
        for snapshot in list["snapshots"].as_array().into_iter().flatten() {
            let name = snapshot["name"].as_str();
            let name = name.context("a snapshot has no name")?;
            let delete = self.product.command().args(["--quiet", "snapshot"]);
            delete.args(["delete", name, "--yes"]).run()?;
        }
        Ok(())
    }
}

fn number(reply: &Value, key: &str) -> Result<u64> {
    let number = reply.get(key).and_then(Value::as_u64);
    number.with_context(|| format!("the reply lacks {key}"))
}

fn each(reply: &Value, list: &str, key: &str) -> Result<Vec<u64>> {
    let list = reply.get(list).and_then(Value::as_array);
    let list = list.context("the reply lacks its list")?;
    list.iter().map(|one| number(one, key)).collect()
}
