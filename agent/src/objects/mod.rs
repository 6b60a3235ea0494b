//! Objects of the API server that pods name: what is in them, for as long as a pod on this node names them.
//!
//! Each object is watched by itself (`pkg/kubelet/util/manager/watch_based_manager.go`), because that is all that a node may do
//! with those of others' pods, and known as it was last seen while the API server is away. Their content is given to whoever
//! makes a volume or a container of a pod, and goes nowhere else: the core knows names and that something has changed.

mod asked;
mod cache;
mod claims;
mod content;
mod environment;
mod error;
#[cfg(test)]
pub(crate) mod fake;
mod keyring;
mod lists;
mod malformed;
mod payload;
mod services;
mod tokens;

pub use cache::Objects;
pub use claims::claimed;
pub use content::Content;
pub use environment::environment;
pub use error::ObjectError;
pub use keyring::{Credential, Keyring, is_for};
pub use malformed::MalformedSecret;
pub use payload::{Payload, gather};
