//! cgroups go with their pods, whatever is in them.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use berth_integration::cgroup;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::wait::{self, Look};
use serde_json::json;

use crate::kit::{
    SOON, class_group, container_group, eventually, group, inside, pod, pod_group, shell, sleeper, task_pid,
};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("swept::pods_that_ended_have_no_cgroups", ended),
        test("swept::groups_that_a_container_made_go_with_it", made_inside),
        test("swept::cgroups_of_unknown_pods_go_when_the_agent_starts", unknown),
    ]
}

/// Their manifests stay.
fn ended() -> Result<()> {
    let node = Node::start()?;
    let amounts = json!({ "cpu": "50m", "memory": "32Mi" });
    let all = [
        ("guaranteed", json!({ "limits": amounts })),
        ("burstable", json!({ "requests": amounts })),
        ("best", json!({})),
    ];
    for (name, resources) in &all {
        let main = shell("main", "sleep infinity & exit 0", json!({ "resources": resources }));
        node.apply(name, &pod(name, json!({ "restartPolicy": "Never", "containers": [main] })))?;
    }
    for (name, _) in &all {
        let ended = node.wait(name, "Succeeded", POD_LIMIT, |pod| pod.phase() == "Succeeded")?;
        let level = group(&node.world, &ended)?;
        eventually(&format!("the groups of {name} to be gone"), &Vec::new(), || level.dirs())?;
    }
    node.end()
}

/// As a container that runs containers does.
fn made_inside() -> Result<()> {
    let node = Node::start()?;
    // Version 1 shows a container its own groups alone, version 2 shows a privileged one all of them.
    let own = if cgroup::is_unified() {
        "/sys/fs/cgroup/$(sed -n s/^0::.//p /proc/self/cgroup)"
    } else {
        "/sys/fs/cgroup/memory"
    };
    let script = format!(
        "own={own}; mkdir -p $own/inner/most $own/empty; sleep infinity & echo $! > $own/inner/most/cgroup.procs
         touch /tmp/made; exec sleep infinity"
    );
    let main = shell("main", &script, json!({ "securityContext": { "privileged": true } }));
    node.apply("maker", &pod("maker", json!({ "containers": [main] })))?;
    let maker = node.ready("maker")?;
    let level = group(&node.world, &maker)?;
    eventually("its groups", &true, || Ok(inside(&maker, "ls /tmp")?.contains("made")))?;
    let own = container_group(&node.world, &maker, "main")?;
    // In systemd's scope crun makes a level of its own.
    let inner = ["inner/most", "container/inner/most"].map(|name| own.below(name));
    let inner = inner.iter().find(|group| group.dir("memory").is_dir());
    ensure!(
        !inner.context("no group within that of the container")?.members()?.is_empty(),
        "nobody is in it"
    );
    node.remove("maker")?;
    node.gone("maker")?;
    same("its groups", level.dirs()?, Vec::new())?;
    node.end()
}

/// The pod's record is lost, or another agent had made it.
fn unknown() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("known", &sleeper("known"))?;
    let known = node.ready("known")?;
    let pid = task_pid(known.container_id("main")?)?;
    node.agent.stop()?;

    let lost = |class: &str, uid: &str| pod_group(&node.world, class, uid);
    let busy = lost("burstable", "00000000-0000-4000-8000-000000000001");
    let nested = busy.below("0123abcd/system.slice/app.service");
    let empty = lost("", "00000000-0000-4000-8000-000000000002");
    let flat = lost("besteffort", "00000000-0000-4000-8000-000000000003");
    let foreign = class_group(&node.world, "burstable").below("no-pod");
    for group in [&nested, &busy.below("empty"), &empty.below("a/b/c"), &flat, &foreign] {
        group.make()?;
    }
    let mut strangers = [sleeping()?, sleeping()?];
    nested.take_in(strangers[0].id())?;
    flat.take_in(strangers[1].id())?;

    node.agent.start()?;
    for group in [&busy, &empty, &flat] {
        eventually("leftovers to be gone", &Vec::new(), || group.dirs())?;
    }
    for stranger in &mut strangers {
        wait::until("a process in a leftover to be killed", SOON, || {
            Ok(stranger.try_wait()?.map_or_else(|| Look::NotYet("it lives".to_owned()), |_| Look::Ready(())))
        })?;
    }
    let now = node.ready("known")?;
    same("process of a known pod", task_pid(now.container_id("main")?)?, pid)?;
    let left = foreign.dirs()?;
    ensure!(!left.is_empty(), "a group that is no pod's was removed");
    for dir in left {
        std::fs::remove_dir(dir)?;
    }
    node.end()
}

fn sleeping() -> Result<Child> {
    Ok(Command::new("sleep").arg("infinity").stdin(Stdio::null()).spawn()?)
}
