//! What a user sees of a node, where it once was other than under a kubelet 1.36 with containerd's CRI.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::files;
use berth_integration::node::{Node, POD_LIMIT, PodState, system};
use berth_integration::wait::{self, Look};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use crate::kit::{SOON, events, eventually, go_on, inside, logged, pod, shell, wait_at};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("fidelity::volumes_are_open_to_their_group_and_made_where_missing", volumes),
        test("fidelity::links_to_logs_outlive_their_run", links),
        test("fidelity::a_container_runs_without_its_link_too", without_links),
        test("fidelity::the_node_is_read_when_a_pod_is_prepared", node_facts),
        test("fidelity::statuses_and_the_kernel_are_as_the_kubelet_has_them", statuses),
    ]
}

fn volumes() -> Result<()> {
    let node = Node::start()?;
    let missing = node.world.root().join("nobody/made");
    let mounts = json!([
        { "name": "data", "mountPath": "/sub", "subPath": "a/b" },
        { "name": "host", "mountPath": "relative/host" },
    ]);
    let main = shell("main", "exec sleep infinity", json!({ "volumeMounts": mounts }));
    node.apply(
        "group",
        &pod(
            "group",
            json!({
                "securityContext": { "runAsUser": 1000, "fsGroup": 1000 },
                "containers": [main],
                "volumes": [
                    { "name": "data", "emptyDir": {} },
                    { "name": "host", "hostPath": { "path": missing } },
                ],
            }),
        ),
    )?;
    let group = node.ready("group")?;
    inside(&group, "echo mine > /sub/file")?;
    same("mode and group", inside(&group, "stat -c '%a %g' /sub")?.as_str(), "2777 1000")?;
    same("seen from inside", inside(&group, "stat -c %F /relative/host")?.as_str(), "directory")?;
    same("mode of what nobody made", fs::metadata(&missing)?.permissions().mode() & 0o7777, 0o755)?;

    // A part of a volume that leads out of it: why is for the node's log alone.
    let secret = node.world.root().join("secret");
    fs::create_dir(&secret)?;
    std::os::unix::fs::symlink(&secret, missing.join("out"))?;
    let mounts = json!([{ "name": "host", "mountPath": "/stolen", "subPath": "out" }]);
    let main = shell("main", "exec sleep infinity", json!({ "volumeMounts": mounts }));
    let volumes = json!([{ "name": "host", "hostPath": { "path": missing } }]);
    node.apply("out", &pod("out", json!({ "containers": [main], "volumes": volumes })))?;
    let out =
        node.wait("out", "refused", POD_LIMIT, |pod| pod.waits_for("main") == "CreateContainerConfigError")?;
    let message =
        out.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned();
    same(
        "message",
        message.as_str(),
        "failed to prepare subPath for volumeMount \"host\" of container \"main\"",
    )?;
    let root = node.world.root().display().to_string();
    ensure!(!events(&out)?.contains(&format!("{root}/nobody/made/out")), "paths of the node are told");
    eventually("it to be logged", &true, || {
        Ok(fs::read_to_string(node.agent.log())?.contains("a subPath could not be prepared"))
    })?;

    // A source whose mounts do not travel.
    let private = node.world.root().join("private");
    fs::create_dir(&private)?;
    mount(Some("tmpfs"), &private, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    mount(None::<&str>, &private, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)?;
    let mounts = json!([{ "name": "host", "mountPath": "/v", "mountPropagation": "HostToContainer" }]);
    let main = shell("main", "exec sleep infinity", json!({ "volumeMounts": mounts }));
    let volumes = json!([{ "name": "host", "hostPath": { "path": private } }]);
    node.apply("still", &pod("still", json!({ "containers": [main], "volumes": volumes })))?;
    let still =
        node.wait("still", "refused", POD_LIMIT, |pod| pod.waits_for("main") == "CreateContainerError")?;
    ensure!(events(&still)?.contains("but it is not a shared or slave mount"), "{still}");
    umount2(&private, MntFlags::MNT_DETACH).context("unmount")?;
    node.end()
}

/// A link that cannot be made is missing to collectors, and to nobody else.
fn without_links() -> Result<()> {
    let node = Node::start()?;
    let dir = Path::new("/var/log/containers");
    files::make_dir(dir)?;
    files::remove_dir(dir)?;
    files::write(dir, "")?;
    node.apply("web", &pod("web", json!({ "containers": [shell("main", &wait_at("door"), json!({}))] })))?;
    let web = node.ready("web")?;
    go_on(&web, "main", "door")?;
    let web = node.wait("web", "restarted", POD_LIMIT, |pod| pod.restarts("main") == 1 && pod.is_ready())?;
    // Run 1 has the log of run 0 to remove, and a link to it.
    go_on(&web, "main", "door")?;
    node.wait("web", "restarted again", POD_LIMIT, |pod| pod.restarts("main") == 2 && pod.is_ready())?;
    node.remove("web")?;
    node.gone("web")?;
    files::remove(dir)?;
    node.end()
}

/// Log collectors follow the link in `/var/log/containers`: it leads to the last lines of a run that has ended.
fn links() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Settings::default()
    })?;
    let short = shell("main", "echo last words", json!({}));
    node.apply("short", &pod("short", json!({ "restartPolicy": "Never", "containers": [short] })))?;
    let short = node.wait("short", "Succeeded", POD_LIMIT, |pod| pod.phase() == "Succeeded")?;
    let link = |pod: &str, id: &str| format!("/var/log/containers/{pod}_default_main-{id}.log");
    let text = fs::read_to_string(link(short.name(), short.container_id("main")?))?;
    ensure!(text.contains("last words"), "{text}");

    // Of a container that runs again and again, the run before keeps its log and its link, and no other.
    let again = shell("main", "echo run; exit 1", json!({}));
    node.apply("again", &pod("again", json!({ "containers": [again] })))?;
    let again = node.wait("again", "in its fourth run", POD_LIMIT, |pod| pod.restarts("main") >= 3)?;
    let name = again.name().to_owned();
    eventually("the link of the run before to lead to its log", &true, || {
        let again = node.pod("again")?.context("no pod")?;
        let before = again.container("main")["lastState"]["terminated"]["containerID"].clone();
        let before = before.as_str().and_then(|id| id.split_once("://")).context("no run before")?.1;
        // Its turn may be over by now: then another run is the one before.
        Ok(fs::read_to_string(link(&name, before)).is_ok_and(|text| text.contains("run")))
    })?;
    // What each leads to.
    let links = || -> Result<Vec<Option<String>>> {
        let all = fs::read_dir("/var/log/containers")?.collect::<io::Result<Vec<_>>>()?;
        let ours = all.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with(&name));
        Ok(ours.map(|entry| fs::read_to_string(entry.path()).ok()).collect())
    };
    // A link may be there before its log, and after it.
    wait::until("links that lead to logs, and to one of a run that ended", SOON, || {
        let found = links()?;
        ensure!(found.len() <= 2, "more than one dead run has a link: {found:?}");
        let has_run = found.iter().flatten().any(|text| text.contains("run"));
        let are_whole = has_run && found.iter().all(Option::is_some);
        Ok(if are_whole { Look::Ready(()) } else { Look::NotYet(format!("{found:?}")) })
    })?;
    node.clear()?;
    same("links that are left", links()?, Vec::new())?;
    node.end()
}

fn node_facts() -> Result<()> {
    const FILE: &str = "/run/own/resolv.conf";
    let node = Node::start_with(&Settings { kubelet: json!({ "resolvConf": FILE }), ..Settings::default() })?;
    let plain = |name: &str| {
        let main = shell("main", "cat /etc/resolv.conf; exec sleep infinity", json!({}));
        pod(name, json!({ "dnsPolicy": "Default", "containers": [main] }))
    };
    node.apply("early", &plain("early"))?;
    // As under the kubelet, no sandbox is begun without the file.
    node.wait("early", "told of", POD_LIMIT, |pod| {
        let told = events(pod).unwrap_or_default();
        told.contains("Failed to create pod sandbox: open /run/own/resolv.conf: No such file or directory")
    })?;
    fs::create_dir_all("/run/own")?;
    fs::write(FILE, "nameserver 192.0.2.53\n")?;
    node.apply("late", &plain("late"))?;
    let late = node.ready("late")?;
    logged(&late, "main", "nameserver 192.0.2.53")?;
    logged(&node.ready("early")?, "main", "nameserver 192.0.2.53")?;
    let network = "cd /proc/sys/net/ipv4; cat ip_unprivileged_port_start ping_group_range";
    same("every user may listen and ping", inside(&late, network)?.as_str(), "0\n0\t2147483647")?;

    // The node gets another address and other hosts: so do the pods that come after.
    let address = |pod: &PodState| pod.0["status"]["hostIP"].as_str().unwrap_or_default().to_owned();
    same("address of the node", address(&late).as_str(), "192.0.2.10")?;
    let hosts = node.world.root().join("hosts");
    fs::write(&hosts, "203.0.113.7 moved.test\n")?;
    mount(Some(&hosts), "/etc/hosts", None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    system("ip", &["address", "add", "192.0.2.77/24", "dev", "uplink"])?;
    system("ip", &["route", "replace", "192.0.2.0/24", "dev", "uplink", "src", "192.0.2.77"])?;
    let main = shell("main", "exec sleep infinity", json!({}));
    node.apply("moved", &pod("moved", json!({ "hostNetwork": true, "containers": [main] })))?;
    let moved = node.ready("moved")?;
    same("address it has moved to", address(&moved).as_str(), "192.0.2.77")?;
    let inside = inside(&moved, "cat /etc/hosts")?;
    ensure!(inside.contains("203.0.113.7 moved.test"), "hosts are those of before: {inside}");
    umount2("/etc/hosts", MntFlags::MNT_DETACH)?;
    node.end()
}

fn statuses() -> Result<()> {
    let node = Node::start()?;
    for (name, value) in
        [("vm/overcommit_memory", "1"), ("kernel/panic", "10"), ("kernel/panic_on_oops", "1")]
    {
        same(name, node.agent.sysctl(name)?.as_str(), value)?;
    }
    let main = shell(
        "main",
        "exec sleep infinity",
        json!({
            "resources": { "limits": { "cpu": "500m", "memory": "64Mi" } },
            "volumeMounts": [{ "name": "v", "mountPath": "/v", "readOnly": true }],
            "fieldOfALaterRelease": true,
        }),
    );
    let spec = json!({
        "hostNetwork": true,
        "securityContext": { "runAsUser": 1000, "runAsGroup": 2000, "supplementalGroups": [3000] },
        "containers": [main],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    });
    let mut manifest: Value = serde_json::from_str(&pod("shown", spec))?;
    manifest["status"] = json!({ "fieldOfALaterRelease": true });
    node.apply("shown", &manifest.to_string())?;
    let shown = node.ready("shown")?;
    let status = shown.container("main");
    let resources = json!({ "cpu": "500m", "memory": "64Mi" });
    same("resources", &status["resources"], &json!({ "limits": resources, "requests": resources }))?;
    same("allocated", &status["allocatedResources"], &resources)?;
    same(
        "mounts",
        &status["volumeMounts"],
        &json!([{ "name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Disabled" }]),
    )?;
    same("user", &status["user"]["linux"]["uid"], &json!(1000))?;
    same("group", &status["user"]["linux"]["gid"], &json!(2000))?;
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned();
    same("HOSTNAME", inside(&shown, "echo $HOSTNAME")?, hostname)?;
    ensure!(events(&shown)?.contains("fieldOfALaterRelease: unknown field"), "nothing is told: {shown}");
    node.end()
}
