//! The Berth node agent: everything that touches the machine, around the decisions of `berth-core`.

pub mod chain;
pub mod config;
pub mod control;
pub mod document;
pub mod logs;
pub mod manifest;
pub mod quantity;
pub mod source;
pub mod view;
