//! Invariant 6: SIGKILL of the agent at each of its labelled points, then a restart, ends in the
//! same state as without: nothing left, nothing started twice, no container started again.

mod deserted;
mod points;
mod requests;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR, Settings};
use berth_integration::containerd::ctr;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, system};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use berth_integration::{components, files};
use serde_json::{Value, json};

pub(crate) use self::points::BEGUN;
use self::points::{AGAIN, DONE, GROUPED, HOOK, OF_CGROUPS, OF_GROUPED, PULL, UNPACK, phases};
use crate::kit::{eventually, pod, pod_dir_of, shell, sleeper, with};
use crate::plugins::with_plugin;
use crate::suite::{Body, LONG_LIMIT, Test, of, same, test};
use crate::unpack::import_packed;
use crate::{api_changes, api_resizes, behind, collection, image_volumes, interrupted, silent};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A pod's directory without record or manifest, as a lost `/run` leaves it.
const ORPHAN: &str = "3f3b0c52-0000-4000-8000-00000000dead";

/// Where containerd keeps what shims read.
const BUNDLES: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";

/// Points in one world, one after the other. Each takes a few seconds, of the minutes that a test may take.
const IN_A_WORLD: usize = 8;

pub(crate) fn tests() -> Vec<Test> {
    // A task is looked at only when its start was not answered.
    let elsewhere = [
        &OF_GROUPED[..],
        &OF_CGROUPS,
        &requests::OF_CONTENT,
        &requests::OF_REFUSALS,
        &interrupted::DEATHS,
        &behind::DEATHS,
        &silent::DEATHS,
        &collection::DEATHS,
        &image_volumes::DEATHS,
        &api_changes::DEATHS,
        &api_resizes::DEATHS,
    ]
    .concat();
    let of_kept_ends = |label: &String| label.contains("-end.");
    let labels = berth::failpoint::labels(berth::effects::KINDS);
    let labels = labels.filter(|label| !elsewhere.contains(&label.as_str()) && !of_kept_ends(label));
    let points: Vec<String> = labels.chain(AGAIN.map(|(point, _)| point.to_owned())).collect();
    let worlds = points.chunks(IN_A_WORLD).map(|chunk| (chunk[0].replace('#', "_"), chunk.join(" ")));
    let labelled = worlds.map(|(first, points)| at_points(format!("crash::from_{first}"), dies_at, points));
    // In guests too, where everything takes longer.
    let cgroups = OF_CGROUPS
        .chunks(OF_CGROUPS.len() / 2)
        .map(|points| at_points(format!("crash::of_cgroups_from_{}", points[0]), dies_at, points.join(" ")));
    let others = [
        at_points("crash::of_requests".to_owned(), requests::dies_at, words(requests::points())),
        at_points("crash::with_a_handler_of_containerd".to_owned(), dies_grouped, GROUPED.join(" ")),
        test("crash::every_label_is_in_the_list_of_a_test", every_label),
        test("crash::a_shim_that_containerd_gave_up_holds_no_pod_up", deserted::holds_no_pod_up),
        test("crash::between_network_plugins", between_plugins),
        test("crash::in_a_network_plugin_that_goes_on", || in_a_plugin(SIGKILL)),
        test("crash::stopped_in_a_network_plugin_that_goes_on", || in_a_plugin(SIGTERM)),
        test("crash::a_task_that_containerd_has_lost_is_made_anew", containerd_loses_a_task),
    ];
    let kept = berth::failpoint::labels(berth::effects::KINDS).filter(of_kept_ends);
    let kept = kept.map(|label| of(format!("crash::at_{label}"), Body::Of(dies_while_an_end_is_kept, label)));
    labelled.chain(cgroups).chain(kept).chain(others).collect()
}

/// Deaths at some points, one after the other, each of which begins agents again and again.
fn at_points(name: String, dies: fn(&str) -> Result<()>, points: String) -> Test {
    of(name, Body::Of(dies, points)).long().within(LONG_LIMIT)
}

fn words(points: impl Iterator<Item = String>) -> String {
    points.collect::<Vec<_>>().join(" ")
}

/// A label that no test dies at, or a test that dies at none that there is.
fn every_label() -> Result<()> {
    let own = tests();
    let lists = own.iter().filter_map(|test| match &test.body {
        Body::Plain(_) => None,
        Body::Of(_, points) => Some(points.split(' ')),
    });
    let elsewhere = [
        &interrupted::DEATHS[..],
        &behind::DEATHS,
        &silent::DEATHS,
        &collection::DEATHS,
        &image_volumes::DEATHS,
        &api_changes::DEATHS,
        &api_resizes::DEATHS,
    ];
    let points = lists.flatten().chain(elsewhere.concat());
    let tried: BTreeSet<&str> = points.filter_map(|point| point.split('#').next()).collect();
    let labels = berth::failpoint::labels(berth::effects::KINDS);
    let labels: Vec<String> = labels.chain(berth::failpoint::edges(berth::cluster::REQUESTS)).collect();
    same("labels", tried, labels.iter().map(String::as_str).collect())
}

/// How far an agent that is to die came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    ToItsEnd,
    Through,
}

fn dies_at(points: &str) -> Result<()> {
    let pulls = points.split(' ').any(|point| point.starts_with(PULL));
    let mut node = Node::prepare(&if pulls { Settings::with_registry() } else { Settings::default() })?;
    for (number, point) in points.split(' ').enumerate() {
        // Shims of others run no hooks, and what ends needs none for anything else.
        let post_start = json!({ "lifecycle": { "postStart": { "exec": { "command": ["true"] } } } });
        let of_main = if point.starts_with(HOOK) { post_start } else { json!({}) };
        let victim = |dir: &Path| victim_with(dir, &json!({}), &of_main);
        lives_through(&mut node, number, point, &victim).with_context(|| format!("killed at {point}"))?;
    }
    node.agent.start()?;
    node.end()
}

fn dies_grouped(points: &str) -> Result<()> {
    let mut node = Node::prepare(&Settings {
        berth: json!({ "runtime": { "handlers": { "runc": "io.containerd.runc.v2" } } }),
        ..Settings::default()
    })?;
    for (number, point) in points.split(' ').enumerate() {
        let victim = |dir: &Path| victim(dir, &json!({ "runtimeClassName": "runc" }));
        lives_through(&mut node, number, point, &victim).with_context(|| format!("killed at {point}"))?;
    }
    node.agent.start()?;
    node.end()
}

/// A pod starts and ends while the agent dies at a point of each, again while the next one recovers from that, and again;
/// then everything is as if none had died.
fn lives_through(
    node: &mut Node,
    number: usize,
    point: &str,
    victim: &dyn Fn(&Path) -> String,
) -> Result<()> {
    let dir = node.world.root().join(format!("shared-{number}"));
    files::make_dir(&dir)?;
    pod_dir_of(ORPHAN, STATE_DIR)?;
    if point.starts_with(PULL) {
        for image in ctr(&["images", "ls", "--quiet"])?.lines() {
            ctr(&["images", "rm", "--sync", image])?;
        }
    }
    if point.starts_with(UNPACK) {
        import_packed(node)?;
    }
    node.apply("victim", &victim(&dir))?;
    let (starts, ends) = phases(point);

    dies(node, point, starts, |node| Ok(node.pod("victim")?.is_some_and(|pod| pod.is_ready())))
        .context("while a pod starts")?;
    node.agent.start()?;
    is_up(node, &dir)?;

    node.agent.kill()?;
    node.remove("victim")?;
    dies(node, point, ends, |node| Ok(node.pods()?.is_empty())).context("while a pod ends")?;
    node.agent.start()?;
    node.clear()?;
    started_once(&dir)?;
    node.agent.kill()
}

/// Waits until the victim is Ready, with every container started and none of them again.
fn is_up(node: &Node, dir: &Path) -> Result<()> {
    let up = node.ready("victim")?;
    for container in ["init", "side", "main"] {
        same(&format!("restarts of {container}"), up.restarts(container), 0)?;
    }
    // A container runs a moment before its first command does.
    eventually("every container to say that it started", &3, || {
        Ok(fs::read_to_string(dir.join("starts")).unwrap_or_default().lines().count())
    })
}

/// Lets an agent die at a point, which it must come to when that is due, and then the one that recovers: at the same point; or, where
/// that is done, as it begins. What was not begun is begun again.
fn dies(
    node: &mut Node,
    point: &str,
    is_due: bool,
    mut there: impl FnMut(&Node) -> Result<bool>,
) -> Result<()> {
    node.agent.start_doomed(point)?;
    // What is due is waited for: the agent may have done all its work in the instant in which it dies.
    let first = come(node, point, |node| Ok(!is_due && there(node)?)).context("nobody comes there")?;
    let is_done = DONE.contains(&point);
    let again = if is_done { BEGUN } else { point };
    let is_certain = is_due && (is_done || point.ends_with(".before"));
    if first == Came::ToItsEnd {
        node.agent.start_doomed(again)?;
        come(node, again, |node| Ok(!is_certain && there(node)?))
            .with_context(|| format!("who recovers does not come to {again}"))?;
    }
    node.agent.kill()
}

/// As [`dies_at`], with a pod beside it that ends for good, of which something is kept.
fn dies_while_an_end_is_kept(label: &str) -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    let dir = node.world.root().join("shared");
    files::make_dir(&dir)?;
    pod_dir_of(ORPHAN, STATE_DIR)?;
    node.apply("victim", &victim(&dir, &json!({})))?;
    let over = json!({ "restartPolicy": "Never", "containers": [shell("main", "exit 0", json!({}))] });
    node.apply("over", &pod("over", over))?;

    // An end is kept whenever its pod has ended, whether the victim is up by then or not.
    let (starts, ends) = phases(label);
    dies(&mut node, label, starts, |node| {
        Ok(!starts && node.pod("victim")?.is_some_and(|pod| pod.is_ready()))
    })
    .context("while one pod starts and another ends")?;
    node.agent.start()?;
    let kept = Path::new(ROOT_DIR).join("berth/ended");
    eventually("the end of a pod to be kept", &true, || {
        let is_kept = |file: &PathBuf| file.extension() == Some("state".as_ref());
        Ok(kept.exists() && files::list(&kept)?.iter().any(is_kept))
    })?;
    same(
        "its runs",
        node.wait("over", "over", POD_LIMIT, |pod| pod.phase() == "Succeeded")?.restarts("main"),
        0,
    )?;
    is_up(&node, &dir)?;

    node.agent.kill()?;
    node.remove("victim")?;
    node.remove("over")?;
    dies(&mut node, label, ends, |node| Ok(node.pods()?.is_empty())).context("while pods end")?;
    node.agent.start()?;
    node.clear()?;
    started_once(&dir)?;
    node.end()
}

/// The agent dies after the first plugin of a chain and before the last, which goes on without it.
fn between_plugins() -> Result<()> {
    let world = World::here()?;
    let armed = world.root().join("armed");
    let plugin = format!(
        "#!/bin/sh\nif [ \"$(cat {armed} 2>/dev/null)\" = \"$CNI_COMMAND\" ]; then rm {armed}; kill -9 $PPID; fi\nexec {passes_on}\n",
        armed = armed.display(),
        // Without settings it answers with what the plugin before it made.
        passes_on = components::binary("tuning")?.display(),
    );
    let mut node = with_plugin(&world, "deadly", &plugin, |all| all.insert(1, json!({ "type": "deadly" })))?;
    let dir = world.root().join("shared");
    files::make_dir(&dir)?;
    node.apply("victim", &victim(&dir, &json!({})))?;
    for command in ["ADD", "DEL"] {
        files::write(&armed, command)?;
        if command == "DEL" {
            node.remove("victim")?;
        }
        node.agent.start_doomed("")?;
        let status = wait::until("the agent to die", POD_LIMIT, || {
            Ok(node.agent.status()?.map_or_else(|| Look::NotYet("it lives".to_owned()), Look::Ready))
        })?;
        same("signal", status.signal(), Some(SIGKILL))?;
        ensure!(!armed.exists(), "the plugin was not asked to {command}");
        node.agent.start()?;
        if command == "ADD" {
            let up = node.ready("victim")?;
            same("restarts", up.restarts("main"), 0)?;
            eventually("every container to say that it started", &3, || {
                Ok(fs::read_to_string(dir.join("starts")).unwrap_or_default().lines().count())
            })?;
            node.agent.kill()?;
        }
    }
    node.clear()?;
    started_once(&dir)?;
    node.end()
}

/// The agent dies, or is stopped, while a plugin runs, which goes on for longer than the next one needs to start: that one waits
/// for it, since nobody would remove what it makes after a DEL. What it prints meanwhile, which nobody reads, does not end it.
fn in_a_plugin(signal: i32) -> Result<()> {
    let world = World::here()?;
    let [armed, order, gate] = ["armed", "order", "gate"].map(|name| world.root().join(name));
    let plugin = format!(
        "#!/bin/sh\nconfig=$(cat)\nwho=$CNI_COMMAND\nif rm {armed} 2>/dev/null; then\n\
         kill -{signal} $PPID; until test -e {gate}; do sleep 0.1; done; echo late >&2; echo late; who=orphan; fi\n\
         printf %s \"$config\" | {bridge}\ncode=$?\necho $who >> {order}\nexit $code\n",
        armed = armed.display(),
        bridge = components::binary("bridge")?.display(),
        gate = gate.display(),
        order = order.display(),
    );
    let mut node = with_plugin(&world, "slow", &plugin, |all| all[0]["type"] = json!("slow"))?;
    node.apply("victim", &sleeper("victim"))?;
    files::write(&armed, "")?;
    node.agent.start_doomed("")?;
    let status = wait::until("the agent to die", POD_LIMIT, || {
        Ok(node.agent.status()?.map_or_else(|| Look::NotYet("it lives".to_owned()), Look::Ready))
    })?;
    let expected = if signal == SIGKILL { (Some(SIGKILL), None) } else { (None, Some(0)) };
    same("end", (status.signal(), status.code()), expected)?;
    node.agent.start()?;
    files::write(gate, "")?;
    node.ready("victim")?;
    let calls = files::read(&order)?;
    same("calls of the plugin", calls.lines().collect::<Vec<_>>(), vec!["orphan", "DEL", "ADD"])?;
    node.end()
}

/// The shim has a task that nobody has started, and containerd, which does not know of it, cannot start it.
fn containerd_loses_a_task() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    node.apply("victim", &sleeper("victim"))?;
    node.agent.start_doomed("container.task-created")?;
    same("end", come(&mut node, "container.task-created", |_| Ok(false))?, Came::ToItsEnd)?;
    node.containerd.kill()?;
    let bundles = containers(Path::new(BUNDLES))?;
    let [bundle] = bundles.as_slice() else { bail!("one container, not {bundles:?}") };
    system("umount", &[&bundle.join("rootfs").display().to_string()])?;
    files::remove_dir(bundle)?;
    node.containerd.start_again()?;
    same("tasks", Records::open()?.tasks()?, Vec::new())?;

    node.agent.start()?;
    let up = node.ready("victim")?;
    let bundle = Path::new(BUNDLES).join(up.container_id("main")?);
    same("bundles", containers(Path::new(BUNDLES))?, vec![bundle])?;
    node.end()
}

/// Bundles of containers, which have a root filesystem; that of a sandbox is empty.
fn containers(bundles: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for bundle in files::list(bundles)? {
        if fs::read_dir(bundle.join("rootfs")).is_ok_and(|mut rootfs| rootfs.next().is_some()) {
            found.push(bundle);
        }
    }
    Ok(found)
}

/// Starts an agent that dies at a point, and waits until it has.
pub(crate) fn dies_at_once(node: &mut Node, point: &str, limit: Duration) -> Result<()> {
    node.agent.start_doomed(point)?;
    died_at(node, point, limit)
}

/// Waits until an agent that was started to die at a point has.
pub(crate) fn died_at(node: &mut Node, point: &str, limit: Duration) -> Result<()> {
    wait::until(&format!("the agent to die at {point}"), limit, || {
        Ok(if is_dead(node, point)? { Look::Ready(()) } else { Look::NotYet("it lives".to_owned()) })
    })
}

/// Whether the agent has died, which it may at this point only.
fn is_dead(node: &mut Node, point: &str) -> Result<bool> {
    let Some(status) = node.agent.status()? else { return Ok(false) };
    same("the signal that ended the agent", status.signal(), Some(SIGKILL))?;
    let label = point.split('#').next().unwrap_or_default();
    // Not its last words, perhaps: a thread of it may have said something before the signal came.
    let said = node.agent.said()?;
    let is_on_request = said.lines().any(|line| line.contains("dying on request") && line.contains(label));
    ensure!(is_on_request, "it was not to die there: {:?}", said.lines().last());
    Ok(true)
}

/// Waits until the agent has died at a point or brought the node where it was to go.
fn come(node: &mut Node, point: &str, mut there: impl FnMut(&Node) -> Result<bool>) -> Result<Came> {
    let came = wait::until("the agent to die or to be done", POD_LIMIT, || {
        if is_dead(node, point)? {
            return Ok(Look::Ready(Came::ToItsEnd));
        }
        // It may die between the two looks.
        Ok(match there(node) {
            Ok(true) => Look::Ready(Came::Through),
            Ok(false) => Look::NotYet("not there yet".to_owned()),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    })?;
    Ok(came)
}

fn started_once(dir: &Path) -> Result<()> {
    let starts = fs::read_to_string(dir.join("starts")).context("no container has started")?;
    let mut starts: Vec<&str> = starts.lines().collect();
    // Main is started as soon as the sidecar runs: either may write first.
    starts.sort_unstable();
    same("starts", starts, vec!["init", "main", "side"])
}

/// A pod that makes the agent do everything it can.
fn victim(dir: &Path, more: &Value) -> String {
    victim_with(dir, more, &json!({}))
}

/// The same, with more of its main container.
fn victim_with(dir: &Path, more: &Value, of_main: &Value) -> String {
    let main = json!({
        "ports": [{ "containerPort": 80, "hostPort": 8080 }],
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
        "readinessProbe": { "tcpSocket": { "port": 80 }, "periodSeconds": 1 },
    });
    let main = with(main, of_main.clone());
    let container = |name: &str, then: &str, more: Value| {
        let mounts = json!({ "volumeMounts": [
            { "name": "shared", "mountPath": "/shared" },
            { "name": "empty", "mountPath": "/empty" },
            { "name": "empty", "mountPath": "/part", "subPath": "part" },
            { "name": "memory", "mountPath": "/memory" },
        ] });
        shell(name, &format!("echo {name} >> /shared/starts; {then}"), with(mounts, more))
    };
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "initContainers": [
            container("init", "echo bye > /dev/termination-log", json!({})),
            container("side", "exec sleep infinity", json!({ "restartPolicy": "Always" })),
        ],
        "containers": [container("main", "mkdir /www; httpd -p 80 -h /www; exec sleep infinity", main)],
        "volumes": [
            { "name": "shared", "hostPath": { "path": dir } },
            { "name": "empty", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
        ],
    });
    pod("victim", with(spec, more.clone()))
}
