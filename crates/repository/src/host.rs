//! The name, id and clock of this machine.

use std::time::{SystemTime, UNIX_EPOCH};

use onefold_format::backup::MachineId;

const MACHINE_CONTEXT: &str = "onefold 2026-11-28 id of a machine in the origin of a disk";

/// The file with the machine's id.
const MACHINE_ID: &str = "/etc/machine-id";

/// The name of this machine.
#[must_use]
pub fn host_name() -> String {
    let host = rustix::system::uname();
    host.nodename().to_string_lossy().into_owned()
}

/// The id of this machine: a hash of the id that its operating system got when it was installed, or of its name if it
/// has no such id.
#[must_use]
pub fn machine_id() -> MachineId {
    let id = std::fs::read(MACHINE_ID).unwrap_or_default();
    let id = match id.trim_ascii() {
        [] => host_name().into_bytes(),
        id => id.to_vec(),
    };
    let mut machine = [0; 16];
    let mut hasher = blake3::Hasher::new_derive_key(MACHINE_CONTEXT);
    hasher.update(&id).finalize_xof().fill(&mut machine);
    MachineId(machine)
}

/// The present moment by this host's clock, in seconds since the Unix epoch.
#[must_use]
pub fn now_unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
