//! What a claim of a volume comes to on this node: a directory, a path or a device, or why it is nothing yet.
//!
//! Source: `createVolumeSpec` of `pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go`, `AddPodToVolume` of
//! `pkg/kubelet/volumemanager/cache/desired_state_of_world.go`, `GenerateMountVolumeFunc` and `GenerateMapVolumeFunc` of
//! `pkg/volume/util/operationexecutor/operation_generator.go`, `pkg/volume/{local,hostpath}`.

use crate::{
    id::VolumeName,
    node::{NodeInfo, fits_term},
    spec::{ClaimVolume, HostPathType, NodeTerm, Pod, Volume, VolumeMode},
};

/// What counts of a PersistentVolumeClaim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its UID.
    pub uid: String,
    /// UID of the object that controls it.
    pub controller: Option<String>,
    /// Whether it is being deleted, and nothing keeps it for those who use it.
    pub is_going: bool,
    /// Whether it is bound.
    pub is_bound: bool,
    /// Name of the PersistentVolume that it is bound to.
    pub volume: String,
}

/// What counts of a PersistentVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolume {
    /// Its name.
    pub name: String,
    /// UID of the claim that it is bound to.
    pub claim: Option<String>,
    /// What it is.
    pub source: PersistentSource,
    /// How it is shown.
    pub mode: VolumeMode,
    /// Whether `ReadWriteOncePod` is its only access mode.
    pub is_of_one_pod: bool,
    /// `mountOptions`.
    pub mount_options: Vec<String>,
    /// Nodes that it can be reached from; absent is any.
    pub affinity: Option<Vec<NodeTerm>>,
}

/// What a PersistentVolume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersistentSource {
    /// A directory or a device of one node.
    Local(String),
    /// A path of whichever node the pod is on.
    HostPath {
        /// The path.
        path: String,
        /// What must be there, or is made.
        kind: HostPathType,
    },
    /// Something that needs a driver.
    Other,
}

/// What a claim comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// A directory of the node, bound below the pod's.
    Local(LocalVolume),
    /// A path of the node, as it is.
    Path {
        /// Name of the PersistentVolume.
        name: String,
        /// Absolute, without `..`.
        path: String,
        /// What must be there, or is made.
        kind: HostPathType,
    },
    /// A block device.
    Device {
        /// Name of the PersistentVolume.
        name: String,
        /// Absolute, without `..`.
        path: String,
    },
}

/// A directory of the node that is to be bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalVolume {
    /// Name of the PersistentVolume.
    pub name: String,
    /// Absolute, without `..`.
    pub path: String,
    /// Whether nobody writes there.
    pub read_only: bool,
    /// Options of the mount.
    pub options: Vec<String>,
    /// Whether one pod of the node alone may have it.
    pub is_of_one_pod: bool,
}

/// Why a claim comes to nothing, in the kubelet's words and whole: the pod's event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// It is not known what the volume is.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: {why}"
    )]
    Unprocessed {
        /// Name of the volume within the pod.
        volume: VolumeName,
        /// Why.
        why: String,
    },
    /// It is known, and cannot be had.
    #[error("{step} for volume {name:?} : {why}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// Name of the PersistentVolume.
        name: String,
        /// Why.
        why: String,
    },
}

/// A claim of a pod's volume.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Name of the volume within it.
    pub volume: &'a VolumeName,
    /// What it says.
    pub claim: &'a ClaimVolume,
}

impl Asked<'_> {
    /// Nothing can be said of the volume because of the claim.
    #[must_use]
    pub fn failed(&self, why: &str) -> ClaimError {
        let claim = format!("{}/{}", self.pod.name.namespace, self.claim.name);
        self.unprocessed(format!("error processing PVC {claim}: {why}"))
    }

    fn unprocessed(&self, why: String) -> ClaimError {
        ClaimError::Unprocessed { volume: self.volume.clone(), why }
    }

    /// Name of the PersistentVolume that the claim is bound to.
    ///
    /// # Errors
    /// It is not bound, or not the pod's to use.
    pub fn bound<'c>(&self, claim: &'c Claim) -> Result<&'c str, ClaimError> {
        if claim.is_going {
            return Err(self.failed("PVC is being deleted"));
        }
        if !claim.is_bound {
            return Err(self.failed("PVC is not bound"));
        }
        if claim.volume.is_empty() {
            return Err(self.failed("PVC has empty pvc.Spec.VolumeName"));
        }
        if self.claim.is_of_pod && claim.controller.as_deref() != Some(self.pod.uid.as_str()) {
            let (namespace, name) = (&self.pod.name.namespace, &self.pod.name.name);
            let claim = &self.claim.name;
            return Err(self.unprocessed(format!(
                "PVC {namespace}/{claim} was not created for pod {namespace}/{name} (pod is not owner)"
            )));
        }
        Ok(&claim.volume)
    }

    /// What the volume comes to on a node.
    ///
    /// # Errors
    /// The PersistentVolume is another claim's, is not to be had on this node, or is not what the pod uses it for.
    pub fn claimed(
        &self,
        claim: &Claim,
        found: PersistentVolume,
        node: Option<&NodeInfo>,
    ) -> Result<Claimed, ClaimError> {
        self.check(claim, &found)?;
        let PersistentVolume { name, source, mode, mount_options, is_of_one_pod, .. } = found;
        let (mount, map) = match mode {
            VolumeMode::Filesystem => ("MountVolume.SetUp failed", "MountVolume.NodeAffinity check failed"),
            VolumeMode::Block => ("MapVolume.MapBlockVolume failed", "MapVolume.NodeAffinity check failed"),
        };
        let refuse = |step, why: &str| ClaimError::Refused { step, name: name.clone(), why: why.to_owned() };
        if let Some(terms) = &found.affinity
            && !node.is_some_and(|node| terms.iter().any(|term| fits_term(term, node)))
        {
            return Err(refuse(map, "no matching NodeSelectorTerms"));
        }
        match (source, mode) {
            (PersistentSource::Local(path), mode) => {
                let path = absolute(&path)
                    .ok_or_else(|| refuse(mount, &format!("invalid path: {path} must not contain '..'")))?;
                Ok(match mode {
                    VolumeMode::Filesystem => Claimed::Local(LocalVolume {
                        name,
                        path,
                        read_only: self.read_only(),
                        options: mount_options,
                        is_of_one_pod,
                    }),
                    VolumeMode::Block => Claimed::Device { name, path },
                })
            }
            (PersistentSource::HostPath { .. }, VolumeMode::Block) => {
                Err(refuse("MapVolume.FindMapperPluginBySpec failed", "no block volume plugin matched"))
            }
            (PersistentSource::HostPath { .. }, VolumeMode::Filesystem) if !mount_options.is_empty() => {
                Err(refuse(
                    "MountVolume.MountOptionSupport check failed",
                    "mount options are not supported for this volume type",
                ))
            }
            (PersistentSource::HostPath { path, kind }, VolumeMode::Filesystem) => {
                let path = absolute(&path).ok_or_else(|| {
                    refuse(mount, &format!("invalid HostPath `{path}`: must not contain '..'"))
                })?;
                Ok(Claimed::Path { name, path, kind })
            }
            (PersistentSource::Other, _) => Err(self.unprocessed(format!(
                "failed to get Plugin from volumeSpec for volume {name:?} err=no volume plugin matched"
            ))),
        }
    }

    /// Whether nobody writes: of several volumes of the pod with this claim the last one that is used says so, for there is one mount of it
    /// (`AddPodToVolume` of `pkg/kubelet/volumemanager/cache/desired_state_of_world.go`).
    fn read_only(&self) -> bool {
        let used = self.pod.used_volumes();
        let used = self.pod.volumes.iter().filter(|volume| used.contains(&volume.name));
        let last = used.filter_map(Volume::claim).rfind(|claim| claim.name == self.claim.name);
        last.unwrap_or(self.claim).read_only
    }

    /// Whether the PersistentVolume is that of the claim, and shown as the pod uses it.
    fn check(&self, claim: &Claim, found: &PersistentVolume) -> Result<(), ClaimError> {
        let PersistentVolume { name, claim: bound, mode, .. } = found;
        let Some(bound) = bound else {
            return Err(self.failed(&format!(
                "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
            )));
        };
        if *bound != claim.uid {
            let uid = &claim.uid;
            return Err(self.failed(&format!(
                "found PV object {name} but its pv.Spec.ClaimRef.UID {bound} does not point to claim.UID {uid}"
            )));
        }
        let containers = || self.pod.all_containers();
        let is_mounted = containers().any(|one| one.mounts.iter().any(|mount| mount.volume == *self.volume));
        let is_device =
            containers().any(|one| one.devices.iter().any(|device| device.volume == *self.volume));
        let wrong = match mode {
            VolumeMode::Block if is_mounted => ("Block", "volumeMounts"),
            VolumeMode::Filesystem if is_device => ("Filesystem", "volumeDevices"),
            VolumeMode::Block | VolumeMode::Filesystem => return Ok(()),
        };
        let (volume, (mode, field)) = (self.volume, wrong);
        Err(self.unprocessed(format!("volume {volume} has volumeMode {mode}, but is specified in {field}")))
    }
}

/// A path of the node from its root. What goes up is none.
fn absolute(path: &str) -> Option<String> {
    let is_good = !path.is_empty() && !path.contains('\0') && path.split('/').all(|part| part != "..");
    is_good.then(|| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
}

#[cfg(test)]
mod tests;
