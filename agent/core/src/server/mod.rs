//! The node's server, as far as it decides: which endpoint a request means, who may ask for it, and what was asked for.
//!
//! Source: `pkg/kubelet/server/server.go`, `auth.go`.

mod endpoint;

pub use endpoint::{ContainerPath, Endpoint, HealthCheck, PodPath};
