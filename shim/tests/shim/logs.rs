//! What containers write, on disk.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use berth_proto::shim::{ReopenLogRequest, ReopenLogResponse, shim_service};
use nix::libc;
use nix::mount::{MsFlags, mount, umount};

use crate::harness::{LogLine, Pod, Spec, Task, World, until};
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
    assert!(task.log.rotated().len() > 4, "it was rotated: {:?}", task.log.names());

    let spec = Spec::sh("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
    let bounded = Task::try_create(&pod.shim, "c2", spec, "", "&max_size=100000&max_files=3").unwrap();
    bounded.begin().unwrap();
    assert_eq!(bounded.wait(), 0);
    bounded.delete().unwrap();
    assert_eq!(bounded.log.rotated().len() + 1, 3);
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
    const BEFORE: usize = 20_000;
    let pod = Pod::start(world);
    let (gate, disk) = (world.shared().join("gate"), world.dir().join("logs/c1"));
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir_all(&disk).unwrap();
    // Not a multiple of any line's length, so that the last one does not fit.
    mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=256k")).unwrap();
    let filler = disk.join(".filler");
    fs::write(&filler, vec![0; 100_000]).unwrap();
    let script = format!(
        "seq 1 {BEFORE}; exec 3<{}; while read line <&3; do echo $line; done; exit 2",
        gate.display()
    );
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script));
    let mut says = until("the container at its gate, which it does not reach if it is held up", || {
        fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&gate).ok()
    });
    fs::remove_file(&filler).unwrap();
    let mut number = 100_000;
    until("the log to go on", || {
        number += 1;
        says.write_all(format!("{number}\n").as_bytes()).unwrap();
        let last = task.log.lines().last().map(|line| line.content.parse::<usize>());
        last.is_some_and(|last| last.is_ok_and(|last| last > BEFORE)).then_some(())
    });
    drop(says);
    assert_eq!(task.wait(), 2);
    let lost = usize::try_from(task.view().log_dropped_bytes).unwrap();
    let numbers: Vec<usize> =
        task.log.lines().iter().map(|line| line.content.parse().expect("a whole line")).collect();
    let (before, after) = numbers.split_at(numbers.iter().take_while(|number| **number <= BEFORE).count());
    assert_eq!(before, (1..=before.len()).collect::<Vec<_>>(), "no gap before the disk was full");
    assert!(after.windows(2).all(|pair| pair[1] == pair[0] + 1), "no gap since there is room again");
    assert_eq!(after.last(), Some(&number));
    let missing = (BEFORE - before.len()) + (number - 100_000 - after.len());
    assert!(missing > 10_000, "only {missing} lines did not fit");
    // A line is its number and 42 bytes.
    assert!((missing * 45..=missing * 48).contains(&lost), "{lost} bytes of {missing} lines");
    task.delete().unwrap();
    // The thread that wrote it closes it in its own time.
    until("the log to be closed", || umount(&disk).ok());
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
