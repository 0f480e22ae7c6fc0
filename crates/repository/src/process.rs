//! Identities of processes on this machine, by which others find out whether a holder of a lease still runs.

use std::io;

use onefold_format::backup::ProcessId;

/// The identity of this process, by which other processes find it.
pub(crate) fn this_process() -> io::Result<ProcessId> {
    let process = std::process::id();
    Ok(ProcessId {
        boot: boot_id()?,
        namespace: namespace()?,
        process: process.into(),
        started: started(process.into())?,
    })
}

/// Whether the process of a holder runs; `None` if that cannot be known from here.
pub(crate) fn is_running(holder: ProcessId) -> Option<bool> {
    let is_here = boot_id().ok()? == holder.boot && namespace().ok()? == holder.namespace;
    is_here.then(|| started(holder.process).is_ok_and(|started| started == holder.started))
}

fn boot_id() -> io::Result<[u8; 16]> {
    #[cfg(feature = "simulation")]
    if let Some(boot) = crate::simulation::boot() {
        return Ok(u128::from(boot).to_le_bytes());
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16);
    let id = id.map_err(|_| io::Error::other("the kernel's boot id is no number"))?;
    Ok(id.to_le_bytes())
}

fn namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// The start time of a process; fails if there is no such process, or it is a zombie.
fn started(process: u64) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The process name before it may contain any characters.
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut fields = fields.split(' ');
    if matches!(fields.next(), Some("Z" | "X")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let started = fields.nth(18).and_then(|field| field.parse().ok());
    started.ok_or_else(|| io::Error::other("the kernel says nothing of the process"))
}
