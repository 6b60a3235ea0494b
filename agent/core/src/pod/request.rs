//! Fills in what effects need.

use super::{
    actual::{Leftover, Life},
    port::network::{self},
};
use crate::effect::{Act, RemoveContainerRequest};

pub(super) fn removal(life: &Life, leftover: &Leftover) -> Act {
    match leftover {
        Leftover::Container(id) => Act::RemoveContainer(RemoveContainerRequest { id: id.clone() }),
        Leftover::Sandbox(id) => Act::RemoveSandbox(id.clone()),
        Leftover::Network(id) => Act::RemoveNetwork(Box::new(network::request(life, id))),
        Leftover::Netns(id) => Act::RemoveNetns(id.clone()),
        Leftover::Volumes => Act::RemoveVolumes,
        Leftover::Cgroup => Act::RemoveCgroup(life.spec.qos),
        Leftover::Dirs => Act::RemoveDirs(life.record.name.clone()),
        Leftover::End => Act::DropEnd,
        Leftover::Record => Act::Forget,
    }
}
