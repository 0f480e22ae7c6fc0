//! The version of this build.

use onefold_format::backup::{REPOSITORY_MAJOR_VERSION, REPOSITORY_MINOR_VERSION};
use onefold_store::Store;
use std::sync::LazyLock;

/// The version of the release.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The commit, with `-modified` if the sources differ from it; `development` in debug builds, `unknown` if
/// there was no Git.
pub(crate) const COMMIT: &str = env!("ONEFOLD_COMMIT");

/// The release with its commit, as a semantic version.
pub(crate) const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("ONEFOLD_COMMIT"));

/// The newest pool format, as major and minor version.
pub(crate) static POOL_FORMAT: LazyLock<String> = LazyLock::new(|| {
    let (major, minor) = Store::NEWEST_FORMAT;
    format!("{major}.{minor}")
});

/// The newest repository format, as major and minor version.
pub(crate) static REPOSITORY_FORMAT: LazyLock<String> =
    LazyLock::new(|| format!("{REPOSITORY_MAJOR_VERSION}.{REPOSITORY_MINOR_VERSION}"));

/// Release, commit and formats, for people.
pub(crate) fn in_words() -> &'static str {
    static WORDS: LazyLock<String> = LazyLock::new(|| {
        let (pool, repository) = (&*POOL_FORMAT, &*REPOSITORY_FORMAT);
        format!(
            "{RELEASE} (commit {COMMIT}; writes pool format {pool}, repository format {repository})"
        )
    });
    &WORDS
}
