//! Root file systems of other snapshotters than the plain one, under a stock containerd and `ctr`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::containerd::{Release, ctr};
use berth_integration::process::printed;
use berth_integration::wait::{self, Look};

use crate::kit::SOON;
use crate::stock::{Stock, remove};
use crate::suite::{Test, same, test};

/// Where containerd's mount manager mounts what a shim leaves to it.
const MANAGED: &str = "/run/containerd/io.containerd.mount-manager.v1.bolt/t";
const EROFS: [&str; 2] = ["--snapshotter", "erofs"];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("snapshotters::erofs_layers_are_the_shims_to_mount", erofs),
        test("snapshotters::erofs_layers_are_the_shims_to_mount_under_2_4", erofs_newer),
        test("snapshotters::a_writable_image_over_erofs_layers", blocks),
        test("snapshotters::mapped_owners_in_a_user_namespace", mapped),
    ]
}

fn erofs() -> Result<()> {
    layers(Stock::start()?)
}

fn erofs_newer() -> Result<()> {
    layers(Stock::start_release(Release::V2_4, None)?)
}

fn layers(stock: Stock) -> Result<()> {
    stock.run_detached(&EROFS, "one", "exec sleep 100")?;
    only_the_root_is_mounted("one", "overlay")?;
    let script = "echo written > /file; cat /file";
    let said = ctr(&["tasks", "exec", "--exec-id", "e", "one", "sh", "-c", script])?;
    same("a file", said.as_str(), "written\n")?;
    remove("one")?;
    let flags = [&EROFS[..], &["--rm", "--read-only"]].concat();
    let said = printed(&mut stock.run(&flags, "two", &["sh", "-c", "echo x > /file || echo refused"])?)?;
    same("a read-only root", said.as_str(), "refused\n")?;
    no_devices(stock)
}

/// With `default_size` the snapshotter asks for an ext4 image for each container, which the shim makes.
fn blocks() -> Result<()> {
    let mut stock = Stock::start()?;
    stock.containerd.stop()?;
    let erofs = r#"[plugins."io.containerd.snapshotter.v1.erofs"]"#;
    stock.containerd.configure(&format!("{erofs}\ndefault_size = \"32MiB\"\n"));
    stock.containerd.start_again()?;
    stock.run_detached(&EROFS, "one", "exec sleep 100")?;
    only_the_root_is_mounted("one", "overlay")?;
    let root = stock.world.root();
    let images = devices(root)?;
    ensure!(images.iter().any(|image| image.ends_with("/rwlayer.img")), "images: {images:?}");
    let full = "dd if=/dev/zero of=/file bs=1M count=64 2>/dev/null || echo full";
    let said = ctr(&["tasks", "exec", "--exec-id", "e", "one", "sh", "-c", full])?;
    same("more than the image holds", said.as_str(), "full\n")?;
    remove("one")?;
    no_devices(stock)
}

/// The overlayfs snapshotter leaves it to the mount to shift owners.
fn mapped() -> Result<()> {
    let stock = Stock::start()?;
    let flags = ["--remap-labels", "--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];
    let script = "stat -c %u:%g /bin/busybox; id -u; echo x > /file; stat -c %u /file; exec sleep 100";
    stock.run_detached(&flags, "one", script)?;
    let log = stock.log("one");
    wait::until("the container's words", SOON, || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        Ok(if said == "0:0\n0\n0\n" { Look::Ready(()) } else { Look::NotYet(said) })
    })?;
    remove("one")?;
    stock.end()
}

/// Of all that a root file system is made of, only it stays mounted, and containerd has mounted nothing.
fn only_the_root_is_mounted(id: &str, kind: &str) -> Result<()> {
    let managed = fs::read_dir(MANAGED).context("containerd has a mount manager")?.count();
    same("mounts of containerd's own", managed, 0)?;
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let ours: Vec<&str> = table.lines().filter(|line| line.contains(&format!("/{id}/"))).collect();
    ensure!(
        matches!(ours.as_slice(), [root] if root.contains(&format!("/{id}/rootfs ")) && root.contains(&format!(" - {kind} "))),
        "mounts of the container: {ours:#?}"
    );
    Ok(())
}

/// Ends containerd; no loop device may be left, which the file system of a lab's images needs for erofs.
fn no_devices(stock: Stock) -> Result<()> {
    wait::until("no loop device to be left", SOON, || {
        let left = devices(stock.world.root())?;
        Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(left.join("\n  ")) })
    })?;
    stock.end()
}

/// Files below a directory that loop devices hold.
fn devices(below: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for block in fs::read_dir("/sys/block")? {
        let Ok(file) = fs::read_to_string(block?.path().join("loop/backing_file")) else { continue };
        files.extend(Some(file.trim().to_owned()).filter(|file| Path::new(file).starts_with(below)));
    }
    Ok(files)
}
