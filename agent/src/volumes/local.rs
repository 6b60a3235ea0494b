//! Directories of the node that outlive pods, bound below a pod's. Source: `pkg/volume/local/local.go`.
//!
//! What is in them is their owner's: they are bound and unbound, and given to a group that the pod asks for, and nothing else. The path
//! is an administrator's to choose; links in it are followed, as the kubelet does.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, FileTypeExt},
    },
    path::{Path, PathBuf},
};

use berth_core::paths;
use rustix::{
    fs::{Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs, open},
    mount::{MountFlags, mount_bind, mount_remount},
};

use super::{
    empty_dir::{give_to_group, set, unset},
    error::{VolumeError, io_error},
    mounts::{MountLine, is_mount_point, mounts, unmount_below},
};

/// What the group of a directory has where nothing is left to change: read, write, search, and its group for new files
/// (`requiresPermissionChange` of `pkg/volume/volume_linux.go`).
const GROUP_HAS: u32 = 0o2770;

/// A directory to bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDir {
    /// Where it is on the node.
    pub source: PathBuf,
    /// Where it is bound, two directories below one of volumes.
    pub target: PathBuf,
    /// Says that it was bound whole.
    pub mark: PathBuf,
    /// The directory of all pods.
    pub pods: PathBuf,
    /// Whether nobody writes there.
    pub read_only: bool,
    /// Options of the mount.
    pub options: Vec<String>,
    /// Whether one pod alone may have it.
    pub is_of_one_pod: bool,
    /// Group that is to own it.
    pub group: Option<ForGroup>,
}

/// A group that is to own a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForGroup {
    /// Its id.
    pub id: u32,
    /// Whether nothing is changed where the directory itself is as it is to be.
    pub on_root_mismatch: bool,
}

/// Binds it, unless it is bound.
///
/// # Errors
/// It is no directory, another pod has it alone, or a call fails.
pub fn ensure(wanted: &LocalDir) -> Result<(), VolumeError> {
    let LocalDir { source, target, mark, .. } = wanted;
    let is_bound = is_mount_point(target).map_err(io_error("look at", target))?;
    if is_bound && mark.exists() {
        return Ok(());
    }
    unset(mark)?;
    if !is_bound {
        let source = directory(source)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(target)
            .map_err(io_error("create directory", target))?;
        mount_bind(of_descriptor(&source), target).map_err(io_error("bind the directory at", target))?;
    }
    let finished = restrict(wanted).and_then(|()| share(wanted));
    if let Err(error) = finished {
        // Whoever comes next begins anew. What the node has mounted in it meanwhile is the node's.
        unmount_below(target)?;
        return Err(error);
    }
    set(mark)
}

fn of_descriptor(file: &OwnedFd) -> String {
    format!("/proc/thread-self/fd/{}", file.as_raw_fd())
}

/// The directory, opened as no more than a path.
fn directory(path: &Path) -> Result<OwnedFd, VolumeError> {
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => VolumeError::NoSuchPath { path: path.to_owned() },
        _ => io_error("look at", path)(error),
    })?;
    if found.file_type().is_block_device() {
        return Err(VolumeError::FileSystemOfDevice { path: path.to_owned() });
    }
    if !found.is_dir() {
        return Err(VolumeError::NoDirectory { path: path.to_owned() });
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(io_error("open", path))
}

/// Applies the options of the mount to what the directory's own mount has.
fn restrict(wanted: &LocalDir) -> Result<(), VolumeError> {
    let target = &wanted.target;
    let read_only = wanted.read_only.then_some("ro");
    // Source: `JoinMountOptions` of `pkg/volume/util/util.go`, and mount(8): each in its place by name, and perhaps several.
    let entries: BTreeSet<&str> =
        read_only.into_iter().chain(wanted.options.iter().map(String::as_str)).collect();
    let options: Vec<&str> = entries.into_iter().flat_map(|entry| entry.split(',')).collect();
    if options.is_empty() {
        return Ok(());
    }
    let has = open_root(target).and_then(|root| fstatvfs(&root)).map_err(io_error("look at", target))?.f_flag;
    let flags = MountFlags::BIND | flags(of_mount(has), &options);
    mount_remount(target, flags, c"").map_err(io_error("set the options of", target))
}

fn open_root(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn of_mount(has: StatVfsMountFlags) -> MountFlags {
    let known = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    known.into_iter().filter(|(flag, _)| has.contains(*flag)).map(|(_, flag)| flag).collect()
}

/// Options of mount(8) that are of a mount and not of a file system, each in its turn. What is of a file system the kernel passes over
/// when a directory is bound, and so does this.
fn flags(has: MountFlags, options: &[&str]) -> MountFlags {
    let mut flags = has;
    for option in options {
        let (flag, is_set) = match *option {
            "ro" => (MountFlags::RDONLY, true),
            "rw" => (MountFlags::RDONLY, false),
            "nosuid" => (MountFlags::NOSUID, true),
            "suid" => (MountFlags::NOSUID, false),
            "nodev" => (MountFlags::NODEV, true),
            "dev" => (MountFlags::NODEV, false),
            "noexec" => (MountFlags::NOEXEC, true),
            "exec" => (MountFlags::NOEXEC, false),
            "noatime" => (MountFlags::NOATIME, true),
            "atime" => (MountFlags::NOATIME, false),
            "nodiratime" => (MountFlags::NODIRATIME, true),
            "diratime" => (MountFlags::NODIRATIME, false),
            "relatime" => (MountFlags::RELATIME, true),
            "nosymfollow" => (MountFlags::NOSYMFOLLOW, true),
            "symfollow" => (MountFlags::NOSYMFOLLOW, false),
            "strictatime" => (MountFlags::STRICTATIME, true),
            _ => continue,
        };
        flags.set(flag, is_set);
    }
    flags
}

/// Looks who else has it, and gives it to the group where this pod is the first: of two at once that is the one whose mount was first.
fn share(wanted: &LocalDir) -> Result<(), VolumeError> {
    let LocalDir { target, pods, .. } = wanted;
    let all = mounts().map_err(io_error("read", "/proc/thread-self/mountinfo"))?;
    let target = real(target).map_err(io_error("look at", target))?;
    let pods = pods.canonicalize().map_err(io_error("look at", pods))?;
    // A later mount covers an earlier one.
    let Some(own) = all.iter().rposition(|mount| mount.point == target) else {
        return Err(io_error("find the mount of", &target)(io::Error::from(ErrorKind::NotFound)));
    };
    let (name, pod) = (target.file_name(), pod_of(&pods, &target));
    let is_of_another = |mount: &&MountLine| {
        let other = pod_of(&pods, &mount.point);
        other.is_some() && other != pod
    };
    let before: Vec<&MountLine> = all[..own].iter().filter(is_of_another).collect();
    let is_volume = |mount: &&&MountLine| mount.point.file_name() == name && is_beside(&mount.point, &target);
    if wanted.is_of_one_pod && before.iter().any(|mount| is_volume(&mount)) {
        return Err(VolumeError::InUse);
    }
    let Some(group) = wanted.group.filter(|_| !wanted.read_only) else { return Ok(()) };
    let sharing: Vec<&&MountLine> = before.iter().filter(|mount| mount.is_same(&all[own])).collect();
    if sharing.is_empty() {
        return give(&target, group);
    }
    // Who is before this pod may have a group to give it to, and not be done.
    let mark = |place: &Path| paths::local_volume_ready_at(pods.to_str()?, place.to_str()?);
    let is_giving = |mount: &&&MountLine| mark(&mount.point).is_some_and(|mark| !Path::new(&mark).exists());
    match sharing.iter().find(|mount| is_giving(mount)) {
        Some(mount) => Err(VolumeError::BeingGiven { by: mount.point.clone() }),
        None => Ok(()),
    }
}

/// A path whose directory has no link on the way.
fn real(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}

/// The pod that a path is of, by its directory.
fn pod_of<'a>(pods: &Path, path: &'a Path) -> Option<&'a OsStr> {
    path.strip_prefix(pods).ok()?.iter().next()
}

/// Whether both are in the same directory of their pods.
fn is_beside(one: &Path, other: &Path) -> bool {
    let plugin = |path: &Path| path.parent().and_then(Path::file_name).map(ToOwned::to_owned);
    plugin(one) == plugin(other)
}

fn give(target: &Path, group: ForGroup) -> Result<(), VolumeError> {
    let found = open_root(target).and_then(fstat).map_err(io_error("look at", target))?;
    let is_given = found.st_gid == group.id && found.st_mode & GROUP_HAS == GROUP_HAS;
    if group.on_root_mismatch && is_given {
        return Ok(());
    }
    give_to_group(target, group.id)
}

/// Looks whether a path is a block device. It is not opened, which may have an effect.
///
/// # Errors
/// It is something else, or cannot be looked at.
pub fn check_block_device(path: &Path) -> Result<(), VolumeError> {
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => VolumeError::NoSuchPath { path: path.to_owned() },
        _ => io_error("look at", path)(error),
    })?;
    if found.file_type().is_block_device() {
        Ok(())
    } else {
        Err(VolumeError::NoBlockDevice { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests;
