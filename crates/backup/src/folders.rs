//! Finds folders of this host that commands use.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The names of a kind of folder for services, for root and for users.
#[derive(Debug)]
pub struct Kind {
    /// The environment variable in which systemd names a service's folders.
    of_service: &'static str,
    /// The folder for root.
    of_root: &'static str,
    /// The environment variable in which a session names the user's folder, and the default below the user's
    /// home.
    of_user: (&'static str, &'static str),
}

/// Folders for data that must be kept.
pub const STATE: Kind = Kind {
    of_service: "STATE_DIRECTORY",
    of_root: "/var/lib/onefold",
    of_user: ("XDG_STATE_HOME", ".local/state"),
};

/// Folders for data that can be regenerated.
pub const CACHE: Kind = Kind {
    of_service: "CACHE_DIRECTORY",
    of_root: "/var/cache/onefold",
    of_user: ("XDG_CACHE_HOME", ".cache"),
};

impl Kind {
    /// The folder of the systemd service, or root's system folder, or the user's folder; `None` if the user
    /// has no home.
    pub fn usual(&self) -> Option<PathBuf> {
        let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
        let of = |name| env::var_os(name).map(PathBuf::from).and_then(absolute);
        if let Some(folders) = env::var_os(self.of_service) {
            // A service may have several folders; the first is used.
            let first = folders.as_bytes().split(|byte| *byte == b':').next();
            let first = first.map(|first| PathBuf::from(OsStr::from_bytes(first)));
            if let Some(first) = first.and_then(absolute) {
                return Some(first);
            }
        }
        if rustix::process::geteuid().is_root() {
            return Some(self.of_root.into());
        }
        let (named, below_home) = self.of_user;
        let of_user = of(named).or_else(|| Some(of("HOME")?.join(below_home)));
        Some(of_user?.join("onefold"))
    }
}

/// The folder for temporary files. They may be too large for /tmp, which is in memory on many hosts.
pub fn temporary(given: Option<&Path>) -> PathBuf {
    const FOR_LARGE_FILES: &str = "/var/tmp";
    let is_set = env::var_os("TMPDIR").is_some_and(|folder| !folder.is_empty());
    match given {
        Some(folder) => folder.to_owned(),
        None if !is_set && Path::new(FOR_LARGE_FILES).is_dir() => PathBuf::from(FOR_LARGE_FILES),
        None => env::temp_dir(),
    }
}
