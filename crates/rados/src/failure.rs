//! librados' error numbers as [`io::Error`]s.
//!
//! They stay errors of the operating system, with the number for callers. The caller adds the operation that failed.

use std::ffi::{CString, c_int};
use std::io;

/// Turns a negative number into an error.
pub(crate) fn check(result: c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        // The least number has no positive counterpart.
        _ => Err(io::Error::from_raw_os_error(result.saturating_neg())),
    }
}

/// Whether another client has blocklisted this one. No operation that it submits takes effect any more, and it must not
/// reconnect and continue.
pub fn is_fenced(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESHUTDOWN)
}

/// Whether the operation changed nothing because one of its conditions did not hold: a version, a value, or a row.
pub fn is_condition_failed(error: &io::Error) -> bool {
    let numbers = [libc::ECANCELED, libc::ERANGE, libc::EOVERFLOW];
    error
        .raw_os_error()
        .is_some_and(|number| numbers.contains(&number))
}

/// A name as librados takes it: ended by a zero byte.
pub(crate) fn c_string(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn numbers_have_the_kinds_that_callers_look_for() {
        let kinds = [
            (libc::ENOENT, ErrorKind::NotFound),
            (libc::ENOSPC, ErrorKind::StorageFull),
            (libc::EDQUOT, ErrorKind::QuotaExceeded),
            (libc::ETIMEDOUT, ErrorKind::TimedOut),
            (libc::EPERM, ErrorKind::PermissionDenied),
            (libc::EEXIST, ErrorKind::AlreadyExists),
            (libc::EBUSY, ErrorKind::ResourceBusy),
            (libc::EOPNOTSUPP, ErrorKind::Unsupported),
        ];
        for (number, kind) in kinds {
            let error = check(-number).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.raw_os_error(), Some(number));
        }
        assert!(is_fenced(&check(-108).unwrap_err()));
        assert!(is_condition_failed(&check(-libc::ERANGE).unwrap_err()));
        assert!(!is_condition_failed(&check(-libc::EIO).unwrap_err()));
        assert!(check(c_int::MIN).is_err());
        check(4096).unwrap();
    }

    #[test]
    fn a_name_with_a_zero_byte_is_refused() {
        assert_eq!(
            c_string("a\0b").unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}
