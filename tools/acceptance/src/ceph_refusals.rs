//! How the product refuses a cluster that it cannot use: with one sentence, and exit code 1.

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use onefold_harness::ceph::{Cluster, POOL};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::server::Product;

/// An erasure-coded pool that takes no overwrites, and its profile.
const ERASURE_CODED: &str = "onefold-erasure-coded";

/// A user without rights on the pool.
const STRANGER: &str = "onefold-stranger";

/// A cluster that the product must refuse.
struct Refusal {
    title: &'static str,
    conf: PathBuf,
    ceph_pool: &'static str,
    options: &'static [&'static str],
    /// A part of the sentence that is expected.
    says: &'static str,
}

/// Checks all refusals concurrently, because a monitor that does not answer takes half a minute.
pub(crate) fn check(product: &Product, cluster: &Cluster, scratch: &Scratch) -> Result<()> {
    make(cluster, scratch)?;
    let refusals = refusals(cluster, scratch)?;
    let checked = thread::scope(|scope| {
        let threads = refusals.iter().enumerate().map(|(number, refusal)| {
            let run = scratch.path().join(format!("refused-{number}"));
            scope.spawn(move || refusal.check(product, run))
        });
        let threads: Vec<_> = threads.collect();
        let ended = threads
            .into_iter()
            .map(|thread| (thread.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect::<Vec<_>>()
    });
    remove(cluster)?;
    for (refusal, checked) in refusals.iter().zip(checked) {
        let title = refusal.title;
        println!(
            "  {}",
            checked.with_context(|| format!("ceph-faults: {title}"))?
        );
    }
    Ok(())
}

fn make(cluster: &Cluster, scratch: &Scratch) -> Result<()> {
    let keyring = scratch.path().join("stranger.keyring");
    let client = format!("client.{STRANGER}");
    let key = ["auth", "get-or-create", &client, "mon", "allow r"];
    let key = cluster.ceph(&[&key[..], &["osd", "allow r pool=other"]].concat())?;
    std::fs::write(&keyring, key).context("cannot write a keyring")?;
    let profile = ["osd", "erasure-code-profile", "set", ERASURE_CODED];
    cluster.ceph(&[&profile[..], &["k=2", "m=1", "crush-failure-domain=osd"]].concat())?;
    let pool = ["osd", "pool", "create", ERASURE_CODED, "1", "1", "erasure"];
    cluster.ceph(&[&pool[..], &[ERASURE_CODED]].concat())?;
    Ok(())
}

fn remove(cluster: &Cluster) -> Result<()> {
    let pool = ["osd", "pool", "delete", ERASURE_CODED, ERASURE_CODED];
    cluster.ceph(&[&pool[..], &["--yes-i-really-really-mean-it"]].concat())?;
    cluster.ceph(&["osd", "erasure-code-profile", "rm", ERASURE_CODED])?;
    cluster.ceph(&["auth", "rm", &format!("client.{STRANGER}")])?;
    Ok(())
}

fn refusals(cluster: &Cluster, scratch: &Scratch) -> Result<Vec<Refusal>> {
    let good = std::fs::read_to_string(cluster.conf()).context("cannot read ceph.conf")?;
    let with = |name: &str, key: &str, value: &str| -> Result<PathBuf> {
        let prefix = format!("{key} = ");
        let lines = good.lines().map(|line| {
            if line.starts_with(&prefix) {
                format!("{prefix}{value}\n")
            } else {
                format!("{line}\n")
            }
        });
        let path = scratch.path().join(name);
        std::fs::write(&path, lines.collect::<String>()).context("cannot write a ceph.conf")?;
        Ok(path)
    };
    let stranger = scratch.path().join("stranger.keyring");
    let stranger = stranger.to_str().context("the directory is not UTF-8")?;
    let at = |ceph_pool| (cluster.conf(), ceph_pool);
    let refusal = |title, (conf, ceph_pool), says| Refusal {
        title,
        conf,
        ceph_pool,
        options: &[],
        says,
    };
    Ok(vec![
        refusal(
            "no keyring",
            (
                with("no-keyring.conf", "keyring", "/no/such/keyring")?,
                POOL,
            ),
            "no keyring of Ceph user client.admin can be read",
        ),
        refusal(
            "no such Ceph pool",
            at("no-such-pool"),
            "the cluster has no Ceph pool no-such-pool",
        ),
        Refusal {
            options: &["--ceph-user", STRANGER],
            ..refusal(
                "a user without capabilities",
                (with("stranger.conf", "keyring", stranger)?, POOL),
                "the Ceph user needs the capabilities",
            )
        },
        refusal(
            "no monitor",
            (
                with(
                    "no-monitor.conf",
                    "mon_host",
                    "[v2:127.0.0.1:1/0,v1:127.0.0.1:2/0]",
                )?,
                POOL,
            ),
            "did not answer within 30 s",
        ),
        refusal(
            "an erasure-coded pool",
            at(ERASURE_CODED),
            "is erasure-coded and takes no overwrites",
        ),
    ])
}

impl Refusal {
    /// Runs the product. Returns its sentence.
    fn check(&self, product: &Product, run: PathBuf) -> Result<String> {
        let start = Instant::now();
        let create = Cmd::new(product.binary()).args(["pool", "create"]);
        let create = create.arg(format!("ceph:{}/refused", self.ceph_pool));
        let create = create.arg("--run").arg(run).args(["--size", "1G"]);
        let output = create
            .arg("--ceph-conf")
            .arg(&self.conf)
            .args(self.options)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1) && output.stdout.is_empty(),
            "it ended with {}: {said}",
            output.status
        );
        ensure!(
            said.lines().count() == 1 && said.contains(self.says),
            "instead of one sentence with '{}' it says: {said}",
            self.says
        );
        let seconds = start.elapsed().as_secs_f64();
        Ok(format!(
            "{seconds:6.1} s  {}: {}",
            self.title,
            said.trim_end()
        ))
    }
}
