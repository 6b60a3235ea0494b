//! Death of the shim, and what is cleaned up after it.

use crate::harness::{Shim, Spec, Task, World};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("an_exit_is_remembered_on_disk", FAKE, an_exit_is_remembered_on_disk),
    ("an_exit_that_was_recorded_and_not_published_is_told", FAKE, an_unpublished_exit_is_told),
    ("delete_after_a_clean_end_asks_no_runtime", EVERY, delete_after_a_clean_end_asks_no_runtime),
];

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
    let spec = Spec::sh("exit 23");
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    let record = shim.bundle.join("berth.json");
    assert!(record.exists(), "a live container's runtime is noted");
    assert_eq!(task.wait(), 23);
    task.delete().unwrap();
    assert!(!record.exists());
    assert_eq!(shim.delete().exit_status, 23);
}
