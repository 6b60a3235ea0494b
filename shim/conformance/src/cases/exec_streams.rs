//! Streams of further processes.

use super::{Case, containers, shim};
use crate::harness::{Exec, Pipes, Shim, Spec, Streams, Task, World, process, until};

pub(super) const CASES: &[Case] = &[
    containers("all_three_streams_are_carried", all_three_streams_are_carried),
    containers("large_output_is_exact", large_output_is_exact),
    containers("discarded_output_holds_nothing_up", discarded_output_holds_nothing_up),
    containers("a_terminal_is_one_stream_with_a_size", a_terminal_is_one_stream_with_a_size),
    shim("a_client_may_leave_and_come_back", a_client_may_leave_and_come_back),
    shim("without_stdin_it_reads_its_end", without_stdin_it_reads_its_end),
    containers("leftovers_do_not_hold_the_exit_up", leftovers_do_not_hold_the_exit_up),
];

fn plain(world: &World) -> Shim<'_> {
    Shim::start_for(world, "c1", &Spec::sh(""))
}

fn sleeper<'s>(shim: &'s Shim<'_>) -> Task<'s> {
    Task::start(shim, "c1", Spec::sh("exec sleep 1000"))
}

fn sh(script: &str) -> serde_json::Value {
    process(&["/bin/busybox", "sh", "-c", script])
}

fn piped<'t>(task: &'t Task<'_>, script: &str) -> (Exec<'t>, Pipes) {
    let pipes = Pipes::new(task.shim.world.dir(), "e1");
    let exec = task.exec_with("e1", &sh(script), pipes.streams()).unwrap();
    exec.begin().unwrap();
    (exec, pipes)
}

fn all_three_streams_are_carried(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let (exec, pipes) = piped(&task, "cat; echo err >&2; exit 9");
    let mut input = pipes.input();
    input.write(b"through and through");
    drop(input);
    exec.close_stdin().unwrap();
    assert_eq!(exec.wait(), 9);
    exec.delete().unwrap();
    assert_eq!(
        (pipes.out.finish(), pipes.err.finish()),
        (b"through and through".to_vec(), b"err\n".to_vec())
    );
}

fn large_output_is_exact(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let (exec, pipes) = piped(&task, "seq 0 1299999; exit 8");
    assert_eq!(exec.wait(), 8);
    exec.delete().unwrap();
    let expected: String = (0..1_300_000).map(|number| format!("{number}\n")).collect();
    let read = pipes.out.finish();
    assert_eq!(read.len(), expected.len());
    assert!(read == expected.into_bytes(), "not a byte is lost, added or moved");
}

fn discarded_output_holds_nothing_up(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let script = "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 7";
    let exec = task.exec_with("e1", &sh(script), Streams::default()).unwrap();
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 7);
    exec.delete().unwrap();
}

fn a_terminal_is_one_stream_with_a_size(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let mut shell = process(&["/bin/busybox", "sh"]);
    shell["terminal"] = serde_json::json!(true);
    let pipes = Pipes::new(world.dir(), "e1");
    let exec = task.exec_with("e1", &shell, pipes.streams().of_terminal()).unwrap();
    exec.begin().unwrap();
    exec.resize(71, 21).unwrap();
    let mut typing = pipes.input();
    typing.write(b"stty size; tty; echo $((40+2)) >&2\n");
    pipes.out.says("21 71");
    pipes.out.says("/dev/pts/");
    pipes.out.says("42\r\n");
    assert!(exec.state().unwrap().terminal);
    typing.write(b"exit 9\n");
    assert_eq!(exec.wait(), 9);
    exec.delete().unwrap();
}

fn a_client_may_leave_and_come_back(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let (exec, pipes) = piped(&task, "while read line; do echo got $line; done; exit 6");
    for word in ["one", "two"] {
        pipes.input().write(format!("{word}\n").as_bytes());
        pipes.out.says(&format!("got {word}\n"));
    }
    exec.close_stdin().unwrap();
    assert_eq!(exec.wait(), 6);
}

fn without_stdin_it_reads_its_end(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let exec = task.exec("e1", &sh("cat; exit 3"));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 3);
}

/// What an exec leaves behind in its container is the container's, with the output that it holds.
fn leftovers_do_not_hold_the_exit_up(world: &World) {
    let shim = plain(world);
    let task = sleeper(&shim);
    let (exec, pipes) = piped(&task, "setsid sleep 1000 & echo done; exit 5");
    assert_eq!(exec.wait(), 5);
    pipes.out.says("done\n");
    until("the exit", || {
        world.containerd.events().iter().any(|event| event.brief() == "exit c1/e1").then_some(())
    });
    assert_eq!(task.pids().unwrap().len(), 2, "the leftover lives on");
}
