//! Containers that share a shim by annotation, as containerd's CRI plugin has pods with the stock shim.

use super::call::{Bootstrap, runc_options};
use super::shim::Shim;
use super::spec::Spec;
use super::world::World;

/// The annotation of CRI.
pub const BY_SANDBOX: &str = "io.kubernetes.cri.sandbox-id";
/// The annotation of the stock shim, which comes first where both are given.
pub const BY_GROUP: &str = "io.containerd.runc.v2.group";

/// Containers that share a shim.
#[derive(Debug)]
pub struct Group<'w> {
    /// The shim of the first container, whose name is the group's.
    pub first: Shim<'w>,
    annotation: &'static str,
}

impl<'w> Group<'w> {
    /// Starts the shim for the first container.
    pub fn start(world: &'w World, id: &str, annotation: &'static str) -> Group<'w> {
        Group { first: start(world, id, id, annotation), annotation }
    }

    /// Has `start` run for a further container. It must lead to the same shim.
    pub fn join(&self, id: &str) -> Shim<'w> {
        let member = start(self.first.world, id, &self.first.id, self.annotation);
        assert_eq!((member.socket(), member.pid), (self.first.socket(), self.first.pid));
        member
    }
}

fn start<'w>(world: &'w World, id: &str, group: &str, annotation: &str) -> Shim<'w> {
    let spec = Spec::sh("exit 0").annotation(annotation, group);
    let mut shim = Shim::start(world, id, &spec.to_json(), Bootstrap::Messages);
    shim.task_options = Some(runc_options(world));
    shim
}
