//! An image of twenty gibibytes, which is unpacked for minutes. Too large for a lab, which is in memory: containerd's directory is on the disk.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::components;
use berth_integration::files;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::lab::World;
use berth_integration::node::{Node, PodState};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use serde_json::json;

use crate::images::of_image;
use crate::kit::{IMAGE, events, eventually, inside};
use crate::suite::same;

const GIBIBYTES: u64 = 20;
const LARGE: &str = "localhost:5000/large:1";
/// From the first byte to a container that runs, or the part of it that comes again after the agent's death.
const LIMIT: Duration = Duration::from_mins(25);

/// A directory of the disk in the place of one of the lab, for as long as this.
struct OnDisk {
    dir: PathBuf,
    at: PathBuf,
}

impl OnDisk {
    fn at(at: PathBuf) -> Result<Self> {
        let dir = components::workspace().join("target/large");
        // Of one that was killed.
        if dir.exists() {
            files::remove_dir(&dir)?;
        }
        files::make_dir(&dir)?;
        files::make_dir(&at)?;
        mount(Some(&dir), &at, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(Self { dir, at })
    }

    /// Free gibibytes.
    fn free(&self) -> Result<u64> {
        let disk = statvfs(&self.dir).with_context(|| format!("look at {}", self.dir.display()))?;
        Ok((disk.blocks_available() * disk.fragment_size()) >> 30)
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        // What cannot be removed is removed by the next one.
        let _mounted = umount2(&self.at, MntFlags::MNT_DETACH);
        let _left = fs::remove_dir_all(&self.dir);
    }
}

/// The agent dies while it is unpacked, and so does the pod's claim on it: the next one has it as a whole, once.
pub(crate) fn soak() -> Result<()> {
    let disk = OnDisk::at(World::here()?.root().join("containerd/root"))?;
    let before = disk.free()?;
    ensure!(before > GIBIBYTES + 4, "{before} GiB are free at {}: it takes {GIBIBYTES}", disk.dir.display());
    let mut node = Node::start_with(&Settings::with_registry())?;
    node.apply("small", &of_image("small", IMAGE, "IfNotPresent", json!({})))?;
    node.ready("small")?;
    push(&node)?;
    node.apply("large", &of_image("large", LARGE, "IfNotPresent", json!({})))?;
    taken(&disk, before, 3)?;
    node.agent.kill()?;
    node.agent.start()?;
    // Whose image is there waits for nobody.
    node.apply("beside", &of_image("beside", IMAGE, "IfNotPresent", json!({})))?;
    node.ready("beside")?;
    ensure!(node.pod("large")?.is_some_and(|pod| !pod.is_ready()), "it was unpacked before the agent died");
    let large = node.wait("large", "ready", LIMIT, PodState::is_ready)?;
    same("restarts", large.restarts("main"), 0)?;
    let shown = events(&large)?;
    ensure!(shown.contains("Successfully pulled image") && !shown.contains("Failed"), "{shown}");
    let sizes = inside(&large, "stat -c %s /zeros/* | sort | uniq -c")?;
    same("files", sizes.trim(), format!("{GIBIBYTES} {}", 1 << 30).as_str())?;
    // Nothing of what was cut off is left beside it.
    let records = Records::open()?;
    eventually("layers in use", &3, || Ok(records.snapshots_in_use()?.len()))?;
    let left = before - disk.free()?;
    ensure!(left <= GIBIBYTES + 2, "{left} GiB are taken");
    drop(records);
    node.end()
}

fn push(node: &Node) -> Result<()> {
    let layers = [Layer::busybox(Packing::Gzip)?, Layer::of_zeros(GIBIBYTES, 1 << 10)?];
    let image = Image::of(&[&layers[0], &layers[1]], &json!({ "Cmd": ["/bin/sh"] }));
    node.registry.as_ref().context("registry")?.push("large", "1", &image)
}

/// Waits until so many gibibytes are written.
fn taken(disk: &OnDisk, before: u64, gibibytes: u64) -> Result<()> {
    wait::until("the layer to be unpacked", LIMIT, || {
        let free = disk.free()?;
        let look = if free + gibibytes <= before {
            Look::Ready(())
        } else {
            Look::NotYet(format!("{free} GiB are free"))
        };
        Ok(look)
    })
}
