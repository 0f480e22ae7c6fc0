//! Requests to this host that every engine makes.

use crate::failure::explain;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use std::fs;
use std::io;
use std::time::SystemTime;

/// The kernel's id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Implements [`crate::Engine::boot_id`].
#[allow(clippy::big_endian_bytes, reason = "digits in the order of the text")]
pub(crate) fn boot_id() -> io::Result<[u8; 16]> {
    let doing = |cause| explain(format!("reading {BOOT_ID}"), cause);
    let text = fs::read_to_string(BOOT_ID).map_err(doing)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(id) if digits.len() == 32 => Ok(id.to_be_bytes()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{BOOT_ID} holds no id"),
        )),
    }
}

/// Implements [`crate::Engine::random_id`].
pub(crate) fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    // The kernel fills 16 bytes entirely or not at all.
    loop {
        match rustix::rand::getrandom(&mut id, GetRandomFlags::empty()) {
            Ok(_) => return Ok(id),
            Err(Errno::INTR) => {}
            Err(cause) => return Err(explain("asking the kernel for random bytes", cause)),
        }
    }
}

/// Implements [`crate::Engine::unix_seconds`].
pub(crate) fn unix_seconds() -> u64 {
    // A clock before 1970 was never set.
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs())
}
