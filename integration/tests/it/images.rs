//! Pulling: policies, names, registries that fail and come back.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, Settings};
use berth_integration::containerd::{ctr, ctr_rows};
use berth_integration::files;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::registry::Registry;
use serde_json::{Value, json};

use crate::kit::{IMAGE, events, eventually, logged, pod, sleeper, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("images::pull_policies", policies),
        test("images::who_may_have_what_is_there_by_policy", verified),
        test("images::what_was_there_is_still_there_after_pulls_that_brought_nothing", dies),
        test("images::an_image_by_its_id", by_id),
        test("images::one_of_the_platforms_of_an_index", platforms),
        test("images::names_and_tags_that_are_not_there", missing),
        test("images::a_registry_that_is_down_and_comes_back", down_and_up),
        test("images::one_that_is_imported_while_its_pull_fails", imported),
        test("images::an_image_without_its_layers_is_pulled_anew", without_layers),
        test("images::plain_http_by_hosts_toml", hosts_toml),
        test("images::user_entry_point_and_environment_of_an_image", config),
        test("images::cve_2026_53488_labels_of_an_image_stay_there", labels),
        test("images::cve_2019_11245_each_run_has_the_user_and_groups_of_the_first", same_user),
    ]
}

/// A manifest of one container, `main`, of an image.
pub(crate) fn of_image(name: &str, image: &str, policy: &str, more: Value) -> String {
    let container = json!({
        "name": "main", "image": image, "imagePullPolicy": policy, "command": ["sleep", "infinity"],
    });
    pod(name, json!({ "containers": [with(container, more)] }))
}

/// Waits until the container of a pod waits for one of these reasons.
pub(crate) fn waits(node: &Node, name: &str, reasons: &[&str]) -> Result<PodState> {
    node.wait(name, &format!("waiting for {reasons:?}"), POD_LIMIT, |pod| {
        reasons.contains(&pod.waits_for("main"))
    })
}

fn policies() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    node.apply("never", &of_image("never", IMAGE, "Never", json!({})))?;
    let never = waits(&node, "never", &["ErrImageNeverPull"])?;
    let message = never.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("is not present with pull policy of Never"), "{message}");

    node.apply("absent", &of_image("absent", IMAGE, "IfNotPresent", json!({})))?;
    let absent = node.ready("absent")?;
    let shown = events(&absent)?;
    ensure!(shown.contains("Pulling") && shown.contains("Successfully pulled image"), "{shown}");
    node.apply("present", &of_image("present", IMAGE, "IfNotPresent", json!({})))?;
    let shown = events(&node.ready("present")?)?;
    ensure!(!shown.contains("Pulling") && shown.contains("already present on machine"), "{shown}");
    node.apply("always", &of_image("always", IMAGE, "Always", json!({})))?;
    let shown = events(&node.ready("always")?)?;
    ensure!(shown.contains("Pulling"), "{shown}");
    let status = absent.container("main");
    same("image", status["image"].as_str(), Some(IMAGE))?;
    let id = status["imageID"].as_str().unwrap_or_default();
    ensure!(id.starts_with("localhost:5000/busybox@sha256:"), "{id}");
    node.remove("never")?;
    node.apply("never", &of_image("never", IMAGE, "Never", json!({ "env": [] })))?;
    node.ready("never")?;
    node.end()
}

/// The image is on the node, and nobody here has pulled it.
fn verified() -> Result<()> {
    let policy = |policy: &str, allowed: &[&str]| {
        let mut kubelet = json!({ "imagePullCredentialsVerificationPolicy": policy });
        if !allowed.is_empty() {
            kubelet["preloadedImagesVerificationAllowlist"] = json!(allowed);
        }
        Settings { kubelet, ..Settings::default() }
    };
    let mut node = Node::start_with(&policy("AlwaysVerify", &[]))?;
    node.apply("never", &of_image("never", IMAGE, "Never", json!({})))?;
    let never = waits(&node, "never", &["ErrImageNeverPull"])?;
    let message = never.container("main")["state"]["waiting"]["message"].as_str();
    let expected = format!("Container image {IMAGE:?} is not present with pull policy of Never");
    same("message", message, Some(expected.as_str()))?;
    node.apply("absent", &of_image("absent", IMAGE, "IfNotPresent", json!({})))?;
    let absent = waits(&node, "absent", &["ImagePullBackOff"])?;
    let message = absent.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("connection refused"), "{message}");

    for (name, settings) in [
        ("listed", policy("NeverVerifyAllowlistedImages", &["registry.example/*", "localhost:5000/busybox"])),
        ("unverified", policy("NeverVerify", &[])),
    ] {
        node.agent.stop()?;
        node.set_agent(&settings)?;
        node.agent.start()?;
        node.apply(name, &of_image(name, IMAGE, "Never", json!({})))?;
        let shown = events(&node.ready(name)?)?;
        ensure!(shown.contains("already present on machine and can be accessed by the pod"), "{shown}");
    }
    node.agent.stop()?;
    node.set_agent(&policy("NeverVerifyAllowlistedImages", &["localhost:5000/other"]))?;
    node.agent.start()?;
    node.apply("unlisted", &of_image("unlisted", IMAGE, "Never", json!({})))?;
    waits(&node, "unlisted", &["ErrImageNeverPull"])?;
    node.end()
}

/// Nobody knows at first what such a pull has brought, nor one that is given up. The next agent gives the image to everybody too.
fn dies() -> Result<()> {
    let mut node = Node::start()?;
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    node.containerd.add_registry(&Registry::host(), &format!("http://{}", silent.local_addr()?))?;
    node.apply("always", &of_image("always", IMAGE, "Always", json!({})))?;
    let (_given_up, _by) = silent.accept()?;
    let begun = || Ok(files::list(Path::new(ROOT_DIR).join("image_manager/pulling"))?.len());
    same("pulls that are under way", begun()?, 1)?;
    // Meanwhile others have it.
    node.apply("meanwhile", &of_image("meanwhile", IMAGE, "Never", json!({})))?;
    node.ready("meanwhile")?;
    node.remove("meanwhile")?;
    node.gone("meanwhile")?;
    node.remove("always")?;
    node.gone("always")?;
    eventually("a pull that was given up to be known to have brought nothing", &0, begun)?;
    node.apply("always", &of_image("always", IMAGE, "Always", json!({})))?;
    let (_asked, _by) = silent.accept()?;
    node.containerd.kill()?;
    waits(&node, "always", &["ErrImagePull"])?;
    // Of a pull that begins now nobody could know whether the image was there.
    node.apply("second", &of_image("second", IMAGE, "Always", json!({})))?;
    waits(&node, "second", &["ErrImagePull"])?;
    drop(silent);
    node.containerd.start_again()?;
    node.wait("always", "refused by the registry", POD_LIMIT, |pod| {
        let message = pod.container("main")["state"]["waiting"]["message"].as_str();
        message.is_some_and(|message| message.contains("connection refused"))
    })?;
    // Containerd keeps that of its own pull for a day.
    for lease in ctr_rows(&["leases", "list"])? {
        ctr(&["leases", "delete", &lease[0]])?;
    }
    eventually("pulls of which nobody knows", &0, begun)?;
    node.agent.stop()?;
    node.agent.start()?;
    node.apply("never", &of_image("never", IMAGE, "Never", json!({})))?;
    node.ready("never")?;
    node.end()
}

/// As `crictl images` shows it.
fn by_id() -> Result<()> {
    let node = Node::start()?;
    node.apply("named", &of_image("named", IMAGE, "Never", json!({})))?;
    let named = node.ready("named")?;
    let id = stored_id(IMAGE)?;
    for policy in ["Never", "IfNotPresent"] {
        let name = policy.to_lowercase();
        node.apply(&name, &of_image(&name, &id, policy, json!({})))?;
        let pod = node.ready(&name)?;
        for field in ["image", "imageID"] {
            same(field, &pod.container("main")[field], &named.container("main")[field])?;
        }
    }
    let other = format!("sha256:{}", "f".repeat(64));
    node.apply("other", &of_image("other", &other, "Never", json!({})))?;
    waits(&node, "other", &["ErrImageNeverPull"])?;
    node.end()
}

/// Digest of the config of an image that is stored.
fn stored_id(name: &str) -> Result<String> {
    let row = ctr_rows(&["images", "ls"])?.into_iter().find(|row| row[0] == name).context("no such image")?;
    let read =
        |digest: &str| -> Result<Value> { Ok(serde_json::from_str(&ctr(&["content", "get", digest])?)?) };
    let mut document = read(&row[2])?;
    if let Some(digest) = document["manifests"][0]["digest"].as_str() {
        document = read(digest)?;
    }
    Ok(document["config"]["digest"].as_str().context("no config")?.to_owned())
}

fn platforms() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    let registry = node.registry.as_ref().context("registry")?;
    let image = Image::new(&Layer::busybox(Packing::Gzip)?, &json!({ "Cmd": ["/bin/sh"] }));
    let other = Image::new(&Layer::busybox(Packing::Gzip)?, &json!({ "Cmd": ["/bin/false"] }));
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let of = |variant| json!({ "os": "linux", "architecture": architecture, "variant": variant });
    registry.push_index("both", "1", &[(&other, of("v99")), (&image, of(""))])?;
    registry.push_index("newer", "1", &[(&other, of("v99"))])?;
    node.apply("both", &of_image("both", "localhost:5000/both:1", "IfNotPresent", json!({})))?;
    node.ready("both")?;
    node.apply("newer", &of_image("newer", "localhost:5000/newer:1", "IfNotPresent", json!({})))?;
    let newer = waits(&node, "newer", &["ImagePullBackOff"])?;
    let message = newer.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("no match for platform in manifest"), "{message}");
    let names = ctr(&["images", "list", "--quiet"])?;
    ensure!(!names.contains("/newer"), "{names}");
    node.end()
}

fn missing() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    for (name, image) in [("upper", "Localhost/UPPER"), ("colons", "a:b:c"), ("digest", "busybox@sha256:abc")]
    {
        node.apply(name, &of_image(name, image, "IfNotPresent", json!({})))?;
        waits(&node, name, &["InvalidImageName"])?;
    }
    node.apply("tag", &of_image("tag", "localhost:5000/busybox:absent", "IfNotPresent", json!({})))?;
    waits(&node, "tag", &["ErrImagePull", "ImagePullBackOff"])?;
    let tag = waits(&node, "tag", &["ImagePullBackOff"])?;
    let message = tag.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("localhost:5000/busybox:absent") && message.contains("not found"), "{message}");
    let shown = events(&tag)?;
    ensure!(shown.contains("Failed to pull image"), "{shown}");
    // Others are not held up.
    node.apply("fine", &sleeper("fine"))?;
    node.ready("fine")?;
    node.end()
}

fn down_and_up() -> Result<()> {
    let mut node = Node::start_with(&Settings::with_registry())?;
    let stopped = node.registry.take().context("registry")?.stop()?;
    node.apply("late", &sleeper("late"))?;
    let late = waits(&node, "late", &["ImagePullBackOff"])?;
    let message = late.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("connection refused"), "{message}");
    node.registry = Some(stopped.start()?);
    node.ready("late")?;
    node.end()
}

/// Who waits finds it, and nobody needs an account that could have pulled it.
fn imported() -> Result<()> {
    const GONE: &str = "localhost:1/busybox:1";
    let node = Node::start()?;
    node.apply("waits", &of_image("waits", GONE, "IfNotPresent", json!({})))?;
    waits(&node, "waits", &["ImagePullBackOff"])?;
    ctr(&["images", "tag", IMAGE, GONE])?;
    node.apply("never", &of_image("never", GONE, "Never", json!({})))?;
    node.ready("never")?;
    let shown = events(&node.ready("waits")?)?;
    ensure!(!shown.contains("Successfully pulled"), "{shown}");
    node.end()
}

/// As containerd keeps it when a pull is cut off: it knows the image, and has neither its layer nor that unpacked.
fn without_layers() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    node.apply("first", &sleeper("first"))?;
    node.ready("first")?;
    node.remove("first")?;
    node.gone("first")?;
    for snapshot in ctr_rows(&["snapshots", "ls"])? {
        ctr(&["snapshots", "rm", &snapshot[0]])?;
    }
    let content = ctr_rows(&["content", "ls"])?;
    let layers: Vec<_> = content.iter().filter(|row| row[1].contains('M')).collect();
    same("layers of more than a megabyte", layers.len(), 1)?;
    ctr(&["content", "rm", &layers[0][0]])?;
    node.apply("second", &sleeper("second"))?;
    node.ready("second")?;
    node.end()
}

fn hosts_toml() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    node.containerd.add_registry("images.test", "http://localhost:5000")?;
    let image = Image::new(&Layer::busybox(Packing::Gzip)?, &json!({ "Cmd": ["/bin/sh"] }));
    node.registry.as_ref().context("registry")?.push("deep/er/name", "2", &image)?;
    node.apply("http", &of_image("http", "images.test/deep/er/name:2", "IfNotPresent", json!({})))?;
    let digest = format!("images.test/deep/er/name@{}", image.manifest.digest);
    node.ready("http")?;
    node.apply("digest", &of_image("digest", &digest, "IfNotPresent", json!({})))?;
    let pod = node.ready("digest")?;
    same("image id", pod.container("main")["imageID"].as_str(), Some(digest.as_str()))?;
    node.end()
}

/// Accounts of an image are read once; whoever comes later has the same of them, under the next agent too.
fn same_user() -> Result<()> {
    let mut node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Settings::with_registry()
    })?;
    let seen = node.world.root().join("seen");
    fs::create_dir(&seen)?;
    fs::set_permissions(&seen, Permissions::from_mode(0o777))?;
    let users = [("by-name", "app"), ("by-number", "1000")];
    for (name, user) in users {
        let image = Image::new(&Layer::busybox(Packing::Gzip)?, &json!({ "User": user }));
        node.registry.as_ref().context("registry")?.push(name, "1", &image)?;
        let script = format!("echo $(id -u) $(id -g) $(id -G) >> /seen/{name}; exit 1");
        let container = json!({
            "name": "main", "image": format!("localhost:5000/{name}:1"), "command": ["sh", "-c", script],
            "volumeMounts": [{ "name": "seen", "mountPath": "/seen" }],
        });
        let volume = json!({ "name": "seen", "hostPath": { "path": seen } });
        node.apply(name, &pod(name, json!({ "containers": [container], "volumes": [volume] })))?;
    }
    let lines = |name: &str| -> Result<Vec<String>> {
        let text = files::read_if_there(seen.join(name))?.unwrap_or_default();
        Ok(text.lines().map(str::to_owned).collect())
    };
    let have_run = |least: usize| {
        let all =
            || users.iter().map(|(name, _)| Ok(lines(name)?.len() >= least)).collect::<Result<Vec<_>>>();
        eventually(&format!("{least} runs"), &vec![true; users.len()], all)
    };
    have_run(3)?;
    node.agent.kill()?;
    let before = users.iter().map(|(name, _)| Ok(lines(name)?.len())).collect::<Result<Vec<_>>>()?;
    node.agent.start()?;
    have_run(before.into_iter().max().unwrap_or_default() + 2)?;
    for (name, _) in users {
        let lines = lines(name)?;
        ensure!(lines.iter().all(|line| line == "1000 1000 1000 2000"), "{name}: {lines:?}");
    }
    node.clear()?;
    node.end()
}

fn config() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    let image = Image::new(
        &Layer::busybox(Packing::Gzip)?,
        &json!({
            "User": "app:extra", "Env": ["A=image", "B=image"], "WorkingDir": "/home/app",
            "Entrypoint": ["/bin/sh", "-c"],
            "Cmd": ["echo $(id -u):$(id -g) $A $B $PWD; exec sleep infinity"],
        }),
    );
    node.registry.as_ref().context("registry")?.push("config", "1", &image)?;
    let container = |more: Value| {
        let container = json!({ "name": "main", "image": "localhost:5000/config:1" });
        json!({ "containers": [with(container, more)] })
    };
    node.apply("asis", &pod("asis", container(json!({}))))?;
    node.apply("args", &pod("args", container(json!({ "args": ["echo args; exec sleep infinity"] }))))?;
    node.apply("over", &pod("over", container(json!({
        "env": [{ "name": "B", "value": "pod" }], "workingDir": "/tmp", "securityContext": { "runAsUser": 0 },
    }))))?;
    // As with the kubelet and CRI, the group of USER is not taken over.
    logged(&node.ready("asis")?, "main", "1000:1000 image image /home/app\n")?;
    logged(&node.ready("args")?, "main", "args\n")?;
    let over = logged(&node.ready("over")?, "main", " image pod /tmp\n")?;
    ensure!(over.starts_with("0:"), "{over}");
    node.end()
}

/// CVE-2026-53488: an image's labels never become labels of a container.
fn labels() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    let image = Image::new(
        &Layer::busybox(Packing::Gzip)?,
        &json!({
            "Cmd": ["sleep", "infinity"],
            "Labels": {
                "containerd.io/restart.loguri": "binary:///bin/busybox",
                "io.kubernetes.pod.name": "other",
                "evil": "yes",
            },
        }),
    );
    node.registry.as_ref().context("registry")?.push("labels", "1", &image)?;
    node.apply(
        "labels",
        &pod("labels", json!({ "containers": [{ "name": "main", "image": "localhost:5000/labels:1" }] })),
    )?;
    let pod = node.ready("labels")?;
    let info: Value = serde_json::from_str(&ctr(&["containers", "info", pod.container_id("main")?])?)?;
    let labels = info["Labels"].as_object().context("no labels")?;
    ensure!(
        !labels.contains_key("evil") && !labels.keys().any(|key| key.starts_with("containerd.io/restart")),
        "{labels:?}"
    );
    same("pod name", labels["io.kubernetes.pod.name"].as_str(), Some(pod.name()))?;
    ensure!(!info["Spec"]["annotations"].to_string().contains("evil"), "{info}");
    ensure!(!ctr_rows(&["images", "ls"])?.is_empty(), "no image");
    node.end()
}
