//! Shims as processes: what is left to look at when nothing can be asked.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::processes;

/// Name of the shim's program. The kernel cuts names of processes, so it is looked for in the link to the program.
const PROGRAM: &str = "containerd-shim-berth-v1";

/// What a shim notes in its bundle: the sockets that it listens on, each in a line.
const SOCKETS: &str = "shim.sockets";

/// Most of such a note that is read, in bytes: two paths, each shorter than an address of a socket may be.
const NOTE_BYTES_MAX: u64 = 4096;

/// Which shim is meant. Ids are computed, so another containerd may have a sandbox of the same one.
#[derive(Debug, Clone)]
pub(crate) struct Meant {
    /// The sandbox.
    pub(super) sandbox: String,
    /// The socket of our containerd, which tells its shims of it.
    pub(super) containerd: PathBuf,
    /// Where the shim listens for this agent.
    pub(super) socket: PathBuf,
}

impl Meant {
    /// Kills every process of the shim and tells how many there were. Blocks while processes tell of themselves.
    pub(crate) fn kill(&self) -> usize {
        self.processes().iter().filter(|process| pidfd_send_signal(process, Signal::KILL).is_ok()).count()
    }

    /// Whether the shim has a process. Blocks as well.
    pub(super) fn lives(&self) -> bool {
        !self.processes().is_empty()
    }

    /// Its processes. Each is held before it is looked at, so that a successor with its number is never meant.
    fn processes(&self) -> Vec<OwnedFd> {
        let mut shims: BTreeMap<u32, OwnedFd> =
            processes::all().filter_map(|pid| Some((pid, hold(pid)?))).collect();
        let told = processes::read(shims.keys().copied(), "cmdline");
        // A container's process works in a path of its own, which on the node may be on a file system that does not answer.
        let own = processes::link(std::process::id(), "ns/pid");
        let bundle = |pid: u32| {
            let is_of_node = own.is_some() && processes::link(pid, "ns/pid") == own;
            is_of_node.then(|| processes::link(pid, "cwd")).flatten()
        };
        let by_arguments = told.read.iter().filter(|(pid, command)| {
            let arguments = arguments(command);
            is_told(&arguments, "-id", &self.sandbox)
                && (self.is_told_of_ours(&arguments) || self.is_noted_in(bundle(**pid)))
        });
        // One that does not show its arguments works in the directory of its sandbox.
        let is_its_bundle =
            |bundle: &PathBuf| bundle.file_name().is_some_and(|name| name == self.sandbox.as_str());
        let by_directory =
            told.silent.iter().filter(|pid| self.is_noted_in(bundle(**pid).filter(is_its_bundle)));
        let meant: Vec<u32> = by_arguments.map(|(pid, _)| pid).chain(by_directory).copied().collect();
        meant.iter().filter_map(|pid| shims.remove(pid)).collect()
    }

    /// Whether the address that a shim was told is our containerd's. What it was told is not looked up: it may be anybody's
    /// words, and lead to a file system that does not answer.
    fn is_told_of_ours(&self, arguments: &[&str]) -> bool {
        let looked_up = self.containerd.canonicalize().ok();
        let names = [Some(&self.containerd), looked_up.as_ref()].into_iter().flatten();
        names.filter_map(|name| name.to_str()).any(|name| {
            arguments.windows(2).any(|pair| pair[0] == "-address" && usual(pair[1]) == usual(name))
        })
    }

    /// Whether the shim that works in a bundle has noted there that it listens for this agent.
    fn is_noted_in(&self, bundle: Option<PathBuf>) -> bool {
        let note = bundle.and_then(|bundle| read_note(&bundle).ok()).unwrap_or_default();
        note.lines().any(|line| Path::new(line) == self.socket)
    }
}

/// An address as it is mostly written: `/var/run` leads to `/run`.
fn usual(address: &str) -> &str {
    let address = address.strip_prefix("unix://").unwrap_or(address);
    address.strip_prefix("/var").filter(|rest| rest.starts_with("/run/")).unwrap_or(address)
}

/// Read at its path, not within the process: what is there is the node's, not a container's.
fn read_note(bundle: &Path) -> io::Result<String> {
    // A pipe would be waited for.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = File::options().read(true).custom_flags(flags).open(bundle.join(SOCKETS))?;
    let mut note = String::new();
    file.take(NOTE_BYTES_MAX).read_to_string(&mut note)?;
    Ok(note)
}

fn hold(pid: u32) -> Option<OwnedFd> {
    if !is_program(pid) {
        return None;
    }
    let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    is_program(pid).then_some(process)
}

fn is_program(pid: u32) -> bool {
    processes::link(pid, "exe")
        .is_some_and(|exe| exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PROGRAM)))
}

fn arguments(command: &[u8]) -> Vec<&str> {
    command.split(|byte| *byte == 0).filter_map(|it| str::from_utf8(it).ok()).collect()
}

fn is_told(arguments: &[&str], name: &str, value: &str) -> bool {
    arguments.windows(2).any(|pair| pair == [name, value])
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    const OURS: &str = "/run/containerd/containerd.sock";

    fn meant(sandbox: &str) -> Meant {
        let socket = "/run/berth/shim/abc.sock".into();
        Meant { sandbox: sandbox.to_owned(), containerd: OURS.into(), socket }
    }

    /// Starts a shell under a name, with arguments as a shim's, that lives until it is killed.
    fn start(program: &Path, id: &str, address: &str, bundle: &Path) -> Child {
        let arguments = ["-c", "read end", "shim", "-id", id, "-address", address];
        Command::new(program).args(arguments).current_dir(bundle).stdin(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn nobody_is_killed_but_the_shim_of_our_containerd() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(PROGRAM);
        // By another process: a program that this one has open for writing cannot be run.
        assert!(Command::new("cp").args(["/bin/sh".as_ref(), program.as_path()]).status().unwrap().success());
        let id = format!("berth-test-{}", std::process::id());
        let bundle = |name: &str, sockets: &str| {
            let bundle = dir.path().join(name).join(&id);
            fs::create_dir_all(&bundle).unwrap();
            fs::write(bundle.join(SOCKETS), sockets).unwrap();
            bundle
        };
        let (ours, theirs) =
            (bundle("ours", "/run/s/1\n/run/berth/shim/abc.sock"), bundle("theirs", "/run/s/2"));
        let mut shims = [
            start(&program, &id, OURS, &theirs),
            // Told in other words, but it listens for us.
            start(&program, &id, "/run/other-name.sock", &ours),
        ];
        let mut others = [
            start("/bin/sh".as_ref(), &id, OURS, &ours),
            start(&program, &id, "/run/second/containerd.sock", &theirs),
        ];
        let killed = meant(&id).kill();
        let others_live = others.each_mut().map(|other| other.try_wait().unwrap().is_none());
        others.iter_mut().chain(&mut shims).for_each(|child| child.kill().unwrap());
        let ends = shims.each_mut().map(|shim| shim.wait().unwrap());
        for other in &mut others {
            other.wait().unwrap();
        }
        assert_eq!(killed, 2, "the shims ended with {ends:?}");
        assert_eq!(others_live, [true, true], "no shim, and that of another containerd");
    }

    /// It could have the program's name, the arguments, and a directory that has a path of the node.
    #[test]
    fn nothing_is_read_where_a_container_works() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(PROGRAM);
        assert!(Command::new("cp").args(["/bin/sh".as_ref(), program.as_path()]).status().unwrap().success());
        let id = format!("berth-test-inside-{}", std::process::id());
        let bundle = dir.path().join(&id);
        fs::create_dir(&bundle).unwrap();
        fs::write(bundle.join(SOCKETS), "/run/berth/shim/abc.sock").unwrap();
        let mut inside = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child"])
            .arg(&program)
            .args(["-c", "echo begun; read end", "shim", "-id", &id, "-address", "/run/other-name.sock"])
            .current_dir(&bundle)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut begun = String::new();
        BufReader::new(inside.stdout.take().unwrap()).read_line(&mut begun).unwrap();
        let killed = meant(&id).kill();
        inside.kill().unwrap();
        inside.wait().unwrap();
        assert_eq!((begun.as_str(), killed), ("begun\n", 0));
    }

    #[test]
    fn only_the_shim_of_that_sandbox_is_meant() {
        let shim = ["shim", "-namespace", "k8s.io", "-id", "abc", "serve"];
        assert!(is_told(&shim, "-id", "abc"));
        assert!(!is_told(&shim, "-id", "ab"));
        assert!(!is_told(&["grep", "abc"], "-id", "abc"));
        assert!(!is_told(&[], "-id", "abc"));
        assert!(is_told(&arguments(b"shim\0-id\0abc\0serve\0"), "-id", "abc"));
    }

    #[test]
    fn an_address_is_ours_however_it_is_written() {
        for (told, is_ours) in [
            (OURS, true),
            ("/var/run/containerd/containerd.sock", true),
            ("unix:///run/containerd/containerd.sock", true),
            ("/run/second/containerd.sock", false),
            ("/run/containerd/containerd.sock.ttrpc", false),
            ("/variety/run/containerd/containerd.sock", false),
            ("", false),
        ] {
            assert_eq!(meant("abc").is_told_of_ours(&["shim", "-address", told]), is_ours, "{told}");
        }
        assert!(!meant("abc").is_told_of_ours(&["shim", "-id", "abc"]));

        // Ours is a link to the one that containerd knows.
        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("socket"), dir.path().join("link"));
        fs::write(&socket, "").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let linked = Meant { containerd: link, ..meant("abc") };
        assert!(linked.is_told_of_ours(&[
            "shim",
            "-address",
            socket.canonicalize().unwrap().to_str().unwrap()
        ]));
    }

    #[test]
    fn a_note_proves_who_is_listened_for() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join(SOCKETS);
        let is_noted = || meant("abc").is_noted_in(Some(dir.path().to_owned()));
        assert!(!is_noted() && !meant("abc").is_noted_in(None));
        for (text, expected) in [
            ("/run/s/1\n/run/berth/shim/abc.sock", true),
            ("/run/s/1\n/run/second/berth/shim/abc.sock", false),
            ("/run/berth/shim/abc.sock.exits", false),
            ("", false),
        ] {
            fs::write(&note, text).unwrap();
            assert_eq!(is_noted(), expected, "{text}");
        }
        fs::remove_file(&note).unwrap();
        assert!(Command::new("mkfifo").arg(&note).status().unwrap().success());
        assert!(!is_noted(), "nobody writes to a pipe");
    }
}
