//! Ways out of a container by what its OCI runtime does for it, which other runtimes than these once had.

use std::fs;

use anyhow::{Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::components;
use berth_integration::files;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT};
use serde_json::{Value, json};

use crate::images::of_image;
use crate::kit::{eventually, pod, shell, sleeper};
use crate::suite::{Test, same, test};

/// Containers that are made while the volume changes.
const VICTIMS: usize = 24;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("escapes::cve_2019_16884_cve_2019_19921_a_volume_over_proc_starts_nothing", over_proc),
        test("escapes::cve_2025_31133_cve_2025_52565_cve_2025_52881_a_runc_that_is_too_old_is_told", told),
        test("escapes::cve_2021_30465_cve_2024_45310_pods_that_race_for_a_volume_with_crun", || race("crun")),
        test("escapes::cve_2021_30465_cve_2024_45310_pods_that_race_for_a_volume_with_runc", || race("runc")),
    ]
}

fn with_runtime(name: &str) -> Settings {
    Settings { berth: json!({ "runtime": { "ociRuntime": name } }), ..Settings::with_registry() }
}

/// What a runtime writes below `/proc` for its container, as the AppArmor profile, would go into a volume. A pod may ask for one there, and so may
/// an image. crun writes nothing where it finds no procfs, and starts such a container.
fn over_proc() -> Result<()> {
    let node = Node::start_with(&with_runtime("runc"))?;
    let image = Image::new(&Layer::busybox(Packing::Gzip)?, &json!({ "Volumes": { "/proc": {} } }));
    node.registry.as_ref().expect("registry").push("over-proc", "1", &image)?;
    let mount = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/proc" }] });
    let by_pod = json!({
        "containers": [shell("main", "exec sleep infinity", mount)],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    });
    node.apply("pod", &pod("pod", by_pod))?;
    node.apply("image", &of_image("image", "localhost:5000/over-proc:1", "IfNotPresent", json!({})))?;
    for name in ["pod", "image"] {
        let refused = node.wait(name, "refused", POD_LIMIT, |pod| pod.restarts("main") > 0)?;
        let last = &refused.container("main")["lastState"]["terminated"];
        same("reason", last["reason"].as_str(), Some("StartError"))?;
        ensure!(last["message"].as_str().is_some_and(|message| message.contains("/proc")), "{refused}");
    }
    node.apply("fine", &sleeper("fine"))?;
    node.ready("fine")?;
    node.end()
}

fn told() -> Result<()> {
    let old = World::here()?.root().join("old-runc");
    let program = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo runc version 1.2.7; else exec {} \"$@\"; fi\n",
        components::binary("runc")?.display()
    );
    files::write_program(&old, &program)?;
    let node = Node::start_with(&Settings {
        berth: json!({ "runtime": { "ociRuntime": old } }),
        ..Settings::default()
    })?;
    let said = "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881): install 1.2.8 or later";
    eventually("a word about the runtime", &true, || Ok(files::read(node.agent.log())?.contains(said)))?;
    // It goes on: a distribution may have mended its own.
    node.apply("fine", &sleeper("fine"))?;
    node.ready("fine")?;
    node.end()
}

/// A directory on the way to a mount's place becomes a link out of the container and back again, as fast as it can.
fn race(runtime: &str) -> Result<()> {
    let node = Node::start_with(&with_runtime(runtime))?;
    let (shared, outside) = (node.world.root().join("shared"), node.world.root().join("outside"));
    fs::create_dir(&shared)?;
    fs::create_dir(&outside)?;
    let exchange = format!(
        "cd /v; while :; do mkdir real; mv -T real d; rm -rf d; ln -s {} link; mv -T link d; rm -rf d; echo >> rounds; done",
        outside.display()
    );
    let volume = json!([{ "name": "v", "hostPath": { "path": shared } }, { "name": "e", "emptyDir": {} }]);
    let mount = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
    node.apply(
        "thief",
        &pod("thief", json!({ "containers": [shell("main", &exchange, mount)], "volumes": volume })),
    )?;
    node.ready("thief")?;
    let rounds = || fs::read_to_string(shared.join("rounds")).map_or(0, |rounds| rounds.len());
    eventually("the race to begin", &true, || Ok(rounds() > 0))?;
    let victims: Vec<Value> = (0..VICTIMS)
        .map(|number| {
            let mounts = json!({ "volumeMounts": [
                { "name": "v", "mountPath": "/v" },
                { "name": "e", "mountPath": format!("/v/d/escaped-{number}") },
            ] });
            shell(&format!("c{number}"), "exec sleep infinity", mounts)
        })
        .collect();
    let manifest = json!({ "restartPolicy": "Never", "containers": victims, "volumes": volume });
    node.apply("victim", &pod("victim", manifest))?;
    let is_tried = |pod: &Value| pod["state"]["waiting"].is_null();
    let tried = node.wait("victim", "tried", POD_LIMIT, |pod| {
        (0..VICTIMS).all(|number| is_tried(pod.container(&format!("c{number}"))))
    })?;
    let met = rounds();
    ensure!(met > VICTIMS, "{met} rounds");
    eventually("the race to go on", &true, || Ok(rounds() > met))?;
    let escaped: Vec<_> = fs::read_dir(&outside)?.flatten().map(|entry| entry.path()).collect();
    ensure!(escaped.is_empty(), "{escaped:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let led_out = outside.display().to_string();
    ensure!(!mounts.lines().any(|line| line.contains(&led_out)), "{mounts}");
    ensure!(tried.to_string().contains("StartError") || tried.is_ready(), "{tried}");
    node.end()
}
