//! Images that nothing uses, on a disk that is too full: they go, and what somebody uses or wants kept stays (decision 0038).

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::containerd::{CRI_PLUGINS, ctr, ctr_rows};
use berth_integration::files;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, system};
use berth_integration::registry::Registry;
use berth_integration::wait::{self, Look};
use berth_integration::{cri, http};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::images::of_image;
use crate::kit::{FOR_EVER, events, eventually, pod};
use crate::suite::{LONG_LIMIT, Test, same, test};

/// Labels at which an agent dies that removes images.
pub(crate) const DEATHS: [&str; 7] = [
    "measure-images.before",
    "measure-images.after",
    "list-images.before",
    "list-images.after",
    "remove-image.before",
    "image.record-removed",
    "remove-image.after",
];

/// Where an agent shows its metrics.
const METRICS: u16 = 10255;
/// With these nothing that is not used stays, a second after the agent's start.
const FLAGS: [&str; 4] = [
    "--image-gc-high-threshold=1",
    "--image-gc-low-threshold=0",
    "--minimum-image-ttl-duration=1s",
    "--read-only-port=10255",
];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("collection::what_nothing_uses_goes_and_comes_back_with_a_pod", unused),
        test("collection::what_others_have_brought_stays_without_cri", brought),
        test("collection::what_comes_to_be_used_before_it_goes_stays", meanwhile),
        test("collection::what_is_kept_for_root_is_not_free", reserved),
        test("collection::an_agent_that_dies_while_images_go", dies).long().within(LONG_LIMIT),
    ]
}

/// A node whose containerd has a disk of its own, of which each image takes more than a hundredth.
fn prepare() -> Result<Node> {
    let disk = World::here()?.root().join("containerd");
    files::make_dir(&disk)?;
    system("mount", &["-t", "tmpfs", "-o", "size=128m", "tmpfs", &disk.display().to_string()])?;
    Node::prepare(&Settings::with_registry())
}

/// Ends the node, and takes the disk away.
fn end(node: Node) -> Result<()> {
    let disk = node.world.root().join("containerd");
    node.end()?;
    system("umount", &[&disk.display().to_string()])?;
    Ok(())
}

/// An agent that removes what is unused begins in place of the one that is there.
fn collect(node: &mut Node) -> Result<()> {
    node.agent.stop()?;
    node.agent.set_flags(&FLAGS.map(str::to_owned));
    node.agent.start()
}

/// An image in the registry with a layer of its own.
fn push(node: &Node, name: &str) -> Result<String> {
    let image = Image::new(&Layer::busybox_with(Packing::Gzip, name)?, &json!({ "Cmd": ["/bin/sh"] }));
    node.registry.as_ref().context("registry")?.push(name, "1", &image)?;
    Ok(format!("{}/{name}:1", Registry::host()))
}

/// An image that a client of CRI has pulled.
fn pulled(node: &Node, name: &str) -> Result<String> {
    let image = push(node, name)?;
    cri::call("ImageService/PullImage", &json!({ "image": { "image": image } }))?;
    Ok(image)
}

/// Images by their tags.
fn tags() -> Result<BTreeSet<String>> {
    let names = ctr(&["images", "ls", "--quiet"])?;
    let is_tag = |name: &&str| !name.contains('@') && !name.starts_with("sha256:");
    Ok(names.lines().filter(is_tag).map(str::to_owned).collect())
}

/// Layers of images.
fn layers() -> Result<BTreeSet<String>> {
    let rows = ctr_rows(&["snapshots", "ls"])?;
    let committed = rows.into_iter().filter(|row| row.ends_with(&["Committed".to_owned()]));
    Ok(committed.filter_map(|row| row.into_iter().next()).collect())
}

fn run_and_end(node: &Node, name: &str, image: &str) -> Result<()> {
    node.apply(name, &of_image(name, image, "IfNotPresent", json!({})))?;
    node.ready(name)?;
    node.remove(name)?;
    node.gone(name)
}

fn unused() -> Result<()> {
    let mut node = prepare()?;
    node.agent.start()?;
    let (used, goes) = (push(&node, "used")?, push(&node, "goes")?);
    let in_volume = push(&node, "in-volume")?;
    let volume = json!({ "name": "data", "image": { "reference": in_volume } });
    let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
    let main = json!({ "name": "main", "image": used, "volumeMounts": mounts, "command": ["/bin/sh", "-c", FOR_EVER] });
    node.apply("used", &pod("used", json!({ "volumes": [volume], "containers": [main] })))?;
    run_and_end(&node, "goes", &goes)?;
    let (pinned, of_ctr) = (pulled(&node, "pinned")?, pulled(&node, "of-ctr")?);
    let of_cri = pulled(&node, "of-cri")?;
    ctr(&["images", "label", &pinned, "io.cri-containerd.pinned=pinned"])?;
    // Of one that others use there is a container alone, and of another one a layer alone.
    ctr(&["containers", "create", &of_ctr, "neighbour"])?;
    ctr(&["snapshots", "rm", "neighbour"])?;
    let before = layers()?;
    let mounted = pulled(&node, "mounted")?;
    let layer = layers()?.difference(&before).next().context("no layer of its own")?.clone();
    ctr(&["snapshots", "prepare", "mounted-by-ctr", &layer])?;
    let running = node.ready("used")?;
    let all =
        BTreeSet::from([&used, &in_volume, &goes, &pinned, &of_ctr, &mounted, &of_cri].map(Clone::clone));
    same("images", tags()?, all)?;

    collect(&mut node)?;
    let kept = BTreeSet::from([&used, &in_volume, &pinned, &of_ctr, &mounted].map(Clone::clone));
    eventually("what nothing uses to go", &kept, tags)?;
    eventually("layers to go with it", &5, || Ok(layers()?.len()))?;
    eventually("the disk to be told as too full", &true, || {
        Ok(node.agent.said()?.contains("FreeDiskSpaceFailed"))
    })?;
    let metrics = http::page(SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS)), "/metrics")?.text();
    let removed = "kubelet_image_garbage_collected_total{reason=\"space\"} 2";
    ensure!(metrics.lines().any(|line| line == removed), "{metrics}");

    let still = node.ready("used")?;
    same("the pod that uses one", still.container_id("main")?, running.container_id("main")?)?;
    node.apply("goes", &of_image("goes", &goes, "IfNotPresent", json!({})))?;
    let shown = events(&node.ready("goes")?)?;
    ensure!(shown.contains("Successfully pulled image"), "{shown}");
    ctr(&["containers", "rm", "neighbour"])?;
    ctr(&["snapshots", "rm", "mounted-by-ctr"])?;
    end(node)
}

/// The agent stops between the list of images and the first that goes, and meanwhile one is used and a name becomes another image's.
fn meanwhile() -> Result<()> {
    let mut node = prepare()?;
    let images = ["used", "renamed", "other"].map(|name| pulled(&node, name));
    let [used, renamed, other] = images;
    let (used, renamed, other) = (used?, renamed?, other?);
    ctr(&["images", "label", &other, "io.cri-containerd.pinned=pinned"])?;
    node.agent.set_flags(&FLAGS.map(str::to_owned));
    node.agent.start_doomed("stop:remove-image.before")?;
    let status = format!("/proc/{}/status", node.agent.pid().context("no agent")?);
    eventually("the agent to stop", &true, || Ok(files::read(&status)?.contains("State:\tT")))?;
    ctr(&["containers", "create", &used, "neighbour"])?;
    ctr(&["images", "tag", "--force", &other, &renamed])?;
    node.agent.signal(Signal::SIGCONT)?;
    eventually("all to be gone through", &true, || Ok(node.agent.said()?.contains("FreeDiskSpaceFailed")))?;
    same("images", tags()?, BTreeSet::from([used, renamed, other]))?;
    ctr(&["containers", "rm", "neighbour"])?;
    end(node)
}

/// Half of a disk is for root alone: what others can use of it is too little, though most of it is free.
fn reserved() -> Result<()> {
    let root = World::here()?.root().to_owned();
    let (disk, image) = (root.join("containerd"), root.join("disk"));
    files::make_dir(&disk)?;
    files::create(&image)?.set_len(128 << 20)?;
    let text = |path: &Path| path.display().to_string();
    system("mkfs.ext4", &["-q", "-F", "-m", "50", &text(&image)])?;
    system("mount", &["-o", "loop", &text(&image), &text(&disk)])?;
    let mut node = Node::prepare(&Settings::with_registry())?;
    pulled(&node, "goes")?;
    let mut flags = FLAGS.map(str::to_owned);
    flags[0] = "--image-gc-high-threshold=45".to_owned();
    node.agent.set_flags(&flags);
    node.agent.start()?;
    eventually("what nothing uses to go", &BTreeSet::new(), tags)?;
    end(node)?;
    Ok(fs::remove_file(image)?)
}

/// With CRI, whatever comes into the namespace becomes the node's; without it, what `ctr` brings is whose it was.
fn brought() -> Result<()> {
    let mut node = prepare()?;
    node.containerd.stop()?;
    node.containerd.disable(&CRI_PLUGINS);
    node.containerd.start_again()?;
    node.agent.start()?;
    let (brought, own) = (push(&node, "brought")?, push(&node, "own")?);
    run_and_end(&node, "first", &brought)?;
    import(&node.world.root().join("brought.tar"), &brought)?;
    run_and_end(&node, "brought", &brought)?;
    run_and_end(&node, "own", &own)?;
    same("images", tags()?, BTreeSet::from([brought.clone(), own]))?;
    collect(&mut node)?;
    eventually("what the agent has pulled to go", &BTreeSet::from([brought]), tags)?;
    end(node)
}

/// Has containerd forget an image, and gives it back as somebody does who brings it in a file.
fn import(archive: &Path, image: &str) -> Result<()> {
    let archive = archive.display().to_string();
    ctr(&["images", "export", "--local", &archive, image])?;
    for name in ctr(&["images", "ls", "--quiet"])?.lines() {
        ctr(&["images", "rm", "--sync", name])?;
    }
    ctr(&["images", "import", &archive])?;
    Ok(fs::remove_file(archive)?)
}

/// Whoever comes after it finds what is left, and removes it.
fn dies() -> Result<()> {
    let mut node = prepare()?;
    node.agent.set_flags(&FLAGS.map(str::to_owned));
    for (number, point) in DEATHS.into_iter().enumerate() {
        pulled(&node, &format!("image-{number}"))?;
        node.agent.start_doomed(point)?;
        wait::until(&format!("the agent to die at {point}"), POD_LIMIT, || {
            Ok(if node.agent.ended()? { Look::Ready(()) } else { Look::NotYet("it lives".to_owned()) })
        })?;
        node.agent.start()?;
        eventually(&format!("the image to go after {point}"), &BTreeSet::new(), tags)?;
        eventually("its layers to go", &BTreeSet::new(), layers)?;
        same("records", ctr(&["images", "ls", "--quiet"])?.trim(), "")?;
        node.agent.kill()?;
    }
    node.agent.start()?;
    end(node)
}
