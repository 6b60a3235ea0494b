//! Files with the content of objects, exchanged all at once.
//!
//! What containers see are links through `..data`, which is a link to a directory with the files of one moment; an update makes
//! another directory and renames the new link over the old one (`pkg/volume/util/atomic_writer.go`). Everything is done by
//! descriptors below the volume that follow no link: whoever can write there leads nowhere else (CVE-2017-1002102).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, mkdirat, open, openat,
        readlinkat, renameat, statat, symlinkat, unlinkat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    error::{VolumeError, io_error},
    remove_tree,
};
use crate::{causes::with_causes, contained::open_within, hidden::Hidden};

/// The link to the files of now, and the link that takes its place.
const DATA: &str = "..data";
const NEXT_DATA: &str = "..data_tmp";

/// Longest name of a file, and longest path.
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;

/// Names that are tried for the directory of one moment.
const NAMES_MAX: u32 = 100;

/// What the group of a volume that only the agent writes gets of a file and of a directory
/// (`roMask`, `execMask` of `pkg/volume/volume_linux.go`).
const FILE_BITS: u32 = 0o440;
const DIRECTORY_BITS: u32 = 0o2550;

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentFile {
    /// Path below the volume.
    pub path: String,
    /// Its mode.
    pub mode: u32,
    /// Its owner, where that is not root.
    pub owner: Option<u32>,
    /// What is in it.
    pub bytes: Hidden,
}

/// Exchanges the files of a volume, whose directory is there, for these. Nothing is written where they are the same.
/// Directories for what containers mount within are made too.
///
/// # Errors
/// A path that is none below the volume, or a call fails. The files of before are there then.
pub fn write(
    volume: &Path,
    files: &[ContentFile],
    nested: &BTreeSet<String>,
    group: Option<u32>,
) -> Result<(), VolumeError> {
    files.iter().try_for_each(|file| check(&file.path))?;
    exchange(volume, files, nested, group).map_err(io_error("write the content of", volume))
}

/// What the API server promises of paths is held against them once more: they come from keys of objects too.
fn check(path: &str) -> Result<(), VolumeError> {
    let first = path.split('/').next().unwrap_or_default();
    let refuse = |why| Err(VolumeError::WrongPath { why, path: path.chars().take(NAME_MAX).collect() });
    match path {
        "" => refuse("must not be empty"),
        path if path.starts_with('/') => refuse("must be relative path"),
        path if path.len() > PATH_MAX => refuse("must be less than or equal to 4096 characters"),
        path if path.split('/').any(|part| part == "..") => refuse("must not contain '..'"),
        path if path.split('/').any(|part| part.len() > NAME_MAX) => {
            refuse("filenames must be less than or equal to 255 characters")
        }
        _ if first.starts_with("..") => refuse("must not start with '..'"),
        path if path.contains('\0') || path.split('/').any(|part| matches!(part, "" | ".")) => {
            refuse("must be one of plain names")
        }
        _ => Ok(()),
    }
}

fn exchange(
    volume: &Path,
    files: &[ContentFile],
    nested: &BTreeSet<String>,
    group: Option<u32>,
) -> io::Result<()> {
    let root = open(volume, READ, Mode::empty())?;
    for path in nested {
        match make_dirs(&root, path, 0o755, group) {
            // Something of the content is there, by the pod's own choice.
            Err(error) if is_in_the_way(&error) => {}
            result => drop(result?),
        }
    }
    // Of two files with one path, the later one is seen.
    let files: BTreeMap<&str, &ContentFile> = files.iter().map(|file| (file.path.as_str(), file)).collect();
    let current = current(&root)?;
    let is_same = match &current {
        Some(name) => match open_dir(&root, name) {
            Ok(dir) => holds(dir, &files)?,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        },
        None => false,
    };
    // First of all, what a kill or a full disk has left: its place may be needed.
    prune_moments(volume, &root, current.as_deref())?;
    let replaced = if is_same { None } else { Some(replace(volume, &root, &files, group)?) };
    show(&root, &files)?;
    if let Some(now) = &replaced {
        prune_moments(volume, &root, Some(now))?;
    }
    prune_links(&root, &files)
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Name of the directory that `..data` leads to. A link that the agent cannot have made is none.
fn current(root: &OwnedFd) -> io::Result<Option<String>> {
    match readlinkat(root, DATA, Vec::new()) {
        Ok(target) => {
            let target = target.into_string().ok();
            Ok(target.filter(|name| name.starts_with("..") && name.len() > 2 && !name.contains('/')))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a directory holds these files and no other.
fn holds(dir: OwnedFd, files: &BTreeMap<&str, &ContentFile>) -> io::Result<bool> {
    let mut found = BTreeSet::new();
    if !list(&dir, "", files.len(), &mut found)? || !found.iter().eq(files.keys()) {
        return Ok(false);
    }
    for (path, file) in files {
        let opened = open_within(dir.as_fd(), *path, OFlags::RDONLY | OFlags::NOFOLLOW, BENEATH)?;
        let mut bytes = Vec::new();
        let most = u64::try_from(file.bytes.len()).unwrap_or(u64::MAX).saturating_add(1);
        File::from(opened).take(most).read_to_end(&mut bytes)?;
        let bytes = Hidden::new(bytes);
        if bytes != file.bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Paths of all files below a directory; whether there are no more than `most`.
fn list(dir: &OwnedFd, prefix: &str, most: usize, found: &mut BTreeSet<String>) -> io::Result<bool> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { return Ok(false) };
        if matches!(name, "." | "..") {
            continue;
        }
        let path = format!("{prefix}{name}");
        let kind =
            FileType::from_raw_mode(statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
        if kind.is_dir() && path.len() < PATH_MAX {
            if !list(&open_dir(dir, name)?, &format!("{path}/"), most, found)? {
                return Ok(false);
            }
        } else {
            found.insert(path);
        }
        if found.len() > most {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes the files into a directory of their own, and has `..data` lead there. Its name. A directory that does not come to that
/// goes at once: it holds secrets, and what fills a disk.
fn replace(
    volume: &Path,
    root: &OwnedFd,
    files: &BTreeMap<&str, &ContentFile>,
    group: Option<u32>,
) -> io::Result<String> {
    let name = make_moment(root)?;
    let filled = fill(root, &name, files, group).and_then(|()| lead_to(root, &name));
    if let Err(error) = filled {
        if let Err(left) = remove_tree(&volume.join(&name)) {
            tracing::debug!(error = with_causes(&left), "a moment of a volume is left for later");
        }
        return Err(error);
    }
    Ok(name)
}

fn fill(
    root: &OwnedFd,
    moment: &str,
    files: &BTreeMap<&str, &ContentFile>,
    group: Option<u32>,
) -> io::Result<()> {
    let dir = open_dir(root, moment)?;
    fchmod(&dir, Mode::from_raw_mode(0o755))?;
    give(&dir, 0o755, DIRECTORY_BITS, group)?;
    files.values().try_for_each(|file| put(&dir, file, group))
}

/// Has `..data` lead to a moment, all at once.
fn lead_to(root: &OwnedFd, moment: &str) -> io::Result<()> {
    match unlinkat(root, NEXT_DATA, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    symlinkat(moment, root, NEXT_DATA)?;
    Ok(renameat(root, NEXT_DATA, root, DATA)?)
}

/// A new directory, named by the moment as upstream names it.
fn make_moment(root: &OwnedFd) -> io::Result<String> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let text = now.strftime("..%Y_%m_%d_%H_%M_%S").to_string();
    let first = now.subsec_nanosecond().unsigned_abs();
    for number in 0..NAMES_MAX {
        let name = format!("{text}.{}", first.wrapping_add(number));
        match mkdirat(root, &name, Mode::from_raw_mode(0o700)) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn put(dir: &OwnedFd, file: &ContentFile, group: Option<u32>) -> io::Result<()> {
    let (parent, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let parent = make_dirs(dir, parent, 0o755, group)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(&parent, name, flags, Mode::from_raw_mode(0o600))?;
    let mut made = File::from(made);
    made.write_all(file.bytes.reveal())?;
    let owner = file.owner.map(Uid::from_raw);
    fchown(&made, owner, None)?;
    fchmod(&made, Mode::from_raw_mode(file.mode))?;
    give(&made, file.mode, FILE_BITS, group)
}

/// Gives what was made to the volume's group.
fn give(made: impl AsFd, mode: u32, bits: u32, group: Option<u32>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    let made = made.as_fd();
    fchown(made, None, Some(Gid::from_raw(group)))?;
    Ok(fchmod(made, Mode::from_raw_mode(mode | bits))?)
}

/// Opens the directory at a path below another one, and makes it, and those on the way, where they are missing.
fn make_dirs(root: &OwnedFd, path: &str, mode: u32, group: Option<u32>) -> io::Result<OwnedFd> {
    let mut dir = open_dir(root, ".")?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        match mkdirat(&dir, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                dir = open_dir(&dir, name)?;
                fchmod(&dir, Mode::from_raw_mode(mode))?;
                give(&dir, mode, DIRECTORY_BITS, group)?;
            }
            Err(Errno::EXIST) => dir = open_dir(&dir, name)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(dir)
}

fn open_dir(root: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    open_within(root.as_fd(), name, READ, BENEATH)
}

/// Whether something that is no directory is at a path.
fn is_in_the_way(error: &io::Error) -> bool {
    [Errno::LOOP, Errno::NOTDIR].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Makes the links that containers see, where they are missing.
fn show(root: &OwnedFd, files: &BTreeMap<&str, &ContentFile>) -> io::Result<()> {
    for file in files.values() {
        let name = top(&file.path);
        match symlinkat(format!("{DATA}/{name}"), root, name) {
            Ok(()) => {
                let owner = file.owner.map(Uid::from_raw);
                rustix::fs::chownat(root, name, owner, None, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn top(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Removes directories of other moments: also those that a kill left.
fn prune_moments(volume: &Path, root: &OwnedFd, kept: Option<&str>) -> io::Result<()> {
    for name in names(root)? {
        if name.starts_with("..") && name != DATA && Some(name.as_str()) != kept {
            remove_tree(&volume.join(name))?;
        }
    }
    Ok(())
}

/// Removes links to files that are no more.
fn prune_links(root: &OwnedFd, files: &BTreeMap<&str, &ContentFile>) -> io::Result<()> {
    let shown: BTreeSet<&str> = files.keys().map(|path| top(path)).collect();
    for name in names(root)? {
        if shown.contains(name.as_str()) || !leads_to(root.as_fd(), &name) {
            continue;
        }
        match unlinkat(root, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// What is in a directory, by names that are text.
fn names(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        names.extend(
            entry?.file_name().to_str().ok().filter(|name| !matches!(*name, "." | "..")).map(str::to_owned),
        );
    }
    Ok(names)
}

/// Whether a name is the link to the file of that name.
fn leads_to(root: BorrowedFd<'_>, name: &str) -> bool {
    readlinkat(root, name, Vec::new())
        .is_ok_and(|target| target.to_bytes() == format!("{DATA}/{name}").as_bytes())
}

#[cfg(test)]
mod tests;
