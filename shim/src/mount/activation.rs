//! A root file system in the making.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use berth_proto::types;
use berth_shim_core::mount::{Location, Mount, Place, Plan, Root, Roots, plan};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};

use super::MountError;
use super::loopback::LoopDevice;
use super::place::{open_beneath, open_directory, open_node, path_of};
use super::unmount::{unmount_bundle, unmount_layers};

/// Where in a bundle the mounts are that only serve later ones.
pub(super) const LAYERS: &str = "layers";
/// The place of the root file system in a bundle.
pub(super) const ROOTFS: &str = "rootfs";

/// Mounts a root file system in a bundle; on failure nothing stays mounted.
pub(crate) fn mount_all(mounts: &[types::Mount], bundle: &Path) -> Result<(), MountError> {
    let containerd = containerd_directory(bundle);
    let layers = bundle.join(LAYERS).display().to_string();
    let containerd_text = containerd.as_ref().map(|path| path.display().to_string());
    let roots = Roots { layers: &layers, containerd: containerd_text.as_deref() };
    let plan = plan(&mounts.iter().map(asked).collect::<Vec<_>>(), &roots)?;
    if plan.steps.is_empty() {
        return Ok(());
    }
    let made = Activation::begin(bundle, containerd, &plan)
        .and_then(|mut activation| plan.steps.iter().try_for_each(|step| activation.perform(step)));
    match &made {
        Ok(()) if plan.has_layers() => unmount_layers(bundle),
        Ok(()) => {}
        Err(_) => unmount_bundle(bundle),
    }
    made
}

fn asked(mount: &types::Mount) -> Mount {
    let types::Mount { r#type, source, target, options } = mount.clone();
    Mount { kind: r#type, source, target, options }
}

/// The directory that holds all that containerd keeps, as its mount manager sees it: four levels above the working
/// directory of a task, which a bundle has a link to (`core/runtime/v2/bundle.go`, `plugins/mount/manager.go`).
fn containerd_directory(bundle: &Path) -> Option<PathBuf> {
    let work = fs::read_link(bundle.join("work")).ok().filter(|path| path.is_absolute())?;
    work.ancestors().nth(3).filter(|path| path.parent().is_some()).map(Path::to_owned)
}

/// What has been made so far.
pub(super) struct Activation {
    bundle: OwnedFd,
    /// A tmpfs, if the plan needs more than the root file system.
    layers: Option<OwnedFd>,
    containerd: Option<PathBuf>,
    /// The loop device of each step that is one.
    pub(super) devices: Vec<Option<LoopDevice>>,
    /// Places made so far that no template names.
    unnamed: usize,
}

impl Activation {
    fn begin(bundle: &Path, containerd: Option<PathBuf>, plan: &Plan) -> Result<Self, MountError> {
        make_place_of_root(bundle)?;
        let layers = if plan.has_layers() { Some(mount_layers(&bundle.join(LAYERS))?) } else { None };
        let bundle = open_directory(bundle)?;
        Ok(Self { bundle, layers, containerd, devices: Vec::new(), unnamed: 0 })
    }

    /// Opens the place of a mount, with what is mounted there by now.
    pub(super) fn place(&self, place: &Place) -> Result<OwnedFd, MountError> {
        let path = |name: &str| format!("{name}/{}", place.below).trim_end_matches('/').to_owned();
        match place.layer {
            None => open_beneath(&self.bundle, &path(ROOTFS)),
            Some(index) => open_beneath(self.layers()?, &path(&index.to_string())),
        }
    }

    /// Makes the place of a mount that only serves later ones.
    pub(super) fn make_place(&self, place: &Place) -> Result<(), MountError> {
        place.layer.map_or(Ok(()), |index| self.make(&index.to_string()))
    }

    /// Makes a place that no template names.
    pub(super) fn make_unnamed(&mut self) -> Result<Location, MountError> {
        let name = format!("unnamed-{}", self.unnamed);
        self.unnamed += 1;
        self.make(&name)?;
        Ok(Location::Layer(name))
    }

    /// Opens what a client names.
    pub(super) fn open(&self, location: &Location) -> Result<OwnedFd, MountError> {
        match location {
            Location::Node(path) => open_node(path),
            Location::Layer(path) => open_beneath(self.layers()?, path),
            Location::Device(index) => open_node(self.device(*index)?),
        }
    }

    /// The path of what a client names, and a descriptor that it may depend on.
    pub(super) fn path(&self, location: &Location) -> Result<(String, Option<OwnedFd>), MountError> {
        match location {
            Location::Node(path) => Ok((path.clone(), None)),
            Location::Device(index) => Ok((self.device(*index)?.to_owned(), None)),
            Location::Layer(_) => {
                let opened = self.open(location)?;
                Ok((path_of(&opened), Some(opened)))
            }
        }
    }

    /// Opens a directory in which things are made.
    pub(super) fn root(&self, root: Root) -> Result<OwnedFd, MountError> {
        match (root, &self.containerd) {
            (Root::Containerd, Some(path)) => open_directory(path),
            (Root::Layers, _) | (Root::Containerd, None) => open_beneath(self.layers()?, ""),
        }
    }

    fn layers(&self) -> Result<&OwnedFd, MountError> {
        let absent = || MountError::Open { path: LAYERS.to_owned(), source: nix::Error::ENOENT };
        self.layers.as_ref().ok_or_else(absent)
    }

    fn device(&self, index: usize) -> Result<&str, MountError> {
        let absent = || MountError::Open { path: format!("{LAYERS}/{index}"), source: nix::Error::ENODEV };
        self.devices.get(index).and_then(Option::as_ref).map(|device| device.path.as_str()).ok_or_else(absent)
    }

    fn make(&self, name: &str) -> Result<(), MountError> {
        mkdirat(self.layers()?, name, Mode::S_IRWXU)
            .map_err(|source| MountError::Directory { path: name.to_owned(), source })
    }
}

/// Makes the place of the root file system, as the runc shim does (`NewContainer` in `runc/container.go`): not every
/// client makes it with the bundle.
fn make_place_of_root(bundle: &Path) -> Result<(), MountError> {
    match DirBuilder::new().mode(0o711).create(bundle.join(ROOTFS)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            let source = nix::Error::from_raw(error.raw_os_error().unwrap_or_default());
            Err(MountError::Directory { path: ROOTFS.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Mounts the tmpfs for what only serves later mounts. It is private, so that nothing of it stays in another namespace.
fn mount_layers(path: &Path) -> Result<OwnedFd, MountError> {
    let fail = |source| MountError::Layers { path: path.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(fail(nix::Error::from_raw(error.raw_os_error().unwrap_or_default())));
        }
        Ok(()) | Err(_) => {}
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("layers"), path, Some("tmpfs"), flags, Some("mode=0700")).map_err(fail)?;
    mount(None::<&str>, path, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>).map_err(fail)?;
    open_directory(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerds_directory_is_found_from_a_bundle() {
        let bundle = tempfile::tempdir().unwrap();
        assert_eq!(containerd_directory(bundle.path()), None);
        let link = |to: &str| {
            let path = bundle.path().join("work");
            let _absent = fs::remove_file(&path).is_err();
            std::os::unix::fs::symlink(to, path).unwrap();
        };
        link("/var/lib/containerd/io.containerd.runtime.v2.task/k8s.io/c1");
        assert_eq!(containerd_directory(bundle.path()), Some("/var/lib/containerd".into()));
        for other in ["relative/a/b/c/d", "/a/b/c", "/"] {
            link(other);
            assert_eq!(containerd_directory(bundle.path()), None, "{other}");
        }
    }
}
