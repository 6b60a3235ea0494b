//! What is not possible is refused with containerd's codes (`errdefs`).

use berth_proto::Any;
use berth_proto::task::{
    CheckpointTaskRequest, PauseRequest, ResumeRequest, StatsRequest, StatsResponse, UpdateTaskRequest,
    WaitRequest, WaitResponse, task_service,
};
use berth_proto::ttrpc::{Code, Status};

use super::{Case, containers, shim};
use crate::harness::{Shim, Spec, Task, World, process};

pub(super) const CASES: &[Case] = &[
    shim("what_does_not_exist_is_not_found", what_does_not_exist_is_not_found),
    shim("delete_twice_is_not_found", delete_twice_is_not_found),
    shim("an_exec_that_does_not_exist_is_not_found", an_exec_that_does_not_exist_is_not_found),
    shim("an_id_is_used_once", an_id_is_used_once),
    shim("an_exec_id_is_used_once", an_exec_id_is_used_once),
    shim("a_running_task_is_not_deleted", a_running_task_is_not_deleted),
    shim("a_running_exec_is_not_deleted", a_running_exec_is_not_deleted),
    shim("a_running_task_is_not_started", a_running_task_is_not_started),
    shim("an_ended_task_is_not_started", an_ended_task_is_not_started),
    shim("an_ended_task_takes_no_exec", an_ended_task_takes_no_exec),
    shim("an_exec_is_not_killed_before_its_start", an_exec_is_not_killed_before_its_start),
    shim("what_has_ended_is_not_killed", what_has_ended_is_not_killed),
    containers("a_missing_program_is_an_error", a_missing_program_is_an_error),
];

fn sleeper<'s>(shim: &'s Shim<'_>) -> Task<'s> {
    Task::start(shim, "c1", Spec::sh("exec sleep 1000"))
}

fn plain(world: &World) -> Shim<'_> {
    Shim::start_for(world, "c1", &Spec::sh("exec sleep 1000"))
}

fn code<T>(outcome: Result<T, Status>) -> Option<Code> {
    outcome.err().map(|status| status.code)
}

fn what_does_not_exist_is_not_found(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    task.kill(9).unwrap();
    task.wait();
    task.delete().unwrap();
    let id = || "c1".to_owned();
    let wait = WaitRequest { id: id(), exec_id: String::new() };
    let resources = Some(Any { type_url: String::new(), value: b"{}".to_vec() });
    let update = UpdateTaskRequest { id: id(), resources, ..UpdateTaskRequest::default() };
    let checkpoint = CheckpointTaskRequest { id: id(), ..CheckpointTaskRequest::default() };
    let codes = [
        ("start", code(task.begin())),
        ("state", code(task.state())),
        ("kill", code(task.kill(9))),
        ("pids", code(task.pids())),
        ("resize", code(task.resize(1, 1))),
        ("close stdin", code(task.close_stdin())),
        ("delete", code(task.delete())),
        ("exec", code(task.try_exec("e1", &process(&["/bin/true"])))),
        ("wait", code(shim.task::<_, WaitResponse>(task_service::WAIT, &wait))),
        ("pause", code(shim.task::<_, ()>(task_service::PAUSE, &PauseRequest { id: id() }))),
        ("resume", code(shim.task::<_, ()>(task_service::RESUME, &ResumeRequest { id: id() }))),
        ("stats", code(shim.task::<_, StatsResponse>(task_service::STATS, &StatsRequest { id: id() }))),
        ("update", code(shim.task::<_, ()>(task_service::UPDATE, &update))),
        ("checkpoint", code(shim.task::<_, ()>(task_service::CHECKPOINT, &checkpoint))),
    ];
    for (what, code) in codes {
        assert_eq!(code, Some(Code::NotFound), "{what}");
    }
}

fn delete_twice_is_not_found(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    task.kill(9).unwrap();
    task.wait();
    task.delete().unwrap();
    assert_eq!(code(task.delete()), Some(Code::NotFound));
    world.containerd.event("delete c1");
    let deleted = world.containerd.events().into_iter().filter(|event| event.topic == "delete").count();
    assert_eq!(deleted, 1, "it is told once");
}

fn an_exec_that_does_not_exist_is_not_found(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &process(&["/bin/busybox", "true"]));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 0);
    exec.delete().unwrap();
    let codes = [
        ("start", code(exec.begin())),
        ("state", code(exec.state())),
        ("kill", code(exec.kill(9))),
        ("delete", code(exec.delete())),
        ("resize", code(exec.resize(1, 1))),
        ("close stdin", code(exec.close_stdin())),
    ];
    for (what, code) in codes {
        assert_eq!(code, Some(Code::NotFound), "{what}");
    }
}

fn an_id_is_used_once(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    assert_eq!(code(Task::try_create(&shim, "c1", Spec::sh("exit 0"))), Some(Code::AlreadyExists));
    assert_eq!(task.state().unwrap().pid, task.pid, "the first goes on");
}

fn an_exec_id_is_used_once(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &process(&["/bin/busybox", "true"]));
    assert_eq!(code(task.try_exec("e1", &process(&["/bin/true"]))), Some(Code::AlreadyExists));
    exec.begin().unwrap();
    exec.wait();
    exec.delete().unwrap();
    let next = task.exec("e1", &process(&["/bin/busybox", "sh", "-c", "exit 8"]));
    next.begin().unwrap();
    assert_eq!(next.wait(), 8, "the id is free again");
}

fn a_running_task_is_not_deleted(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    assert_eq!(code(task.delete()), Some(Code::FailedPrecondition));
    assert_eq!(task.state().unwrap().pid, task.pid);
}

fn a_running_exec_is_not_deleted(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &process(&["/bin/busybox", "sleep", "1000"]));
    exec.begin().unwrap();
    assert_eq!(code(exec.delete()), Some(Code::FailedPrecondition));
    exec.kill(9).unwrap();
    assert_eq!(exec.wait(), 137);
}

fn a_running_task_is_not_started(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    assert_eq!(code(task.begin()), Some(Code::FailedPrecondition));
}

fn an_ended_task_is_not_started(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    task.kill(9).unwrap();
    task.wait();
    assert_eq!(code(task.begin()), Some(Code::FailedPrecondition));
}

fn an_ended_task_takes_no_exec(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    task.kill(9).unwrap();
    task.wait();
    let late = task.try_exec("e1", &process(&["/bin/busybox", "true"]));
    assert_eq!(code(late), Some(Code::FailedPrecondition));
}

fn an_exec_is_not_killed_before_its_start(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &process(&["/bin/busybox", "true"]));
    assert_eq!(code(exec.kill(9)), Some(Code::FailedPrecondition));
    exec.delete().unwrap();
}

fn what_has_ended_is_not_killed(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &process(&["/bin/busybox", "true"]));
    exec.begin().unwrap();
    exec.wait();
    assert_eq!(code(exec.kill(9)), Some(Code::NotFound), "an exec");
    task.kill(9).unwrap();
    task.wait();
    assert_eq!(code(task.kill(9)), Some(Code::NotFound), "a task");
}

fn a_missing_program_is_an_error(world: &World) {
    let spec = Spec::run(&["/no/such/program"]);
    let shim = Shim::start_for(world, "c1", &spec);
    // runc finds out at create, crun at create or at start.
    let failure = Task::try_create(&shim, "c1", spec).and_then(|task| task.begin().map(|_| ())).unwrap_err();
    assert!(failure.message.contains("/no/such/program"), "{failure}");
}
