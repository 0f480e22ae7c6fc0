//! Which build this is.

use onefold_format::backup::{REPOSITORY_MAJOR_VERSION, REPOSITORY_MINOR_VERSION};
use onefold_store::Store;
use std::sync::LazyLock;

/// The release.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The commit, with `-modified` if the sources were others; `development` in debug builds, `unknown` where there was no Git.
pub(crate) const COMMIT: &str = env!("ONEFOLD_COMMIT");

/// The release with its commit, in the form of semantic versions.
pub(crate) const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("ONEFOLD_COMMIT"));

/// The newest format of pools, major and minor.
pub(crate) static POOL_FORMAT: LazyLock<String> = LazyLock::new(|| {
    let (major, minor) = Store::NEWEST_FORMAT;
    format!("{major}.{minor}")
});

/// The newest format of repositories, major and minor.
pub(crate) static REPOSITORY_FORMAT: LazyLock<String> =
    LazyLock::new(|| format!("{REPOSITORY_MAJOR_VERSION}.{REPOSITORY_MINOR_VERSION}"));

/// All of it, for people.
pub(crate) fn in_words() -> &'static str {
    static WORDS: LazyLock<String> = LazyLock::new(|| {
        let (pool, repository) = (&*POOL_FORMAT, &*REPOSITORY_FORMAT);
        format!(
            "{RELEASE} (commit {COMMIT}; writes pool format {pool}, repository format {repository})"
        )
    });
    &WORDS
}
