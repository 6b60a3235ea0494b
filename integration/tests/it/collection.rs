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
use serde_json::json;

use crate::images::of_image;
use crate::kit::{events, eventually};
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

fn layers() -> Result<usize> {
    let rows = ctr_rows(&["snapshots", "ls"])?;
    Ok(rows.iter().filter(|row| row.ends_with(&["Committed".to_owned()])).count())
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
    node.apply("used", &of_image("used", &used, "IfNotPresent", json!({})))?;
    run_and_end(&node, "goes", &goes)?;
    let (pinned, of_ctr) = (pulled(&node, "pinned")?, pulled(&node, "of-ctr")?);
    let of_cri = pulled(&node, "of-cri")?;
    ctr(&["images", "label", &pinned, "io.cri-containerd.pinned=pinned"])?;
    ctr(&["containers", "create", &of_ctr, "neighbour"])?;
    let running = node.ready("used")?;
    let all = BTreeSet::from([&used, &goes, &pinned, &of_ctr, &of_cri].map(Clone::clone));
    same("images", tags()?, all)?;

    collect(&mut node)?;
    let kept = BTreeSet::from([&used, &pinned, &of_ctr].map(Clone::clone));
    eventually("what nothing uses to go", &kept, tags)?;
    eventually("layers to go with it", &3, layers)?;
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
    end(node)
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
        eventually("its layers to go", &0, layers)?;
        same("records", ctr(&["images", "ls", "--quiet"])?.trim(), "")?;
        node.agent.kill()?;
    }
    node.agent.start()?;
    end(node)
}
