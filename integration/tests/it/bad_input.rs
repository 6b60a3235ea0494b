//! What people and machines get wrong, and that it stays where it is wrong.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{Settings, berth, berth_output};
use berth_integration::containerd;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::{binaries, cgroup, cni, components, files};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::fake_containerd::FakeContainerd;
use crate::kit::{eventually, inside, pod, script, shell, sleeper};
use crate::plugins::with_plugin;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("bad_input::a_broken_manifest_names_file_line_and_field", broken_manifest),
        test("bad_input::a_restart_where_manifests_cannot_be_read", restart_without_manifests),
        test("bad_input::two_manifests_of_one_pod", duplicates),
        test("bad_input::a_failing_network_plugin", failing_plugin),
        test("bad_input::no_network_configuration", no_network),
        test("bad_input::a_full_log_disk", full_log_disk),
        test("bad_input::a_full_pod_disk", full_pod_disk),
        test("bad_input::containerd_is_not_there_yet", no_containerd),
        test("bad_input::containerd_is_too_old", old_containerd),
        test("bad_input::a_broken_configuration_names_the_field", broken_configuration),
        test("bad_input::not_root", not_root),
        test("bad_input::a_second_agent", second_agent),
        test("bad_input::a_corrupt_record", corrupt_record),
    ]
}

pub(crate) fn events_say(pod: &PodState, text: &str) -> bool {
    crate::kit::events(pod).is_ok_and(|shown| shown.contains(text))
}

fn broken_manifest() -> Result<()> {
    let node = Node::start()?;
    node.apply("good", &sleeper("good"))?;
    let good = node.ready("good")?.uid().to_owned();
    const BROKEN: [(&str, &str, &[&str]); 5] = [
        ("syntax", "kind: Pod\nmetadata:\n  name: [oops\n", &["syntax.yaml:4"]),
        ("kind", "kind: Sandwich\nmetadata:\n  name: x\n", &["kind.yaml", "Sandwich"]),
        (
            "field",
            "kind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n    - name: main\n      command: x\n",
            &["field.yaml", ":7", "command"],
        ),
        (
            "type",
            "kind: Pod\nmetadata: {name: x}\nspec:\n  terminationGracePeriodSeconds: soon\n",
            &["type.yaml", ":5", "terminationGracePeriodSeconds"],
        ),
        (
            "value",
            "kind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n    - {name: Not_A_Label, image: a}\n",
            &["value.yaml", ":6", "containers[0].name"],
        ),
    ];
    for (file, manifest, parts) in BROKEN {
        node.apply(file, &format!("apiVersion: v1\n{manifest}"))?;
        shown_as_broken(parts)?;
    }
    node.apply("new", &sleeper("new"))?;
    node.ready("new")?;
    same("the pod that was there", node.ready("good")?.uid(), good.as_str())?;
    // A manifest that breaks does not stop its pod.
    node.apply("good", "apiVersion: v1\nkind: Pod\nmetadata: {")?;
    shown_as_broken(&["good.yaml:3"])?;
    same("the pod whose manifest broke", node.ready("good")?.uid(), good.as_str())?;
    node.end()
}

/// Neither a broken file nor a directory that cannot be listed says that its pods are to end.
fn restart_without_manifests() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("good", &sleeper("good"))?;
    node.apply("going", &sleeper("going"))?;
    let good = node.ready("good")?;
    node.ready("going")?;
    node.apply("good", "apiVersion: v1\nkind: Pod\nmetadata: {")?;
    shown_as_broken(&["good.yaml:3"])?;
    node.agent.kill()?;
    let extra: Vec<_> = (0..1001).map(|number| node.manifests().join(format!("{number}.txt"))).collect();
    extra.iter().try_for_each(|path| files::write(path, ""))?;
    node.agent.start()?;
    shown_as_broken(&["more than 1000 files"])?;
    extra.iter().try_for_each(files::remove)?;
    shown_as_broken(&["good.yaml:3"])?;
    // That what is gone ends shows that what stays had its turn too.
    node.remove("going")?;
    node.apply("good", &sleeper("good"))?;
    node.gone("going")?;
    let now = node.ready("good")?;
    same("the pod whose manifest was broken", now.container_id("main")?, good.container_id("main")?)?;
    node.end()
}

/// Waits until `berth pods` has a line with all of these. No pod that runs tells of its file there, and the log tells of
/// files that are read well too.
fn shown_as_broken(parts: &[&str]) -> Result<()> {
    eventually(&format!("a line about {parts:?}"), &true, || {
        Ok(berth(&["pods"])?.lines().any(|line| parts.iter().all(|part| line.contains(part))))
    })
}

fn duplicates() -> Result<()> {
    let node = Node::start()?;
    node.apply("a", &sleeper("same"))?;
    let first = node.ready("same")?.uid().to_owned();
    node.apply("b", &sleeper("same"))?;
    node.apply("c", &sleeper("other"))?;
    node.ready("other")?;
    // `pod` fails when there are several.
    let stays = node.pod("same")?.is_some_and(|pod| pod.is_ready() && pod.uid() == first);
    ensure!(stays, "the first pod is gone");
    node.remove("a")?;
    // The UID of a static pod follows from its file.
    node.wait("same", "of the other file", POD_LIMIT, |pod| pod.is_ready() && pod.uid() != first)?;
    node.end()
}

/// The last plugin of the chain fails while a file is there; the address is already leased then.
fn failing_plugin() -> Result<()> {
    let world = World::here()?;
    let broken = world.root().join("broken");
    let plugin = format!(
        r#"#!/bin/sh
if [ "$CNI_COMMAND" = ADD ] && [ -e {broken} ]; then
    echo '{{"cniVersion":"1.0.0","code":100,"msg":"no cable","details":"on purpose"}}'
    exit 1
fi
exec {passes_on}
"#,
        broken = broken.display(),
        // Without settings it answers with what the plugin before it made.
        passes_on = components::binary("tuning")?.display(),
    );
    files::write(&broken, "")?;
    let mut node = with_plugin(&world, "flaky", &plugin, |all| all.push(json!({ "type": "flaky" })))?;
    node.agent.start()?;
    node.apply("host", &of_the_host())?;
    node.apply("wired", &sleeper("wired"))?;
    node.wait("wired", "told about the plugin", POD_LIMIT, |pod| {
        events_say(pod, "FailedCreatePodSandBox") && events_say(pod, "no cable")
    })?;
    node.ready("host")?;
    let leases = world.root().join("leases").join(cni::NETWORK);
    files::remove(&broken)?;
    let wired = node.ready("wired")?;
    let held = files::list(leases)?;
    let names = held.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let addresses: Vec<String> = names.filter(|name| name.starts_with("10.")).collect();
    same("leases", addresses, vec![wired.ip()?.to_string()])?;
    node.end()
}

/// A pod that needs no network.
fn of_the_host() -> String {
    let main = shell("main", "exec sleep infinity", json!({}));
    pod("host", json!({ "hostNetwork": true, "containers": [main] }))
}

fn no_network() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    let file = files::list(node.cni_conf())?.pop().context("no configuration")?;
    let kept = files::read(&file)?;
    files::remove(&file)?;
    node.agent.start()?;
    node.apply("host", &of_the_host())?;
    node.apply("wired", &sleeper("wired"))?;
    node.ready("host")?;
    node.wait("wired", "told about the network", POD_LIMIT, |pod| {
        events_say(pod, "NetworkNotReady") && events_say(pod, "cni plugin not initialized")
    })?;
    files::write(file, kept)?;
    node.ready("wired")?;
    node.end()
}

fn small_disk(at: &Path, size: &str) -> Result<()> {
    files::make_dir(at)?;
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(format!("size={size}").as_str()))
        .with_context(|| format!("mount {}", at.display()))
}

fn full_log_disk() -> Result<()> {
    let disk = Path::new("/var/log/pods");
    small_disk(disk, "256k")?;
    let node = Node::start()?;
    // Ends only when every write went through.
    let what =
        "i=0; while [ $i -lt 20000 ]; do echo line number $i of many; i=$((i+1)); done; exec sleep infinity";
    node.apply("loud", &script("loud", what))?;
    let loud = node.ready("loud")?;
    eventually("the writer to be done", &true, || Ok(inside(&loud, "cat /proc/1/comm")? == "sleep"))?;
    same("exec", inside(&loud, "echo fine")?.as_str(), "fine")?;
    node.apply("quiet", &sleeper("quiet"))?;
    node.ready("quiet")?;
    node.end()?;
    Ok(umount2(disk, MntFlags::MNT_DETACH)?)
}

fn full_pod_disk() -> Result<()> {
    let disk = Path::new("/var/lib/kubelet");
    small_disk(disk, "64k")?;
    let node = Node::start()?;
    node.apply("first", &sleeper("first"))?;
    let first = node.ready("first")?.uid().to_owned();
    let filler = disk.join("filler");
    // Ends with an error when the disk is full, as is wanted.
    drop(fs::write(&filler, vec![0; 1 << 20]));
    node.apply("second", &sleeper("second"))?;
    node.wait("second", "told about the disk", POD_LIMIT, |pod| events_say(pod, "No space left on device"))?;
    same("the first pod", node.ready("first")?.uid(), first.as_str())?;
    files::remove(&filler)?;
    node.ready("second")?;
    node.end()?;
    Ok(umount2(disk, MntFlags::MNT_DETACH)?)
}

fn no_containerd() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    node.containerd.stop()?;
    node.apply("late", &sleeper("late"))?;
    node.agent.start_doomed("never")?;
    eventually("a word about containerd", &true, || {
        let log = files::read(node.agent.log())?;
        Ok(log.contains(containerd::SOCKET))
    })?;
    ensure!(!node.agent.ended()?, "the agent gave up");
    node.containerd.start_again()?;
    eventually("the agent to answer", &true, || Ok(berth_output(&["pods"])?.status.success()))?;
    node.ready("late")?;
    node.end()
}

fn old_containerd() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    node.containerd.stop()?;
    let fake = FakeContainerd::start(Path::new(containerd::SOCKET), "v1.7.33")?;
    let done = node.agent.command()?.output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(!done.status.success(), "the agent runs with containerd 1.7");
    ensure!(said.contains("1.7.33") && said.contains("2.0"), "{said}");
    fake.stop()?;
    node.containerd.start_again()?;
    node.agent.start()?;
    node.end()
}

fn broken_configuration() -> Result<()> {
    let mut broken = vec![
        (json!({ "maxPods": "many" }), vec!["maxPods"]),
        (json!({ "staticPodPaht": "/x" }), vec!["staticPodPaht"]),
        (json!({ "containerLogMaxSize": "-1" }), vec!["containerLogMaxSize"]),
    ];
    if !cgroup::is_unified() {
        broken.push((json!({ "failCgroupV1": true }), vec!["failCgroupV1"]));
    }
    for (kubelet, parts) in broken {
        let mut node = Node::prepare(&Settings { kubelet: kubelet.clone(), ..Settings::default() })?;
        let done = node.agent.command()?.output()?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(!done.status.success(), "the agent runs with {kubelet}");
        ensure!(parts.iter().all(|part| said.contains(part)), "{kubelet}: {said}");
        node.containerd.stop()?;
        node.world.remove_cgroups()?;
    }
    Ok(())
}

fn not_root() -> Result<()> {
    let node = Node::prepare(&Settings::default())?;
    let command = node.agent.command()?;
    let done = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups"])
        .arg(command.get_program())
        .args(command.get_args())
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(!done.status.success() && said.contains("only root may run the agent"), "{said}");
    let mut node = node;
    node.agent.start()?;
    // Nor may others ask.
    let asked = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups"])
        .arg(binaries::path("berth")?)
        .arg("pods")
        .output()?;
    let said = String::from_utf8_lossy(&asked.stderr);
    ensure!(!asked.status.success() && said.contains("only root may"), "{said}");
    node.end()
}

fn second_agent() -> Result<()> {
    let node = Node::start()?;
    node.apply("one", &sleeper("one"))?;
    let one = node.ready("one")?.uid().to_owned();
    let done = node.agent.command()?.output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(!done.status.success(), "a second agent ran");
    ensure!(said.contains("another") || said.contains("already"), "{said}");
    same("the pod", node.ready("one")?.uid(), one.as_str())?;
    node.end()
}

fn corrupt_record() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("one", &sleeper("one"))?;
    node.ready("one")?;
    node.apply("two", &sleeper("two"))?;
    let two = node.ready("two")?.container_id("main")?.to_owned();
    let one = node.ready("one")?.container_id("main")?.to_owned();
    let uid = node.ready("one")?.uid().to_owned();
    node.agent.kill()?;
    let record = format!("/run/berth/pods/{uid}.state");
    files::write(&record, "{ half of a")?;
    node.agent.start()?;
    // What runs of it is found by its labels and goes on.
    same("its container", node.ready("one")?.container_id("main")?, one.as_str())?;
    same("the other pod", node.ready("two")?.container_id("main")?, two.as_str())?;
    // Kept for whoever wants to know what happened.
    for file in ["state", "manifest"] {
        let aside = format!("/run/berth/pods/{uid}.{file}.corrupt");
        ensure!(files::read(node.agent.log())?.contains(&aside), "no word about {aside}");
        files::remove(aside)?;
    }
    node.end()
}
