//! Fills in what only the node can say when a container starts.

use std::path::PathBuf;

use oci_spec::runtime::{Linux, LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType, LinuxSeccomp, Spec};

use super::{BlockVolume, ConfigError, ContainerPlan, HostDevices};

/// What the shell read for a plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeParts<'a> {
    /// Text of the profile at [`ContainerPlan::seccomp_file`]; `None` when it could not be read.
    pub seccomp: Option<&'a str>,
    /// Profiles that the kernel has loaded, as it lists them, for a plan with an AppArmor profile; `None` when they could not be read.
    pub app_armor: Option<&'a str>,
    /// Devices below `/dev`, for a plan with [`HostDevices::All`].
    pub devices: &'a [HostDevice],
    /// Those of [`ContainerPlan::devices`], in their order.
    pub volumes: &'a [HostDevice],
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDevice {
    /// Absolute path.
    pub path: PathBuf,
    /// Character or block.
    pub kind: HostDeviceKind,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Kind of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDeviceKind {
    /// Character.
    Char,
    /// Block.
    Block,
}

/// The spec to run.
///
/// # Errors
///
/// When the plan names a seccomp profile that was not read, is empty, is not one, or would filter nothing
/// (CVE-2023-2431: it fails closed), or an AppArmor profile that is not loaded.
pub fn complete(plan: &ContainerPlan, parts: NodeParts<'_>) -> Result<Spec, ConfigError> {
    let mut spec = plan.spec.clone();
    if let Some(choice) = &plan.app_armor {
        let name = choice.name().to_owned();
        if !parts.app_armor.is_some_and(|loaded| choice.is_among(loaded)) {
            return Err(ConfigError::AppArmor { why: format!("apparmor profile not found {name}") });
        }
        if let Some(process) = spec.process_mut() {
            process.set_apparmor_profile(Some(name));
        }
    }
    let Some(linux) = spec.linux_mut() else { return Ok(spec) };
    if let Some(path) = &plan.seccomp_file {
        linux.set_seccomp(Some(profile(path, parts.seccomp)?));
    }
    match plan.host_devices {
        HostDevices::None => {}
        HostDevices::All => {
            linux.set_devices(Some(parts.devices.iter().map(device).collect()));
        }
    }
    add_volumes(linux, &plan.devices, parts.volumes);
    Ok(spec)
}

/// Volumes that are devices, each with a rule of the cgroup. Source: containerd `internal/cri/opts` `WithDevices`.
fn add_volumes(linux: &mut Linux, volumes: &[BlockVolume], found: &[HostDevice]) {
    if volumes.is_empty() {
        return;
    }
    let (mut devices, mut resources) =
        (linux.devices().clone().unwrap_or_default(), linux.resources().clone().unwrap_or_default());
    let mut rules = resources.devices().clone().unwrap_or_default();
    for (volume, host) in volumes.iter().zip(found) {
        let host = HostDevice { path: volume.path.clone().into(), ..host.clone() };
        devices.retain(|device| *device.path() != host.path);
        devices.push(device(&host));
        let mut rule = LinuxDeviceCgroup::default();
        rule.set_allow(true)
            .set_typ(Some(kind(host.kind)))
            .set_major(Some(host.major.into()))
            .set_minor(Some(host.minor.into()))
            .set_access(Some(if volume.read_only { "r" } else { "mrw" }.to_owned()));
        rules.push(rule);
    }
    resources.set_devices(Some(rules));
    linux.set_devices(Some(devices)).set_resources(Some(resources));
}

fn kind(kind: HostDeviceKind) -> LinuxDeviceType {
    match kind {
        HostDeviceKind::Char => LinuxDeviceType::C,
        HostDeviceKind::Block => LinuxDeviceType::B,
    }
}

fn profile(path: &str, text: Option<&str>) -> Result<LinuxSeccomp, ConfigError> {
    let refuse = |why: &str| ConfigError::Seccomp { path: path.to_owned(), why: why.to_owned() };
    let text = text.ok_or_else(|| refuse("no such file"))?;
    if text.trim().is_empty() {
        return Err(refuse("the file is empty"));
    }
    serde_json::from_str(text).map_err(|error| refuse(&error.to_string()))
}

fn device(host: &HostDevice) -> LinuxDevice {
    let mut device = LinuxDevice::default();
    device
        .set_path(host.path.clone())
        .set_typ(kind(host.kind))
        .set_major(host.major.into())
        .set_minor(host.minor.into())
        .set_file_mode(Some(host.mode))
        .set_uid(Some(host.uid))
        .set_gid(Some(host.gid));
    device
}
