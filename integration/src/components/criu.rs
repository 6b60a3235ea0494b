//! criu, which a test needs that runs on this very kernel: the machine's own where it does, else Debian's newest.
//!
//! Older ones do not know newer kernels (3.17 fails at the vDSO of 6.18). The newest is unpacked beside the components
//! with the C library that it was built with, and started by that one's loader: nothing is installed.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{bin_dir, debian};

const NAME: &str = "criu";

/// Puts a criu that works here among the components.
pub(super) fn install(mut say: impl FnMut(&str)) -> Result<()> {
    let program = bin_dir().join(NAME);
    if works(&program) {
        return Ok(());
    }
    if program.symlink_metadata().is_ok() {
        fs::remove_file(&program)?;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::split_paths(&path).map(|dir| dir.join(NAME)).find(|own| works(own));
    if let Some(own) = own {
        say("criu of the system");
        return symlink(own, program).context("link criu");
    }
    say("unpacking criu with its libraries");
    debian::Unpacked { package: NAME, program: "usr/sbin/criu", arguments: |_| String::new() }
        .install(&program)?;
    ensure!(works(&program), "criu does not work on this kernel: see {} check", program.display());
    Ok(())
}

/// Whether the kernel has everything that this criu needs.
fn works(program: &Path) -> bool {
    let mut check = Command::new(program);
    check.arg("check").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    check.status().is_ok_and(|status| status.success())
}
