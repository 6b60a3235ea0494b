//! The Berth node agent: everything that touches the machine, around the decisions of `berth-core`.

pub mod config;
pub mod view;
