//! Streams that lead to named pipes and files, as containerd's own clients have them, or nowhere.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use berth_proto::process::Status;
use nix::libc;

use crate::harness::{Pod, Spec, Streams, Task, World, process, until};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("containerds_own_forms_work", EVERY, containerds_own_forms_work),
    ("what_leads_nowhere_is_drained", FAKE, what_leads_nowhere_is_drained),
    ("an_unread_fifo_fills_and_then_holds", FAKE, an_unread_fifo_fills_and_then_holds),
    ("a_fifo_keeps_what_nobody_has_read", EVERY, a_fifo_keeps_what_nobody_has_read),
    ("a_fifos_reader_may_go_and_come_back", EVERY, a_fifos_reader_may_go_and_come_back),
    ("a_fifos_writer_may_go_and_come_back", EVERY, a_fifos_writer_may_go_and_come_back),
    ("twenty_mebibytes_go_round_unchanged", EVERY, twenty_mebibytes_go_round_unchanged),
    ("both_streams_may_share_a_file", EVERY, both_streams_may_share_a_file),
    ("a_container_cannot_empty_its_file", EVERY, a_container_cannot_empty_its_file),
    ("a_full_disk_drops_and_counts", FAKE, a_full_disk_drops_and_counts),
    ("a_plain_path_may_be_a_file", FAKE, a_plain_path_may_be_a_file),
    ("a_terminal_on_fifos_is_a_terminal", REAL, a_terminal_on_fifos_is_a_terminal),
    ("a_terminals_output_outlives_a_slow_reader", REAL, a_terminals_output_outlives_a_slow_reader),
    ("a_terminal_may_write_to_a_file", REAL, a_terminal_may_write_to_a_file),
];

fn fifo(world: &World, name: &str) -> PathBuf {
    let path = world.dir().join(name);
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    path
}

/// A named pipe as its reader opens it, without waiting for anybody.
fn reader(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
}

fn output(path: &Path) -> Streams {
    Streams { stdout: path.display().to_string(), ..Streams::default() }
}

/// Reads until `enough` is content with what has come.
fn read_until(file: &mut File, what: &str, enough: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    until(what, || {
        let mut chunk = vec![0; 1 << 16];
        match file.read(&mut chunk) {
            Ok(count) => text.push_str(std::str::from_utf8(&chunk[..count]).unwrap()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        enough(&text).then_some(())
    });
    text
}

fn containerds_own_forms_work(world: &World) {
    let pod = Pod::start(world);
    let (file, fifo) = (world.dir().join("out"), world.dir().join("err"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let streams = Streams {
        stdin: String::new(),
        stdout: format!("file://{}", file.display()),
        stderr: fifo.display().to_string(),
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(&fifo).unwrap());
        let spec = Spec::sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2");
        let task = Task::create_with(&pod.shim, "c1", spec, streams).unwrap();
        task.begin().unwrap();
        assert_eq!(task.wait(), 0);
        task.delete().unwrap();
        assert_eq!(reader.join().unwrap().len(), 3_000_000);
    });
    assert_eq!(fs::metadata(&file).unwrap().len(), 3_000_000);
}

fn what_leads_nowhere_is_drained(world: &World) {
    let pod = Pod::start(world);
    let streams = Streams { stdin: String::new(), stdout: String::new(), stderr: String::new() };
    let spec = Spec::sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 3");
    let task = Task::create_with(&pod.shim, "c1", spec, streams).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 3);
}

/// A client of a FIFO that goes away must not cost output: it waits in the pipe for the next one.
fn an_unread_fifo_fills_and_then_holds(world: &World) {
    let pod = Pod::start(world);
    let fifo = world.dir().join("out");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let streams = Streams { stdin: String::new(), stdout: fifo.display().to_string(), stderr: String::new() };
    let spec = Spec::sh("head -c 1000000 /dev/zero; exit 4");
    let task = Task::create_with(&pod.shim, "c1", spec, streams).unwrap();
    task.begin().unwrap();
    let neighbour = Task::start(&pod.shim, "c2", Spec::sh("exit 5"));
    assert_eq!(neighbour.wait(), 5, "a container that waits for its reader holds up itself alone");
    let read = fs::read(&fifo).unwrap();
    assert_eq!(read.len(), 1_000_000);
    assert_eq!(task.wait(), 4);
}

/// A client that is away when its container ends, for a restart of its own, finds the last words.
fn a_fifo_keeps_what_nobody_has_read(world: &World) {
    let pod = Pod::start(world);
    let (out, of_exec) = (fifo(world, "out"), fifo(world, "of-exec"));
    let task = Task::create_with(&pod.shim, "c1", Spec::sh("echo last words; read x; exit 6"), {
        Streams { stdin: fifo(world, "in").display().to_string(), ..output(&out) }
    });
    let task = task.unwrap();
    task.begin().unwrap();
    let echo = process(&["/bin/busybox", "echo", "of an exec"]);
    let exec = task.exec_with("e1", &echo, output(&of_exec)).unwrap();
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 0);
    task.close_stdin().unwrap();
    assert_eq!(task.wait(), 6);
    assert_eq!(
        read_until(&mut reader(&of_exec), "the exec's output", |text| !text.is_empty()),
        "of an exec\n"
    );
    assert_eq!(read_until(&mut reader(&out), "the output", |text| !text.is_empty()), "last words\n");
}

fn a_fifos_reader_may_go_and_come_back(world: &World) {
    let pod = Pod::start(world);
    let out = fifo(world, "out");
    let mut first = reader(&out);
    let script = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done; exit 4";
    let task = Task::create_with(&pod.shim, "c1", Spec::sh(script), output(&out)).unwrap();
    task.begin().unwrap();
    let mut text = read_until(&mut first, "the beginning", |text| text.len() > 1000);
    drop(first);
    let mut second = reader(&out);
    text += &read_until(&mut second, "the rest", |text| text.ends_with("19999\n"));
    let expected: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    assert!(text == expected, "not a byte is lost between the two");
    assert_eq!(task.wait(), 4);
}

fn a_fifos_writer_may_go_and_come_back(world: &World) {
    let pod = Pod::start(world);
    let (input, out) = (fifo(world, "in"), fifo(world, "out"));
    let mut lines = reader(&out);
    let streams = Streams { stdin: input.display().to_string(), ..output(&out) };
    let script = "while read line; do echo got $line; done; exit 8";
    let task = Task::create_with(&pod.shim, "c1", Spec::sh(script), streams).unwrap();
    task.begin().unwrap();
    let write = |text: &str| OpenOptions::new().write(true).open(&input).unwrap().write_all(text.as_bytes());
    write("one\n").unwrap();
    read_until(&mut lines, "the first line", |text| text == "got one\n");
    write("two\n").unwrap();
    read_until(&mut lines, "the second line", |text| text == "got two\n");
    assert_eq!(task.status(), Status::Running, "a writer's leaving is not the end of the input");
    task.close_stdin().unwrap();
    assert_eq!(task.wait(), 8);
}

fn twenty_mebibytes_go_round_unchanged(world: &World) {
    const BYTES: usize = 20 << 20;
    let pod = Pod::start(world);
    let (input, out) = (fifo(world, "in"), fifo(world, "out"));
    let streams = Streams { stdin: input.display().to_string(), ..output(&out) };
    let task = Task::create_with(&pod.shim, "c1", Spec::run(&["/bin/busybox", "cat"]), streams).unwrap();
    let bytes: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| fs::read(&out).unwrap());
        task.begin().unwrap();
        OpenOptions::new().write(true).open(&input).unwrap().write_all(&bytes).unwrap();
        task.close_stdin().unwrap();
        assert!(read.join().unwrap() == bytes, "what comes out is what went in");
    });
    assert_eq!(task.wait(), 0);
}

fn both_streams_may_share_a_file(world: &World) {
    let pod = Pod::start(world);
    let file = world.dir().join("made/for it/out");
    let uri = format!("file://{}", file.display()).replace(' ', "%20");
    let streams = Streams { stdin: String::new(), stdout: uri.clone(), stderr: uri };
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "before\n").unwrap();
    let spec = Spec::sh("echo one; echo two >&2; exit 2");
    let task = Task::create_with(&pod.shim, "c1", spec, streams).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 2);
    let text = fs::read_to_string(&file).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["before", "one", "two"], "all is there once the exit is told");
}

/// What is told to write to /dev/stdout opens it anew, and a shell empties a file that it opens.
fn a_container_cannot_empty_its_file(world: &World) {
    let pod = Pod::start(world);
    let file = world.dir().join("out");
    let streams = Streams { stdout: format!("file://{}", file.display()), ..Streams::default() };
    let spec = Spec::sh("echo one; echo two >/proc/self/fd/1; echo three");
    let task = Task::create_with(&pod.shim, "c1", spec, streams).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\ntwo\nthree\n");
}

fn a_full_disk_drops_and_counts(world: &World) {
    let pod = Pod::start(world);
    let streams = Streams { stdout: "file:///dev/full".to_owned(), ..Streams::default() };
    let spec = Spec::sh("head -c 1000000 /dev/zero; exit 2");
    let task = Task::create_with(&pod.shim, "c1", spec, streams).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 2, "it was not held up");
    assert_eq!(task.view().log_dropped_bytes, 1_000_000);
}

fn a_plain_path_may_be_a_file(world: &World) {
    let pod = Pod::start(world);
    let file = world.dir().join("out");
    fs::write(&file, "before\n").unwrap();
    let task = Task::create_with(&pod.shim, "c1", Spec::sh("echo after; exit 2"), output(&file)).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 2);
    assert_eq!(fs::read_to_string(&file).unwrap(), "before\nafter\n");
}

fn a_terminal_on_fifos_is_a_terminal(world: &World) {
    let pod = Pod::start(world);
    let (input, out) = (fifo(world, "in"), fifo(world, "out"));
    let mut shown = reader(&out);
    let streams = Streams { stdin: input.display().to_string(), ..output(&out) };
    let task = Task::create_with(&pod.shim, "c1", Spec::sh("exec sh").terminal(), streams).unwrap();
    task.begin().unwrap();
    task.resize(101, 37).unwrap();
    let types = |text: &str| OpenOptions::new().write(true).open(&input).unwrap().write_all(text.as_bytes());
    types("stty size; tty\n").unwrap();
    read_until(&mut shown, "its size and name", |text| text.contains("37 101\r\n/dev/pts/"));
    types("exit 9\n").unwrap();
    assert_eq!(task.wait(), 9);
    let mut rest = Vec::new();
    until("the end of the output", || shown.read_to_end(&mut rest).is_ok().then_some(()));
}

fn a_terminals_output_outlives_a_slow_reader(world: &World) {
    let pod = Pod::start(world);
    let out = fifo(world, "out");
    let spec = Spec::sh("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done; exit 4").terminal();
    let task = Task::create_with(&pod.shim, "c1", spec, output(&out)).unwrap();
    task.begin().unwrap();
    let neighbour = Task::start(&pod.shim, "c2", Spec::sh("exit 5"));
    assert_eq!(neighbour.wait(), 5, "a terminal that nobody reads holds up itself alone");
    let text = fs::read_to_string(&out).unwrap();
    let expected: String = (0..20_000).map(|number| format!("{number}\r\n")).collect();
    assert!(text == expected, "the reader came late and has it all");
    assert_eq!(task.wait(), 4);
}

fn a_terminal_may_write_to_a_file(world: &World) {
    let pod = Pod::start(world);
    let file = world.dir().join("out");
    let streams = Streams { stdout: format!("file://{}", file.display()), ..Streams::default() };
    let spec = Spec::sh("echo one; exit 4").terminal();
    let task = Task::create_with(&pod.shim, "c1", spec, streams).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 4);
    until("the output", || (fs::read_to_string(&file).unwrap() == "one\r\n").then_some(()));
}
