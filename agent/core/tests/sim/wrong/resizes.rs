//! Resources that nobody allocated, cgroups that are too small, and resizes that are not told as they are. It is the world that is wrong
//! here: what looks at it is tried with the rules.

use berth_core::{
    pod::port::resize::{MemoryBound, MemoryCheck, ResizeRequest},
    record::Resizing,
    status::{Condition, ConditionKind},
};
use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};

use super::*;
use crate::world::World;

const MIB: u64 = 1 << 20;

/// Its containers may use a tenth of a core and 100 MiB each.
fn begin_bounded(run: &mut Run, names: &[&str]) {
    let mut pod = pods::pod("web", names);
    for name in names {
        pods::edit(&mut pod, name).resources = pods::resources((10, MIB), (100, 100 * MIB));
    }
    begin_with(run, pod);
}

/// Its containers share a tenth of a core and 100 MiB, which it names for itself.
fn begin_sharing(run: &mut Run) {
    let mut pod = pods::pod("web", &["main", "other"]);
    pod.resources = Some(pods::resources((10, MIB), (100, 100 * MIB)));
    begin_with(run, pod);
}

/// So much is requested for its only container, and it may use as much as before.
fn ask_for(run: &mut Run, milli: u64) {
    let mut pod = Pod::clone(&run.spec("web").expect("it is wanted"));
    pods::edit(&mut pod, "main").resources = pods::resources((milli, MIB), (100, 100 * MIB));
    run.want(pod);
    run.settle();
}

/// Changes what is on the node, in a life that was right so far.
fn breaks(run: &mut Run, change: impl FnOnce(&mut World)) {
    assert_eq!(run.world.violations, Vec::<String>::new(), "before the change");
    change(&mut run.world);
}

fn resize(run: &mut Run, resources: LinuxResources) {
    let id = run.world.running(&uid(), "main").expect("it runs");
    let qos = run.spec("web").expect("it is wanted").qos;
    let (name, sandbox) = (ContainerName::new("main"), SandboxId::of(&uid(), 0));
    let lowered = MemoryCheck { qos, bounds: Vec::new() };
    let request = ResizeRequest { name, id, sandbox, resources, lowered };
    perform(run, Act::ResizeContainer(Box::new(request)));
}

fn perform(run: &mut Run, act: Act) {
    let now = run.now;
    let effect = Effect::Pod { op: OpId(u64::MAX), pod: uid(), act };
    breaks(run, |world| world.perform(&effect, now).expect("an outcome").map(drop).expect("it is done"));
}

pub(super) fn given_something_else(run: &mut Run) {
    begin_bounded(run, &["main"]);
    let (mut memory, mut resources) = (LinuxMemory::default(), LinuxResources::default());
    memory.set_limit(Some(50 << 20));
    resources.set_memory(Some(memory));
    resize(run, resources);
}

pub(super) fn given_what_is_asked_for(run: &mut Run) {
    begin_bounded(run, &["main"]);
    ask_for(run, 5000);
    let (mut cpu, mut resources) = (LinuxCpu::default(), LinuxResources::default());
    cpu.set_shares(Some(5120));
    resources.set_cpu(Some(cpu));
    resize(run, resources);
}

pub(super) fn shrunk_unseen(run: &mut Run) {
    begin_bounded(run, &["main"]);
    shrink(run, 150);
}

pub(super) fn shrunk_further_than_seen(run: &mut Run) {
    begin_bounded(run, &["main"]);
    look(run, 150);
    shrink(run, 149);
}

/// Whether so many MiB are enough for what the pod uses.
fn look(run: &mut Run, mib: u64) {
    let qos = run.spec("web").expect("it is wanted").qos;
    let bounds = vec![MemoryBound { container: None, limit: mib * MIB }];
    perform(run, Act::CheckMemory(MemoryCheck { qos, bounds }));
}

pub(super) fn shrunk_before_its_containers(run: &mut Run) {
    begin_bounded(run, &["main", "other"]);
    look(run, 199);
    shrink(run, 199);
}

pub(super) fn shrunk_before_one_that_shares(run: &mut Run) {
    begin_sharing(run);
    look(run, 99);
    shrink(run, 99);
}

/// The pod's cgroup may use so many MiB of memory from now on.
fn shrink(run: &mut Run, mib: u64) {
    let asked = run.told.iter().rev().find_map(|effect| match effect {
        Effect::Pod { act: Act::EnsureCgroup(request), .. } => Some(request.clone()),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    });
    let mut smaller = asked.expect("it has a cgroup");
    smaller.values.memory_bytes_max = Some(mib * MIB);
    perform(run, Act::EnsureCgroup(smaller));
}

pub(super) fn bounded_otherwise_at_rest(run: &mut Run) {
    begin_sharing(run);
    breaks(run, |world| {
        world.levels.get_mut(&uid()).expect("it has a cgroup").memory = Some(101 * MIB);
        world.check_given(&uid());
    });
}

pub(super) fn left_at_rest(run: &mut Run) {
    begin_bounded(run, &["main", "other"]);
    let id = run.world.running(&uid(), "other").expect("it runs");
    breaks(run, |world| {
        world.containers.get_mut(&id).expect("it is there").given.shares = Some(20);
        world.check_given(&uid());
    });
}

pub(super) fn told_at_rest(run: &mut Run) {
    begin_bounded(run, &["main"]);
    breaks(run, |world| {
        let record = world.records.get_mut(&uid()).expect("it has one");
        record.resizing = Some(Resizing { generation: None, error: None, whole: None, memory: None });
        world.check_given(&uid());
    });
}

/// Other pods have gone since, and it fits.
pub(super) fn waits_at_rest(run: &mut Run) {
    let mut other = pods::pod("other", &["main"]);
    pods::edit(&mut other, "main").resources = pods::resources((1500, MIB), (1500, MIB));
    run.want(other);
    begin_bounded(run, &["main"]);
    ask_for(run, 1000);
    let asked = run.spec("web").expect("it is wanted");
    breaks(run, |world| {
        world.check_waits(&asked);
        assert_eq!(world.violations, Vec::<String>::new(), "it does not fit");
        world.records.remove(&PodUid::new("uid-other"));
        world.check_waits(&asked);
    });
}

/// It asks for nothing that it has not.
pub(super) fn told_to_wait_at_rest(run: &mut Run) {
    begin_bounded(run, &["main"]);
    tell_at_rest(run, |conditions, waits| conditions.push(waits));
}

pub(super) fn waits_untold_at_rest(run: &mut Run) {
    begin_bounded(run, &["main"]);
    ask_for(run, 5000);
    tell_at_rest(run, |conditions, waits| conditions.retain(|one| one.kind != waits.kind));
}

/// Changes what is shown, by a condition that says that it waits.
fn tell_at_rest(run: &mut Run, change: impl FnOnce(&mut Vec<Condition>, Condition)) {
    let (asked, now) = (run.spec("web").expect("it is wanted"), run.now);
    breaks(run, |world| {
        let status = Arc::make_mut(world.statuses.get_mut(&uid()).expect("it is shown"));
        let kind = ConditionKind::PodResizePending;
        let (reason, message) = ("Deferred".to_owned(), String::new());
        let waits = Condition { kind, holds: true, reason, message, since: now.wall, generation: None };
        change(&mut status.conditions, waits);
        world.check_waits(&asked);
    });
}
