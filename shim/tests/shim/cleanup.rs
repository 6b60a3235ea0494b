//! Containers that the OCI runtime is slow to forget or does not forget, while the shim lives and in `delete` after it was lost.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::harness::{Pod, Spec, Task, World, process, until, write_program};
use crate::{Case, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("a_hanging_runtime_holds_no_delete_up", REAL, a_hanging_runtime_holds_no_delete_up),
    ("a_runtime_that_is_gone_leaves_nothing", REAL, a_runtime_that_is_gone_leaves_nothing),
    ("a_runtime_that_forgot_leaves_nothing", REAL, a_runtime_that_forgot_leaves_nothing),
    ("a_pod_of_many_is_gone_in_time", REAL, a_pod_of_many_is_gone_in_time),
    ("broken_notes_hold_no_delete_up", FAKE, broken_notes_hold_no_delete_up),
    ("what_the_runtime_does_not_delete_it_deletes_by_force", FAKE, what_the_runtime_does_not_delete),
    ("what_the_runtime_did_not_forget_stays_noted", REAL, what_the_runtime_did_not_forget_stays_noted),
];

/// A runtime that is the world's own until a file says otherwise: then its deletions of `victim` hang.
struct Wrapper {
    program: PathBuf,
    hangs: PathBuf,
}

impl Wrapper {
    fn new(world: &World, victim: &str) -> Wrapper {
        Wrapper::that(world, victim, "sleep 1000")
    }

    /// One whose deletions of `victim` do something else.
    fn that(world: &World, victim: &str, instead: &str) -> Wrapper {
        let (program, hangs) = (world.dir().join("wrapped"), world.dir().join("hangs"));
        let script = format!(
            "#!/bin/sh\nif [ -e {} ]; then case \"$*\" in *delete*{victim}) exec {instead};; esac; fi\nexec {} \"$@\"\n",
            hangs.display(),
            world.program().display(),
        );
        write_program(&program, &script);
        Wrapper { program, hangs }
    }
}

/// A pod of containers with children, execs and daemons, whose shim was killed.
struct Lost<'w> {
    pod: Pod<'w>,
    /// Of all of them.
    pids: Vec<u32>,
    /// How long it took to make one of them, in the mean.
    made: Duration,
}

fn lose<'w>(world: &'w World, wrapper: &Wrapper, members: u32) -> Lost<'w> {
    let begun = Instant::now();
    let pod =
        Pod::start_with(world, |options| options.runtime_binary = wrapper.program.display().to_string());
    let mut pids = Vec::new();
    for number in 0..members {
        let spec = Spec::sh("sleep 1000 & (setsid sleep 1000 &) ; echo ready; wait");
        let task = Task::start(&pod.shim, &format!("c{number}"), spec);
        task.log.says("ready");
        let exec = task.exec("e1", &process(&["/bin/busybox", "sleep", "1000"]));
        pids.push(exec.begin().unwrap().pid);
        pids.extend(task.pids().unwrap());
    }
    let made = begun.elapsed() / members;
    pod.shim.murder();
    Lost { pod, pids, made }
}

impl Lost<'_> {
    fn delete_in_time(&self) {
        let answer = self.pod.shim.delete_in_time(self.made);
        assert_eq!(answer.exit_status, 137);
        for pid in &self.pids {
            let path = format!("/proc/{pid}");
            until(&format!("the end of process {pid}"), || (!fs::exists(&path).unwrap()).then_some(()));
        }
    }
}

fn a_hanging_runtime_holds_no_delete_up(world: &World) {
    let wrapper = Wrapper::new(world, "c1");
    let lost = lose(world, &wrapper, 3);
    fs::write(&wrapper.hangs, "").unwrap();
    lost.delete_in_time();
}

fn a_runtime_that_is_gone_leaves_nothing(world: &World) {
    let wrapper = Wrapper::new(world, "c1");
    let lost = lose(world, &wrapper, 2);
    fs::remove_file(&wrapper.program).unwrap();
    lost.delete_in_time();
}

/// Where the runtime of a wrapper keeps what the shims of a world have there.
fn state_of(world: &World) -> PathBuf {
    let containerds = fs::read_dir("/run/berth-shim/wrapped").unwrap().flatten();
    let here: Vec<PathBuf> =
        containerds.map(|entry| entry.path().join(world.name())).filter(|path| path.is_dir()).collect();
    let [one] = here.as_slice() else { panic!("{here:?}") };
    one.clone()
}

/// As after its state directory, which is in memory, was lost.
fn a_runtime_that_forgot_leaves_nothing(world: &World) {
    let wrapper = Wrapper::new(world, "c1");
    let lost = lose(world, &wrapper, 2);
    let state = state_of(world);
    assert_eq!(fs::read_dir(&state).unwrap().count(), 2);
    fs::remove_dir_all(&state).unwrap();
    lost.delete_in_time();
}

fn a_pod_of_many_is_gone_in_time(world: &World) {
    let wrapper = Wrapper::new(world, "nobody");
    let lost = lose(world, &wrapper, 20);
    lost.delete_in_time();
}

/// Notes that were torn, replaced or made endless do not keep the rest from being cleaned.
fn broken_notes_hold_no_delete_up(world: &World) {
    let pod = Pod::start(world);
    let spec = || Spec::sh("exec sleep 1000");
    let (one, two) = (Task::start(&pod.shim, "c1", spec()), Task::start(&pod.shim, "c2", spec()));
    pod.shim.murder();
    let note = |id: &str| world.bundle(id).join("berth.json");
    let whole = fs::read(note("c1")).unwrap();
    let broken = |bytes: &[u8]| {
        fs::remove_file(note("c1")).unwrap();
        fs::write(note("c1"), bytes).unwrap();
    };
    broken(b"{\"id\":");
    pod.shim.delete();
    until("the end of c2", || (!fs::exists(format!("/proc/{}", two.pid)).unwrap()).then_some(()));
    fs::remove_file(note("c1")).unwrap();
    nix::unistd::mkfifo(&note("c1"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    pod.shim.delete();
    broken(&whole);
    pod.shim.delete();
    until("the end of c1", || (!fs::exists(format!("/proc/{}", one.pid)).unwrap()).then_some(()));
}

/// As of a container with a process that does not end, or a group that is busy.
fn what_the_runtime_does_not_delete(world: &World) {
    let calls = world.dir().join("deletions");
    let stuck = format!(
        "sh -c 'echo \"$*\" >>{}; case \"$*\" in *--force*) exec {} \"$@\";; esac; exit 1' sh \"$@\"",
        calls.display(),
        world.program().display(),
    );
    let wrapper = Wrapper::that(world, "c1", &stuck);
    let pod =
        Pod::start_with(world, |options| options.runtime_binary = wrapper.program.display().to_string());
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 3"));
    fs::write(&wrapper.hangs, "").unwrap();
    assert_eq!(task.wait(), 3);
    assert_eq!(task.delete().unwrap().exit_status, 3);
    let calls = fs::read_to_string(&calls).unwrap();
    let by_force: Vec<bool> = calls.lines().map(|call| call.contains(" --force ")).collect();
    assert_eq!(by_force, [false, true], "{calls}");
    assert_eq!(fs::read_dir(state_of(world)).unwrap().count(), 0, "what the runtime knows");
}

/// The pod ends although a runtime fails to forget a member; `delete`, which containerd runs then, makes up for it.
fn what_the_runtime_did_not_forget_stays_noted(world: &World) {
    let wrapper = Wrapper::that(world, "c1", "false");
    let pod =
        Pod::start_with(world, |options| options.runtime_binary = wrapper.program.display().to_string());
    let spec = || Spec::sh("exec sleep 1000");
    let (_one, two) = (Task::start(&pod.shim, "c1", spec()), Task::start(&pod.shim, "c2", spec()));
    fs::write(&wrapper.hangs, "").unwrap();
    pod.shutdown();
    let state = state_of(world);
    let known = || fs::read_dir(&state).unwrap().flatten().map(|entry| entry.file_name()).collect::<Vec<_>>();
    assert_eq!(known(), ["c1"], "what the runtime knows");
    assert!(!two.bundle.join("berth.json").exists(), "what it has forgotten is not noted");
    fs::remove_file(&wrapper.hangs).unwrap();
    pod.shim.delete();
    assert_eq!(known(), [""; 0]);
}
