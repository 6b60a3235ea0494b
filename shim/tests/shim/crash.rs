//! Death of the shim, and what is cleaned up after it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::{Shim, Spec, Task, World, write_program};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("a_crash_leaves_no_core_dump", FAKE, a_crash_leaves_no_core_dump),
    ("an_exit_is_remembered_on_disk", FAKE, an_exit_is_remembered_on_disk),
    ("an_exit_that_was_recorded_and_not_published_is_told", FAKE, an_unpublished_exit_is_told),
    ("delete_after_a_clean_end_asks_no_runtime", EVERY, delete_after_a_clean_end_asks_no_runtime),
];

/// In its memory is what its containers run with, and secrets are in that.
fn a_crash_leaves_no_core_dump(world: &World) {
    let another = world.dir().join("another");
    fs::create_dir(&another).unwrap();
    let crash = ["-c", "ulimit -c unlimited; kill -ABRT $$"];
    Command::new("/bin/sh").args(crash).current_dir(&another).status().unwrap();
    let left_out = match (core_dumps(&another), may_trace()) {
        (0, _) => Some("core dumps are not left here"),
        (_, false) => Some("a shim without CAP_SYS_PTRACE stays as it is"),
        (_, true) => None,
    };
    if let Some(why) = left_out {
        eprintln!("LEFT OUT, since {why}: a_crash_leaves_no_core_dump");
        return;
    }
    let spec = Spec::sh("exec sleep 1000");
    let shim = Shim::start_plain(world, "c1", &spec);
    let _task = Task::start(&shim, "c1", spec);
    let pid = shim.pid.to_string();
    let allowed = Command::new("prlimit").args(["--pid", &pid, "--core=unlimited"]).status().unwrap();
    assert!(allowed.success(), "{allowed}");
    shim.die_of(Signal::SIGABRT);
    assert_eq!(core_dumps(&shim.bundle), 0);
    assert_eq!(shim.delete().exit_status, 137);
}

/// Whether what runs here has `CAP_SYS_PTRACE`.
fn may_trace() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() & (1 << 19) != 0
}

fn core_dumps(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("core")).count()
}

fn an_exit_is_remembered_on_disk(world: &World) {
    let spec = Spec::sh("exit 23");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    assert_eq!(task.wait(), 23);
    shim.murder();
    assert_eq!(shim.delete().exit_status, 23, "the shim's death does not change how the task ended");
}

/// The shim dies between the exit record and the event: `delete` is what containerd learns the exit from.
fn an_unpublished_exit_is_told(world: &World) {
    let spec = Spec::sh("exit 23");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::create(&shim, "c1", spec);
    world.containerd.event("create c1");
    world.containerd.go_away();
    task.begin().unwrap();
    assert_eq!(task.wait(), 23);
    shim.murder();
    let heard = world.containerd.events();
    assert!(heard.iter().all(|event| event.topic != "exit"), "published after all: {heard:?}");
    let answer = shim.delete();
    assert_eq!((answer.pid, answer.exit_status), (task.pid, 23));
}

/// containerd runs `delete` after every end, so what the runtime has forgotten must not cost another call of it.
fn delete_after_a_clean_end_asks_no_runtime(world: &World) {
    let runtime = Counted::new(world);
    let spec = Spec::sh("exit 23");
    let shim = Shim::start_plain_of(world, "c1", &spec, &runtime.program);
    let task = Task::start(&shim, "c1", spec);
    let record = shim.bundle.join("berth.json");
    assert!(record.exists(), "a live container's runtime is noted");
    assert_eq!(task.wait(), 23);
    task.delete().unwrap();
    assert!(!record.exists());
    let before = runtime.calls();
    assert_eq!(deletions(&before, "c1"), 1, "{before:?}");
    assert_eq!(shim.delete().exit_status, 23);
    assert_eq!(runtime.calls(), before);

    // Of one that was lost, the same runtime is asked.
    let spec = Spec::sh("exec sleep 1000");
    let shim = Shim::start_plain_of(world, "c2", &spec, &runtime.program);
    let _task = Task::start(&shim, "c2", spec);
    shim.murder();
    assert_eq!(shim.delete().exit_status, 137);
    let after = runtime.calls();
    assert_eq!((deletions(&after, "c1"), deletions(&after, "c2")), (1, 1), "{after:?}");
}

fn deletions(calls: &[String], id: &str) -> usize {
    let is_deletion = |call: &&String| {
        let words: Vec<&str> = call.split(' ').collect();
        words.contains(&"delete") && words.last() == Some(&id)
    };
    calls.iter().filter(is_deletion).count()
}

/// The world's runtime, with a list of its calls.
struct Counted {
    program: PathBuf,
    calls: PathBuf,
}

impl Counted {
    fn new(world: &World) -> Counted {
        let (program, calls) = (world.dir().join("wrapped"), world.dir().join("calls"));
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>{}\nexec {} \"$@\"\n",
            calls.display(),
            world.program().display()
        );
        write_program(&program, &script);
        Counted { program, calls }
    }

    fn calls(&self) -> Vec<String> {
        fs::read_to_string(&self.calls).unwrap().lines().map(str::to_owned).collect()
    }
}
