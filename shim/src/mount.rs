//! Root file systems: the mounts of a creation request, and their end.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use berth_proto::types::Mount;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use thiserror::Error;

/// The kernel takes at most one page of mount data, with its final zero.
const DATA_BYTES_MAX: usize = 4095;
/// Mounts of one root file system, and unmounts tried for one path.
const MOUNTS_MAX: usize = 64;

/// Why a root file system could not be mounted.
#[derive(Debug, Error)]
pub(crate) enum MountError {
    #[error("mount {source_path:?} of type {kind} on {target}", target = target.display())]
    Mount { source_path: String, kind: String, target: PathBuf, source: nix::Error },
    #[error("mount type {kind}: it belongs to containerd's mount manager, which this shim does not replace")]
    Managed { kind: String },
    #[error(
        "mount an overlay: its options take {0} bytes, more than the kernel's {DATA_BYTES_MAX}; use fewer layers"
    )]
    TooLong(usize),
    #[error("mount {0} file systems for one container, more than {MOUNTS_MAX}")]
    TooMany(usize),
    #[error("change to directory {path}", path = path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("mount on {0:?}, which leads out of the root file system")]
    Outside(String),
}

/// Mounts in order on `rootfs`; on failure nothing stays mounted.
pub(crate) fn mount_all(mounts: &[Mount], rootfs: &Path) -> Result<(), MountError> {
    if mounts.len() > MOUNTS_MAX {
        return Err(MountError::TooMany(mounts.len()));
    }
    for entry in mounts {
        if let Err(error) = mount_one(entry, rootfs) {
            unmount_all(rootfs);
            return Err(error);
        }
    }
    Ok(())
}

/// Unmounts everything on a path, lazily where it is in use. A path that is no mount is left alone.
pub(crate) fn unmount_all(path: &Path) {
    for _stacked in 0..MOUNTS_MAX {
        if umount2(path, MntFlags::UMOUNT_NOFOLLOW).is_ok() {
            continue;
        }
        if umount2(path, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH).is_err() {
            return;
        }
    }
}

fn mount_one(entry: &Mount, rootfs: &Path) -> Result<(), MountError> {
    if let Some((kind @ ("format" | "mkdir" | "mkfs"), _)) = entry.r#type.split_once('/') {
        return Err(MountError::Managed { kind: kind.to_owned() });
    }
    let target = target(rootfs, &entry.target)?;
    let Options { mut flags, data } = parse(&entry.options);
    if entry.r#type == "bind" || entry.r#type == "rbind" {
        flags |= if entry.r#type == "rbind" { MsFlags::MS_BIND | MsFlags::MS_REC } else { MsFlags::MS_BIND };
    }
    let fail = |source| MountError::Mount {
        source_path: entry.source.clone(),
        kind: entry.r#type.clone(),
        target: target.clone(),
        source,
    };
    let call = |data: &str, flags| {
        let data = Some(data).filter(|data| !data.is_empty());
        mount(Some(entry.source.as_str()), &target, Some(entry.r#type.as_str()), flags, data).map_err(fail)
    };
    let propagation =
        flags & (MsFlags::MS_PRIVATE | MsFlags::MS_SHARED | MsFlags::MS_SLAVE | MsFlags::MS_UNBINDABLE);
    flags -= propagation;
    let data = data.join(",");
    if data.len() > DATA_BYTES_MAX {
        let (directory, data) = shorten(&data)?;
        in_directory(&directory, || call(&data, flags))?;
    } else {
        call(&data, flags)?;
    }
    // A bind mount takes the flags of its source; others are set by a second call.
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    if flags.contains(MsFlags::MS_BIND) && !(flags - bind).is_empty() {
        let again = (flags - MsFlags::MS_REC) | MsFlags::MS_REMOUNT;
        mount(None::<&str>, &target, None::<&str>, again, None::<&str>).map_err(fail)?;
    }
    if !propagation.is_empty() {
        mount(None::<&str>, &target, None::<&str>, propagation, None::<&str>).map_err(fail)?;
    }
    Ok(())
}

/// The place of a mount: the root file system itself, or below it.
fn target(rootfs: &Path, below: &str) -> Result<PathBuf, MountError> {
    let below = below.trim_start_matches('/');
    if below.split('/').any(|part| part == "..") {
        return Err(MountError::Outside(below.to_owned()));
    }
    Ok(if below.is_empty() { rootfs.to_owned() } else { rootfs.join(below) })
}

#[derive(Debug, PartialEq, Eq)]
struct Options<'a> {
    flags: MsFlags,
    data: Vec<&'a str>,
}

/// Divides options into those that are flags of mount(2) and those that the file system reads.
fn parse(options: &[String]) -> Options<'_> {
    let mut flags = MsFlags::empty();
    let mut data = Vec::new();
    for option in options {
        let (set, flag) = match option.as_str() {
            "ro" => (true, MsFlags::MS_RDONLY),
            "rw" => (false, MsFlags::MS_RDONLY),
            "nosuid" => (true, MsFlags::MS_NOSUID),
            "suid" => (false, MsFlags::MS_NOSUID),
            "nodev" => (true, MsFlags::MS_NODEV),
            "dev" => (false, MsFlags::MS_NODEV),
            "noexec" => (true, MsFlags::MS_NOEXEC),
            "exec" => (false, MsFlags::MS_NOEXEC),
            "sync" => (true, MsFlags::MS_SYNCHRONOUS),
            "async" => (false, MsFlags::MS_SYNCHRONOUS),
            "dirsync" => (true, MsFlags::MS_DIRSYNC),
            "remount" => (true, MsFlags::MS_REMOUNT),
            "noatime" => (true, MsFlags::MS_NOATIME),
            "atime" => (false, MsFlags::MS_NOATIME),
            "nodiratime" => (true, MsFlags::MS_NODIRATIME),
            "diratime" => (false, MsFlags::MS_NODIRATIME),
            "relatime" => (true, MsFlags::MS_RELATIME),
            "norelatime" => (false, MsFlags::MS_RELATIME),
            "strictatime" => (true, MsFlags::MS_STRICTATIME),
            "bind" => (true, MsFlags::MS_BIND),
            "rbind" => (true, MsFlags::MS_BIND.union(MsFlags::MS_REC)),
            "private" => (true, MsFlags::MS_PRIVATE),
            "rprivate" => (true, MsFlags::MS_PRIVATE.union(MsFlags::MS_REC)),
            "shared" => (true, MsFlags::MS_SHARED),
            "rshared" => (true, MsFlags::MS_SHARED.union(MsFlags::MS_REC)),
            "slave" => (true, MsFlags::MS_SLAVE),
            "rslave" => (true, MsFlags::MS_SLAVE.union(MsFlags::MS_REC)),
            "defaults" => continue,
            other => {
                data.push(other);
                continue;
            }
        };
        flags.set(flag, set);
    }
    Options { flags, data }
}

/// Makes overlay options fit into a page, by naming the lower directories relative to what they have in common.
fn shorten(data: &str) -> Result<(PathBuf, String), MountError> {
    let too_long = || MountError::TooLong(data.len());
    let lower = data.split(',').find_map(|option| option.strip_prefix("lowerdir=")).ok_or_else(too_long)?;
    let directories: Vec<&str> = lower.split(':').collect();
    let common = common_directory(&directories).ok_or_else(too_long)?;
    let prefix = format!("{common}/");
    let relative: Vec<&str> =
        directories.iter().map(|path| path.strip_prefix(&prefix).unwrap_or(path)).collect();
    let options = data.split(',').map(|option| match option.strip_prefix("lowerdir=") {
        Some(_) => format!("lowerdir={}", relative.join(":")),
        None => option.to_owned(),
    });
    let short = options.collect::<Vec<_>>().join(",");
    if short.len() > DATA_BYTES_MAX { Err(too_long()) } else { Ok((common.into(), short)) }
}

/// The longest directory that all of the absolute paths are below.
fn common_directory<'a>(paths: &[&'a str]) -> Option<&'a str> {
    let first = *paths.first()?;
    let mut end = first.rfind('/')?;
    while end > 0 {
        let candidate = first.get(..end)?;
        let below = |path: &&str| path.strip_prefix(candidate).is_some_and(|rest| rest.starts_with('/'));
        if paths.iter().all(below) {
            return Some(candidate);
        }
        end = candidate.rfind('/')?;
    }
    None
}

/// Runs something in another working directory. The shim has one thread, so nobody else sees it.
fn in_directory<T>(directory: &Path, run: impl FnOnce() -> Result<T, MountError>) -> Result<T, MountError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| MountError::Directory { path, source }
    };
    let before = env::current_dir().map_err(fail(Path::new(".")))?;
    env::set_current_dir(directory).map_err(fail(directory))?;
    let result = run();
    env::set_current_dir(&before).map_err(fail(&before))?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_flags_or_data_and_later_ones_win() {
        let options = ["ro", "rw", "nosuid", "lowerdir=/a:/b", "rbind", "volatile"].map(str::to_owned);
        let parsed = parse(&options);
        assert_eq!(parsed.flags, MsFlags::MS_NOSUID | MsFlags::MS_BIND | MsFlags::MS_REC);
        assert_eq!(parsed.data, ["lowerdir=/a:/b", "volatile"]);
    }

    #[test]
    fn long_overlays_are_named_relative_to_what_they_share() {
        let lower: Vec<String> = (0..120).map(|n| format!("/var/lib/containerd/snapshots/{n}/fs")).collect();
        let data = format!("workdir=/w,upperdir=/u,lowerdir={}", lower.join(":"));
        let (directory, short) = shorten(&data).unwrap();
        assert_eq!(directory, PathBuf::from("/var/lib/containerd/snapshots"));
        assert!(short.starts_with("workdir=/w,upperdir=/u,lowerdir=0/fs:1/fs:"), "{short}");
        let far: Vec<String> = (0..2000).map(|n| format!("/var/lib/containerd/snapshots/{n}/fs")).collect();
        assert!(matches!(shorten(&format!("lowerdir={}", far.join(":"))), Err(MountError::TooLong(_))));
        assert!(matches!(shorten(&"x".repeat(5000)), Err(MountError::TooLong(_))));
    }

    #[test]
    fn mounts_stay_below_the_root_file_system() {
        assert_eq!(target(Path::new("/b/rootfs"), "").unwrap(), PathBuf::from("/b/rootfs"));
        assert_eq!(target(Path::new("/b/rootfs"), "/data").unwrap(), PathBuf::from("/b/rootfs/data"));
        assert!(matches!(target(Path::new("/b/rootfs"), "a/../../x"), Err(MountError::Outside(_))));
    }
}
