//! The end of mounts.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use super::activation::{LAYERS, ROOTFS};

/// Unmounts tried for one path.
const STACKED_MAX: usize = 64;

/// Unmounts everything that a container's bundle has mounted, from the bundle alone: the process that mounted it may be
/// gone. The place of the root file system goes too.
pub(crate) fn unmount_bundle(bundle: &Path) {
    let rootfs = bundle.join(ROOTFS);
    let was_mounted = unmount_all(&rootfs);
    if !remove_place(&rootfs) && !was_mounted {
        // A container without a mount namespace leaves its mounts to the node, and nothing that holds them together.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for point in points_below(&table, &rootfs).iter().rev() {
            unmount_all(point);
        }
    }
    unmount_layers(bundle);
}

/// Removes a directory, unless something is in it or mounted there; returns whether it is gone. Then no mount is at it or below, and
/// nobody has to look for one among all mounts of the node, as containerd does when it deletes a bundle that has the place of a root
/// file system (`UnmountRecursive` of `core/mount/mount_unix.go`). One that is not there it takes for removed.
fn remove_place(place: &Path) -> bool {
    fs::remove_dir(place).map_or_else(|error| error.kind() == ErrorKind::NotFound, |()| true)
}

/// The mount points below a directory, those above before those below them (`proc_pid_mountinfo(5)`).
fn points_below(table: &str, top: &Path) -> Vec<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    points.filter(|point| point.starts_with(top)).collect()
}

/// The kernel writes space, tab, line end and backslash as three octal digits after a backslash.
fn unescape(text: &str) -> PathBuf {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", r"\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
        .into()
}

/// Takes the mounts away that only served others.
pub(super) fn unmount_layers(bundle: &Path) {
    let layers = bundle.join(LAYERS);
    unmount_all(&layers);
    // Absent, unless a root file system of several mounts was begun.
    let _absent = fs::remove_dir(layers).is_err();
}

/// Unmounts everything on a path: lazily, and with what is below, where it is in use. A path that is no mount is left
/// alone; returns whether it was one.
pub(crate) fn unmount_all(path: &Path) -> bool {
    let lazily = MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH;
    let unmount = |flags| umount2(path, flags).is_ok();
    let unmounted = (0..STACKED_MAX).take_while(|_| unmount(MntFlags::UMOUNT_NOFOLLOW) || unmount(lazily));
    unmounted.count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_root_goes_unless_something_is_in_it() {
        let bundle = tempfile::tempdir().unwrap();
        let place = bundle.path().join(ROOTFS);
        fs::create_dir_all(place.join("etc")).unwrap();
        unmount_bundle(bundle.path());
        assert!(place.join("etc").exists(), "a client's own");
        assert!(!remove_place(&place));
        fs::remove_dir(place.join("etc")).unwrap();
        for _again in 0..2 {
            unmount_bundle(bundle.path());
            assert!(!place.exists());
            assert!(remove_place(&place), "it is gone");
        }
        std::os::unix::fs::symlink(bundle.path(), &place).unwrap();
        unmount_bundle(bundle.path());
        assert!(place.is_symlink(), "no place that was made");
    }

    #[test]
    fn mounts_below_a_directory_are_found_whatever_their_names() {
        let table = r"30 1 0:26 / /b/rootfs/proc rw - proc proc rw
31 30 0:27 / /b/rootfs/dev\040x rw shared:9 - tmpfs tmpfs rw
32 31 0:28 / /b/rootfs/dev\040x/a\134040 rw - tmpfs tmpfs rw
33 1 0:29 / /b/rootfs2 rw - tmpfs tmpfs rw
short";
        let found = points_below(table, Path::new("/b/rootfs"));
        let expected = ["/b/rootfs/proc", "/b/rootfs/dev x", r"/b/rootfs/dev x/a\040"].map(PathBuf::from);
        assert_eq!(found, expected);
    }
}
