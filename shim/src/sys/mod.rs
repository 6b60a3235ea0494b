//! The calls that need `unsafe`, behind functions that do not.

mod core_dump;
mod descriptor;
mod fork;
mod label;
mod loop_device;
mod memory;
mod mount_tree;
mod namespace;
mod pid1;
mod pidfd;
mod signal;
mod terminal;
mod user_namespace;

pub(crate) use core_dump::keep_out_of_core_dumps;
pub(crate) use descriptor::{close_all, inherited, own_descriptors, receive, spawn_with};
pub(crate) use fork::{Child, before_exec, fork, stand_alone, stand_in};
#[cfg(test)]
pub(crate) use label::label;
pub(crate) use label::set_label;
pub(crate) use loop_device::{LoopAccess, configure_loop_device, free_loop_device};
pub(crate) use memory::{give_memory_back, trim};
pub(crate) use mount_tree::{Extent, Writing, attach, clone_tree, map_ids};
pub(crate) use namespace::{become_root, owner_of};
pub(crate) use pid1::{POD_INIT, pod_init, spawn_pid1};
pub(crate) use pidfd::{hold, pidfd_of, signal_held};
pub(crate) use signal::{handle_signals, keep_children_to_oneself, kill, reap};
pub(crate) use terminal::resize;
pub(crate) use user_namespace::user_namespace;
