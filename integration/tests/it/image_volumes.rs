//! Volumes that are images (KEP-4639): what is in them, what is not to be had of them, and what is left of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR, Settings};
use berth_integration::containerd::ctr;
use berth_integration::files;
use berth_integration::image::{self, Entry, Image, Layer};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::kit::{FOR_EVER, IMAGE, events, eventually, exec, inside, pod, shell, with};
use crate::lives::shim_of;
use crate::suite::{LONG_LIMIT, Test, same, test};

/// Labels at which an agent dies that mounts images or removes them.
pub(crate) const DEATHS: [&str; 4] = [
    "image-volume.lease-taken",
    "image-volume.snapshot-made",
    "image-volume.mounted",
    "image-volume.snapshot-removed",
];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("image_volumes::are_read_and_not_written_with_crun", with_crun),
        test("image_volumes::are_read_and_not_written_with_runc", with_runc),
        test("image_volumes::are_read_and_not_written_from_copies_of_layers", of_copies),
        test("image_volumes::show_owners_as_a_user_namespace_has_them", in_a_user_namespace),
        test("image_volumes::a_part_is_a_directory_of_the_image", parts),
        test("image_volumes::one_that_is_missing_keeps_who_mounts_it", missing),
        test("image_volumes::what_was_mounted_stays_whatever_becomes_of_the_agent_and_the_image", stay),
        test("image_volumes::go_when_their_snapshotter_is_there_no_more", without_snapshotter),
        test("image_volumes::a_lease_of_a_pod_that_has_gone_ends_and_no_other", left),
        test("image_volumes::an_agent_that_dies_between_leaves_nothing", dies).long().within(LONG_LIMIT),
    ]
}

const DATA: &str = "localhost:5000/data:1";
const FLAT: &str = "localhost:5000/flat:1";

fn text(path: &str, text: &str) -> (String, Entry) {
    (path.to_owned(), Entry::Text(text.to_owned()))
}

fn link(path: &str, to: &str) -> (String, Entry) {
    (path.to_owned(), Entry::Link(to.to_owned()))
}

/// An image of two layers, of which links lead out, and one of a single layer, which no snapshotter needs an overlay for.
fn push(node: &Node) -> Result<()> {
    let lower = Layer::of(&[
        ("etc".to_owned(), Entry::Directory),
        text("etc/conf", "one"),
        text("gone", ""),
        link("root", "/"),
        link("up", "../../../../../.."),
        link("near", "etc"),
    ])?;
    let upper = Layer::of(&[text("etc/conf", "two"), text(".wh.gone", "")])?;
    let of_a_user = ("of-a-user".to_owned(), Entry::TextOf(1000, 2000, String::new()));
    let flat = Layer::of(&[text("file", "flat"), of_a_user])?;
    let registry = node.registry.as_ref().context("registry")?;
    registry.push("data", "1", &Image::of(&[&lower, &upper], &json!({})))?;
    registry.push("flat", "1", &Image::new(&flat, &json!({})))
}

fn volume(name: &str, image: &str) -> Value {
    json!({ "name": name, "image": { "reference": image } })
}

fn mount(name: &str) -> Value {
    json!({ "name": name, "mountPath": format!("/{name}") })
}

/// A container that mounts these volumes.
fn mounting(name: &str, volumes: &[&str], more: Value) -> Value {
    let mounts: Vec<Value> = volumes.iter().map(|name| mount(name)).collect();
    shell(name, FOR_EVER, with(json!({ "volumeMounts": mounts }), more))
}

/// A pod whose container `main` mounts one image.
fn of_data(name: &str, image: &str) -> String {
    pod(
        name,
        json!({ "volumes": [volume("data", image)], "containers": [mounting("main", &["data"], json!({}))] }),
    )
}

fn with_crun() -> Result<()> {
    read(Settings::with_registry())
}

fn with_runc() -> Result<()> {
    read(Settings { berth: json!({ "runtime": { "ociRuntime": "runc" } }), ..Settings::with_registry() })
}

/// A snapshotter that gives no layers, but one directory with all of them.
fn of_copies() -> Result<()> {
    read(Settings { berth: json!({ "snapshotter": "native" }), ..Settings::with_registry() })
}

fn read(settings: Settings) -> Result<()> {
    let node = Node::start_with(&settings)?;
    push(&node)?;
    let all = ["data", "flat", "twin", "self"];
    let privileged = json!({ "securityContext": { "privileged": true } });
    let spec = json!({
        // What is an image belongs to no group.
        "securityContext": { "fsGroup": 5000 },
        "volumes": [volume("data", DATA), volume("flat", FLAT), volume("twin", FLAT), volume("self", IMAGE)],
        "containers": [mounting("main", &all, json!({})), mounting("mighty", &all, privileged)],
    });
    node.apply("web", &pod("web", spec))?;
    let web = node.ready("web")?;
    for container in ["main", "mighty"] {
        let seen = "cat /data/etc/conf /flat/file /twin/file; echo; ls /data | tr '\\n' ' '; stat -c %g /flat/file; /self/bin/busybox echo runs";
        let seen = exec(&web, container, &["sh", "-c", seen])?;
        same(container, seen.as_str(), "twoflatflat\netc near root up 0\nruns\n")?;
        for path in ["/data/etc/conf", "/flat/file", "/flat/new", "/self/bin/new"] {
            let tried = format!("(echo bad > {path}) 2>&1; true");
            let told = exec(&web, container, &["sh", "-c", &tried])?;
            ensure!(told.contains("Read-only file system"), "{container}, {path}: {told}");
        }
    }
    // Whoever may mount what they like changes what they see, and nobody else's image.
    let remount = "mount -o remount,bind,rw /flat; (echo bad > /flat/file) 2>/dev/null; \
                   mount -o remount,rw /flat; (echo bad > /flat/file) 2>/dev/null; true";
    exec(&web, "mighty", &["sh", "-c", remount])?;
    same("another volume of it", exec(&web, "main", &["cat", "/twin/file"])?.as_str(), "flat")?;
    node.apply("next", &of_data("next", FLAT))?;
    same("the image after that", inside(&node.ready("next")?, "cat /data/file")?.as_str(), "flat")?;
    let shown = events(&web)?;
    ensure!(shown.contains(&format!("Successfully pulled image \"{DATA}\"")), "{shown}");
    node.remove("web")?;
    node.gone("web")?;
    same("the image after the other pod", inside(&node.ready("next")?, "cat /data/file")?.as_str(), "flat")?;
    node.remove("next")?;
    node.gone("next")?;
    let records = Records::open()?;
    same("leases and snapshots", [records.leases()?, records.snapshots_in_use()?], [vec![], vec![]])?;
    node.end()
}

fn in_a_user_namespace() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    push(&node)?;
    let part = json!({ "name": "data", "mountPath": "/part", "subPath": "etc" });
    let mounts = json!([mount("data"), mount("flat"), part]);
    let spec = json!({
        "hostUsers": false,
        "volumes": [volume("data", DATA), volume("flat", FLAT)],
        "containers": [shell("main", FOR_EVER, json!({ "volumeMounts": mounts }))],
    });
    node.apply("web", &pod("web", spec))?;
    let web = node.ready("web")?;
    let owners = inside(
        &web,
        "stat -c %u:%g /data /data/etc/conf /part/conf /flat/file /flat/of-a-user | tr '\\n' ' '; cat /part/conf",
    )?;
    same("owners", owners.as_str(), "0:0 0:0 0:0 0:0 1000:2000 two")?;
    let told = inside(&web, "(echo bad > /flat/file) 2>&1; true")?;
    ensure!(told.contains("Read-only file system"), "{told}");
    node.end()
}

/// What the container `main` of a pod waits for.
fn why(pod: &PodState) -> &str {
    pod.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default()
}

fn parts() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    push(&node)?;
    let with_part = |name: &str, part: &str| {
        let mounts = json!([{ "name": "data", "mountPath": "/part", "subPath": part }]);
        let main = shell("main", FOR_EVER, json!({ "volumeMounts": mounts }));
        pod(name, json!({ "volumes": [volume("data", DATA)], "containers": [main] }))
    };
    for (name, part) in [("whole", "etc"), ("linked", "near")] {
        node.apply(name, &with_part(name, part))?;
        same(part, inside(&node.ready(name)?, "cat /part/conf")?.as_str(), "two")?;
    }
    for (name, part, reason) in [
        ("file", "etc/conf", "only directory subpath is supported, subpath: \"etc/conf\""),
        ("none", "none/deeper", "openat none/deeper: no such file or directory"),
        ("odd", "new\nline", "openat new\nline: no such file or directory"),
        ("root", "root", "openat root: path escapes from parent"),
        ("host", "root/etc", "openat root/etc: path escapes from parent"),
        ("up", "up/etc", "openat up/etc: path escapes from parent"),
    ] {
        node.apply(name, &with_part(name, part))?;
        let refused =
            node.wait(name, "refused", POD_LIMIT, |pod| pod.waits_for("main") == "CreateContainerError")?;
        let expected = format!(
            "failed to mount image volume: ImageVolumeMountFailed: failed to ensure image subpath {part:?} in volume \
             \"data\": {reason}"
        );
        same(part, why(&refused), expected.as_str())?;
        // A table of events gives each line of a message one of its own.
        let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = events(&refused)?;
        let event = in_one_line(&format!("Warning Failed main Error: {expected}"));
        ensure!(in_one_line(&shown).contains(&event), "{shown}");
    }
    node.end()
}

fn missing() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    let spec = json!({
        "volumes": [volume("data", DATA)],
        "containers": [mounting("main", &["data"], json!({})), shell("other", FOR_EVER, json!({}))],
    });
    node.apply("late", &pod("late", spec))?;
    let unused =
        json!({ "volumes": [volume("data", DATA)], "containers": [shell("main", FOR_EVER, json!({}))] });
    node.apply("unused", &pod("unused", unused))?;
    for (name, image, reason) in [("bad", "UPPER", "InvalidImageName"), ("absent", FLAT, "ErrImageNeverPull")]
    {
        let mut never = volume("data", image);
        never["image"]["pullPolicy"] = json!("Never");
        let spec = json!({ "volumes": [never], "containers": [mounting("main", &["data"], json!({}))] });
        node.apply(name, &pod(name, spec))?;
        node.wait(name, reason, POD_LIMIT, |pod| pod.waits_for("main") == reason)?;
    }
    let late = node.wait("late", "waiting for its image beside one that runs", POD_LIMIT, |pod| {
        pod.waits_for("main") == "ImagePullBackOff" && pod.container("other")["state"]["running"].is_object()
    })?;
    let message = format!("Back-off pulling image {DATA:?}: ErrImagePull: ");
    ensure!(why(&late).starts_with(&message) && why(&late).contains("not found"), "{}", why(&late));
    let shown = events(&late)?;
    for told in [
        format!("Pulling image {DATA:?}"),
        format!("Failed to pull image {DATA:?}: "),
        "Error: ErrImagePull".to_owned(),
        "Error: ImagePullBackOff".to_owned(),
    ] {
        ensure!(shown.contains(&told), "{told}: {shown}");
    }
    let unused = node.ready("unused")?;
    ensure!(events(&unused)?.contains(&format!("Failed to pull image {DATA:?}: ")), "nobody mounts it");
    push(&node)?;
    let late = node.ready("late")?;
    same("restarts of the other", late.restarts("other"), 0)?;
    same("content", inside(&late, "cat /data/etc/conf")?.as_str(), "two")?;
    node.end()
}

/// Where the volume `data` of a pod is on the node.
fn place(pod: &PodState) -> String {
    format!("{ROOT_DIR}/pods/{}/volumes/kubernetes.io~image/data", pod.uid())
}

fn stay() -> Result<()> {
    let mut node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Settings::with_registry()
    })?;
    push(&node)?;
    let mut always = volume("data", DATA);
    always["image"]["pullPolicy"] = json!("Always");
    let spec = json!({ "volumes": [always], "containers": [mounting("main", &["data"], json!({}))] });
    node.apply("web", &pod("web", spec))?;
    let web = node.ready("web")?;
    let id = web.container_id("main")?.to_owned();
    // Nobody has the image any more, and nobody gives it.
    let stopped = node.registry.take().context("registry")?.stop()?;
    for name in ctr(&["images", "ls", "--quiet"])?.lines().filter(|name| name.contains("/data")) {
        ctr(&["images", "rm", "--sync", name])?;
    }
    let is_as_it_was = |node: &Node, restarts: u64| -> Result<()> {
        let web = node.ready("web")?;
        same("restarts", web.restarts("main"), restarts)?;
        same("content", inside(&web, "cat /data/etc/conf")?.as_str(), "two")?;
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        same("mounts of it", table.matches(&format!(" {} ", place(&web))).count(), 1)
    };
    is_as_it_was(&node, 0)?;
    node.agent.stop()?;
    node.agent.start()?;
    is_as_it_was(&node, 0)?;
    node.agent.kill()?;
    node.agent.start()?;
    is_as_it_was(&node, 0)?;
    same("the container", node.ready("web")?.container_id("main")?, id.as_str())?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", &id])?;
    node.wait("web", "running again", POD_LIMIT, |pod| pod.restarts("main") == 1 && pod.is_ready())?;
    is_as_it_was(&node, 1)?;
    // The next sandbox has it too, and so it is after containerd.
    kill(Pid::from_raw(i32::try_from(shim_of(&web)?)?), Signal::SIGKILL)?;
    node.wait("web", "up in another sandbox", POD_LIMIT, |pod| pod.restarts("main") == 2 && pod.is_ready())?;
    is_as_it_was(&node, 2)?;
    node.containerd.kill()?;
    node.containerd.start_again()?;
    is_as_it_was(&node, 2)?;
    // Somebody takes the mount away: it is there again for the next run.
    umount2(Path::new(&place(&web)), MntFlags::MNT_DETACH)?;
    node.agent.kill()?;
    node.agent.start()?;
    eventually("the image to be mounted again", &true, || {
        Ok(Path::new(&place(&web)).join("etc/conf").exists())
    })?;
    is_as_it_was(&node, 2)?;
    node.registry = Some(stopped.start()?);
    node.remove("web")?;
    node.gone("web")?;
    node.end()
}

/// Its root directory was wiped, and nothing else tells of it.
fn left() -> Result<()> {
    let mut node = Node::start_with(&Settings::with_registry())?;
    push(&node)?;
    node.apply("web", &of_data("web", FLAT))?;
    let kept = node.ready("web")?.uid().to_owned();
    node.agent.stop()?;
    let id = |run: &str, uid: &str| {
        let digest = Sha256::digest(format!("{run}\0{uid}\0"));
        format!("berth-volumes-{}", image::hex(&digest))
    };
    let [own, of_another] = [STATE_DIR, "/run/another"].map(|run| id(run, "gone"));
    for lease in [&own, &of_another] {
        ctr(&["leases", "create", "--id", lease, "io.kubernetes.pod.uid=gone"])?;
    }
    node.agent.start()?;
    node.ready("web")?;
    let mut expected = vec![id(STATE_DIR, &kept), of_another.clone()];
    expected.sort_unstable();
    eventually("leases", &expected, || {
        let mut leases = Records::open()?.leases()?;
        leases.sort_unstable();
        Ok(leases)
    })?;
    ctr(&["leases", "rm", &of_another])?;
    node.clear()?;
    node.end()
}

/// Node and containerd have another one since.
fn without_snapshotter() -> Result<()> {
    let of_copies = Settings { berth: json!({ "snapshotter": "native" }), ..Settings::with_registry() };
    let mut node = Node::start_with(&of_copies)?;
    push(&node)?;
    node.apply("web", &of_data("web", FLAT))?;
    node.ready("web")?;
    node.agent.stop()?;
    node.containerd.stop()?;
    node.containerd.disable(&["io.containerd.snapshotter.v1.native"]);
    node.containerd.start_again()?;
    node.set_agent(&Settings::with_registry())?;
    node.agent.start()?;
    same("what the volume has", inside(&node.ready("web")?, "cat /data/file")?.as_str(), "flat")?;
    node.apply("next", &of_data("next", FLAT))?;
    same("what the next one has", inside(&node.ready("next")?, "cat /data/file")?.as_str(), "flat")?;
    node.remove("web")?;
    node.gone("web")?;
    same("leases", Records::open()?.leases()?.len(), 1)?;
    node.end()
}

/// A pod starts and ends while the agent dies at a point of either, and the next one at the same.
fn dies() -> Result<()> {
    let mut node = Node::prepare(&Settings::with_registry())?;
    push(&node)?;
    let dir = node.world.root().join("shared");
    files::make_dir(&dir)?;
    for point in DEATHS {
        let starts = dir.join("starts");
        files::write(&starts, "")?;
        let mounts = json!([mount("data"), { "name": "shared", "mountPath": "/shared" }]);
        let script = format!("cat /data/etc/conf >> /shared/starts; {FOR_EVER}");
        let spec = json!({
            "volumes": [volume("data", DATA), { "name": "shared", "hostPath": { "path": dir } }],
            "containers": [shell("main", &script, json!({ "volumeMounts": mounts }))],
        });
        node.apply("web", &pod("web", spec))?;
        let is_of_end = point.ends_with("removed");
        if !is_of_end {
            dies_at(&mut node, point)?;
            dies_at(&mut node, point)?;
        }
        node.agent.start()?;
        same(point, node.ready("web")?.restarts("main"), 0)?;
        eventually(point, &"two".to_owned(), || files::read(&starts))?;
        if is_of_end {
            node.agent.kill()?;
            node.remove("web")?;
            dies_at(&mut node, point)?;
            node.agent.start()?;
        } else {
            node.remove("web")?;
        }
        node.gone("web")?;
        node.clear().with_context(|| format!("after a death at {point}"))?;
        node.agent.kill()?;
    }
    node.agent.start()?;
    node.end()
}

fn dies_at(node: &mut Node, point: &str) -> Result<()> {
    node.agent.start_doomed(point)?;
    wait::until(&format!("the agent to die at {point}"), POD_LIMIT, || {
        Ok(if node.agent.ended()? { Look::Ready(()) } else { Look::NotYet("it lives".to_owned()) })
    })
}
