//! The life of further processes.

use berth_proto::process::Status;

use super::{Case, containers, shim};
use crate::harness::{Shim, Spec, Task, World, process, until};

pub(super) const CASES: &[Case] = &[
    containers("an_exec_lives_and_dies_in_order", an_exec_lives_and_dies_in_order),
    containers("exit_codes_are_exact", exit_codes_are_exact),
    containers("an_exec_is_killed_alone", an_exec_is_killed_alone),
    containers("execs_end_with_their_container", execs_end_with_their_container),
    containers("a_missing_program_is_an_error", a_missing_program_is_an_error),
    containers("an_exec_is_in_its_container", an_exec_is_in_its_container),
    containers("no_descriptor_leaks_into_it_cve_2024_21626", no_descriptor_leaks_into_it),
    containers("many_at_once_keep_their_codes", many_at_once_keep_their_codes),
    shim("an_exec_may_be_deleted_before_its_start", an_exec_may_be_deleted_before_its_start),
    shim("the_state_tells_what_was_asked_for", the_state_tells_what_was_asked_for),
];

fn plain(world: &World) -> Shim<'_> {
    Shim::start_for(world, "c1", &Spec::sh(""))
}

fn sleeper<'s>(shim: &'s Shim<'_>) -> Task<'s> {
    let task = Task::start(shim, "c1", Spec::sh("echo ready; exec sleep 1000"));
    task.says("ready");
    task
}

fn sh(script: &str) -> serde_json::Value {
    process(&["/bin/busybox", "sh", "-c", script])
}

fn an_exec_lives_and_dies_in_order(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &sh("echo out; exit 11"));
    assert_eq!(exec.state().unwrap().status(), Status::Created);
    let pid = exec.begin().unwrap().pid;
    assert!(pid > 0);
    assert_eq!(exec.wait(), 11);
    let state = exec.state().unwrap();
    assert_eq!((state.status(), state.exit_status, state.pid), (Status::Stopped, 11, pid));
    until("the exec's output", || (exec.stdout() == "out\n").then_some(()));
    let deleted = exec.delete().unwrap();
    assert_eq!((deleted.exit_status, deleted.pid), (11, pid));
    assert_eq!(task.status(), Status::Running);
    task.kill(9).unwrap();
    let events = world.containerd.events_of("c1", "exit c1");
    let topics: Vec<String> = events.iter().map(|event| event.brief()).collect();
    let of_exec = ["exec-added c1/e1", "exec-started c1/e1", "exit c1/e1"];
    assert_eq!(topics, [&["create c1", "start c1"][..], &of_exec, &["exit c1"]].concat());
    assert_eq!((events[3].pid, events[4].pid, events[4].code), (pid, pid, 11));
}

fn exit_codes_are_exact(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let table = [("exit 0", 0), ("exit 1", 1), ("exit 126", 126), ("exit 255", 255), ("kill -15 $$", 143)];
    for (at, (script, code)) in table.into_iter().enumerate() {
        let exec = task.exec(&format!("e{at}"), &sh(script));
        exec.begin().unwrap();
        assert_eq!(exec.wait(), code, "{script}");
    }
}

fn an_exec_is_killed_alone(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let [one, two] = ["e1", "e2"].map(|id| {
        let exec = task.exec(id, &process(&["/bin/busybox", "sleep", "1000"]));
        exec.begin().unwrap();
        exec
    });
    one.kill(9).unwrap();
    assert_eq!(one.wait(), 137);
    assert_eq!(two.state().unwrap().status(), Status::Running);
    assert_eq!(task.status(), Status::Running);
}

fn execs_end_with_their_container(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &sh("sleep 1000"));
    exec.begin().unwrap();
    task.kill(9).unwrap();
    assert_eq!(exec.wait(), 137);
    assert_eq!(task.wait(), 137);
    let events = world.containerd.events_of("c1", "exit c1");
    let exits = events.iter().filter(|event| event.topic == "exit").map(|event| event.brief());
    assert_eq!(exits.collect::<Vec<_>>(), ["exit c1/e1", "exit c1"], "the init's exit is the last");
}

fn a_missing_program_is_an_error(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &process(&["/no/such/program"]));
    let failure = exec.begin().unwrap_err();
    assert!(failure.message.contains("/no/such/program"), "{failure}");
    exec.delete().unwrap();
    assert_eq!(task.status(), Status::Running);
    let next = task.exec("e1", &sh("exit 4"));
    next.begin().unwrap();
    assert_eq!(next.wait(), 4);
}

fn an_exec_is_in_its_container(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let mut process =
        sh("echo $0 $GREETING; pwd; id -u; test -e /bin/busybox && test ! -e /etc/os-release && echo inside");
    process["env"] = serde_json::json!(["GREETING=hello", "PATH=/bin"]);
    process["cwd"] = serde_json::json!("/tmp");
    process["user"] = serde_json::json!({ "uid": 1234, "gid": 5 });
    let exec = task.exec("e1", &process);
    let pid = exec.begin().unwrap().pid;
    assert_eq!(exec.wait(), 0);
    until("the exec's output", || (exec.stdout() == "sh hello\n/tmp\n1234\ninside\n").then_some(()));
    assert_ne!(pid, task.pid);
    let lasting = task.exec("e2", &process_sleep());
    let pid = lasting.begin().unwrap().pid;
    let mut pids = task.pids().unwrap();
    pids.sort_unstable();
    let mut expected = vec![task.pid, pid];
    expected.sort_unstable();
    assert_eq!(pids, expected);
}

fn process_sleep() -> serde_json::Value {
    process(&["/bin/busybox", "sleep", "1000"])
}

fn no_descriptor_leaks_into_it(world: &World) {
    let shim = plain(world);
    // Standard streams and the directory that ls reads.
    let script = "ls /proc/self/fd | wc -l";
    let task = Task::start(&shim, "c1", Spec::sh(&format!("{script}; exec sleep 1000")));
    task.says("4\n");
    let exec = task.exec("e1", &sh(script));
    exec.begin().unwrap();
    exec.wait();
    until("the number of descriptors", || (exec.stdout() == "4\n").then_some(()));
}

fn many_at_once_keep_their_codes(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    std::thread::scope(|scope| {
        for code in 0..8_u32 {
            let task = &task;
            scope.spawn(move || {
                let exec = task.exec(&format!("e{code}"), &sh(&format!("exit {code}")));
                exec.begin().unwrap();
                assert_eq!(exec.wait(), code);
                assert_eq!(exec.delete().unwrap().exit_status, code);
            });
        }
    });
    for code in 0..8 {
        let id = format!("e{code}");
        world.containerd.event(&format!("exit c1/{id}"));
        let events = world.containerd.events().into_iter().filter(|event| event.exec == id);
        let seen: Vec<(String, u32)> = events.map(|event| (event.topic, event.code)).collect();
        let expected = [("exec-added", 0), ("exec-started", 0), ("exit", code)];
        assert_eq!(seen, expected.map(|(topic, code)| (topic.to_owned(), code)), "of {id}");
    }
}

fn an_exec_may_be_deleted_before_its_start(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &sh("exit 1"));
    exec.delete().unwrap();
    let next = task.exec("e1", &sh("exit 2"));
    next.begin().unwrap();
    assert_eq!(next.wait(), 2);
}

fn the_state_tells_what_was_asked_for(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &process_sleep());
    let pid = exec.begin().unwrap().pid;
    let state = exec.state().unwrap();
    assert_eq!((state.status(), state.pid, state.terminal), (Status::Running, pid, false));
    assert!(state.stdout.ends_with("/e1.out"), "{state:?}");
    exec.kill(9).unwrap();
    assert_eq!(exec.wait(), 137);
}
