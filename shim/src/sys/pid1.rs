//! The process that is PID 1 of a pod with a shared pid namespace: it reaps, and dies with the shim.
#![expect(unsafe_code, reason = "clone into a new pid namespace has no safe form")]

use std::io;

use nix::libc;

/// Makes the pod's pid namespace, with a PID 1 that only reaps; returns its pid in the shim's own namespace.
///
/// The child is a copy of the shim that never returns from here and allocates nothing. Its memory is shared with the
/// shim for as long as neither writes to it.
pub(crate) fn spawn_pid1() -> io::Result<u32> {
    let flags = libc::c_long::from(libc::CLONE_NEWPID) | libc::c_long::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM and without a stack this is fork(2) into a new pid namespace. The shim has one thread,
    // so no lock can be held by another one in the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        0 => reap_forever(),
        pid => u32::try_from(pid).map_err(|_negative| io::Error::last_os_error()),
    }
}

fn reap_forever() -> ! {
    // SAFETY: prctl with these arguments touches only this process's own attributes.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: closes every descriptor of this process; none is used after this.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    // SAFETY: a plain call; the pod sees the root of nothing that could be unmounted under it.
    unsafe { libc::chdir(c"/".as_ptr()) };
    // SAFETY: as above, with a name for process listings.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"berth-pod".as_ptr()) };
    let mut children = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: initialises the set it is given.
    unsafe { libc::sigemptyset(children.as_mut_ptr()) };
    // SAFETY: the set was initialised on the line above; SIGCHLD is a signal.
    unsafe { libc::sigaddset(children.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: reads the initialised set. SIGCHLD stays blocked, so that none is missed between the two calls below.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, children.as_ptr(), std::ptr::null_mut()) };
    loop {
        // SAFETY: a null status is allowed.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
        // SAFETY: waits for a signal of the initialised set; a null info is allowed.
        unsafe { libc::sigwaitinfo(children.as_ptr(), std::ptr::null_mut()) };
    }
}
