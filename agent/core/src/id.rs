//! Names and ids. Ids of what Berth makes are computed from the pod's UID and an attempt number, so that a retry after
//! any crash finds what the first try made.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::users::HostIds;

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident, $(#[$from:meta])* $new:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            $(#[$from])*
            #[must_use]
            pub fn $new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The bare text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }
    };
}

string_id!(
    /// UID of a pod: for static pods a hash of the manifest, the node and the file.
    PodUid,
    /// Takes a name that the caller has checked or computed.
    new
);
string_id!(
    /// Name of a container within its pod (a DNS label).
    ContainerName,
    /// Takes a name that the caller has checked or computed.
    new
);
string_id!(
    /// Name of a volume within its pod (a DNS label).
    VolumeName,
    /// Takes a name that the caller has checked or computed.
    new
);
string_id!(
    /// An image as the pod names it: `registry/repository:tag`, `…@sha256:…` or a short name.
    ImageRef,
    /// Takes a name that the caller has checked or computed.
    new
);

/// Namespace and name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// Namespace; static pods without one are in `default`.
    pub namespace: String,
    /// Name; for static pods `<name>-<node>`.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// How often a sandbox or a container was made anew: 0 for the first sandbox of a pod or the first run of a container.
pub type Attempt = u32;

string_id!(
    /// A sandbox in containerd, and the id that CNI plugins see: 64 lower-case hexadecimal digits, the form that cgroup
    /// and log readers of the field expect.
    SandboxId,
    /// Takes an id read back from containerd or from a record.
    from_known
);
string_id!(
    /// A container, its task and its snapshot in containerd; of the same form as a [`SandboxId`].
    ContainerId,
    /// Takes an id read back from containerd or from a record.
    from_known
);

impl SandboxId {
    /// The id of the `attempt`-th sandbox of a pod.
    #[must_use]
    pub fn of(pod: &PodUid, attempt: Attempt) -> Self {
        Self(digest(&["sandbox", pod.as_str(), &attempt.to_string()]))
    }
}

impl ContainerId {
    /// The id of the `attempt`-th run of a container.
    #[must_use]
    pub fn of(pod: &PodUid, name: &ContainerName, attempt: Attempt) -> Self {
        Self(digest(&["container", pod.as_str(), name.as_str(), &attempt.to_string()]))
    }
}

/// The key of the snapshot in containerd that a volume is mounted from which is made of an image: other layers have another one, and so
/// have other owners, whom a pod in a user namespace has after a reboot. So do agents with other run directories, which may have a pod of
/// the same UID at the same containerd.
#[must_use]
pub fn volume_snapshot(
    run: &str,
    pod: &PodUid,
    volume: &VolumeName,
    chain_id: &str,
    ids: Option<HostIds>,
) -> String {
    let ids = ids.map_or_else(String::new, |ids| format!("{}+{}", ids.first, ids.count));
    format!("berth-volume-{}", digest(&[run, pod.as_str(), volume.as_str(), chain_id, &ids]))
}

/// The id of the lease in containerd that keeps all such snapshots of a pod, and by which they are found.
#[must_use]
pub fn volumes_lease(run: &str, pod: &PodUid) -> String {
    format!("berth-volumes-{}", digest(&[run, pod.as_str()]))
}

/// Number of one effect, given back with its outcome. Never reused within a run of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_computed_from_uid_name_and_attempt() {
        let uid = PodUid::new("0b1c");
        let web = ContainerName::new("web");
        let id = ContainerId::of(&uid, &web, 0);
        assert_eq!(id, ContainerId::of(&uid, &web, 0));
        assert_eq!(id.as_str().len(), 64);
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase()));
        assert_ne!(id, ContainerId::of(&uid, &web, 1));
        assert_ne!(SandboxId::of(&uid, 0), SandboxId::of(&uid, 1));
    }

    #[test]
    fn what_a_volume_is_mounted_from_is_one_agents_of_one_pod_and_image() {
        let (pod, other) = (PodUid::new("0b1c"), PodUid::new("0b1d"));
        let (data, more) = (VolumeName::new("data"), VolumeName::new("more"));
        let all = [
            volume_snapshot("/run/berth", &pod, &data, "sha256:01", None),
            volume_snapshot("/run/second", &pod, &data, "sha256:01", None),
            volume_snapshot("/run/berth", &other, &data, "sha256:01", None),
            volume_snapshot("/run/berth", &pod, &more, "sha256:01", None),
            volume_snapshot("/run/berth", &pod, &data, "sha256:02", None),
            volume_snapshot(
                "/run/berth",
                &pod,
                &data,
                "sha256:01",
                Some(HostIds { first: 65_536, count: 65_536 }),
            ),
            volume_snapshot(
                "/run/berth",
                &pod,
                &data,
                "sha256:01",
                Some(HostIds { first: 131_072, count: 65_536 }),
            ),
            volumes_lease("/run/berth", &pod),
            volumes_lease("/run/second", &pod),
            volumes_lease("/run/berth", &other),
        ];
        assert_eq!(std::collections::BTreeSet::from(all.clone()).len(), all.len());
        assert_eq!(volume_snapshot("/run/berth", &pod, &data, "sha256:01", None), all[0]);
    }

    #[test]
    fn parts_of_an_id_cannot_run_into_each_other() {
        let one = ContainerId::of(&PodUid::new("a"), &ContainerName::new("bc"), 0);
        let other = ContainerId::of(&PodUid::new("ab"), &ContainerName::new("c"), 0);
        assert_ne!(one, other);
    }
}
