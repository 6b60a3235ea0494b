//! What containerd hears.

use std::fs;

use super::{Case, containers, shim};
use crate::harness::{Recorded, Shim, Spec, Task, World, process};

pub(super) const CASES: &[Case] = &[
    shim("nothing_is_lost_while_containerd_restarts", nothing_is_lost_while_containerd_restarts),
    shim("the_order_is_kept_while_containerd_restarts", the_order_is_kept_while_containerd_restarts),
    containers("short_tasks_keep_their_order", short_tasks_keep_their_order),
    containers("short_execs_keep_their_order", short_execs_keep_their_order),
];

/// Tasks that end as they start, all at once: no exit is lost, early, or another's.
fn short_tasks_keep_their_order(world: &World) {
    let shim = Shim::start_for(world, "c0", &Spec::sh(""));
    let codes = 0..12_u32;
    std::thread::scope(|scope| {
        for code in codes.clone() {
            let shim = &shim;
            scope.spawn(move || {
                let task = Task::start(shim, &format!("c{code}"), Spec::sh(&format!("exit {code}")));
                assert_eq!(task.wait(), code);
                task.delete().unwrap();
            });
        }
    });
    for code in codes {
        let id = format!("c{code}");
        let events = world.containerd.events_of(&id, &format!("delete {id}"));
        let seen: Vec<(String, u32)> = events.into_iter().map(|event| (event.topic, event.code)).collect();
        let expected = [("create", 0), ("start", 0), ("exit", code), ("delete", code)];
        assert_eq!(seen, expected.map(|(topic, code)| (topic.to_owned(), code)), "of {id}");
    }
}

fn short_execs_keep_their_order(world: &World) {
    let shim = Shim::start_for(world, "c1", &Spec::sh(""));
    let task = Task::start(&shim, "c1", Spec::sh("exec sleep 1000"));
    for round in 0..8 {
        let exec = task.exec(&format!("e{round}"), &process(&["/bin/busybox", "true"]));
        exec.begin().unwrap();
        exec.wait();
        exec.delete().unwrap();
    }
    task.kill(9).unwrap();
    task.wait();
    task.delete().unwrap();
    let events = world.containerd.events_of("c1", "delete c1");
    let seen: Vec<String> = events.iter().map(|event| event.brief()).collect();
    let of = |round: u32| ["exec-added", "exec-started", "exit"].map(|topic| format!("{topic} c1/e{round}"));
    let expected: Vec<String> = ["create c1".to_owned(), "start c1".to_owned()]
        .into_iter()
        .chain((0..8).flat_map(of))
        .chain(["exit c1".to_owned(), "delete c1".to_owned()])
        .collect();
    assert_eq!(seen, expected);
}

/// A task that lived while containerd was away.
fn heard_after_a_restart(world: &World) -> Vec<String> {
    let shim = Shim::start_for(world, "c1", &Spec::sh(""));
    let first = Task::start(&shim, "c1", Spec::sh("exit 0"));
    first.wait();
    world.containerd.event("exit c1");
    world.containerd.go_away();
    let second = Task::create(&shim, "c2", Spec::sh("exit 6"));
    let between = Task::start(&shim, "c3", Spec::sh("exit 5"));
    assert_eq!(between.wait(), 5, "containerd's absence holds nothing up");
    between.delete().unwrap();
    fs::remove_file(world.containerd.socket()).unwrap();
    world.containerd.relisten();
    second.begin().unwrap();
    assert_eq!(second.wait(), 6);
    second.delete().unwrap();
    let of_second = |events: &[Recorded]| -> Vec<String> {
        events.iter().filter(|event| event.container == "c2").map(|event| event.topic.clone()).collect()
    };
    of_second(&world.containerd.events_until("all four", |events| of_second(events).len() == 4))
}

fn nothing_is_lost_while_containerd_restarts(world: &World) {
    let mut heard = heard_after_a_restart(world);
    heard.sort_unstable();
    assert_eq!(heard, ["create", "delete", "exit", "start"]);
}

fn the_order_is_kept_while_containerd_restarts(world: &World) {
    assert_eq!(heard_after_a_restart(world), ["create", "start", "exit", "delete"]);
}
