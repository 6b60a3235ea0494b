//! What is on the node under UIDs of pods, by the names of directories and cgroups.

use std::{collections::BTreeMap, fs};

use berth_core::{
    cgroup::names,
    config::{CgroupDriver, CgroupSettings, NodeConfig},
    id::PodUid,
    node::Seen,
    spec::QosClass,
};

use crate::{cgroup::Tree, mark};

/// Everything that is there, with the marks of directories.
#[must_use]
pub fn seen(node: &NodeConfig, tree: &Tree) -> Seen {
    Seen { dirs: directories(&node.paths.root), cgroups: cgroups(&node.cgroups, tree).into_iter().collect() }
}

fn directories(root: &str) -> BTreeMap<PodUid, Option<String>> {
    let Ok(entries) = fs::read_dir(format!("{root}/pods")) else { return BTreeMap::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some((PodUid::new(entry.file_name().to_str()?), mark::read(&entry.path()))))
        .collect()
}

fn cgroups(settings: &CgroupSettings, tree: &Tree) -> Vec<PodUid> {
    let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
    let names = classes.into_iter().flat_map(|class| tree.children(&names::qos(settings, class)));
    names.filter_map(|name| uid_of_cgroup(&name, settings.driver)).collect()
}

/// The UID in the name of a pod's cgroup: `pod<uid>`, or `…-pod<uid with _>.slice`.
fn uid_of_cgroup(name: &str, driver: CgroupDriver) -> Option<PodUid> {
    let uid = match driver {
        CgroupDriver::Cgroupfs => name.strip_prefix("pod")?.to_owned(),
        CgroupDriver::Systemd => {
            let (_, uid) = name.strip_suffix(".slice")?.rsplit_once("-pod")?;
            uid.replace('_', "-")
        }
    };
    Some(uid).filter(|uid| !uid.is_empty()).map(PodUid::new)
}

#[cfg(test)]
mod tests {

    use berth_core::{config::CgroupVersion, id::ContainerId};
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn pods_that_left_only_cgroups_are_found_in_every_class() {
        use CgroupDriver::{Cgroupfs, Systemd};
        for (driver, root) in [(Cgroupfs, "/"), (Cgroupfs, "/kubelet"), (Systemd, "/"), (Systemd, "/kubelet")]
        {
            let settings = CgroupSettings::new(CgroupVersion::V2, driver, root);
            let directory = TempDir::new().unwrap();
            let tree = Tree::at(directory.path());
            assert_eq!(cgroups(&settings, &tree), []);
            let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
            for (class, uid) in classes.into_iter().zip(["1-a", "2-b-c", "3"]) {
                let uid = PodUid::new(uid);
                let id = ContainerId::from_known("4f0a");
                tree.ensure(&names::container(&settings, class, &uid, &id)).unwrap();
            }
            tree.ensure(&format!("{}/other", names::kubepods(&settings))).unwrap();
            let found = cgroups(&settings, &tree);
            assert_eq!(found, ["1-a", "2-b-c", "3"].map(PodUid::new), "{driver:?} {root}");
            // What is found goes with all that is below it.
            for (class, uid) in classes.into_iter().zip(&found) {
                tree.remove(&names::pod(&settings, class, uid)).unwrap();
            }
            assert_eq!(cgroups(&settings, &tree), []);
        }
    }

    #[test]
    fn directories_are_seen_with_their_marks() {
        let root = TempDir::new().unwrap();
        let pods = root.path().join("pods");
        assert_eq!(directories(root.path().to_str().unwrap()), BTreeMap::new());
        for uid in ["bare", "marked"] {
            fs::create_dir_all(pods.join(uid)).unwrap();
        }
        mark::set(&pods.join("marked"), "/run/berth").unwrap();
        // Neither is a pod's directory.
        fs::write(pods.join("file"), "").unwrap();
        std::os::unix::fs::symlink("marked", pods.join("link")).unwrap();
        let found = directories(root.path().to_str().unwrap());
        let expected = [("bare", None), ("marked", Some("/run/berth".to_owned()))];
        assert_eq!(found, expected.map(|(uid, mark)| (PodUid::new(uid), mark)).into());
    }

    #[test]
    fn uids_in_names_of_cgroups() {
        use CgroupDriver::{Cgroupfs, Systemd};
        let cases = [
            ("pod12-ab", Cgroupfs, Some("12-ab")),
            ("burstable", Cgroupfs, None),
            ("pod", Cgroupfs, None),
            ("kubepods-burstable-pod12_ab.slice", Systemd, Some("12-ab")),
            ("kubepods-pod12_ab.slice", Systemd, Some("12-ab")),
            ("kubepods-burstable.slice", Systemd, None),
            ("cri-containerd-1.scope", Systemd, None),
        ];
        for (name, driver, uid) in cases {
            assert_eq!(uid_of_cgroup(name, driver), uid.map(PodUid::new), "{name}");
        }
    }
}
