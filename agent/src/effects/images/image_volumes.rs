//! `VOLUME`s of images: a directory of its own per run, beginning with what the image has there.
//!
//! The image's path is opened with the image as root, and everything below it by descriptors that follow no link, so
//! nothing of the node is ever copied (CVE-2022-23648). The directory gets its name when it is complete.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, OsStr},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use berth_core::{failure::Failure, oci::ImageVolume, pod::retention::RunVolumes};
use containerd_client::types::Mount;
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, XattrFlags,
        chmodat, chownat, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, linkat, mkdirat, mknodat,
        open, openat, readlinkat, renameat_with, statat, symlinkat,
    },
    io::Errno,
};

use super::{
    failure::local,
    files::host_files,
    image_root::{open_in, with_root},
};
use crate::{absent::absent_is_fine, contained::open_within, volumes::remove_tree_in};

/// Longest list of names of extended attributes, and longest value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX` of Linux).
const ATTRIBUTES_MAX: usize = 64 << 10;

/// In a worker: makes the directories, where they are missing.
pub(in crate::effects) fn make(
    mounts: &[Mount],
    scratch: &str,
    volumes: &[ImageVolume],
) -> Result<(), Failure> {
    let missing: Vec<&ImageVolume> = volumes.iter().filter(|it| !Path::new(&it.target).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for volume in &missing {
        remove_unfinished(volume).map_err(local("remove what is left of", &volume.target))?;
        host_files::make_dir(unfinished(volume), 0o755)?;
    }
    with_root(mounts, scratch.as_ref(), |root| missing.iter().try_for_each(|volume| fill(root, volume)))
        .map_err(local("copy the image's volumes through", scratch))?;
    missing.into_iter().try_for_each(|volume| {
        give_name(&unfinished(volume), &volume.target).map_err(local("rename to", &volume.target))
    })
}

/// A name that no other process has: one that was given up may still be in its last call.
fn unfinished(volume: &ImageVolume) -> String {
    format!("{}.new-{}", volume.target, std::process::id())
}

/// Removes what earlier tries left.
fn remove_unfinished(volume: &ImageVolume) -> io::Result<()> {
    let target = Path::new(&volume.target);
    let (Some(dir), Some(name)) = (target.parent(), target.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let left = format!("{name}.new-");
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|found| found.starts_with(&left)) {
            // Whoever made it may be in its last call, which renames it.
            absent_is_fine(fs::remove_dir_all(entry.path()))?;
        }
    }
    Ok(())
}

/// In a worker: removes those of runs that are gone. What cannot be removed is in nobody's way.
pub(in crate::effects) fn remove(volumes: &RunVolumes) -> Result<(), Failure> {
    let at = Path::new(&volumes.dir);
    // A static pod that comes back has the same directory, and runs of the same names in it: this one stays the earlier pod's.
    match open(at, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(local("open", at)(errno.into())),
        Ok(dir) => remove_in(&dir, volumes),
    }
}

fn remove_in(dir: &OwnedFd, volumes: &RunVolumes) -> Result<(), Failure> {
    let at = Path::new(&volumes.dir);
    let names = names_in(dir).map_err(local("read", at))?;
    let removed = volumes
        .of(&names)
        .into_iter()
        .map(|name| remove_tree_in(dir, name.as_ref()).map_err(local("remove", at.join(name))));
    // One that cannot be removed keeps no other.
    removed.fold(Ok(()), Result::and)
}

fn names_in(dir: &OwnedFd) -> io::Result<BTreeSet<String>> {
    Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Gives a complete directory its name. One that is there was complete before, and may be in use.
fn give_name(from: &str, to: &str) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => fs::remove_dir_all(from),
        result => Ok(result?),
    }
}

fn fill(root: BorrowedFd<'_>, volume: &ImageVolume) -> io::Result<()> {
    let path = volume.image_path.trim_start_matches('/');
    let source = match open_in(root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(source) => source,
        // The image names a path that it does not have: the volume is empty.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let target =
        open(unfinished(volume), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Copy { source, target, links: BTreeMap::new() }.all()
}

/// A copy under way.
struct Copy {
    source: OwnedFd,
    target: OwnedFd,
    /// Where a file with several names was put first, by device and inode.
    links: BTreeMap<(u64, u64), PathBuf>,
}

impl Copy {
    /// One directory after another, so that a deep tree takes no more than a flat one.
    fn all(&mut self) -> io::Result<()> {
        let mut due = vec![PathBuf::from(".")];
        while let Some(at) = due.pop() {
            due.extend(self.dir(&at)?);
        }
        Ok(())
    }

    /// Copies a directory with its files, and makes the directories in it, whose turn comes later: which.
    fn dir(&mut self, at: &Path) -> io::Result<Vec<PathBuf>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let source = open_within(self.source.as_fd(), at, flags, resolve)?;
        let target = open_within(self.target.as_fd(), at, flags, resolve)?;
        let mut later = Vec::new();
        for entry in Dir::read_from(&source)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = statat(&source, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let path = at.join(OsStr::from_bytes(name.to_bytes()));
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                mkdirat(&target, name, Mode::RWXU)?;
                later.push(path);
            } else if !self.link(&target, name, &stat, &path)? {
                copy_file(&source, &target, name, &stat)?;
            }
        }
        // Only now: what is made in a directory takes from it.
        copy_attributes(&source, &target)?;
        own(&target, &fstat(&source)?)?;
        Ok(later)
    }

    /// Gives a file that was copied under another name this one too. Tells whether it was.
    fn link(&mut self, target: &OwnedFd, name: &CStr, stat: &Stat, at: &Path) -> io::Result<bool> {
        if stat.st_nlink < 2 {
            return Ok(false);
        }
        let file = (stat.st_dev, stat.st_ino);
        let Some(first) = self.links.get(&file) else {
            self.links.insert(file, at.to_owned());
            return Ok(false);
        };
        linkat(&self.target, first, target, name, AtFlags::empty())?;
        Ok(true)
    }
}

fn copy_file(source: &OwnedFd, target: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let from = openat(source, name, flags | OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
            let new = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let to = openat(target, name, new, Mode::RUSR | Mode::WUSR)?;
            let (mut from, mut to) = (fs::File::from(from), fs::File::from(to));
            io::copy(&mut from, &mut to)?;
            // A change of owner takes a file's capabilities away.
            own(&to, stat)?;
            copy_attributes(&from, &to)
        }
        FileType::Symlink => {
            symlinkat(readlinkat(source, name, Vec::new())?, target, name)?;
            chownat(target, name, Some(uid(stat)), Some(gid(stat)), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(())
        }
        kind @ (FileType::Fifo | FileType::Socket) => {
            mknodat(target, name, kind, Mode::from_raw_mode(stat.st_mode), 0)?;
            chownat(target, name, Some(uid(stat)), Some(gid(stat)), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(chmodat(target, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?)
        }
        // Devices of an image are not given to containers.
        FileType::Directory | FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => Ok(()),
    }
}

/// Copies extended attributes, capabilities of files among them. Those that the volume's file system does not take are
/// left out, as containerd does (`copyExistingContents` of `internal/cri/opts/container.go`), and so are the SELinux label, which is the pod's
/// to have, and the snapshotter's own.
fn copy_attributes(source: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let mut names = vec![0; ATTRIBUTES_MAX];
    let length = match flistxattr(&source, &mut names) {
        Err(Errno::NOTSUP) => return Ok(()),
        length => length?,
    };
    let mut value = vec![0; ATTRIBUTES_MAX];
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if name == c"security.selinux" || name.to_bytes().starts_with(b"trusted.overlay.") {
            continue;
        }
        let length = fgetxattr(&source, name, &mut value)?;
        match fsetxattr(&target, name, &value[..length], XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn own(file: impl AsFd, stat: &Stat) -> io::Result<()> {
    fchown(&file, Some(uid(stat)), Some(gid(stat)))?;
    Ok(fchmod(&file, Mode::from_raw_mode(stat.st_mode))?)
}

fn uid(stat: &Stat) -> Uid {
    Uid::from_raw(stat.st_uid)
}

fn gid(stat: &Stat) -> Gid {
    Gid::from_raw(stat.st_gid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use berth_core::{
        id::{ContainerId, ContainerName, PodUid},
        paths,
    };

    use super::*;
    use crate::{
        own_mounts::{tmpfs, with_own_mounts},
        volumes::remove_tree,
    };

    /// Where `VOLUME` of the image in `dir/image` was copied to, and whether it could be.
    fn copied(dir: &Path, image_path: &str) -> (PathBuf, io::Result<()>) {
        let target = dir.join("volume").display().to_string();
        let volume = ImageVolume { target, image_path: image_path.to_owned() };
        let made = PathBuf::from(unfinished(&volume));
        fs::create_dir_all(&made).unwrap();
        let root = fs::File::open(dir.join("image")).unwrap();
        (made, fill(root.as_fd(), &volume))
    }

    #[test]
    fn a_volume_is_what_the_image_has_there() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("image/var/data");
        fs::create_dir_all(data.join("sub")).unwrap();
        fs::write(data.join("sub/file"), "content").unwrap();
        chown(data.join("sub/file"), Some(7), Some(8)).unwrap();
        fs::set_permissions(data.join("sub/file"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(data.join("sub/file"), data.join("other")).unwrap();
        let file = fs::File::open(data.join("sub/file")).unwrap();
        // `cap_net_bind_service=ep`, as `setcap` writes it.
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        fsetxattr(&file, c"security.capability", &capability, XattrFlags::empty()).unwrap();
        fsetxattr(&file, c"security.selinux", b"a:b:c", XattrFlags::empty()).unwrap();
        symlink("/etc/shadow", data.join("link")).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o1777)).unwrap();

        let (made, done) = copied(dir.path(), "/var/data");
        done.unwrap();
        let file = fs::metadata(made.join("sub/file")).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (7, 8, 0o4755));
        assert_eq!(fs::read_to_string(made.join("sub/file")).unwrap(), "content");
        assert_eq!((file.nlink(), file.ino()), (2, fs::metadata(made.join("other")).unwrap().ino()));
        let mut value = [0; 20];
        let length =
            fgetxattr(fs::File::open(made.join("other")).unwrap(), c"security.capability", &mut value)
                .unwrap();
        assert_eq!(value[..length], capability);
        let labelled =
            fgetxattr(fs::File::open(made.join("other")).unwrap(), c"security.selinux", &mut value);
        assert_eq!(labelled, Err(Errno::NODATA));
        assert_eq!(fs::read_link(made.join("link")).unwrap(), Path::new("/etc/shadow"));
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o7777, 0o1777);
    }

    /// Deeper than a thread has stack or a process files for.
    #[test]
    fn a_volume_is_as_deep_as_a_path_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("image/data");
        let deep: PathBuf = std::iter::repeat_n("d", 1200).collect();
        fs::create_dir_all(data.join(&deep)).unwrap();
        fs::write(data.join(&deep).join("file"), "content").unwrap();
        fs::set_permissions(data.join("d"), fs::Permissions::from_mode(0o2501)).unwrap();
        let (made, done) = copied(dir.path(), "/data");
        done.unwrap();
        assert_eq!(fs::read_to_string(made.join(&deep).join("file")).unwrap(), "content");
        assert_eq!(fs::metadata(made.join("d")).unwrap().mode() & 0o7777, 0o2501);
        remove_tree(&made).unwrap();
        remove_tree(&data).unwrap();
    }

    #[test]
    fn a_directory_that_is_there_is_not_replaced_and_what_earlier_tries_left_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let volume = ImageVolume { target: at("volume"), image_path: "/data".to_owned() };
        fs::create_dir_all(at("volume.new-1/half")).unwrap();
        fs::create_dir(at("volume.newer")).unwrap();
        remove_unfinished(&volume).unwrap();
        assert!(!Path::new(&at("volume.new-1")).exists() && Path::new(&at("volume.newer")).exists());

        fs::create_dir_all(at("volume/used")).unwrap();
        fs::create_dir(unfinished(&volume)).unwrap();
        give_name(&unfinished(&volume), &volume.target).unwrap();
        assert!(Path::new(&at("volume/used")).exists());
        assert!(!Path::new(&unfinished(&volume)).exists());
    }

    #[test]
    fn those_of_runs_that_are_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (uid, container) = (PodUid::new("1-a"), ContainerName::new("main"));
        let of = |run| dir.path().join(paths::image_volumes(&ContainerId::of(&uid, &container, run)));
        (0..4).for_each(|run| fs::create_dir_all(of(run).join("0/data")).unwrap());
        fs::create_dir(dir.path().join("1.new-7")).unwrap();
        fs::create_dir(of(0).join("0.new-7")).unwrap();
        let text = dir.path().display().to_string();
        let volumes = |dir: &str| RunVolumes {
            uid: uid.clone(),
            container: container.clone(),
            last: 1,
            dir: dir.to_owned(),
        };
        remove(&volumes(&text)).unwrap();
        remove(&volumes(&format!("{text}/none"))).unwrap();
        assert_eq!([0, 1, 2, 3].map(|run| of(run).exists()), [false, false, true, true]);
        assert!(of(2).join("0/data").exists() && dir.path().join("1.new-7").exists());

        // What is mounted in the first one stays.
        fs::create_dir_all(of(0).join("held")).unwrap();
        fs::create_dir_all(of(1).join("0")).unwrap();
        with_own_mounts(|| {
            tmpfs(&of(0).join("held"));
            remove(&volumes(&text)).unwrap_err();
        });
        assert_eq!([0, 1].map(|run| of(run).exists()), [true, false]);
    }

    /// A static pod that comes back has the same directory and runs of the same names.
    #[test]
    fn a_removal_that_outlives_its_pod_leaves_the_next_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (uid, container) = (PodUid::new("1-a"), ContainerName::new("main"));
        let name = paths::image_volumes(&ContainerId::of(&uid, &container, 0));
        let (at, gone) = (dir.path().join("pod"), dir.path().join("gone"));
        fs::create_dir_all(at.join(&name).join("0")).unwrap();
        let opened = OwnedFd::from(fs::File::open(&at).unwrap());
        fs::rename(&at, &gone).unwrap();
        fs::create_dir_all(at.join(&name).join("0")).unwrap();
        let volumes = RunVolumes { uid, container, last: 0, dir: at.display().to_string() };
        remove_in(&opened, &volumes).unwrap();
        assert!(at.join(&name).join("0").exists() && !gone.join(&name).exists());
    }

    #[test]
    fn cve_2022_23648_a_volume_path_that_is_a_link_stays_in_the_image() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("image")).unwrap();
        fs::create_dir_all(dir.path().join("host")).unwrap();
        fs::write(dir.path().join("host/secret"), "").unwrap();
        symlink("../host", dir.path().join("image/data")).unwrap();
        symlink(dir.path().join("host"), dir.path().join("image/data2")).unwrap();
        for image_path in ["/data", "/data2", "/../host", "/data/../../host"] {
            let (made, _) = copied(dir.path(), image_path);
            assert_eq!(fs::read_dir(made).unwrap().count(), 0, "{image_path}");
        }
    }
}
