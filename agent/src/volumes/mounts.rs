//! Mounts below a directory of a pod.

use std::{
    ffi::OsString,
    fs, io,
    os::{fd::AsRawFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, open, statx},
    mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount},
};

use super::error::{VolumeError, io_error};

/// Whether something is mounted at a path. A path that is not there is none.
pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Unmounts everything at or below a directory, and nothing elsewhere. The kernel's own list says what is mounted, so nothing in
/// the directory is walked; a mount that is in use goes when its last user does. The list knows no links, such as a root directory
/// may be.
///
/// # Errors
/// When the list cannot be read or a mount cannot be taken away.
pub fn unmount_below(dir: &Path) -> Result<(), VolumeError> {
    let Some(dir) = without_links(dir).map_err(io_error("look at", dir))? else { return Ok(()) };
    let list =
        fs::read("/proc/thread-self/mountinfo").map_err(io_error("read", "/proc/thread-self/mountinfo"))?;
    let points: Vec<PathBuf> = mount_points(&list).filter(|point| point.starts_with(&dir)).collect();
    for point in parents(&points) {
        match make_private(point) {
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(io_error("make private", point)(errno)),
        }
    }
    // Later mounts may cover earlier ones.
    for point in points.iter().rev() {
        match unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // It went together with another one.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(io_error("unmount", point)(errno)),
        }
    }
    Ok(())
}

/// Those of mount points that have others below them.
fn parents(points: &[PathBuf]) -> Vec<&Path> {
    let mut sorted: Vec<&Path> = points.iter().map(PathBuf::as_path).collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.windows(2).filter(|pair| pair[1].starts_with(pair[0])).map(|pair| pair[0]).collect()
}

/// Keeps to itself what is unmounted in a mount. A bind of a directory that the node shares would take it from the node too
/// (mount_namespaces(7), peer groups): `/sys/fs/cgroup` with a bind of `/sys`.
fn make_private(point: &Path) -> rustix::io::Result<()> {
    let here = open(point, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    mount_change(format!("/proc/thread-self/fd/{}", here.as_raw_fd()), MountPropagationFlags::PRIVATE)
}

/// Where a directory is, with no link on the way to it; none when there is no way.
fn without_links(dir: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return dir.canonicalize().map(Some);
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A mount, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountLine {
    /// Where it is.
    pub(super) point: PathBuf,
    /// What is mounted: the file system's device, and which directory of it.
    what: (Vec<u8>, Vec<u8>),
}

impl MountLine {
    /// Whether both show the same directory.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.what == other.what
    }
}

/// What is mounted, in the order in which it was.
pub(super) fn mounts() -> io::Result<Vec<MountLine>> {
    Ok(mount_lines(&fs::read("/proc/thread-self/mountinfo")?).collect())
}

fn mount_lines(list: &[u8]) -> impl Iterator<Item = MountLine> {
    list.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
        let point = PathBuf::from(OsString::from_vec(unescape(point)));
        Some(MountLine { point, what: (device.to_owned(), root.to_owned()) })
    })
}

/// The mount points of a `mountinfo` (proc(5)), with its octal escapes resolved.
fn mount_points(list: &[u8]) -> impl Iterator<Item = PathBuf> {
    list.split(|byte| *byte == b'\n').filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescape(field))))
    })
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = |byte: u8| (b'0'..=b'7').contains(&byte).then(|| byte - b'0');
        if let (b'\\', [a, b, c, after @ ..]) = (first, tail)
            && let (Some(a @ 0..=3), Some(b), Some(c)) = (octal(*a), octal(*b), octal(*c))
        {
            bytes.push(a << 6 | b << 3 | c);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::own_mounts::{tmpfs, with_own_mounts};

    #[test]
    fn mount_points_with_spaces_and_without() {
        let list = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            40 23 0:30 / /a\\040b\\134c rw - tmpfs tmpfs rw\nbroken\n41 23 0:28 /sub /s rw - tmpfs tmpfs rw\n\
            42 23 0:28 / /again rw - tmpfs tmpfs rw\n";
        let points: Vec<PathBuf> = mount_points(list).collect();
        assert_eq!(points, ["/sys/fs/cgroup", "/a b\\c", "/s", "/again"].map(PathBuf::from));
        let lines: Vec<MountLine> = mount_lines(list).collect();
        let same = [0, 1, 2, 3].map(|at| lines[0].is_same(&lines[at]));
        assert_eq!(same, [true, false, false, true], "{lines:?}");
        assert!(lines.iter().map(|line| &line.point).eq(&points));
    }

    #[test]
    fn the_root_is_a_mount_point_and_a_new_directory_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_mount_point(Path::new("/")).unwrap());
        assert!(!is_mount_point(dir.path()).unwrap());
        assert!(!is_mount_point(&dir.path().join("none")).unwrap());
    }

    #[test]
    fn mounts_with_others_below_them() {
        let points = ["/p/a", "/p/b/c", "/p/a", "/p/a-b", "/p/b", "/p/b/c/d", "/p/e"].map(PathBuf::from);
        assert_eq!(parents(&points), ["/p/b", "/p/b/c"].map(Path::new));
        assert_eq!(parents(&[]), [] as [&Path; 0]);
    }

    /// A part of a volume, or what a pod has bound in one for the node to see.
    #[test]
    fn what_is_mounted_in_a_bind_of_the_nodes_stays_with_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let (node, pod) = (dir.path().join("node"), dir.path().join("pods/u"));
        let (data, bound) = (node.join("sys/data"), pod.join("volume-subpaths/v/c/0"));
        fs::create_dir_all(&node).unwrap();
        fs::create_dir_all(&bound).unwrap();
        with_own_mounts(|| {
            tmpfs(dir.path());
            fs::create_dir_all(&node).unwrap();
            fs::create_dir_all(&bound).unwrap();
            tmpfs(&node);
            let shared = MsFlags::MS_REC | MsFlags::MS_SHARED;
            mount(None::<&str>, dir.path(), None::<&str>, shared, None::<&str>).unwrap();
            fs::create_dir_all(data.join("inner")).unwrap();
            tmpfs(&data);
            fs::create_dir(data.join("inner")).unwrap();
            tmpfs(&data.join("inner"));
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&node.join("sys")), &bound, None::<&str>, bind, None::<&str>).unwrap();
            assert!(is_mount_point(&bound.join("data/inner")).unwrap());
            unmount_below(&pod).unwrap();
            assert!(!is_mount_point(&bound).unwrap());
            for kept in [&data, &data.join("inner")] {
                assert!(is_mount_point(kept).unwrap(), "{}", kept.display());
            }
        });
    }

    /// As where `/var/lib/kubelet` is a link to another disk.
    #[test]
    fn what_is_mounted_below_a_root_that_is_a_link_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, link) = (dir.path().join("disk/pods/u/volumes/memory"), dir.path().join("root"));
        fs::create_dir_all(&volume).unwrap();
        symlink("disk", &link).unwrap();
        let pod = link.join("pods/u");
        with_own_mounts(|| {
            tmpfs(&volume);
            for _ in 0..2 {
                unmount_below(&pod).unwrap();
                assert!(!is_mount_point(&volume).unwrap());
            }
            super::super::remove_tree(&pod).unwrap();
            unmount_below(&pod).unwrap();
        });
        unmount_below(&dir.path().join("none/pods/u")).unwrap();
    }
}
