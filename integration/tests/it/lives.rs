//! Pods that live on while something else ends: what must stay as it is, and what they wrote.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, mem};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::containerd::ctr;
use berth_integration::lab::World;
use berth_integration::node::PodState;
use berth_integration::process::tail;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{pod, shell, task_pid};

/// What the agent logs when it kills a shim that answers nothing.
pub(crate) const SHIM_KILLED: &str = "does not answer, killed";

/// What must not change while a pod lives on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: String,
    pub(crate) id: String,
    pub(crate) pid: u32,
    pub(crate) ip: IpAddr,
    pub(crate) ready_since: String,
    pub(crate) restarts: u64,
}

impl Identity {
    pub(crate) fn of(pod: &PodState) -> Result<Self> {
        let id = pod.container_id("main")?.to_owned();
        let conditions = pod.0["status"]["conditions"].as_array().context("no conditions")?;
        let ready = conditions.iter().find(|one| one["type"] == "Ready").context("no Ready condition")?;
        Ok(Self {
            uid: pod.uid().to_owned(),
            pid: task_pid(&id)?,
            id,
            ip: pod.ip()?,
            ready_since: ready["lastTransitionTime"].to_string(),
            restarts: pod.restarts("main"),
        })
    }
}

/// Ends with 6 when somebody makes the file `go`.
pub(crate) fn waits_for_a_file(name: &str, dir: &Path) -> String {
    let what = "while ! test -e /v/go; do sleep 0.1; done; echo last words > /dev/termination-log; exit 6";
    pod(
        name,
        json!({
            "restartPolicy": "Never",
            "containers": [shell("main", what, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
            "volumes": [{ "name": "v", "hostPath": { "path": dir } }],
        }),
    )
}

/// The process that is the sandbox of a pod, of which containerd has a container, running or not.
pub(crate) fn shim_of(pod: &PodState) -> Result<u32> {
    let of_pod = format!("labels.\"io.kubernetes.pod.uid\"=={}", pod.uid());
    let ids = ctr(&["containers", "ls", "-q", &of_pod])?;
    let id = ids.lines().next().context("no container")?;
    let info = ctr(&["containers", "info", id])?;
    let info: Value = serde_json::from_str(&info)?;
    let sandbox =
        info["Spec"]["annotations"]["io.kubernetes.cri.sandbox-id"].as_str().context("no sandbox id")?;
    for pid in World::here()?.processes()? {
        // It may end between the two looks.
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
        if line.contains("containerd-shim-berth-v1") && line.contains(sandbox) {
            return Ok(pid);
        }
    }
    anyhow::bail!("no shim of {sandbox}")
}

/// Where the log of a pod's container `main` is.
pub(crate) fn log_dir(pod: &PodState) -> PathBuf {
    PathBuf::from(format!("/var/log/pods/default_{}_{}/main", pod.name(), pod.uid()))
}

/// Waits until the log of a container that writes the numbers from 1 to `last` has them, each once and in order, over all
/// its files.
pub(crate) fn counted_to(dir: &Path, last: usize, limit: Duration) -> Result<()> {
    wait::until("the last line", limit, || {
        let tail = tail(&dir.join("0.log"));
        let line = tail.lines().last().unwrap_or_default().to_owned();
        let there = line.ends_with(&format!(" stdout F {last}"));
        Ok(if there { Look::Ready(()) } else { Look::NotYet(line) })
    })?;
    let read = read_lines(dir)?;
    ensure!(read.len() == last, "{} lines of {last}", read.len());
    let wrong = read.iter().zip(1..).find(|(line, number)| **line != number.to_string());
    ensure!(wrong.is_none(), "first line out of place: {wrong:?}");
    Ok(())
}

/// A file of a log that may be compressed meanwhile: its copy is whole before it goes.
fn read_plain_or_compressed(file: &Path) -> Result<String> {
    if let Ok(text) = fs::read_to_string(file) {
        return Ok(text);
    }
    let copy = format!("{}.gz", file.display());
    let done = Command::new("gzip").arg("-dc").arg(&copy).output().context("start gzip")?;
    ensure!(done.status.success(), "gzip of {copy}");
    Ok(String::from_utf8(done.stdout)?)
}

/// The texts of all lines of all files of a log, oldest first. A line whose end was long in coming is in parts.
fn read_lines(dir: &Path) -> Result<Vec<String>> {
    let files: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    // Names of rotated files end with their time, whether they are compressed or are just about to be.
    let is_form = |path: &PathBuf| path.extension().is_some_and(|form| form == "gz" || form == "tmp");
    let plain = files.into_iter().map(|path| if is_form(&path) { path.with_extension("") } else { path });
    let current = dir.join("0.log");
    let rotated: BTreeSet<PathBuf> = plain.filter(|path| *path != current).collect();
    let (mut lines, mut part) = (Vec::new(), String::new());
    for file in rotated.into_iter().chain([current]) {
        let text = read_plain_or_compressed(&file)?;
        for record in text.lines() {
            let [_, _, tag, content] = record.splitn(4, ' ').collect::<Vec<_>>()[..] else {
                bail!("no record of a log: {record:?}")
            };
            part.push_str(content);
            if tag == "F" {
                lines.push(mem::take(&mut part));
            }
        }
    }
    Ok(lines)
}
