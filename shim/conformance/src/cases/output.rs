//! What containers write.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{Case, containers, shim};
use crate::harness::{Output, Pipes, Shim, Spec, Streams, Task, World, until, write_program};

pub(super) const CASES: &[Case] = &[
    containers("a_fast_exit_loses_no_output", a_fast_exit_loses_no_output),
    containers("both_streams_are_told_apart", both_streams_are_told_apart),
    containers("a_stream_may_be_left_out", a_stream_may_be_left_out),
    containers("a_file_takes_both_streams", a_file_takes_both_streams),
    shim("a_logging_program_takes_both_streams", a_logging_program_takes_both_streams),
    shim("a_logging_program_of_the_second_kind_says_when", a_logging_program_of_the_second_kind_says_when),
    shim("a_logging_program_that_says_nothing_is_an_error", a_logging_program_that_says_nothing_is_an_error),
    shim("what_leads_nowhere_is_drained", what_leads_nowhere_is_drained),
    shim("a_reader_may_come_back", a_reader_may_come_back),
    containers("leftover_output_does_not_hold_the_exit_up", leftover_output_does_not_hold_the_exit_up),
];

const MIB: usize = 1 << 20;

fn run<'s>(shim: &'s Shim<'_>, spec: Spec, streams: Streams) -> Task<'s> {
    let task = Task::create_with(shim, "c1", spec, streams).unwrap();
    task.begin().unwrap();
    task
}

/// Every byte is one of a sequence, so that what is lost, doubled or moved is seen.
fn a_fast_exit_loses_no_output(world: &World) {
    let pattern: Vec<u8> = (0..8 * MIB).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
    fs::write(world.shared().join("pattern"), &pattern).unwrap();
    let spec = Spec::sh("cat /shared/pattern; exit 7");
    let shim = Shim::start_for(world, "c1", &spec);
    let pipes = Pipes::new(world.dir(), "c1");
    let task = run(&shim, spec, pipes.outputs());
    assert_eq!(task.wait(), 7);
    task.delete().unwrap();
    let read = pipes.out.finish();
    assert_eq!(read.len(), pattern.len());
    assert!(read == pattern, "not a byte is lost, added or moved");
}

fn both_streams_are_told_apart(world: &World) {
    let spec = Spec::sh("echo one; echo two >&2; printf three");
    let shim = Shim::start_for(world, "c1", &spec);
    let pipes = Pipes::new(world.dir(), "c1");
    let task = run(&shim, spec, pipes.outputs());
    task.wait();
    task.delete().unwrap();
    assert_eq!((pipes.out.finish(), pipes.err.finish()), (b"one\nthree".to_vec(), b"two\n".to_vec()));
}

fn a_stream_may_be_left_out(world: &World) {
    let spec = Spec::sh("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; exit 6");
    let shim = Shim::start_for(world, "c1", &spec);
    let out = Output::new(&world.dir().join("out"));
    let streams = Streams { stdout: out.uri(), ..Streams::default() };
    let task = run(&shim, spec, streams);
    assert_eq!(task.wait(), 6);
    task.delete().unwrap();
    assert_eq!(out.finish().len(), 300_000);
}

fn a_file_takes_both_streams(world: &World) {
    let spec = Spec::sh("head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2");
    let shim = Shim::start_for(world, "c1", &spec);
    // The directory is made where it is missing.
    let file = world.dir().join("logs/deep/c1.log");
    let task = run(&shim, spec, Streams::file(&file));
    assert_eq!(task.wait(), 0);
    task.delete().unwrap();
    assert_eq!(fs::metadata(&file).unwrap().len(), 5_000_000);
}

/// A program that copies descriptors 3 and 4 to files, to their end even if it is told to go; `ready` is what it does with descriptor 5.
fn logger(world: &World, ready: &str) -> (String, PathBuf, PathBuf) {
    let (program, out, err) = (world.dir().join("logger"), world.dir().join("out"), world.dir().join("err"));
    let script = format!(
        "#!/bin/sh\ntrap '' TERM\ncat <&3 >{out} 5>&- &\ncat <&4 >{err} 5>&- &\n{ready}\nexec 3<&- 4<&- 5>&-\nwait\necho $CONTAINER_ID $CONTAINER_NAMESPACE $1 $2 >>{out}\n",
        out = out.display(),
        err = err.display()
    );
    write_program(&program, &script);
    (program.display().to_string(), out, err)
}

fn logs_with(world: &World, uri: &str, out: &Path, err: &Path) {
    let spec = Spec::sh("echo one; echo two >&2; exit 4");
    let shim = Shim::start_for(world, "c1", &spec);
    let streams = Streams { stdin: String::new(), stdout: uri.to_owned(), stderr: uri.to_owned() };
    let task = run(&shim, spec, streams);
    assert_eq!(task.wait(), 4);
    task.delete().unwrap();
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let last = format!("c1 {} key value\n", world.name());
    until("both streams and the program's end", || {
        (read(out) == format!("one\n{last}") && read(err) == "two\n").then_some(())
    });
}

/// containerd's `binary://`: the streams are descriptors 3 and 4, and closing 5 says ready.
fn a_logging_program_takes_both_streams(world: &World) {
    let (program, out, err) = logger(world, "");
    logs_with(world, &format!("binary://{program}?key=value"), &out, &err);
}

/// `binary-v2://` of containerd 2.3: a byte in descriptor 5 says ready.
fn a_logging_program_of_the_second_kind_says_when(world: &World) {
    let (program, out, err) = logger(world, "printf r >&5");
    logs_with(world, &format!("binary-v2://{program}?key=value"), &out, &err);
}

fn a_logging_program_that_says_nothing_is_an_error(world: &World) {
    let spec = Spec::sh("exit 0");
    let shim = Shim::start_for(world, "c1", &spec);
    let uri = "binary-v2:///bin/true".to_owned();
    let streams = Streams { stdin: String::new(), stdout: uri.clone(), stderr: uri };
    Task::create_with(&shim, "c1", spec, streams).unwrap_err();
    let next = Task::start(&shim, "c1", Spec::sh("exit 3"));
    assert_eq!(next.wait(), 3, "nothing of it is left");
}

fn what_leads_nowhere_is_drained(world: &World) {
    let spec = Spec::sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 3");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = run(&shim, spec, Streams::default());
    assert_eq!(task.wait(), 3);
}

/// A client that goes away costs no output: it waits in the pipe for the next one, and holds nobody else up.
fn a_reader_may_come_back(world: &World) {
    let gate = world.shared().join("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    let script =
        format!("echo before; read x < {}; head -c 1000000 /dev/zero; exit 4", world.shared_path("gate"));
    let spec = Spec::sh(&script);
    let shim = Shim::start_for(world, "c1", &spec);
    let pipes = Pipes::new(world.dir(), "c1");
    let task = run(&shim, spec, pipes.outputs());
    pipes.out.says("before\n");
    let path = pipes.out.leave();
    fs::write(&gate, "go\n").unwrap();
    let neighbour = Task::start(&shim, "c2", Spec::sh("exit 5"));
    assert_eq!(neighbour.wait(), 5);
    let second = Output::open(&path);
    assert_eq!(task.wait(), 4);
    task.delete().unwrap();
    assert_eq!(second.finish().len(), 1_000_000);
}

/// Somebody outside of the container holds its output, such as a daemon that has left its cgroup. A slow machine is known by how long it
/// took to make the container, and has less time than the ten seconds for which some shims wait for the output.
fn leftover_output_does_not_hold_the_exit_up(world: &World) {
    let spec = Spec::sh("echo done; exec sleep 1000");
    let shim = Shim::start_for(world, "c1", &spec);
    let pipes = Pipes::new(world.dir(), "c1");
    let begun = Instant::now();
    let task = run(&shim, spec, pipes.outputs());
    pipes.out.says("done\n");
    let within = (2 * begun.elapsed()).clamp(Duration::from_secs(5), Duration::from_secs(9));
    let held = OpenOptions::new().write(true).open(format!("/proc/{}/fd/1", task.pid)).unwrap();
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    let begun = Instant::now();
    task.delete().unwrap();
    assert!(begun.elapsed() < within, "deleted only after {:?}", begun.elapsed());
    drop(held);
}
