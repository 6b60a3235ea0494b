//! Real components, fixtures and the private world in which the whole-node tests run.
//!
//! Everything started here lives in [`lab`]: a process tree in its own pid, mount and network
//! namespaces, ended as a whole when its owner ends.

pub mod agent;
pub mod announced;
pub mod authority;
pub mod binaries;
pub mod cgroup;
pub mod cluster;
pub mod cni;
pub mod components;
pub mod containerd;
pub mod control;
pub mod cri;
pub mod differential;
pub mod files;
pub mod http;
pub mod https;
pub mod image;
pub mod kubelet;
pub mod lab;
pub mod links;
pub mod node;
pub mod old;
pub mod process;
pub mod records;
pub mod registry;
pub mod stored;
pub mod systemd;
pub mod vm;
pub mod wait;
pub mod websocket;
