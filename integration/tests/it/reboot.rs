//! The machine is switched off and on: everything in memory is gone, and nothing runs.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR, Settings};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, system};
use berth_integration::records::Records;
use berth_integration::vm::{self, Feature};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::admission::cpu_milli;
use crate::api_changes::{ask, bounds, deleted, events, is_resized, pending, resources};
use crate::api_pods::{PODS, all_taken, bound, is_ready, path, restarts, start};
use crate::crash::dies_at_once;
use crate::kit::{FOR_EVER, IMAGE, eventually, inside, pod, shell, sleeper};
use crate::suite::{Test, same, test};

/// What tells one boot from another.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Runs a program of the image that is mounted, and tells whose it is.
const READS_IMAGE: &str = "/image/bin/busybox stat -c %u:%g /image/bin/busybox";
/// What is in memory file systems, or mounted.
const IN_MEMORY: [&str; 3] = [STATE_DIR, "/run/containerd", "/run/netns"];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("reboot::what_had_ended_stays_so_and_all_else_runs_again", ended),
        test("reboot::what_ended_of_a_pod_that_goes_on_does_not_run_again", of_the_api),
        test("reboot::a_resize_that_waits_goes_on_waiting", waits_for_room),
        test("reboot::an_image_has_the_owners_of_its_pods_next_ids", owners),
        test("reboot::layers_of_containers_that_were_never_made_go", layers),
        test("reboot::what_was_half_removed_goes", half_removed),
    ]
}

fn ended() -> Result<()> {
    let boot = World::here()?.root().join("boot");
    fs::write(&boot, "11111111-0000-4000-8000-000000000000\n")?;
    system("mount", &["--bind", &boot.display().to_string(), BOOT])?;
    let mut node = Node::start_with(&Settings::default())?;
    let starts = node.world.root().join("starts");
    fs::create_dir(&starts)?;
    node.apply("well", &counted("well", &starts, "exit 0", "Never"))?;
    node.apply("badly", &counted("badly", &starts, "exit 6", "Never"))?;
    node.apply("done", &counted("done", &starts, "exit 0", "OnFailure"))?;
    node.apply("runs", &counted("runs", &starts, "exec sleep infinity", "Always"))?;
    node.ready("runs")?;
    for name in ["mounts", "leaves"] {
        node.apply(name, &mounting(name, true))?;
        same(name, inside(&node.ready(name)?, READS_IMAGE)?.as_str(), "0:0")?;
    }
    let names = [("well", "Succeeded"), ("badly", "Failed"), ("done", "Succeeded")];
    let states = |node: &Node| -> Result<Vec<Value>> {
        let state = |(name, phase): &(&str, &str)| {
            let over = node.wait(name, phase, POD_LIMIT, |pod| pod.phase() == *phase)?;
            Ok(json!([over.phase(), over.restarts("main"), over.container("main")["state"]]))
        };
        names.iter().map(state).collect()
    };
    let before = states(&node)?;
    let kept = Path::new(ROOT_DIR).join("berth/ended");
    let files = || -> Result<usize> { if kept.exists() { Ok(fs::read_dir(&kept)?.count()) } else { Ok(0) } };
    eventually("what is kept of their ends", &(2 * names.len()), files)?;

    switch_off(&mut node)?;
    node.remove("leaves")?;
    fs::write(&boot, "22222222-0000-4000-8000-000000000000\n")?;
    node.containerd.start_again()?;
    node.agent.start()?;
    node.ready("runs")?;
    same("what had ended", states(&node)?, before)?;
    for (name, count) in [("well", 1), ("badly", 1), ("done", 1), ("runs", 2)] {
        // It is ready before it has written anything.
        eventually(&format!("starts of {name}"), &count, || started(&starts, &format!("{name}-main")))?;
    }

    same("an image as a volume", inside(&node.ready("mounts")?, READS_IMAGE)?.as_str(), "0:0")?;
    node.gone("leaves")?;
    eventually("what containerd keeps for one pod", &1, || Ok(Records::open()?.leases()?.len()))?;

    // It is over with the pod: the same manifest, written anew, is a new pod.
    node.remove("well")?;
    node.gone("well")?;
    same("what is kept", files()?, 2 * names.len() - 2)?;
    node.apply("well", &counted("well", &starts, "exit 0", "Never"))?;
    node.wait("well", "Succeeded", POD_LIMIT, |pod| pod.phase() == "Succeeded")?;
    same("starts of the next", started(&starts, "well-main")?, 2)?;
    node.clear()?;
    same("what is kept of no pod", files()?, 0)?;
    node.end()?;
    system("umount", &[BOOT])?;
    Ok(())
}

/// What is known of the ends of their containers is in memory; the API has it.
fn of_the_api() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let starts = node.world.root().join("starts");
    fs::create_dir(&starts)?;
    let looping = json!({ "containers": [shell("main", "exit 3", json!({}))] });
    let pods = [
        counting("over", &starts, "Never", &[("import", "exit 0")])?,
        counting("never", &starts, "Never", &[("import", "exit 0"), ("serve", FOR_EVER)])?,
        counting("again", &starts, "OnFailure", &[("import", "exit 0"), ("serve", FOR_EVER)])?,
        bound("loops", looping)?,
    ];
    for pod in pods {
        cluster.create(PODS, &pod)?;
    }
    let status_of = |pod: &Value, name: &str| {
        let mut all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        all.find(|one| one["name"] == name).cloned().unwrap_or_default()
    };
    let is_half_over = |pod: &Value| {
        let (import, serve) = (status_of(pod, "import"), status_of(pod, "serve"));
        import["state"]["terminated"]["exitCode"] == 0 && serve["state"]["running"].is_object()
    };
    for name in ["never", "again"] {
        cluster.wait_for(&path(name), "half over", is_half_over)?;
    }
    let loops = |least: u64| {
        move |pod: &Value| {
            let main = status_of(pod, "main");
            restarts(pod, "main") >= least && main["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        }
    };
    let before = restarts(&cluster.wait_for(&path("loops"), "in a loop", loops(2))?, "main");
    let over = cluster.wait_for(&path("over"), "over", |pod| pod["status"]["phase"] == "Succeeded")?;
    switch_off(&mut node)?;
    node.containerd.start_again()?;
    node.agent.start()?;
    let never = cluster.wait_for(&path("never"), "failed", |pod| pod["status"]["phase"] == "Failed")?;
    let is_back = |pod: &Value| is_half_over(pod) && restarts(pod, "serve") == 1;
    let again = cluster.wait_for(&path("again"), "half over again", is_back)?;
    for pod in [&never, &again] {
        same(
            "of the one that had ended",
            &status_of(pod, "import")["state"]["terminated"]["reason"],
            &json!("Completed"),
        )?;
        same("its restarts", restarts(pod, "import"), 0)?;
        ensure!(status_of(pod, "import")["imageID"] != "", "{pod}");
    }
    cluster.wait_for(&path("loops"), "in a loop again", loops(before + 1))?;
    same(
        "the one that had ended whole, which nothing is told of",
        &cluster.wait_for(&path("over"), "there", |_| true)?,
        &over,
    )?;
    for (name, count) in
        [("over-import", 1), ("never-import", 1), ("never-serve", 1), ("again-import", 1), ("again-serve", 2)]
    {
        same(name, started(&starts, name)?, count)?;
    }
    all_taken(&cluster)?;
    deleted(&cluster, &["over", "never", "again", "loops"])?;
    node.end()?;
    cluster.end()
}

/// What is allocated is in no record any more.
fn waits_for_room() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let has = |milli: u64| {
        let cpu = format!("{milli}m");
        resources((&cpu, "32Mi"), (&cpu, "64Mi"))
    };
    let (most, half) = (cpu_milli(&cluster, 75)?, cpu_milli(&cluster, 45)?);
    for (pod, milli) in [("web", 100), ("beside", most)] {
        let main = shell("main", FOR_EVER, json!({ "resources": has(milli) }));
        // It has no resources of its own.
        let bare = shell("bare", FOR_EVER, json!({}));
        cluster.create(PODS, &bound(pod, json!({ "containers": [main, bare] }))?)?;
        cluster.wait_for(&path(pod), "ready", is_ready)?;
    }
    let some = json!({ "requests": { "cpu": "10m" }, "limits": { "memory": "64Mi" } });
    ask(
        &cluster,
        &json!([{ "name": "main", "resources": has(half) }, { "name": "bare", "resources": some }]),
    )?;
    let waits = |pod: &Value| pending(pod).is_some_and(|waits| waits["reason"] == "Deferred");
    let before = cluster.wait_for(&path("web"), "told that it waits", waits)?;
    let had = [bounds(&node, &before, "main")?, bounds(&node, &before, "bare")?];
    let told = || Ok(events(&cluster, "ResizeDeferred")?.len());
    eventually("that it waits to be told", &1, told)?;
    switch_off(&mut node)?;
    node.containerd.start_again()?;
    node.agent.start()?;
    let is_back = |pod: &Value| is_ready(pod) && restarts(pod, "main") == 1;
    cluster.wait_for(&path("beside"), "back", is_back)?;
    let after = cluster.wait_for(&path("web"), "back", is_back)?;
    same("what it has", [bounds(&node, &after, "main")?, bounds(&node, &after, "bare")?], had)?;
    let shown = |pod: &Value| {
        let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let has: Vec<_> = containers.map(|one| [&one["allocatedResources"], &one["resources"]]).collect();
        let waits =
            pending(pod).map(|waits| [&waits["reason"], &waits["message"], &waits["observedGeneration"]]);
        json!([has, waits])
    };
    same("what is told of it", shown(&after), shown(&before))?;
    same("told", told()?, 1)?;
    deleted(&cluster, &["beside"])?;
    let has_all = |pod: &Value| pending(pod).is_none() && is_resized(2)(pod);
    cluster.wait_for(&path("web"), "resized", has_all)?;
    all_taken(&cluster)?;
    deleted(&cluster, &["web"])?;
    node.end()?;
    cluster.end()
}

/// A pod of the API whose containers write down that they were started.
fn counting(pod: &str, starts: &Path, policy: &str, containers: &[(&str, &str)]) -> Result<Value> {
    bound(pod, writing(pod, starts, policy, containers))
}

/// A pod whose containers write down that they were started, each in a file of its own: `pod-container`.
fn writing(pod: &str, starts: &Path, policy: &str, containers: &[(&str, &str)]) -> Value {
    let container = |(name, then): &(&str, &str)| {
        let mounts = json!({ "volumeMounts": [{ "name": "starts", "mountPath": "/starts" }] });
        shell(name, &format!("echo started >> /starts/{pod}-{name}; {then}"), mounts)
    };
    json!({
        "restartPolicy": policy,
        "containers": containers.iter().map(container).collect::<Vec<_>>(),
        "volumes": [{ "name": "starts", "hostPath": { "path": starts } }],
    })
}

/// How often one was started.
fn started(starts: &Path, name: &str) -> Result<usize> {
    Ok(fs::read_to_string(starts.join(name))?.lines().count())
}

/// Ids of user namespaces are in memory alone: after a reboot a pod may have others, here since it has more of them.
fn owners() -> Result<()> {
    let mut node = Node::start_with(&Settings::default())?;
    node.apply("apart", &mounting("apart", false))?;
    let seen = |node: &Node| -> Result<[String; 2]> {
        let apart = node.ready("apart")?;
        Ok([inside(&apart, READS_IMAGE)?, inside(&apart, "cat /proc/self/uid_map")?])
    };
    let [owner, before] = seen(&node)?;
    same("whose the image is", owner.as_str(), "0:0")?;
    switch_off(&mut node)?;
    let kubelet = json!({ "userNamespaces": { "idsPerPod": 131_072 } });
    node.set_agent(&Settings { kubelet, ..Settings::default() })?;
    node.containerd.start_again()?;
    node.agent.start()?;
    let [owner, after] = seen(&node)?;
    same("whose it is after the reboot", owner.as_str(), "0:0")?;
    ensure!(before != after, "both times it has {before}");
    node.clear()?;
    same("leases", Records::open()?.leases()?.len(), 0)?;
    node.end()
}

/// What the main container is to be made of is there before the init container has ended, and in no record.
fn layers() -> Result<()> {
    let mut node = Node::start_with(&Settings::default())?;
    let manifest = json!({
        "initContainers": [shell("first", FOR_EVER, json!({}))],
        "containers": [shell("main", FOR_EVER, json!({}))],
    });
    node.apply("waits", &pod("waits", manifest))?;
    node.wait("waits", "begun", POD_LIMIT, |pod| !pod.container("first")["state"]["running"].is_null())?;
    let records = Records::open()?;
    eventually("both layers", &2, || Ok(records.snapshots_in_use()?.len()))?;
    drop(records);
    switch_off(&mut node)?;
    node.remove("waits")?;
    node.containerd.start_again()?;
    node.agent.start()?;
    let records = Records::open()?;
    eventually("layers to go", &Vec::new(), || records.snapshots_in_use())?;
    // Which makes the directories that a reboot takes.
    node.apply("next", &sleeper("next"))?;
    node.ready("next")?;
    node.clear()?;
    node.end()
}

/// The machine goes down when a pod that was deleted has no logs any more, and its directory yet, by which it is found.
fn half_removed() -> Result<()> {
    let mut node = Node::start_with(&Settings::default())?;
    node.apply("web", &sleeper("web"))?;
    node.ready("web")?;
    node.agent.kill()?;
    node.remove("web")?;
    dies_at_once(&mut node, "pod.logs-removed", POD_LIMIT)?;
    switch_off(&mut node)?;
    node.containerd.start_again()?;
    node.agent.start()?;
    node.apply("next", &sleeper("next"))?;
    node.ready("next")?;
    node.clear()?;
    node.end()
}

/// A pod that mounts an image.
fn mounting(name: &str, host_users: bool) -> String {
    let main =
        shell("main", FOR_EVER, json!({ "volumeMounts": [{ "name": "image", "mountPath": "/image" }] }));
    let volume = json!({ "name": "image", "image": { "reference": IMAGE } });
    pod(name, json!({ "hostUsers": host_users, "containers": [main], "volumes": [volume] }))
}

/// A pod of a manifest that writes down that it was started.
fn counted(name: &str, starts: &Path, then: &str, policy: &str) -> String {
    pod(name, writing(name, starts, policy, &[("main", then)]))
}

fn switch_off(node: &mut Node) -> Result<()> {
    let tasks: Vec<u32> = Records::open()?.tasks()?.iter().map(|task| task.pid).collect();
    node.agent.kill()?;
    node.containerd.kill()?;
    let is_of_a_pod = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        tasks.contains(pid) || line.contains("containerd-shim-berth-v1")
    };
    let running =
        || -> Result<Vec<u32>> { Ok(node.world.processes()?.into_iter().filter(is_of_a_pod).collect()) };
    eventually("everything to have ended", &Vec::new(), || {
        let left = running()?;
        for pid in &left {
            let _may_have_ended = kill(Pid::from_raw(i32::try_from(*pid)?), Signal::SIGKILL);
        }
        Ok(left)
    })?;
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut mounts: Vec<&str> = table.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    let pods = format!("{ROOT_DIR}/pods/");
    mounts
        .retain(|at| at.starts_with(&pods) || IN_MEMORY.iter().any(|dir| at.starts_with(&format!("{dir}/"))));
    for at in mounts.iter().rev() {
        system("umount", &["--lazy", at])?;
    }
    for dir in IN_MEMORY {
        fs::remove_dir_all(dir)?;
    }
    // A machine that starts has no rules.
    if !vm::lacks(Feature::Nat) {
        for what in ["--flush", "--delete-chain"] {
            system("iptables", &["--table", "nat", what])?;
        }
    }
    for group in node.world.cgroups()? {
        // Those with processes of the lab stay.
        drop(fs::remove_dir(group));
    }
    Ok(())
}
