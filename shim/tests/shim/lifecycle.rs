//! The life of a container, with and without a sandbox.

use berth_proto::process::Status;
use berth_proto::ttrpc::Code;

use crate::fake_runtime;
use crate::harness::{Pod, Shim, Spec, Task, World, until};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("a_task_lives_and_dies_in_order", EVERY, a_task_lives_and_dies_in_order),
    ("a_task_needs_no_sandbox", EVERY, a_task_needs_no_sandbox),
    ("exit_codes_are_exact", EVERY, exit_codes_are_exact),
    ("a_signal_is_an_exit_code", EVERY, a_signal_is_an_exit_code),
    ("ids_are_used_once", EVERY, ids_are_used_once),
    ("a_fast_exit_loses_no_output", EVERY, a_fast_exit_loses_no_output),
    ("what_does_not_exist_is_not_found", FAKE, what_does_not_exist_is_not_found),
    ("a_running_task_is_not_deleted", FAKE, a_running_task_is_not_deleted),
    ("a_missing_program_is_an_error", REAL, a_missing_program_is_an_error),
    ("a_failed_create_leaves_nothing", FAKE, a_failed_create_leaves_nothing),
    ("a_killed_runtime_is_an_error", FAKE, a_killed_runtime_is_an_error),
    ("a_slow_create_holds_nobody_up", FAKE, a_slow_create_holds_nobody_up),
    ("a_hanging_create_ends_with_the_sandbox", FAKE, a_hanging_create_ends_with_the_sandbox),
    ("an_exit_before_the_start_is_an_exit", FAKE, an_exit_before_the_start_is_an_exit),
    ("kill_is_scoped_in_a_shared_pid_namespace", REAL, kill_is_scoped_in_a_shared_pid_namespace),
    ("leftover_output_does_not_hold_the_exit_up", REAL, leftover_output_does_not_hold_the_exit_up),
];

fn a_task_lives_and_dies_in_order(world: &World) {
    let pod = Pod::start(world);
    let task = Task::create(&pod.shim, "c1", Spec::sh("exec sleep 1000"));
    assert_eq!(task.status(), Status::Created);
    assert!(task.pid > 0);
    assert_eq!(task.begin().unwrap().pid, task.pid);
    assert_eq!(task.status(), Status::Running);
    assert_eq!(task.kill(9), Ok(()));
    assert_eq!(task.wait(), 137);
    assert_eq!(task.status(), Status::Stopped);
    assert_eq!(task.state().unwrap().exit_status, 137);
    assert_eq!(task.pids().unwrap(), [task.pid], "an exited task keeps its pid until it is deleted");
    assert!(task.is_mounted());
    let deleted = task.delete().unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (task.pid, 137));
    assert!(!task.is_mounted());
    let events = world
        .containerd
        .events_until("the delete", |events| events.iter().any(|event| event.topic == "delete"));
    let topics: Vec<String> = events.iter().map(|event| event.brief()).collect();
    assert_eq!(topics, ["create c1", "start c1", "exit c1", "delete c1"]);
    assert!(events.iter().all(|event| event.pid == task.pid));
    assert_eq!(events[2].code, 137);
}

fn a_task_needs_no_sandbox(world: &World) {
    let spec = Spec::sh("exit 5");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    assert_eq!(task.wait(), 5);
    assert_eq!(task.delete().unwrap().exit_status, 5);
}

fn exit_codes_are_exact(world: &World) {
    let pod = Pod::start(world);
    for code in [0, 1, 42, 127, 255] {
        let task = Task::start(&pod.shim, &format!("c{code}"), Spec::sh(&format!("exit {code}")));
        assert_eq!(task.wait(), code);
    }
}

fn a_signal_is_an_exit_code(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(
        &pod.shim,
        "c1",
        Spec::sh("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"),
    );
    task.log.says("ready");
    task.kill(15).unwrap();
    assert_eq!(task.wait(), 3);
    assert_eq!(task.kill(9).unwrap_err().code, Code::NotFound, "of an ended process");
}

fn ids_are_used_once(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 0"));
    let again = Task::try_create(&pod.shim, "c1", Spec::sh("exit 0"), "", "").map(|_| ());
    assert_eq!(again.unwrap_err().code, Code::AlreadyExists);
    task.wait();
    task.delete().unwrap();
    assert_eq!(task.delete().unwrap_err().code, Code::NotFound);
    let next = Task::start(&pod.shim, "c1", Spec::sh("exit 9"));
    assert_eq!(next.wait(), 9, "the id is free again");
}

fn a_fast_exit_loses_no_output(world: &World) {
    let pod = Pod::start(world);
    let script = "i=0; while [ $i -lt 64 ]; do head -c 131071 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done";
    let task = Task::start(&pod.shim, "c1", Spec::sh(script));
    assert_eq!(task.wait(), 0);
    task.delete().unwrap();
    let text = task.log.text("stdout");
    assert_eq!(text.len(), 64 * 131_072);
    assert!(text.lines().all(|line| line.len() == 131_071));
    assert!(task.log.lines().iter().all(|line| line.content.len() <= 16_384));
}

fn what_does_not_exist_is_not_found(world: &World) {
    let pod = Pod::start(world);
    let task = Task::create(&pod.shim, "c1", Spec::sh("exit 0"));
    task.begin().unwrap();
    task.wait();
    task.delete().unwrap();
    let outcomes = [
        ("start", task.begin().map(|_| ())),
        ("state", task.state().map(|_| ())),
        ("kill", task.kill(9)),
        ("pids", task.pids().map(|_| ())),
        ("resize", task.resize(1, 1)),
        ("close stdin", task.close_stdin()),
    ];
    for (what, outcome) in outcomes {
        assert_eq!(outcome.unwrap_err().code, Code::NotFound, "{what}");
    }
}

fn a_running_task_is_not_deleted(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    assert_eq!(task.delete().unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(task.status(), Status::Running);
}

fn a_missing_program_is_an_error(world: &World) {
    let pod = Pod::start(world);
    let created = Task::try_create(&pod.shim, "c1", Spec::run(&["/no/such/program"]), "", "");
    // runc finds out at create, crun at create or at start.
    let failure = created.and_then(|task| task.begin().map(|_| ())).unwrap_err();
    assert!(failure.message.contains("/no/such/program"), "{failure}");
}

fn a_failed_create_leaves_nothing(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("exit 0").annotation(fake_runtime::CREATE, "fail:the moon is in the wrong phase");
    let failure = Task::try_create(&pod.shim, "c1", spec, "", "").map(|_| ()).unwrap_err();
    assert!(failure.message.contains("the moon is in the wrong phase"), "{failure}");
    assert_eq!(pod.shim.state().tasks, []);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 4"));
    assert_eq!(task.wait(), 4, "the id is free");
}

fn a_killed_runtime_is_an_error(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("exit 0").annotation(fake_runtime::CREATE, "die");
    assert!(Task::try_create(&pod.shim, "c1", spec, "", "").is_err());
    assert_eq!(pod.shim.state().tasks, []);
}

fn a_slow_create_holds_nobody_up(world: &World) {
    let pod = Pod::start(world);
    let go = world.dir().join("go");
    let slow = Spec::sh("exit 6").annotation(fake_runtime::CREATE, &format!("wait-for:{}", go.display()));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| Task::start(&pod.shim, "slow", slow).wait());
        let quick = Task::start(&pod.shim, "quick", Spec::sh("exit 5"));
        assert_eq!(quick.wait(), 5);
        assert_eq!(quick.delete().unwrap().exit_status, 5);
        std::fs::write(&go, "").unwrap();
        assert_eq!(slow.join().unwrap(), 6);
    });
}

/// The search for leftovers after the test finds a runtime that goes on hanging.
fn a_hanging_create_ends_with_the_sandbox(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("exit 0").annotation(fake_runtime::CREATE, "hang");
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| Task::try_create(&pod.shim, "c1", spec, "", "").map(|_| ()));
        until("the creation", || Task::is_in_creation(&pod.shim, "c1").then_some(()));
        pod.stop().unwrap();
        hanging.join().unwrap().unwrap_err();
    });
}

fn an_exit_before_the_start_is_an_exit(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("exit 0").annotation(fake_runtime::CREATE, "dead-init");
    let task = Task::create(&pod.shim, "c1", spec);
    assert_eq!(task.wait(), 0);
    assert_eq!(task.begin().unwrap_err().code, Code::FailedPrecondition);
    task.delete().unwrap();
    let events = world
        .containerd
        .events_until("the delete", |events| events.iter().any(|event| event.topic == "delete"));
    let topics: Vec<String> = events.iter().map(|event| event.brief()).collect();
    assert_eq!(topics, ["create c1", "exit c1", "delete c1"]);
}

fn kill_is_scoped_in_a_shared_pid_namespace(world: &World) {
    let pod = Pod::start_with(world, |options| options.pid = berth_proto::shim::NamespaceMode::Pod.into());
    let spec = || Spec::sh("sleep 1000 & echo ready; wait").sharing(&["network", "ipc", "uts", "pid"]);
    let (one, two) = (Task::start(&pod.shim, "one", spec()), Task::start(&pod.shim, "two", spec()));
    one.log.says("ready");
    two.log.says("ready");
    let neighbours = two.pids().unwrap();
    assert_eq!(neighbours.len(), 2);
    one.kill(9).unwrap();
    assert_eq!(one.wait(), 137);
    until("the end of the first container's other process", || {
        (one.pids().unwrap() == [one.pid]).then_some(())
    });
    assert_eq!(two.status(), Status::Running);
    assert_eq!(two.pids().unwrap(), neighbours);
}

fn leftover_output_does_not_hold_the_exit_up(world: &World) {
    let pod = Pod::start_with(world, |options| options.pid = berth_proto::shim::NamespaceMode::Node.into());
    // A process that left the session and holds standard output, in no pid namespace that would end it.
    let mut spec = Spec::sh("setsid sleep 1000 & echo done; exit 2");
    spec = spec.without_namespace("pid");
    let task = Task::start(&pod.shim, "c1", spec);
    assert_eq!(task.wait(), 2);
    task.log.says("done");
    task.delete().unwrap();
}
