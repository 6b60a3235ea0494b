//! What `delete` cleans after a shim has died.

use std::time::Instant;

use super::{Case, containers, shim};
use crate::harness::{BY_SANDBOX, Group, Shim, Spec, Task, World, is_gone, process, until};

pub(super) const CASES: &[Case] = &[
    containers("delete_after_a_lost_task_leaves_nothing", delete_after_a_lost_task_leaves_nothing),
    containers("delete_after_a_lost_group_leaves_nothing", delete_after_a_lost_group_leaves_nothing),
    shim("delete_twice_is_no_error", delete_twice_is_no_error),
    shim("delete_before_create_is_no_error", delete_before_create_is_no_error),
    shim("delete_removes_the_socket", delete_removes_the_socket),
];

fn lingering() -> Spec {
    Spec::sh("sleep 1000 & echo ready; wait")
}

fn delete_after_a_lost_task_leaves_nothing(world: &World) {
    let begun = Instant::now();
    let shim = Shim::start_for(world, "c1", &lingering());
    let task = Task::start(&shim, "c1", lingering());
    task.says("ready");
    let exec = task.exec("e1", &process(&["/bin/busybox", "sleep", "1000"]));
    exec.begin().unwrap();
    let made = begun.elapsed();
    shim.murder();
    let answer = shim.delete_in_time(made);
    assert_eq!((answer.pid, answer.exit_status), (task.pid, 137));
    assert!(answer.exited_at.is_some());
    assert!(!task.is_mounted());
    until("the end of the container", || is_gone(task.pid).then_some(()));
}

/// containerd runs `delete` for each of the containers.
fn delete_after_a_lost_group_leaves_nothing(world: &World) {
    let begun = Instant::now();
    let group = Group::start(world, "c1", BY_SANDBOX);
    let other = group.join("c2");
    let (one, two) = (Task::start(&group.first, "c1", lingering()), Task::start(&other, "c2", lingering()));
    one.says("ready");
    two.says("ready");
    let made = begun.elapsed();
    group.first.murder();
    let (first, second) = (group.first.delete_in_time(made), other.delete_in_time(made));
    assert_eq!((first.exit_status, second.exit_status), (137, 137));
    until("the end of both", || (is_gone(one.pid) && is_gone(two.pid)).then_some(()));
}

fn delete_twice_is_no_error(world: &World) {
    let shim = Shim::start_for(world, "c1", &lingering());
    let _task = Task::start(&shim, "c1", lingering());
    shim.murder();
    shim.delete();
    assert_eq!(shim.delete().exit_status, 137);
}

fn delete_before_create_is_no_error(world: &World) {
    let shim = Shim::start_for(world, "c1", &lingering());
    shim.murder();
    assert_eq!(shim.delete().exit_status, 137);
}

fn delete_removes_the_socket(world: &World) {
    let shim = Shim::start_for(world, "c1", &lingering());
    let _task = Task::start(&shim, "c1", lingering());
    shim.murder();
    shim.delete();
    assert!(!shim.socket().exists());
}
