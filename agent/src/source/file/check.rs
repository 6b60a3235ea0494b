//! Manifests looked at before they are given to an agent: what it would say of them.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;

use super::scan::{Known, Scan, duplicate};
use crate::{document::BYTES_MAX, manifest::Manifest};

/// Name of a path that means standard input.
const STANDARD_INPUT: &str = "-";

/// What there is to say about a pod, or about a file without a usable one.
#[derive(Debug, Clone, PartialEq)]
pub struct Looked {
    /// The file.
    pub place: String,
    /// The pod, or why it would not be run.
    pub manifest: Result<Manifest, String>,
}

/// Looks at files and at directories of them, as the agent of a node of this name would. `-` is standard input.
///
/// # Errors
/// A path that cannot be read; what is wrong in a file is no error here.
pub fn look(paths: &[PathBuf], node: &str) -> io::Result<Vec<Looked>> {
    let mut files = BTreeMap::new();
    for path in paths {
        let scan = Scan { path: path.clone(), node: node.to_owned() };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if path.as_path() == Path::new(STANDARD_INPUT) {
            files.insert(path.clone(), scan.parse(path, &standard_input().map_err(named)?, Timestamp::now()));
            continue;
        }
        for file in scan.paths().map_err(named)? {
            if let Some(content) = scan.content(&file, None) {
                let content = Arc::unwrap_or_clone(content);
                files.insert(file, content.fault.map_or(Ok(content.manifests), Err));
            }
        }
    }
    Ok(all(files))
}

fn standard_input() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().lock().take(BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn all(files: BTreeMap<PathBuf, Result<Vec<Manifest>, String>>) -> Vec<Looked> {
    let mut known = Known::default();
    let mut looked = Vec::new();
    for (path, content) in files {
        let place = path.display().to_string();
        match content {
            Err(fault) => looked.push(Looked { place, manifest: Err(fault) }),
            Ok(manifests) => looked.extend(manifests.into_iter().map(|manifest| {
                let is_new = known.is_new(&manifest.pod);
                let manifest = if is_new { Ok(manifest) } else { Err(duplicate(&manifest.pod.name)) };
                Looked { place: place.clone(), manifest }
            })),
        }
    }
    looked
}
