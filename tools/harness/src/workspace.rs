//! The paths of the workspace, and building the product.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::Cmd;

/// The product and the tools that run it. Cargo always builds them together, whichever is needed: the selection
/// determines the features of dependencies, so this way shared dependencies are compiled once.
const TOGETHER: [&str; 3] = ["onefold", "onefold-acceptance", "onefold-bench"];

/// The variable with the product's path, for a tool whose caller has just built it. Cargo would have nothing to build,
/// but would wait for every other build of that profile.
pub const BUILT_PRODUCT: &str = "ONEFOLD_BUILT_PRODUCT";

/// The name of the product's binary.
pub const PRODUCT: &str = "onefold";

/// The workspace's directories, as Cargo sees them.
pub struct Workspace {
    /// The repository.
    pub root: PathBuf,
    /// Cargo's target directory; `CARGO_TARGET_DIR` is respected.
    pub target: PathBuf,
    /// `cargo metadata` without dependencies.
    pub metadata: Value,
}

impl Workspace {
    /// Queries Cargo.
    ///
    /// # Errors
    /// The current directory is not inside the workspace.
    pub fn find() -> Result<Workspace> {
        let text = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .read()?;
        let metadata: Value =
            serde_json::from_str(&text).context("cannot read what cargo metadata printed")?;
        let directory = |key: &str| -> Result<PathBuf> {
            let path = metadata.get(key).and_then(Value::as_str);
            path.map(PathBuf::from)
                .with_context(|| format!("cargo metadata has no {key}"))
        };
        Ok(Workspace {
            root: directory("workspace_root")?,
            target: directory("target_directory")?,
            metadata,
        })
    }

    /// Cargo, started in the workspace.
    pub fn cargo(&self) -> Cmd {
        // The variables that `cargo run` sets for this process would make every build script that reads them run again.
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let ours = names.filter(|name| {
            let mut prefixes = ["CARGO_MANIFEST_", "CARGO_PKG_"].iter();
            prefixes.any(|prefix| name.starts_with(prefix))
        });
        ours.fold(cargo().dir(&self.root), |cargo, name| {
            cargo.env_remove(&name)
        })
    }

    /// Builds a binary of the product or of a tool that runs it, in release mode, and returns its path. With
    /// [`BUILT_PRODUCT`] the product is not built again.
    pub fn build_release(&self, binary: &str) -> Result<PathBuf> {
        if binary == PRODUCT
            && let Some(built) = std::env::var_os(BUILT_PRODUCT)
        {
            return Ok(PathBuf::from(built));
        }
        self.release_build(binary).arg("--quiet").show()?;
        Ok(self.released(binary))
    }

    /// The command that builds a binary of the product or of a tool that runs it, in release mode.
    pub fn release_build(&self, binary: &str) -> Cmd {
        let packages = TOGETHER.iter().flat_map(|package| ["--package", *package]);
        self.cargo()
            .args(["build", "--release", "--locked"])
            .args(packages)
            .args(["--bin", binary])
    }

    /// The path of a binary after its [`release_build`](Self::release_build).
    pub fn released(&self, binary: &str) -> PathBuf {
        self.target.join("release").join(binary)
    }

    /// Builds the product without one of its guards, for a check that must detect that, and returns its path. The build
    /// has a target directory of its own, so that it cannot be mistaken for the product. It is made once and runs only for
    /// seconds, so it is not optimised, and has neither debug information nor what a next build could start from.
    pub fn build_without(&self, guard: &str) -> Result<PathBuf> {
        let target = self.target.join(format!("without-{guard}"));
        self.cargo()
            .env("RUSTFLAGS", format!("--cfg onefold_without_{guard}"))
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .args(["build", "--locked", "--quiet", "--package", "onefold"])
            .arg("--target-dir")
            .arg(&target)
            .show()?;
        Ok(target.join("debug").join("onefold"))
    }

    /// Makes a directory for files that a second run can reuse.
    pub fn cache(&self, name: &str) -> Result<PathBuf> {
        let path = self.target.join("xtask").join(name);
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(path)
    }

    /// The parent of scratch directories: it is below the target directory, which is on a real disk with room, unlike
    /// `/tmp`.
    pub fn scratch_parent(&self) -> PathBuf {
        self.target.join("xtask")
    }

    /// Formats a path for display: relative to the repository if it is inside.
    pub fn shown<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }
}

/// The cargo that runs this process, or the one on the path.
fn cargo() -> Cmd {
    Cmd::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
