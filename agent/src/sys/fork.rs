//! What a child does before it becomes another program.
#![expect(unsafe_code, reason = "the child is a copy of this process, in which only some calls work")]

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has a program be killed when the thread ends that starts it, with the process or before it.
pub(crate) fn end_with_this_thread(command: &mut Command) {
    let parent = getpid();
    let act = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent was killed before the line above.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: these are system calls alone, which allocate nothing and take no lock.
    unsafe { command.pre_exec(act) };
}
