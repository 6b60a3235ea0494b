//! Programs that a mount needs: mkfs, and the helpers of file systems in processes.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::MountError;
use crate::{oom_score, runtime, sys};

/// Time for one program, which its container's creation waits for. mkfs takes tens of milliseconds, whatever the size.
const TIME_MS_MAX: u16 = 20_000;
/// Bytes of what it says that are shown.
const OUTPUT_BYTES_MAX: u64 = 2048;

/// Runs a program to its end.
pub(super) fn run(command: &mut Command) -> Result<(), MountError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let fail = |source: io::Error| MountError::Tool { program: program.clone(), source };
    // A file, since whoever stays behind in the background would keep a pipe open.
    let mut output = File::from(
        memfd_create("output", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(|error| fail(error.into()))?,
    );
    oom_score::give(command, oom_score::OF_NODE);
    runtime::end_with_shim(command);
    let copy = || output.try_clone().map(Stdio::from).map_err(fail);
    let mut child = command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?).spawn().map_err(fail)?;
    let status = wait(&mut child).map_err(fail)?;
    // Whoever stays behind may go on talking, but not into this memory.
    fcntl(&output, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).map_err(|error| fail(error.into()))?;
    let how = match status {
        Some(status) if status.success() => return Ok(()),
        Some(status) => status.to_string(),
        None => format!("it was ended after {TIME_MS_MAX} ms"),
    };
    let mut text = Vec::new();
    output.rewind().and_then(|()| output.take(OUTPUT_BYTES_MAX).read_to_end(&mut text)).map_err(fail)?;
    Err(MountError::ToolFailed { program, how, output: String::from_utf8_lossy(&text).trim().to_owned() })
}

/// Waits for a child, and kills it when it takes too long.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let handle = sys::pidfd_of(child)?;
    let mut ends = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    let ended = loop {
        match poll(&mut ends, PollTimeout::from(TIME_MS_MAX)) {
            // Another child's end: the wait begins again, which each of them does once.
            Err(nix::Error::EINTR) => {}
            other => break other? > 0,
        }
    };
    if !ended {
        child.kill()?;
    }
    let status = child.wait()?;
    Ok(ended.then_some(status))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_program_that_fails_says_why() {
        run(&mut Command::new("true")).unwrap();
        let error = run(Command::new("sh").args(["-c", "echo no good >&2; exit 3"])).unwrap_err();
        let MountError::ToolFailed { how, output, .. } = error else { panic!("{error:?}") };
        assert_eq!((how.as_str(), output.as_str()), ("exit status: 3", "no good"));
        assert!(matches!(run(&mut Command::new("/nowhere/mkfs")), Err(MountError::Tool { .. })));
    }

    #[test]
    fn what_stays_in_the_background_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        run(Command::new("sh").args(["-c", "sleep 60 & echo $! >pid"]).current_dir(&dir)).unwrap();
        let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap());
        // One that has ended has no program, also where nobody waits for it.
        fs::read_link(format!("/proc/{pid}/exe")).expect("it is there still");
        kill(pid, Signal::SIGKILL).unwrap();
    }
}
