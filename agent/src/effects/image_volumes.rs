//! `VOLUME`s of images: a directory of its own per run, beginning with what the image has there.
//!
//! The image's path is opened with the image as root, and everything below it by descriptors that follow no link, so
//! nothing of the node is ever copied (CVE-2022-23648). The directory gets its name when it is complete.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use berth_core::{effect::ImageVolume, event::Failure};
use containerd_client::types::Mount;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, fchmod, fchown, fstat, mkdirat,
    mknodat, open, openat, readlinkat, statat, symlinkat,
};

use super::{
    failure::local,
    host::Host,
    host_files,
    image_root::{open_in, with_root},
};

/// Deepest tree that is copied.
const DEPTH_MAX: usize = 64;

/// Most files that are copied into one volume.
const FILES_MAX: usize = 1_000_000;

/// Makes the directories, where they are missing.
pub(super) fn make(host: &Host, mounts: &[Mount], volumes: &[ImageVolume]) -> Result<(), Failure> {
    let missing: Vec<&ImageVolume> = volumes.iter().filter(|it| !Path::new(&it.target).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for volume in &missing {
        let new = unfinished(volume);
        host_files::absent_is_fine(fs::remove_dir_all(&new)).map_err(local("remove", &new))?;
        host_files::make_dir(&new, 0o755)?;
    }
    let scratch = format!("{}/image", host.node().paths.run);
    with_root(mounts, scratch.as_ref(), |root| missing.iter().try_for_each(|volume| fill(root, volume)))
        .map_err(local("copy the image's volumes through", &scratch))?;
    for volume in missing {
        fs::rename(unfinished(volume), &volume.target).map_err(local("rename to", &volume.target))?;
    }
    Ok(())
}

fn unfinished(volume: &ImageVolume) -> String {
    format!("{}.new", volume.target)
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
    let mut left = FILES_MAX;
    copy_dir(&source, &target, DEPTH_MAX, &mut left)
}

fn copy_dir(source: &OwnedFd, target: &OwnedFd, depth: usize, left: &mut usize) -> io::Result<()> {
    let stat = fstat(source)?;
    if depth == 0 {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    for entry in Dir::read_from(source)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        *left = left.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        let stat = statat(source, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                mkdirat(target, name, Mode::RWXU)?;
                let from = openat(source, name, flags | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
                let to = openat(target, name, flags | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
                copy_dir(&from, &to, depth - 1, left)?;
            }
            FileType::RegularFile => {
                let from = openat(source, name, flags | OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
                let new = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let to = openat(target, name, new, Mode::RUSR | Mode::WUSR)?;
                own(&to, &stat)?;
                io::copy(&mut fs::File::from(from), &mut fs::File::from(to))?;
            }
            FileType::Symlink => {
                symlinkat(readlinkat(source, name, Vec::new())?, target, name)?;
                chownat(target, name, Some(uid(&stat)), Some(gid(&stat)), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            FileType::Fifo | FileType::Socket => {
                let kind = FileType::from_raw_mode(stat.st_mode);
                mknodat(target, name, kind, Mode::from_raw_mode(stat.st_mode), 0)?;
                chownat(target, name, Some(uid(&stat)), Some(gid(&stat)), AtFlags::SYMLINK_NOFOLLOW)?;
                chmodat(target, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
            }
            // Devices of an image are not given to containers.
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {}
        }
    }
    own(target, &stat)
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

    use super::*;

    #[test]
    fn a_volume_is_what_the_image_has_there() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("image/var/data");
        fs::create_dir_all(data.join("sub")).unwrap();
        fs::write(data.join("sub/file"), "content").unwrap();
        chown(data.join("sub/file"), Some(7), Some(8)).unwrap();
        fs::set_permissions(data.join("sub/file"), fs::Permissions::from_mode(0o4755)).unwrap();
        symlink("/etc/shadow", data.join("link")).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o1777)).unwrap();

        let volume = ImageVolume {
            target: dir.path().join("volume").display().to_string(),
            image_path: "/var/data".to_owned(),
        };
        fs::create_dir(unfinished(&volume)).unwrap();
        let root = fs::File::open(dir.path().join("image")).unwrap();
        fill(root.as_fd(), &volume).unwrap();

        let made = std::path::PathBuf::from(unfinished(&volume));
        let file = fs::metadata(made.join("sub/file")).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (7, 8, 0o4755));
        assert_eq!(fs::read_to_string(made.join("sub/file")).unwrap(), "content");
        assert_eq!(fs::read_link(made.join("link")).unwrap(), Path::new("/etc/shadow"));
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o7777, 0o1777);
    }

    #[test]
    fn cve_2022_23648_a_volume_path_that_is_a_link_stays_in_the_image() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("image")).unwrap();
        fs::create_dir_all(dir.path().join("host")).unwrap();
        fs::write(dir.path().join("host/secret"), "").unwrap();
        symlink("../host", dir.path().join("image/data")).unwrap();
        symlink(dir.path().join("host"), dir.path().join("image/data2")).unwrap();
        let root = fs::File::open(dir.path().join("image")).unwrap();
        for image_path in ["/data", "/data2", "/../host", "/data/../../host"] {
            let volume = ImageVolume {
                target: dir.path().join("volume").display().to_string(),
                image_path: image_path.to_owned(),
            };
            fs::create_dir_all(unfinished(&volume)).unwrap();
            drop(fill(root.as_fd(), &volume));
            assert_eq!(fs::read_dir(unfinished(&volume)).unwrap().count(), 0, "{image_path}");
        }
    }
}
