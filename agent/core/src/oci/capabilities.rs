//! Capabilities of the container's process.
//!
//! Source: containerd `pkg/oci` `defaultUnixCaps`, `internal/cri/opts` `WithCapabilities`. No ambient and no inheritable
//! ones (CVE-2022-24769).

use std::str::FromStr;

use oci_spec::runtime::{Capability, LinuxCapabilities};

use super::ConfigError;
use crate::{config::NodeConfig, spec::ContainerSecurity};

const ALL: &str = "ALL";

/// What a container has that names nothing.
const DEFAULT: [Capability; 14] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fsetid,
    Capability::Fowner,
    Capability::Mknod,
    Capability::NetRaw,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setfcap,
    Capability::Setpcap,
    Capability::NetBindService,
    Capability::SysChroot,
    Capability::Kill,
    Capability::AuditWrite,
];

/// Every capability by its number (`include/uapi/linux/capability.h`).
const BY_NUMBER: [Capability; 41] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setpcap,
    Capability::LinuxImmutable,
    Capability::NetBindService,
    Capability::NetBroadcast,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::IpcLock,
    Capability::IpcOwner,
    Capability::SysModule,
    Capability::SysRawio,
    Capability::SysChroot,
    Capability::SysPtrace,
    Capability::SysPacct,
    Capability::SysAdmin,
    Capability::SysBoot,
    Capability::SysNice,
    Capability::SysResource,
    Capability::SysTime,
    Capability::SysTtyConfig,
    Capability::Mknod,
    Capability::Lease,
    Capability::AuditWrite,
    Capability::AuditControl,
    Capability::Setfcap,
    Capability::MacOverride,
    Capability::MacAdmin,
    Capability::Syslog,
    Capability::WakeAlarm,
    Capability::BlockSuspend,
    Capability::AuditRead,
    Capability::Perfmon,
    Capability::Bpf,
    Capability::CheckpointRestore,
];

pub(super) fn capabilities(
    node: &NodeConfig,
    security: &ContainerSecurity,
) -> Result<LinuxCapabilities, ConfigError> {
    let set: oci_spec::runtime::Capabilities = effective(node, security)?.into_iter().collect();
    let mut capabilities = LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(set.clone()))
        .set_effective(Some(set.clone()))
        .set_permitted(Some(set))
        .set_inheritable(None)
        .set_ambient(None);
    Ok(capabilities)
}

/// The set by capability number: what the node has of the default, with `ALL` first, then what is added, less what is
/// dropped. Names that no kernel knows, or that this one does not, count for nothing, as runtimes have it; one that the agent
/// itself lacks is an error when it is asked for.
pub(super) fn effective(
    node: &NodeConfig,
    security: &ContainerSecurity,
) -> Result<Vec<Capability>, ConfigError> {
    let available = |number: usize| node.capabilities >> number & 1 == 1;
    let all = || BY_NUMBER.iter().enumerate().filter(|(number, _)| available(*number)).map(|(_, one)| *one);
    if security.privileged {
        return Ok(all().collect());
    }
    let (add, drop) = (&security.capabilities.add, &security.capabilities.drop);
    let names_all = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case(ALL));
    let mut set: Vec<Capability> = if names_all(drop) {
        Vec::new()
    } else if names_all(add) {
        all().collect()
    } else {
        all().filter(|one| DEFAULT.contains(one)).collect()
    };
    for one in added(security).filter(|one| is_known(node, *one)) {
        if !all().any(|available| available == one) {
            return Err(ConfigError::CapabilityUnavailable { name: format!("CAP_{one}") });
        }
        if !set.contains(&one) {
            set.push(one);
        }
    }
    set.retain(|one| !drop.iter().any(|name| parse(name) == Some(*one)));
    set.sort_by_key(|one| BY_NUMBER.iter().position(|known| known == one));
    Ok(set)
}

/// What is asked for and the kernel does not have: runtimes warn and go on. Source: runc `libcontainer/capabilities`
/// `New`.
pub(super) fn unknown_to_kernel(node: &NodeConfig, security: &ContainerSecurity) -> Vec<Capability> {
    if security.privileged {
        return Vec::new();
    }
    added(security).filter(|one| !is_known(node, *one)).collect()
}

fn added(security: &ContainerSecurity) -> impl Iterator<Item = Capability> {
    security.capabilities.add.iter().filter_map(|name| parse(name))
}

fn is_known(node: &NodeConfig, one: Capability) -> bool {
    let number = BY_NUMBER.iter().position(|known| *known == one);
    number.is_some_and(|number| node.kernel_capabilities >> number & 1 == 1)
}

fn parse(name: &str) -> Option<Capability> {
    let upper = name.to_ascii_uppercase();
    Capability::from_str(upper.strip_prefix("CAP_").unwrap_or(&upper)).ok()
}
