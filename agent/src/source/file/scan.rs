//! One look at the manifests: what each file wants now, or wanted when it was last right.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::{
    id::PodName,
    spec::{Pod, Source},
};
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::{
    document::BYTES_MAX,
    manifest::{self, Manifest, Origin},
    view::Problem,
};

/// Files that are read: many times what a node can run.
const FILES_MAX: usize = 1000;

/// Largest text of all files together, as JSON: what fits into an answer of a worker, beside their names.
const TEXTS_MAX: usize = 12 << 20;

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
    /// Whether the directory could be listed at least once.
    is_listed: bool,
    pub(super) problems: Vec<Problem>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Content {
    text: String,
    pub(super) manifests: Vec<Manifest>,
    /// Why the text of now does not count, and the manifests are those of an earlier one.
    pub(super) fault: Option<String>,
    /// Whether it was there at the first look, and could not be used since: what it gave an earlier run of the agent is
    /// not known.
    is_unknown: bool,
}

impl Seen {
    /// The pods of all files, by name of the file; of several with one name or UID the first.
    pub(super) fn pods(&self) -> Vec<Arc<Pod>> {
        self.manifests().map(|manifest| Arc::clone(&manifest.pod)).collect()
    }

    /// Whether all that was there at the first look could be used since.
    pub(super) fn is_whole(&self) -> bool {
        self.is_listed && !self.files.values().any(|content| content.is_unknown)
    }

    pub(super) fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        let mut known = Known::default();
        let all = self.files.values().flat_map(|content| &content.manifests);
        all.filter(move |manifest| known.is_new(&manifest.pod))
    }
}

impl Scan {
    /// Takes in what was found. Whatever could not be read is as it was `before`.
    pub(super) fn run(&self, before: &Seen, found: Found) -> Seen {
        let found = match found.files {
            Ok(files) => files,
            Err(why) => return self.unread(before, format!("cannot be listed: {why}")),
        };
        let mut files = BTreeMap::new();
        for (path, file) in found {
            let path = PathBuf::from(OsString::from_vec(path));
            let earlier = before.files.get(&path);
            if let Some(mut content) = self.content_of(&path, file, earlier) {
                if earlier.is_none() && before.is_listed {
                    Arc::make_mut(&mut content).is_unknown = false;
                }
                files.insert(path, content);
            }
        }
        let mut problems = faults(&files);
        problems.extend(duplicates(&files));
        Seen { files, is_listed: true, problems }
    }

    /// All is as it was.
    pub(super) fn unread(&self, before: &Seen, message: String) -> Seen {
        let problem = Problem { place: self.path.display().to_string(), message };
        Seen { problems: vec![problem], ..before.clone() }
    }

    /// The files of the path: itself, or those in it.
    pub(super) fn paths(&self) -> io::Result<Vec<PathBuf>> {
        paths(&self.path)
    }

    /// `None` for what is no regular file, or has gone meanwhile.
    pub(super) fn content(&self, path: &Path, before: Option<&Arc<Content>>) -> Option<Arc<Content>> {
        self.content_of(path, TextFile::read(path), before)
    }

    fn content_of(&self, path: &Path, file: TextFile, before: Option<&Arc<Content>>) -> Option<Arc<Content>> {
        let fault = match file {
            TextFile::None => return None,
            TextFile::Unreadable(why) => format!("{}: cannot be read: {why}", path.display()),
            TextFile::Text(text, _)
                if before.is_some_and(|before| before.text == text && before.fault.is_none()) =>
            {
                return before.cloned();
            }
            TextFile::Text(text, seen) => match self.parse(path, &text, seen) {
                Ok(manifests) => {
                    return Some(Arc::new(Content { text, manifests, fault: None, is_unknown: false }));
                }
                Err(fault) => fault,
            },
        };
        let content = match before {
            Some(before) => Content { fault: Some(fault), ..(**before).clone() },
            None => Content { fault: Some(fault), is_unknown: true, ..Content::default() },
        };
        Some(Arc::new(content))
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

/// What is at a path of manifests, as a worker finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Whether it is a directory: else changes show in the one above.
    pub(super) is_dir: bool,
    /// The files, by the bytes of their paths, or why they cannot be listed.
    files: Result<Vec<(Vec<u8>, TextFile)>, String>,
}

/// What is at one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum TextFile {
    /// Text, and the time of its last change.
    Text(String, Timestamp),
    /// Nothing, or no regular file.
    None,
    /// It cannot be read, for this reason.
    Unreadable(String),
}

impl Found {
    /// Looks at a path. Waits as long as its file system does.
    pub(crate) fn at(path: &Path) -> Self {
        let is_dir = path.is_dir();
        let found = match paths(path) {
            Ok(paths) => paths,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Self { is_dir, files: Err(error.to_string()) },
        };
        let mut room = TEXTS_MAX;
        let read = |path: PathBuf| {
            let mut file = TextFile::read(&path);
            if let TextFile::Text(text, _) = &file {
                match room.checked_sub(length_as_json(text)) {
                    Some(left) => room = left,
                    None => file = TextFile::Unreadable("all files together are too large".to_owned()),
                }
            }
            (path.into_os_string().into_vec(), file)
        };
        Self { is_dir, files: Ok(found.into_iter().map(read).collect()) }
    }
}

/// Bytes of a text as a string of JSON: a control character can take six.
pub(super) fn length_as_json(text: &str) -> usize {
    let of_byte = |byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..b' ' => 6,
        _ => 1,
    };
    text.bytes().map(of_byte).sum::<usize>() + 2
}

impl TextFile {
    fn read(path: &Path) -> Self {
        match read(path) {
            Ok(Some((text, changed))) => Self::Text(text, changed),
            Ok(None) => Self::None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::None,
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }
}

fn paths(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(path)? {
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
