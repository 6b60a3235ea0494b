//! What containerd's own configuration says to its CRI plugin: tools such as NVIDIA's toolkit and kata-deploy write it there,
//! and a node that is moved from the kubelet has it there (decision 0032).
//!
//! ```text
//!   config.toml ─▶ imports ─▶ file: newest version ─▶ tree: merged ─▶ Section
//! ```

mod file;
mod load;
mod section;
mod tree;
mod unacted;

pub use load::Loaded;
pub(super) use load::load;
pub use section::{Section, Shim};
pub use tree::Said;

#[cfg(test)]
mod tests;
