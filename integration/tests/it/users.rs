//! Pods with a user namespace of their own (`hostUsers: false`, KEP-127): root in them is nobody on the node.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, Settings};
use berth_integration::containerd::ctr;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, events, eventually, exec, logs, pod, shell, task_pid, with};
use crate::suite::{Test, same, test};

/// Ids of a pod by default.
const IDS: u32 = 65_536;
/// So many that there are ids for six pods: the first eighth of all is the node's, and the last id stands for none.
const EIGHTH: u32 = 1 << 29;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("users::root_of_a_pod_is_nobody_on_the_node_with_crun", with_crun),
        test("users::root_of_a_pod_is_nobody_on_the_node_with_runc", with_runc),
        test("users::no_two_pods_share_ids_and_a_killed_agent_keeps_them", apart),
        test("users::a_shim_of_others_refuses_them", foreign),
        test("users::a_snapshotter_that_cannot_shift_owners_refuses_them", native),
    ]
}

/// A manifest whose containers run in a user namespace of the pod.
fn apart_from_node(name: &str, spec: Value) -> String {
    pod(name, with(json!({ "hostUsers": false }), spec))
}

/// The node's id of the pod's root, as a process of the pod has it, which is root there.
fn first_id(pod: &PodState, container: &str, per_pod: u32) -> Result<u32> {
    let (first, owner) = ids(pod, container, per_pod)?;
    same("its process", owner, first)?;
    Ok(first)
}

/// The node's id of the pod's root, and that of a process of the pod.
fn ids(pod: &PodState, container: &str, per_pod: u32) -> Result<(u32, u32)> {
    let pid = task_pid(pod.container_id(container)?)?;
    let maps = ["uid_map", "gid_map"].map(|file| fs::read_to_string(format!("/proc/{pid}/{file}")));
    let [users, groups] = maps;
    let (users, groups) = (users?, groups?);
    same("maps of users and groups", &users, &groups)?;
    let words: Vec<u32> = users.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [0, first, count] = words[..] else { anyhow::bail!("the map is {users}") };
    same("how many there are", count, per_pod)?;
    ensure!(first >= per_pod && first.is_multiple_of(per_pod), "{first} is no place for a pod");
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let owner = status.lines().find_map(|line| line.strip_prefix("Uid:")).context("no owner")?;
    let owner = owner.split_whitespace().next().context("no real one")?;
    Ok((first, owner.parse()?))
}

fn with_crun() -> Result<()> {
    nobody(Node::start()?)
}

fn with_runc() -> Result<()> {
    nobody(Node::start_with(&Settings {
        berth: json!({ "runtime": { "ociRuntime": "runc" } }),
        ..Settings::default()
    })?)
}

fn nobody(node: Node) -> Result<()> {
    // What the pod's root, and a user of it, may do with all that the node puts into the pod.
    let script = format!(
        "stat -c '%n %u:%g' / /data /told /data/made-by-init /etc/hosts /etc/resolv.conf /dev/shm; \
         id -u; hostname; ls /sys/class/net | sort | tr '\\n' ' '; echo; \
         echo to-stdout > /dev/stdout; echo kept > /dev/termination-log; \
         touch /data/roots; chown 1000:2000 /data/roots; mknod /tmp/disk b 8 0 2>/dev/null || echo no-device; {FOR_EVER}"
    );
    let mounts = json!([{ "name": "data", "mountPath": "/data" }, { "name": "told", "mountPath": "/told" }]);
    let user = "id -u; touch /data/users && stat -c %u:%g /data/users; echo of-a-user > /dev/stdout; \
                cat /told/name; echo; echo said > /dev/termination-log && echo may-tell";
    let spec = json!({
        "securityContext": { "fsGroup": 3000 },
        "volumes": [
            { "name": "data", "emptyDir": {} },
            { "name": "told", "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        ],
        "initContainers": [shell("prepare", "touch /data/made-by-init; id -u", json!({ "volumeMounts": mounts }))],
        "containers": [
            shell("root", &script, json!({ "volumeMounts": mounts })),
            shell("user", &format!("{user}; {FOR_EVER}"), json!({ "volumeMounts": mounts, "securityContext": { "runAsUser": 1000, "runAsGroup": 2000 } })),
        ],
    });
    node.apply("web", &apart_from_node("web", spec))?;
    let web = node.ready("web")?;
    let first = first_id(&web, "root", IDS)?;
    same("the ids of both containers", ids(&web, "user", IDS)?, (first, first + 1000))?;
    let root = "/ 0:0\n/data 0:3000\n/told 0:3000\n/data/made-by-init 0:3000\n/etc/hosts 0:0\n/etc/resolv.conf 0:0\n\
                /dev/shm 0:0\n0\nweb-lab\neth0 lo \nto-stdout\nno-device\n";
    eventually("what root says", &root.to_owned(), || logs(&web, "root", &[]))?;
    let user = "1000\n1000:3000\nof-a-user\nweb-lab\nmay-tell\n";
    eventually("what a user says", &user.to_owned(), || logs(&web, "user", &[]))?;

    // On the node it is nobody, and files of its volumes show nothing of that.
    let pid = task_pid(web.container_id("root")?)?;
    same("the owner of its process", fs::metadata(format!("/proc/{pid}"))?.uid(), first)?;
    let netns = fs::read_link(format!("/proc/{pid}/ns/net"))?;
    ensure!(netns != fs::read_link("/proc/self/ns/net")?, "it is in the node's network");
    let volume = format!("{ROOT_DIR}/pods/{}/volumes/kubernetes.io~empty-dir/data/roots", web.uid());
    let volume = fs::metadata(volume)?;
    same("a file of its volume", (volume.uid(), volume.gid()), (1000, 2000))?;
    // Who joins is in it, too, and what is asked from outside is answered.
    same(
        "an exec",
        exec(&web, "root", &["cat", "/proc/self/uid_map"])?.split_whitespace().nth(1),
        Some(first.to_string().as_str()),
    )?;
    let info = ctr(&["containers", "info", "--spec", web.container_id("root")?])?;
    ensure!(info.contains("\"uidMappings\""), "ctr shows no maps: {info}");

    node.remove("web")?;
    node.gone("web")?;
    node.end()
}

/// There are ids for six pods. Who comes after the agent was killed gets those that are left.
fn apart() -> Result<()> {
    let mut node = Node::start_with(&Settings {
        kubelet: json!({ "maxPods": 6, "userNamespaces": { "idsPerPod": EIGHTH } }),
        ..Settings::default()
    })?;
    let (earlier, later) = (["one", "two", "three"], ["four", "five", "six"]);
    let apply = |node: &Node, name: &str| {
        let spec = json!({ "containers": [shell("main", FOR_EVER, json!({}))] });
        node.apply(name, &apart_from_node(name, spec))
    };
    let first = |node: &Node, name: &str| first_id(&node.ready(name)?, "main", EIGHTH);
    earlier.iter().try_for_each(|name| apply(&node, name))?;
    let before: Vec<u32> = earlier.iter().map(|name| first(&node, name)).collect::<Result<_>>()?;
    node.agent.kill()?;
    node.agent.start()?;
    later.iter().try_for_each(|name| apply(&node, name))?;
    let mut all: Vec<u32> = later.iter().map(|name| first(&node, name)).collect::<Result<_>>()?;
    for (name, before) in earlier.iter().zip(before) {
        same(&format!("ids of {name} after the agent was killed"), first(&node, name)?, before)?;
        all.push(before);
    }
    all.sort_unstable();
    same("all ids that there are", all, (1..=6).map(|place| place * EIGHTH).collect())?;

    // A container that begins again is in the same one, and so are its files.
    let one = node.ready("one")?;
    let of_one = first(&node, "one")?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", one.container_id("main")?])?;
    node.wait("one", "restarted", POD_LIMIT, |pod| pod.restarts("main") == 1)?;
    let one = node.ready("one")?;
    same("ids of the next run", first_id(&one, "main", EIGHTH)?, of_one)?;
    let owners = exec(&one, "main", &["stat", "-c", "%n %u:%g", "/", "/etc/hosts", "/etc/resolv.conf"])?;
    same("who has its files", owners.as_str(), "/ 0:0\n/etc/hosts 0:0\n/etc/resolv.conf 0:0\n")?;
    for name in earlier.iter().chain(&later) {
        node.remove(name)?;
    }
    for name in earlier.iter().chain(&later) {
        node.gone(name)?;
    }
    node.end()
}

fn foreign() -> Result<()> {
    let node = Node::start_with(&Settings {
        berth: json!({ "runtime": { "handlers": { "stock": "io.containerd.runc.v2" } } }),
        ..Settings::default()
    })?;
    let spec = json!({ "containers": [shell("main", FOR_EVER, json!({}))] });
    let spec = with(json!({ "runtimeClassName": "stock" }), spec);
    node.apply("web", &apart_from_node("web", spec))?;
    let web = node.wait("web", "refused", POD_LIMIT, |pod| {
        events(pod).is_ok_and(|told| told.contains("does not support user namespaces"))
    })?;
    let told = events(&web)?;
    ensure!(told.contains("can't set `spec.hostUsers: false`"), "{told}");
    node.remove("web")?;
    node.gone("web")?;
    node.end()
}

/// It has a directory of files for each layer, which belong to whom they belong.
fn native() -> Result<()> {
    let berth = json!({ "snapshotter": "native" });
    let node = Node::start_with(&Settings { berth, ..Settings::with_registry() })?;
    let spec = json!({ "containers": [shell("main", FOR_EVER, json!({}))] });
    node.apply("apart", &apart_from_node("apart", spec.clone()))?;
    node.apply("beside", &pod("beside", spec))?;
    let apart =
        node.wait("apart", "refused", POD_LIMIT, |pod| pod.waits_for("main") == "CreateContainerError")?;
    let told = events(&apart)?;
    ensure!(told.contains("snapshotter native cannot shift owners"), "not told why:\n{told}");
    node.ready("beside")?;
    node.clear()?;
    node.end()
}
