//! Renders the groups and hosts of a shared pool.

use std::io::{self, Write};

use onefold_api::{GroupListReply, HostListReply};

use crate::output::Render;

impl Render for GroupListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let hosts = self.groups.iter().map(|group| group.host.len());
        let width = hosts.max().unwrap_or(0).max(4);
        writeln!(
            out,
            "{:>6}  {:width$}  {:9}  VOLUMES",
            "GROUP", "HOST", "HERE"
        )?;
        for group in &self.groups {
            let here = if group.is_open_here { "open here" } else { "-" };
            let volumes = words(&group.volumes);
            writeln!(
                out,
                "{:>6}  {:width$}  {here:9}  {volumes}",
                group.number, group.host
            )?;
        }
        Ok(())
    }
}

impl Render for HostListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.hosts.iter().map(|host| host.name.len());
        let width = names.max().unwrap_or(0).max(4);
        writeln!(out, "{:width$}  {:>6}  GROUPS", "HOST", "SHARDS")?;
        for host in &self.hosts {
            let shards = host
                .shards
                .map_or_else(|| "-".to_owned(), |n| n.to_string());
            let groups: Vec<String> = host.groups.iter().map(u64::to_string).collect();
            writeln!(out, "{:width$}  {shards:>6}  {}", host.name, words(&groups))?;
        }
        Ok(())
    }
}

/// A list of names, or a dash for none.
fn words(names: &[String]) -> String {
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(", ")
    }
}
