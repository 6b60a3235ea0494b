//! Pods in some state of their life, for tables.

use std::{sync::Arc, time::Duration};

use berth_core::{
    id::{ContainerName, ImageRef},
    observation::Exit,
    pod::{
        actual::{Actual, Follows, Life, Preparing, Run, Running},
        port::{hook::Hooking, image::ImageUse, sandbox::Up, signal::Stop},
        resource::Resource,
    },
    record::{ContainerRecord, ExitRecord, PodRecord},
    spec::{Pod, RestartPolicy},
    time::{Mono, Now},
};
use jiff::Timestamp;

use crate::pods;

pub(crate) const NOW: Duration = Duration::from_secs(1000);

pub(crate) fn now() -> Now {
    Now { mono: Mono(NOW), wall: Timestamp::UNIX_EPOCH }
}

pub(crate) fn name(name: &str) -> ContainerName {
    ContainerName::new(name)
}

/// A pod all of whose resources are there, and none of whose containers was begun.
pub(crate) fn furnished(pod: Pod) -> Life {
    let record = PodRecord::first(&pod, Timestamp::UNIX_EPOCH);
    let actual = Actual {
        dirs: Resource::Ready(()),
        cgroup: Resource::Ready(()),
        netns: Resource::Ready("/run/netns/x".into()),
        network: Resource::Ready(()),
        sandbox: Resource::Ready(Up { pid: 100, known_at: Mono(NOW) }),
        ..Actual::fresh()
    };
    Life { spec: Arc::new(pod), record, actual, taken_in: now() }
}

/// A pod all of whose containers run, its init containers being done.
pub(crate) fn running(containers: &[&str], policy: RestartPolicy) -> Life {
    let mut pod = pods::pod("web", containers);
    pod.restart_policy = policy;
    let mut life = furnished(pod);
    for one in containers {
        if one.starts_with("init-") {
            exited(&mut life, one, 0);
        } else {
            runs(&mut life, one);
        }
    }
    life
}

pub(crate) fn record<'a>(life: &'a mut Life, one: &str) -> &'a mut ContainerRecord {
    let id = life.container_id(&name(one));
    life.record.containers.entry(name(one)).or_insert_with(|| ContainerRecord::begun(id, 0, Mono(NOW)))
}

pub(crate) fn runs(life: &mut Life, one: &str) {
    record(life, one).started_in = Some(0);
    let running = Running {
        pid: None,
        known_at: Mono(NOW),
        started_at: Timestamp::UNIX_EPOCH,
        hash: 1,
        stop: Stop::No,
        hook: Hooking::No,
        is_trusted: false,
    };
    life.actual.containers.insert(name(one), Run::Running(running));
}

pub(crate) fn exited(life: &mut Life, one: &str, code: u32) {
    let record = record(life, one);
    record.started_in = Some(0);
    record.exit = Some(ExitRecord {
        id: record.id.clone(),
        attempt: 0,
        exit: exit(code),
        at: Mono(NOW),
        message: String::new(),
        reason: None,
        post_start: None,
    });
    life.actual.containers.insert(name(one), Run::Idle);
}

pub(crate) fn exit(code: u32) -> Exit {
    Exit { code, started_at: None, finished_at: Timestamp::UNIX_EPOCH, oom_killed: false }
}

pub(crate) fn prepared(life: &mut Life, one: &str) {
    record(life, one);
    let image = ImageUse::Ready(crate::world::image_info(&ImageRef::new("busybox:1")));
    let rootfs = Resource::Ready(Arc::default());
    let is_image_told = false;
    let preparing = Preparing {
        hash: 1,
        image,
        is_image_told,
        rootfs,
        refused: None,
        is_under_way: false,
        follows: Follows::AnEnd,
        end: None,
    };
    life.actual.containers.insert(name(one), Run::Preparing(preparing));
}
