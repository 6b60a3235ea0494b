//! What is left of pods goes with them, or when the next agent starts, whatever is in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR};
use berth_integration::cgroup;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::wait::{self, Look};
use serde_json::json;

use crate::kit::{
    MARK, SOON, container_group, eventually, group, inside, pod, pod_dir_of, pod_group, shell, sleeper,
    task_pid,
};
use crate::suite::{Test, same, test};

/// Levels within a container, more than are held open while they are walked.
const DEPTH: usize = 100;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("swept::pods_that_ended_have_no_cgroups", ended),
        test("swept::groups_that_a_container_made_go_with_it", made_inside),
        test("swept::what_an_agent_left_goes_when_the_next_starts", unknown),
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
         deep=$own/deep; for _ in $(seq {DEPTH}); do deep=$deep/d; done; mkdir -p $deep
         sleep infinity & echo $! > $deep/cgroup.procs
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

/// Records are lost, and with them what was known of their pods; the marks in the pods' directories prove whose they were.
fn unknown() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("known", &sleeper("known"))?;
    let known = node.ready("known")?;
    let pid = task_pid(known.container_id("main")?)?;
    let mark = Path::new(ROOT_DIR).join("pods").join(known.uid()).join(MARK);
    same("the mark of a pod", fs::read_link(&mark)?, STATE_DIR.into())?;
    node.agent.stop()?;
    // An earlier agent makes none.
    fs::remove_file(&mark)?;

    let uids = [1, 2, 3].map(|number| format!("00000000-0000-4000-8000-00000000000{number}"));
    let lost = |class: &str, number: usize| pod_group(&node.world, class, &uids[number]);
    let (busy, empty, flat) = (lost("burstable", 0), lost("", 1), lost("besteffort", 2));
    let nested = busy.below("0123abcd/system.slice/app.service");
    for group in [&nested, &busy.below("empty"), &empty.below("a/b/c"), &flat] {
        group.make()?;
    }
    let mut inside = [sleeping()?, sleeping()?];
    nested.take_in(inside[0].id())?;
    flat.take_in(inside[1].id())?;
    let mut dirs = Vec::new();
    for uid in &uids {
        dirs.push(pod_dir_of(uid, STATE_DIR)?);
        let logs = PathBuf::from(format!("/var/log/pods/default_lost_{uid}"));
        fs::create_dir_all(logs.join("main"))?;
        dirs.push(logs);
    }

    node.agent.start()?;
    for group in [&busy, &empty, &flat] {
        eventually("leftovers to be gone", &Vec::new(), || group.dirs())?;
    }
    for process in &mut inside {
        wait::until("a process in a leftover to be killed", SOON, || {
            Ok(process.try_wait()?.map_or_else(|| Look::NotYet("it lives".to_owned()), |_| Look::Ready(())))
        })?;
    }
    eventually("directories to be gone", &Vec::new(), || {
        Ok(dirs.iter().filter(|dir| dir.exists()).cloned().collect::<Vec<PathBuf>>())
    })?;
    let now = node.ready("known")?;
    same("process of a known pod", task_pid(now.container_id("main")?)?, pid)?;
    eventually("its mark", &true, || Ok(fs::read_link(&mark).is_ok_and(|run| run == Path::new(STATE_DIR))))?;
    node.end()
}

pub(crate) fn sleeping() -> Result<Child> {
    Ok(Command::new("sleep").arg("infinity").stdin(Stdio::null()).spawn()?)
}
