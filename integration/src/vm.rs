//! Virtual machines, for tests of what the development machines do not have: cgroup v2 alone, and systemd.
//!
//! Four processes, all the same program:
//! * the *caller* asks for a [`Job`];
//! * the *supervisor* makes pid and mount namespaces for it;
//! * the *world* is process 1 in them: it lays out what the guest may see, starts the machine and waits for it;
//! * the *guest* is started inside the machine, runs the job's command and leaves its exit code.
//!
//! Invariant: the end of any of the first three ends the machine, and nothing of it stays: its root file system is a
//! copy on write in memory, its mounts and processes are those of the namespaces.

mod backend;
mod disk;
mod feature;
mod guest;
mod job;
mod processor;
mod qemu;
mod supervisor;
mod uml;
mod world;

use std::process::ExitCode;
use std::{env, fmt};

use anyhow::{Result, bail};

pub use backend::Backend;
pub use disk::Disk;
pub use feature::{Feature, is_guest, lacks};
pub use guest::logs;
pub use job::{Init, Job, Stdio};
pub use supervisor::run;

/// Names the process's part; absent in the caller.
const PART: &str = "BERTH_VM_PART";
/// This program, also after cargo has put another one in its place.
const THIS: &str = "/proc/self/exe";

/// A part that this program plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Makes namespaces and starts the world in them.
    Supervisor,
    /// Makes the tree of the guest, in namespaces.
    Debootstrap,
    /// Runs one machine, in namespaces.
    World,
    /// Process 1 of a guest without systemd.
    GuestInit,
    /// The job's unit of a guest with systemd.
    GuestUnit,
}

impl Part {
    const ALL: [Self; 5] =
        [Self::Supervisor, Self::Debootstrap, Self::World, Self::GuestInit, Self::GuestUnit];

    const fn name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Debootstrap => "debootstrap",
            Self::World => "world",
            Self::GuestInit => "guest-init",
            Self::GuestUnit => "guest-unit",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Whether this process is a part of a machine, so that `main` has to call [`play`].
#[must_use]
pub fn inside() -> bool {
    env::var_os(PART).is_some()
}

/// Plays this process's part.
#[expect(clippy::print_stderr, reason = "the last word of a command line program")]
#[must_use]
pub fn play() -> ExitCode {
    part().and_then(play_part).unwrap_or_else(|failure| {
        eprintln!("vm: {failure:#}");
        ExitCode::FAILURE
    })
}

fn play_part(part: Part) -> Result<ExitCode> {
    match part {
        Part::Supervisor => supervisor::supervise(),
        Part::Debootstrap => disk::in_namespaces(),
        Part::World => world::run(),
        Part::GuestInit => guest::init(),
        Part::GuestUnit => guest::unit(),
    }
}

fn part() -> Result<Part> {
    let name = env::var(PART)?;
    match Part::ALL.into_iter().find(|part| part.name() == name) {
        Some(part) => Ok(part),
        None => bail!("{PART} is {name}, which is no part"),
    }
}
