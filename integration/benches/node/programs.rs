//! Berth as it is shipped: the agent of profile `release`, the shim of profile `shim`, side by side in one directory.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use berth_integration::components::Set;
use berth_integration::old::{self, Profiles};
use berth_integration::{binaries, components};

/// Names the directory of programs to everything in a lab; set from outside, it replaces the build.
pub(crate) const BIN_DIR: &str = "BERTH_BIN_DIR";

/// The shim's name, as containerd derives it from `io.containerd.berth.v1`.
pub(crate) const SHIM: &str = "containerd-shim-berth-v1";

const PROGRAMS: [(&str, &str, &str); 2] = [("berth", "berth", "release"), ("berth-shim", SHIM, "shim")];

/// Builds what is stale, peers and a control plane only where they are wanted, and gives the directory.
pub(crate) fn build(with_peers: bool) -> Result<PathBuf> {
    let set = if with_peers { Set::PinnedForTests } else { Set::Pinned };
    components::build(set, crate::report::say)?;
    if let Some(given) = env::var_os(BIN_DIR) {
        return Ok(given.into());
    }
    let profile_dir = binaries::dir()?;
    let target = profile_dir.parent().context("this program is in no target directory")?;
    let together = target.join("bench");
    fs::create_dir_all(&together).with_context(|| format!("make {}", together.display()))?;
    for (package, program, profile) in PROGRAMS {
        cargo_build(package, profile, target)?;
        let built = target.join(profile).join(program);
        let to = together.join(program);
        fs::copy(&built, &to).with_context(|| format!("copy {} to {}", built.display(), to.display()))?;
    }
    Ok(together)
}

/// The same of an earlier commit.
pub(crate) fn build_of(commit: &str) -> Result<PathBuf> {
    old::build(commit, Profiles::Shipped)?;
    old::dir(commit, Profiles::Shipped)
}

fn cargo_build(package: &str, profile: &str, target: &Path) -> Result<()> {
    let status = binaries::as_from_a_shell()
        .args(["build", "--quiet", "-p", package, "--bins", "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(components::workspace())
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "cargo build of {package} ended with {status}");
    Ok(())
}
