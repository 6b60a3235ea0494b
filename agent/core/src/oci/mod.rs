//! The OCI runtime spec of a container, as the kubelet and containerd's CRI would write it together.
//!
//! Pure: everything the spec depends on comes in by [`ContainerInputs`]. What only the node can say at the moment of the
//! start (the text of a seccomp profile, the devices there are) is filled in by [`complete`]; a plan that was not
//! completed runs nothing.

mod annotations;
mod app_armor;
mod capabilities;
mod complete;
mod error;
mod exec;
mod files;
mod handler;
mod linux;
mod mounts;
mod oom;
mod plan;
mod process;
mod resources;
mod seccomp;
mod user;
mod values;

pub use app_armor::{AppArmorChoice, DEFAULT_PROFILE, ProfileTerms, default_profile};
pub use complete::{HostDevice, HostDeviceKind, NodeParts, complete};
pub use error::ConfigError;
pub use exec::{ExecTerminal, exec_process};
pub use files::{ExistingFile, HostFile, pod_files};
pub use handler::{HandlerTerms, PrivilegedDevices, with_terms};
pub use oom::score_adj;
pub use plan::{
    BlockVolume, ContainerInputs, ContainerPlan, HostDevices, ImageVolume, MountSource, OCI_VERSION, PartOf,
    SubPathBind, container_plan,
};
pub use resources::resized;
pub use user::Accounts;
pub use values::ObjectValues;

#[cfg(test)]
mod tests;
