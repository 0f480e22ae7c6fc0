//! Metrics and alerts with the real Prometheus.
//!
//! promtool checks the rules, their unit tests, and the metrics of a daemon under load. Then Prometheus scrapes three
//! daemons, each with a fault of its own, until every alert has fired; no alert may fire before its fault. The rules
//! are the shipped ones, with shorter waiting times.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use onefold_harness::cleanup::Scratch;
use onefold_harness::command::{Cmd, Running};
use onefold_harness::fio::{Fio, Section};
use onefold_harness::packages;
use onefold_harness::server::{Address, Daemon, Product};
use onefold_harness::workspace::Workspace;

/// How long Prometheus, which scrapes each second, may take to see an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often promtool checks the metrics of a daemon under load.
const CHECKS_UNDER_LOAD: u32 = 10;

/// Runs all checks.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(packages::MONITORING)?;
    let rules = workspace.root.join("packaging/prometheus");
    for arguments in [
        ["check", "rules", "onefold.rules.yml"],
        ["test", "rules", "onefold.rules.test.yml"],
    ] {
        Cmd::new("promtool").args(arguments).dir(&rules).run()?;
    }
    let scratch = Scratch::new(&workspace.scratch_parent(), "metrics")?;
    expose_under_load(workspace, scratch.path())?;
    fire_every_alert(workspace, scratch.path(), &rules)
}

/// A daemon that is monitored.
struct Monitored {
    product: Product,
    daemon: Option<Daemon>,
    /// The address of its metrics.
    address: String,
}

impl Monitored {
    fn new(workspace: &Workspace, parent: &Path, name: &str, size: &str) -> Result<Self> {
        let directory = parent.join(name);
        std::fs::create_dir(&directory).context("cannot make a directory")?;
        let product = Product::build(workspace, &directory)?;
        product.create_pool(size)?;
        let Address::Tcp(port) = Address::free_tcp_port()? else {
            bail!("a port was asked for");
        };
        Ok(Self {
            product,
            daemon: None,
            address: format!("127.0.0.1:{port}"),
        })
    }

    fn start(&mut self) -> Result<()> {
        self.daemon = Some(self.product.serve(&["--metrics", &self.address], &[])?);
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.daemon
            .take()
            .map_or(Ok(()), |daemon| daemon.stop().map(|_| ()))
    }

    fn create_volume(&self, options: &[&str]) -> Result<()> {
        let create = self.product.command().args(["volume", "create", "vm"]);
        create.args(options).run()
    }

    /// Runs qemu-io with these commands on the volume.
    fn io(&self, commands: &[&str]) -> Result<Cmd> {
        let uri = self.product.default_address().uri("vm");
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        Ok(Cmd::new("qemu-io")
            .args(["-f", "raw"])
            .args(commands)
            .arg(uri))
    }

    fn metrics(&self) -> Result<String> {
        let url = format!("http://{}/metrics", self.address);
        Cmd::new("curl").args(["-sSf", &url]).read()
    }
}

fn expose_under_load(workspace: &Workspace, scratch: &Path) -> Result<()> {
    let mut loaded = Monitored::new(workspace, scratch, "loaded", "4G")?;
    loaded.create_volume(&["--size", "1G", "--interval", "1", "--cold-passes", "1"])?;
    loaded.start()?;
    let load = Section::new("load", &loaded.product.default_address().uri("vm"))
        .set("rw", "randrw")
        .set("bs", "4k")
        .set("iodepth", 16)
        .set("size", "1G")
        .set("time_based", 1)
        .set("runtime", 8);
    let mut load = Fio::new(scratch, "load").job(load).spawn()?;
    let exposed = scratch.join("exposed");
    for _ in 0..CHECKS_UNDER_LOAD {
        std::fs::write(&exposed, loaded.metrics()?).context("cannot write a file")?;
        let check = format!("promtool check metrics < '{}'", exposed.display());
        Cmd::new("sh").args(["-c", &check]).run()?;
        std::thread::sleep(Duration::from_millis(500));
    }
    let done = load.wait_for_success()?;
    let answered: u64 = done.iter().map(|result| result.requests()).sum();
    let counted = sum_of(
        &loaded.metrics()?,
        "onefold_nbd_requests_total",
        &["read", "write"],
    );
    loaded.stop()?;
    println!(
        "promtool accepts what is exposed under load; fio made {answered} requests, counted {counted}"
    );
    if counted != answered {
        bail!("{answered} requests were made, {counted} were counted");
    }
    Ok(())
}

/// The sum of a counter's samples of some operations.
fn sum_of(metrics: &str, name: &str, ops: &[&str]) -> u64 {
    let samples = metrics.lines().filter(|line| {
        line.starts_with(name) && ops.iter().any(|op| line.contains(&format!("op=\"{op}\"")))
    });
    let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}

fn fire_every_alert(workspace: &Workspace, scratch: &Path, rules: &Path) -> Result<()> {
    let mut full = Monitored::new(workspace, scratch, "full", "32M")?;
    full.create_volume(&["--size", "64M", "--dedup", "off"])?;
    // The largest size of a file in ext4, which is ten times the free space of a test machine.
    let mut decayed = Monitored::new(workspace, scratch, "decayed", "15T")?;
    decayed.create_volume(&["--size", "64M"])?;
    let mut broken = Monitored::new(workspace, scratch, "broken", "1G")?;
    broken.create_volume(&["--size", "64M", "--interval", "1", "--cold-passes", "1"])?;
    full.start()?;
    broken.start()?;
    let targets = [&full.address, &decayed.address, &broken.address];
    let prometheus = Prometheus::start(scratch, rules, &targets.map(String::as_str))?;
    prometheus.wait_for(&decayed.address, "OnefoldDown", true)?;
    decayed.start()?;
    prometheus.wait_for(&decayed.address, "OnefoldDown", false)?;
    prometheus.wait_for(&decayed.address, "OnefoldHostFilling", true)?;
    for healthy in [&full, &broken] {
        let firing = prometheus.firing(&healthy.address)?;
        if !firing.is_empty() {
            bail!("without a fault {firing:?} fire");
        }
    }

    // More data than fits: the last writes wait until their client is gone.
    let writes: Vec<String> = (0..64).map(|m| format!("aio_write -P 3 {m}M 1M")).collect();
    let writes: Vec<&str> = writes.iter().map(String::as_str).collect();
    let mut writer = full
        .io(&writes)?
        .spawn_logged(&scratch.join("writer.log"))?;
    prometheus.wait_for(&full.address, "OnefoldPoolFilling", true)?;
    prometheus.wait_for(&full.address, "OnefoldWritesWait", true)?;
    writer.kill();
    prometheus.wait_for(&full.address, "OnefoldWritesWait", false)?;

    // The bytes of a shared block change behind the daemon.
    decayed.io(&["write -P 7 0 8k", "flush"])?.run()?;
    decayed.product.command().args(["pool", "dedup"]).run()?;
    decayed.stop()?;
    corrupt(&decayed.product.place().directory().join("data"))?;
    decayed.start()?;
    let scrub = decayed.product.command().args(["pool", "scrub"]).output()?;
    if scrub.status.code() != Some(3) {
        bail!("the scrub does not find the block that was changed: {scrub:?}");
    }
    prometheus.wait_for(&decayed.address, "OnefoldBadBlocks", true)?;

    // The finder has blocks to publish, and the index is gone.
    broken.stop()?;
    std::fs::remove_file(broken.product.place().directory().join("index"))
        .context("cannot remove the index")?;
    broken.start()?;
    broken.io(&["write -P 9 0 1M", "flush"])?.run()?;
    prometheus.wait_for(&broken.address, "OnefoldIndexDamaged", true)?;
    prometheus.wait_for(&broken.address, "OnefoldJobFailed", true)?;
    let pause = broken.product.command().args(["job", "pause", "collector"]);
    pause.run()?;
    prometheus.wait_for(&broken.address, "OnefoldJobPaused", true)?;
    println!("each of the 8 alerts has fired, and stops where its fault was mended");
    for daemon in [&mut full, &mut decayed, &mut broken] {
        daemon.stop()?;
    }
    Ok(())
}

/// Changes a byte of the first block that is written with sevens.
fn corrupt(data: &Path) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(data);
    let file = file.with_context(|| format!("cannot open {}", data.display()))?;
    let mut block = [0; 4096];
    for number in 0..4096 {
        let at = number * block.len() as u64;
        file.read_exact_at(&mut block, at)
            .context("cannot read the pool's data")?;
        if block == [7; 4096] {
            return file
                .write_all_at(b"decay", at + 100)
                .context("cannot change the pool's data");
        }
    }
    bail!(
        "the block that was written is nowhere in {}",
        data.display()
    )
}

/// A running Prometheus; killed when dropped.
struct Prometheus {
    running: Running,
    address: String,
    log: PathBuf,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.running.kill();
    }
}

impl Prometheus {
    fn start(scratch: &Path, rules: &Path, targets: &[&str]) -> Result<Self> {
        let directory = scratch.join("prometheus");
        std::fs::create_dir(&directory).context("cannot make a directory")?;
        let shipped = std::fs::read_to_string(rules.join("onefold.rules.yml"))
            .context("cannot read the rules")?;
        let at_once: Vec<&str> = shipped
            .lines()
            .filter(|line| !line.trim_start().starts_with("for: "))
            .collect();
        std::fs::write(directory.join("rules.yml"), at_once.join("\n") + "\n")?;
        let targets: Vec<String> = targets
            .iter()
            .map(|target| format!("\"{target}\""))
            .collect();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: onefold\n    static_configs: [{{targets: [{}]}}]\n",
            targets.join(", ")
        );
        std::fs::write(directory.join("prometheus.yml"), config)?;
        let Address::Tcp(port) = Address::free_tcp_port()? else {
            bail!("a port was asked for");
        };
        let (address, log) = (format!("127.0.0.1:{port}"), directory.join("log"));
        let running = Cmd::new("prometheus")
            .arg(format!(
                "--config.file={}",
                directory.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("db").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .spawn_logged(&log)?;
        Ok(Self {
            running,
            address,
            log,
        })
    }

    /// Alerts of a daemon that fire now, in alphabetical order.
    fn firing(&self, instance: &str) -> Result<Vec<String>> {
        let url = format!("http://{}/api/v1/alerts", self.address);
        let answer = Cmd::new("curl").args(["-sSf", &url]).read()?;
        let answer: Value = serde_json::from_str(&answer).context("Prometheus sends no JSON")?;
        let alerts = answer["data"]["alerts"]
            .as_array()
            .context("no list of alerts")?;
        let of_instance = alerts
            .iter()
            .filter(|alert| alert["labels"]["instance"] == instance && alert["state"] == "firing");
        let names = of_instance.filter_map(|alert| alert["labels"]["alertname"].as_str());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Waits until an alert of a daemon fires, or until it does not.
    fn wait_for(&self, instance: &str, alert: &str, fires: bool) -> Result<()> {
        let start = Instant::now();
        loop {
            // Prometheus does not answer while it starts.
            let firing = self.firing(instance);
            let is_so = firing
                .as_ref()
                .is_ok_and(|firing| firing.iter().any(|name| name == alert) == fires);
            if is_so {
                let word = if fires { "fires" } else { "has stopped" };
                println!(
                    "{alert} {word} after {:.0} s",
                    start.elapsed().as_secs_f64()
                );
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("{alert} of {instance}: wanted {fires}, firing are {firing:?}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sum_of;

    #[test]
    fn samples_of_the_wanted_operations_are_added() {
        let metrics = "# HELP n x\nn_total{op=\"read\"} 2\nn_total{op=\"write\"} 3\nn_total{op=\"flush\"} 5\n";
        assert_eq!(sum_of(metrics, "n_total", &["read", "write"]), 5);
    }
}
