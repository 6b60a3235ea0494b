//! Volumes of claims that need no driver, with a real API server: directories, paths and devices of the node.
//!
//! No controller runs: claims are bound when a test says so.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, ROOT_DIR, Settings};
use berth_integration::cluster::Cluster;
use berth_integration::lab::World;
use berth_integration::node::system;
use nix::mount::{MntFlags, umount2};
use serde_json::{Value, json};

use crate::api_changes::{deleted, events};
use crate::api_pods::{PODS, bound, is_ready, path, start};
use crate::kit::{FOR_EVER, eventually, inside, shell, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("claims::a_directory_of_the_node_outlives_its_pods_and_their_agent", directory),
        test("claims::one_of_one_pod_waits_for_that_to_go", of_one_pod),
        test("claims::one_that_is_bound_later_lets_its_pod_go_on", later),
        test("claims::a_path_of_the_node_and_one_that_is_only_read", paths),
        test("claims::a_device_is_no_mount", device),
        test("claims::what_is_not_to_be_had_is_told", refused),
    ]
}

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const MERGE: &str = "application/merge-patch+json";

/// A directory of the node with a file in it.
fn disk(name: &str) -> Result<PathBuf> {
    let dir = World::here()?.root().join(name);
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("precious"), "kept\n")?;
    Ok(dir)
}

/// A claim that waits to be bound. Its UID.
fn claim(cluster: &Cluster, name: &str, more: Value) -> Result<String> {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": { "requests": { "storage": "1Mi" } },
    });
    let object = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": with(spec, more) });
    let made = cluster.create(CLAIMS, &object)?;
    Ok(made["metadata"]["uid"].as_str().context("no UID")?.to_owned())
}

fn on_this_node(label: &str) -> Value {
    let requirement = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [label] });
    json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [requirement] }] } })
}

fn local(path: &Path) -> Value {
    json!({ "local": { "path": path }, "nodeAffinity": on_this_node(NODE_NAME) })
}

/// Makes the volume of a claim, and binds both.
fn bind(cluster: &Cluster, claim: &str, uid: &str, source: Value) -> Result<()> {
    let name = format!("pv-{claim}");
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "capacity": { "storage": "1Mi" },
        "claimRef": { "kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": uid },
    });
    let object = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": with(spec, source) });
    cluster.create(VOLUMES, &object)?;
    let named = json!({ "spec": { "volumeName": name } });
    cluster.request("PATCH", &format!("{CLAIMS}/{claim}"), MERGE, &named)?;
    let bound = json!({ "status": { "phase": "Bound" } });
    cluster.request("PATCH", &format!("{CLAIMS}/{claim}/status"), MERGE, &bound)?;
    Ok(())
}

/// A pod with a claim at `/data`.
fn pod_of(name: &str, claim: Value, more: Value) -> Result<Value> {
    let main = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": claim }]);
    let spec = json!({ "containers": [shell("main", FOR_EVER, main)], "volumes": volumes });
    bound(name, with(spec, more))
}

fn own(pod: &str, claim: &str) -> String {
    format!("{ROOT_DIR}/pods/{pod}/volumes/kubernetes.io~local-volume/pv-{claim}")
}

/// How often something is mounted at a path of the node.
fn mounts(path: &str) -> Result<usize> {
    let all = fs::read_to_string("/proc/self/mounts")?;
    Ok(all.lines().filter(|line| line.split(' ').nth(1) == Some(path)).count())
}

fn directory() -> Result<()> {
    let kubelet = json!({ "syncFrequency": "1s" });
    let (cluster, mut node) = start(Settings { kubelet, ..Settings::default() })?;
    let dir = disk("disk")?;
    let uid = claim(&cluster, "mine", json!({}))?;
    bind(&cluster, "mine", &uid, local(&dir))?;
    let group = || json!({ "securityContext": { "fsGroup": 4242, "fsGroupChangePolicy": "OnRootMismatch" } });
    cluster.create(PODS, &pod_of("web", json!({ "claimName": "mine" }), group())?)?;
    cluster.wait_for(&path("web"), "ready", is_ready)?;
    let web = node.ready("web")?;
    same("what was there", inside(&web, "cat /data/precious")?.as_str(), "kept")?;
    same("mode and group", inside(&web, "stat -c '%a %g' /data")?.as_str(), "2775 4242")?;
    inside(&web, "echo written > /data/new")?;
    same("on the node", fs::read_to_string(dir.join("new"))?.as_str(), "written\n")?;
    let place = own(web.uid(), "mine");
    same("mounts", mounts(&place)?, 1)?;
    for point in ["ensure-volume.before", "volume.directory-made", "ensure-volume.after"] {
        node.agent.kill()?;
        node.agent.start_doomed(point)?;
        eventually(&format!("the agent to die at {point}"), &true, || node.agent.ended())?;
    }
    node.agent.start()?;
    let again = node.ready("web")?;
    same("run", again.container_id("main")?, web.container_id("main")?)?;
    eventually("the mount", &1, || mounts(&place))?;

    // The bind is lost behind the agent's back, and made again. Who comes later gives it to nobody.
    umount2(place.as_str(), MntFlags::MNT_DETACH).context("unmount")?;
    eventually("the mount that was lost", &1, || mounts(&place))?;
    let other_group = json!({ "securityContext": { "fsGroup": 5000 } });
    cluster.create(PODS, &pod_of("beside", json!({ "claimName": "mine" }), other_group)?)?;
    cluster.wait_for(&path("beside"), "ready", is_ready)?;
    let beside = node.ready("beside")?;
    same("shared", inside(&beside, "cat /data/new")?.as_str(), "written")?;
    deleted(&cluster, &["web", "beside"])?;
    same("mounts", mounts(&place)?, 0)?;
    same("what is left", fs::read_to_string(dir.join("new"))?.as_str(), "written\n")?;
    same("group", fs::metadata(&dir)?.gid(), 4242)?;

    // It is given as a whole, but where its root shows that it was and that is enough.
    let precious = dir.join("precious");
    let attributes = || fs::metadata(&precious).map(|file| (file.mode() & 0o7777, file.gid()));
    chown(&precious, None, Some(0))?;
    fs::set_permissions(&precious, Permissions::from_mode(0o600))?;
    let always = json!({ "securityContext": { "fsGroup": 4242 } });
    for (name, security, expected) in [("trusts", group(), (0o600, 0)), ("gives", always, (0o660, 4242))] {
        cluster.create(PODS, &pod_of(name, json!({ "claimName": "mine" }), security)?)?;
        cluster.wait_for(&path(name), "ready", is_ready)?;
        same(name, attributes()?, expected)?;
        deleted(&cluster, &[name])?;
    }
    node.end()?;
    cluster.end()
}

/// No scheduler has kept the second pod away.
fn of_one_pod() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let dir = disk("alone")?;
    let one_pod = json!({ "accessModes": ["ReadWriteOncePod"] });
    let uid = claim(&cluster, "alone", one_pod.clone())?;
    bind(&cluster, "alone", &uid, with(local(&dir), one_pod))?;
    let pod = |name| pod_of(name, json!({ "claimName": "alone" }), json!({}));
    cluster.create(PODS, &pod("one")?)?;
    cluster.wait_for(&path("one"), "ready", is_ready)?;
    cluster.create(PODS, &pod("two")?)?;
    eventually("that another pod has it", &true, || {
        let is_told = |event: &Value| {
            event["involvedObject"]["name"] == "two"
                && event["message"].as_str().is_some_and(|why| why.contains("already in use by another pod"))
        };
        Ok(events(&cluster, "FailedMount")?.iter().any(is_told))
    })?;
    let two = cluster.get_json(&path("two"))?["metadata"]["uid"].as_str().context("no UID")?.to_owned();
    same("mounts", mounts(&own(&two, "alone"))?, 0)?;
    deleted(&cluster, &["one"])?;
    cluster.wait_for(&path("two"), "ready", is_ready)?;
    deleted(&cluster, &["two"])?;
    node.end()?;
    cluster.end()
}

fn later() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let dir = disk("later")?;
    cluster.create(PODS, &pod_of("web", json!({ "claimName": "mine" }), json!({}))?)?;
    let told = |why: &str| {
        let ends = |event: &Value| event["message"].as_str().is_some_and(|message| message.contains(why));
        Ok(events(&cluster, "FailedMount")?.iter().any(ends))
    };
    let waits = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process \
                 volumes=[data]: error processing PVC default/mine: ";
    eventually("that there is none", &true, || {
        told(&format!("{waits}failed to fetch PVC from API server: "))
    })?;
    let uid = claim(&cluster, "mine", json!({}))?;
    eventually("that it is not bound", &true, || told(&format!("{waits}PVC is not bound")))?;
    let web = cluster.get_json(&path("web"))?;
    let waiting = &web["status"]["containerStatuses"][0]["state"]["waiting"];
    same("what it waits for", &waiting["reason"], &json!("ContainerCreating"))?;
    bind(&cluster, "mine", &uid, local(&dir))?;
    cluster.wait_for(&path("web"), "ready", is_ready)?;
    same("what was there", inside(&node.ready("web")?, "cat /data/precious")?.as_str(), "kept")?;

    // Of an ephemeral volume the claim must be the pod's own.
    let template = json!({ "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
        "resources": { "requests": { "storage": "1Mi" } } } });
    let main = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let volumes = json!([{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }]);
    let spec = json!({ "containers": [shell("main", FOR_EVER, main)], "volumes": volumes });
    let own = cluster.create(PODS, &bound("own", spec)?)?;
    let uid = claim(&cluster, "own-data", json!({}))?;
    bind(&cluster, "own-data", &uid, local(&dir))?;
    let why = "PVC default/own-data was not created for pod default/own (pod is not owner)";
    eventually("that it is not the pod's", &true, || told(why))?;
    let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "own", "controller": true,
        "uid": own["metadata"]["uid"] }]);
    let owned = json!({ "metadata": { "ownerReferences": owner } });
    cluster.request("PATCH", &format!("{CLAIMS}/own-data"), MERGE, &owned)?;
    cluster.wait_for(&path("own"), "ready", is_ready)?;
    deleted(&cluster, &["web", "own"])?;
    node.end()?;
    cluster.end()
}

fn paths() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let dir = disk("paths")?;
    let uid = claim(&cluster, "host", json!({}))?;
    let made = dir.join("made");
    bind(&cluster, "host", &uid, json!({ "hostPath": { "path": made, "type": "DirectoryOrCreate" } }))?;
    cluster.create(PODS, &pod_of("host", json!({ "claimName": "host" }), json!({}))?)?;
    let uid = claim(&cluster, "read", json!({}))?;
    bind(&cluster, "read", &uid, with(local(&dir), json!({ "mountOptions": ["noexec"] })))?;
    let group = json!({ "securityContext": { "fsGroup": 4242 } });
    cluster.create(PODS, &pod_of("read", json!({ "claimName": "read", "readOnly": true }), group)?)?;
    for pod in ["host", "read"] {
        cluster.wait_for(&path(pod), "ready", is_ready)?;
    }
    let (host, read) = (node.ready("host")?, node.ready("read")?);
    inside(&host, "echo written > /data/new")?;
    same("on the node", fs::read_to_string(made.join("new"))?.as_str(), "written\n")?;
    same(
        "read",
        inside(&read, "cat /data/precious; echo x > /data/new 2>/dev/null || echo refused")?,
        "kept\nrefused".to_owned(),
    )?;
    let read_dir = own(read.uid(), "read");
    let all = fs::read_to_string("/proc/self/mounts")?;
    let line = all.lines().find(|line| line.contains(&read_dir)).context("nothing is bound")?;
    ensure!(line.contains(" ro,") && line.contains("noexec"), "{line}");
    same("group", fs::metadata(&dir)?.gid(), 0)?;
    deleted(&cluster, &["host", "read"])?;
    same("mounts", mounts(&read_dir)?, 0)?;
    same("what is left", fs::read_to_string(made.join("new"))?.as_str(), "written\n")?;
    node.end()?;
    cluster.end()
}

/// A loop device, detached when the test ends.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Result<Self> {
        let file = file.display().to_string();
        Ok(Self(system("losetup", &["--find", "--show", &file])?.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(system("losetup", &["--detach", &self.0]));
    }
}

fn device() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let file = disk("device")?.join("image");
    let content = [b"block device".as_slice(), &[0; (1 << 20) - 12]].concat();
    fs::write(&file, content)?;
    let device = Loop::of(&file)?;
    let block = json!({ "volumeMode": "Block" });
    let uid = claim(&cluster, "raw", block.clone())?;
    let source = json!({ "local": { "path": device.0 }, "nodeAffinity": on_this_node(NODE_NAME) });
    bind(&cluster, "raw", &uid, with(source, block))?;
    let pod = |name: &str, claim: Value| {
        let main = json!({ "volumeDevices": [{ "name": "data", "devicePath": "/dev/raw" }] });
        let volumes = json!([{ "name": "data", "persistentVolumeClaim": claim }]);
        bound(name, json!({ "containers": [shell("main", FOR_EVER, main)], "volumes": volumes }))
    };
    cluster.create(PODS, &pod("writes", json!({ "claimName": "raw" }))?)?;
    cluster.create(PODS, &pod("reads", json!({ "claimName": "raw", "readOnly": true }))?)?;
    for pod in ["writes", "reads"] {
        cluster.wait_for(&path(pod), "ready", is_ready)?;
    }
    let (writes, reads) = (node.ready("writes")?, node.ready("reads")?);
    let begin = "dd if=/dev/raw bs=12 count=1 2>/dev/null";
    let write =
        "echo changed | dd of=/dev/raw conv=fsync bs=8 count=1 2>/dev/null && echo done || echo refused";
    // The other device of a container is another disk.
    let second = disk("second")?.join("image");
    fs::write(&second, [b"other device".as_slice(), &[0; (1 << 20) - 12]].concat())?;
    let other = Loop::of(&second)?;
    let uid = claim(&cluster, "other", json!({ "volumeMode": "Block" }))?;
    let source = json!({ "local": { "path": other.0 }, "nodeAffinity": on_this_node(NODE_NAME) });
    bind(&cluster, "other", &uid, with(source, json!({ "volumeMode": "Block" })))?;
    let main = json!({ "volumeDevices": [
        { "name": "a", "devicePath": "/dev/raw" }, { "name": "b", "devicePath": "/dev/other" },
    ] });
    let volumes = json!([
        { "name": "b", "persistentVolumeClaim": { "claimName": "other" } },
        { "name": "a", "persistentVolumeClaim": { "claimName": "raw", "readOnly": true } },
    ]);
    let both = json!({ "containers": [shell("main", FOR_EVER, main)], "volumes": volumes });
    cluster.create(PODS, &bound("both", both)?)?;
    cluster.wait_for(&path("both"), "ready", is_ready)?;
    let both = node.ready("both")?;
    let of = |device: &str| inside(&both, &begin.replace("/dev/raw", device));
    same("one", of("/dev/raw")?.as_str(), "block device")?;
    same("the other", of("/dev/other")?.as_str(), "other device")?;
    same("written", inside(&both, write)?.as_str(), "refused")?;
    same("written", inside(&both, &write.replace("/dev/raw", "/dev/other"))?.as_str(), "done")?;
    for pod in [&writes, &reads] {
        same("begin", inside(pod, begin)?.as_str(), "block device")?;
        same("mounts", inside(pod, "grep -c ' /dev/raw ' /proc/mounts || true")?.as_str(), "0")?;
        same("kind", inside(pod, "stat -c %F /dev/raw")?.as_str(), "block special file")?;
    }
    same("written", inside(&reads, write)?.as_str(), "refused")?;
    same("written", inside(&writes, write)?.as_str(), "done")?;
    deleted(&cluster, &["writes", "reads", "both"])?;
    ensure!(fs::read(&second)?.starts_with(b"changed\n"), "what was written is not on the other device");
    ensure!(fs::read(&file)?.starts_with(b"changed\n"), "what was written is not on the device");
    node.end()?;
    cluster.end()
}

fn refused() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let dir = disk("refused")?;
    let csi = json!({ "csi": { "driver": "d.example.com", "volumeHandle": "h" } });
    let elsewhere = json!({ "local": { "path": dir }, "nodeAffinity": on_this_node("elsewhere") });
    let cases = [
        ("driver", csi, "for volume \"pv-driver\" err=no volume plugin matched"),
        (
            "elsewhere",
            elsewhere,
            "MountVolume.NodeAffinity check failed for volume \"pv-elsewhere\" : no matching NodeSelectorTerms",
        ),
        (
            "file",
            local(&dir.join("precious")),
            "MountVolume.NewMounter initialization failed for volume \"pv-file\" : only directory and block device are \
             supported",
        ),
        (
            "none",
            local(&dir.join("none")),
            "MountVolume.NewMounter initialization failed for volume \"pv-none\" : path ",
        ),
    ];
    for (name, source, _) in &cases {
        let uid = claim(&cluster, name, json!({}))?;
        bind(&cluster, name, &uid, source.clone())?;
        cluster.create(PODS, &pod_of(name, json!({ "claimName": name }), json!({}))?)?;
    }
    for (name, _, why) in &cases {
        eventually(&format!("why {name} is refused"), &true, || {
            let of = |event: &Value| {
                event["involvedObject"]["name"] == *name
                    && event["message"].as_str().is_some_and(|message| message.contains(why))
            };
            Ok(events(&cluster, "FailedMount")?.iter().any(of))
        })?;
    }
    deleted(&cluster, &cases.map(|(name, ..)| name))?;
    node.end()?;
    cluster.end()
}
