//! Pulls that something comes between: a verifier of containerd, a disk that is full, the end of the agent.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::containerd::ctr;
use berth_integration::files;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::records::Records;
use berth_integration::registry::Registry;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::bad_input::events_say;
use crate::images::of_image;
use crate::kit::{IMAGE, events, eventually};
use crate::relay::Relay;
use crate::suite::{Test, same, test};

/// An image of the registry's own.
const OTHER: &str = "localhost:5000/other:1";
/// More than manifest and config of an image, and less than its layer.
const WITHOUT_ITS_LAYER: usize = 256 << 10;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("pulls::an_image_that_a_verifier_of_containerd_refuses", verified),
        test("pulls::a_disk_that_is_full_in_mid_unpack", full_disk),
        test("pulls::an_agent_that_dies_in_mid_pull", agent_dies),
        test("pulls::one_that_no_pod_waits_for_any_more_makes_way", unwanted),
    ]
}

fn push(node: &Node, issue: &str) -> Result<()> {
    let image = Image::new(&Layer::busybox_with(Packing::Gzip, issue)?, &json!({ "Cmd": ["/bin/sh"] }));
    node.registry.as_ref().context("registry")?.push("other", "1", &image)
}

/// Source: containerd, `docs/image-verification.md`.
fn verified() -> Result<()> {
    let mut node = Node::prepare(&Settings::with_registry())?;
    push(&node, "unsigned\n")?;
    let programs = node.world.root().join("verifiers");
    fs::create_dir(&programs)?;
    let program =
        "#!/bin/sh\necho \"$@\" >>\"$0.asked\"\ncase \"$*\" in *other:1*) echo not signed; exit 1;; esac\n";
    files::write_program(programs.join("signatures"), program)?;
    node.containerd.configure(&format!(
        "[plugins.\"io.containerd.image-verifier.v1.bindir\"]\nbin_dir = {programs:?}\nmax_verifiers = 1\nper_verifier_timeout = \"10s\"\n"
    ));
    node.containerd.stop()?;
    node.containerd.start_again()?;
    node.agent.start()?;
    node.apply("refused", &of_image("refused", OTHER, "IfNotPresent", json!({})))?;
    node.apply("taken", &of_image("taken", IMAGE, "IfNotPresent", json!({})))?;
    node.wait("refused", "told why", POD_LIMIT, |pod| {
        events_say(pod, &format!("Failed to pull image \"{OTHER}\"")) && events_say(pod, "not signed")
    })?;
    node.ready("taken")?;
    let images = ctr(&["images", "ls", "--quiet"])?;
    ensure!(!images.lines().any(|name| name == OTHER), "{images}");
    node.end()
}

/// More than the disk takes, which compresses to what it does.
fn full_disk() -> Result<()> {
    let disk = World::here()?.root().join("containerd/root");
    let sized = |size: &str, flags| {
        mount(Some("tmpfs"), &disk, Some("tmpfs"), flags, Some(format!("size={size}").as_str()))
            .with_context(|| format!("mount {}", disk.display()))
    };
    files::make_dir(&disk)?;
    sized("64m", MsFlags::empty())?;
    let node = Node::start_with(&Settings::with_registry())?;
    push(&node, &"0".repeat(96 << 20))?;
    node.apply("large", &of_image("large", OTHER, "IfNotPresent", json!({})))?;
    node.wait("large", "told about the disk", POD_LIMIT, |pod| {
        events_say(pod, "Failed to pull image") && events_say(pod, "no space left on device")
    })?;
    sized("512m", MsFlags::MS_REMOUNT)?;
    let large = node.ready("large")?;
    same("restarts", large.restarts("main"), 0)?;
    // Nothing is left of what was unpacked in part.
    let records = Records::open()?;
    eventually("layers in use", &1, || Ok(records.snapshots_in_use()?.len()))?;
    drop(records);
    node.end()?;
    Ok(umount2(&disk, MntFlags::MNT_DETACH)?)
}

/// Pulls go one after another, as they do unless they are set not to, and this one never stalls for long enough to be ended.
fn unwanted() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    push(&node, "another layer\n")?;
    let relay = Relay::start(SocketAddr::from((Ipv4Addr::LOCALHOST, Registry::PORT)), WITHOUT_ITS_LAYER)?;
    node.containerd.add_registry("relay.test", &relay.url())?;
    let held = of_image("held", "relay.test/other:1", "IfNotPresent", json!({}));
    node.apply("held", &held)?;
    relay.holds()?;
    node.apply("next", &of_image("next", IMAGE, "IfNotPresent", json!({})))?;
    node.remove("held")?;
    node.ready("next")?;
    same("pulls that were given up", relay.given_up() > 0, true)?;
    relay.open();
    node.apply("held", &held)?;
    node.ready("held")?;
    node.end()
}

/// What came before is kept: the next agent has the rest.
fn agent_dies() -> Result<()> {
    let mut node = Node::start_with(&Settings::with_registry())?;
    push(&node, "another layer\n")?;
    let relay = Relay::start(SocketAddr::from((Ipv4Addr::LOCALHOST, Registry::PORT)), WITHOUT_ITS_LAYER)?;
    node.containerd.add_registry("relay.test", &relay.url())?;
    let records = Records::open()?;
    let others = records.leases()?;
    node.apply("web", &of_image("web", "relay.test/other:1", "IfNotPresent", json!({})))?;
    relay.holds()?;
    let cut_off: Vec<String> =
        records.leases()?.into_iter().filter(|lease| !others.contains(lease)).collect();
    node.agent.kill()?;
    node.agent.start()?;
    relay.holds()?;
    relay.open();
    let web = node.ready("web")?;
    let shown = events(&web)?;
    ensure!(shown.contains("Successfully pulled image") && !shown.contains("Failed to pull"), "{shown}");
    same("restarts", web.restarts("main"), 0)?;
    eventually("leases of the pull that was cut off to go", &Vec::new(), || {
        let leases = records.leases()?;
        Ok(leases.into_iter().filter(|lease| cut_off.contains(lease)).collect::<Vec<_>>())
    })?;
    node.end()
}
