//! Images that are on the node and not unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::containerd::{ctr, ctr_rows};
use berth_integration::files;
use berth_integration::image::{Entry, Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::images::of_image;
use crate::kit::{IMAGE, events, eventually, go_on, logged, pod, shell, sleeper, wait_at};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("unpack::an_imported_image", imported),
        test("unpack::layers_lie_on_those_below_and_are_what_their_image_says", two_layers),
        test("unpack::one_that_was_cut_off_leaves_nothing", cut_off),
        test("unpack::what_a_dead_containerd_left_goes_before_the_next_try", containerd_dies),
        test("unpack::two_images_of_one_layer_at_once", at_once),
        test("unpack::longer_than_a_call_may_take", long),
        test("unpack::a_layer_that_waits_for_its_container_is_no_garbage", waits),
    ]
}

/// Takes every image away and gives that of the examples back as an import leaves it that does not unpack.
pub(crate) fn import_packed(node: &Node) -> Result<()> {
    let archive = node.world.root().join("image.tar").display().to_string();
    // By itself: of what the transfer service sends, it writes the rest after it was told that all is sent, if at all.
    ctr(&["images", "export", "--local", &archive, IMAGE])?;
    for image in ctr(&["images", "ls", "--quiet"])?.lines() {
        ctr(&["images", "rm", "--sync", image])?;
    }
    ctr(&["images", "import", "--no-unpack", &archive])?;
    ensure!(ctr(&["images", "ls", "--quiet"])?.lines().any(|name| name == IMAGE), "no {IMAGE} was imported");
    same("unpacked layers", ctr_rows(&["snapshots", "ls"])?, Vec::new())
}

/// There is no registry from which it could come.
fn imported() -> Result<()> {
    let node = Node::start()?;
    for (name, policy) in [("never", "Never"), ("absent", "IfNotPresent")] {
        import_packed(&node)?;
        node.apply(name, &of_image(name, IMAGE, policy, json!({})))?;
        let shown = events(&node.ready(name)?)?;
        ensure!(!shown.contains("Pulling") && shown.contains("already present on machine"), "{shown}");
        same("layers", committed()?, 1)?;
        node.remove(name)?;
        node.gone(name)?;
        collect_garbage()?;
        same("layers of an image that no pod uses", committed()?, 1)?;
    }
    node.end()
}

fn committed() -> Result<usize> {
    let rows = ctr_rows(&["snapshots", "ls"])?;
    Ok(rows.iter().filter(|row| row.ends_with(&["Committed".to_owned()])).count())
}

/// A lease that ends so has containerd collect its garbage before it answers.
fn collect_garbage() -> Result<()> {
    ctr(&["leases", "create", "--id", "garbage"])?;
    ctr(&["leases", "delete", "--sync", "garbage"])?;
    Ok(())
}

/// The agent dies while it unpacks, and when the next one begins no pod wants the image any more.
fn cut_off() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    import_packed(&node)?;
    node.apply("victim", &sleeper("victim"))?;
    node.agent.start_doomed("unpack.applied")?;
    wait::until("the agent to die", POD_LIMIT, || {
        Ok(if node.agent.ended()? { Look::Ready(()) } else { Look::NotYet("it lives".to_owned()) })
    })?;
    let records = Records::open()?;
    same("half unpacked layers", records.snapshots_in_use()?.len(), 1)?;
    node.remove("victim")?;
    node.agent.start()?;
    node.clear()?;
    eventually("half unpacked layers", &Vec::new(), || records.snapshots_in_use())?;
    node.end()
}

/// A program for gzip that containerd finds before its own, and that waits at a gate.
pub(crate) struct Gate {
    pub(crate) bin: PathBuf,
    waiting: PathBuf,
}

impl Gate {
    pub(crate) fn install(dir: &Path) -> Result<Self> {
        let gate = Self { bin: dir.join("gzip-bin"), waiting: dir.join("gzip-waiting") };
        fs::create_dir(&gate.bin)?;
        fs::create_dir(&gate.waiting)?;
        let pipe = format!("{}/$$", gate.waiting.display());
        let program = format!("#!/bin/sh\nmkfifo {pipe}; read _ < {pipe}; exec gzip -dc\n");
        // Source: containerd, `pkg/archive/compression/compression.go`.
        for name in ["igzip", "unpigz"] {
            files::write_program(gate.bin.join(name), &program)?;
        }
        Ok(gate)
    }

    /// Waits until one comes to it that is not among `known`, and gives its pipe.
    pub(crate) fn reached(&self, known: &[PathBuf]) -> Result<PathBuf> {
        wait::until("an unpack to begin", POD_LIMIT, || {
            let mut pipes = fs::read_dir(&self.waiting)?.flatten().map(|entry| entry.path());
            let new = pipes.find(|pipe| !known.contains(pipe));
            Ok(new.map_or_else(|| Look::NotYet("nobody waits".to_owned()), Look::Ready))
        })
    }
}

/// Lets one go on.
pub(crate) fn release(pipe: &Path) -> Result<()> {
    fs::write(pipe, "go on\n").with_context(|| format!("open {}", pipe.display()))
}

/// A node whose containerd has images that were fetched and not unpacked, all of the same layer.
fn with_packed(gate: &Gate, kubelet: Value, names: &[&str]) -> Result<Node> {
    let node = Node::start_with(&Settings {
        kubelet,
        path_first: Some(gate.bin.clone()),
        ..Settings::with_registry()
    })?;
    let layer = Layer::busybox_with(Packing::Gzip, "another layer\n")?;
    for name in names {
        let image = Image::new(&layer, &json!({ "Env": [format!("NAME={name}")] }));
        node.registry.as_ref().context("registry")?.push(name, "1", &image)?;
        ctr(&["content", "fetch", "--plain-http", &format!("localhost:5000/{name}:1")])?;
    }
    same("unpacked layers", ctr_rows(&["snapshots", "ls"])?, Vec::new())?;
    Ok(node)
}

fn never_pulled(name: &str) -> String {
    let more = json!({ "command": ["sh", "-c", "cat /etc/issue; exec sleep infinity"] });
    of_image(name, &format!("localhost:5000/{name}:1"), "Never", more)
}

/// Of images that nobody pulls nobody else compares what is in them with what they say.
fn two_layers() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    let lower = Layer::busybox_with(Packing::Gzip, "another layer\n")?;
    let upper = Layer::of(&[("upper".to_owned(), Entry::Text("above\n".to_owned()))])?;
    let lie = Layer::busybox_with(Packing::Gzip, "a lie\n")?.claiming(&lower);
    for (name, layers) in [("lies", &[&lie][..]), ("two", &[&lower, &upper])] {
        node.registry.as_ref().context("registry")?.push(name, "1", &Image::of(layers, &json!({})))?;
        ctr(&["content", "fetch", "--plain-http", &format!("localhost:5000/{name}:1")])?;
    }
    node.apply("lies", &never_pulled("lies"))?;
    node.wait("lies", "refused", POD_LIMIT, |pod| {
        let why = pod.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
        why.contains("its content is sha256:") && why.contains("the image says sha256:")
    })?;
    node.remove("lies")?;
    node.gone("lies")?;
    same("layers of an image that lies", committed()?, 0)?;
    let both = json!({ "command": ["sh", "-c", "cat /etc/issue /upper; exec sleep infinity"] });
    node.apply("two", &of_image("two", "localhost:5000/two:1", "Never", both))?;
    logged(&node.ready("two")?, "main", "above")?;
    logged(&node.ready("two")?, "main", "another layer")?;
    same("layers", committed()?, 2)?;
    node.end()
}

/// Each has the whole layer, whoever is done first.
fn at_once() -> Result<()> {
    let gate = Gate::install(World::here()?.root())?;
    let node = with_packed(&gate, json!({}), &["one", "two"])?;
    node.apply("one", &never_pulled("one"))?;
    let one = gate.reached(&[])?;
    node.apply("two", &never_pulled("two"))?;
    let two = gate.reached(std::slice::from_ref(&one))?;
    release(&one)?;
    logged(&node.ready("one")?, "main", "another layer")?;
    release(&two)?;
    logged(&node.ready("two")?, "main", "another layer")?;
    node.end()
}

/// The image is looked at again when containerd is back.
fn containerd_dies() -> Result<()> {
    let gate = Gate::install(World::here()?.root())?;
    let mut node = with_packed(&gate, json!({}), &["one"])?;
    node.apply("one", &never_pulled("one"))?;
    let first = gate.reached(&[])?;
    node.containerd.kill()?;
    node.containerd.start_again()?;
    let second = gate.reached(std::slice::from_ref(&first))?;
    let records = Records::open()?;
    same(
        "leases and half unpacked layers",
        (records.leases()?.len(), records.snapshots_in_use()?.len()),
        (1, 1),
    )?;
    release(&second)?;
    logged(&node.ready("one")?, "main", "another layer")?;
    eventually("leases", &Vec::new(), || records.leases())?;
    // The first one's containerd is gone, and it ends by itself.
    release(&first)?;
    node.end()
}

/// It is in no record of containerd.
fn waits() -> Result<()> {
    let node = Node::start()?;
    let manifest = json!({
        "initContainers": [shell("first", &format!("{}; exit 0", wait_at("door")), json!({}))],
        "containers": [shell("main", "exec sleep infinity", json!({}))],
    });
    node.apply("waits", &pod("waits", manifest))?;
    let records = Records::open()?;
    eventually("both layers", &2, || Ok(records.snapshots_in_use()?.len()))?;
    collect_garbage()?;
    same("layers", records.snapshots_in_use()?.len(), 2)?;
    let waits = node
        .wait("waits", "to wait", POD_LIMIT, |pod| !pod.container("first")["state"]["running"].is_null())?;
    go_on(&waits, "first", "door")?;
    let ready = node.ready("waits")?;
    same("restarts", ready.restarts("main"), 0)?;
    ensure!(!events(&ready)?.contains("Failed"), "{}", events(&ready)?);
    node.end()
}

/// It takes as long as it takes, and no other pod waits for it.
fn long() -> Result<()> {
    const CALL: Duration = Duration::from_secs(2);
    let gate = Gate::install(World::here()?.root())?;
    let node = with_packed(&gate, json!({ "runtimeRequestTimeout": "2s" }), &["one"])?;
    let began = Instant::now();
    node.apply("one", &never_pulled("one"))?;
    let one = gate.reached(&[])?;
    node.apply("other", &sleeper("other"))?;
    node.ready("other")?;
    eventually("a call to have taken too long", &true, || Ok(began.elapsed() > 2 * CALL))?;
    release(&one)?;
    // Of two seconds others may be too few on a busy machine: what counts is that this one was not cut off.
    let shown = events(&node.ready("one")?)?;
    ensure!(!shown.contains("apply layer"), "{shown}");
    same("unpacks that were begun", files::list(&gate.waiting)?.len(), 1)?;
    node.end()
}
