//! The calls that need `unsafe`, behind functions that do not.

mod descriptor;
mod pid1;
mod signal;
mod terminal;

pub(crate) use descriptor::{inherited, receive, spawn_with};
pub(crate) use pid1::spawn_pid1;
pub(crate) use signal::{handle_signals, kill};
pub(crate) use terminal::resize;
