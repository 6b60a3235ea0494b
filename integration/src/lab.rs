//! A private world for one test or the demo.
//!
//! Three processes, all the same program:
//! * the *supervisor* stays outside, makes a pid namespace and removes directory and cgroups at
//!   the end, whatever happened inside;
//! * *init* is process 1 of that namespace: it makes private mount, network and ipc namespaces,
//!   reaps orphans, and counts what is left when the body has ended;
//! * the *body* does the work.
//!
//! Invariant: the end of the supervisor ends init, and the end of init ends every process, mount
//! and link of the lab, for all of them live in its namespaces.
//!
//! On a machine with systemd a slice is in the place of the pid namespace: there the supervisor ends what init
//! has left, and one that is killed leaves processes.

mod init;
mod leaks;
mod logs;
mod slice;
mod supervisor;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use self::slice::Slice;
pub(crate) use self::supervisor::TIMES;
use crate::wait::{self, Look};
use crate::{cgroup, stored, systemd};

/// Names the process's part; absent outside.
const ROLE: &str = "BERTH_LAB_ROLE";
/// The part of the process outside.
const SUPERVISOR: &str = "supervisor";
/// Directory of the lab.
const ROOT: &str = "BERTH_LAB_ROOT";
/// The supervisor's pid, as seen outside; in a lab within a lab, after that of the outer one's.
const OWNER: &str = "BERTH_LAB_OWNER";

/// How long what was in a lab may take to end after it was killed.
const CLEAR_LIMIT: Duration = Duration::from_secs(20);

/// The command that runs this program again, with `args`, as the body of a new lab.
///
/// # Errors
/// The path of this program is not known.
pub fn command<'a>(args: impl IntoIterator<Item = &'a str>) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(args).env(ROLE, SUPERVISOR);
    Ok(command)
}

/// Whether this process is a part of a lab, so that `main` has to call [`run`].
#[must_use]
pub fn inside() -> bool {
    env::var_os(ROLE).is_some()
}

/// Whether this process is a lab's supervisor: what it does after [`run`] comes after the end of everything else.
#[must_use]
pub fn supervises() -> bool {
    env::var(ROLE).is_ok_and(|role| role == SUPERVISOR)
}

/// Removes what a supervisor that was killed could not: directory and cgroups of its lab. Nothing there is no error.
///
/// # Errors
/// Something is still in use.
pub fn clear_after(supervisor: &str) -> Result<()> {
    let owner = owner_of(supervisor);
    // What was in the lab may still be ending.
    wait::until("the lab to be empty", CLEAR_LIMIT, || {
        Ok(match supervisor::clear(&owner, &root_of(&owner)) {
            Ok(()) => Look::Ready(()),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    })
}

/// Plays this process's part; in the body that is `body`. A leak or a failure of the lab itself
/// is a failure too.
#[expect(clippy::print_stderr, reason = "the last word of a command line program")]
pub fn run(body: impl FnOnce() -> ExitCode) -> ExitCode {
    let done = match env::var(ROLE).as_deref() {
        Ok("init") => init::run(),
        Ok("body") if stored::is_asked_for() => return stored::body(),
        Ok("body") => return body(),
        _ => supervisor::run(),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("lab: {failure:#}");
        ExitCode::FAILURE
    })
}

/// What the lab gives to its body.
#[derive(Debug, Clone)]
pub struct World {
    root: PathBuf,
    owner: String,
}

impl World {
    /// The world around this process.
    ///
    /// # Errors
    /// This process is not the body of a lab.
    pub fn here() -> Result<Self> {
        let (Ok(root), Ok(owner)) = (env::var(ROOT), env::var(OWNER)) else {
            bail!("no lab around this process: call lab::run in main");
        };
        Ok(Self { root: root.into(), owner })
    }

    /// Its directory, on a tmpfs of its own.
    #[must_use]
    pub fn root(&self) -> &PathBuf {
        &self.root
    }

    /// Its cgroup, in every hierarchy, below which everything that tests start without the agent is to be placed.
    #[must_use]
    pub fn cgroup(&self) -> String {
        match self.slice() {
            Some(slice) => slice.tasks(),
            None => format!("/{}", cgroup_name(&self.owner)),
        }
    }

    /// The parent of all pods, as `cgroupRoot` names it.
    #[must_use]
    pub fn cgroup_root(&self) -> String {
        match self.slice() {
            Some(slice) => slice.cgroup_root(),
            None => self.cgroup(),
        }
    }

    /// Makes the cgroup in every hierarchy.
    ///
    /// # Errors
    /// A directory could not be made.
    pub fn make_cgroup(&self) -> Result<()> {
        for hierarchy in cgroup::hierarchies()? {
            let group = hierarchy.join(self.cgroup().trim_start_matches('/'));
            fs::create_dir_all(&group).with_context(|| format!("make cgroup {}", group.display()))?;
        }
        Ok(())
    }

    /// The cgroups of the world that a test made, children before parents.
    ///
    /// # Errors
    /// The hierarchies cannot be read.
    pub fn cgroups(&self) -> Result<Vec<PathBuf>> {
        match self.slice() {
            Some(slice) => slice.cgroups(),
            None => leaks::cgroups(&cgroup_name(&self.owner)),
        }
    }

    /// Removes these cgroups.
    ///
    /// # Errors
    /// One is in use.
    pub fn remove_cgroups(&self) -> Result<()> {
        if let Some(slice) = self.slice() {
            return slice.remove_cgroups();
        }
        leaks::remove(&self.cgroups()?)
    }

    /// The processes of the world.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn processes(&self) -> Result<Vec<u32>> {
        match self.slice() {
            Some(slice) => slice.processes(),
            None => leaks::numbered(),
        }
    }

    /// Units of systemd that a test made.
    ///
    /// # Errors
    /// systemd does not answer.
    pub fn units(&self) -> Result<Vec<systemd::Unit>> {
        self.slice().map_or(Ok(Vec::new()), |slice| slice.units())
    }

    fn slice(&self) -> Option<Slice> {
        slice_of(&self.owner)
    }
}

/// On a machine with systemd, the slice of a supervisor's lab.
fn slice_of(owner: &str) -> Option<Slice> {
    systemd::is_here().then(|| Slice::of(owner))
}

/// What a supervisor's lab is named after. Labs within different labs, whose supervisors may have the same pid, share
/// cgroups and the machine's directory of temporary files.
fn owner_of(supervisor: &str) -> String {
    match env::var(OWNER) {
        Ok(outer) => format!("{outer}_{supervisor}"),
        Err(_) => supervisor.to_owned(),
    }
}

/// The pid of an owner, as its own world sees it.
fn pid_of(owner: &str) -> &str {
    owner.rsplit('_').next().unwrap_or(owner)
}

fn root_of(owner: &str) -> PathBuf {
    PathBuf::from(format!("/tmp/berth-lab-{owner}"))
}

fn cgroup_name(owner: &str) -> String {
    format!("berth-test-{owner}")
}
