//! Death of the shim, and what is cleaned up after it.

use berth_proto::ttrpc::Code;
use std::fs;

use crate::harness::{Pod, Shim, Spec, Task, World, process, until};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("delete_after_a_lost_pod_leaves_nothing", EVERY, delete_after_a_lost_pod_leaves_nothing),
    ("delete_after_a_lost_task_leaves_nothing", EVERY, delete_after_a_lost_task_leaves_nothing),
    ("delete_twice_is_no_error", FAKE, delete_twice_is_no_error),
    ("an_exit_is_remembered_on_disk", FAKE, an_exit_is_remembered_on_disk),
    ("an_exit_that_was_recorded_and_not_published_is_told", FAKE, an_unpublished_exit_is_told),
    ("delete_after_a_clean_end_asks_no_runtime", EVERY, delete_after_a_clean_end_asks_no_runtime),
    ("much_use_costs_nothing", EVERY, much_use_costs_nothing),
    ("a_second_start_finds_the_first_shim", FAKE, a_second_start_finds_the_first_shim),
];

fn delete_after_a_lost_pod_leaves_nothing(world: &World) {
    let pod = Pod::start(world);
    let spec = || Spec::sh("sleep 1000 & echo ready; wait").sharing(&["network", "ipc", "uts"]);
    let (one, two) = (Task::start(&pod.shim, "c1", spec()), Task::start(&pod.shim, "c2", spec()));
    one.log.says("ready");
    two.log.says("ready");
    let exec = one.exec("e1", &process(&["/bin/busybox", "sleep", "1000"]));
    exec.begin().unwrap();
    pod.shim.murder();
    let answer = pod.shim.delete();
    assert_eq!(answer.exit_status, 137);
    assert!(answer.exited_at.is_some());
    for task in [&one, &two] {
        until("the end of the containers", || {
            (!fs::exists(format!("/proc/{}", task.pid)).unwrap()).then_some(())
        });
    }
}

fn delete_after_a_lost_task_leaves_nothing(world: &World) {
    let spec = Spec::sh("sleep 1000 & echo ready; wait");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    task.log.says("ready");
    shim.murder();
    let answer = shim.delete();
    assert_eq!((answer.pid, answer.exit_status), (task.pid, 137));
}

fn delete_twice_is_no_error(world: &World) {
    let spec = Spec::sh("sleep 1000");
    let shim = Shim::start_plain(world, "c1", &spec);
    let _task = Task::start(&shim, "c1", spec);
    shim.murder();
    shim.delete();
    assert_eq!(shim.delete().exit_status, 137);
}

fn an_exit_is_remembered_on_disk(world: &World) {
    let spec = Spec::sh("exit 23");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    assert_eq!(task.wait(), 23);
    shim.murder();
    assert_eq!(shim.delete().exit_status, 23, "the shim's death does not change how the task ended");
}

/// The shim dies between the exit record and the event: `delete` is what containerd learns the exit from.
fn an_unpublished_exit_is_told(world: &World) {
    let spec = Spec::sh("exit 23");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::create(&shim, "c1", spec);
    world.containerd.event("create c1");
    world.containerd.go_away();
    task.begin().unwrap();
    assert_eq!(task.wait(), 23);
    shim.murder();
    let heard = world.containerd.events();
    assert!(heard.iter().all(|event| event.topic != "exit"), "published after all: {heard:?}");
    let answer = shim.delete();
    assert_eq!((answer.pid, answer.exit_status), (task.pid, 23));
}

/// containerd runs `delete` after every end, so what the runtime has forgotten must not cost another call of it.
fn delete_after_a_clean_end_asks_no_runtime(world: &World) {
    let spec = Spec::sh("exit 23");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    let record = shim.bundle.join("berth.json");
    assert!(record.exists(), "a live container's runtime is noted");
    assert_eq!(task.wait(), 23);
    task.delete().unwrap();
    assert!(!record.exists());
    assert_eq!(shim.delete().exit_status, 23);
}

fn much_use_costs_nothing(world: &World) {
    let pod = Pod::start(world);
    let open = || fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count();
    let round = |number: u32| {
        let task = Task::start(&pod.shim, &format!("c{number}"), Spec::sh("echo x; exec sleep 1000"));
        let exec = task.exec("e1", &process(&["/bin/busybox", "true"]));
        exec.begin().unwrap();
        exec.wait();
        exec.delete().unwrap();
        task.kill(9).unwrap();
        task.wait();
        task.delete().unwrap();
    };
    round(0);
    let before = open();
    (1..20).for_each(round);
    until("the shim's descriptors back at their number", || (open() <= before).then_some(()));
    assert_eq!(pod.shim.state().tasks, []);
}

fn a_second_start_finds_the_first_shim(world: &World) {
    let spec = Spec::sh("sleep 1000").annotation("io.kubernetes.cri.sandbox-id", "group");
    let first = Shim::start_plain(world, "c1", &spec);
    let second = Shim::start_plain(world, "c2", &spec);
    assert_eq!((first.socket(), first.pid), (second.socket(), second.pid));
    let (one, two) = (Task::start(&first, "c1", spec.clone()), Task::start(&second, "c2", spec));
    one.kill(9).unwrap();
    assert_eq!(one.wait(), 137);
    one.delete().unwrap();
    assert_eq!(one.state().unwrap_err().code, Code::NotFound);
    assert_eq!(two.status(), berth_proto::process::Status::Running);
}
