//! What is done on files, as it is given to a worker process and performed there.
//!
//! The worker has nothing of the agent but what is in the request, so requests are values of their own, and JSON.

use std::{path::Path, time::Duration};

use berth_core::{
    effect::SubPathBind,
    event::{Failure, FailureKind},
};
use serde::{Deserialize, Serialize};

use super::{
    dirs,
    failure::{local, unknown},
    host::Host,
    host_files, image_volumes,
    look::{self, Place},
    mount_source, prepare, rootfs, sub_path, termination, volumes,
    wire::{
        DeviceText, EmptyDirText, FileText, HostPathText, ImageVolumeText, LayerText, MountSourceText,
        SubPathText,
    },
};
use crate::{
    chain::chain,
    volumes::{remove_tree, unmount_below},
    workers::{Job, Sort, WorkError},
};

/// For a look at a path that a pod chose: milliseconds, or a file system that does not answer.
pub(super) const PATH: Duration = Duration::from_secs(10);
/// For a few files in directories of the node, on a disk that is busy.
pub(super) const FILES: Duration = Duration::from_secs(20);
/// For a tree of unknown size: below the deadline of its effect.
pub(super) const TREE: Duration = Duration::from_secs(240);

/// One piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    /// Makes an emptyDir.
    EmptyDir { path: String, mark: String, request: EmptyDirText },
    /// Looks at a hostPath, or makes it.
    HostPath { path: String, kind: HostPathText },
    /// Makes directories, each with a mode.
    MakeDirs(Vec<(String, u32)>),
    /// Unmounts everything below a directory.
    Unmount(String),
    /// Removes trees, one after another.
    Remove(Vec<String>),
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
        devices: bool,
    },
    /// Copies what an image has at its `VOLUME`s.
    ImageVolumes { layers: Vec<LayerText>, scratch: String, volumes: Vec<ImageVolumeText> },
    /// Reads the account files of an image. Answer: `Accounts`.
    Accounts { layers: Vec<LayerText>, scratch: String },
    /// Removes a tree that is most often not there.
    Clear(String),
    /// Makes a link, and the directory it is in.
    Link { target: String, link: String },
    /// Removes a log with its rotated parts, and the link to it.
    Unlink { link: String, log: String },
    /// Looks whether something is there. Answer: `Missing`.
    Look(Vec<Place>),
    /// Writes files that are missing.
    WriteFiles(Vec<FileText>),
    /// Reads the last words of a container. Answer: `Words`.
    Words { file: Option<String>, log: Option<String> },
}

/// What it brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Nothing more to say.
    Done,
    /// Of the node, for a container's spec.
    Parts { profile: Option<String>, devices: Vec<DeviceText> },
    /// A part of the volume of this name could not be bound; details are not for the pod's owner.
    Withheld { mount: String, why: String },
    /// Account files.
    Accounts { passwd: String, group: String },
    /// Last words.
    Words(String),
    /// Which of what was asked for is missing, by its place in the request.
    Missing(Vec<usize>),
}

/// A failure, as a worker tells it.
#[derive(Debug, Serialize, Deserialize)]
struct Refused {
    is_config: bool,
    message: String,
}

/// What a piece of work is called and where it belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Called<'a> {
    /// What it is, such as `volume data`: done only once at a time for a pod.
    pub(super) what: &'a str,
    /// The path it is most likely to hang on.
    pub(super) path: &'a str,
    pub(super) sort: Sort,
    pub(super) within: Duration,
}

impl Host {
    /// Has a worker do something for a pod.
    pub(super) async fn work(&self, pod: &str, called: Called<'_>, work: &Work) -> Result<Answer, Failure> {
        let Called { what, path, sort, within } = called;
        let request = serde_json::to_vec(work).map_err(|error| unknown(chain(&error)))?;
        let answer =
            self.workers.run(Job { pod, what, path, sort, within }, request).await.map_err(not_done)?;
        let answer: Result<Answer, Refused> =
            serde_json::from_slice(&answer).map_err(|error| unknown(chain(&error)))?;
        answer.map_err(|Refused { is_config, message }| {
            let kind = if is_config { FailureKind::Config } else { FailureKind::Transient };
            Failure { kind, message }
        })
    }
}

fn not_done(error: WorkError) -> Failure {
    Failure { kind: FailureKind::Transient, message: chain(&error) }
}

/// Performs a request in a worker, and gives the answer to it.
#[must_use]
pub fn perform_work(request: &[u8]) -> Vec<u8> {
    let done = match serde_json::from_slice(request) {
        Ok(work) => perform(work),
        Err(error) => Err(unknown(format!("read a request: {}", chain(&error)))),
    };
    let answer =
        done.map_err(|Failure { kind, message }| Refused { is_config: kind == FailureKind::Config, message });
    // A value of these types always has a form in JSON; an empty answer would be a failure.
    serde_json::to_vec(&answer).unwrap_or_default()
}

fn perform(work: Work) -> Result<Answer, Failure> {
    match work {
        Work::EmptyDir { path, mark, request } => volumes::empty_dir(&path, &mark, request.into())?,
        Work::HostPath { path, kind } => volumes::host_path(&path, kind.into())?,
        Work::MakeDirs(dirs) => {
            dirs.iter().try_for_each(|(dir, mode)| host_files::make_dir(dir, *mode))?;
        }
        Work::Unmount(dir) => unmount_below(dir.as_ref()).map_err(volumes::failure)?,
        Work::Remove(trees) => trees.iter().try_for_each(remove)?,
        Work::RemoveLogs { logs, links } => dirs::remove_logs(&logs, &links)?,
        Work::SweepLogs { all, suffix, links } => dirs::sweep_logs(&all, &suffix, &links)?,
        Work::Container { files, sub_paths, mount_sources, log_dir, profile, devices } => {
            files.into_iter().try_for_each(|file| host_files::write(&file.into()))?;
            for bind in sub_paths.into_iter().map(SubPathBind::from) {
                if let Err(failure) = sub_path::bind(&bind) {
                    return Ok(Answer::Withheld { mount: bind.mount.to_string(), why: failure.message });
                }
            }
            mount_sources.into_iter().try_for_each(|source| mount_source::prepare(&source.into()))?;
            if let Some(dir) = log_dir {
                host_files::make_dir(dir, 0o755)?;
            }
            return prepare::parts(profile.as_deref(), devices);
        }
        Work::ImageVolumes { layers, scratch, volumes } => {
            let layers: Vec<_> = layers.into_iter().map(Into::into).collect();
            let volumes: Vec<_> = volumes.into_iter().map(Into::into).collect();
            image_volumes::make(&layers, &scratch, &volumes)?;
        }
        Work::Accounts { layers, scratch } => {
            let layers: Vec<_> = layers.into_iter().map(Into::into).collect();
            return rootfs::read_accounts(&layers, &scratch);
        }
        Work::Clear(tree) => {
            host_files::absent_is_fine(std::fs::remove_dir_all(&tree)).map_err(local("remove", &tree))?;
        }
        Work::Link { target, link } => host_files::link(&target, &link)?,
        Work::Unlink { link, log } => {
            host_files::remove_log(&log)?;
            host_files::remove_file(link)?;
        }
        Work::Look(places) => return look::missing(&places),
        Work::WriteFiles(files) => {
            files.into_iter().try_for_each(|file| host_files::write(&file.into()))?;
        }
        Work::Words { file, log } => {
            let path = |text: &'_ Option<String>| text.as_deref().map(Path::new).map(Path::to_owned);
            return Ok(Answer::Words(termination::words(path(&file).as_deref(), path(&log).as_deref())));
        }
    }
    Ok(Answer::Done)
}

fn remove(tree: &String) -> Result<(), Failure> {
    remove_tree(tree.as_ref()).map_err(local("remove", tree))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_cannot_read_it_refuses() {
        for request in [&b""[..], b"{", b"{\"Format\":\"/\"}", b"\"Remove\"", &[0xff; 64]] {
            let answer: Result<Answer, Refused> = serde_json::from_slice(&perform_work(request)).unwrap();
            assert!(answer.unwrap_err().message.starts_with("read a request: "));
        }
    }

    #[test]
    fn a_wrong_host_path_is_told_from_one_that_cannot_be_looked_at() {
        let ask = |path: &str| {
            let work = Work::HostPath { path: path.to_owned(), kind: HostPathText::Directory };
            let answer = perform_work(&serde_json::to_vec(&work).unwrap());
            serde_json::from_slice::<Result<Answer, Refused>>(&answer).unwrap()
        };
        assert_eq!(ask("/proc").unwrap(), Answer::Done);
        assert!(ask("/dev/null").unwrap_err().is_config);
        assert!(!ask(&format!("/{}", "x".repeat(300))).unwrap_err().is_config);
    }
}
