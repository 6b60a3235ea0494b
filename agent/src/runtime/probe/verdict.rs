//! What a trial that failed says of the runtime: that it does not work here, or nothing.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::libc::ENOEXEC;

use super::{OciCommand, ProbeError, STEP_WITHIN};
use crate::causes::with_causes;

/// What a directory must have room for beside a trial that is still in it, else the runtime may have failed for want of
/// room: files and bytes of each, more than any runtime writes for one container.
const ROOM: (usize, usize) = (16, 8 << 10);

/// Why a trial did not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrialError {
    /// There is no such program.
    #[error("it is not installed")]
    Absent,
    /// The trial could not be written.
    #[error("prepare the trial in {0}")]
    Prepare(PathBuf, #[source] io::Error),
    /// The program could not be started.
    #[error("run it")]
    Run(#[source] io::Error),
    /// It did not answer.
    #[error("it did not end within {} s", STEP_WITHIN.as_secs())]
    Timeout,
    /// It says that it failed.
    #[error("{step} failed: {output}")]
    Failed { step: &'static str, output: String },
    /// It says that it failed, where nobody can write much.
    #[error("{step} failed: {output}; and {dir} cannot be written")]
    NoRoom { step: &'static str, output: String, dir: PathBuf, source: io::Error },
}

impl TrialError {
    /// The same failure of a runtime, with what the directory of its trial says of it.
    pub(super) fn seen_in(self, dir: &Path) -> Self {
        match self {
            Self::Failed { step, output } => match find_room(dir) {
                Ok(()) => Self::Failed { step, output },
                Err(error) => Self::NoRoom { step, output, dir: dir.to_owned(), source: error },
            },
            other => other,
        }
    }

    /// Whether something else stood in the way, which says nothing of an installed runtime.
    fn says_nothing(&self) -> bool {
        match self {
            Self::Absent | Self::Failed { .. } => false,
            Self::Prepare(..) | Self::NoRoom { .. } | Self::Timeout => true,
            Self::Run(error) => !is_of_the_program(error),
        }
    }
}

/// Whether a program that was not started cannot be on this machine.
fn is_of_the_program(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
        || error.raw_os_error() == Some(ENOEXEC)
}

/// Tries to write so much below a directory that is removed afterwards.
fn find_room(dir: &Path) -> io::Result<()> {
    let room = dir.join("room");
    let (files, bytes) = ROOM;
    let block = vec![0; bytes];
    let fill = || {
        fs::create_dir_all(&room)?;
        (0..files).try_for_each(|number| fs::write(room.join(number.to_string()), &block))
    };
    let filled = fill();
    // What is left of it goes with the trial.
    drop(fs::remove_dir_all(&room));
    filled
}

/// The first whose trial has said nothing. Something else stands in the way then, a full disk or the bus of systemd perhaps,
/// and pods that run are better looked after by an agent that cannot start others for a while than by none.
pub(super) fn untried(failures: Vec<(OciCommand, TrialError)>) -> Result<OciCommand, ProbeError> {
    let why =
        |(command, error): &(OciCommand, TrialError)| format!("{}: {}", command.binary, with_causes(error));
    let reasons: Vec<String> = failures.iter().map(why).collect();
    let found = failures.into_iter().find(|(_, error)| error.says_nothing());
    found.map(|(command, _)| command).ok_or_else(|| ProbeError::NoneWorks(reasons.join("; ")))
}

#[cfg(test)]
mod tests {
    use nix::libc::{EACCES, EAGAIN, EMFILE, ENOENT, ENOMEM, ENOSPC};

    use super::*;

    fn os(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    fn failed() -> TrialError {
        TrialError::Failed { step: "create", output: "no".to_owned() }
    }

    fn named(name: &str) -> OciCommand {
        OciCommand { binary: name.to_owned(), args: Vec::new() }
    }

    #[test]
    fn a_runtime_is_given_up_for_what_it_does_itself() {
        let no_room = TrialError::NoRoom {
            step: "create",
            output: "no".to_owned(),
            dir: "/run".into(),
            source: os(ENOSPC),
        };
        for (error, is_taken) in [
            (TrialError::Absent, false),
            (failed(), false),
            (TrialError::Run(os(ENOENT)), false),
            (TrialError::Run(os(EACCES)), false),
            (TrialError::Run(os(ENOEXEC)), false),
            (TrialError::Run(os(EAGAIN)), true),
            (TrialError::Run(os(ENOMEM)), true),
            (TrialError::Run(os(EMFILE)), true),
            (TrialError::Prepare("/run".into(), os(ENOSPC)), true),
            (no_room, true),
            (TrialError::Timeout, true),
        ] {
            let told = format!("{error:?}");
            let chosen = untried(vec![(named("crun"), failed()), (named("runc"), error)]);
            assert_eq!(chosen.ok(), is_taken.then(|| named("runc")), "{told}");
        }
    }

    #[test]
    fn the_first_is_taken_of_two_that_said_nothing() {
        let both = vec![(named("crun"), TrialError::Timeout), (named("runc"), TrialError::Timeout)];
        assert_eq!(untried(both).unwrap(), named("crun"));
    }

    #[test]
    fn where_none_works_each_has_its_reason() {
        let error =
            untried(vec![(named("crun"), failed()), (named("runc"), TrialError::Absent)]).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("crun: create failed: no; runc: it is not installed"), "{said}");
    }

    #[test]
    fn a_failure_is_put_down_to_a_directory_that_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(failed().seen_in(dir.path()), TrialError::Failed { .. }));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(failed().seen_in(&file), TrialError::NoRoom { .. }));
        assert!(matches!(TrialError::Timeout.seen_in(&file), TrialError::Timeout));
    }
}
