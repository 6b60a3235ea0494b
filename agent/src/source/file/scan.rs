//! One look at the manifests: what each file wants now, or wanted when it was last right.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::{
    id::PodName,
    spec::{Pod, Source},
};
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};

use crate::{
    document::BYTES_MAX,
    manifest::{self, Manifest, Origin},
    view::Problem,
};

/// Files that are read: many times what a node can run.
const FILES_MAX: usize = 1000;

/// What to look at.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) path: PathBuf,
    pub(super) node: String,
}

/// What was there.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Seen {
    files: BTreeMap<PathBuf, Arc<Content>>,
    pub(super) problems: Vec<Problem>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Content {
    text: String,
    pub(super) manifests: Vec<Manifest>,
    /// Why the text of now does not count, and the manifests are those of an earlier one.
    pub(super) fault: Option<String>,
}

impl Seen {
    /// The pods of all files, by name of the file; of several with one name or UID the first.
    pub(super) fn pods(&self) -> Vec<Arc<Pod>> {
        self.manifests().map(|manifest| Arc::clone(&manifest.pod)).collect()
    }

    pub(super) fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        let mut known = Known::default();
        let all = self.files.values().flat_map(|content| &content.manifests);
        all.filter(move |manifest| known.is_new(&manifest.pod))
    }
}

impl Scan {
    /// Looks at everything. Whatever cannot be read is as it was `before`.
    pub(super) fn run(&self, before: &Seen) -> Seen {
        let (paths, mut problems) = match self.paths() {
            Ok(paths) => (paths, Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), Vec::new()),
            Err(error) => {
                let message = format!("cannot be listed: {error}");
                let problem = Problem { place: self.path.display().to_string(), message };
                return Seen { files: before.files.clone(), problems: vec![problem] };
            }
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let before = before.files.get(&path);
            if let Some(content) = self.content(&path, before) {
                files.insert(path, content);
            }
        }
        problems.extend(faults(&files));
        problems.extend(duplicates(&files));
        Seen { files, problems }
    }

    /// The files of the path: itself, or those in it.
    pub(super) fn paths(&self) -> io::Result<Vec<PathBuf>> {
        if !fs::metadata(&self.path)?.is_dir() {
            return Ok(vec![self.path.clone()]);
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                paths.push(entry.path());
            }
            if paths.len() > FILES_MAX {
                return Err(io::Error::other(format!("more than {FILES_MAX} files")));
            }
        }
        Ok(paths)
    }

    /// `None` for what is no regular file, or has gone meanwhile.
    pub(super) fn content(&self, path: &Path, before: Option<&Arc<Content>>) -> Option<Arc<Content>> {
        let fault = match read(path) {
            Ok(None) => return None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => format!("{}: cannot be read: {error}", path.display()),
            Ok(Some((text, _)))
                if before.is_some_and(|before| before.text == text && before.fault.is_none()) =>
            {
                return before.cloned();
            }
            Ok(Some((text, seen))) => match self.parse(path, &text, seen) {
                Ok(manifests) => return Some(Arc::new(Content { text, manifests, fault: None })),
                Err(fault) => fault,
            },
        };
        let (text, manifests) =
            before.map(|before| (before.text.clone(), before.manifests.clone())).unwrap_or_default();
        Some(Arc::new(Content { text, manifests, fault: Some(fault) }))
    }

    pub(super) fn parse(&self, path: &Path, text: &str, seen: Timestamp) -> Result<Vec<Manifest>, String> {
        let place = path.display().to_string();
        let origin = Origin { source: Source::File, place: &place, node: &self.node, seen };
        let manifests = manifest::read(text, &origin).map_err(|faults| faults.to_string())?;
        // An editor may have just emptied the file to write it anew.
        if manifests.is_empty() {
            return Err(format!("{place}: no pod in it: remove the file to stop its pods"));
        }
        Ok(manifests)
    }
}

/// Text and time of the last change; `None` for what is no regular file.
fn read(path: &Path) -> io::Result<Option<(String, Timestamp)>> {
    // Without waiting: opening a FIFO that nobody writes would never return.
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let file = File::from(file);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let changed =
        metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok()).unwrap_or_default();
    let mut text = String::new();
    file.take(BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(Some((text, changed)))
}

fn faults(files: &BTreeMap<PathBuf, Arc<Content>>) -> Vec<Problem> {
    let problem = |(path, content): (&PathBuf, &Arc<Content>)| {
        let message = content.fault.clone()?;
        Some(Problem { place: path.display().to_string(), message })
    };
    files.iter().filter_map(problem).collect()
}

fn duplicates(files: &BTreeMap<PathBuf, Arc<Content>>) -> Vec<Problem> {
    let mut known = Known::default();
    let mut problems = Vec::new();
    for (path, content) in files {
        for manifest in &content.manifests {
            if !known.is_new(&manifest.pod) {
                let message = duplicate(&manifest.pod.name);
                problems.push(Problem { place: path.display().to_string(), message });
            }
        }
    }
    problems
}

/// What is said of a pod whose name or UID is taken.
pub(super) fn duplicate(name: &PodName) -> String {
    format!("pod {name} is already given in an earlier file: this one is not run")
}

/// Names and UIDs that are taken.
#[derive(Default)]
pub(super) struct Known {
    names: BTreeSet<PodName>,
    uids: BTreeSet<berth_core::id::PodUid>,
}

impl Known {
    /// Takes the pod's name and UID, unless another has one of them.
    pub(super) fn is_new(&mut self, pod: &Pod) -> bool {
        if self.names.contains(&pod.name) || self.uids.contains(&pod.uid) {
            return false;
        }
        self.names.insert(pod.name.clone());
        self.uids.insert(pod.uid.clone())
    }
}
