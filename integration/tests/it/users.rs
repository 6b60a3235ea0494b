//! Pods with a user namespace of their own (`hostUsers: false`, KEP-127): root in them is nobody on the node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Result, ensure};
use berth_integration::agent::{ROOT_DIR, Settings};
use berth_integration::containerd::ctr;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, events, eventually, exec, logs, pod, shell, task_pid, with};
use crate::suite::{Test, same, test};

/// Ids of a pod by default.
const IDS: u32 = 65_536;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("users::root_of_a_pod_is_nobody_on_the_node_with_crun", with_crun),
        test("users::root_of_a_pod_is_nobody_on_the_node_with_runc", with_runc),
        test("users::no_two_pods_share_ids_and_a_killed_agent_keeps_them", apart),
        test("users::a_shim_of_others_refuses_them", foreign),
    ]
}

/// A manifest whose containers run in a user namespace of the pod.
fn apart_from_node(name: &str, spec: Value) -> String {
    pod(name, with(json!({ "hostUsers": false }), spec))
}

/// The node's id of the pod's root, as a process of the pod has it.
fn first_id(pod: &PodState, container: &str) -> Result<u32> {
    let pid = task_pid(pod.container_id(container)?)?;
    let maps = ["uid_map", "gid_map"].map(|file| fs::read_to_string(format!("/proc/{pid}/{file}")));
    let [users, groups] = maps;
    let (users, groups) = (users?, groups?);
    same("maps of users and groups", &users, &groups)?;
    let words: Vec<u32> = users.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [0, first, IDS] = words[..] else { anyhow::bail!("the map is {users}") };
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    ensure!(first >= IDS && first.is_multiple_of(IDS), "{first} is no place for a pod");
    ensure!(status.contains("\nUid:\t"), "{status}");
    Ok(first)
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
    let first = first_id(&web, "root")?;
    same("the ids of both containers", first_id(&web, "user")?, first)?;
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

fn apart() -> Result<()> {
    let mut node = Node::start()?;
    let names = ["one", "two", "three", "four"];
    for name in names {
        let spec = json!({ "containers": [shell("main", FOR_EVER, json!({}))] });
        node.apply(name, &apart_from_node(name, spec))?;
    }
    let ids = |node: &Node| -> Result<Vec<u32>> {
        names.iter().map(|name| first_id(&node.ready(name)?, "main")).collect()
    };
    let before = ids(&node)?;
    same("different ids", before.iter().collect::<BTreeSet<_>>().len(), names.len())?;
    node.agent.kill()?;
    node.agent.start()?;
    same("ids after the agent was killed", ids(&node)?, before.clone())?;
    // A container that begins again is in the same one.
    let one = node.ready("one")?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", one.container_id("main")?])?;
    node.wait("one", "restarted", POD_LIMIT, |pod| pod.restarts("main") == 1)?;
    same("ids of the next run", first_id(&node.ready("one")?, "main")?, before[0])?;
    for name in names {
        node.remove(name)?;
    }
    for name in names {
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
