//! What much use leaves behind: memory, descriptors, processes, mounts.

use std::fs;

use berth_proto::TASK_V3;
use berth_proto::task::{
    CreateTaskResponse, DeleteRequest, DeleteResponse, StartRequest, StartResponse, WaitRequest,
    WaitResponse, task_service,
};

use super::{Case, containers, shim};
use crate::fake_runtime;
use crate::harness::{Conn, Shim, Spec, Streams, Task, World, process, until, until_ok};

pub(super) const CASES: &[Case] = &[
    shim("memory_is_flat_over_many_lives", memory_is_flat_over_many_lives),
    containers("nothing_is_left_of_many_lives", nothing_is_left_of_many_lives),
    shim("clients_come_and_go_for_nothing", clients_come_and_go_for_nothing),
];

/// Lives before the first look, after which every buffer and table has its size.
const WARM_UP: u32 = 300;
/// Containers at a time.
const LANES: u32 = 4;
/// Lives whose events may wait for containerd at once: what waits is no growth, but leaves holes where others were.
const ROUND: u32 = 300;

fn memory_is_flat_over_many_lives(world: &World) {
    let endurance = world.subject().endurance;
    let spec = Spec::sh("").annotation(fake_runtime::INIT, "exit");
    let shim = Shim::start_for(world, "c1", &spec);
    many_lives(&shim, &spec, WARM_UP);
    told(world, WARM_UP);
    let before = own_kib(shim.pid);
    let mut lives = WARM_UP;
    while lives < WARM_UP + endurance.cycles {
        many_lives(&shim, &spec, ROUND);
        lives += ROUND;
        told(world, lives);
    }
    let what = format!(
        "at most {} KiB more than the {before} KiB before, after {} containers",
        endurance.growth_kib_max, endurance.cycles
    );
    until_ok(&what, || {
        let now = own_kib(shim.pid);
        if now <= before + endurance.growth_kib_max { Ok(()) } else { Err(format!("{now} KiB")) }
    });
}

/// Waits until containerd was told of the ends of this many containers.
fn told(world: &World, lives: u32) {
    world.containerd.events_until("the last deletion", |events| {
        events.iter().filter(|event| event.topic == "delete").count() >= lives as usize
    });
}

fn many_lives(shim: &Shim<'_>, spec: &Spec, lives: u32) {
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || {
                let mut conn = shim.connect();
                let id = format!("c{lane}");
                for _ in 0..lives / LANES {
                    live(shim, &mut conn, &id, spec);
                }
            });
        }
    });
}

/// Create, start, wait, delete, as they follow each other most often.
fn live(shim: &Shim<'_>, conn: &mut Conn, id: &str, spec: &Spec) {
    let id = || id.to_owned();
    let request = Task::request(shim, &id(), spec, Streams::default());
    let _: CreateTaskResponse = conn.call(TASK_V3, task_service::CREATE, &request).unwrap();
    let request = StartRequest { id: id(), exec_id: String::new() };
    let _: StartResponse = conn.call(TASK_V3, task_service::START, &request).unwrap();
    let request = WaitRequest { id: id(), exec_id: String::new() };
    let _: WaitResponse = conn.call(TASK_V3, task_service::WAIT, &request).unwrap();
    let request = DeleteRequest { id: id(), exec_id: String::new() };
    let _: DeleteResponse = conn.call(TASK_V3, task_service::DELETE, &request).unwrap();
}

/// Memory that no file stands behind, in KiB. What was read from a program that was just built counts as changed until it is on
/// disk, and as somebody's own while nobody else runs it.
fn own_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let of = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    of("Anonymous:") + of("SwapPss:")
}

fn nothing_is_left_of_many_lives(world: &World) {
    let shim = Shim::start_for(world, "c1", &Spec::sh(""));
    let round = |number: u32| {
        let task = Task::start(&shim, &format!("c{number}"), Spec::sh("echo x; exec sleep 1000"));
        let exec = task.exec("e1", &process(&["/bin/busybox", "true"]));
        exec.begin().unwrap();
        exec.wait();
        exec.delete().unwrap();
        task.kill(9).unwrap();
        task.wait();
        task.delete().unwrap();
    };
    (0..2).for_each(round);
    let before = shim.descriptors() + world.subject().endurance.descriptors_max;
    (2..12).for_each(round);
    until("the shim's descriptors back at their number", || (shim.descriptors() <= before).then_some(()));
    until("the end of the shim's children", || children(shim.pid).is_empty().then_some(()));
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", shim.pid)).unwrap();
    let own = world.dir().display().to_string();
    assert!(!mounts.contains(&own), "mounts are left:\n{mounts}");
}

fn children(parent: u32) -> Vec<String> {
    let stats = fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let of_parent = |stat: &String| {
        let rest = stat.rsplit(')').next().unwrap_or_default();
        rest.split_whitespace().nth(1) == Some(parent.to_string().as_str())
    };
    stats.filter(of_parent).collect()
}

fn clients_come_and_go_for_nothing(world: &World) {
    let shim = Shim::start_for(world, "c1", &Spec::sh(""));
    let task = Task::start(&shim, "c1", Spec::sh("exec sleep 1000"));
    task.status();
    let before = shim.descriptors();
    for _ in 0..300 {
        task.status();
    }
    until("the shim's descriptors back at their number", || (shim.descriptors() <= before).then_some(()));
}
