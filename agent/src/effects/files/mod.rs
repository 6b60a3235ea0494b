//! The port of files: what workers do on paths of pods and of the node (decision 0019).

pub(super) mod app_armor;
pub(super) mod claims;
pub(super) mod dirs;
pub(super) mod env_file;
pub(super) mod host_files;
pub(super) mod mount_source;
pub(super) mod relabel;
pub(super) mod sub_path;
pub(super) mod termination;
pub(super) mod volumes;
pub(super) mod wire;
pub(super) mod work;

use super::{cgroups, failure, host};

pub(crate) use work::{changeable, manifests, measured};
