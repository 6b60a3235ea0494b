//! Names of cgroups for both drivers, as paths below the mount point of a hierarchy.
//!
//! Source: `pkg/kubelet/cm/cgroup_manager_linux.go` `CgroupName`, containerd `internal/cri/server/helpers.go`
//! `getCgroupsPath`. cAdvisor and monitoring tools parse these names.

use crate::{
    config::{CgroupDriver, CgroupSettings},
    id::{ContainerId, PodUid},
    paths,
    spec::QosClass,
};

const KUBEPODS: &str = "kubepods";
const SLICE: &str = ".slice";

/// The level of all pods.
#[must_use]
pub fn kubepods(settings: &CgroupSettings) -> String {
    path(settings, &[])
}

/// The parent of the pods of a class; `Guaranteed` pods are directly below [`kubepods`].
#[must_use]
pub fn qos(settings: &CgroupSettings, class: QosClass) -> String {
    match level(class) {
        Some(level) => path(settings, &[level]),
        None => kubepods(settings),
    }
}

/// The level of a pod.
#[must_use]
pub fn pod(settings: &CgroupSettings, class: QosClass, uid: &PodUid) -> String {
    let own = format!("pod{}", paths::component(uid.as_str()));
    match level(class) {
        Some(level) => path(settings, &[level, &own]),
        None => path(settings, &[&own]),
    }
}

/// The cgroup of a container.
#[must_use]
pub fn container(settings: &CgroupSettings, class: QosClass, uid: &PodUid, id: &ContainerId) -> String {
    let parent = pod(settings, class, uid);
    match settings.driver {
        CgroupDriver::Cgroupfs => format!("{parent}/{id}"),
        CgroupDriver::Systemd => format!("{parent}/cri-containerd-{id}.scope"),
    }
}

/// The cgroup in which the agent of a run directory tries OCI runtimes, beside its pods: its own, since others on the machine may
/// try theirs at the same time. `None` with the systemd driver, under which scopes have names of their own.
#[must_use]
pub fn trial(settings: &CgroupSettings, run: &str) -> Option<String> {
    match settings.driver {
        CgroupDriver::Cgroupfs => {
            Some(format!("{}/berth-trial-{}", settings.root.trim_end_matches('/'), paths::digest(run)))
        }
        CgroupDriver::Systemd => None,
    }
}

/// `linux.cgroupsPath` of a container's OCI spec: a path, or `slice:prefix:name` for systemd.
#[must_use]
pub fn oci_path(settings: &CgroupSettings, class: QosClass, uid: &PodUid, id: &ContainerId) -> String {
    let parent = pod(settings, class, uid);
    match settings.driver {
        CgroupDriver::Cgroupfs => format!("{parent}/{id}"),
        CgroupDriver::Systemd => {
            let slice = parent.rsplit('/').next().unwrap_or_default();
            format!("{slice}:cri-containerd:{id}")
        }
    }
}

fn level(class: QosClass) -> Option<&'static str> {
    match class {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    }
}

fn path(settings: &CgroupSettings, below: &[&str]) -> String {
    match settings.driver {
        CgroupDriver::Cgroupfs => {
            let root = settings.root.split('/').filter(|part| !part.is_empty());
            root.chain([KUBEPODS])
                .chain(below.iter().copied())
                .fold(String::new(), |path, part| path + "/" + part)
        }
        CgroupDriver::Systemd => slices(&settings.root, below),
    }
}

/// A slice's name carries those of its parents: `a.slice/a-b.slice`. Hence `-` within a part becomes `_`.
fn slices(root: &str, below: &[&str]) -> String {
    let last = root.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let escaped = |part: &str| part.replace('-', "_");
    let parts: Vec<String> = match last.strip_suffix(SLICE) {
        // A root in systemd's form is already escaped: its `-` separate parts.
        Some(last) => last.split('-').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
        None => root.split('/').filter(|part| !part.is_empty()).map(escaped).collect(),
    };
    let own = std::iter::once(KUBEPODS).chain(below.iter().copied()).map(escaped);
    let mut name = String::new();
    let mut path = String::new();
    for part in parts.into_iter().chain(own) {
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&part);
        path.push('/');
        path.push_str(&name);
        path.push_str(SLICE);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CgroupVersion;

    const ID: &str = "4f0a";

    fn settings(driver: CgroupDriver, root: &str) -> CgroupSettings {
        CgroupSettings::new(CgroupVersion::V2, driver, root)
    }

    fn all(driver: CgroupDriver, root: &str, class: QosClass) -> [String; 5] {
        let settings = settings(driver, root);
        let uid = PodUid::new("12-ab-34");
        let id = ContainerId::from_known(ID);
        [
            kubepods(&settings),
            qos(&settings, class),
            pod(&settings, class, &uid),
            container(&settings, class, &uid, &id),
            oci_path(&settings, class, &uid, &id),
        ]
    }

    #[test]
    fn cgroupfs_names() {
        let names = |root, class| all(CgroupDriver::Cgroupfs, root, class);
        assert_eq!(
            names("/", QosClass::Guaranteed),
            [
                "/kubepods",
                "/kubepods",
                "/kubepods/pod12-ab-34",
                "/kubepods/pod12-ab-34/4f0a",
                "/kubepods/pod12-ab-34/4f0a"
            ]
        );
        assert_eq!(
            names("/kubelet", QosClass::Burstable),
            [
                "/kubelet/kubepods",
                "/kubelet/kubepods/burstable",
                "/kubelet/kubepods/burstable/pod12-ab-34",
                "/kubelet/kubepods/burstable/pod12-ab-34/4f0a",
                "/kubelet/kubepods/burstable/pod12-ab-34/4f0a"
            ]
        );
        assert_eq!(names("/a/b/", QosClass::BestEffort)[2], "/a/b/kubepods/besteffort/pod12-ab-34");
    }

    #[test]
    fn systemd_names() {
        let names = |root, class| all(CgroupDriver::Systemd, root, class);
        assert_eq!(
            names("/", QosClass::Burstable),
            [
                "/kubepods.slice",
                "/kubepods.slice/kubepods-burstable.slice",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab_34.slice",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab_34.slice/cri-containerd-4f0a.scope",
                "kubepods-burstable-pod12_ab_34.slice:cri-containerd:4f0a"
            ]
        );
        assert_eq!(names("/", QosClass::Guaranteed)[2], "/kubepods.slice/kubepods-pod12_ab_34.slice");
        for root in ["/kubelet", "/kubelet.slice"] {
            assert_eq!(
                names(root, QosClass::BestEffort)[2],
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                 kubelet-kubepods-besteffort-pod12_ab_34.slice"
            );
        }
        // As `ParseCgroupfsToCgroupName` and `ToSystemd` of `pkg/kubelet/cm/cgroup_manager_linux.go` make them of cgroupfs' names.
        for (root, expected) in [
            ("/a.slice/a-b.slice", "/a.slice/a-b.slice/a-b-kubepods.slice"),
            ("/a/b/", "/a.slice/a-b.slice/a-b-kubepods.slice"),
            ("/my-root", "/my_root.slice/my_root-kubepods.slice"),
        ] {
            assert_eq!(names(root, QosClass::Guaranteed)[0], expected, "{root}");
        }
    }

    #[test]
    fn each_agent_tries_runtimes_in_a_cgroup_of_its_own() {
        let trial = |root, run| trial(&settings(CgroupDriver::Cgroupfs, root), run);
        let first = trial("/", "/run/berth").unwrap();
        assert!(first.starts_with("/berth-trial-") && first.matches('/').count() == 1, "{first}");
        assert_ne!(Some(&first), trial("/", "/run/second/berth").as_ref());
        assert_eq!(trial("/kubelet/", "/run/berth"), Some(format!("/kubelet{first}")));
        assert_eq!(super::trial(&settings(CgroupDriver::Systemd, "/"), "/run/berth"), None);
    }

    #[test]
    fn a_hostile_uid_stays_below_its_parent() {
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            let settings = settings(driver, "/");
            for uid in ["../../x", "a/b", "..", "", "a:b", "a\nb"] {
                let pod = pod(&settings, QosClass::Guaranteed, &PodUid::new(uid));
                assert_eq!(pod.matches('/').count(), 2, "{pod}");
                assert!(!pod.contains("..") && !pod.contains(':') && !pod.contains('\n'), "{pod}");
            }
        }
    }
}
