//! In a worker: a snapshot of an image, mounted to be read.
//!
//! It is put together in a mount namespace of a thread that ends with the work, and appears in its place in one step, read-only: whoever
//! dies meanwhile leaves nothing that is half made. Nothing can be written through the file system itself, so a container that may mount
//! what it likes writes no image either, which other pods have too.

use std::{
    fs::DirBuilder,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::Path,
};

use berth_core::{
    failure::{Failure, FailureKind},
    users::HostIds,
};
use berth_shim_core::mount::{self as planned, Datum, IdMap, Location, MountType, Roots, Step, flag};
use containerd_client::types::Mount;
use nix::mount::{MsFlags, mount};
use rustix::{
    fs::{CWD, Mode, OFlags, open},
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use super::{
    failure::{failed, local},
    files::host_files,
    image_root::in_own_mounts,
};
use crate::{netns::user_namespace, sys::map_owners, volumes::is_mount_point};

/// Longest option text that `mount(2)` takes: one page, with its end.
const OPTIONS_MAX: usize = 4095;

/// Mounts a snapshot at a path, or finds something mounted there. Places on the way to that are below `scratch`.
pub(in crate::effects) fn mount_image(mounts: &[Mount], scratch: &str, path: &str) -> Result<(), Failure> {
    if is_mount_point(path.as_ref()).map_err(local("look at", path))? {
        return Ok(());
    }
    let asked: Vec<planned::Mount> = mounts.iter().map(asked).collect();
    let roots = Roots { layers: scratch, containerd: None };
    let plan = planned::plan(&asked, &roots).map_err(|error| failed(FailureKind::Transient, &error))?;
    host_files::make_dir(path, 0o755)?;
    let mount = || {
        let tree = in_own_mounts(|| put_together(&plan.steps, Path::new(scratch)))?;
        Ok(move_mount(&tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    };
    mount().map_err(local("mount an image at", path))
}

fn asked(mount: &Mount) -> planned::Mount {
    let Mount { r#type: kind, source, target, options } = mount.clone();
    planned::Mount { kind, source, target, options }
}

/// The mounts on each other, as a tree that is mounted nowhere.
fn put_together(steps: &[Step], scratch: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().recursive(true).mode(0o700).create(scratch)?;
    mount(Some("image"), scratch, Some("tmpfs"), MsFlags::empty(), Some("mode=0700"))?;
    let root = scratch.join("root");
    make_place(&root)?;
    let mut owners = None;
    for step in steps {
        let plain = step.place.layer.is_none() && step.place.below.is_empty();
        if !plain || step.image.is_some() || !step.directories.is_empty() || step.options.device.is_some() {
            return Err(not_for_volumes());
        }
        owners = step.options.idmap.as_ref().map(namespace).transpose()?;
        match &step.kind {
            MountType::Bind => bind(step, &root)?,
            MountType::Overlay => overlay(step, &root, owners.take())?,
            MountType::Other(kind) => other(step, kind, &root)?,
            MountType::Loop | MountType::Erofs | MountType::Fuse { .. } => return Err(not_for_volumes()),
        }
    }
    let tree = clone(&root)?;
    if let Some(owners) = owners {
        map_owners(&tree, owners)?;
    }
    Ok(tree)
}

fn not_for_volumes() -> io::Error {
    let why = "the snapshotter of the node has images mounted in a way that is not supported for volumes";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

fn make_place(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Ids of a pod are one range, the same for users and groups.
fn namespace(map: &IdMap) -> io::Result<OwnedFd> {
    match (map.uids.as_slice(), map.gids.as_slice()) {
        ([users], [groups]) if users == groups && users.inside == 0 => {
            user_namespace(HostIds { first: users.outside, count: users.count })
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn bind(step: &Step, root: &Path) -> io::Result<()> {
    let Location::Node(source) = &step.source else { return Err(not_for_volumes()) };
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source.as_str()), root, None::<&str>, flags, None::<&str>)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    Ok(mount(None::<&str>, root, None::<&str>, flags, None::<&str>)?)
}

fn other(step: &Step, kind: &str, root: &Path) -> io::Result<()> {
    let Location::Node(source) = &step.source else { return Err(not_for_volumes()) };
    let options: Vec<&str> = step.data.iter().map(Datum::text).collect();
    Ok(mount(Some(source.as_str()), root, Some(kind), flags(step), Some(options.join(",").as_str()))?)
}

/// Layers whose owners are shifted are clones, which a path does not lead to: descriptors name them, and layers that are too many for
/// their paths.
fn overlay(step: &Step, root: &Path, owners: Option<OwnedFd>) -> io::Result<()> {
    let written = step.data.iter().map(Datum::text).collect::<Vec<_>>().join(",");
    let mount = |options: &str| mount(Some("overlay"), root, Some("overlay"), flags(step), Some(options));
    if owners.is_none() && written.len() <= OPTIONS_MAX {
        return Ok(mount(&written)?);
    }
    let (mut options, mut held) = (Vec::new(), Vec::new());
    for datum in &step.data {
        match datum {
            Datum::Plain(text) => options.push(text.clone()),
            Datum::Paths { name, paths, .. } => {
                let mut numbers = Vec::new();
                for path in paths {
                    let Some(Location::Node(path)) = path else { return Err(not_for_volumes()) };
                    let opened = match &owners {
                        Some(owners) if name == "lowerdir=" => {
                            mapped(path, owners, &root.with_file_name(held.len().to_string()))?
                        }
                        Some(_) | None => opened(path)?,
                    };
                    numbers.push(opened.as_raw_fd().to_string());
                    held.push(opened);
                }
                options.push(format!("{name}{}", numbers.join(":")));
            }
        }
    }
    std::env::set_current_dir("/proc/self/fd")?;
    Ok(mount(&options.join(","))?)
}

fn opened(path: &str) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A layer that shows other owners. Before Linux 6.15 an overlay takes none that is mounted nowhere.
fn mapped(layer: &str, owners: &OwnedFd, place: &Path) -> io::Result<OwnedFd> {
    let tree = clone(layer.as_ref())?;
    map_owners(&tree, owners)?;
    make_place(place)?;
    move_mount(&tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(tree)
}

fn clone(path: &Path) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}

/// Those that were asked for, and that nothing is written.
fn flags(step: &Step) -> MsFlags {
    MsFlags::from_bits_retain(step.options.set & !(flag::BIND | flag::REC)) | MsFlags::MS_RDONLY
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::own_mounts::with_own_mounts;

    fn snapshot(kind: &str, source: &str, options: Vec<String>) -> Mount {
        Mount { r#type: kind.to_owned(), source: source.to_owned(), options, ..Mount::default() }
    }

    /// Directories of layers, each with a file of its own and one that all have, the topmost first.
    fn layers(dir: &Path, count: usize) -> Vec<String> {
        let layer = |number: usize| {
            let layer = dir.join("layers-with-a-name-that-is-rather-long").join(number.to_string());
            fs::create_dir_all(&layer).unwrap();
            fs::write(layer.join(format!("file-{number}")), "").unwrap();
            fs::write(layer.join("top"), number.to_string()).unwrap();
            layer.display().to_string()
        };
        (0..count).map(layer).collect()
    }

    fn overlay(dir: &Path, count: usize) -> Mount {
        let own = |name: &str| {
            let path = dir.join(name);
            fs::create_dir_all(&path).unwrap();
            path.display().to_string()
        };
        let options = vec![
            "index=off".to_owned(),
            format!("workdir={}", own("work")),
            format!("upperdir={}", own("upper")),
            format!("lowerdir={}", layers(dir, count).join(":")),
        ];
        snapshot("overlay", "overlay", options)
    }

    fn mount_points_at(path: &str) -> usize {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        table.matches(&format!(" {path} ")).count()
    }

    #[test]
    fn an_image_is_mounted_once_and_cannot_be_written() {
        for count in [1, 2, 200] {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name).display().to_string();
            with_own_mounts(|| {
                let mounts = [overlay(dir.path(), count)];
                for _ in 0..2 {
                    mount_image(&mounts, &at("scratch"), &at("volume")).unwrap();
                    assert_eq!(mount_points_at(&at("volume")), 1, "{count}");
                }
                let root = dir.path().join("volume");
                assert_eq!(fs::read_to_string(root.join("top")).unwrap(), "0", "{count}");
                assert_eq!(fs::read_dir(&root).unwrap().count(), count + 1);
                let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
                mount(None::<&str>, &root, None::<&str>, again, None::<&str>).unwrap();
                let refused = fs::write(root.join("top"), "").unwrap_err();
                assert_eq!(
                    refused.kind(),
                    io::ErrorKind::ReadOnlyFilesystem,
                    "{count}: a mount that may be written"
                );
            });
            assert_eq!(fs::read_dir(dir.path().join("scratch")).unwrap().count(), 0, "something is left");
        }
    }

    #[test]
    fn a_copy_of_an_image_is_mounted_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let copy = layers(dir.path(), 1).remove(0);
        with_own_mounts(|| {
            let options = ["rw", "rbind"].map(str::to_owned).to_vec();
            mount_image(&[snapshot("bind", &copy, options)], &at("scratch"), &at("volume")).unwrap();
            let file = dir.path().join("volume/top");
            assert_eq!(fs::read_to_string(&file).unwrap(), "0");
            assert_eq!(fs::write(&file, "").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        });
    }

    #[test]
    fn what_takes_more_than_mounts_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let loop_device = vec!["loop".to_owned()];
        with_own_mounts(|| {
            for mounts in [
                [snapshot("format/mkdir/overlay", "overlay", Vec::new())],
                [snapshot("erofs", "/image", loop_device.clone())],
                [snapshot("ext4", "/image", loop_device.clone())],
                [snapshot("fuse3.overlayfs", "overlay", Vec::new())],
                [snapshot("overlay", "overlay", vec!["lowerdir=/nowhere".to_owned()])],
            ] {
                let failure = mount_image(&mounts, &at("scratch"), &at("volume")).unwrap_err();
                assert_eq!(failure.kind, FailureKind::Transient, "{failure:?}");
                assert_eq!(mount_points_at(&at("volume")), 0, "{mounts:?}");
            }
        });
    }
}
