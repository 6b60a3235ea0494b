//! Questions to workers about trees, and what their answers mean.

use std::{path::Path, time::Duration};

use berth_core::{
    paths,
    stats::{FileSystem, Mounted, PodSubject, PodUsage, Usage, VolumeSubject, mounted, upper_dir},
};
use jiff::Timestamp;

use super::{READ_WITHIN, Stats, proc};
use crate::{
    effects,
    usage::{MEASURED_WITHIN, Measured, Tree},
    workers::{Job, Sort},
};

/// For file systems, which answer from memory.
const FILE_SYSTEMS_WITHIN: Duration = Duration::from_secs(5);

/// For the trees of a pod, and the wait for a place.
const TREES_WITHIN: Duration = Duration::from_secs(60);

const _: () =
    assert!(TREES_WITHIN.as_secs() > MEASURED_WITHIN.as_secs(), "a worker ends before it is given up");

/// What a tree of a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Meant {
    Volume(String),
    Logs(String),
    Layer(String),
    PodLogs,
    Hosts,
}

impl Stats {
    /// Measures the file systems of the node: whether those of the agent and of images have answered.
    pub(super) async fn measure_node(self) -> bool {
        let root = self.0.host.config.node.paths.root.clone();
        // It may be long, and its reader waits for those who mount something meanwhile.
        let mounts = || proc::text(Path::new("/proc/thread-self/mountinfo")).unwrap_or_default();
        let mounts = self.0.thread.run(READ_WITHIN, mounts).await.unwrap_or_default();
        let shown = mounted(&mounts, &root);
        let images = self.layers_dir().await.unwrap_or_default();
        let places =
            [root.clone(), images.clone()].into_iter().chain(shown.iter().map(|one| one.point.clone()));
        let trees: Vec<Tree> = places.map(Tree::FileSystem).collect();
        let found = self.ask("", "file systems", &root, FILE_SYSTEMS_WITHIN, trees).await;
        let mut found = found.into_iter();
        let mut next = || found.next().flatten().and_then(|found| Some((time(&found)?, file_system(&found))));
        let (node, images) = (next(), next());
        let is_known = node.is_some() && images.is_some();
        let mut disks = self.disks();
        disks.node = node.or(disks.node);
        disks.images = images.or(disks.images);
        let shown: Vec<(Mounted, FileSystem)> =
            shown.into_iter().filter_map(|mounted| Some((mounted, next()?.1))).collect();
        if !shown.is_empty() {
            disks.mounted = shown;
        }
        is_known
    }

    /// Measures what a pod has on disks. What could not be measured stays as it was.
    pub(super) async fn measure_pod(self, pod: PodSubject, layers: Vec<(String, String)>) {
        let wanted = self.trees(&pod, layers);
        let (meant, trees): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let uid = pod.uid.as_str().to_owned();
        let place = paths::pod_dir(&self.0.host.config.node.paths, &pod.uid);
        let found = self.ask(&uid, "usage of disks", &place, TREES_WITHIN, trees).await;
        let mut disks = self.disks();
        let usage = disks.pods.entry(pod.uid.clone()).or_default();
        for (meant, found) in meant.into_iter().zip(found) {
            if let Some(found) = found.as_ref().and_then(self::usage) {
                put(usage, meant, found);
            }
        }
        keep_only(usage, &pod);
    }

    /// Trees of a pod: volumes if they are measured at all, logs, writable layers, its hosts file.
    fn trees(&self, pod: &PodSubject, layers: Vec<(String, String)>) -> Vec<(Meant, Tree)> {
        let config = &self.0.host.config;
        let paths = &config.node.paths;
        let logs = paths::pod_logs(paths, &pod.name, &pod.uid);
        let mut trees = vec![
            (Meant::PodLogs, Tree::Files(logs.clone())),
            (Meant::Hosts, Tree::Whole(paths::etc_hosts(paths, &pod.uid))),
        ];
        for container in &pod.containers {
            let name = container.name.as_str();
            let dir = format!("{logs}/{}", paths::component(name));
            trees.push((Meant::Logs(name.to_owned()), Tree::Files(dir)));
        }
        let volumes = pod.volumes.iter().filter(|_| config.stats.volume_period.is_some());
        trees.extend(volumes.filter_map(|VolumeSubject { volume, .. }| {
            let path = paths::volume(paths, &pod.uid, &volume.name, &volume.source)?;
            Some((Meant::Volume(volume.name.to_string()), Tree::Whole(path)))
        }));
        trees.extend(layers.into_iter().map(|(id, dir)| (Meant::Layer(id), Tree::Whole(dir))));
        trees
    }

    /// Writable layers of a pod's containers, by what their first processes see as root. In the thread that reads.
    pub(super) fn upper_dirs(&self, pod: &PodSubject, below: &str) -> Vec<(String, String)> {
        let one = |cgroup: &str| {
            let process = self.0.hierarchy.first_process(cgroup)?;
            upper_dir(&proc::text(Path::new(&format!("/proc/{process}/mountinfo")))?, below)
        };
        pod.containers
            .iter()
            .filter_map(|container| Some((container.id.as_str().to_owned(), one(&container.cgroup)?)))
            .collect()
    }

    async fn ask(
        &self,
        pod: &str,
        what: &str,
        path: &str,
        within: Duration,
        trees: Vec<Tree>,
    ) -> Vec<Option<Measured>> {
        let job = Job { pod, what, path, sort: Sort::Measured, within };
        effects::measured(&self.0.host.workers, job, trees).await.unwrap_or_else(|why| {
            tracing::debug!(pod, what, why, "not measured");
            Vec::new()
        })
    }
}

fn put(usage: &mut PodUsage, meant: Meant, found: Usage) {
    match meant {
        Meant::Volume(name) => drop(usage.volumes.insert(name, found)),
        Meant::Logs(name) => drop(usage.logs.insert(name, found)),
        Meant::Layer(id) => drop(usage.layers.insert(id, found)),
        Meant::PodLogs => usage.pod_logs = Some(found),
        Meant::Hosts => usage.hosts = Some(found),
    }
}

/// Forgets runs that have ended.
fn keep_only(usage: &mut PodUsage, pod: &PodSubject) {
    usage.layers.retain(|id, _| pod.containers.iter().any(|container| container.id.as_str() == id));
}

fn usage(found: &Measured) -> Option<Usage> {
    Some(Usage {
        at: time(found)?,
        bytes: found.bytes,
        inodes: found.inodes,
        file_system: file_system(found),
    })
}

fn time(found: &Measured) -> Option<Timestamp> {
    Timestamp::from_second(found.at).ok()
}

fn file_system(found: &Measured) -> FileSystem {
    let [capacity, free, available, inodes, inodes_free] = found.file_system;
    FileSystem { capacity, free, available, inodes, inodes_free }
}
