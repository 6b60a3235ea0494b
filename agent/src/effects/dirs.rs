//! Directories of pods, as the kubelet lays them out: `<root>/pods/<uid>` and the logs.

use std::{fs, path::Path, sync::Arc};

use berth_core::{
    event::{Failure, Outcome},
    id::{PodName, PodUid},
    paths,
};

use super::{
    cgroups,
    failure::local,
    host::{Host, blocking},
    host_files, volumes,
};
use crate::volumes::remove_tree;

/// Makes the pod's directories.
pub(super) async fn ensure(host: &Arc<Host>, pod: &PodUid, name: PodName) -> Result<Outcome, Failure> {
    let (host, pod) = (Arc::clone(host), pod.clone());
    blocking(move || {
        let node = &host.node().paths;
        let own = [host.pod_dir(&pod), paths::volumes_dir(node, &pod), paths::plugins_dir(node, &pod)];
        for dir in own {
            host_files::make_dir(dir, 0o750)?;
        }
        host_files::make_dir(paths::pod_logs(node, &name, &pod), 0o755)?;
        Ok(Outcome::Done)
    })
    .await
}

/// Removes the pod's directories, its logs and the links to them. Its volumes are unmounted before.
pub(super) async fn remove(host: &Arc<Host>, pod: &PodUid, name: PodName) -> Result<Outcome, Failure> {
    let (host, pod) = (Arc::clone(host), pod.clone());
    blocking(move || {
        let dir = host.pod_dir(&pod);
        remove_tree(Path::new(&dir)).map_err(local("remove", &dir))?;
        remove_logs(&host, &paths::pod_logs(&host.node().paths, &name, &pod))
    })
    .await
}

/// Removes whatever is left under a UID: volumes, cgroups, directories, logs.
pub(super) async fn sweep(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    volumes::remove_all(host, pod).await?;
    cgroups::remove_any(host, pod).await?;
    let (host, pod) = (Arc::clone(host), pod.clone());
    blocking(move || {
        let dir = host.pod_dir(&pod);
        remove_tree(Path::new(&dir)).map_err(local("remove", &dir))?;
        let suffix = format!("_{}", paths::component(pod.as_str()));
        let Ok(entries) = fs::read_dir(&host.node().paths.pod_logs) else { return Ok(Outcome::Done) };
        for entry in entries.filter_map(Result::ok) {
            if entry.file_name().to_str().is_some_and(|name| name.ends_with(&suffix)) {
                remove_logs(&host, &entry.path().display().to_string())?;
            }
        }
        Ok(Outcome::Done)
    })
    .await
}

/// Removes a pod's logs, and the links that lead to them.
fn remove_logs(host: &Host, logs: &str) -> Result<Outcome, Failure> {
    remove_tree(Path::new(logs)).map_err(local("remove", logs))?;
    let Ok(entries) = fs::read_dir(&host.node().paths.container_logs) else { return Ok(Outcome::Done) };
    for entry in entries.filter_map(Result::ok) {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(logs)) {
            host_files::remove_file(entry.path())?;
        }
    }
    Ok(Outcome::Done)
}
