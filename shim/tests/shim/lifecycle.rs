//! Lives that go wrong, and what the log has of short ones.

use berth_proto::TASK_V3;
use berth_proto::task::{ConnectRequest, ConnectResponse, DeleteRequest, DeleteResponse, task_service};
use berth_proto::ttrpc::Code;
use berth_shim_conformance::fake_runtime;

use crate::harness::{Conn, Pod, Spec, Task, World, until};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("a_fast_exit_loses_no_output", EVERY, a_fast_exit_loses_no_output),
    ("a_failed_create_leaves_nothing", FAKE, a_failed_create_leaves_nothing),
    ("a_killed_runtime_is_an_error", FAKE, a_killed_runtime_is_an_error),
    ("a_slow_create_holds_nobody_up", FAKE, a_slow_create_holds_nobody_up),
    ("a_hanging_create_ends_with_the_sandbox", FAKE, a_hanging_create_ends_with_the_sandbox),
    ("a_deletion_waits_for_the_creation", FAKE, a_deletion_waits_for_the_creation),
    ("an_exit_before_the_start_is_an_exit", FAKE, an_exit_before_the_start_is_an_exit),
    ("the_place_of_a_root_goes_with_it", FAKE, the_place_of_a_root_goes_with_it),
];

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

/// containerd deletes what it has asked for and nobody wants any more.
fn a_deletion_waits_for_the_creation(world: &World) {
    let pod = Pod::start(world);
    let go = world.dir().join("go");
    let slow = Spec::sh("exit 0").annotation(fake_runtime::CREATE, &format!("wait-for:{}", go.display()));
    std::thread::scope(|scope| {
        let creation = scope.spawn(|| Task::try_create(&pod.shim, "c1", slow, "", "").map(|_| ()));
        until("the creation", || Task::is_in_creation(&pod.shim, "c1").then_some(()));
        let mut conn = Conn::open(&pod.agent_socket);
        let request = DeleteRequest { id: "c1".to_owned(), exec_id: String::new() };
        let deletion = conn.begin(TASK_V3, task_service::DELETE, &request);
        let request = ConnectRequest { id: "c1".to_owned() };
        let _taken: ConnectResponse = conn.call(TASK_V3, task_service::CONNECT, &request).unwrap();
        std::fs::write(&go, "").unwrap();
        creation.join().unwrap().unwrap();
        assert_eq!(conn.end::<DeleteResponse>(deletion).unwrap().exit_status, 137);
    });
    assert_eq!(pod.shim.state().tasks, []);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 4"));
    assert_eq!(task.wait(), 4, "the id is free");
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

/// Containerd looks among all mounts of the node for what may be mounted in a place that is there.
fn the_place_of_a_root_goes_with_it(world: &World) {
    let pod = Pod::start(world);
    let (of_pod, of_container) = (pod.shim.bundle.join("rootfs"), world.bundle("c1").join("rootfs"));
    // The second one as in the bundle of the first, which containerd makes anew.
    for code in [3, 4] {
        let task = Task::start(&pod.shim, "c1", Spec::sh(&format!("exit {code}")));
        assert!(task.is_mounted());
        assert_eq!(task.wait(), code);
        task.delete().unwrap();
        assert!(!of_container.exists());
    }
    let lost = Task::start(&pod.shim, "c1", Spec::sh("exec sleep 1000"));
    pod.shim.murder();
    assert!(lost.is_mounted() && of_pod.exists());
    pod.shim.delete();
    assert!(!of_container.exists() && !of_pod.exists());
}
