//! Directories that live as long as their pod. Source: `pkg/volume/emptydir/empty_dir.go`.

use std::{
    fs,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::Path,
};

use berth_core::pod::port::volume::Backing;
use nix::mount::{MsFlags, mount};
use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, chmod, chownat, fstat, open, openat},
    io::Errno,
};

use super::{
    error::{VolumeError, io_error},
    mounts::is_mount_point,
};

/// Everybody may use the volume of a pod that everybody in is trusted alike.
const MODE: u32 = 0o777;

/// Mode of a directory that is being made.
const MODE_UNFINISHED: u32 = 0o750;

/// What the owner and the group of a volume get of a directory: read, write, search, and its group for new files
/// (`pkg/volume/volume_linux.go`).
const DIRECTORY_BITS: u32 = 0o2770;

/// What they get of a file.
const FILE_BITS: u32 = 0o660;

/// Deepest tree that is given to a group: directories on the way are held open. A deeper one, which only a pod makes that has run
/// before its volume was given whole, is an error.
const DEPTH_MAX: usize = 256;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyDir {
    /// What it is kept in.
    pub backing: Backing,
    /// Group that is to own it.
    pub fs_group: Option<u32>,
}

/// Makes the directory, mounts it when it is not to be on the disk, and gives it to the group. The `mark` says that it was made
/// whole: what the pod does to it then is its own.
///
/// # Errors
/// When a call fails.
pub fn ensure(path: &Path, mark: &Path, request: &EmptyDir) -> Result<(), VolumeError> {
    let mounted = is_mount_point(path).map_err(io_error("look at", path))?;
    let is_there = match request.backing {
        Backing::Disk => path.exists(),
        Backing::Memory { .. } | Backing::HugePages { .. } => mounted,
    };
    if is_there && mark.exists() {
        return Ok(());
    }
    unset(mark)?;
    let is_unfinished = is_unfinished(path);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(MODE_UNFINISHED)
        .create(path)
        .map_err(io_error("create directory", path))?;
    if is_unfinished {
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))
            .map_err(io_error("set the mode of", path))?;
    }
    match request.backing {
        Backing::Memory { size_bytes_max } if !mounted => mount_tmpfs(path, size_bytes_max)?,
        Backing::HugePages { page_bytes } if !mounted => mount_huge_pages(path, page_bytes)?,
        Backing::Disk | Backing::Memory { .. } | Backing::HugePages { .. } => {}
    }
    if let Some(group) = request.fs_group {
        give_to_group(path, group)?;
    }
    set(mark)
}

/// Whether nothing is there, or what a kill left between the creation of the directory and the change of its mode. One
/// that a version without marks made has another mode, or the pod's own.
fn is_unfinished(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) => found.permissions().mode() & 0o7777 == MODE_UNFINISHED,
        Err(_) => true,
    }
}

/// Source: `SetReady` of `pkg/volume/util/util.go`.
pub(super) fn set(mark: &Path) -> Result<(), VolumeError> {
    if let Some(dir) = mark.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(dir);
        made.map_err(io_error("create directory", dir))?;
    }
    fs::write(mark, "").map_err(io_error("write", mark))
}

/// What is made again is not whole until it is made.
pub(super) fn unset(mark: &Path) -> Result<(), VolumeError> {
    match fs::remove_file(mark) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("remove", mark)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Memory that is never swapped out where the kernel can promise that (6.3), since secrets may be in it.
fn mount_tmpfs(path: &Path, size: Option<u64>) -> Result<(), VolumeError> {
    let size = size.map(|bytes| format!("size={bytes}"));
    let options = |extra: Option<&str>| {
        let parts: Vec<&str> = size.as_deref().into_iter().chain(extra).collect();
        parts.join(",")
    };
    let try_mount =
        |options: &str| mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options));
    match try_mount(&options(Some("noswap"))) {
        Err(nix::Error::EINVAL) => try_mount(&options(None)),
        result => result,
    }
    .map_err(io_error("mount a tmpfs on", path))
}

/// With the mode that the kernel gives it, as upstream: root's alone to write, unless it is given to a group.
fn mount_huge_pages(path: &Path, page_bytes: u64) -> Result<(), VolumeError> {
    let options = format!("pagesize={page_bytes}");
    mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(io_error("mount huge pages on", path))
}

pub(super) fn give_to_group(path: &Path, group: u32) -> Result<(), VolumeError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
        .map_err(std::io::Error::from)
        .and_then(|root| give_tree(&root, Gid::from_raw(group), DEPTH_MAX))
        .map_err(io_error("give to the pod's fsGroup", path))
}

/// By descriptors that follow no link: a pod that is already running may change the tree meanwhile. Nothing but directories
/// is opened, since opening a device does something.
fn give_tree(dir: &OwnedFd, group: Gid, depth: usize) -> std::io::Result<()> {
    let Some(below) = depth.checked_sub(1) else {
        return Err(std::io::Error::other(format!("it is deeper than {DEPTH_MAX} directories")));
    };
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(dir, entry.file_name(), flags, Mode::empty()) {
            Ok(found) => give_entry(&found, group, below)?,
            // Gone meanwhile.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    give(dir, group, DIRECTORY_BITS)
}

fn give_entry(found: &OwnedFd, group: Gid, depth: usize) -> std::io::Result<()> {
    match FileType::from_raw_mode(fstat(found)?.st_mode) {
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match openat(found, c".", flags, Mode::empty()) {
                Ok(dir) => give_tree(&dir, group, depth),
                Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        }
        FileType::Symlink => give(found, group, 0),
        _ => give(found, group, FILE_BITS),
    }
}

/// Gives what may be open as no more than a path, unless it is given. What cannot be given stays as it is (`changeFilePermission` of
/// `pkg/volume/volume_linux.go`): its file system has no owners, is read-only, or forbids it for a file.
fn give(file: impl AsFd, group: Gid, bits: u32) -> std::io::Result<()> {
    let file = file.as_fd();
    let found = fstat(file)?;
    let mode = found.st_mode & 0o7777;
    if found.st_gid == group.as_raw() && mode & bits == bits {
        return Ok(());
    }
    let _stays = chownat(file, c"", None, Some(group), AtFlags::EMPTY_PATH);
    if !FileType::from_raw_mode(found.st_mode).is_symlink() {
        // Also what a file loses with its owner, the bits by which it changes users.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let _stays = chmod(path, Mode::from_raw_mode(mode | bits));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::MetadataExt,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use inotify::{Inotify, WatchMask};

    use super::*;
    use crate::own_mounts::with_own_mounts;

    /// statfs(2).
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

    const DISK: EmptyDir = EmptyDir { backing: Backing::Disk, fs_group: None };

    fn mode_and_group(path: &Path) -> (u32, u32) {
        let metadata = fs::metadata(path).unwrap();
        (metadata.mode() & 0o7777, metadata.gid())
    }

    #[test]
    fn a_disk_volume_is_open_to_all_and_keeps_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volumes/kubernetes.io~empty-dir/data");
        ensure(&path, &dir.path().join("meta/ready"), &DISK).unwrap();
        assert_eq!(mode_and_group(&path).0, 0o777);
        fs::write(path.join("file"), "kept").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        ensure(&path, &dir.path().join("meta/ready"), &DISK).unwrap();
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "kept");
        assert_eq!(mode_and_group(&path).0, 0o700, "what the pod set is not changed back");
    }

    /// A kill between the two would leave a volume that only root can use.
    #[test]
    fn what_a_kill_left_half_made_is_finished_and_what_was_made_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("data"), dir.path().join("meta/ready"));
        fs::DirBuilder::new().mode(0o750).create(&path).unwrap();
        ensure(&path, &mark, &DISK).unwrap();
        assert_eq!(mode_and_group(&path).0, 0o777);
        assert!(mark.exists());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        ensure(&path, &mark, &DISK).unwrap();
        assert_eq!(mode_and_group(&path).0, 0o750, "the pod's own mode");
        fs::remove_dir(&path).unwrap();
        ensure(&path, &mark, &DISK).unwrap();
        assert_eq!(mode_and_group(&path).0, 0o777, "made anew");
    }

    #[test]
    fn a_group_owns_everything_but_what_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let outside = dir.path().join("outside");
        fs::write(&outside, "").unwrap();
        fs::create_dir_all(path.join("sub")).unwrap();
        fs::write(path.join("sub/file"), "").unwrap();
        for (path, mode) in [(&path, 0o777), (&path.join("sub"), 0o500), (&path.join("sub/file"), 0o404)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, path.join("link")).unwrap();
        ensure(&path, &dir.path().join("meta/ready"), &EmptyDir { fs_group: Some(4242), ..DISK }).unwrap();
        assert_eq!(mode_and_group(&path), (0o2777, 4242));
        assert_eq!(mode_and_group(&path.join("sub")), (0o2770, 4242));
        assert_eq!(mode_and_group(&path.join("sub/file")), (0o664, 4242));
        assert_eq!(mode_and_group(&outside).1, 0);
    }

    /// A file that nobody may change, and a file system that is read-only.
    #[test]
    fn what_cannot_be_given_to_a_group_stays_and_what_is_given_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let owned = EmptyDir { fs_group: Some(4242), ..DISK };
        fs::create_dir(&path).unwrap();
        for name in ["given", "stays", "suid"] {
            fs::write(path.join(name), "").unwrap();
        }
        std::os::unix::fs::chown(path.join("given"), None, Some(4242)).unwrap();
        fs::set_permissions(path.join("given"), fs::Permissions::from_mode(0o664)).unwrap();
        fs::set_permissions(path.join("suid"), fs::Permissions::from_mode(0o4755)).unwrap();
        let changed =
            |name: &str| fs::metadata(path.join(name)).map(|it| (it.ctime(), it.ctime_nsec())).unwrap();
        let before = changed("given");
        with_own_mounts(|| {
            let stays = path.join("stays");
            let bind = |flags| mount(Some(&stays), &stays, None::<&str>, flags, None::<&str>).unwrap();
            bind(MsFlags::MS_BIND);
            bind(MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
            ensure(&path, &dir.path().join("meta/ready"), &owned).unwrap();
        });
        assert_eq!(changed("given"), before);
        assert_eq!(mode_and_group(&path.join("stays")), (0o644, 0));
        assert_eq!(mode_and_group(&path.join("suid")), (0o4775, 4242));
        assert_eq!(mode_and_group(&path), (0o2775, 4242));
    }

    #[test]
    fn a_tree_that_is_too_deep_for_a_group_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("data"), dir.path().join("meta/ready"));
        let owned = EmptyDir { fs_group: Some(4242), ..DISK };
        let deepest = path.join("d/".repeat(DEPTH_MAX - 1));
        fs::create_dir_all(&deepest).unwrap();
        ensure(&path, &mark, &owned).unwrap();
        assert_eq!(mode_and_group(&deepest).1, 4242);

        fs::remove_file(&mark).unwrap();
        fs::create_dir(deepest.join("d")).unwrap();
        let error = ensure(&path, &mark, &owned).unwrap_err();
        assert!(crate::causes::with_causes(&error).contains("deeper than 256 directories"), "{error:?}");
        assert!(!mark.exists());
    }

    #[test]
    fn a_group_gets_a_volume_once_and_also_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("data"), dir.path().join("meta/ready"));
        let owned = EmptyDir { fs_group: Some(4242), ..DISK };
        // As a kill left it, before it was the group's.
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(MODE)).unwrap();
        ensure(&path, &mark, &owned).unwrap();
        assert_eq!(mode_and_group(&path), (0o2777, 4242));
        // What the pod does to its files is its own.
        fs::write(path.join("secret"), "").unwrap();
        std::os::unix::fs::chown(path.join("secret"), None, Some(1)).unwrap();
        fs::set_permissions(path.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        ensure(&path, &mark, &owned).unwrap();
        assert_eq!(mode_and_group(&path.join("secret")), (0o600, 1));
        // Gone behind the agent.
        fs::remove_dir_all(&path).unwrap();
        ensure(&path, &mark, &owned).unwrap();
        assert_eq!((mode_and_group(&path), mark.exists()), ((0o2777, 4242), true));
    }

    #[test]
    fn what_cannot_be_made_again_is_not_marked() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("data"), dir.path().join("meta/ready"));
        ensure(&path, &mark, &DISK).unwrap();
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        ensure(&path, &mark, &DISK).unwrap_err();
        assert!(!mark.exists());
        fs::remove_file(&path).unwrap();
        fs::DirBuilder::new().mode(MODE_UNFINISHED).create(&path).unwrap();
        ensure(&path, &mark, &DISK).unwrap();
        assert_eq!(mode_and_group(&path).0, 0o777, "a kill was between the two");
    }

    #[test]
    fn what_is_in_a_volume_of_a_group_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::create_dir_all(path.join("sub")).unwrap();
        fs::write(path.join("sub/file"), "").unwrap();
        nix::unistd::mkfifo(&path.join("sub/fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let mut opened = Inotify::init().unwrap();
        for name in ["sub/file", "sub/fifo"] {
            opened.watches().add(path.join(name), WatchMask::OPEN).unwrap();
        }
        give_to_group(&path, 4242).unwrap();
        assert_eq!(mode_and_group(&path.join("sub/file")), (0o664, 4242));
        assert_eq!(mode_and_group(&path.join("sub/fifo")), (0o660, 4242));
        let none = opened.read_events(&mut [0; 1024]).map(Iterator::count);
        assert_eq!(none.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_goes_while_a_volume_is_given_to_a_group_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::create_dir(&path).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for number in 0..50 {
                        fs::create_dir(path.join(format!("dir{number}"))).unwrap();
                        fs::write(path.join(format!("file{number}")), "").unwrap();
                    }
                    for number in 0..50 {
                        fs::remove_dir(path.join(format!("dir{number}"))).unwrap();
                        fs::remove_file(path.join(format!("file{number}"))).unwrap();
                    }
                }
            });
            let all: Result<(), VolumeError> = (0..2000).try_for_each(|_| give_to_group(&path, 4242));
            done.store(true, Ordering::Relaxed);
            all.unwrap();
        });
    }

    #[test]
    fn a_memory_volume_is_mounted_once_with_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let memory = EmptyDir { backing: Backing::Memory { size_bytes_max: Some(1 << 20) }, ..DISK };
        with_own_mounts(|| {
            ensure(&path, &dir.path().join("meta/ready"), &memory).unwrap();
            fs::write(path.join("file"), "kept").unwrap();
            ensure(&path, &dir.path().join("meta/ready"), &memory).unwrap();
            assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "kept");
            assert_eq!(mode_and_group(&path).0, 0o1777, "a tmpfs says its own");
            let found = rustix::fs::statvfs(&path).unwrap();
            assert_eq!(found.f_blocks * found.f_frsize, 1 << 20);
            let (other, flags) = (dir.path().join("other"), MsFlags::empty());
            fs::create_dir(&other).unwrap();
            let has_noswap = mount(None::<&str>, &other, Some("tmpfs"), flags, Some("noswap")).is_ok();
            let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let ends = format!(" {} ", path.display());
            let line = table.lines().find(|line| line.contains(&ends)).unwrap();
            assert_eq!(line.split([' ', ',']).any(|option| option == "noswap"), has_noswap, "{line}");
            super::super::unmount_below(dir.path()).unwrap();
            assert!(!is_mount_point(&path).unwrap());
        });
    }
    #[test]
    fn huge_pages_are_mounted_once_with_their_size_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("data"), dir.path().join("meta/ready"));
        let of = |page_bytes| EmptyDir { backing: Backing::HugePages { page_bytes }, fs_group: Some(4242) };
        with_own_mounts(|| {
            for _ in 0..2 {
                ensure(&path, &mark, &of(2 << 20)).unwrap();
                let found = rustix::fs::statfs(&path).unwrap();
                assert_eq!((found.f_type, found.f_bsize), (HUGETLBFS_MAGIC, 2 << 20));
                assert_eq!(mode_and_group(&path), (0o2775, 4242));
            }
            super::super::unmount_below(dir.path()).unwrap();
            assert!(!is_mount_point(&path).unwrap(), "mounted once");
            ensure(&path, &mark, &of(3)).unwrap_err();
            assert!(!mark.exists());
        });
    }
}
