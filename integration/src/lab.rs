//! A private world for one test process or demo.
//!
//! Three processes, all the same program:
//! * the *supervisor* stays outside, makes a pid namespace and removes directory and cgroups at
//!   the end, whatever happened inside;
//! * *init* is process 1 of that namespace: it makes private mount and network namespaces, reaps
//!   orphans, and counts what is left when the body has ended;
//! * the *body* runs the tests.
//!
//! Invariant: the end of the supervisor ends init, and the end of init ends every process, mount
//! and link of the lab, for all of them live in its namespaces.

mod init;
mod leaks;
mod supervisor;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use anyhow::{Context, Result, bail};

/// Names the process's part; absent in the supervisor.
const ROLE: &str = "BERTH_LAB_ROLE";
/// Directory of the lab.
const ROOT: &str = "BERTH_LAB_ROOT";
/// The supervisor's pid, as seen outside.
const OWNER: &str = "BERTH_LAB_OWNER";

static CORNERS: AtomicU32 = AtomicU32::new(0);

/// Runs `body` in a lab and gives its exit code; a leak or a failure around it is a failure too.
#[expect(clippy::print_stderr, reason = "the last word of a command line program")]
pub fn run(body: impl FnOnce() -> ExitCode) -> ExitCode {
    let done = match env::var(ROLE).as_deref() {
        Err(_) => supervisor::run(),
        Ok("init") => init::run(),
        Ok(_) => return body(),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("lab: {failure:#}");
        ExitCode::FAILURE
    })
}

/// One test's part of the lab: a directory and a cgroup path of its own.
#[derive(Debug)]
pub struct Corner {
    dir: PathBuf,
    cgroup: String,
}

impl Corner {
    /// Makes the next corner.
    ///
    /// # Errors
    /// This process is not the body of a lab, or the directory cannot be made.
    pub fn new() -> Result<Self> {
        let (Ok(root), Ok(owner)) = (env::var(ROOT), env::var(OWNER)) else {
            bail!("no lab around this process: call lab::run in main");
        };
        let number = CORNERS.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(root).join(number.to_string());
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self { dir, cgroup: format!("/{}{number}", cgroup_prefix(&owner)) })
    }

    /// Its directory; short, so that sockets fit (108 bytes).
    #[must_use]
    pub fn dir(&self) -> &PathBuf {
        &self.dir
    }

    /// Its cgroup path, below which everything it starts is to be placed.
    #[must_use]
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }
}

impl Drop for Corner {
    fn drop(&mut self) {
        // What cannot be removed is counted as a leak when the body ends.
        drop(fs::remove_dir_all(&self.dir));
    }
}

fn cgroup_prefix(owner: &str) -> String {
    format!("berth-test-{owner}-")
}
