//! The files of containerd's configuration: the one that it is started with, and those that are imported.
//!
//! As containerd reads them: the imports of a file come after it and are laid over it, in the order of writing, a pattern's
//! files by name; a file that was read is not read again, so that a circle ends. Only what a file says imports: the
//! `conf.d` of `containerd config default` is read where it is written.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use berth_core::glob;
use nix::fcntl::OFlag;

use super::{
    file::{self, File},
    section::Section,
    tree::Tree,
};
use crate::document::{Fault, Faults, Place};

/// Bytes of a file: some hundred times what `containerd config default` writes.
const BYTES_MAX: usize = 1 << 20;

/// Files that may be imported: far more than anybody has, and a bound on what is read.
const FILES_MAX: usize = 100;

/// Entries of a directory that are compared with a pattern.
const ENTRIES_MAX: usize = 10_000;

/// What was read, and where it may change.
#[derive(Debug)]
pub struct Loaded {
    /// What the files say together.
    pub section: Result<Section, Faults>,
    /// Directories in which a change may say something else.
    pub directories: BTreeSet<PathBuf>,
}

/// Reads a file and what it imports.
#[must_use]
pub(in crate::config) fn load(path: &Path, may_be_absent: bool) -> Loaded {
    let mut reading = Reading { pending: VecDeque::from([path.to_owned()]), ..Reading::default() };
    let section = reading.run(may_be_absent).and_then(|()| {
        let Reading { runtime, images, files, .. } = &reading;
        Section::of(runtime, images, files.clone())
    });
    Loaded { section, directories: reading.directories }
}

#[derive(Default)]
struct Reading {
    pending: VecDeque<PathBuf>,
    files: Vec<Arc<Path>>,
    directories: BTreeSet<PathBuf>,
    runtime: Tree,
    images: Tree,
}

impl Reading {
    fn run(&mut self, may_be_absent: bool) -> Result<(), Faults> {
        while let Some(path) = self.pending.pop_front() {
            self.directories.extend(path.parent().map(Path::to_owned));
            if self.files.iter().any(|known| **known == *path) {
                continue;
            }
            if self.files.len() == FILES_MAX {
                return Err(whole(&path, format!("more than {FILES_MAX} files are imported")).into());
            }
            let text = match read(&path) {
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && may_be_absent && self.files.is_empty() =>
                {
                    return Ok(());
                }
                read => read.map_err(|error| whole(&path, format!("cannot be read: {error}")))?,
            };
            let path: Arc<Path> = path.into();
            let File { imports, runtime, images } = file::parse(&text, &path)?;
            self.runtime.merge(runtime);
            self.images.merge(images);
            for import in imports {
                self.import(&path, &import)?;
            }
            self.files.push(path);
        }
        Ok(())
    }

    /// Relative paths are from the directory of the file that has them (`resolveImports`).
    fn import(&mut self, importer: &Path, import: &str) -> Result<(), Faults> {
        let path = cleaned(&importer.parent().unwrap_or(Path::new("/")).join(import));
        if !import.contains('*') {
            self.pending.push_back(path);
            return Ok(());
        }
        let mut found = vec![PathBuf::new()];
        for component in path.components() {
            let mut next = Vec::new();
            for base in found {
                match component {
                    Component::Normal(name) if glob::is_pattern(&name.to_string_lossy()) => {
                        let pattern = name.to_string_lossy();
                        next.extend(matching(&base, &pattern).map_err(|why| whole(importer, why))?);
                        self.directories.insert(base);
                    }
                    _ => next.push(base.join(component)),
                }
                if next.len() > ENTRIES_MAX {
                    let why = format!("its import {import:?} leads to more than {ENTRIES_MAX} paths");
                    return Err(whole(importer, why).into());
                }
            }
            found = next;
        }
        self.pending.extend(found.into_iter().filter(|path| path.exists()));
        Ok(())
    }
}

/// What of a directory is of a pattern, by name. One that cannot be listed has nothing, as for Go's `Glob`.
fn matching(directory: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for (index, entry) in entries.flatten().enumerate() {
        if index == ENTRIES_MAX {
            return Err(format!("{} has more than {ENTRIES_MAX} entries", directory.display()));
        }
        if glob::matches(pattern, &entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Without `.` and `..`, by the text alone, as Go's `Clean`.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(clean.pop()),
            component => clean.push(component),
        }
    }
    clean
}

fn read(path: &Path) -> io::Result<String> {
    // A pipe is no file, and is not waited for.
    let flags = OFlag::O_NONBLOCK.bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut text = String::new();
    file.take(BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    if text.len() > BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {BYTES_MAX} bytes"),
        ));
    }
    Ok(text)
}

fn whole(file: &Path, message: String) -> Fault {
    let place = Some(Place { file: file.display().to_string().into(), line: 0 });
    Fault { place, field: String::new(), message }
}
