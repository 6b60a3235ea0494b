//! Whose namespaces members are in: the pod's, their own or the node's.

use std::fs;
use std::path::{Path, PathBuf};

use berth_proto::process::Status;
use berth_proto::shim::NamespaceMode;
use berth_proto::task::{KillRequest, task_service};
use berth_proto::ttrpc::Code;

use crate::harness::{
    Bootstrap, Pod, SANDBOX_CONFIG, Shim, Spec, Task, World, create, make_netns, options, process, start,
    until,
};
use crate::{Case, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("members_get_what_their_entries_say", REAL, members_get_what_their_entries_say),
    ("a_pod_on_the_node_shares_the_nodes", REAL, a_pod_on_the_node_shares_the_nodes),
    ("shared_memory_goes_with_ipc", REAL, shared_memory_goes_with_ipc),
    ("shared_memory_has_the_size_that_was_asked", FAKE, shared_memory_has_the_size_that_was_asked),
    ("a_vanished_netns_is_a_clear_error", FAKE, a_vanished_netns_is_a_clear_error),
    ("signals_and_pids_stay_in_the_container", REAL, signals_and_pids_stay_in_the_container),
    ("an_init_takes_along_what_it_started", REAL, an_init_takes_along_what_it_started),
    ("running_out_of_memory_stays_in_the_container", REAL, running_out_of_memory_stays_in_the_container),
    ("pid_1_shows_nothing_of_the_node_cve_2019_5736", REAL, pid_1_shows_nothing_of_the_node),
    ("no_namespace_outlives_the_pod", REAL, no_namespace_outlives_the_pod),
    ("no_namespace_outlives_a_killed_shim", REAL, no_namespace_outlives_a_killed_shim),
];

/// Kinds by the names that specs and `/proc` have for them.
const KINDS: [(&str, &str); 4] = [("network", "net"), ("ipc", "ipc"), ("uts", "uts"), ("pid", "pid")];

pub(crate) fn of(pid: u32, file: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{file}")).unwrap()
}

fn node(file: &str) -> PathBuf {
    of(std::process::id(), file)
}

/// Two members that share everything, one that has everything of its own, and one without an entry.
fn members_get_what_their_entries_say(world: &World) {
    let pod = Pod::start_with(world, |options| options.pid = NamespaceMode::Pod.into());
    let all: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    let rest = |id: &str, spec: Spec| Task::start(&pod.shim, id, spec);
    let first = rest("c1", Spec::sh("sleep 1000").sharing(&all));
    let second = rest("c2", Spec::sh("sleep 1000").sharing(&all));
    let apart = rest("c3", Spec::sh("sleep 1000"));
    for (kind, file) in KINDS {
        let pods = of(pod.started.pid, file);
        assert_ne!(pods, node(file), "{kind} of the sandbox");
        assert_eq!(of(first.pid, file), pods, "{kind} of a member that shares");
        assert_eq!(of(second.pid, file), pods, "{kind} of another member that shares");
        let own = of(apart.pid, file);
        assert!(own != pods && own != node(file), "{kind} of a member that does not");
    }
    for (kind, file) in KINDS {
        let id = format!("without-{file}");
        // Neither runtime mounts a /proc that is not the container's own.
        let spec = Spec::sh("sleep 1000").without_namespace(kind);
        let task = rest(&id, spec);
        // The network is the sandbox's for all that do not ask for one of their own.
        let expected = if kind == "network" { of(pod.started.pid, file) } else { node(file) };
        assert_eq!(of(task.pid, file), expected, "{kind} of a member without an entry");
        let exec = task.exec("e1", &process(&["/bin/sleep", "1000"]));
        let pid = exec.begin().unwrap().pid;
        assert_eq!(of(pid, file), expected, "{kind} of its exec");
    }
    let exec = first.exec("e1", &process(&["/bin/sleep", "1000"]));
    let pid = exec.begin().unwrap().pid;
    for (kind, file) in KINDS {
        assert_eq!(of(pid, file), of(pod.started.pid, file), "{kind} of an exec in a member that shares");
    }
}

fn a_pod_on_the_node_shares_the_nodes(world: &World) {
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    let mut options = options(world, &world.dir().join("agent.sock"));
    for mode in [&mut options.ipc, &mut options.uts, &mut options.pid] {
        *mode = NamespaceMode::Node.into();
    }
    create(&shim, &options, Path::new("")).unwrap();
    assert_eq!(start(&shim).unwrap().pid, shim.pid);
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_ne!(name.trim(), "the-pod", "a host name is set in the pod's namespace only");
    let spec = KINDS.iter().fold(Spec::sh("sleep 1000"), |spec, (kind, _)| spec.without_namespace(kind));
    let task = Task::start(&shim, "c1", spec);
    let apart = Task::start(&shim, "c2", Spec::sh("sleep 1000"));
    for (kind, file) in KINDS {
        assert_eq!(of(shim.pid, file), node(file), "{kind} of the shim");
        assert_eq!(of(task.pid, file), node(file), "{kind} of a member");
        assert_ne!(of(apart.pid, file), node(file), "{kind} of a member with its own");
    }
}

fn shared_memory_goes_with_ipc(world: &World) {
    let pod = Pod::start(world);
    let writer = Spec::sh("echo hello > /dev/shm/word; exec sleep 1000").sharing(&["ipc"]);
    let _writer = Task::start(&pod.shim, "c1", writer);
    let wait = "until [ -s /dev/shm/word ]; do sleep 0.01; done; cat /dev/shm/word; df -k /dev/shm | tail -1; grep shm /proc/mounts";
    let reader = Task::start(&pod.shim, "c2", Spec::sh(wait).sharing(&["ipc"]));
    assert_eq!(reader.wait(), 0);
    let seen = reader.log.text("stdout");
    assert!(seen.starts_with("hello\n"), "{seen}");
    assert!(seen.contains("65536"), "64 MiB: {seen}");
    assert!(seen.contains("shm") && !seen.contains("noexec"), "as in a pod of containerd's CRI: {seen}");
    let apart = Task::start(&pod.shim, "c3", Spec::sh("ls -A /dev/shm"));
    assert_eq!((apart.wait(), apart.log.text("stdout").as_str()), (0, ""));
}

fn shared_memory_has_the_size_that_was_asked(world: &World) {
    let pod = Pod::start_with(world, |options| options.shm_size = 1 << 20);
    let shm = nix::sys::statvfs::statvfs(&pod.shim.bundle.join("shm")).unwrap();
    assert_eq!(shm.blocks() * shm.fragment_size(), 1 << 20);
    let shim = Shim::start(world, "small", SANDBOX_CONFIG, Bootstrap::Messages);
    let options =
        berth_proto::shim::SandboxOptions { shm_size: 17, ..options(world, &world.dir().join("small.sock")) };
    let error = create(&shim, &options, Path::new("")).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
}

fn a_vanished_netns_is_a_clear_error(world: &World) {
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    let path = world.dir().join("netns");
    create(&shim, &options(world, &world.dir().join("agent.sock")), &path).unwrap();
    for make in [|_: &Path| (), |path: &Path| fs::write(path, "").unwrap()] {
        make(&path);
        let error = start(&shim).unwrap_err();
        assert_eq!(error.code, Code::FailedPrecondition, "{error}");
        assert!(error.message.contains(&*path.to_string_lossy()) && error.message.contains("make it again"));
    }
    for file in ["net", "ipc", "uts"] {
        assert_eq!(of(shim.pid, file), node(file), "a start that fails changes nothing");
    }
    make_netns(&path);
    start(&shim).expect("the namespace is there now");
}

/// Everything shared, so that every process can be seen, and none may be touched but one's own.
fn shared(script: &str) -> Spec {
    Spec::sh(script).sharing(&["network", "ipc", "uts", "pid"])
}

fn pod_of_processes(world: &World) -> Pod<'_> {
    Pod::start_with(world, |options| options.pid = NamespaceMode::Pod.into())
}

fn signals_and_pids_stay_in_the_container(world: &World) {
    let pod = pod_of_processes(world);
    let first = Task::start(&pod.shim, "c1", shared("sleep 1001 & sleep 1002 & echo ready; wait"));
    let second = Task::start(&pod.shim, "c2", shared("sleep 1003 & echo ready; wait"));
    first.log.says("ready");
    second.log.says("ready");
    let exec = first.exec("e1", &process(&["/bin/sh", "-c", "sleep 1004 & wait"]));
    let exec_pid = exec.begin().unwrap().pid;
    let (ours, theirs) = (
        until("the exec's child", || Some(first.pids().unwrap()).filter(|pids| pids.len() == 5)),
        second.pids().unwrap(),
    );
    assert!(ours.contains(&first.pid) && ours.contains(&exec_pid), "{ours:?}");
    assert_eq!(theirs.len(), 2, "{theirs:?}");
    assert!(ours.iter().all(|pid| !theirs.contains(pid) && *pid != pod.started.pid));
    let request = KillRequest { id: "c1".to_owned(), exec_id: String::new(), signal: 9, all: true };
    let (): () = pod.shim.task(task_service::KILL, &request).unwrap();
    assert_eq!((exec.wait(), first.wait()), (137, 137));
    assert_eq!(second.status(), Status::Running);
    assert_eq!(second.pids().unwrap(), theirs, "the neighbour lives with all it has");
    gone(&ours);
    assert_eq!(pod.status().state, "SANDBOX_READY");
}

fn an_init_takes_along_what_it_started(world: &World) {
    let pod = pod_of_processes(world);
    let neighbour = Task::start(&pod.shim, "c2", shared("exec sleep 1003"));
    let script = "(setsid sleep 1001 </dev/null >/dev/null 2>&1 &); sleep 1002 & echo ready; wait";
    let task = Task::start(&pod.shim, "c1", shared(script));
    task.log.says("ready");
    let exec = task.exec("e1", &process(&["/bin/sleep", "1004"]));
    exec.begin().unwrap();
    let pids = until("all of its processes", || Some(task.pids().unwrap()).filter(|pids| pids.len() == 4));
    task.kill(9).unwrap();
    assert_eq!((task.wait(), exec.wait()), (137, 137));
    gone(&pids);
    assert_eq!(neighbour.status(), Status::Running);
}

fn gone(pids: &[u32]) {
    // Their parent in the pod reaps them, after the exit was told.
    let lives = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    until("the end of all processes", || (!pids.iter().any(lives)).then_some(()));
}

fn running_out_of_memory_stays_in_the_container(world: &World) {
    let pod = pod_of_processes(world);
    let neighbour = Task::start(&pod.shim, "c2", shared("exec sleep 1003").memory_limit(32 << 20));
    let task = Task::start(&pod.shim, "c1", shared("exec tail /dev/zero").memory_limit(32 << 20));
    assert_eq!(task.wait(), 137);
    assert_eq!(task.view().exit.unwrap().oom_kills, 1);
    assert_eq!(neighbour.status(), Status::Running);
    assert_eq!(pod.status().state, "SANDBOX_READY");
    world.containerd.event("oom c1");
    assert!(world.containerd.events().iter().all(|event| event.brief() != "oom c2"));
}

/// Who may trace the pod's processes, which is for debugging, finds nothing in PID 1 that leads to the node.
fn pid_1_shows_nothing_of_the_node(world: &World) {
    let pod = pod_of_processes(world);
    let script = "ls -A /proc/1/root; cat /proc/1/environ; ls /proc/1/fd; \
        grep -E 'Cap(Prm|Eff|Inh)|NoNewPrivs' /proc/1/status; cut -d' ' -f5,6 /proc/1/mountinfo; \
        echo x 2>/dev/null >> /proc/1/exe || echo read-only";
    let traces = shared(script).with(|spec| {
        for set in ["bounding", "effective", "permitted"] {
            let capabilities = ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_KILL"];
            spec["process"]["capabilities"][set] = capabilities.into();
        }
    });
    let task = Task::start(&pod.shim, "c1", traces);
    task.wait();
    let (stdout, stderr) = (task.log.text("stdout"), task.log.text("stderr"));
    let lines: Vec<&str> = stdout.lines().collect();
    let [init, inherited, permitted, effective, privileges, root, program, exe] = lines[..] else {
        panic!("{stdout}\n{stderr}")
    };
    assert_eq!(init, "init", "the program is all there is");
    for capabilities in [inherited, permitted, effective] {
        assert!(capabilities.ends_with("\t0000000000000000"), "{capabilities}");
    }
    assert_eq!(privileges, "NoNewPrivs:\t1");
    assert!(root.starts_with("/ ro"), "{root}");
    assert!(program.starts_with("/init ro"), "{program}");
    assert_eq!(exe, "read-only");
}

/// Everything that holds a namespace: processes, their descriptors, mounts.
fn holders(namespace: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if entry.file_name().to_string_lossy().parse::<u32>().is_err() {
            continue;
        }
        for dir in ["ns", "fd"] {
            let links = fs::read_dir(entry.path().join(dir)).into_iter().flatten().flatten();
            found.extend(
                links
                    .map(|link| link.path())
                    .filter(|link| fs::read_link(link).is_ok_and(|to| to == namespace)),
            );
        }
    }
    found.extend(mounts_of(namespace));
    found
}

fn mounts_of(namespace: &Path) -> Vec<PathBuf> {
    let name = namespace.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.split(' ').nth(3) == Some(&name));
    mounts.filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

/// What holds namespaces that are there, each with the one that it holds.
pub(crate) fn held(namespaces: &[PathBuf]) -> Vec<(PathBuf, PathBuf)> {
    let mut all = Vec::new();
    for namespace in namespaces {
        all.extend(holders(namespace).into_iter().map(|holder| (holder, namespace.clone())));
    }
    all
}

fn pods_namespaces(pod: &Pod<'_>) -> Vec<PathBuf> {
    KINDS.iter().map(|(_, file)| of(pod.started.pid, file)).collect()
}

/// Waits until nothing that held one but `path`, which is the test's own, does so any more. Others are not looked for: the number of a
/// namespace that is gone is given to the next one that anybody makes.
pub(crate) fn released(held: &[(PathBuf, PathBuf)], path: &Path) {
    let holds = |(holder, namespace): &(PathBuf, PathBuf)| {
        let leads_there = fs::read_link(holder).is_ok_and(|to| to == *namespace);
        holder != path && (leads_there || mounts_of(namespace).contains(holder))
    };
    until("the end of the pod's namespaces", || (!held.iter().any(holds)).then_some(()));
}

fn no_namespace_outlives_the_pod(world: &World) {
    let pod = pod_of_processes(world);
    let task = Task::start(&pod.shim, "c1", shared("exec sleep 1000"));
    let namespaces = pods_namespaces(&pod);
    let held = held(&namespaces);
    assert!(namespaces.iter().all(|one| held.iter().filter(|(_, namespace)| namespace == one).count() >= 2));
    pod.stop().unwrap();
    assert_eq!(task.wait(), 137);
    pod.shutdown();
    released(&held, &world.dir().join("netns"));
}

fn no_namespace_outlives_a_killed_shim(world: &World) {
    let pod = pod_of_processes(world);
    let sharing = Task::start(&pod.shim, "c1", shared("exec sleep 1000"));
    let apart = Task::start(&pod.shim, "c2", Spec::sh("exec sleep 1000").sharing(&["network", "ipc"]));
    let namespaces = pods_namespaces(&pod);
    let held = held(&namespaces);
    pod.shim.murder();
    // PID 1 goes with the shim, and its namespace's processes with it; others wait for `delete`.
    gone(&[pod.started.pid, sharing.pid]);
    assert_eq!(of(apart.pid, "ipc"), namespaces[1]);
    pod.shim.delete();
    released(&held, &world.dir().join("netns"));
}
