//! Files and directories that the agent makes below directories of its own. No part of these paths is a pod's to choose
//! (`berth_core::paths` sees to that), and no container can write to the directories they are in.

use std::{
    fs,
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown},
    path::Path,
};

use berth_core::{
    failure::Failure,
    oci::{ExistingFile, HostFile},
};
use nix::fcntl::OFlag;
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use super::failure::local;
use crate::absent::absent_is_fine;

/// Makes a directory and those above it. Those that are made get `mode`, whatever the umask.
pub(in crate::effects) fn make_dir(path: impl AsRef<Path>, mode: u32) -> Result<(), Failure> {
    let path = path.as_ref();
    let make = || {
        if path.is_dir() {
            return Ok(());
        }
        fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    make().map_err(local("create directory", path))
}

/// Writes a file. A new one appears by rename, so that it is there whole or not at all; one that is replaced is written
/// in place, since running containers have it mounted.
pub(in crate::effects) fn write(file: &HostFile) -> Result<(), Failure> {
    let path = Path::new(&file.path);
    if let Some(parent) = path.parent() {
        make_dir(parent, 0o750)?;
    }
    let result = match (fs::symlink_metadata(path), file.existing) {
        (Err(_), _) => write_new(path, file),
        (Ok(_), ExistingFile::Keep) => Ok(()),
        (Ok(_), ExistingFile::Replace) => write_over(path, file),
    };
    result.map_err(local("write", path))
}

fn write_new(path: &Path, file: &HostFile) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut out =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(file.mode).open(&new)?;
    out.write_all(file.content.as_bytes())?;
    out.set_permissions(fs::Permissions::from_mode(file.mode))?;
    if let Some((uid, gid)) = file.owner {
        chown(&new, Some(uid), Some(gid))?;
    }
    fs::rename(&new, path)
}

fn write_over(path: &Path, file: &HostFile) -> io::Result<()> {
    let mut open = fs::OpenOptions::new();
    let mut out = open.read(true).write(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    let mut current = Vec::new();
    (&mut out).take(file.content.len() as u64 + 1).read_to_end(&mut current)?;
    if current == file.content.as_bytes() {
        return Ok(());
    }
    // Containers that run read it meanwhile: it is never empty, and on a full disk it stays as it was.
    reserve(&out, file.content.len() as u64)?;
    out.rewind()?;
    out.write_all(file.content.as_bytes())?;
    out.set_len(file.content.len() as u64)
}

/// Takes room for a file of that many bytes, where the file system can.
fn reserve(file: &fs::File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        result => Ok(result?),
    }
}

/// Makes a link, and the directory it is in. One that is there is left.
pub(in crate::effects) fn link(target: &str, link: &str) -> Result<(), Failure> {
    if let Some(dir) = Path::new(link).parent() {
        make_dir(dir, 0o755)?;
    }
    match std::os::unix::fs::symlink(target, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(local("link", link)),
    }
}

/// Removes a file or a link; one that is not there is no error.
pub(in crate::effects) fn remove_file(path: impl AsRef<Path>) -> Result<(), Failure> {
    let path = path.as_ref();
    absent_is_fine(fs::remove_file(path)).map_err(local("remove", path))
}

/// Removes a log and its rotated parts, which begin with its name.
pub(in crate::effects) fn remove_log(path: &str) -> Result<(), Failure> {
    let path = Path::new(path);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(|found| found.starts_with(name)) {
            remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::own_mounts::with_own_mounts;

    fn file(path: &Path, content: &str, existing: ExistingFile) -> HostFile {
        HostFile {
            path: path.display().to_string(),
            mode: 0o666,
            owner: Some((1000, 2000)),
            content: content.to_owned(),
            existing,
        }
    }

    #[test]
    fn a_log_goes_with_its_rotated_parts_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let stay = ["0.log", "10.log", "11.log.20261121-070001.gz"];
        let go = ["1.log", "1.log.20261121-070001.gz", "1.log.20261121-070002"];
        for name in stay.iter().chain(&go) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        for _ in 0..2 {
            remove_log(&dir.path().join("1.log").display().to_string()).unwrap();
            let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
            left.sort();
            assert_eq!(left, stay);
        }
    }

    #[test]
    fn a_kept_file_is_written_once_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containers/web/0a1b");
        write(&file(&path, "one", ExistingFile::Keep)).unwrap();
        write(&file(&path, "two", ExistingFile::Keep)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o666);
        assert_eq!((metadata.uid(), metadata.gid()), (1000, 2000));
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o750);
    }

    #[test]
    fn a_full_disk_leaves_what_running_containers_read() {
        let dir = tempfile::tempdir().unwrap();
        with_own_mounts(|| {
            let size = Some("size=64k");
            mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), size).unwrap();
            let path = dir.path().join("etc-hosts");
            write(&file(&path, "127.0.0.1 localhost", ExistingFile::Replace)).unwrap();
            fs::write(dir.path().join("filler"), [0; 128 << 10]).unwrap_err();
            let longer = "x".repeat(10_000);
            write(&file(&path, &longer, ExistingFile::Replace)).unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1 localhost");
            write(&file(&path, "::1 localhost", ExistingFile::Replace)).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "::1 localhost");
        });
    }

    #[test]
    fn a_replaced_file_stays_the_same_inode_and_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc-hosts");
        write(&file(&path, "a longer text", ExistingFile::Replace)).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        write(&file(&path, "short", ExistingFile::Replace)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&file(&link, "through the link", ExistingFile::Replace)).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
    }
}
