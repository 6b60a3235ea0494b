//! Ways out of a container by what its OCI runtime does for it, which other runtimes than these once had.

use std::fs;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::components;
use berth_integration::files;
use berth_integration::image::{Entry, Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT};
use serde_json::{Value, json};

use crate::images::of_image;
use crate::kit::{eventually, exec, inside, pod, shell, sleeper};
use crate::suite::{Test, same, test};

/// Containers that are made while the volume changes.
const VICTIMS: usize = 24;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("escapes::cve_2019_16884_cve_2019_19921_a_volume_over_proc_starts_nothing", over_proc),
        test("escapes::cve_2019_5736_an_exec_leaves_the_runtime_whole_with_crun", || whole("crun")),
        test("escapes::cve_2019_5736_an_exec_leaves_the_runtime_whole_with_runc", || whole("runc")),
        test("escapes::cve_2024_5154_what_is_mounted_below_etc_stays_in_the_container", link_for_etc),
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

/// Whoever enters the container executes itself there, by a program that is a script of `/proc/self/exe`, and the container holds every
/// program that it sees run and is not its own, and writes into it once that has ended. A copy of its shell on the node, which it enters in the
/// same way, it does write into.
fn whole(runtime: &str) -> Result<()> {
    const ROUNDS: usize = 40;
    const THIEF: &str = r##"
        printf '#!/proc/self/exe\n' > /bin/entered; chmod 755 /bin/entered
        while :; do
            for exe in /proc/[0-9]*/exe; do
                case "$(readlink $exe)" in ""|/bin/busybox) continue;; esac
                (
                    exec 3< $exe; tries=0
                    while ! echo x >> /proc/self/fd/3 && [ $tries -lt 40 ]; do tries=$((tries + 1)); sleep 0.05; done
                )
            done
            echo >> /tmp/rounds
        done 2> /dev/null"##;
    let found = if runtime == "crun" { "/usr/bin/crun".into() } else { components::binary("runc")? };
    // Not the machine's own: who knows.
    let dir = World::here()?.root().join("runtime");
    fs::create_dir(&dir)?;
    let program = dir.join(runtime);
    fs::copy(&found, &program).with_context(|| format!("copy {}", found.display()))?;
    let node = Node::start_with(&with_runtime(&program.display().to_string()))?;
    let shared = World::here()?.root().join("shared");
    let control = shared.join("busybox");
    fs::create_dir(&shared)?;
    fs::copy("/bin/busybox", &control).context("copy busybox")?;
    let before = [&program, &control].map(fs::read);
    let thief = json!({
        "containers": [shell("main", THIEF, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
        "volumes": [{ "name": "v", "hostPath": { "path": shared } }],
    });
    node.apply("thief", &pod("thief", thief))?;
    let thief = node.ready("thief")?;
    let rounds = || -> Result<usize> { Ok(inside(&thief, "wc -l < /tmp/rounds")?.trim().parse()?) };
    let begun = || Ok(rounds().unwrap_or_default() > 1);
    eventually("the container to look for programs", &true, begun)?;
    let [program_before, control_before] = before;
    let control_before = control_before?;
    eventually("the copy on the node to be written into", &true, || {
        exec(&thief, "main", &["/v/busybox", "sleep", "0.5"])?;
        Ok(fs::read(&control)? != control_before)
    })?;
    let first = rounds()?;
    for _ in 0..ROUNDS {
        // It never ends well: what is executed is no program of the container's. A runtime that keeps its own from the container's eyes
        // is not met at all.
        let _failed = exec(&thief, "main", &["/bin/entered"]);
    }
    eventually("the container to look again", &true, || Ok(rounds()? > first + 1))?;
    ensure!(fs::read(&program)? == program_before?, "{} was written into", program.display());
    node.apply("fine", &sleeper("fine"))?;
    node.ready("fine")?;
    node.end()
}

/// The image's `/etc` is a link out of it: hosts, host name and resolv.conf are mounted in the image or nowhere, and nothing is made where
/// the link leads.
fn link_for_etc() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    let outside = node.world.root().join("outside");
    fs::create_dir(&outside)?;
    // Up to the root from wherever the container's own is, and not further.
    let relative = format!("{}..{}", "../".repeat(16), outside.display());
    for (name, target) in [("absolute", outside.display().to_string()), ("relative", relative)] {
        let layer = Layer::of(&[
            ("bin".to_owned(), Entry::Directory),
            ("bin/busybox".to_owned(), Entry::Program("/bin/busybox".into())),
            ("etc".to_owned(), Entry::Link(target)),
        ])?;
        let image = Image::new(&layer, &json!({}));
        node.registry.as_ref().context("registry")?.push(name, "1", &image)?;
        let more = json!({ "command": ["/bin/busybox", "sleep", "infinity"] });
        node.apply(name, &of_image(name, &format!("localhost:5000/{name}:1"), "IfNotPresent", more))?;
        let tried = node.wait(name, "tried", POD_LIMIT, |pod| {
            pod.is_ready()
                || pod.restarts("main") > 0
                || !pod.container("main")["state"]["terminated"].is_null()
        })?;
        let found: Vec<_> = fs::read_dir(&outside)?.flatten().map(|entry| entry.path()).collect();
        ensure!(found.is_empty(), "{name}: {found:?}: {tried}");
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains(&outside.display().to_string()), "{mounts}");
        node.remove(name)?;
        node.gone(name)?;
    }
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
