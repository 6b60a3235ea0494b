//! Registries that stall, and those that speak TLS and ask for a name and a password.

use std::fs;
use std::iter;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_integration::agent::Settings;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::node::{Node, PodState, system};
use berth_integration::registry::{ACCOUNT, Registry};
use serde_json::json;

use crate::images::{of_image, waits};
use crate::kit::{IMAGE, events, eventually};
use crate::relay::Relay;
use crate::suite::{Test, same, test};
use crate::unpack::{Gate, release};

/// More than manifest and config of an image, and less than its layer.
const WITHOUT_ITS_LAYER: usize = 256 << 10;

/// Where the registry that speaks TLS listens.
pub(crate) const GUARDED: u16 = 5443;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("registries::a_layer_that_stalls_holds_up_no_pull_from_another", stalled_beside),
        test("registries::a_pull_that_is_slow_and_unpacks_for_long_is_not_ended", slow),
        test("registries::a_stalled_pull_is_ended_and_tried_again", stalled),
        test("registries::tls_and_credentials_by_hosts_toml", guarded),
    ]
}

/// Serves an image with a layer of its own by a relay that stops in the middle of that, and a pod that wants it.
fn stalls(node: &Node, text: &str) -> Result<Relay> {
    let image = Image::new(&Layer::busybox_with(Packing::Gzip, text)?, &json!({ "Cmd": ["/bin/sh"] }));
    let size = image.layers[0].bytes.len();
    ensure!(size > 2 * WITHOUT_ITS_LAYER, "a layer of {size} bytes");
    node.registry.as_ref().context("registry")?.push("other", "1", &image)?;
    let relay = Relay::start(SocketAddr::from((Ipv4Addr::LOCALHOST, Registry::PORT)), WITHOUT_ITS_LAYER)?;
    node.containerd.add_registry("stalls.test", &relay.url())?;
    node.apply("stalls", &of_image("stalls", "stalls.test/other:1", "IfNotPresent", json!({})))?;
    relay.holds()?;
    Ok(relay)
}

/// A pull may wait for five minutes: others are done long before.
fn stalled_beside() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "serializeImagePulls": false }),
        ..Settings::with_registry()
    })?;
    let relay = stalls(&node, "another layer\n")?;
    node.apply("pulls", &of_image("pulls", IMAGE, "IfNotPresent", json!({})))?;
    let pulled = node.ready("pulls")?;
    let shown = events(&pulled)?;
    ensure!(shown.contains("Successfully pulled image"), "{shown}");
    node.apply("finds", &of_image("finds", IMAGE, "IfNotPresent", json!({})))?;
    node.ready("finds")?;
    same("pulls that were given up", relay.given_up(), 0)?;
    relay.open();
    let shown = events(&node.ready("stalls")?)?;
    ensure!(shown.contains("Successfully pulled image") && !shown.contains("Failed to pull"), "{shown}");
    node.end()
}

/// Pulls go one after another, as they do unless they are set not to: the next one has its turn.
fn stalled() -> Result<()> {
    let node = Node::start_with(&Settings {
        berth: json!({ "imagePullProgressTimeout": "3s" }),
        ..Settings::with_registry()
    })?;
    let relay = stalls(&node, "another layer\n")?;
    node.apply("next", &of_image("next", IMAGE, "IfNotPresent", json!({})))?;
    let told = waits(&node, "stalls", &["ErrImagePull", "ImagePullBackOff"])?;
    let why = "(imagePullProgressTimeout is 3s)";
    says(&told, why)?;
    says(&told, "nothing of it has come for ")?;
    let shown = events(&told)?;
    ensure!(shown.contains("Failed to pull image \"stalls.test/other:1\"") && shown.contains(why), "{shown}");
    eventually("containerd to hang up", &true, || Ok(relay.given_up() > 0))?;
    node.ready("next")?;
    relay.open();
    node.ready("stalls")?;
    node.end()
}

/// So many digits in no order, of which compression makes half as many bytes.
fn digits(length: usize) -> String {
    // Knuth's generator MMIX, of which the upper bits are the better ones.
    let next =
        |state: &u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let states = iter::successors(Some(1_u64), |state| Some(next(state)));
    states.map(|state| format!("{:08x}", state >> 32)).take(length / 8).collect()
}

/// Layers that come and are unpacked for longer than nothing may come, each.
fn slow() -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(4);
    /// In bytes a millisecond: containerd writes down what came when it is half a mebibyte.
    const RATE: u128 = 700;
    /// Of which a layer becomes that is longer than what comes meanwhile.
    const DIGITS: usize = 12 << 20;
    let gate = Gate::install(World::here()?.root())?;
    let node = Node::start_with(&Settings {
        berth: json!({ "imagePullProgressTimeout": "4s" }),
        path_first: Some(gate.bin.clone()),
        ..Settings::with_registry()
    })?;
    let relay = stalls(&node, &digits(DIGITS))?;
    let (began, mut passed) = (Instant::now(), 0);
    eventually("bytes to have come for long", &true, || {
        let due = usize::try_from(began.elapsed().as_millis() * RATE)?;
        relay.pass(due - passed);
        passed = due;
        Ok(began.elapsed() > 2 * PATIENCE)
    })?;
    same("pulls that were given up", relay.given_up(), 0)?;
    relay.open();
    let unpacks = gate.reached(&[])?;
    let began = Instant::now();
    eventually("layers to be unpacked for long", &true, || Ok(began.elapsed() > 2 * PATIENCE))?;
    release(&unpacks)?;
    let shown = events(&node.ready("stalls")?)?;
    ensure!(shown.contains("Successfully pulled image") && !shown.contains("Failed to pull"), "{shown}");
    node.end()
}

fn message(pod: &PodState) -> String {
    pod.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned()
}

fn says(pod: &PodState, why: &str) -> Result<()> {
    let message = message(pod);
    ensure!(message.contains(why), "{why:?} is not in {message:?}");
    Ok(())
}

/// What hosts.toml says of the registry that speaks TLS.
fn lines(certificate: &Path, password: &str) -> String {
    let credentials = credentials(password);
    format!(
        "ca = \"{}\"\n[host.\"https://localhost:{GUARDED}\".header]\nauthorization = [\"Basic {credentials}\"]\n",
        certificate.display()
    )
}

fn credentials(password: &str) -> String {
    STANDARD.encode(format!("{}:{password}", ACCOUNT.0))
}

/// Makes a certificate that is its own authority, and its key.
pub(crate) fn certificate(dir: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    let [out, keyout] = [certificate.display().to_string(), key.display().to_string()];
    let kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let what = ["-days", "2", "-subj", "/CN=registry", "-addext", "subjectAltName=DNS:localhost"];
    system("openssl", &[&kind[..], &what, &["-out", &out, "-keyout", &keyout]].concat())?;
    Ok((certificate, key))
}

fn guarded() -> Result<()> {
    const WRONG: &str = "parrots-of-eight";
    let node = Node::start_with(&Settings {
        kubelet: json!({ "logging": { "verbosity": 10 } }),
        ..Settings::with_registry()
    })?;
    let dir = node.world.root();
    let (ours, key) = certificate(dir, "ours")?;
    let (others, _) = certificate(dir, "others")?;
    let registry = node.registry.as_ref().context("registry")?.guarded(GUARDED, &ours, &key)?;
    let url = format!("https://localhost:{GUARDED}");
    for (host, authority, password) in
        [("right.test", &ours, ACCOUNT.1), ("others.test", &others, ACCOUNT.1), ("wrong.test", &ours, WRONG)]
    {
        node.containerd.add_registry_with(host, &url, &lines(authority, password))?;
        let name = host.trim_end_matches(".test");
        node.apply(name, &of_image(name, &format!("{host}/busybox:1"), "IfNotPresent", json!({})))?;
    }
    let mut shown = String::new();
    for (name, why) in
        [("others", "x509: certificate signed by unknown authority"), ("wrong", "401 Unauthorized")]
    {
        let failed = waits(&node, name, &["ErrImagePull", "ImagePullBackOff"])?;
        says(&failed, why)?;
        let told = events(&failed)?;
        ensure!(told.contains("Error: ErrImagePull") && told.contains(why), "{told}");
        shown += &(failed.0.to_string() + &told);
    }
    shown += &events(&node.ready("right")?)?;
    // A mended file is read by the next try.
    node.containerd.add_registry_with("wrong.test", &url, &lines(&ours, ACCOUNT.1))?;
    shown += &events(&node.ready("wrong")?)?;

    shown += &fs::read_to_string(node.agent.log())?;
    ensure!(shown.contains("wrong.test/busybox:1"), "the agent's log tells of no pull");
    for secret in [ACCOUNT.1.to_owned(), WRONG.to_owned(), credentials(ACCOUNT.1), credentials(WRONG)] {
        ensure!(!shown.contains(&secret), "{secret} is shown");
    }
    registry.stop()?;
    node.end()
}
