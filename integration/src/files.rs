//! Files and directories, with failures that name them.

use std::fs::{self, DirEntry, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::libc::{ENODEV, ESRCH};

/// What a text file holds.
///
/// # Errors
/// It cannot be read.
pub fn read(file: impl AsRef<Path>) -> Result<String> {
    let file = file.as_ref();
    fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

/// Puts something into a file, in place of what was there.
///
/// # Errors
/// It cannot be written.
pub fn write(file: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
    let file = file.as_ref();
    fs::write(file, content).with_context(|| format!("write {}", file.display()))
}

/// Puts a script into a file that everybody may run.
///
/// # Errors
/// It cannot be written.
pub fn write_program(file: impl AsRef<Path>, script: &str) -> Result<()> {
    let file = file.as_ref();
    write(file, script)?;
    fs::set_permissions(file, Permissions::from_mode(0o755))
        .with_context(|| format!("let {} be run", file.display()))
}

/// Makes an empty file.
///
/// # Errors
/// It cannot be made.
pub fn create(file: impl AsRef<Path>) -> Result<File> {
    let file = file.as_ref();
    File::create(file).with_context(|| format!("make {}", file.display()))
}

/// Removes a file.
///
/// # Errors
/// It is not there, or stays.
pub fn remove(file: impl AsRef<Path>) -> Result<()> {
    let file = file.as_ref();
    fs::remove_file(file).with_context(|| format!("remove {}", file.display()))
}

/// Removes a file or a link that may be gone.
///
/// # Errors
/// It stays.
pub fn remove_if_there(file: impl AsRef<Path>) -> Result<()> {
    let file = file.as_ref();
    there(fs::remove_file(file)).with_context(|| format!("remove {}", file.display()))?;
    Ok(())
}

/// Makes a directory and those above it, as far as they are not there.
///
/// # Errors
/// One cannot be made.
pub fn make_dir(dir: impl AsRef<Path>) -> Result<()> {
    let dir = dir.as_ref();
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))
}

/// Removes a directory and what is in it.
///
/// # Errors
/// It is not there, or something stays.
pub fn remove_dir(dir: impl AsRef<Path>) -> Result<()> {
    let dir = dir.as_ref();
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))
}

/// The paths of what is in a directory.
///
/// # Errors
/// It cannot be listed.
pub fn list(dir: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let dir = dir.as_ref();
    let failed = || format!("list {}", dir.display());
    let entries = fs::read_dir(dir).with_context(failed)?;
    entries.map(|entry| Ok(entry.with_context(failed)?.path())).collect()
}

/// What was read, unless it is gone, or has gone while it was open.
///
/// # Errors
/// Every other failure.
pub fn there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(None),
        // Of a cgroup or a process of which something is open.
        Err(failure) if matches!(failure.raw_os_error(), Some(ENODEV | ESRCH)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// What a text file holds that may be gone.
///
/// # Errors
/// It is there and cannot be read.
pub fn read_if_there(file: impl AsRef<Path>) -> Result<Option<String>> {
    let file = file.as_ref();
    there(fs::read_to_string(file)).with_context(|| format!("read {}", file.display()))
}

/// The paths of what is in a directory; none of one that is gone, or goes between its opening and its reading.
///
/// # Errors
/// It is there and cannot be listed.
pub fn list_if_there(dir: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let dir = dir.as_ref();
    let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<DirEntry>>>);
    let entries = there(entries).with_context(|| format!("list {}", dir.display()))?;
    Ok(entries.iter().flatten().map(DirEntry::path).collect())
}

/// The directories directly in one, links to others not among them; none of one that is gone.
///
/// A process that ends while `/proc` is read is listed without a kind, and a cgroup that goes has no entries.
///
/// # Errors
/// It is there and cannot be listed.
pub fn directories_if_there(dir: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let dir = dir.as_ref();
    let failed = || format!("list {}", dir.display());
    let mut found = Vec::new();
    for entry in there(fs::read_dir(dir)).with_context(failed)?.into_iter().flatten() {
        let looked_at = entry.and_then(|entry| Ok((entry.file_type()?, entry.path())));
        let directory = there(looked_at).with_context(failed)?.filter(|(kind, _)| kind.is_dir());
        found.extend(directory.map(|(_, path)| path));
    }
    Ok(found)
}

/// The kernel's table of the mounts that this process sees.
///
/// # Errors
/// It cannot be read.
pub fn mounts() -> Result<String> {
    read("/proc/self/mountinfo")
}

/// Where something is mounted, once for each mount.
///
/// Nothing is told of what a crun leaves that is killed with its shim: it mounts its own program for the first millisecond of each call
/// (`try_bindfd` of `src/libcrun/cloned_binary.c`).
///
/// # Errors
/// The table cannot be read.
pub fn mount_points() -> Result<Vec<String>> {
    let table = mounts()?;
    let of_crun = |what: &str, at: &str| what.ends_with("/crun") && at.starts_with("/tmp/crun.");
    let points = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (what, at) = (fields.next()?, fields.next()?);
        (!of_crun(what, at)).then(|| at.to_owned())
    });
    Ok(points.collect())
}
