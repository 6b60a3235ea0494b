//! Standard input.

use std::sync::mpsc;

use super::{Case, containers, shim};
use crate::harness::{Pipes, Shim, Spec, Task, World};

pub(super) const CASES: &[Case] = &[
    containers("twenty_mebibytes_come_back", twenty_mebibytes_come_back),
    containers("a_client_may_leave_and_come_back", a_client_may_leave_and_come_back),
    shim("only_close_io_ends_it", only_close_io_ends_it),
    shim("without_it_a_container_reads_its_end", without_it_a_container_reads_its_end),
    shim("input_before_the_start_is_kept", input_before_the_start_is_kept),
    shim("nobody_needs_to_read_it", nobody_needs_to_read_it),
];

/// A container with all three streams.
fn piped<'s>(world: &World, shim: &'s Shim<'_>, spec: Spec) -> (Task<'s>, Pipes) {
    let pipes = Pipes::new(world.dir(), "c1");
    let task = Task::create_with(shim, "c1", spec, pipes.streams()).unwrap();
    (task, pipes)
}

fn twenty_mebibytes_come_back(world: &World) {
    let spec = Spec::sh("cat; exit 3");
    let shim = Shim::start_for(world, "c1", &spec);
    let (task, pipes) = piped(world, &shim, spec);
    task.begin().unwrap();
    let sent: Vec<u8> =
        (0..20_u32 << 20).map(|at| u8::try_from((at * 31 + at / 251) % 256).unwrap()).collect();
    let (done, is_done) = mpsc::sync_channel(1);
    let mut input = pipes.input();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            input.write(&sent);
            drop(input);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(crate::harness::WITHIN).expect("it is all taken");
    });
    task.close_stdin().unwrap();
    assert_eq!(task.wait(), 3);
    task.delete().unwrap();
    let read = pipes.out.finish();
    assert_eq!(read.len(), sent.len());
    assert!(read == sent, "not a byte is lost, added or moved");
}

const ECHO: &str = "while read line; do echo got $line; done; echo end; exit 6";

fn a_client_may_leave_and_come_back(world: &World) {
    let spec = Spec::sh(ECHO);
    let shim = Shim::start_for(world, "c1", &spec);
    let (task, pipes) = piped(world, &shim, spec);
    task.begin().unwrap();
    for word in ["one", "two", "three"] {
        let mut client = pipes.input();
        client.write(format!("{word}\n").as_bytes());
        drop(client);
        pipes.out.says(&format!("got {word}\n"));
    }
    task.close_stdin().unwrap();
    assert_eq!(task.wait(), 6);
    task.delete().unwrap();
    assert_eq!(String::from_utf8(pipes.out.finish()).unwrap(), "got one\ngot two\ngot three\nend\n");
}

fn only_close_io_ends_it(world: &World) {
    let spec = Spec::sh(ECHO);
    let shim = Shim::start_for(world, "c1", &spec);
    let (task, pipes) = piped(world, &shim, spec);
    task.begin().unwrap();
    drop(pipes.input());
    let mut client = pipes.input();
    client.write(b"still\n");
    pipes.out.says("got still\n");
    drop(client);
    task.close_stdin().unwrap();
    assert_eq!(task.wait(), 6);
}

fn without_it_a_container_reads_its_end(world: &World) {
    let spec = Spec::sh("cat; exit 3");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    assert_eq!(task.wait(), 3);
}

fn input_before_the_start_is_kept(world: &World) {
    let spec = Spec::sh(ECHO);
    let shim = Shim::start_for(world, "c1", &spec);
    let (task, pipes) = piped(world, &shim, spec);
    let mut client = pipes.input();
    client.write(b"early\n");
    task.begin().unwrap();
    pipes.out.says("got early\n");
    drop(client);
    task.close_stdin().unwrap();
    assert_eq!(task.wait(), 6);
}

fn nobody_needs_to_read_it(world: &World) {
    let spec = Spec::sh("exit 5");
    let shim = Shim::start_for(world, "c1", &spec);
    let (task, pipes) = piped(world, &shim, spec);
    let mut client = pipes.input();
    client.write(&[b'x'; 8192]);
    task.begin().unwrap();
    assert_eq!(task.wait(), 5);
    task.delete().unwrap();
}
