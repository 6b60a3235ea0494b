//! Volumes.

use crate::id::VolumeName;

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
        /// Disk or memory.
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
}

/// Where an emptyDir lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The node's disk.
    Disk,
    /// A tmpfs.
    Memory,
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
