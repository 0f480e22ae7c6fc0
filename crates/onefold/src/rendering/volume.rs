//! Renders volumes and plans.

use std::io::{self, Write};

use onefold_api::{
    InlineReply, LocalityReply, PlanReply, UnshareReply, UsageReply, VolumeListReply, VolumeReply,
    size,
};
use onefold_store::{RefusedCounts, split_name};

use super::{short, utc, word};
use crate::output::Render;

impl Render for VolumeReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (stat, settings) = (&self.stat, &self.stat.settings);
        writeln!(out, "volume     {}", stat.name)?;
        writeln!(out, "size       {}", size::display(stat.size_bytes))?;
        let as_of = self.data.data_as_of.map(|at| format!(" as of {}", utc(at)));
        writeln!(
            out,
            "data       {}{}, {} {}",
            short(self.data),
            as_of.unwrap_or_default(),
            size::display(self.new_bytes),
            if split_name(&stat.name).1.is_some() {
                "of it written since the snapshot before it"
            } else {
                "of it in no snapshot of this volume"
            }
        )?;
        write_locality(self.locality, out)?;
        writeln!(
            out,
            "dedup      {}, domain {}, verify {}, {}, every {} s, {}hash cache {}",
            word(settings.dedup),
            stat.domain,
            if settings.verify { "on" } else { "off" },
            count_passes(settings.cold_passes),
            settings.interval_seconds,
            match settings.min_run {
                1 => String::new(),
                blocks => format!("runs of {blocks} blocks or more, "),
            },
            size::display(settings.hash_cache_bytes)
        )?;
        writeln!(
            out,
            "blocks     {} published, {} private, {} of these pending dedup",
            stat.shared_blocks, stat.private_blocks, stat.pending_dedup_blocks
        )?;
        write_inline(&self.inline, out)?;
        if settings.quota_bytes > 0 {
            let (mapped, quota) = (size::display(stat.mapped_bytes), settings.quota_bytes);
            writeln!(out, "quota      {mapped} of {} used", size::display(quota))?;
        }
        if settings.reservation_bytes > 0 {
            writeln!(
                out,
                "reserved   {}, of which {} are kept free",
                size::display(settings.reservation_bytes),
                size::display(stat.reserved_unused_bytes)
            )?;
        }
        write_usage(&self.usage, out)?;
        if let Some(uri) = &self.nbd_uri {
            writeln!(out, "nbd        {uri}")?;
        }
        for client in &self.clients {
            writeln!(out, "client     {client}")?;
        }
        Ok(())
    }
}

impl Render for VolumeListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self
            .volumes
            .iter()
            .map(|volume| volume.stat.name.len())
            .max()
            .unwrap_or(0)
            .max(4);
        if !self.volumes.is_empty() {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:7}  {:>10}  CLIENTS",
                "NAME", "SIZE", "DATA", "NEW", "FREEABLE", "DEDUP", "PENDING"
            )?;
        }
        for volume in &self.volumes {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:7}  {:>10}  {}",
                volume.stat.name,
                size::display(volume.stat.size_bytes),
                short(volume.data),
                size::display(volume.new_bytes),
                freed(&volume.usage),
                word(volume.stat.settings.dedup),
                size::display(volume.pending_dedup_bytes),
                volume.clients.len()
            )?;
        }
        Ok(())
    }
}

impl Render for PlanReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mark = if self.done { "done" } else { "plan" };
        self.plan
            .iter()
            .try_for_each(|sentence| writeln!(out, "{mark}: {sentence}"))
    }
}

impl Render for UnshareReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.plan.text(out)
    }
}

/// The space that a deletion would free, for a table.
pub(super) fn freed(usage: &UsageReply) -> String {
    let freed = usage.freed_if_deleted_bytes;
    freed.map_or_else(|| "-".to_owned(), size::display)
}

fn write_usage(usage: &UsageReply, out: &mut dyn Write) -> io::Result<()> {
    let (Some(exclusive), Some(shared), Some(as_of)) =
        (usage.exclusive_bytes, usage.shared_bytes, usage.usage_as_of)
    else {
        return Ok(());
    };
    let with_snapshots = usage.freed_with_snapshots_bytes;
    let more = with_snapshots.filter(|freed| Some(*freed) != usage.freed_if_deleted_bytes);
    let more = more.map(|freed| format!(", {} with its snapshots", size::display(freed)));
    writeln!(
        out,
        "exclusive  {}, {} with others, {} freed if deleted{}, as of {}",
        size::display(exclusive),
        size::display(shared),
        freed(usage),
        more.unwrap_or_default(),
        utc(as_of)
    )
}

fn write_locality(locality: LocalityReply, out: &mut dyn Write) -> io::Result<()> {
    let (Some(extents), Some(blocks)) = (locality.extents, locality.blocks_per_extent) else {
        return Ok(());
    };
    let as_of = locality
        .extents_as_of
        .map(|at| format!(", as of {}", utc(at)));
    writeln!(
        out,
        "extents    {extents}, of {blocks:.1} blocks on average{}",
        as_of.unwrap_or_default()
    )
}

fn write_inline(inline: &InlineReply, out: &mut dyn Write) -> io::Result<()> {
    if let Some(switch) = inline.last_switch {
        writeln!(
            out,
            "auto       {} for {} s, since {} % of the blocks were hits",
            if switch.to_inline {
                "in-line"
            } else {
                "off-line"
            },
            switch.seconds_ago,
            switch.hit_percent
        )?;
    }
    if let Some(held) = inline.held_back {
        writeln!(
            out,
            "auto       held back for {} s, since guests' requests take too long and no processor is idle; {} % \
             of the blocks were hits",
            held.since_seconds, held.hit_percent
        )?;
    }
    if inline.stat.scanned_blocks == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "in line    {}, {} not written; {}, {}",
        size::count(inline.stat.hit_blocks, "hit"),
        size::display(inline.not_written_bytes),
        match inline.miss_blocks {
            1 => "1 miss".to_owned(),
            misses => format!("{misses} misses"),
        },
        refused(&inline.stat.refused)
    )
}

/// Blocks that were found in the index but written anyway, by reason, the most frequent first.
fn refused(refused: &RefusedCounts) -> String {
    let mut reasons = refused.by_reason().to_vec();
    reasons.retain(|(_, blocks)| *blocks > 0);
    reasons.sort_by_key(|(_, blocks)| std::cmp::Reverse(*blocks));
    let words = reasons
        .iter()
        .map(|(reason, blocks)| format!("{blocks} {reason}"));
    let words: Vec<String> = words.collect();
    if words.is_empty() {
        "0 refused".to_owned()
    } else {
        format!("{} refused ({})", refused.sum(), words.join(", "))
    }
}

fn count_passes(passes: u8) -> String {
    match passes {
        1 => "1 cold pass".to_owned(),
        passes => format!("{passes} cold passes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reasons_of_refused_hits_are_named() {
        let mut counts: RefusedCounts = serde_json::from_str(
            r#"{"outdated_blocks": 3, "releasing_blocks": 0, "unsettled_blocks": 0, "bad_blocks": 0,
                "claims_full_blocks": 22901, "held_blocks": 0, "shrinking_blocks": 0,
                "reserved_blocks": 0, "different_blocks": 0, "short_run_blocks": 0}"#,
        )
        .unwrap();
        let words = "22904 refused (22901 claims-full, 3 outdated)";
        assert_eq!(refused(&counts), words);
        counts.claims_full_blocks = 0;
        counts.outdated_blocks = 0;
        assert_eq!(refused(&counts), "0 refused");
    }
}
