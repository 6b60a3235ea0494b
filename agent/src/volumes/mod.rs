//! Volumes on the node: made, mounted, and taken away again without ever following a link that a pod has put there.

mod content;
mod empty_dir;
mod error;
mod host_path;
mod local;
mod mounts;
mod remove;

pub use content::{ContentFile, write as write_content};
pub use empty_dir::{EmptyDir, ensure as ensure_empty_dir};
pub use error::VolumeError;
pub use host_path::ensure as ensure_host_path;
pub use local::{ForGroup, LocalDir, check_block_device, ensure as ensure_local};
pub(crate) use mounts::is_mount_point;
pub use mounts::unmount_below;
pub use remove::{remove_tree, remove_tree_in};
