//! One step of a plan.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use berth_shim_core::mount::{Datum, Device, IdMap, Location, MountType, Step, flag};
use berth_shim_core::namespace::IdRange;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use super::activation::Activation;
use super::held::Held;
use super::loopback::LoopDevice;
use super::place::path_of;
use super::{MountError, image, tool};
use crate::sys::{self, Extent, LoopAccess, Writing};

/// The kernel takes at most one page of mount data, with its final zero.
const DATA_BYTES_MAX: usize = 4095;
/// Characters of options that an error shows.
const SHOWN_MAX: usize = 300;

impl Activation {
    /// Carries one step out, after all those before it.
    pub(super) fn perform(&mut self, step: &Step) -> Result<(), MountError> {
        if let Some(image) = &step.image {
            image::make_image(self.root(image.path.root)?, image)?;
        }
        for directory in &step.directories {
            image::make_directory(self.root(directory.path.root)?, directory)?;
        }
        if step.kind == MountType::Loop {
            let device = self.loop_device(&step.source, step)?;
            self.devices.push(Some(device));
            return Ok(());
        }
        self.devices.push(None);
        self.make_place(&step.place)?;
        match &step.kind {
            MountType::Bind => self.bind(step)?,
            MountType::Overlay => self.overlay(step)?,
            MountType::Erofs => self.erofs(step)?,
            MountType::Fuse { helper, name, options } => self.fuse(step, helper, (name, options))?,
            MountType::Loop | MountType::Other(_) => self.other(step)?,
        }
        self.finish(step)
    }

    fn bind(&mut self, step: &Step) -> Result<(), MountError> {
        let extent = if step.options.set & flag::REC == 0 { Extent::Mount } else { Extent::Tree };
        if let Some(idmap) = &step.options.idmap {
            let source = self.open(&step.source)?;
            return self.attach_mapped(step, &source, idmap, extent);
        }
        let (source, _held) = self.path(&step.source)?;
        let flags = flag::BIND | (step.options.set & flag::REC);
        self.call(&self.place(&step.place)?, step, (&source, "bind"), flags, &Held::default())
    }

    fn overlay(&mut self, step: &Step) -> Result<(), MountError> {
        let idmap = step.options.idmap.as_ref();
        let written = Held::written(&step.data);
        let held = if idmap.is_none() && is_plain(&step.data) && written.data.len() <= DATA_BYTES_MAX {
            written
        } else {
            let namespace = idmap.map(user_namespace).transpose()?;
            self.hold(&step.data, |activation, name, layer| match &namespace {
                Some(namespace) if name == "lowerdir=" => activation.mapped_layer(layer, namespace),
                Some(_) | None => Ok(layer),
            })?
        };
        let (source, _held) = self.path(&step.source)?;
        self.call(&self.place(&step.place)?, step, (&source, "overlay"), step.options.set, &held)
    }

    /// Mounts an image from its file (Linux 6.12), or by loop devices where the kernel cannot or direct I/O is wished.
    fn erofs(&mut self, step: &Step) -> Result<(), MountError> {
        let flags = step.options.set | flag::RDONLY;
        let (target, mapped) = self.target(step)?;
        if step.options.device != Some(Device::Direct) {
            let written = Held::written(&step.data);
            let held = if is_plain(&step.data) && written.data.len() <= DATA_BYTES_MAX {
                written
            } else {
                self.hold(&step.data, |_, _, image| Ok(image))?
            };
            let (source, _held) = self.path(&step.source)?;
            match self.call(&target, step, (&source, "erofs"), flags, &held) {
                Err(MountError::Mount { source: Errno::ENOTBLK, .. }) => {}
                other => return other.and_then(|()| self.bring(step, mapped)),
            }
        }
        let (mut held, mut devices) = (Held::default(), Vec::new());
        for datum in &step.data {
            match datum {
                Datum::Plain(text) => held.push(text),
                Datum::Paths { name, paths, .. } => {
                    for location in paths.iter().flatten() {
                        let device = self.loop_device(location, step)?;
                        held.push(&format!("{name}{}", device.path));
                        devices.push(device);
                    }
                }
            }
        }
        let device = self.loop_device(&step.source, step)?;
        self.call(&target, step, (&device.path, "erofs"), flags, &held)?;
        self.bring(step, mapped)
    }

    fn other(&mut self, step: &Step) -> Result<(), MountError> {
        let MountType::Other(kind) = &step.kind else { return Ok(()) };
        let (target, mapped) = self.target(step)?;
        let held = Held::written(&step.data);
        let flags = step.options.set & !flag::REC;
        if step.options.device.is_some() {
            let device = self.loop_device(&step.source, step)?;
            self.call(&target, step, (&device.path, kind), flags, &held)?;
        } else {
            let (source, _held) = self.path(&step.source)?;
            self.call(&target, step, (&source, kind), flags, &held)?;
        }
        self.bring(step, mapped)
    }

    fn fuse(
        &mut self,
        step: &Step,
        helper: &str,
        (name, options): (&str, &[String]),
    ) -> Result<(), MountError> {
        // The helper looks at the path, so it gets the real one.
        let place = self.place(&step.place)?;
        let target = fs::read_link(path_of(&place))
            .map_err(|source| MountError::Attach { what: shown(&step.source), source })?;
        let (source, _held) = self.path(&step.source)?;
        let mut command = Command::new(helper);
        command.arg(source).arg(target);
        for option in options {
            command.args(["-o", option]);
        }
        tool::run(command.args(["-t", name]))
    }

    /// Sets what the mount itself could not: flags of a bind mount, which begins with its source's, and propagation.
    fn finish(&self, step: &Step) -> Result<(), MountError> {
        let fail = |source| MountError::Flags { what: shown(&step.source), source };
        let again = |flags: u64| {
            let place = self.place(&step.place)?;
            mount(
                None::<&str>,
                path_of(&place).as_str(),
                None::<&str>,
                MsFlags::from_bits_retain(flags),
                None::<&str>,
            )
            .map_err(fail)
        };
        let wished = step.options.set & !(flag::BIND | flag::REC);
        if step.kind == MountType::Bind && wished != 0 {
            let before = flags_of(self.place(&step.place)?).map_err(fail)? & !step.options.clear;
            again(flag::BIND | flag::REMOUNT | wished | before)?;
        }
        if step.options.propagation != 0 {
            again(step.options.propagation)?;
        }
        Ok(())
    }

    /// Where a file system is mounted at first, and how that is found again if its ids are to be mapped on the way from
    /// there to its place.
    fn target(&mut self, step: &Step) -> Result<(OwnedFd, Option<Location>), MountError> {
        if step.options.idmap.is_none() {
            return Ok((self.place(&step.place)?, None));
        }
        let at = self.make_unnamed()?;
        Ok((self.open(&at)?, Some(at)))
    }

    /// Brings a file system from there to its place.
    fn bring(&self, step: &Step, mapped: Option<Location>) -> Result<(), MountError> {
        let (Some(at), Some(idmap)) = (mapped, &step.options.idmap) else { return Ok(()) };
        self.attach_mapped(step, &self.open(&at)?, idmap, Extent::Mount)
    }

    fn attach_mapped(
        &self,
        step: &Step,
        source: &OwnedFd,
        idmap: &IdMap,
        extent: Extent,
    ) -> Result<(), MountError> {
        let what = || shown(&step.source);
        let cannot = |source| MountError::CannotMapIds { what: what(), source };
        let tree = sys::clone_tree(source, extent).map_err(cannot)?;
        sys::map_ids(&tree, user_namespace(idmap)?, extent, Writing::AsBefore).map_err(cannot)?;
        let place = self.place(&step.place)?;
        sys::attach(&tree, place).map_err(|source| MountError::Attach { what: what(), source })
    }

    /// A clone of an overlay's layer that shows mapped owners. It is mounted on a place of ours: before Linux 6.15 an
    /// overlay takes no layer that is mounted nowhere.
    fn mapped_layer(&mut self, layer: OwnedFd, namespace: &OwnedFd) -> Result<OwnedFd, MountError> {
        let what = fs::read_link(path_of(&layer)).unwrap_or_default().display().to_string();
        let cannot = |source| MountError::CannotMapIds { what: what.clone(), source };
        let tree = sys::clone_tree(&layer, Extent::Mount).map_err(cannot)?;
        sys::map_ids(&tree, namespace, Extent::Mount, Writing::Never).map_err(cannot)?;
        let at = self.make_unnamed()?;
        sys::attach(&tree, self.open(&at)?).map_err(|source| MountError::Attach { what, source })?;
        Ok(tree)
    }

    /// Opens all paths that options name.
    fn hold(
        &mut self,
        data: &[Datum],
        each: impl Fn(&mut Self, &str, OwnedFd) -> Result<OwnedFd, MountError>,
    ) -> Result<Held, MountError> {
        let mut held = Held::default();
        for datum in data {
            match datum {
                Datum::Plain(text) => held.push(text),
                Datum::Paths { name, paths, .. } => {
                    let open = |location: &Option<Location>| {
                        let Some(location) = location else { return Ok(None) };
                        let opened = self.open(location)?;
                        each(self, name, opened).map(Some)
                    };
                    held.push_paths(name, paths.iter().map(open).collect::<Result<_, _>>()?);
                }
            }
        }
        Ok(held)
    }

    fn loop_device(&self, image: &Location, step: &Step) -> Result<LoopDevice, MountError> {
        let is_read_only = step.options.is_read_only() || step.kind == MountType::Erofs;
        let access = if is_read_only { LoopAccess::ReadOnly } else { LoopAccess::ReadWrite };
        let how = step.options.device.unwrap_or(Device::Cached);
        LoopDevice::set_up(&self.open(image)?, &shown(image), how, access)
    }

    fn call(
        &self,
        target: &OwnedFd,
        step: &Step,
        (source, kind): (&str, &str),
        flags: u64,
        held: &Held,
    ) -> Result<(), MountError> {
        if held.data.len() > DATA_BYTES_MAX {
            return Err(MountError::TooLong(held.data.len()));
        }
        let data = Some(held.data.as_str()).filter(|data| !data.is_empty());
        let flags = MsFlags::from_bits_retain(flags);
        let result =
            held.within(|| Ok(mount(Some(source), path_of(target).as_str(), Some(kind), flags, data)))?;
        result.map_err(|source| {
            let options: Vec<&str> = step.data.iter().map(Datum::text).collect();
            let text = format!("{:?} with {:?}", shown(&step.source), options.join(","));
            MountError::Mount { what: text.chars().take(SHOWN_MAX).collect(), kind: kind.to_owned(), source }
        })
    }
}

fn user_namespace(idmap: &IdMap) -> Result<OwnedFd, MountError> {
    sys::user_namespace(&IdRange::lines(&idmap.uids), &IdRange::lines(&idmap.gids))
        .map_err(MountError::UserNamespace)
}

/// Whether all paths can be written out as the client has done.
fn is_plain(data: &[Datum]) -> bool {
    let on_node = |location: &Option<Location>| matches!(location, None | Some(Location::Node(_)));
    data.iter().all(|datum| match datum {
        Datum::Plain(_) => true,
        Datum::Paths { paths, .. } => paths.iter().all(on_node),
    })
}

fn shown(location: &Location) -> String {
    match location {
        Location::Node(path) | Location::Layer(path) => path.clone(),
        Location::Device(index) => format!("loop device {index}"),
    }
}

/// The flags of a mount that another remount must repeat, or they are gone.
fn flags_of(place: impl AsFd) -> nix::Result<u64> {
    let flags = fstatvfs(place)?.flags();
    let pairs = [
        (FsFlags::ST_RDONLY, flag::RDONLY),
        (FsFlags::ST_NOSUID, flag::NOSUID),
        (FsFlags::ST_NODEV, flag::NODEV),
        (FsFlags::ST_NOEXEC, flag::NOEXEC),
    ];
    Ok(pairs.into_iter().filter(|(is, _)| flags.contains(*is)).map(|(_, bit)| bit).sum())
}
