//! Manifests: from what people write to what the core works with.
//!
//! A text is parsed into a tree with places, read strictly into the API's types, given the defaults that the kubelet gives
//! a static pod, and converted into [`berth_core::spec::Pod`]. What the API server would refuse is refused here, with
//! file, line and field. A field that is understood and not acted on is named, never passed over in silence; where
//! passing over it would weaken the pod's isolation or leave it without data, it is a fault.

mod api;
mod container;
mod content;
mod ephemeral;
mod hash;
mod lifecycle;
mod mount;
mod names;
mod notes;
mod pod;
mod probe;
mod read;
mod resources;
mod restarts;
mod scheduling;
mod security;
mod told;
mod volume;

pub use api::api_pod;
pub use ephemeral::as_container;
pub use names::is_dns_subdomain;
use names::{is_dns_label, is_env_name, is_label_text, is_port_name, is_qualified_name};
pub use pod::{deletion, ended, readiness_gates};
pub use read::{Manifest, Origin, pod_from_json, read};
pub(crate) use scheduling::NODE_OPERATORS;
pub(crate) use volume::HOST_PATH_TYPES;

#[cfg(test)]
mod tests;
