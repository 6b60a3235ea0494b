//! Containers with a terminal.

use berth_proto::process::Status;

use super::{Case, containers};
use crate::harness::{Pipes, Shim, Spec, Streams, Task, World, until};

pub(super) const CASES: &[Case] = &[
    containers("a_terminal_is_one_stream_with_a_size", a_terminal_is_one_stream_with_a_size),
    containers("a_client_may_leave_and_come_back", a_client_may_leave_and_come_back),
    containers("large_output_is_whole", large_output_is_whole),
    containers("resizing_costs_nothing_cve_2022_23471", resizing_costs_nothing),
    containers("without_clients_it_works", without_clients_it_works),
];

fn with_terminal<'s>(world: &World, shim: &'s Shim<'_>, spec: Spec) -> (Task<'s>, Pipes) {
    let pipes = Pipes::new(world.dir(), "c1");
    let task = Task::create_with(shim, "c1", spec, pipes.streams().of_terminal()).unwrap();
    task.begin().unwrap();
    (task, pipes)
}

fn shell() -> Spec {
    Spec::sh("echo ready; exec sh").terminal()
}

fn a_terminal_is_one_stream_with_a_size(world: &World) {
    let shim = Shim::start_for(world, "c1", &shell());
    let (task, pipes) = with_terminal(world, &shim, shell());
    pipes.out.says("ready\r\n");
    task.resize(111, 44).unwrap();
    let mut typing = pipes.input();
    typing.write(b"stty size; tty\n");
    pipes.out.says("44 111\r\n");
    pipes.out.says("/dev/");
    typing.write(b"echo $((40+2)) >&2\n");
    pipes.out.says("42\r\n");
    assert!(task.state().unwrap().terminal);
    typing.write(b"exit 5\n");
    assert_eq!(task.wait(), 5);
    task.delete().unwrap();
}

fn a_client_may_leave_and_come_back(world: &World) {
    let shim = Shim::start_for(world, "c1", &shell());
    let (task, pipes) = with_terminal(world, &shim, shell());
    let mut first = pipes.input();
    first.write(b"x=still-here\n");
    pipes.out.says("x=still-here");
    drop(first);
    let mut second = pipes.input();
    second.write(b"echo $x\n");
    pipes.out.says("\nstill-here\r\n");
    assert_eq!(task.status(), Status::Running);
}

fn large_output_is_whole(world: &World) {
    let spec = Spec::sh("seq 0 299999; exit 4").terminal();
    let shim = Shim::start_for(world, "c1", &spec);
    let (task, pipes) = with_terminal(world, &shim, spec);
    assert_eq!(task.wait(), 4);
    task.delete().unwrap();
    let expected: String = (0..300_000).map(|number| format!("{number}\r\n")).collect();
    let read = pipes.out.finish();
    assert_eq!(read.len(), expected.len());
    assert!(read == expected.into_bytes(), "not a byte is lost, added or moved");
}

fn resizing_costs_nothing(world: &World) {
    let shim = Shim::start_for(world, "c1", &shell());
    let (task, pipes) = with_terminal(world, &shim, shell());
    pipes.out.says("ready");
    task.resize(1, 1).unwrap();
    let before = shim.descriptors();
    let mut conn = shim.connect();
    for size in 1..300 {
        task.resize_on(&mut conn, size, size).unwrap();
    }
    drop(conn);
    until("the shim's descriptors back at their number", || (shim.descriptors() <= before).then_some(()));
}

fn without_clients_it_works(world: &World) {
    let spec = Spec::sh("tty && exit 3").terminal();
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::create_with(&shim, "c1", spec, Streams::default()).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 3);
    task.delete().unwrap();
}
