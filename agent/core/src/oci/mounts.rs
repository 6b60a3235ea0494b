//! Mounts of a container and the files behind them.
//!
//! Source: `pkg/kubelet/kubelet_pods.go` `makeMounts`, `pkg/kubelet/kuberuntime/kuberuntime_container.go` `makeMounts`,
//! containerd `internal/cri/opts` `withMounts` and `internal/cri/server` `linuxContainerMounts`, `volumeMounts`.

use oci_spec::runtime::{LinuxIdMapping, Mount as OciMount};

use super::{
    ConfigError, ContainerInputs, ExistingFile, HostFile, ImageVolume, MountSource, PartOf, SubPathBind,
    files::{self, ETC_HOSTS, file},
    process::Environment,
};
use crate::{
    config::CgroupVersion,
    derived::{
        env::{self, Budget, NoPath},
        hostname::HostNames,
    },
    paths,
    selinux::{Mounted, RelabelPlace},
    spec::{IpcMode, Medium, Mount, MountPropagation, SubPath, VolumeSource},
};

const ETC_HOSTNAME: &str = "/etc/hostname";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const DEV_SHM: &str = "/dev/shm";
const CGROUP: &str = "/sys/fs/cgroup";
/// Most `VOLUME`s of an image that are honoured.
const IMAGE_VOLUMES_MAX: usize = 256;

/// Mounts and what they need on the node.
#[derive(Default)]
pub(super) struct Mounts {
    pub(super) mounts: Vec<OciMount>,
    pub(super) files: Vec<HostFile>,
    pub(super) image_volumes: Vec<ImageVolume>,
    pub(super) sub_paths: Vec<SubPathBind>,
    pub(super) sources: Vec<MountSource>,
    /// What is labelled for the container, where SELinux gives labels.
    pub(super) labelled: Vec<RelabelPlace>,
    /// Propagation of the root file system, when a mount needs it to be more than private.
    pub(super) root_propagation: Option<&'static str>,
}

pub(super) fn mounts(
    inputs: &ContainerInputs<'_>,
    environment: &Environment,
    budget: &mut Budget,
    names: &HostNames,
    maps: Option<&[LinuxIdMapping]>,
) -> Result<Mounts, ConfigError> {
    let mut all = Mounts::default();
    let mut binds = volume_binds(inputs, environment, budget, &mut all)?;
    let taken = |binds: &[Bind], path: &str| binds.iter().any(|bind| bind.to == path);
    if !taken(&binds, ETC_HOSTS) {
        binds.extend(etc_hosts(inputs, names, &mut all.files));
    }
    binds.extend(termination_log(inputs, &mut all.files)?);
    for (path, bind) in [
        (ETC_HOSTNAME, etc_hostname(inputs, &mut all.files)?),
        (RESOLV_CONF, resolv_conf(inputs, &mut all.files)?),
    ] {
        if !taken(&binds, path) {
            binds.push(bind);
        }
    }
    if matches!(inputs.pod.ipc, IpcMode::Node) && !taken(&binds, DEV_SHM) {
        binds.push(Bind::of_node(DEV_SHM));
    }
    image_volumes(inputs, &mut binds, &mut all.image_volumes)?;

    // A mount must not cover one below it that was made before.
    binds.sort_by_key(|bind| bind.to.matches('/').count());
    all.root_propagation = root_propagation(&binds);
    all.labelled = binds.iter().filter_map(|bind| bind.labelled.clone()).collect();
    all.mounts = base(inputs, &binds);
    all.mounts.extend(binds.iter().map(|bind| bind.mount(maps)));
    Ok(all)
}

/// A path of the node in the container.
struct Bind {
    from: String,
    /// Absolute, without `.`, `..` and repeated or trailing slashes.
    to: String,
    access: Access,
    propagation: MountPropagation,
    /// Whether it shows the node's owners, for which they are shifted in a user namespace.
    has_node_owners: bool,
    /// What of it is the pod's own, and labelled as that. Of the node's nothing is, wherever it is mounted (CVE-2021-43816).
    labelled: Option<RelabelPlace>,
}

/// What a container may do with a mount.
#[derive(Clone, Copy)]
enum Access {
    ReadWrite,
    ReadOnly,
    /// As of all that is mounted below it.
    RecursiveReadOnly,
}

impl Access {
    /// Its name among the options of an OCI mount.
    fn option(self) -> &'static str {
        match self {
            Self::ReadWrite => "rw",
            Self::ReadOnly => "ro",
            Self::RecursiveReadOnly => "rro",
        }
    }
}

impl Bind {
    /// Of the node.
    fn of_node(path: &str) -> Self {
        let (access, propagation) = (Access::ReadWrite, MountPropagation::Private);
        let (from, to) = (path.to_owned(), path.to_owned());
        Self { from, to, access, propagation, has_node_owners: true, labelled: None }
    }

    /// Of the pod's own directory.
    fn own(from: String, to: String) -> Self {
        let labelled = Some(RelabelPlace { root: from.clone(), part: None, mounted: Mounted::Nothing });
        Self { from, labelled, ..Self::of_node(&to) }
    }

    /// In a user namespace files belong to whom they do on the node, by number.
    fn mount(&self, maps: Option<&[LinuxIdMapping]>) -> OciMount {
        let maps = maps.filter(|_| self.has_node_owners);
        let propagation = match self.propagation {
            MountPropagation::Private => "rprivate",
            MountPropagation::HostToContainer => "rslave",
            MountPropagation::Bidirectional => "rshared",
        };
        let access = self.access.option();
        let idmap = maps.map(|_| "idmap");
        let options: Vec<&str> = ["rbind", propagation, access].into_iter().chain(idmap).collect();
        let mut mount = mount(&self.to, "bind", &self.from, &options);
        let maps = maps.map(<[LinuxIdMapping]>::to_vec);
        mount.set_uid_mappings(maps.clone()).set_gid_mappings(maps);
        mount
    }
}

fn volume_binds(
    inputs: &ContainerInputs<'_>,
    environment: &Environment,
    budget: &mut Budget,
    all: &mut Mounts,
) -> Result<Vec<Bind>, ConfigError> {
    let ContainerInputs { node, pod, container, .. } = *inputs;
    let mut binds = Vec::with_capacity(container.mounts.len());
    for (index, mount) in container.mounts.iter().enumerate() {
        let source = pod.volume(&mount.volume).map(|volume| &volume.source);
        let is_image = matches!(source, Some(VolumeSource::Image { .. }));
        let volume = inputs.volumes.get(&mount.volume).ok_or_else(|| ConfigError::NoSuchVolume {
            volume: mount.volume.to_string(),
            container: container.name.to_string(),
        })?;
        let sub_path = sub_path(mount, environment, budget)?;
        let labelled = source.filter(|source| is_labelled(inputs, source, volume));
        let labelled = labelled.map(|source| RelabelPlace {
            root: volume.clone(),
            part: sub_path.clone(),
            mounted: mounted(source),
        });
        let from = match sub_path {
            None => volume.clone(),
            Some(sub_path) => {
                let target =
                    paths::volume_subpath(&node.paths, &pod.uid, &mount.volume, &container.name, index);
                all.sub_paths.push(SubPathBind {
                    mount: mount.volume.clone(),
                    volume: volume.clone(),
                    of: if is_image { PartOf::Image(written(mount)) } else { PartOf::Volume },
                    sub_path,
                    target: target.clone(),
                });
                target
            }
        };
        if mount.propagation != MountPropagation::Private || is_host_path(inputs, source, &from) {
            all.sources.push(MountSource { path: from.clone(), propagation: mount.propagation });
        }
        binds.push(Bind {
            from,
            to: mount_point(&mount.path)?,
            access: access(inputs, mount, source)?,
            propagation: mount.propagation,
            // Those of an image are shifted where it is mounted.
            has_node_owners: !is_image,
            labelled,
        });
    }
    Ok(binds)
}

fn access(
    inputs: &ContainerInputs<'_>,
    mount: &Mount,
    source: Option<&VolumeSource>,
) -> Result<Access, ConfigError> {
    let refused = || ConfigError::RecursiveReadOnly { volume: mount.volume.to_string() };
    Ok(match mount.is_recursively_read_only(inputs.recursive_read_only).ok_or_else(refused)? {
        true => Access::RecursiveReadOnly,
        false if mount.read_only || source.is_some_and(is_to_read) => Access::ReadOnly,
        false => Access::ReadWrite,
    })
}

/// Whether `from` is a path of the node, whole: what nobody made is made as the container is, like under containerd's CRI.
fn is_host_path(inputs: &ContainerInputs<'_>, source: Option<&VolumeSource>, from: &str) -> bool {
    source.is_some_and(|source| match source {
        VolumeSource::HostPath { path, .. } => path == from,
        VolumeSource::Claim(_) => !is_of_pod(inputs, from),
        VolumeSource::EmptyDir { .. } | VolumeSource::Content(_) | VolumeSource::Image { .. } => false,
    })
}

/// Whether a path is below the pod's directory, where what a claim has brought is bound unless it is a path of the node.
fn is_of_pod(inputs: &ContainerInputs<'_>, path: &str) -> bool {
    let dir = paths::pod_dir(&inputs.node.paths, &inputs.pod.uid);
    path.strip_prefix(&dir).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether what is in a volume is labelled for those who mount it (`Managed` and `SELinuxRelabel` of `GetAttributes`, `pkg/volume/*`).
fn is_labelled(inputs: &ContainerInputs<'_>, source: &VolumeSource, place: &str) -> bool {
    match source {
        VolumeSource::EmptyDir { .. } | VolumeSource::Content(_) => true,
        VolumeSource::Claim(claim) => !claim.read_only && is_of_pod(inputs, place),
        VolumeSource::HostPath { .. } | VolumeSource::Image { .. } => false,
    }
}

/// What the agent has mounted at a volume's directory.
fn mounted(source: &VolumeSource) -> Mounted {
    let medium = match source {
        VolumeSource::EmptyDir { medium, .. } => *medium,
        VolumeSource::Content(content) => content.kind.medium(),
        VolumeSource::Claim(_) => return Mounted::Bound,
        VolumeSource::HostPath { .. } | VolumeSource::Image { .. } => Medium::Disk,
    };
    if medium == Medium::Disk { Mounted::Nothing } else { Mounted::Memory }
}

/// Whether a volume is not for containers to write, whatever they ask for: the agent keeps its content up to date, or it is an image
/// (`GetAttributes` of `pkg/volume/{configmap,secret,downwardapi,projected,image}`), or the pod says so of its claim.
pub(super) fn is_to_read(source: &VolumeSource) -> bool {
    match source {
        VolumeSource::Content(_) | VolumeSource::Image { .. } => true,
        VolumeSource::Claim(claim) => claim.read_only,
        VolumeSource::EmptyDir { .. } | VolumeSource::HostPath { .. } => false,
    }
}

/// The part of a volume as the pod says it.
fn written(mount: &Mount) -> String {
    match &mount.sub_path {
        SubPath::Root => String::new(),
        SubPath::Fixed(path) | SubPath::Expression(path) => path.clone(),
    }
}

/// The part of the volume that is mounted; an expression is checked after it was expanded, and told as it is written: what it
/// refers to may be secret.
fn sub_path(
    mount: &Mount,
    environment: &Environment,
    budget: &mut Budget,
) -> Result<Option<String>, ConfigError> {
    let (path, written) = match &mount.sub_path {
        SubPath::Root => return Ok(None),
        SubPath::Fixed(path) => (path.clone(), path),
        SubPath::Expression(text) => match env::expand_path(text, budget, &environment.known) {
            Ok(path) => (path, text),
            Err(NoPath::TooLong(error)) => return Err(error.into()),
            Err(NoPath::Missing(_to_come)) if environment.is_partial => return Ok(None),
            Err(NoPath::Missing(names)) => return Err(ConfigError::SubPathVariables { names }),
        },
    };
    if path.starts_with('/') {
        return Err(ConfigError::SubPathAbsolute { path: written.clone() });
    }
    if path.split('/').any(|part| part == "..") || path.contains('\0') {
        return Err(ConfigError::SubPathBacksteps { path: written.clone() });
    }
    Ok(Some(path).filter(|path| !path.is_empty()))
}

fn etc_hosts(inputs: &ContainerInputs<'_>, names: &HostNames, files: &mut Vec<HostFile>) -> Option<Bind> {
    let file = files::etc_hosts(inputs.node, inputs.pod, names, inputs.network)?;
    let bind = Bind::own(file.path.clone(), ETC_HOSTS.to_owned());
    files.push(file);
    Some(bind)
}

fn termination_log(
    inputs: &ContainerInputs<'_>,
    files: &mut Vec<HostFile>,
) -> Result<Option<Bind>, ConfigError> {
    let ContainerInputs { node, pod, container, id, .. } = *inputs;
    let wanted = &container.termination_message.path;
    if wanted.is_empty() {
        return Ok(None);
    }
    let to = mount_point(wanted)?;
    let path = paths::termination_log(&node.paths, &pod.uid, &container.name, id);
    files.push(file(path.clone(), 0o666, String::new(), ExistingFile::Keep));
    Ok(Some(Bind::own(path, to)))
}

fn etc_hostname(inputs: &ContainerInputs<'_>, files: &mut Vec<HostFile>) -> Result<Bind, ConfigError> {
    let file = files::etc_hostname(inputs.node, inputs.pod, inputs.sandbox_attempt)?;
    let bind = read_only_as_root(inputs, file.path.clone(), ETC_HOSTNAME);
    files.push(file);
    Ok(bind)
}

fn resolv_conf(inputs: &ContainerInputs<'_>, files: &mut Vec<HostFile>) -> Result<Bind, ConfigError> {
    let file = files::resolv_conf(inputs.node, inputs.pod, inputs.sandbox_attempt)?;
    let bind = read_only_as_root(inputs, file.path.clone(), RESOLV_CONF);
    files.push(file);
    Ok(bind)
}

/// Files that the runtime adds are as writable as the root file system.
fn read_only_as_root(inputs: &ContainerInputs<'_>, from: String, to: &str) -> Bind {
    let access = if inputs.container.security.read_only_root { Access::ReadOnly } else { Access::ReadWrite };
    Bind { access, ..Bind::own(from, to.to_owned()) }
}

/// The image's `VOLUME`s that the pod mounts nothing on. A path that goes up is refused: what is copied from it must be the
/// image's own (CVE-2022-23648).
fn image_volumes(
    inputs: &ContainerInputs<'_>,
    binds: &mut Vec<Bind>,
    volumes: &mut Vec<ImageVolume>,
) -> Result<(), ConfigError> {
    let ContainerInputs { node, pod, container, id, image, .. } = *inputs;
    let count = image.config.volumes.len();
    if count > IMAGE_VOLUMES_MAX {
        return Err(ConfigError::ImageVolumes { count, max: IMAGE_VOLUMES_MAX });
    }
    for (index, path) in image.config.volumes.iter().enumerate() {
        let to = cleaned(path);
        if to == "/" || path.contains('\0') || path.split('/').any(|part| part == "..") {
            return Err(ConfigError::ImageVolume { path: path.clone() });
        }
        if binds.iter().any(|bind| bind.to == to) {
            continue;
        }
        let target = paths::image_volume(&node.paths, &pod.uid, &container.name, id, index);
        volumes.push(ImageVolume { target: target.clone(), image_path: to.clone() });
        binds.push(Bind::own(target, to));
    }
    Ok(())
}

fn root_propagation(binds: &[Bind]) -> Option<&'static str> {
    let any = |wanted| binds.iter().any(|bind| bind.propagation == wanted);
    if any(MountPropagation::Bidirectional) {
        Some("rshared")
    } else if any(MountPropagation::HostToContainer) {
        Some("rslave")
    } else {
        None
    }
}

/// What every container has, less what the pod mounts something else on. `/dev/shm` stands for the pod's own, which the
/// shim puts in its place.
fn base(inputs: &ContainerInputs<'_>, binds: &[Bind]) -> Vec<OciMount> {
    let access = if inputs.container.security.privileged { "rw" } else { "ro" };
    let all = [
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount(DEV_SHM, "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", access]),
        cgroup(inputs, access),
    ];
    let covered = |path: &str| {
        binds.iter().any(|bind| bind.to == path || bind.to == "/dev" && path.starts_with("/dev/"))
    };
    all.into_iter().filter(|mount| mount.destination().to_str().is_none_or(|path| !covered(path))).collect()
}

/// Without a cgroup namespace, a new mount of version 2 would change the options of the node's only superblock: a
/// privileged container gets the node's mount itself.
fn cgroup(inputs: &ContainerInputs<'_>, access: &str) -> OciMount {
    match inputs.node.cgroups.version {
        CgroupVersion::V2 if inputs.container.security.privileged => {
            mount(CGROUP, "bind", CGROUP, &["rbind", "rprivate", "nosuid", "noexec", "nodev", access])
        }
        CgroupVersion::V1 | CgroupVersion::V2 => {
            mount(CGROUP, "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", access])
        }
    }
}

fn mount(to: &str, kind: &str, from: &str, options: &[&str]) -> OciMount {
    let mut mount = OciMount::default();
    mount
        .set_destination(to.into())
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(from.into()))
        .set_options(Some(options.iter().map(|option| (*option).to_owned()).collect()));
    mount
}

pub(super) fn mount_point(path: &str) -> Result<String, ConfigError> {
    if path.contains('\0') {
        return Err(ConfigError::Nul { what: "mount path" });
    }
    Ok(cleaned(path))
}

/// An absolute path resolved by its letters: `..` at the root stays there.
fn cleaned(path: &str) -> String {
    let mut parts = Vec::new();
    path.split('/').for_each(|part| step(&mut parts, part));
    format!("/{}", parts.join("/"))
}

/// Goes one part of a path further.
pub(super) fn step<'a>(parts: &mut Vec<&'a str>, part: &'a str) {
    match part {
        "" | "." => {}
        ".." => {
            parts.pop();
        }
        part => parts.push(part),
    }
}
