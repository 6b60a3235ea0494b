//! The fixtures themselves: the real components work together before Berth comes in.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use berth_integration::containerd::{Containerd, ctr, ctr_rows};
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::registry::Registry;
use berth_integration::{binaries, http};
use serde_json::json;

use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("fixtures::an_image_goes_through_registry_and_containerd", image_runs),
        test("fixtures::containerd_keeps_its_state_over_stop_and_kill", containerd_restarts),
    ]
}

const IMAGE: &str = "localhost:5000/busybox:1";

fn image_runs() -> Result<()> {
    let world = World::here()?;
    let registry = Registry::with_busybox(&world.root().join("registry"))?;
    let packed = Image::new(&Layer::busybox(Packing::Gzip)?, &json!({ "User": "app", "Cmd": ["id"] }));
    registry.push("packed", "1", &packed)?;
    let mut containerd = Containerd::start(&world.root().join("containerd"), binaries::search_path(None)?)?;
    containerd.add_registry("images.test", "http://localhost:5000")?;

    let hosts = containerd.registries().to_str().context("path")?.to_owned();
    ctr(&["images", "pull", "--plain-http", IMAGE])?;
    ctr(&["images", "pull", "--hosts-dir", &hosts, "images.test/packed:1"])?;
    world.make_cgroup()?;
    let cgroup = format!("{}/one", world.cgroup());
    let said = ctr(&["run", "--rm", "--cgroup", &cgroup, "--net-host", IMAGE, "one", "echo", "hello"])?;
    same("echo", said.as_str(), "hello\n")?;
    let said = ctr(&["run", "--rm", "--cgroup", &cgroup, "images.test/packed:1", "two"])?;
    same("id", said.as_str(), "uid=1000(app) gid=1000(app) groups=1000(app),2000(extra)\n")?;
    containerd.stop()?;

    let stopped = registry.stop()?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, Registry::PORT));
    ensure!(http::get(at, "/v2/").is_err(), "the registry still answers");
    let registry = stopped.start()?;
    same("status", http::get(at, "/v2/busybox/tags/list")?.status, 200)?;
    registry.stop()?;
    world.remove_cgroups()
}

fn containerd_restarts() -> Result<()> {
    let world = World::here()?;
    let mut containerd = Containerd::start(&world.root().join("containerd"), binaries::search_path(None)?)?;
    ctr(&["content", "fetch", "--help"])?;
    ctr(&["namespaces", "create", "kept"])?;
    containerd.stop()?;
    ensure!(ctr(&["version"]).is_err(), "containerd still answers");
    containerd.start_again()?;
    containerd.kill()?;
    containerd.start_again()?;
    let namespaces = ctr_rows(&["namespaces", "ls"])?;
    ensure!(namespaces.iter().any(|row| row[0] == "kept"), "namespaces are {namespaces:?}");
    containerd.stop()
}
