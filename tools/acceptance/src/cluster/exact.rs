//! The same images on several hosts, imported at the same time: the pool must hold each distinct block of a domain once,
//! each volume must be whole on another host, and nothing may be left once all volumes are deleted.

use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use onefold_harness::distinct;
use onefold_harness::images::{self, Image};
use onefold_harness::pools::Pools;
use onefold_harness::workspace::Workspace;

use super::hosts::{Group, Host, Hosts, PATIENCE};
use crate::clients::compare;

/// A volume: the number of its host, the number of its image, its domain, and when its duplicates are found.
struct Import {
    host: usize,
    image: usize,
    domain: &'static str,
    dedup: &'static str,
}

/// The domain of two of the volumes, which shares nothing with the others.
const OWN: &str = "own";

/// Each image is imported on two hosts at the same time.
const IMPORTS: [Import; 6] = [
    import(0, 0, "default", "offline"),
    import(1, 0, "default", "inline"),
    import(2, 1, "default", "offline"),
    import(0, 1, "default", "inline"),
    import(1, 2, OWN, "offline"),
    import(2, 2, OWN, "offline"),
];

const fn import(host: usize, image: usize, domain: &'static str, dedup: &'static str) -> Import {
    Import {
        host,
        image,
        domain,
        dedup,
    }
}

const HOSTS: usize = 3;

impl Import {
    fn volume(&self, images: &[Image]) -> String {
        format!("{}-{}", images[self.image].name, self.host)
    }
}

pub(super) fn check(workspace: &Workspace, pools: &Pools) -> Result<()> {
    let images = images::make_three(workspace)?;
    let domains = ["default", OWN].map(|domain| {
        let imports = IMPORTS.iter().filter(|import| import.domain == domain);
        let paths = imports.map(|import| &images[import.image].path);
        Ok((
            domain,
            distinct::count(&paths.collect::<Vec<_>>())?.distinct,
        ))
    });
    let domains = domains.into_iter().collect::<Result<Vec<_>>>()?;
    let expected = domains.iter().map(|(_, blocks)| blocks).sum::<u64>();
    let mut hosts = Hosts::start(workspace, pools, "16G", HOSTS, &PATIENCE)?;
    let step = |title: &str, hosts: &mut Hosts, step: &dyn Fn(&mut Hosts) -> Result<String>| {
        let start = Instant::now();
        let said = step(hosts).with_context(|| {
            let said = hosts.hosts.iter().map(Host::said).collect::<String>();
            format!("{title}, and the hosts said\n{said}")
        })?;
        let seconds = start.elapsed().as_secs_f64();
        println!("  {seconds:6.1} s  {title}{said}");
        anyhow::Ok(())
    };
    step("six imports on three hosts at once", &mut hosts, &|hosts| {
        import_all(hosts, &images)?;
        Ok(String::new())
    })?;
    step("each block is stored once", &mut hosts, &|hosts| {
        let blocks = hosts.settle()?;
        ensure!(
            blocks == expected,
            "the pool holds {blocks} blocks, but there are {expected} distinct ones"
        );
        hosts.check_pool()?;
        Ok(format!(": {blocks} blocks"))
    })?;
    step(
        "every volume is whole on another host",
        &mut hosts,
        &|hosts| {
            move_all(hosts)?;
            compare_all(hosts, &images)?;
            Ok(String::new())
        },
    )?;
    step("every domain has its blocks alone", &mut hosts, &|hosts| {
        let (domain, gone) = domains.last().context("there is no domain")?;
        delete(hosts, &images, |import| import.domain == *domain)?;
        let blocks = hosts.settle()?;
        ensure!(
            blocks == expected - gone,
            "without domain {domain} the pool holds {blocks} blocks, not {}",
            expected - gone
        );
        Ok(format!(": {blocks} blocks without domain {domain}"))
    })?;
    step("nothing is left", &mut hosts, &|hosts| {
        delete(hosts, &images, |import| import.domain != OWN)?;
        super::expect_empty(hosts)?;
        hosts.check_pool()?;
        Ok(String::new())
    })?;
    hosts.stop()
}

fn import_all(hosts: &Hosts, images: &[Image]) -> Result<()> {
    std::thread::scope(|scope| {
        let imports = IMPORTS.iter().map(|import| {
            let host = &hosts.hosts[import.host];
            let path = images[import.image].path.display().to_string();
            let volume = import.volume(images);
            scope.spawn(move || {
                let (domain, dedup) = (import.domain, import.dedup);
                let options = ["--domain", domain, "--dedup", dedup];
                let words = ["volume", "import", &volume, &path];
                host.run(&[&words[..], &options].concat())
            })
        });
        let imports: Vec<_> = imports.collect();
        let ended = imports.into_iter().map(|import| {
            let ended = import.join();
            ended.unwrap_or_else(|_| Err(anyhow!("an import panicked")))
        });
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Moves each group to the next host.
pub(super) fn move_all(hosts: &Hosts) -> Result<()> {
    for Group { number, host, .. } in hosts.groups()? {
        let from = hosts.hosts.iter().position(|other| other.name == host);
        let from = from.with_context(|| format!("there is no host {host}"))?;
        hosts.hosts[(from + 1) % hosts.hosts.len()].take(number, true)?;
    }
    Ok(())
}

fn compare_all(hosts: &Hosts, images: &[Image]) -> Result<()> {
    for import in &IMPORTS {
        let volume = import.volume(images);
        let host = hosts.host_of(&volume)?;
        ensure!(
            host.name != hosts.hosts[import.host].name,
            "{volume} has not moved"
        );
        compare(&images[import.image].path, &host.uri(&volume))?;
    }
    Ok(())
}

fn delete(hosts: &Hosts, images: &[Image], which: impl Fn(&Import) -> bool) -> Result<()> {
    for import in IMPORTS.iter().filter(|import| which(import)) {
        let volume = import.volume(images);
        let host = hosts.host_of(&volume)?;
        host.run(&["volume", "delete", &volume, "--yes"])?;
    }
    Ok(())
}
