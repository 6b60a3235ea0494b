//! What follows from a pod's spec and the node's configuration: files, names, settings and sums.

pub mod app_armor;
pub mod claim;
pub mod conf_template;
pub mod content;
pub mod downward;
pub mod env;
pub mod env_file;
pub mod hostname;
pub mod hosts;
pub mod iptables;
pub mod network;
pub mod qos;
pub mod references;
pub mod resolv;
pub mod security;
pub mod termination;
pub mod totals;
