//! How a client is connected, and why it cannot be.
//!
//! librados returns one number for several reasons, so after a failure the actual one is looked up.

use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure;
use crate::library::{Cluster, Library, LoadError};

/// The longest value of an option that we ask for: a list of paths or of addresses.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// The cluster and the user to connect as.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The cluster's `ceph.conf`; by default, librados looks for it at the usual places.
    pub conf_file: Option<PathBuf>,
    /// The user, without the word `client` before it; `admin` by default.
    pub user: Option<String>,
    /// Ceph options, which override the file's.
    pub settings: Vec<(String, String)>,
    /// How long the monitors may take to answer, in whole seconds, rounded up.
    pub timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            conf_file: None,
            user: None,
            settings: Vec::new(),
            timeout: Duration::from_secs(30),
        }
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The library is not installed.
    #[error("Ceph's library librados cannot be loaded: install the package librados2 ({reason})")]
    LibraryMissing {
        /// The loader's message.
        reason: String,
    },
    /// The library is of a release before 15.
    #[error(
        "Ceph's library librados is too old: release 15 or a later one is needed (it has no {function})"
    )]
    LibraryTooOld {
        /// A function that the library lacks.
        function: &'static str,
    },
    /// There is no `ceph.conf`.
    #[error("there is no Ceph configuration {}", place(.path.as_deref()))]
    ConfMissing {
        /// The file that the caller named.
        path: Option<PathBuf>,
    },
    /// A `ceph.conf` that cannot be read or parsed.
    #[error("the Ceph configuration {} cannot be read: {reason}", place(.path.as_deref()))]
    ConfUnreadable {
        /// The file that the caller named.
        path: Option<PathBuf>,
        /// The reason.
        reason: io::Error,
    },
    /// An option that this release of Ceph does not have, or a value that it does not accept.
    #[error("Ceph refuses the option {name} = {value}: {reason}")]
    Setting {
        /// The option.
        name: String,
        /// The option's value.
        value: String,
        /// The reason.
        reason: io::Error,
    },
    /// The configuration names no monitors.
    #[error("the Ceph configuration {} names no monitors: it needs mon_host", place(.path.as_deref()))]
    NoMonitors {
        /// The file that the caller named.
        path: Option<PathBuf>,
    },
    /// No file that may have the user's key can be read.
    #[error("no keyring of Ceph user client.{user} can be read; looked for {searched}: {reason}")]
    KeyringMissing {
        /// The user.
        user: String,
        /// The files, as configured.
        searched: String,
        /// The error of the first file.
        reason: io::Error,
    },
    /// The cluster refuses the user.
    #[error(
        "the Ceph cluster refuses user client.{user}: the keyring has no key, or a wrong one, or the user may not connect ({reason})"
    )]
    PermissionDenied {
        /// The user.
        user: String,
        /// librados' error.
        reason: io::Error,
    },
    /// The monitors do not answer.
    #[error("the Ceph monitors {monitors} did not answer within {seconds} s")]
    Unreachable {
        /// The monitors, as configured.
        monitors: String,
        /// How long the client waited for them.
        seconds: u64,
    },
    /// Any other error.
    #[error("cannot connect to the Ceph cluster: {0}")]
    Other(io::Error),
}

impl From<LoadError> for ConnectError {
    fn from(error: LoadError) -> ConnectError {
        match error {
            LoadError::Missing(reason) => ConnectError::LibraryMissing { reason },
            LoadError::Function(function) => ConnectError::LibraryTooOld { function },
        }
    }
}

fn place(path: Option<&Path>) -> String {
    path.map_or_else(
        || "at the usual places, such as /etc/ceph/ceph.conf".to_owned(),
        |path| path.display().to_string(),
    )
}

/// A client that is being connected.
pub(crate) struct Connecting<'a> {
    library: &'static Library,
    cluster: Cluster,
    options: &'a ConnectOptions,
    user: &'a str,
}

impl<'a> Connecting<'a> {
    pub(crate) fn new(
        library: &'static Library,
        options: &'a ConnectOptions,
    ) -> Result<Connecting<'a>, ConnectError> {
        let user = options.user.as_deref().unwrap_or("admin");
        let name = failure::c_string(user).map_err(ConnectError::Other)?;
        let mut cluster = std::ptr::null_mut();
        // SAFETY: it writes the handle; the name is copied.
        let created = unsafe { (library.rados_create)(&mut cluster, name.as_ptr()) };
        failure::check(created).map_err(ConnectError::Other)?;
        Ok(Connecting {
            library,
            cluster,
            options,
            user,
        })
    }

    /// Connects and returns the handle.
    pub(crate) fn connect(self) -> Result<Cluster, ConnectError> {
        self.configure()?;
        // SAFETY: the handle is one that was created and is not connected.
        let connected = unsafe { (self.library.rados_connect)(self.cluster) };
        failure::check(connected).map_err(|error| self.explain(error))?;
        let cluster = self.cluster;
        // Now it is the client's to shut down.
        std::mem::forget(self);
        Ok(cluster)
    }

    fn configure(&self) -> Result<(), ConnectError> {
        // librados would also print the errors that are returned here.
        self.set("log_to_stderr", "false")?;
        self.set("err_to_stderr", "false")?;
        // With librados' own limits, submitting an operation would wait. Callers have limits.
        self.set("objecter_inflight_ops", "0")?;
        self.set("objecter_inflight_op_bytes", "0")?;
        self.read_file()?;
        for (name, value) in &self.options.settings {
            self.set(name, value)?;
        }
        self.set("client_mount_timeout", &self.seconds().to_string())?;
        // An operation that has "timed out" can take effect later, so there is no timeout.
        self.set("rados_osd_op_timeout", "0")
    }

    fn read_file(&self) -> Result<(), ConnectError> {
        let path = &self.options.conf_file;
        let unreadable = |reason: io::Error| match reason.kind() {
            io::ErrorKind::NotFound => ConnectError::ConfMissing { path: path.clone() },
            _ => ConnectError::ConfUnreadable {
                path: path.clone(),
                reason,
            },
        };
        let name = match path {
            Some(path) => {
                // librados does not always report the exact reason.
                fs::read(path).map_err(unreadable)?;
                let invalid = || unreadable(io::ErrorKind::InvalidInput.into());
                let name = path.to_str().ok_or_else(invalid)?;
                Some(failure::c_string(name).map_err(unreadable)?)
            }
            None => None,
        };
        let name = name.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the handle is valid, and the name a text or null.
        let read = unsafe { (self.library.rados_conf_read_file)(self.cluster, name) };
        failure::check(read).map_err(unreadable)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), ConnectError> {
        let refused = |reason| ConnectError::Setting {
            name: name.to_owned(),
            value: value.to_owned(),
            reason,
        };
        let option = failure::c_string(name).map_err(refused)?;
        let text = failure::c_string(value).map_err(refused)?;
        // SAFETY: the handle is valid, and both texts are copied.
        let set =
            unsafe { (self.library.rados_conf_set)(self.cluster, option.as_ptr(), text.as_ptr()) };
        failure::check(set).map_err(refused)
    }

    /// An option's value; empty if it is not set.
    fn value(&self, name: &CStr) -> String {
        let mut value = vec![0_u8; VALUE_BYTES_MAX];
        let (buf, len) = (value.as_mut_ptr().cast::<c_char>(), value.len());
        // SAFETY: the handle is valid; it writes at most `len` bytes, a zero byte among them.
        let got = unsafe { (self.library.rados_conf_get)(self.cluster, name.as_ptr(), buf, len) };
        let text = CStr::from_bytes_until_nul(&value).unwrap_or_default();
        match got {
            0.. => text.to_string_lossy().into_owned(),
            _ => String::new(),
        }
    }

    /// Finds the reason for an error number.
    fn explain(&self, reason: io::Error) -> ConnectError {
        let user = self.user.to_owned();
        match reason.raw_os_error() {
            Some(libc::ETIMEDOUT) => ConnectError::Unreachable {
                monitors: self.value(c"mon_host"),
                seconds: self.seconds(),
            },
            Some(number) if is_of_authentication(number) => {
                if self.value(c"mon_host").is_empty() {
                    let path = self.options.conf_file.clone();
                    return ConnectError::NoMonitors { path };
                }
                match self.keyring_error() {
                    Some((searched, reason)) => ConnectError::KeyringMissing {
                        user,
                        searched,
                        reason,
                    },
                    None => ConnectError::PermissionDenied { user, reason },
                }
            }
            _ => ConnectError::Other(reason),
        }
    }

    /// The files that may have a key, and the error of the first one, unless one of them can be read.
    fn keyring_error(&self) -> Option<(String, io::Error)> {
        if [c"key", c"keyfile"]
            .iter()
            .any(|name| !self.value(name).is_empty())
        {
            return None;
        }
        let searched = self.value(c"keyring");
        let files = searched
            .split([',', ';', ' '])
            .filter(|path| !path.is_empty());
        let mut results = files.map(|path| fs::File::open(path).err());
        let first = results.next()?;
        if results.any(|result| result.is_none()) {
            None
        } else {
            first.map(|error| (searched.clone(), error))
        }
    }

    fn seconds(&self) -> u64 {
        let timeout = self.options.timeout;
        let is_partial = timeout.subsec_nanos() > 0;
        // Zero would wait for ever.
        (timeout.as_secs() + u64::from(is_partial)).max(1)
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and this is its only owner.
        unsafe { (self.library.rados_shutdown)(self.cluster) };
    }
}

/// Error numbers by which releases report that a key is missing, unknown or wrong.
fn is_of_authentication(number: c_int) -> bool {
    [
        libc::ENOENT,
        libc::EACCES,
        libc::EPERM,
        libc::EINVAL,
        libc::EOPNOTSUPP,
    ]
    .contains(&number)
}
