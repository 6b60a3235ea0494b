//! Volumes.

use super::{ImagePullPolicy, ObjectKind, ResourceSelector};
use crate::id::{ImageRef, VolumeName};

/// One entry of `spec.volumes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Name within the pod.
    pub name: VolumeName,
    /// What it is.
    pub source: VolumeSource,
}

/// The kinds of volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// A directory that lives as long as the pod.
    EmptyDir {
        /// Disk, memory or huge pages.
        medium: Medium,
        /// Upper bound in bytes: the tmpfs size in memory, an eviction threshold on disk.
        size_limit_bytes: Option<u64>,
    },
    /// A path of the node.
    HostPath {
        /// Absolute path.
        path: String,
        /// What must be there, or is made.
        kind: HostPathType,
    },
    /// Files with what is in objects of the API server, or is known of the pod.
    Content(ContentVolume),
    /// What a claim of a volume comes to.
    Claim(ClaimVolume),
    /// What is in an image, to be read (KEP-4639).
    Image {
        /// Its name, as written.
        image: ImageRef,
        /// When it is pulled.
        pull_policy: ImagePullPolicy,
    },
}

impl Volume {
    /// The image that it is made of, and when that is pulled.
    #[must_use]
    pub fn image(&self) -> Option<(&ImageRef, ImagePullPolicy)> {
        match &self.source {
            VolumeSource::Image { image, pull_policy } => Some((image, *pull_policy)),
            VolumeSource::EmptyDir { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Content(_)
            | VolumeSource::Claim(_) => None,
        }
    }

    /// What its claim says, where it has one.
    #[must_use]
    pub fn claim(&self) -> Option<&ClaimVolume> {
        match &self.source {
            VolumeSource::Claim(claim) => Some(claim),
            VolumeSource::EmptyDir { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Content(_)
            | VolumeSource::Image { .. } => None,
        }
    }
}

/// A `persistentVolumeClaim` or `ephemeral` volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimVolume {
    /// Name of the claim, in the pod's namespace.
    pub name: String,
    /// Whether nobody writes there.
    pub read_only: bool,
    /// Whether the claim must be one that was made for the pod: of an `ephemeral` volume.
    pub is_of_pod: bool,
}

/// `volumeMode`: how a volume of a claim is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeMode {
    /// As a directory.
    Filesystem,
    /// As a block device.
    Block,
}

/// A `configMap`, `secret`, `downwardAPI` or `projected` volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentVolume {
    /// Which of them.
    pub kind: ContentKind,
    /// Mode of files that have none of their own.
    pub default_mode: u32,
    /// Where the files come from. Of two with one path the later one is seen.
    pub sources: Vec<Projection>,
}

/// The kinds of volume that show content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentKind {
    /// `configMap`.
    ConfigMap,
    /// `secret`.
    Secret,
    /// `downwardAPI`.
    DownwardApi,
    /// `projected`.
    Projected,
}

impl ContentKind {
    /// Where it is kept: what may be secret never reaches a disk (`wrappedVolumeSpec` of
    /// `pkg/volume/{secret,downwardapi,projected}`).
    #[must_use]
    pub fn medium(self) -> Medium {
        match self {
            Self::ConfigMap => Medium::Disk,
            Self::Secret | Self::DownwardApi | Self::Projected => Medium::Memory,
        }
    }

    /// Name of the plugin, as it is in paths.
    #[must_use]
    pub fn plugin(self) -> &'static str {
        match self {
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::Secret => "kubernetes.io~secret",
            Self::DownwardApi => "kubernetes.io~downward-api",
            Self::Projected => "kubernetes.io~projected",
        }
    }
}

/// Where some files of a volume come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Projection {
    /// Keys of an object.
    Object(ObjectFiles),
    /// What is known of the pod.
    Downward(Vec<DownwardFile>),
    /// A token of the pod's service account.
    Token(TokenFile),
}

/// Keys of an object as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFiles {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its name, in the pod's namespace.
    pub name: String,
    /// Which keys; all, by their own names, when empty.
    pub items: Vec<KeyToPath>,
    /// Whether the object, or a key of it, may be missing.
    pub optional: bool,
}

/// One key of an object as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyToPath {
    /// The key.
    pub key: String,
    /// Relative path of the file.
    pub path: String,
    /// Mode of the file; the volume's when absent.
    pub mode: Option<u32>,
}

/// Something of the pod as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownwardFile {
    /// Relative path of the file.
    pub path: String,
    /// Mode of the file; the volume's when absent.
    pub mode: Option<u32>,
    /// What is in it.
    pub source: DownwardSource,
}

/// What of the pod is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownwardSource {
    /// `fieldRef.fieldPath`.
    Field(String),
    /// `resourceFieldRef`, which always names a container.
    Resource(ResourceSelector),
}

/// A token as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile {
    /// Relative path of the file.
    pub path: String,
    /// Whom the token is for; the API server when absent.
    pub audience: Option<String>,
    /// How long it is to live.
    pub seconds: i64,
}

/// Where an emptyDir lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The node's disk.
    Disk,
    /// A tmpfs.
    Memory,
    /// Huge pages: of one size, in bytes, or of the only one that the pod asks for.
    HugePages(Option<u64>),
}

/// `hostPath.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathType {
    /// No check.
    Unset,
    /// A directory, made 0755 when nothing is there.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, made 0644 when nothing is there.
    FileOrCreate,
    /// A file.
    File,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_kept_in_memory() {
        for (kind, medium) in [
            (ContentKind::ConfigMap, Medium::Disk),
            (ContentKind::Secret, Medium::Memory),
            (ContentKind::DownwardApi, Medium::Memory),
            (ContentKind::Projected, Medium::Memory),
        ] {
            assert_eq!(kind.medium(), medium, "{kind:?}");
        }
    }
}
