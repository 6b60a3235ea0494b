//! SELinux labels of containers and of what they mount.
//!
//! Sources: containerd `internal/cri/server/{container_create,helpers}.go`, `podsandbox/{sandbox_run_linux,helpers_linux}.go`;
//! `go-selinux/{selinux_linux,label/label_linux}.go` of `github.com/opencontainers/selinux`.

mod context;
mod label;
mod level;

pub use context::Context;
pub use label::{LabelError, Labels, Mounted, Relabel, RelabelPlace, SeLinux, check_sandbox, labels};
pub use level::{CATEGORIES, free, is_level};
