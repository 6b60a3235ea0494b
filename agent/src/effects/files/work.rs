//! What is done on files, as it is given to a worker process.
//!
//! The worker has nothing of the agent but what is in the request, so requests are values of their own, and JSON.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_core::failure::{Failure, FailureKind};
use serde::{Deserialize, Serialize};

use super::{
    app_armor::AppArmorParts,
    failure::unknown,
    host::Host,
    sub_path::Stage,
    wire::{
        DeviceText, EmptyDirText, FileKeyText, FileText, HostPathText, ImageVolumeText, LayerText, LocalText,
        MountSourceText, Place, RelabelText, RunVolumesText, SubPathText,
    },
};
use crate::{
    causes::with_causes,
    large,
    source::file::Found,
    usage::{Measured, Tree},
    volumes::ContentFile,
    workers::{Job, Load, Sort, WorkError, Workers},
};

/// For a look at a path that a pod chose: milliseconds, or a file system that does not answer.
pub(in crate::effects) const PATH: Duration = Duration::from_secs(10);
/// For a few files in directories of the node, on a disk that is busy.
pub(in crate::effects) const FILES: Duration = Duration::from_secs(20);
/// For a tree of unknown size: below the deadline of its effect.
pub(in crate::effects) const TREE: Duration = Duration::from_secs(240);

/// JSON of a file of a volume beside its path and its bytes, and beside all files, about.
const FILE_BYTES: usize = 64;
const WORK_BYTES: usize = 4 << 10;

/// One piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) enum Work {
    /// Makes an emptyDir.
    EmptyDir { path: String, mark: String, request: EmptyDirText },
    /// Makes a volume with content, and directories within it, or exchanges what is in it.
    Content {
        path: String,
        mark: String,
        request: EmptyDirText,
        files: Vec<ContentFile>,
        nested: BTreeSet<String>,
    },
    /// Looks at a hostPath, or makes it.
    HostPath { path: String, kind: HostPathText },
    /// Binds a directory of the node.
    Local(LocalText),
    /// Looks whether a path is a block device.
    BlockDevice(String),
    /// Makes a pod's directory with the mark of the agent of a run directory, then others, each with a mode.
    MakePodDirs { pod: String, run: String, dirs: Vec<(String, u32)> },
    /// Unmounts everything below a directory.
    Unmount(String),
    /// Removes trees, one after another.
    Remove(Vec<String>),
    /// Removes a pod's directory, its mark last.
    RemovePodDir(String),
    /// Removes the directory of a pod's logs, and the links into it.
    RemoveLogs { logs: String, links: String },
    /// The same for whatever directories of logs a UID has.
    SweepLogs { all: String, suffix: String, links: String },
    /// Writes a container's files, binds its parts of volumes, looks at the sources of its mounts, and reads what its spec
    /// needs. Answer: `Parts`, or `Withheld`.
    Container {
        files: Vec<FileText>,
        sub_paths: Vec<SubPathText>,
        mount_sources: Vec<MountSourceText>,
        log_dir: Option<String>,
        profile: Option<String>,
        app_armor: AppArmorParts,
        devices: bool,
        volumes: Vec<String>,
    },
    /// Gives files of a pod an SELinux label.
    Relabel { label: String, places: Vec<RelabelText> },
    /// Copies what an image has at its `VOLUME`s.
    ImageVolumes { layers: Vec<LayerText>, scratch: String, volumes: Vec<ImageVolumeText> },
    /// Mounts a snapshot of an image for a volume, read-only.
    MountImage { layers: Vec<LayerText>, scratch: String, path: String },
    /// Reads the account files of an image. Answer: `Accounts`.
    Accounts { layers: Vec<LayerText>, scratch: String },
    /// Removes a tree that is most often not there.
    Clear(String),
    /// Makes a link, and the directory it is in.
    Link { target: String, link: String },
    /// Removes a log with its rotated parts, and the link to it.
    Unlink { link: String, log: String },
    /// Removes the directories for `VOLUME`s of a container's runs, up to a last one.
    RemoveRunVolumes(RunVolumesText),
    /// Looks whether something is there. Answer: `Missing`.
    Look(Vec<Place>),
    /// Writes files that are missing.
    WriteFiles(Vec<FileText>),
    /// Reads the termination message of a container. Answer: `TerminationMessage`.
    TerminationMessage { file: Option<String>, log: Option<String> },
    /// Reads variables in files of volumes. Answer: `EnvFiles`.
    EnvFiles(Vec<FileKeyText>),
    /// Waits until the file systems of directories take changes. Changes nothing.
    Changeable(Vec<PathBuf>),
    /// Reads manifests. Answer: `Manifests`.
    Manifests(PathBuf),
    /// Measures trees. Answer: `Measured`.
    Measure(Vec<Tree>),
}

/// What it brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) enum Answer {
    /// Nothing more to say.
    Done,
    /// Of the node, for a container's spec.
    Parts {
        profile: Option<String>,
        app_armor: Option<String>,
        devices: Vec<DeviceText>,
        volumes: Vec<DeviceText>,
    },
    /// A part of the volume of this name could not be bound; details are not for the pod's owner.
    Withheld { mount: String, stage: Stage, why: String },
    /// What a PersistentVolume says is not there, or no such thing: why.
    NotThere(String),
    /// Account files.
    Accounts { passwd: String, group: String },
    /// A termination message.
    TerminationMessage(String),
    /// Values of variables, in the order of the request.
    EnvFiles(Vec<Option<String>>),
    /// What is at a path of manifests.
    Manifests(Found),
    /// Which of what was asked for is missing, by its place in the request.
    Missing(Vec<usize>),
    /// What each tree uses, in the order of the request.
    Measured(Vec<Option<Measured>>),
}

/// A failure, as a worker tells it.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::effects) struct Refused {
    pub(in crate::effects) is_config: bool,
    pub(in crate::effects) message: String,
}

/// What a piece of work is called and where it belongs.
#[derive(Debug, Clone, Copy)]
pub(in crate::effects) struct Called<'a> {
    /// What it is, such as `volume data`: done only once at a time for a pod.
    pub(in crate::effects) what: &'a str,
    /// The path it is most likely to hang on.
    pub(in crate::effects) path: &'a str,
    pub(in crate::effects) sort: Sort,
    pub(in crate::effects) within: Duration,
}

impl Host {
    /// Has a worker do something for a pod.
    pub(in crate::effects) async fn work(
        &self,
        pod: &str,
        called: Called<'_>,
        work: &Work,
    ) -> Result<Answer, Failure> {
        let Called { what, path, sort, within } = called;
        let answer = ask(&self.workers, Job { pod, what, path, sort, within }, work).await?;
        answer.map_err(|Refused { is_config, message }| {
            let kind = if is_config { FailureKind::Config } else { FailureKind::Transient };
            Failure { kind, message }
        })
    }
}

/// Has a worker read the manifests at a path. A failure in words.
pub(crate) async fn manifests(workers: &Workers, path: &Path) -> Result<Found, String> {
    let shown = path.display().to_string();
    // Of no pod.
    let job = Job { pod: "", what: "manifests", path: &shown, sort: Sort::Own, within: PATH };
    match ask(workers, job, &Work::Manifests(path.to_owned())).await.map_err(|failure| failure.message)? {
        Ok(Answer::Manifests(found)) => Ok(found),
        Ok(_) => Err("a worker process gave another answer".to_owned()),
        Err(Refused { message, .. }) => Err(message),
    }
}

/// Has a worker measure trees. A failure in words.
pub(crate) async fn measured(
    workers: &Workers,
    job: Job<'_>,
    trees: Vec<Tree>,
) -> Result<Vec<Option<Measured>>, String> {
    match ask(workers, job, &Work::Measure(trees)).await.map_err(|failure| failure.message)? {
        Ok(Answer::Measured(found)) => Ok(found),
        Ok(_) => Err("a worker process gave another answer".to_owned()),
        Err(Refused { message, .. }) => Err(message),
    }
}

/// Has a worker find out whether the file systems of directories take changes, for someone who has no worker to make them: a
/// thread that waits for a frozen disk could not be given up. A failure in words.
pub(crate) async fn changeable(
    workers: &Workers,
    pod: &str,
    sort: Sort,
    directories: &[PathBuf],
) -> Result<(), String> {
    let shown = directories.first().map(|path| path.display().to_string()).unwrap_or_default();
    let job = Job { pod, what: "records on disk", path: &shown, sort, within: PATH };
    let answer = ask(workers, job, &Work::Changeable(directories.to_vec())).await;
    answer.map(drop).map_err(|failure| failure.message)
}

async fn ask(workers: &Workers, job: Job<'_>, work: &Work) -> Result<Result<Answer, Refused>, Failure> {
    let answer = workers.run(job, load(work)?).await.map_err(not_done)?;
    let read = large::read(answer.len(), move || serde_json::from_slice(&answer)).await;
    read.map_err(|stopping| unknown(stopping.to_string()))?.map_err(|error| unknown(with_causes(&error)))
}

/// The message to a worker. The files of a volume are as large as a pod likes: they become a message when there is room for it.
fn load(work: &Work) -> Result<Load, Failure> {
    if let Work::Content { files, .. } = work {
        // Shares what is in the files.
        let (bytes, work) = (json_bytes(files), work.clone());
        return Ok(Load::later(bytes, move || json(&work, bytes)));
    }
    serde_json::to_vec(work).map(Load::from).map_err(|error| unknown(with_causes(&error)))
}

/// What files are as JSON, about: base64 with names of fields around it.
fn json_bytes(files: &[ContentFile]) -> usize {
    let one = |file: &ContentFile| file.path.len() + file.bytes.len().div_ceil(3) * 4 + FILE_BYTES;
    files.iter().map(one).sum::<usize>() + WORK_BYTES
}

fn json(work: &Work, bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes);
    // Text and numbers always have a form in JSON; a worker refuses an empty request.
    if serde_json::to_writer(&mut text, work).is_err() {
        text.clear();
    }
    text
}

fn not_done(error: WorkError) -> Failure {
    Failure { kind: FailureKind::Transient, message: with_causes(&error) }
}

#[cfg(test)]
mod tests {
    use berth_core::pod::port::volume::Backing;

    use super::*;
    use crate::{hidden::Hidden, volumes::EmptyDir};

    #[test]
    fn the_message_of_a_volume_is_no_longer_than_it_was_taken_to_be() {
        for count in [0, 1, 3, 1000] {
            let bytes = Hidden::new(vec![0xff; 1000]);
            let file = |number| ContentFile {
                path: format!("p{number}"),
                mode: u32::MAX,
                owner: Some(u32::MAX),
                bytes: bytes.clone(),
            };
            let files: Vec<ContentFile> = (0..count).map(file).collect();
            let taken_for = json_bytes(&files);
            let backing = Backing::Memory { size_bytes_max: Some(u64::MAX) };
            let empty = EmptyDir { backing, fs_group: Some(u32::MAX) };
            let (path, mark, nested) = ("/v".to_owned(), "/m".to_owned(), BTreeSet::new());
            let work = Work::Content { path, mark, request: empty.into(), files, nested };
            let message = json(&work, taken_for);
            assert!(message.len() <= taken_for, "{count}: {} {taken_for}", message.len());
            assert_eq!(serde_json::from_slice::<Work>(&message).unwrap(), work);
        }
    }
}
