//! What the processes that a shim starts have of it: scores, namespaces, and death with it.

use std::fs;
use std::path::PathBuf;

use berth_proto::shim::{ExecSyncRequest, ExecSyncResponse, shim_service};
use serde_json::json;

use super::mounts::{base, directory, mount, text};
use crate::harness::{Conn, Pod, Spec, Streams, Task, World, process, until, write_program};
use crate::{Case, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("an_exec_has_the_score_of_its_container", REAL, an_exec_has_the_score_of_its_container),
    ("a_logging_program_has_no_score_and_the_nodes_network", FAKE, a_logging_program_is_of_the_node),
    (
        "a_file_systems_process_has_no_score_and_the_nodes_network",
        REAL,
        a_file_systems_process_is_of_the_node,
    ),
    ("a_call_that_waited_for_its_program_ends_with_the_shim", FAKE, a_call_that_waited_ends_with_the_shim),
];

/// The shim's own in these tests: containers, programs and tools have others.
const OF_SHIM: i32 = 300;

fn pod(world: &World) -> Pod<'_> {
    Pod::start_with(world, |options| options.oom_score_adj = Some(OF_SHIM))
}

fn score(pid: u32) -> i32 {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

fn network(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
}

fn an_exec_has_the_score_of_its_container(world: &World) {
    let pod = pod(world);
    assert_eq!(score(pod.shim.pid), OF_SHIM);
    let spec = Spec::sh("exec sleep 1000").with(|spec| spec["process"]["oomScoreAdj"] = json!(700));
    let task = Task::start(&pod.shim, "c1", spec);
    assert_eq!(score(task.pid), 700);
    let command = process(&["/bin/busybox", "sleep", "1000"]);
    let exec = task.exec("e1", &command);
    assert_eq!(score(exec.begin().unwrap().pid), 700, "an exec of containerd's");
    let process = serde_json::to_vec(&process(&["/bin/busybox", "cat", "/proc/self/oom_score_adj"])).unwrap();
    let request = ExecSyncRequest { container_id: "c1".to_owned(), process, ..ExecSyncRequest::default() };
    let mut agent = Conn::open(&pod.agent_socket);
    let answer: ExecSyncResponse = agent.call(shim_service::NAME, shim_service::EXEC_SYNC, &request).unwrap();
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), "700\n", "an exec of the agent's");
    assert_eq!(score(pod.shim.pid), OF_SHIM, "the shim keeps its own");
}

fn a_logging_program_is_of_the_node(world: &World) {
    let pod = pod(world);
    let said = world.dir().join("said");
    let script = format!(
        "cat /proc/self/oom_score_adj >{0}.new; readlink /proc/self/ns/net >>{0}.new; mv {0}.new {0}; printf x >&5; exec 5>&-; cat <&3 >/dev/null",
        said.display()
    );
    let streams = Streams { stdin: String::new(), stdout: program(world, &script), stderr: String::new() };
    let task = Task::create_with(&pod.shim, "c1", Spec::sh("exit 0"), streams).unwrap();
    let node = network(std::process::id());
    assert_eq!(fs::read_to_string(&said).unwrap(), format!("0\n{}\n", node.display()));
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
}

/// A logging program that runs a script; returns its URI.
fn program(world: &World, script: &str) -> String {
    let path = world.dir().join("program");
    write_program(&path, &format!("#!/bin/busybox sh\nPATH=/bin:/usr/bin\n{script}\n"));
    format!("binary-v2://{}", path.display())
}

fn a_file_systems_process_is_of_the_node(world: &World) {
    let pod = pod(world);
    let options = [
        format!("lowerdir={}", text(&base(world))),
        format!("upperdir={},workdir={}", text(&directory(world, "upper")), text(&directory(world, "work"))),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let rootfs = vec![mount("fuse3.fuse-overlayfs", "overlay", &options)];
    let task = Task::create_on(&pod.shim, "c1", Spec::sh("exit 0"), rootfs).unwrap();
    let server = until("the file system's process", || pid_with(&[text(world.dir()), "fuse-overlayfs"]));
    assert_eq!(network(server), network(std::process::id()), "it serves the node's file system, not the pod");
    assert_eq!(score(server), 0);
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    task.delete().unwrap();
}

/// A process whose command line has all of these in it.
fn pid_with(words: &[&str]) -> Option<u32> {
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.iter().all(|word| line.contains(word))
    })
}

/// What it still made would be made behind the back of `delete`.
fn a_call_that_waited_ends_with_the_shim(world: &World) {
    let (runtime, pid) = (world.dir().join("wrapped"), world.dir().join("runtime.pid"));
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *create*) echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000;; esac\nexec {1} \"$@\"\n",
        pid.display(),
        world.program().display()
    );
    write_program(&runtime, &script);
    let pod = Pod::start_with(world, |options| options.runtime_binary = runtime.display().to_string());
    let uri = program(world, "printf x >&5; exec 5>&-; cat <&3 >/dev/null");
    let streams = Streams { stdin: String::new(), stdout: uri, stderr: String::new() };
    let _unanswered = Task::begin_create(&pod.shim, "c1", &Spec::sh("exit 0"), streams);
    let call: u32 = until("the runtime's call", || fs::read_to_string(&pid).ok()).trim().parse().unwrap();
    pod.shim.murder();
    until("the end of the call", || (!fs::exists(format!("/proc/{call}")).unwrap()).then_some(()));
    pod.shim.delete();
}
