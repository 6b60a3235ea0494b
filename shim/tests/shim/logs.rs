//! What containers write, on disk.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use berth_proto::shim::{ReopenLogRequest, ReopenLogResponse, shim_service};
use nix::mount::{MsFlags, mount, umount};

use crate::harness::{LogLine, Pod, Spec, Streams, Task, World, until};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("both_streams_are_told_apart", EVERY, both_streams_are_told_apart),
    ("an_unfinished_line_is_a_part", FAKE, an_unfinished_line_is_a_part),
    ("rotation_loses_no_line", EVERY, rotation_loses_no_line),
    (
        "no_line_is_lost_while_agent_and_containerd_are_away",
        EVERY,
        no_line_is_lost_while_agent_and_containerd_are_away,
    ),
    ("a_moved_log_is_reopened_on_request", FAKE, a_moved_log_is_reopened_on_request),
    ("a_full_disk_does_not_hold_a_container_up", FAKE, a_full_disk_does_not_hold_a_container_up),
    ("a_log_is_never_written_through_a_link", FAKE, a_log_is_never_written_through_a_link),
    ("containerds_own_forms_work", EVERY, containerds_own_forms_work),
    ("a_logging_program_gets_both_streams", FAKE, a_logging_program_gets_both_streams),
    ("what_leads_nowhere_is_drained", FAKE, what_leads_nowhere_is_drained),
    ("an_unread_fifo_fills_and_then_holds", FAKE, an_unread_fifo_fills_and_then_holds),
];

fn both_streams_are_told_apart(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("printf 'one\\r\\n'; echo two >&2; printf three"));
    task.wait();
    task.delete().unwrap();
    let line = |stream: &str, tag: &str, content: &str| LogLine {
        stream: stream.to_owned(),
        tag: tag.to_owned(),
        content: content.to_owned(),
    };
    let lines = task.log.lines();
    for expected in [line("stdout", "F", "one"), line("stderr", "F", "two"), line("stdout", "P", "three")] {
        assert!(lines.contains(&expected), "{expected:?} in {lines:?}");
    }
    assert_eq!(lines.len(), 3);
    assert_eq!(fs::metadata(&task.log.path).unwrap().permissions().mode() & 0o777, 0o640);
}

fn an_unfinished_line_is_a_part(world: &World) {
    let pod = Pod::start(world);
    let gate = world.shared().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("printf prompt; read line < {}; echo ed", gate.display());
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script));
    task.log.says("prompt");
    fs::write(&gate, "\n").unwrap();
    task.wait();
    task.delete().unwrap();
    let tags: Vec<String> = task.log.lines().into_iter().map(|line| line.tag).collect();
    assert_eq!(tags, ["P", "F"]);
    assert_eq!(task.log.text("stdout"), "prompted\n");
}

fn rotation_loses_no_line(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
    let task = Task::try_create(&pod.shim, "c1", spec, "", "&max_size=100000&max_files=1000").unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    task.delete().unwrap();
    let expected: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
    assert!(task.log.text("stdout") == expected, "every line, once, in order");
    assert!(task.log.files().len() > 5, "it was rotated: {:?}", task.log.files());

    let spec = Spec::sh("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
    let bounded = Task::try_create(&pod.shim, "c2", spec, "", "&max_size=100000&max_files=3").unwrap();
    bounded.begin().unwrap();
    assert_eq!(bounded.wait(), 0);
    bounded.delete().unwrap();
    assert_eq!(bounded.log.files().len(), 3);
    let text = bounded.log.text("stdout");
    assert!(expected.ends_with(&text) && text.len() > 10_000, "the newest lines are kept");
}

fn no_line_is_lost_while_agent_and_containerd_are_away(world: &World) {
    const LINES: usize = 5000;
    let pod = Pod::start(world);
    let (gate, done) = (world.shared().join("gate"), world.shared().join("done"));
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!(
        "read line < {}; i=0; while [ $i -lt {LINES} ]; do echo $i; i=$((i+1)); done; echo > {}; exit 9",
        world.shared_path("gate"),
        world.shared_path("done")
    );
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script));
    world.containerd.event("start c1");
    world.containerd.go_away();
    // Every call of this test is a connection of its own, so that from here to the end of the output nobody is there.
    // Both ends, so that a reader that never comes is a failure below and not a wait here.
    let mut open = fs::OpenOptions::new().read(true).write(true).open(&gate).unwrap();
    open.write_all(b"\n").unwrap();
    until("the container's last word", || done.exists().then_some(()));
    assert_eq!(task.wait(), 9);
    let expected: String = (0..LINES).map(|line| format!("{line}\n")).collect();
    assert_eq!(task.log.text("stdout"), expected);
    assert_eq!(task.view().log_dropped_bytes, 0);
}

fn a_moved_log_is_reopened_on_request(world: &World) {
    let pod = Pod::start(world);
    let gate = world.shared().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo before; read line < {}; echo after", gate.display());
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script));
    task.log.says("before");
    let moved = task.log.path.with_extension("log.moved");
    fs::rename(&task.log.path, &moved).unwrap();
    let request = ReopenLogRequest { container_id: "c1".to_owned() };
    let ReopenLogResponse {} = pod.shim.call(shim_service::NAME, shim_service::REOPEN_LOG, &request).unwrap();
    fs::write(&gate, "\n").unwrap();
    task.wait();
    task.delete().unwrap();
    assert!(fs::read_to_string(&moved).unwrap().ends_with(" F before\n"));
    assert!(fs::read_to_string(&task.log.path).unwrap().ends_with(" F after\n"));
}

fn a_full_disk_does_not_hold_a_container_up(world: &World) {
    let pod = Pod::start(world);
    let disk = world.dir().join("logs/c1");
    fs::create_dir_all(&disk).unwrap();
    mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
    let task = Task::start(&pod.shim, "c1", Spec::sh("head -c 4000000 /dev/zero | tr '\\0' x; exit 2"));
    assert_eq!(task.wait(), 2);
    let lost =
        until("the count of what was lost", || Some(task.view().log_dropped_bytes).filter(|lost| *lost > 0));
    assert!(lost > 3_000_000, "only {lost} bytes are counted as lost");
    task.delete().unwrap();
    umount(&disk).unwrap();
}

fn a_log_is_never_written_through_a_link(world: &World) {
    let pod = Pod::start(world);
    let (victim, dir) = (world.dir().join("victim"), world.dir().join("logs/c1"));
    fs::write(&victim, "untouched").unwrap();
    fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(&victim, dir.join("0.log")).unwrap();
    let task = Task::start(&pod.shim, "c1", Spec::sh("echo over; exit 1"));
    assert_eq!(task.wait(), 1);
    task.delete().unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
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

/// containerd's `binary://` protocol: the streams are descriptors 3 and 4, and closing 5 says ready.
fn a_logging_program_gets_both_streams(world: &World) {
    let pod = Pod::start(world);
    let (program, out, err) = (world.dir().join("logger"), world.dir().join("out"), world.dir().join("err"));
    let script = format!(
        "#!/bin/sh\ncat <&3 >{out} 5>&- &\ncat <&4 >{err} 5>&- &\nexec 3<&- 4<&- 5>&-\nwait\necho $CONTAINER_ID $1 $2 >>{out}\n",
        out = out.display(),
        err = err.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let uri = format!("binary://{}?key=value", program.display());
    let streams = Streams { stdin: String::new(), stdout: uri.clone(), stderr: uri };
    let task =
        Task::create_with(&pod.shim, "c1", Spec::sh("echo one; echo two >&2; exit 4"), streams).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 4);
    task.delete().unwrap();
    let read = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default();
    until("both streams and the program's end", || {
        (read(&out) == "one\nc1 key value\n" && read(&err) == "two\n").then_some(())
    });
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
