//! Exits: none is lost, however many come at once.

use std::fs;
use std::io::Write;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Pod, Spec, Task, World, process, until};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("a_flood_of_exits_loses_none", EVERY, a_flood_of_exits_loses_none),
    ("daemons_that_end_are_nobodys_exit", FAKE, daemons_that_end_are_nobodys_exit),
    ("the_exit_is_on_disk_before_it_is_told", FAKE, the_exit_is_on_disk_before_it_is_told),
];

/// Execs with codes of their own, and hundreds of orphans, all of which end at the same moment: one SIGCHLD stands for many. While
/// the shim does nothing it stands for all, for the container's init too, whose end takes along what has not ended.
fn a_flood_of_exits_loses_none(world: &World) {
    const EXECS: u32 = 40;
    const ORPHANS: u32 = 200;
    let gate = world.shared_path("gate");
    for name in ["gate", "gate2", "gate3"] {
        nix::unistd::mkfifo(&world.shared().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let pod = Pod::start(world);
    // Everybody waits for a line, or for a writer; those that come late find theirs as long as the gate is open. The ends of the
    // orphans, which are process 1's, interrupt its wait for a writer.
    let orphans = format!(
        "i=0; while [ $i -lt {ORPHANS} ]; do (read x < {gate} &) ; i=$((i+1)); done 2>/dev/null; echo made; until read x < {gate}3; do :; done; exit 41"
    );
    let task = Task::start(&pod.shim, "c1", Spec::sh(&orphans));
    task.log.says("made");
    let execs: Vec<_> = (0..EXECS)
        .map(|number| {
            let at = if number < EXECS / 2 { "" } else { "2" };
            let script = format!("read x < {gate}{at}; exit {number}");
            let exec = task.exec(&format!("e{number}"), &process(&["/bin/busybox", "sh", "-c", &script]));
            let pid = exec.begin().unwrap().pid;
            (number, exec, pid)
        })
        .collect();
    let open = |name: &str, lines: u32| {
        let mut gate = fs::OpenOptions::new().read(true).write(true).open(world.shared().join(name)).unwrap();
        gate.write_all(&b"\n".repeat(lines as usize)).unwrap();
        gate
    };
    let (first, second) = execs.split_at(EXECS as usize / 2);
    let _gate = open("gate", ORPHANS + EXECS / 2);
    thread::scope(|scope| {
        for (number, exec, _) in first {
            scope.spawn(move || assert_eq!(exec.wait(), *number, "exec {number}"));
        }
    });
    let shim = Pid::from_raw(pod.shim.pid.try_into().unwrap());
    kill(shim, Signal::SIGSTOP).unwrap();
    let _gate2 = open("gate2", EXECS / 2);
    second.iter().for_each(|(number, _, pid)| has_ended(*number, *pid));
    let _gate3 = open("gate3", 1);
    is_ending(task.pid);
    kill(shim, Signal::SIGCONT).unwrap();
    for (number, exec, _) in second {
        assert_eq!(exec.wait(), *number, "exec {number}");
    }
    assert_eq!(task.wait(), 41);
    world.containerd.event("exit c1");
    let events = world.containerd.events();
    let exits: Vec<String> =
        events.iter().filter(|event| event.topic == "exit").map(|event| event.exec.clone()).collect();
    let mut told = exits.clone();
    told.sort();
    told.dedup();
    assert_eq!((exits.len(), told.len()), (EXECS as usize + 1, EXECS as usize + 1), "each exit once");
    assert_eq!(exits.last().unwrap(), "", "the init's exit is told last");
    until("the shim without zombies", || {
        let children = format!("/proc/{0}/task/{0}/children", pod.shim.pid);
        fs::read_to_string(children).unwrap().trim().is_empty().then_some(())
    });
}

/// Waits until an exec has ended, which nobody has collected. That it has no command line says nothing: one that begins to be its
/// command has none for a moment.
fn has_ended(number: u32, pid: u32) {
    let stat = format!("/proc/{pid}/stat");
    // The state stands behind the name.
    let is_zombie = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('Z'));
    let what = format!("the end of exec {number}");
    until(&what, || fs::read_to_string(&stat).is_ok_and(is_zombie).then_some(()));
}

/// Waits until the init, which has long begun, is about to end: it has no memory any more, and waits for the others of its namespace to
/// be collected.
fn is_ending(init: u32) {
    let line = format!("/proc/{init}/cmdline");
    until("the end of the init", || fs::read(&line).is_ok_and(|words| words.is_empty()).then_some(()));
}

/// Processes that outlived the exec that made them become the shim's children, and nobody asked about them.
fn daemons_that_end_are_nobodys_exit(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    world.containerd.event("start c1");
    let before = world.containerd.events().len();
    let exec = task.exec("e1", &process(&["/bin/busybox", "sh", "-c", "(setsid true &); (true &); exit 3"]));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 3);
    exec.delete().unwrap();
    world.containerd.event("exit c1/e1");
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    world.containerd.event("exit c1");
    let topics: Vec<String> =
        world.containerd.events().iter().skip(before).map(|event| event.brief()).collect();
    assert_eq!(topics, ["exec-added c1/e1", "exec-started c1/e1", "exit c1/e1", "exit c1"]);
}

/// Whoever hears of an exit finds its record.
fn the_exit_is_on_disk_before_it_is_told(world: &World) {
    let pod = Pod::start(world);
    for code in 0..20 {
        let id = format!("c{code}");
        let task = Task::start(&pod.shim, &id, Spec::sh(&format!("exit {code}")));
        assert_eq!(task.wait(), code);
        let record = fs::read(world.bundle(&id).join("exit.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        assert_eq!((&record["code"], &record["pid"]), (&code.into(), &task.pid.into()));
        task.delete().unwrap();
    }
}
