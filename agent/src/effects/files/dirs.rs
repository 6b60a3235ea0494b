//! Directories of pods, as the kubelet lays them out: `<root>/pods/<uid>` and the logs.

use std::{fs, path::Path, sync::Arc};

use berth_core::{
    config::Paths,
    event::Outcome,
    failure::Failure,
    id::{PodName, PodUid},
    paths,
};

use super::{
    cgroups,
    failure::local,
    host::Host,
    host_files,
    work::{Called, FILES, TREE, Work},
};
use crate::{mark, volumes::remove_tree, workers::Sort};

/// Mode of the directories of pods.
const MODE: u32 = 0o750;

/// A name that no file has.
const NOBODYS: &str = ".berth-nobodys";

/// Makes the pod's directories, with the mark that they are ours before anything is in them. That of all pods' logs is for root's
/// group, as `setupDataDirs` of `pkg/kubelet/kubelet.go` makes it, if it is missing.
pub(in crate::effects) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    name: PodName,
) -> Result<Outcome, Failure> {
    let node = &host.node().paths;
    let logs = paths::pod_logs(node, &name, pod);
    let dirs = [(node.pod_logs.clone(), MODE)].into_iter().chain(of(node, pod, &name)).collect();
    let work = Work::MakePodDirs { pod: paths::pod_dir(node, pod), run: node.run.clone(), dirs };
    let called = Called { what: "directories", path: &logs, sort: Sort::Own, within: FILES };
    host.work(pod.as_str(), called, &work).await?;
    Ok(Outcome::Done)
}

/// The pod's directories, each with its mode.
pub(in crate::effects) fn of(node: &Paths, pod: &PodUid, name: &PodName) -> Vec<(String, u32)> {
    let own = [paths::pod_dir(node, pod), paths::volumes_dir(node, pod), paths::plugins_dir(node, pod)];
    let logs = paths::pod_logs(node, name, pod);
    own.into_iter().map(|dir| (dir, MODE)).chain([(logs, 0o755)]).collect()
}

/// Removes the pod's logs, the links to them and its directories, whose mark is what it is found by should the machine go down in between.
/// Its volumes are unmounted before.
pub(in crate::effects) async fn remove(
    host: &Arc<Host>,
    pod: &PodUid,
    name: PodName,
) -> Result<Outcome, Failure> {
    let node = &host.node().paths;
    let (logs, links) = (paths::pod_logs(node, &name, pod), node.container_logs.clone());
    let called = Called { what: "removal of logs", path: &logs, sort: Sort::Ends, within: TREE };
    host.work(pod.as_str(), called, &Work::RemoveLogs { logs: logs.clone(), links }).await?;
    host.failpoint.reach("pod.logs-removed");
    remove_dir(host, pod).await?;
    Ok(Outcome::Done)
}

/// Removes what is left under a UID beside its directory: cgroups and logs.
pub(in crate::effects) async fn sweep_beside(host: &Arc<Host>, pod: &PodUid) -> Result<(), Failure> {
    cgroups::remove_any(host, pod).await?;
    let node = &host.node().paths;
    let (all, links) = (node.pod_logs.clone(), node.container_logs.clone());
    let suffix = format!("_{}", paths::component(pod.as_str()));
    let called = Called { what: "removal of logs", path: &all, sort: Sort::Ends, within: TREE };
    host.work(pod.as_str(), called, &Work::SweepLogs { all: all.clone(), suffix, links }).await?;
    Ok(())
}

/// Removes the directory of a UID, whose mark proves that all under it is ours.
pub(in crate::effects) async fn remove_marked(host: &Host, pod: &PodUid) -> Result<Outcome, Failure> {
    remove_dir(host, pod).await?;
    Ok(Outcome::Done)
}

async fn remove_dir(host: &Host, pod: &PodUid) -> Result<(), Failure> {
    let dir = host.pod_dir(pod);
    let called = Called { what: "removal of directories", path: &dir, sort: Sort::Ends, within: TREE };
    host.work(pod.as_str(), called, &Work::RemovePodDir(dir.clone())).await?;
    Ok(())
}

/// In a worker: makes a pod's directory with its mark, then the others.
pub(in crate::effects) fn make(pod: &str, run: &str, dirs: &[(String, u32)]) -> Result<(), Failure> {
    host_files::make_dir(pod, MODE)?;
    mark::set(Path::new(pod), run).map_err(local("mark directory", pod))?;
    dirs.iter().try_for_each(|(dir, mode)| host_files::make_dir(dir, *mode))
}

/// In a worker: removes a pod's directory, whose mark goes last.
pub(in crate::effects) fn remove_pod_dir(dir: &str) -> Result<(), Failure> {
    let dir = Path::new(dir);
    let remove = || {
        // Nobody but the agent makes what is there, and it makes no links.
        if dir.is_dir() {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_name() != paths::POD_MARK {
                    remove_tree(&entry.path())?;
                }
            }
        }
        remove_tree(dir)
    };
    remove().map_err(local("remove", dir))
}

/// In a worker: removes the logs of a UID, whatever the pod was called.
pub(in crate::effects) fn sweep_logs(all: &str, suffix: &str, links: &str) -> Result<(), Failure> {
    let Ok(entries) = fs::read_dir(all) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(|name| name.ends_with(suffix)) {
            remove_logs(&entry.path().display().to_string(), links)?;
        }
    }
    Ok(())
}

/// In a worker: removes a pod's logs, and the links that lead to them or to a pod that has none.
pub(in crate::effects) fn remove_logs(logs: &str, links: &str) -> Result<(), Failure> {
    remove_tree(Path::new(logs)).map_err(local("remove", logs))?;
    let (Some(all), Ok(entries)) = (Path::new(logs).parent(), fs::read_dir(links)) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        let leads_nowhere = |target: &Path| {
            let pod = target.strip_prefix(all).ok().and_then(|within| within.iter().next());
            pod.is_some_and(|pod| all.join(pod).symlink_metadata().is_err_and(|error| is_absent(&error)))
        };
        if fs::read_link(entry.path()).is_ok_and(|target| leads_nowhere(&target)) {
            // One that stays holds nobody up.
            let _stays = host_files::remove_file(entry.path());
        }
    }
    Ok(())
}

fn is_absent(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

/// Returns when the file system of a directory takes changes: a frozen one holds whoever asks for one, whatever it is. What is
/// asked for is the removal of what is not there, so nothing changes.
pub(in crate::effects) fn wait_for_changes(directory: &Path) {
    // One that is missing is made later, in the one that is there.
    let there = directory.ancestors().find(|path| path.is_dir());
    // Fails, since it is not there.
    let _refused = there.map(|there| fs::remove_file(there.join(NOBODYS)));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::own_mounts::{tmpfs, with_own_mounts};

    /// A pod's directory is there before links lead into it, and a log may come after its link.
    #[test]
    fn with_the_logs_of_a_pod_go_links_to_it_and_to_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path).display().to_string();
        for made in ["pods/a_web_1/main", "pods/a_web_2/main", "links", "other"] {
            fs::create_dir_all(at(made)).unwrap();
        }
        let links = [
            ("own", at("pods/a_web_1/main/0.log"), false),
            ("of-nobody", at("pods/a_gone_7/main/0.log"), false),
            ("without-log", at("pods/a_web_2/main/3.log"), true),
            ("of-others", at("other/a_gone_7/main/0.log"), true),
            ("above", at("pods"), true),
            ("relative", "pods/a_gone_7/main/0.log".to_owned(), true),
        ];
        for (name, target, _) in &links {
            symlink(target, at(&format!("links/{name}"))).unwrap();
        }
        fs::write(at("links/file"), "").unwrap();
        remove_logs(&at("pods/a_web_1"), &at("links")).unwrap();
        for (name, _, stays) in &links {
            assert_eq!(fs::symlink_metadata(at(&format!("links/{name}"))).is_ok(), *stays, "{name}");
        }
        assert!(Path::new(&at("links/file")).exists() && !Path::new(&at("pods/a_web_1")).exists());
    }

    #[test]
    fn a_pods_directory_is_marked_before_anything_is_in_it_and_until_nothing_is() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("pods/u");
        let text = pod.display().to_string();
        let (below, held) = (format!("{text}/volumes"), pod.join("held"));
        // Older than the mark: directories are mostly read from the newest entry on.
        fs::create_dir_all(&held).unwrap();
        // Its other directories cannot be made.
        make(&text, "/run/berth", &[("/proc/none".to_owned(), MODE)]).unwrap_err();
        assert_eq!(mark::read(&pod).as_deref(), Some("/run/berth"));
        make(&text, "/run/berth", &[(below.clone(), MODE)]).unwrap();
        assert!(Path::new(&below).is_dir());

        with_own_mounts(|| {
            tmpfs(&held);
            // What is mounted cannot be removed.
            remove_pod_dir(&text).unwrap_err();
        });
        assert_eq!(mark::read(&pod).as_deref(), Some("/run/berth"));
        for _ in 0..2 {
            remove_pod_dir(&text).unwrap();
            assert!(!pod.exists());
        }
    }
}
