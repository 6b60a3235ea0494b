//! rsyslog, which collects logs on many nodes: the machine's own, else Debian's newest.

use std::env;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result};

use super::{bin_dir, debian};

const NAME: &str = "rsyslogd";

/// Puts an rsyslogd among the components.
pub(super) fn install(mut say: impl FnMut(&str)) -> Result<()> {
    let program = bin_dir().join(NAME);
    if program.exists() {
        return Ok(());
    }
    crate::files::remove_if_there(&program)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = [std::path::PathBuf::from("/usr/sbin")];
    let mut dirs = env::split_paths(&path).chain(sbin);
    if let Some(own) = dirs.find_map(|dir| Some(dir.join(NAME)).filter(|own| own.is_file())) {
        say("rsyslog of the system");
        return symlink(own, program).context("link rsyslogd");
    }
    say("unpacking rsyslog with its libraries");
    let arguments = |libraries: &std::path::Path| format!("-M {}/rsyslog", libraries.display());
    debian::Unpacked { package: "rsyslog", program: "usr/sbin/rsyslogd", arguments }.install(&program)
}
