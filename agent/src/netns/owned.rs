//! User namespaces of pods, and network namespaces that are owned by one: only its owner may mount `/sys` for it and set its sysctls.
//!
//! The kernel makes a user namespace for a process alone, and for one that has threads not at all. So the program is started anew, makes
//! both, and says back what it is told until nobody tells it anything any more.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
};

use berth_core::users::HostIds;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
};

use super::bind;

/// First argument of the program.
const ARGUMENT: &str = "hold_namespaces";

/// This program, as it was started: also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// How long it has for its namespaces, milliseconds: the kernel makes them in one.
const ANSWERS_WITHIN: u16 = 30_000;

/// Whether the program was started for its namespaces.
#[must_use]
pub fn is_asked(args: impl IntoIterator<Item = OsString>) -> bool {
    args.into_iter().nth(1).is_some_and(|argument| argument == ARGUMENT)
}

/// Makes the namespaces, and keeps them for as long as somebody speaks. A failure is told by its number.
#[must_use]
pub fn hold() -> ExitCode {
    if let Err(errno) = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET) {
        return ExitCode::from(u8::try_from(errno as i32).unwrap_or(u8::MAX));
    }
    // Who spoke sees the end of it, and says what it means.
    drop(echo());
    ExitCode::SUCCESS
}

fn echo() -> io::Result<()> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    let mut byte = [0];
    while stdin.read(&mut byte)? == 1 {
        stdout.write_all(&byte)?;
        stdout.flush()?;
    }
    Ok(())
}

/// Makes a network namespace whose owner is a new user namespace of these ids, and binds it.
pub(super) fn make(path: &Path, ids: HostIds) -> io::Result<()> {
    make_by(program(), path, ids)
}

/// Makes a user namespace of these ids that nobody is in: for mounts that show owners as it maps them.
///
/// # Errors
/// The kernel makes none.
pub fn user_namespace(ids: HostIds) -> io::Result<OwnedFd> {
    with_holder(program(), ids, |pid| Ok(fs::File::open(format!("/proc/{pid}/ns/user"))?.into()))
}

fn program() -> Command {
    let mut holder = Command::new(PROGRAM);
    holder.arg(ARGUMENT);
    holder
}

fn make_by(holder: Command, path: &Path, ids: HostIds) -> io::Result<()> {
    with_holder(holder, ids, |pid| bind(&format!("/proc/{pid}/ns/net"), path))
}

/// Takes something of the holder of namespaces while it lives.
fn with_holder<T>(
    mut holder: Command,
    ids: HostIds,
    take: impl FnOnce(u32) -> io::Result<T>,
) -> io::Result<T> {
    let mut holder = holder.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let made = map(&mut holder, ids).and_then(|()| take(holder.id()));
    if made.is_err() {
        // One that has ended cannot be killed, nor need it be.
        drop(holder.kill());
    }
    drop(holder.stdin.take());
    let ended = holder.wait()?;
    made.map_err(|error| match ended.code() {
        Some(errno) if errno != 0 => io::Error::from_raw_os_error(errno),
        Some(_) | None => error,
    })
}

/// Waits for the namespaces, and gives them the ids.
fn map(holder: &mut Child, ids: HostIds) -> io::Result<()> {
    let pid = holder.id();
    let (Some(stdin), Some(stdout)) = (&mut holder.stdin, &mut holder.stdout) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    stdin.write_all(b"?")?;
    let mut ready = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
    if poll(&mut ready, PollTimeout::from(ANSWERS_WITHIN))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stdout.read_exact(&mut [0])?;
    let map = format!("0 {} {}", ids.first, ids.count);
    for file in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{file}"), &map)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::{
        netns::{is_namespace, remove},
        own_mounts::{tmpfs, with_own_mounts},
    };

    const IDS: HostIds = HostIds { first: 131_072, count: 65_536 };

    fn holder(args: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(args);
        command
    }

    /// Runs with a file to bind to.
    fn with_file(body: impl FnOnce(&Path) + Send) {
        with_own_mounts(|| {
            tmpfs(Path::new("/run"));
            fs::write("/run/ns", "").unwrap();
            body(Path::new("/run/ns"));
        });
    }

    #[test]
    fn a_namespace_outlives_its_holder_who_has_the_ids_of_the_pod() {
        with_file(|path| {
            let script = "cat; cat /proc/self/uid_map /proc/self/gid_map > /run/maps";
            make_by(holder(&["--user", "--net", "sh", "-c", script]), path, IDS).unwrap();
            assert!(is_namespace(path));
            assert_ne!(fs::metadata(path).unwrap().ino(), fs::metadata("/proc/self/ns/net").unwrap().ino());
            let maps = fs::read_to_string("/run/maps").unwrap();
            let maps: Vec<&str> = maps.split_whitespace().collect();
            assert_eq!(maps, ["0", "131072", "65536", "0", "131072", "65536"]);
            remove(path).unwrap();
            assert!(!path.exists());
        });
    }

    #[test]
    fn what_could_not_be_made_is_told_and_nothing_is_bound() {
        with_file(|path| {
            let of_the_node = make_by(holder(&["--net", "cat"]), path, IDS).unwrap_err();
            assert_eq!(of_the_node.kind(), io::ErrorKind::PermissionDenied, "its maps are written already");
            let ended = make_by(holder(&["--user", "--net", "sh", "-c", "exit 28"]), path, IDS).unwrap_err();
            assert_eq!(ended.raw_os_error(), Some(28), "{ended}");
            make_by(Command::new("/nowhere"), path, IDS).expect_err("no program");
            assert!(!is_namespace(path));
        });
    }

    #[test]
    fn it_is_asked_for_by_its_first_argument() {
        let args = |args: &[&str]| args.iter().map(OsString::from).collect::<Vec<_>>();
        assert!(is_asked(args(&["berth", ARGUMENT])));
        assert!(!is_asked(args(&["berth", "run", ARGUMENT])));
        assert!(!is_asked(args(&["berth"])));
    }
}
