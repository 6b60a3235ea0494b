//! Programs of this machine in an image, with the libraries that they are linked with.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Entry;
use crate::node::system;

/// Where the libraries of Debian are, by the names that programs know.
const LINKS: [&str; 2] = ["lib", "lib64"];

/// Programs below `usr/bin`, each by a name and its place on this machine, and their libraries.
///
/// # Errors
/// One is not there.
pub fn programs(wanted: &[(&str, &Path)]) -> Result<Vec<(String, Entry)>> {
    let found = wanted.iter().map(|(name, path)| {
        let path = fs::canonicalize(path).with_context(|| format!("look up {}", path.display()))?;
        Ok((format!("usr/bin/{name}"), path))
    });
    let found = found.collect::<Result<Vec<_>>>()?;
    let libraries = libraries(found.iter().map(|(_, path)| path))?;
    let mut files = at_their_places(&libraries)?;
    files.extend(found.into_iter().map(|(name, path)| (name, Entry::Program(path))));
    Ok(files)
}

/// What programs and libraries are linked with.
///
/// # Errors
/// `ldd` does not know one of them.
pub fn libraries<'a>(of: impl IntoIterator<Item = &'a PathBuf>) -> Result<BTreeSet<PathBuf>> {
    let names: Vec<String> = of.into_iter().map(|path| path.display().to_string()).collect();
    let said = system("ldd", &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    // A line with a colon tells of which file those after it are.
    let words = said.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    Ok(words.map(PathBuf::from).collect())
}

/// Files where they are on this machine, in an image that has no libraries yet.
///
/// # Errors
/// The directory of one is not there.
pub fn at_their_places(taken: &BTreeSet<PathBuf>) -> Result<Vec<(String, Entry)>> {
    let mut files: Vec<(String, Entry)> = Vec::new();
    for dir in LINKS {
        files.push((dir.to_owned(), Entry::Link(format!("usr/{dir}"))));
    }
    for path in taken {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let at = fs::canonicalize(dir).with_context(|| format!("look up {}", dir.display()))?.join(name);
        files.push((at.strip_prefix("/")?.display().to_string(), Entry::Program(path.clone())));
    }
    Ok(files)
}
