//! Values of the core in requests to workers.

use std::path::PathBuf;

use berth_core::{
    id::{ContainerName, PodUid, VolumeName},
    oci::{
        ExistingFile, HostDevice, HostDeviceKind, HostFile, ImageVolume, MountSource, PartOf, SubPathBind,
    },
    pod::{port::volume::Backing, retention::RunVolumes},
    selinux::{Mounted, RelabelPlace},
    spec::{FileKeyRef, HostPathType, MountPropagation},
};
use containerd_client::types::Mount;
use serde::{Deserialize, Serialize};

use crate::volumes::{EmptyDir, ForGroup, LocalDir};

/// A path that is to be there, in a request to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct Place {
    pub(in crate::effects) path: String,
    pub(in crate::effects) kind: PlaceKind,
}

/// What is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) enum PlaceKind {
    Directory,
    Mount,
    File,
    Link,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct EmptyDirText {
    backing: BackingText,
    fs_group: Option<u32>,
}

/// `Backing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum BackingText {
    Disk,
    Memory(Option<u64>),
    HugePages(u64),
}

impl From<EmptyDir> for EmptyDirText {
    fn from(value: EmptyDir) -> Self {
        let EmptyDir { backing, fs_group } = value;
        let backing = match backing {
            Backing::Disk => BackingText::Disk,
            Backing::Memory { size_bytes_max } => BackingText::Memory(size_bytes_max),
            Backing::HugePages { page_bytes } => BackingText::HugePages(page_bytes),
        };
        Self { backing, fs_group }
    }
}

impl From<EmptyDirText> for EmptyDir {
    fn from(text: EmptyDirText) -> Self {
        let EmptyDirText { backing, fs_group } = text;
        let backing = match backing {
            BackingText::Disk => Backing::Disk,
            BackingText::Memory(size_bytes_max) => Backing::Memory { size_bytes_max },
            BackingText::HugePages(page_bytes) => Backing::HugePages { page_bytes },
        };
        Self { backing, fs_group }
    }
}

/// `LocalDir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct LocalText {
    source: PathBuf,
    target: PathBuf,
    mark: PathBuf,
    pods: PathBuf,
    read_only: bool,
    options: Vec<String>,
    is_of_one_pod: bool,
    /// Its id, and whether the directory alone is looked at.
    group: Option<(u32, bool)>,
}

impl From<LocalDir> for LocalText {
    fn from(value: LocalDir) -> Self {
        let LocalDir { source, target, mark, pods, read_only, options, is_of_one_pod, group } = value;
        let group = group.map(|ForGroup { id, on_root_mismatch }| (id, on_root_mismatch));
        Self { source, target, mark, pods, read_only, options, is_of_one_pod, group }
    }
}

impl From<LocalText> for LocalDir {
    fn from(text: LocalText) -> Self {
        let LocalText { source, target, mark, pods, read_only, options, is_of_one_pod, group } = text;
        let group = group.map(|(id, on_root_mismatch)| ForGroup { id, on_root_mismatch });
        Self { source, target, mark, pods, read_only, options, is_of_one_pod, group }
    }
}

/// `HostPathType`, by the names of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) enum HostPathText {
    Unset,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

impl From<HostPathType> for HostPathText {
    fn from(kind: HostPathType) -> Self {
        match kind {
            HostPathType::Unset => Self::Unset,
            HostPathType::DirectoryOrCreate => Self::DirectoryOrCreate,
            HostPathType::Directory => Self::Directory,
            HostPathType::FileOrCreate => Self::FileOrCreate,
            HostPathType::File => Self::File,
            HostPathType::Socket => Self::Socket,
            HostPathType::CharDevice => Self::CharDevice,
            HostPathType::BlockDevice => Self::BlockDevice,
        }
    }
}

impl From<HostPathText> for HostPathType {
    fn from(text: HostPathText) -> Self {
        match text {
            HostPathText::Unset => Self::Unset,
            HostPathText::DirectoryOrCreate => Self::DirectoryOrCreate,
            HostPathText::Directory => Self::Directory,
            HostPathText::FileOrCreate => Self::FileOrCreate,
            HostPathText::File => Self::File,
            HostPathText::Socket => Self::Socket,
            HostPathText::CharDevice => Self::CharDevice,
            HostPathText::BlockDevice => Self::BlockDevice,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct FileText {
    path: String,
    mode: u32,
    owner: Option<(u32, u32)>,
    content: String,
    is_kept: bool,
}

impl From<&HostFile> for FileText {
    fn from(file: &HostFile) -> Self {
        let HostFile { path, mode, owner, content, existing } = file.clone();
        Self { path, mode, owner, content, is_kept: existing == ExistingFile::Keep }
    }
}

impl From<FileText> for HostFile {
    fn from(text: FileText) -> Self {
        let FileText { path, mode, owner, content, is_kept } = text;
        let existing = if is_kept { ExistingFile::Keep } else { ExistingFile::Replace };
        Self { path, mode, owner, content, existing }
    }
}

/// A variable that a file of a volume gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct FileKeyText {
    /// Where the volume is.
    pub(in crate::effects) root: String,
    pub(in crate::effects) path: String,
    pub(in crate::effects) key: String,
    pub(in crate::effects) is_optional: bool,
}

impl FileKeyText {
    pub(in crate::effects) fn new(root: &str, wanted: &FileKeyRef) -> Self {
        let FileKeyRef { volume: _, path, key, optional } = wanted.clone();
        Self { root: root.to_owned(), path, key, is_optional: optional }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct SubPathText {
    mount: String,
    volume: String,
    /// As it is written, of an image.
    of_image: Option<String>,
    sub_path: String,
    target: String,
}

impl From<&SubPathBind> for SubPathText {
    fn from(bind: &SubPathBind) -> Self {
        let SubPathBind { mount, volume, of, sub_path, target } = bind.clone();
        let of_image = match of {
            PartOf::Volume => None,
            PartOf::Image(written) => Some(written),
        };
        Self { mount: mount.to_string(), volume, of_image, sub_path, target }
    }
}

impl From<SubPathText> for SubPathBind {
    fn from(text: SubPathText) -> Self {
        let SubPathText { mount, volume, of_image, sub_path, target } = text;
        let of = of_image.map_or(PartOf::Volume, PartOf::Image);
        Self { mount: VolumeName::new(mount), volume, of, sub_path, target }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct MountSourceText {
    path: String,
    propagation: PropagationText,
}

/// `MountPropagation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum PropagationText {
    Private,
    HostToContainer,
    Bidirectional,
}

impl From<&MountSource> for MountSourceText {
    fn from(source: &MountSource) -> Self {
        let propagation = match source.propagation {
            MountPropagation::Private => PropagationText::Private,
            MountPropagation::HostToContainer => PropagationText::HostToContainer,
            MountPropagation::Bidirectional => PropagationText::Bidirectional,
        };
        Self { path: source.path.clone(), propagation }
    }
}

impl From<MountSourceText> for MountSource {
    fn from(text: MountSourceText) -> Self {
        let propagation = match text.propagation {
            PropagationText::Private => MountPropagation::Private,
            PropagationText::HostToContainer => MountPropagation::HostToContainer,
            PropagationText::Bidirectional => MountPropagation::Bidirectional,
        };
        Self { path: text.path, propagation }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct ImageVolumeText {
    target: String,
    image_path: String,
}

impl From<&ImageVolume> for ImageVolumeText {
    fn from(volume: &ImageVolume) -> Self {
        let ImageVolume { target, image_path } = volume.clone();
        Self { target, image_path }
    }
}

impl From<ImageVolumeText> for ImageVolume {
    fn from(text: ImageVolumeText) -> Self {
        let ImageVolumeText { target, image_path } = text;
        Self { target, image_path }
    }
}

/// `Mounted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) enum MountedText {
    Nothing,
    Memory,
    Bound,
}

/// `RelabelPlace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct RelabelText {
    pub(in crate::effects) root: String,
    pub(in crate::effects) part: Option<String>,
    pub(in crate::effects) mounted: MountedText,
}

impl From<&RelabelPlace> for RelabelText {
    fn from(place: &RelabelPlace) -> Self {
        let RelabelPlace { root, part, mounted } = place.clone();
        let mounted = match mounted {
            Mounted::Nothing => MountedText::Nothing,
            Mounted::Memory => MountedText::Memory,
            Mounted::Bound => MountedText::Bound,
        };
        Self { root, part, mounted }
    }
}

/// `RunVolumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct RunVolumesText {
    uid: String,
    container: String,
    last: u32,
    dir: String,
}

impl From<&RunVolumes> for RunVolumesText {
    fn from(volumes: &RunVolumes) -> Self {
        let RunVolumes { uid, container, last, dir } = volumes.clone();
        Self { uid: uid.to_string(), container: container.to_string(), last, dir }
    }
}

impl From<RunVolumesText> for RunVolumes {
    fn from(text: RunVolumesText) -> Self {
        let RunVolumesText { uid, container, last, dir } = text;
        Self { uid: PodUid::new(uid), container: ContainerName::new(container), last, dir }
    }
}

/// A mount of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct LayerText {
    kind: String,
    source: String,
    options: Vec<String>,
}

impl From<&Mount> for LayerText {
    fn from(mount: &Mount) -> Self {
        Self { kind: mount.r#type.clone(), source: mount.source.clone(), options: mount.options.clone() }
    }
}

impl From<LayerText> for Mount {
    fn from(text: LayerText) -> Self {
        let LayerText { kind, source, options } = text;
        Self { r#type: kind, source, options, ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) struct DeviceText {
    path: PathBuf,
    is_block: bool,
    major: u32,
    minor: u32,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl From<HostDevice> for DeviceText {
    fn from(device: HostDevice) -> Self {
        let HostDevice { path, kind, major, minor, mode, uid, gid } = device;
        Self { path, is_block: kind == HostDeviceKind::Block, major, minor, mode, uid, gid }
    }
}

impl From<DeviceText> for HostDevice {
    fn from(text: DeviceText) -> Self {
        let DeviceText { path, is_block, major, minor, mode, uid, gid } = text;
        let kind = if is_block { HostDeviceKind::Block } else { HostDeviceKind::Char };
        Self { path, kind, major, minor, mode, uid, gid }
    }
}
