//! The Berth node agent: everything that touches the machine, around the decisions of `berth-core`.

pub mod app;
pub mod cgroup;
pub mod chain;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod document;
pub mod effects;
pub mod failpoint;
pub mod holder;
pub mod log_writer;
pub mod logs;
pub mod manifest;
pub mod netns;
pub mod network;
pub mod node_loop;
pub mod quantity;
pub mod runtime;
pub mod source;
pub mod store;
pub mod view;
pub mod volumes;
