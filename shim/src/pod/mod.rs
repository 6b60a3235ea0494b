//! The pod's namespaces: entered or made by the shim, which keeps them (decision 0002), and given to members.

mod asked;
mod error;
mod life;
mod member;
mod network;
mod node;
mod shm;
mod user;

#[cfg(test)]
mod tests;

pub(crate) use life::Pod;
pub(crate) use node::Node;
pub(crate) use shm::shm_path;
