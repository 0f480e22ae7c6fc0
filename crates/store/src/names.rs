//! How volumes and snapshots are called.

/// What a snapshot is called where a volume can be named, too.
pub(crate) fn full_name(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}
