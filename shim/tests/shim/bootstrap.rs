//! How a shim comes to be: one per group, or a reason and nothing else.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use berth_proto::bootstrap::BootstrapParams;
use berth_proto::task::{ConnectRequest, CreateTaskRequest, CreateTaskResponse, task_service};
use berth_proto::ttrpc::{Client, Request};
use berth_proto::types::{RuntimeInfo, RuntimeRequest};
use berth_proto::{TASK_V3, runc};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;

use crate::harness::{
    Conn, Pod, Raw, Spec, Task, World, address_of, assert_refused, copy_program, finish, run, served_by,
    until,
};
use crate::{Case, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("a_bad_socket_directory_is_a_clear_error", FAKE, a_bad_socket_directory_is_a_clear_error),
    ("many_starts_of_a_group_make_one_shim", FAKE, many_starts_of_a_group_make_one_shim),
    (
        "a_container_whose_sandbox_has_gone_gets_no_shim",
        FAKE,
        a_container_whose_sandbox_has_gone_gets_no_shim,
    ),
    ("a_dead_shims_socket_is_replaced", FAKE, a_dead_shims_socket_is_replaced),
    ("a_shim_that_dies_at_once_is_an_error", FAKE, a_shim_that_dies_at_once_is_an_error),
    ("a_shim_that_cannot_be_started_is_an_error", FAKE, a_shim_that_cannot_be_started_is_an_error),
    ("an_unheard_start_leaves_nothing", FAKE, an_unheard_start_leaves_nothing),
    ("a_shim_that_nobody_comes_to_ends", FAKE, a_shim_that_nobody_comes_to_ends),
    ("events_find_containerd_without_the_environment", FAKE, events_find_containerd_without_the_environment),
    ("strangers_are_not_served_cve_2020_15257", FAKE, strangers_are_not_served),
    ("no_socket_is_abstract_cve_2020_15257", FAKE, no_socket_is_abstract),
    ("bundles_are_closed_to_others_cve_2021_41103", FAKE, bundles_are_closed_to_others),
    ("the_shim_outlives_containerd_when_memory_runs_out", FAKE, the_shim_is_killed_before_containerd),
    ("info_tells_what_the_runtime_can_do", FAKE, info_tells_what_the_runtime_can_do),
];

/// The argument that makes this program somebody else's client of a socket.
const STRANGER: &str = "connect-as-a-stranger";

fn params(world: &World, id: &str, socket_dir: &str) -> Vec<u8> {
    BootstrapParams {
        instance_id: id.to_owned(),
        namespace: world.name().to_owned(),
        socket_dir: Some(socket_dir.to_owned()),
        ..BootstrapParams::default()
    }
    .encode_to_vec()
}

fn a_bad_socket_directory_is_a_clear_error(world: &World) {
    let file = world.dir().join("file");
    fs::write(&file, "").unwrap();
    let below_a_file = file.join("s").display().to_string();
    let long = format!("{}/{}", world.dir().display(), "d".repeat(90));
    for (number, (directory, why)) in [
        ("run/s", "not absolute"),
        (long.as_str(), "longer than 103 bytes"),
        (below_a_file.as_str(), "failed to make socket directory"),
        ("/proc/s", "failed to make socket directory /proc/s"),
    ]
    .into_iter()
    .enumerate()
    {
        let raw = Raw::new(world, &format!("p{number}"));
        let output = raw.start(&params(world, &format!("p{number}"), directory));
        assert_refused(directory, &output);
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.contains(why) && words.contains(directory), "{words:?} does not say {why:?}");
        assert_eq!(raw.shim_pid(), None);
    }
}

fn many_starts_of_a_group_make_one_shim(world: &World) {
    let config = Spec::sh("true").annotation("io.kubernetes.cri.sandbox-id", "group").to_json();
    for round in 0..4 {
        let raws: Vec<Raw<'_>> =
            (0..12).map(|number| Raw::with_config(world, &format!("c{round}-{number}"), &config)).collect();
        let sockets: BTreeSet<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = raws.iter().map(|raw| scope.spawn(|| raw.start_well(&[]))).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let [socket] = sockets.iter().collect::<Vec<_>>()[..] else { panic!("several sockets: {sockets:?}") };
        let owners: Vec<&Raw<'_>> = raws.iter().filter(|raw| raw.shim_pid().is_some()).collect();
        let [owner] = owners[..] else { panic!("{} shims serve one group", owners.len()) };
        assert_eq!(owner.shim_pid(), Some(served_by(socket)));
        // The next round finds a dead shim's socket.
        murder(owner);
        assert!(socket.exists());
        if round == 3 {
            owner.delete();
        }
    }
}

/// A start that was asked for before its sandbox was removed comes late.
fn a_container_whose_sandbox_has_gone_gets_no_shim(world: &World) {
    let spec = || Spec::sh("true").annotation("io.kubernetes.cri.sandbox-id", "p1");
    let member = spec().annotation("io.kubernetes.cri.container-type", "container").to_json();
    let first = Raw::new(world, "p1");
    let socket = first.start_well(&[]);
    let joined = Raw::with_config(world, "c1", &member);
    assert_eq!((joined.start_well(&[]), joined.shim_pid()), (socket.clone(), None));
    murder(&first);
    for _served in ["by nobody", "and not even there"] {
        let late = Raw::with_config(world, "c2", &member);
        let output = late.start(&[]);
        assert_refused("c2", &output);
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.contains("no shim serves it"), "{words:?}");
        assert_eq!(late.shim_pid(), None);
        let _none = fs::remove_file(&socket);
    }
    // Whoever says only which group it is in begins one, as with the stock shim.
    let alone = Raw::with_config(world, "c3", &spec().to_json());
    assert_eq!((alone.start_well(&[]), alone.shim_pid()), (socket.clone(), Some(served_by(&socket))));
    murder(&alone);
    alone.delete();
}

fn murder(raw: &Raw<'_>) {
    let pid = Pid::from_raw(raw.shim_pid().unwrap().cast_signed());
    kill(pid, Signal::SIGKILL).unwrap();
    until("the end of the shim", || kill(pid, None).is_err().then_some(()));
}

fn a_dead_shims_socket_is_replaced(world: &World) {
    let raw = Raw::new(world, "p1");
    let socket = raw.start_well(&[]);
    murder(&raw);
    assert!(socket.exists(), "a killed shim cannot have removed it");
    assert_eq!(raw.start_well(&[]), socket);
    assert_eq!(raw.shim_pid(), Some(served_by(&socket)));
    raw.delete();
    assert!(!socket.exists());
}

/// The serving process finds a C library that is none, which was put there while `start` was reading.
fn a_shim_that_dies_at_once_is_an_error(world: &World) {
    let raw = Raw::new(world, "p1");
    let libraries = world.dir().join("lib");
    fs::create_dir(&libraries).unwrap();
    let directory = world.dir().join("s");
    let mut command = raw.command("start");
    let mut child = command.env("LD_LIBRARY_PATH", &libraries).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&params(world, "p1", &directory.display().to_string())).unwrap();
    // More than the pipe holds, so that `start` has begun to read: an unknown field of 128 KiB.
    stdin.write_all(&[&[0xa2, 0x1f, 0x80, 0x80, 0x08][..], &vec![0; 128 << 10]].concat()).unwrap();
    fs::write(libraries.join("libc.so.6"), "no library").unwrap();
    drop(stdin);
    let output = finish(child);
    assert_refused("a shim that dies", &output);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("start the shim process: it exited with 127"), "{words}");
    assert_nothing_is_left(&raw, &directory);
}

fn a_shim_that_cannot_be_started_is_an_error(world: &World) {
    let raw = Raw::new(world, "p1");
    let copy = world.dir().join("shim");
    copy_program(&world.subject().shim, &copy);
    let directory = world.dir().join("s");
    let mut command = raw.command("start");
    let mut moved = Command::new(&copy);
    moved.args(command.get_args()).current_dir(&raw.bundle);
    command = moved;
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&params(world, "p1", &directory.display().to_string())).unwrap();
    stdin.write_all(&[&[0xa2, 0x1f, 0x80, 0x80, 0x08][..], &vec![0; 128 << 10]].concat()).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    drop(stdin);
    let output = finish(child);
    assert_refused("a shim that cannot be started", &output);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("start the shim process: Permission denied"), "{words}");
    assert_nothing_is_left(&raw, &directory);
}

fn assert_nothing_is_left(raw: &Raw<'_>, socket_dir: &Path) {
    let sockets: Vec<_> = fs::read_dir(socket_dir).unwrap().flatten().map(|entry| entry.path()).collect();
    assert_eq!(sockets, Vec::<std::path::PathBuf>::new());
    let mut names: Vec<_> =
        fs::read_dir(&raw.bundle).unwrap().flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "rootfs"]);
}

/// containerd has gone before it could read the address.
fn an_unheard_start_leaves_nothing(world: &World) {
    let raw = Raw::new(world, "p1");
    let directory = world.dir().join("s");
    let mut child = raw.command("start").spawn().unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&params(world, "p1", &directory.display().to_string())).unwrap();
    drop(stdin);
    let status = until("the end of start", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    assert_nothing_is_left(&raw, &directory);
}

/// As of a containerd that was killed, or whose client was, after `start` and before it connected. Another shim may have its name by then.
fn a_shim_that_nobody_comes_to_ends(world: &World) {
    let raw = Raw::new(world, "p1");
    let directory = world.dir().join("s");
    let socket = raw.start_well(&params(world, "p1", &directory.display().to_string()));
    let shim = raw.shim_pid().unwrap();
    fs::remove_dir_all(&raw.bundle).unwrap();
    let next = Raw::new(world, "p1");
    fs::write(next.bundle.join("shim.pid"), "1").unwrap();
    let shim = Pid::from_raw(shim.cast_signed());
    until("the end of the shim", || kill(shim, None).is_err().then_some(()));
    assert!(!socket.exists());
    assert_eq!(next.shim_pid(), Some(1), "what the other shim has noted");
    fs::remove_file(next.bundle.join("shim.pid")).unwrap();
}

fn events_find_containerd_without_the_environment(world: &World) {
    let events = world.containerd.socket().display().to_string();
    let told = |id: &str| {
        BootstrapParams {
            instance_id: id.to_owned(),
            namespace: world.name().to_owned(),
            containerd_ttrpc_address: events.clone(),
            ..BootstrapParams::default()
        }
        .encode_to_vec()
    };
    let address = world.containerd.socket().with_extension("").display().to_string();
    // By the name of containerd's other socket, and by what containerd says.
    for (id, address, stdin) in [("c1", address.as_str(), Vec::new()), ("c2", "/nowhere", told("c2"))] {
        let raw = Raw::with_config(world, id, &Spec::sh("true").to_json());
        let mut command = raw.bare();
        command.env_remove("TTRPC_ADDRESS");
        command.args(["-namespace", world.name(), "-id", id, "-address", address, "start"]);
        let output = run(&mut command, &stdin);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut conn = Conn::open(&address_of(&output));
        let binary_name = world.program().display().to_string();
        let request = CreateTaskRequest {
            id: id.to_owned(),
            bundle: raw.bundle.display().to_string(),
            options: Some(berth_proto::pack(&runc::Options { binary_name, ..runc::Options::default() })),
            ..CreateTaskRequest::default()
        };
        let _: CreateTaskResponse = conn.call(TASK_V3, task_service::CREATE, &request).unwrap();
        world.containerd.event(&format!("create {id}"));
        raw.delete();
    }
}

/// A path that another user can reach, by a mistaken mode or a mount, still serves root alone.
fn strangers_are_not_served(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    for socket in [&pod.shim.socket(), &pod.agent_socket] {
        for path in socket.ancestors() {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            if path.starts_with(world.dir()) {
                fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o777)).unwrap();
            }
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg(STRANGER).arg(socket);
        let as_root = command.output().unwrap();
        assert_eq!(String::from_utf8(as_root.stdout).unwrap(), "answered", "the test's own client works");
        let as_stranger = command.uid(65534).gid(65534).output().unwrap();
        assert!(as_stranger.status.success(), "{}", String::from_utf8_lossy(&as_stranger.stderr));
        assert_eq!(String::from_utf8(as_stranger.stdout).unwrap(), "refused");
    }
    assert_eq!(task.pids().unwrap(), [task.pid], "and the shim goes on");
}

/// Whether this process was started to be somebody else's client.
pub(crate) fn is_stranger() -> bool {
    env::args().nth(1).is_some_and(|argument| argument == STRANGER)
}

/// Makes one call and says whether it was answered.
pub(crate) fn be_stranger() -> ExitCode {
    let path = env::args().nth(2).unwrap();
    let mut socket = UnixStream::connect(path).unwrap();
    let mut client = Client::default();
    let request = ConnectRequest { id: "x".to_owned() };
    client.call(&Request::of(TASK_V3, task_service::CONNECT, &request, std::time::Duration::ZERO)).unwrap();
    // The connection may be closed already.
    let _closed = socket.write_all(client.output().pending()).is_err();
    let mut byte = [0];
    let heard = socket.read(&mut byte).unwrap_or(0);
    let word: &[u8] = if heard == 0 { b"refused" } else { b"answered" };
    std::io::stdout().write_all(word).unwrap();
    ExitCode::SUCCESS
}

fn no_socket_is_abstract(world: &World) {
    let pod = Pod::start(world);
    let _task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    let descriptors = fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().flatten();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    let inodes: BTreeSet<String> = links
        .filter_map(|link| {
            let link = link.to_str()?.to_owned();
            Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    // A socket is in the table of the network namespace that it was made in: the node's or the pod's.
    let tables = ["self".to_owned(), pod.shim.pid.to_string()];
    let tables = tables.map(|process| fs::read_to_string(format!("/proc/{process}/net/unix")).unwrap());
    let mut names = BTreeSet::new();
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if words.get(6).is_some_and(|inode| inodes.contains(*inode)) {
            names.extend(words.get(7).map(|name| (*name).to_owned()));
        }
    }
    for socket in [&pod.shim.socket(), &pod.agent_socket] {
        assert!(names.contains(&socket.display().to_string()), "{} is not among {names:?}", socket.display());
    }
    assert!(names.iter().all(|name| name.starts_with('/')), "{names:?}");
}

fn bundles_are_closed_to_others(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 0"));
    task.wait();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let member = world.bundle("c1");
    for file in [
        pod.shim.bundle.join("shim.pid"),
        pod.shim.bundle.join("shim.sockets"),
        member.join("berth.json"),
        member.join("exit.json"),
        member.join("config.json"),
    ] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    assert_eq!(mode(&world.dir().join("s")), 0o711);
    assert_eq!(mode(Path::new("/run/berth-shim")), 0o700);
}

fn the_shim_is_killed_before_containerd(world: &World) {
    let score = |process: &str| -> i32 {
        fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    let raw = Raw::new(world, "p1");
    raw.start_well(&[]);
    let shim = raw.shim_pid().unwrap();
    assert_eq!(score(&shim.to_string()), (score("self") + 1).min(1000));
    assert_eq!(fs::read_dir(format!("/proc/{shim}/task")).unwrap().count(), 1, "one thread");
    let status = fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    assert!(status.contains("THP_enabled:\t0"), "{status}");
    raw.delete();
}

fn info_tells_what_the_runtime_can_do(world: &World) {
    let raw = Raw::new(world, "p1");
    let info = |runtime: &str| {
        let options = runc::Options { binary_name: runtime.to_owned(), ..runc::Options::default() };
        let request =
            RuntimeRequest { options: Some(berth_proto::pack(&options)), ..RuntimeRequest::default() };
        let output = run(raw.bare().arg("-info"), &request.encode_to_vec());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        RuntimeInfo::decode(output.stdout.as_slice()).unwrap()
    };
    let features = info(&world.program().display().to_string()).features.unwrap();
    let value: serde_json::Value = serde_json::from_slice(&features.value).unwrap();
    assert_eq!(value["ociVersionMax"], "1.1.0");
    assert_eq!(info("/nowhere/runtime").features, None, "a runtime that is missing has none");
    assert_eq!(info("/bin/false").features, None);
}
